//! The pre-flight: a tiny request through a pair before it serves, and what it shows.

use std::time::Duration;

use baton_core::fleet::Status;
use baton_sim::{Fault, FaultKind, FleetSpec, Kind, Where};
use serde_json::{Value, json};

use crate::support::{Ask, BOUND, Gate, House, PROMPT, Plan, Reply, SOON, Step, fault, on, until, within};

const PREFILL: usize = 0;
const DECODE: usize = 1;
const TRIALS: &str = "baton_preflight_trials_total";
const STATE: &str = "baton_worker_preflight";
const QUICK_HEALTH: &str =
    "--health-check-interval-secs 0.05 --health-failure-threshold 2 --health-success-threshold 2";

/// Engines whose leases are over soon, with the pre-flight before them.
fn plan(kind: Kind, prefill: usize, decode: usize) -> Plan {
    let scale = match kind {
        Kind::Vllm | Kind::MoriioWrite | Kind::Trtllm => 0.03,
        Kind::Mooncake => 0.004,
        Kind::MoriioRead => 0.0005,
        Kind::Sglang => 0.01,
    };
    let engines = FleetSpec::pairs(kind, prefill, decode).with(|spec| spec.timeout_scale = scale);
    Plan::new(engines).args("--pd-preflight")
}

fn ask(at: usize) -> Ask {
    Ask::completion(&format!("{PROMPT} {at}"), 6)
}

fn forever(fault: Fault) -> Fault {
    Fault { times: 0, ..fault }
}

/// What `/workers` shows of the worker.
async fn shown(house: &House, at: usize) -> Value {
    let url = house.url(at);
    let list = Reply::get(house.address, "/workers").await.json();
    let worker = list["workers"].as_array().unwrap().iter().find(|w| w["url"] == json!(url)).cloned();
    worker.unwrap_or_default()
}

async fn state(house: &House, at: usize) -> String {
    shown(house, at).await["pd_preflight"]["state"].as_str().unwrap_or_default().to_owned()
}

