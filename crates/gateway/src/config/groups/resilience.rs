//! Who gets in, and what happens when something fails.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::at_least_one32;
use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::Concurrency;

const QUEUE: &str = "admission and its queue";
const WINDOW: &str = "admission windows of workers";

group! {
    /// Requests at once, and how many may wait for how long.
    "Admission" admission: Admission {
        /// Requests in the gateway at once; -1 is 1024 for each core and 4096 at least, 0 no bound.
        max_concurrent_requests: Concurrency = Concurrency::Auto, CONCURRENCY, "max-concurrent-requests";
        /// Requests that may wait for their turn.
        queue_size: usize = 100, COUNT, "queue-size";
        /// Longest time a request may wait for its turn.
        queue_timeout: Duration = Duration::from_secs(60), SECS_OR_ZERO, "queue-timeout-secs";
        /// Requests admitted per second; unset or 0: no bound.
        rate_limit_requests_per_second: Option<NonZeroUsize> = None, COUNT_OR_OFF, "rate-limit-tokens-per-second", NOTE.later(QUEUE);
        /// Requests at once on each prefill worker; 0 or less: no bound.
        prefill_max_inflight_per_worker: Option<NonZeroU32> = None, INFLIGHT_WINDOW,
            "prefill-max-inflight-requests-per-worker", NOTE.later(WINDOW);
        /// Requests that may wait for a prefill worker; 100 where the bound is set.
        prefill_queue_size: Option<usize> = None, MAYBE_COUNT, "prefill-queue-size", NOTE.later(WINDOW);
        /// Longest time a request may wait for a prefill worker; 60 where the bound is set.
        prefill_queue_timeout: Option<Duration> = None, MAYBE_SECS_OR_ZERO, "prefill-queue-timeout-secs", NOTE.later(WINDOW);
        /// Longest time a request may wait for a decode worker's window; 0 sheds at once.
        decode_admission_wait: Duration = Duration::from_secs(30), SECS_OR_ZERO, "pd-admission-wait-secs";
    }
}

group! {
    /// Whether a failed request is tried again.
    "Retries" retry: Retry {
        /// Attempts in total, the first one included.
        max_attempts: NonZeroU32 = at_least_one32(5), POSITIVE32, "retry-max-retries";
        /// Pause before the second attempt.
        initial_backoff: Duration = Duration::from_millis(50), MILLIS, "retry-initial-backoff-ms";
        /// Longest pause.
        max_backoff: Duration = Duration::from_secs(30), MILLIS, "retry-max-backoff-ms";
        /// Each pause is this much longer than the one before.
        backoff_multiplier: f64 = 1.5, FACTOR, "retry-backoff-multiplier";
        /// Share of a pause that is left to chance.
        jitter_factor: f64 = 0.2, SHARE, "retry-jitter-factor";
        /// Retries of all requests together, for each request of the last 10 s.
        budget_share: f64 = 0.2, SHARE, "retry-budget-share";
        /// Retries that there may be besides, a second.
        budget_floor: u32 = 10, COUNT32, "retry-budget-min-per-sec";
        /// One attempt only.
        disabled: bool = false, SWITCH, "disable-retries";
    }
}

group! {
    /// When a worker that keeps failing is left alone for a while.
    "Circuit breaker" breaker: Breaker {
        /// Failures in a row that open the breaker.
        failure_threshold: NonZeroU32 = at_least_one32(10), POSITIVE32, "cb-failure-threshold";
        /// Successes in a row that close it again.
        success_threshold: NonZeroU32 = at_least_one32(3), POSITIVE32, "cb-success-threshold";
        /// Time it stays open before it lets requests through again.
        open_duration: Duration = Duration::from_secs(60), SECS, "cb-timeout-duration-secs";
        /// SMG reads this and does nothing with it; so does Baton: failures are counted in a row.
        window: Duration = Duration::from_secs(120), SECS, "cb-window-duration-secs",
            NOTE.later("a failure window, which SMG does not have either");
        /// No breakers.
        disabled: bool = false, SWITCH, "disable-circuit-breaker";
    }
}

group! {
    /// How it is found out whether a worker is well.
    "Health checks" health: Health {
        /// Path that is asked.
        endpoint: String = "/health".to_owned(), URL_PATH, "health-check-endpoint";
        /// Time between two questions.
        interval: Duration = Duration::from_secs(60), SECS, "health-check-interval-secs";
        /// Longest time an answer may take.
        timeout: Duration = Duration::from_secs(5), SECS, "health-check-timeout-secs";
        /// Failures in a row that take a worker out.
        failure_threshold: NonZeroU32 = at_least_one32(3), POSITIVE32, "health-failure-threshold";
        /// Successes in a row that bring it back.
        success_threshold: NonZeroU32 = at_least_one32(2), POSITIVE32, "health-success-threshold";
        /// Ask nothing; workers are ready once registered.
        disabled: bool = false, SWITCH, "disable-health-check";
        /// Remove workers that stay unwell; unset: only where they were discovered.
        remove_unhealthy_workers: Option<bool> = None, MAYBE_SWITCH, "remove-unhealthy-workers",
            NOTE.alias(&["worker-auto-recovery"]);
    }
}
