//! What engines say of their own load, as the gateway knows it.

use std::sync::Arc;

use baton_core::fleet::Seat;
use baton_sim::{Dialect, Fault, FaultKind, FleetSpec};
use serde_json::json;

use crate::support::{Ask, House, PROMPT, Plan, Streamed, until};

const OFTEN: &str = "--worker-metrics always --worker-metrics-interval-ms 10";

async fn one(dialect: Dialect, args: &str) -> House {
    let plan = Plan::new(FleetSpec::whole(dialect, 1)).engines(|spec| spec.time_scale = 0.2);
    plan.args(args).open().await
}

/// A stream that goes on until it is left.
async fn endless(house: &House) -> Streamed {
    let ask = Ask::chat(PROMPT, 4000).with(json!({"ignore_eos": true})).streamed();
    let mut stream = ask.stream(house.address).await;
    stream.read_events(2).await;
    stream
}

async fn observed(seat: &Arc<Seat>) {
    until("the worker has told its load", || seat.gauges.observed()).await;
}

#[tokio::test]
async fn engines_of_every_kind_tell_what_they_are_doing() {
    for dialect in [Dialect::Vllm, Dialect::Sglang, Dialect::Trtllm] {
        let house = one(dialect, OFTEN).await;
        let (seat, stream) = (house.seat(0), endless(&house).await);
        let gauges = &seat.gauges;
        until("it runs one", || gauges.running.get() == Some(1.0)).await;
        until("it holds its KV", || gauges.kv_usage.get().is_some_and(|used| used > 0.0 && used < 1.0)).await;
        if dialect != Dialect::Trtllm {
            until("it generates", || gauges.throughput.get().is_some_and(|rate| rate > 1.0)).await;
        }
        assert_eq!(gauges.waiting_for_anything(), 0.0);
        stream.leave();
        until("it runs none", || gauges.running.get() == Some(0.0)).await;
        until("its KV is free", || gauges.kv_usage.get() == Some(0.0)).await;
        if dialect == Dialect::Vllm {
            Ask::chat(PROMPT, 5).served(house.address).await;
            until("its prefills took time", || gauges.prefill_ms().is_some_and(|ms| ms > 0.0)).await;
        }
        let mean = |what: &str| match what {
            "prompt" => gauges.prompt_mean.get(),
            _ => gauges.answer_mean.get(),
        };
        Ask::chat(PROMPT, 5).served(house.address).await;
        if dialect != Dialect::Trtllm {
            until("means", || mean("prompt").is_some_and(|n| n > 1.0) && mean("answer").is_some()).await;
        }
        assert!(house.page().await.sum("baton_worker_metrics_looks_total", &["result=\"success\""]) > 1.0);
        house.close().await;
    }
}

#[tokio::test]
async fn of_a_worker_that_is_gone_nothing_is_known() {
    let house = one(Dialect::Sglang, OFTEN).await;
    let seat = house.seat(0);
    observed(&seat).await;
    house.engine(0).kill().await;
    until("nothing is known of it", || !seat.gauges.observed()).await;
    assert_eq!(seat.gauges.kv_usage.get(), None);
    house.engine(0).restart().await.unwrap();
    observed(&seat).await;
    house.close().await;
}

fn no_metrics() -> Fault {
    Fault { times: 0, ..Fault::new(FaultKind::NoMetrics) }
}

#[tokio::test]
async fn values_of_a_worker_that_shows_none_any_more_are_forgotten() {
    let house = one(Dialect::Vllm, &format!("{OFTEN} --worker-metrics-stale-ms 50")).await;
    let seat = house.seat(0);
    observed(&seat).await;
    house.arm(0, no_metrics()).await;
    until("nothing is known of it", || !seat.gauges.observed()).await;
    house.engine(0).clear_faults();
    observed(&seat).await;
    house.close().await;
}

#[tokio::test]
async fn sglang_without_metrics_tells_its_load_all_the_same() {
    let house = one(Dialect::Sglang, OFTEN).await;
    house.arm(0, no_metrics()).await;
    let (seat, stream) = (house.seat(0), endless(&house).await);
    until("it runs one", || seat.gauges.running.get() == Some(1.0)).await;
    until("it holds its KV", || seat.gauges.kv_usage.get().is_some_and(|used| used > 0.0)).await;
    stream.leave();
    until("it runs none", || seat.gauges.running.get() == Some(0.0)).await;
    house.close().await;
}

#[tokio::test]
async fn nobody_is_asked_before_a_decision_needs_it() {
    let house = one(Dialect::Vllm, "--worker-metrics-interval-ms 10").await;
    Ask::chat(PROMPT, 5).served(house.address).await;
    assert_eq!(house.page().await.sum("baton_worker_metrics_looks_total", &[]), 0.0);
    let seat = house.seat(0);
    assert!(!seat.gauges.observed());
    house.gateway().registry.fleet().want_gauges();
    observed(&seat).await;
    house.close().await;
}

#[tokio::test]
async fn a_page_that_is_too_long_says_nothing() {
    let house = one(Dialect::Vllm, &format!("{OFTEN} --worker-metrics-max-bytes 2000")).await;
    let looked = async || house.page().await.sum("baton_worker_metrics_looks_total", &["result=\"failure\""]);
    while looked().await < 1.0 {
        tokio::task::yield_now().await;
    }
    assert!(!house.seat(0).gauges.observed());
    house.close().await;
}

/// What engines say is on the page of metrics, and nobody chooses by it for that.
#[tokio::test]
async fn what_engines_say_is_passed_on() {
    for (args, passed) in [("--engine-metrics --load-monitor-interval 0.01", true), (OFTEN, false)] {
        let house = one(Dialect::Vllm, args).await;
        let (seat, stream) = (house.seat(0), endless(&house).await);
        until("it runs one", || seat.gauges.running.get() == Some(1.0)).await;
        until("it holds its KV", || seat.gauges.kv_usage.get().is_some_and(|used| used > 0.0)).await;
        let page = house.page().await;
        assert_eq!(page.sum("smg_engine_running_requests", &[]), f64::from(u8::from(passed)));
        assert_eq!(page.sum("smg_engine_token_usage", &[]) > 0.0, passed);
        stream.leave();
        until("it runs none", || seat.gauges.running.get() == Some(0.0)).await;
        house.close().await;
    }
}
