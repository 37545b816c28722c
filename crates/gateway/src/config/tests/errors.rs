//! What is refused, in which words.

use super::{Scratch, error, load, load_with};
use crate::config::{Config, Source};

/// A command line and what is said about it.
const REFUSED: &[(&str, &str)] = &[
    // Unknown.
    ("--prot 3", "unknown flag --prot: did you mean --port?"),
    ("--pd-disagregation", "unknown flag --pd-disagregation: did you mean --pd-disaggregation?"),
    ("--log_level info", "unknown flag --log_level: did you mean --log-level?"),
    ("--frobnicate", "unknown flag --frobnicate: see baton launch --help"),
    ("--oracle-dsn x", "--oracle-dsn is not part of Baton (conversations are not stored): see docs/flags.md"),
    (
        "--enable-mesh",
        "--enable-mesh is not part of Baton (gateways do not talk to each other): see docs/flags.md",
    ),
    (
        "--model-path m",
        "--model-path is not part of Baton (engines over HTTP tokenize by themselves): see docs/flags.md",
    ),
    ("http://a:1", "unexpected \"http://a:1\": no flag before it takes it"),
    ("--port 1 2", "unexpected \"2\": no flag before it takes it"),
    ("--port 1 --port 2", "--port is given more than once"),
    ("--port", "--port needs a value"),
    ("--prefill --pd-disaggregation", "--prefill needs a value"),
    // Values.
    ("--port 0", "--port 0: must be a port between 1 and 65535"),
    ("--port -1", "--port -1: must be a port between 1 and 65535"),
    ("--port 65536", "--port 65536: must be a port between 1 and 65535"),
    ("--health-check-port 0", "--health-check-port 0: must be a port between 1 and 65535"),
    (
        "--host localhost",
        "--host localhost: must be an IP address such as 0.0.0.0, 127.0.0.1, :: or [::1]; a host name cannot be listened on",
    ),
    ("--dp-aware maybe", "--dp-aware maybe: must be true or false"),
    (
        "--request-timeout-secs 30s",
        "--request-timeout-secs 30s: must be a number of seconds, without a suffix",
    ),
    ("--request-timeout-secs 0", "--request-timeout-secs 0: must be more than 0"),
    (
        "--request-timeout-secs inf",
        "--request-timeout-secs inf: must be a number of seconds, without a suffix",
    ),
    ("--request-timeout-secs 1e300", "--request-timeout-secs 1e300: must be shorter than a hundred years"),
    ("--max-payload-size 0", "--max-payload-size 0: must be a number of bytes, 1 or more"),
    ("--retry-jitter-factor 1.5", "--retry-jitter-factor 1.5: must be a number from 0.0 to 1.0"),
    ("--retry-jitter-factor NaN", "--retry-jitter-factor NaN: must be a number from 0.0 to 1.0"),
    ("--retry-max-retries 0", "--retry-max-retries 0: must be a whole number, 1 or more"),
    ("--job-queue-capacity 1000001", "--job-queue-capacity 1000001: must be at most 1000000"),
    (
        "--health-check-endpoint health",
        "--health-check-endpoint health: must start with '/': it is appended to each worker's URL",
    ),
    (
        "--max-concurrent-requests -2",
        "--max-concurrent-requests -2: must be -1 (from the number of cores), 0 (no bound) or a whole number",
    ),
    (
        "--pd-pairing-mode strikt",
        "--pd-pairing-mode strikt: must be one of off, lenient, strict: did you mean strict?",
    ),
    (
        "--encode-policy cache_aware",
        "--encode-policy cache_aware: must be one of consistent_hashing, round_robin, random",
    ),
    ("--cache-boundaries 5,5", "--cache-boundaries: must be rising token positions above 0"),
    ("--model-alias a", "--model-alias: \"a\" is not of the form name=name"),
    ("--request-id-headers bad:name", "--request-id-headers: \"bad:name\" is not a header name"),
    (
        "--cors-allowed-origins * https://a",
        "--cors-allowed-origins: '*' stands alone: give either '*' or a list of origins",
    ),
    (
        "--cors-allowed-origins https://a.example/",
        "--cors-allowed-origins: \"https://a.example/\" is not an origin as browsers send it: lower-case \
         scheme://host[:port], no default port, nothing after",
    ),
    // Workers.
    ("--prefill http://a:1 0", "--prefill: bootstrap port \"0\" must be a port between 1 and 65535, or none"),
    (
        "--prefill http://a:1 70000",
        "--prefill: bootstrap port \"70000\" must be a port between 1 and 65535, or none",
    ),
    (
        "--prefill http://a:1 http://b:1",
        "--prefill: bootstrap port \"http://b:1\" must be a port between 1 and 65535, or none",
    ),
    ("--prefill http://a:1 1 2", "unexpected \"2\": no flag before it takes it"),
    ("--decode grpc://a:1", "--decode: \"grpc://a:1\": gRPC workers are not served yet, give an http:// URL"),
    ("--decode ipc:///s", "--decode: \"ipc:///s\": ZMQ workers are not served"),
    ("--decode HTTP://a:1", "--decode: \"HTTP://a:1\": write the scheme in lower case"),
    ("--decode a:1", "--decode: \"a:1\" must start with http:// or https://"),
    ("--decode http://:80", "--decode: \"http://:80\" has no host"),
    ("--decode http://a:0", "--decode: \"http://a:0\": the port must be between 1 and 65535"),
    ("--decode http://u:sesame@a", "--decode: \"http://***@a\" must not name a user"),
    ("--decode https://u:sesame@a:x", "--decode: \"https://***@a:x\" must not name a user"),
    ("--decode http://a/?x=1", "--decode: \"http://a/?x=1\" must end with the path"),
    (
        "--pd-disaggregation --prefill http://a:1 --decode http://a:1",
        "http://a:1 is given twice (--prefill, --decode): each worker has one role",
    ),
    // Contradictions.
    ("--port 29000", "--port and --prometheus-port are both 29000: each listener needs its own port"),
    (
        "--health-check-port 30000",
        "--port and --health-check-port are both 30000: each listener needs its own port",
    ),
    (
        "--decode-policy bucket",
        "--decode-policy bucket: bucket sorts prompts by size and is a policy of the prefill leg only",
    ),
    (
        "--pd-disaggregation --policy bucket",
        "--decode-policy bucket: bucket sorts prompts by size and is a policy of the prefill leg only",
    ),
    (
        "--cache-index hash",
        "--cache-index hash needs --cache-boundaries: it remembers prompts up to these positions",
    ),
    (
        "--worker-metrics always --disable-load-monitoring",
        "--disable-load-monitoring and --worker-metrics always exclude each other",
    ),
    (
        "--engine-metrics --disable-load-monitoring",
        "--disable-load-monitoring and --engine-metrics exclude each other",
    ),
    (
        "--engine-metrics --worker-metrics never",
        "--engine-metrics needs workers to be asked: not with --worker-metrics never",
    ),
    ("--prefill-policy passthrough", "--prefill-policy passthrough: passthrough is no policy of a leg"),
    (
        "--policy power_of_two --worker-urls http://a:1",
        "--policy power_of_two needs two workers at least, and one is given",
    ),
    (
        "--pd-disaggregation --prefill-policy power_of_two --prefill http://a:1 --decode http://b:1",
        "--prefill-policy power_of_two needs two prefill workers at least, and one is given",
    ),
    (
        "--pd-disaggregation --decode-policy power_of_two --prefill http://a:1 --decode http://b:1",
        "--decode-policy power_of_two needs two decode workers at least, and one is given",
    ),
    (
        "--prefill-queue-size 5",
        "--prefill-queue-size needs --prefill-max-inflight-requests-per-worker above 0",
    ),
    (
        "--pd-disaggregation --prefill-queue-timeout-secs 5",
        "--prefill-queue-timeout-secs needs --prefill-max-inflight-requests-per-worker above 0",
    ),
    (
        "--prefill-max-inflight-requests-per-worker 5",
        "--prefill-max-inflight-requests-per-worker needs --pd-disaggregation",
    ),
    (
        "--pd-disaggregation --prefill-max-inflight-requests-per-worker 5 --prefill-queue-timeout-secs 0",
        "--prefill-queue-timeout-secs 0 lets nobody wait: give a time, or --prefill-queue-size 0",
    ),
    ("--queue-timeout-secs 0", "--queue-timeout-secs 0 lets nobody wait: give a time, or --queue-size 0"),
    ("--tls-cert-path c", "--tls-cert-path needs --tls-key-path: TLS takes both or none"),
    ("--tls-key-path k", "--tls-key-path needs --tls-cert-path: TLS takes both or none"),
    (
        "--retry-initial-backoff-ms 9 --retry-max-backoff-ms 8",
        "--retry-max-backoff-ms must not be below --retry-initial-backoff-ms",
    ),
    (
        "--service-discovery --pd-disaggregation",
        "--service-discovery with --pd-disaggregation needs --prefill-selector or --decode-selector",
    ),
    ("--discovery-provider file", "--discovery-provider file needs --discovery-file"),
    (
        "--discovery-file f --service-discovery",
        "--discovery-file and Kubernetes discovery exclude each other: give one",
    ),
    (
        "--discovery-file f --discovery-provider kubernetes",
        "--discovery-file and Kubernetes discovery exclude each other: give one",
    ),
    ("--discovery-check-interval-secs 9", "--discovery-check-interval-secs needs --discovery-file"),
    ("--model-id-from pod", "--model-id-from pod: must be namespace, label:KEY or annotation:KEY"),
    ("--config /no/such/file", "/no/such/file: cannot be read: No such file or directory (os error 2)"),
];

