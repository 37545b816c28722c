//! What a TensorRT-LLM context server says of where its KV can be fetched: `GET /server_info`.
//!
//! Only its Python transceiver says so; the C++ one answers an empty object, and then `generation_first` cannot be
//! served. A restart changes it, so it is asked for again at every health check, and as soon as a connection
//! to the worker fails. What is not exactly as AIBrix takes it counts as not said (AIBrix's page, "TensorRT-LLM
//! Parallel Scheduling").

use std::collections::BTreeMap;
use std::time::Duration;

use baton_core::fleet::{Engine, Role, Worker};
use baton_core::handoff::{CTX_DP_RANK, CTX_INFO_ENDPOINT, OPAQUE_STATE};
use http::StatusCode;
use serde_json::Value;

use super::get::Target;

/// Longest time for this one question (AIBrix's page).
const PATIENCE: Duration = Duration::from_secs(3);

/// Longest opaque state that is kept, in bytes. It rides on every request.
const STATE_MAX_BYTES: usize = 64 << 10;

/// Does its hand-off need what it says of its KV?
pub fn tells_context(worker: &Worker) -> bool {
    worker.engine == Engine::Trtllm && worker.role == Role::Prefill
}

/// The labels that the plan of a hand-off reads; none if the worker does not say.
pub async fn ask(target: &Target) -> BTreeMap<String, String> {
    let target = Target { timeout: target.timeout.min(PATIENCE), ..target.clone() };
    match target.get("/server_info").await {
        Ok(reply) => said(reply.status, &reply.body),
        Err(_) => BTreeMap::new(),
    }
}

/// What an answer of this status says.
pub fn said(status: StatusCode, body: &[u8]) -> BTreeMap<String, String> {
    if status.is_success() { context_labels(body) } else { BTreeMap::new() }
}

/// What a `/server_info` page says, as labels; none if it does not say all that is needed.
pub fn context_labels(page: &[u8]) -> BTreeMap<String, String> {
    serde_json::from_slice(page).ok().and_then(|page| read(&page)).unwrap_or_default()
}

/// All labels that [`ask`] may give.
pub const LABELS: [&str; 3] = [CTX_INFO_ENDPOINT, CTX_DP_RANK, OPAQUE_STATE];

fn read(page: &Value) -> Option<BTreeMap<String, String>> {
    let params = page.get("disaggregated_params")?.as_object()?;
    // The newest builds send a list, of which the first counts.
    let endpoint = match params.get("ctx_info_endpoint")? {
        Value::Array(list) => list.first()?.as_str()?,
        endpoint => endpoint.as_str()?,
    };
    let rank = params.get("ctx_dp_rank")?.as_u64()?;
    let state = params.get("encoded_opaque_state").and_then(Value::as_str);
    let mut labels = BTreeMap::from([
        (CTX_INFO_ENDPOINT.to_owned(), Some(endpoint.trim()).filter(|e| !e.is_empty())?.to_owned()),
        (CTX_DP_RANK.to_owned(), rank.to_string()),
    ]);
    if let Some(state) = state.filter(|state| state.len() <= STATE_MAX_BYTES) {
        labels.insert(OPAQUE_STATE.to_owned(), state.to_owned());
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn j20_what_counts_as_said() {
        let said = |params: Value| read(&json!({"disaggregated_params": params}));
        let whole =
            json!({"ctx_info_endpoint": "tcp://ctx:5555", "ctx_dp_rank": 7, "encoded_opaque_state": "AA=="});
        let labels = said(whole).unwrap();
        assert_eq!(labels[CTX_INFO_ENDPOINT], "tcp://ctx:5555");
        assert_eq!((labels[CTX_DP_RANK].as_str(), labels[OPAQUE_STATE].as_str()), ("7", "AA=="));
        let listed =
            said(json!({"ctx_info_endpoint": ["tcp://a:1", "tcp://b:1"], "ctx_dp_rank": 0})).unwrap();
        assert_eq!((listed[CTX_INFO_ENDPOINT].as_str(), listed.len()), ("tcp://a:1", 2));
        for odd in [
            json!([]),
            json!({}),
            json!({"ctx_info_endpoint": "tcp://ctx:5555"}),
            json!({"ctx_info_endpoint": "tcp://ctx:5555", "ctx_dp_rank": null}),
            json!({"ctx_info_endpoint": "tcp://ctx:5555", "ctx_dp_rank": -1}),
            json!({"ctx_info_endpoint": "tcp://ctx:5555", "ctx_dp_rank": 1.5}),
            json!({"ctx_info_endpoint": "tcp://ctx:5555", "ctx_dp_rank": "1"}),
            json!({"ctx_info_endpoint": " ", "ctx_dp_rank": 1}),
            json!({"ctx_info_endpoint": [], "ctx_dp_rank": 1}),
            json!({"ctx_info_endpoint": 5, "ctx_dp_rank": 1}),
            json!({"ctx_dp_rank": 1}),
        ] {
            assert_eq!(said(odd.clone()), None, "{odd}");
        }
        assert_eq!(read(&json!({})), None);
        assert_eq!(read(&json!("x")), None);
    }
}
