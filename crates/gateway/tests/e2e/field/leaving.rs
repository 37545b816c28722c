//! Clients and deadlines that end a request between its two halves.

use baton_sim::Dialect;
use serde_json::json;

use super::{asked, send};
use crate::support::{Ask, Gate, PROMPT, Plan, Raw, SOON, Step, until, until_within};

#[tokio::test]
async fn a04_kv_that_waits_for_another_decode_is_released_when_the_client_leaves() {
    // The decode that is chosen is dead, and the next attempt is far off: until then the prefill holds the KV.
    let args = "--decode-policy round_robin --retry-initial-backoff-ms 600000 --retry-max-backoff-ms 600000";
    let mut house = Plan::pairs(Dialect::Vllm, 1, 2).args(args).open().await;
    house.engine(1).kill().await;
    let asks: Vec<Ask> = (0..2).map(|at| Ask::completion(&format!("{PROMPT} {at}"), 6)).collect();
    let mut clients = Vec::new();
    for ask in &asks {
        clients.push(Raw::post(house.address, ask.path, &ask.body.to_string()).await);
    }
    until("one is served, and one waits for another decode", || {
        let stats = house.fleet.stats();
        (stats.handoffs.made, stats.handoffs.right) == (2, 1)
            && (0..3).all(|at| house.in_flight(at) == 0)
            && house.blamed(1) == 1
    })
    .await;
    drop(clients);
    house.quiet().await;
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (2, 2), "nothing stays pinned: {stats:?}");
    let page = house.page().await;
    assert_eq!(page.sum("baton_releases_total", &[r#"result="done""#]), 1.0);
    assert_eq!(page.fates(), "consumed 1, released 1");
    assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="client_gone""#]), 1.0);
    house.close().await;
}

#[tokio::test]
async fn a04_a_request_that_waits_for_its_decode_holds_no_kv() {
    let label = |spec: &mut baton_gateway::registry::Spec| {
        spec.labels.insert("max_num_seqs".into(), "1".into());
    };
    let mut house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().registered(label).open().await;
    let gate = Gate::default();
    house.taps[1].script([Step::Wait(gate.clone()), Step::Pass]);
    let first = Ask::chat(PROMPT, 8);
    let sent = send(&house, first.clone());
    until("the decode is busy", || asked(&house, 1).len() == 1).await;
    let second = Ask::chat("And this one leaves", 8);
    let client = Raw::post(house.address, second.path, &second.body.to_string()).await;
    until("the second waits for room", || house.gateway().rooms.waiting() == 1).await;
    drop(client);
    until_within(SOON, "it does not wait any more", || house.gateway().rooms.waiting() == 0).await;
    assert_eq!(asked(&house, 0).len(), 1, "no prompt is computed for a decode that has no room");
    gate.open();
    first.check(&sent.await.unwrap());
    house.quiet().await;
    house.close().await;
}

#[tokio::test]
async fn ua10_a_deadline_before_the_prefill_is_done_starts_no_decode() {
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).tapped().engines(|s| s.timeout_scale = 0.01);
    let mut house = plan.args("--request-timeout-secs 0.2").open().await;
    house.taps[0].script([Step::Never]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (504, "request_timeout".into()));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("prefill"), "{}", reply.text());
    until_within(SOON, "the prefill leg is closed", || asked(&house, 0)[0].is_gone()).await;
    assert_eq!(asked(&house, 1).len(), 0);
    // And where the two come together: one or the other, and nothing is left behind.
    for early in [12, 6, 3, 1, 0] {
        let gate = Gate::default();
        house.taps[0].script([Step::Wait(gate.clone()), Step::Pass]);
        let ask = Ask::chat(PROMPT, 8).with(json!({"seed": early}));
        let (before, begun) = (asked(&house, 0).len(), std::time::Instant::now());
        let sent = send(&house, ask.clone());
        until("the prefill has it", || asked(&house, 0).len() > before).await;
        until("the deadline is near", || begun.elapsed().as_millis() >= 200 - early).await;
        gate.open();
        let reply = sent.await.unwrap();
        match reply.status {
            504 => assert_eq!(reply.error().1, "request_timeout"),
            _ => ask.check(&reply),
        }
        house.taps[0].clear();
    }
    house.quiet().await;
    house.no_after();
    house.expire_what_was_stranded();
    house.close().await;
}
