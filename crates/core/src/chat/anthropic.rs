//! `/v1/messages`: Anthropic's blocks.

use super::write::{Message, Raw};
use super::{Chat, as_text, call, is_empty, is_text, is_there, joined, member, odd, tool};
use crate::body::{Envelope, scalar};
use crate::size::Unknown;

/// What begins so names a client's build and changes with each request; vLLM takes it out.
const BILLING: &str = "x-anthropic-billing-header";

pub fn read(body: &Envelope) -> Result<Chat<'_>, Unknown> {
    let mut chat = Chat::default();
    if let Some(system) = member(body, "system") {
        chat.messages.extend(system_message(system)?);
    }
    for message in scalar::elements(member(body, "messages").ok_or("there is no prompt")?) {
        let role = scalar::member(message, "role").and_then(scalar::as_str);
        let content = scalar::member(message, "content").ok_or_else(|| odd("messages"))?;
        match role.as_deref() {
            Some("user") => blocks(&mut chat, Message::new("user"), content)?,
            Some("assistant") => blocks(&mut chat, Message::new("assistant"), content)?,
            _ => return Err("a message is neither the user's nor the assistant's".into()),
        }
    }
    chat.tools = tools(body)?;
    let kind = |name| member(body, name).and_then(|raw| scalar::member(raw, "type")).and_then(scalar::as_str);
    chat.no_tools = kind("tool_choice").as_deref() == Some("none");
    let effort = member(body, "output_config").and_then(|config| scalar::member(config, "effort"));
    chat.effort = match kind("thinking").as_deref() {
        Some("disabled") => Some(b"\"none\""),
        _ => effort.filter(|effort| is_there(effort)),
    };
    Ok(chat)
}

fn system_message(system: &[u8]) -> Result<Option<Message<'_>>, Unknown> {
    if is_text(system) {
        return Ok((!is_empty(system)).then(|| Message::saying("system", system)));
    }
    let mut texts = Vec::new();
    for block in scalar::elements(system) {
        let text = scalar::member(block, "text").filter(|text| is_text(text)).ok_or_else(|| odd("system"))?;
        let billing = scalar::as_str(text).is_some_and(|text| text.starts_with(BILLING));
        if !billing && !is_empty(text) {
            texts.push(text);
        }
    }
    Ok((!texts.is_empty()).then(|| Message::saying("system", joined(texts, b""))))
}

/// A message's blocks. Results of tools are messages of their own, which come before what the user says.
fn blocks<'a>(chat: &mut Chat<'a>, mut message: Message<'a>, content: &'a [u8]) -> Result<(), Unknown> {
    if is_text(content) {
        message.content = Some(content.into());
        chat.messages.push(message);
        return Ok(());
    }
    let (mut parts, mut thoughts): (Vec<&[u8]>, Vec<&[u8]>) = (Vec::new(), Vec::new());
    for block in scalar::elements(content) {
        let of = |name: &str| scalar::member(block, name).filter(|raw| is_there(raw));
        match of("type").and_then(scalar::as_str).as_deref() {
            Some("text") => {
                let text = of("text").filter(|text| is_text(text)).ok_or_else(|| odd("a text"))?;
                parts.extend((!is_empty(text)).then_some(text));
            }
            Some("thinking") => thoughts.extend(of("thinking").filter(|text| is_text(text))),
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let (id, name) = of("id").zip(of("name")).ok_or_else(|| odd("tool_use"))?;
                let input = as_text(of("input").unwrap_or(b"{}"));
                message.calls.push(call(id, name, &input));
            }
            Some("tool_result") if !message.is_assistants() => {
                let call_id = of("tool_use_id").unwrap_or(b"\"\"");
                let said = Message::saying("tool", result(of("content"))?);
                chat.messages.push(Message { call_id: Some(call_id.into()), ..said });
            }
            _ => return Err("a message has a part that is no text".into()),
        }
    }
    message.reasoning = (!thoughts.is_empty()).then(|| joined(thoughts, b"").into());
    message.content = match &*parts {
        [] => None,
        [only] => Some((*only).into()),
        several => {
            let part = |text: &&[u8]| [b"{\"type\":\"text\",\"text\":", *text, b"}"].concat();
            let several: Vec<Vec<u8>> = several.iter().map(part).collect();
            Some([b"[", &*several.join(&b','), b"]"].concat().into())
        }
    };
    if message.is_assistants() || message.content.is_some() {
        chat.messages.push(message);
    }
    Ok(())
}

/// What a tool answered: a text, or several that stand on lines of their own.
fn result(content: Option<&[u8]>) -> Result<Raw<'_>, Unknown> {
    let Some(content) = content else { return Ok(b"\"\"".as_slice().into()) };
    if is_text(content) {
        return Ok(content.into());
    }
    let mut texts = Vec::new();
    for part in scalar::elements(content) {
        let is_part = scalar::member(part, "type").and_then(scalar::as_str).as_deref() == Some("text");
        let text = scalar::member(part, "text").filter(|text| is_part && is_text(text));
        texts.push(text.ok_or("a tool's result has a part that is no text")?);
    }
    Ok(joined(texts, b"\\n").into())
}

fn tools(body: &Envelope) -> Result<Vec<Vec<u8>>, Unknown> {
    let Some(tools) = member(body, "tools") else { return Ok(Vec::new()) };
    let each = |from| {
        let of = |name: &str| scalar::member(from, name).filter(|raw| is_there(raw));
        let kind = of("type").and_then(scalar::as_str);
        let own = kind.is_none_or(|kind| kind == "custom") && of("defer_loading").is_none();
        let (name, schema) =
            of("name").zip(of("input_schema")).filter(|_| own).ok_or_else(|| odd("tools"))?;
        if scalar::kind(schema) != scalar::Kind::Object {
            return Err(odd("tools"));
        }
        Ok(tool(from, name, Some(&typed(schema))))
    };
    scalar::elements(tools).map(each).collect()
}

/// A schema that does not say what it is one of is an object's.
fn typed(schema: &[u8]) -> Raw<'_> {
    if scalar::member(schema, "type").is_some() {
        return schema.into();
    }
    let schema = schema.trim_ascii();
    let inner = schema.get(1..schema.len() - 1).unwrap_or_default().trim_ascii();
    let between: &[u8] = if inner.is_empty() { b"" } else { b"," };
    [b"{", inner, between, b"\"type\":\"object\"}"].concat().into()
}