#[test]
fn smg_f85_refusals_say_what_is_wrong() {
    for (line, message) in REFUSED {
        assert_eq!(error(line), *message, "{line}");
    }
}

#[test]
fn a_message_is_one_line() {
    for (line, _) in REFUSED {
        assert_eq!(error(line).lines().count(), 1, "{line}");
    }
}

#[test]
fn an_empty_key_is_refused_wherever_it_is_written() {
    let empty = "must not be empty: it would ask clients for a key that none can present";
    let args = ["--api-key", " "].map(Into::into).into_iter();
    assert_eq!(Config::load(args, &|_| None).unwrap_err().to_string(), format!("--api-key: {empty}"));
    let from_env = load_with("", &[("BATON_API_KEY", "")]).unwrap_err();
    assert_eq!(from_env.to_string(), format!("BATON_API_KEY: {empty}"));
    let file = Scratch::new("empty-key", "auth:\n  api_key: ''\n");
    assert_eq!(error(&format!("--config {}", file.path())), format!("{}:2: api_key: {empty}", file.path()));
}

#[test]
fn a_key_is_never_shown() {
    let loaded = load("--api-key sk-secret --control-plane-api-keys id:name:admin:sk-secret").unwrap();
    let shown = [loaded.to_yaml(), loaded.config.describe().to_string(), format!("{loaded:?}")];
    for text in shown.iter().chain(&loaded.refusals()) {
        assert!(!text.contains("sk-secret"), "{text}");
    }
    assert_eq!(loaded.config.auth.api_key.unwrap().expose(), "sk-secret");
    let masked = error("--api-key ********");
    assert_eq!(masked, "--api-key: is the mask that `baton check` prints, not a key");
}

