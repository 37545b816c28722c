//! Errors in the shape of the API: before an answer, in the middle of one, and for what is not served.

use baton_sim::{Dialect, Fault, FaultKind, Where};
use bytes::Bytes;
use http::Method;
use serde_json::json;

use super::{Talk, named, refusal, refused};
use crate::support::{Gate, House, Line, PROMPT, Plan, Reply, Step, Streamed, on, request};

#[tokio::test]
async fn smg_a27_messages_without_output_are_refused_before_any_worker_is_asked() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    for talk in [Talk::messages(PROMPT, 0), Talk::messages(PROMPT, 0).streamed()] {
        let reply = talk.post(house.address).await;
        assert_eq!(refusal(&reply), refused(400, "invalid_request_error", "max_tokens_zero_not_relayed"));
        assert!(reply.header("x-request-id").starts_with("msg_"));
    }
    assert!(house.taps.iter().all(|tap| tap.count() == 0));
    house.close().await;
}

#[tokio::test]
async fn errors_of_the_gateway_have_anthropics_shape() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).args("--max-payload-size 3000").open().await;
    let unknown = Talk::messages(PROMPT, 4).with(json!({"model": "nobodys"}));
    assert_eq!(
        refusal(&unknown.post(house.address).await),
        refused(404, "not_found_error", "model_not_found")
    );
    let long = Talk::messages(&"x".repeat(4000), 4);
    assert_eq!(
        refusal(&long.post(house.address).await),
        refused(413, "request_too_large", "request_body_too_large")
    );
    let odd = Talk::messages(PROMPT, 4).with(json!({"stream": "yes"}));
    assert_eq!(
        refusal(&odd.post(house.address).await),
        refused(400, "invalid_request_error", "invalid_type")
    );
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let broken = request(Method::POST, path, &[], Bytes::from_static(b"{\"model\":"));
        let reply = Reply::send(house.address, broken).await;
        assert_eq!(refusal(&reply), refused(400, "invalid_request_error", "invalid_json"));
        let reply = Reply::get(house.address, path).await;
        assert_eq!(refusal(&reply), refused(405, "invalid_request_error", "method_not_allowed"));
        assert_eq!(reply.header("allow"), "POST");
    }
    house.close().await;
}

#[tokio::test]
async fn errors_of_an_engine_before_the_answer_have_anthropics_shape() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().no_retries().open().await;
    for (status, kind, code) in [
        (400, "invalid_request_error", "decode_bad_request"),
        (404, "not_found_error", "decode_not_found"),
        (429, "rate_limit_error", "decode_error"),
        (500, "api_error", "decode_internal_error"),
        (503, "overloaded_error", "decode_unavailable"),
    ] {
        for talk in [Talk::messages(PROMPT, 8), Talk::messages(PROMPT, 8).streamed()] {
            // The prefill waits, so that it is the decode's word that counts.
            house.taps[0].script([Step::Wait(Gate::default())]);
            let body = r#"{"type":"error","error":{"type":"odd_kind","message":"the engine's words"}}"#;
            house.taps[1].script([Step::json(status, "retry-after: 7\r\n", body)]);
            let reply = talk.post(house.address).await;
            assert_eq!(refusal(&reply), refused(status, kind, code), "{}", reply.text());
            assert_eq!(reply.json()["error"]["message"], "the engine's words");
            assert_eq!(reply.header("retry-after"), "7");
        }
    }
    house.close().await;
}

#[tokio::test]
async fn the_simulated_engines_refuse_in_anthropics_shape_and_their_words_arrive() {
    for (dialect, code) in
        [(Dialect::Vllm, "prefill_upstream_error"), (Dialect::Sglang, "prefill_bad_request")]
    {
        let house = House::pair(dialect).await;
        let long = Talk::messages(PROMPT, 1_000_000).post(house.address).await;
        assert_eq!(long.status, 400, "{}", long.text());
        assert!(long.json()["error"]["message"].as_str().unwrap().contains("32768"), "{}", long.text());
        let hot = Talk::messages(PROMPT, 8).with(json!({"temperature": -1.0})).post(house.address).await;
        assert_eq!(refusal(&hot), refused(400, "invalid_request_error", code), "{}", hot.text());
        house.close().await;
    }
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_event() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let mut house = Plan::pairs(dialect, 1, 1).engines(|s| s.timeout_scale = 0.01).open().await;
        house.arm(1, Fault { chunks: Some(5), ..on(Where::Decode, FaultKind::Reset) }).await;
        let reply = Talk::messages(PROMPT, 40).streamed().post(house.address).await;
        assert_eq!((reply.status, reply.broken), (200, false));
        let events = named(&reply.text());
        let (name, last) = events.last().unwrap();
        assert_eq!((name.as_str(), &last["type"]), ("error", &json!("error")), "{}", reply.text());
        assert_eq!(last["error"]["type"], "api_error");
        assert!(last["error"]["message"].as_str().unwrap().contains("decode"), "{last}");
        assert!(!reply.text().contains("[DONE]"));
        assert_eq!(events.iter().filter(|(name, _)| name == "content_block_delta").count(), 3);
        let page = house.page().await;
        assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="cut""#]), 1.0);
        house.expire_what_was_stranded();
        house.close().await;
    }
}

