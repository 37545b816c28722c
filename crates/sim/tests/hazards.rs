//! What goes wrong in a hand-off: parameters that kill a decode engine, late and double use, halves that never come.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail this way")]

mod common;

use std::time::Duration;

use baton_sim::{
    Dialect, EngineHandle, EngineSpec, Fleet, FleetSpec, LoadFailure, PromptId, STALE_MARK, Stats,
    WRONG_MARK, expected_text,
};
use common::{in_room, open, post, request, send, sglang_pair, vllm_pair, vllm_prefill, with};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

fn body(prompt: &str) -> Value {
    json!({"model": "sim", "prompt": prompt, "max_tokens": 4})
}

fn prompt(name: &str) -> String {
    format!("{name} reads {}", "a new book near the river ".repeat(8))
}

async fn pair(dialect: Dialect, change: impl FnMut(&mut EngineSpec)) -> (Fleet, EngineHandle, EngineHandle) {
    let fleet = Fleet::start(FleetSpec::pairs(dialect, 1, 1).with(change)).await.unwrap();
    let (p, d) = (fleet.prefill()[0].clone(), fleet.decode()[0].clone());
    (fleet, p, d)
}

/// Waits until `done`, for at most five seconds.
async fn until(fleet: &Fleet, done: impl Fn(&Stats) -> bool) -> Stats {
    let stats = fleet.settle_when(Duration::from_secs(5), &done).await;
    assert!(done(&stats), "{stats:#?}");
    stats
}

#[tokio::test]
async fn crafted_parameters_kill_a_decode_engine_core() {
    let (fleet, p, d) = pair(Dialect::Vllm, |_| {}).await;
    let (body, harmless) = (body(&prompt("Killer")), body(&prompt("Other")));
    let good = vllm_prefill(&p, PATH, &body).await;
    let edited = |key: &str, value: Value| with(&good, json!({key: value}));
    let mut missing = good.clone();
    missing.as_object_mut().unwrap().remove("remote_block_ids");
    let killers = [
        ("only the flag", json!({"do_remote_prefill": true})),
        ("no block ids", missing),
        ("an empty list", edited("remote_block_ids", json!([]))),
        ("too few", edited("remote_block_ids", json!([[1]]))),
        ("not a list", edited("remote_block_ids", json!("x"))),
        ("not numbers", edited("remote_block_ids", json!([vec!["x"; 20]]))),
    ];
    let count = killers.len() as u64;
    for (what, params) in killers {
        let reply = post(&d, PATH, &with(&body, json!({"kv_transfer_params": params}))).await;
        assert_eq!(reply.status, 500, "{what}");
        assert!(reply.message().starts_with("EngineCore encountered an issue."), "{what}: {}", reply.body);
        while d.is_up() {
            tokio::task::yield_now().await;
        }
        assert!(send(d.addr(), request(PATH, &body)).await.is_err(), "{what}: nothing listens");
        d.restart().await.unwrap();
        assert_eq!(post(&d, PATH, &harmless).await.status, 200, "{what}: back again");
    }
    let stats = fleet.settle().await;
    assert_eq!((stats.deaths, stats.kills), (count, 0), "{stats:?}");
    assert_eq!(stats.blocks.leaked, 0);
}

#[tokio::test(start_paused = true)]
async fn without_an_engine_id_the_core_dies_late() {
    let (_fleet, p, d) = pair(Dialect::Vllm, |_| {}).await;
    let body = body(&prompt("Late"));
    let mut params = vllm_prefill(&p, PATH, &body).await;
    params.as_object_mut().unwrap().remove("remote_engine_id");
    let before = tokio::time::Instant::now();
    let reply = post(&d, PATH, &with(&body, json!({"kv_transfer_params": params}))).await;
    assert_eq!((reply.status, before.elapsed().as_secs()), (500, 45));
}

