//! SGLang with the prompt's log probabilities: the client sees the prefill's and the decode's, as from one engine.

use baton_sim::{Dialect, FleetSpec};
use serde_json::{Value, json};

use crate::support::{Ask, House, PROMPT, Plan};

fn listed(answer: &Value) -> usize {
    answer["meta_info"]["input_token_logprobs"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn smg_a18_the_prompts_log_probabilities_reach_the_client_plain_and_streamed() {
    let whole = Plan::new(FleetSpec::whole(Dialect::Sglang, 1)).open().await;
    let ask = |streamed: bool| {
        let ask = Ask::generate(PROMPT, 6).with(json!({"return_logprob": true, "logprob_start_len": 0}));
        if streamed { ask.streamed() } else { ask }
    };
    let want = listed(&ask(false).served(whole.address).await.json());
    assert!(want > 0, "a worker that runs both phases reports them");
    whole.close().await;

    let house = House::pair(Dialect::Sglang).await;
    let plain = ask(false).served(house.address).await;
    assert_eq!(listed(&plain.json()), want);
    let streamed = ask(true).served(house.address).await;
    assert!(streamed.events().iter().all(|event| listed(event) == want), "{}", streamed.text());
    house.close().await;
}

/// `logprobs` of each choice, those of a stream's events one after another.
fn told(answers: &[Value]) -> Vec<Value> {
    let mut out = Vec::new();
    for choice in answers.iter().flat_map(|answer| answer["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        out.resize(out.len().max(index + 1), json!({}));
        for (name, list) in choice["logprobs"].as_object().unwrap() {
            let mut all = out[index][name].as_array().cloned().unwrap_or_default();
            all.extend(list.as_array().unwrap().iter().cloned());
            out[index][name] = all.into();
        }
    }
    out
}

#[tokio::test]
async fn a_completion_that_echoes_tells_the_prompts_log_probabilities_as_one_engine_does() {
    let whole = Plan::new(FleetSpec::whole(Dialect::Sglang, 1)).open().await;
    let house = House::pair(Dialect::Sglang).await;
    let texts = json!([PROMPT, "another one"]);
    for (more, samples) in [(json!({}), 1), (json!({"prompt": texts}), 1), (json!({"prompt": texts}), 2)] {
        for logprobs in [0, 2] {
            let ask = Ask::completion(PROMPT, 6).with(json!({"echo": true, "logprobs": logprobs}));
            let ask = ask.with(more.clone());
            let one = told(&[ask.post(whole.address).await.json()]);
            let length = one[0]["tokens"].as_array().unwrap().len();
            assert_eq!(
                length > 6,
                logprobs > 0,
                "the prompt's are told to who asks for alternatives: {one:?}"
            );
            // Each sample is a request of its own, so here they are alike.
            let want: Vec<Value> = one.into_iter().flat_map(|one| vec![one; samples]).collect();
            let ask = ask.with(json!({"n": samples}));
            let plain = ask.post(house.address).await;
            assert_eq!(told(&[plain.json()]), want, "{:?}", ask.body);
            let ask = ask.streamed();
            let streamed = ask.post(house.address).await;
            assert_eq!(told(&streamed.events()), want, "{:?} {}", ask.body, streamed.text());
        }
    }
    whole.close().await;
    house.close().await;
}
