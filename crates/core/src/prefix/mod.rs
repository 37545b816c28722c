//! Which worker has seen the beginning of this prompt?
//!
//! The index remembers what the gateway itself has sent where, block by block ([`Blocks`]),
//! and forgets what was longest not asked for once its memory is spent. It is a guess: engines evict by rules
//! of their own and tell nobody here. What it knows for certain it heeds at once: a worker that left or has
//! begun a new life has nothing, and a prompt whose prefill failed was not computed ([`Mark`]).
//!
//! Prompts with a common beginning share its blocks, whichever workers hold them, so a block costs eight bytes
//! once. Who holds a run of blocks is a set of bits, one word for 64 workers. A look-up follows the prompt
//! from run to run; within a run a bisection finds where the prompts part. Its time depends on the number of
//! runs and of those who hold them, not on how many workers there are.
//!
//! Memory: a budget for each 64 workers begun, as each of them brings KV memory to remember. Shards have a lock
//! each, held for one look-up or insertion; what is evicted is the oldest of all shards, or nearly.

mod bits;
mod heads;
mod memory;
mod owners;
mod shard;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

pub(crate) use bits::Bits;
pub use heads::{HEAD_HOLDERS, Heads};
pub use memory::{Mark, Memory};
pub use owners::{Holder, OWNERS_MAX};
pub(crate) use shard::AsIs;

use crate::prompt::Blocks;
use crate::time::Instant;
use owners::Owners;
use shard::{Found as Runs, Shard};

/// Locks.
const SHARDS: usize = 16;

/// Holders that a look-up names, those who hold most first. More would be as good a choice as these.
pub const HOLDERS_MAX: usize = 64;

/// Workers that one budget is for.
const WORKERS_PER_BUDGET: usize = 64;

/// Remembers who was sent what.
#[derive(Debug)]
pub struct PrefixIndex {
    shards: Box<[Keep]>,
    owners: Owners,
    bytes: AtomicUsize,
    budget_each: usize,
    budget: AtomicUsize,
    /// Runs of blocks that were forgotten for want of memory.
    evicted: AtomicU64,
}

/// A shard, and the moment when its oldest run was last asked for.
#[derive(Debug)]
struct Keep {
    shard: Mutex<Shard>,
    oldest: AtomicU64,
}

/// Who holds how many of a prompt's first blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Those who hold most come first.
    holders: SmallVec<[(Holder, u32); 8]>,
}

impl Found {
    pub fn holders(&self) -> &[(Holder, u32)] {
        &self.holders
    }

    /// The most blocks that anybody holds.
    pub fn most(&self) -> u32 {
        self.holders.first().map_or(0, |(_, blocks)| *blocks)
    }

    /// How many of the first blocks this one holds.
    pub fn of(&self, holder: Holder) -> u32 {
        self.holders.iter().find(|(h, _)| *h == holder).map_or(0, |(_, blocks)| *blocks)
    }

    /// In the order of slots, for a walk beside the candidates.
    pub fn by_slot(&self) -> SmallVec<[(Holder, u32); 8]> {
        let mut holders = self.holders.clone();
        holders.sort_unstable_by_key(|(h, _)| h.slot);
        holders
    }
}

impl PrefixIndex {
    /// An index that takes about `budget_bytes` of memory for each 64 workers.
    pub fn new(budget_bytes: usize) -> PrefixIndex {
        let keep = || Keep { shard: Mutex::default(), oldest: AtomicU64::new(u64::MAX) };
        PrefixIndex {
            shards: (0..SHARDS).map(|_| keep()).collect(),
            owners: Owners::default(),
            bytes: AtomicUsize::new(0),
            budget_each: budget_bytes,
            budget: AtomicUsize::new(budget_bytes),
            evicted: AtomicU64::new(0),
        }
    }

    /// The memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The memory that may be in use, in bytes.
    pub fn budget(&self) -> usize {
        self.budget.load(Ordering::Relaxed)
    }

