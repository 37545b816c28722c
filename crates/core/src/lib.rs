//! baton-core: every decision that the gateway makes, and nothing that touches the world.
//!
//! No sockets, no clock, no runtime, no environment, no log: time ([`time::Instant`]) and chance
//! ([`dice::Dice`]) are arguments, so that a decision can be replayed from its inputs alone.
//! ARCHITECTURE.md says which module decides what.

pub mod abort;
pub mod admission;
pub mod ask;
pub mod body;
pub mod breaker;
pub mod chat;
pub mod dice;
pub mod exchange;
pub mod fan;
pub mod fault;
pub mod fleet;
pub mod gauges;
pub mod handoff;
pub mod kv;
pub mod limits;
pub mod load;
pub mod merge;
pub mod place;
pub mod prefix;
pub mod preflight;
pub mod prompt;
pub mod record;
pub mod retry;
pub mod roster;
pub mod selector;
pub mod size;
pub mod sse;
pub mod time;
pub mod tokenize;
pub mod watchdog;
pub mod wishes;
pub mod zmtp;
