//! Faults on demand, by header and by admin call.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail this way")]

mod common;

use std::time::Duration;

use baton_sim::{
    Dialect, EngineHandle, FAULT_HEADER, Fault, FaultKind, Fleet, FleetSpec, PromptId, Stats, Where,
    expected_text,
};
use bytes::Bytes;
use common::{get, open, post, request, request_with, send, vllm_pair, vllm_prefill, with};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

fn body() -> Value {
    json!({"model": "sim", "prompt": "The quick cat reads", "max_tokens": 6})
}

async fn whole() -> (Fleet, EngineHandle) {
    let fleet = Fleet::start(FleetSpec::whole(Dialect::Vllm, 1)).await.unwrap();
    let engine = fleet.whole()[0].clone();
    (fleet, engine)
}

/// Sends a request with a fault in its header; the answer, or what the client saw instead.
async fn faulty(engine: &EngineHandle, body: &Value, fault: &str) -> Result<common::Reply, String> {
    send(engine.addr(), request_with(PATH, body, &[(FAULT_HEADER, fault)])).await
}

#[tokio::test]
async fn a_status_comes_before_the_engine_sees_anything() {
    let (fleet, engine) = whole().await;
    let reply =
        faulty(&engine, &body(), "kind=status; status=429; retry_after=3; text=slow down").await.unwrap();
    assert_eq!((reply.status, reply.headers["retry-after"].to_str().unwrap()), (429, "3"));
    assert_eq!(reply.message(), "slow down");
    let reply = faulty(&engine, &body(), "where=prefill; kind=status; once=k1").await.unwrap();
    assert_eq!(reply.status, 503);
    assert_eq!(faulty(&engine, &body(), "where=prefill; kind=status; once=k1").await.unwrap().status, 200);
    let stats = fleet.settle().await;
    assert_eq!((stats.requests.accepted, stats.faults), (1, 2), "{stats:?}");
}

