//! Chaos: engines of every kind behind one gateway, half of the answers streamed, clients that leave at random, workers
//! that are slow, killed and started anew, faults on every leg, every lease and timeout of an engine at a hundredth of
//! its time.
//!
//! It ends with: no request beyond its limits, every whole answer exactly right, every failure one that a fault of its
//! engines may lead to and as soon as it may (`honest.rs` has the lists), few idle connections, all leases back, all gauges
//! at zero, all KV blocks free once the leases of what was stranded have ended.
//!
//! `BATON_CHAOS_REQUESTS` sets the number of requests (2000), `BATON_CHAOS_SEED` the seed; both are printed. At full size:
//! `BATON_CHAOS_REQUESTS=50000 cargo test -p baton-gateway --test soak -- --nocapture --test-threads 1`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::large_futures, reason = "the futures of tests are few")]
#![allow(clippy::print_stdout, reason = "the numbers are the point")]

mod honest;
#[path = "../e2e/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_core::breaker::BreakerState;
use baton_core::dice::Dice;
use baton_sim::{EngineHandle, Fault, FaultKind, FleetSpec, Kind, PromptId, Role};
use honest::{ABORT, End, OF_THE_ENGINE, REQUEST, SILENCE};
use serde_json::json;
use support::{Ask, BOUND, House, Line, Plan, Raw, Reply, fault, request, until, until_within, within};
use tokio::time::Instant;

/// Requests under way at once.
const AT_ONCE: usize = 48;
/// No request may take longer: the gateway's own limit, and room for a busy machine.
const LIMIT: Duration = Duration::from_secs(3 * REQUEST.as_secs());
/// What an engine's leases, meetings and handshakes take of their real time.
const TIMEOUT_SCALE: f64 = 0.01;
/// Most idle connections to a worker.
const IDLE: u64 = 8;
/// How long a client that got a 503 stays away.
const BACK_OFF: Duration = Duration::from_millis(100);
/// One event of chaos for so many requests.
const CHAOS_EVERY: u64 = 40;

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

struct Soak {
    seed: u64,
    requests: u64,
    address: SocketAddr,
    engines: Vec<EngineHandle>,
    models: &'static [Model],
    next: AtomicU64,
    ends: Mutex<BTreeMap<End, u64>>,
    slowest_ms: AtomicU64,
}

