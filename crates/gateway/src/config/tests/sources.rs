//! Which of several places wins, and how it is named.

use super::super::{KvConnectorType, PolicyName, Source, TrtScheduleStyle, unread};
use super::{Scratch, load, load_with};

#[test]
fn flag_over_environment_over_file_over_default() {
    let file = Scratch::new(
        "precedence",
        "server:\n  port: 1\nlog:\n  log_level: debug\nretry:\n  disable_retries: true\n",
    );
    let line = format!("--config {}", file.path());
    let at = |line| Source::File { path: file.path().into(), line };

    let loaded = load(&line).unwrap();
    assert_eq!(loaded.config.server.port, 1);
    assert_eq!(loaded.sources.of("port"), at(2));
    assert_eq!(loaded.sources.of("log-level"), at(4));
    assert_eq!(loaded.sources.of("host"), Source::Default);

    let loaded = load_with(&line, &[("BATON_PORT", "2")]).unwrap();
    assert_eq!(loaded.config.server.port, 2);
    assert_eq!(loaded.sources.of("port"), Source::Environment("BATON_PORT".into()));

    let loaded =
        load_with(&format!("{line} --port 3 --disable-retries=false"), &[("BATON_PORT", "2")]).unwrap();
    assert_eq!(loaded.config.server.port, 3);
    assert_eq!(loaded.sources.of("port"), Source::Flag("port"));
    assert!(!loaded.config.retry.disabled);
}

#[test]
fn a_printed_configuration_names_each_source_and_reads_back() {
    let file =
        Scratch::new("printed", "limits:\n  max_connections: 9\ntimeouts:\n  connect_timeout_secs: 0.25\n");
    let line = format!(
        "--config {} --pd-disaggregation --prefill http://a:1 8998 --prefill http://b:1 --decode http://c:1 \
         --cors-allowed-origins * --log-filter info,baton=debug --selector app=llm tier=a",
        file.path()
    );
    let loaded = load_with(&line, &[("BATON_HOST", "::"), ("RUST_LOG", "warn")]).unwrap();
    let yaml = loaded.to_yaml();
    for expected in [
        "  host: \"::\" # environment BATON_HOST\n".to_owned(),
        "  port: 30000 # default\n".to_owned(),
        "  prefill: # flag --prefill\n    - \"http://a:1 8998\"\n    - http://b:1\n".to_owned(),
        format!("  max_connections: 9 # {}:2\n", file.path()),
        format!("  connect_timeout_secs: 0.25 # {}:4\n", file.path()),
        "  log_filter: \"info,baton=debug\" # flag --log-filter\n".to_owned(),
        "  worker_threads: null".replace("worker", "runtime_worker"),
    ] {
        assert!(yaml.contains(&expected), "{expected:?} is not in\n{yaml}");
    }
    let again = Scratch::new("read-back", &yaml);
    assert_eq!(load(&format!("--config {}", again.path())).unwrap().config, loaded.config);
}

#[test]
fn environment_lists_switches_and_foreign_names() {
    let env = [
        ("BATON_PD_DISAGGREGATION", "yes"),
        ("BATON_PREFILL", "http://a:1 8998, http://b:1 none"),
        ("BATON_DECODE", "http://c:1,http://d:1"),
        ("BATON_CACHE_BOUNDARIES", "1 2,3"),
        ("RUST_LOG", "debug"),
        ("BATON_LOG_JSON", ""),
        // A Kubernetes service called `baton` sets this in every pod of its namespace.
        ("BATON_PORT", "tcp://10.0.0.1:30000"),
    ];
    let loaded = load_with("", &env).unwrap();
    let workers = &loaded.config.workers;
    let legs: Vec<String> = workers.prefill.iter().map(ToString::to_string).collect();
    assert_eq!(legs, ["http://a:1 8998", "http://b:1 none"]);
    assert_eq!(workers.decode.len(), 2);
    assert!(workers.pd_disaggregation && !loaded.config.log.json);
    assert_eq!(loaded.config.affinity.cache_boundaries, [1, 2, 3]);
    assert_eq!(loaded.config.server.port, 30000);
    assert_eq!(loaded.config.log.filter.as_deref(), Some("debug"));
    assert_eq!(loaded.sources.of("log-filter"), Source::Environment("RUST_LOG".into()));
    assert_eq!(
        load_with("", &[("BATON_PORT", "x")]).unwrap_err().to_string(),
        "BATON_PORT x: must be a port between 1 and 65535"
    );
}

