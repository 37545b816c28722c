//! The ids of a prefill worker's running engines, from the bootstrap server that they have registered with
//! (vLLM 0.33: `GET /query`).
//!
//! An engine without a pinned id has another one after each restart, and a decode that is told the old one
//! waits for KV that nobody will send. So they are asked for with everything else, at every health check,
//! and by the data path whenever the engine may be another one than was asked ([`crate::registry`]).

use std::collections::BTreeMap;
use std::time::Duration;

use baton_core::body::{BodyLimits, Envelope};
use baton_core::handoff;

use super::get::{ANSWER_MAX_BYTES, Silence, Target};

/// Longest time for this one question: a request may be waiting for it.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Asks the bootstrap server at `url`.
///
/// # Errors
/// It does not answer, or names no engine.
pub async fn ids(url: &str) -> Result<BTreeMap<u32, String>, Silence> {
    let target = Target { url: url.to_owned(), api_key: None, timeout: PATIENCE };
    let reply = target.get("").await?;
    if !reply.status.is_success() {
        return Err(Silence::Unusable(format!("{url} answered {}", reply.status)));
    }
    let limits = BodyLimits { max_bytes: ANSWER_MAX_BYTES, ..BodyLimits::default() };
    let unusable = |e: &dyn std::fmt::Display| Silence::Unusable(format!("{url}: {e}"));
    let answer = Envelope::parse(reply.body, &limits).map_err(|e| unusable(&e))?;
    let ids = handoff::engine_ids(&answer);
    if ids.is_empty() { Err(unusable(&"no engine has registered")) } else { Ok(ids) }
}
