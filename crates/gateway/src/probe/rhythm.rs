//! When to ask a worker next.
//!
//! A new worker is asked again soon at first and then ever more seldom, up to the interval that is set:
//! an engine takes minutes to load a model, but a gateway that starts with its engines should not wait
//! for half a minute because it was the faster one. Checks of a known worker are spread by chance, so
//! that a fleet which joined at once is not asked at once for ever after. A worker that was away and
//! answers well is asked for the confirmation soon, because nothing is gained by waiting for it.

use std::time::Duration;

use baton_core::dice::Dice;
use baton_core::fleet::Status;

/// Shortest time between two rounds of questions that something else than the interval asked for.
pub const EARLY_PROBE_GAP: Duration = Duration::from_secs(1);

/// First pause between two tries to reach a new worker.
const FIRST_RETRY: Duration = Duration::from_millis(250);

/// Share of an interval that is left to chance, either way.
const JITTER: f64 = 0.1;

/// The pause after the `failed`th failed try (from 1) to reach a new worker.
pub fn retry_pause(failed: u32, interval: Duration) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(1u32 << failed.saturating_sub(1).min(20));
    doubled.min(interval)
}

/// The pause after a health check of a known worker.
pub fn check_pause(status: Status, good: bool, interval: Duration, dice: &mut Dice) -> Duration {
    let away = matches!(status, Status::NotReady | Status::Failed);
    if away && good { interval.min(EARLY_PROBE_GAP) } else { dice.jitter(interval, JITTER) }
}

/// The pause before the first health check of a worker that was just found well.
pub fn first_pause(interval: Duration, dice: &mut Dice) -> Duration {
    interval.mul_f64(0.5 + dice.fraction() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn tries_double_up_to_the_interval() {
        let pauses: Vec<u64> =
            (1..=9).map(|n| retry_pause(n, Duration::from_secs(30)).as_millis() as u64).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        assert_eq!(retry_pause(u32::MAX, Duration::from_millis(100)), Duration::from_millis(100));
    }

    #[test]
    fn checks_are_spread_and_confirmations_come_soon() {
        let mut dice = Dice::new(3);
        let pauses: Vec<Duration> =
            (0..100).map(|_| check_pause(Status::Ready, true, MINUTE, &mut dice)).collect();
        assert!(pauses.iter().all(|p| (54..=66).contains(&p.as_secs())));
        assert!(pauses.iter().any(|p| p < &MINUTE) && pauses.iter().any(|p| p > &MINUTE));
        assert_eq!(check_pause(Status::NotReady, true, MINUTE, &mut dice), EARLY_PROBE_GAP);
        assert!(check_pause(Status::NotReady, false, MINUTE, &mut dice) > EARLY_PROBE_GAP);
        let first = first_pause(MINUTE, &mut dice);
        assert!(first >= MINUTE / 2 && first <= MINUTE);
    }
}
