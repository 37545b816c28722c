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
    pub fn of(sights: &[Sight]) -> Most {
        let most = |of: fn(&Sight) -> f64| sights.iter().map(of).fold(1.0, f64::max);
        Most {
            requests: most(|s| f64::from(s.count)),
            throughput: most(|s| s.throughput.unwrap_or_default()),
            free_pct: most(Sight::free_pct),
        }
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
}

/// The smallest time that a drain rate stands for: below it a worker counts as draining that fast.
const DRAIN_MIN: f64 = 0.1;

/// Step 2. The first check that finds the decodes uneven, and those that are best by it.
pub fn decode(sights: &[Sight], knobs: &Knobs) -> Option<(Check, Vec<usize>)> {
    if knobs.decode_score == DecodeScore::TokenLoad {
        return None;
    }
    // A worker that was just started has nothing yet and would draw everything.
    let counts = values(sights, requests);
    if counts.spread() >= knobs.decode_spread {
        return Some((Check::Requests, counts.smallest()));
    }
    let throughputs = values(sights, |s| s.throughput);
    if throughputs.spread() > knobs.throughput_spread {
        return Some((Check::Throughput, throughputs.smallest()));
    }
    let seconds = values(sights, seconds);
    let (least, most) = (seconds.least(), seconds.most());
    let uneven = seconds.0.len() == sights.len() && least > 0.0 && most / least > knobs.score_ratio;
    uneven.then(|| (Check::Drain, seconds.smallest()))
}

/// The least and the most of what a check compares, among those that have it.
pub fn extremes(sights: &[Sight], check: Check) -> (f64, f64) {
    let values = match check {
        Check::Requests => values(sights, requests),
        Check::Throughput => values(sights, |s| s.throughput),
        Check::Drain => values(sights, seconds),
    };
    (values.least(), values.most())
}

fn requests(s: &Sight) -> Option<f64> {
    s.observed.then_some(f64::from(s.count))
}

/// Seconds that it takes to finish what it has.
fn seconds(s: &Sight) -> Option<f64> {
    s.drain.filter(|d| *d > 0.0).map(|drain| f64::from(s.count) / drain.max(DRAIN_MIN))
}

/// One measure of those that have it.
struct Values(Vec<(usize, f64)>);

fn values(sights: &[Sight], of: impl Fn(&Sight) -> Option<f64>) -> Values {
    Values(sights.iter().enumerate().filter_map(|(i, s)| of(s).map(|x| (i, x))).collect())
}

impl Values {
    fn least(&self) -> f64 {
        self.0.iter().map(|(_, x)| *x).fold(f64::INFINITY, f64::min)
    }

    fn most(&self) -> f64 {
        self.0.iter().map(|(_, x)| *x).fold(f64::NEG_INFINITY, f64::max)
    }

    fn spread(&self) -> f64 {
        self.most() - self.least()
    }

    fn smallest(&self) -> Vec<usize> {
        let least = self.least();
        self.0.iter().filter(|(_, x)| *x == least).map(|(i, _)| *i).collect()
    }
}
