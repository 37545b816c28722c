//! A candidate as one decision sees it: plain numbers, taken once.

use super::shared::Remote;

/// What is known of one worker's load. What nobody reported is absent, and each rule says what that means to it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sight {
    /// Requests that the gateway has on it: prefills that are being computed; on a decode, those that run and those
    /// that will when their prefill is done.
    pub count: u32,
    /// The gateway has seen how it is doing: an answer of it, or a report. Only decodes are asked.
    pub observed: bool,
    /// Tokens that it generates in a second.
    pub throughput: Option<f64>,
    /// Share of its KV memory in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests that it finishes in a second.
    pub drain: Option<f64>,
    /// Requests that wait on it, for their turn or for memory.
    pub waiting: f64,
    /// Mean time of its prefills, in milliseconds.
    pub prefill_ms: Option<f64>,
    /// Share of the prompt that it holds, in whole percent.
    pub matched_pct: u32,
    /// Tokens that it is charged with: being computed, and resident.
    pub active_tokens: u64,
    pub kv_tokens: u64,
    /// Prompt tokens that a decode is charged with, and for how many seconds in all.
    pub decode_tokens: u64,
    pub decode_secs: f64,
    /// The same as other gateways have charged it.
    pub remote: Remote,
}

impl Sight {
    /// Free KV memory in percent, never 0 because scores are divided by it.
    pub fn free_pct(&self) -> f64 {
        let free = self.kv_usage.map_or(100.0, |used| (100.0 - used * 100.0).round());
        if free <= 0.0 { 0.1 } else { free }
    }

    /// Seconds that its queue would take to drain. An empty one takes none, however long ago it was that anything was
    /// finished there (to AIBrix, whose rates come from elsewhere, that is no number, and an idle combined worker is
    /// found by accident only).
    pub fn queue_s(&self) -> f64 {
        if self.waiting > 0.0 { self.waiting / self.drain.unwrap_or_default() } else { 0.0 }
    }
}

/// One that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<'a> {
    /// What it is called in receipts, and the order among equals.
    pub name: &'a str,
    /// Which of all workers it is.
    pub at: usize,
    /// Legs pair inside a roleset.
    pub roleset: u32,
    pub sight: Sight,
}
