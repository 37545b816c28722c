//! What an engine counts: the numbers that tests assert on, and the raw material of `/metrics`.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One engine's numbers, or several engines' merged. `GET /sim/stats` answers this as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// How many engines these numbers are of.
    pub engines: u64,
    pub handoffs: HandoffStats,
    pub blocks: BlockStats,
    pub requests: RequestStats,
    pub tokens: TokenStats,
    /// Times an engine was killed from outside.
    pub kills: u64,
    /// Times an engine core died of what a request said.
    pub deaths: u64,
    /// Faults that were put on for a request or by the admin call, and came up.
    pub faults: u64,
}

/// Hand-offs. A prefill engine counts `made` and `expired`, a decode engine the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandoffStats {
    /// vLLM: blocks pinned for a decode engine. SGLang: rooms in which both halves met.
    pub made: u64,
    /// KV arrived, of the right prompt, in time, for the first time.
    pub right: u64,
    /// KV of another prompt, or parameters that did not agree with what the prefill engine knew.
    pub wrong: u64,
    /// vLLM: leases that ran out with nobody having read. SGLang: rooms that one half waited in until the timeout.
    pub expired: u64,
    /// Hand-offs used again after they were read or after the lease (vLLM), or a room used twice (SGLang).
    pub reused: u64,
    /// KV could not be had: the other half is gone, another engine, or it gave up.
    pub failed: u64,
}

/// KV blocks at this moment. Free, held, pinned and leaked ones add up to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockStats {
    pub total: u64,
    pub free: u64,
    /// Held by live requests.
    pub held: u64,
    /// Kept under a lease for a decode engine, with no request.
    pub pinned: u64,
    /// Held by nothing that is known: always a bug of the simulated engine itself.
    pub leaked: u64,
}

/// Sequences: a request with two choices counts twice. `open` counts HTTP requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestStats {
    pub accepted: u64,
    pub finished: u64,
    /// Ended because the client or the gateway left.
    pub aborted: u64,
    /// Ended with an engine's error.
    pub failed: u64,
    /// HTTP requests refused before they reached the engine.
    pub refused: u64,
    /// In the batch, or receiving or sending KV, now.
    pub running: u64,
    /// In the queue now.
    pub waiting: u64,
    /// HTTP requests being answered now.
    pub open: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenStats {
    /// Prompt tokens computed here.
    pub computed: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached: u64,
    /// Prompt tokens whose KV came from a prefill engine.
    pub transferred: u64,
    pub generated: u64,
}

impl Stats {
    /// Adds another engine's numbers.
    pub fn merge(&mut self, other: &Self) {
        self.engines += other.engines;
        let (a, b) = (&mut self.handoffs, &other.handoffs);
        a.made += b.made;
        a.right += b.right;
        a.wrong += b.wrong;
        a.expired += b.expired;
        a.reused += b.reused;
        a.failed += b.failed;
        let (a, b) = (&mut self.blocks, &other.blocks);
        a.total += b.total;
        a.free += b.free;
        a.held += b.held;
        a.pinned += b.pinned;
        a.leaked += b.leaked;
        let (a, b) = (&mut self.requests, &other.requests);
        a.accepted += b.accepted;
        a.finished += b.finished;
        a.aborted += b.aborted;
        a.failed += b.failed;
        a.refused += b.refused;
        a.running += b.running;
        a.waiting += b.waiting;
        a.open += b.open;
        let (a, b) = (&mut self.tokens, &other.tokens);
        a.computed += b.computed;
        a.cached += b.cached;
        a.transferred += b.transferred;
        a.generated += b.generated;
        self.kills += other.kills;
        self.deaths += other.deaths;
        self.faults += other.faults;
    }

    /// Whether nothing is being done and nothing is asked.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.requests.running == 0 && self.requests.waiting == 0 && self.requests.open == 0
    }

    /// Whether every KV block is free: nothing held, pinned or leaked.
    #[must_use]
    pub fn all_free(&self) -> bool {
        self.blocks.free == self.blocks.total
    }
}

