//! Tokens that workers are charged with (`token_load`, `hybrid_cache_load`): what a prefill computes, what it keeps
//! until the decode is done, and what a decode holds.
//!
//! A charge is made when its workers are chosen. The part that is computed goes back when the prefill has answered,
//! the rest when the request is over; in whatever order, as often as anybody likes. What never comes back is taken
//! back by force after its own time. Plain data.

use std::collections::BTreeMap;

use super::shared::Decodes;
use crate::time::{Duration, Instant};

/// Bytes of a request's body that stand for a token (AIBrix's page).
const BYTES_PER_TOKEN: usize = 4;

/// Prompt tokens of a request whose body is so long.
pub fn prompt_tokens(body_bytes: usize) -> u64 {
    (body_bytes / BYTES_PER_TOKEN) as u64
}

/// One request's charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The worker that computes the prompt, and what that is charged as. `None`: its policy charges nothing.
    pub prefill: Option<(u32, u64)>,
    /// The worker that decodes, and the prompt that it receives.
    pub decode: Option<(u32, u64)>,
    pub at: Instant,
    /// Age at which it is taken back by force. Zero: never.
    pub ttl: Duration,
}

/// A part of a charge that comes back on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The prompt is computed.
    Active,
    /// The request is over: its KV on both workers.
    Rest,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    charge: Charge,
    active: bool,
    rest: bool,
}

/// What one worker is charged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    pub active: u64,
    pub kv: u64,
    pub decode: u64,
    /// Requests it decodes, and the sum of the moments at which they were charged, in microseconds.
    decodes: u64,
    since_us: u128,
}

impl Tokens {
    fn is_zero(&self) -> bool {
        *self == Tokens::default()
    }

    /// Its decodes as other gateways are told of them.
    pub fn decodes(&self) -> Decodes {
        Decodes { tokens: self.decode, charges: self.decodes, since_us: self.since_us }
    }

    /// For how long its decodes have been charged, in seconds, all together.
    pub fn decode_secs(&self, now: Instant) -> f64 {
        let until = u128::from(now.as_micros()) * u128::from(self.decodes);
        until.saturating_sub(self.since_us) as f64 / 1e6
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    tokens: Tokens,
    touched: bool,
}

/// A charge that was taken back by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    pub id: u64,
    pub charge: Charge,
}

/// All charges. Bounded by the requests that run, and by time for those that were lost.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<u64, Entry>,
    rows: BTreeMap<u32, Row>,
}

impl Ledger {
    /// Charges the workers. True: the id had a charge already, which is given back first.
    pub fn charge(&mut self, id: u64, charge: Charge) -> bool {
        let twice = self.entries.contains_key(&id);
        self.release_all(id);
        if let Some((worker, cost)) = charge.prefill {
            let tokens = self.touch(worker);
            tokens.active = tokens.active.saturating_add(cost);
            tokens.kv = tokens.kv.saturating_add(cost);
        }
        if let Some((worker, prompt)) = charge.decode {
            let tokens = self.touch(worker);
            tokens.decode = tokens.decode.saturating_add(prompt);
            tokens.decodes += 1;
            tokens.since_us += u128::from(charge.at.as_micros());
        }
        self.entries.insert(id, Entry { charge, active: true, rest: true });
        twice
    }

    /// Gives one part back. Does nothing if it is back.
    pub fn release(&mut self, id: u64, part: Part) {
        let Some(mut entry) = self.entries.get(&id).copied() else { return };
        match part {
            Part::Active if entry.active => {
                entry.active = false;
                if let Some((worker, cost)) = entry.charge.prefill {
                    let tokens = self.touch(worker);
                    tokens.active = tokens.active.saturating_sub(cost);
                }
            }
            Part::Rest if entry.rest => {
                entry.rest = false;
                self.release_rest(&entry.charge);
            }
            _ => return,
        }
        if entry.active || entry.rest {
            self.entries.insert(id, entry);
        } else {
            self.entries.remove(&id);
        }
    }

    fn release_rest(&mut self, charge: &Charge) {
        if let Some((worker, cost)) = charge.prefill {
            let tokens = self.touch(worker);
            tokens.kv = tokens.kv.saturating_sub(cost);
        }
        if let Some((worker, prompt)) = charge.decode {
            let tokens = self.touch(worker);
            tokens.decode = tokens.decode.saturating_sub(prompt);
            tokens.decodes = tokens.decodes.saturating_sub(1);
            tokens.since_us = tokens.since_us.saturating_sub(u128::from(charge.at.as_micros()));
        }
    }

    /// The charge's prefill computes nothing after all, and keeps nothing.
    pub fn forgo_prefill(&mut self, id: u64) {
        self.release(id, Part::Active);
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.rest) else { return };
        if let Some((worker, cost)) = entry.charge.prefill.take() {
            let tokens = self.touch(worker);
            tokens.kv = tokens.kv.saturating_sub(cost);
        }
    }

    pub fn release_all(&mut self, id: u64) {
        self.release(id, Part::Active);
        self.release(id, Part::Rest);
    }

    pub fn tokens(&self, worker: u32) -> Tokens {
        self.rows.get(&worker).map(|row| row.tokens).unwrap_or_default()
    }

    /// All workers that have a row, and what they are charged with.
    pub fn rows(&self) -> impl Iterator<Item = (u32, Tokens)> {
        self.rows.iter().map(|(worker, row)| (*worker, row.tokens))
    }

    /// Takes back what is older than its time, then forgets workers that have been at rest since the last sweep.
    pub fn sweep(&mut self, now: Instant) -> Vec<Stale> {
        let old = |e: &Entry| !e.charge.ttl.is_zero() && now.since(e.charge.at) > e.charge.ttl;
        let stale: Vec<Stale> = self
            .entries
            .iter()
            .filter(|(_, e)| old(e))
            .map(|(id, e)| Stale { id: *id, charge: e.charge })
            .collect();
        for stale in &stale {
            self.release_all(stale.id);
        }
        self.rows.retain(|_, row| std::mem::take(&mut row.touched) || !row.tokens.is_zero());
        stale
    }

    fn touch(&mut self, worker: u32) -> &mut Tokens {
        let row = self.rows.entry(worker).or_default();
        row.touched = true;
        &mut row.tokens
    }
}
