//! Placement: whom it may choose, how it spreads, what it says when nobody can serve, and that everything
//! taken is given back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod affinity;
mod any_fleet;
mod burst;
mod evenness;
mod events;
mod every_strategy;
mod filters;
mod heads;
mod pairs;
mod partner;
mod probes;
mod props;
mod receipts;
mod reports;
mod spread;
mod warm;
mod whole;
mod windows;
mod yard;
