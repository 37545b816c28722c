//! SGLang's `/generate` with the prompt's log probabilities: the client sees the prefill's and the decode's.

use baton_sim::Dialect;
use serde_json::{Value, json};

use crate::support::{Ask, House, PROMPT, Plan};

fn listed(answer: &Value) -> usize {
    answer["meta_info"]["input_token_logprobs"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn smg_a18_the_prompts_log_probabilities_reach_the_client_plain_and_streamed() {
    let whole = Plan::new(baton_sim::FleetSpec::whole(Dialect::Sglang, 1)).open().await;
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
