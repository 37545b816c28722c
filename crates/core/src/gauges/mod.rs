//! What a worker says about its own load: the last values of its metrics.
//!
//! Written by whoever asks the worker, read by placement without a lock. What was never reported is absent, which is
//! not the same as 0: each rule of placement says what it takes instead. A page of metrics is read by [`page`], a
//! list of loads by [`loads`], and what only counters tell, by how they grow, by [`rates`].

pub mod loads;
pub mod page;
pub mod rates;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::load::Load;

/// What an engine says is taken if it is a number, and not below 0. What is not counts as not said.
pub fn usable(value: f64) -> Option<f64> {
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// One value, or none.
#[derive(Debug)]
pub struct Gauge(AtomicU64);

/// No report has this value: what is not a number is kept as none.
const NONE: f64 = f64::NAN;

impl Default for Gauge {
    fn default() -> Self {
        Gauge(AtomicU64::new(NONE.to_bits()))
    }
}

impl Gauge {
    pub fn get(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Ordering::Relaxed))).filter(|x| !x.is_nan())
    }

    pub fn set(&self, value: Option<f64>) {
        self.0.store(value.unwrap_or(NONE).to_bits(), Ordering::Relaxed);
    }
}

/// The metrics of one worker that placement reads.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Requests in the batch, as the engine counts them.
    pub running: Gauge,
    /// Requests of this gateway that were there when it was last asked.
    pub ours: Gauge,
    /// Requests waiting for their turn.
    pub waiting: Gauge,
    /// Requests waiting for memory on either side of a hand-off (SGLang).
    pub prefill_prealloc: Gauge,
    pub decode_prealloc: Gauge,
    /// Tokens generated in a second.
    pub throughput: Gauge,
    /// Share of KV memory in use, 0 to 1.
    pub kv_usage: Gauge,
    /// The same of KV that was moved to the host's memory (vLLM before its V1 engine).
    pub host_kv_usage: Gauge,
    /// Requests finished in a second. The gateway's own count, so that every engine has it.
    pub drain_rate: Gauge,
    /// All prefills so far: their time in seconds, and how many.
    pub prefill_time_sum_s: Gauge,
    pub prefill_time_count: Gauge,
    /// Mean tokens of a request since the engine started: of its prompt, and of its answer.
    pub prompt_mean: Gauge,
    pub answer_mean: Gauge,
    /// Mean seconds of a request since the engine started: until it is computed, computing its prompt, and answering.
    pub queue_mean_s: Gauge,
    pub prefill_mean_s: Gauge,
    pub decode_mean_s: Gauge,
    /// How much of what it can do it does, 0 to 1, in its own words.
    pub utilization: Gauge,
    /// Share of the time in which its GPU computes, 0 to 1.
    pub busy: Gauge,
    /// Tokens that it generates in a second while it has anything to do. Outlives [`Gauges::forget`]: speed is no load.
    pub pace: Gauge,
    /// Requests that had been placed on the worker when it was asked.
    placed: AtomicU64,
}

impl Gauges {
    /// Requests that wait, whatever for.
    pub fn waiting_for_anything(&self) -> f64 {
        let queues = [&self.waiting, &self.prefill_prealloc, &self.decode_prealloc];
        queues.iter().filter_map(|g| g.get()).fold(0.0, |sum, n| sum + n)
    }

    /// Mean time of a prefill in milliseconds.
    pub fn prefill_ms(&self) -> Option<f64> {
        let count = self.prefill_time_count.get().filter(|n| *n > 0.0)?;
        Some(self.prefill_time_sum_s.get()? / count * 1000.0)
    }

    /// Is anything known that the worker itself said?
    pub fn observed(&self) -> bool {
        [&self.running, &self.waiting, &self.kv_usage, &self.throughput].iter().any(|g| g.get().is_some())
    }

    /// The worker was asked when so many requests had been placed on it.
    pub fn asked_after(&self, placed: u64) {
        self.placed.store(placed, Ordering::Relaxed);
    }

    /// Requests placed on the worker since it was asked: what it said knows nothing of them.
    pub fn placed_since(&self, load: &Load) -> u64 {
        load.taken().saturating_sub(self.placed.load(Ordering::Relaxed))
    }

    /// The worker said this, and nothing else.
    pub fn show(&self, said: &Reading) {
        self.running.set(said.running);
        self.waiting.set(said.waiting);
        self.prefill_prealloc.set(said.prefill_prealloc);
        self.decode_prealloc.set(said.decode_prealloc);
        self.throughput.set(said.throughput);
        self.kv_usage.set(said.kv_usage);
        self.host_kv_usage.set(said.host_kv_usage);
        self.prefill_time_sum_s.set(said.prefill_time_sum_s);
        self.prefill_time_count.set(said.prefill_time_count);
        self.prompt_mean.set(said.mean(said.prompt_tokens));
        self.answer_mean.set(said.mean(said.answer_tokens));
        self.queue_mean_s.set(said.queue.mean_s());
        self.prefill_mean_s.set(said.prefill_s());
        self.decode_mean_s.set(said.decode_s());
        self.utilization.set(said.utilization);
        self.busy.set(said.busy);
    }

    /// Nothing is known of what the worker itself would say.
    pub fn forget(&self) {
        self.show(&Reading::default());
    }
}

/// Times of requests, since the engine started: all of them in seconds, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timed {
    pub sum_s: Option<f64>,
    pub count: Option<f64>,
}

