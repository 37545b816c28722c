//! What one record adds, case by case.

use std::sync::Arc;

use baton_core::abort::{Asked, Class, Why};
use baton_core::ask::Api;
use baton_core::exchange::Outcome;
use baton_core::fault::{Fault, LegName, Refusal};
use baton_core::fleet::{Engine, FleetChange, Role, Worker};
use baton_core::gauges::Reading;
use baton_core::kv::{Feed, KvIndex};
use baton_core::place::cascade::resolve::Routing;
use baton_core::place::cascade::words::Ways;
use baton_core::record::{HandoffResult, Moments, Record, Retried};
use baton_core::sse::Usage;
use baton_core::time::{Duration, Instant};
use baton_core::watchdog::Silence;
use expect_test::expect;

use super::{Stand, join};
use crate::registry::Rolled;

fn at(ms: u64) -> Option<Instant> {
    Some(Instant::from_micros(ms * 1000))
}

/// A streamed chat over a NIXL pair: prefill 200 ms, first byte at 500 ms, end at 900 ms.
pub fn served(stand: &Stand) -> Record {
    Record {
        api: Some(Api::Chat),
        method: "POST",
        path: Api::Chat.path().into(),
        model: Some("llama".into()),
        stream: true,
        outcome: Outcome::Served,
        status: 200,
        prefill: Some(stand.worker(1)),
        decode: Some(stand.worker(2)),
        pd: true,
        engine: Engine::Vllm,
        mode: Some("nixl"),
        handoff: HandoffResult::Relayed,
        attempts: 1,
        moments: Moments {
            received: Instant::ZERO,
            queued: None,
            admitted: at(1),
            prefill_sent: at(10),
            prefill_done: at(210),
            decode_sent: at(212),
            decode_head: at(300),
            first_byte: at(500),
            ended: Instant::from_micros(900_000),
        },
        request_bytes: 100,
        answer_bytes: 2000,
        usage: Some(Usage { prompt_tokens: 50, completion_tokens: 5, cached_tokens: Some(16) }),
        ..Record::default()
    }
}

/// One that ended at 5 ms with `fault` and was placed nowhere.
pub fn failed(fault: &Fault) -> Record {
    let mut record = Record {
        api: Some(Api::Completions),
        method: "POST",
        path: Api::Completions.path().into(),
        outcome: Outcome::Failed,
        status: fault.status(),
        attempts: 1,
        ..Record::default()
    };
    record.moments.ended = Instant::from_micros(5000);
    record.blame(fault);
    record
}

/// Something of everything that can be counted.
pub fn everything(stand: &Stand) {
    let mut record = served(stand);
    record.band = Some(("short".into(), 7));
    stand.telemetry.record(&record);
    let lost = Fault::Unreachable { leg: LegName::Decode, cause: "reset".into() };
    record.retried = vec![Retried::new(&lost, record.prefill.clone(), record.decode.clone())];
    record.attempts = 2;
    record.retries_exhausted = true;
    record.outcome = Outcome::Cut;
    record.blame(&lost);
    stand.telemetry.record(&record);
    stand.telemetry.record(&failed(&Fault::QueueFull { retry_after_s: 1 }));
    stand.telemetry.record(&routed(stand, "pd"));
    stand.telemetry.background().prefill_failed(Class::Transport);
    stand.telemetry.background().asked(Asked::Ok, Why::Silence(Silence::StreamIdle));
    stand.telemetry.background().listed("file", Some("missing"), 1);
    stand.telemetry.background().rolled("file", &Rolled::default(), Duration::ZERO);
    let (fleet, index) = (stand.fleet(), Arc::new(KvIndex::new(1 << 20)));
    let view = &fleet.seats().next().unwrap().view;
    let mut feed = Feed::begin(&index, view, 0).unwrap();
    feed.take(0, b"spoilt", false, Instant::from_micros(1));
    let said = Some(0.5);
    let said = Reading {
        running: said,
        waiting: said,
        prefill_prealloc: said,
        decode_prealloc: said,
        throughput: said,
        kv_usage: said,
        ..Reading::default()
    };
    fleet.seats().for_each(|seat| seat.gauges.show(&said));
}

