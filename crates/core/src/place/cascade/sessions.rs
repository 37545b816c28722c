//! How long was a session's last prompt? A turn that resends its history is charged for what is new in it.

use std::collections::HashMap;
use std::fmt;

use crate::time::{Duration, Instant};

/// Longest session key that is taken, in bytes.
pub const KEY_MAX: usize = 256;

/// What one request says that its charge depends on.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    pub model: &'a str,
    /// The client's `x-aibrix-session-key`.
    pub key: Option<&'a str>,
    pub prompt_tokens: u64,
    /// Share of the prompt that the chosen worker holds, in percent. `None`: nobody looked.
    pub matched_pct: Option<u32>,
    /// How old the session's last prompt may be to count for this request. Zero: the session rule is off for it.
    pub ttl: Duration,
    /// Another try of a request whose prompt was charged before: the session has grown by what it had then.
    pub again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    tokens: u64,
    /// What it was before that, if that counted.
    before: Option<u64>,
    at: Instant,
    /// How long it is remembered: the longest that any request of the session asked for.
    ttl: Duration,
}

/// By which rule was it found how much of a prompt is new?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// What the session has grown by.
    Session,
    /// What the worker does not hold: this share of it matches, in percent.
    Match(u32),
    /// All of it.
    Prompt,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Session => f.write_str("its session has grown by that"),
            By::Match(percent) => write!(f, "{percent} % match"),
            By::Prompt => f.write_str("nobody looked what matches"),
        }
    }
}

/// The last prompt of each session. No more than so many sessions: a client cannot grow it.
#[derive(Debug, Default)]
pub struct Sessions {
    last: HashMap<String, Last>,
}

/// How many sessions are remembered, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct SessionRule {
    pub max: u64,
    /// At least, whatever a request says. Zero: for as long as that.
    pub ttl: Duration,
}

impl Sessions {
    /// Tokens of the prompt that have to be computed, by the first rule that applies: what the session has grown
    /// by, what the worker does not hold, all of it. Remembers the prompt's length for the session's next turn.
    pub fn new_tokens(&mut self, turn: &Turn<'_>, rule: SessionRule, now: Instant) -> u64 {
        self.new_by(turn, rule, now).0
    }

    /// The same, and by which rule.
    pub fn new_by(&mut self, turn: &Turn<'_>, rule: SessionRule, now: Instant) -> (u64, By) {
        let grown = turn.key.filter(|k| !k.is_empty() && k.len() <= KEY_MAX).and_then(|key| {
            let key = format!("{}\0{key}", turn.model);
            let fresh = |l: &&Last| !turn.ttl.is_zero() && now.since(l.at) <= turn.ttl;
            let same = |l: &Last| turn.again && l.tokens == turn.prompt_tokens;
            let tokens = |l: &Last| if same(l) { l.before } else { Some(l.tokens) };
            let last = self.last.get(&key).filter(fresh).and_then(tokens);
            self.remember(key, (turn, last), rule, now);
            turn.prompt_tokens.checked_sub(last?).filter(|n| *n > 0)
        });
        match (grown, turn.matched_pct) {
            (Some(grown), _) => (grown, By::Session),
            (None, Some(matched)) => {
                let missing = u128::from(100 - matched.min(100));
                ((u128::from(turn.prompt_tokens) * missing / 100) as u64, By::Match(matched))
            }
            (None, None) => (turn.prompt_tokens, By::Prompt),
        }
    }

    fn remember(
        &mut self,
        key: String,
        (turn, before): (&Turn<'_>, Option<u64>),
        rule: SessionRule,
        now: Instant,
    ) {
        let last = Last { tokens: turn.prompt_tokens, before, at: now, ttl: rule.ttl.max(turn.ttl) };
        let room = (self.last.len() as u64) < rule.max;
        match self.last.get_mut(&key) {
            Some(known) => *known = Last { ttl: known.ttl.max(last.ttl), ..last },
            None if room && !last.ttl.is_zero() => drop(self.last.insert(key, last)),
            None => {}
        }
    }

    /// Forgets sessions that were idle for longer than they are remembered.
    pub fn sweep(&mut self, now: Instant) {
        self.last.retain(|_, last| now.since(last.at) <= last.ttl);
    }

    pub fn len(&self) -> usize {
        self.last.len()
    }

    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }
}
