//! How workers are chosen, and what is known of their load.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use http::HeaderName;

use super::{at_least_one, at_least_one32};
use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::{
    AssignmentMode, CacheIndex, KvIndex, LoadMetric, PolicyName, TokenizerPath, WorkerMetrics,
};

const RULE: &str = "there is one rule of choice, tuned by the other flags of this group";
const ACCOUNT: &str = "a dispatch counts for as long as it is in flight";
const ONE_INDEX: &str = "there is one index of KV events";
const BOUND: &str =
    "the index of KV events is bounded by --kv-events-max-bytes and forgets what engines say they forgot";
const CHANNEL: &str =
    "workers speak HTTP and push no signs of life; see health checks, breakers and --decode-*-timeout-secs";

group! {
    /// Which worker gets a leg.
    "Policy" policy: Policy {
        /// Policy of every leg that has none of its own.
        default: PolicyName = PolicyName::LeastLoad, one_of("POLICY"), "policy";
        /// Policy of the prefill leg; unset: --policy.
        prefill: Option<PolicyName> = None, maybe_one_of("POLICY"), "prefill-policy";
        /// Policy of the decode leg; unset: --policy.
        decode: Option<PolicyName> = None, maybe_one_of("POLICY"), "decode-policy";
        /// What power_of_two compares: expected_wait and requests of two workers, least_requests of all.
        power_of_two_load_metric: LoadMetric = LoadMetric::ExpectedWait, one_of("METRIC"), "power-of-two-load-metric";
        /// least_load: weight of KV pressure, in seconds.
        least_load_kv_pressure_weight: f64 = 0.15, WEIGHT, "least-load-kv-pressure-weight";
        /// least_load: tokens per second of an engine that reports none, or fewer.
        least_load_default_throughput: f64 = 2000.0, RATE, "least-load-default-throughput";
        /// least_load: prompt tokens of a request that was not counted.
        least_load_mean_prefill_tokens: NonZeroU32 = at_least_one32(1024), POSITIVE32, "least-load-mean-prefill-tokens";
        /// least_load: skip workers with this many waiting requests; 0 skips none.
        least_load_max_waiting_requests: u32 = 0, COUNT32, "least-load-max-waiting-requests";
        /// Keep every request of a routing key on one worker, under any policy.
        routing_key_override: bool = false, SWITCH, "routing-key-override",
            NOTE.alias(&["sticky-sessions"]);
        /// Headers searched for the routing key, the first present wins.
        routing_key_headers: Vec<HeaderName> = vec![HeaderName::from_static("x-smg-routing-key")],
            HEADERS, "routing-key-headers";
        /// How a first-seen routing key gets its worker.
        assignment_mode: Option<AssignmentMode> = None, maybe_one_of("MODE"), "assignment-mode";
        /// Forget a routing key that was idle this long.
        max_idle: Duration = Duration::from_secs(14_400), SECS, "max-idle-secs",
            NOTE.alias(&["sticky-key-idle-secs"]);
    }
}