    /// Runs of blocks that were forgotten so far because the memory was spent.
    pub fn evictions(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// The memory in use, counted anew from what is there.
    pub fn recount(&self) -> usize {
        self.shards.iter().map(|keep| lock(keep).recount()).sum()
    }

    /// How many blocks each of these holds, in their order.
    pub fn held(&self, holders: &[Holder]) -> Vec<u64> {
        let mut sums = vec![];
        for keep in &self.shards {
            lock(keep).add_held(&mut sums);
        }
        let of = |number: Option<usize>| number.and_then(|n| sums.get(n).copied()).unwrap_or_default();
        self.owners.numbers(holders).map(of).collect()
    }

    /// Who holds how much of it?
    pub fn find(&self, blocks: &Blocks) -> Found {
        let Some(keep) = self.keep(&blocks.hashes) else { return Found::default() };
        let runs: Runs = lock(keep).find(&blocks.hashes, HOLDERS_MAX);
        Found { holders: self.owners.name(&runs) }
    }

    /// The prompt goes to this worker, so the worker will hold it. What was new of it is taken back when the
    /// mark is dropped before [`Mark::keep`].
    pub fn hold(self: &Arc<Self>, blocks: &Arc<Blocks>, holder: Holder, now: Instant) -> Option<Mark> {
        let keep = self.keep(&blocks.hashes)?;
        let number = match self.owners.number(holder) {
            Some(number) => number,
            None => {
                // The worker of this slot has begun a new life.
                self.forget(holder.slot);
                self.owners.admit(holder)?
            }
        };
        let from = self.change(keep, |shard| shard.hold(&blocks.hashes, number, now.as_micros()));
        if self.owners.number(holder) != Some(number) {
            // It was forgotten in the meantime, perhaps before this came in.
            self.change(keep, |shard| shard.withdraw(&blocks.hashes, number, from));
            return None;
        }
        self.evict();
        Some(Mark::new(Memory::Tree(self.clone()), blocks, holder, from))
    }

    /// The worker is gone, or has lost its memory.
    pub fn forget(&self, slot: u32) {
        let Some(number) = self.owners.dismiss(slot) else { return };
        for keep in &self.shards {
            self.change(keep, |shard| shard.forget(number));
        }
        self.owners.free(number);
    }

    /// The fleet has changed: these are all workers there are. Looks at nothing if it was told of this
    /// picture of the fleet (or of a later one) before.
    pub fn keep_only(&self, picture: u64, holders: impl Iterator<Item = Holder>) {
        if !self.owners.news(picture) {
            return;
        }
        let there: std::collections::BTreeSet<Holder> = holders.collect();
        let begun = there.len().div_ceil(WORKERS_PER_BUDGET).max(1);
        self.budget.store(self.budget_each.saturating_mul(begun), Ordering::Relaxed);
        for slot in self.owners.gone(&there) {
            self.forget(slot);
        }
        self.evict();
    }

    fn keep(&self, hashes: &[u64]) -> Option<&Keep> {
        let first = hashes.first()?;
        self.shards.get(*first as usize % SHARDS)
    }

    /// Changes a shard, and the sum of all with it.
    fn change<T>(&self, keep: &Keep, change: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = lock(keep);
        let before = shard.bytes();
        let out = change(&mut shard);
        let after = shard.bytes();
        keep.oldest.store(shard.oldest(), Ordering::Relaxed);
        // Before anybody else can take away what was added: the sum would fall below zero in between.
        if after >= before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
        drop(shard);
        out
    }

    /// Back into the budget: the oldest goes first.
    fn evict(&self) {
        while self.bytes() > self.budget() {
            let oldest = self.shards.iter().min_by_key(|keep| keep.oldest.load(Ordering::Relaxed));
            let Some(keep) = oldest else { return };
            if !self.change(keep, Shard::evict) {
                return;
            }
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn withdraw(&self, blocks: &Blocks, holder: Holder, from: u32) {
        let (Some(keep), Some(number)) = (self.keep(&blocks.hashes), self.owners.number(holder)) else {
            return;
        };
        self.change(keep, |shard| shard.withdraw(&blocks.hashes, number, from));
    }
}

fn lock(keep: &Keep) -> MutexGuard<'_, Shard> {
    keep.shard.lock().unwrap_or_else(PoisonError::into_inner)
}
