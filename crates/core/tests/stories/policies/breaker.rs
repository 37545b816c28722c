//! Every sequence of eight steps, against what the history says the breaker must be.

use baton_core::breaker::{Breaker, BreakerRule, BreakerState, Verdict};
use baton_core::fleet::{Pulse, Status};
use baton_core::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A request asks to go to the worker.
    Enter,
    Verdict(Verdict),
    /// The breaker's rest passes.
    Rest,
    /// The health check readmits the worker.
    Readmit,
}

const STEPS: [Step; 6] = [
    Step::Enter,
    Step::Verdict(Verdict::Good),
    Step::Verdict(Verdict::Bad),
    Step::Verdict(Verdict::Mute),
    Step::Rest,
    Step::Readmit,
];

const DEPTH: usize = 8;

fn rule(failure_threshold: u32, success_threshold: u32, enabled: bool) -> BreakerRule {
    BreakerRule { enabled, failure_threshold, success_threshold, rest: Duration::from_secs(10) }
}

fn kind(state: BreakerState) -> u8 {
    match state {
        BreakerState::Closed => 0,
        BreakerState::Open { .. } => 1,
        BreakerState::HalfOpen { .. } => 2,
    }
}

/// One path of the walk: what happened, and in which states.
struct Path<'a> {
    rule: &'a BreakerRule,
    steps: Vec<Step>,
    /// The state before each step, and after the last.
    states: Vec<BreakerState>,
    walked: u64,
}

impl Path<'_> {
    fn go(&mut self, breaker: &Breaker, now: Instant) {
        if self.steps.len() == DEPTH {
            return;
        }
        for step in STEPS {
            let (mut after, mut then) = (breaker.clone(), now);
            let entered = match step {
                Step::Enter => Some(after.enter(now)),
                Step::Verdict(verdict) => {
                    after.record(verdict, self.rule, now);
                    None
                }
                Step::Rest => {
                    then = now.after(self.rule.rest);
                    None
                }
                Step::Readmit => {
                    after.readmit();
                    None
                }
            };
            self.steps.push(step);
            self.states.push(after.state());
            self.check(breaker, &after, now, entered);
            self.walked += 1;
            self.go(&after, then);
            self.steps.pop();
            self.states.pop();
        }
    }

    /// Verdicts that count since the breaker last closed, the newest first.
    fn verdicts_since_closed(&self) -> Vec<Verdict> {
        let mut verdicts = vec![];
        for (i, step) in self.steps.iter().enumerate().rev() {
            match step {
                Step::Verdict(Verdict::Mute) => {}
                Step::Verdict(verdict) => verdicts.push(*verdict),
                Step::Readmit if kind(self.states[i]) != 0 => break,
                _ => {}
            }
        }
        verdicts
    }

    fn story(&self) -> String {
        format!("{:?} -> {:?}", self.steps, self.states)
    }

    fn check(&self, before: &Breaker, after: &Breaker, now: Instant, entered: Option<bool>) {
        let story = || self.story();
        let step = self.steps[self.steps.len() - 1];
        let (from, to) = (before.state(), after.state());
        assert_eq!(
            after.transitions() - before.transitions(),
            u32::from(kind(from) != kind(to) || (kind(to) == 1 && from != to)),
            "each change is counted: {}",
            story()
        );
        if !self.rule.enabled {
            assert_eq!((to, entered.unwrap_or(true)), (BreakerState::Closed, true), "{}", story());
            return;
        }
        let bad = step == Step::Verdict(Verdict::Bad);
        match from {
            BreakerState::Closed => {
                let threshold = self.rule.failure_threshold.max(1) as usize;
                let recent = self.verdicts_since_closed();
                let row = recent.len() >= threshold && recent[..threshold].iter().all(|v| *v == Verdict::Bad);
                assert_eq!(kind(to), u8::from(bad && row), "opens on a row of bad ones only: {}", story());
                assert!(entered.unwrap_or(true), "closed lets all through: {}", story());
            }
            BreakerState::Open { until } => {
                let may = entered == Some(true);
                assert_eq!(
                    entered.is_some() && now >= until,
                    may,
                    "open until the rest is over: {}",
                    story()
                );
                let expected = match step {
                    Step::Readmit => 0,
                    _ if may => 2,
                    _ => 1,
                };
                assert_eq!(kind(to), expected, "{}", story());
            }
            BreakerState::HalfOpen { .. } => self.check_half_open(to, step, entered),
        }
        if let BreakerState::Open { until } = to
            && from != to
        {
            assert_eq!(until, now.after(self.rule.rest), "{}", story());
        }
    }

    fn check_half_open(&self, to: BreakerState, step: Step, entered: Option<bool>) {
        let story = || self.story();
        let began = self.states[..self.states.len() - 1].iter().rposition(|s| kind(*s) != 2).unwrap() + 1;
        let since = &self.steps[began..];
        let good = since.iter().filter(|s| **s == Step::Verdict(Verdict::Good)).count();
        let expected = match step {
            Step::Readmit => 0,
            Step::Verdict(Verdict::Bad) => 1,
            Step::Verdict(Verdict::Good) if good >= self.rule.success_threshold.max(1) as usize => 0,
            _ => 2,
        };
        assert_eq!(kind(to), expected, "{}", story());
        if let Some(entered) = entered {
            // A probe is out from the request that was let through until somebody's verdict.
            let earlier = &since[..since.len() - 1];
            let spoke = earlier.iter().rposition(|s| matches!(s, Step::Verdict(_)));
            let out =
                earlier.iter().rposition(|s| *s == Step::Enter).is_none_or(|e| spoke.is_none_or(|s| e > s));
            let asked_since = spoke.is_none_or(|s| earlier[s..].contains(&Step::Enter));
            assert_eq!(entered, !(out && asked_since), "one probe at a time: {}", story());
        }
    }
}