group! {
    /// Tuning of the policies that send like prompts to like workers.
    "Cache affinity" affinity: Affinity {
        /// Share of a prompt that must match before its worker is preferred.
        cache_threshold: f64 = 0.3, SHARE, "cache-threshold", NOTE.alias(&["cache-match-threshold"]);
        /// Requests above the mean at which a matched worker is passed over, at most.
        balance_abs_threshold: usize = 64, COUNT, "balance-abs-threshold", NOTE.alias(&["spill-abs-threshold"]);
        /// Multiple of the mean at which a matched worker is passed over.
        balance_rel_threshold: f64 = 1.5, FACTOR, "balance-rel-threshold", NOTE.alias(&["spill-rel-threshold"]);
        /// Spread of KV usage at which affinity is given up; 1.0 never.
        balance_token_usage_threshold: f64 = 1.0, RATE, "balance-token-usage-threshold";
        /// KV usage at which the hottest worker is relieved; 1.0 never.
        overload_token_usage_threshold: f64 = 1.0, RATE, "overload-token-usage-threshold";
        /// Time between two looks for idle routing keys. Remembered prompts are evicted at once when their memory is spent.
        eviction_interval: Duration = Duration::from_secs(120), SECS, "eviction-interval",
            NOTE.alias(&["eviction-interval-secs"]);
        /// Bytes of memory for remembered prompts, of all models, for each 64 workers begun.
        max_tree_size: NonZeroUsize = at_least_one(64 << 20), POSITIVE, "max-tree-size";
        /// Tokens in a block of a remembered prompt; four bytes of text count as one.
        block_size: NonZeroUsize = at_least_one(16), POSITIVE, "block-size";
        /// Token positions at which engines keep a prefix (rising, separated by commas; 64 at most): where --cache-index
        /// hash and prefix_hash cut prompts.
        cache_boundaries: Vec<usize> = Vec::new(), BOUNDARIES, "cache-boundaries";
        /// What cache_aware remembers of prompts: tree, their blocks; hash, their beginnings up to each of --cache-boundaries.
        cache_index: CacheIndex = CacheIndex::Tree, one_of("INDEX"), "cache-index";
        /// --cache-index hash: how long it is remembered where a prompt went.
        cache_ttl: Duration = Duration::from_secs(180), SECS, "cache-ttl-secs";
        /// How strongly a backlog takes from a worker's score; 0 not at all.
        overlap_decay: f64 = 0.0, WEIGHT, "overlap-decay";
        /// Temperature of the choice among near-equal workers; 0 takes the best.
        selection_temperature: f64 = 0.0, WEIGHT, "selection-temperature";
        /// Rule of the choice.
        selection_policy: String = "cache-aware-default".to_owned(), TEXT, "selection-policy", NOTE.otherwise(RULE);
        /// How long a dispatch counts before the engine reports it; 0 not at all.
        selection_accounting_ttl: Option<Duration> = None, MILLIS_OR_OFF, "selection-accounting-ttl-ms", NOTE.otherwise(ACCOUNT);
        /// How long a new worker is given prompts that it would not win; 0 not at all.
        worker_warmup: Option<Duration> = Some(Duration::from_secs(60)), SECS_OR_OFF, "worker-warmup-secs";
        /// Share of cache misses that workers in warm-up get, at least.
        worker_warmup_share: f64 = 0.25, SHARE, "worker-warmup-share";
        /// Blocks held after which a worker is warm.
        worker_warmup_blocks: usize = 1024, COUNT, "worker-warmup-blocks";
        /// A worker in warm-up is thin while it holds less than this share of the others' median.
        worker_warmup_thin_ratio: f64 = 0.5, SHARE, "worker-warmup-thin-ratio";
        /// One hit in this many goes to a thin worker; 0 none.
        worker_warmup_divert_every: Option<NonZeroUsize> = Some(at_least_one(8)), COUNT_OR_OFF, "worker-warmup-divert-every";
        /// Index that KV events are kept in.
        kv_index: KvIndex = KvIndex::Positional, one_of("INDEX"), "kv-index", NOTE.otherwise(ONE_INDEX);
        /// Forget what no event and no request named for this long; unset or 0: never.
        kv_indexer_ttl: Option<Duration> = None, SECS_OR_OFF, "kv-indexer-ttl-secs", NOTE.otherwise(BOUND);
        /// Most entries kept for each model; unset or 0: no bound.
        kv_indexer_max_entries: Option<NonZeroUsize> = None, COUNT_OR_OFF, "kv-indexer-max-entries", NOTE.otherwise(BOUND);
        /// Tokenizers, for the size of prompts and what engines make of them: a tokenizer.json or a model's directory (with its chat template), `MODEL=PATH` for one model, `cl100k_base`, or `engine`: the engines' own, asked at /tokenize.
        tokenizers: Vec<TokenizerPath> = Vec::new(), TOKENIZERS, "tokenizer-path";
        /// --tokenizer-path engine: longest time that an engine may take to say what it makes of a prompt.
        tokenize_timeout: Duration = Duration::from_millis(250), MILLIS, "tokenize-timeout-ms";
        /// --tokenizer-path engine: prompts that engines are asked about at once. Further ones are not asked about.
        tokenize_at_once: NonZeroUsize = at_least_one(32), bounded::<4096>(), "tokenize-at-once";
        /// cache_aware: port at which every worker publishes KV events; unset: at its label kv_events_endpoint, or as it says itself.
        kv_events_port: Option<u16> = None, MAYBE_PORT, "kv-events-port";
        /// cache_aware: port at which every worker sends missed KV events again, beside --kv-events-port.
        kv_events_replay_port: Option<u16> = None, MAYBE_PORT, "kv-events-replay-port";
        /// Bytes of memory for what KV events say, for each 64 workers that publish.
        kv_events_max_bytes: NonZeroUsize = at_least_one(256 << 20), POSITIVE, "kv-events-max-bytes";
        /// prefix_hash: tokens of the prompt that are hashed.
        prefix_token_count: NonZeroUsize = at_least_one(256), POSITIVE, "prefix-token-count";
        /// prefix_hash: multiple of the mean load that a worker may carry.
        prefix_hash_load_factor: f64 = 1.25, FACTOR, "prefix-hash-load-factor";
        /// prefix_hash: requests above the mean that a worker may carry.
        prefix_hash_balance_abs_threshold: usize = 10, COUNT, "prefix-hash-balance-abs-threshold";
        /// bucket: time between two divisions of the prompt sizes.
        bucket_adjust_interval: Duration = Duration::from_secs(5), SECS, "bucket-adjust-interval-secs";
    }
}

