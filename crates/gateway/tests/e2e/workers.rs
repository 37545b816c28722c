//! Workers that come, go, fall ill and recover, and what readiness says meanwhile.

use baton_core::breaker::BreakerState;
use baton_core::fleet::Status;
use baton_sim::{Dialect, Fault, FaultKind, FleetSpec};
use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::support::{Ask, BOUND, Gate, House, PROMPT, Plan, Reply, Step, fault, request, until, within};

const FIRST: &str = "data: {\"choices\":[]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn ask(at: usize) -> Ask {
    Ask::completion(&format!("{PROMPT} {at}"), 6)
}

async fn readiness(house: &House) -> (u16, String) {
    let reply = Reply::get(house.address, "/readiness").await;
    (reply.status, reply.json()["reason"].as_str().unwrap_or("").to_owned())
}

async fn ready(house: &House) {
    within(BOUND, "readiness", async {
        while readiness(house).await.0 != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn remove(house: &House, at: usize) {
    let id = house.seat(at).worker.id.clone();
    let gone = request(Method::DELETE, &format!("/workers/{id}"), &[], Bytes::new());
    assert_eq!(Reply::send(house.address, gone).await.status, 202);
}

fn unwell(times: u32) -> Fault {
    Fault { times, ..fault(FaultKind::UnwellHealth) }
}

const QUICK_HEALTH: &str =
    "--health-check-interval-secs 0.05 --health-failure-threshold 2 --health-success-threshold 2";

#[tokio::test]
async fn readiness_comes_with_a_pair_that_can_serve() {
    let engines = FleetSpec::pairs(Dialect::Vllm, 1, 1).and(FleetSpec::pairs(Dialect::Sglang, 0, 1));
    let mut house = Plan::new(engines).open().await;
    for at in 0..3 {
        remove(&house, at).await;
    }
    until("all have left", || house.gateway().registry.load_full().is_empty()).await;
    assert_eq!(readiness(&house).await, (503, "insufficient healthy workers".into()));
    let reply = ask(0).post(house.address).await;
    assert_eq!(reply.error(), (503, "no_available_workers".into()));
    assert_eq!(reply.header("retry-after"), "1");
    assert_eq!(Reply::get(house.address, "/v1/models").await.error().0, 503);
    // A prefill worker alone, as an operator adds it.
    let engine = |at: usize| house.engine(at).url();
    let prefill = json!({"url": engine(0), "worker_type": "prefill", "kv_connector": "NixlConnector"});
    let added = Reply::post(house.address, "/workers", &prefill).await;
    assert_eq!(added.status, 202, "{}", added.text());
    let again = Reply::post(house.address, "/workers", &prefill).await;
    assert_eq!(again.status, 409, "{}", again.text());
    let id = added.json()["worker_id"].as_str().unwrap().to_owned();
    within(BOUND, "it is known", async {
        while Reply::get(house.address, &format!("/workers/{id}")).await.json()["runtime_type"] != "vllm" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(readiness(&house).await, (503, "insufficient healthy workers".into()));
    // A decode worker of another engine does not make a pair.
    Reply::post(house.address, "/workers", &json!({"url": engine(2), "worker_type": "decode"})).await;
    within(BOUND, "both are known", async {
        while readiness(&house).await.1 != "no compatible prefill/decode pair" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(ask(0).post(house.address).await.error(), (503, "no_compatible_pd_pair".into()));
    let decode = json!({"url": engine(1), "worker_type": "decode", "kv_connector": "NixlConnector"});
    assert_eq!(Reply::post(house.address, "/workers", &decode).await.status, 202);
    ready(&house).await;
    ask(1).served(house.address).await;
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (1, 1), "{stats:?}");
    house.note_seats();
    house.close().await;
}

#[tokio::test]
async fn a_worker_that_is_removed_finishes_its_streams_and_gets_no_more() {
    for settle in ["5", "0"] {
        let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 2)).tapped();
        let mut house = plan.args("--policy round_robin --drain-settle-secs").args(settle).open().await;
        let gate = Gate::default();
        for tap in &house.taps {
            tap.script([
                Step::stream_head(""),
                Step::chunk(FIRST),
                Step::Wait(gate.clone()),
                Step::chunk(DONE),
                Step::last_chunk(),
            ]);
        }
        let mut stream = ask(0).streamed().stream(house.address).await;
        stream.read_until(FIRST).await;
        let busy = if house.taps[0].count() == 1 { 0 } else { 1 };
        house.taps[1 - busy].clear();
        remove(&house, busy).await;
        for at in 1..6 {
            ask(at).served(house.address).await;
        }
        assert_eq!((house.taps[busy].count(), house.taps[1 - busy].count()), (1, 5));
        // The same address joins again while the old registration still streams.
        let old = house.seat(busy);
        house.gateway().registry.add(house.spec(busy)).unwrap();
        house.note_seats();
        let new = house.seat(busy);
        assert_ne!(old.slot, new.slot);
        until("it is ready again", || new.pulse.status() == Status::Ready).await;
        for at in 6..10 {
            ask(at).served(house.address).await;
        }
        until("the others are over", || new.load.in_flight() == 0).await;
        assert_eq!((old.load.in_flight(), new.load.in_flight()), (1, 0), "each registration counts its own");
        gate.open();
        assert_eq!(stream.rest().await.text(), format!("{FIRST}{DONE}"));
        until("the old one is free", || old.load.in_flight() == 0).await;
        until("the old one has left", || house.gateway().registry.load_full().len() == 2).await;
        house.close().await;
    }
}

#[tokio::test]
async fn a_fleet_with_a_dead_worker_in_each_leg_serves() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let plan = Plan::pairs(dialect, 2, 2).unready().args("--worker-startup-check-interval 0.1");
        let mut house = plan.open().await;
        // Two never come up; or they do, and die before they were asked.
        house.engine(0).kill().await;
        house.engine(2).kill().await;
        ready(&house).await;
        for at in 0..12 {
            let ask = if at % 2 == 0 { ask(at) } else { ask(at).streamed() };
            ask.served(house.address).await;
        }
        house.note_seats();
        house.close().await;
    }
}

#[tokio::test]
async fn smg_a33b_health_takes_a_worker_out_and_brings_it_back() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let mut house = Plan::pairs(dialect, 1, 2).args(QUICK_HEALTH).open().await;
        house.arm(1, unwell(0)).await;
        until("the unwell decode is out", || house.status(1) == Status::NotReady).await;
        let before = house.engine(1).stats().requests.accepted;
        for at in 0..6 {
            ask(at).served(house.address).await;
        }
        assert_eq!(house.engine(1).stats().requests.accepted, before);
        assert_eq!(readiness(&house).await.0, 200);
        house.arm(2, unwell(0)).await;
        until("so is the other", || house.status(2) == Status::NotReady).await;
        assert_eq!(readiness(&house).await, (503, "insufficient healthy workers".into()));
        let reply = ask(7).post(house.address).await;
        assert_eq!(reply.error(), (503, "no_available_workers".into()));
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains("decode"), "{}", reply.text());
        for at in [1, 2] {
            house.engine(at).clear_faults();
        }
        house.ready().await;
        ask(8).served(house.address).await;
        // One bad answer is not enough.
        house.arm(1, unwell(1)).await;
        until("it was asked", || house.engine(1).stats().faults > 2).await;
        assert_eq!(house.status(1), Status::Ready);
        house.close().await;
    }
}

