//! Who holds how many of a prompt's first blocks, as sets of workers.
//!
//! A beginning that a whole fleet holds is one set, whatever the fleet's size: a word of bits for 64 workers. Only where
//! few of those who hold a block have not the next one do they stand by themselves, each with its number, because a set
//! would be larger than they are. So a look-up costs a few operations on bits for each word, and what a worker holds is
//! found in a handful of steps.

use smallvec::SmallVec;

use crate::prefix::Bits;

/// So many workers are no set, however small sets are.
const FEW: usize = 4;

/// By number, how many of a prompt's first blocks a worker holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Who holds any.
    some: Bits,
    /// Who holds at least so many, by rising depths; each set is within the one before. A worker that does not stand by
    /// itself has those of the last set that it is in.
    depths: SmallVec<[(u32, Bits); 2]>,
    /// Those who stand by themselves, by rising numbers.
    alone: SmallVec<[(u32, u32); 8]>,
    most: u32,
}

impl Held {
    /// The most blocks that anybody holds.
    pub fn most(&self) -> u32 {
        self.most
    }

    #[inline]
    pub fn blocks_of(&self, number: u32) -> u32 {
        if !self.has(number) {
            return 0;
        }
        if let Ok(at) = self.alone.binary_search_by_key(&number, |(number, _)| *number) {
            return self.alone[at].1;
        }
        let after = self.depths.partition_point(|(_, who)| who.has(number as usize));
        self.depths[..after].last().map_or(0, |(blocks, _)| *blocks)
    }

    /// Does the worker hold any?
    #[inline]
    pub fn has(&self, number: u32) -> bool {
        self.some.has(number as usize)
    }

    /// Begins with those who hold the first block that is looked up.
    pub(super) fn begin(first: &Bits) -> Following {
        Following { held: Held { some: first.clone(), ..Held::default() }, left: first.clone() }
    }
}

/// A prompt that is followed block by block, as long as anybody holds them all.
pub(super) struct Following {
    held: Held,
    /// Who holds all so far.
    left: Bits,
}

impl Following {
    /// Do all who are left hold this one too?
    pub fn all_in(&self, there: &Bits) -> bool {
        self.left.is_within(there)
    }

    /// Nobody is left.
    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Those who are not among these hold so many blocks and no more.
    pub fn keep(&mut self, there: &Bits, blocks: u32) {
        if self.all_in(there) {
            return;
        }
        self.held.most = blocks;
        let count = self.left.count_without(there);
        if count <= FEW.max(self.left.words()) {
            let gone = self.left.without(there).map(|number| (number as u32, blocks));
            self.held.alone.extend(gone);
        } else {
            self.held.depths.push((blocks, self.left.clone()));
        }
        self.left.keep(there);
    }

    /// Whoever is left holds so many.
    pub fn end(mut self, blocks: u32) -> Held {
        self.keep(&Bits::default(), blocks);
        // They come in runs of rising numbers, one for each depth: a sort that merges runs has little to do.
        self.held.alone.sort();
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    /// Against a plain list, with groups of one worker, of some and of most of them.
    #[test]
    fn every_worker_has_what_it_held_when_it_dropped_out() {
        let mut dice = Dice::new(3);
        for workers in [1, 3, 64, 65, 700, 2048] {
            for groups in [1, 2, 5, 40] {
                let own: Vec<u32> =
                    (0..workers).map(|_| (dice.below(groups) * dice.below(3)) as u32).collect();
                let who = |blocks: u32| {
                    let mut bits = Bits::default();
                    let deep = own.iter().enumerate().filter(|(_, own)| **own >= blocks);
                    deep.for_each(|(number, _)| bits.set(number));
                    bits
                };
                let mut following = Held::begin(&who(1));
                let mut blocks = 1;
                while !following.is_over() && blocks < 100 {
                    following.keep(&who(blocks + 1), blocks);
                    blocks += 1;
                }
                let held = following.end(blocks);
                assert_eq!(held.most(), own.iter().copied().max().unwrap_or(0), "{workers} {groups}");
                for (number, own) in own.iter().enumerate() {
                    assert_eq!(held.blocks_of(number as u32), *own, "{number} of {workers}, {groups}");
                    assert_eq!(held.has(number as u32), *own > 0);
                }
                assert_eq!(held.blocks_of(workers as u32 + 9), 0);
            }
        }
    }

    #[test]
    fn a_beginning_that_all_hold_is_one_set() {
        let mut all = Bits::default();
        (0..2048).for_each(|number| all.set(number));
        let mut deep = Bits::default();
        (0..8).for_each(|number| deep.set(number * 100));
        let mut following = Held::begin(&all);
        assert!(following.all_in(&all) && !following.all_in(&deep));
        following.keep(&deep, 31);
        let held = following.end(200);
        assert_eq!((held.depths.len(), held.alone.len(), held.most()), (1, 8, 200));
        assert_eq!([0, 1, 700, 2047].map(|number| held.blocks_of(number)), [200, 31, 200, 31]);
    }
}
