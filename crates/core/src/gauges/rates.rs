//! What only the growth of counters tells: tokens in a second, requests finished in a second.
//!
//! A counter that has fallen is another process's: what came before counts no more.

use std::collections::VecDeque;

use super::Reading;
use crate::time::{Duration, Instant};

/// Shortest time between two looks that a rate is made of.
const GAP: Duration = Duration::from_millis(100);

/// Tokens in a second, for engines that show only how many there were in all.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    last: Option<(Instant, f64)>,
    rate: Option<f64>,
}

impl Tokens {
    /// Fills in the throughput where the worker did not tell it.
    pub fn fill(&mut self, said: &mut Reading, now: Instant) {
        let Some(total) = said.answer_tokens else { return };
        match self.last {
            Some((at, before)) if total >= before => {
                let past = now.since(at);
                if past >= GAP {
                    self.rate = Some((total - before) / past.as_secs_f64());
                    self.last = Some((now, total));
                }
            }
            _ => (self.last, self.rate) = (Some((now, total)), None),
        }
        said.throughput = said.throughput.or(self.rate);
    }
}

/// What was said of the speed so long ago counts for a third (AIBrix).
const FADES: Duration = Duration::from_secs(10);

/// Tokens in a second while there is anything to generate: throughput, smoothed. One that stands still is not slow, so
/// that says nothing (AIBrix).
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    last: Option<(Instant, f64)>,
}

impl Pace {
    /// What it is after the worker has said this.
    pub fn learn(&mut self, throughput: Option<f64>, now: Instant) -> Option<f64> {
        if let Some(said) = throughput.filter(|x| x.is_finite() && *x > 0.0) {
            let before = self.last.map_or(said, |(at, before)| {
                let past = now.since(at).as_secs_f64() / FADES.as_secs_f64();
                said + (before - said) * (-past).exp()
            });
            self.last = Some((now, before));
        }
        self.last.map(|(_, pace)| pace)
    }
}

/// Share of the time in which a counter of seconds grew.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    last: Option<(Instant, f64)>,
    share: Option<f64>,
}

impl Busy {
    /// So many seconds by the time at which the page was read.
    pub fn share(&mut self, seconds: Option<f64>, read: Instant) -> Option<f64> {
        let seconds = seconds?;
        match self.last {
            Some((at, before)) if seconds >= before => {
                let past = read.since(at);
                if past >= GAP {
                    self.share = Some(((seconds - before) / past.as_secs_f64()).min(1.0));
                    self.last = Some((read, seconds));
                }
            }
            _ => (self.last, self.share) = (Some((read, seconds)), None),
        }
        self.share
    }
}

/// Snapshots of a counter are at least so far apart (AIBrix).
const APART: Duration = Duration::from_secs(5);
/// Snapshots kept, and for how long (AIBrix).
const SNAPSHOTS: usize = 36;
const KEPT: Duration = Duration::from_secs(180);
/// The rate is that of this last while (AIBrix: `drain_rate_1m`).
const WHILE: Duration = Duration::from_secs(60);
/// From a shorter history no rate is made (AIBrix).
const HISTORY: Duration = Duration::from_secs(10);

/// Requests finished in a second, over the last minute.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    snapshots: VecDeque<(Instant, u64)>,
}