#[tokio::test]
async fn a_slow_health_page_is_a_bad_one() {
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 2)).args(QUICK_HEALTH);
    let house = plan.args("--health-check-timeout-secs 0.05").open().await;
    house.arm(0, Fault { times: 0, ms: Some(60_000), ..fault(FaultKind::SlowHealth) }).await;
    until("it is out", || house.status(0) == Status::NotReady).await;
    house.engine(0).clear_faults();
    until("it is back", || house.status(0) == Status::Ready).await;
    house.close().await;
}

#[tokio::test]
async fn a_breaker_opens_rests_probes_and_closes() {
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).no_retries().tapped();
    let args = "--cb-failure-threshold 3 --cb-success-threshold 2 --cb-timeout-duration-secs 0.3";
    let house = plan.args(args).open().await;
    let state = || house.seat(0).pulse.breaker().state();
    for _ in 0..3 {
        house.taps[0].script([Step::json(500, "", "{}")]);
        assert_eq!(ask(0).post(house.address).await.status, 500);
    }
    assert!(matches!(state(), BreakerState::Open { .. }));
    let reply = ask(1).post(house.address).await;
    assert_eq!(reply.error(), (503, "no_available_workers".into()));
    assert_eq!((house.taps[0].count(), reply.header("retry-after")), (3, "1"), "the engine is left alone");
    assert_eq!(house.page().await.sum("smg_worker_cb_state", &[]), 1.0);
    // After the rest one probe at a time goes through.
    let gate = Gate::default();
    house.taps[0].script([Step::Wait(gate.clone()), Step::Pass]);
    let address = house.address;
    let mut probe = tokio::spawn(async move { ask(2).post(address).await });
    within(BOUND, "the rest is over", async {
        loop {
            until("it is there or refused", || house.taps[0].count() == 4 || probe.is_finished()).await;
            if house.taps[0].count() == 4 {
                return;
            }
            let next = tokio::spawn(async move { ask(2).post(address).await });
            assert_eq!(std::mem::replace(&mut probe, next).await.unwrap().status, 503);
        }
    })
    .await;
    assert_eq!(ask(3).post(house.address).await.status, 503, "the probe is out already");
    gate.open();
    ask(2).check(&probe.await.unwrap());
    assert!(matches!(state(), BreakerState::HalfOpen { good: 1, .. }));
    ask(4).served(house.address).await;
    assert_eq!(state(), BreakerState::Closed);
    assert_eq!(house.transitions(0), 3);
    house.close().await;
}

