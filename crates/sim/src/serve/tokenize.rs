//! `/tokenize`: what an engine makes of a prompt. TensorRT-LLM has no such route.
//!
//! vLLM takes one text or a conversation, for a model that it knows. SGLang takes a list of texts too, for any model, and
//! either a prompt or a conversation, not both (vLLM 0.32.0 and SGLang 0.5.23, from their sources).

use http::Response;
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use crate::engine::spec::{Dialect, EngineSpec};
use crate::serve::body::Body;
use crate::serve::http::{read_body, respond};
use crate::serve::json::Members;
use crate::serve::refusal::{Refusal, Shape};
use crate::serve::{vllm, wish};
use crate::text;

pub(crate) async fn answer(spec: &EngineSpec, body: Incoming) -> Response<Body> {
    let body: Option<Map<String, Value>> = match read_body(body).await {
        Ok(Some(bytes)) => serde_json::from_slice(&bytes).ok(),
        _ => None,
    };
    let told = match &body {
        None => Err(Refusal::bad("the body is no JSON object".into(), None)),
        Some(body) if spec.dialect == Dialect::Sglang => by_sglang(spec, body),
        Some(body) => by_vllm(spec, body),
    };
    match told {
        Ok(answer) => respond(200, "application/json", answer.to_string()),
        Err(refusal) => {
            let sglang = spec.dialect == Dialect::Sglang;
            let shape = if sglang { Shape::SglangFlat } else { Shape::Vllm };
            respond(refusal.status, "application/json", refusal.body(shape))
        }
    }
}

fn by_vllm(spec: &EngineSpec, body: &Map<String, Value>) -> Result<Value, Refusal> {
    let members = Members { dialect: spec.dialect, body };
    let (text, messages) = (members.text("prompt")?, body.get("messages").filter(|m| m.is_array()));
    if text.is_none() && messages.is_none() {
        members.needed("prompt")?;
    }
    if members.flag("continue_final_message")? && members.flag("add_generation_prompt")? {
        let both = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
        return Err(Refusal::bad(both.into(), None));
    }
    if let Some(refusal) = vllm::unknown_model(spec, members.text("model")?) {
        return Err(refusal);
    }
    if members.text("chat_template")?.is_some() {
        let untrusted = "Chat template is passed with request, but --trust-request-chat-template is not set. \
                         Refused request with untrusted chat template.";
        return Err(Refusal::bad(untrusted.into(), None));
    }
    let tokens = match (text, messages) {
        (None, Some(messages)) => wish::chat_prompt(None, messages).tokens.clone(),
        _ => text::tokenize(text.unwrap_or_default()),
    };
    Ok(json!({
        "count": tokens.len(), "max_model_len": spec.max_model_len, "tokens": tokens, "token_strs": null,
    }))
}

fn by_sglang(spec: &EngineSpec, body: &Map<String, Value>) -> Result<Value, Refusal> {
    let given = |name: &str| body.get(name).filter(|value| !value.is_null());
    let max_model_len = spec.max_model_len;
    match (given("prompt"), given("messages")) {
        (None, Some(messages)) if messages.is_array() => {
            let tokens = wish::chat_prompt(None, messages).tokens.clone();
            Ok(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": max_model_len}))
        }
        (Some(Value::String(prompt)), None) => {
            let tokens = text::tokenize(prompt);
            Ok(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": max_model_len}))
        }
        (Some(Value::Array(prompts)), None) if prompts.iter().all(Value::is_string) => {
            let texts = prompts.iter().filter_map(Value::as_str);
            let tokens: Vec<Vec<u32>> = texts.map(text::tokenize).collect();
            let count: Vec<usize> = tokens.iter().map(Vec::len).collect();
            Ok(json!({"tokens": tokens, "count": count, "max_model_len": max_model_len}))
        }
        (Some(_), Some(_)) | (None, None) => {
            let one = "1 validation error:\n  {'type': 'value_error', 'loc': ('body',), 'msg': \"Value error, Exactly \
                       one of 'prompt' or 'messages' must be provided.\"}";
            Err(Refusal { kind: "Bad Request", schema: true, ..Refusal::bad(one.into(), None) })
        }
        _ => {
            let members = Members { dialect: spec.dialect, body };
            members.texts("prompt")?;
            Err(Refusal::bad("messages must be a list".into(), None))
        }
    }
}
