//! Many requests at once, some clients leaving, engines killed and restarted: nothing hangs, every answer that comes is
//! right, and at the end every block is free.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail this way")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_sim::{Dialect, EngineHandle, Fleet, FleetSpec, PromptId, Role, Stats, expected_text};
use common::{in_room, open, request, send, with};
use http_body_util::BodyExt;
use serde_json::{Value, json};

/// Requests in flight.
const AT_ONCE: u64 = 32;

/// How many requests a soak sends: few by default, more with `SIM_SOAK`.
fn requests() -> u64 {
    std::env::var("SIM_SOAK").ok().and_then(|count| count.parse().ok()).unwrap_or(400)
}

struct Soak {
    /// One process each.
    fleets: Vec<Fleet>,
    next: AtomicU64,
    right: AtomicU64,
    failed: AtomicU64,
    left: AtomicU64,
}

impl Soak {
    async fn start(specs: Vec<FleetSpec>) -> Arc<Self> {
        let mut fleets = Vec::new();
        for spec in specs {
            fleets.push(Fleet::start(spec).await.unwrap());
        }
        let zero = || AtomicU64::new(0);
        Arc::new(Self { fleets, next: zero(), right: zero(), failed: zero(), left: zero() })
    }

    fn engines(&self, role: Role) -> Vec<EngineHandle> {
        let all = self.fleets.iter().flat_map(|fleet| fleet.engines());
        all.filter(|engine| engine.role() == role).cloned().collect()
    }

    /// Runs all requests; `killing` restarts an engine now and then.
    async fn run(self: &Arc<Self>, killing: bool) -> Stats {
        let mut tasks = Vec::new();
        for _ in 0..AT_ONCE {
            let soak = self.clone();
            tasks.push(tokio::spawn(async move {
                loop {
                    let number = soak.next.fetch_add(1, Ordering::Relaxed);
                    if number >= requests() {
                        return;
                    }
                    soak.one(number).await;
                    if killing && number % 100 == 50 {
                        let engines = soak.fleets[0].engines();
                        engines[(number / 100) as usize % engines.len()].restart().await.unwrap();
                    }
                }
            }));
        }
        for task in tasks {
            tokio::time::timeout(Duration::from_secs(120), task).await.expect("no request hangs").unwrap();
        }
        let mut all = Stats::default();
        for fleet in &self.fleets {
            let limit = Duration::from_secs(20);
            all.merge(&fleet.settle_when(limit, |stats| stats.idle() && stats.all_free()).await);
        }
        all
    }

    async fn one(&self, number: u64) {
        let (prefill, decode) = (self.engines(Role::Prefill), self.engines(Role::Decode));
        let p = &prefill[(number % prefill.len() as u64) as usize];
        let d = &decode[(number / 2 % decode.len() as u64) as usize];
        let prompt = format!(
            "Request number {number} asks for a story about {}",
            "many words ".repeat((number % 40) as usize)
        );
        let tokens = 1 + (number % 24) as u32;
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": tokens, "stream": number.is_multiple_of(2)});
        let body = match d.spec().dialect {
            Dialect::Vllm => {
                let leg = with(
                    &body,
                    json!({"stream": false, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}}),
                );
                let Ok(reply) = send(p.addr(), request("/v1/completions", &leg)).await else {
                    return self.fail();
                };
                let params = reply.json()["kv_transfer_params"].clone();
                with(&body, json!({"kv_transfer_params": params}))
            }
            Dialect::Sglang | Dialect::Trtllm => {
                let body = in_room(p, &body, number * 7 + 1);
                let (addr, leg) = (p.addr(), request("/v1/completions", &body));
                tokio::spawn(async move { send(addr, leg).await.is_ok() });
                body
            }
        };
        let want = expected_text(PromptId::of_text(&prompt), tokens);
        if number % 11 == 3 {
            self.leave(d, &body).await;
        } else {
            match send(d.addr(), request("/v1/completions", &body)).await {
                Ok(reply) if reply.status == 200 => {
                    let text = if body["stream"] == true { reply.streamed() } else { reply.text() };
                    if reply.body.contains("\"error\"") {
                        return self.fail();
                    }
                    assert_eq!(text, want, "request {number}");
                    self.right.fetch_add(1, Ordering::Relaxed);
                }
                _ => self.fail(),
            }
        }
    }

    fn fail(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// A client that leaves after the first frame, or before it.
    async fn leave(&self, d: &EngineHandle, body: &Value) {
        self.left.fetch_add(1, Ordering::Relaxed);
        let opening = open(d.addr(), request("/v1/completions", body));
        if let Ok(Ok(mut response)) = tokio::time::timeout(Duration::from_millis(1), opening).await {
            let _ = response.frame().await;
        }
    }

    fn counts(&self) -> (u64, u64, u64) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (get(&self.right), get(&self.failed), get(&self.left))
    }
}

fn spec(dialect: Dialect, prefill: usize, decode: usize) -> FleetSpec {
    // Leases must outlive the wait for a decode leg on a busy machine; lonely halves of a room should not wait long.
    let scale = if dialect == Dialect::Vllm { 0.1 } else { 0.02 };
    FleetSpec::pairs(dialect, prefill, decode).with(|spec| spec.timeout_scale = scale)
}

async fn stays_clean(specs: Vec<FleetSpec>) {
    let soak = Soak::start(specs).await;
    let stats = soak.run(false).await;
    let (right, failed, left) = soak.counts();
    assert_eq!((failed, right + left), (0, requests()));
    assert!(stats.idle() && stats.all_free(), "{stats:#?}");
    assert_eq!((stats.handoffs.wrong, stats.handoffs.reused), (0, 0), "{stats:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_stays_clean() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        stays_clean(vec![spec(dialect, 2, 2)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_stay_clean() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        stays_clean(vec![spec(dialect, 1, 0), spec(dialect, 1, 1), spec(dialect, 0, 1)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_leave_nothing_behind() {
    for specs in [
        vec![spec(Dialect::Vllm, 2, 2)],
        vec![spec(Dialect::Sglang, 2, 2)],
        vec![spec(Dialect::Sglang, 1, 1), spec(Dialect::Sglang, 1, 1)],
    ] {
        let soak = Soak::start(specs).await;
        let stats = soak.run(true).await;
        let (right, failed, left) = soak.counts();
        assert_eq!(right + failed + left, requests());
        assert!(right > requests() / 2, "{right} right, {failed} failed");
        assert!(stats.idle() && stats.all_free(), "{stats:#?}");
        assert_eq!(
            (stats.handoffs.wrong, stats.handoffs.reused, stats.kills),
            (0, 0, requests() / 100),
            "{stats:#?}"
        );
    }
}
