//! `/v1/messages/count_tokens`: one prefill, its request untouched, and no decode.

use std::net::SocketAddr;

use baton_sim::text::{chat_text, tokenize};
use baton_sim::{Dialect, FleetSpec, Role};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::{refusal, refused};
use crate::support::{Gate, PROMPT, Plan, Reply, Step, request};

/// Something was heard, so that the request is not simply sent again on another connection.
const HALF_A_HEAD: &str = "HTTP/1.1 200 OK\r\n";
const PATH: &str = "/v1/messages/count_tokens";

fn body(words: &str) -> Value {
    json!({"model": "sim", "system": "You read.", "messages": [{"role": "user", "content": words}]})
}

fn tokens(words: &str) -> usize {
    let all = json!([{"role": "system", "content": "You read."}, {"role": "user", "content": words}]);
    tokenize(&chat_text(&all)).len()
}

async fn count(address: SocketAddr, words: &str) -> Reply {
    Reply::post(address, PATH, &body(words)).await
}

#[tokio::test]
async fn smg_a26_one_prefill_gets_it_untouched_and_no_decode_hears_of_it() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).tapped().open().await;
        let sent = format!(
            "{{ \"system\" : \"You read.\",\"tools\":[ ],\"messages\":[{{\"content\":\"{PROMPT}\", \"role\":\"user\"}}],\
             \"thinking\":{{\"type\":\"enabled\",\"budget_tokens\":2048}},\"x\":1.10 ,\"model\":\"sim\"}}"
        );
        let reply =
            Reply::send(house.address, request(Method::POST, PATH, &[], Bytes::from(sent.clone()))).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()["input_tokens"], tokens(PROMPT), "{}", reply.text());
        let seen = house.taps[0].last();
        assert_eq!((seen.path.as_str(), &seen.body[..]), (PATH, sent.as_bytes()));
        assert_eq!((house.taps[0].count(), house.taps[1].count()), (1, 0));
        assert_eq!(reply.header("x-smg-routed-worker-id"), house.url(0));
        assert_eq!(reply.header("x-baton-prefill"), house.seat(0).worker.id);
        assert_eq!(reply.header("x-baton-decode"), "");
        assert!(reply.header("x-request-id").starts_with("msg_"));
        let page = house.page().await;
        let label = format!(r#"worker="{}""#, house.url(0));
        assert_eq!(page.sum("smg_worker_requests_total", &[&label]), 1.0);
        assert_eq!(page.sum("smg_worker_requests_total", &[]), 1.0);
        assert_eq!(
            page.sum("smg_router_requests_total", &[r#"endpoint="count_tokens""#, r#"backend_type="pd""#]),
            1.0
        );
        assert_eq!(page.sum("baton_handoffs_total", &[]), 0.0, "no hand-off was due");
        assert_eq!(page.sum("smg_pd_decode_ttft_seconds_count", &[]), 0.0);
        house.close().await;
    }
}

#[tokio::test]
async fn a_clients_hand_off_members_do_not_reach_the_engine() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let mut sent = body(PROMPT);
    for (key, value) in
        [("bootstrap_room", json!(7)), ("kv_transfer_params", json!({"a": 1})), ("rid", json!("r"))]
    {
        sent[key] = value;
    }
    assert_eq!(Reply::post(house.address, PATH, &sent).await.status, 200);
    assert_eq!(house.taps[0].last().json(), body(PROMPT));
    house.close().await;
}

#[tokio::test]
async fn it_counts_as_a_request_of_its_worker_while_it_runs_and_is_spread_by_the_prefill_policy() {
    let plan =
        Plan::pairs(Dialect::Vllm, 2, 1).tapped().args("--prefill-policy least_load --decode-policy random");
    let house = plan.open().await;
    let gates = [Gate::default(), Gate::default()];
    for (tap, gate) in house.taps.iter().zip(&gates) {
        tap.script([Step::Wait(gate.clone()), Step::Pass]);
    }
    let running: Vec<_> = (0..2)
        .map(|_| {
            let address = house.address;
            tokio::spawn(async move { count(address, PROMPT).await })
        })
        .collect();
    crate::support::until("each prefill has one", || (0..2).all(|at| house.taps[at].count() == 1)).await;
    assert_eq!((0..3).map(|at| house.in_flight(at)).collect::<Vec<_>>(), [1, 1, 0]);
    gates.iter().for_each(Gate::open);
    for one in running {
        assert_eq!(one.await.unwrap().status, 200);
    }
    house.close().await;
}

