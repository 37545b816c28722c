//! What SMG 1.13 does over HTTP, as it was observed there: each case a test that bears its number. Where Baton does
//! otherwise, the test shows that, and docs/differences.md says why.

use baton_core::breaker::BreakerState;
use baton_core::fleet::{Role, Status};
use baton_sim::Dialect;
use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::field::{DONE, asked, content, send};
use crate::support::{Ask, Gate, House, PROMPT, Plan, Reply, SOON, Step, request, until, until_within};

const TWO_PAIRS: &str = "--prefill-policy round_robin --decode-policy round_robin";

fn ask() -> Ask {
    Ask::chat(PROMPT, 8)
}

/// The head of a JSON answer whose body is yet to come.
fn head(length: usize) -> Step {
    Step::say(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ))
}

#[tokio::test]
async fn smg_a11_a12_a_stream_begins_on_both_heads_and_not_before() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let (first, rest, body) = (Gate::default(), Gate::default(), Gate::default());
    // The prefill's head is late; its body comes after everything else.
    house.taps[0].script([Step::Wait(first.clone()), head(2), Step::Wait(body.clone()), Step::say("{}")]);
    let events = [content("a"), format!("{}{DONE}", content("b"))];
    house.taps[1].script([
        Step::stream_head(""),
        Step::chunk(&events[0]),
        Step::Wait(rest.clone()),
        Step::chunk(&events[1]),
        Step::last_chunk(),
    ]);
    let address = house.address;
    let begun = tokio::spawn(async move { ask().streamed().stream(address).await });
    until("the decode has begun", || house.taps[1].said() > events[0].len()).await;
    assert!(!begun.is_finished(), "the prefill may yet refuse");
    first.open();
    let mut stream = begun.await.unwrap();
    assert_eq!((stream.status, stream.headers["content-type"].to_str().unwrap()), (200, "text/event-stream"));
    stream.read_until(&events[0]).await;
    rest.open();
    assert_eq!(stream.rest().await.text(), events.concat(), "to the byte, while the prefill still runs");
    assert_eq!(house.page().await.sum("baton_detached_legs", &[]), 1.0);
    body.open();
    house.close().await;
}

#[tokio::test]
async fn smg_a13_a_prefill_that_breaks_after_the_heads_leaves_the_stream_alone_and_is_charged() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let (breaks, rest) = (Gate::default(), Gate::default());
    house.taps[0].script([head(200), Step::Wait(breaks.clone()), Step::Reset]);
    let last = format!("{}{DONE}", content("b"));
    house.taps[1].script([
        Step::stream_head(""),
        Step::chunk(&content("a")),
        Step::Wait(rest.clone()),
        Step::chunk(&last),
        Step::last_chunk(),
    ]);
    let mut stream = ask().streamed().stream(house.address).await;
    stream.read_until(&content("a")).await;
    breaks.open();
    until("the prefill is charged", || house.blamed(0) == 1).await;
    rest.open();
    assert_eq!(stream.rest().await.text(), format!("{}{last}", content("a")));
    assert_eq!(house.blamed(1), 0);
    house.close().await;
}

#[tokio::test]
async fn smg_a14_a_stream_that_is_cut_ends_with_the_error_in_the_apis_form() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let two = [content("a"), content("b")];
    for path in ["/v1/chat/completions", "/v1/messages"] {
        house.taps[0].script([Step::json(200, "", "{}")]);
        house.taps[1].script([Step::stream_head(""), Step::chunk(&two.concat()), Step::Fin]);
        let reply = Reply::post(house.address, path, &ask().streamed().body).await;
        let text = reply.text();
        let after = text.strip_prefix(&two.concat()).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((reply.status, reply.broken), (200, false));
        if path == "/v1/messages" {
            let data = after.strip_prefix("event: error\ndata: ").unwrap_or_else(|| panic!("{after}"));
            let error: serde_json::Value = serde_json::from_str(data).unwrap();
            assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("api_error")));
        } else {
            assert_eq!(reply.events().last().unwrap()["error"]["type"], "stream_error");
            assert!(after.starts_with("data: {\"error\":") && after.ends_with(DONE), "{after}");
        }
    }
    house.close().await;
}

#[tokio::test]
async fn smg_a15_a_client_that_hangs_up_after_the_heads_ends_the_decode_and_not_the_prefill() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let rest = Gate::default();
    house.taps[0].script([head(2), Step::Wait(rest.clone()), Step::say("{}")]);
    house.taps[1].script([Step::stream_head(""), Step::chunk(&content("a")), Step::Never]);
    let mut stream = ask().streamed().stream(house.address).await;
    stream.read_until(&content("a")).await;
    stream.leave();
    until_within(SOON, "the decode leg is closed", || asked(&house, 1)[0].is_gone()).await;
    assert!(!asked(&house, 0)[0].is_gone(), "closing it would end a transfer under way");
    rest.open();
    until("the prefill leg is read to its end", || house.in_flight(0) == 0).await;
    assert!(!asked(&house, 0)[0].is_gone(), "and its connection serves again");
    house.close().await;
}

