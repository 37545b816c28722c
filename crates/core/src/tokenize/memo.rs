//! What engines told a moment ago, for a client that sends the same prompt once more.
//!
//! Bounded in prompts, in tokens and in time; what is oldest goes first.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::time::{Duration, Instant};

/// Prompts that are remembered.
pub const PROMPTS_MAX: usize = 64;

/// Tokens of them all.
pub const TOKENS_MAX: usize = 1 << 20;

/// How long they are remembered.
pub const AGE: Duration = Duration::from_secs(60);

/// One lane's.
#[derive(Debug, Default)]
pub struct Memo {
    told: VecDeque<(u128, Instant, Arc<[u32]>)>,
    tokens: usize,
}

impl Memo {
    /// What was told of this question.
    pub fn find(&mut self, key: u128, now: Instant) -> Option<Arc<[u32]>> {
        while self.told.front().is_some_and(|(_, at, _)| now.since(*at) > AGE) {
            self.forget();
        }
        self.told.iter().rfind(|(of, ..)| *of == key).map(|(.., ids)| ids.clone())
    }

    pub fn keep(&mut self, key: u128, ids: &Arc<[u32]>, now: Instant) {
        if ids.len() > TOKENS_MAX {
            return;
        }
        while self.told.len() >= PROMPTS_MAX || self.tokens + ids.len() > TOKENS_MAX {
            self.forget();
        }
        self.tokens += ids.len();
        self.told.push_back((key, now, ids.clone()));
    }

    fn forget(&mut self) {
        if let Some((.., ids)) = self.told.pop_front() {
            self.tokens -= ids.len();
        }
    }
}
