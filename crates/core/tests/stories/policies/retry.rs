//! Retries and verdicts, for every status an engine can answer with.

use baton_core::breaker::Verdict;
use baton_core::dice::Dice;
use baton_core::fault::{Fault, LegName, Refusal, Retry};
use baton_core::retry::{Decision, RetryRule};
use baton_core::time::Duration;

use crate::world::silence;

const LEGS: [LegName; 3] = [LegName::Prefill, LegName::Decode, LegName::Whole];

fn refused(leg: LegName, status: u16, later: bool) -> Fault {
    let retry_after = later.then(|| "3".to_owned());
    Fault::Refused { leg, refusal: Refusal { status, retry_after, ..Refusal::default() } }
}

#[test]
fn every_status_of_every_leg() {
    for leg in LEGS {
        for status in 100..600 {
            for later in [false, true] {
                let fault = refused(leg, status, later);
                // Nothing but an error of the engine's own goes out under its own status.
                let outward = if status >= 400 { status } else { 502 };
                assert_eq!(fault.status(), outward, "{status}");
                let verdict = match (outward, later) {
                    (400..500, _) | (503, true) => Verdict::Mute,
                    (500 | 502 | 503 | 504, _) => Verdict::Bad,
                    _ => Verdict::Good,
                };
                assert_eq!(fault.verdict(leg), verdict, "{status} {later}");
                let safe = [408, 429, 500, 502, 503, 504].contains(&outward);
                assert_eq!(fault.retry() == Retry::Safe, safe, "{status}");
                for other in LEGS.into_iter().filter(|l| *l != leg) {
                    assert_eq!(fault.verdict(other), Verdict::Mute, "a leg is blamed for another's {status}");
                }
            }
        }
    }
}

#[test]
fn faults_before_any_worker_blame_none_and_are_not_retried() {
    for fault in [
        Fault::InvalidJson { message: String::new() },
        Fault::BodyTooLarge { limit_bytes: 1 },
        Fault::ModelNotFound { model: "m".into(), known: String::new() },
        Fault::QueueFull { retry_after_s: 1 },
        Fault::Draining,
        Fault::NoWorker { leg: LegName::Prefill, registered: true },
        Fault::NoPair { detail: String::new() },
        Fault::Shed { leg: LegName::Decode, rooms: 1, widest: None },
        Fault::Deadline { leg: LegName::Decode, seconds: 1 },
        silence(LegName::Decode),
        Fault::ClientGone,
    ] {
        assert_eq!(fault.retry(), Retry::Never, "{fault:?}");
        if !matches!(fault, Fault::Deadline { .. } | Fault::DecodeSilent { .. }) {
            assert!(LEGS.iter().all(|leg| fault.verdict(*leg) == Verdict::Mute), "{fault:?}");
        }
    }
}

#[test]
fn attempts_end_and_waits_stay_in_their_band() {
    let faults = [refused(LegName::Decode, 503, false), refused(LegName::Decode, 400, false)];
    let mut dice = Dice::new(1);
    for attempts in 0..6 {
        let rule = RetryRule { attempts, ..RetryRule::default() };
        for fault in &faults {
            for attempt in 1..8 {
                for sent in [false, true] {
                    let decision = rule.decide(fault, attempt, sent, &mut dice);
                    let again = attempt < attempts && !sent && fault.retry() == Retry::Safe;
                    let Decision::Again { wait } = decision else {
                        assert!(!again, "gave up at {attempt} of {attempts}");
                        continue;
                    };
                    assert!(again, "attempt {attempt} of {attempts}, bytes sent: {sent}");
                    let middle = Duration::from_millis(50).mul_f64(1.5f64.powi(attempt as i32 - 1));
                    assert!(wait >= middle.mul_f64(0.8) && wait <= middle.mul_f64(1.2), "{wait:?}");
                }
            }
        }
    }
}

#[test]
fn no_rule_makes_a_wait_without_bound() {
    let fault = refused(LegName::Decode, 500, false);
    for multiplier in [0.0, 1.0, 2.0, 1e9, f64::INFINITY, f64::NAN] {
        for initial in [0, 1, 60_000] {
            let rule = RetryRule {
                attempts: u32::MAX,
                initial_backoff: Duration::from_millis(initial),
                multiplier,
                jitter: 1.0,
                ..RetryRule::default()
            };
            for attempt in [1, 2, 100, 1_000_000, u32::MAX - 1] {
                let Decision::Again { wait } = rule.decide(&fault, attempt, false, &mut Dice::new(3)) else {
                    panic!("gave up")
                };
                assert!(wait <= 2 * rule.max_backoff, "{multiplier} {attempt}: {wait:?}");
            }
        }
    }
}