/// Waits until `/workers` shows this state.
async fn becomes(house: &House, at: usize, wanted: &str) {
    within(BOUND, wanted, async {
        while state(house, at).await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn trials(house: &House, result: &str) -> f64 {
    house.page().await.sum(TRIALS, &[&format!("result=\"{result}\"")])
}

#[tokio::test]
async fn every_kind_of_engine_is_tried_before_it_serves() {
    let kinds = [Kind::Vllm, Kind::Mooncake, Kind::MoriioRead, Kind::MoriioWrite, Kind::Sglang, Kind::Trtllm];
    for (kind, args) in kinds
        .map(|kind| (kind, ""))
        .into_iter()
        .chain([(Kind::Trtllm, "--trt-schedule-style generation_first")])
    {
        let house = plan(kind, 2, 2).args(args).open().await;
        let expected = if kind == Kind::Trtllm { "answered" } else { "proved" };
        for at in 0..4 {
            let worker = shown(&house, at).await;
            assert_eq!(worker["pd_preflight"]["state"], expected, "{kind:?} {args}: {worker}");
            assert_eq!((&worker["is_healthy"], &worker["status"]), (&json!(true), &json!("ready")));
            let partner = worker["pd_preflight"]["partner"].as_str().unwrap();
            assert!((0..4).any(|other| house.url(other) == partner));
        }
        let stats = house.stats().await;
        assert!(stats.all_free() && (2..=3).contains(&stats.handoffs.right), "{kind:?} {args}: {stats:?}");
        // No client asked for it.
        let page = house.page().await;
        assert_eq!(page.sum(TRIALS, &[&format!("result=\"{expected}\"")]), stats.handoffs.right as f64);
        assert_eq!(page.sum(STATE, &[&format!("state=\"{expected}\"")]), 4.0);
        for family in ["smg_router_requests_total", "smg_worker_requests_total", "baton_exchanges_total"] {
            assert_eq!(page.sum(family, &[]), 0.0, "{family}");
        }
        assert_eq!(page.sum("baton_workers_held", &[]), 0.0);
        ask(0).served(house.address).await;
        house.close().await;
    }
}

#[tokio::test]
async fn legs_at_once_and_ranks_are_tried_as_they_serve() {
    let at_once = plan(Kind::MoriioWrite, 1, 1)
        .registered(|spec| drop(spec.labels.insert("moriio_write_dispatch".into(), "concurrent".into())));
    let house = at_once.open().await;
    assert_eq!(state(&house, DECODE).await, "proved");
    house.close().await;

    // Each rank is a worker, and is tried as one.
    let ranks = plan(Kind::Sglang, 1, 1).args("--dp-aware").engines(|spec| spec.dp_size = 2);
    let house = ranks.open().await;
    until("all ranks are in service", || {
        let fleet = house.gateway().registry.load_full();
        fleet.len() == 4 && fleet.seats().all(|seat| seat.pulse.in_service())
    })
    .await;
    let list = Reply::get(house.address, "/workers").await.json();
    let states = list["workers"].as_array().unwrap().iter().map(|w| &w["pd_preflight"]["state"]);
    assert!(states.clone().all(|state| state == "proved"), "{:?}", states.collect::<Vec<_>>());
    house.close().await;
}

#[tokio::test]
async fn a_pair_that_answers_without_moving_kv_is_shown_as_degraded() {
    let lost = "the prefill returned no kv_transfer_params";
    let still = "the decode counts no KV from the prefill: it computed the prompt itself";
    for (at, struck, why) in [
        (DECODE, on(Where::Decode, FaultKind::Recompute), still),
        (PREFILL, on(Where::Prefill, FaultKind::NullParams), lost),
    ] {
        let mut house = plan(Kind::Vllm, 1, 1).empty().open().await;
        house.arm(at, forever(struck)).await;
        (0..2).for_each(|at| house.join(at));
        house.ready().await;
        for (own, other) in [(PREFILL, DECODE), (DECODE, PREFILL)] {
            let worker = shown(&house, own).await;
            let partner = house.url(other);
            let degraded =
                json!({"state": "degraded", "partner": partner, "why": why, "degraded_with": partner});
            assert_eq!(worker["pd_preflight"], degraded);
            assert_eq!(worker["is_healthy"], json!(true), "it serves: slowly is better than not");
            let one = Reply::get(house.address, &format!("/workers/{}", house.seat(own).worker.id)).await;
            assert_eq!(one.json()["pd_preflight"], worker["pd_preflight"]);
        }
        let page = house.page().await;
        assert_eq!(page.sum(TRIALS, &["result=\"degraded\""]), 1.0);
        assert_eq!(page.sum(STATE, &["state=\"degraded\""]), 2.0);
        ask(0).served(house.address).await;
        house.close().await;
    }
}

#[tokio::test]
async fn a_registration_without_a_connector_is_found_out() {
    let plan = plan(Kind::Vllm, 1, 1).registered(|spec| spec.kv_connector = None);
    let house = plan.open().await;
    assert_eq!(state(&house, DECODE).await, "degraded");
    house.close().await;
}

#[tokio::test]
async fn a_late_worker_gets_no_request_before_it_is_proved() {
    let mut house = plan(Kind::Vllm, 1, 2).tapped().empty().open().await;
    let gate = Gate::default();
    house.taps[2].script([Step::Wait(gate.clone()), Step::Pass]);
    house.join(0);
    house.join(1);
    house.ready().await;
    assert_eq!((state(&house, 0).await, state(&house, 1).await), ("proved".into(), "proved".into()));
    house.join(2);
    until("the late one is being tried", || house.taps[2].count() == 1).await;
    let worker = shown(&house, 2).await;
    assert_eq!((&worker["status"], &worker["is_healthy"]), (&json!("pending"), &json!(false)));
    assert_eq!(worker["pd_preflight"]["state"], "waiting");
    assert_eq!(worker["load"], json!(1), "a trial has its lease");
    let page = house.page().await;
    assert_eq!(page.sum("baton_workers_held", &[]), 1.0);
    assert_eq!(page.sum("smg_worker_health", &[&format!("worker=\"{}\"", house.url(2))]), 0.0);
    assert_eq!(page.sum("baton_ready", &[]), 1.0);
    for at in 0..6 {
        ask(at).served(house.address).await;
    }
    assert_eq!(house.taps[2].count(), 1, "only the trial");
    gate.open();
    house.ready().await;
    assert_eq!(state(&house, 2).await, "proved");
    house.note_seats();
    for at in 0..8 {
        ask(at).served(house.address).await;
    }
    assert!(house.taps[2].count() > 1);
    house.close().await;
}

#[tokio::test]
async fn a_lone_worker_is_not_held_and_the_first_pair_is() {
    let mut house = plan(Kind::Sglang, 1, 1).tapped().empty().open().await;
    let gate = Gate::default();
    house.taps[DECODE].script([Step::Wait(gate.clone()), Step::Pass]);
    house.join(PREFILL);
    house.ready().await;
    let worker = shown(&house, PREFILL).await;
    assert_eq!(worker["pd_preflight"], json!({"state": "waiting", "why": "no ready partner to try it with"}));
    assert_eq!(worker["is_healthy"], json!(true));
    assert_eq!(house.taps[PREFILL].count(), 0);
    house.join(DECODE);
    until("the pair is being tried", || house.taps[DECODE].count() == 1).await;
    let readiness = Reply::get(house.address, "/readiness").await;
    assert_eq!(readiness.status, 503);
    assert_eq!(readiness.json()["reason"], "workers wait for their pre-flight");
    let refused = ask(0).post(house.address).await;
    assert_eq!(refused.error(), (503, "no_available_workers".into()));
    assert_eq!(refused.header("retry-after"), "1");
    gate.open();
    house.ready().await;
    assert_eq!(Reply::get(house.address, "/readiness").await.status, 200);
    assert_eq!((state(&house, 0).await, state(&house, 1).await), ("proved".into(), "proved".into()));
    house.close().await;
}

#[tokio::test]
async fn a_worker_that_comes_back_is_tried_again() {
    let mut house = plan(Kind::Vllm, 1, 1).args(QUICK_HEALTH).open().await;
    house.may_expire(0);
    let proved = trials(&house, "proved").await;
    house.engine(DECODE).kill().await;
    let seat = house.seat(DECODE);
    until("it is missed", || seat.pulse.status() != Status::Ready).await;
    assert_eq!(state(&house, DECODE).await, "", "nothing is known of one that is away");
    house.engine(DECODE).restart().await.unwrap();
    house.ready().await;
    assert_eq!(state(&house, DECODE).await, "proved");
    assert_eq!(trials(&house, "proved").await, proved + 1.0);
    // One that was not missed for long is tried while it serves.
    house.seat(PREFILL).pulse.reborn();
    house.gateway().registry.suspect(house.seat(PREFILL).slot);
    within(BOUND, "the third trial", async {
        while trials(&house, "proved").await < proved + 2.0 {
            assert!(house.seat(PREFILL).pulse.in_service());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    house.close().await;
}

#[tokio::test]
async fn a_refusal_cannot_be_judged_and_lets_in() {
    let mut house = plan(Kind::Vllm, 1, 1).tapped().empty().open().await;
    let error = r#"{"error":{"message":"no completions here","type":"NotFoundError","code":404}}"#;
    house.taps[PREFILL].script([Step::json(404, "", error)]);
    (0..2).for_each(|at| house.join(at));
    house.ready().await;
    let worker = shown(&house, DECODE).await;
    assert_eq!(worker["pd_preflight"]["state"], "unchecked");
    let why = worker["pd_preflight"]["why"].as_str().unwrap();
    assert!(why.contains("prefill_not_found") && why.contains("no completions here"), "{why}");
    assert_eq!((house.taps[PREFILL].count(), house.taps[DECODE].count()), (1, 0));
    house.close().await;
}

#[tokio::test]
async fn an_engine_that_does_not_count_is_not_tried() {
    let mut house = plan(Kind::Vllm, 1, 1).empty().open().await;
    house.arm(DECODE, forever(fault(FaultKind::NoMetrics))).await;
    (0..2).for_each(|at| house.join(at));
    house.ready().await;
    let worker = shown(&house, DECODE).await;
    assert_eq!(worker["pd_preflight"]["state"], "unchecked");
    let why = worker["pd_preflight"]["why"].as_str().unwrap();
    assert!(why.contains("do not count KV"), "{why}");
    assert_eq!(house.stats().await.requests.accepted, 0);
    house.close().await;
}

#[tokio::test]
async fn a_failure_is_tried_again_until_patience_ends() {
    // On the prefill leg: nothing is left behind.
    let mut house = plan(Kind::Vllm, 1, 1).tapped().empty().open().await;
    for _ in 0..2 {
        house.taps[PREFILL].script([Step::json(500, "", "{}")]);
    }
    (0..2).for_each(|at| house.join(at));
    house.ready().await;
    assert_eq!(state(&house, DECODE).await, "proved");
    assert_eq!((trials(&house, "failed").await, trials(&house, "proved").await), (2.0, 1.0));
    let blamed = house.blamed(PREFILL);
    assert_eq!(blamed, 0, "breakers hear of requests alone");
    house.close().await;

    let mut house =
        plan(Kind::Sglang, 1, 1).args("--pd-preflight-hold-secs 0.5").tapped().empty().open().await;
    house.taps[PREFILL].always([Step::json(500, "", "{}")]);
    (0..2).for_each(|at| house.join(at));
    becomes(&house, DECODE, "waiting").await;
    house.ready().await;
    let worker = shown(&house, DECODE).await;
    let why = worker["pd_preflight"]["why"].as_str().unwrap();
    assert!(why.starts_with("prefill_internal_error"), "{worker}");
    house.taps[PREFILL].clear();
    becomes(&house, DECODE, "proved").await;
    house.close().await;
}

/// It would be held for as long as the overload lasts, and it joined because of that.
#[tokio::test]
async fn a_prefill_that_joins_while_decodes_are_full_serves_and_is_tried_when_there_is_room() {
    let mut house = plan(Kind::Vllm, 2, 1).empty().open().await;
    house.join(0);
    let mut narrow = house.spec(2);
    narrow.labels.insert("max_num_seqs".into(), "1".into());
    house.gateway().registry.add(narrow).unwrap();
    house.ready().await;
    let decode = house.gateway().registry.load_full().decode()[0].clone();
    let full = decode.load.take();
    house.join(1);
    within(BOUND, "a trial that finds no room", async {
        while trials(&house, "crowded").await < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    house.ready().await;
    let worker = shown(&house, 1).await;
    assert_eq!(worker["pd_preflight"]["why"], "the decode has no room", "{worker}");
    assert_eq!(trials(&house, "failed").await, 0.0);
    drop(full);
    becomes(&house, 1, "proved").await;
    house.close().await;
}

#[tokio::test]
async fn no_answer_does_not_keep_a_worker_out_for_ever() {
    let plan = plan(Kind::Vllm, 1, 1).args("--pd-preflight-hold-secs 0.3").tapped();
    let mut house = plan.empty().open().await;
    let gate = Gate::default();
    house.taps[PREFILL].script([Step::Wait(gate.clone()), Step::Pass]);
    (0..2).for_each(|at| house.join(at));
    until("it is being tried", || house.taps[PREFILL].count() == 1).await;
    assert!(!house.gateway().registry.load_full().ready());
    house.ready().await;
    ask(0).served(house.address).await;
    assert_eq!(state(&house, DECODE).await, "waiting", "the trial goes on");
    gate.open();
    becomes(&house, DECODE, "proved").await;
    house.close().await;
}

#[tokio::test]
async fn a_worker_removed_meanwhile_waits_for_its_trial_and_leaves() {
    let mut house = plan(Kind::Vllm, 1, 1).tapped().empty().open().await;
    let gate = Gate::default();
    house.taps[DECODE].script([Step::Wait(gate.clone()), Step::Pass]);
    (0..2).for_each(|at| house.join(at));
    until("the decode is being tried", || house.taps[DECODE].count() == 1).await;
    let id = house.seat(DECODE).worker.id.clone();
    house.gateway().registry.remove(&id).unwrap();
    assert_eq!(house.status(DECODE), Status::Draining);
    assert_eq!(house.gateway().registry.load_full().len(), 2, "its trial holds a lease");
    gate.open();
    until("it has left", || house.gateway().registry.load_full().len() == 1).await;
    assert_eq!(state(&house, PREFILL).await, "proved", "what the trial showed counts for the other");
    // And it may join again.
    house.join(DECODE);
    house.ready().await;
    assert_eq!(state(&house, DECODE).await, "proved");
    house.close().await;
}

#[tokio::test]
async fn a_gateway_that_ends_meanwhile_ends_soon_and_leaves_nothing() {
    for at in [PREFILL, DECODE] {
        let mut house = plan(Kind::Vllm, 1, 1).tapped().empty().open().await;
        house.taps[at].script([Step::Never]);
        (0..2).for_each(|at| house.join(at));
        until("it is being tried", || house.taps[at].count() == 1).await;
        within(SOON * 2, "the end", house.take_running().end()).await;
        let left = [PREFILL, DECODE].map(|at| house.in_flight(at));
        assert_eq!(left, [0, 0], "leases are back");
        let stats = house.fleet.settle_when(BOUND, |s| s.idle() && s.all_free()).await;
        assert!(stats.idle() && stats.all_free(), "{stats:?}");
    }
    // One that is nearly through is waited for, so that the decode fetches what the prefill keeps.
    let mut house = plan(Kind::Vllm, 1, 1).tapped().empty().open().await;
    let gate = Gate::default();
    house.taps[DECODE].script([Step::Wait(gate.clone()), Step::Pass]);
    (0..2).for_each(|at| house.join(at));
    until("it is being tried", || house.taps[DECODE].count() == 1).await;
    let running = house.take_running();
    let opens = async {
        tokio::task::yield_now().await;
        gate.open();
    };
    tokio::join!(within(SOON * 2, "the end", running.end()), opens);
    let stats = house.fleet.settle_when(BOUND, |s| s.idle() && s.all_free()).await;
    assert_eq!((stats.handoffs.right, stats.handoffs.expired), (1, 0), "{stats:?}");
}

#[tokio::test]
async fn switched_off_nothing_is_tried_and_nobody_is_held() {
    let house = Plan::pairs(Kind::Vllm, 1, 1).args("--pd-preflight=false").open().await;
    assert_eq!(house.stats().await.requests.accepted, 0);
    assert!(shown(&house, DECODE).await.get("pd_preflight").is_none());
    assert_eq!(house.page().await.sum(TRIALS, &[]), 0.0);
    house.close().await;
}

#[tokio::test]
async fn workers_that_nobody_asks_for_their_health_are_tried_and_not_held() {
    for kind in [Kind::Vllm, Kind::Sglang] {
        let mut house = plan(kind, 1, 1).args("--disable-health-check").tapped().empty().open().await;
        let gate = Gate::default();
        house.taps[DECODE].always([Step::Wait(gate.clone()), Step::Pass]);
        (0..2).for_each(|at| house.join(at));
        assert!(house.gateway().registry.load_full().ready());
        until("it is being tried", || house.taps[DECODE].count() >= 1).await;
        assert!(house.gateway().registry.load_full().ready());
        house.taps[DECODE].clear();
        gate.open();
        becomes(&house, DECODE, "proved").await;
        house.close().await;
    }
}

#[tokio::test]
async fn a_hold_of_zero_holds_nobody() {
    let mut house = plan(Kind::Vllm, 1, 1).args("--pd-preflight-hold-secs 0").tapped().empty().open().await;
    let gate = Gate::default();
    house.taps[DECODE].script([Step::Wait(gate.clone()), Step::Pass]);
    (0..2).for_each(|at| house.join(at));
    until("it is being tried", || house.taps[DECODE].count() == 1).await;
    assert!(house.gateway().registry.load_full().ready());
    gate.open();
    becomes(&house, DECODE, "proved").await;
    house.close().await;
}