/// A pair that one of AIBrix's strategies picked.
fn routed(stand: &Stand, ways: &str) -> Record {
    let routing = Routing { ways: Some(Ways::parse(ways).unwrap()), ..Routing::plain(&Arc::default()) };
    Record { routing: Some(Arc::new(routing)), ..served(stand) }
}

/// Whichever label a discovery, or whoever registered the worker, said it by.
#[test]
fn a_pod_is_named_by_its_namespace_too() {
    for (labels, namespace) in [
        (&[("pod_namespace", "team-a")][..], "team-a"),
        (&[("namespace", "team-b")], "team-b"),
        (&[("pod_namespace", " "), ("namespace", "team-b")], "team-b"),
        (&[("pod_namespace", "team-a"), ("namespace", "team-b")], "team-a"),
        (&[], ""),
    ] {
        let stand = Stand::with_pair();
        let labelled = |slot: u32| {
            let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let worker = Worker { labels: labels.collect(), ..Worker::clone(&stand.worker(slot)) };
            FleetChange::Describe { slot, worker: Box::new(worker) }
        };
        stand.change([labelled(1), labelled(2)]);
        let picks = lines(&stand.diff(|telemetry| telemetry.record(&routed(&stand, "pd"))), "pd_selected");
        assert_eq!(picks.matches(&format!("namespace=\"{namespace}\"")).count(), 2, "{picks}");
    }
}

#[test]
fn workers_of_one_pod_are_charged_together() {
    let samples = Stand::new().samples();
    for (name, tokens) in [("active", 35), ("kv", 46)] {
        let due = format!("pd_token_load_{name}_tokens{{namespace=\"ns\",pod_name=\"p-0\"}} {tokens}");
        assert!(samples.contains(&due), "{due}");
    }
}

#[test]
fn picks_count_under_the_strategy_that_made_them() {
    let stand = Stand::with_pair();
    let diff = stand.diff(|telemetry| {
        telemetry.record(&routed(&stand, "pd"));
        telemetry.record(&served(&stand));
        telemetry.record(&routed(&stand, "random:2,least-request"));
    });
    let picks = lines(&diff, "pd_selected") + &lines(&diff, "smg_worker_selection_total");
    expect![[r#"
        pd_selected_decode_pod_total{engine_type="vllm",model="llama",namespace="",pod="http://h:2",roleset=""} 1
        pd_selected_prefill_pod_total{engine_type="vllm",model="llama",namespace="",pod="http://h:1",roleset=""} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="least_load",worker_type="decode"} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="list",worker_type="decode"} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="list",worker_type="prefill"} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="pd",worker_type="decode"} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="pd",worker_type="prefill"} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="round_robin",worker_type="prefill"} 1
    "#]].assert_eq(&picks);
}

