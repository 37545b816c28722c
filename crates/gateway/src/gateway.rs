//! What every lane shares: the fleet, the rules, the counters. Built once from the config.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_core::admission::AdmissionRule;
use baton_core::body::BodyLimits;
use baton_core::breaker::BreakerRule;
use baton_core::handoff;
use baton_core::kv::KvIndex;
use baton_core::limits::ExchangeLimits;
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::{
    Assignment, Cascade, Legwise, LoadMetric, Overload, Policy, PolicyName, Reports, Strategies, Strategy,
    Tuning, Whole,
};
use baton_core::retry::{Budget, BudgetRule, RetryRule};
use baton_core::size::Measure;
use http::{HeaderName, HeaderValue};
use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::config::{self, Config};
use crate::entrance::Entrance;
use crate::lane::Lane;
use crate::ledger;
use crate::registry::Registry;
use crate::rooms::Rooms;
use crate::telemetry::Telemetry;
use crate::tokenize::Asking;
use crate::upstream::PoolRule;

/// The rules that decisions are made by.
pub struct Rules {
    pub retry: RetryRule,
    pub breaker: BreakerRule,
    pub exchange: ExchangeLimits,
    /// For a client's request.
    pub body: BodyLimits,
    /// For a prefill's answer.
    pub answer: BodyLimits,
    pub pool: PoolRule,
    pub handoff: handoff::Rules,
}

/// Times of the client side.
#[derive(Clone, Debug)]
pub struct Timeouts {
    pub header_read: Option<Duration>,
    pub idle_connection: Option<Duration>,
    pub body_stall: Option<Duration>,
    pub keepalive: Option<Duration>,
    pub shutdown_grace: Duration,
}

pub struct Gateway {
    pub registry: Registry,
    pub telemetry: Arc<Telemetry>,
    /// How prompts are counted.
    pub measure: Arc<Measure>,
    /// How engines are asked what they make of a prompt.
    pub asking: Asking,
    pub strategies: Strategies,
    /// AIBrix's settings, where a model's config says nothing else.
    pub knobs: Arc<Knobs>,
    /// What workers say that they hold.
    pub kv: Arc<KvIndex>,
    /// How sharing the decode ledger with other gateways goes, if it is shared.
    pub ledger: Option<Arc<ledger::Standing>>,
    pub rules: Rules,
    pub timeouts: Timeouts,
    pub entrance: Arc<Entrance>,
    pub rooms: Arc<Rooms>,
    /// Retries that there may still be.
    pub budget: Budget,
    /// Places for legs that live on without their exchange.
    pub background: Arc<Semaphore>,
    pub api_key: Option<config::Secret>,
    pub origins: config::CorsOrigins,
    pub request_id_headers: Vec<HeaderName>,
    /// Searched for a routing key; none where no policy asks for one.
    pub routing_key_headers: Vec<HeaderName>,
    pub clock: Clock,
    pub description: serde_json::Value,
    pub debug_endpoints: bool,
    /// Exchanges that each lane keeps.
    pub debug_requests: usize,
    /// Clients may ask why their workers were chosen.
    pub explains: bool,
    /// All lanes that serve, once they run.
    pub lanes: OnceLock<Vec<Arc<Lane>>>,
    /// Numbers ids that are told apart by their number.
    pub serial: AtomicU64,
    draining: AtomicBool,
}

impl Gateway {
    pub fn new(
        config: &Config,
        registry: Registry,
        telemetry: Arc<Telemetry>,
        entrance: Arc<Entrance>,
        clock: Clock,
    ) -> Gateway {
        let handoff = registry.settings().handoff.clone();
        let knobs = knobs(config);
        let kv = Arc::new(KvIndex::new(config.affinity.kv_events_max_bytes.get()));
        Gateway {
            registry,
            telemetry,
            measure: Arc::default(),
            asking: Asking::of(config),
            strategies: strategies(config, &knobs).hearing(&kv),
            ledger: ledger::Standing::of(config, &knobs),
            knobs,
            kv,
            rules: rules(config, handoff),
            timeouts: Timeouts {
                header_read: config.timeouts.header_read,
                idle_connection: config.timeouts.idle_connection,
                body_stall: config.timeouts.body_stall,
                keepalive: config.timeouts.sse_keepalive,
                shutdown_grace: config.timeouts.shutdown_grace,
            },
            entrance,
            rooms: Arc::new(Rooms::new(config.admission.decode_admission_wait)),
            budget: budget(config),
            background: Arc::new(Semaphore::new(
                config.limits.max_detached_legs.get().min(Semaphore::MAX_PERMITS),
            )),
            api_key: config.auth.api_key.clone(),
            origins: config.cors.allowed_origins.clone(),
            request_id_headers: config.server.request_id_headers.clone(),
            routing_key_headers: routing_key_headers(config),
            clock,
            description: config.describe(),
            debug_endpoints: config.server.debug_endpoints,
            debug_requests: config.server.debug_requests,
            explains: config.server.explain_header,
            lanes: OnceLock::new(),
            serial: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        }
    }

