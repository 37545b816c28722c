//! Command lines as they are written for SMG, and what they come to.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::super::{Concurrency, CorsOrigins, LogLevel, PairingMode, PolicyName, left_out, settings};
use super::{config, load};
use crate::config::Config;

/// Lines that scripts made for SMG pass.
const ACCEPTED: &[&str] = &[
    "",
    "--host 127.0.0.1 --port 31000 --prometheus-host 127.0.0.1 --prometheus-port 31001 --log-level warn \
     --worker-startup-check-interval 1 --pd-disaggregation",
    "--host 127.0.0.1 --port 31000 --pd-disaggregation --policy round_robin --prometheus-port 31001 --log-level error",
    "--pd-disaggregation --prefill http://127.0.0.1:1 8998 --prefill http://127.0.0.1:2 none --decode http://127.0.0.1:3",
    "--worker-urls http://127.0.0.1:1 http://127.0.0.1:2 --worker-urls http://127.0.0.1:3 --port 31000",
    "--worker-urls --port 31000",
    "--enable-igw --dp-aware --port 31000",
    "--pd-disaggregation --service-discovery --service-discovery-namespace default --service-discovery-port 8000 \
     --prefill-selector app=llm role=prefill --decode-selector app=llm role=decode",
    "--policy least_load --retry-max-retries 3 --disable-retries",
    "--retry-initial-backoff-ms 5 --retry-max-backoff-ms 5",
    "--cb-failure-threshold 2 --cb-success-threshold 1 --cb-timeout-duration-secs 1",
    "--health-check-interval-secs 1 --health-failure-threshold 2 --health-success-threshold 1 --health-check-timeout-secs 1",
    "--request-timeout-secs 2 --max-concurrent-requests 1 --queue-size 1 --queue-timeout-secs 1",
    "--max-concurrent-requests -1 --max-payload-size 1024 --max-tree-size 1000 --cors-allowed-origins *",
    "--api-key sk-1 --shutdown-grace-period-secs 2 --stream-body-stall-timeout-secs 1",
    "--upstream-pool-idle-timeout-secs 0 --eviction-interval-secs 1 --worker-startup-timeout-secs 5",
    "--pd-disaggregation --prefill-max-inflight-requests-per-worker 1 --prefill-queue-size 5",
    "--prefill-max-inflight-requests-per-worker -1",
    "--policy power_of_two --pd-disaggregation",
    "--policy power_of_two --pd-disaggregation --prefill http://a:1 --decode http://b:1",
    "--policy power_of_two --worker-urls http://a:1 --enable-igw",
    "--remove-unhealthy-workers --port 31000",
    "--remove-unhealthy-workers false",
    "--sticky-sessions --worker-auto-recovery --spill-abs-threshold 3",
    "--cache-boundaries 128,256,512 --prometheus-duration-buckets 0.1 1 10",
];

#[test]
fn command_lines_made_for_smg_are_accepted() {
    for line in ACCEPTED {
        if let Err(error) = load(line) {
            panic!("{line}: {error}");
        }
    }
}

/// Every flag of SMG is a setting with SMG's default, or is left out with a reason.
#[test]
fn no_flag_of_smg_is_forgotten_and_defaults_agree() {
    for line in include_str!("smg_flags.txt").lines().filter(|line| !line.starts_with('#')) {
        let (flag, theirs) = line.split_once(' ').unwrap();
        let known = settings().find(|setting| setting.flag == flag || setting.note.aliases.contains(&flag));
        let Some(setting) = known else {
            assert!(left_out::reason(flag).is_some(), "--{flag} is neither a setting nor left out");
            continue;
        };
        assert_eq!(left_out::reason(flag), None, "--{flag} is a setting and left out");
        let ours = match setting.default_value() {
            serde_json::Value::Null => "-".to_owned(),
            serde_json::Value::Array(items) if items.is_empty() => "-".to_owned(),
            serde_json::Value::Array(items) => {
                items.iter().map(super::super::flags::plain).collect::<Vec<_>>().join(" ")
            }
            value => super::super::flags::plain(&value),
        };
        let same = ours == theirs || ours.parse::<f64>().ok().is_some_and(|ours| theirs.parse() == Ok(ours));
        let known_difference = match flag {
            "policy" => ours == "least_load",
            "request-id-headers" => theirs == "-",
            // Its other name has the default.
            "load-monitor-interval" => ours == "-",
            // Written out where SMG says none and means off.
            "kv-indexer-ttl-secs" | "kv-indexer-max-entries" | "rate-limit-tokens-per-second" => ours == "0",
            _ => theirs == "?",
        };
        assert!(same || known_difference, "--{flag}: default {ours}, SMG's {theirs}");
    }
}

