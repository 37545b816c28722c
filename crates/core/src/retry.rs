//! Try again?
//!
//! A fault that says so may be tried again, as long as the client has not had a byte of the body: with a
//! fresh pair and fresh ids, or with another decode for KV that is still held (the exchange knows). The wait grows and is spread by
//! chance (SMG 1.13). How many retries all requests may make together says the [`Budget`].

mod budget;

pub use budget::{Budget, BudgetRule};

use crate::dice::Dice;
use crate::fault::{Fault, Retry};
use crate::time::Duration;

/// How often and how far apart.
#[derive(Clone, Debug)]
pub struct RetryRule {
    /// Attempts in all, the first included. SMG `--retry-max-retries` counts so; 1 is `--disable-retries`.
    pub attempts: u32,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    pub multiplier: f64,
    /// Part of the wait that chance may add or take away.
    pub jitter: f64,
}

impl Default for RetryRule {
    fn default() -> Self {
        RetryRule {
            attempts: 5,
            initial_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(30),
            multiplier: 1.5,
            jitter: 0.2,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Again { wait: Duration },
    GiveUp,
}

impl RetryRule {
    /// `attempt` counts from 1: the attempt that has just failed.
    pub fn decide(&self, fault: &Fault, attempt: u32, bytes_sent: bool, dice: &mut Dice) -> Decision {
        if bytes_sent || attempt >= self.attempts || fault.retry() == Retry::Never {
            return Decision::GiveUp;
        }
        let grown = self.initial_backoff.as_secs_f64()
            * self.multiplier.max(1.0).powi(attempt.saturating_sub(1) as i32);
        let wait = Duration::from_secs_f64(grown.min(self.max_backoff.as_secs_f64()));
        Decision::Again { wait: dice.jitter(wait, self.jitter) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::LegName;

    #[test]
    fn waits_grow_to_their_bound_and_attempts_end() {
        let rule = RetryRule { jitter: 0.0, attempts: 30, ..RetryRule::default() };
        let f = Fault::Unreachable { leg: LegName::Decode, cause: "reset".into() };
        let mut d = Dice::new(1);
        let mut wait = |n| match rule.decide(&f, n, false, &mut d) {
            Decision::Again { wait } => Some(wait.as_millis()),
            Decision::GiveUp => None,
        };
        assert_eq!((wait(1), wait(2), wait(29), wait(30)), (Some(50), Some(75), Some(30_000), None));
        assert_eq!(rule.decide(&f, 1, true, &mut d), Decision::GiveUp, "never after a body byte");
        assert_eq!(rule.decide(&Fault::ClientGone, 1, false, &mut d), Decision::GiveUp);
    }
}
