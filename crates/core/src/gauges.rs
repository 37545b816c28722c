//! What a worker says about its own load: the last values of its metrics.
//!
//! Written by whoever asks the worker, read by placement without a lock. What was never reported is absent, which is
//! not the same as 0: each rule of placement says what it takes instead.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Requests waiting for their turn.
    pub waiting: Gauge,
    /// Requests waiting for memory on either side of a hand-off (SGLang).
    pub prefill_prealloc: Gauge,
    pub decode_prealloc: Gauge,
    /// Tokens generated in a second.
    pub throughput: Gauge,
    /// Share of KV memory in use, 0 to 1.
    pub kv_usage: Gauge,
    /// Requests finished in a second.
    pub drain_rate: Gauge,
    /// All prefills so far: their time in seconds, and how many.
    pub prefill_time_sum_s: Gauge,
    pub prefill_time_count: Gauge,
}

impl Gauges {
    /// Requests that wait, whatever for.
    pub fn waiting_for_anything(&self) -> f64 {
        [&self.waiting, &self.prefill_prealloc, &self.decode_prealloc].iter().filter_map(|g| g.get()).sum()
    }

    /// Mean time of a prefill in milliseconds.
    pub fn prefill_ms(&self) -> Option<f64> {
        let count = self.prefill_time_count.get().filter(|n| *n > 0.0)?;
        Some(self.prefill_time_sum_s.get()? / count * 1000.0)
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
}
