//! What cannot stand together, what is not served yet, and what has no effect.

use super::setting::Effect;
use super::{
    CacheIndex, Config, ConfigError, DiscoveryProvider, PolicyName, Sources, WorkerMetrics, settings,
};

fn conflict<T>(reason: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Conflict(reason.into()))
}

/// Refuses contradictions.
pub(super) fn check(config: &Config, sources: &Sources) -> Result<(), ConfigError> {
    ports(config)?;
    policies(config)?;
    admission(config, sources)?;
    pairs_of_settings(config, sources)
}

fn ports(config: &Config) -> Result<(), ConfigError> {
    let listeners = [
        ("--port", Some(config.server.port)),
        ("--prometheus-port", Some(config.metrics.port)),
        ("--health-check-port", config.server.health_check_port),
    ];
    for (at, (flag, port)) in listeners.iter().enumerate() {
        let Some(port) = port else { continue };
        if let Some((other, _)) = listeners[..at].iter().find(|(_, other)| *other == Some(*port)) {
            return conflict(format!("{other} and {flag} are both {port}: each listener needs its own port"));
        }
    }
    Ok(())
}

fn policies(config: &Config) -> Result<(), ConfigError> {
    let workers = &config.workers;
    let (policy, pd) = (&config.policy, workers.pd_disaggregation || workers.epd_disaggregation);
    for (flag, given) in [("--prefill-policy", policy.prefill), ("--decode-policy", policy.decode)] {
        if given == Some(PolicyName::Passthrough) {
            return conflict(format!("{flag} passthrough: passthrough is no policy of a leg"));
        }
    }
    let of_decodes = policy.decode.or(pd.then_some(policy.default));
    if of_decodes == Some(PolicyName::Bucket) {
        return conflict(
            "--decode-policy bucket: bucket sorts prompts by size and is a policy of the prefill leg only",
        );
    }
    if config.affinity.cache_index == CacheIndex::Hash && config.affinity.cache_boundaries.is_empty() {
        return conflict(
            "--cache-index hash needs --cache-boundaries: it remembers prompts up to these positions",
        );
    }
    // Workers may come later where the list is empty or something else brings them.
    if workers.enable_igw || workers.dp_aware || config.discovery.from().is_some() {
        return Ok(());
    }
    let total = if pd { workers.prefill.len() + workers.decode.len() } else { workers.worker_urls.len() };
    let counts = [
        ("--policy", policy.default == PolicyName::PowerOfTwo, total, "worker"),
        (
            "--prefill-policy",
            pd && policy.prefill == Some(PolicyName::PowerOfTwo),
            workers.prefill.len(),
            "prefill worker",
        ),
        (
            "--decode-policy",
            pd && policy.decode == Some(PolicyName::PowerOfTwo),
            workers.decode.len(),
            "decode worker",
        ),
    ];
    match counts.into_iter().find(|(_, two, count, _)| *two && *count == 1) {
        Some((flag, _, _, kind)) => {
            conflict(format!("{flag} power_of_two needs two {kind}s at least, and one is given"))
        }
        None => Ok(()),
    }
}

fn admission(config: &Config, sources: &Sources) -> Result<(), ConfigError> {
    let admission = &config.admission;
    if admission.queue_size > 0 && admission.queue_timeout.is_zero() {
        return conflict("--queue-timeout-secs 0 lets nobody wait: give a time, or --queue-size 0");
    }
    let waits = admission.prefill_queue_size.is_none_or(|size| size > 0);
    if admission.prefill_max_inflight_per_worker.is_none() {
        let queue =
            ["prefill-queue-size", "prefill-queue-timeout-secs"].into_iter().find(|flag| sources.given(flag));
        if let Some(flag) = queue {
            return conflict(format!("--{flag} needs --prefill-max-inflight-requests-per-worker above 0"));
        }
    } else if !config.workers.pd_disaggregation && !config.workers.epd_disaggregation {
        return conflict("--prefill-max-inflight-requests-per-worker needs --pd-disaggregation");
    } else if waits && admission.prefill_queue_timeout.is_some_and(|time| time.is_zero()) {
        return conflict(
            "--prefill-queue-timeout-secs 0 lets nobody wait: give a time, or --prefill-queue-size 0",
        );
    }
    Ok(())
}

fn pairs_of_settings(config: &Config, sources: &Sources) -> Result<(), ConfigError> {
    let (tls, retry, workers) = (&config.tls, &config.retry, &config.workers);
    if tls.cert_path.is_some() != tls.key_path.is_some() {
        let (given, missing) = if tls.cert_path.is_some() { ("cert", "key") } else { ("key", "cert") };
        return conflict(format!("--tls-{given}-path needs --tls-{missing}-path: TLS takes both or none"));
    }
    if retry.max_backoff < retry.initial_backoff {
        return conflict("--retry-max-backoff-ms must not be below --retry-initial-backoff-ms");
    }
    if workers.pd_disaggregation && workers.epd_disaggregation {
        return conflict("--pd-disaggregation and --epd-disaggregation exclude each other");
    }
    if config.load.overload_protection_disabled
        && sources.given("worker-overload-protection")
        && config.load.overload_protection
    {
        return conflict(
            "--worker-overload-protection and --disable-worker-overload-protection exclude each other",
        );
    }
    discovery(config)?;
    if config.redis.ca_path.is_some() && config.redis.host.is_some() && !config.redis.tls {
        return conflict("--redis-ca-path needs --redis-tls");
    }
    load(config)?;
    doubled_workers(config)
}

