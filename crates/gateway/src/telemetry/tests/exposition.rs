//! The exposition as a whole: which families, in which form.

use std::collections::{BTreeMap, BTreeSet};

use baton_core::exchange::{Fate, Outcome};
use baton_core::record::Record;
use baton_core::time::Duration;

use crate::registry::{Refused, Rolled};

use super::super::families::{Recorded, Scraped, table};
use super::records::everything;
use super::{LegEnd, Stand};

/// Family -> type, by the `# TYPE` lines; each once.
fn types(text: &str) -> BTreeMap<&str, &str> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert!(found.insert(name, kind).is_none(), "{name} twice");
        }
    }
    found
}

/// Names of families that have a sample, read as a simple reader would.
fn sampled(text: &str) -> BTreeSet<String> {
    let histograms: BTreeSet<&str> =
        types(text).into_iter().filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name).collect();
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap();
        let name = series.split('{').next().unwrap();
        let of = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end).filter(|stem| histograms.contains(stem)));
        found.insert(of.unwrap_or(name).to_owned());
    }
    found
}

#[test]
fn a_table_row_is_a_family_and_a_family_is_a_table_row() {
    let stand = Stand::with_pair();
    everything(&stand);
    let text = stand.telemetry.render();
    let rows: BTreeSet<String> = table().map(|row| row.name.to_owned()).collect();
    assert_eq!(sampled(&text), rows);
    assert_eq!(rows.len(), Recorded::ROWS.len() + Scraped::ROWS.len(), "no name twice");
    let kinds: BTreeMap<&str, &str> = table().map(|row| (row.name, row.kind)).collect();
    assert_eq!(types(&text), kinds);
    // Nothing is counted that the table does not have: `render` would leave it out silently.
    for family in stand.telemetry.registry.gather() {
        assert!(rows.contains(family.name()), "{}", family.name());
    }
}

#[test]
fn names_follow_the_conventions_of_their_kind() {
    for row in table() {
        assert_eq!(row.name.ends_with("_total"), row.kind == "counter", "{}", row.name);
        assert_eq!(row.name.ends_with("_seconds"), row.unit == "seconds", "{}", row.name);
        assert!(row.help.ends_with('.') && !row.help.contains(['\n', '|']), "{}", row.name);
    }
}

#[test]
fn families_are_there_before_anything_happened() {
    let stand = Stand::new();
    let text = stand.telemetry.render();
    assert_eq!(types(&text).len(), table().count());
    for sample in [
        "smg_pd_kv_transfer_failures_total 0",
        "smg_pd_bootstrap_failures_total 0",
        "smg_pd_kv_connector_mode_total{mode=\"passthrough\"} 0",
        "baton_exchanges_total{outcome=\"cut\"} 0",
        "baton_releases_total{result=\"done\"} 0",
        "baton_detached_legs 0",
        "baton_ready 0",
        "smg_admission_inflight 3",
        "smg_admission_queue_depth 2",
        "smg_http_connections_active 7",
        "smg_worker_health_checks_total{result=\"failure\",worker_type=\"decode\"} 1",
        "baton_worker_metrics_looks_total{result=\"success\"} 7",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample}");
    }
    assert!(text.contains("\n# TYPE smg_worker_requests_active gauge\n"));
    assert!(text.contains("\n# TYPE smg_pd_kv_transfer_failures_total counter\n"));
    let samples = stand.samples();
    let counted = samples.iter().filter(|line| line.contains("_total") && !line.ends_with(" 0"));
    let outside = ["health_checks", "metrics_looks", "kv_choices", "prefix_index_evictions", "shared_ledger"];
    let seen_from_outside = |line: &&String| outside.iter().any(|name| line.contains(name));
    assert_eq!(counted.filter(|line| !seen_from_outside(line)).count(), 0);
}