#[test]
fn no_flag_or_key_is_there_twice() {
    let mut flags: Vec<&str> =
        settings().flat_map(|s| std::iter::once(s.flag).chain(s.note.aliases.iter().copied())).collect();
    let count = flags.len();
    flags.sort_unstable();
    flags.dedup();
    assert_eq!(flags.len(), count);
    super::super::flags::augment(clap::Command::new("launch")).debug_assert();
}

#[test]
fn legs_and_their_ports() {
    let config = config(
        "--pd-disaggregation --prefill http://p:8000/ 8998 --prefill http://q:8000 NONE --prefill http://r:8000 \
         --decode http://d:8000 --decode https://e",
    );
    let legs: Vec<_> =
        config.workers.prefill.iter().map(|leg| (leg.url.as_str(), leg.bootstrap_port)).collect();
    assert_eq!(legs, [("http://p:8000", Some(8998)), ("http://q:8000", None), ("http://r:8000", None)]);
    let urls: Vec<_> = config.workers.decode.iter().map(|url| url.as_str()).collect();
    assert_eq!(urls, ["http://d:8000", "https://e"]);
}

#[test]
fn values_are_typed() {
    let config = config(
        "--host [::1] --max-concurrent-requests 7 --log-level debug --pd-pairing-mode strict --policy random \
         --decode-policy round_robin --sse-keepalive-secs 0 --connect-timeout-secs 0.5 --retry-initial-backoff-ms 20 \
         --max-payload-size 10 --disable-retries --dp-aware=false --cors-allowed-origins https://a.example http://b:81",
    );
    assert_eq!(config.server.host, "::1".parse::<IpAddr>().unwrap());
    assert_eq!(config.admission.max_concurrent_requests, Concurrency::AtMost(NonZeroUsize::new(7).unwrap()));
    assert_eq!(config.log.level, LogLevel::Debug);
    assert_eq!(config.workers.pairing_mode, PairingMode::Strict);
    assert_eq!(
        (config.prefill_policy(), config.decode_policy()),
        (PolicyName::Random, PolicyName::RoundRobin)
    );
    assert_eq!(config.timeouts.sse_keepalive, None);
    assert_eq!(config.timeouts.connect, Duration::from_millis(500));
    assert_eq!(config.retry.initial_backoff, Duration::from_millis(20));
    assert_eq!(config.limits.max_payload_bytes.get(), 10);
    assert!(config.retry.disabled && !config.workers.dp_aware);
    let origins = vec!["https://a.example".to_owned(), "http://b:81".to_owned()];
    assert_eq!(config.cors.allowed_origins, CorsOrigins::Only(origins));
}

#[test]
fn windows_and_bounds_that_can_be_off() {
    let window = |line| config(line).admission.prefill_max_inflight_per_worker;
    assert_eq!(window("--prefill-max-inflight-requests-per-worker 0"), None);
    assert_eq!(window("--prefill-max-inflight-requests-per-worker -5"), None);
    assert_eq!(
        window("--pd-disaggregation --prefill-max-inflight-requests-per-worker 4"),
        NonZeroU32::new(4)
    );
    assert_eq!(Concurrency::Auto.resolve(2), Some(4096));
    assert_eq!(Concurrency::Auto.resolve(8), Some(8192));
    assert_eq!(Concurrency::Unbounded.resolve(8), None);
}

#[test]
fn listeners_follow_the_family_of_the_host() {
    let address = |line| config(line).metrics_address().to_string();
    assert_eq!(address(""), "0.0.0.0:29000");
    assert_eq!(address("--host 127.0.0.1"), "0.0.0.0:29000");
    assert_eq!(address("--host ::1 --prometheus-port 9"), "[::]:9");
    assert_eq!(address("--prometheus-host 127.0.0.1"), "127.0.0.1:29000");
    assert_eq!(config("--host ::1").server_address().to_string(), "[::1]:30000");
    assert_eq!(config("--health-check-port 7").health_address().unwrap().to_string(), "0.0.0.0:7");
}

#[test]
fn nothing_given_is_the_default() {
    assert_eq!(config(""), Config::default());
}
