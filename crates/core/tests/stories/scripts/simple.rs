//! Scripts of breaker, health and admission.

use baton_core::admission::{Admission, AdmissionRule};
use baton_core::breaker::{Breaker, BreakerRule, BreakerState, Verdict};
use baton_core::fleet::{Health, HealthRule};
use baton_core::time::{Duration, Instant};

use super::Machine;

pub struct BreakerScript {
    rule: BreakerRule,
    breaker: Breaker,
    now: Instant,
}

impl BreakerScript {
    pub fn new(failures: u32, successes: u32, rest: u32) -> BreakerScript {
        let rest = Duration::from_secs(rest.into());
        let rule =
            BreakerRule { enabled: true, failure_threshold: failures, success_threshold: successes, rest };
        BreakerScript { rule, breaker: Breaker::default(), now: Instant::ZERO }
    }

    fn state(&self) -> String {
        say(self.breaker.state()) + &format!(", {} bad in a row", self.breaker.bad_in_a_row())
    }
}

pub fn say(state: BreakerState) -> String {
    match state {
        BreakerState::Closed => "closed".to_owned(),
        BreakerState::Open { until } => format!("open until {} s", until.as_micros() / 1_000_000),
        BreakerState::HalfOpen { good, probing: true } => format!("half-open, {good} good, a probe is out"),
        BreakerState::HalfOpen { good, probing: false } => format!("half-open, {good} good"),
    }
}

impl Machine for BreakerScript {
    fn hear(&mut self, words: &[&str]) -> String {
        let before = match words {
            ["at", second] => {
                let second: u64 = second.parse().unwrap();
                self.now = Instant::from_micros(second * 1_000_000);
                String::new()
            }
            ["request"] => match self.breaker.enter(self.now) {
                true => "let through; ".to_owned(),
                false => "kept away; ".to_owned(),
            },
            ["readmit"] => {
                self.breaker.readmit();
                String::new()
            }
            verdicts => {
                for verdict in verdicts {
                    let verdict = match *verdict {
                        "good" => Verdict::Good,
                        "bad" => Verdict::Bad,
                        "mute" => Verdict::Mute,
                        other => panic!("no such verdict: {other}"),
                    };
                    self.breaker.record(verdict, &self.rule, self.now);
                }
                String::new()
            }
        };
        before + &self.state()
    }
}

pub struct HealthScript {
    rule: HealthRule,
    health: Health,
}

impl HealthScript {
    pub fn new(success_threshold: u32, failure_threshold: u32) -> HealthScript {
        HealthScript { rule: HealthRule { success_threshold, failure_threshold }, health: Health::default() }
    }
}

impl Machine for HealthScript {
    /// `+ - 27*-`: probes, each good or bad, perhaps several at once.
    fn hear(&mut self, words: &[&str]) -> String {
        let mut said = vec![];
        for word in words {
            let (times, probe) = word.split_once('*').unwrap_or(("1", word));
            for _ in 0..times.parse().unwrap() {
                let changed = self.health.probed(probe == "+", &self.rule);
                said.extend(changed.map(|status| format!("becomes {}", status.as_str())));
            }
        }
        said.push(format!("is {}", self.health.status().as_str()));
        said.join(", ")
    }
}

/// Requests by name, in order.
pub struct AdmissionScript {
    rule: AdmissionRule,
    running: Vec<String>,
    waiting: Vec<String>,
}

impl AdmissionScript {
    pub fn new(concurrent: u32, queue: u32) -> AdmissionScript {
        AdmissionScript {
            rule: AdmissionRule {
                concurrent: concurrent as usize,
                queue: queue as usize,
                queue_timeout: Duration::from_secs(60),
            },
            running: vec![],
            waiting: vec![],
        }
    }
}

impl Machine for AdmissionScript {
    fn hear(&mut self, words: &[&str]) -> String {
        let said = match words {
            ["arrives", name] => match self.rule.decide(self.running.len(), self.waiting.len()) {
                Admission::Enter => {
                    self.running.push((*name).to_owned());
                    "enters".to_owned()
                }
                Admission::Wait { at_most } => {
                    self.waiting.push((*name).to_owned());
                    format!("waits at most {at_most:?}")
                }
                Admission::Refuse(fault) => refused(&fault),
            },
            // The place goes to the first in the queue.
            ["ends", name] => {
                self.running.retain(|n| n != name);
                let next = (!self.waiting.is_empty()).then(|| self.waiting.remove(0));
                self.running.extend(next.clone());
                next.map_or("a place is free".to_owned(), |next| format!("{next} enters"))
            }
            ["leaves", name] => {
                self.waiting.retain(|n| n != name);
                "leaves the queue".to_owned()
            }
            ["has", "waited", name] => {
                self.waiting.retain(|n| n != name);
                refused(&self.rule.timed_out())
            }
            other => panic!("no such line: {other:?}"),
        };
        format!("{said}; running [{}], waiting [{}]", self.running.join(" "), self.waiting.join(" "))
    }
}

fn refused(fault: &baton_core::fault::Fault) -> String {
    let answer = fault.answer();
    format!("{} {}, again in {} s", answer.status, answer.code, answer.retry_after.unwrap_or_default())
}
