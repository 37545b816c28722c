//! The only place that reads the clock.

use baton_core::time::Instant;

/// Readings count from when the clock was made. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: tokio::time::Instant,
}

impl Clock {
    /// Starts to count now.
    pub fn start() -> Clock {
        Clock { start: tokio::time::Instant::now() }
    }

    pub fn now(self) -> Instant {
        let micros = self.start.elapsed().as_micros();
        Instant::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The runtime's name for a moment, for timers.
    pub fn timer(self, at: Instant) -> tokio::time::Instant {
        self.start + std::time::Duration::from_micros(at.as_micros())
    }
}
