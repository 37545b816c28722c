//! Changed bodies: the old bytes with a few of them swapped.
//!
//! An edit concerns one member; whatever stands between the kept members stays. A removed member takes the comma
//! before it along (the first one: the comma behind it), so that exactly one goes.
//!
//! A small result is joined into one piece, since one short copy is cheaper than one more piece to write. In a
//! large result the long runs stay slices of the body or of the edit's value: a prompt is not copied for a leg.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use super::Envelope;

/// Results up to this many bytes become one piece.
const JOIN_BELOW: usize = 16 * 1024;
/// In larger results, runs from this many bytes on are not copied.
const SLICE_FROM: usize = 4 * 1024;

/// A changed body's pieces: a prompt that is not copied, and what stands before and behind it.
pub type Pieces = SmallVec<[Bytes; 3]>;

/// A change to one top-level member. Of several edits with one key the last counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Gives the member this value, where it stands; without such a member, a new one behind the last.
    /// If the name is repeated, the last stays and the others go. `value` is raw JSON text and is not checked.
    Set { key: Cow<'static, str>, value: Bytes },
    /// Takes away every member of this name.
    Remove { key: Cow<'static, str> },
}

impl Edit {
    /// `value` is raw JSON text: a string comes with its quotes and escapes.
    pub fn set(key: impl Into<Cow<'static, str>>, value: impl Into<Bytes>) -> Self {
        Self::Set { key: key.into(), value: value.into() }
    }

    /// Sets a member to a string, given as plain text.
    pub fn set_str(key: impl Into<Cow<'static, str>>, text: &str) -> Self {
        let mut quoted = Vec::with_capacity(text.len() + 2);
        quote(text, &mut quoted);
        Self::set(key, quoted)
    }

    /// Sets a member to a number.
    pub fn set_u64(key: impl Into<Cow<'static, str>>, number: u64) -> Self {
        Self::set(key, number.to_string())
    }

    /// Sets a member to `true` or `false`.
    pub fn set_bool(key: impl Into<Cow<'static, str>>, on: bool) -> Self {
        Self::set(key, if on { "true" } else { "false" })
    }

    pub fn remove(key: impl Into<Cow<'static, str>>) -> Self {
        Self::Remove { key: key.into() }
    }

    /// The name of the member it concerns.
    pub fn key(&self) -> &str {
        match self {
            Self::Set { key, .. } | Self::Remove { key } => key,
        }
    }
}

/// A changed body, as pieces that follow each other.
#[derive(Debug, Clone)]
pub struct Spliced {
    pieces: Pieces,
    len: usize,
}

impl Spliced {
    /// Length of all pieces together, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an object is never empty text")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The pieces in order; none is empty.
    pub fn pieces(self) -> Pieces {
        self.pieces
    }

    /// All in one; copies unless there is a single piece.
    pub fn to_bytes(&self) -> Bytes {
        match self.pieces.as_slice() {
            [only] => only.clone(),
            pieces => pieces.concat().into(),
        }
    }
}

/// What becomes of a member.
enum Fate<'e> {
    Kept,
    /// Its value is swapped by the edit of this index.
    Set(usize, &'e Bytes),
    Gone,
}

pub(super) fn splice(envelope: &Envelope, edits: &[Edit]) -> Spliced {
    if edits.is_empty() {
        return Spliced { pieces: SmallVec::from_iter([envelope.body.clone()]), len: envelope.len() };
    }
    let edits = effective(edits);
    let mut placed: SmallVec<[bool; 32]> = SmallVec::from_elem(false, edits.len());
    let mut runs = Runs::default();
    let mut written = false;
    runs.body(0..envelope.members.first().map_or(envelope.inside as usize, |first| first.span().start));
    for (index, member) in envelope.members.iter().enumerate() {
        let fate = fate(envelope, index, &edits);
        if matches!(fate, Fate::Gone) {
            continue;
        }
        if written {
            runs.body(envelope.members[index - 1].value().end..member.span().start);
        }
        written = true;
        if let Fate::Set(edit, value) = fate {
            placed[edit] = true;
            runs.body(member.span().start..member.value().start);
            runs.push(Run::Value(value));
        } else {
            runs.body(member.span());
        }
    }
    for (edit, _) in edits.iter().zip(placed).filter(|(_, placed)| !placed) {
        if let Edit::Set { key, value } = edit {
            runs.new_member(key, value, written);
            written = true;
        }
    }
    runs.body(
        envelope.members.last().map_or(envelope.inside as usize, |last| last.value().end)..envelope.len(),
    );
    runs.join(&envelope.body)
}

fn fate<'e>(envelope: &Envelope, index: usize, edits: &[&'e Edit]) -> Fate<'e> {
    let (member, later) = (&envelope.members[index], &envelope.members[index + 1..]);
    let Some(found) = edits.iter().position(|edit| envelope.named(member, edit.key())) else {
        return Fate::Kept;
    };
    match edits[found] {
        Edit::Set { key, value } if !later.iter().any(|member| envelope.named(member, key)) => {
            Fate::Set(found, value)
        }
        _ => Fate::Gone,
    }
}

