//! Gauges that are read off the fleet.

use baton_core::breaker::{BreakerRule, Verdict};
use baton_core::fleet::{FleetChange, Role, Seat, Status};
use baton_core::time::Instant;
use expect_test::expect;

use super::{Stand, join, records, worker};

fn of(stand: &Stand, starts: &[&str]) -> String {
    let wanted = |line: &String| starts.iter().any(|start| line.starts_with(start));
    stand.samples().into_iter().filter(wanted).map(|line| line + "\n").collect()
}

#[test]
fn loads_of_ranks_that_share_a_url_add_up_and_go_back_to_zero() {
    let stand = Stand::with_pair();
    let rank = |slot| {
        let mut worker = worker(9, Role::Decode);
        worker.dp_rank = Some(slot);
        Seat::new(slot, worker)
    };
    stand.change([FleetChange::Join(rank(10)), FleetChange::Join(rank(11))]);
    stand.fleet().seat(10).unwrap().pulse.set_status(Status::Ready);
    let take = |slot: u32| stand.fleet().seat(slot).unwrap().load.take();
    let leases = [take(1), take(10), take(10), take(11)];
    expect![[r#"
        baton_answer_bytes_total 0
        baton_build{version="0.1.0"} 1
        baton_detached_legs 0
        baton_detached_legs_ended_total{result="done"} 0
        baton_detached_legs_ended_total{result="dropped"} 0
        baton_detached_legs_ended_total{result="failed"} 0
        baton_detached_legs_ended_total{result="timed_out"} 0
        baton_exchanges_total{outcome="client_gone"} 0
        baton_exchanges_total{outcome="cut"} 0
        baton_exchanges_total{outcome="failed"} 0
        baton_exchanges_total{outcome="served"} 0
        baton_handoffs_ended_total{fate="aborted"} 0
        baton_handoffs_ended_total{fate="consumed"} 0
        baton_handoffs_ended_total{fate="expired"} 0
        baton_handoffs_ended_total{fate="released"} 0
        baton_handoffs_ended_total{fate="unknown"} 0
        baton_handoffs_issued_total 0
        baton_handoffs_outstanding 0
        baton_kv_choices_total{known="none"} 5
        baton_kv_choices_total{known="partial"} 0
        baton_kv_choices_total{known="whole"} 7
        baton_kv_index_blocks 2
        baton_kv_index_budget_bytes 4096
        baton_kv_index_bytes 64
        baton_pairs 3
        baton_prefix_index_budget_bytes{leg="prefill"} 1024
        baton_prefix_index_bytes{leg="prefill"} 640
        baton_prefix_index_evictions_total{leg="prefill"} 3
        baton_preflight_trials_total{result="answered"} 0
        baton_preflight_trials_total{result="crowded"} 0
        baton_preflight_trials_total{result="degraded"} 0
        baton_preflight_trials_total{result="failed"} 0
        baton_preflight_trials_total{result="proved"} 0
        baton_preflight_trials_total{result="unchecked"} 0
        baton_ready 1
        baton_releases_total{result="done"} 0
        baton_releases_total{result="dropped"} 0
        baton_releases_total{result="failed"} 0
        baton_releases_total{result="timed_out"} 0
        baton_request_bytes_total 0
        baton_retries_refused_total{endpoint="chat",worker_type="decode"} 0
        baton_retries_refused_total{endpoint="chat",worker_type="prefill"} 0
        baton_retries_refused_total{endpoint="chat",worker_type="regular"} 0
        baton_retries_refused_total{endpoint="completions",worker_type="decode"} 0
        baton_retries_refused_total{endpoint="completions",worker_type="prefill"} 0
        baton_retries_refused_total{endpoint="completions",worker_type="regular"} 0
        baton_retries_refused_total{endpoint="generate",worker_type="decode"} 0
        baton_retries_refused_total{endpoint="generate",worker_type="prefill"} 0
        baton_retries_refused_total{endpoint="generate",worker_type="regular"} 0
        baton_shared_ledger_age_seconds 0.5
        baton_shared_ledger_failures_total{attempt="connect"} 1
        baton_shared_ledger_failures_total{attempt="look"} 3
        baton_shared_ledger_failures_total{attempt="write"} 0
        baton_shared_ledger_instances 2
        baton_shared_ledger_up 1
        baton_tokenize_questions_total{result="busy"} 0
        baton_tokenize_questions_total{result="counted"} 0
        baton_tokenize_questions_total{result="failed"} 0
        baton_tokenize_questions_total{result="kept"} 0
        baton_tokenize_questions_total{result="late"} 0
        baton_tokenize_questions_total{result="no_route"} 0
        baton_tokenize_questions_total{result="nobody"} 0
        baton_tokenize_questions_total{result="refused"} 0
        baton_tokenize_questions_total{result="unaskable"} 0
        baton_tokenize_questions_total{result="unusable"} 0
        baton_tokenize_seconds_bucket{le="+Inf"} 0
        baton_tokenize_seconds_bucket{le="0.1"} 0
        baton_tokenize_seconds_bucket{le="1"} 0
        baton_tokenize_seconds_count 0
        baton_tokenize_seconds_sum 0
        baton_worker_cb_transitions_total{worker="http://h:1"} 0
        baton_worker_cb_transitions_total{worker="http://h:2"} 0
        baton_worker_cb_transitions_total{worker="http://h:9"} 0
        baton_worker_metrics_looks_total{result="failure"} 2
        baton_worker_metrics_looks_total{result="success"} 7
        baton_worker_preflight{state="proved",worker="http://d1"} 1
        baton_workers_held 0
        smg_worker_health{worker="http://h:1"} 1
        smg_worker_health{worker="http://h:2"} 1
        smg_worker_health{worker="http://h:9"} 0
        smg_worker_pool_size{connection_mode="http",model="llama",worker_type="decode"} 3
        smg_worker_pool_size{connection_mode="http",model="llama",worker_type="prefill"} 1
        smg_worker_requests_active{worker="http://h:1"} 1
        smg_worker_requests_active{worker="http://h:2"} 0
        smg_worker_requests_active{worker="http://h:9"} 3
    "#]]
    .assert_eq(&of(
        &stand,
        &["smg_worker_requests_active", "smg_worker_health{", "smg_worker_pool", "baton_"],
    ));
    drop(leases);
    expect![[r#"
        smg_worker_requests_active{worker="http://h:1"} 0
        smg_worker_requests_active{worker="http://h:2"} 0
        smg_worker_requests_active{worker="http://h:9"} 0
    "#]]
    .assert_eq(&of(&stand, &["smg_worker_requests_active"]));
}

#[test]
fn a_breaker_that_opened() {
    let stand = Stand::with_pair();
    let rule = BreakerRule { failure_threshold: 2, ..BreakerRule::default() };
    for _ in 0..2 {
        stand.fleet().seat(2).unwrap().pulse.record(Verdict::Bad, &rule, Instant::ZERO);
    }
    expect![[r#"
        baton_worker_cb_transitions_total{worker="http://h:1"} 0
        baton_worker_cb_transitions_total{worker="http://h:2"} 1
        smg_worker_cb_consecutive_failures{worker="http://h:1"} 0
        smg_worker_cb_consecutive_failures{worker="http://h:2"} 2
        smg_worker_cb_consecutive_successes{worker="http://h:1"} 0
        smg_worker_cb_consecutive_successes{worker="http://h:2"} 0
        smg_worker_cb_state{worker="http://h:1"} 0
        smg_worker_cb_state{worker="http://h:2"} 1
    "#]]
    .assert_eq(&of(&stand, &["smg_worker_cb", "baton_worker_cb"]));
}

#[test]
fn a_worker_that_left_takes_its_series_along() {
    let stand = Stand::with_pair();
    let record = records::served(&stand);
    stand.telemetry.record(&record);
    assert_ne!(of(&stand, &[r#"smg_worker_requests_total{model="llama",worker="http://h:2""#]), "");
    stand.change([FleetChange::Leave { slot: 2 }]);
    let text = stand.telemetry.render();
    assert!(!text.contains("http://h:2"));
    // A request that was still under way tells of it once more; the next look ends that too.
    stand.telemetry.record(&record);
    assert!(!stand.telemetry.render().contains("http://h:2"));
    // It comes back and counts from zero, on the series that is shown.
    stand.change([join(12, Role::Decode)]);
    let mut back = worker(2, Role::Decode);
    back.id = "again".to_owned();
    stand.change([FleetChange::Describe { slot: 12, worker: Box::new(back) }]);
    let again = baton_core::record::Record { decode: Some(stand.worker(12)), ..record };
    stand.telemetry.record(&again);
    assert!(stand.samples().contains(r#"smg_worker_requests_total{model="llama",worker="http://h:2"} 1"#));
    // What does not name the worker is not lost.
    assert!(stand.samples().contains(r#"baton_exchanges_total{outcome="served"} 3"#));
}

#[test]
fn series_of_a_model_stand_at_zero_before_its_first_request() {
    let stand = Stand::with_pair();
    expect![[r#"
        smg_pd_ttft_seconds_count{backend_type="pd",model="llama",runtime="vllm"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="false"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="chat",model="llama",router_type="http",streaming="true"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="completions",model="llama",router_type="http",streaming="false"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="completions",model="llama",router_type="http",streaming="true"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="generate",model="llama",router_type="http",streaming="false"} 0
        smg_router_requests_total{backend_type="pd",connection_mode="http",endpoint="generate",model="llama",router_type="http",streaming="true"} 0
        smg_worker_requests_total{model="llama",worker="http://h:1"} 0
        smg_worker_requests_total{model="llama",worker="http://h:2"} 0
    "#]]
    .assert_eq(&of(
        &stand,
        &["smg_pd_ttft_seconds_count", "smg_worker_requests_total", "smg_router_requests_total"],
    ));
}
