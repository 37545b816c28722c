//! The registry and its probes against workers that listen: what is found out, when a worker counts as
//! well, and how it comes and goes.

#![allow(clippy::unwrap_used)]

mod fake_worker;

use std::time::Duration;

use baton_core::breaker::{BreakerRule, BreakerState, Verdict};
use baton_core::fault::{Fault, LegName};
use baton_core::fleet::{Engine, Role, Secret, Status};
use baton_gateway::clock::Clock;
use baton_gateway::config::Config;
use baton_gateway::edge::admin;
use baton_gateway::registry::{HealthSpec, JobStep, Listed, Patch, Refused, Registry, Settings, Spec};
use baton_sim::{Dialect, Fleet, FleetSpec};
use fake_worker::{FakeWorker, Says};

/// Longest wait for anything here. Reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(5);
const NEVER: Duration = Duration::from_secs(3600);

/// Settings under which things happen within milliseconds.
fn hasty() -> Settings {
    let mut s = Settings::of(&Config::default(), Clock::start(), 7);
    s.checks.interval = SOON;
    s.checks.startup_interval = SOON;
    s.checks.timeout = Duration::from_secs(5);
    s
}

/// As [`hasty`], but known workers are not checked by themselves.
fn unhurried() -> Settings {
    let mut s = hasty();
    s.checks.interval = NEVER;
    s
}

fn started(settings: Settings) -> Registry {
    let registry = Registry::new(settings);
    registry.start();
    registry
}

/// Waits until the list fulfils the condition, looking again at each change and at least every few
/// milliseconds.
async fn until(registry: &Registry, what: &str, condition: impl Fn(&[Listed]) -> bool) {
    let mut changes = registry.changes();
    let all = async {
        while !condition(&registry.list()) {
            let _ = tokio::time::timeout(SOON, changes.changed()).await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, all).await;
    assert!(done.is_ok(), "{what}: {:?}", registry.list());
}

async fn until_status(registry: &Registry, slot: u32, status: Status) {
    until(registry, status.as_str(), |list| {
        list.iter().any(|w| w.seat.slot == slot && w.seat.pulse.status() == status)
    })
    .await;
}

fn worker(registry: &Registry, slot: u32) -> Listed {
    registry.list().into_iter().find(|w| w.seat.slot == slot).unwrap()
}

const SGLANG: &str = r#"{"model_path":"/m","served_model_name":"s","version":"0.5.23","dp_size":1,"page_size":64,
    "disaggregation_transfer_backend":"mooncake","disaggregation_bootstrap_port":9123}"#;
const VLLM: &str = r#"{"version":"0.32.0"}"#;

/// A worker's words and what is to be found out from them.
struct Dialogue {
    /// In the model list. None: there is no list.
    owner: Option<&'static str>,
    /// One more page.
    page: (&'static str, &'static str),
    hint: Option<Engine>,
    engine: Engine,
    version: Option<&'static str>,
    model: Option<&'static str>,
}

const fn dialogue(
    owner: Option<&'static str>,
    page: (&'static str, &'static str),
    engine: Engine,
) -> Dialogue {
    let version = match engine {
        Engine::Vllm => Some("0.32.0"),
        Engine::Sglang => Some("0.5.23"),
        _ => None,
    };
    let model = if owner.is_some() { Some("m") } else { None };
    Dialogue { owner, page, hint: None, engine, version, model }
}