/// Accepted by `check`, refused by `launch`.
const NOT_SERVED: &[(&str, &str)] = &[
    ("--policy passthrough", "--policy passthrough is not served: it belongs to SMG's regular mode"),
    ("--encode http://a:1 8995", "--encode asks for a separate encode leg, which is not served yet"),
    ("--epd-disaggregation", "--epd-disaggregation asks for a separate encode leg, which is not served yet"),
    (
        "--service-discovery --selector a=b",
        "--service-discovery asks for Kubernetes discovery, which is not served yet",
    ),
    (
        "--discovery-provider kubernetes --selector a=b",
        "--discovery-provider kubernetes asks for Kubernetes discovery, which is not served yet",
    ),
    (
        "--control-plane-api-keys a:b:admin:c",
        "--control-plane-api-keys asks for separate keys for the admin routes, which is not served yet",
    ),
];

#[test]
fn what_is_not_served_yet_is_named() {
    for (line, message) in NOT_SERVED {
        assert_eq!(load(line).unwrap().refusals(), [*message], "{line}");
    }
    let served = load("--policy round_robin --service-discovery=false --dp-aware").unwrap();
    assert!(served.refusals().is_empty());
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let warnings = |line| load(line).unwrap().warnings();
    assert_eq!(warnings("--kv-index chain"), ["--kv-index has no effect: there is one index of KV events"]);
    for given in [
        "--kv-indexer-ttl-secs 9",
        "--kv-indexer-max-entries 9",
        "--selection-policy other",
        "--selection-accounting-ttl-ms 9",
        "--worker-stall-secs 9",
        "--worker-wedge-secs 9",
        "--worker-stale-secs 9",
    ] {
        let flag = given.split(' ').next().unwrap();
        let warned = warnings(given);
        assert!(warned.len() == 1 && warned[0].starts_with(&format!("{flag} has no effect: ")), "{warned:?}");
    }
    assert_eq!(
        warnings("--kv-index positional --engine-metrics --least-load-max-waiting-requests 5"),
        [""; 0]
    );
    assert_eq!(
        warnings("--selector a=b --model-id-from namespace"),
        [
            "--selector has no effect without --discovery-file",
            "--model-id-from has no effect without --discovery-file"
        ]
    );
    assert_eq!(warnings("--selector a=b --discovery-file f"), [""; 0]);
    assert_eq!(
        warnings("--tokenize-at-once 4 --tokenizer-path m=cl100k_base"),
        ["--tokenize-at-once has no effect without --tokenizer-path engine"]
    );
    assert_eq!(warnings("--tokenize-timeout-ms 4 --tokenizer-path m=engine"), [""; 0]);
    assert_eq!(
        warnings("--dp-minimum-tokens-scheduler"),
        ["--dp-minimum-tokens-scheduler has no effect without --dp-aware: there are no ranks to choose from"]
    );
    assert_eq!(warnings("--dp-minimum-tokens-scheduler --dp-aware"), [""; 0]);
    // Workers serve by their roles, whatever the mode.
    assert_eq!(warnings("--decode http://a:1 --decode-policy random"), [""; 0]);
    assert_eq!(warnings("--pd-disaggregation --worker-urls http://a:1"), [""; 0]);
    let from_env = load_with("", &[("BATON_UPSTREAM_HTTP2", "1")]).unwrap();
    assert!(
        from_env.warnings()[0].starts_with("BATON_UPSTREAM_HTTP2 has no effect yet"),
        "{:?}",
        from_env.warnings()
    );
    assert_eq!(from_env.sources.of("upstream-http2"), Source::Environment("BATON_UPSTREAM_HTTP2".into()));
}
