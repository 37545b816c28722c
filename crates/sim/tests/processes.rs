//! Halves of a pair in different processes: two fleets that know nothing of each other reach each other through the
//! side channels alone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail this way")]

mod common;

use std::time::Duration;

use baton_sim::{
    Dialect, EngineHandle, EngineSpec, Fleet, FleetSpec, PromptId, STALE_MARK, Stats, expected_text,
};
use bytes::Bytes;
use common::{in_room, open, post, request, send, sglang_pair, vllm_pair, vllm_prefill, with};
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";
const PROMPT: &str = "The quick cat reads a new book near the old river while the small fish sings";

struct Apart {
    fleets: [Fleet; 2],
    p: EngineHandle,
    d: EngineHandle,
}

impl Apart {
    async fn start(dialect: Dialect, change: impl Fn(&mut EngineSpec)) -> Self {
        let left = Fleet::start(FleetSpec::pairs(dialect, 1, 0).with(&change)).await.unwrap();
        let right = Fleet::start(FleetSpec::pairs(dialect, 0, 1).with(&change)).await.unwrap();
        let (p, d) = (left.prefill()[0].clone(), right.decode()[0].clone());
        Self { fleets: [left, right], p, d }
    }

    /// Waits until both sides have nothing to do and every block is free.
    async fn settle(&self) -> Stats {
        let mut all = Stats::default();
        for fleet in &self.fleets {
            let limit = Duration::from_secs(10);
            all.merge(&fleet.settle_when(limit, |stats| stats.idle() && stats.all_free()).await);
        }
        assert!(all.idle() && all.all_free(), "{all:#?}");
        all
    }
}

fn body() -> Value {
    json!({"model": "sim", "prompt": PROMPT, "max_tokens": 6})
}

#[tokio::test]
async fn a_vllm_hand_off_crosses_processes() {
    let apart = Apart::start(Dialect::Vllm, |_| {}).await;
    let (p, d) = (&apart.p, &apart.d);
    let reply = vllm_pair(p, d, PATH, &body()).await;
    assert_eq!((reply.status, reply.text()), (200, expected_text(PromptId::of_text(PROMPT), 6)));
    let params = vllm_prefill(p, PATH, &body()).await;
    let leg = with(&body(), json!({"kv_transfer_params": params, "stream": true}));
    assert_eq!(post(d, PATH, &leg).await.streamed(), expected_text(PromptId::of_text(PROMPT), 6));
    apart.settle().await;
    let again = post(d, PATH, &with(&leg, json!({"stream": false}))).await;
    assert!(again.text().starts_with(STALE_MARK), "{}", again.body);
    let params = vllm_prefill(p, PATH, &body()).await;
    let refused = with(&body(), json!({"kv_transfer_params": params, "temperature": -1}));
    assert_eq!(post(d, PATH, &refused).await.status, 400);
    let stats = apart.settle().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right, stats.handoffs.reused), (3, 2, 1), "{stats:?}");
}

#[tokio::test]
async fn heartbeats_cross_processes() {
    let apart = Apart::start(Dialect::Vllm, |spec| {
        spec.max_running = 1;
        spec.timeout_scale = 0.01;
        spec.time_scale = if spec.role == baton_sim::Role::Decode { 1.0 } else { 0.0 };
    })
    .await;
    let busy = tokio::spawn({
        let leg = request(PATH, &json!({"model": "sim", "prompt": "busy", "max_tokens": 150}));
        let addr = apart.d.addr();
        async move { send(addr, leg).await.unwrap() }
    });
    apart.fleets[1].settle_when(Duration::from_secs(5), |stats| stats.requests.running == 1).await;
    // The decode engine is full for a second, the lease is 0.3 s long.
    let reply = vllm_pair(&apart.p, &apart.d, PATH, &body()).await;
    assert_eq!(reply.text(), expected_text(PromptId::of_text(PROMPT), 6));
    busy.await.unwrap();
    let stats = apart.settle().await;
    assert_eq!((stats.handoffs.right, stats.handoffs.expired), (1, 0), "{stats:?}");
}

