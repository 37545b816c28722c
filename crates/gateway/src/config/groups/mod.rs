//! The settings themselves, one file for each part of the gateway.

mod discovery;
mod handoff;
mod policy;
mod redis;
mod resilience;
mod server;
mod telemetry;
mod workers;

pub use discovery::Discovery;
pub use handoff::Handoff;
pub use policy::{Affinity, Load, Policy};
pub use redis::Redis;
pub use resilience::{Admission, Breaker, Health, Retry};
pub use server::{Auth, Cors, Limits, Server, Timeouts, Tls};
pub use telemetry::{Log, Metrics, Trace};
pub use workers::Workers;

use std::num::{NonZeroU32, NonZeroUsize};

/// A positive default; 0 cannot be written here by accident, it becomes 1.
const fn at_least_one(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
}

const fn at_least_one32(n: u32) -> NonZeroU32 {
    match NonZeroU32::new(n) {
        Some(n) => n,
        None => NonZeroU32::MIN,
    }
}
