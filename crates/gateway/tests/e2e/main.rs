//! End to end: the gateway in process, against simulated engines, as clients see it.
//!
//! Every test ends with [`support::House::close`]: all KV blocks free, all leases back, all gauges at zero.

mod legs;
mod serving;
mod support;