impl Drain {
    /// So many were finished by now. `None`: not known for long enough.
    pub fn rate(&mut self, finished: u64, now: Instant) -> Option<f64> {
        if self.snapshots.back().is_none_or(|(at, _)| now.since(*at) >= APART) {
            self.snapshots.push_back((now, finished));
        }
        while self.snapshots.len() > SNAPSHOTS
            || self.snapshots.front().is_some_and(|(at, _)| now.since(*at) > KEPT)
        {
            self.snapshots.pop_front();
        }
        // The newest may be this very moment.
        let older = self.snapshots.len().checked_sub(1).filter(|n| *n > 0)?;
        let off = |at: Instant| now.since(at).abs_diff(WHILE);
        let (at, before) = self.snapshots.iter().take(older).copied().min_by_key(|(at, _)| off(*at))?;
        let past = now.since(at);
        let grown = finished.checked_sub(before).unwrap_or(finished);
        (past >= HISTORY).then(|| grown as f64 / past.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: f64) -> Instant {
        Instant::from_micros((secs * 1e6) as u64)
    }

    fn said(tokens: f64, throughput: Option<f64>) -> Reading {
        Reading { answer_tokens: Some(tokens), throughput, ..Reading::default() }
    }

    #[test]
    fn throughput_comes_from_the_counter_where_there_is_no_gauge() {
        let mut tokens = Tokens::default();
        let mut look = |n, told, secs| {
            let mut said = said(n, told);
            tokens.fill(&mut said, at(secs));
            said.throughput
        };
        assert_eq!(look(100.0, None, 1.0), None);
        assert_eq!(look(300.0, None, 2.0), Some(200.0));
        assert_eq!(look(300.0, None, 2.05), Some(200.0), "too soon for a new one");
        assert_eq!(look(300.0, None, 3.0), Some(0.0));
        assert_eq!(look(400.0, Some(7.0), 4.0), Some(7.0), "what the engine says is better");
        assert_eq!(look(10.0, None, 5.0), None, "another process");
        assert_eq!(look(20.0, None, 6.0), Some(10.0));
        let mut none = Reading::default();
        tokens.fill(&mut none, at(7.0));
        assert_eq!(none.throughput, None);
    }

    #[test]
    fn a_pace_follows_what_is_said_and_idling_says_nothing() {
        let mut pace = Pace::default();
        assert_eq!(pace.learn(Some(0.0), at(0.0)), None);
        assert_eq!(pace.learn(Some(1000.0), at(1.0)), Some(1000.0));
        assert_eq!(pace.learn(Some(0.0), at(100.0)), Some(1000.0));
        assert_eq!(pace.learn(None, at(100.0)), Some(1000.0));
        let after = pace.learn(Some(2000.0), at(11.0)).unwrap();
        assert!((after - 2000.0 + 1000.0 / std::f64::consts::E).abs() < 1e-9, "{after}");
        assert!((pace.learn(Some(2000.0), at(600.0)).unwrap() - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn how_busy_is_how_fast_the_seconds_grow() {
        let mut busy = Busy::default();
        assert_eq!(busy.share(None, at(0.0)), None);
        assert_eq!(busy.share(Some(50.0), at(10.0)), None);
        assert_eq!(busy.share(Some(54.0), at(20.0)), Some(0.4));
        assert_eq!(busy.share(Some(54.0), at(20.0)), Some(0.4), "the same page");
        assert_eq!(busy.share(Some(54.0), at(30.0)), Some(0.0));
        assert_eq!(busy.share(Some(99.0), at(40.0)), Some(1.0));
        assert_eq!(busy.share(Some(1.0), at(50.0)), None, "another process");
    }

    #[test]
    fn the_drain_rate_is_that_of_the_last_minute() {
        let mut drain = Drain::default();
        assert_eq!(drain.rate(0, at(0.0)), None);
        assert_eq!(drain.rate(9, at(9.0)), None, "too short a history");
        assert_eq!(drain.rate(10, at(10.0)), Some(1.0));
        // One a second until 120 s, then three a second.
        for second in 11..=120 {
            assert_eq!(drain.rate(second, at(second as f64)), Some(1.0));
        }
        for second in 121..=180u64 {
            let rate = drain.rate(120 + (second - 120) * 3, at(second as f64)).unwrap();
            assert!((1.0..=3.0).contains(&rate));
        }
        let rate = drain.rate(300, at(180.0)).unwrap();
        assert!((rate - 3.0).abs() < 0.2, "{rate}");
        assert!(drain.snapshots.len() <= SNAPSHOTS);
    }

    #[test]
    fn an_idle_worker_drains_at_zero_and_a_restarted_counter_counts_from_there() {
        let mut drain = Drain::default();
        drain.rate(50, at(0.0));
        drain.rate(50, at(6.0));
        assert_eq!(drain.rate(50, at(20.0)), Some(0.0));
        assert_eq!(drain.rate(10, at(40.0)).map(|r| r > 0.0), Some(true));
    }
}
