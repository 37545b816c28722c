//! Steps 3 and 4: what one candidate scores. Lower is better.
//!
//! Each score says which terms it was made of, so that a receipt can be checked by hand.

use smallvec::{SmallVec, smallvec};

use super::fast::Most;
use super::knobs::{DecodeScore, Knobs, PrefillScore};
use super::shared::Remote;
use super::sight::Sight;

/// A score and its terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    pub score: f64,
    pub terms: Terms,
}

pub type Terms = SmallVec<[(&'static str, f64); 4]>;

/// A prefill with more requests than this is skipped: the mean of all and so many sample standard deviations. Of
/// two, with one deviation, none is ever above it.
pub fn limit(counts: &[u32], deviations: u64) -> f64 {
    let n = counts.len() as f64;
    if counts.is_empty() {
        return 0.0;
    }
    let mean = counts.iter().map(|c| f64::from(*c)).sum::<f64>() / n;
    let squares: f64 = counts.iter().map(|c| (f64::from(*c) - mean).powi(2)).sum();
    let deviation = if counts.len() < 2 { 0.0 } else { (squares / (n - 1.0)).sqrt() };
    mean + deviations as f64 * deviation
}

/// What all prefills of one decision have in common.
#[derive(Clone, Copy, Debug)]
pub struct Prompt {
    /// Length of the text that the index looks up, in bytes.
    pub bytes: u64,
    /// The largest count among the candidates, at least 1.
    pub most: f64,
}

/// Step 3.
pub fn prefill(sight: &Sight, prompt: Prompt, knobs: &Knobs) -> Scored {
    let count = f64::from(sight.count);
    let matched = f64::from(knobs.counted(sight.matched_pct));
    match knobs.prefill_score {
        PrefillScore::PrefixCache => {
            let (miss, load) = ((100.0 - matched) * 0.1, count / prompt.most);
            Scored { score: miss + load, terms: smallvec![("matched_pct", matched), ("load", load)] }
        }
        PrefillScore::LeastRequest => Scored { score: count, terms: smallvec![("requests", count)] },
        PrefillScore::Conductor => ttft(sight, prompt.bytes),
        PrefillScore::TokenLoad => {
            let (active, kv) = (sight.active_tokens as f64, sight.kv_tokens as f64);
            Scored {
                score: active + knobs.kv_weight * kv,
                terms: smallvec![("active_tokens", active), ("kv_tokens", kv)],
            }
        }
        PrefillScore::HybridCacheLoad => {
            let load = sight.active_tokens as f64 + knobs.kv_weight * sight.kv_tokens as f64;
            let discount = 1.0 - (matched / 100.0).powi(2) * knobs.hybrid_factor;
            Scored {
                score: if load >= 1.0 { load * discount } else { discount },
                terms: smallvec![("matched_pct", matched), ("load", load), ("discount", discount)],
            }
        }
    }
}

/// Milliseconds that a prefill of so many new tokens takes; the exponent stands for attention (AIBrix's conductor).
fn compute_ms(tokens: f64) -> f64 {
    0.001 * tokens.powf(1.5) + 5.0
}

/// Tokens of a prefill of which nothing is known.
const UNKNOWN_PREFILL_TOKENS: f64 = 512.0;

/// Conductor: the time to the first token, in milliseconds. Requests before it take the mean of those that were.
fn ttft(sight: &Sight, bytes: u64) -> Scored {
    let matched = bytes * u64::from(sight.matched_pct.min(100)) / 100;
    let unmatched = bytes - matched;
    let each = sight.prefill_ms.unwrap_or_else(|| compute_ms(UNKNOWN_PREFILL_TOKENS));
    let queue = f64::from(sight.count) * each;
    let prefix = if matched == 0 { 0.0 } else { 0.005 * matched as f64 + 1.0 };
    let compute = if unmatched == 0 { 0.0 } else { compute_ms(unmatched as f64) };
    Scored {
        score: queue + prefix + compute,
        terms: smallvec![("queue_ms", queue), ("prefix_ms", prefix), ("prefill_ms", compute)],
    }
}

/// What all decodes of one decision have in common.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub most: Most,
    /// Tokens in a second for one request, where a worker's own is not known. `None`: nobody's is.
    pub rate: Option<f64>,
    /// Somebody was observed: who was not gets the score of a cold start.
    pub observed: bool,
}

impl Batch {
    pub fn of(sights: &[Sight]) -> Batch {
        Batch::with(Most::of(sights), sights)
    }

    /// The same, where scores are shares of these.
    pub fn with<'s>(most: Most, sights: impl IntoIterator<Item = &'s Sight>) -> Batch {
        let (mut sum, mut rates, mut observed) = (0.0, 0u32, false);
        for sight in sights {
            observed |= sight.observed;
            if let Some(rate) = rate(sight) {
                sum += rate;
                rates += 1;
            }
        }
        Batch { most, rate: (rates > 0).then(|| sum / f64::from(rates)), observed }
    }
}

