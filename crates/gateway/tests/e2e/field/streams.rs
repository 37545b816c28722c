//! Event streams on their way: legal forms, the model's own words, errors, and streams that break.

use baton_sim::Dialect;
use serde_json::json;

use super::{DONE, asked, content, finish, one_worker, send, usage};
use crate::support::{Ask, Gate, House, PROMPT, Plan, Step, sse, until};

fn ask() -> Ask {
    Ask::chat(PROMPT, 8).streamed()
}

/// What these pieces become when an engine says them as a stream: the same bytes.
async fn passes(house: &House, pieces: &[&str]) {
    house.taps[0].script(sse(pieces));
    let reply = ask().post(house.address).await;
    let whole = pieces.concat();
    assert!(reply.text() == whole && !reply.broken, "{:.300}", reply.text());
}

async fn output_tokens(house: &House) -> f64 {
    house.page().await.sum("smg_router_tokens_total", &[r#"token_type="output""#])
}

#[tokio::test]
async fn a14_the_end_mark_in_the_models_own_words_ends_nothing() {
    let house = one_worker().await;
    let said = content("see data: [DONE]\n\ndata: [DONE] ok");
    let rest = format!("{}{}", content("still here"), finish("stop"));
    passes(&house, &[&said, &rest, DONE]).await;
    // A write that begins with the very bytes of the end mark, within a string.
    let at = said.rfind("data: [DONE] ok").unwrap();
    passes(&house, &[&said[..at], &said[at..], &rest, &usage(7, 3), DONE]).await;
    assert_eq!(output_tokens(&house).await, 3.0, "what came after was read");
    house.close().await;
}

#[tokio::test]
async fn a15_every_legal_framing_passes_and_is_understood() {
    let house = one_worker().await;
    let crlf = |event: &str| event.trim_end().to_owned() + "\r\n\r\n";
    let tight = crlf(&content("A")).replacen("data: ", "data:", 1);
    let named = format!("event: x\r\nid: 7\r\n{tight}");
    let two_lines = content("B").replacen("\"id\":\"c1\",", "\"id\":\"c1\",\ndata: ", 1);
    let lone_cr = content("C").trim_end().to_owned() + "\r\r";
    let (told, done) = (crlf(&usage(7, 3)), "data:[DONE]\r\n\r\n");
    for framed in [&named, &two_lines, &lone_cr] {
        passes(&house, &[": ping\r\n\r\n", framed, &told, done]).await;
    }
    assert_eq!(output_tokens(&house).await, 9.0);
    // A comment is no token.
    let (gate, rest) = (Gate::default(), format!("{}{DONE}", content("a")));
    house.taps[0].script([
        Step::stream_head(""),
        Step::chunk(": ping\n\n"),
        Step::Wait(gate.clone()),
        Step::chunk(&rest),
        Step::last_chunk(),
    ]);
    let mut stream = ask().stream(house.address).await;
    stream.read_until(": ping\n\n").await;
    let waited = std::time::Instant::now();
    until("time goes by", || waited.elapsed().as_millis() > 60).await;
    gate.open();
    stream.rest().await;
    let page = house.page().await;
    let first_tokens = page.sum("smg_router_ttft_seconds_sum", &[]);
    assert!(first_tokens > 0.06, "the time to the first token does not end at a comment: {first_tokens}");
    house.close().await;
}

#[tokio::test]
async fn a16_usage_with_no_choices_reaches_those_who_asked_and_nobody_else() {
    let house = one_worker().await;
    let pieces = [content("a"), finish("stop"), usage(7, 3), DONE.to_owned()];
    house.taps[0].script(sse(&pieces.each_ref().map(String::as_str)));
    let asking = ask().with(json!({"stream_options": {"include_usage": true}}));
    let reply = asking.post(house.address).await;
    assert_eq!(reply.text(), pieces.concat());
    assert!(usage(7, 3).contains(r#""choices":[]"#));
    assert_eq!(output_tokens(&house).await, 3.0);
    // Who did not ask gets no such chunk, because the engine was not asked for one on the client's behalf.
    let silent = ask().served(house.address).await;
    assert!(silent.events().iter().all(|event| !event["usage"].is_object()), "{}", silent.text());
    assert!(asked(&house, 0)[1].json().get("stream_options").is_none());
    house.close().await;
}

#[tokio::test]
async fn a17_errors_keep_the_form_of_what_has_begun() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries().open().await;
    // Before the stream: a status and JSON, with the engine's words.
    let refusal = r#"{"error":{"message":"bad temperature","type":"BadRequestError","code":400}}"#;
    let one = ask().with(json!({"max_tokens": 1}));
    house.taps[1].script([Step::json(400, "", refusal)]);
    let reply = one.post(house.address).await;
    assert_eq!(reply.error(), (400, "decode_bad_request".into()));
    assert_eq!(reply.json()["error"]["message"], "bad temperature");
    assert_eq!(reply.header("content-length"), reply.body.len().to_string());
    // The engine's own type of a plain answer.
    let typed =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: 2\r\n\r\n{}";
    house.taps[1].script([Step::say(typed)]);
    let plain = Ask::chat(PROMPT, 1).post(house.address).await;
    assert_eq!(plain.header("content-type"), "application/json; charset=utf-8");
    // After it has begun: one event that says what happened, and the end.
    house.taps[1].script([Step::stream_head(""), Step::chunk(&content("a")), Step::Fin]);
    let cut = one.post(house.address).await;
    assert_eq!(cut.cut_code(), "decode_read_failed");
    assert_eq!((cut.events().len(), cut.broken), (2, false), "{}", cut.text());
    house.close().await;
}

#[tokio::test]
async fn a24_what_the_client_has_begun_to_read_is_not_begun_again() {
    // Whether the break comes after a token or after the head alone: the client has the head by then.
    for said in [content("Hel"), String::new()] {
        let house = Plan::pairs(Dialect::Sglang, 1, 2).tapped().open().await;
        let gate = Gate::default();
        let mut steps = vec![Step::stream_head("")];
        steps.extend((!said.is_empty()).then(|| Step::chunk(&said)));
        steps.extend([Step::Wait(gate.clone()), Step::Reset]);
        house.taps[0].script([Step::json(200, "", "{}")]);
        for decode in [1, 2] {
            house.taps[decode].script(steps.clone());
        }
        let mut stream = ask().stream(house.address).await;
        stream.read_until(&said).await;
        gate.open();
        let reply = stream.rest().await;
        assert!(reply.text().starts_with(&said), "{}", reply.text());
        assert_eq!((reply.status, reply.cut_code()), (200, "decode_read_failed".to_owned()));
        assert_eq!(asked(&house, 1).len() + asked(&house, 2).len(), 1, "nobody else is asked");
        house.close().await;
    }
}

#[tokio::test]
async fn a24_another_attempt_before_the_head_is_seen_once_and_has_the_same_body() {
    let mut house =
        Plan::pairs(Dialect::Vllm, 1, 2).tapped().engines(|s| s.timeout_scale = 0.01).open().await;
    let gate = Gate::default();
    for decode in [1, 2] {
        house.taps[decode].script([Step::Wait(gate.clone()), Step::Reset]);
    }
    let ask = ask().with(json!({"seed": 9_007_199_254_740_993_u64}));
    let sent = send(&house, ask.clone());
    let met = |at| asked(&house, at).len();
    until("a decode has it", || met(1) + met(2) == 1).await;
    let first = if met(1) == 1 { 1 } else { 2 };
    house.taps[3 - first].clear();
    gate.open();
    ask.check(&sent.await.unwrap());
    let body = |at: usize| {
        let mut body = asked(&house, at)[0].json();
        assert!(body.as_object_mut().unwrap().remove("kv_transfer_params").is_some());
        body
    };
    assert_eq!(body(1), body(2), "the same but for the hand-off");
    house.may_expire(1);
    house.close().await;
}

#[tokio::test]
async fn ua02_one_event_of_eight_megabytes_passes_and_is_not_the_end_of_counting() {
    let house = one_worker().await;
    let large = content(&"x".repeat(8 << 20));
    passes(&house, &[&large, &usage(7, 3), DONE]).await;
    assert_eq!(output_tokens(&house).await, 3.0);
    house.close().await;
}

#[tokio::test]
async fn ua03_ten_thousand_events_in_one_write_all_arrive() {
    let house = one_worker().await;
    let many = content("a").repeat(10_000);
    passes(&house, &[&format!("{many}{}{DONE}", usage(7, 10_000))]).await;
    assert_eq!(output_tokens(&house).await, 10_000.0);
    let page = house.page().await;
    assert_eq!(page.sum("smg_router_ttft_seconds_count", &[]), 1.0);
    house.close().await;
}
