//! Time as an argument.
//!
//! The shell reads a clock in one place and hands the reading in; core only compares and adds. An
//! [`Instant`] counts microseconds since the process started, so it fits an atomic and a replay can
//! start at zero.

pub use std::time::Duration;

/// A moment, in microseconds since the gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    pub const ZERO: Instant = Instant(0);

    pub const fn from_micros(micros: u64) -> Instant {
        Instant(micros)
    }

    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if `earlier` lies ahead.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// This moment plus `d`; stays at the end of time instead of wrapping.
    pub fn after(self, d: Duration) -> Instant {
        let micros = u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_wraps_and_never_runs_backwards() {
        let t = Instant::from_micros(5);
        assert_eq!(t.since(Instant::from_micros(9)), Duration::ZERO);
        assert_eq!(t.after(Duration::MAX), Instant::from_micros(u64::MAX));
        assert_eq!(t.after(Duration::from_millis(1)).since(t), Duration::from_millis(1));
    }
}
