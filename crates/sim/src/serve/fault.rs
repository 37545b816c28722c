//! Faults on demand: what an engine does wrong, asked for by a request's header or by an admin call.
//!
//! `x-sim-fault: where=decode; kind=reset; chunks=2` strikes the request that carries it, on the leg that it names;
//! several faults are separated by commas. With `once=KEY` a fault strikes only the first request in the fleet that
//! shows that key, so that a retry of the same request gets through. `POST /sim/fault` with the same names as JSON
//! arms a fault for the next requests of one engine (`times`, 0 for all that come).

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use tokio::time::Instant;

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::engine::spec::Role;
use crate::serve::node::lock;

/// The header.
pub const HEADER: &str = "x-sim-fault";
/// How many faults may be armed on one engine.
const MOST_ARMED: usize = 1024;
/// How many `once` keys are remembered.
const MOST_KEYS: usize = 100_000;
/// How much of what befell an engine is remembered.
const MOST_TOLD: usize = 4096;

/// Which leg a fault is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    Prefill,
    Decode,
    #[default]
    Any,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Answers `status` (default 503), with `retry_after` seconds if given, before the engine sees the request.
    Status,
    /// Resets the connection: with no answer, or after `chunks` chunks of one.
    Reset,
    /// Says nothing more: with no answer, or after `chunks` chunks of one.
    Stall,
    /// Answers without hand-off parameters; nothing is pinned.
    NullParams,
    /// Ignores the hand-off and computes the prompt here, as an engine does whose connector is not set up. A NIXL prefill
    /// side is told that its blocks are not wanted.
    Recompute,
    /// Answers with broken hand-off parameters (`text`, or a default); the blocks stay pinned.
    GarbageParams,
    /// Answers something that is not JSON.
    GarbageBody,
    /// Answers as `text/html`.
    WrongContentType,
    /// Ends a stream with an error event after `chunks` chunks.
    ErrorEvent,
    /// `/health` takes `ms` milliseconds.
    SlowHealth,
    /// `/health` answers 503.
    UnwellHealth,
    /// There are no metrics: 404.
    NoMetrics,
    /// Closes the connections that are idle. At once.
    CloseIdle,
    /// Dies: at once, or after `chunks` chunks of an answer. All connections are reset, nothing listens any more.
    Kill,
    /// Dies and comes back with a new engine id and an empty cache. At once.
    Restart,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    #[serde(default, rename = "where")]
    pub place: Where,
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
    /// Chunks of the answer that come before the fault; absent: the fault comes before the answer's head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// How many requests it strikes; 0 is all until `/sim/reset`.
    #[serde(default = "one")]
    pub times: u32,
    /// Strikes only the first request that shows this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<String>,
}

fn one() -> u32 {
    1
}

impl Fault {
    /// A fault of this kind, for any leg, once.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            place: Where::Any,
            kind,
            status: None,
            retry_after: None,
            chunks: None,
            ms: None,
            text: None,
            times: 1,
            once: None,
        }
    }

    fn is_for(&self, role: Role) -> bool {
        match self.place {
            Where::Any => true,
            Where::Prefill => role != Role::Decode,
            Where::Decode => role != Role::Prefill,
        }
    }

    fn is_for_health(&self) -> bool {
        matches!(self.kind, Kind::SlowHealth | Kind::UnwellHealth)
    }

    /// Reads the header's notation.
    pub fn parse_all(header: &str) -> Result<Vec<Self>, String> {
        header.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Self::parse).collect()
    }

    fn parse(part: &str) -> Result<Self, String> {
        let mut members = serde_json::Map::new();
        for pair in part.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not name=value"))?;
            let value = match value.trim().parse::<u64>() {
                Ok(number) if !matches!(key.trim(), "once" | "text") => number.into(),
                _ => value.trim().into(),
            };
            members.insert(key.trim().into(), value);
        }
        serde_json::from_value(members.into()).map_err(|error| error.to_string())
    }
}

/// What befell an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A fault came up. One that waits for chunks shows later, or never.
    Struck(Fault),
    /// It ended: killed, or of what a request said.
    Down,
    /// It listens.
    Up,
}

/// When what befell an engine, oldest first; the last [`MOST_TOLD`] of it.
#[derive(Debug, Default)]
pub struct Story {
    told: Mutex<VecDeque<(Instant, Happened)>>,
}