#[tokio::test]
async fn connections_break_before_and_after_the_head() {
    let (fleet, engine) = whole().await;
    let error = faulty(&engine, &body(), "kind=reset").await.err().unwrap();
    assert!(error.contains("connection") || error.contains("reset"), "{error}");

    let stream = with(&body(), json!({"stream": true}));
    let mut response =
        open(engine.addr(), request_with(PATH, &stream, &[(FAULT_HEADER, "kind=reset;chunks=2")]))
            .await
            .unwrap();
    assert_eq!(response.status(), 200);
    let mut frames = 0;
    let broken = loop {
        match response.frame().await {
            Some(Ok(_)) => frames += 1,
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    // Frames may be joined on the way, never split off the end.
    assert!(broken && (1..=2).contains(&frames), "{frames} frames, broken: {broken}");
    assert!(faulty(&engine, &body(), "kind=reset;chunks=0").await.is_err(), "half of a plain answer");
    assert!(fleet.settle().await.idle());
}

#[tokio::test]
async fn stalls_last_until_the_client_leaves() {
    let (fleet, engine) = whole().await;
    let stream = with(&body(), json!({"stream": true}));
    for (leg, fault) in
        [(&body(), "kind=stall"), (&body(), "kind=stall;chunks=0"), (&stream, "kind=stall;chunks=3")]
    {
        let call = faulty(&engine, leg, fault);
        let waited = tokio::time::timeout(Duration::from_millis(100), call).await;
        assert!(waited.is_err(), "{fault}: {:?}", waited.map(|reply| reply.map(|reply| reply.body)));
    }
    let stats = fleet.settle().await;
    assert!(stats.idle() && stats.all_free(), "{stats:?}");
}

#[tokio::test]
async fn bodies_go_bad() {
    let (fleet, engine) = whole().await;
    let reply = faulty(&engine, &body(), "kind=garbage_body").await.unwrap();
    assert!(reply.status == 200 && serde_json::from_str::<Value>(&reply.body).is_err());
    let reply = faulty(&engine, &body(), "kind=wrong_content_type").await.unwrap();
    assert!(reply.headers["content-type"].to_str().unwrap().starts_with("text/html"));
    let stream = with(&body(), json!({"stream": true}));
    let reply = faulty(&engine, &stream, "kind=error_event;chunks=2").await.unwrap();
    assert_eq!(reply.body.matches("\"text\":").count(), 2);
    assert!(reply.body.contains("\"error\"") && reply.body.ends_with("data: [DONE]\n\n"), "{}", reply.body);
    let stats = fleet.settle().await;
    assert!(stats.all_free(), "{stats:?}");
}

#[tokio::test]
async fn hand_off_parameters_vanish_or_break() {
    let spec = FleetSpec::pairs(Dialect::Vllm, 1, 1).with(|spec| spec.timeout_scale = 0.01);
    let fleet = Fleet::start(spec).await.unwrap();
    let (p, d) = (&fleet.prefill()[0], &fleet.decode()[0]);
    let leg = with(&body(), json!({"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}}));
    let reply = faulty(p, &leg, "where=prefill; kind=null_params").await.unwrap();
    assert_eq!((reply.status, &reply.json()["kv_transfer_params"]), (200, &json!(null)));
    assert_eq!(p.stats().blocks.pinned, 0, "nothing is kept");
    let reply = faulty(p, &leg, "where=decode; kind=null_params").await.unwrap();
    assert!(reply.json()["kv_transfer_params"]["remote_engine_id"].is_string(), "the other leg's fault");
    let reply = faulty(p, &leg, "kind=garbage_params; text={\"remote_port\":\"x\"}").await.unwrap();
    assert_eq!(reply.json()["kv_transfer_params"], json!({"remote_port": "x"}));
    assert_eq!(p.stats().blocks.pinned, 2);
    let stats = fleet.settle_when(Duration::from_secs(5), Stats::all_free).await;
    assert!(stats.all_free() && stats.handoffs.expired == 2, "{stats:?}");
    assert_eq!(vllm_pair(p, d, PATH, &body()).await.status, 200);
}

#[tokio::test]
async fn a_decode_computes_what_it_was_handed_and_its_counters_say_so() {
    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Vllm, 1, 1)).await.unwrap();
    let (p, d) = (&fleet.prefill()[0], &fleet.decode()[0]);
    let right = vllm_pair(p, d, PATH, &body()).await;
    let moved = d.stats().tokens;
    assert!(moved.transferred > 0 && moved.computed == 0, "{moved:?}");
    d.fault(Fault { place: Where::Decode, ..Fault::new(FaultKind::Recompute) }).await.unwrap();
    let other = with(
        &body(),
        json!({"prompt": "quite another prompt, of more than one block of sixteen tokens, which \
        no cache has seen before and which is long enough to be worth handing over"}),
    );
    assert_eq!(vllm_pair(p, d, PATH, &other).await.status, 200);
    let still = d.stats().tokens;
    assert!(still.transferred == moved.transferred && still.computed > 0, "{still:?}");
    let page = common::get(d, "/metrics").await.body;
    let count = format!("source=\"external_kv_transfer\"}} {:?}\n", moved.transferred as f64);
    assert!(page.contains(&count), "{count} in {page}");
    let stats = fleet.settle_when(Duration::from_secs(5), Stats::all_free).await;
    assert!(stats.all_free() && stats.handoffs.expired == 0, "the prefill was told: {stats:?}");
    assert_eq!(right.status, 200);
}

#[tokio::test]
async fn armed_faults_and_health() {
    let (fleet, engine) = whole().await;
    engine.fault(Fault { times: 2, ..Fault::new(FaultKind::Status) }).await.unwrap();
    assert_eq!(post(&engine, PATH, &body()).await.status, 503);
    assert_eq!(post(&engine, PATH, &body()).await.status, 503);
    assert_eq!(post(&engine, PATH, &body()).await.status, 200);

    let armed = json!({"where": "any", "kind": "unwell_health", "times": 1});
    assert_eq!(post(&engine, "/sim/fault", &armed).await.status, 200);
    assert_eq!(get(&engine, "/health").await.status, 503);
    assert_eq!(get(&engine, "/health").await.status, 200);
    let slow = Fault { place: Where::Any, ms: Some(60_000), ..Fault::new(FaultKind::SlowHealth) };
    engine.fault(slow).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), get(&engine, "/health")).await.is_err());

    engine.fault(Fault { times: 0, ..Fault::new(FaultKind::Status) }).await.unwrap();
    assert_eq!(post(&engine, "/sim/reset", &json!({})).await.status, 200);
    assert_eq!(post(&engine, PATH, &body()).await.status, 200);
    assert_eq!(post(&engine, "/sim/fault", &json!({"kind": "nonsense"})).await.status, 400);
    let stats: Stats = serde_json::from_str(&get(&engine, "/sim/stats").await.body).unwrap();
    assert_eq!((stats.engines, stats.faults, stats.requests.accepted), (1, 0, 1));
    drop(fleet);
}

