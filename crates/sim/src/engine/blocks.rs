//! KV blocks of one engine, really accounted.
//!
//! Decides which block a sequence gets, when a block is free again and which prompt blocks can be used a second time.
//! The scheme is vLLM's: blocks with no holder wait in one queue, oldest first, and keep their content until they are
//! taken for something else, so the queue is the prefix cache's eviction order at once.
//! Block 0 is never given away (vLLM keeps it as its null block); ids start at 1.
//!
//! It does not know who holds a block. Holders give back exactly what they took; the property test at the end checks
//! that free and held blocks always add up.

use std::collections::HashMap;

/// Index of a block on one engine.
pub type BlockId = u32;

#[derive(Clone, Debug, Default)]
struct Block {
    holders: u32,
    /// Key in the prefix cache, where this block is the cached one for that key.
    cached: Option<u64>,
    /// What was written into the block: the hash of all prompt tokens up to its end.
    content: u64,
    prev: BlockId,
    next: BlockId,
}

/// All blocks of an engine.
#[derive(Debug)]
pub struct BlockPool {
    /// `blocks[0]` is the null block and the ends of the free queue.
    blocks: Vec<Block>,
    free: u32,
    cache: HashMap<u64, BlockId>,
    caching: bool,
    /// What became of cached blocks since somebody asked. `None`: nobody does.
    changes: Option<Vec<Change>>,
}

/// What happened to the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The block at this place of a prompt can be found from now on.
    Cached { key: u64, place: usize },
    /// This one cannot any more.
    Dropped { key: u64 },
    /// None can.
    Forgotten,
}

impl BlockPool {
    /// A pool of `total` blocks. Without `caching` no prompt block is ever found again.
    #[must_use]
    pub fn new(total: u32, caching: bool) -> Self {
        let size = usize::try_from(total).unwrap_or(usize::MAX - 1) + 1;
        let blocks = vec![Block::default(); size];
        let mut pool = Self { blocks, free: 0, cache: HashMap::new(), caching, changes: None };
        for id in 1..=total {
            pool.append(id);
        }
        pool
    }

    /// Remembers changes of the cache from now on, for [`BlockPool::changes`].
    pub fn record(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// What happened to the cache since this was last asked, in its order.
    pub fn changes(&mut self) -> Vec<Change> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn note(&mut self, change: Change) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
    }

    /// How many blocks there are.
    #[must_use]
    pub fn total(&self) -> u32 {
        u32::try_from(self.blocks.len() - 1).unwrap_or(u32::MAX)
    }

