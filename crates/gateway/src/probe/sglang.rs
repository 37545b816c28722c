//! SGLang's own description: all of its server arguments, flat, with what its scheduler worked out
//! (`/server_info` of 0.5.x; before, `/get_server_info`).
//!
//! SMG keeps the first part of [`KEPT`] from it. The rest is in the same answer and is what pairing
//! compares: a decode worker refuses a prefill of another page size or KV type only when the first request
//! arrives, so it is better known before.

use serde_json::Value;

use super::facts::{Facts, Model};

/// Members kept as labels of the same name.
const KEPT: [&str; 19] = [
    "model_id",
    "model_path",
    "tokenizer_path",
    "served_model_name",
    "tp_size",
    "dp_size",
    "pp_size",
    "attn_dp_size",
    "load_balance_method",
    "disaggregation_mode",
    "version",
    "context_length",
    "max_running_requests",
    "enable_dp_attention",
    "weight_version",
    "disaggregation_transfer_backend",
    "page_size",
    "kv_cache_dtype",
    "kv_events_config",
];

/// `GET /server_info`. The bootstrap port is believed of a prefill worker only: a decode worker reports
/// the default of a server that it does not run.
pub fn read_server(page: &Value, prefill: bool, facts: &mut Facts) {
    for name in KEPT {
        facts.keep(name, page.get(name));
    }
    facts.keep("max_total_tokens", page.get("max_total_num_tokens"));
    facts.keep("max_total_tokens", page.get("max_total_tokens"));
    facts.keep("is_embedding", page.get("is_embedding"));
    if !facts.labels.contains_key("max_running_requests") {
        let per_rank = page.pointer("/internal_states/0/effective_max_running_requests_per_dp");
        facts.keep("max_running_requests", per_rank);
    }
    if facts.labels.get("disaggregation_mode").is_some_and(|mode| mode == "null") {
        facts.labels.remove("disaggregation_mode");
    }
    facts.dp_size = small(page.get("dp_size"));
    if prefill {
        facts.bootstrap_port = page
            .get("disaggregation_bootstrap_port")
            .and_then(Value::as_u64)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port != 0);
    }
}

/// `GET /model_info`.
pub fn read_model(page: &Value, facts: &mut Facts) {
    for name in ["model_path", "tokenizer_path", "is_generation", "weight_version"] {
        facts.keep(name, page.get(name));
    }
}

/// The name that the worker answers to, when its model list said nothing: as served, else as given an
/// id, else its path (SMG 1.13). And one length under both names that are in use.
pub fn name_the_model(facts: &mut Facts) {
    let length = ["context_length", "max_model_len"].iter().find_map(|l| facts.labels.get(*l).cloned());
    if let Some(length) = length {
        for label in ["context_length", "max_model_len"] {
            facts.labels.entry(label.to_owned()).or_insert_with(|| length.clone());
        }
    }
    if facts.models.is_empty() {
        let name = ["served_model_name", "model_id", "model_path"].iter().find_map(|l| facts.labels.get(*l));
        let context_length = facts.labels.get("context_length").and_then(|l| l.parse().ok());
        facts.models.extend(name.map(|id| Model { id: id.clone(), context_length }));
    }
}

fn small(value: Option<&Value>) -> Option<u32> {
    value?.as_u64().and_then(|n| u32::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page() -> Value {
        json!({"model_path": "/models/m1", "served_model_name": "m1", "tp_size": 1, "dp_size": 2,
            "version": "0.5.23", "context_length": null, "max_running_requests": null, "page_size": 64,
            "kv_cache_dtype": "auto", "attention_backend": "fa3", "disaggregation_mode": "prefill",
            "disaggregation_transfer_backend": "mooncake", "disaggregation_bootstrap_port": 8998,
            "max_total_num_tokens": 4000, "api_key": "secret",
            "internal_states": [{"effective_max_running_requests_per_dp": 128}]})
    }

    #[test]
    fn keeps_what_pairing_and_routing_need_and_no_key() {
        let mut f = Facts::default();
        read_server(&page(), true, &mut f);
        name_the_model(&mut f);
        for (label, value) in [
            ("disaggregation_transfer_backend", "mooncake"),
            ("page_size", "64"),
            ("kv_cache_dtype", "auto"),
            ("disaggregation_mode", "prefill"),
            ("max_running_requests", "128"),
            ("max_total_tokens", "4000"),
            ("dp_size", "2"),
        ] {
            assert_eq!(f.labels.get(label).map(String::as_str), Some(value), "{label}");
        }
        assert!(!f.labels.contains_key("context_length") && !f.labels.contains_key("api_key"));
        assert_eq!((f.bootstrap_port, f.dp_size), (Some(8998), Some(2)));
        assert_eq!(f.models, [Model { id: "m1".into(), context_length: None }]);
    }

    #[test]
    fn a_decode_workers_bootstrap_port_is_a_default_and_says_nothing() {
        let mut f = Facts::default();
        read_server(&page(), false, &mut f);
        assert_eq!(f.bootstrap_port, None);
    }

    #[test]
    fn one_length_stands_under_both_names() {
        let mut f = Facts::default();
        read_server(&json!({"context_length": 4096, "model_path": "/m"}), false, &mut f);
        name_the_model(&mut f);
        assert_eq!(f.labels["max_model_len"], "4096");
        assert_eq!(f.models, [Model { id: "/m".into(), context_length: Some(4096) }]);
    }
}
