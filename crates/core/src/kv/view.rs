//! How much is known of one worker's cache, and how well.
//!
//! Stands in the worker's seat. The one who hears its events writes it, placement and metrics read it without a lock;
//! only the prompts that are on their way have one, and only where there are any.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::chain::Chain;
use crate::time::{Duration, Instant};

/// Prompts on their way to one worker that count as held there. Further ones do not.
pub const EXPECTED_MAX: usize = 64;

/// What the events of a worker are worth now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Nobody hears them, or they are more than there is memory for: nothing is known.
    #[default]
    None = 0,
    /// What was stored since somebody listens is known; what was there before is not.
    Partial = 1,
    /// All is known.
    Whole = 2,
}

impl Trust {
    pub const ALL: [Trust; 3] = [Trust::None, Trust::Partial, Trust::Whole];

    pub fn as_str(self) -> &'static str {
        match self {
            Trust::None => "none",
            Trust::Partial => "partial",
            Trust::Whole => "whole",
        }
    }
}

/// What happened to events, each counted since the worker joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happened {
    /// Blocks were stored.
    Stored,
    Removed,
    Cleared,
    /// About another tier, place or group of layers.
    Elsewhere,
    Unknown,
    /// Blocks whose parent is not known, and so are not either.
    Orphan,
}

impl Happened {
    pub const ALL: [Happened; 6] = [
        Happened::Stored,
        Happened::Removed,
        Happened::Cleared,
        Happened::Elsewhere,
        Happened::Unknown,
        Happened::Orphan,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Happened::Stored => "stored",
            Happened::Removed => "removed",
            Happened::Cleared => "cleared",
            Happened::Elsewhere => "elsewhere",
            Happened::Unknown => "unknown",
            Happened::Orphan => "orphan",
        }
    }
}

/// Why a view was dropped or mended, each counted since the worker joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// Batches are missing and the engine did not send them again.
    Gap,
    /// Batches were missing and the engine sent them again.
    Replayed,
    /// The numbers of batches began anew.
    Restart,
    /// A batch could not be read.
    Malformed,
    /// It took more memory than there is.
    Full,
    /// The connection was lost or could not be made.
    Lost,
}

impl Trouble {
    pub const ALL: [Trouble; 6] =
        [Trouble::Gap, Trouble::Replayed, Trouble::Restart, Trouble::Malformed, Trouble::Full, Trouble::Lost];

    pub fn as_str(self) -> &'static str {
        match self {
            Trouble::Gap => "gap",
            Trouble::Replayed => "replayed",
            Trouble::Restart => "restart",
            Trouble::Malformed => "malformed",
            Trouble::Full => "full",
            Trouble::Lost => "lost",
        }
    }
}

/// What is known of one worker's cache.
#[derive(Debug, Default)]
pub struct View {
    trust: AtomicU8,
    /// The life of the worker that this is about.
    life: AtomicU32,
    /// Its number in the index, plus one.
    number: AtomicU32,
    block_tokens: AtomicU32,
    /// Microseconds; when the last batch came. 0: never.
    heard: AtomicU64,
    blocks: AtomicUsize,
    happened: [AtomicU64; Happened::ALL.len()],
    troubles: [AtomicU64; Trouble::ALL.len()],
    expecting: AtomicU32,
    expected: Mutex<SmallVec<[Arc<Chain>; 4]>>,
}

impl View {
    /// What the view is worth for this life of the worker.
    #[inline]
    pub fn trust(&self, life: u32) -> Trust {
        match self.trust.load(Ordering::Acquire) {
            _ if self.life.load(Ordering::Acquire) != life => Trust::None,
            1 => Trust::Partial,
            2 => Trust::Whole,
            _ => Trust::None,
        }
    }

    /// Its number in the index.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        self.number.load(Ordering::Acquire).checked_sub(1)
    }

    /// Tokens in a block of the worker's, once one was stored.
    #[inline]
    pub fn block_tokens(&self) -> Option<u32> {
        Some(self.block_tokens.load(Ordering::Acquire)).filter(|size| *size > 0)
    }

    /// Blocks that it is known to hold.
    pub fn blocks(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Was anything ever heard of it, or meant to be?
    pub fn is_used(&self) -> bool {
        let troubled = || self.troubles.iter().any(|times| times.load(Ordering::Relaxed) > 0);
        self.number().is_some() || self.heard.load(Ordering::Relaxed) > 0 || troubled()
    }

    /// How long ago the last batch came.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard > 0).then(|| now.since(Instant::from_micros(heard)))
    }

    pub fn happened(&self, what: Happened) -> u64 {
        self.happened[what as usize].load(Ordering::Relaxed)
    }

    pub fn troubles(&self, what: Trouble) -> u64 {
        self.troubles[what as usize].load(Ordering::Relaxed)
    }

    pub fn trouble(&self, what: Trouble) {
        self.troubles[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self, what: Happened, times: u64) {
        self.happened[what as usize].fetch_add(times, Ordering::Relaxed);
    }

    pub(super) fn set_trust(&self, trust: Trust) {
        self.trust.store(trust as u8, Ordering::Release);
    }

    pub(super) fn begin(&self, number: Option<u32>, life: u32) {
        self.set_trust(Trust::None);
        self.life.store(life, Ordering::Release);
        self.number.store(number.map_or(0, |number| number + 1), Ordering::Release);
    }

    pub(super) fn heard(&self, now: Instant) {
        self.heard.store(now.as_micros().max(1), Ordering::Relaxed);
    }

    pub(super) fn holds(&self, blocks: usize, block_tokens: u32) {
        self.blocks.store(blocks, Ordering::Relaxed);
        self.block_tokens.store(block_tokens, Ordering::Release);
    }

    /// How many of a prompt's first blocks are on their way to the worker or being computed there.
    #[inline]
    pub fn awaits(&self, chain: &Chain) -> u32 {
        if self.expecting.load(Ordering::Acquire) == 0 { 0 } else { self.most_alike(chain) }
    }

    fn most_alike(&self, chain: &Chain) -> u32 {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        expected.iter().map(|other| other.alike(chain)).max().unwrap_or(0)
    }

    /// The prompt is on its way, as long as the returned value lives.
    pub fn expect(self: &Arc<Self>, chain: &Arc<Chain>) -> Option<Expected> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        if expected.len() >= EXPECTED_MAX {
            return None;
        }
        expected.push(chain.clone());
        self.expecting.store(expected.len() as u32, Ordering::Release);
        Some(Expected { view: self.clone(), chain: chain.clone() })
    }
}

/// A prompt on its way to a worker.
#[derive(Debug)]
#[must_use = "a prompt that is dropped at once is not on its way"]
pub struct Expected {
    view: Arc<View>,
    chain: Arc<Chain>,
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut expected = self.view.expected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = expected.iter().position(|chain| Arc::ptr_eq(chain, &self.chain)) {
            expected.swap_remove(at);
        }
        self.view.expecting.store(expected.len() as u32, Ordering::Release);
    }
}