/// A model, the kind of engines that serve it, and how long they keep KV that nobody fetches, in an engine's seconds:
/// `None` is the engine's default.
type Model = (&'static str, Kind, Option<f64>);

/// All that one gateway can have at once. Two leases are set as an operator may set them: NIXL's, because at a hundredth
/// of its default of 30 s it would not outlive the pauses of a busy machine, and MoRI-IO's of an hour, because nobody
/// waits that long.
const MIXED: [Model; 7] = [
    ("vllm", Kind::Vllm, Some(480.0)),
    ("mooncake", Kind::Mooncake, None),
    ("moriio-read", Kind::MoriioRead, Some(480.0)),
    ("moriio-write", Kind::MoriioWrite, None),
    ("moriio-at-once", Kind::MoriioWrite, None),
    ("sglang", Kind::Sglang, None),
    ("trtllm", Kind::Trtllm, None),
];
/// `generation_first` is a setting of the whole gateway.
const GENERATION_FIRST: [Model; 1] = [("trtllm", Kind::Trtllm, None)];

#[test]
fn nothing_is_left_behind() {
    begin(&MIXED, "", 1);
}

/// What the pre-flight can prove, by counters and by answers.
const PROVABLE: [Model; 2] = [("vllm", Kind::Vllm, Some(480.0)), ("sglang", Kind::Sglang, None)];

/// Workers that come back are held, and the faults strike trials too.
#[test]
fn nothing_is_left_behind_by_the_pre_flight() {
    begin(&PROVABLE, "--pd-preflight", 4);
}

#[test]
fn nothing_is_left_behind_by_generation_first() {
    begin(&GENERATION_FIRST, "--trt-schedule-style generation_first", 5);
}

fn begin(models: &'static [Model], args: &str, part: u64) {
    let requests = number("BATON_CHAOS_REQUESTS", 2000) / part;
    let seed = number("BATON_CHAOS_SEED", 20_261);
    println!("chaos: {requests} requests, seed {seed} (BATON_CHAOS_REQUESTS, BATON_CHAOS_SEED)");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(soak(models, args, (requests, seed)));
}

async fn soak(models: &'static [Model], more: &str, (requests, seed): (u64, u64)) {
    let began = std::time::Instant::now();
    let mut engines = FleetSpec::default();
    for (model, kind, lease) in models {
        let mut decodes = 0;
        engines = engines.and(FleetSpec::pairs(*kind, 2, 2).with(|spec| {
            (spec.model, spec.lease_secs) = ((*model).into(), *lease);
            spec.timeout_scale = TIMEOUT_SCALE;
            // The second decode engine is slow.
            decodes += u32::from(spec.role == Role::Decode);
            spec.time_scale = if decodes == 2 { 0.1 } else { 0.0 };
        }));
    }
    let args = "--runtime-worker-threads 2 --prefill-drain-timeout-secs 10 \
                --health-check-interval-secs 0.3 --health-failure-threshold 2 --health-success-threshold 1 \
                --cb-timeout-duration-secs 0.2 --retry-initial-backoff-ms 5 --retry-max-backoff-ms 100";
    let plan = Plan::new(engines)
        .args(args)
        .args(more)
        .arg("--request-timeout-secs", &REQUEST.as_secs().to_string())
        .arg("--decode-first-response-timeout-secs", &SILENCE.as_secs().to_string())
        .arg("--decode-stream-idle-timeout-secs", &SILENCE.as_secs().to_string())
        .arg("--upstream-max-idle-per-worker", &IDLE.to_string());
    // Engines are registered in their order, four of each model.
    let mut at = 0;
    let plan = plan.registered(move |spec| {
        let model = models.get(at / 4).map_or("", |(model, ..)| model);
        at += 1;
        if model == "moriio-at-once" {
            spec.labels.insert("moriio_write_dispatch".into(), "concurrent".into());
        }
    });
    let mut house = plan.open().await;
    let soak = Arc::new(Soak {
        seed,
        requests,
        models,
        address: house.address,
        engines: house.fleet.engines().to_vec(),
        next: AtomicU64::new(0),
        ends: Mutex::default(),
        slowest_ms: AtomicU64::new(0),
    });
    let clients: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(soak.clone().client())).collect();
    let chaos = tokio::spawn(soak.clone().chaos());
    for client in clients {
        client.await.unwrap();
    }
    let done = began.elapsed();
    chaos.await.unwrap();
    house.ready().await;
    within(BOUND, "every worker is trusted again", soak.recover(&house)).await;
    soak.crowds().await;
    house.quiet().await;
    let idle = soak.idle_connections().await;
    house.expire_what_was_stranded();
    house.quiet().await;
    let (stats, page) = (house.fleet.stats(), house.page().await);
    assert_eq!(page.sum("baton_handoffs_outstanding", &[]), 0.0, "every hand-off has ended");
    house.close().await;

    let ends = soak.ends.lock().unwrap().clone();
    let of = |end: &End| ends.get(end).copied().unwrap_or(0);
    let (served, all) = (done.as_secs_f64(), began.elapsed().as_secs_f64());
    let slowest = soak.slowest_ms.load(Ordering::Relaxed);
    println!("chaos: {requests} requests in {served:.1} s, {all:.1} s in all, the slowest {slowest} ms");
    for (end, count) in &ends {
        println!("  {count:6}  {end:?}");
    }
    println!("  idle connections at rest: at most {idle} to one worker, later none");
    println!("  engines: {} killed, {} faults, hand-offs {:?}", stats.kills, stats.faults, stats.handoffs);
    let sum = |name: &str| page.sum(name, &[]);
    println!("  gateway: {} hand-offs: {}", sum("baton_handoffs_issued_total"), page.fates());
    println!(
        "  gateway: {} retries, {} exhausted, {} releases, {} detached legs, {} breaker changes, {} resends",
        sum("smg_worker_retries_total"),
        sum("smg_worker_retries_exhausted_total"),
        sum("baton_releases_total"),
        sum("baton_detached_legs_ended_total"),
        sum("baton_worker_cb_transitions_total"),
        sum("smg_router_upstream_send_retries_total"),
    );
    assert_eq!(ends.values().sum::<u64>(), requests);
    assert!(of(&End::Right) * 10 >= requests * 7, "most requests are served whatever happens");
    let served = page.sum("baton_exchanges_total", &[r#"outcome="served""#]);
    assert!(served >= of(&End::Right) as f64, "served {served}");
}

impl Soak {
    async fn client(self: Arc<Soak>) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            if at >= self.requests {
                return;
            }
            let began = Instant::now();
            let model = self.dice(at).below(self.models.len());
            let end = within(LIMIT, "a request", self.one(at, self.models[model])).await;
            let engines = &self.engines[4 * model..4 * (model + 1)];
            if let Some(mistake) = honest::mistake(&end, began, Instant::now(), engines) {
                panic!("request {at} to {}: {mistake}", self.models[model].0);
            }
            self.slowest_ms.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
            let turned_away = matches!(end, End::Failed(503, _));
            *self.ends.lock().unwrap().entry(end).or_default() += 1;
            if turned_away {
                // As clients do: not again at once.
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }

    fn dice(&self, at: u64) -> Dice {
        Dice::new(self.seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    async fn one(&self, at: u64, (model, kind, _): Model) -> End {
        let mut dice = self.dice(at);
        // The model.
        dice.below(self.models.len());
        let words = format!("Request {at} tells of {}", "many rivers and fish ".repeat(dice.below(30)));
        let tokens = 2 + dice.below(40) as u32;
        let make: fn(&str, u32) -> Ask = match dice.below(if kind == Kind::Sglang { 3 } else { 2 }) {
            0 => Ask::chat,
            1 => Ask::completion,
            _ => Ask::generate,
        };
        let mut ask = make(&words, tokens).with(json!({"model": model, "stream": at.is_multiple_of(2)}));
        match dice.below(40) {
            0 if kind == Kind::Vllm => ask = ask.with(json!({"n": 2})),
            1 if ask.path == "/v1/completions" && !model.starts_with("moriio") => {
                ask = ask.with(json!({"prompt": [words, "another one"]})).of(PromptId::of_text(&words));
            }
            2 => {
                ask =
                    ask.with(json!({"kv_transfer_params": {"do_remote_prefill": true}, "bootstrap_room": 1}))
            }
            3 if ask.path == "/v1/completions" => ask = ask.with(json!({"logprobs": 1})),
            3 => ask = ask.with(json!({"logprobs": true})),
            _ => {}
        }
        match dice.below(20) {
            0 => self.leave_early(&ask, &mut dice).await,
            1 if ask.is_streamed() => self.leave_stream(&ask, &mut dice).await,
            2 => self.half_close(&ask).await,
            _ => {
                let mut line = Line::open(self.address).await;
                let body = bytes::Bytes::from(ask.body.to_string());
                let sent = line.try_send(request(http::Method::POST, ask.path, &[], body)).await;
                judge(
                    &ask,
                    &sent.unwrap_or_else(|e| panic!("request {at} got no answer: {e}: {:?}", ask.body)),
                )
            }
        }
    }

    /// Before the head, most likely.
    async fn leave_early(&self, ask: &Ask, dice: &mut Dice) -> End {
        let raw = Raw::post(self.address, ask.path, &ask.body.to_string()).await;
        for _ in 0..dice.below(40) {
            tokio::task::yield_now().await;
        }
        if dice.below(2) == 0 {
            raw.reset();
        }
        End::Left
    }

    /// In the middle of the stream, where it gets that far.
    async fn leave_stream(&self, ask: &Ask, dice: &mut Dice) -> End {
        let mut raw = Raw::post(self.address, ask.path, &ask.body.to_string()).await;
        let events = 1 + dice.below(12);
        while raw.text().matches("data: ").count() < events && raw.more().await {}
        if dice.below(2) == 0 {
            raw.reset();
        }
        End::Left
    }

    /// A client that closes its sending half gets its answer.
    async fn half_close(&self, ask: &Ask) -> End {
        let mut raw = Raw::post(self.address, ask.path, &ask.body.to_string()).await;
        raw.half_close().await;
        raw.read_all().await;
        let reply = raw.reply();
        judge(ask, &reply)
    }

    /// More requests at once to each model than there may be idle connections to its workers.
    async fn crowds(&self) {
        for (model, ..) in self.models {
            let ask = |at| Ask::chat(&format!("Request {at} of a crowd"), 4).with(json!({"model": model}));
            let crowd = (0..AT_ONCE).map(|at| {
                let (ask, address) = (ask(at), self.address);
                tokio::spawn(async move { drop(ask.served(address).await) })
            });
            for one in crowd.collect::<Vec<_>>() {
                one.await.unwrap();
            }
        }
    }

    /// Every worker has few idle connections, and those are closed when nobody needs them. Says how many there were.
    async fn idle_connections(&self) -> u64 {
        let most = self.engines.iter().map(EngineHandle::connections).max().unwrap_or(0);
        // One more may be a health check's.
        assert!((1..=IDLE + 1).contains(&most), "{most} connections to one worker at rest");
        for engine in &self.engines {
            until("idle connections are closed", || engine.connections() == 0).await;
        }
        most
    }

    /// Sends what is served until every breaker is closed.
    async fn recover(&self, house: &House) {
        let trusted = |at: usize| house.seat(at).pulse.breaker().state() == BreakerState::Closed;
        let mut at = self.requests;
        while !(0..self.engines.len()).all(trusted) {
            at += 1;
            for (model, ..) in self.models {
                let ask =
                    Ask::chat(&format!("Request {at} asks who is back"), 4).with(json!({"model": model}));
                let reply = ask.post(self.address).await;
                assert!(
                    reply.status == 503 || ask.judge(&reply).is_ok(),
                    "{} {}",
                    reply.status,
                    reply.text()
                );
            }
        }
    }

    /// Kills, restarts and faults, in step with the requests.
    async fn chaos(self: Arc<Soak>) {
        let mut dice = self.dice(u64::MAX);
        let mut down: Option<(usize, u64)> = None;
        let mut due = CHAOS_EVERY;
        while due < self.requests {
            until_within(LIMIT * 2, "the requests go on", || self.next.load(Ordering::Relaxed) >= due).await;
            if let Some((at, since)) = down.filter(|(_, since)| due >= since + 3 * CHAOS_EVERY) {
                self.engines[at].restart().await.unwrap();
                down = None;
                due = due.max(since) + CHAOS_EVERY;
                continue;
            }
            // One that died of a request comes back too.
            if let Some(dead) = self.engines.iter().position(|e| !e.is_up()).filter(|_| down.is_none()) {
                down = Some((dead, due));
            }
            let at = dice.below(self.engines.len());
            match dice.below(10) {
                0 if down.is_none() => {
                    self.engines[at].kill().await;
                    down = Some((at, due));
                }
                _ if self.engines[at].is_up() => self.engines[at].fault(some_fault(&mut dice)).await.unwrap(),
                _ => {}
            }
            due += CHAOS_EVERY;
        }
        until_within(LIMIT * 2, "the last requests", || self.next.load(Ordering::Relaxed) >= self.requests)
            .await;
        for engine in &self.engines {
            engine.clear_faults();
            if !engine.is_up() {
                within(BOUND, "a restart", engine.restart()).await.unwrap();
            }
        }
    }
}

fn some_fault(dice: &mut Dice) -> Fault {
    let chunks = Some(dice.below(6) as u32);
    let status =
        |status, retry_after| Fault { status: Some(status), retry_after, ..fault(FaultKind::Status) };
    match dice.below(19) {
        0 => status(400, None),
        1 => status(429, Some(1)),
        2 => status(500, None),
        3 => status(503, None),
        4 => status(501, None),
        5 | 6 => fault(FaultKind::Reset),
        7 | 8 => Fault { chunks, ..fault(FaultKind::Reset) },
        9 => fault(FaultKind::NullParams),
        10 => fault(FaultKind::GarbageParams),
        11 | 12 => fault(FaultKind::CloseIdle),
        13 => Fault { chunks, ..fault(FaultKind::ErrorEvent) },
        14 => Fault { chunks, ..fault(FaultKind::Kill) },
        15 => fault(FaultKind::Restart),
        16 => Fault { ms: Some(1500), ..fault(FaultKind::SlowHealth) },
        _ if dice.below(4) == 0 => fault(FaultKind::Stall),
        _ => fault(FaultKind::UnwellHealth),
    }
}

/// How it ended. Panics at a wrong token, and at an end without its error.
fn judge(ask: &Ask, reply: &Reply) -> End {
    if reply.status != 200 {
        let (status, code) = reply.error();
        return End::Failed(status, code);
    }
    let wrong = match ask.judge(reply) {
        Ok(()) => return End::Right,
        Err(wrong) => wrong,
    };
    if !ask.is_streamed() {
        assert!(reply.broken, "{wrong} {:?}", ask.body);
        return End::Broken;
    }
    // What came is the beginning of the right text, and the last event is an error.
    assert!(!reply.broken && reply.text().ends_with("data: [DONE]\n\n"), "{wrong} {:?}", ask.body);
    let got = ask.text_of(reply, 0);
    let last = reply.events().pop().unwrap_or_default();
    let code = match &last["error"] {
        serde_json::Value::Null => last["meta_info"]["finish_reason"]["type"].as_str().unwrap_or(""),
        error => error["code"].as_str().unwrap_or(OF_THE_ENGINE),
    };
    assert!(!code.is_empty(), "a stream ends without a word: {wrong} {:?}", ask.body);
    assert!(ask.expected().starts_with(&got) || code == ABORT, "{got:?} does not begin {:?}", ask.expected());
    End::Cut(code.to_owned())
}
