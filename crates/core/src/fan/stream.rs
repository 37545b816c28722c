//! Joining the event streams of a request's parts.
//!
//! Events go out whole and in the order in which they came, each under the whole's id and with its choice's
//! place; what each part says of its tokens at its end is held back and said once, before the one `[DONE]`.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

use super::place;
use super::plain::{numbered, usage};
use crate::ask::Api;
use crate::body::{BodyLimits, Edit, Envelope, scalar};

/// Longest event of one part.
pub const EVENT_MAX_BYTES: usize = 16 << 20;

/// Why a joined stream is over before its parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// A part has reported an error, and the client has been told it in the part's words.
    Reported,
    /// An event of a part is longer than [`EVENT_MAX_BYTES`]. The client has not been told.
    TooLong,
}

/// The joined stream of several parts.
#[derive(Debug)]
pub struct Join {
    api: Api,
    limits: BodyLimits,
    /// Bytes of each part's event under way.
    held: Vec<BytesMut>,
    id: Option<Bytes>,
    usage: Vec<Option<Bytes>>,
    /// The chunk that carried the usage, to be sent again with the sums.
    last: Option<Bytes>,
}

impl Join {
    pub fn new(api: Api, parts: u32, limits: BodyLimits) -> Join {
        let n = parts as usize;
        Join { api, limits, held: vec![BytesMut::new(); n], id: None, usage: vec![None; n], last: None }
    }

    /// Takes a part's next bytes; what can go out now is appended to `out`.
    ///
    /// # Errors
    /// [`Over`]; an error that the part reports is appended.
    pub fn feed(&mut self, part: u32, bytes: &[u8], out: &mut BytesMut) -> Result<(), Over> {
        let i = part as usize;
        self.held[i].extend_from_slice(bytes);
        while let Some(end) = event_end(&self.held[i]) {
            let event = self.held[i].split_to(end).freeze();
            self.event(part, &event, out)?;
        }
        if self.held[i].len() > EVENT_MAX_BYTES {
            return Err(Over::TooLong);
        }
        Ok(())
    }