#[test]
fn variables_that_nothing_reads_are_told() {
    let set = [
        ("AIBRIX_MIN_MATCH_PTC", "30"),
        ("AIBRIX_PREFIX_CACHE_BLOCK_SIZE", "4"),
        ("AIBRIX_MIN_MATCH_PCT", "30"),
        ("AIBRIX_KV_CONNECTOR_TYPE", "nixl"),
        ("BATON_LOG_LEVEL", "debug"),
        ("BATON_CONFIG", "b.yaml"),
        ("PATH", "/bin"),
        // Of a service called `aibrix-gateway-plugins`.
        ("AIBRIX_GATEWAY_PLUGINS_SERVICE_HOST", "10.0.0.1"),
        ("AIBRIX_GATEWAY_PLUGINS_SERVICE_PORT_HTTP", "80"),
        ("AIBRIX_GATEWAY_PLUGINS_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("AIBRIX_GATEWAY_PLUGINS_PORT", "tcp://10.0.0.1:80"),
    ];
    let told = unread(set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let due = ["AIBRIX_MIN_MATCH_PTC", "AIBRIX_PREFIX_CACHE_BLOCK_SIZE"];
    assert_eq!(told, due.map(|name| format!("{name} is read by nothing here")));
}

#[test]
fn decodes_are_never_placed_by_bucket() {
    let config = load_with("--policy bucket", &[]).unwrap().config;
    assert_eq!((config.prefill_policy(), config.policy.default), (PolicyName::Bucket, PolicyName::Bucket));
    assert_eq!(config.decode_policy(), PolicyName::LeastLoad, "of decodes that come later");
}

#[test]
fn the_file_may_be_named_by_the_environment() {
    let file = Scratch::new("by-env", "server: {port: 4}\n");
    assert_eq!(load_with("", &[("BATON_CONFIG", file.path())]).unwrap().config.server.port, 4);
    assert_eq!(load_with("", &[("BATON_CONFIG", "")]).unwrap().config.server.port, 30000);
}

#[test]
fn described_as_json() {
    let described = load("--port 5 --prefill http://a:1 9").unwrap().config.describe();
    assert_eq!(described["server"]["port"], 5);
    assert_eq!(described["workers"]["prefill"][0], "http://a:1 9");
    assert_eq!(described["timeouts"]["upstream_pool_idle_timeout_secs"], 3);
    assert_eq!(described["auth"]["api_key"], serde_json::Value::Null);
}

#[test]
fn aibrixs_variables_forgive_a_word_that_nobody_knows() {
    let aibrix = |value| load_with("", &[("AIBRIX_KV_CONNECTOR_TYPE", value)]).unwrap();
    let known = aibrix("nixl");
    assert_eq!(known.config.handoff.kv_connector_type, Some(KvConnectorType::Nixl));
    assert_eq!(known.sources.of("kv-connector-type"), Source::Environment("AIBRIX_KV_CONNECTOR_TYPE".into()));
    assert!(known.warnings().is_empty());
    let unknown = aibrix("nfs");
    assert_eq!(unknown.config.handoff.kv_connector_type, None);
    assert_eq!(unknown.sources.of("kv-connector-type"), Source::Default);
    assert!(
        unknown.warnings()[0]
            .starts_with("AIBRIX_KV_CONNECTOR_TYPE nfs: must be one of shfs, nixl, mooncake")
    );
    assert!(load_with("", &[("BATON_KV_CONNECTOR_TYPE", "nfs")]).is_err(), "Baton's own does not");
}

#[test]
fn aibrix_j25_aibrixs_names_for_tensorrt_llm() {
    let set = load_with(
        "",
        &[("AIBRIX_TRT_SCHEDULE_STYLE", " generation_first "), ("AIBRIX_TRT_MACHINE_ID", "1023")],
    );
    let config = set.unwrap().config.handoff;
    assert_eq!((config.trt_schedule_style, config.trt_machine_id), (TrtScheduleStyle::GenerationFirst, 1023));
    let parallel = load_with("", &[("AIBRIX_TRT_SCHEDULE_STYLE", "parallel")]).unwrap();
    assert_eq!(parallel.config.handoff.trt_schedule_style, TrtScheduleStyle::ContextFirst);
    assert_eq!(parallel.warnings().len(), 1, "J25: said, and context_first");
    for machine in ["1024", "-1", "x"] {
        assert!(load_with("", &[("AIBRIX_TRT_MACHINE_ID", machine)]).is_err(), "{machine}");
    }
}

#[test]
fn a_watchdog_s_limit_of_aibrix_s_is_seconds_and_nought_is_off() {
    let first = |value| {
        let env = [("AIBRIX_DECODE_FIRST_RESPONSE_TIMEOUT", value)];
        load_with("", &env).unwrap().config.timeouts.decode_first_response.map(|limit| limit.as_secs())
    };
    for (value, seconds) in
        [("", Some(60)), ("0", None), (" 30 ", Some(30)), ("-1", Some(60)), ("abc", Some(60))]
    {
        assert_eq!(first(value), seconds, "{value:?}");
    }
    let others = [("AIBRIX_DECODE_RESPONSE_TIMEOUT", "7"), ("AIBRIX_DECODE_STREAM_IDLE_TIMEOUT", "0")];
    let timeouts = load_with("", &others).unwrap().config.timeouts;
    assert_eq!(
        (timeouts.decode_response.map(|limit| limit.as_secs()), timeouts.decode_stream_idle),
        (Some(7), None)
    );
}

#[test]
fn a_redis_as_aibrix_names_it() {
    let none = load_with("", &[("POD_NAME", "gw-0")]).unwrap();
    assert_eq!((none.config.redis.host.clone(), none.warnings()), (None, vec![]));
    let env = [("REDIS_HOST", "redis"), ("REDIS_PORT", "tcp://10.0.0.1:6379"), ("REDIS_PASSWORD", "")];
    let open = load_with("", &env).unwrap();
    let redis = &open.config.redis;
    assert_eq!((redis.host.as_deref(), redis.port, &redis.password), (Some("redis"), 6379, &None));
    assert_eq!(open.warnings(), Vec::<String>::new());
    for host in ["redis", "r.default.svc.cluster.local", "10.0.0.1", "::1", "[fd00::1]", "my_redis"] {
        assert_eq!(load(&format!("--redis-host {host}")).unwrap().config.redis.host.as_deref(), Some(host));
    }
    for host in ["redis:6379", "redis://redis", "rediss://:sesame@redis:6380/0", "a/b", "[x]", "a@b"] {
        let told = load_with("", &[("REDIS_HOST", host)]).unwrap_err().to_string();
        assert!(
            told.contains("REDIS_HOST") && told.contains("must be a host name or an IP address"),
            "{told}"
        );
        assert!(!told.contains("sesame"), "{told}");
    }
    let odd = load_with("--redis-port 7000", &[("REDIS_PORT", "abc"), ("REDIS_HOST", "r")]).unwrap();
    assert_eq!((odd.config.redis.port, odd.warnings().len()), (7000, 0), "the flag wins");
    let odd = load_with("", &[("REDIS_PORT", "abc"), ("REDIS_HOST", "r")]).unwrap();
    assert_eq!(odd.config.redis.port, 6379);
    assert!(odd.warnings()[0].starts_with("REDIS_PORT abc: "), "{:?}", odd.warnings());
    let closed = load_with("--redis-host r", &[("REDIS_PASSWORD", "sesame")]).unwrap();
    assert_eq!(closed.config.redis.password.as_ref().unwrap().expose(), "sesame");
    let shown = format!("{}{}{:?}", closed.to_yaml(), closed.config.describe(), closed.config);
    assert!(!shown.contains("sesame"), "{shown}");
    let idle = load_with("--redis-tls", &[("REDIS_PASSWORD", "sesame")]).unwrap().warnings();
    assert!(idle.len() == 2 && idle.iter().all(|w| w.contains("no Redis is named")), "{idle:?}");
    let bare = load("--redis-host r --redis-ca-path /ca.pem").unwrap_err().to_string();
    assert!(bare.contains("--redis-ca-path needs --redis-tls"), "{bare}");
}