/// A histogram with fixed bounds, as the engines expose them.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// What bounds and sum are multiplied with when they are told.
    unit: f64,
    counts: Vec<u64>,
    sum: f64,
}

/// Bounds for times, in seconds.
pub static SECONDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Bounds for sizes, in bytes, tokens or blocks.
pub static SIZES: [f64; 10] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 1048576.0, 268435456.0];

impl Histogram {
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, unit: 1.0, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub fn add(&mut self, value: f64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
    }

    pub fn add_time(&mut self, from: Duration, to: Duration) {
        self.add(to.saturating_sub(from).as_secs_f64());
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum * self.unit
    }

    /// The same values in another unit, `factor` times as many of them.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        Self { unit: self.unit * factor, ..self.clone() }
    }

    /// Upper bound and how many values were at most that, without the last, endless one.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut total = 0;
        self.bounds.iter().zip(&self.counts).map(move |(bound, count)| {
            total += count;
            (*bound * self.unit, total)
        })
    }
}

/// Tokens of the last second.
#[derive(Clone, Debug, Default)]
pub struct Pace(VecDeque<(u64, u32)>);

impl Pace {
    /// Parts of a second that are counted apart.
    const PARTS: u64 = 10;

    fn part(now: Duration) -> u64 {
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX) / (1000 / Self::PARTS)
    }

    pub fn count(&mut self, now: Duration) {
        let part = Self::part(now);
        match self.0.back_mut() {
            Some((last, tokens)) if *last == part => *tokens += 1,
            _ => self.0.push_back((part, 1)),
        }
        while self.0.front().is_some_and(|(first, _)| first + Self::PARTS < part) {
            self.0.pop_front();
        }
    }

    /// Tokens in a second, as of now.
    #[must_use]
    pub fn rate(&self, now: Duration) -> f64 {
        let part = Self::part(now);
        let tokens: u32 =
            self.0.iter().filter(|(at, _)| at + Self::PARTS > part).map(|(_, tokens)| tokens).sum();
        f64::from(tokens)
    }
}

/// Everything an engine counts over its life. A restart starts it anew.
#[derive(Clone, Debug)]
pub struct Counters {
    pub handoffs: HandoffStats,
    pub tokens: TokenStats,
    pub accepted: u64,
    pub ended: EndCounts,
    pub preempted: u64,
    pub prefix_queries: u64,
    pub external_queries: u64,
    pub external_hits: u64,
    pub failed_transfers: u64,
    pub failed_notifications: u64,
    /// Notices of hand-offs whose lease had ended before.
    pub late_notices: u64,
    pub bootstrap_failed: u64,
    pub bytes: Histogram,
    pub descriptors: Histogram,
    pub transfer: Histogram,
    pub ttft: Histogram,
    pub itl: Histogram,
    pub e2e: Histogram,
    pub queue: Histogram,
    pub prefill: Histogram,
    pub decode: Histogram,
    pub tpot: Histogram,
    pub pace: Pace,
}

/// How sequences ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndCounts {
    pub stop: u64,
    pub length: u64,
    pub abort: u64,
    pub error: u64,
}

impl Default for Counters {
    fn default() -> Self {
        let seconds = || Histogram::new(&SECONDS);
        Self {
            handoffs: HandoffStats::default(),
            tokens: TokenStats::default(),
            accepted: 0,
            ended: EndCounts::default(),
            preempted: 0,
            prefix_queries: 0,
            external_queries: 0,
            external_hits: 0,
            failed_transfers: 0,
            failed_notifications: 0,
            late_notices: 0,
            bootstrap_failed: 0,
            bytes: Histogram::new(&SIZES),
            descriptors: Histogram::new(&SIZES),
            transfer: seconds(),
            ttft: seconds(),
            itl: seconds(),
            e2e: seconds(),
            queue: seconds(),
            prefill: seconds(),
            decode: seconds(),
            tpot: seconds(),
            pace: Pace::default(),
        }
    }
}
