//! Why these workers? In a header, in a stream's comment, and on the page of the last requests.

use baton_sim::{Dialect, Fault, FaultKind};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::support::{House, Plan, Reply, fault, request};

const ASKS: [(&str, &str); 1] = [("x-baton-explain", "1")];

fn body(stream: bool) -> Value {
    json!({"model": "sim", "prompt": "Why these two, of all of them?", "max_tokens": 4, "stream": stream})
}

async fn post(house: &House, headers: &[(&str, &str)], stream: bool) -> Reply {
    let model = house.engine(0).spec().model.clone();
    let mut body = body(stream);
    body["model"] = json!(model);
    Reply::post_with(house.address, "/v1/completions", headers, &body).await
}

fn told(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[tokio::test]
async fn a_client_that_asks_is_told_why() {
    let args = "--explain-header --prefill-policy least_load --decode-policy round_robin";
    let house = Plan::pairs(Dialect::Vllm, 2, 1).args("--pd-disaggregation").args(args).tapped().open().await;
    let reply = post(&house, &ASKS, false).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let why = told(reply.header("x-baton-explain"));
    assert_eq!((&why["strategy"], &why["attempts"]), (&json!("legwise"), &json!(1)));
    assert_eq!(why["prefill"]["chosen"], reply.header("x-baton-prefill"));
    assert_eq!(why["decode"]["chosen"], reply.header("x-baton-decode"));
    assert_eq!((&why["prefill"]["tied"], &why["decode"]["tied"]), (&json!(2), &json!(1)));
    assert_eq!(why["prefill"]["scores"].as_array().unwrap().len(), 2);
    assert_eq!(why["prefill"]["scores"][0]["terms"]["in_flight"], 0.0);
    let fired = |name: &str| why["fired"].as_array().unwrap().iter().find(|step| step[0] == name).cloned();
    let policy = fired("prefill_policy").unwrap();
    assert!(policy[1].as_str().unwrap().starts_with("least_load: "), "{why}");

    let reply = post(&house, &ASKS, true).await;
    let text = reply.text();
    let comment = text.lines().next().unwrap().strip_prefix(": x-baton-explain ").unwrap();
    assert_eq!(told(comment), told(reply.header("x-baton-explain")));
    assert!(text.ends_with("data: [DONE]\n\n") && !reply.events().is_empty(), "{text}");

    assert_eq!(post(&house, &[], false).await.header("x-baton-explain"), "");
    assert_eq!(post(&house, &[("x-baton-explain", "0")], true).await.text().find("explain"), None);
    for tap in &house.taps {
        assert!(tap.seen().iter().all(|seen| seen.header("x-baton-explain").is_empty()));
    }
    house.close().await;
}

#[tokio::test]
async fn nobody_is_told_unless_the_operator_allows_it() {
    let house = House::pair(Dialect::Sglang).await;
    for stream in [false, true] {
        let reply = post(&house, &ASKS, stream).await;
        assert_eq!((reply.status, reply.header("x-baton-explain")), (200, ""));
        assert!(!reply.text().contains("explain"));
    }
    assert_eq!(Reply::get(house.address, "/debug/requests").await.error(), (404, "unknown_url".into()));
    house.close().await;
}

#[tokio::test]
async fn samples_that_are_served_one_by_one_are_told_too() {
    let house = Plan::pairs(Dialect::Sglang, 2, 1).args("--explain-header").open().await;
    let mut body = body(true);
    (body["model"], body["n"]) = (json!(house.engine(0).spec().model.clone()), json!(2));
    let reply = Reply::post_with(house.address, "/v1/completions", &ASKS, &body).await;
    let text = reply.text();
    let comment = text.lines().next().unwrap().strip_prefix(": x-baton-explain ").unwrap();
    assert_eq!(told(comment)["strategy"], "legwise");
    assert_eq!(told(reply.header("x-baton-explain"))["strategy"], "legwise");
    assert_eq!(text.matches("x-baton-explain").count(), 1);
    assert!(text.ends_with("data: [DONE]\n\n") && !reply.events().is_empty(), "{text}");
    house.close().await;
}

#[tokio::test]
async fn a_refusal_says_who_was_no_candidate() {
    let args = "--explain-header --disable-retries";
    let mut house = Plan::pairs(Dialect::Vllm, 1, 1).args(args).open().await;
    let id = house.seat(1).worker.id.clone();
    house.seat(1).pulse.set_status(baton_core::fleet::Status::NotReady);
    let reply = post(&house, &ASKS, false).await;
    assert_eq!(reply.error(), (503, "no_available_workers".into()));
    let why = told(reply.header("x-baton-explain"));
    let left_out = &why["decode"]["scores"][0];
    assert_eq!((&left_out["worker"], &left_out["skipped"]), (&json!(id), &json!("not ready")), "{why}");
    house.seat(1).pulse.set_status(baton_core::fleet::Status::Ready);
    house.ready().await;
    house.close().await;
}

#[tokio::test]
async fn the_last_requests_are_kept_with_tries_and_times() {
    let args = "--debug-requests 3 --api-key k --pd-disaggregation --policy least_load";
    let mut house = Plan::pairs(Dialect::Vllm, 2, 1).args(args).open().await;
    house.no_after();
    let key = ("authorization", "Bearer k");
    for (at, id) in ["one", "two", "three"].into_iter().enumerate() {
        if at == 2 {
            // Whichever prefill comes first fails once.
            let refuses = || Fault { status: Some(503), ..fault(FaultKind::Status) };
            house.arm(0, refuses()).await;
            house.arm(1, refuses()).await;
        }
        assert_eq!(post(&house, &[key, ("x-request-id", id)], false).await.status, 200);
    }
    assert_eq!(post(&house, &[("x-request-id", "no-key")], false).await.status, 401);
    assert_eq!(Reply::get(house.address, "/debug/requests").await.status, 401);
    let page =
        async |path: &str| Reply::send(house.address, request(Method::GET, path, &[key], Bytes::new())).await;
    let list = page("/debug/requests").await.json();
    let ids: Vec<_> = list["requests"].as_array().unwrap().iter().map(|r| r["id"].clone()).collect();
    assert_eq!(ids, ["no-key", "three", "two"], "the oldest has gone");
    assert_eq!(page("/debug/requests/one").await.error(), (404, "unknown_url".into()));
    let three = page("/debug/requests/three").await.json();
    assert_eq!((&three["status"], &three["handoff"]), (&json!(200), &json!("relayed")), "{three}");
    let (tries, retries) = (three["placements"].as_array().unwrap(), three["retries"].as_array().unwrap());
    assert_eq!((tries.len(), retries.len()), (tries.len(), tries.len() - 1), "{three}");
    assert!(tries.len() > 1 && retries[0]["leg"] == "prefill", "{three}");
    assert!(tries.iter().all(|t| t["strategy"] == "legwise" && t["prefill_scores"].is_array()));
    let times = &three["timings_ms"];
    let at = |name: &str| times[name].as_f64().unwrap_or_else(|| panic!("{name}: {three}"));
    assert!(at("prefill_sent") <= at("prefill_done") && at("prefill_done") <= at("decode_sent"));
    assert!(at("decode_sent") <= at("first_byte") && at("first_byte") <= at("ended"));
    let refused = page("/debug/requests/no-key").await.json();
    assert_eq!((&refused["code"], &refused["placements"]), (&json!("invalid_api_key"), &json!([])));
    let post = request(Method::POST, "/debug/requests", &[key], Bytes::new());
    assert_eq!(Reply::send(house.address, post).await.status, 405);
    house.close().await;
}
