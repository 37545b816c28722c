//! Hashes of a prompt's blocks that gateway and engine need not agree on.
//!
//! An engine's own hashes cannot be computed here. But its events name the tokens of each block, and so a chain of our
//! own hashes is made from them, and the same chain from a request's tokens. A block's hash stands for all tokens up to
//! its end, for the adapter and for the salt.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Tokens of one prompt that are looked up. What comes after is not told apart.
pub const TOKENS_MAX: usize = 1 << 20;

/// What keeps apart prompts of equal tokens.
pub fn seed(lora: Option<&str>, salt: Option<&str>) -> u64 {
    let lora = lora.map_or(1, |name| xxh3_64_with_seed(name.as_bytes(), 2));
    salt.map_or(lora, |salt| xxh3_64_with_seed(salt.as_bytes(), lora ^ 3))
}

/// The hash of the next block.
pub fn next(before: u64, tokens: &[u32], extra: Option<u64>) -> u64 {
    let mut bytes = smallvec::SmallVec::<[u8; 256]>::with_capacity(tokens.len() * 4);
    tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
    let hash = xxh3_64_with_seed(&bytes, before);
    extra.map_or(hash, |extra| xxh3_64(&(hash ^ extra).to_le_bytes()))
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
        if self.block_tokens != other.block_tokens {
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