    /// Readiness goes down; what runs goes on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Is this the gateway's own key? Compared in constant time.
    pub fn is_key(&self, given: &[u8]) -> bool {
        use subtle::ConstantTimeEq;
        self.api_key.as_ref().is_some_and(|k| bool::from(k.expose().as_bytes().ct_eq(given)))
    }

    pub fn refuses_browsers(&self) -> bool {
        self.origins == config::CorsOrigins::None
    }

    /// `Access-Control-Allow-Origin` for this origin, if browsers may call from it.
    pub fn allows(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match &self.origins {
            config::CorsOrigins::None => None,
            config::CorsOrigins::Any => Some(HeaderValue::from_static("*")),
            config::CorsOrigins::Only(list) => {
                list.iter().any(|o| o.as_bytes() == origin.as_bytes()).then(|| origin.clone())
            }
        }
    }
}

/// How workers are chosen, from the config.
pub fn strategies(config: &Config, knobs: &Arc<Knobs>) -> Strategies {
    let policy = |p: config::PolicyName| Policy::tuned(policy_name(p), tuning(config));
    let legwise = Legwise {
        prefill: policy(config.prefill_policy()),
        decode: policy(config.decode_policy()),
        whole: policy(config.policy.default),
    };
    let pd = Cascade::new(knobs, &tuning(config));
    let whole = Whole::new(knobs, &tuning(config), pd.index().clone());
    Strategies { own: Strategy::Legwise(legwise), pd: Strategy::Cascade(pd), whole: Strategy::Whole(whole) }
}

/// How many retries there may be, from the config.
pub fn budget(config: &Config) -> Budget {
    let retry = &config.retry;
    Budget::new(BudgetRule { share: retry.budget_share, floor_per_sec: f64::from(retry.budget_floor) })
}

/// How many may enter, from the config and the machine.
pub fn admission_rule(config: &Config, cores: usize) -> AdmissionRule {
    AdmissionRule {
        concurrent: config.admission.max_concurrent_requests.resolve(cores).unwrap_or(0),
        queue: config.admission.queue_size,
        queue_timeout: config.admission.queue_timeout,
    }
}

/// When a worker's breaker opens, and for how long.
pub fn breaker_rule(config: &Config) -> BreakerRule {
    BreakerRule {
        enabled: !config.breaker.disabled,
        failure_threshold: config.breaker.failure_threshold.get(),
        success_threshold: config.breaker.success_threshold.get(),
        rest: config.breaker.open_duration,
    }
}

/// What decisions are made by, from the config.
pub fn rules(config: &Config, handoff: handoff::Rules) -> Rules {
    let retry = &config.retry;
    let answer_max = config.limits.max_buffered_prefill_answer_bytes.get();
    Rules {
        retry: RetryRule {
            attempts: if retry.disabled { 1 } else { retry.max_attempts.get() },
            initial_backoff: retry.initial_backoff,
            max_backoff: retry.max_backoff,
            multiplier: retry.backoff_multiplier,
            jitter: retry.jitter_factor,
        },
        breaker: breaker_rule(config),
        exchange: ExchangeLimits {
            request_timeout: config.timeouts.request,
            prefill_answer_max_bytes: answer_max,
            detach_timeout: config.timeouts.prefill_drain,
            release_timeout: config.timeouts.release,
            ..ExchangeLimits::default()
        },
        body: BodyLimits { max_bytes: config.limits.max_payload_bytes.get(), ..BodyLimits::default() },
        answer: BodyLimits { max_bytes: answer_max, ..BodyLimits::default() },
        pool: PoolRule {
            idle: config.timeouts.upstream_pool_idle,
            max_idle_per_worker: config.limits.upstream_max_idle_per_worker,
            connect_timeout: config.timeouts.connect,
        },
        handoff,
    }
}

