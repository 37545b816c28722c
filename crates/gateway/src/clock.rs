//! The only place that reads the clock.

use std::time::SystemTime;

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

    /// Milliseconds since 1970, for ids that carry the time. Never for measuring: it can jump.
    pub fn unix_millis(self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Nanoseconds since 1970, for names that are told apart by the moment. Never for measuring: it can jump.
    pub fn unix_nanos(self) -> u128 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos())
    }

    /// Seconds since 1970, for what people read. Never for measuring: it can jump.
    pub fn unix_seconds(self) -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }
}

/// A seed that differs from start to start.
pub fn seed() -> u64 {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    wall.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_paused_time() {
        let clock = Clock::start();
        assert_eq!(clock.now(), Instant::ZERO);
        let at = clock.now().after(Duration::from_millis(1500));
        tokio::time::sleep_until(clock.timer(at)).await;
        assert_eq!(clock.now(), at);
    }
}
