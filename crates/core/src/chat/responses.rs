//! `/v1/responses`: OpenAI's items. Several items may be one message: what the assistant thought, said and called.

use super::write::{Message, Raw};
use super::{Chat, call, is_empty, is_text, is_there, member, odd, tool};
use crate::body::{Envelope, scalar};
use crate::size::Unknown;

/// Members with which the prompt is more than this body.
const ELSEWHERE: [&str; 4] = ["previous_response_id", "previous_input_messages", "prompt", "conversation"];

/// What stands for a role or a part in items that have none.
const MESSAGE: &str = "message";

pub fn read(body: &Envelope) -> Result<Chat<'_>, Unknown> {
    if let Some(name) = ELSEWHERE.into_iter().find(|name| member(body, name).is_some()) {
        return Err(format!("the request has {name}").into());
    }
    let truncation = member(body, "truncation").and_then(scalar::as_str);
    if truncation.is_some_and(|truncation| truncation != "disabled") {
        return Err("the engine may cut the prompt".into());
    }
    let mut chat = Chat::default();
    if let Some(instructions) = member(body, "instructions").filter(|text| !is_empty(text)) {
        let text = Some(instructions).filter(|text| is_text(text)).ok_or_else(|| odd("instructions"))?;
        chat.messages.push(Message::saying("system", text));
    }
    let input = member(body, "input").ok_or("there is no prompt")?;
    if is_text(input) {
        chat.messages.push(Message::saying("user", input));
    }
    let mut last = None;
    for item in scalar::elements(input) {
        read_item(&mut chat.messages, item)?;
        last = Some(item);
    }
    chat.goes_on = last.is_some_and(goes_on);
    let tools = member(body, "tools").unwrap_or(b"[]");
    chat.tools = scalar::elements(tools).map(function).collect::<Result<_, _>>()?;
    chat.no_tools = member(body, "tool_choice").and_then(scalar::as_str).as_deref() == Some("none");
    let effort = member(body, "reasoning").and_then(|reasoning| scalar::member(reasoning, "effort"));
    chat.effort = effort.filter(|effort| is_there(effort));
    Ok(chat)
}

fn read_item<'a>(messages: &mut Vec<Message<'a>>, item: &'a [u8]) -> Result<(), Unknown> {
    let of = |name: &str| scalar::member(item, name).filter(|raw| is_there(raw));
    let kind = of("type").and_then(scalar::as_str);
    let role = of("role").and_then(scalar::as_str);
    match (kind.as_deref().unwrap_or(MESSAGE), role.as_deref()) {
        ("function_call", _) if of("namespace").is_none() => {
            let (id, name) = of("call_id").zip(of("name")).ok_or_else(|| odd("function_call"))?;
            let arguments =
                of("arguments").filter(|text| is_text(text)).ok_or_else(|| odd("function_call"))?;
            own(messages).calls.push(call(id, name, arguments));
        }
        ("reasoning", _) if of("encrypted_content").is_none() => {
            let first = |name| of(name).and_then(|list| scalar::elements(list).next());
            let text =
                first("content").or_else(|| first("summary")).and_then(|part| scalar::member(part, "text"));
            let text: Raw<'a> = text.filter(|text| is_text(text)).unwrap_or(b"\"\"").into();
            match messages.last_mut().filter(|m| m.is_assistants() && m.reasoning.is_none()) {
                Some(before) => before.reasoning = Some(text),
                None => messages.push(Message { reasoning: Some(text), ..Message::new("assistant") }),
            }
        }
        ("function_call_output", _) => {
            let output = of("output").filter(|text| is_text(text)).ok_or("a tool's result is no text")?;
            let call_id = of("call_id").map(Raw::from);
            messages.push(Message { call_id, ..Message::saying("tool", output) });
        }
        (MESSAGE, Some("assistant")) => {
            let content = of("content").ok_or_else(|| odd("input"))?;
            // Of several parts engines read the first.
            let text = if is_text(content) {
                Some(content)
            } else {
                scalar::elements(content).next().and_then(text_of)
            };
            let text = text.ok_or("a message has a part that is no text")?;
            match messages.last_mut().filter(|m| m.is_assistants() && m.content.is_none()) {
                Some(before) => before.content = Some(text.into()),
                None => messages.push(Message::saying("assistant", text)),
            }
        }
        (MESSAGE, Some("user" | "system" | "developer")) => {
            let role = of("role").unwrap_or_default();
            let content = parts(of("content").ok_or_else(|| odd("input"))?)?;
            messages.push(Message { role: role.into(), content: Some(content), ..Message::default() });
        }
        _ => return Err("an item of the input is neither a message nor a call".into()),
    }
    Ok(())
}

/// The assistant's message that a call belongs to.
fn own<'m, 'a>(messages: &'m mut Vec<Message<'a>>) -> &'m mut Message<'a> {
    if !messages.last().is_some_and(Message::is_assistants) {
        messages.push(Message::new("assistant"));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn text_of(part: &[u8]) -> Option<&[u8]> {
    let kind = scalar::member(part, "type").and_then(scalar::as_str);
    let known = kind.is_none_or(|kind| matches!(&*kind, "input_text" | "output_text" | "text"));
    scalar::member(part, "text").filter(|text| known && is_text(text))
}

/// A content, its parts called as the chat API calls them.
fn parts(content: &[u8]) -> Result<Raw<'_>, Unknown> {
    if is_text(content) {
        return Ok(content.into());
    }
    let part = |part| {
        let text = text_of(part).ok_or_else(|| Unknown::from("a message has a part that is no text"))?;
        Ok([b"{\"type\":\"text\",\"text\":", text, b"}"].concat())
    };
    let parts: Vec<Vec<u8>> = scalar::elements(content).map(part).collect::<Result<_, Unknown>>()?;
    Ok([b"[", &*parts.join(&b','), b"]"].concat().into())
}

/// Its last item was cut off, and is to be gone on with.
fn goes_on(item: &[u8]) -> bool {
    let of = |name: &str| scalar::member(item, name).and_then(scalar::as_str);
    let speaks = of("type").is_none_or(|kind| matches!(&*kind, MESSAGE | "reasoning"));
    speaks && of("status").is_some_and(|status| matches!(&*status, "in_progress" | "incomplete"))
}

fn function(from: &[u8]) -> Result<Vec<u8>, Unknown> {
    let of = |name: &str| scalar::member(from, name).filter(|raw| is_there(raw));
    let is_function = of("type").and_then(scalar::as_str).as_deref() == Some("function");
    let name = of("name").filter(|_| is_function && of("defer_loading").is_none());
    Ok(tool(from, name.ok_or_else(|| odd("tools"))?, of("parameters")))
}