/// AIBrix's settings from its variables; the times that flags speak of too are what those say.
pub fn knobs(config: &Config) -> Arc<Knobs> {
    let times = &config.timeouts;
    Arc::new(Knobs {
        abort_timeout: times.decode_abort.unwrap_or_default(),
        abort_retry_delay: times.decode_abort_retry_delay.unwrap_or_default(),
        first_response_timeout: times.decode_first_response.unwrap_or_default(),
        response_timeout: times.decode_response.unwrap_or_default(),
        stream_idle_timeout: times.decode_stream_idle.unwrap_or_default(),
        ..config.aibrix.clone()
    })
}

/// `launch` refuses passthrough before it comes to this.
fn policy_name(name: config::PolicyName) -> PolicyName {
    match name {
        config::PolicyName::RoundRobin => PolicyName::RoundRobin,
        config::PolicyName::Random => PolicyName::Random,
        config::PolicyName::PowerOfTwo => PolicyName::PowerOfTwo,
        config::PolicyName::CacheAware => PolicyName::CacheAware,
        config::PolicyName::PrefixHash => PolicyName::PrefixHash,
        config::PolicyName::ConsistentHashing => PolicyName::ConsistentHashing,
        config::PolicyName::Manual => PolicyName::Manual,
        config::PolicyName::Bucket => PolicyName::Bucket,
        config::PolicyName::LeastLoad | config::PolicyName::Passthrough => PolicyName::LeastLoad,
    }
}

fn tuning(config: &Config) -> Tuning {
    let (policy, affinity) = (&config.policy, &config.affinity);
    Tuning {
        cache_threshold: affinity.cache_threshold,
        balance_abs: affinity.balance_abs_threshold as f64,
        balance_rel: affinity.balance_rel_threshold,
        index_bytes: affinity.max_tree_size.get(),
        block_tokens: affinity.block_size.get(),
        boundaries: affinity.cache_boundaries.as_slice().into(),
        heads_last: (affinity.cache_index == config::CacheIndex::Hash).then_some(affinity.cache_ttl),
        overlap_decay: affinity.overlap_decay,
        temperature: affinity.selection_temperature,
        warm_up: affinity.worker_warmup,
        warm_up_share: affinity.worker_warmup_share,
        warm_up_blocks: affinity.worker_warmup_blocks as u64,
        thin_ratio: affinity.worker_warmup_thin_ratio,
        divert_every: affinity.worker_warmup_divert_every.map_or(0, |every| every.get() as u64),
        prefix_tokens: affinity.prefix_token_count.get(),
        prefix_load_factor: affinity.prefix_hash_load_factor,
        prefix_abs: affinity.prefix_hash_balance_abs_threshold as f64,
        bucket_every: affinity.bucket_adjust_interval,
        reports: reports(config),
        by_rank: config.workers.dp_minimum_tokens_scheduler,
        sticky: policy.routing_key_override,
        assignment: policy.assignment_mode.map(|mode| match mode {
            config::AssignmentMode::Random => Assignment::Random,
            config::AssignmentMode::MinLoad => Assignment::MinLoad,
            config::AssignmentMode::MinGroup => Assignment::MinGroup,
            config::AssignmentMode::Delegate => Assignment::Delegate,
        }),
        max_idle: policy.max_idle,
        sweep_every: affinity.eviction_interval,
    }
}

/// Workers are asked for their load where a setting says what is to be made of it.
fn reports(config: &Config) -> Reports {
    let (policy, affinity, load) = (&config.policy, &config.affinity, &config.load);
    let reports = Reports {
        wanted: false,
        metric: match policy.power_of_two_load_metric {
            config::LoadMetric::ExpectedWait => LoadMetric::ExpectedWait,
            config::LoadMetric::Requests => LoadMetric::Requests,
            config::LoadMetric::LeastRequests => LoadMetric::LeastRequests,
        },
        kv_weight: policy.least_load_kv_pressure_weight,
        throughput: policy.least_load_default_throughput,
        request_tokens: f64::from(policy.least_load_mean_prefill_tokens.get()),
        max_waiting: f64::from(policy.least_load_max_waiting_requests),
        kv_spread: affinity.balance_token_usage_threshold,
        kv_most: affinity.overload_token_usage_threshold,
        overload: (load.overload_protection && !load.overload_protection_disabled).then_some(Overload {
            waiting: load.overload_waiting_requests.get() as f64,
            kv_usage: load.overload_token_usage,
            shed: load.overload_shed,
        }),
    };
    let plain = Reports { metric: reports.metric, ..Reports::default() };
    let wanted = match load.worker_metrics {
        config::WorkerMetrics::Auto if load.monitoring_disabled => {
            Reports { overload: None, ..reports } != Reports { overload: None, ..plain }
        }
        config::WorkerMetrics::Auto => reports != plain && reports != Reports { overload: None, ..plain },
        config::WorkerMetrics::Always => true,
        config::WorkerMetrics::Never => false,
    };
    Reports { wanted, ..reports }
}