group! {
    /// What engines report of their load, and what follows from it.
    "Load" load: Load {
        /// When workers are asked for their load: auto (where a strategy goes by it, or a setting of this group or of
        /// least_load says what to make of it), always, never.
        worker_metrics: WorkerMetrics = WorkerMetrics::Auto, one_of("WHEN"), "worker-metrics";
        /// Time between two looks at a worker's metrics.
        worker_metrics_interval: Duration = Duration::from_secs(1), MILLIS, "worker-metrics-interval-ms",
            NOTE.env("AIBRIX_POD_METRIC_REFRESH_INTERVAL_MS").lenient();
        /// Longest time that such a look may take.
        worker_metrics_timeout: Duration = Duration::from_secs(5), MILLIS, "worker-metrics-timeout-ms",
            NOTE.env("AIBRIX_POD_METRICS_FETCH_TIMEOUT_MS").lenient();
        /// How long values of a worker that does not answer any more are believed. One that refuses connections is not.
        worker_metrics_stale: Duration = Duration::from_secs(5), MILLIS, "worker-metrics-stale-ms";
        /// Longest page of metrics.
        worker_metrics_max_bytes: NonZeroUsize = at_least_one(16 << 20), BYTES, "worker-metrics-max-bytes";
        /// Engines looked at at once.
        worker_metrics_at_once: NonZeroUsize = at_least_one(64), bounded::<4096>(), "worker-metrics-at-once",
            NOTE.env("AIBRIX_POD_METRICS_WORKER_COUNT").lenient();
        /// Time between two looks at a worker's metrics, in seconds; goes before --worker-metrics-interval-ms.
        monitor_interval: Option<Duration> = None, MAYBE_SECS, "load-monitor-interval";
        /// Ask workers for their load only where a strategy or --least-load-* goes by it, not for overload protection alone.
        monitoring_disabled: bool = false, SWITCH, "disable-load-monitoring";
        /// Ask workers for their load, and pass it on as metrics (smg_engine_*). No choice goes by it for that.
        engine_metrics: bool = false, SWITCH, "engine-metrics";
        /// A connection error excludes a worker that was silent this long.
        stall: Duration = Duration::from_secs(2), SECS_OR_ZERO, "worker-stall-secs", NOTE.otherwise(CHANNEL);
        /// A worker with work and no progress for this long gets no more; 0 never.
        wedge: Option<Duration> = Some(Duration::from_secs(3)), SECS_OR_OFF, "worker-wedge-secs", NOTE.otherwise(CHANNEL);
        /// A worker that pushed load and was silent this long gets no more; 0 never.
        stale: Option<Duration> = Some(Duration::from_secs(15)), SECS_OR_OFF, "worker-stale-secs", NOTE.otherwise(CHANNEL);
        /// Pass over workers that report too much work, as long as others do not. Counts where workers are asked for their load.
        overload_protection: bool = true, SWITCH, "worker-overload-protection";
        /// Do not pass over workers that report too much work.
        overload_protection_disabled: bool = false, SWITCH, "disable-worker-overload-protection";
        /// Waiting requests at which a worker has too much work.
        overload_waiting_requests: NonZeroUsize = at_least_one(8), POSITIVE, "worker-overload-waiting-requests";
        /// KV usage at which a worker has too much work.
        overload_token_usage: f64 = 0.8, LEVEL, "worker-overload-token-usage";
        /// Refuse a request when every worker has too much work.
        overload_shed: bool = false, SWITCH, "worker-overload-shed";
    }
}