#[tokio::test]
async fn engines_are_told_apart() {
    let (vllm, sglang) = (Engine::Vllm, Engine::Sglang);
    let rows = [
        dialogue(Some("vllm"), ("/version", VLLM), vllm),
        dialogue(Some("sglang"), ("/server_info", SGLANG), sglang),
        dialogue(Some("tensorrt_llm"), ("/version", VLLM), Engine::Trtllm),
        dialogue(Some("nvidia"), ("/get_server_info", SGLANG), sglang),
        dialogue(Some("me"), ("/version", VLLM), vllm),
        dialogue(Some("me"), ("/server_info", SGLANG), sglang),
        Dialogue { model: Some("s"), ..dialogue(None, ("/server_info", SGLANG), sglang) },
        dialogue(None, ("/version", "[]"), Engine::Generic),
        dialogue(None, ("/x", ""), Engine::Generic),
        Dialogue { hint: Some(vllm), version: None, ..dialogue(None, ("/x", ""), vllm) },
        Dialogue { hint: Some(sglang), ..dialogue(Some("vllm"), ("/server_info", SGLANG), sglang) },
        Dialogue { hint: Some(Engine::Trtllm), ..dialogue(Some("me"), ("/x", ""), Engine::Trtllm) },
    ];
    let registry = started(unhurried());
    let mut alive = Vec::new();
    for (slot, row) in (0u32..).zip(rows) {
        let fake = FakeWorker::start().await;
        if let Some(owner) = row.owner {
            fake.models(owner, "m");
        }
        fake.page(row.page.0, 200, row.page.1);
        registry.add(Spec { engine: row.hint, ..Spec::new(fake.url(), Role::Prefill) }).unwrap();
        until_status(&registry, slot, Status::Ready).await;
        let found = worker(&registry, slot).seat.worker.clone();
        assert_eq!(found.engine, row.engine, "row {slot}");
        assert_eq!(found.label("version"), row.version, "row {slot}");
        assert_eq!(found.models.first().map(String::as_str), row.model, "row {slot}");
        let port = (row.engine == sglang).then_some(9123);
        assert_eq!(found.bootstrap_port, port, "row {slot}");
        alive.push(fake);
    }
}

