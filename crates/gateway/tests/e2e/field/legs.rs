//! What each leg is sent, and what becomes of it when its partner fails.

use baton_sim::Dialect;
use serde_json::json;

use super::{DONE, asked, content, send};
use crate::support::{Ask, Gate, House, PROMPT, Plan, SOON, Step, sse, until, until_within, within};

#[tokio::test]
async fn a01_a_prefill_leg_that_is_refused_takes_the_decode_leg_along() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let words = "Input length 200001 exceeds 131072";
    let refusal = json!({"object": "error", "message": words, "type": "BadRequestError", "code": 400});
    let gate = Gate::default();
    house.taps[0].script([Step::Wait(gate.clone()), Step::json(400, "", &refusal.to_string()), Step::Fin]);
    house.taps[1].script([Step::Never]);
    let sent = send(&house, Ask::chat(PROMPT, 8).streamed());
    until("both legs are there", || (0..2).all(|at| asked(&house, at).len() == 1)).await;
    gate.open();
    let reply = within(SOON, "the refusal", sent).await.unwrap();
    assert_eq!(reply.error(), (400, "prefill_bad_request".into()));
    assert_eq!(reply.json()["error"]["message"], words);
    until_within(SOON, "the decode leg is closed", || asked(&house, 1)[0].is_gone()).await;
    assert_eq!((asked(&house, 0).len(), asked(&house, 1).len()), (1, 1), "a mistake is not tried again");
    assert_eq!((house.blamed(0), house.blamed(1)), (0, 0));
    let labels = [r#"status_code="400""#, r#"error_code="prefill_bad_request""#];
    assert_eq!(house.page().await.sum("smg_http_responses_total", &labels), 1.0);
    house.close().await;
}

#[tokio::test]
async fn a02_a_decode_leg_that_cannot_be_reached_takes_the_prefill_leg_along() {
    for retries in [true, false] {
        let plan = Plan::pairs(Dialect::Sglang, 1, 2).tapped();
        let house = if retries { plan } else { plan.no_retries() }.open().await;
        let gate = Gate::default();
        house.taps[0].script([Step::Never]);
        for decode in [1, 2] {
            house.taps[decode].script([Step::Wait(gate.clone()), Step::Reset]);
        }
        let ask = Ask::chat(PROMPT, 8).streamed();
        let sent = send(&house, ask.clone());
        let met = |at| asked(&house, at).len();
        until("both legs are there", || met(0) == 1 && met(1) + met(2) == 1).await;
        let first = if met(1) == 1 { 1 } else { 2 };
        house.taps[3 - first].clear();
        gate.open();
        let reply = sent.await.unwrap();
        until_within(SOON, "the prefill leg is closed", || asked(&house, 0)[0].is_gone()).await;
        if retries {
            ask.check(&reply);
            assert_eq!((met(0), met(first), met(3 - first)), (2, 1, 1), "once more, and to the other decode");
            let rooms: Vec<_> = asked(&house, 0).iter().map(|s| s.json()["bootstrap_room"].clone()).collect();
            assert_ne!(rooms[0], rooms[1], "a room for each attempt");
            assert_eq!(asked(&house, 3 - first)[0].json()["bootstrap_room"], rooms[1]);
        } else {
            assert_eq!(reply.error(), (502, "decode_request_failed".into()));
            assert_eq!((met(0), met(3 - first)), (1, 0));
        }
        house.close().await;
    }
}

/// The bodies of both legs of a request that is served.
async fn bodies(ask: Ask) -> (serde_json::Value, serde_json::Value) {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    ask.served(house.address).await;
    let legs = (asked(&house, 0)[0].json(), asked(&house, 1)[0].json());
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (1, 1), "{stats:?}");
    house.close().await;
    legs
}

#[tokio::test]
async fn a05_a_least_number_of_tokens_does_not_reach_the_prefill_leg() {
    let (prefill, decode) = bodies(Ask::chat(PROMPT, 64).with(json!({"min_tokens": 5}))).await;
    assert_eq!((prefill.get("min_tokens"), &prefill["max_tokens"]), (None, &json!(1)));
    assert_eq!((&decode["min_tokens"], &decode["max_tokens"]), (&json!(5), &json!(64)));
}

