//! End to end: the gateway in process, against simulated engines, as clients see it.
//!
//! Every test ends with [`support::House::close`]: all KV blocks free, all leases back, all gauges at zero.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::large_futures, reason = "the futures of tests are few")]

mod aborts;
mod admission;
mod aibrix;
mod apis;
mod budget;
mod cases;
mod discovery;
mod edge;
mod explain;
mod fan;
mod faults;
mod field;
mod gauges;
mod hearing;
mod kinds;
mod leaving;
mod legs;
mod logprobs;
mod mooncake;
mod moriio;
mod odd;
mod pairing;
mod policies;
mod preflight;
mod ranks;
mod relay;
mod reuse;
mod serving;
mod shared;
mod slow;
mod smg;
mod stopping;
mod strategies;
mod support;
mod tokenize;
mod told;
mod trtllm;
mod watchdog;
mod windows;
mod workers;
