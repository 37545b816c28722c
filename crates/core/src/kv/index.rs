//! Which workers hold the first blocks of this prompt, as they said themselves?
//!
//! One table from a block's own hash to the set of those who hold it, in shards by the prompt's first block. A look-up
//! follows the prompt block by block while anybody holds them all. It takes eight at a time where the same workers
//! hold the eighth: engines evict a prompt from its end, so who holds a block and one eight further holds those between.
//! Engines with very small blocks are looked up every [`STEP_TOKENS`] tokens.
//!
//! A shard is read by many at once; it is written for as long as one event takes.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;

use xxhash_rust::xxh3::xxh3_64;

use super::chain::Chain;
use super::held::Held;
use super::view::Trust;
use crate::prefix::{AsIs, Bits, OWNERS_MAX};

/// Locks.
const SHARDS: usize = 16;

/// The least distance of two blocks that are looked up, in tokens.
pub const STEP_TOKENS: u32 = 16;

/// Blocks of one look-up that are taken at a time.
const STRIDE: usize = 8;

/// Sizes of blocks that are looked up for one prompt: fleets have one, or two while they change.
const SIZES_MAX: usize = 4;

/// Adapters that are told apart by name. Others are taken for nobody's.
pub const ADAPTERS_MAX: usize = 256;

/// What a block takes here: its hash, the set, and the table's spare room; and in its worker's own list.
const ENTRY_BYTES: usize = 64;
pub(super) const LISTED_BYTES: usize = 48;

/// Workers that one budget is for.
const WORKERS_PER_BUDGET: usize = 64;

type Table = HashMap<u64, Bits, BuildHasherDefault<AsIs>>;

/// Remembers what workers said that they hold.
#[derive(Debug)]
pub struct KvIndex {
    shards: Box<[RwLock<Table>]>,
    numbers: Mutex<Numbers>,
    bytes: AtomicUsize,
    budget_each: usize,
    feeds: AtomicUsize,
    /// A prompt was looked up, so it is worth hearing workers.
    wanted: AtomicBool,
    sizes: [AtomicU32; SIZES_MAX],
    /// Hashes of the names of adapters that blocks were stored for.
    adapters: Box<[AtomicU64]>,
    /// Choices by what was known of the chosen worker, in the order of [`Trust::ALL`].
    choices: [AtomicU64; Trust::ALL.len()],
}

#[derive(Debug, Default)]
struct Numbers {
    next: u32,
    free: Vec<u32>,
}

/// Which of a chain's blocks are looked up.
pub(super) fn counts(depth: usize, block_tokens: u32) -> bool {
    (depth + 1).is_multiple_of(step(block_tokens))
}

fn step(block_tokens: u32) -> usize {
    STEP_TOKENS.div_ceil(block_tokens.max(1)) as usize
}

pub(super) fn shard_of(first: u64) -> usize {
    first as usize % SHARDS
}

impl KvIndex {
    /// An index that takes about `budget_bytes` of memory for each 64 workers that tell their events.
    pub fn new(budget_bytes: usize) -> KvIndex {
        KvIndex {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            numbers: Mutex::default(),
            bytes: AtomicUsize::new(0),
            budget_each: budget_bytes,
            feeds: AtomicUsize::new(0),
            wanted: AtomicBool::new(false),
            sizes: Default::default(),
            adapters: (0..ADAPTERS_MAX).map(|_| AtomicU64::new(0)).collect(),
            choices: Default::default(),
        }
    }

    /// Were blocks stored for an adapter of this name?
    pub fn is_adapter(&self, name: &str) -> bool {
        let name = xxh3_64(name.as_bytes());
        self.adapters
            .iter()
            .map(|own| own.load(Ordering::Relaxed))
            .take_while(|own| *own != 0)
            .any(|own| own == name)
    }

    pub(super) fn adapter(&self, name: &str) {
        let name = xxh3_64(name.as_bytes());
        let _known = self.adapters.iter().any(|own| {
            let taken = own.compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok() || taken == Err(name)
        });
    }

