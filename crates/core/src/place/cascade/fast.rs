//! Steps 1 and 2: is the load so uneven that nothing else counts?

use super::knobs::{DecodeScore, Knobs};
use super::sight::Sight;

/// Step 1. The least loaded prefills, if the busiest has more than the spread above them.
pub fn prefill(counts: &[u32], spread: u64) -> Option<Vec<usize>> {
    let (least, most) = (counts.iter().min()?, counts.iter().max()?);
    if u64::from(most - least) <= spread {
        return None;
    }
    Some((0..counts.len()).filter(|i| counts[*i] == *least).collect())
}

/// The largest of each measure among all candidates: what scores are shares of. Never 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Most {
    pub requests: f64,
    pub throughput: f64,
    pub free_pct: f64,
}

impl Most {
    pub fn of<'s>(sights: impl IntoIterator<Item = &'s Sight>) -> Most {
        let mut most = Most { requests: 1.0, throughput: 1.0, free_pct: 1.0 };
        for sight in sights {
            most.requests = most.requests.max(f64::from(sight.count));
            most.throughput = most.throughput.max(sight.throughput.unwrap_or_default());
            most.free_pct = most.free_pct.max(sight.free_pct());
        }
        most
    }
}

/// Which check of step 2 fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    Requests,
    Throughput,
    Drain,
}

impl Check {
    pub fn as_str(self) -> &'static str {
        match self {
            Check::Requests => "request count spread",
            Check::Throughput => "throughput spread",
            Check::Drain => "drain rate ratio",
        }
    }

    /// What it compares, of one that has it.
    fn value(self, sight: &Sight) -> Option<f64> {
        match self {
            // A worker that was just started has nothing yet and would draw everything.
            Check::Requests => sight.observed.then_some(f64::from(sight.count)),
            Check::Throughput => sight.throughput,
            // Seconds that it takes to finish what it has.
            Check::Drain => {
                let drain = sight.drain.filter(|drain| *drain > 0.0)?;
                Some(f64::from(sight.count) / drain.max(DRAIN_MIN))
            }
        }
    }
}

/// The smallest time that a drain rate stands for: below it a worker counts as draining that fast.
const DRAIN_MIN: f64 = 0.1;

/// Step 2. The first check that finds the decodes uneven, and those that are best by it.
pub fn decode<'s>(
    sights: impl IntoIterator<Item = &'s Sight> + Clone,
    knobs: &Knobs,
) -> Option<(Check, Vec<usize>)> {
    if knobs.decode_score == DecodeScore::TokenLoad {
        return None;
    }
    for check in [Check::Requests, Check::Throughput, Check::Drain] {
        let Values { least, most, lacking } = Values::of(sights.clone(), check);
        let uneven = match check {
            Check::Requests => most - least >= knobs.decode_spread,
            Check::Throughput => most - least > knobs.throughput_spread,
            Check::Drain => lacking == 0 && least > 0.0 && most / least > knobs.score_ratio,
        };
        if uneven {
            let all = sights.into_iter().enumerate();
            let best = all.filter(|(_, s)| check.value(s) == Some(least)).map(|(i, _)| i);
            return Some((check, best.collect()));
        }
    }
    None
}

/// The least and the most of what a check compares, among those that have it.
pub fn extremes<'s>(sights: impl IntoIterator<Item = &'s Sight>, check: Check) -> (f64, f64) {
    let values = Values::of(sights, check);
    (values.least, values.most)
}

/// What is known of one measure.
struct Values {
    least: f64,
    most: f64,
    /// How many do not have it.
    lacking: usize,
}

impl Values {
    fn of<'s>(sights: impl IntoIterator<Item = &'s Sight>, check: Check) -> Values {
        let mut values = Values { least: f64::INFINITY, most: f64::NEG_INFINITY, lacking: 0 };
        for sight in sights {
            match check.value(sight) {
                Some(x) => {
                    (values.least, values.most) = (values.least.min(x), values.most.max(x));
                }
                None => values.lacking += 1,
            }
        }
        values
    }
}
