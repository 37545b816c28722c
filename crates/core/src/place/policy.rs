//! One leg's choice among candidates that are all fit to serve.

use std::sync::Arc;

use super::turns::Turns;
use super::{Seats, Taken};
use crate::dice::Dice;
use crate::fleet::Seat;

/// SMG's policy names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyName {
    RoundRobin,
    Random,
    PowerOfTwo,
    LeastLoad,
}

impl PolicyName {
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::RoundRobin => "round_robin",
            PolicyName::Random => "random",
            PolicyName::PowerOfTwo => "power_of_two",
            PolicyName::LeastLoad => "least_load",
        }
    }
}

/// One leg's policy with its own state.
#[derive(Debug)]
pub enum Policy {
    RoundRobin(Turns),
    Random,
    PowerOfTwo,
    LeastLoad,
}

/// How often a choice is made anew because another request took the place first. Past it the place is
/// taken whatever the load, if the window has room: the count stays right, only the choice may be one off.
const TRIES: usize = 64;

impl Policy {
    pub fn new(name: PolicyName) -> Policy {
        match name {
            PolicyName::RoundRobin => Policy::RoundRobin(Turns::default()),
            PolicyName::Random => Policy::Random,
            PolicyName::PowerOfTwo => Policy::PowerOfTwo,
            PolicyName::LeastLoad => Policy::LeastLoad,
        }
    }

    pub fn name(&self) -> PolicyName {
        match self {
            Policy::RoundRobin(_) => PolicyName::RoundRobin,
            Policy::Random => PolicyName::Random,
            Policy::PowerOfTwo => PolicyName::PowerOfTwo,
            Policy::LeastLoad => PolicyName::LeastLoad,
        }
    }

    /// Chooses and takes rooms in one step. `None` only if no candidate has room for them. Candidates that
    /// turn out to be full are left out.
    pub fn take(&self, candidates: &mut Seats<'_>, rooms: u32, dice: &mut Dice) -> Option<Taken> {
        candidates.retain(|s| s.has_room(rooms));
        for _ in 0..TRIES {
            let (seat, seen) = self.choose(candidates, dice)?;
            let lease = match seen {
                // The choice looked at the load anew, so it may have seen a window that filled up meanwhile.
                Some(seen) if seat.fits_in(seen, rooms) => seat.load.take_if(seen, rooms),
                Some(_) => None,
                None => seat.load.take_within(seat.window, rooms),
            };
            if let Some(lease) = lease {
                return Some(Taken { seat: Arc::clone(seat), lease });
            }
            candidates.retain(|s| s.has_room(rooms));
        }
        while let Some((seat, _)) = self.choose(candidates, dice) {
            if let Some(lease) = seat.load.take_within(seat.window, rooms) {
                return Some(Taken { seat: Arc::clone(seat), lease });
            }
            let full = seat.slot;
            candidates.retain(|s| s.slot != full);
        }
        None
    }

    /// The choice, and the load it was made on if the load mattered.
    fn choose<'a>(
        &self,
        candidates: &[&'a Arc<Seat>],
        dice: &mut Dice,
    ) -> Option<(&'a Arc<Seat>, Option<u32>)> {
        let seen = |(seat, load)| (seat, Some(load));
        let n = candidates.len();
        if n == 0 {
            return None;
        }
        match self {
            Policy::RoundRobin(turns) => Some((candidates[turns.next(candidates)], None)),
            Policy::Random => Some((candidates[dice.below(n)], None)),
            Policy::PowerOfTwo if n > 1 => {
                let a = dice.below(n);
                let b = (a + 1 + dice.below(n - 1)) % n;
                least([candidates[a], candidates[b]].into_iter(), dice).map(seen)
            }
            Policy::PowerOfTwo | Policy::LeastLoad => least(candidates.iter().copied(), dice).map(seen),
        }
    }
}

/// The candidate with the fewest rooms taken, and how many that are; among equals each is as likely.
pub(super) fn least<'a>(
    candidates: impl Iterator<Item = &'a Arc<Seat>>,
    dice: &mut Dice,
) -> Option<(&'a Arc<Seat>, u32)> {
    let mut best: Option<(&Arc<Seat>, u32)> = None;
    let mut equals = 0;
    for seat in candidates {
        let load = seat.load.in_flight();
        match best {
            Some((_, least)) if load > least => {}
            Some((_, least)) if load == least => {
                equals += 1;
                if dice.below(equals) == 0 {
                    best = Some((seat, load));
                }
            }
            _ => (best, equals) = (Some((seat, load)), 1),
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Role, Worker};

    fn seats(n: u32) -> Vec<Arc<Seat>> {
        (0..n)
            .map(|i| Arc::new(Seat::new(i, Worker::new(i.to_string(), "http://h:1", Role::Decode))))
            .collect()
    }

    fn spread(name: PolicyName, requests: usize, n: u32) -> Vec<u32> {
        let (seats, policy, mut dice) = (seats(n), Policy::new(name), Dice::new(3));
        let take = |_| policy.take(&mut seats.iter().collect(), 1, &mut dice).unwrap();
        let held: Vec<_> = (0..requests).map(take).collect();
        let out = seats.iter().map(|s| s.load.in_flight()).collect();
        drop(held);
        assert!(seats.iter().all(|s| s.load.in_flight() == 0));
        out
    }

    #[test]
    fn a_burst_spreads_as_the_policy_says() {
        assert_eq!(spread(PolicyName::LeastLoad, 256, 4), [64; 4]);
        assert_eq!(spread(PolicyName::RoundRobin, 256, 4), [64; 4]);
        assert!(spread(PolicyName::PowerOfTwo, 256, 4).iter().all(|n| (62..=66).contains(n)));
        assert!(spread(PolicyName::Random, 400, 4).iter().all(|n| (60..=140).contains(n)));
    }

    #[test]
    fn no_candidate_no_choice() {
        assert!(Policy::new(PolicyName::LeastLoad).take(&mut Seats::new(), 1, &mut Dice::new(1)).is_none());
        assert_eq!(spread(PolicyName::PowerOfTwo, 3, 1), [3]);
    }
}