/// One connection that is kept.
async fn connect(engine: &EngineHandle) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(engine.addr()).await.unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn closed(sender: &mut hyper::client::conn::http1::SendRequest<Full<Bytes>>) -> bool {
    let gone = async {
        while sender.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone).await.is_ok()
}

#[tokio::test]
async fn idle_connections_close_on_demand() {
    let (_fleet, engine) = whole().await;
    let mut sender = connect(&engine).await;
    let response = sender.send_request(request(PATH, &body())).await.unwrap();
    response.into_body().collect().await.unwrap();
    sender.ready().await.unwrap();
    engine.fault(Fault::new(FaultKind::CloseIdle)).await.unwrap();
    assert!(closed(&mut sender).await);
    assert_eq!(post(&engine, PATH, &body()).await.status, 200);
}

#[tokio::test]
async fn a_kill_resets_everything_and_a_restart_forgets() {
    let fleet =
        Fleet::start(FleetSpec::whole(Dialect::Vllm, 1).with(|spec| spec.time_scale = 50.0)).await.unwrap();
    let engine = fleet.whole()[0].clone();
    let stream = with(&body(), json!({"stream": true, "max_tokens": 200}));
    let mut response = open(engine.addr(), request(PATH, &stream)).await.unwrap();
    let mut idle = connect(&engine).await;
    fleet.settle_when(Duration::from_secs(5), |stats| stats.requests.running == 1).await;
    let id = engine.engine_id();
    engine.kill().await;
    let broken = async {
        loop {
            match response.frame().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return true,
                None => return false,
            }
        }
    };
    assert!(broken.await && closed(&mut idle).await);
    assert!(send(engine.addr(), request(PATH, &body())).await.is_err());
    let stats = fleet.settle().await;
    assert!(!engine.is_up() && stats.idle() && stats.all_free() && stats.kills == 1, "{stats:?}");
    engine.restart().await.unwrap();
    assert!(engine.is_up() && engine.engine_id().is_some() && engine.engine_id() != id);
    assert_eq!(get(&engine, "/health").await.status, 200);
}

#[tokio::test]
async fn a_header_can_kill_in_the_middle_of_a_stream() {
    let (fleet, engine) = whole().await;
    let stream = with(&body(), json!({"stream": true}));
    assert!(faulty(&engine, &stream, "kind=kill;chunks=3").await.is_err());
    let stats = fleet.settle_when(Duration::from_secs(5), |stats| stats.kills == 1).await;
    assert!(stats.kills == 1 && !engine.is_up(), "{stats:?}");
    engine.restart().await.unwrap();
    let id = engine.engine_id();
    assert!(faulty(&engine, &body(), "where=decode;kind=restart;once=r").await.is_err());
    let stats = fleet.settle_when(Duration::from_secs(5), |stats| stats.kills == 2).await;
    assert_eq!(stats.kills, 2);
    while !engine.is_up() {
        tokio::task::yield_now().await;
    }
    assert_ne!(engine.engine_id(), id);
}

