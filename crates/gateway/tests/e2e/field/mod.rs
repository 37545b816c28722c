//! What users of gateways of this kind have reported, and what nobody has tried yet: each case a test whose name
//! begins with the case's number.
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

use std::path::Path;

use baton_sim::{Dialect, FleetSpec};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{Ask, House, Plan, Reply, Seen};

/// Cases that belong to other tests; see above.
const ELSEWHERE: [&str; 4] = ["a25", "a26", "a27", "a28"];

/// An event of a chat stream with this text.
fn content(text: &str) -> String {
    let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
    event(&json!([choice]), "")
}

fn finish(reason: &str) -> String {
    event(&json!([{"index": 0, "delta": {}, "finish_reason": reason}]), "")
}

fn usage(prompt: u32, completion: u32) -> String {
    let total = prompt + completion;
    let told = json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total});
    event(&json!([]), &format!(r#","usage":{told}"#))
}

fn event(choices: &serde_json::Value, more: &str) -> String {
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":{choices}{more}}}\n\n"
    )
}

const DONE: &str = "data: [DONE]\n\n";

/// One worker for both phases behind a tap, and one attempt for each request.
async fn one_worker() -> House {
    Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().no_retries().open().await
}

fn send(house: &House, ask: Ask) -> JoinHandle<Reply> {
    let address = house.address;
    tokio::spawn(async move { ask.post(address).await })
}

/// The generation requests that came to this engine's tap.
fn asked(house: &House, at: usize) -> Vec<Seen> {
    house.taps[at].seen().into_iter().filter(|seen| seen.path != "/abort_request").collect()
}

#[test]
fn every_case_has_a_test() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = String::new();
    for tests in ["tests/e2e", "../core/tests"] {
        read(&home.join(tests), &mut all);
    }
    let numbered =
        |prefix: &str, last: u32| (1..=last).map(|n| format!("{prefix}{n:02}")).collect::<Vec<_>>();
    let cases = [numbered("a", 30), numbered("ua", 12)].concat();
    let missing: Vec<_> = cases
        .iter()
        .filter(|case| !ELSEWHERE.contains(&case.as_str()) && !all.contains(&format!("fn {case}_")))
        .collect();
    assert!(missing.is_empty(), "no test begins with {missing:?}");
}

fn read(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => read(&path, all),
            false => *all += &std::fs::read_to_string(path).unwrap(),
        }
    }
}
