//! `/v1/responses`, plain and (in its main events) streamed.

use crate::engine::sequence::KvState;
use crate::serve::answer::{Ended, Reason, Teller};
use crate::serve::json::quote;

pub(super) fn response(teller: &Teller, ended: &[Ended]) -> String {
    let Some((choice, end)) = teller.wish.choices.first().zip(ended.first()) else { return "{}".into() };
    let (status, details) = status(&end.reason);
    let text = quote(&choice.text(0, end.tokens, end.kv));
    let (prompt, made) = teller.counts(ended);
    format!(
        r#"{{"id":{},"created_at":{},"incomplete_details":{details},"instructions":null,"metadata":null,"model":{},"object":"response","output":[{}],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":{made},"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"{status}","text":null,"top_logprobs":null,"truncation":"disabled","usage":{{"input_tokens":{prompt},"input_tokens_details":{{"cached_tokens":0}},"output_tokens":{made},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{}}},"user":null,"kv_transfer_params":{}}}"#,
        quote(&teller.wish.id),
        teller.created,
        quote(&teller.wish.model),
        output_item(teller, &text),
        prompt + made,
        teller.kv_params(ended),
    )
}

pub(super) fn opening(teller: &Teller) -> Vec<String> {
    let response = bare(teller);
    let item = message_id(teller);
    vec![
        named(
            "response.created",
            &format!(r#"{{"type":"response.created","sequence_number":0,"response":{response}}}"#),
        ),
        named(
            "response.in_progress",
            &format!(r#"{{"type":"response.in_progress","sequence_number":1,"response":{response}}}"#),
        ),
        named(
            "response.output_item.added",
            &format!(
                r#"{{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{{"id":{item},"content":[],"role":"assistant","status":"in_progress","type":"message"}}}}"#
            ),
        ),
        named(
            "response.content_part.added",
            &format!(
                r#"{{"type":"response.content_part.added","sequence_number":3,"item_id":{item},"output_index":0,"content_index":0,"part":{{"annotations":[],"text":"","type":"output_text"}}}}"#
            ),
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
        r#"{{"type":"response.output_text.delta","sequence_number":{},"item_id":{},"output_index":0,"content_index":0,"delta":{text},"logprobs":[]}}"#,
        at + 4,
        message_id(teller)
    );
    vec![named("response.output_text.delta", &json)]
}

pub(super) fn closing(teller: &Teller, ended: &[Ended]) -> Vec<String> {
    let Some((choice, end)) = teller.wish.choices.first().zip(ended.first()) else { return Vec::new() };
    let (text, item) = (quote(&choice.text(0, end.tokens, end.kv)), message_id(teller));
    let number = end.tokens + 4;
    vec![
        named(
            "response.output_text.done",
            &format!(
                r#"{{"type":"response.output_text.done","sequence_number":{number},"item_id":{item},"output_index":0,"content_index":0,"text":{text},"logprobs":[]}}"#
            ),
        ),
        named(
            "response.output_item.done",
            &format!(
                r#"{{"type":"response.output_item.done","sequence_number":{},"output_index":0,"item":{}}}"#,
                number + 1,
                output_item(teller, &text)
            ),
        ),
        named(
            "response.completed",
            &format!(
                r#"{{"type":"response.completed","sequence_number":{},"response":{}}}"#,
                number + 2,
                response(teller, ended)
            ),
        ),
    ]
}

fn status(reason: &Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::Length => ("incomplete", r#"{"reason":"max_output_tokens"}"#),
        _ => ("completed", "null"),
    }
}

fn message_id(teller: &Teller) -> String {
    quote(&teller.wish.id.replacen("resp_", "msg_", 1))
}

fn output_item(teller: &Teller, text: &str) -> String {
    format!(
        r#"{{"id":{},"content":[{{"annotations":[],"text":{text},"type":"output_text","logprobs":null}}],"role":"assistant","status":"completed","type":"message","phase":null}}"#,
        message_id(teller)
    )
}

fn bare(teller: &Teller) -> String {
    format!(
        r#"{{"id":{},"created_at":{},"model":{},"object":"response","output":[],"status":"in_progress"}}"#,
        quote(&teller.wish.id),
        teller.created,
        quote(&teller.wish.model)
    )
}

fn named(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}