#[tokio::test]
async fn smg_a17_a_plain_answer_with_log_probabilities_waits_for_the_prefills_whole_answer() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let rest = Gate::default();
    house.taps[0].script([head(2), Step::Wait(rest.clone()), Step::say("{}")]);
    let answer = r#"{"choices":[{"index":0,"logprobs":{"content":[]}}]}"#;
    house.taps[1].script([Step::json(200, "", answer)]);
    let sent = send(&house, ask().with(json!({"logprobs": true})));
    until("the decode has answered", || house.taps[1].said() > answer.len()).await;
    assert!(!sent.is_finished());
    rest.open();
    let reply = sent.await.unwrap();
    assert_eq!((reply.text().as_str(), reply.header("content-type")), (answer, "application/json"));
    house.close().await;
}

#[tokio::test]
async fn smg_a21_a_refused_stream_is_a_status_and_json() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let refusal = r#"{"error":{"message":"no such schema","code":400}}"#;
    house.taps[0].script([Step::Never]);
    house.taps[1].script([Step::json(400, "", refusal)]);
    let reply = ask().streamed().post(house.address).await;
    assert_eq!(reply.error(), (400, "decode_bad_request".into()));
    assert_eq!(reply.json()["error"]["message"], "no such schema");
    assert_eq!(reply.header("content-length"), reply.body.len().to_string());
    house.close().await;
}

async fn remove(house: &House, at: usize) {
    let id = house.seat(at).worker.id.clone();
    let gone = request(Method::DELETE, &format!("/workers/{id}"), &[], Bytes::new());
    assert_eq!(Reply::send(house.address, gone).await.status, 202);
}

#[tokio::test]
async fn smg_a24_a_leg_that_nobody_serves_is_named() {
    for (at, leg) in [(0, "prefill"), (1, "decode")] {
        let house = House::pair(Dialect::Sglang).await;
        remove(&house, at).await;
        until("it has left", || house.gateway().registry.load_full().len() == 1).await;
        let reply = ask().post(house.address).await;
        assert_eq!(reply.error(), (503, "no_available_workers".into()));
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains(leg), "{}", reply.text());
        house.close().await;
    }
}

#[tokio::test]
async fn smg_a29_another_pair_is_tried_five_times_in_all() {
    // One of two prefills refuses always: the other one serves.
    let house = Plan::pairs(Dialect::Sglang, 2, 2).tapped().args(TWO_PAIRS).open().await;
    house.taps[0].always([Step::json(503, "", "{}")]);
    for _ in 0..4 {
        ask().served(house.address).await;
    }
    assert!(!asked(&house, 0).is_empty(), "it was asked at all");
    house.close().await;
    // Both do: five attempts, and the refusal is told. A mistake: one.
    for (status, code, attempts) in [(503, "prefill_unavailable", 5), (400, "prefill_bad_request", 1)] {
        let mut house = Plan::pairs(Dialect::Sglang, 2, 2).tapped().open().await;
        for prefill in [0, 1] {
            house.taps[prefill].always([Step::json(status, "", "{}")]);
        }
        let reply = ask().post(house.address).await;
        assert_eq!(reply.error(), (status, code.into()));
        assert_eq!(asked(&house, 0).len() + asked(&house, 1).len(), attempts);
        house.no_after();
        house.close().await;
    }
}

#[tokio::test]
async fn smg_a30_the_breaker_of_the_leg_that_failed_opens_and_no_other() {
    let plan = Plan::pairs(Dialect::Sglang, 1, 1).tapped().no_retries();
    let house = plan.args("--cb-failure-threshold 2").open().await;
    house.taps[1].always([Step::json(500, "", "{}")]);
    for _ in 0..2 {
        assert_eq!(ask().post(house.address).await.error(), (500, "decode_internal_error".into()));
    }
    let reply = ask().post(house.address).await;
    assert_eq!(reply.error(), (503, "no_available_workers".into()));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("decode"), "{}", reply.text());
    assert_eq!(house.seat(0).pulse.breaker().state(), BreakerState::Closed);
    assert!(matches!(house.seat(1).pulse.breaker().state(), BreakerState::Open { .. }));
    house.close().await;
}

#[tokio::test]
async fn smg_a31_round_robin_takes_turns_on_each_leg() {
    for dialect in [Dialect::Sglang, Dialect::Vllm] {
        let house = Plan::pairs(dialect, 2, 2).tapped().args(TWO_PAIRS).open().await;
        let mut turns = vec![Vec::new(), Vec::new()];
        for _ in 0..6 {
            let before: Vec<usize> = (0..4).map(|at| asked(&house, at).len()).collect();
            ask().served(house.address).await;
            for (leg, turns) in turns.iter_mut().enumerate() {
                let of = [2 * leg, 2 * leg + 1];
                turns.push(*of.iter().find(|at| asked(&house, **at).len() > before[**at]).unwrap());
            }
        }
        for turns in &turns {
            assert!(turns.windows(2).all(|w| w[0] != w[1]), "{dialect:?} {turns:?}");
        }
        house.close().await;
    }
}