/// Leaving a prefill leg costs nothing before it computes, and the lease after that.
#[tokio::test]
async fn a_dropped_prefill_leg_strands_its_blocks() {
    let spec = FleetSpec::pairs(Dialect::Vllm, 1, 0).with(|spec| {
        spec.time_scale = 10.0;
        spec.timeout_scale = 0.05;
    });
    let fleet = Fleet::start(spec).await.unwrap();
    let p = &fleet.prefill()[0];
    let leg = with(&body(), json!({"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}}));
    let (addr, leg) = (p.addr(), request(PATH, &leg));
    let call = tokio::spawn(async move { open(addr, leg).await.map(|_| ()) });
    fleet.settle_when(Duration::from_secs(5), |stats| stats.requests.running == 1).await;
    call.abort();
    let stats = fleet.settle_when(Duration::from_secs(5), |stats| stats.blocks.pinned == 1).await;
    assert_eq!((stats.blocks.pinned, stats.requests.aborted, stats.blocks.held), (1, 1, 0), "{stats:?}");
    let stats = fleet.settle_when(Duration::from_secs(5), Stats::all_free).await;
    assert!(stats.all_free() && stats.handoffs.expired == 1, "{stats:?}");
}

/// A decode leg that is left at any time frees the prefill side too.
#[tokio::test]
async fn a_dropped_decode_leg_frees_both_sides() {
    let spec = FleetSpec::pairs(Dialect::Vllm, 1, 1).with(|spec| spec.time_scale = 2.0);
    let fleet = Fleet::start(spec).await.unwrap();
    let (p, d) = (&fleet.prefill()[0], &fleet.decode()[0]);
    let long = with(&body(), json!({"max_tokens": 200, "stream": true}));
    for first_frame in [false, true] {
        let params = vllm_prefill(p, PATH, &body()).await;
        let leg = request(PATH, &with(&long, json!({"kv_transfer_params": params})));
        let (addr, before) = (d.addr(), d.stats().requests.accepted);
        let call = tokio::spawn(async move {
            let mut response = open(addr, leg).await.unwrap();
            while response.frame().await.is_some() && !first_frame {}
        });
        if first_frame {
            call.await.unwrap();
        } else {
            fleet.settle_when(Duration::from_secs(5), |_| d.stats().requests.accepted > before).await;
            call.abort();
        }
        let stats =
            fleet.settle_when(Duration::from_secs(10), |stats| stats.idle() && stats.all_free()).await;
        assert!(stats.idle() && stats.all_free(), "first frame {first_frame}: {stats:?}");
    }
    assert_eq!(fleet.stats().requests.aborted, 2);
}

#[tokio::test]
async fn answers_are_right_beside_the_faults() {
    let (fleet, engine) = whole().await;
    let mut calls = Vec::new();
    for number in 0..40u32 {
        let engine = engine.clone();
        calls.push(tokio::spawn(async move {
            let body = with(&body(), json!({"prompt": format!("Number {number}")}));
            let fault = [
                "kind=reset",
                "kind=status",
                "where=prefill;kind=garbage_body",
                "where=decode;kind=reset;chunks=1",
            ];
            let reply = match fault.get(number as usize % 8) {
                Some(fault) => faulty(&engine, &body, fault).await,
                None => send(engine.addr(), request(PATH, &body)).await,
            };
            if number % 8 >= 4 {
                let text = reply.unwrap().text();
                assert_eq!(text, expected_text(PromptId::of_text(&format!("Number {number}")), 6));
            }
        }));
    }
    for call in calls {
        call.await.unwrap();
    }
    let stats = fleet.settle().await;
    assert!(stats.idle() && stats.all_free() && stats.faults == 20, "{stats:?}");
}
