//! Simulated inference engines.
//!
//! A gateway needs engines that behave like the real ones, break when they break, and tell afterwards whether every
//! hand-off was right and every KV block is free again. [`engine`] is the model, with no I/O; `serve` puts vLLM's and
//! SGLang's HTTP dialect in front of it; [`Fleet`] runs many in one process.

mod clock;
pub mod engine;
mod fleet;
mod serve;
pub mod text;

pub use baton_core::kv::Form;
pub use engine::profile::{PROFILES, Profile, StepWork};
pub use engine::spec::{Connector, Dialect, EngineSpec, Kind, LoadFailure, Role};
pub use engine::stats::Stats;
pub use fleet::{Fleet, FleetSpec};
pub use serve::{EngineHandle, FAULT_HEADER, Fabric, Fault, FaultKind, Happened, Seat, Where};
pub use text::{
    PromptId, STALE_MARK, WRONG_MARK, expected_choice, expected_score, expected_text, prompts_of,
};