/// Tokens in a second that one request on this worker gets.
fn rate(sight: &Sight) -> Option<f64> {
    let throughput = sight.throughput.filter(|t| *t > 0.0)?;
    (sight.count > 0).then(|| throughput / f64::from(sight.count))
}

/// Step 4. `None`: no number comes out, by the policy or by the default one.
pub fn decode(sight: &Sight, batch: &Batch, knobs: &Knobs) -> Option<Scored> {
    let count = f64::from(sight.count);
    if batch.observed && !sight.observed && knobs.decode_score != DecodeScore::TokenLoad {
        return Some(Scored {
            score: 1.0 + count,
            terms: smallvec![("cold_start", 1.0), ("pending", count)],
        });
    }
    let scored = match knobs.decode_score {
        DecodeScore::LoadBalancing => balance(sight, batch, knobs),
        DecodeScore::LeastRequest => Scored { score: count, terms: smallvec![("requests", count)] },
        DecodeScore::Conductor => tbt(sight),
        DecodeScore::TokenLoad => resident(sight, batch, knobs),
    };
    let usable = |s: &Scored| !s.score.is_nan();
    Some(scored).filter(usable).or_else(|| Some(balance(sight, batch, knobs)).filter(usable))
}

fn balance(sight: &Sight, batch: &Batch, knobs: &Knobs) -> Scored {
    let most = batch.most;
    let requests = f64::from(sight.count) / most.requests;
    let throughput = 1.0 - sight.throughput.unwrap_or_default() / most.throughput;
    let free = sight.free_pct() / most.free_pct;
    Scored {
        score: (knobs.weight_running * requests + knobs.weight_throughput * throughput) / free,
        terms: smallvec![("requests", requests), ("throughput", throughput), ("free", free)],
    }
}

/// Share of KV memory in use above which a decode slows down.
const PRESSURE: f64 = 0.9;

/// Conductor: the time between tokens, in milliseconds.
fn tbt(sight: &Sight) -> Scored {
    let throughput = sight.throughput.unwrap_or_default();
    let base = if throughput <= 0.0 { 20.0 } else { 1000.0 / throughput };
    let batch = 1.0 + 1.0 / f64::from(sight.count.max(1));
    let pressed = 1.0 - sight.free_pct() / 100.0 > PRESSURE;
    let pressure = if pressed { 1.5 } else { 1.0 };
    Scored {
        score: base * batch * pressure,
        terms: smallvec![("base_ms", base), ("batch", batch), ("pressure", pressure)],
    }
}

/// Token load: the prompts that the decode holds, and what it may have generated for them since, whichever gateway sent
/// them.
fn resident(sight: &Sight, batch: &Batch, knobs: &Knobs) -> Scored {
    let tokens = sight.decode_tokens as f64;
    let rate = rate(sight).or(batch.rate).filter(|_| knobs.output_growth).unwrap_or_default();
    let growth = rate * sight.decode_secs;
    let mut terms: Terms = smallvec![("decode_tokens", tokens), ("generated", growth)];
    let (elsewhere, growth_there) = (sight.remote.tokens, rate * sight.remote.secs);
    if sight.remote != Remote::default() {
        terms.extend([("remote_tokens", elsewhere), ("remote_generated", growth_there)]);
    }
    Scored { score: tokens + growth + elsewhere + growth_there, terms }
}