impl Story {
    pub fn tell(&self, what: Happened) {
        let mut told = lock(&self.told);
        if told.len() >= MOST_TOLD {
            told.pop_front();
        }
        told.push_back((clock::now(), what));
    }

    pub fn read(&self) -> Vec<(Instant, Happened)> {
        lock(&self.told).iter().cloned().collect()
    }
}

/// The faults that are armed on one engine.
#[derive(Debug, Default)]
pub struct Faults {
    armed: Mutex<Vec<Fault>>,
}

/// The `once` keys that a fleet has seen.
#[derive(Debug, Default)]
pub struct OnceKeys {
    seen: Mutex<HashSet<String>>,
}

impl OnceKeys {
    /// Whether this key shows up for the first time.
    fn first(&self, key: &str) -> bool {
        let mut seen = lock(&self.seen);
        seen.len() < MOST_KEYS && seen.insert(key.to_owned())
    }
}

impl Faults {
    /// Arms one more; with too many the oldest is disarmed.
    pub fn arm(&self, fault: Fault) {
        let mut armed = lock(&self.armed);
        if armed.len() >= MOST_ARMED {
            armed.remove(0);
        }
        armed.push(fault);
    }

    pub fn clear(&self) {
        lock(&self.armed).clear();
    }

    /// The fault that strikes a generating request, if any: the header's before an armed one.
    pub fn for_request(&self, role: Role, header: &[Fault], keys: &OnceKeys) -> Option<Fault> {
        let page = |fault: &Fault| fault.is_for_health() || fault.kind == Kind::NoMetrics;
        let wanted = |fault: &&Fault| fault.is_for(role) && !page(fault);
        let mut own = header.iter().filter(wanted);
        let own = own.find(|fault| fault.once.as_deref().is_none_or(|key| keys.first(key)));
        own.cloned().or_else(|| self.take(|fault| wanted(&fault)))
    }

    /// The fault that strikes a look at the metrics.
    pub fn for_metrics(&self) -> Option<Fault> {
        self.take(|fault| fault.kind == Kind::NoMetrics)
    }

    /// The fault that strikes a health check.
    pub fn for_health(&self) -> Option<Fault> {
        self.take(Fault::is_for_health)
    }

    fn take(&self, wanted: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let mut armed = lock(&self.armed);
        let at = armed.iter().position(wanted)?;
        let fault = armed[at].clone();
        match armed[at].times {
            0 => {}
            1 => {
                armed.remove(at);
            }
            _ => armed[at].times -= 1,
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_one_or_more_faults() {
        let faults =
            Fault::parse_all("where=decode; kind=reset; chunks=2, kind=status;status=429;retry_after=1")
                .unwrap();
        let first = Fault { place: Where::Decode, chunks: Some(2), ..Fault::new(Kind::Reset) };
        let second = Fault { status: Some(429), retry_after: Some(1), ..Fault::new(Kind::Status) };
        assert_eq!(faults, [first, second]);
        assert!(Fault::parse_all("kind=nonsense").is_err());
        assert!(Fault::parse_all("kind").is_err());
    }

    #[test]
    fn armed_faults_strike_as_often_as_asked_and_only_their_leg() {
        let (faults, keys) = (Faults::default(), OnceKeys::default());
        faults.arm(Fault { place: Where::Prefill, times: 2, ..Fault::new(Kind::Status) });
        assert_eq!(faults.for_request(Role::Decode, &[], &keys), None);
        assert!(faults.for_request(Role::Prefill, &[], &keys).is_some());
        assert!(faults.for_request(Role::Prefill, &[], &keys).is_some());
        assert_eq!(faults.for_request(Role::Prefill, &[], &keys), None);
        faults.arm(Fault { times: 0, ..Fault::new(Kind::UnwellHealth) });
        assert_eq!(faults.for_request(Role::Prefill, &[], &keys), None);
        assert!((0..5).all(|_| faults.for_health().is_some()));
    }

    #[test]
    fn once_keys_let_a_retry_through() {
        let (faults, keys) = (Faults::default(), OnceKeys::default());
        let header = Fault::parse_all("kind=reset;once=a1").unwrap();
        assert!(faults.for_request(Role::Decode, &header, &keys).is_some());
        assert_eq!(faults.for_request(Role::Decode, &header, &keys), None);
    }
}
