//! What an engine says of its cached blocks, as KV events.
//!
//! The hash that an engine names a block by is the one that its own cache knows it by. Blocks that follow each other are
//! told together, as vLLM tells the blocks that one step filled.

use baton_core::kv::{Event, Removed, Stored};

use super::blocks::{BlockPool, Change};

#[derive(Debug)]
pub(super) struct News {
    block_tokens: u32,
    events: Vec<Event>,
}

impl News {
    pub fn new(block_tokens: u32) -> Self {
        Self { block_tokens, events: Vec::new() }
    }

    /// Tells what happened so far; the last of it may be about this prompt.
    pub fn tell(&mut self, pool: &mut BlockPool, chain: &[u64], tokens: &[u32]) {
        let size = usize::try_from(self.block_tokens).unwrap_or(1).max(1);
        for change in pool.changes() {
            match change {
                Change::Forgotten => self.events.push(Event::Cleared),
                Change::Dropped { key } => match self.events.last_mut() {
                    Some(Event::Removed(removed)) => removed.hashes.push(key),
                    _ => self.events.push(Event::Removed(Removed { hashes: vec![key], group: None })),
                },
                Change::Cached { key, place } => {
                    let parent = place.checked_sub(1).and_then(|before| chain.get(before)).copied();
                    let own = tokens.get(place * size..(place + 1) * size).unwrap_or_default();
                    match self.events.last_mut() {
                        Some(Event::Stored(stored))
                            if parent.is_some() && stored.hashes.last() == parent.as_ref() =>
                        {
                            stored.hashes.push(key);
                            stored.tokens.extend_from_slice(own);
                        }
                        _ => self.events.push(Event::Stored(Stored {
                            hashes: vec![key],
                            parent,
                            tokens: own.to_vec(),
                            block_tokens: self.block_tokens,
                            ..Stored::default()
                        })),
                    }
                }
            }
        }
    }

    pub fn take(&mut self, pool: &mut BlockPool) -> Vec<Event> {
        self.tell(pool, &[], &[]);
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_as_they_come_and_go() {
        let mut pool = BlockPool::new(3, true);
        pool.record();
        let mut news = News::new(2);
        let (chain, tokens) = ([11, 12, 13], [1, 2, 3, 4, 5, 6]);
        let ids = pool.take(&chain, 0, 3).unwrap();
        pool.seal(&ids, &chain, 2);
        news.tell(&mut pool, &chain, &tokens);
        pool.give_back(ids);
        pool.take(&[], 0, 2).unwrap();
        let stored =
            Stored { hashes: vec![11, 12], tokens: vec![1, 2, 3, 4], block_tokens: 2, ..Stored::default() };
        let removed = Removed { hashes: vec![12], group: None };
        assert_eq!(news.take(&mut pool), [Event::Stored(stored), Event::Removed(removed)]);
        pool.forget();
        assert_eq!((news.take(&mut pool), news.take(&mut pool)), (vec![Event::Cleared], vec![]));
    }
}