/// The headers that are searched for a routing key; none where no policy asks for one.
pub fn routing_key_headers(config: &Config) -> Vec<HeaderName> {
    use config::PolicyName::{ConsistentHashing, Manual, PrefixHash};
    let policies = [config.prefill_policy(), config.decode_policy(), config.policy.default];
    let asked = |policy: &config::PolicyName| matches!(policy, ConsistentHashing | Manual | PrefixHash);
    if config.policy.routing_key_override || policies.iter().any(asked) {
        config.policy.routing_key_headers.clone()
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_what_policies_are_tuned_by() {
        let line = "--cache-threshold 0.11 --balance-abs-threshold 12 --balance-rel-threshold 1.3 \
            --max-tree-size 1400000 --block-size 15 --cache-boundaries 16,17 --cache-index hash \
            --cache-ttl-secs 18 --overlap-decay 0.19 --selection-temperature 0.21 --worker-warmup-secs 22 \
            --worker-warmup-share 0.23 --worker-warmup-blocks 24 --worker-warmup-thin-ratio 0.25 \
            --worker-warmup-divert-every 26 --prefix-token-count 27 --prefix-hash-load-factor 2.8 \
            --prefix-hash-balance-abs-threshold 29 --bucket-adjust-interval-secs 31 --max-idle-secs 32 \
            --eviction-interval 33 --routing-key-override --assignment-mode min_group --dp-aware \
            --dp-minimum-tokens-scheduler";
        let config = Config::load(line.split_whitespace().map(Into::into), &|_| None).unwrap().config;
        let t = tuning(&config);
        let shares = [t.cache_threshold, t.balance_rel, t.overlap_decay, t.temperature, t.warm_up_share];
        assert_eq!(shares, [0.11, 1.3, 0.19, 0.21, 0.23]);
        let more = [t.balance_abs, t.thin_ratio, t.prefix_load_factor, t.prefix_abs];
        assert_eq!(more, [12.0, 0.25, 2.8, 29.0]);
        assert_eq!([t.index_bytes, t.block_tokens, t.prefix_tokens], [1_400_000, 15, 27]);
        assert_eq!([t.warm_up_blocks, t.divert_every], [24, 26]);
        let times = [t.heads_last, t.warm_up, Some(t.bucket_every), Some(t.max_idle), Some(t.sweep_every)];
        assert_eq!(times, [18, 22, 31, 32, 33].map(|secs| Some(Duration::from_secs(secs))));
        assert_eq!((&t.boundaries[..], t.assignment), (&[16, 17][..], Some(Assignment::MinGroup)));
        assert!(t.by_rank && t.sticky);
    }

    #[test]
    fn each_flag_is_what_reports_are_read_by() {
        let line = "--power-of-two-load-metric requests --least-load-kv-pressure-weight 0.11 \
            --least-load-default-throughput 12 --least-load-mean-prefill-tokens 13 \
            --least-load-max-waiting-requests 14 --balance-token-usage-threshold 0.15 \
            --overload-token-usage-threshold 0.16 --worker-overload-waiting-requests 17 \
            --worker-overload-token-usage 0.18 --worker-overload-shed";
        let config = Config::load(line.split_whitespace().map(Into::into), &|_| None).unwrap().config;
        let due = Reports {
            wanted: true,
            metric: LoadMetric::Requests,
            kv_weight: 0.11,
            throughput: 12.0,
            request_tokens: 13.0,
            max_waiting: 14.0,
            kv_spread: 0.15,
            kv_most: 0.16,
            overload: Some(Overload { waiting: 17.0, kv_usage: 0.18, shed: true }),
        };
        assert_eq!(reports(&config), due);
    }
}
