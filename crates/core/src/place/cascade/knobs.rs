//! The settings of the cascade: what AIBrix's environment variables say, and what a profile says instead.
//!
//! Precedence of every one: the profile's value if it is valid, else the variable's if that is, else the default. A
//! request's knobs are worked out once and go with it, so that what outlives the request still has its own values.

use std::borrow::Cow;
use std::fmt;

use super::profile::Profile;
use super::read;
use super::words::{Way, Ways};
use crate::abort::AbortRule;
use crate::limits::Terms;
use crate::place::whole::rules::Rules;
use crate::time::Duration;
use crate::watchdog::Watchdog;

/// How a prefill is scored (step 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillScore {
    PrefixCache,
    LeastRequest,
    Conductor,
    TokenLoad,
    HybridCacheLoad,
}

impl PrefillScore {
    pub const ALL: [PrefillScore; 5] = [
        PrefillScore::PrefixCache,
        PrefillScore::LeastRequest,
        PrefillScore::Conductor,
        PrefillScore::TokenLoad,
        PrefillScore::HybridCacheLoad,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            PrefillScore::PrefixCache => "prefix_cache",
            PrefillScore::LeastRequest => "least_request",
            PrefillScore::Conductor => "conductor",
            PrefillScore::TokenLoad => "token_load",
            PrefillScore::HybridCacheLoad => "hybrid_cache_load",
        }
    }

    /// By its exact name.
    pub fn parse(text: &str) -> Option<PrefillScore> {
        PrefillScore::ALL.into_iter().find(|p| p.as_str() == text)
    }

    /// Looks the prompt up in the prefix index.
    pub fn looks_up(self) -> bool {
        matches!(self, PrefillScore::PrefixCache | PrefillScore::Conductor | PrefillScore::HybridCacheLoad)
    }

    /// Charges the chosen worker with tokens.
    pub fn charges(self) -> bool {
        matches!(self, PrefillScore::TokenLoad | PrefillScore::HybridCacheLoad)
    }
}

/// How a decode is scored (step 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeScore {
    LoadBalancing,
    LeastRequest,
    Conductor,
    TokenLoad,
}

impl DecodeScore {
    pub const ALL: [DecodeScore; 4] = [
        DecodeScore::LoadBalancing,
        DecodeScore::LeastRequest,
        DecodeScore::Conductor,
        DecodeScore::TokenLoad,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            DecodeScore::LoadBalancing => "load_balancing",
            DecodeScore::LeastRequest => "least_request",
            DecodeScore::Conductor => "conductor",
            DecodeScore::TokenLoad => "token_load",
        }
    }

    /// By its name, in whatever case and with blanks around it.
    pub fn parse(text: &str) -> Option<DecodeScore> {
        let text = text.trim();
        DecodeScore::ALL.into_iter().find(|p| p.as_str().eq_ignore_ascii_case(text))
    }
}

/// What adaptive bucket serving weighs prompts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServeMode {
    /// Prompt tokens.
    Throughput,
    /// Requests.
    Rps,
}

impl ServeMode {
    pub fn as_str(self) -> &'static str {
        match self {
            ServeMode::Throughput => "throughput",
            ServeMode::Rps => "rps",
        }
    }

    pub fn parse(text: &str) -> Option<ServeMode> {
        let text = text.trim();
        [ServeMode::Throughput, ServeMode::Rps].into_iter().find(|m| m.as_str().eq_ignore_ascii_case(text))
    }
}

/// Every setting of the cascade. The default is AIBrix's.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    pub bucketing: bool,
    pub bucket_serve: bool,
    pub serve_mode: ServeMode,
    pub prefill_score: PrefillScore,
    pub decode_score: DecodeScore,
    /// A prefill whose count lies this many standard deviations above the mean is skipped.
    pub deviations: u64,
    pub prefill_spread: u64,
    pub decode_spread: f64,
    pub throughput_spread: f64,
    pub score_ratio: f64,
    pub weight_running: f64,
    pub weight_throughput: f64,
    pub kv_weight: f64,
    /// Tokens that every request is charged besides its own.
    pub request_cost: u64,
    /// Age at which a charge is given back by force. Zero: never.
    pub charge_ttl: Duration,
    /// How long a session's last prompt is remembered. Zero: the session rule is off.
    pub session_ttl: Duration,
    /// Sessions remembered at once.
    pub sessions_max: u64,
    pub hybrid_factor: f64,
    pub min_match_pct: f64,
    pub output_growth: bool,
    /// The decode ledger is shared with other gateways, where there is a Redis.
    pub shared_ledger: bool,
    pub prefill_timeout: Duration,
    pub abort_timeout: Duration,
    pub abort_retry_delay: Duration,
    pub first_response_timeout: Duration,
    pub response_timeout: Duration,
    pub stream_idle_timeout: Duration,
    /// The strategy of requests that name none and whose model names none.
    pub routing_algorithm: Option<String>,
    /// Of the strategies for one worker.
    pub whole: Rules,
}