    /// Somebody looks prompts up: from now on it is worth hearing what workers tell.
    pub fn want(&self) {
        if !self.is_wanted() {
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// A worker was chosen of which so much was known.
    pub fn chose(&self, trust: Trust) {
        self.choices[trust as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so.
    pub fn choices(&self, trust: Trust) -> u64 {
        self.choices[trust as usize].load(Ordering::Relaxed)
    }

    /// The memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The memory that may be in use, in bytes.
    pub fn budget(&self) -> usize {
        let begun = self.feeds().div_ceil(WORKERS_PER_BUDGET).max(1);
        self.budget_each.saturating_mul(begun)
    }

    /// Workers whose events are heard.
    pub fn feeds(&self) -> usize {
        self.feeds.load(Ordering::Relaxed)
    }

    /// Distinct blocks.
    pub fn entries(&self) -> usize {
        self.shards.iter().map(|shard| read(shard).len()).sum()
    }

    /// Sizes of blocks that there are. Empty: nobody has told of a block yet.
    pub fn sizes(&self) -> SmallVec<[u32; SIZES_MAX]> {
        self.sizes.iter().map(|size| size.load(Ordering::Relaxed)).filter(|size| *size > 0).collect()
    }

    /// Who holds how much of it?
    pub fn find(&self, chain: &Chain) -> Held {
        let Some(first) = chain.hashes.first() else { return Held::default() };
        let table = read(&self.shards[shard_of(*first)]);
        let step = step(chain.block_tokens);
        let places = chain.hashes.len() / step;
        let holders = |place: usize| table.get(&chain.hashes[(place + 1) * step - 1]);
        let none = Bits::default();
        let first = if places == 0 { None } else { holders(0) };
        let Some(first) = first else { return Held::default() };
        let (mut following, mut at) = (Held::begin(first), 1);
        while !following.is_over() && at < places {
            let far = (at + STRIDE - 1).min(places - 1);
            if far > at && holders(far).is_some_and(|there| following.all_in(there)) {
                at = far + 1;
                continue;
            }
            following.keep(holders(at).unwrap_or(&none), (at * step) as u32);
            at += 1;
        }
        following.end((at.min(places) * step) as u32)
    }

    /// A number for a worker that begins to tell. `None`: too many do.
    pub(super) fn enter(&self) -> Option<u32> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let number = numbers.free.pop().or_else(|| {
            let next = numbers.next;
            ((next as usize) < OWNERS_MAX).then(|| {
                numbers.next += 1;
                next
            })
        });
        if number.is_some() {
            self.feeds.fetch_add(1, Ordering::Relaxed);
        }
        number
    }

    /// No trace of the number is left.
    pub(super) fn leave(&self, number: u32) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).free.push(number);
        self.feeds.fetch_sub(1, Ordering::Relaxed);
    }

    /// There are blocks of this size. False: there are too many sizes already.
    pub(super) fn uses(&self, block_tokens: u32) -> bool {
        self.sizes.iter().any(|size| {
            let taken = size.compare_exchange(0, block_tokens, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok() || taken == Err(block_tokens)
        })
    }

    /// One worker's changes to one prompt's shard.
    pub(super) fn change(&self, shard: usize, change: impl FnOnce(&mut Entries<'_>)) {
        let mut entries = Entries { table: write(&self.shards[shard % SHARDS]), more: 0, less: 0 };
        change(&mut entries);
        let (more, less) = (entries.more, entries.less);
        drop(entries);
        self.bytes.fetch_add(more, Ordering::Relaxed);
        self.bytes.fetch_sub(less, Ordering::Relaxed);
    }

    /// So many more or fewer blocks stand in workers' own lists.
    pub(super) fn listed(&self, before: usize, after: usize) {
        self.bytes.fetch_add(after * LISTED_BYTES, Ordering::Relaxed);
        self.bytes.fetch_sub(before * LISTED_BYTES, Ordering::Relaxed);
    }
}

/// A shard that is being written, and what that adds to its memory.
pub(super) struct Entries<'a> {
    table: RwLockWriteGuard<'a, Table>,
    more: usize,
    less: usize,
}

impl Entries<'_> {
    pub fn set(&mut self, hash: u64, number: u32) {
        let mut new = false;
        let holders = self.table.entry(hash).or_insert_with(|| {
            new = true;
            Bits::default()
        });
        let before = holders.bytes();
        holders.set(number as usize);
        self.more += holders.bytes() + if new { ENTRY_BYTES } else { 0 };
        self.less += before;
    }

    pub fn clear(&mut self, hash: u64, number: u32) {
        let Some(holders) = self.table.get_mut(&hash) else { return };
        let before = holders.bytes();
        holders.clear(number as usize);
        self.less += before;
        match holders.is_empty() {
            true => {
                self.table.remove(&hash);
                self.less += ENTRY_BYTES;
            }
            false => self.more += holders.bytes(),
        }
        // Room for a fleet's worth of blocks is not kept for a few.
        if self.table.capacity() > 4096 && self.table.len() * 8 < self.table.capacity() {
            self.table.shrink_to_fit();
        }
    }
}

fn read(shard: &RwLock<Table>) -> RwLockReadGuard<'_, Table> {
    shard.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(shard: &RwLock<Table>) -> RwLockWriteGuard<'_, Table> {
    shard.write().unwrap_or_else(PoisonError::into_inner)
}