#[test]
fn every_sequence_of_eight_steps() {
    for rule in [rule(1, 1, true), rule(2, 2, true), rule(3, 1, true), rule(1, 3, true), rule(1, 1, false)] {
        let mut path = Path { rule: &rule, steps: vec![], states: vec![BreakerState::Closed], walked: 0 };
        // The walk is cut by the depth: 6 + 6^2 + ... + 6^8 steps would be two million for each rule.
        path.go(&Breaker::default(), Instant::ZERO);
        println!("{rule:?}: {} steps", path.walked);
    }
}

/// The pulse skips the lock while all is well; what it lets through must not differ for it.
#[test]
fn the_pulse_lets_through_what_the_breaker_does() {
    let rule = rule(2, 2, true);
    let mut sequence = [0usize; 6];
    loop {
        let (mut breaker, pulse, mut now) = (Breaker::default(), Pulse::default(), Instant::ZERO);
        pulse.set_status(Status::Ready);
        for step in sequence.map(|i| STEPS[i]) {
            assert_eq!(pulse.available(now), breaker.lets_through(now), "{sequence:?}");
            match step {
                Step::Enter => assert_eq!(pulse.enter(now), breaker.enter(now), "{sequence:?}"),
                Step::Verdict(verdict) => {
                    breaker.record(verdict, &rule, now);
                    pulse.record(verdict, &rule, now);
                }
                Step::Rest => now = now.after(rule.rest),
                Step::Readmit => {
                    breaker.readmit();
                    pulse.readmit();
                }
            }
            assert_eq!(pulse.breaker().state(), breaker.state(), "{sequence:?}");
        }
        let Some(next) = sequence.iter().rposition(|i| *i + 1 < STEPS.len()) else { break };
        sequence[next] += 1;
        sequence[next + 1..].fill(0);
    }
}

/// A leg that entered always ends with a verdict; then no breaker keeps a worker out for ever.
#[test]
fn with_every_leg_judged_no_worker_is_kept_out_longer_than_a_rest() {
    struct World {
        rule: BreakerRule,
        walked: u64,
    }
    impl World {
        fn go(&mut self, breaker: &Breaker, now: Instant, legs: u32, depth: usize) {
            if legs == 0 {
                assert!(breaker.lets_through(now.after(self.rule.rest)), "{breaker:?}");
            }
            if depth == 0 {
                return;
            }
            self.walked += 1;
            let mut entered = breaker.clone();
            if entered.enter(now) {
                self.go(&entered, now, legs + 1, depth - 1);
            }
            self.go(breaker, now.after(self.rule.rest), legs, depth - 1);
            for verdict in [Verdict::Good, Verdict::Bad, Verdict::Mute].into_iter().filter(|_| legs > 0) {
                let mut judged = breaker.clone();
                judged.record(verdict, &self.rule, now);
                self.go(&judged, now, legs - 1, depth - 1);
            }
        }
    }
    let mut world = World { rule: rule(2, 2, true), walked: 0 };
    world.go(&Breaker::default(), Instant::ZERO, 0, 9);
    println!("{} states", world.walked);
}
