//! What all requests of a scenario share besides the fleet: the rules, the counts, the ids.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use baton_core::fleet::Fleet;
use baton_core::handoff;
use baton_core::place::Strategies;
use baton_core::record::Record;
use baton_core::retry::Budget;
use baton_core::time::{Duration, Instant};
use http::HeaderName;
use serde_json::{Map, Value};

use super::super::scenario::Scenario;
use crate::config::Config;
use crate::gateway::{self, Rules};
use crate::telemetry::{Background, Live, Policies, Setup, Telemetry, log::Drops};

/// When a scenario begins by the calendar, in milliseconds since 1970, where it does not say.
pub const UNIX_MS: u64 = 1_700_000_000_000;

pub struct House {
    pub rules: Rules,
    pub budget: Budget,
    /// Numbers ids that are told apart by their number.
    pub serial: AtomicU64,
    /// The gateway has a key of its own.
    pub own_key: bool,
    pub id_headers: Vec<HeaderName>,
    /// When the scenario begins: by the calendar, and on the clock of its play.
    begin: (u64, Instant),
    /// The fleet as it is now, for who counts.
    shown: Arc<ArcSwap<Fleet>>,
    /// `None`: nobody will read the counts.
    telemetry: Option<Telemetry>,
}

impl House {
    pub fn new(scenario: &Scenario, config: &Config, handoff: handoff::Rules, begin: Instant) -> House {
        let shown: Arc<ArcSwap<Fleet>> = Arc::default();
        let counts = scenario.requests.iter().any(|request| request.engine.is_some());
        let telemetry = counts.then(|| Telemetry::new(setup(config, &shown)).ok()).flatten();
        House {
            rules: gateway::rules(config, handoff),
            budget: gateway::budget(config),
            serial: AtomicU64::new(0),
            own_key: config.auth.api_key.is_some(),
            id_headers: config.server.request_id_headers.clone(),
            begin: (scenario.unix_ms.unwrap_or(UNIX_MS), begin),
            shown,
            telemetry,
        }
    }

    /// The fleet is this one from now on.
    pub fn show(&self, fleet: &Arc<Fleet>) {
        self.shown.store(fleet.clone());
    }

    /// When the scenario begins, on the clock of its play.
    pub fn begin(&self) -> Duration {
        self.begin.1.since(Instant::ZERO)
    }

    pub fn unix_ms(&self, now: Instant) -> u64 {
        let (unix_ms, begin) = self.begin;
        unix_ms.saturating_add(u64::try_from(now.since(begin).as_millis()).unwrap_or(u64::MAX))
    }

    /// Milliseconds since the scenario's beginning, as a scenario writes them.
    pub fn at_ms(&self, now: Instant) -> Value {
        millis(now.since(self.begin.1))
    }

    pub fn record(&self, record: &Record) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.record(record);
        }
    }

    pub fn background(&self) -> Option<&Background> {
        self.telemetry.as_ref().map(Telemetry::background)
    }

    /// Every count that is not zero. `None`: nothing was carried out, and so nothing counted.
    pub fn counts(&self) -> Option<Map<String, Value>> {
        let counts = self.telemetry.as_ref()?.counts().into_iter();
        Some(counts.map(|(sample, value)| (sample, number(value))).collect())
    }
}

/// A count: a whole number where it is one.
fn number(value: f64) -> Value {
    let whole = value.fract() == 0.0 && (0.0..9e15).contains(&value);
    if whole { Value::from(value as u64) } else { Value::from(value) }
}

/// A duration in milliseconds: a whole number where it is one.
pub fn millis(duration: Duration) -> Value {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    if micros % 1000 == 0 { Value::from(micros / 1000) } else { Value::from(micros as f64 / 1000.0) }
}

fn setup(config: &Config, shown: &Arc<ArcSwap<Fleet>>) -> Setup {
    let shown = shown.clone();
    Setup {
        duration_buckets: Vec::new(),
        policies: Policies {
            prefill: config.prefill_policy().as_str(),
            decode: config.decode_policy().as_str(),
            whole: config.policy.default.as_str(),
        },
        fleet: Box::new(move || shown.load_full()),
        live: Box::new(Live::default),
        log_drops: Drops::default(),
    }
}

/// What a request acts on when something happens to it.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    pub house: &'a House,
    pub fleet: &'a Fleet,
    pub strategies: &'a Strategies,
    pub now: Instant,
}