#[tokio::test]
async fn a21_clients_mistakes_open_no_breaker() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let mut house = Plan::pairs(dialect, 1, 1).args("--cb-failure-threshold 3").open().await;
        for at in 0..12 {
            let wrong = ask(at).with(json!({"temperature": -1})).post(house.address).await;
            assert_eq!(wrong.status, 400, "{}", wrong.text());
        }
        assert_eq!((house.blamed(0), house.blamed(1), house.transitions(1)), (0, 0, 0));
        ask(0).served(house.address).await;
        house.quiet().await;
        house.close().await;
    }
}

#[tokio::test]
async fn a22_push_back_opens_no_breaker() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        // One of two pushes back all the time: the other one serves.
        let plan =
            Plan::pairs(dialect, 1, 2).args("--cb-failure-threshold 3").engines(|s| s.timeout_scale = 0.05);
        let mut house = plan.open().await;
        let push_back =
            Fault { times: 0, status: Some(429), retry_after: Some(1), ..fault(FaultKind::Status) };
        house.arm(1, push_back.clone()).await;
        for at in 0..20 {
            ask(at).served(house.address).await;
        }
        assert!(house.engine(1).stats().faults > 0, "it was asked at all");
        house.arm(2, push_back).await;
        let all = ask(21).post(house.address).await;
        assert_eq!((all.status, all.header("retry-after")), (429, "1"), "{}", all.text());
        house.engine(1).clear_faults();
        house.engine(2).clear_faults();
        ask(22).served(house.address).await;
        assert_eq!((house.transitions(1), house.transitions(2)), (0, 0));
        let stats = house.fleet.stats().handoffs;
        house.may_expire(stats.made - stats.right);
        house.close().await;
    }
}

#[tokio::test]
async fn a11_an_engine_that_was_restarted_on_its_address_serves_with_its_new_self() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1)
            .args("--retry-initial-backoff-ms 20 --retry-max-backoff-ms 200")
            .open()
            .await;
        ask(0).served(house.address).await;
        for at in 0..2 {
            let old = house.engine(at).engine_id().unwrap();
            house.engine(at).restart().await.unwrap();
            assert_ne!(house.engine(at).engine_id().unwrap(), old);
            for round in 0..3 {
                ask(10 * at + round).served(house.address).await;
            }
        }
        house.close().await;
    }
}

#[tokio::test]
async fn smg_a23_models_choose_their_workers() {
    let named = |model: &'static str| move |spec: &mut baton_sim::EngineSpec| spec.model = model.into();
    let engines = FleetSpec::pairs(Dialect::Vllm, 1, 1).with(named("a"));
    let engines = engines.and(FleetSpec::pairs(Dialect::Sglang, 1, 1).with(named("b")));
    let house = Plan::new(engines).open().await;
    for (model, engines) in [("a", [0, 1]), ("b", [2, 3])] {
        let before: Vec<u64> = (0..4).map(|at| house.engine(at).stats().requests.accepted).collect();
        Ask::chat(PROMPT, 5).with(json!({"model": model})).served(house.address).await;
        for (at, was) in before.into_iter().enumerate() {
            let more = house.engine(at).stats().requests.accepted - was;
            assert_eq!(more, u64::from(engines.contains(&at)), "{model} {at}");
        }
    }
    let unknown = Ask::chat(PROMPT, 5).with(json!({"model": "c"})).post(house.address).await;
    assert_eq!(unknown.error(), (404, "model_not_found".into()));
    let models = Reply::get(house.address, "/v1/models").await.json();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("a"), &json!("b")));
    house.close().await;
}