impl Default for Knobs {
    fn default() -> Self {
        Knobs {
            bucketing: false,
            bucket_serve: false,
            serve_mode: ServeMode::Throughput,
            prefill_score: PrefillScore::PrefixCache,
            decode_score: DecodeScore::LoadBalancing,
            deviations: 1,
            prefill_spread: 16,
            decode_spread: 16.0,
            throughput_spread: 2048.0,
            score_ratio: 1.5,
            weight_running: 1.0,
            weight_throughput: 1.0,
            kv_weight: 0.3,
            request_cost: 3500,
            charge_ttl: Duration::from_secs(3600),
            session_ttl: Duration::from_secs(1800),
            sessions_max: 100_000,
            hybrid_factor: 0.5,
            min_match_pct: 0.0,
            output_growth: true,
            shared_ledger: true,
            prefill_timeout: Duration::from_secs(30),
            abort_timeout: Duration::from_secs(3),
            abort_retry_delay: Duration::from_secs(2),
            first_response_timeout: Duration::from_secs(60),
            response_timeout: Duration::ZERO,
            stream_idle_timeout: Duration::from_secs(120),
            routing_algorithm: None,
            whole: Rules::default(),
        }
    }
}

/// Reads one variable into its knob. `None`: its value cannot be used.
type Reader = fn(&mut Knobs, &str) -> Option<()>;