/// Half an event is ended first, so that the client reads the error as an event of its own.
#[tokio::test]
async fn a_break_inside_an_event_does_not_swallow_the_error() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    house.taps[1].script([
        Step::stream_head(""),
        Step::chunk("event: content_block_delta\ndata: {\"type\":\"content_bl"),
        Step::Reset,
    ]);
    let reply = Talk::messages(PROMPT, 1).streamed().post(house.address).await;
    let (before, error) =
        reply.text().rsplit_once("event: error\n").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert!(before.ends_with("\n\n") && error.starts_with("data: {\"error\":"), "{}", reply.text());
    house.close().await;
}

#[tokio::test]
async fn an_error_that_the_engine_tells_in_a_stream_is_passed_on_as_it_is() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let mut house = Plan::pairs(dialect, 1, 1).engines(|s| s.timeout_scale = 0.01).open().await;
        house.arm(1, Fault { chunks: Some(4), ..on(Where::Decode, FaultKind::ErrorEvent) }).await;
        let reply = Talk::messages(PROMPT, 40).streamed().post(house.address).await;
        let events = named(&reply.text());
        let error = events.iter().find(|(name, _)| name == "error").unwrap();
        assert_eq!(error.1["error"]["message"], "Internal server error", "{}", reply.text());
        let kind = if dialect == Dialect::Vllm { "internal_error" } else { "api_error" };
        assert_eq!(error.1["error"]["type"], kind);
        assert_eq!(events.iter().filter(|(name, _)| name == "error").count(), 1, "the gateway adds none");
        house.expire_what_was_stranded();
        house.close().await;
    }
}

#[tokio::test]
async fn smg_a25_what_is_not_served_says_so_in_the_shape_of_the_api() {
    let house = House::pair(Dialect::Vllm).await;
    let mut line = Line::open(house.address).await;
    for (method, path, advice) in [
        (Method::POST, "/v1/embeddings", "directly"),
        (Method::POST, "/v1/classify", "directly"),
        (Method::POST, "/v1/score", "directly"),
        (Method::POST, "/v1/audio/transcriptions", "directly"),
        (Method::POST, "/v1/interactions", "directly"),
        (Method::POST, "/v1/decisions", "directly"),
        (Method::POST, "/v1/systemone", "directly"),
        (Method::GET, "/v1/realtime", "directly"),
        (Method::POST, "/v1/tokenize", "directly"),
        (Method::GET, "/v1/responses/resp_1", "engine"),
        (Method::DELETE, "/v1/responses/resp_1", "engine"),
        (Method::POST, "/v1/responses/resp_1/cancel", "engine"),
        (Method::GET, "/v1/responses/resp_1/input_items?limit=3", "engine"),
        (Method::POST, "/v1/conversations", "engine"),
        (Method::GET, "/v1/conversations/c/items", "engine"),
    ] {
        let body = if method == Method::POST { Bytes::from_static(b"{}") } else { Bytes::new() };
        let reply = line.send(request(method.clone(), path, &[], body.clone())).await;
        assert_eq!(reply.error(), (501, "not_implemented".into()), "{path}");
        let json = reply.json();
        assert_eq!((&json["error"]["type"], &json["error"]["param"]), (&json!("server_error"), &json!(null)));
        assert!(json["error"]["message"].as_str().unwrap().contains(advice), "{json}");
        let reply = line.send(request(method, path, &[("anthropic-version", "2023-06-01")], body)).await;
        assert_eq!(refusal(&reply), refused(501, "api_error", "not_implemented"), "{path}");
    }
    let batches = line.send(request(Method::GET, "/v1/messages/batches/b/results", &[], Bytes::new())).await;
    assert_eq!(refusal(&batches), refused(501, "api_error", "not_implemented"));
    for path in ["/v1/embedding", "/v1/embeddingsx", "/v1/respond", "/v1/responsesx/1"] {
        let reply = line.send(request(Method::GET, path, &[], Bytes::new())).await;
        assert_eq!(reply.error(), (404, "unknown_url".into()), "{path}");
    }
    drop(line);
    let page = house.page().await;
    assert_eq!(page.sum("smg_http_responses_total", &[r#"error_code="not_implemented""#]), 31.0);
    house.close().await;
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_of_messages_frees_both_engines() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let mut house = Plan::pairs(dialect, 1, 1).engines(|s| s.timeout_scale = 0.01).open().await;
        let talk = Talk::messages(PROMPT, 20_000).with(json!({"ignore_eos": true})).streamed();
        let mut stream = Streamed::post(house.address, talk.path, &talk.body).await;
        stream.read_until("content_block_delta").await;
        stream.leave();
        house.quiet().await;
        assert_eq!(house.stats().await.requests.aborted, 1);
        house.close().await;
    }
}