fn discovery(config: &Config) -> Result<(), ConfigError> {
    let discovery = &config.discovery;
    if discovery.enabled && discovery.provider.is_some() {
        return conflict("--service-discovery and --discovery-provider say the same: give one");
    }
    let kubernetes = discovery.from() == Some(DiscoveryProvider::Kubernetes);
    match (&discovery.file, kubernetes) {
        (Some(_), true) => {
            return conflict("--discovery-file and Kubernetes discovery exclude each other: give one");
        }
        (None, false) if discovery.provider.is_some() => {
            return conflict("--discovery-provider file needs --discovery-file");
        }
        (None, _) if discovery.check_interval.is_some() => {
            return conflict("--discovery-check-interval-secs needs --discovery-file");
        }
        _ => {}
    }
    let none = discovery.prefill_selector.is_empty() && discovery.decode_selector.is_empty();
    if kubernetes && config.workers.pd_disaggregation && none {
        return conflict(
            "--service-discovery with --pd-disaggregation needs --prefill-selector or --decode-selector",
        );
    }
    Ok(())
}

fn load(config: &Config) -> Result<(), ConfigError> {
    let load = &config.load;
    match (load.worker_metrics, load.monitoring_disabled, load.engine_metrics) {
        (WorkerMetrics::Always, true, _) => {
            conflict("--disable-load-monitoring and --worker-metrics always exclude each other")
        }
        (_, true, true) => conflict("--disable-load-monitoring and --engine-metrics exclude each other"),
        (WorkerMetrics::Never, _, true) => {
            conflict("--engine-metrics needs workers to be asked: not with --worker-metrics never")
        }
        _ => Ok(()),
    }
}

fn doubled_workers(config: &Config) -> Result<(), ConfigError> {
    let workers = &config.workers;
    let legs = workers.prefill.iter().map(|leg| ("--prefill", &leg.url));
    let mut seen = std::collections::HashMap::new();
    for (flag, url) in legs
        .chain(workers.decode.iter().map(|url| ("--decode", url)))
        .chain(workers.worker_urls.iter().map(|url| ("--worker-urls", url)))
    {
        if let Some(other) = seen.insert(url, flag) {
            return conflict(format!("{url} is given twice ({other}, {flag}): each worker has one role"));
        }
    }
    Ok(())
}

/// What this version does not serve.
pub(super) fn refusals(config: &Config, sources: &Sources) -> Vec<String> {
    let mut refusals = Vec::new();
    let base = Config::default();
    for setting in settings().filter(|setting| sources.given(setting.flag)) {
        if let Effect::Refused(part) = setting.note.effect
            && setting.value(config) != setting.value(&base)
        {
            refusals.push(format!("{} asks for {part}, which is not served yet", sources.name(setting.flag)));
        }
    }
    if config.discovery.provider == Some(DiscoveryProvider::Kubernetes) {
        let name = sources.name("discovery-provider");
        refusals.push(format!("{name} kubernetes asks for Kubernetes discovery, which is not served yet"));
    }
    let policies = [
        ("policy", Some(config.policy.default)),
        ("prefill-policy", config.policy.prefill),
        ("decode-policy", config.policy.decode),
    ];
    for (flag, policy) in policies {
        if let Some(policy) = policy.filter(|policy| !served(*policy)) {
            refusals.push(format!(
                "{} {} is not served: it belongs to SMG's regular mode",
                sources.name(flag),
                policy.as_str(),
            ));
        }
    }
    refusals
}

fn served(policy: PolicyName) -> bool {
    policy != PolicyName::Passthrough
}

/// Flags about pods.
const OF_PODS: [&str; 9] = [
    "service-discovery-namespace",
    "service-discovery-port",
    "selector",
    "prefill-selector",
    "decode-selector",
    "encode-selector",
    "kv-connector-annotation",
    "kv-engine-id-annotation",
    "model-id-from",
];

/// What was given and does nothing.
pub(super) fn warnings(config: &Config, sources: &Sources) -> Vec<String> {
    let base = Config::default();
    let mut warnings = sources.unused.clone();
    for setting in settings().filter(|setting| sources.given(setting.flag)) {
        let name = || sources.name(setting.flag);
        let warning = match setting.note.effect {
            Effect::Later(part) => format!("{} has no effect yet: it belongs to {part}", name()),
            Effect::Otherwise(why) => format!("{} has no effect: {why}", name()),
            Effect::Now | Effect::Refused(_) => continue,
        };
        if setting.value(config) != setting.value(&base) {
            warnings.push(warning);
        }
    }
    if !config.affinity.tokenizers.iter().any(|own| own.path == crate::tokenizers::ENGINE) {
        let given =
            ["tokenize-timeout-ms", "tokenize-at-once"].into_iter().filter(|flag| sources.given(flag));
        warnings.extend(
            given.map(|flag| format!("{} has no effect without --tokenizer-path engine", sources.name(flag))),
        );
    }
    if config.discovery.from().is_none() {
        let given = OF_PODS.into_iter().filter(|flag| sources.given(flag));
        let lost = |flag| format!("{} has no effect without --discovery-file", sources.name(flag));
        warnings.extend(given.map(lost));
    }
    let lost =
        ["redis-password", "redis-tls", "redis-ca-path"].into_iter().filter(|flag| sources.given(flag));
    if config.redis.host.is_none() {
        let why = "no Redis is named (--redis-host)";
        warnings.extend(lost.map(|flag| format!("{} has no effect: {why}", sources.name(flag))));
    }
    let workers = &config.workers;
    if workers.dp_minimum_tokens_scheduler && !workers.dp_aware {
        let name = sources.name("dp-minimum-tokens-scheduler");
        warnings.push(format!("{name} has no effect without --dp-aware: there are no ranks to choose from"));
    }
    warnings
}
