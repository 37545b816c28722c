//! The knobs of policies, with SMG's defaults (SMG 1.13).

use std::sync::Arc;

use super::wait::Reports;
use crate::time::Duration;

/// How a key that was not seen before gets its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    Random,
    MinLoad,
    /// The worker with the fewest keys.
    MinGroup,
    /// As the policy itself would choose; for the manual policy, the least loaded.
    Delegate,
}

#[derive(Clone, Debug)]
pub struct Tuning {
    /// Share of a prompt that a worker must hold before that counts. `--cache-threshold`.
    pub cache_threshold: f64,
    /// Requests above the mean at which a worker is passed over, at most. `--balance-abs-threshold`.
    pub balance_abs: f64,
    /// Multiple of the mean at which it is. `--balance-rel-threshold`.
    pub balance_rel: f64,
    /// Memory for remembered prompts, for each 64 workers. `--max-tree-size`.
    pub index_bytes: usize,
    /// Tokens in a block. `--block-size`.
    pub block_tokens: usize,
    /// Positions, in tokens, at which engines keep a prefix. `--cache-boundaries`.
    pub boundaries: Arc<[usize]>,
    /// How long a prompt is remembered by its beginnings up to these, in place of by its blocks. `--cache-index hash`,
    /// `--cache-ttl-secs`.
    pub heads_last: Option<Duration>,
    /// How strongly a backlog takes from what a worker holds. `--overlap-decay`.
    pub overlap_decay: f64,
    /// `--selection-temperature`.
    pub temperature: f64,
    /// How long a worker is new. `None`: nobody is. `--worker-warmup-secs`.
    pub warm_up: Option<Duration>,
    /// Share of the prompts that nobody knows for new workers. `--worker-warmup-share`.
    pub warm_up_share: f64,
    /// A worker that holds so many blocks is not new any more. `--worker-warmup-blocks`.
    pub warm_up_blocks: u64,
    /// A new worker is thin if it holds less than this share of the median. `--worker-warmup-thin-ratio`.
    pub thin_ratio: f64,
    /// One in so many of the prompts that somebody knows goes to a thin worker; 0: none.
    /// `--worker-warmup-divert-every`.
    pub divert_every: u64,
    /// `--prefix-token-count`.
    pub prefix_tokens: usize,
    /// `--prefix-hash-load-factor`.
    pub prefix_load_factor: f64,
    /// `--prefix-hash-balance-abs-threshold`.
    pub prefix_abs: f64,
    /// `--bucket-adjust-interval-secs`.
    pub bucket_every: Duration,
    /// What workers say of their load.
    pub reports: Reports,
    /// Of the ranks of the chosen engine, the one with the fewest tokens. `--dp-minimum-tokens-scheduler`.
    pub by_rank: bool,
    /// Keys hold under any policy. `--routing-key-override`.
    pub sticky: bool,
    /// `--assignment-mode`.
    pub assignment: Option<Assignment>,
    /// `--max-idle-secs`.
    pub max_idle: Duration,
    /// Time between two looks for keys that were idle for so long. `--eviction-interval`.
    pub sweep_every: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            cache_threshold: 0.3,
            balance_abs: 64.0,
            balance_rel: 1.5,
            index_bytes: 64 << 20,
            block_tokens: 16,
            boundaries: Arc::new([]),
            heads_last: None,
            overlap_decay: 0.0,
            temperature: 0.0,
            warm_up: Some(Duration::from_secs(60)),
            warm_up_share: 0.25,
            warm_up_blocks: 1024,
            thin_ratio: 0.5,
            divert_every: 8,
            prefix_tokens: 256,
            prefix_load_factor: 1.25,
            prefix_abs: 10.0,
            bucket_every: Duration::from_secs(5),
            reports: Reports::default(),
            by_rank: false,
            sticky: false,
            assignment: None,
            max_idle: Duration::from_secs(14_400),
            sweep_every: Duration::from_secs(120),
        }
    }
}