#[test]
fn a_detached_leg_counts_until_it_is_dropped_and_then_as_what_became_of_it() {
    let stand = Stand::new();
    let background = stand.telemetry.background().clone();
    let legs: Vec<_> = (0..3).map(|_| background.detached()).collect();
    assert!(stand.samples().contains("baton_detached_legs 3"));
    let diff = stand.diff(|_| {
        let mut ends = [LegEnd::Done, LegEnd::TimedOut].into_iter();
        for leg in legs {
            match ends.next() {
                Some(end) => leg.ended(end),
                None => drop(leg),
            }
        }
        background.released(LegEnd::Failed, None);
        background.resent(1);
    });
    expect_test::expect![[r#"
        baton_detached_legs 0
        baton_detached_legs_ended_total{result="done"} 1
        baton_detached_legs_ended_total{result="dropped"} 1
        baton_detached_legs_ended_total{result="timed_out"} 1
        baton_releases_total{result="failed"} 1
        smg_router_upstream_send_retries_total{router_type="http"} 1
    "#]]
    .assert_eq(&diff);
}

#[test]
fn looks_at_a_list_of_workers_are_told_and_what_came_of_them() {
    let stand = Stand::new();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let rolled = Rolled {
        joined: names(&["a", "b", "c"]),
        left: names(&["b", "d"]),
        refused: vec![("e".to_owned(), Refused::Busy)],
        ..Rolled::default()
    };
    let diff = stand.diff(|t| {
        t.background().listed("file", None, 100);
        t.background().listed("file", Some("malformed"), 200);
        t.background().rolled("file", &rolled, Duration::from_millis(2));
    });
    let diff: Vec<&str> = diff.lines().filter(|line| !line.contains("_bucket")).collect();
    expect_test::expect![[r#"
        baton_discovery_last_good_timestamp_seconds{source="file"} 100
        baton_discovery_looks_total{result="failed",source="file"} 1
        baton_discovery_looks_total{result="ok",source="file"} 1
        smg_discovery_deregistrations_total{reason="changed",source="file"} 1
        smg_discovery_deregistrations_total{reason="removed",source="file"} 1
        smg_discovery_registrations_total{result="failed",source="file"} 1
        smg_discovery_registrations_total{result="success",source="file"} 3
        smg_discovery_snapshot_errors_total{reason="malformed",source="file"} 1
        smg_discovery_sync_duration_seconds_count{source="file"} 1
        smg_discovery_sync_duration_seconds_sum{source="file"} 0.002
        smg_discovery_workers_discovered{source="file"} 0"#]]
    .assert_eq(&diff.join("\n"));
}

#[test]
fn a_hand_off_is_outstanding_until_it_ends_and_then_as_what_became_of_it() {
    let stand = Stand::new();
    let background = stand.telemetry.background().clone();
    let mut out: Vec<_> = (0..7).map(|_| background.issued()).collect();
    assert!(stand.samples().contains("baton_handoffs_outstanding 7"));
    let diff = stand.diff(|_| {
        for end in LegEnd::ALL {
            background.released(end, out.pop());
        }
        out.pop().unwrap().ended(Fate::Consumed);
        out.pop().unwrap().ended(Fate::Aborted);
        drop(out);
    });
    expect_test::expect![[r#"
        baton_handoffs_ended_total{fate="aborted"} 1
        baton_handoffs_ended_total{fate="consumed"} 1
        baton_handoffs_ended_total{fate="expired"} 1
        baton_handoffs_ended_total{fate="released"} 1
        baton_handoffs_ended_total{fate="unknown"} 3
        baton_handoffs_outstanding 0
        baton_releases_total{result="done"} 1
        baton_releases_total{result="dropped"} 1
        baton_releases_total{result="failed"} 1
        baton_releases_total{result="timed_out"} 1
    "#]]
    .assert_eq(&diff);
}

#[test]
fn records_from_many_threads_all_count() {
    let stand = Stand::with_pair();
    let record = Record { outcome: Outcome::Served, ..super::records::served(&stand) };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (stand, record) = (&stand, &record);
            scope.spawn(move || {
                for n in 0..500u16 {
                    // Many statuses: threads make and find series at the same time, while somebody looks.
                    stand.telemetry.record(&Record { status: 200 + (n % 50), ..record.clone() });
                    if thread == 0 && n % 100 == 0 {
                        stand.telemetry.render();
                    }
                }
            });
        }
    });
    let samples = stand.samples();
    assert!(samples.contains(r#"smg_worker_requests_total{model="llama",worker="http://h:1"} 2000"#));
    assert!(samples.contains(r#"baton_exchanges_total{outcome="served"} 2000"#));
}