#[tokio::test]
async fn aibrix_j22_a_context_server_is_asked_where_its_kv_is_at_each_check() {
    let fake = FakeWorker::start().await;
    fake.models("tensorrt_llm", "m");
    let said = |endpoint: &str| {
        format!(r#"{{"disaggregated_params":{{"ctx_dp_rank":0,"ctx_info_endpoint":["{endpoint}"]}}}}"#)
    };
    fake.page("/server_info", 200, &said("tcp://a:1"));
    let registry = started(hasty());
    registry.add(Spec::new(fake.url(), Role::Prefill)).unwrap();
    let endpoint = |expected: Option<&'static str>| {
        move |list: &[Listed]| {
            list.iter().all(|w| w.facts.is_some() && w.seat.worker.label("ctx_info_endpoint") == expected)
        }
    };
    until(&registry, "the first word", endpoint(Some("tcp://a:1"))).await;
    assert_eq!(worker(&registry, 0).seat.worker.label("ctx_dp_rank"), Some("0"));
    fake.page("/server_info", 200, &said("tcp://b:1"));
    until(&registry, "the restarted one's", endpoint(Some("tcp://b:1"))).await;
    fake.page("/server_info", 200, r#"{"disaggregated_params":{}}"#);
    until(&registry, "no word any more", endpoint(None)).await;
    assert_eq!(worker(&registry, 0).seat.pulse.status(), Status::Ready);
}

#[tokio::test]
async fn aibrix_j21_a_context_server_that_answers_otherwise_has_said_nothing() {
    let elsewhere = FakeWorker::start().await;
    let said = r#"{"disaggregated_params":{"ctx_dp_rank":0,"ctx_info_endpoint":"tcp://a:1"}}"#;
    elsewhere.page("/server_info", 200, said);
    for status in [404, 500, 307, 204] {
        let fake = FakeWorker::start().await;
        fake.models("tensorrt_llm", "m");
        fake.page("/server_info", status, said);
        let registry = started(hasty());
        registry.add(Spec::new(fake.url(), Role::Prefill)).unwrap();
        until(&registry, "it is known", |list| list.iter().all(|w| w.facts.is_some())).await;
        assert_eq!(worker(&registry, 0).seat.worker.label("ctx_info_endpoint"), None, "{status}");
        // It is asked again at the next check, and the next good answer counts.
        fake.page("/server_info", 200, said);
        until(&registry, "the good answer counts", |list| {
            list.iter().all(|w| w.seat.worker.label("ctx_info_endpoint") == Some("tcp://a:1"))
        })
        .await;
    }
    assert_eq!(elsewhere.asked_for("/server_info"), 0);
}

#[tokio::test]
async fn a_mooncake_prefill_is_asked_for_its_engines_at_each_check() {
    let (fake, bootstrap) = (FakeWorker::vllm("m").await, FakeWorker::start().await);
    let port = bootstrap.url().rsplit(':').next().unwrap().parse().unwrap();
    let registry = started(hasty());
    let spec = Spec {
        kv_connector: Some("MooncakeConnector".into()),
        kv_engine_id: Some("registered".into()),
        bootstrap_port: Some(port),
        ..Spec::new(fake.url(), Role::Prefill)
    };
    registry.add(spec).unwrap();
    let told = |expected: Option<&'static [&'static str]>| {
        move |list: &[Listed]| {
            let ids = |w: &Listed| {
                w.seat.worker.kv_engine_ids.clone().map(|ids| ids.into_values().collect::<Vec<_>>())
            };
            let expected = expected.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
            list.iter().all(|w| w.facts.is_some() && ids(w) == expected)
        }
    };
    until(&registry, "nobody told: what was registered counts", told(None)).await;
    bootstrap.page("/query", 200, r#"{"0":{"engine_id":"a"},"1":{"engine_id":"b"}}"#);
    until(&registry, "the engines' word", told(Some(&["a", "b"]))).await;
    bootstrap.page("/query", 500, "");
    until(&registry, "they told once and do not now", told(Some(&[]))).await;
    bootstrap.page("/query", 200, r#"{"0":{"engine_id":"c"}}"#);
    until(&registry, "and tell again", told(Some(&["c"]))).await;
}

#[tokio::test]
async fn simulated_engines_pair_by_what_they_say() {
    let spec = FleetSpec::pairs(Dialect::Sglang, 1, 1).and(FleetSpec::pairs(Dialect::Vllm, 1, 1));
    let fleet = Fleet::start(spec).await.unwrap();
    let registry = started(unhurried());
    for (engines, role) in [(fleet.prefill(), Role::Prefill), (fleet.decode(), Role::Decode)] {
        for engine in engines {
            registry.add(Spec::new(engine.url(), role)).unwrap();
        }
    }
    until(&registry, "all ready", |list| list.iter().all(|w| w.seat.pulse.status() == Status::Ready)).await;
    let picture = registry.load_full();
    let pairs: Vec<_> = picture
        .prefill()
        .iter()
        .map(|p| {
            let of = |s: &baton_core::fleet::Seat| s.worker.engine;
            (of(&p.seat), p.partners.iter().map(|d| of(d)).collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(pairs, [(Engine::Sglang, vec![Engine::Sglang]), (Engine::Vllm, vec![Engine::Vllm])]);
    let sglang = &picture.prefill()[0].seat.worker;
    assert_eq!(sglang.label("disaggregation_transfer_backend"), Some("mooncake"));
    assert_eq!(sglang.label("disaggregation_mode"), Some("prefill"));
    assert!(sglang.bootstrap_port.is_some());
    assert_eq!(picture.decode()[0].worker.bootstrap_port, None);
    assert_eq!(admin::readiness(&registry).status, 200);
    let page = admin::worker_page(&registry, "/get_server_info").await.unwrap();
    assert!(page.body.contains("disaggregation_bootstrap_port"), "{}", page.body);
    fleet.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_not_up_yet_is_pending_then_failed_then_ready() {
    let mut fake = FakeWorker::vllm("m").await;
    fake.stop().await;
    let mut settings = hasty();
    settings.checks.startup_timeout = Duration::from_millis(50);
    let registry = started(settings);
    registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    assert_eq!(worker(&registry, 0).seat.pulse.status(), Status::Pending);
    until_status(&registry, 0, Status::Failed).await;
    let job = worker(&registry, 0).job.unwrap();
    assert_eq!(job.step, JobStep::Failed);
    assert!(job.message.contains("refused"), "{job:?}");
    fake.resume().await;
    until_status(&registry, 0, Status::Ready).await;
    assert!(worker(&registry, 0).job.is_none());
}

#[tokio::test]
async fn a_worker_still_loading_is_not_taken_for_another_engine() {
    let fake = FakeWorker::vllm("m").await;
    fake.page("/v1/models", 503, "loading");
    let registry = started(hasty());
    registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    until(&registry, "tried", |_| fake.asked_for("/v1/models") > 1).await;
    assert_eq!(worker(&registry, 0).seat.pulse.status(), Status::Pending);
    fake.models("vllm", "m");
    until_status(&registry, 0, Status::Ready).await;
    assert_eq!(worker(&registry, 0).seat.worker.engine, Engine::Vllm);
}

#[tokio::test]
async fn an_unwell_worker_goes_and_what_comes_back_is_asked_what_it_is() {
    let fake = FakeWorker::vllm("old").await;
    let registry = started(hasty());
    registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    until_status(&registry, 0, Status::Ready).await;
    fake.page("/health", 503, "");
    until_status(&registry, 0, Status::NotReady).await;
    assert_eq!(admin::readiness(&registry).status, 503);
    until_status(&registry, 0, Status::Failed).await;
    fake.models("vllm", "new");
    fake.page("/version", 200, r#"{"version":"0.33.0"}"#);
    fake.page("/health", 200, "");
    until_status(&registry, 0, Status::Ready).await;
    let back = worker(&registry, 0).seat.worker.clone();
    assert_eq!((back.models.as_slice(), back.label("version")), (&["new".to_owned()][..], Some("0.33.0")));
    let (good, bad) = registry.tally().checks(Role::Whole);
    assert!(good >= 2 && bad >= 12, "{good} good, {bad} bad");
}

#[tokio::test]
async fn a_failed_worker_is_removed_where_that_is_wanted() {
    let mut settings = hasty();
    settings.remove_failed = Some(true);
    settings.checks.startup_timeout = SOON;
    let mut fake = FakeWorker::start().await;
    fake.stop().await;
    let registry = started(settings);
    registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    until(&registry, "removed", <[Listed]>::is_empty).await;
}

#[tokio::test]
async fn a_suspected_worker_is_looked_at_before_its_time() {
    let mut fake = FakeWorker::vllm("old").await;
    let registry = started(unhurried());
    registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    until_status(&registry, 0, Status::Ready).await;
    fake.stop().await;
    registry.suspect(0);
    registry.suspect(0);
    until(&registry, "looked at", |_| registry.tally().checks(Role::Whole).1 == 1).await;
    assert_eq!(worker(&registry, 0).seat.pulse.status(), Status::Ready, "one bad check is not enough");
    fake.models("vllm", "new");
    fake.resume().await;
    registry.suspect(0);
    until(&registry, "described", |list| list[0].seat.worker.models == ["new"]).await;
    registry.suspect(99);
}

#[tokio::test]
async fn a_recovered_worker_is_readmitted_and_one_with_a_good_health_page_is_not() {
    let fake = FakeWorker::vllm("m").await;
    let registry = started(hasty());
    registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    until_status(&registry, 0, Status::Ready).await;
    let seat = worker(&registry, 0).seat;
    let rule = BreakerRule { failure_threshold: 1, ..BreakerRule::default() };
    seat.pulse.record(Verdict::Bad, &rule, registry.clock().now());
    let before = fake.asked_for("/health");
    until(&registry, "checked", |_| fake.asked_for("/health") > before + 3).await;
    assert!(matches!(seat.pulse.breaker().state(), BreakerState::Open { .. }));
    fake.page("/health", 500, "");
    until_status(&registry, 0, Status::NotReady).await;
    fake.page("/health", 200, "");
    until_status(&registry, 0, Status::Ready).await;
    assert_eq!(seat.pulse.breaker().state(), BreakerState::Closed);
    assert_eq!(worker(&registry, 0).readmissions, 1);
}

#[tokio::test]
async fn a_worker_that_is_removed_drains_and_its_address_is_free_at_once() {
    let fake = FakeWorker::vllm("m").await;
    let mut settings = unhurried();
    settings.drain_settle = NEVER;
    let registry = started(settings);
    let old = registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    until_status(&registry, 0, Status::Ready).await;
    let lease = worker(&registry, 0).seat.load.take();
    registry.remove(&old).unwrap();
    assert_eq!(worker(&registry, 0).seat.pulse.status(), Status::Draining);
    assert!(!worker(&registry, 0).seat.pulse.available(registry.clock().now()));
    registry.remove(&old).unwrap();
    assert_eq!(registry.patch(&old, Patch::default()), Err(Refused::Unknown));

    let new = registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    until_status(&registry, 1, Status::Ready).await;
    assert_eq!(registry.find(&fake.url()), [new]);
    assert_eq!(
        (worker(&registry, 0).seat.load.in_flight(), worker(&registry, 1).seat.load.in_flight()),
        (1, 0)
    );
    drop(lease);
    until(&registry, "left", |list| list.len() == 1 && list[0].seat.slot == 1).await;
}

#[tokio::test]
async fn draining_ends_after_its_time_whatever_runs() {
    let fake = FakeWorker::vllm("m").await;
    let mut settings = unhurried();
    settings.drain_settle = Duration::from_millis(20);
    let registry = started(settings);
    let id = registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    let _lease = worker(&registry, 0).seat.load.take();
    registry.remove(&id).unwrap();
    until(&registry, "left", <[Listed]>::is_empty).await;
    assert!(registry.fleet().is_empty());
}

#[tokio::test]
async fn a_worker_is_asked_with_its_own_key_and_a_new_one_at_once() {
    let fake = FakeWorker::vllm("m").await;
    let registry = started(unhurried());
    let spec = Spec { api_key: Some(Secret::new("k1")), ..Spec::new(fake.url(), Role::Whole) };
    let id = registry.add(spec).unwrap();
    until_status(&registry, 0, Status::Ready).await;
    assert!(fake.asked().iter().all(|a| a.authorization.as_deref() == Some("Bearer k1")));
    registry.patch(&id, Patch { api_key: Some(Secret::new("k2")), ..Patch::default() }).unwrap();
    let with = |key: &str| fake.asked().iter().any(|a| a.authorization.as_deref() == Some(key));
    until(&registry, "asked with the new key", |_| with("Bearer k2")).await;
}

#[tokio::test]
async fn answers_without_end_or_measure_do_not_hold_a_probe_up() {
    for (path, says, word) in [
        ("/v1/models", Says::Stalls, "no answer within"),
        ("/health", Says::Stalls, "no answer within"),
        ("/v1/models", Says::Page(200, "x".repeat(2 << 20)), "length limit"),
    ] {
        let fake = FakeWorker::vllm("m").await;
        fake.says(path, says);
        let mut settings = hasty();
        settings.checks.timeout = Duration::from_millis(100);
        let registry = started(settings);
        registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
        let complains = |w: &Listed| w.job.as_ref().is_some_and(|j| j.message.contains(word));
        until(&registry, word, |list| complains(&list[0])).await;
        assert_eq!(worker(&registry, 0).seat.pulse.status(), Status::Pending);
    }
}

#[tokio::test]
async fn without_health_checks_a_worker_is_ready_when_it_is_registered() {
    let registry = started(hasty());
    let mut spec = Spec::new("http://127.0.0.1:9", Role::Whole);
    spec.health = HealthSpec { disable_health_check: Some(true), ..HealthSpec::default() };
    registry.add(spec).unwrap();
    assert_eq!(worker(&registry, 0).seat.pulse.status(), Status::Ready);

    let fake = FakeWorker::vllm("m").await;
    fake.page("/health", 500, "");
    let mut spec = Spec::new(fake.url(), Role::Whole);
    spec.health = HealthSpec { disable_health_check: Some(true), ..HealthSpec::default() };
    let id = registry.add(spec).unwrap();
    until(&registry, "described", |list| list[1].seat.worker.engine == Engine::Vllm).await;
    assert_eq!(worker(&registry, 1).seat.pulse.status(), Status::Ready);
    let health = HealthSpec { disable_health_check: Some(false), ..HealthSpec::default() };
    registry.patch(&id, Patch { health: Some(health), ..Patch::default() }).unwrap();
    until_status(&registry, 1, Status::NotReady).await;
}

#[tokio::test]
async fn new_workers_wait_for_their_turn_and_too_many_are_refused() {
    let fake = FakeWorker::start().await;
    fake.says("/health", Says::Stalls);
    let mut settings = hasty();
    (settings.jobs_at_once, settings.jobs_waiting) = (1, 2);
    settings.checks.timeout = NEVER;
    let registry = started(settings);
    registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
    until(&registry, "the first has its turn", |_| fake.asked_for("/health") == 1).await;
    for port in 1..=2 {
        registry.add(Spec::new(format!("http://127.0.0.1:{port}"), Role::Whole)).unwrap();
    }
    assert_eq!(registry.add(Spec::new("http://127.0.0.1:3", Role::Whole)), Err(Refused::Busy));
    registry.remove(&worker(&registry, 1).id).unwrap();
    registry.add(Spec::new("http://127.0.0.1:3", Role::Whole)).unwrap();
}

#[tokio::test]
async fn configured_workers_join_at_start() {
    let (p, d) = (FakeWorker::vllm("m").await, FakeWorker::vllm("m").await);
    let args = ["--prefill", &p.url(), "--decode", &d.url()].map(Into::into);
    let config = Config::load(args.into_iter(), &|_| None);
    let Ok(loaded) = config else { panic!("{config:?}") };
    let registry = started(Settings::of(&loaded.config, Clock::start(), 1));
    until(&registry, "both ready", |list| list.iter().all(|w| w.seat.pulse.status() == Status::Ready)).await;
    assert!(registry.fleet().ready());
    registry.shutdown();
    assert_eq!(registry.add(Spec::new("http://h:1", Role::Whole)), Err(Refused::Closing));
}

#[tokio::test]
async fn pages_of_workers_are_passed_on() {
    let registry = started(unhurried());
    let page = |path: &'static str| admin::worker_page(&registry, path);
    let none = page("/server_info").await.unwrap_err();
    assert_eq!(none, Fault::NoWorker { leg: LegName::Prefill, registered: false });
    let mut fake = FakeWorker::start().await;
    registry.add(Spec::new(fake.url(), Role::Prefill)).unwrap();
    until_status(&registry, 0, Status::Ready).await;
    let missing = page("/get_model_info").await.unwrap_err();
    assert_eq!((missing.status(), missing.code()), (404, "server_not_found"));
    fake.page("/model_info", 200, r#"{"model_path":"m"}"#);
    assert_eq!(page("/get_model_info").await.unwrap().body, r#"{"model_path":"m"}"#);
    fake.page("/server_info", 503, r#"{"error":{"message":"later"}}"#);
    let refused = page("/server_info").await.unwrap_err();
    assert_eq!((refused.status(), refused.code()), (503, "server_unavailable"));
    fake.stop().await;
    assert!(matches!(page("/server_info").await, Err(Fault::Unreachable { .. })));
}

#[tokio::test]
async fn a_flush_reaches_every_worker_and_names_those_that_did_not() {
    let registry = started(unhurried());
    let (a, b) = (FakeWorker::start().await, FakeWorker::start().await);
    for (slot, fake) in [&a, &b].into_iter().enumerate() {
        fake.page("/flush_cache?timeout=5", 200, "Cache flushed.");
        registry.add(Spec::new(fake.url(), Role::Whole)).unwrap();
        until_status(&registry, slot as u32, Status::Ready).await;
    }
    let reply = admin::flush_cache(&registry, Some("timeout=5")).await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains(r#""workers_flushed":2"#), "{}", reply.body);
    assert!(a.asked().iter().any(|x| x.method == "POST" && x.path == "/flush_cache?timeout=5"));
    b.page("/flush_cache?timeout=5", 400, "busy");
    let reply = admin::flush_cache(&registry, Some("timeout=5")).await;
    assert_eq!(reply.status, 206);
    assert!(reply.body.contains(&b.url()) && reply.body.contains("partial_success"), "{}", reply.body);
}

#[tokio::test]
async fn an_engine_that_comes_back_with_other_ranks_has_as_many_workers() {
    let fake = FakeWorker::start().await;
    fake.models("sglang", "m");
    let size = |n: u32| {
        fake.page("/server_info", 200, &SGLANG.replace("\"dp_size\":1", &format!("\"dp_size\":{n}")))
    };
    size(2);
    let registry = started(Settings { dp_aware: true, ..unhurried() });
    let id = registry.add(Spec::new(fake.url(), Role::Decode)).unwrap();
    let ranks = |n: u32| {
        let expected: Vec<String> = (0..n).map(|rank| format!("{}@{rank}", fake.url())).collect();
        until(&registry, "as many workers as ranks", move |list| {
            let mut urls: Vec<String> = list.iter().map(|w| w.spec.url.clone()).collect();
            urls.sort();
            let well =
                |w: &Listed| w.seat.pulse.status() == Status::Ready && w.seat.worker.engine == Engine::Sglang;
            urls == expected && list.iter().all(well) && list.iter().all(|w| w.spec.dp_size == Some(n))
        })
    };
    ranks(2).await;
    assert_eq!(registry.find(&fake.url()).len(), 2);
    assert_eq!(registry.list()[0].id, id, "the registered worker became the first rank");
    for n in [3, 1] {
        size(n);
        registry.suspect(0);
        ranks(n).await;
        assert_eq!(registry.find(&format!("{}@0", fake.url())), std::slice::from_ref(&id));
    }
    registry.shutdown();
}
