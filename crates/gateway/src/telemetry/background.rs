//! What outlives its exchange, or happens below one: detached legs, releases, resends.
//!
//! They have no record of their own: a record is written when the client's request ends, and these go on after it or are
//! not seen by it. The driver tells them through [`Background`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_core::abort::{Asked, Class, Why};

use super::families::Recorded;
use super::family::Count;

/// How a leg in the background ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegEnd {
    /// Read to its end.
    Done,
    /// The engine refused it, or the connection was lost.
    Failed,
    /// Its time was over.
    TimedOut,
    /// Not kept: too many already, or the gateway stops.
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
    detached_now: AtomicU64,
    detached: [Count; 4],
    released: [Count; 4],
    resent: Count,
    /// For what is rare enough to be looked up each time.
    all: Arc<Recorded>,
}

impl Background {
    pub(super) fn new(all: &Arc<Recorded>) -> Background {
        Background(Arc::new(Counts {
            detached_now: AtomicU64::new(0),
            detached: LegEnd::ALL.map(|end| all.detached_ended.of([end.as_str()])),
            released: LegEnd::ALL.map(|end| all.releases.of([end.as_str()])),
            resent: all.resends.of(["http"]),
            all: Arc::clone(all),
        }))
    }

    /// A leg goes on without its exchange. Hold the returned value as long as it does.
    pub fn detached(&self) -> DetachedLeg {
        self.0.detached_now.fetch_add(1, Ordering::Relaxed);
        DetachedLeg { counts: Arc::clone(&self.0), end: LegEnd::Dropped }
    }

    /// A throw-away decode ended.
    pub fn released(&self, end: LegEnd) {
        self.0.released[end as usize].one();
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