#[tokio::test]
async fn neither_a_decode_nor_a_partner_is_needed() {
    let house = Plan::new(FleetSpec::pairs(Dialect::Vllm, 1, 0)).open().await;
    assert_eq!(count(house.address, PROMPT).await.json()["input_tokens"], tokens(PROMPT));
    house.close().await;
    let house = Plan::new(FleetSpec::whole(Dialect::Sglang, 1)).open().await;
    let reply = count(house.address, PROMPT).await;
    assert_eq!(reply.json()["input_tokens"], tokens(PROMPT));
    assert_eq!(reply.header("x-smg-routed-worker-id"), house.url(0));
    house.close().await;
}

#[tokio::test]
async fn without_a_prefill_or_a_whole_worker_there_is_none_to_ask() {
    let house = Plan::new(FleetSpec::pairs(Dialect::Vllm, 0, 1)).open().await;
    let reply = count(house.address, PROMPT).await;
    assert_eq!(refusal(&reply), refused(503, "overloaded_error", "no_available_workers"));
    assert!(reply.text().contains("prefill") && reply.header("retry-after") == "1", "{}", reply.text());
    house.close().await;
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_on_a_fresh_worker() {
    let house = Plan::pairs(Dialect::Sglang, 2, 1).tapped().open().await;
    let failures = [
        vec![Step::json(503, "", "{}")],
        vec![Step::json(500, "", "{}")],
        vec![Step::json(429, "", "{}")],
        vec![Step::say(HALF_A_HEAD), Step::Reset],
    ];
    for (at, failure) in failures.into_iter().enumerate() {
        house.taps[0].script(failure.clone());
        house.taps[1].script(failure);
        let before = house.taps[0].count() + house.taps[1].count();
        // Whichever is asked first fails, the other one too, and the third try gets through.
        let reply = count(house.address, PROMPT).await;
        assert_eq!(reply.status, 200, "{at}: {}", reply.text());
        assert_eq!(house.taps[0].count() + house.taps[1].count() - before, 3, "{at}");
        assert!(house.taps[..2].iter().all(|tap| tap.count() > at), "both were asked");
    }
    assert_eq!(house.taps[2].count(), 0);
    assert_eq!(house.page().await.sum("smg_worker_retries_total", &[r#"endpoint="count_tokens""#]), 8.0);
    house.close().await;
}

#[tokio::test]
async fn what_an_engine_refuses_is_told_in_its_words_and_blames_only_the_prefill() {
    let mut house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries().open().await;
    house.no_after();
    for (status, kind, code, blamed) in [
        (400, "invalid_request_error", "prefill_bad_request", 0),
        (404, "not_found_error", "prefill_not_found", 0),
        (500, "api_error", "prefill_internal_error", 1),
        (503, "overloaded_error", "prefill_unavailable", 2),
    ] {
        let body = r#"{"type":"error","error":{"type":"x","message":"no template"}}"#;
        house.taps[0].script([Step::json(status, "", body)]);
        let reply = count(house.address, PROMPT).await;
        assert_eq!(refusal(&reply), refused(status, kind, code));
        assert_eq!(reply.json()["error"]["message"], "no template");
        assert_eq!((house.blamed(0), house.blamed(1)), (blamed, 0), "{status}");
    }
    house.taps[0].script([Step::say(HALF_A_HEAD), Step::Reset]);
    let reply = count(house.address, PROMPT).await;
    assert_eq!(refusal(&reply), refused(502, "api_error", "prefill_request_failed"));
    // The body breaks off after its head.
    house.taps[0].script([Step::say("HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"input"), Step::Reset]);
    let reply = count(house.address, PROMPT).await;
    assert!(reply.broken || reply.status == 502, "{}", reply.text());
    let page = house.page().await;
    assert_eq!(page.sum("smg_http_responses_total", &[r#"error_code="prefill_read_failed""#]), 1.0);
    assert_eq!((house.blamed(0), house.blamed(1)), (4, 0));
    house.close().await;
}

#[tokio::test]
async fn the_model_decides_which_workers_may_count() {
    let plan = Plan::pairs(Dialect::Vllm, 2, 1).engines(|spec| {
        if spec.role == Role::Prefill {
            spec.model = "one".into();
        }
    });
    let mut house = plan.open().await;
    house.no_after();
    let with = |model: &str| {
        let mut body = body(PROMPT);
        body["model"] = json!(model);
        body
    };
    assert_eq!(Reply::post(house.address, PATH, &with("one")).await.status, 200);
    let none = Reply::post(house.address, PATH, &with("three")).await;
    assert_eq!(refusal(&none), refused(404, "not_found_error", "model_not_found"));
    house.close().await;
}
