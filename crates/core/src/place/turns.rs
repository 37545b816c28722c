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
    /// The next number of the set that has this mark, which is not 0. The first is anything.
    pub fn next(&self, set: u64, first: impl FnOnce() -> usize) -> usize {
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

/// Tells sets apart by who stands first and how many there are, and by what else the caller knows of them: enough
/// where a mix-up costs an even burst and nothing else.
pub fn mark(of: u64, first: Option<&&Arc<Seat>>, count: usize) -> u64 {
    let mix = |mark: u64, n: u64| (mark ^ n).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    mix(mix(of, first.map_or(0, |seat| u64::from(seat.slot) + 1)), count as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_ask_in_turn_keep_their_own_turns() {
        let turns = Turns::default();
        let got: Vec<_> = (0..4).map(|_| (turns.next(7, || 0) % 2, turns.next(8, || 5) % 2)).collect();
        assert_eq!(got, [(0, 1), (1, 0), (0, 1), (1, 0)]);
    }

    #[test]
    fn more_sets_than_places_still_rotate() {
        let turns = Turns::default();
        for set in 1..2000 {
            let (x, y) = (turns.next(set, || 0), turns.next(set, || 0));
            assert_ne!(x % 2, y % 2);
        }
    }
}
