//! Real sockets in front of the model: each engine's HTTP dialect, its rendezvous ports, faults, and a way to kill it.

mod answer;
mod body;
mod connector;
mod fabric;
mod fault;
mod http;
mod info;
mod json;
mod metrics;
mod node;
mod publish;
mod refusal;
mod remote;
mod server;
mod sglang;
mod side;
mod stream;
mod tokenize;
mod trtllm;
mod vllm;
mod wire;
mod wish;

pub use fabric::Fabric;
pub use fault::{Fault, HEADER as FAULT_HEADER, Happened, Kind as FaultKind, Where};
pub use server::{EngineHandle, Seat};
