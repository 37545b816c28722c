//! Several samples of SGLang: each has a room of its own, and the client sees one answer.

use std::collections::BTreeMap;

use baton_sim::Dialect;
use serde_json::json;

use crate::support::{Ask, House, PROMPT, Plan};

#[tokio::test]
async fn smg_a3_a5_a_plain_answer_has_every_sample_in_its_place() {
    let house = Plan::pairs(Dialect::Sglang, 2, 2).open().await;
    let ask = Ask::chat(PROMPT, 9).with(json!({"n": 3}));
    let reply = ask.post(house.address).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answer = reply.json();
    let choices = answer["choices"].as_array().unwrap();
    let indices: Vec<u64> = choices.iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2]);
    for choice in 0..3 {
        assert_eq!(ask.text_of(&reply, choice), ask.expected(), "sample {choice}");
    }
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 27);
    assert_eq!(usage["total_tokens"].as_u64().unwrap(), usage["prompt_tokens"].as_u64().unwrap() + 27);
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (3, 3), "{stats:?}");
    let page = house.page().await;
    assert_eq!(
        page.sum("smg_router_requests_total", &[r#"endpoint="chat""#]),
        1.0,
        "the client sent one request"
    );
    house.close().await;
}

#[tokio::test]
async fn a_stream_interleaves_the_samples_under_one_id() {
    let house = House::pair(Dialect::Sglang).await;
    let ask =
        Ask::chat(PROMPT, 12).with(json!({"n": 4, "stream_options": {"include_usage": true}})).streamed();
    let reply = ask.post(house.address).await;
    assert_eq!(reply.status, 200);
    let mut texts: BTreeMap<u64, String> = BTreeMap::new();
    let mut ids = std::collections::BTreeSet::new();
    let mut usages = 0;
    for event in reply.events() {
        ids.insert(event["id"].to_string());
        usages += usize::from(event["usage"].is_object());
        for choice in event["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap();
            *texts.entry(index).or_default() += choice["delta"]["content"].as_str().unwrap_or("");
        }
    }
    assert_eq!((ids.len(), usages, texts.len()), (1, 1, 4));
    assert!(texts.values().all(|t| *t == ask.expected()), "{texts:?}");
    assert!(reply.text().ends_with("data: [DONE]\n\n") && reply.text().matches("[DONE]").count() == 1);
    house.close().await;
}

#[tokio::test]
async fn generate_answers_with_a_list() {
    let house = House::pair(Dialect::Sglang).await;
    let ask = Ask::generate(PROMPT, 5)
        .with(json!({"sampling_params": {"n": 2, "max_new_tokens": 5, "temperature": 0}}));
    let reply = ask.post(house.address).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let list = reply.json();
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    assert!(list.as_array().unwrap().iter().all(|one| one["text"] == ask.expected()), "{list}");
    house.close().await;
}

#[tokio::test]
async fn samples_fail_together_and_a_client_that_leaves_ends_them_all() {
    let mut house = House::pair(Dialect::Sglang).await;
    let refused = Ask::chat(PROMPT, 5).with(json!({"n": 3, "temperature": -1})).post(house.address).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    let too_many = Ask::chat(PROMPT, 5).with(json!({"n": 129})).post(house.address).await;
    assert_eq!(too_many.error(), (400, "invalid_value".to_owned()));
    let mut stream = Ask::chat(PROMPT, 2000).with(json!({"n": 3})).streamed().stream(house.address).await;
    stream.read_events(5).await;
    stream.leave();
    house.quiet().await;
    house.close().await;
}
