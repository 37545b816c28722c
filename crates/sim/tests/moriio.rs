//! vLLM with MoRI-IO: READ and WRITE, and what its scheduler does with a hand-off that is none.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail this way")]

mod common;

use std::time::Duration;

use baton_sim::{
    EngineHandle, EngineSpec, Fleet, FleetSpec, Kind, PromptId, Stats, WRONG_MARK, expected_text,
};
use common::{post, post_with, request, send, with};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";
const PROMPT: &str = "The quick cat reads a new book near the old river while the small fish sings";

fn body() -> Value {
    json!({"model": "sim", "prompt": PROMPT, "max_tokens": 6})
}

fn right() -> String {
    expected_text(PromptId::of_text(PROMPT), 6)
}

async fn pair(kind: Kind, change: impl FnMut(&mut EngineSpec)) -> (Fleet, EngineHandle, EngineHandle) {
    let fleet = Fleet::start(FleetSpec::pairs(kind, 1, 1).with(change)).await.unwrap();
    let (p, d) = (fleet.prefill()[0].clone(), fleet.decode()[0].clone());
    (fleet, p, d)
}

/// Parameters that name this engine as the peer.
fn peer(engine: &EngineHandle, prefilled: bool, transfer: &str) -> Value {
    json!({"do_remote_decode": !prefilled, "do_remote_prefill": prefilled, "transfer_id": transfer,
           "remote_host": "127.0.0.1", "remote_handshake_port": engine.handshake_port(),
           "remote_notify_port": engine.side_port().map(|port| port.to_string())})
}

async fn prefill(p: &EngineHandle, params: Value) -> Value {
    let leg = with(&body(), json!({"max_tokens": 1, "kv_transfer_params": params}));
    let reply = post(p, PATH, &leg).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["kv_transfer_params"].clone()
}

async fn decode(d: &EngineHandle, params: &Value) -> common::Reply {
    post(d, PATH, &with(&body(), json!({"kv_transfer_params": params}))).await
}

async fn until(fleet: &Fleet, done: impl Fn(&Stats) -> bool) -> Stats {
    let stats = fleet.settle_when(Duration::from_secs(5), &done).await;
    assert!(done(&stats), "{stats:#?}");
    stats
}

#[tokio::test]
async fn what_the_prefill_answers_is_what_the_decode_reads() {
    let (fleet, p, d) = pair(Kind::MoriioRead, |_| {}).await;
    let params = prefill(&p, json!({"do_remote_decode": true, "transfer_id": "tx"})).await;
    assert_eq!(params["remote_engine_id"], format!("127.0.0.1:{}", p.handshake_port().unwrap()));
    assert_eq!(
        (&params["transfer_id"], &params["remote_notify_port"]),
        (&json!("tx"), &json!(p.side_port()))
    );
    let reply = decode(&d, &params).await;
    assert_eq!((reply.status, reply.text()), (200, right()));
    // A second reader, and one after a restart, which the id does not show.
    assert!(decode(&d, &params).await.text().starts_with("<<STALE-KV>>"));
    p.restart().await.unwrap();
    assert_eq!(decode(&d, &with(&params, json!({"transfer_id": "t2"}))).await.status, 500);
    until(&fleet, |stats| stats.idle() && stats.all_free()).await;
}

#[tokio::test]
async fn a_push_comes_in_whichever_order() {
    let (fleet, p, d) = pair(Kind::MoriioWrite, |_| {}).await;
    let told = prefill(&p, peer(&d, false, "tx-1")).await;
    assert_eq!(decode(&d, &told).await.text(), right());
    let leg = with(&body(), json!({"kv_transfer_params": peer(&p, true, "tx-2")}));
    let addr = d.addr();
    let early = tokio::spawn(async move { send(addr, request(PATH, &leg)).await.unwrap() });
    until(&fleet, |stats| stats.requests.running == 1).await;
    prefill(&p, peer(&d, false, "tx-2")).await;
    assert_eq!(early.await.unwrap().text(), right());
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (2, 2), "{stats:?}");
}

#[tokio::test]
async fn a_decode_without_a_hand_off_never_computes_the_prompt() {
    let (fleet, _, d) = pair(Kind::MoriioRead, |_| {}).await;
    assert!(post(&d, PATH, &body()).await.text().starts_with(WRONG_MARK));
    assert!(fleet.settle().await.all_free());
    let (fleet, p, d) = pair(Kind::MoriioWrite, |spec| spec.timeout_scale = 0.002).await;
    // 120 s by this clock.
    assert_eq!(post(&d, PATH, &body()).await.status, 500);
    // One that was not named gets nothing, and the push is given up.
    prefill(&p, peer(&p, false, "tx")).await;
    assert_eq!(decode(&d, &peer(&p, true, "tx")).await.status, 500);
    assert_eq!(decode(&d, &peer(&p, true, "tx-foreign")).await.status, 500);
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!(stats.handoffs.right, 0, "{stats:?}");
}

#[tokio::test]
async fn what_the_scheduler_cannot_read_kills_it() {
    let (fleet, p, d) = pair(Kind::MoriioWrite, |_| {}).await;
    let mut nameless = peer(&d, false, "tx");
    nameless.as_object_mut().unwrap().remove("remote_host");
    let leg = with(&body(), json!({"max_tokens": 1, "kv_transfer_params": nameless}));
    assert_eq!(post(&p, PATH, &leg).await.status, 500);
    until(&fleet, |stats| stats.deaths == 1).await;
    p.restart().await.unwrap();
    // A name of the old addressing goes before the parameters.
    let zmq = |engine: &EngineHandle| {
        let (handshake, notify) = (engine.handshake_port().unwrap(), engine.side_port().unwrap());
        format!("host:127.0.0.1,handshake:{handshake},notify:{notify}")
    };
    let name = format!("___prefill_addr_{}___decode_addr_{}_0123", zmq(&p), zmq(&d));
    let leg = with(&body(), json!({"max_tokens": 1, "kv_transfer_params": peer(&p, false, "tx")}));
    assert_eq!(post_with(&p, PATH, &leg, &[("x-request-id", &name)]).await.status, 200);
    assert_eq!(decode(&d, &peer(&p, true, "tx")).await.text(), right());
    assert!(fleet.settle().await.all_free());
}
