//! What outlives its exchange, or happens below one: hand-offs, detached legs, releases, resends.
//!
//! They have no record of their own: a record is written when the client's request ends, and these go on after it or are
//! not seen by it. The driver tells them through [`Background`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_core::abort::{Asked, Class, Why};
use baton_core::exchange::Fate;
use baton_core::preflight::{Outcome, State};

use super::families::Recorded;
use super::family::Count;
use crate::registry::Rolled;

/// How a leg in the background ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegEnd {
    /// Read to its end.
    Done,
    /// The engine refused it, or the connection was lost.
    Failed,
    /// Its time was over.
    TimedOut,
    /// Not kept: too many already, its request ended before the answer did, or the gateway stops.
    Dropped,
}

impl LegEnd {
    pub const ALL: [LegEnd; 4] = [LegEnd::Done, LegEnd::Failed, LegEnd::TimedOut, LegEnd::Dropped];

    pub fn as_str(self) -> &'static str {
        match self {
            LegEnd::Done => "done",
            LegEnd::Failed => "failed",
            LegEnd::TimedOut => "timed_out",
            LegEnd::Dropped => "dropped",
        }
    }
}

/// Counts what happens outside of exchanges. Cheap to clone and to use.
#[derive(Clone)]
pub struct Background(Arc<Counts>);

struct Counts {
    issued: Count,
    handoffs: [Count; 5],
    detached_now: AtomicU64,
    detached: [Count; 4],
    released: [Count; 4],
    resent: Count,
    /// When a list of workers was last good, by where it is kept; seconds since 1970.
    lists: Mutex<BTreeMap<&'static str, u64>>,
    /// For what is rare enough to be looked up each time.
    all: Arc<Recorded>,
}

impl Background {
    pub(super) fn new(all: &Arc<Recorded>) -> Background {
        for state in State::ALL.into_iter().filter(|state| *state != State::Waiting) {
            all.preflight_trials.of([state.as_str()]);
        }
        all.preflight_trials.of([Outcome::Crowded.as_str()]);
        Background(Arc::new(Counts {
            issued: all.handoffs_issued.of([]),
            handoffs: Fate::ALL.map(|fate| all.handoffs_ended.of([fate.as_str()])),
            detached_now: AtomicU64::new(0),
            detached: LegEnd::ALL.map(|end| all.detached_ended.of([end.as_str()])),
            released: LegEnd::ALL.map(|end| all.releases.of([end.as_str()])),
            lists: Mutex::default(),
            resent: all.resends.of(["http"]),
            all: Arc::clone(all),
        }))
    }

    /// A leg goes on without its exchange. Hold the returned value as long as it does.
    pub fn detached(&self) -> DetachedLeg {
        self.0.detached_now.fetch_add(1, Ordering::Relaxed);
        DetachedLeg { counts: Arc::clone(&self.0), end: LegEnd::Dropped }
    }

    /// A hand-off was issued. Hold the returned value until it has ended.
    pub fn issued(&self) -> HandoffOut {
        self.0.issued.one();
        HandoffOut { counts: Arc::clone(&self.0), fate: Fate::Unknown }
    }

    /// A throw-away decode ended, and with it the hand-off that it was sent for.
    pub fn released(&self, end: LegEnd, handoff: Option<HandoffOut>) {
        self.0.released[end as usize].one();
        let Some(handoff) = handoff else { return };
        handoff.ended(match end {
            LegEnd::Done => Fate::Released,
            LegEnd::Dropped => Fate::Expired,
            LegEnd::Failed | LegEnd::TimedOut => Fate::Unknown,
        });
    }

    /// Hand-offs that have not ended. Those that ended are read first: one that ends meanwhile counts as out.
    pub fn handoffs_out(&self) -> u64 {
        let ended: u64 = self.0.handoffs.iter().map(Count::get).sum();
        self.0.issued.get().saturating_sub(ended)
    }

    /// The list of workers that `source` keeps was looked at, and brought nothing for this reason.
    pub fn listed(&self, source: &'static str, trouble: Option<&'static str>, unix_seconds: u64) {
        let (all, lists) = (&self.0.all, &self.0.lists);
        let mut good = lists.lock().unwrap_or_else(PoisonError::into_inner);
        let last = good.entry(source).or_default();
        match trouble {
            None => {
                *last = unix_seconds;
                all.discovery_looks.of([source, "ok"]).one();
            }
            Some(reason) => {
                all.discovery_looks.of([source, "failed"]).one();
                all.discovery_errors.of([source, reason]).one();
            }
        }
    }

    /// When the lists of workers were last good; 0: never yet.
    pub fn lists(&self) -> Vec<(&'static str, u64)> {
        let lists = self.0.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.iter().map(|(source, at)| (*source, *at)).collect()
    }

    /// What became of such a list, and how long that took.
    pub fn rolled(&self, source: &'static str, rolled: &Rolled, took: Duration) {
        let all = &self.0.all;
        let joined: BTreeSet<&String> = rolled.joined.iter().collect();
        let anew = rolled.left.iter().filter(|key| joined.contains(key)).count();
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        all.discovered.of([source, "success"]).add(count(rolled.joined.len()));
        all.discovered.of([source, "failed"]).add(count(rolled.refused.len()));
        all.undiscovered.of([source, "removed"]).add(count(rolled.left.len().saturating_sub(anew)));
        all.undiscovered.of([source, "changed"]).add(count(anew));
        all.discovery_sync.of([source]).took(took);
    }

    /// A trial of the pre-flight ended so.
    pub fn tried(&self, result: &str) {
        self.0.all.preflight_trials.of([result]).one();
    }

    /// An engine was asked by name to drop a request, or not.
    pub fn asked(&self, result: Asked, why: Why) {
        self.0.all.decode_aborts.of([result.as_str(), why.as_str()]).one();
    }

    /// A prefill leg failed whose request's answer had begun.
    pub fn prefill_failed(&self, class: Class) {
        self.0.all.prefill_failures.of([class.as_str(), "after_response"]).one();
    }

    /// So many legs were sent once more because their reused connection had died before any response byte.
    pub fn resent(&self, times: u64) {
        self.0.resent.add(times);
    }

    /// Legs detached now.
    pub fn detached_now(&self) -> u64 {
        self.0.detached_now.load(Ordering::Relaxed)
    }
}

/// A hand-off that has not ended. Dropped without [`HandoffOut::ended`], nobody knows what became of it.
#[must_use = "the hand-off counts as over when this is dropped"]
pub struct HandoffOut {
    counts: Arc<Counts>,
    fate: Fate,
}

impl HandoffOut {
    pub fn ended(mut self, fate: Fate) {
        self.fate = fate;
    }
}

impl Drop for HandoffOut {
    fn drop(&mut self) {
        self.counts.handoffs[self.fate as usize].one();
    }
}

/// A detached leg, as long as it lives. Dropped without [`DetachedLeg::ended`], it counts as dropped.
#[must_use = "the leg counts as over when this is dropped"]
pub struct DetachedLeg {
    counts: Arc<Counts>,
    end: LegEnd,
}

impl DetachedLeg {
    pub fn ended(mut self, end: LegEnd) {
        self.end = end;
    }
}

impl Drop for DetachedLeg {
    fn drop(&mut self) {
        self.counts.detached_now.fetch_sub(1, Ordering::Relaxed);
        self.counts.detached[self.end as usize].one();
    }
}
