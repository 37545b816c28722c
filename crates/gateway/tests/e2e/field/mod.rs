//! What users of gateways of this kind have reported, and what nobody has tried yet: each case a test whose name
//! begins with the case's number. [`crate::cases`] sees to it that none is missing.
//!
//! Tests that showed a case before it had a number stay where they are and carry it in their name; the others are
//! here. Not here: how requests are spread over workers (A25 hot prefixes, A26 hash keys, A27 the prefix index's
//! memory), which is tested with the policies, and what Kubernetes tells (A28), which is tested with discovery.
//!
//! Where the reports disagree, or SMG's page decides otherwise, docs/differences.md says what was chosen and why.

mod leaving;
mod legs;
mod load;
mod streams;
mod wire;

use baton_sim::{Dialect, FleetSpec};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{Ask, House, Plan, Reply, Seen};

/// An event of a chat stream with this text.
pub fn content(text: &str) -> String {
    let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
    event(&json!([choice]), "")
}

pub fn finish(reason: &str) -> String {
    event(&json!([{"index": 0, "delta": {}, "finish_reason": reason}]), "")
}

pub fn usage(prompt: u32, completion: u32) -> String {
    let total = prompt + completion;
    let told = json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total});
    event(&json!([]), &format!(r#","usage":{told}"#))
}

pub fn event(choices: &serde_json::Value, more: &str) -> String {
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":{choices}{more}}}\n\n"
    )
}

pub const DONE: &str = "data: [DONE]\n\n";

/// One worker for both phases behind a tap, and one attempt for each request.
pub async fn one_worker() -> House {
    Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().no_retries().open().await
}

pub fn send(house: &House, ask: Ask) -> JoinHandle<Reply> {
    let address = house.address;
    tokio::spawn(async move { ask.post(address).await })
}

/// The generation requests that came to this engine's tap.
pub fn asked(house: &House, at: usize) -> Vec<Seen> {
    house.taps[at].seen().into_iter().filter(|seen| seen.path != "/abort_request").collect()
}