#[tokio::test]
async fn a06_a_prefill_leg_is_not_asked_to_stream() {
    let stream = json!({"stream_options": {"include_usage": true}});
    let (prefill, decode) = bodies(Ask::chat(PROMPT, 8).streamed().with(stream.clone())).await;
    assert_eq!((&prefill["stream"], prefill.get("stream_options")), (&json!(false), None));
    assert_eq!((&decode["stream"], &decode["stream_options"]), (&json!(true), &stream["stream_options"]));
    // One that streams all the same, or says something else that is no answer, has handed nothing over.
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    house.taps[0].script(sse(&[&content("h"), DONE]));
    Ask::chat(PROMPT, 8).streamed().served(house.address).await;
    assert!(asked(&house, 1)[0].json().get("kv_transfer_params").is_none());
    assert_eq!(house.page().await.sum("baton_handoffs_total", &[r#"result="missing""#]), 1.0);
    house.close().await;
}

#[tokio::test]
async fn a07_a_cap_in_its_newer_spelling_alone() {
    let ask = Ask::chat(PROMPT, 20).without("max_tokens").with(json!({"max_completion_tokens": 20}));
    let (prefill, decode) = bodies(ask).await;
    assert_eq!((prefill.get("max_tokens"), &prefill["max_completion_tokens"]), (None, &json!(1)));
    assert_eq!((decode.get("max_tokens"), &decode["max_completion_tokens"]), (None, &json!(20)));
}

#[tokio::test]
async fn a08_no_cap_at_all_stays_none_for_the_decode() {
    let ask = Ask::chat(PROMPT, 20).without("max_tokens").expecting(baton_sim::text::NATURAL_TOKENS);
    let (prefill, mut decode) = bodies(ask.clone()).await;
    assert_eq!(prefill["max_tokens"], 1);
    decode.as_object_mut().unwrap().remove("kv_transfer_params");
    assert_eq!(decode, ask.body, "nothing else is new, and nothing is gone");
}

#[tokio::test]
async fn ua04_an_error_of_the_prefill_after_the_first_token_keeps_the_stream() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let (prefill, decode) = (Gate::default(), Gate::default());
    let error = r#"{"error":{"message":"lost","code":500}}"#;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        error.len()
    );
    house.taps[0].script([Step::say(head), Step::Wait(prefill.clone()), Step::say(error)]);
    let (first, rest) = (content("a"), format!("{}{DONE}", content("b")));
    house.taps[1].script([
        Step::stream_head(""),
        Step::chunk(&first),
        Step::Wait(decode.clone()),
        Step::chunk(&rest),
        Step::last_chunk(),
    ]);
    let mut stream = Ask::chat(PROMPT, 8).streamed().stream(house.address).await;
    stream.read_until(&first).await;
    prefill.open();
    until("the prefill leg is over", || house.in_flight(0) == 0).await;
    decode.open();
    assert_eq!(
        stream.rest().await.text(),
        format!("{first}{rest}"),
        "its tokens prove that the hand-off worked"
    );
    let page = house.page().await;
    assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="served""#]), 1.0);
    assert_eq!(page.sum("smg_router_request_errors_total", &[]), 0.0);
    house.close().await;
}

#[tokio::test]
async fn ua05_a_decode_that_refuses_first_is_told_at_once() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    house.taps[0].script([Step::Never]);
    house.taps[1].script([Step::json(422, "", r#"{"error":{"message":"no such schema"}}"#)]);
    let reply = within(SOON, "the refusal", Ask::chat(PROMPT, 8).post(house.address)).await;
    assert_eq!(reply.error(), (422, "decode_error".into()));
    assert_eq!(reply.json()["error"]["message"], "no such schema");
    until_within(SOON, "the prefill leg is closed", || asked(&house, 0)[0].is_gone()).await;
    assert_eq!((asked(&house, 0).len(), asked(&house, 1).len()), (1, 1));
    house.close().await;
}

#[tokio::test]
async fn ua06_redirects_of_either_leg_are_not_followed() {
    let elsewhere = crate::support::Tap::before(([127, 0, 0, 1], 1).into()).await;
    let away = format!("location: http://{}/v1/chat/completions\r\n", elsewhere.address);
    for (dialect, at, code) in [
        (Dialect::Vllm, 0, "prefill_upstream_error"),
        (Dialect::Vllm, 1, "decode_bad_gateway"),
        (Dialect::Sglang, 0, "prefill_bad_gateway"),
        (Dialect::Sglang, 1, "decode_bad_gateway"),
    ] {
        for status in [301, 302, 307, 308] {
            let mut house = redirecting(dialect).await;
            house.taps[at].script([Step::json(status, &away, "")]);
            let reply = Ask::chat(PROMPT, 8).post(house.address).await;
            assert_eq!(reply.error(), (502, code.into()), "{dialect:?} {at} {status}");
            assert_eq!(reply.header("location"), "");
            assert_eq!(elsewhere.count(), 0);
            house.expire_what_was_stranded();
            house.close().await;
        }
    }
}

async fn redirecting(dialect: Dialect) -> House {
    let plan = Plan::pairs(dialect, 1, 1).tapped().no_retries();
    plan.engines(|s| s.timeout_scale = 0.01).open().await
}
