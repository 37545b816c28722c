//! Is this worker worth asking? Stands in its seat, and is read without a lock.
//!
//! One that has no such route is left alone for a while; one that fails is, too, for twice as long each time. After its
//! rest one question tries whether it answers again, and others follow once it does.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Outcome;
use crate::time::{Duration, Instant};

/// How long a worker without the route is not asked.
pub const ROUTE_REST: Duration = Duration::from_secs(60);

/// How long one that failed is not asked, at first and at most.
pub const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What came of asking one worker.
#[derive(Debug, Default)]
pub struct Standing {
    /// Microseconds; until when it is left alone. 0: it answers, or was never asked.
    until: AtomicU64,
    failed: AtomicU32,
}

impl Standing {
    /// It is left alone now.
    pub fn rests(&self, now: Instant) -> bool {
        now.as_micros() < self.until.load(Ordering::Relaxed)
    }

    /// It is asked now. False: it is not to be, or another question tries it already.
    pub fn enter(&self, now: Instant) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return true;
        }
        let tries = now.after(REST.0).as_micros();
        now.as_micros() >= until
            && self.until.compare_exchange(until, tries, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The question was asked at `asked` and ended so.
    pub fn heard(&self, outcome: Outcome, asked: Instant, now: Instant) {
        let rest = match outcome {
            Outcome::Counted | Outcome::Refused => {
                self.failed.store(0, Ordering::Relaxed);
                return self.until.store(0, Ordering::Relaxed);
            }
            Outcome::NoRoute => ROUTE_REST,
            Outcome::Late | Outcome::Failed | Outcome::Unusable => {
                let until = self.until.load(Ordering::Relaxed);
                // Of those that were out together the first one counts.
                if until > asked.after(REST.0).as_micros() {
                    return;
                }
                let before = self.failed.fetch_add(1, Ordering::Relaxed).min(16);
                REST.0.saturating_mul(1 << before).min(REST.1)
            }
            Outcome::Kept | Outcome::Unaskable | Outcome::Busy | Outcome::Nobody => return,
        };
        self.until.fetch_max(now.after(rest).as_micros(), Ordering::Relaxed);
    }
}