/// The edits that no later one overrides, in their order.
fn effective(edits: &[Edit]) -> SmallVec<[&Edit; 32]> {
    let overridden = |index: usize| edits[index + 1..].iter().any(|later| later.key() == edits[index].key());
    edits.iter().enumerate().filter(|(index, _)| !overridden(*index)).map(|(_, edit)| edit).collect()
}

/// A stretch of the result.
enum Run<'e> {
    Body(Range<usize>),
    Value(&'e Bytes),
    Comma,
    /// A new member's name and colon.
    Name(&'e str),
}

/// The result before anything is copied.
#[derive(Default)]
struct Runs<'e> {
    list: SmallVec<[Run<'e>; 24]>,
}

impl<'e> Runs<'e> {
    fn push(&mut self, run: Run<'e>) {
        self.list.push(run);
    }

    /// Adds a stretch of the body; one that follows directly on the last makes that one longer.
    fn body(&mut self, span: Range<usize>) {
        match self.list.last_mut() {
            Some(Run::Body(last)) if last.end == span.start => last.end = span.end,
            _ => self.push(Run::Body(span)),
        }
    }

    fn new_member(&mut self, key: &'e str, value: &'e Bytes, comma: bool) {
        if comma {
            self.push(Run::Comma);
        }
        self.push(Run::Name(key));
        self.push(Run::Value(value));
    }

    fn join(&self, body: &Bytes) -> Spliced {
        // exact unless a new name needs escapes
        let size = |run: &Run| match run {
            Run::Body(span) => span.len(),
            Run::Value(value) => value.len(),
            Run::Comma => 1,
            Run::Name(key) => key.len() + 3,
        };
        let total: usize = self.list.iter().map(size).sum();
        let slice_from = if total <= JOIN_BELOW { usize::MAX } else { SLICE_FROM };
        let mut pieces = SmallVec::new();
        let mut copied = Vec::with_capacity(if total <= JOIN_BELOW { total } else { 0 });
        for run in &self.list {
            if size(run) >= slice_from {
                flush(&mut copied, &mut pieces);
            }
            match run {
                Run::Body(span) if span.len() >= slice_from => pieces.push(body.slice(span.clone())),
                Run::Body(span) => copied.extend_from_slice(&body[span.clone()]),
                Run::Value(value) if value.len() >= slice_from => pieces.push((*value).clone()),
                Run::Value(value) => copied.extend_from_slice(value),
                Run::Comma => copied.push(b','),
                Run::Name(key) => {
                    quote(key, &mut copied);
                    copied.push(b':');
                }
            }
        }
        flush(&mut copied, &mut pieces);
        let len = pieces.iter().map(Bytes::len).sum();
        Spliced { pieces, len }
    }
}

fn flush(copied: &mut Vec<u8>, pieces: &mut Pieces) {
    if !copied.is_empty() {
        pieces.push(std::mem::take(copied).into());
    }
}

/// Appends `text` as a JSON string.
fn quote(text: &str, into: &mut Vec<u8>) {
    if !text.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        into.push(b'"');
        into.extend_from_slice(text.as_bytes());
        return into.push(b'"');
    }
    // neither a string nor a Vec as the target can fail
    let _written = serde_json::to_writer(into, text);
}
