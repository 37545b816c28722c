//! Whose turn is it? A rotation for each set of candidates.
//!
//! One counter for all would not do: a prefill's choice decides which decodes are candidates, and two sets
//! of two that ask in turn would each see every second number, so that one worker of each gets everything
//! and the other nothing. The same holds for models that interleave. SMG 1.13 keeps a rotation a set, too.
//!
//! No lock: sets live in a small open table. When it is full, a new set takes over an old one's place and
//! its count, which costs at most an uneven turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::fleet::Seat;

/// Sets remembered.
const SETS: usize = 256;
/// Places looked at before one is taken over.
const PROBES: usize = 8;

#[derive(Debug)]
pub struct Turns(Box<[Turn]>);

/// One set's rotation. A fingerprint of 0 marks a free place.
#[derive(Debug, Default)]
struct Turn {
    set: AtomicU64,
    next: AtomicUsize,
}

impl Default for Turns {
    fn default() -> Self {
        Turns((0..SETS).map(|_| Turn::default()).collect())
    }
}

impl Turns {
    /// The index of the candidate whose turn it is; 0 when there is none.
    pub fn next(&self, candidates: &[&Arc<Seat>]) -> usize {
        self.of_many(fingerprint(candidates), || 0) % candidates.len().max(1)
    }

    /// The next number of the set that has this mark, which is not 0. The first is anything.
    pub fn of_many(&self, set: u64, first: impl FnOnce() -> usize) -> usize {
        let (turn, new) = self.of(set);
        if new {
            // Whoever comes in between gets a number that is as good.
            turn.next.store(first(), Ordering::Relaxed);
        }
        turn.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The rotation of a set, and whether it begins.
    fn of(&self, set: u64) -> (&Turn, bool) {
        let home = set as usize % SETS;
        for probe in 0..PROBES {
            let turn = &self.0[(home + probe) % SETS];
            match turn.set.compare_exchange(0, set, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (turn, true),
                Err(other) if other == set => return (turn, false),
                Err(_) => {}
            }
        }
        let turn = &self.0[home];
        turn.set.store(set, Ordering::Relaxed);
        (turn, false)
    }
}

/// FNV-1a over the slots, never 0. Candidates come in the fleet's order, so equal sets look alike.
fn fingerprint(candidates: &[&Arc<Seat>]) -> u64 {
    let mix = |hash: u64, slot: u32| (hash ^ u64::from(slot)).wrapping_mul(0x0100_0000_01b3);
    let hash = candidates.iter().fold(0xcbf2_9ce4_8422_2325, |hash, seat| mix(hash, seat.slot));
    (hash ^ (hash >> 32)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Role, Worker};

    fn seats(slots: std::ops::Range<u32>) -> Vec<Arc<Seat>> {
        slots
            .map(|i| Arc::new(Seat::new(i, Worker::new(i.to_string(), "http://h:1", Role::Decode))))
            .collect()
    }

    #[test]
    fn sets_that_ask_in_turn_keep_their_own_turns() {
        let (turns, a, b) = (Turns::default(), seats(0..2), seats(2..4));
        let (a, b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
        let got: Vec<_> = (0..4).map(|_| (turns.next(&a), turns.next(&b))).collect();
        assert_eq!(got, [(0, 0), (1, 1), (0, 0), (1, 1)]);
        assert_eq!(turns.next(&[]), 0);
    }

    #[test]
    fn more_sets_than_places_still_rotate() {
        let turns = Turns::default();
        for first in 0..2000 {
            let set = seats(first..first + 2);
            let set: Vec<_> = set.iter().collect();
            let (x, y) = (turns.next(&set), turns.next(&set));
            assert_ne!(x, y);
        }
    }
}
