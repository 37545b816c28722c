//! Hashes of a prompt's blocks that gateway and engine need not agree on.
//!
//! An engine's own hashes cannot be computed here. But its events name the tokens of each block, and so a chain of our
//! own hashes is made from them, and the same chain from a request's tokens. A block's hash stands for all tokens up to
//! its end, for the adapter and for the salt.

use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Tokens of one prompt that are looked up. What comes after is not told apart.
pub const TOKENS_MAX: usize = 1 << 20;

/// What keeps apart prompts of equal tokens.
pub fn seed(lora: Option<&str>, salt: Option<&str>) -> u64 {
    let lora = lora.map_or(1, |name| xxh3_64_with_seed(name.as_bytes(), 2));
    salt.map_or(lora, |salt| xxh3_64_with_seed(salt.as_bytes(), lora ^ 3))
}

/// Tokens of a block whose bytes are put together without asking for memory.
const SMALL_BLOCK: usize = 64;

/// The hash of the next block.
pub fn next(before: u64, tokens: &[u32], extra: Option<u64>) -> u64 {
    let hash = match tokens.len() {
        0..=SMALL_BLOCK => {
            let mut bytes = [[0; 4]; SMALL_BLOCK];
            bytes.iter_mut().zip(tokens).for_each(|(bytes, token)| *bytes = token.to_le_bytes());
            xxh3_64_with_seed(bytes[..tokens.len()].as_flattened(), before)
        }
        _ => {
            let bytes: Vec<[u8; 4]> = tokens.iter().map(|token| token.to_le_bytes()).collect();
            xxh3_64_with_seed(bytes.as_flattened(), before)
        }
    };
    extra.map_or(hash, |extra| xxh3_64(&(hash ^ extra).to_le_bytes()))
}

/// Chains of one prompt that are kept: fleets have blocks of one size, or two while they change.
const KEPT: usize = 2;

/// The chains of one prompt, by the size of the blocks and the seed. Each is made once.
#[derive(Clone, Debug, Default)]
pub struct Chains([OnceLock<(u64, Arc<Chain>)>; KEPT]);

impl Chains {
    /// The chain of these tokens, which are the same each time.
    pub fn of(&self, ids: &[u32], block_tokens: u32, seed: u64) -> Arc<Chain> {
        let new = || Arc::new(Chain::of(ids, block_tokens, seed));
        let mut kept = self.0.iter().map(|place| place.get_or_init(|| (seed, new())));
        let own = kept.find(|(own, chain)| *own == seed && chain.block_tokens == block_tokens);
        own.map_or_else(new, |(_, chain)| chain.clone())
    }
}

/// A prompt's whole blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Tokens in a block.
    pub block_tokens: u32,
    pub hashes: Box<[u64]>,
    /// Tokens of the prompt, what is behind its last whole block too.
    pub tokens: u64,
}

impl Chain {
    pub fn of(ids: &[u32], block_tokens: u32, seed: u64) -> Chain {
        let mut hash = seed;
        let looked_up = ids.get(..TOKENS_MAX).unwrap_or(ids);
        let blocks = looked_up.chunks_exact(block_tokens.max(1) as usize);
        let hashes = blocks.map(|block| {
            hash = next(hash, block, None);
            hash
        });
        Chain { block_tokens, hashes: hashes.collect(), tokens: ids.len() as u64 }
    }

    /// How many tokens so many of its blocks are.
    pub fn tokens_of(&self, blocks: u32) -> u64 {
        u64::from(blocks) * u64::from(self.block_tokens)
    }

    /// How many first blocks both have.
    pub fn alike(&self, other: &Chain) -> u32 {
        // Two prompts mostly have nothing in common.
        if self.block_tokens != other.block_tokens || self.hashes.first() != other.hashes.first() {
            return 0;
        }
        let most = self.hashes.len().min(other.hashes.len());
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = (low + high) / 2;
            match self.hashes[middle] == other.hashes[middle] {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_made_once_for_each_size_and_seed() {
        let (chains, ids): (Chains, Vec<u32>) = (Chains::default(), (0..100).collect());
        let first = chains.of(&ids, 16, 1);
        assert_eq!((*first).clone(), Chain::of(&ids, 16, 1));
        assert!(Arc::ptr_eq(&first, &chains.of(&ids, 16, 1)));
        for (size, seed) in [(16, 2), (32, 1), (64, 1), (100, 3)] {
            assert_eq!(*chains.of(&ids, size, seed), Chain::of(&ids, size, seed), "{size} {seed}");
        }
        assert!(Arc::ptr_eq(&first, &chains.of(&ids, 16, 1)));
    }

    #[test]
    fn a_block_of_any_size_is_the_hash_of_its_tokens() {
        for size in [0, 1, 16, 64, 65, 300] {
            let tokens: Vec<u32> = (7..7 + size).collect();
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            assert_eq!(next(5, &tokens, None), xxh3_64_with_seed(&bytes, 5), "{size}");
        }
    }
}
