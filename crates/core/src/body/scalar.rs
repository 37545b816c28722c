//! Reads raw JSON values where they lie: what an [`Envelope`](super::Envelope) hands out, and what is nested in it.
//!
//! Each function takes the text of one value and answers `None` where it is something else (or no JSON at all), so
//! that a caller names what it wants and takes the default otherwise. Nothing is allocated except by [`as_str`] and
//! [`members`] for text with escapes.

use std::borrow::Cow;

use memchr::memmem::Finder;

use super::scan::Scanner;
use super::{Member, text};

/// What a value is, told by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Null,
    Bool,
    Number,
    String,
    Array,
    Object,
}

/// The kind of a value. Text that is no value at all counts as null.
pub fn kind(raw: &[u8]) -> Kind {
    match raw.trim_ascii_start().first() {
        Some(b't' | b'f') => Kind::Bool,
        Some(b'-' | b'0'..=b'9') => Kind::Number,
        Some(b'"') => Kind::String,
        Some(b'[') => Kind::Array,
        Some(b'{') => Kind::Object,
        _ => Kind::Null,
    }
}

pub fn as_bool(raw: &[u8]) -> Option<bool> {
    match raw.trim_ascii() {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// An integer from 0 to 2^64-1 written as such: `1.0` and `1e3` are none.
pub fn as_u64(raw: &[u8]) -> Option<u64> {
    let digits = raw.trim_ascii();
    if digits.is_empty() || digits.len() > 1 && digits[0] == b'0' {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = u64::from(digit.wrapping_sub(b'0'));
        if digit > 9 { None } else { number.checked_mul(10)?.checked_add(digit) }
    })
}

/// Any number, as near as a float comes; `1e400` is infinite.
pub fn as_f64(raw: &[u8]) -> Option<f64> {
    if kind(raw) != Kind::Number {
        return None;
    }
    std::str::from_utf8(raw.trim_ascii()).ok()?.parse().ok()
}

/// A string's text. Borrowed unless it holds escapes. A lone surrogate escape reads as U+FFFD.
pub fn as_str(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.trim_ascii().strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    text::decode(inner)
}

/// The text of the string that `raw` begins with, piece by piece and without an allocation, until `each` says false.
/// Says what `each` said last; true for what is no string. A lone surrogate escape reads as U+FFFD. What comes
/// after the string is not looked at.
pub fn text(raw: &[u8], each: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let inner = raw.trim_ascii_start().strip_prefix(b"\"");
    inner.is_none_or(|inner| text::walk(inner, each))
}

/// The value that `raw` begins with, without what comes after it. Broken text is left as it is.
pub fn first(raw: &[u8]) -> &[u8] {
    let mut scan = Scanner::new(raw, usize::MAX);
    if scan.value().is_ok() { &raw[..scan.at()] } else { raw }
}

/// How many elements an array has. The array is walked to the end.
pub fn array_len(raw: &[u8]) -> Option<usize> {
    let mut items = Items::open(raw, b'[')?;
    let mut count = 0;
    while items.element()?.is_some() {
        count += 1;
    }
    Some(count)
}

/// The elements of an array, each as raw text; of anything else, none.
pub fn elements(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut items = Items::open(raw, b'[');
    std::iter::from_fn(move || items.as_mut()?.element()?)
}

/// The members of an object, names decoded, values raw; of anything else, none.
pub fn members(raw: &[u8]) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
    let mut items = Items::open(raw, b'{');
    std::iter::from_fn(move || {
        let member = items.as_mut()?.member()??;
        Some((text::name(&raw[member.key()], member.escaped)?, &raw[member.value()]))
    })
}

/// [`elements`], each as the text from its beginning on. Where one ends is looked for when the next one is asked
/// for, so whoever stops early has not read what comes after.
pub fn elements_from(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut items = Items::open(raw, b'[');
    std::iter::from_fn(move || {
        let begin = |scan: &mut Scanner<'_>, first: bool| {
            if !first {
                scan.value()?;
            }
            scan.begin_element(first)
        };
        Some(&raw[items.as_mut()?.step(begin)??..])
    })
}

/// [`members`] in the same way.
pub fn members_from(raw: &[u8]) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
    let mut items = Items::open(raw, b'{');
    std::iter::from_fn(move || {
        let begin = |scan: &mut Scanner<'_>, first: bool| {
            if !first {
                scan.value()?;
            }
            scan.begin_member(first)
        };
        let member = items.as_mut()?.step(begin)??;
        Some((text::name(&raw[member.key()], member.escaped)?, &raw[member.value().start..]))
    })
}

/// The value of an object's member, the last one of that name. The object is walked to the end.
pub fn member<'a>(raw: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let mut items = Items::open(raw, b'{')?;
    let mut found = None;
    while let Some(member) = items.member()? {
        let name = &raw[member.key()];
        if if member.escaped { text::spells(name, key) } else { name == key.as_bytes() } {
            found = Some(&raw[member.value()]);
        }
    }
    found
}

/// [`member`], found from the end of the text: what stands before it is searched but not parsed. Made for a short
/// member behind a long answer. `quoted` finds the name in its quotes; a name spelled with escapes is not found.
/// `raw` must be an object whose text ends where the object does.
pub(crate) fn member_from_end<'a>(raw: &'a [u8], quoted: &Finder<'_>) -> Option<&'a [u8]> {
    /// How many appearances of the name are tried, from the last one on.
    const TRIES: usize = 8;
    let mut found = [None; TRIES];
    let mut count = 0;
    for at in quoted.find_iter(raw) {
        found[count % TRIES] = Some(at);
        count += 1;
    }
    (0..count.min(TRIES)).find_map(|back| ending_with(raw, found[(count - 1 - back) % TRIES]?))
}

/// The value of the member whose name's quote is `at`, if the outermost object ends after it (and maybe others).
fn ending_with(raw: &[u8], at: usize) -> Option<&[u8]> {
    // the quotes may belong to two strings, or one of them to a string's text
    if !matches!(raw[..at].trim_ascii_end().last(), Some(b'{' | b',')) {
        return None;
    }
    let mut scan = Scanner::new(raw, usize::MAX);
    scan.go_to(at);
    let member = scan.next_member(true).ok()??;
    while scan.next_member(false).ok()?.is_some() {}
    scan.end().ok()?;
    Some(&raw[member.value()])
}

/// A walk over one container. After broken text or the closing bracket it yields nothing more.
struct Items<'a> {
    scan: Scanner<'a>,
    first: bool,
    done: bool,
}

impl<'a> Items<'a> {
    /// `None` if the text does not start with `bracket` (or is too long for an envelope).
    fn open(raw: &'a [u8], bracket: u8) -> Option<Self> {
        let mut scan = Scanner::new(raw, usize::MAX);
        let fits = u32::try_from(raw.len()).is_ok();
        (fits && scan.open(bracket)).then_some(Self { scan, first: true, done: false })
    }

    /// `None` on broken text, `Some(None)` at the end.
    fn element(&mut self) -> Option<Option<&'a [u8]>> {
        self.step(Scanner::next_element)
    }

    fn member(&mut self) -> Option<Option<Member>> {
        self.step(Scanner::next_member)
    }

    fn step<T>(
        &mut self,
        next: impl FnOnce(&mut Scanner<'a>, bool) -> Result<Option<T>, super::BodyError>,
    ) -> Option<Option<T>> {
        if self.done {
            return Some(None);
        }
        let item = next(&mut self.scan, std::mem::take(&mut self.first));
        self.done = !matches!(item, Ok(Some(_)));
        item.ok()
    }
}