#[tokio::test]
async fn smg_b37_several_samples_go_to_the_decode_alone_and_are_counted_with_its_connector() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    let several = ask().with(json!({"n": 2, "stream": false}));
    several.served(house.address).await;
    assert_eq!((asked(&house, 0).len(), asked(&house, 1).len()), (0, 1));
    assert_eq!(asked(&house, 1)[0].json(), several.body, "the client's body, untouched");
    ask().with(json!({"n": 1})).served(house.address).await;
    assert_eq!(asked(&house, 0)[0].json()["n"], 1);
    let page = house.page().await;
    assert_eq!(page.sum("smg_pd_kv_connector_mode_total", &[r#"mode="nixl""#]), 2.0);
    house.close().await;
}

#[tokio::test]
async fn smg_b38_a_prefill_that_returns_nothing_costs_a_count_and_no_answer() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    for answer in [r#"{"id":"p","choices":[]}"#, r#"{"id":"p","kv_transfer_params":null}"#] {
        house.taps[0].script([Step::json(200, "", answer)]);
        ask().served(house.address).await;
        assert!(asked(&house, 1).last().unwrap().json().get("kv_transfer_params").is_none());
    }
    assert_eq!(house.page().await.sum("smg_pd_kv_transfer_failures_total", &[]), 2.0);
    house.close().await;
}

/// The message is found in the three places where engines put it.
#[tokio::test]
async fn smg_b39_a_prefills_refusal_is_told_in_its_words_and_no_decode_is_asked() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries().open().await;
    let bodies = [r#"{"error":{"message":"why"}}"#, r#"{"object":"error","message":"why"}"#, "why"];
    for (status, body) in [400, 404, 422, 429, 500, 503].into_iter().zip(bodies.into_iter().cycle()) {
        house.taps[0].script([Step::json(status, "", body)]);
        let reply = ask().with(json!({"stream": status % 2 == 0})).post(house.address).await;
        assert_eq!(reply.error(), (status, "prefill_upstream_error".into()), "{body}");
        assert_eq!(reply.json()["error"]["message"], "why", "{body}");
    }
    assert_eq!((asked(&house, 1).len(), house.blamed(1), house.transitions(1)), (0, 0, 0));
    house.close().await;
}

#[tokio::test]
async fn smg_b47_connectors_that_do_not_speak_with_each_other_make_no_pair() {
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).unready().registered(|spec| {
        let own = if spec.role == Role::Prefill { "NixlConnector" } else { "MooncakeConnector" };
        spec.kv_connector = Some(own.into());
    });
    let mut house = plan.open().await;
    until("both are ready", || {
        house.gateway().registry.load_full().seats().all(|seat| seat.pulse.status() == Status::Ready)
    })
    .await;
    let reply = ask().post(house.address).await;
    assert_eq!(reply.error(), (503, "no_compatible_pd_pair".into()));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("transport"), "{}", reply.text());
    house.no_after();
    house.close().await;
}

#[tokio::test]
async fn smg_f84_what_is_turned_away_has_its_code() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).args("--max-payload-size 1000").open().await;
    let long = Ask::chat(&"x".repeat(2000), 4).body.to_string();
    for (method, path, body, status, code, allow) in [
        (Method::POST, "/v1/chat/completions", long.as_str(), 413, "request_body_too_large", ""),
        (Method::GET, "/v1/nothing", "", 404, "unknown_url", ""),
        (Method::GET, "/v1/chat/completions", "", 405, "method_not_allowed", "POST"),
        (Method::POST, "/v1/models", "", 405, "method_not_allowed", "GET, HEAD"),
    ] {
        let asking = request(method, path, &[], Bytes::from(body.to_owned()));
        let reply = Reply::send(house.address, asking).await;
        assert_eq!((reply.error(), reply.header("allow")), ((status, code.into()), allow), "{path}");
    }
    house.close().await;
}

/// A prefill that refuses after both legs were sent, streamed or not, is told with its status and not as a stream.
#[tokio::test]
async fn smg_a19_statuses_that_upstream_makes_500_are_kept() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().no_retries().open().await;
    for status in [422, 429, 504] {
        for (at, code) in [(0, "prefill_error"), (1, "decode_error")] {
            house.taps[1 - at].script([Step::Never]);
            house.taps[at].script([Step::json(status, "", r#"{"message":"why"}"#)]);
            let reply = ask().with(json!({"stream": at == 0})).post(house.address).await;
            assert_eq!(reply.error(), (status, code.into()));
            let other = asked(&house, 1 - at).pop().unwrap();
            until_within(SOON, "the other leg is closed", || other.is_gone()).await;
        }
    }
    house.close().await;
}