#[tokio::test]
async fn an_sglang_room_crosses_processes() {
    let apart = Apart::start(Dialect::Sglang, |_| {}).await;
    let (p, d) = (&apart.p, &apart.d);
    let (prefill, decode) = sglang_pair(p, d, PATH, &in_room(p, &body(), 5)).await;
    assert_eq!((prefill.status, decode.status), (200, 200), "{} {}", prefill.body, decode.body);
    assert_eq!(decode.text(), expected_text(PromptId::of_text(PROMPT), 6));
    let stats = apart.settle().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (1, 1), "{stats:?}");
}

#[tokio::test]
async fn leaving_a_room_crosses_processes() {
    let apart = Apart::start(Dialect::Sglang, |spec| spec.time_scale = 20.0).await;
    for (room, close_prefill) in [(1, true), (2, false)] {
        let leg = in_room(&apart.p, &body(), room);
        let (leaving, staying) = if close_prefill { (&apart.p, &apart.d) } else { (&apart.d, &apart.p) };
        let gone = tokio::spawn({
            let (addr, leg) = (leaving.addr(), request(PATH, &leg));
            async move { open(addr, leg).await.map(|_| ()) }
        });
        let stay = tokio::spawn({
            let (addr, leg) = (staying.addr(), request(PATH, &leg));
            async move { send(addr, leg).await.unwrap() }
        });
        apart.fleets[0].settle_when(Duration::from_secs(5), |stats| stats.handoffs.made == room).await;
        gone.abort();
        let reply = tokio::time::timeout(Duration::from_secs(5), stay).await.expect("in time").unwrap();
        assert_eq!(reply.status, 500);
        assert!(reply.message().ends_with("Aborted by AbortReq."), "{}", reply.body);
    }
    apart.settle().await;
}

#[tokio::test]
async fn a_prefill_process_that_dies_is_noticed() {
    let apart = Apart::start(Dialect::Sglang, |spec| spec.timeout_scale = 0.01).await;
    let (p, d) = (&apart.p, &apart.d);
    assert_eq!(sglang_pair(p, d, PATH, &in_room(p, &body(), 1)).await.1.status, 200);
    let waiting = tokio::spawn({
        let (addr, leg) = (d.addr(), request(PATH, &in_room(p, &body(), 2)));
        async move { send(addr, leg).await.unwrap() }
    });
    apart.fleets[1].settle_when(Duration::from_secs(5), |stats| stats.requests.running == 1).await;
    p.kill().await;
    let reply = waiting.await.unwrap();
    assert!(
        reply.status == 500 && reply.message().contains("Lost connection with prefill instance"),
        "{}",
        reply.body
    );
    apart.settle().await;
}

#[tokio::test]
async fn the_bootstrap_server_answers_as_sglangs() {
    let apart = Apart::start(Dialect::Sglang, |_| {}).await;
    let addr = std::net::SocketAddr::new(apart.p.addr().ip(), apart.p.bootstrap_port().unwrap());
    let ask = async |method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("host", "sim");
        let response = open(addr, request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    let all = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";
    let (status, info) = ask("GET", all, json!(null)).await;
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((status, &info["prefill_http_port"]), (200, &json!(apart.p.addr().port())));
    assert_eq!(ask("GET", "/route", json!(null)).await, (400, "Missing inputs for bootstrap server.".into()));
    let other = "/route?prefill_dp_rank=3&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0";
    let missing = "Bootstrap info not found for dp_rank=3 cp_rank=0 tp_rank=0 pp_rank=0";
    assert_eq!(ask("GET", other, json!(null)).await, (404, missing.into()));
    assert_eq!(ask("PUT", "/route", json!({})).await, (200, "OK".into()));
    assert_eq!(ask("GET", "/health", json!(null)).await, (200, "OK".into()));
    assert_eq!(ask("POST", "/register_dp_rank", json!({"bootstrap_room": 7, "dp_rank": 0})).await.0, 200);
    let (_, ranks) = ask("POST", "/query_dp_ranks", json!({"bootstrap_rooms": [7, 8]})).await;
    assert_eq!(ranks, "{\"7\":0}");
}
