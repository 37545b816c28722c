//! One worker's events, in their order, into the index.
//!
//! Batches are numbered from 0 when the engine starts. A number that is missing may be asked for again where the engine
//! offers that; what cannot be had makes all that was known of the worker worthless, because a block that was given
//! away meanwhile would still count. Numbers that go back are a new engine at the old address. So is a connection that
//! was lost, until the numbers say otherwise: a [`Feed`] lives as long as one connection does.

use std::collections::HashMap;
use std::sync::Arc;

use super::batch::{Batch, Event, Removed, Stored};
use super::chain;
use super::index::{KvIndex, counts, shard_of};
use super::view::{Happened, Trouble, Trust, View};
use crate::time::Instant;

/// Blocks that one worker may have; with blocks of 16 tokens, a cache of 16 million of them.
pub const BLOCKS_PER_WORKER_MAX: usize = 1 << 20;

/// What to do with a batch that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is in the index, or need not be.
    Done,
    /// Those from this number on are missing: ask the engine for them, then offer this batch again.
    Missing { from: u64 },
    /// It is more than there is memory for: the worker is not heard any more.
    Full,
}

/// One worker's events of one connection. Dropping it forgets them.
#[derive(Debug)]
pub struct Feed {
    index: Arc<KvIndex>,
    view: Arc<View>,
    number: u32,
    /// By the engine's hash.
    blocks: HashMap<u64, Block>,
    block_tokens: u32,
    /// The group of layers that keeps all of a prompt.
    group: u32,
    last: Option<u64>,
    /// Numbers up to this came by a replay, and may come again.
    replayed: Option<u64>,
    full: bool,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    hash: u64,
    depth: u32,
    /// The prompt's first block says in which shard it is.
    shard: u8,
}

impl Feed {
    /// Nothing is known of the worker yet. `None`: too many workers tell their events.
    pub fn begin(index: &Arc<KvIndex>, view: &Arc<View>, life: u32) -> Option<Feed> {
        let number = index.enter()?;
        view.begin(Some(number), life);
        view.holds(0, 0);
        Some(Feed {
            index: index.clone(),
            view: view.clone(),
            number,
            blocks: HashMap::new(),
            block_tokens: 0,
            group: 0,
            last: None,
            replayed: None,
            full: false,
        })
    }

    /// The number that the next batch should have.
    pub fn expects(&self) -> u64 {
        self.last.map_or(0, |last| last.saturating_add(1))
    }

    /// The engine is heard from now on: what it stores will be known.
    pub fn listening(&self) {
        if !self.full {
            self.view.set_trust(Trust::Partial);
        }
    }

    /// A batch that the engine sent as it happened. `can_ask`: what is missing before it can be asked for.
    pub fn take(&mut self, number: u64, payload: &[u8], can_ask: bool, now: Instant) -> Next {
        if self.replayed.is_some_and(|replayed| number <= replayed) {
            return Next::Done;
        }
        self.replayed = None;
        let expected = self.expects();
        if number < expected {
            self.view.trouble(Trouble::Restart);
            self.forget();
            self.last = None;
            return self.take(number, payload, can_ask, now);
        }
        if number > expected && can_ask {
            return Next::Missing { from: expected };
        }
        if number > expected && self.last.is_some() {
            self.view.trouble(Trouble::Gap);
            self.forget();
            self.view.set_trust(Trust::Partial);
        }
        self.apply(number, payload, now)
    }

    /// A batch that the engine sent again because it was asked. Gives false if it is of no use, and no later one will
    /// be either.
    pub fn replay(&mut self, number: u64, payload: &[u8], now: Instant) -> bool {
        if number < self.expects() {
            return true;
        }
        if number > self.expects() && self.last.is_some() {
            return false;
        }
        self.replayed = Some(number);
        self.apply(number, payload, now) == Next::Done
    }

    /// The engine has sent all that it keeps. One that keeps nothing has never published anything, and holds nothing.
    pub fn replayed_all(&mut self) {
        if self.last.is_none() && !self.full {
            self.view.set_trust(Trust::Whole);
        }
    }

