//! Who was sent a prompt with this very beginning a short while ago?
//!
//! Engines that keep a prefix only at certain positions (`--cache-boundaries`) hit there or not at all, so a prompt is
//! known by its beginnings up to these, its heads: the deepest one that a worker was sent counts. A head names the last
//! few workers and forgets each after a time (SMG 1.13: three of them, `--cache-index hash` with `--cache-ttl-secs`).
//!
//! Memory: heads are kept in two generations. When the newer one is full, or as old as what it names may get, it
//! becomes the older one and what was in that is gone; whoever is sent a head again moves it into the newer one. So what
//! goes is what was longest not sent, without a list to keep in order, and after a quiet time nothing is left.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::{AsIs, Holder, WORKERS_PER_BUDGET};
use crate::prompt::{Blocks, Prompt};
use crate::time::{Duration, Instant};

/// Locks.
const SHARDS: usize = 16;

/// Workers that one head names (SMG 1.13).
pub const HEAD_HOLDERS: usize = 3;

/// What a head takes: a table that has just doubled is half empty, and an eighth of a table always is.
const HEAD_BYTES: usize = (size_of::<(u64, Head)>() + 1) * 16 / 7;

/// Remembers by heads who was sent what.
#[derive(Debug)]
pub struct Heads {
    shards: Box<[Mutex<Shard>]>,
    /// Where prompts are cut, in tokens.
    at: Arc<[usize]>,
    lasts: Duration,
    budget_each: usize,
    budget: AtomicUsize,
    /// The newest picture of the fleet that was looked at.
    picture: AtomicU64,
    /// Heads that were forgotten for want of memory.
    evicted: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    newer: Generation,
    older: Generation,
    /// When the newer one began.
    begun: Instant,
}

type Generation = HashMap<u64, Head, BuildHasherDefault<AsIs>>;

/// The last ones who were sent it. The free places come last.
type Head = [Option<Place>; HEAD_HOLDERS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    holder: Holder,
    since: Instant,
}

impl Shard {
    /// The head with those whose time is not over.
    fn find(&self, hash: u64, now: Instant, lasts: Duration) -> Head {
        let head = self.newer.get(&hash).or_else(|| self.older.get(&hash)).copied().unwrap_or_default();
        head.map(|place| place.filter(|place| now.since(place.since) < lasts))
    }

    /// How many heads fell out for want of room.
    fn turn(&mut self, now: Instant, lasts: Duration, most: usize) -> usize {
        let (full, aged) = (self.newer.len() >= most.div_ceil(2).max(1), now.since(self.begun) >= lasts);
        if !full && !aged {
            return 0;
        }
        self.begun = now;
        let gone = std::mem::replace(&mut self.older, std::mem::take(&mut self.newer));
        if aged { 0 } else { gone.len() }
    }

    fn set(&mut self, hash: u64, head: Head) {
        self.older.remove(&hash);
        match head.iter().any(Option::is_some) {
            true => drop(self.newer.insert(hash, head)),
            false => drop(self.newer.remove(&hash)),
        }
    }
}

impl Heads {
    /// Cuts prompts at these positions, takes about `budget_bytes` of memory for each 64 workers, and remembers for so
    /// long.
    pub fn new(budget_bytes: usize, at: &Arc<[usize]>, lasts: Duration) -> Heads {
        Heads {
            at: at.clone(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            lasts,
            budget_each: budget_bytes,
            budget: AtomicUsize::new(budget_bytes),
            picture: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// The prompt's heads.
    pub fn cut(&self, prompt: &Prompt) -> Arc<Blocks> {
        prompt.heads(&self.at)
    }

    /// The memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        let heads = |shard: &Mutex<Shard>| {
            let shard = lock(shard);
            shard.newer.len() + shard.older.len()
        };
        self.shards.iter().map(heads).sum::<usize>() * HEAD_BYTES
    }

    /// The memory that may be in use, in bytes.
    pub fn budget(&self) -> usize {
        self.budget.load(Ordering::Relaxed)
    }

    /// Heads that were forgotten so far because the memory was spent.
    pub fn evictions(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// The fleet has changed: so many workers there are. Who left is found no more, because it is no candidate, and who
    /// began a new life is another holder.
    pub fn fit(&self, picture: u64, workers: impl Iterator) {
        if self.picture.fetch_max(picture, Ordering::Relaxed) < picture {
            let begun = workers.count().div_ceil(WORKERS_PER_BUDGET).max(1);
            self.budget.store(self.budget_each.saturating_mul(begun), Ordering::Relaxed);
        }
    }

    /// Who was sent how many of its heads, in the order of slots.
    pub fn find(&self, heads: &Blocks, now: Instant) -> SmallVec<[(Holder, u32); 8]> {
        let mut found: SmallVec<[(Holder, u32); 8]> = SmallVec::new();
        for (at, hash) in heads.hashes.iter().enumerate().rev() {
            for place in self.shard(*hash).find(*hash, now, self.lasts).iter().flatten() {
                if !found.iter().any(|(holder, _)| *holder == place.holder) {
                    found.push((place.holder, at as u32 + 1));
                }
            }
        }
        found.sort_unstable_by_key(|(holder, _)| holder.slot);
        found
    }

    /// The prompt goes to this worker. How many of its heads the worker was sent before; for what is not computed after
    /// all, see [`Heads::withdraw`].
    pub(super) fn hold(&self, heads: &Blocks, holder: Holder, now: Instant) -> u32 {
        let mut before = 0;
        let most = self.budget() / SHARDS / HEAD_BYTES;
        for (count, hash) in (1u32..).zip(&heads.hashes) {
            let mut shard = self.shard(*hash);
            let known = shard.find(*hash, now, self.lasts);
            let gone = shard.turn(now, self.lasts, most);
            self.evicted.fetch_add(gone as u64, Ordering::Relaxed);
            let mut head: SmallVec<[Place; 4]> = known.into_iter().flatten().collect();
            let others = head.len();
            head.retain(|place| place.holder != holder);
            if head.len() < others {
                before = count;
            }
            head.insert(0, Place { holder, since: now });
            let mut places = head.into_iter();
            shard.set(*hash, std::array::from_fn(|_| places.next()));
        }
        before
    }

    /// The worker does not hold the heads after the first `from` after all.
    pub(super) fn withdraw(&self, heads: &Blocks, holder: Holder, from: u32) {
        for hash in heads.hashes.iter().skip(from as usize) {
            let mut shard = self.shard(*hash);
            let Shard { newer, older, .. } = &mut *shard;
            let generation = if newer.contains_key(hash) { newer } else { older };
            let Some(head) = generation.get_mut(hash) else { continue };
            let mut rest = head.iter().flatten().copied().filter(|place| place.holder != holder);
            let rest: Head = std::array::from_fn(|_| rest.next());
            *head = rest;
            if rest.iter().all(Option::is_none) {
                generation.remove(hash);
            }
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[hash as usize % SHARDS])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