/// `None` leaves the knob as it was.
fn set<T>(knob: &mut T, read: Option<T>) -> Option<()> {
    *knob = read?;
    Some(())
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

impl Knobs {
    /// Does the strategy of requests that name none look prompts up?
    pub fn looks_prompts_up(&self) -> bool {
        let ways = self.routing_algorithm.as_deref().and_then(|name| Ways::parse(name).ok());
        ways.is_some_and(|ways| match ways.is_pd() {
            true => self.prefill_score.looks_up(),
            false => ways.has(Way::PrefixCache),
        })
    }

    /// Every variable that the cascade reads, and how.
    pub const VARIABLES: &'static [(&'static str, Reader)] = &[
        ("AIBRIX_PROMPT_LENGTH_BUCKETING", |k, t| set(&mut k.bucketing, read::switch(t))),
        ("AIBRIX_BUCKET_SERVE", |k, t| set(&mut k.bucket_serve, read::switch(t))),
        ("AIBRIX_BUCKET_SERVE_MODE", |k, t| set(&mut k.serve_mode, ServeMode::parse(t))),
        ("AIBRIX_PREFILL_SCORE_POLICY", |k, t| set(&mut k.prefill_score, PrefillScore::parse(t))),
        ("AIBRIX_DECODE_SCORE_POLICY", |k, t| set(&mut k.decode_score, DecodeScore::parse(t))),
        ("AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR", |k, t| set(&mut k.deviations, read::positive(t))),
        ("AIBRIX_PREFILL_LOAD_IMBALANCE_MIN_SPREAD", |k, t| set(&mut k.prefill_spread, read::positive(t))),
        ("AIBRIX_DECODE_LOAD_IMBALANCE_MIN_SPREAD", |k, t| set(&mut k.decode_spread, read::above_zero(t))),
        ("AIBRIX_DECODE_THROUGHPUT_IMBALANCE_MIN_SPREAD", |k, t| {
            set(&mut k.throughput_spread, read::above_zero(t))
        }),
        ("AIBRIX_DECODE_SCORE_RATIO_THRESHOLD", |k, t| set(&mut k.score_ratio, read::above_zero(t))),
        ("AIBRIX_DECODE_LB_WEIGHT_RUNNING", |k, t| set(&mut k.weight_running, read::above_zero(t))),
        ("AIBRIX_DECODE_LB_WEIGHT_THROUGHPUT", |k, t| set(&mut k.weight_throughput, read::above_zero(t))),
        ("AIBRIX_TOKEN_LOAD_KV_WEIGHT", |k, t| set(&mut k.kv_weight, read::above_zero(t))),
        ("AIBRIX_TOKEN_LOAD_REQUEST_COST", |k, t| set(&mut k.request_cost, read::positive(t))),
        ("AIBRIX_TOKEN_LOAD_TTL_SECONDS", |k, t| set(&mut k.charge_ttl, read::positive(t).map(secs))),
        ("AIBRIX_TOKEN_LOAD_SESSION_TTL_SECONDS", |k, t| set(&mut k.session_ttl, read::whole(t).map(secs))),
        ("AIBRIX_TOKEN_LOAD_MAX_SESSIONS", |k, t| set(&mut k.sessions_max, read::positive(t))),
        ("AIBRIX_HYBRID_CACHE_LOAD_FACTOR", |k, t| set(&mut k.hybrid_factor, read::within(t, 1.0))),
        ("AIBRIX_MIN_MATCH_PCT", |k, t| set(&mut k.min_match_pct, read::within(t, 100.0))),
        ("AIBRIX_DECODE_TOKEN_LOAD_OUTPUT_GROWTH", |k, t| set(&mut k.output_growth, read::switch(t))),
        ("AIBRIX_TOKEN_LOAD_SHARED_LEDGER", |k, t| set(&mut k.shared_ledger, read::switch(t))),
        ("AIBRIX_PREFILL_REQUEST_TIMEOUT", |k, t| set(&mut k.prefill_timeout, read::positive(t).map(secs))),
        ("AIBRIX_DECODE_ABORT_TIMEOUT", |k, t| set(&mut k.abort_timeout, read::whole(t).map(secs))),
        ("AIBRIX_DECODE_ABORT_RETRY_DELAY", |k, t| set(&mut k.abort_retry_delay, read::whole(t).map(secs))),
        ("AIBRIX_DECODE_FIRST_RESPONSE_TIMEOUT", |k, t| {
            set(&mut k.first_response_timeout, read::whole(t).map(secs))
        }),
        ("AIBRIX_DECODE_RESPONSE_TIMEOUT", |k, t| set(&mut k.response_timeout, read::whole(t).map(secs))),
        ("AIBRIX_DECODE_STREAM_IDLE_TIMEOUT", |k, t| {
            set(&mut k.stream_idle_timeout, read::whole(t).map(secs))
        }),
        ("ROUTING_ALGORITHM", |k, t| set(&mut k.routing_algorithm, Some(Some(t.to_owned())))),
    ];

    /// Reads the environment. One sentence for each value that cannot be used; the default stands there.
    pub fn read(env: &dyn Fn(&str) -> Option<String>) -> (Knobs, Vec<String>) {
        let (mut knobs, mut unused) = (Knobs::default(), Vec::new());
        for name in Knobs::variables() {
            let Some(text) = env(name).filter(|text| !text.is_empty()) else { continue };
            if knobs.take(name, &text).is_none() {
                unused.push(format!("{name}={text:?} cannot be used; the default is"));
            }
        }
        (knobs, unused)
    }

    /// The names of all variables that are read.
    pub fn variables() -> impl Iterator<Item = &'static str> {
        let own = Knobs::VARIABLES.iter().map(|(name, _)| *name);
        own.chain(Rules::VARIABLES.iter().map(|(name, _)| *name))
    }

    fn take(&mut self, name: &str, text: &str) -> Option<()> {
        let own = Knobs::VARIABLES.iter().find(|(own, _)| *own == name);
        if let Some((_, reader)) = own {
            return reader(self, text);
        }
        let (_, reader) = Rules::VARIABLES.iter().find(|(own, _)| *own == name)?;
        reader(&mut self.whole, text)
    }

    /// What may differ from one request to the next besides its workers.
    pub fn terms(&self) -> Terms {
        let unless_zero = |d: Duration| (!d.is_zero()).then_some(d);
        Terms {
            watchdog: Watchdog {
                first_response: unless_zero(self.first_response_timeout),
                response: unless_zero(self.response_timeout),
                stream_idle: unless_zero(self.stream_idle_timeout),
            },
            abort: AbortRule {
                timeout: unless_zero(self.abort_timeout),
                retry_delay: unless_zero(self.abort_retry_delay),
            },
        }
    }

    /// These, with what a profile says instead.
    ///
    /// # Errors
    /// A profile that names an unknown decode policy: AIBrix does not route by it either.
    pub fn under(&self, profile: Option<&Profile>) -> Result<Cow<'_, Knobs>, UnknownScore> {
        let Some(profile) = profile.filter(|p| p.changes()) else { return Ok(Cow::Borrowed(self)) };
        let mut knobs = self.clone();
        profile.apply(&mut knobs)?;
        Ok(Cow::Owned(knobs))
    }

    /// A match that counts: 0 where it lies below the least one that does. A threshold below 0 is none.
    pub fn counted(&self, matched_pct: u32) -> u32 {
        if f64::from(matched_pct) < self.min_match_pct { 0 } else { matched_pct }
    }
}

/// A profile names a decode policy that nobody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownScore(pub String);

impl fmt::Display for UnknownScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown decodeScorePolicy {:?} in the model's config", self.0)
    }
}
