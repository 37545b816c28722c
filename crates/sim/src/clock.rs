//! The one file of this crate that reads a clock.
//!
//! Engines take the time as an argument. What runs them takes it from here, from the runtime, so that paused time in tests
//! reaches every engine.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970, for `created`. The only use of the calendar.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
