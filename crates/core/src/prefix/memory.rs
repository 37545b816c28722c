//! What a policy remembers prompts by, and what it takes back of it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Heads, Holder, PrefixIndex};
use crate::prompt::{Blocks, Prompt};
use crate::time::Instant;

/// Where it is remembered who was sent what. A clone is the same memory.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Block by block.
    Tree(Arc<PrefixIndex>),
    /// By the beginnings up to certain positions.
    Heads(Arc<Heads>),
}

impl Memory {
    /// The memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Memory::Tree(index) => index.bytes(),
            Memory::Heads(heads) => heads.bytes(),
        }
    }

    /// The memory that may be in use, in bytes.
    pub fn budget(&self) -> usize {
        match self {
            Memory::Tree(index) => index.budget(),
            Memory::Heads(heads) => heads.budget(),
        }
    }

    /// What was forgotten so far because the memory was spent.
    pub fn evictions(&self) -> u64 {
        match self {
            Memory::Tree(index) => index.evictions(),
            Memory::Heads(heads) => heads.evictions(),
        }
    }

    /// The memory in use, counted anew from what is there.
    pub fn recount(&self) -> usize {
        match self {
            Memory::Tree(index) => index.recount(),
            Memory::Heads(heads) => heads.bytes(),
        }
    }

    /// These are all workers there are, in this picture of the fleet.
    pub fn keep_only(&self, picture: u64, holders: impl Iterator<Item = Holder>) {
        match self {
            Memory::Tree(index) => index.keep_only(picture, holders),
            Memory::Heads(heads) => heads.fit(picture, holders),
        }
    }

    /// The prompt as it is remembered; in blocks of so many tokens, unless it is cut elsewhere.
    pub fn cut(&self, prompt: &Prompt, block_tokens: usize) -> Arc<Blocks> {
        match self {
            Memory::Tree(_) => prompt.blocks(block_tokens),
            Memory::Heads(heads) => heads.cut(prompt),
        }
    }

    /// Who was sent how many of its first blocks, in the order of slots.
    pub fn find(&self, blocks: &Blocks, now: Instant) -> SmallVec<[(Holder, u32); 8]> {
        match self {
            Memory::Tree(index) => index.find(blocks).by_slot(),
            Memory::Heads(heads) => heads.find(blocks, now),
        }
    }

    /// The prompt goes to this worker, so the worker will hold it. What was new of it is taken back when the mark is
    /// dropped before [`Mark::keep`].
    pub fn hold(&self, blocks: &Arc<Blocks>, holder: Holder, now: Instant) -> Option<Mark> {
        match self {
            Memory::Tree(index) => index.hold(blocks, holder, now),
            Memory::Heads(heads) => {
                let from = heads.hold(blocks, holder, now);
                Some(Mark::new(self.clone(), blocks, holder, from))
            }
        }
    }
}

/// What an insertion added. Dropping it takes that back, for a prompt that was not computed after all.
#[derive(Debug)]
#[must_use = "a mark that is dropped at once takes the insertion back"]
pub struct Mark {
    memory: Memory,
    blocks: Arc<Blocks>,
    holder: Holder,
    /// Blocks that the worker was believed to hold before.
    from: u32,
    kept: bool,
}

impl Mark {
    pub(super) fn new(memory: Memory, blocks: &Arc<Blocks>, holder: Holder, from: u32) -> Mark {
        Mark { memory, blocks: blocks.clone(), holder, from, kept: false }
    }

    /// The worker has computed it.
    pub fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.kept || self.from as usize >= self.blocks.hashes.len() {
            return;
        }
        match &self.memory {
            Memory::Tree(index) => index.withdraw(&self.blocks, self.holder, self.from),
            Memory::Heads(heads) => heads.withdraw(&self.blocks, self.holder, self.from),
        }
    }
}