    fn apply(&mut self, number: u64, payload: &[u8], now: Instant) -> Next {
        if self.full {
            return Next::Full;
        }
        let begins = self.last.is_none();
        self.last = Some(number);
        self.view.heard(now);
        let Ok(batch) = Batch::decode(payload) else {
            self.view.trouble(Trouble::Malformed);
            self.forget();
            self.view.set_trust(Trust::Partial);
            return Next::Done;
        };
        if begins && number == 0 {
            self.view.set_trust(Trust::Whole);
        } else if begins {
            self.view.set_trust(Trust::Partial);
        }
        for event in &batch.events {
            self.hear(event);
        }
        self.view.holds(self.blocks.len(), self.block_tokens);
        if self.blocks.len() > BLOCKS_PER_WORKER_MAX || self.index.bytes() > self.index.budget() {
            self.view.trouble(Trouble::Full);
            self.forget();
            self.full = true;
            self.view.set_trust(Trust::None);
            return Next::Full;
        }
        Next::Done
    }

    fn hear(&mut self, event: &Event) {
        let what = match event {
            Event::Stored(stored) => return self.store(stored),
            Event::Removed(removed) => return self.remove(removed),
            Event::Cleared => {
                self.forget();
                // Nothing is there, so all that is there is known.
                self.view.set_trust(Trust::Whole);
                Happened::Cleared
            }
            Event::Elsewhere => Happened::Elsewhere,
            Event::Unknown => Happened::Unknown,
        };
        self.view.count(what, 1);
    }

    fn store(&mut self, stored: &Stored) {
        let size = stored.block_tokens;
        let other_group = stored.group.is_some_and(|group| !self.blocks.is_empty() && group != self.group);
        let other_size = self.block_tokens != 0 && size != self.block_tokens;
        if other_group || other_size || size == 0 || !self.index.uses(size) {
            return self.view.count(Happened::Elsewhere, 1);
        }
        let parent = stored.parent.map(|parent| self.blocks.get(&parent).copied());
        let (mut hash, mut depth, mut shard) = match parent {
            None => (chain::seed(stored.lora.as_deref(), stored.salt.as_deref()), 0, None),
            Some(Some(parent)) => (parent.hash, parent.depth + 1, Some(parent.shard)),
            Some(None) => return self.view.count(Happened::Orphan, stored.hashes.len() as u64),
        };
        if let Some(lora) = stored.lora.as_deref().filter(|_| stored.parent.is_none()) {
            self.index.adapter(lora);
        }
        (self.block_tokens, self.group) = (size, stored.group.unwrap_or(self.group));
        let before = self.blocks.len();
        let mut own = Vec::with_capacity(stored.hashes.len());
        for (place, tokens) in stored.tokens.chunks_exact(size as usize).enumerate() {
            hash = chain::next(hash, tokens, stored.extras.get(place).copied().flatten());
            let shard = *shard.get_or_insert(shard_of(hash) as u8);
            let Some(theirs) = stored.hashes.get(place) else { break };
            own.push((*theirs, Block { hash, depth, shard }));
            depth += 1;
        }
        let number = self.number;
        self.index.change(usize::from(shard.unwrap_or(0)), |entries| {
            for (theirs, block) in &own {
                let old = self.blocks.insert(*theirs, *block);
                // The same hash for another prompt would stay behind.
                if let Some(old) = old.filter(|old| old.hash != block.hash && old.shard == block.shard) {
                    entries.clear(old.hash, number);
                }
                if counts(block.depth as usize, size) {
                    entries.set(block.hash, number);
                }
            }
        });
        self.index.listed(before, self.blocks.len());
        self.view.count(Happened::Stored, own.len() as u64);
    }

    fn remove(&mut self, removed: &Removed) {
        if removed.group.is_some_and(|group| group != self.group) {
            return self.view.count(Happened::Elsewhere, 1);
        }
        let before = self.blocks.len();
        let (number, size) = (self.number, self.block_tokens);
        for theirs in &removed.hashes {
            let Some(block) = self.blocks.remove(theirs) else { continue };
            if counts(block.depth as usize, size) {
                self.index.change(usize::from(block.shard), |entries| entries.clear(block.hash, number));
            }
        }
        self.index.listed(before, self.blocks.len());
        self.view.count(Happened::Removed, removed.hashes.len() as u64);
    }

    /// Nothing is known to be there any more.
    fn forget(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        self.index.listed(blocks.len(), 0);
        let (number, size) = (self.number, self.block_tokens);
        for block in blocks.into_values().filter(|block| counts(block.depth as usize, size)) {
            self.index.change(usize::from(block.shard), |entries| entries.clear(block.hash, number));
        }
        self.block_tokens = 0;
        self.view.holds(0, 0);
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.view.set_trust(Trust::None);
        self.forget();
        self.view.begin(None, 0);
        self.index.leave(self.number);
    }
}