#[tokio::test]
async fn wrong_parameters_are_told_apart() {
    let (fleet, p, d) = pair(Dialect::Vllm, |spec| spec.timeout_scale = 0.02).await;
    let own = body(&prompt("First"));
    let right = expected_text(PromptId::of_text(&prompt("First")), 4);
    let run = async |params: Value| post(&d, PATH, &with(&own, json!({"kv_transfer_params": params}))).await;

    // Another engine listens there (it was restarted): at once.
    let good = vllm_prefill(&p, PATH, &own).await;
    let reply = run(with(&good, json!({"remote_engine_id": "someone-else"}))).await;
    let internal = json!({"error": {"message": "Internal server error", "type": "InternalServerError",
                                    "param": null, "code": 500}});
    assert_eq!((reply.status, reply.json()), (500, internal));
    // Ids that no block has.
    let count = good["remote_block_ids"][0].as_array().unwrap().len();
    let reply = run(with(&good, json!({"remote_block_ids": [vec![100_000; count]]}))).await;
    assert_eq!(reply.status, 500);
    // The right blocks under a wrong name: the text is right, the prefill side is never told.
    let reply = run(with(&good, json!({"remote_request_id": "cmpl-nope-0-0"}))).await;
    assert_eq!((reply.status, reply.text()), (200, right.clone()));
    assert_eq!(p.stats().blocks.pinned, count as u64);
    let stats = fleet.settle().await;
    assert_eq!((stats.handoffs.failed, stats.handoffs.wrong, stats.handoffs.right), (2, 1, 0), "{stats:?}");
    let stats = until(&fleet, |stats| stats.handoffs.expired == 1).await;
    assert!(stats.all_free(), "{stats:?}");
}

#[tokio::test]
async fn blocks_of_another_prompt_mark_the_text() {
    let (fleet, p, d) = pair(Dialect::Vllm, |spec| spec.timeout_scale = 0.02).await;
    let other = vllm_prefill(&p, PATH, &body(&prompt("Other"))).await;
    let reply = post(&d, PATH, &with(&body(&prompt("First")), json!({"kv_transfer_params": other}))).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text().starts_with(WRONG_MARK), "{}", reply.body);
    // What was wrong is not remembered.
    let plain = post(&d, PATH, &body(&prompt("First"))).await;
    assert_eq!(plain.text(), expected_text(PromptId::of_text(&prompt("First")), 4));
    assert_eq!(fleet.settle().await.handoffs.wrong, 1);
}

