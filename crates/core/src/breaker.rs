//! Is this worker well, as its own answers tell?
//!
//! A run of consecutive failures opens the breaker; after a rest, one probe at a time goes through;
//! enough successes close it again (SMG 1.13). Only faults of the worker count: a client's mistake
//! (4xx) and push-back (429) say nothing about its health, and a leg that the gateway itself dropped
//! records nothing. SMG lets every request through while half-open; one probe is enough to learn the
//! same thing and costs one request instead of all of them.

use crate::time::{Duration, Instant};

/// When to open, how long to rest, when to close.
#[derive(Clone, Debug)]
pub struct BreakerRule {
    pub enabled: bool,
    /// Consecutive failures that open. SMG `--cb-failure-threshold`.
    pub failure_threshold: u32,
    /// Consecutive successes while half-open that close. SMG `--cb-success-threshold`.
    pub success_threshold: u32,
    /// Rest before the first probe. SMG `--cb-timeout-duration-secs`.
    pub rest: Duration,
}

impl Default for BreakerRule {
    fn default() -> Self {
        BreakerRule {
            enabled: true,
            failure_threshold: 10,
            success_threshold: 3,
            rest: Duration::from_secs(60),
        }
    }
}

/// What one leg said about its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Bad,
    /// Nothing can be concluded: the leg was dropped, or the worker pushed back.
    Mute,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    Open { until: Instant },
    HalfOpen { good: u32, probing: bool },
}

impl BreakerState {
    /// The value of `smg_worker_cb_state`: 0 closed, 1 open, 2 half-open.
    pub fn gauge(self) -> i64 {
        match self {
            BreakerState::Closed => 0,
            BreakerState::Open { .. } => 1,
            BreakerState::HalfOpen { .. } => 2,
        }
    }
}

/// One worker's breaker.
#[derive(Clone, Debug)]
pub struct Breaker {
    state: BreakerState,
    bad_in_a_row: u32,
    good_in_a_row: u32,
    transitions: u32,
}

impl Default for Breaker {
    fn default() -> Self {
        Breaker { state: BreakerState::Closed, bad_in_a_row: 0, good_in_a_row: 0, transitions: 0 }
    }
}

impl Breaker {
    pub fn state(&self) -> BreakerState {
        self.state
    }

    pub fn bad_in_a_row(&self) -> u32 {
        self.bad_in_a_row
    }

    pub fn good_in_a_row(&self) -> u32 {
        self.good_in_a_row
    }

    pub fn transitions(&self) -> u32 {
        self.transitions
    }

    /// Would a request be let through now? Changes nothing.
    pub fn lets_through(&self, now: Instant) -> bool {
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open { until } => now >= until,
            BreakerState::HalfOpen { probing, .. } => !probing,
        }
    }

    /// A request goes to the worker: while half-open it takes the one probe. False: not let through.
    pub fn enter(&mut self, now: Instant) -> bool {
        if !self.lets_through(now) {
            return false;
        }
        match self.state {
            BreakerState::Closed => {}
            BreakerState::Open { .. } => self.turn(BreakerState::HalfOpen { good: 0, probing: true }),
            BreakerState::HalfOpen { good, .. } => {
                self.state = BreakerState::HalfOpen { good, probing: true }
            }
        }
        true
    }

    /// The leg that entered is over.
    pub fn record(&mut self, verdict: Verdict, rule: &BreakerRule, now: Instant) {
        if !rule.enabled {
            return;
        }
        match verdict {
            Verdict::Good => {
                self.bad_in_a_row = 0;
                self.good_in_a_row = self.good_in_a_row.saturating_add(1);
            }
            Verdict::Bad => {
                self.good_in_a_row = 0;
                self.bad_in_a_row = self.bad_in_a_row.saturating_add(1);
            }
            Verdict::Mute => {}
        }
        match (self.state, verdict) {
            (BreakerState::Closed, Verdict::Bad) if self.bad_in_a_row >= rule.failure_threshold => {
                self.turn(BreakerState::Open { until: now.after(rule.rest) });
            }
            (BreakerState::HalfOpen { .. }, Verdict::Bad) => {
                self.turn(BreakerState::Open { until: now.after(rule.rest) });
            }
            (BreakerState::HalfOpen { good, .. }, Verdict::Good) if good + 1 >= rule.success_threshold => {
                self.turn(BreakerState::Closed);
            }
            (BreakerState::HalfOpen { good, .. }, Verdict::Good) => {
                self.state = BreakerState::HalfOpen { good: good + 1, probing: false };
            }
            (BreakerState::HalfOpen { good, .. }, Verdict::Mute) => {
                self.state = BreakerState::HalfOpen { good, probing: false };
            }
            _ => {}
        }
    }

    /// The health check saw a recovered worker: readmit it (SMG `smg_worker_cb_health_readmissions_total`).
    pub fn readmit(&mut self) {
        if self.state != BreakerState::Closed {
            self.bad_in_a_row = 0;
            self.turn(BreakerState::Closed);
        }
    }

    fn turn(&mut self, to: BreakerState) {
        self.state = to;
        self.transitions = self.transitions.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> BreakerRule {
        BreakerRule {
            failure_threshold: 2,
            success_threshold: 2,
            rest: Duration::from_secs(5),
            enabled: true,
        }
    }

    #[test]
    fn opens_on_consecutive_failures_only() {
        let (mut b, r, t) = (Breaker::default(), rule(), Instant::ZERO);
        for v in [Verdict::Bad, Verdict::Good, Verdict::Bad, Verdict::Mute] {
            b.record(v, &r, t);
        }
        assert_eq!(b.state(), BreakerState::Closed);
        b.record(Verdict::Bad, &r, t);
        assert!(matches!(b.state(), BreakerState::Open { .. }));
        assert!(!b.lets_through(t));
    }

    #[test]
    fn half_open_lets_one_probe_through_and_a_dropped_probe_gives_its_place_back() {
        let (mut b, r) = (Breaker::default(), rule());
        b.record(Verdict::Bad, &r, Instant::ZERO);
        b.record(Verdict::Bad, &r, Instant::ZERO);
        let later = Instant::ZERO.after(Duration::from_secs(5));
        assert!(b.enter(later));
        assert!(!b.enter(later), "one probe at a time");
        b.record(Verdict::Mute, &r, later);
        assert!(b.enter(later));
        b.record(Verdict::Good, &r, later);
        assert!(b.enter(later));
        b.record(Verdict::Good, &r, later);
        assert_eq!(b.state(), BreakerState::Closed);
    }

    #[test]
    fn a_bad_probe_opens_again_and_health_readmits() {
        let (mut b, r) = (Breaker::default(), rule());
        b.record(Verdict::Bad, &r, Instant::ZERO);
        b.record(Verdict::Bad, &r, Instant::ZERO);
        let later = Instant::ZERO.after(Duration::from_secs(6));
        assert!(b.enter(later));
        b.record(Verdict::Bad, &r, later);
        assert!(!b.lets_through(later));
        b.readmit();
        assert_eq!(b.state(), BreakerState::Closed);
    }
}
