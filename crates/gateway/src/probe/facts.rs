//! What a worker says about itself.

use std::collections::BTreeMap;

use baton_core::fleet::Engine;
use serde_json::Value;

/// A name that a worker serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub id: String,
    /// Longest prompt plus answer, in tokens.
    pub context_length: Option<u64>,
}

/// Everything that probing found out. Where the operator said something else, the operator is right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub engine: Engine,
    /// The first is the worker's own, adapters follow.
    pub models: Vec<Model>,
    pub labels: BTreeMap<String, String>,
    /// Port of the bootstrap server; only a prefill worker has one.
    pub bootstrap_port: Option<u16>,
    pub dp_size: Option<u32>,
    /// Ids of the running engines by data-parallel rank, where the hand-off needs them.
    pub kv_engine_ids: Option<BTreeMap<u32, String>>,
}

impl Facts {
    /// Keeps a member of a JSON answer as a label, if it is a text, a number or a truth value, and not empty.
    pub(super) fn keep(&mut self, label: &str, value: Option<&Value>) {
        if let Some(text) = value.and_then(plain) {
            self.labels.insert(label.to_owned(), text);
        }
    }

    /// Takes names and lengths from an answer of `GET /v1/models` (OpenAI's list; vLLM and SGLang add
    /// `max_model_len`, vLLM `parent` for adapters).
    pub(super) fn read_models(&mut self, list: &Value) {
        let Some(data) = list.get("data").and_then(Value::as_array) else { return };
        let adapter = |m: &Value| m.get("parent").is_some_and(|p| !p.is_null());
        let (adapters, own): (Vec<&Value>, Vec<&Value>) = data.iter().partition(|m| adapter(m));
        for m in own.into_iter().chain(adapters).take(MODELS_MAX) {
            let Some(id) = m.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()) else { continue };
            let context_length = m.get("max_model_len").and_then(Value::as_u64);
            if self.models.iter().all(|have| have.id != id) {
                self.models.push(Model { id: id.to_owned(), context_length });
            }
        }
        if let Some(length) = self.models.first().and_then(|m| m.context_length) {
            self.labels.insert("max_model_len".to_owned(), length.to_string());
        }
    }
}

/// Names kept of one worker's list.
const MODELS_MAX: usize = 1024;

/// Longest value kept as a label, in bytes. The admin API takes no longer ones either.
const LABEL_MAX_BYTES: usize = 4096;

fn plain(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(s) => s.trim().to_owned(),
        Value::Number(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    (!text.is_empty() && text.len() <= LABEL_MAX_BYTES).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_workers_own_name_comes_before_its_adapters() {
        let mut f = Facts::default();
        f.read_models(&json!({"data": [
            {"id": "lora", "parent": "base", "max_model_len": 10},
            {"id": "base", "parent": null, "max_model_len": 20},
            {"id": "base"}, {"id": ""}, {"id": 5}, "x"]}));
        let ids: Vec<&str> = f.models.iter().map(|m| m.id.as_str()).collect();
        assert_eq!(ids, ["base", "lora"]);
        assert_eq!(f.labels["max_model_len"], "20");
    }

    #[test]
    fn only_plain_values_become_labels() {
        let mut f = Facts::default();
        let v = json!({"s": " a ", "n": 5, "b": true, "null": null, "list": [1], "empty": " "});
        for key in ["s", "n", "b", "null", "list", "empty", "absent"] {
            f.keep(key, v.get(key));
        }
        assert_eq!(
            f.labels,
            [("b", "true"), ("n", "5"), ("s", "a")].map(|(k, v)| (k.into(), v.into())).into()
        );
    }
}
