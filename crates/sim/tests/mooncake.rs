//! vLLM with Mooncake: halves that meet by a transfer id, in any order, once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail this way")]

mod common;

use std::time::Duration;

use baton_sim::{
    EngineHandle, EngineSpec, Fleet, FleetSpec, Kind, PromptId, Stats, WRONG_MARK, expected_text,
};
use common::{give, open, post, post_with, request, send, take, with};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";
const PROMPT: &str = "The quick cat reads a new book near the old river while the small fish sings";

fn body() -> Value {
    json!({"model": "sim", "prompt": PROMPT, "max_tokens": 6})
}

fn right() -> String {
    expected_text(PromptId::of_text(PROMPT), 6)
}

async fn pair(change: impl FnMut(&mut EngineSpec)) -> (Fleet, EngineHandle, EngineHandle) {
    let fleet = Fleet::start(FleetSpec::pairs(Kind::Mooncake, 1, 1).with(change)).await.unwrap();
    let (p, d) = (fleet.prefill()[0].clone(), fleet.decode()[0].clone());
    (fleet, p, d)
}

/// The engine id of a rank, as the bootstrap server tells it.
async fn engine_id(p: &EngineHandle, rank: &str) -> String {
    let addr = std::net::SocketAddr::new(p.addr().ip(), p.bootstrap_port().unwrap());
    let request = http::Request::get("/query").header("host", "p").body(http_body_util::Full::default());
    let ids = send(addr, request.unwrap()).await.unwrap().json();
    ids[rank]["engine_id"].as_str().unwrap().to_owned()
}

async fn until(fleet: &Fleet, done: impl Fn(&Stats) -> bool) -> Stats {
    let stats = fleet.settle_when(Duration::from_secs(5), &done).await;
    assert!(done(&stats), "{stats:#?}");
    stats
}

#[tokio::test]
async fn the_kv_goes_to_who_asks_for_it_in_whichever_order() {
    let (fleet, p, d) = pair(|_| {}).await;
    let id = engine_id(&p, "0").await;
    assert_eq!(Some(&id), p.engine_id().as_ref());
    let prefill = post(&p, PATH, &with(&body(), give("x-1"))).await;
    assert_eq!((prefill.status, prefill.json()["kv_transfer_params"].clone()), (200, Value::Null));
    assert_eq!(fleet.stats().blocks.pinned, 1);
    let reply = post(&d, PATH, &with(&body(), take(&p, &id, "x-1"))).await;
    assert_eq!((reply.status, reply.text()), (200, right()));

    let leg = with(
        &with(&body(), take(&p, &id, "x-2")),
        json!({"stream": true, "prompt": format!("{PROMPT} two")}),
    );
    let addr = d.addr();
    let early = tokio::spawn(async move { send(addr, request(PATH, &leg)).await.unwrap() });
    until(&fleet, |stats| stats.requests.running == 1).await;
    let leg = with(&with(&body(), give("x-2")), json!({"prompt": format!("{PROMPT} two")}));
    assert_eq!(post(&p, PATH, &leg).await.status, 200);
    assert_eq!(
        early.await.unwrap().streamed(),
        expected_text(PromptId::of_text(&format!("{PROMPT} two")), 6)
    );
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right, stats.handoffs.failed), (2, 2, 0), "{stats:?}");
    assert!(stats.tokens.transferred > 0);
}

#[tokio::test]
async fn what_is_missing_moves_nothing_and_the_wrong_role_kills() {
    let (fleet, p, d) = pair(|_| {}).await;
    let id = engine_id(&p, "0").await;
    let untagged = with(&give("x"), json!({"kv_transfer_params": {"do_remote_decode": true}}));
    assert_eq!(post(&p, PATH, &with(&body(), untagged)).await.status, 200);
    assert!(until(&fleet, Stats::idle).await.all_free(), "without a transfer id nothing is kept");
    for key in ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"] {
        let mut leg = with(&body(), take(&p, &id, "x"));
        leg["kv_transfer_params"].as_object_mut().unwrap().remove(key);
        let reply = post(&d, PATH, &leg).await;
        assert_eq!((reply.status, reply.text()), (200, right()), "{key}: computed here");
    }
    assert_eq!(post(&p, PATH, &with(&body(), take(&p, &id, "x"))).await.status, 500);
    until(&fleet, |stats| stats.deaths == 1).await;
    p.restart().await.unwrap();
    assert_ne!(engine_id(&p, "0").await, id);
}

#[tokio::test]
async fn an_unknown_engine_fails_at_once_and_an_unknown_id_after_the_decodes_patience() {
    let (fleet, p, d) = pair(|spec| spec.timeout_scale = 0.0005).await;
    let id = engine_id(&p, "0").await;
    assert_eq!(post(&p, PATH, &with(&body(), give("x-1"))).await.status, 200);
    let began = std::time::Instant::now();
    assert_eq!(post(&d, PATH, &with(&body(), take(&p, "another", "x-1"))).await.status, 500);
    assert!(began.elapsed() < Duration::from_millis(200));
    // 540 s by this clock are 270 ms.
    let began = std::time::Instant::now();
    let reply = post(&d, PATH, &with(&body(), take(&p, &id, "x-foreign"))).await;
    assert_eq!(reply.status, 500, "{}", reply.body);
    assert!(began.elapsed() >= Duration::from_millis(265), "{:?}", began.elapsed());
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!((stats.handoffs.expired, stats.handoffs.failed), (2, 2), "the kept one too: {stats:?}");
}

