//! A request or answer body, kept as the bytes it came in.
//!
//! [`Envelope::parse`] goes over a body once: it checks that the text is one JSON object (RFC 8259, UTF-8) and
//! notes where each top-level member stands. After that a member is a slice, and a changed body is the old bytes
//! with a few of them swapped ([`Envelope::splice`]). Nothing is ever written anew, because a rewritten number or a
//! moved key can change the prompt's tokens, and with them the answer and the prefix-cache hits.
//!
//! Two decisions are stricter than most JSON readers, one is looser:
//! - A member that the gateway edits may not be repeated ([`Envelope::refuse_repeated`]): engines disagree on which
//!   of the two counts.
//! - A byte order mark is refused (RFC 8259 section 8.1 allows that), since not every engine skips it.
//! - Numbers of any size and lone surrogate escapes pass: they are grammatical, and their meaning is for the engine.
//!
//! What this module does not know: what any member means, and whether the text of an [`Edit`] is JSON.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;
use thiserror::Error;

pub mod scalar;
mod scan;
mod splice;
mod text;

use scan::Scanner;
pub(crate) use scan::digits;
pub use splice::{Edit, Pieces, Spliced};

/// How much of a body is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimits {
    /// Longest body, in bytes. Never above `u32::MAX`, whatever is set. Default 512 MiB, as SMG's payload limit.
    pub max_bytes: usize,
    /// Deepest nesting, in levels; the body itself is level 1. Default 128.
    pub max_depth: usize,
    /// Most members of the top-level object. Default 4096.
    pub max_members: usize,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { max_bytes: 512 << 20, max_depth: 128, max_members: 4096 }
    }
}

/// Why a body was refused. The text is meant for the client.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BodyError {
    #[error("the request body is empty; send a JSON object")]
    Empty,
    #[error("the request body is not valid JSON at byte {offset}: {what}")]
    NotJson { offset: usize, what: &'static str },
    #[error("the request body must be a JSON object, like {{\"model\": ...}}")]
    NotAnObject,
    #[error("the request body is nested deeper than {limit} levels; flatten it")]
    TooDeep { limit: usize },
    #[error("the request body is larger than {limit} bytes; send a shorter one")]
    TooLarge { limit: usize },
    #[error("the request body has more than {limit} top-level members; remove some")]
    TooManyMembers { limit: usize },
    #[error("the member {key:?} stands more than once in the request body; send it once")]
    Repeated { key: String },
}

/// Where a member stands in the body. 32-bit offsets keep a usual body's members on the stack.
#[derive(Debug, Clone, Copy)]
struct Member {
    /// The key's text between its quotes.
    key_start: u32,
    key_end: u32,
    value_start: u32,
    value_end: u32,
    /// The key is written with escapes, so its bytes are not its name.
    escaped: bool,
}

impl Member {
    fn key(&self) -> Range<usize> {
        self.key_start as usize..self.key_end as usize
    }

    fn value(&self) -> Range<usize> {
        self.value_start as usize..self.value_end as usize
    }

    /// From the key's opening quote to the value's last byte.
    fn span(&self) -> Range<usize> {
        self.key_start as usize - 1..self.value_end as usize
    }
}

/// A JSON object as it came, and where its members are.
#[derive(Debug, Clone)]
pub struct Envelope {
    body: Bytes,
    /// Offset just behind the opening brace.
    inside: u32,
    members: SmallVec<[Member; 16]>,
}

impl Envelope {
    /// Checks the whole text and finds its members, in one pass.
    ///
    /// # Errors
    /// Anything that is not one JSON object within `limits`; never [`BodyError::Repeated`].
    pub fn parse(body: Bytes, limits: &BodyLimits) -> Result<Self, BodyError> {
        let max_bytes = limits.max_bytes.min(u32::MAX as usize);
        if body.len() > max_bytes {
            return Err(BodyError::TooLarge { limit: max_bytes });
        }
        let mut members = SmallVec::new();
        let mut scan = Scanner::new(&body, limits.max_depth);
        scan.open_body()?;
        let inside = scan.at() as u32;
        let mut first = true;
        while let Some(member) = scan.next_member(first)? {
            if members.len() == limits.max_members {
                return Err(BodyError::TooManyMembers { limit: limits.max_members });
            }
            members.push(member);
            first = false;
        }
        scan.end()?;
        Ok(Self { body, inside, members })
    }

    /// The body exactly as it was parsed.
    pub fn bytes(&self) -> &Bytes {
        &self.body
    }

    /// Length of the body in bytes; at least 2.
    #[expect(clippy::len_without_is_empty, reason = "an object is never empty text")]
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// The value of the member named `key`, as it is written; the last one if the name is repeated.
    /// Names compare decoded: `"\u006d"` is `m`.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.find(key).map(|member| &self.body[member.value()])
    }

    /// [`Envelope::get`] as a slice that shares the body's memory.
    pub fn get_bytes(&self, key: &str) -> Option<Bytes> {
        self.find(key).map(|member| self.body.slice(member.value()))
    }

    /// All members in their order, names decoded (a lone surrogate reads as U+FFFD), values as written.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
        self.members.iter().map(|member| {
            let key = text::name(&self.body[member.key()], member.escaped).unwrap_or_default();
            (key, &self.body[member.value()])
        })
    }

    /// Refuses a body that names one of `keys` twice. Ask this for each member that will be edited: which of the
    /// two an engine reads would be a guess.
    ///
    /// # Errors
    /// [`BodyError::Repeated`] with the first such key.
    pub fn refuse_repeated(&self, keys: &[&str]) -> Result<(), BodyError> {
        let repeated = |key: &&&str| self.members.iter().filter(|m| self.named(m, key)).nth(1).is_some();
        match keys.iter().find(repeated) {
            Some(key) => Err(BodyError::Repeated { key: (*key).to_owned() }),
            None => Ok(()),
        }
    }

    /// The body with `edits` made and every other byte as it was. See [`Edit`] for what each does.
    pub fn splice(&self, edits: &[Edit]) -> Spliced {
        splice::splice(self, edits)
    }

    fn find(&self, key: &str) -> Option<&Member> {
        self.members.iter().rfind(|member| self.named(member, key))
    }

    fn named(&self, member: &Member, key: &str) -> bool {
        let raw = &self.body[member.key()];
        if member.escaped { text::spells(raw, key) } else { raw == key.as_bytes() }
    }
}