impl Timed {
    pub fn mean_s(self) -> Option<f64> {
        let count = self.count.filter(|n| *n > 0.0)?;
        Some(self.sum_s? / count).filter(|mean| mean.is_finite())
    }

    fn or(self, other: Timed) -> Timed {
        Timed { sum_s: self.sum_s.or(other.sum_s), count: self.count.or(other.count) }
    }
}

/// One look at a worker: plain numbers, each only if it was told. Counters are since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    pub prefill_prealloc: Option<f64>,
    pub decode_prealloc: Option<f64>,
    pub throughput: Option<f64>,
    pub kv_usage: Option<f64>,
    pub host_kv_usage: Option<f64>,
    pub prefill_time_sum_s: Option<f64>,
    pub prefill_time_count: Option<f64>,
    /// Counters.
    pub prompt_tokens: Option<f64>,
    pub answer_tokens: Option<f64>,
    pub requests: Option<f64>,
    /// Waiting for its turn, decoding, until its first token, and all of it.
    pub queue: Timed,
    pub decode: Timed,
    pub first_token: Timed,
    pub answered: Timed,
    pub utilization: Option<f64>,
    pub busy: Option<f64>,
    /// A counter: seconds in which the GPU computed.
    pub busy_seconds: Option<f64>,
}

impl Reading {
    /// Does it say anything?
    pub fn is_empty(&self) -> bool {
        *self == Reading::default()
    }

    /// This, and what the other one says where this says nothing.
    pub fn or(&self, other: &Reading) -> Reading {
        Reading {
            running: self.running.or(other.running),
            waiting: self.waiting.or(other.waiting),
            prefill_prealloc: self.prefill_prealloc.or(other.prefill_prealloc),
            decode_prealloc: self.decode_prealloc.or(other.decode_prealloc),
            throughput: self.throughput.or(other.throughput),
            kv_usage: self.kv_usage.or(other.kv_usage),
            host_kv_usage: self.host_kv_usage.or(other.host_kv_usage),
            prefill_time_sum_s: self.prefill_time_sum_s.or(other.prefill_time_sum_s),
            prefill_time_count: self.prefill_time_count.or(other.prefill_time_count),
            prompt_tokens: self.prompt_tokens.or(other.prompt_tokens),
            answer_tokens: self.answer_tokens.or(other.answer_tokens),
            requests: self.requests.or(other.requests),
            queue: self.queue.or(other.queue),
            decode: self.decode.or(other.decode),
            first_token: self.first_token.or(other.first_token),
            answered: self.answered.or(other.answered),
            utilization: self.utilization.or(other.utilization),
            busy: self.busy.or(other.busy),
            busy_seconds: self.busy_seconds.or(other.busy_seconds),
        }
    }

    /// Mean seconds of a prefill. Where they are not told: what is left of the time to the first token without that in
    /// the queue.
    pub fn prefill_s(&self) -> Option<f64> {
        let told = Timed { sum_s: self.prefill_time_sum_s, count: self.prefill_time_count }.mean_s();
        let queued = self.queue.mean_s().unwrap_or_default();
        told.or_else(|| self.first_token.mean_s().map(|first| (first - queued).max(0.0)))
    }

    /// Mean seconds from the first token to the last.
    pub fn decode_s(&self) -> Option<f64> {
        let rest = || Some((self.answered.mean_s()? - self.first_token.mean_s()?).max(0.0));
        self.decode.mean_s().or_else(rest)
    }

    fn mean(&self, tokens: Option<f64>) -> Option<f64> {
        let requests = self.requests.filter(|n| *n > 0.0)?;
        Some(tokens? / requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_is_not_zero() {
        let gauges = Gauges::default();
        assert_eq!((gauges.kv_usage.get(), gauges.prefill_ms()), (None, None));
        assert_eq!(gauges.waiting_for_anything(), 0.0);
        gauges.kv_usage.set(Some(0.0));
        gauges.prefill_time_sum_s.set(Some(0.2));
        gauges.prefill_time_count.set(Some(100.0));
        gauges.waiting.set(Some(2.0));
        gauges.decode_prealloc.set(Some(3.0));
        assert_eq!((gauges.kv_usage.get(), gauges.prefill_ms()), (Some(0.0), Some(2.0)));
        assert_eq!(gauges.waiting_for_anything(), 5.0);
        gauges.kv_usage.set(None);
        assert_eq!(gauges.kv_usage.get(), None);
    }

    #[test]
    fn a_look_replaces_the_last_one_and_leaves_what_the_gateway_counts() {
        let gauges = Gauges::default();
        gauges.drain_rate.set(Some(3.0));
        assert!(!gauges.observed());
        let said = Reading {
            kv_usage: Some(0.5),
            prompt_tokens: Some(900.0),
            answer_tokens: Some(90.0),
            requests: Some(3.0),
            ..Reading::default()
        };
        gauges.show(&said);
        assert!(gauges.observed());
        assert_eq!((gauges.prompt_mean.get(), gauges.answer_mean.get()), (Some(300.0), Some(30.0)));
        gauges.show(&Reading { requests: Some(0.0), prompt_tokens: Some(0.0), ..Reading::default() });
        assert_eq!((gauges.kv_usage.get(), gauges.prompt_mean.get()), (None, None));
        gauges.forget();
        assert_eq!((gauges.observed(), gauges.drain_rate.get()), (false, Some(3.0)));
        let less = Reading { kv_usage: Some(0.1), ..Reading::default() };
        assert_eq!(less.or(&said), Reading { kv_usage: Some(0.1), ..said });
        assert!(Reading::default().is_empty() && !less.is_empty());
    }
}
