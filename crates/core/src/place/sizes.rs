//! Which workers are for prompts of this size? Each gets a range of sizes, so that short prompts do not stand
//! behind long ones, and the ranges are cut so that each carries as much text as any other.
//!
//! Sizes are counted in classes, eight for each doubling. A class that carries more than a worker's share
//! belongs to several. Until enough prompts were seen the cut is even up to 4096 bytes, as SMG's is at first.
//! SMG then compares sums of sizes over all workers and sends to the smallest, whatever its range (SMG 1.13),
//! which mixes sizes as soon as prompts are longer than some dozens of bytes; here only load overrides a range.
//!
//! Where all prompts are of one class there is nothing to keep apart, and every worker is for all of them.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::time::{Duration, Instant};

const CLASSES: usize = 320;
/// The first cut is even up to here.
const FIRST_CUT: f64 = 4096.0;
/// Prompts that it takes to cut anew.
const ENOUGH: u64 = 16;
/// All of the text, as a share.
const ALL: u32 = 1 << 30;
/// In [`Sizes::only`]: prompts of several classes were seen.
const SEVERAL: u32 = u32::MAX;

#[derive(Debug)]
pub struct Sizes {
    /// Text of each class.
    sums: Box<[AtomicU64]>,
    prompts: AtomicU64,
    /// The class of all prompts that were seen before the first cut, and one more. 0: none was seen.
    only: AtomicU32,
    /// The share of all text that shorter classes carry, by class.
    below: Box<[AtomicU32]>,
    learnt: AtomicBool,
    /// Microseconds; when to cut anew.
    next: AtomicU64,
    every: Duration,
}

impl Sizes {
    pub fn new(every: Duration) -> Sizes {
        Sizes {
            sums: (0..CLASSES).map(|_| AtomicU64::new(0)).collect(),
            prompts: AtomicU64::new(0),
            only: AtomicU32::new(0),
            below: (0..=CLASSES).map(|_| AtomicU32::new(ALL)).collect(),
            learnt: AtomicBool::new(false),
            next: AtomicU64::new(0),
            every,
        }
    }

    /// The workers, of so many, that prompts of this size are for.
    pub fn range(&self, bytes: u64, workers: usize) -> RangeInclusive<usize> {
        let last = workers.saturating_sub(1);
        if !self.learnt.load(Ordering::Acquire) {
            let alike = self.only.load(Ordering::Relaxed) == class(bytes) as u32 + 1;
            if alike && self.prompts.load(Ordering::Relaxed) >= ENOUGH {
                return 0..=last;
            }
            let at = (bytes as f64 / FIRST_CUT * workers as f64) as usize;
            return at.min(last)..=at.min(last);
        }
        let class = class(bytes);
        let share = |class: usize| u64::from(self.below[class].load(Ordering::Relaxed));
        let (low, high) = (share(class) * workers as u64, share(class + 1) * workers as u64);
        // A worker of which a class has only an edge is none of its own.
        let (one, edge) = (u64::from(ALL), u64::from(ALL) / 8);
        let first = (((low + edge) / one) as usize).min(last);
        let end = (high.saturating_sub(edge).div_ceil(one) as usize).saturating_sub(1).clamp(first, last);
        first..=end
    }

    /// A prompt of this size was sent.
    pub fn sent(&self, bytes: u64, now: Instant) {
        self.sums[class(bytes)].fetch_add(bytes.max(1), Ordering::Relaxed);
        self.prompts.fetch_add(1, Ordering::Relaxed);
        self.saw(class(bytes) as u32 + 1);
        let (next, now_at) = (self.next.load(Ordering::Relaxed), now.as_micros());
        if next == 0 || now_at >= next {
            let then = now.after(self.every).as_micros().max(1);
            let won = self.next.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if won && next != 0 && self.prompts.load(Ordering::Relaxed) >= ENOUGH {
                self.cut();
            }
        }
    }

    fn saw(&self, class: u32) {
        let seen = self.only.load(Ordering::Relaxed);
        if seen == class || seen == SEVERAL {
            return;
        }
        let first = self.only.compare_exchange(0, class, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|seen| seen != class) {
            self.only.store(SEVERAL, Ordering::Relaxed);
        }
    }

    /// What was seen before counts half as much at the next cut.
    fn cut(&self) {
        let sums: Vec<u64> = self.sums.iter().map(|sum| sum.load(Ordering::Relaxed)).collect();
        let all: u128 = sums.iter().map(|sum| u128::from(*sum)).sum();
        let mut below: u128 = 0;
        for (class, sum) in sums.iter().enumerate() {
            let share = (below * u128::from(ALL)).checked_div(all).unwrap_or_default();
            self.below[class].store(share as u32, Ordering::Relaxed);
            below += u128::from(*sum);
            self.sums[class].fetch_sub(sum / 2, Ordering::Relaxed);
        }
        let prompts = self.prompts.load(Ordering::Relaxed);
        self.prompts.fetch_sub(prompts / 2, Ordering::Relaxed);
        self.learnt.store(true, Ordering::Release);
    }
}

fn class(bytes: u64) -> usize {
    let doublings = bytes.max(1).ilog2();
    if doublings < 3 {
        return bytes as usize;
    }
    let part = (bytes >> (doublings - 3)) & 7;
    (8 * (doublings as usize - 2) + part as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_with_sizes() {
        assert!((0..100_000u64).all(|n| class(n) <= class(n + 1) && class(n + 1) <= class(n) + 1));
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn each_worker_gets_as_much_text() {
        let sizes = Sizes::new(Duration::from_secs(5));
        assert_eq!((sizes.range(10, 2), sizes.range(5000, 2)), (0..=0, 1..=1));
        let send = |secs: u64| {
            for i in 0..100 {
                // Ninety short ones carry as much as ten long ones.
                let bytes = if i % 10 == 0 { 9000 } else { 1000 };
                sizes.sent(bytes, Instant::from_micros(1 + secs * 1_000_000));
            }
        };
        send(0);
        assert_eq!(sizes.range(1000, 2), 0..=0, "the first cut stands");
        send(6);
        send(12);
        assert_eq!((sizes.range(1000, 2), sizes.range(9000, 2)), (0..=0, 1..=1));
        assert_eq!((sizes.range(1000, 8), sizes.range(9000, 8)), (0..=3, 4..=7));
        assert_eq!((sizes.range(1, 8), sizes.range(1 << 30, 8)), (0..=0, 7..=7));
        assert_eq!(sizes.range(5, 0), 0..=0);
    }

    #[test]
    fn prompts_of_one_size_are_for_everybody() {
        let sizes = Sizes::new(Duration::from_secs(5));
        let at = |secs: u64| Instant::from_micros(1 + secs * 1_000_000);
        for _ in 0..ENOUGH {
            assert_eq!(sizes.range(1000, 4), 0..=0, "too few to tell");
            sizes.sent(1000, at(0));
        }
        assert_eq!((sizes.range(1000, 4), sizes.range(4000, 4)), (0..=3, 3..=3));
        let others = Sizes::new(Duration::from_secs(5));
        (0..ENOUGH).for_each(|i| others.sent(1000 + 3000 * (i % 2), at(0)));
        assert_eq!((others.range(1000, 4), others.range(4000, 4)), (0..=0, 3..=3));
        sizes.sent(1000, at(6));
        assert_eq!(sizes.range(1000, 4), 0..=3, "the cut finds the same");
    }
}
