//! A chat message in the making. All values are raw JSON, most of them the client's own bytes.

use std::borrow::Cow;

/// A raw value.
pub type Raw<'a> = Cow<'a, [u8]>;

/// One message.
#[derive(Debug, Default)]
pub struct Message<'a> {
    pub role: Raw<'a>,
    pub content: Option<Raw<'a>>,
    pub reasoning: Option<Raw<'a>>,
    pub calls: Vec<Vec<u8>>,
    /// Of which call this is the result.
    pub call_id: Option<Raw<'a>>,
}

impl<'a> Message<'a> {
    pub fn new(role: &'static str) -> Message<'a> {
        Message { role: format!("\"{role}\"").into_bytes().into(), ..Message::default() }
    }

    pub fn saying(role: &'static str, content: impl Into<Raw<'a>>) -> Message<'a> {
        Message { content: Some(content.into()), ..Message::new(role) }
    }

    pub fn is_assistants(&self) -> bool {
        &*self.role == b"\"assistant\""
    }

    pub fn write(&self) -> Vec<u8> {
        let mut text = [b"{\"role\":", &*self.role].concat();
        let members =
            [("content", &self.content), ("reasoning", &self.reasoning), ("tool_call_id", &self.call_id)];
        for (name, value) in members {
            if let Some(value) = value {
                text.extend_from_slice(format!(",\"{name}\":").as_bytes());
                text.extend_from_slice(value);
            }
        }
        if !self.calls.is_empty() {
            text.extend_from_slice(b",\"tool_calls\":[");
            text.extend_from_slice(&self.calls.join(&b','));
            text.push(b']');
        }
        text.push(b'}');
        text
    }
}

/// Raw JSON as a part of the text of a string.
pub fn escape(text: &mut Vec<u8>, json: &[u8]) {
    for byte in json {
        match byte {
            b'"' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
            // Between values: what is in strings is escaped already.
            0..=0x1f => text.push(b' '),
            _ => text.push(*byte),
        }
    }
}