    /// The stream's last events: the tokens of all parts, if they were told, and the done mark.
    pub fn end(&mut self, out: &mut BytesMut) {
        if let Some(last) = self.last.take()
            && let Some(sum) = usage(self.usage.iter().filter_map(|u| u.as_deref()))
            && let Ok(env) = Envelope::parse(last, &self.limits)
        {
            self.put(&env, vec![Edit::set("usage", sum)], out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn event(&mut self, part: u32, event: &Bytes, out: &mut BytesMut) -> Result<(), Over> {
        let Some(data) = data_of(event) else { return Ok(()) };
        if data.trim_ascii() == b"[DONE]" {
            return Ok(());
        }
        let Ok(env) = Envelope::parse(Bytes::copy_from_slice(data), &self.limits) else {
            out.extend_from_slice(event);
            return Ok(());
        };
        if env.get("error").is_some_and(|e| scalar::kind(e) != scalar::Kind::Null) {
            out.extend_from_slice(event);
            return Err(Over::Reported);
        }
        if self.api == Api::Generate {
            let own = env.get("index").and_then(scalar::as_u64).unwrap_or(0);
            let index = place(own, part, self.held.len() as u32);
            self.put(&env, vec![Edit::set_u64("index", index)], out);
            return Ok(());
        }
        self.chunk(part, &env, out);
        Ok(())
    }

    fn chunk(&mut self, part: u32, env: &Envelope, out: &mut BytesMut) {
        if self.id.is_none() {
            self.id = env.get_bytes("id");
        }
        let choices = env.get("choices").unwrap_or(b"[]");
        let mut renumbered = BytesMut::from(&b"["[..]);
        let mut any = false;
        for choice in scalar::elements(choices) {
            if any {
                renumbered.extend_from_slice(b",");
            }
            any = true;
            let own = scalar::member(choice, "index").and_then(scalar::as_u64).unwrap_or(0);
            let index = place(own, part, self.held.len() as u32);
            renumbered.extend_from_slice(&numbered(choice, index, &self.limits));
        }
        renumbered.extend_from_slice(b"]");
        let told = env.get_bytes("usage").filter(|u| scalar::kind(u) == scalar::Kind::Object);
        if let (false, Some(told)) = (any, told) {
            self.usage[part as usize] = Some(told);
            self.last = Some(env.bytes().clone());
            return;
        }
        self.put(env, vec![Edit::set("choices", renumbered.freeze())], out);
    }

    /// One event, under the whole's id.
    fn put(&self, env: &Envelope, mut edits: Vec<Edit>, out: &mut BytesMut) {
        if let (Some(id), Some(_)) = (&self.id, env.get("id")) {
            edits.push(Edit::set("id", id.clone()));
        }
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&env.splice(&edits).to_bytes());
        out.extend_from_slice(b"\n\n");
    }
}

/// Where the first event of these bytes ends: behind its blank line.
fn event_end(bytes: &[u8]) -> Option<usize> {
    let lf = memmem::find(bytes, b"\n\n").map(|at| at + 2);
    let crlf = memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4);
    match (lf, crlf) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The data of an event with one data line; comments and events without data have none.
fn data_of(event: &Bytes) -> Option<&[u8]> {
    event.chunk().split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"data:")).map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(api: Api, parts: u32, pieces: &[(u32, &str)]) -> String {
        let mut join = Join::new(api, parts, BodyLimits::default());
        let mut out = BytesMut::new();
        for (part, piece) in pieces {
            join.feed(*part, piece.as_bytes(), &mut out).unwrap();
        }
        join.end(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    const A: &str = r#"{"id":"a","choices":[{"index":0,"delta":{"content":"x"}}]}"#;
    const B: &str = r#"{"id":"b","choices":[{"index":0,"delta":{"content":"y"}}]}"#;

    #[test]
    fn events_go_out_under_one_id_with_their_place() {
        let (a, b) = (format!("data: {A}\n\n"), format!("data: {B}\n\n"));
        let got = joined(
            Api::Chat,
            2,
            &[(0, &a), (1, &b[..20]), (1, &b[20..]), (0, "data: [DONE]\n\n"), (1, "data: [DONE]\n\n")],
        );
        let want_b = B.replace("\"b\"", "\"a\"").replace("\"index\":0", "\"index\":1");
        assert_eq!(got, format!("{a}data: {want_b}\n\ndata: [DONE]\n\n"));
    }

    #[test]
    fn tokens_are_told_once_and_added_up() {
        let usage = |id: &str, n: u32| {
            let total = 5 + n;
            format!(
                "data: {{\"id\":\"{id}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":{n},\"total_tokens\":{total}}}}}\r\n\r\n"
            )
        };
        let got =
            joined(Api::Chat, 2, &[(0, &format!("data: {A}\n\n")), (0, &usage("a", 2)), (1, &usage("b", 3))]);
        assert_eq!(got.matches("usage").count(), 1);
        assert!(got.contains(r#""prompt_tokens":5,"completion_tokens":5,"total_tokens":10"#), "{got}");
        assert!(got.contains(r#"{"id":"a","choices":[],"#) && got.ends_with("data: [DONE]\n\n"));
    }

    #[test]
    fn an_error_of_a_part_ends_the_whole() {
        let mut join = Join::new(Api::Chat, 2, BodyLimits::default());
        let mut out = BytesMut::new();
        let error = "data: {\"error\":{\"message\":\"no\"}}\n\n";
        assert_eq!(join.feed(1, error.as_bytes(), &mut out), Err(Over::Reported));
        assert_eq!(out, error);
    }

    #[test]
    fn generates_events_carry_the_index_the_engine_would_give() {
        let got = joined(Api::Generate, 2, &[(1, "data: {\"text\":\"a\",\"meta_info\":{\"id\":\"r\"}}\n\n")]);
        assert!(
            got.starts_with("data: {\"text\":\"a\",\"meta_info\":{\"id\":\"r\"},\"index\":1}\n\n"),
            "{got}"
        );
    }

    #[test]
    fn an_event_without_an_end_is_not_taken_for_the_end_of_the_stream() {
        let mut join = Join::new(Api::Chat, 2, BodyLimits::default());
        let (mut out, piece) = (BytesMut::new(), vec![b'x'; EVENT_MAX_BYTES / 2]);
        assert_eq!(join.feed(1, &piece, &mut out), Ok(()));
        assert_eq!(join.feed(0, &piece, &mut out), Ok(()));
        assert_eq!(join.feed(1, &piece, &mut out), Ok(()));
        assert_eq!(join.feed(1, b"x", &mut out), Err(Over::TooLong));
        assert!(out.is_empty());
    }
}
