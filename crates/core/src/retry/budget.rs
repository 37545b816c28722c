//! How many retries may all requests together make?
//!
//! A retry helps when a worker fails and harms when all do: then each request comes several times, to workers that cannot
//! serve it once. So there may be as many retries as a share of the requests that came in the same time, and a few more
//! for a gateway with little to do (20 %, 10 a second, over 10 s, as Finagle and Linkerd have it).
//!
//! Lock-free, and so not exact: threads that ask in the same moment may each get the last one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Instant;

/// Seconds over which requests and retries are weighed against each other.
const WINDOW_SECS: u64 = 10;
/// More than the window, so that a second that is written to is none that is read.
const SLOTS: usize = 16;

/// How many retries there may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetRule {
    /// Retries for each request. `--retry-budget-share`.
    pub share: f64,
    /// Retries a second whatever the requests. `--retry-budget-min-per-sec`.
    pub floor_per_sec: f64,
}

impl Default for BudgetRule {
    fn default() -> Self {
        BudgetRule { share: 0.2, floor_per_sec: 10.0 }
    }
}

/// The retries of one gateway.
#[derive(Debug, Default)]
pub struct Budget {
    rule: BudgetRule,
    requests: Tally,
    retries: Tally,
}

impl Budget {
    pub fn new(rule: BudgetRule) -> Budget {
        Budget { rule, ..Budget::default() }
    }

    /// A request came, or a part of one that is tried by itself.
    pub fn request(&self, now: Instant) {
        self.requests.add(second(now));
    }

    /// Takes one retry if there is one left.
    pub fn take(&self, now: Instant) -> bool {
        let second = second(now);
        let requests = self.requests.sum(second) as f64;
        let most = self.rule.share * requests + self.rule.floor_per_sec * WINDOW_SECS as f64;
        let takes = self.retries.sum(second) as f64 + 1.0 <= most;
        if takes {
            self.retries.add(second);
        }
        takes
    }
}

/// From 1, so that a slot that was never written to holds no second.
fn second(now: Instant) -> u64 {
    now.as_micros() / 1_000_000 + 1
}

/// Counts by the second: each slot has the second in its upper half and the count in its lower.
#[derive(Debug, Default)]
struct Tally([AtomicU64; SLOTS]);

impl Tally {
    fn add(&self, second: u64) {
        let slot = &self.0[second as usize % SLOTS];
        let next = |was: u64| match (was >> 32).cmp(&second) {
            std::cmp::Ordering::Less => Some((second << 32) + 1),
            std::cmp::Ordering::Equal => Some(was + 1),
            // Whoever counts for a second that is over by now is late enough not to matter.
            std::cmp::Ordering::Greater => None,
        };
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Of the window that ends with this second.
    fn sum(&self, second: u64) -> u64 {
        let slots = self.0.iter().map(|slot| slot.load(Ordering::Relaxed));
        let inside = |was: &u64| (was >> 32) <= second && (was >> 32) + WINDOW_SECS > second;
        slots.filter(inside).map(|was| was & 0xffff_ffff).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    fn at(millis: u64) -> Instant {
        Instant::ZERO.after(Duration::from_millis(millis))
    }

    fn taken(budget: &Budget, now: Instant) -> usize {
        (0..100_000).take_while(|_| budget.take(now)).count()
    }

    #[test]
    fn a_share_of_the_requests_may_be_tried_again() {
        let budget = Budget::new(BudgetRule { share: 0.2, floor_per_sec: 0.0 });
        assert!(!budget.take(at(0)), "nothing came");
        (0..4).for_each(|_| budget.request(at(0)));
        assert!(!budget.take(at(0)), "four fifths of a retry are none");
        (0..996).for_each(|n| budget.request(at(n * 5)));
        assert_eq!(taken(&budget, at(4999)), 200);
        // A request buys a fifth of a retry at any time.
        (0..10).for_each(|_| budget.request(at(5000)));
        assert_eq!(taken(&budget, at(5000)), 2);
    }

    #[test]
    fn a_few_a_second_whatever_the_requests() {
        let budget = Budget::new(BudgetRule { share: 0.0, floor_per_sec: 10.0 });
        assert_eq!(taken(&budget, at(0)), 100, "those of one window at once");
        assert_eq!(taken(&budget, at(9_999)), 0);
        assert_eq!(taken(&budget, at(10_000)), 100);
    }

    #[test]
    fn what_is_older_than_the_window_counts_for_nothing() {
        let budget = Budget::new(BudgetRule { share: 0.5, floor_per_sec: 0.0 });
        (0..100).for_each(|_| budget.request(at(500)));
        assert_eq!(taken(&budget, at(9_900)), 50);
        assert_eq!(taken(&budget, at(10_100)), 0, "the requests are forgotten");
        (0..100).for_each(|_| budget.request(at(20_000)));
        assert_eq!(taken(&budget, at(20_000)), 50, "and so are the retries");
        // A slot is used again after a long time.
        (0..2).for_each(|_| budget.request(at(1_000_000_000)));
        assert_eq!(taken(&budget, at(1_000_000_000)), 1);
        budget.request(at(999_984_000));
        assert_eq!(taken(&budget, at(1_000_000_000)), 0, "one that comes late is not counted");
    }

    #[test]
    fn nothing_and_without_end() {
        let none = Budget::new(BudgetRule { share: 0.0, floor_per_sec: 0.0 });
        none.request(at(0));
        assert!(!none.take(at(0)));
        let plenty = Budget::new(BudgetRule { share: 0.0, floor_per_sec: f64::from(u32::MAX) });
        assert_eq!(taken(&plenty, at(0)), 100_000);
    }

    #[test]
    fn threads_get_no_more_than_one_each_too_many() {
        let budget = Budget::new(BudgetRule { share: 0.0, floor_per_sec: 10.0 });
        let all: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| taken(&budget, at(0)))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!((100..=103).contains(&all), "{all}");
    }
}
