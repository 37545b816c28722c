//! How long are the prompts of a model, lately? A histogram that forgets.

use crate::time::{Duration, Instant};

/// Bins of the histogram, eight for each doubling of the length.
pub const BINS: usize = 168;
const PER_DOUBLING: f64 = 8.0;
/// After this time a request counts half.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// The bin of a length.
pub fn bin(tokens: u64) -> usize {
    if tokens <= 1 {
        return 0;
    }
    (((tokens as f64).log2() * PER_DOUBLING) as usize).min(BINS - 1)
}

/// The length that a bin stands for.
pub fn centre(bin: usize) -> u64 {
    ((bin as f64 + 0.5) / PER_DOUBLING).exp2().round() as u64
}

/// Requests and prompt tokens by length.
#[derive(Clone, Debug)]
pub struct Traffic {
    requests: [f64; BINS],
    tokens: [f64; BINS],
    at: Instant,
}

impl Traffic {
    pub fn new(now: Instant) -> Traffic {
        Traffic { requests: [0.0; BINS], tokens: [0.0; BINS], at: now }
    }

    pub fn observe(&mut self, tokens: u64, now: Instant) {
        let past = now.since(self.at);
        if !past.is_zero() {
            let left = 0.5f64.powf(past.as_secs_f64() / HALF_LIFE.as_secs_f64());
            self.requests.iter_mut().chain(&mut self.tokens).for_each(|w| *w *= left);
            self.at = now;
        }
        let bin = bin(tokens);
        self.requests[bin] += 1.0;
        self.tokens[bin] += tokens as f64;
    }

    /// When a request was last counted.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// What bands are cut by: prompt tokens of each bin, or requests.
    pub fn weights(&self, by_tokens: bool) -> &[f64; BINS] {
        if by_tokens { &self.tokens } else { &self.requests }
    }
}