fn lines(diff: &str, family: &str) -> String {
    diff.lines().filter(|line| line.starts_with(family)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_served_pair() {
    let stand = Stand::with_pair();
    let diff = stand.diff(|telemetry| telemetry.record(&served(&stand)));
    expect![[r#"
        baton_answer_bytes_total 2000
        baton_cached_tokens_total{model="llama"} 16
        baton_exchanges_total{outcome="served"} 1
        baton_handoffs_total{mode="nixl",result="relayed",runtime="vllm"} 1
        baton_request_bytes_total 100
        smg_http_request_duration_seconds_bucket{method="POST",path="/v1/chat/completions",le="+Inf"} 1
        smg_http_request_duration_seconds_bucket{method="POST",path="/v1/chat/completions",le="1"} 1
        smg_http_request_duration_seconds_count{method="POST",path="/v1/chat/completions"} 1
        smg_http_request_duration_seconds_sum{method="POST",path="/v1/chat/completions"} 0.9
        smg_http_requests_total{method="POST",path="/v1/chat/completions"} 1
        smg_http_responses_total{error_code="",path="/v1/chat/completions",status_code="200"} 1
        smg_pd_decode_ttft_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="+Inf"} 1
        smg_pd_decode_ttft_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="1"} 1
        smg_pd_decode_ttft_seconds_count{backend_type="pd",model="llama",runtime="vllm"} 1
        smg_pd_decode_ttft_seconds_sum{backend_type="pd",model="llama",runtime="vllm"} 0.288
        smg_pd_kv_connector_mode_total{mode="nixl"} 1
        smg_pd_kv_transfer_duration_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="+Inf"} 1
        smg_pd_kv_transfer_duration_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="0.1"} 1
        smg_pd_kv_transfer_duration_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="1"} 1
        smg_pd_kv_transfer_duration_seconds_count{backend_type="pd",model="llama",runtime="vllm"} 1
        smg_pd_kv_transfer_duration_seconds_sum{backend_type="pd",model="llama",runtime="vllm"} 0.002
        smg_pd_prefill_duration_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="+Inf"} 1
        smg_pd_prefill_duration_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="1"} 1
        smg_pd_prefill_duration_seconds_count{backend_type="pd",model="llama",runtime="vllm"} 1
        smg_pd_prefill_duration_seconds_sum{backend_type="pd",model="llama",runtime="vllm"} 0.2
        smg_pd_ttft_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="+Inf"} 1
        smg_pd_ttft_seconds_bucket{backend_type="pd",model="llama",runtime="vllm",le="1"} 1
        smg_pd_ttft_seconds_count{backend_type="pd",model="llama",runtime="vllm"} 1
        smg_pd_ttft_seconds_sum{backend_type="pd",model="llama",runtime="vllm"} 0.49
        smg_router_request_duration_seconds_bucket{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true",le="+Inf"} 1
        smg_router_request_duration_seconds_bucket{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true",le="0.1"} 0
        smg_router_request_duration_seconds_bucket{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true",le="1"} 1
        smg_router_request_duration_seconds_count{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true"} 1
        smg_router_request_duration_seconds_sum{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true"} 0.9
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true"} 1
        smg_router_tokens_total{backend_type="pd",endpoint="chat",model="llama",router_type="http",token_type="input"} 50
        smg_router_tokens_total{backend_type="pd",endpoint="chat",model="llama",router_type="http",token_type="output"} 5
        smg_router_tpot_seconds_bucket{backend_type="pd",endpoint="chat",model="llama",router_type="http",le="+Inf"} 1
        smg_router_tpot_seconds_bucket{backend_type="pd",endpoint="chat",model="llama",router_type="http",le="0.1"} 1
        smg_router_tpot_seconds_bucket{backend_type="pd",endpoint="chat",model="llama",router_type="http",le="1"} 1
        smg_router_tpot_seconds_count{backend_type="pd",endpoint="chat",model="llama",router_type="http"} 1
        smg_router_tpot_seconds_sum{backend_type="pd",endpoint="chat",model="llama",router_type="http"} 0.1
        smg_router_ttft_seconds_bucket{backend_type="pd",endpoint="chat",model="llama",router_type="http",le="+Inf"} 1
        smg_router_ttft_seconds_bucket{backend_type="pd",endpoint="chat",model="llama",router_type="http",le="0.1"} 0
        smg_router_ttft_seconds_bucket{backend_type="pd",endpoint="chat",model="llama",router_type="http",le="1"} 1
        smg_router_ttft_seconds_count{backend_type="pd",endpoint="chat",model="llama",router_type="http"} 1
        smg_router_ttft_seconds_sum{backend_type="pd",endpoint="chat",model="llama",router_type="http"} 0.288
        smg_worker_requests_total{model="llama",worker="http://h:1"} 1
        smg_worker_requests_total{model="llama",worker="http://h:2"} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="least_load",worker_type="decode"} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="round_robin",worker_type="prefill"} 1
    "#]].assert_eq(&diff);
}

#[test]
fn the_second_like_it_adds_to_the_same_series() {
    let stand = Stand::with_pair();
    let record = served(&stand);
    stand.telemetry.record(&record);
    let before = stand.samples().len();
    stand.telemetry.record(&record);
    assert_eq!(stand.samples().len(), before);
    assert!(stand.samples().contains(r#"smg_worker_requests_total{model="llama",worker="http://h:2"} 2"#));
}

#[test]
fn a_hand_off_that_came_back_empty() {
    let stand = Stand::with_pair();
    for handoff in [HandoffResult::Missing, HandoffResult::Invalid, HandoffResult::Relayed] {
        stand.telemetry.record(&Record { handoff, ..served(&stand) });
    }
    let samples: String = stand.samples().into_iter().map(|line| line + "\n").collect();
    expect![[r#"
        smg_pd_kv_transfer_failures_total 2
        baton_handoffs_ended_total{fate="aborted"} 0
        baton_handoffs_ended_total{fate="consumed"} 0
        baton_handoffs_ended_total{fate="expired"} 0
        baton_handoffs_ended_total{fate="released"} 0
        baton_handoffs_ended_total{fate="unknown"} 0
        baton_handoffs_issued_total 0
        baton_handoffs_outstanding 0
        baton_handoffs_total{mode="nixl",result="invalid",runtime="vllm"} 1
        baton_handoffs_total{mode="nixl",result="missing",runtime="vllm"} 1
        baton_handoffs_total{mode="nixl",result="relayed",runtime="vllm"} 1
    "#]]
    .assert_eq(&(lines(&samples, "smg_pd_kv_transfer_failures") + &lines(&samples, "baton_handoffs")));
}

#[test]
fn a_client_that_left() {
    let stand = Stand::with_pair();
    let mut record = served(&stand);
    record.moments.first_byte = None;
    let record =
        Record { outcome: Outcome::ClientGone, status: Fault::ClientGone.status(), usage: None, ..record };
    let diff = stand.diff(|telemetry| telemetry.record(&record));
    let told =
        ["smg_http_responses", "baton_exchanges", "smg_router_request_errors", "smg_pd_ttft_seconds_count"];
    expect![[r#"
        smg_http_responses_total{error_code="client_gone",path="/v1/chat/completions",status_code="499"} 1
        baton_exchanges_total{outcome="client_gone"} 1
    "#]]
    .assert_eq(&told.map(|family| lines(&diff, family)).concat());
}

#[test]
fn two_failed_attempts_and_a_last_one() {
    let stand = Stand::with_pair();
    stand.change([join(3, Role::Decode)]);
    let lost = Fault::Unreachable { leg: LegName::Decode, cause: "reset".into() };
    let refused =
        Fault::Refused { leg: LegName::Prefill, refusal: Refusal { status: 500, ..Refusal::default() } };
    let attempt = |fault, decode, wait| Retried {
        wait: Duration::from_millis(wait),
        ..Retried::new(fault, Some(stand.worker(1)), Some(stand.worker(decode)))
    };
    let mut record = served(&stand);
    record.attempts = 3;
    record.retried = vec![attempt(&lost, 2, 50), attempt(&refused, 3, 75)];
    record.retries_exhausted = true;
    record.outcome = Outcome::Failed;
    record.status = refused.status();
    record.blame(&refused);
    let diff = stand.diff(|telemetry| telemetry.record(&record));
    expect![[r#"
        smg_worker_errors_total{connection_mode="http",error_type="backend_error",worker_type="decode"} 1
        smg_worker_errors_total{connection_mode="http",error_type="backend_error",worker_type="prefill"} 2
        smg_worker_requests_total{model="llama",worker="http://h:1"} 3
        smg_worker_requests_total{model="llama",worker="http://h:2"} 2
        smg_worker_requests_total{model="llama",worker="http://h:3"} 1
        smg_worker_retries_exhausted_total{endpoint="chat",worker_type="prefill"} 1
        smg_worker_retries_total{endpoint="chat",worker_type="decode"} 1
        smg_worker_retries_total{endpoint="chat",worker_type="prefill"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="+Inf"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="0.01"} 0
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="0.025"} 0
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="0.05"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="0.1"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="0.25"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="0.5"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="1"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="10"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="2.5"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="30"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="5"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="1",le="60"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="+Inf"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="0.01"} 0
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="0.025"} 0
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="0.05"} 0
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="0.1"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="0.25"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="0.5"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="1"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="10"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="2.5"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="30"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="5"} 1
        smg_worker_retry_backoff_seconds_bucket{attempt="2",le="60"} 1
        smg_worker_retry_backoff_seconds_count{attempt="1"} 1
        smg_worker_retry_backoff_seconds_count{attempt="2"} 1
        smg_worker_retry_backoff_seconds_sum{attempt="1"} 0.05
        smg_worker_retry_backoff_seconds_sum{attempt="2"} 0.075
        smg_worker_selection_total{connection_mode="http",model="llama",policy="least_load",worker_type="decode"} 3
        smg_worker_selection_total{connection_mode="http",model="llama",policy="round_robin",worker_type="prefill"} 3
        smg_router_request_errors_total{backend_type="pd",connection_mode="http",endpoint="chat",error_type="backend_error",model="llama",router_type="http",streaming="true"} 1
    "#]].assert_eq(&(lines(&diff, "smg_worker") + &lines(&diff, "smg_router_request_errors")));
}

#[test]
fn no_worker_left_for_another_attempt() {
    let stand = Stand::with_pair();
    let lost = Fault::Unreachable { leg: LegName::Decode, cause: "reset".into() };
    let mut record = served(&stand);
    record.retried = vec![Retried::new(&lost, record.prefill.clone(), record.decode.clone())];
    (record.outcome, record.status) = (Outcome::Failed, lost.status());
    record.blame(&lost);
    let diff = stand.diff(|telemetry| telemetry.record(&record));
    let told = ["smg_worker_requests_total", "smg_worker_errors", "smg_worker_retries"];
    expect![[r#"
        smg_worker_requests_total{model="llama",worker="http://h:1"} 1
        smg_worker_requests_total{model="llama",worker="http://h:2"} 1
        smg_worker_errors_total{connection_mode="http",error_type="backend_error",worker_type="decode"} 1
        smg_worker_retries_total{endpoint="chat",worker_type="decode"} 1
    "#]]
    .assert_eq(&told.map(|family| lines(&diff, family)).concat());
}

#[test]
fn failures_before_a_worker_was_found() {
    let faults = [
        Fault::InvalidJson { message: "no".into() },
        Fault::ModelNotFound { model: "x".into(), known: "llama".into() },
        Fault::QueueFull { retry_after_s: 1 },
        Fault::QueueTimeout { retry_after_s: 1 },
        Fault::Draining,
        Fault::NoWorker { leg: LegName::Prefill, registered: true },
        Fault::NoPair { detail: "d".into() },
    ];
    let stand = Stand::with_pair();
    let mut all = String::new();
    for fault in &faults {
        let diff = stand.diff(|telemetry| telemetry.record(&failed(fault)));
        for family in
            ["smg_http_responses", "smg_router_request_errors", "smg_worker_errors", "smg_admission"]
        {
            all += &lines(&diff, family);
        }
    }
    expect![[r#"
        smg_http_responses_total{error_code="invalid_json",path="/v1/completions",status_code="400"} 1
        smg_router_request_errors_total{backend_type="regular",connection_mode="http",endpoint="completions",error_type="validation_error",model="other",router_type="http",streaming="false"} 1
        smg_http_responses_total{error_code="model_not_found",path="/v1/completions",status_code="404"} 1
        smg_router_request_errors_total{backend_type="regular",connection_mode="http",endpoint="completions",error_type="validation_error",model="other",router_type="http",streaming="false"} 2
        smg_http_responses_total{error_code="admission_queue_full",path="/v1/completions",status_code="429"} 1
        smg_router_request_errors_total{backend_type="regular",connection_mode="http",endpoint="completions",error_type="rejected",model="other",router_type="http",streaming="false"} 1
        smg_admission_queue_rejected_total{reason="queue_full"} 1
        smg_http_responses_total{error_code="admission_queue_timeout",path="/v1/completions",status_code="503"} 1
        smg_router_request_errors_total{backend_type="regular",connection_mode="http",endpoint="completions",error_type="timeout",model="other",router_type="http",streaming="false"} 1
        smg_admission_queue_rejected_total{reason="queue_timeout"} 1
        smg_http_responses_total{error_code="draining",path="/v1/completions",status_code="503"} 1
        smg_router_request_errors_total{backend_type="regular",connection_mode="http",endpoint="completions",error_type="rejected",model="other",router_type="http",streaming="false"} 2
        smg_http_responses_total{error_code="no_available_workers",path="/v1/completions",status_code="503"} 1
        smg_router_request_errors_total{backend_type="regular",connection_mode="http",endpoint="completions",error_type="no_workers",model="other",router_type="http",streaming="false"} 1
        smg_http_responses_total{error_code="no_compatible_pd_pair",path="/v1/completions",status_code="503"} 1
        smg_router_request_errors_total{backend_type="regular",connection_mode="http",endpoint="completions",error_type="no_workers",model="other",router_type="http",streaming="false"} 2
    "#]].assert_eq(&all);
}

#[test]
fn a_whole_worker_and_a_route_that_is_no_exchange() {
    let stand = Stand::new();
    stand.change([join(4, Role::Whole)]);
    let whole = Record {
        prefill: None,
        decode: Some(stand.worker(4)),
        pd: false,
        mode: None,
        handoff: HandoffResult::None,
        ..served(&Stand::with_pair())
    };
    let diff = stand.diff(|telemetry| telemetry.record(&whole));
    expect![[r#"
        smg_worker_requests_total{model="llama",worker="http://h:4"} 1
        smg_worker_selection_total{connection_mode="http",model="llama",policy="random",worker_type="regular"} 1
        smg_router_requests_total{backend_type="regular",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true"} 1
    "#]].assert_eq(
        &(lines(&diff, "smg_worker") + &lines(&diff, "smg_router_requests") + &lines(&diff, "smg_pd")),
    );
    let listing = Record {
        method: "GET",
        path: "/workers/abc".into(),
        status: 200,
        outcome: Outcome::Served,
        ..Record::default()
    };
    let diff = stand.diff(|telemetry| telemetry.record(&listing));
    expect![[r#"
        smg_http_request_duration_seconds_bucket{method="GET",path="/workers/:id",le="+Inf"} 1
        smg_http_request_duration_seconds_bucket{method="GET",path="/workers/:id",le="0.1"} 1
        smg_http_request_duration_seconds_bucket{method="GET",path="/workers/:id",le="1"} 1
        smg_http_request_duration_seconds_count{method="GET",path="/workers/:id"} 1
        smg_http_request_duration_seconds_sum{method="GET",path="/workers/:id"} 0
        smg_http_requests_total{method="GET",path="/workers/:id"} 1
        smg_http_responses_total{error_code="",path="/workers/:id",status_code="200"} 1
    "#]]
    .assert_eq(&diff);
}

#[test]
fn models_that_no_worker_lists_are_other() {
    let stand = Stand::with_pair();
    for n in 0..100 {
        stand.telemetry.record(&Record { model: Some(format!("made-up-{n}")), ..served(&stand) });
    }
    // Not named: the worker's own model is meant.
    stand.telemetry.record(&Record { model: None, ..served(&stand) });
    let samples: String = stand.samples().into_iter().map(|line| line + "\n").collect();
    assert!(!samples.contains("made-up"));
    expect![[r#"
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="false"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true"} 1
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="chat",model="other",router_type="http",streaming="true"} 100
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="completions",model="llama",router_type="http",streaming="false"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="completions",model="llama",router_type="http",streaming="true"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="generate",model="llama",router_type="http",streaming="false"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="generate",model="llama",router_type="http",streaming="true"} 0
    "#]].assert_eq(&lines(&samples, "smg_router_requests"));
}

#[test]
fn label_sets_beyond_the_bound_count_under_other() {
    let stand = Stand::with_pair();
    // No worker joined under these: the series end with the next scrape, so there is none in between.
    for n in 0..super::MAX_LABEL_SETS + 10 {
        let mut worker = super::worker(7, Role::Decode);
        worker.url = format!("http://gone:{n}");
        stand.telemetry.record(&Record { decode: Some(worker.into()), ..served(&stand) });
    }
    let text = super::scrape::text(&stand.telemetry.registry, &super::Scraped::default());
    let other = r#"smg_worker_requests_total{model="other",worker="other"} 11"#;
    assert!(text.contains(other), "{}", lines(&text, r#"smg_worker_requests_total{model="other""#));
}