#[tokio::test]
async fn a_transfer_id_is_good_for_one_transfer() {
    let (fleet, p, d) = pair(|spec| spec.timeout_scale = 0.0005).await;
    let id = engine_id(&p, "0").await;
    for _ in 0..2 {
        assert_eq!(post(&p, PATH, &with(&body(), give("x-1"))).await.status, 200);
    }
    assert_eq!(fleet.stats().handoffs.reused, 1, "the second one is not kept");
    assert_eq!(post(&d, PATH, &with(&body(), take(&p, &id, "x-1"))).await.status, 200);
    assert_eq!(post(&d, PATH, &with(&body(), take(&p, &id, "x-1"))).await.status, 500);
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!((stats.handoffs.right, stats.handoffs.reused), (1, 2), "{stats:?}");
}

#[tokio::test]
async fn another_prompts_kv_marks_the_text() {
    let (fleet, p, d) = pair(|_| {}).await;
    let id = engine_id(&p, "0").await;
    assert_eq!(
        post(&p, PATH, &with(&with(&body(), give("x")), json!({"prompt": "another"}))).await.status,
        200
    );
    let reply = post(&d, PATH, &with(&body(), take(&p, &id, "x"))).await;
    assert!(reply.text().starts_with(WRONG_MARK), "{}", reply.text());
    assert_eq!(until(&fleet, |stats| stats.idle() && stats.all_free()).await.handoffs.wrong, 1);
}

#[tokio::test]
async fn a_first_token_that_ends_the_answer_keeps_nothing() {
    let (fleet, p, _) = pair(|spec| spec.natural_tokens = Some(1)).await;
    let leg = with(&with(&body(), give("x")), json!({"max_tokens": 2}));
    let reply = post(&p, PATH, &leg).await;
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop");
    assert!(until(&fleet, Stats::idle).await.all_free());
    assert_eq!(fleet.stats().handoffs.made, 0);
}

#[tokio::test]
async fn each_rank_has_an_id_and_only_its_own_transfers() {
    let (fleet, p, d) = pair(|spec| (spec.dp_size, spec.timeout_scale) = (2, 0.0005)).await;
    let ids = [engine_id(&p, "0").await, engine_id(&p, "1").await];
    assert!(ids[0].ends_with("_dp0") && ids[1].ends_with("_dp1"), "{ids:?}");
    for rank in [0, 1] {
        let (transfer, header) = (format!("x-{rank}"), rank.to_string());
        let pinned = [("x-data-parallel-rank", header.as_str())];
        assert_eq!(post_with(&p, PATH, &with(&body(), give(&transfer)), &pinned).await.status, 200);
        let reply = post(&d, PATH, &with(&body(), take(&p, &ids[rank], &transfer))).await;
        assert_eq!((reply.status, reply.text()), (200, right()));
    }
    let pinned = [("x-data-parallel-rank", "0")];
    assert_eq!(post_with(&p, PATH, &with(&body(), give("x-2")), &pinned).await.status, 200);
    assert_eq!(post(&d, PATH, &with(&body(), take(&p, &ids[1], "x-2"))).await.status, 500);
    let out = post_with(&p, PATH, &with(&body(), give("x-3")), &[("x-data-parallel-rank", "2")]).await;
    assert_eq!(out.message(), "data_parallel_rank 2 is out of range [0, 2).");
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!((stats.handoffs.right, stats.handoffs.wrong), (2, 1), "{stats:?}");
}

#[tokio::test]
async fn a_decode_leg_that_leaves_keeps_its_blocks_until_the_kv_has_come() {
    let (fleet, p, d) = pair(|_| {}).await;
    let id = engine_id(&p, "0").await;
    let leg = request(PATH, &with(&body(), take(&p, &id, "x")));
    let addr = d.addr();
    let waiting = tokio::spawn(async move { open(addr, leg).await });
    until(&fleet, |stats| stats.requests.running == 1).await;
    waiting.abort();
    until(&fleet, |stats| stats.requests.open == 0).await;
    assert_eq!(fleet.stats().blocks.held, 1, "the prefill side would write there");
    assert_eq!(post(&p, PATH, &with(&body(), give("x"))).await.status, 200);
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!(stats.requests.aborted, 1);
}

#[tokio::test]
async fn a_refused_decode_leg_frees_the_prefill_side() {
    let (fleet, p, d) = pair(|_| {}).await;
    let id = engine_id(&p, "0").await;
    assert_eq!(post(&p, PATH, &with(&body(), give("x"))).await.status, 200);
    let leg = with(&with(&body(), take(&p, &id, "x")), json!({"temperature": -1}));
    assert_eq!(post(&d, PATH, &leg).await.status, 400);
    until(&fleet, |stats| stats.idle() && stats.all_free()).await;
}

#[tokio::test]
async fn a_transfer_crosses_processes() {
    let left = Fleet::start(FleetSpec::pairs(Kind::Mooncake, 1, 0)).await.unwrap();
    let right_one = Fleet::start(FleetSpec::pairs(Kind::Mooncake, 0, 1)).await.unwrap();
    let (p, d) = (left.prefill()[0].clone(), right_one.decode()[0].clone());
    let id = engine_id(&p, "0").await;
    for (number, wrong) in [(0, false), (1, true)] {
        let transfer = format!("x-{number}");
        assert_eq!(post(&p, PATH, &with(&body(), give(&transfer))).await.status, 200);
        let engine = if wrong { "another" } else { id.as_str() };
        let reply = post(&d, PATH, &with(&body(), take(&p, engine, &transfer))).await;
        assert_eq!(reply.status, if wrong { 500 } else { 200 });
    }
    let refused = with(&with(&body(), take(&p, &id, "x-1")), json!({"temperature": -1}));
    assert_eq!(post(&d, PATH, &refused).await.status, 400);
    until(&left, |stats| stats.idle() && stats.all_free()).await;
    assert!(right_one.settle().await.all_free());
    assert_eq!(right_one.stats().handoffs.right, 1);
}