    /// How many blocks nobody holds (their content may still be cached).
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free
    }

    /// How many blocks at the head of `chain` are cached.
    #[must_use]
    pub fn hits(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|key| self.cache.contains_key(key)).count()
    }

    /// Takes `total` blocks: the first `hits` are the cached ones of `chain`, the others fresh. `None` when there are
    /// not enough, and then nothing was taken.
    pub fn take(&mut self, chain: &[u64], hits: usize, total: usize) -> Option<Vec<BlockId>> {
        let cached: Vec<BlockId> =
            chain[..hits].iter().filter_map(|key| self.cache.get(key).copied()).collect();
        let unheld = cached.iter().filter(|id| self.at(**id).holders == 0).count();
        let fresh = total.checked_sub(cached.len())?;
        if usize::try_from(self.free).unwrap_or(0) < unheld + fresh {
            return None;
        }
        let mut taken = Vec::with_capacity(total + 1);
        for id in cached {
            self.hold(id);
            taken.push(id);
        }
        for _ in 0..fresh {
            taken.push(self.grow()?);
        }
        Some(taken)
    }

    /// Takes one fresh block, the one that was free for the longest time.
    pub fn grow(&mut self) -> Option<BlockId> {
        let id = self.blocks[0].next;
        if id == 0 {
            return None;
        }
        self.unlink(id);
        if let Some(key) = self.at_mut(id).cached.take() {
            self.cache.remove(&key);
            self.note(Change::Dropped { key });
        }
        let block = self.at_mut(id);
        block.holders = 1;
        block.content = 0;
        Some(id)
    }

    /// Writes the prompt's content into its blocks; the first `full` of them can be found by other prompts from now on.
    pub fn seal(&mut self, ids: &[BlockId], chain: &[u64], full: usize) {
        for (at, (id, content)) in ids.iter().zip(chain).enumerate() {
            self.at_mut(*id).content = *content;
            if self.caching && at < full && self.at(*id).cached.is_none() && !self.cache.contains_key(content)
            {
                self.cache.insert(*content, *id);
                self.at_mut(*id).cached = Some(*content);
                self.note(Change::Cached { key: *content, place: at });
            }
        }
    }

    /// What is in a block now, or `None` where there is no such block.
    #[must_use]
    pub fn content(&self, id: BlockId) -> Option<u64> {
        let index = usize::try_from(id).ok()?;
        self.blocks.get(index).map(|block| block.content)
    }

    /// Gives blocks back. The last one becomes the first to be reused, because a prompt's head is shared most often.
    pub fn give_back(&mut self, ids: Vec<BlockId>) {
        for id in ids.into_iter().rev() {
            let block = self.at_mut(id);
            block.holders = block.holders.saturating_sub(1);
            if block.holders == 0 {
                self.append(id);
            }
        }
    }

    /// Forgets all cached prompts; held blocks stay held.
    pub fn forget(&mut self) {
        self.cache.clear();
        self.note(Change::Forgotten);
        for block in &mut self.blocks {
            block.cached = None;
        }
    }

    fn hold(&mut self, id: BlockId) {
        if self.at(id).holders == 0 {
            self.unlink(id);
        }
        self.at_mut(id).holders += 1;
    }

    fn append(&mut self, id: BlockId) {
        let last = self.blocks[0].prev;
        self.at_mut(last).next = id;
        let block = self.at_mut(id);
        block.prev = last;
        block.next = 0;
        self.blocks[0].prev = id;
        self.free += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let (prev, next) = (self.at(id).prev, self.at(id).next);
        self.at_mut(prev).next = next;
        self.at_mut(next).prev = prev;
        self.free -= 1;
    }

    fn at(&self, id: BlockId) -> &Block {
        // Ids come from this pool alone, so an unknown one can only be the null block's.
        self.blocks.get(usize::try_from(id).unwrap_or(0)).unwrap_or(&self.blocks[0])
    }

    fn at_mut(&mut self, id: BlockId) -> &mut Block {
        let index = usize::try_from(id).unwrap_or(0);
        let index = if index < self.blocks.len() { index } else { 0 };
        &mut self.blocks[index]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_prompt_is_found_again_until_its_blocks_are_reused() {
        let mut pool = BlockPool::new(4, true);
        let chain = [11, 12, 13];
        let ids = pool.take(&chain, 0, 3).unwrap();
        pool.seal(&ids, &chain, 2);
        pool.give_back(ids.clone());
        assert_eq!((pool.free(), pool.hits(&chain)), (4, 2));

        let again = pool.take(&chain, 2, 3).unwrap();
        assert_eq!(again[..2], ids[..2]);
        assert!(pool.take(&[], 0, 2).is_none(), "only one block is left");
        pool.give_back(again);
        let all = pool.take(&[], 0, 4).unwrap();
        assert_eq!((pool.free(), pool.hits(&chain)), (0, 0));
        pool.give_back(all);
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn without_caching_nothing_is_found() {
        let mut pool = BlockPool::new(4, false);
        let ids = pool.take(&[7], 0, 1).unwrap();
        pool.seal(&ids, &[7], 1);
        assert_eq!((pool.hits(&[7]), pool.content(ids[0])), (0, Some(7)));
        assert_eq!(pool.content(9), None);
    }

    proptest! {
        /// Random takes (with prefix hits), growth and gives: free and held always add up, no block has two owners
        /// unless it was shared through the cache, and a cached key always leads to a block with that content.
        #[test]
        fn blocks_add_up(total in 1u32..40, ops in prop::collection::vec((0u8..4, 0u64..6, 1usize..6), 1..200)) {
            let mut pool = BlockPool::new(total, true);
            let mut held: Vec<Vec<BlockId>> = Vec::new();
            for (op, family, len) in ops {
                match op {
                    0 | 1 => {
                        let chain: Vec<u64> = (0..len as u64).map(|at| family * 100 + at + 1).collect();
                        let hits = pool.hits(&chain);
                        let before = pool.free();
                        match pool.take(&chain, hits, len) {
                            Some(ids) => {
                                prop_assert_eq!(ids.len(), len);
                                for (id, key) in ids.iter().zip(&chain[..hits]) {
                                    prop_assert_eq!(pool.content(*id), Some(*key));
                                }
                                pool.seal(&ids, &chain, len);
                                held.push(ids);
                            }
                            None => prop_assert_eq!(pool.free(), before),
                        }
                    }
                    2 => if let Some(id) = pool.grow() { held.push(vec![id]); },
                    _ => if !held.is_empty() {
                        let ids = held.swap_remove(len % held.len());
                        pool.give_back(ids);
                    },
                }
                let mut ids: Vec<BlockId> = held.iter().flatten().copied().collect();
                ids.sort_unstable();
                ids.dedup();
                prop_assert_eq!(pool.free() + u32::try_from(ids.len()).unwrap(), pool.total());
                for (key, id) in &pool.cache {
                    prop_assert_eq!(pool.content(*id), Some(*key));
                }
            }
            for ids in held {
                pool.give_back(ids);
            }
            prop_assert_eq!(pool.free(), total);
        }
    }
}
