//! Stories of the core's state machines: every order of events, and the ones worth reading.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod fan;
mod handoffs;
mod mutants;
mod policies;
mod scripts;
mod telling;
mod walk;
mod world;
