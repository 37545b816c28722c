//! The context server's answer as the client's, when its one token was the last.
//!
//! A plain answer loses what the engines say to each other. For a client that streams, it becomes the one chunk
//! that a generation server would have sent, so that the client learns how the answer ended; the engine's own
//! proxy sends the end mark alone.

use bytes::Bytes;

use super::Due;
use crate::ask::Api;
use crate::body::{BodyLimits, Edit, Envelope};
use crate::handoff::finish;

/// What the client gets: a JSON object or events. `None`: the answer is not one choice, as it should be.
pub fn told(due: &Due, answer: &Envelope) -> Option<Bytes> {
    let choice = Bytes::copy_from_slice(finish::first_choice(answer)?);
    let choice = Envelope::parse(choice, &BodyLimits::default()).ok()?;
    let mut own = vec![Edit::remove("disaggregated_params")];
    if due.stream && due.api == Api::Chat {
        own.push(Edit::remove("message"));
        own.push(Edit::set("delta", choice.get_bytes("message").unwrap_or_else(|| "{}".into())));
    }
    let choice = choice.splice(&own).to_bytes();
    let mut edits = vec![Edit::remove("disaggregated_params"), Edit::set("choices", listed(&choice))];
    if !due.stream {
        return Some(answer.splice(&edits).to_bytes());
    }
    edits.push(Edit::remove("prompt_token_ids"));
    if due.api == Api::Chat {
        edits.push(Edit::set("object", &br#""chat.completion.chunk""#[..]));
    }
    let mut events = event(answer, &edits, Edit::remove("usage"));
    if due.usage && answer.get("usage").is_some() {
        events.extend(event(answer, &edits, Edit::set("choices", &b"[]"[..])));
    }
    events.extend_from_slice(b"data: [DONE]\n\n");
    Some(events.into())
}

fn event(answer: &Envelope, edits: &[Edit], more: Edit) -> Vec<u8> {
    let mut edits = edits.to_vec();
    edits.push(more);
    let mut event = [b"data: ", &answer.splice(&edits).to_bytes()[..]].concat();
    // Outside of strings, where JSON has none, a line break is as good as a blank; here it would end the event.
    event.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    event.extend_from_slice(b"\n\n");
    event
}

fn listed(choice: &[u8]) -> Vec<u8> {
    [b"[", choice, b"]"].concat()
}