#[tokio::test]
async fn a_hand_off_is_used_once_and_in_time() {
    let (fleet, p, d) = pair(Dialect::Vllm, |spec| spec.timeout_scale = 0.01).await;
    let params = vllm_prefill(&p, PATH, &body(&prompt("Twice"))).await;
    let leg = with(&body(&prompt("Twice")), json!({"kv_transfer_params": params}));
    assert!(!post(&d, PATH, &leg).await.text().contains(STALE_MARK));
    let again = post(&d, PATH, &leg).await;
    assert!(again.status == 200 && again.text().starts_with(STALE_MARK), "{}", again.body);

    let params = vllm_prefill(&p, PATH, &body(&prompt("Late"))).await;
    until(&fleet, |stats| stats.handoffs.expired == 1).await;
    let late = post(&d, PATH, &with(&body(&prompt("Late")), json!({"kv_transfer_params": params}))).await;
    assert!(late.text().starts_with(STALE_MARK), "{}", late.body);
    let stats = until(&fleet, Stats::all_free).await;
    assert_eq!((stats.handoffs.right, stats.handoffs.reused), (1, 2), "{stats:?}");
    let metrics = common::get(&p, "/metrics").await.body;
    let late = "vllm:nixl_num_notifications_after_expiry_total{engine=\"0\",model_name=\"sim\"} 1.0";
    assert!(metrics.contains(late), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_dead_port_takes_five_seconds() {
    let (_fleet, p, d) = pair(Dialect::Vllm, |_| {}).await;
    let params = vllm_prefill(&p, PATH, &body("one")).await;
    let dead = with(&params, json!({"remote_port": 1, "remote_engine_id": "nobody"}));
    let before = tokio::time::Instant::now();
    let reply = post(&d, PATH, &with(&body("one"), json!({"kv_transfer_params": dead}))).await;
    assert_eq!((reply.status, before.elapsed().as_secs()), (500, 5));
    let stream = with(&body("one"), json!({"kv_transfer_params": dead, "stream": true}));
    let reply = post(&d, PATH, &stream).await;
    let event = "data: {\"error\": {\"message\": \"Internal server error\", \"type\": \"InternalServerError\", \
                 \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n";
    assert_eq!((reply.status, reply.body.as_str()), (200, event));
}

#[tokio::test]
async fn a_killed_prefill_engine_fails_at_once_when_known() {
    let (fleet, p, d) = pair(Dialect::Vllm, |_| {}).await;
    assert_eq!(vllm_pair(&p, &d, PATH, &body("warm")).await.status, 200);
    let params = vllm_prefill(&p, PATH, &body("gone")).await;
    let id = p.engine_id();
    p.kill().await;
    let leg = with(&body("gone"), json!({"kv_transfer_params": params}));
    assert_eq!(post(&d, PATH, &leg).await.status, 500);
    assert_eq!(post(&d, PATH, &body("plain")).await.status, 200);
    p.restart().await.unwrap();
    assert_ne!(p.engine_id(), id);
    assert_eq!(post(&d, PATH, &leg).await.status, 500);
    assert_eq!(vllm_pair(&p, &d, PATH, &body("new")).await.status, 200);
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.kills == 1 && stats.handoffs.failed == 2, "{stats:?}");
}

#[tokio::test]
async fn recompute_hides_a_failed_load() {
    let (fleet, p, d) = pair(Dialect::Vllm, |spec| spec.load_failure = LoadFailure::Recompute).await;
    let params = vllm_prefill(&p, PATH, &body("one")).await;
    let wrong = with(&params, json!({"remote_engine_id": "someone-else"}));
    let reply = post(&d, PATH, &with(&body("one"), json!({"kv_transfer_params": wrong}))).await;
    assert_eq!((reply.status, reply.text()), (200, expected_text(PromptId::of_text("one"), 4)));
    assert_eq!(fleet.settle().await.tokens.transferred, 0);
}

#[tokio::test]
async fn a_wrong_layout_spoils_the_pair() {
    let (_fleet, p, d) = pair(Dialect::Vllm, |_| {}).await;
    let params = vllm_prefill(&p, PATH, &body("one")).await;
    let wrong = with(&params, json!({"tp_size": 2}));
    assert_eq!(post(&d, PATH, &with(&body("one"), json!({"kv_transfer_params": wrong}))).await.status, 500);
    assert_eq!(vllm_pair(&p, &d, PATH, &body("two")).await.status, 500);
    d.restart().await.unwrap();
    assert_eq!(vllm_pair(&p, &d, PATH, &body("three")).await.status, 200);
}

/// Prefill legs that strand blocks until the lease ends: streamed, with several choices, or dropped too late.
#[tokio::test]
async fn careless_prefill_legs_strand_blocks() {
    let (fleet, p, d) = pair(Dialect::Vllm, |spec| spec.timeout_scale = 0.01).await;
    let hold = json!({"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}});
    let streamed = post(&p, PATH, &with(&with(&body("one"), hold.clone()), json!({"stream": true}))).await;
    assert!(!streamed.body.contains("remote_engine_id"), "{}", streamed.body);
    assert_eq!(p.stats().blocks.pinned, 1);
    until(&fleet, |stats| stats.handoffs.expired == 1).await;

    let reply = post(&p, PATH, &with(&with(&body("two"), hold.clone()), json!({"n": 2}))).await;
    let params = reply.json()["kv_transfer_params"].clone();
    assert!(params["remote_request_id"].as_str().unwrap().starts_with("1_cmpl-"), "{params}");
    assert_eq!(p.stats().blocks.pinned, 2);
    let both = with(&body("two"), json!({"n": 2, "kv_transfer_params": params}));
    assert_eq!(post(&d, PATH, &both).await.status, 200);
    assert_eq!(p.stats().blocks.pinned, 1);
    let stats = until(&fleet, Stats::all_free).await;
    assert_eq!((stats.handoffs.expired, stats.handoffs.right), (2, 2), "{stats:?}");
}

#[tokio::test]
async fn a_prompt_list_with_one_hand_off_is_half_wrong() {
    let (fleet, p, d) = pair(Dialect::Vllm, |spec| spec.timeout_scale = 0.02).await;
    let list = json!({"model": "sim", "prompt": [prompt("One"), prompt("Two")], "max_tokens": 4});
    let params = vllm_prefill(&p, PATH, &list).await;
    let reply = post(&d, PATH, &with(&list, json!({"kv_transfer_params": params}))).await.json();
    assert_eq!(reply["choices"][0]["text"], expected_text(PromptId::of_text(&prompt("One")), 4));
    assert!(reply["choices"][1]["text"].as_str().unwrap().starts_with(WRONG_MARK), "{reply}");
    assert_eq!(fleet.settle().await.handoffs.wrong, 1);
}

#[tokio::test(start_paused = true)]
async fn an_sglang_half_alone_waits_five_minutes() {
    let (fleet, p, d) = pair(Dialect::Sglang, |_| {}).await;
    let alone = in_room(&p, &with(&body("alone"), json!({"rid": "r-1"})), 77);
    let before = tokio::time::Instant::now();
    let reply = post(&d, PATH, &alone).await;
    let want = "Decode transfer failed for request rank=0 decode_req.req.rid='r-1' decode_req.req.bootstrap_room=77 with \
                exception KVTransferError(bootstrap_room=77): Request 77 timed out after 300.0s in KVPoll.WaitingForInput";
    assert_eq!((reply.status, reply.message().as_str()), (500, want));
    assert_eq!((reply.json()["type"].as_str().unwrap(), before.elapsed().as_secs()), ("500", 300));

    let alone = in_room(&p, &with(&body("alone"), json!({"rid": "r-2"})), 78);
    let reply = post(&p, PATH, &alone).await;
    let want = "Prefill bootstrap failed for request rank=0 req.rid='r-2' req.bootstrap_room=78 with exception \
                KVTransferError(bootstrap_room=78): Request 78 timed out after 300.0s in KVPoll.Bootstrapping";
    assert_eq!((reply.status, reply.message().as_str()), (500, want));
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.handoffs.expired == 2, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn an_sglang_decode_engine_gives_up_on_a_dead_bootstrap_server() {
    let (fleet, p, d) = pair(Dialect::Sglang, |_| {}).await;
    let dead = with(&in_room(&p, &body("dead"), 78), json!({"bootstrap_port": 1, "rid": "r-1"}));
    let before = tokio::time::Instant::now();
    let reply = post(&d, PATH, &dead).await;
    let want = "Decode handshake failed for request rank=0 decode_req.req.rid='r-1' decode_req.req.bootstrap_room=78 with \
                exception KVTransferError(bootstrap_room=78): Aborted by AbortReq.";
    assert_eq!((reply.status, reply.message().as_str(), before.elapsed().as_secs()), (500, want, 14));

    let (_, reply) = sglang_pair(&p, &d, PATH, &in_room(&p, &body("warm"), 1)).await;
    assert_eq!(reply.status, 200);
    p.kill().await;
    let before = tokio::time::Instant::now();
    let reply = post(&d, PATH, &in_room(&p, &body("lost"), 2)).await;
    assert!(reply.message().contains("Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:"));
    assert_eq!((reply.status, before.elapsed().as_secs()), (500, 10));
    assert!(fleet.settle().await.idle());
}

#[tokio::test]
async fn a_room_is_used_once() {
    let (fleet, p, d) = pair(Dialect::Sglang, |spec| spec.timeout_scale = 0.002).await;
    let leg = in_room(&p, &body("once"), 5);
    assert_eq!(sglang_pair(&p, &d, PATH, &leg).await.1.status, 200);
    let (first, second) = sglang_pair(&p, &d, PATH, &leg).await;
    assert_eq!((first.status, second.status), (500, 500), "{}", second.body);

    // Several choices in one room: the prefill side answers, the decode side waits in vain.
    let (prefill, decode) =
        sglang_pair(&p, &d, PATH, &in_room(&p, &with(&body("n"), json!({"n": 2})), 6)).await;
    assert_eq!((prefill.status, decode.status), (200, 500), "{}", decode.body);
    assert_eq!(prefill.json()["choices"].as_array().unwrap().len(), 2);
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.handoffs.reused >= 2, "{stats:?}");
}

#[tokio::test]
async fn crossed_rooms_mark_the_text() {
    let (fleet, p, d) = pair(Dialect::Sglang, |_| {}).await;
    let (one, two) = (in_room(&p, &body("one"), 5), in_room(&p, &body("two"), 5));
    let (_, decode) = tokio::join!(post(&p, PATH, &one), post(&d, PATH, &two));
    assert!(decode.text().starts_with(WRONG_MARK), "{}", decode.body);
    assert_eq!(fleet.settle().await.handoffs.wrong, 1);
}

/// Closing either leg fails the other one with the engine's text, and frees everything.
#[tokio::test]
async fn closing_one_half_fails_the_other() {
    let (fleet, p, d) = pair(Dialect::Sglang, |spec| spec.time_scale = 20.0).await;
    let long = with(&body(&prompt("Long")), json!({"rid": "r-1"}));
    for (room, close_prefill) in [(1, true), (2, false)] {
        let leg = in_room(&p, &long, room);
        let (leaving, staying) = if close_prefill { (&p, &d) } else { (&d, &p) };
        let gone = tokio::spawn({
            let (addr, leg) = (leaving.addr(), request(PATH, &leg));
            async move { open(addr, leg).await.map(|_| ()) }
        });
        let stay = tokio::spawn({
            let (addr, leg) = (staying.addr(), request(PATH, &leg));
            async move { send(addr, leg).await.unwrap() }
        });
        // Both halves have met.
        until(&fleet, |stats| stats.handoffs.made == room).await;
        gone.abort();
        let reply = tokio::time::timeout(Duration::from_secs(5), stay).await.expect("in time").unwrap();
        assert_eq!(reply.status, 500);
        let want = if close_prefill { "Decode transfer failed" } else { "Prefill transfer failed" };
        assert!(
            reply.message().starts_with(want) && reply.message().ends_with("Aborted by AbortReq."),
            "{}",
            reply.body
        );
    }
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!(stats.requests.aborted, 2, "{stats:?}");
}

/// A decode engine that is killed fails what the prefill engine computes for it, and keeps a vLLM lease running.
#[tokio::test]
async fn a_killed_decode_engine_is_noticed() {
    let (fleet, p, d) = pair(Dialect::Sglang, |spec| spec.time_scale = 20.0).await;
    let leg = in_room(&p, &body(&prompt("Long")), 1);
    let lost = tokio::spawn({
        let (addr, leg) = (d.addr(), request(PATH, &leg));
        async move { send(addr, leg).await.is_err() }
    });
    let stay = tokio::spawn({
        let (addr, leg) = (p.addr(), request(PATH, &leg));
        async move { send(addr, leg).await.unwrap() }
    });
    until(&fleet, |stats| stats.handoffs.made == 1).await;
    d.kill().await;
    let reply = stay.await.unwrap();
    assert!(reply.status == 500 && reply.message().starts_with("Prefill transfer failed"), "{}", reply.body);
    assert!(lost.await.unwrap());
    until(&fleet, |stats| stats.idle() && stats.all_free()).await;

    let (fleet, p, d) = pair(Dialect::Vllm, |spec| spec.timeout_scale = 0.02).await;
    let params = vllm_prefill(&p, PATH, &body("one")).await;
    d.kill().await;
    assert!(
        send(d.addr(), request(PATH, &with(&body("one"), json!({"kv_transfer_params": params}))))
            .await
            .is_err()
    );
    assert_eq!(p.stats().blocks.pinned, 1);
    until(&fleet, |stats| stats.handoffs.expired == 1 && stats.all_free()).await;
}

#[tokio::test]
async fn abort_request_ends_by_prefix() {
    let (fleet, _p, _d) = pair(Dialect::Sglang, |_| {}).await;
    let whole =
        Fleet::start(FleetSpec::whole(Dialect::Sglang, 1).with(|spec| spec.time_scale = 50.0)).await.unwrap();
    let engine = whole.whole()[0].clone();
    let job = tokio::spawn({
        let leg = request(PATH, &with(&body("slow"), json!({"rid": "abc-1", "max_tokens": 200})));
        let addr = engine.addr();
        async move { send(addr, leg).await.unwrap() }
    });
    until(&whole, |stats| stats.requests.running == 1).await;
    assert_eq!(post(&engine, "/abort_request", &json!({"rid": "zzz"})).await.status, 200);
    assert_eq!(post(&engine, "/abort_request", &json!({"rid": "abc"})).await.status, 200);
    let reply = job.await.unwrap();
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "abort", "{}", reply.body);
    assert!(whole.settle().await.all_free());
    drop(fleet);
}
