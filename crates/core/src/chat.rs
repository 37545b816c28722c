//! Conversations of other APIs as the chat messages that engines make of them.
//!
//! An engine turns a request to `/v1/messages` or `/v1/responses` into messages of its chat API, and puts its chat
//! template around those. Who wants to know the prompt's tokens has to do the same; here it is done as vLLM does it
//! (vLLM 0.32, from its source). SGLang differs where a system prompt has several parts, and in what goes first of a
//! text and a tool's result; what is made here is compared with engines' counts (`core::size`), so that an engine that
//! does it in its own way is not misjudged for long.
//!
//! What the template would have to be asked for, what engines keep for themselves (an earlier response) and what is no
//! text has no messages but a reason.

mod anthropic;
mod responses;
mod write;

use crate::ask::Api;
use crate::body::{BodyLimits, Envelope, scalar};
use crate::size::Unknown;
use write::{Message, escape};

/// Longest body that is turned into messages, in bytes.
pub const CHAT_MAX_BYTES: usize = 1 << 20;

/// The body of a chat request with the same prompt. `None`: the API has no conversations, or they are chat messages
/// already.
pub fn of(api: Api, body: &Envelope) -> Option<Result<Envelope, Unknown>> {
    let read = match api {
        Api::Messages => anthropic::read,
        Api::Responses => responses::read,
        Api::Chat | Api::Completions | Api::Generate | Api::CountTokens | Api::Rerank => return None,
    };
    Some(match body.len() > CHAT_MAX_BYTES {
        true => Err("the conversation is too long to be tokenised".into()),
        false => read(body).and_then(|chat| chat.write(body)),
    })
}

/// What is made of a conversation.
#[derive(Debug, Default)]
struct Chat<'a> {
    messages: Vec<Message<'a>>,
    /// Each as the chat API has it.
    tools: Vec<Vec<u8>>,
    /// No tool may be called.
    no_tools: bool,
    effort: Option<&'a [u8]>,
    /// The last message is to go on.
    goes_on: bool,
}

impl Chat<'_> {
    fn write(self, body: &Envelope) -> Result<Envelope, Unknown> {
        let mut text = b"{\"messages\":[".to_vec();
        join(&mut text, self.messages.iter().map(Message::write));
        text.push(b']');
        if !self.tools.is_empty() {
            text.extend_from_slice(b",\"tools\":[");
            join(&mut text, self.tools.into_iter());
            text.push(b']');
        }
        let mut add = |name: &str, value: Option<&[u8]>| {
            if let Some(value) = value {
                text.extend_from_slice(b",\"");
                text.extend_from_slice(name.as_bytes());
                text.extend_from_slice(b"\":");
                text.extend_from_slice(value);
            }
        };
        add("tool_choice", self.no_tools.then_some(b"\"none\""));
        add("reasoning_effort", self.effort);
        add("continue_final_message", self.goes_on.then_some(b"true"));
        add("add_generation_prompt", self.goes_on.then_some(b"false"));
        ["model", "chat_template_kwargs"].into_iter().for_each(|name| add(name, member(body, name)));
        text.push(b'}');
        Envelope::parse(text.into(), &BodyLimits::default()).map_err(|_| odd("the conversation"))
    }
}

fn join(text: &mut Vec<u8>, parts: impl Iterator<Item = Vec<u8>>) {
    for (at, part) in parts.enumerate() {
        if at > 0 {
            text.push(b',');
        }
        text.extend_from_slice(&part);
    }
}

/// A tool as the chat API has it. `name` and `parameters` are raw, as is what else `from` has.
fn tool(from: &[u8], name: &[u8], parameters: Option<&[u8]>) -> Vec<u8> {
    let mut text = b"{\"type\":\"function\",\"function\":{\"name\":".to_vec();
    text.extend_from_slice(name);
    let own = |name| scalar::member(from, name).filter(|raw| is_there(raw));
    for (name, value) in
        [("description", own("description")), ("parameters", parameters), ("strict", own("strict"))]
    {
        if let Some(value) = value {
            text.extend_from_slice(format!(",\"{name}\":").as_bytes());
            text.extend_from_slice(value);
        }
    }
    text.extend_from_slice(b"}}");
    text
}

/// A call of a tool as the chat API has it; the arguments are the text of a JSON object.
fn call(id: &[u8], name: &[u8], arguments: &[u8]) -> Vec<u8> {
    let head = [b"{\"id\":", id, b",\"type\":\"function\",\"function\":{\"name\":", name, b",\"arguments\":"];
    [&head.concat(), arguments, b"}}"].concat()
}

/// JSON as the text of a JSON string.
fn as_text(json: &[u8]) -> Vec<u8> {
    let mut text = vec![b'"'];
    escape(&mut text, json);
    text.push(b'"');
    text
}

/// Strings as one, with something between them; all of it raw.
fn joined<'a>(texts: impl IntoIterator<Item = &'a [u8]>, between: &[u8]) -> Vec<u8> {
    let inner = |raw: &'a [u8]| {
        let raw = raw.trim_ascii();
        raw.get(1..raw.len().saturating_sub(1)).unwrap_or_default()
    };
    let texts: Vec<&[u8]> = texts.into_iter().map(inner).collect();
    [b"\"", &*texts.join(between), b"\""].concat()
}

fn member<'a>(body: &'a Envelope, name: &str) -> Option<&'a [u8]> {
    body.get(name).filter(|raw| is_there(raw))
}

fn is_there(raw: &[u8]) -> bool {
    scalar::kind(raw) != scalar::Kind::Null
}

fn is_text(raw: &[u8]) -> bool {
    scalar::kind(raw) == scalar::Kind::String
}

/// A string of no letter.
fn is_empty(raw: &[u8]) -> bool {
    raw.trim_ascii() == b"\"\""
}

fn odd(what: &'static str) -> Unknown {
    format!("{what} is not as engines know it").into()
}

#[cfg(test)]
mod tests;
