//! `/v1/messages` (Anthropic's shape), plain and streamed.

use crate::engine::sequence::KvState;
use crate::engine::spec::Dialect;
use crate::serve::answer::{Ended, Reason, Teller};
use crate::serve::json::quote;
use crate::serve::refusal::{Refusal, anthropic_kind};

pub(super) fn message(teller: &Teller, ended: &[Ended]) -> String {
    let Some((choice, end)) = teller.wish.choices.first().zip(ended.first()) else { return "{}".into() };
    let params = match teller.kv_params(ended) {
        params if params == "null" => String::new(),
        params => format!(r#","kv_transfer_params":{params}"#),
    };
    format!(
        r#"{{"id":{},"type":"message","role":"assistant","content":[{{"type":"text","text":{}}}],"model":{},"stop_reason":"{}","usage":{{"input_tokens":{},"output_tokens":{}}}{params}}}"#,
        quote(&teller.wish.id),
        quote(&choice.text(0, end.tokens, end.kv)),
        quote(&teller.wish.model),
        stop_reason(&end.reason),
        choice.prompt.len(),
        end.tokens,
    )
}

pub(super) fn opening(teller: &Teller) -> Vec<String> {
    let prompt = teller.wish.prompts.first().map_or(0, |prompt| prompt.len());
    vec![
        named(
            "message_start",
            &format!(
                r#"{{"type":"message_start","message":{{"id":{},"type":"message","role":"assistant","content":[],"model":{},"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{prompt},"output_tokens":0}}}}}}"#,
                quote(&teller.wish.id),
                quote(&teller.wish.model)
            ),
        ),
        named(
            "content_block_start",
            r#"{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}"#,
        ),
    ]
}

pub(super) fn token(
    teller: &Teller,
    index: usize,
    (at, kv): (u32, KvState),
    _ended: Option<&Ended>,
) -> Vec<String> {
    let Some(choice) = teller.wish.choices.get(index) else { return Vec::new() };
    let text = quote(&choice.text(at, at + 1, kv));
    let json = format!(
        r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":{text}}},"index":0}}"#
    );
    vec![named("content_block_delta", &json)]
}

pub(super) fn closing(teller: &Teller, ended: &[Ended]) -> Vec<String> {
    let prompt = teller.wish.prompts.first().map_or(0, |prompt| prompt.len());
    let (reason, made) = ended.first().map_or(("end_turn", 0), |end| (stop_reason(&end.reason), end.tokens));
    let sequence = ended.first().map_or("null".into(), |end| end.reason.matched());
    vec![
        named("content_block_stop", r#"{"type":"content_block_stop","index":0}"#),
        named(
            "message_delta",
            &format!(
                r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}","stop_sequence":{sequence}}},"usage":{{"input_tokens":{prompt},"output_tokens":{made}}}}}"#
            ),
        ),
        named("message_stop", r#"{"type":"message_stop"}"#),
    ]
}

/// An engine's error in a stream. Neither engine writes `[DONE]` here.
pub(super) fn error(dialect: Dialect, refusal: &Refusal) -> Vec<String> {
    let kind = match dialect {
        Dialect::Vllm | Dialect::Trtllm => "internal_error",
        Dialect::Sglang => anthropic_kind(refusal.status),
    };
    let message = quote(&refusal.message);
    let error = format!(r#"{{"type":"error","error":{{"type":"{kind}","message":{message}}}}}"#);
    let mut events = vec![named("error", &error)];
    if dialect == Dialect::Sglang {
        events.push(named("message_stop", r#"{"type":"message_stop"}"#));
    }
    events
}

fn named(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

fn stop_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::Length => "max_tokens",
        Reason::Stop(_) => "stop_sequence",
        Reason::Eos | Reason::Abort => "end_turn",
    }
}
