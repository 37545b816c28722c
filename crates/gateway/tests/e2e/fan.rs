//! Several samples of SGLang: each has a room of its own, and the client sees one answer.

use std::collections::BTreeMap;

use baton_core::fleet::Engine;
use baton_sim::{Dialect, FleetSpec};
use serde_json::json;

use crate::support::{Ask, Gate, House, PROMPT, Plan, Raw, Step, until};

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

#[tokio::test]
async fn a_silence_of_all_samples_is_filled_with_comments() {
    let plan = Plan::pairs(Dialect::Sglang, 1, 1).tapped().args("--sse-keepalive-secs 0.03");
    let house = plan.open().await;
    let event = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let gate = Gate::default();
    house.taps[0].always([Step::json(200, "", "{}")]);
    house.taps[1].always([
        Step::stream_head(""),
        // Half of an event is no reason to be silent, and no place for a comment.
        Step::chunk(&event[..20]),
        Step::Wait(gate.clone()),
        Step::chunk(&event[20..]),
        Step::chunk("data: [DONE]\n\n"),
        Step::last_chunk(),
    ]);
    let ask = Ask::chat(PROMPT, 9).with(json!({"n": 2})).streamed();
    let mut stream = ask.stream(house.address).await;
    stream.read_until(&": keep-alive\n\n".repeat(3)).await;
    // A client that has closed its sending half is asked whether it is there, as any other.
    let mut half = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    half.read_until(": keep-alive").await;
    half.half_close().await;
    half.read_until(": still there?\n\n").await;
    gate.open();
    let text = stream.rest().await.text().replace(": keep-alive\n\n", "");
    let second = event.replace("\"index\":0", "\"index\":1");
    assert!([event, &second].iter().all(|event| text.contains(event)), "{text}");
    assert_eq!(text.len(), event.len() + second.len() + "data: [DONE]\n\n".len());
    half.read_all().await;
    house.close().await;
}

#[tokio::test]
async fn a_sample_whose_event_does_not_end_is_a_fault_and_no_end() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let mut steps = vec![Step::stream_head(""), Step::chunk("data: ")];
    steps.extend(std::iter::repeat_n(Step::chunk(&"x".repeat(1 << 20)), 17));
    house.taps[0].always([Step::json(200, "", "{}")]);
    house.taps[1].always(steps);
    let reply = Ask::chat(PROMPT, 9).with(json!({"n": 2})).streamed().post(house.address).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains(r#""code":"decode_read_failed""#), "{}", reply.text());
    house.close().await;
}

/// One sample falls to a pair whose prefill may have the last word: that is the sample's answer.
#[tokio::test]
async fn a_sample_that_ends_with_its_first_token_does_not_end_the_others() {
    let engines = FleetSpec::pairs(Dialect::Sglang, 1, 1).and(FleetSpec::pairs(Dialect::Vllm, 1, 1));
    let plan = Plan::new(engines).tapped().args("--prefill-policy round_robin").registered(|spec| {
        if spec.kv_connector.take().is_some() {
            spec.engine = Some(Engine::Trtllm);
        }
    });
    let mut house = plan.open().await;
    let last = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop",
            "disaggregated_params": {"request_type": "context_only", "ctx_request_id": 5}}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}});
    house.taps[2].always([Step::json(200, "", &last.to_string())]);
    for streamed in [false, true] {
        for n in [2, 4] {
            let ask = Ask::chat(PROMPT, 9).with(json!({"n": n, "stream": streamed}));
            let reply = ask.post(house.address).await;
            assert_eq!((reply.status, reply.broken), (200, false), "{}", reply.text());
            let mut texts: Vec<String> = (0..n).map(|at| ask.text_of(&reply, at)).collect();
            texts.sort();
            let half = n as usize / 2;
            let expected = [vec![ask.expected(); half], vec!["x".to_owned(); half]].concat();
            assert_eq!(texts, expected, "{}", reply.text());
            let kind = if streamed { "text/event-stream" } else { "application/json" };
            assert!(reply.header("content-type").starts_with(kind), "{:?}", reply.headers);
            assert!(!reply.text().contains("disaggregated_params"));
        }
    }
    assert_eq!(house.taps[3].count(), 0, "there was nothing left to generate");
    until("all have ended", || (0..4).all(|at| house.in_flight(at) == 0)).await;
    let page = house.page().await;
    assert_eq!(page.sum("smg_router_requests_total", &[r#"endpoint="chat""#]), 4.0);
    assert_eq!(page.sum("smg_router_request_errors_total", &[]), 0.0);
    house.no_after();
    house.close().await;
}
