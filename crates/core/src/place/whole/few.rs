//! `least-request-top-k`: any of the few with the fewest requests (AIBrix).
//!
//! Gateways side by side that each take the one with the fewest all take the same one. So each takes any of the `k` with
//! the fewest, as long as these have at most `epsilon` requests more than the least.
//!
//! A worker that is new has the fewest of all and would get everything before it is warm. So it counts as if it had as
//! many as the idlest of the others, and less and less so until the ramp is over. When all are new nobody is.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::receipt::Score;
use super::rules::Rules;
use super::score::Values;
use crate::dice::Dice;
use crate::fleet::Seat;
use crate::time::Instant;

/// All candidates.
pub struct Few {
    /// Requests, and what being new counts for.
    pub counts: SmallVec<[u64; 16]>,
    pub eligible: SmallVec<[bool; 16]>,
}

pub fn of(seats: &[&Arc<Seat>], loads: &[u32], rules: &Rules, now: Instant, dice: &mut Dice) -> Few {
    let counts = counts(seats, loads, rules, now);
    let mut order: SmallVec<[(u64, f64, usize); 16]> =
        counts.iter().enumerate().map(|(at, count)| (*count, dice.fraction(), at)).collect();
    // Chance decides which of equals are among the first.
    order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let least = order.first().map_or(0, |(count, ..)| *count);
    let most = least.saturating_add(rules.top_k_epsilon);
    let mut eligible = SmallVec::from_elem(false, seats.len());
    let k = usize::try_from(rules.top_k).unwrap_or(usize::MAX);
    order.iter().take(k).filter(|(count, ..)| *count <= most).for_each(|(.., at)| eligible[*at] = true);
    Few { counts, eligible }
}

fn counts(seats: &[&Arc<Seat>], loads: &[u32], rules: &Rules, now: Instant) -> SmallVec<[u64; 16]> {
    let ramp = rules.top_k_ramp;
    let age = |seat: &Seat| now.since(seat.pulse.seen_since(now));
    let mut counts: SmallVec<[u64; 16]> = loads.iter().map(|load| u64::from(*load)).collect();
    if ramp.is_zero() {
        return counts;
    }
    let new: SmallVec<[f64; 16]> =
        seats.iter().map(|seat| 1.0 - age(seat).as_secs_f64() / ramp.as_secs_f64()).collect();
    let warm = counts.iter().zip(&new).filter(|(_, new)| **new <= 0.0).map(|(count, _)| *count).min();
    if let Some(floor) = warm {
        for (count, new) in counts.iter_mut().zip(&new).filter(|(_, new)| **new > 0.0) {
            *count = count.saturating_add((floor as f64 * new).round() as u64);
        }
    }
    counts
}

impl Few {
    /// Each candidate, for a receipt.
    pub fn told(&self, seats: &[&Arc<Seat>], loads: &[u32]) -> Vec<Score> {
        let each = |at: usize| {
            let (count, load) = (self.counts[at] as f64, f64::from(loads[at]));
            let skipped = (!self.eligible[at]).then_some("not among the idlest".into());
            let terms = vec![("in_flight", load), ("newness", count - load)];
            Score { worker: seats[at].worker.id.clone(), score: count, terms, skipped }
        };
        (0..seats.len()).map(each).collect()
    }

    /// For a list of strategies: those that are eligible stand before all others, in an order by chance (AIBrix).
    pub fn values(&self, rules: &Rules, dice: &mut Dice) -> Values {
        let each = |(count, eligible): (&u64, &bool)| {
            let chance = if *eligible { dice.fraction() * rules.top_k_epsilon as f64 } else { 0.0 };
            Some(*count as f64 - chance)
        };
        self.counts.iter().zip(&self.eligible).map(each).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Role, Worker};
    use crate::time::Duration;

    fn seats(n: u32) -> Vec<Arc<Seat>> {
        let seat =
            |slot| Arc::new(Seat::new(slot, Worker::new("w", format!("http://h:{slot}"), Role::Whole)));
        (0..n).map(seat).collect()
    }

    fn few(seats: &[Arc<Seat>], loads: &[u32], rules: &Rules, secs: u64) -> Few {
        let now = Instant::ZERO.after(Duration::from_secs(secs));
        of(&seats.iter().collect::<Vec<_>>(), loads, rules, now, &mut Dice::new(3))
    }

    #[test]
    fn both_bounds_hold() {
        let rules = |top_k, top_k_epsilon| Rules { top_k, top_k_epsilon, ..Rules::default() };
        for (loads, k, epsilon, due) in [
            (&[0, 9, 4, 5][..], 5, 4, &[true, false, true, false][..]),
            (&[7, 1, 2, 3], 2, 4, &[false, true, true, false]),
            (&[9], 5, 4, &[true]),
            (&[0, 100], 9, 1000, &[true, true]),
        ] {
            let few = few(&seats(loads.len() as u32), loads, &rules(k, epsilon), 1);
            assert_eq!(few.eligible.as_slice(), due, "{loads:?}, {k}, {epsilon}");
        }
        let equal = few(&seats(8), &[3; 8], &rules(5, 4), 1);
        assert_eq!(equal.eligible.iter().filter(|e| **e).count(), 5);
    }

    #[test]
    fn a_new_worker_counts_as_loaded_until_its_ramp_is_over() {
        let seats = seats(3);
        let (old, rules) = (&seats[..2], Rules::default());
        assert_eq!(few(old, &[40, 32], &rules, 10).counts.to_vec(), [40, 32], "all are new");
        let counts = |secs| few(&seats, &[40, 32, 0], &rules, secs).counts.to_vec();
        assert_eq!(counts(400), [40, 32, 32], "it has just come");
        assert_eq!(counts(475), [40, 32, 24]);
        assert_eq!(counts(699), [40, 32, 0]);
        assert_eq!(counts(701), [40, 32, 0]);
        let off = Rules { top_k_ramp: Duration::ZERO, ..Rules::default() };
        seats[2].pulse.reborn();
        assert_eq!(few(&seats, &[40, 32, 0], &off, 800).counts.to_vec(), [40, 32, 0]);
        assert_eq!(counts(800), [40, 32, 32], "another life is new again");
    }

    #[test]
    fn in_a_list_nobody_overtakes_the_eligible() {
        let few = few(&seats(4), &[2, 3, 9, 30], &Rules::default(), 1);
        for seed in 0..50 {
            let values: Vec<f64> =
                few.values(&Rules::default(), &mut Dice::new(seed)).into_iter().flatten().collect();
            assert!(values[0].max(values[1]) < values[2], "{values:?}");
            assert_eq!(values[2..], [9.0, 30.0]);
        }
    }
}
