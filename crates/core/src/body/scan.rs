//! The JSON grammar, checked without building anything.
//!
//! Most bytes of a prompt stand in a few long strings or in one list of token ids, so two loops matter. [`plain`] goes
//! over text that holds no quote, escape or control byte, in forms that compilers and libraries turn into vector code;
//! [`Scanner::ids`] goes over numbers as token and block ids are written.
//! UTF-8 is checked only for strings that hold a non-ASCII byte. Nesting is a stack on the heap side of a limit,
//! never recursion: a body cannot overflow the thread's stack.

use smallvec::SmallVec;

use super::{BodyError, Member};

const BAD_VALUE: &str = "expected a value";
const BAD_KEY: &str = "expected a member name in double quotes";
const BAD_STRING: &str = "the string is not closed";
const BAD_ESCAPE: &str = "unknown escape in a string";
const BAD_CONTROL: &str = "control byte in a string; write it as an escape";
const BAD_UTF8: &str = "the string is not UTF-8";
const BAD_NUMBER: &str = "malformed number";

/// What a nesting level is; decides which bracket ends it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Object,
    Array,
}

/// A position in a JSON text.
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    max_depth: usize,
    /// Open containers below the one whose items the caller walks.
    levels: SmallVec<[Level; 64]>,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a [u8], max_depth: usize) -> Self {
        Self { text, at: 0, max_depth, levels: SmallVec::new() }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    /// Takes up the text in the middle, where a member of the outermost object begins.
    pub fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    /// Goes behind the opening brace of a body.
    pub fn open_body(&mut self) -> Result<(), BodyError> {
        if self.text.starts_with(b"\xef\xbb\xbf") {
            return Err(self.bad("starts with a byte order mark; send plain UTF-8"));
        }
        if self.text.starts_with(b"\x1f\x8b") || self.text.starts_with(b"\x28\xb5\x2f\xfd") {
            return Err(self.bad("the body is compressed; send it as it is"));
        }
        if self.text.starts_with(b"\xff\xfe") || self.text.starts_with(b"\xfe\xff") {
            return Err(self.bad("the body is UTF-16; send UTF-8"));
        }
        self.space();
        match self.peek() {
            None => Err(BodyError::Empty),
            Some(b'{') if self.max_depth == 0 => Err(BodyError::TooDeep { limit: 0 }),
            Some(b'{') => {
                self.at += 1;
                Ok(())
            }
            Some(b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => Err(BodyError::NotAnObject),
            Some(_) => Err(self.bad(BAD_VALUE)),
        }
    }

    /// The next member of the object the position is in; `None` behind its closing brace.
    pub fn next_member(&mut self, first: bool) -> Result<Option<Member>, BodyError> {
        let Some(mut member) = self.begin_member(first)? else { return Ok(None) };
        self.value()?;
        member.value_end = self.at as u32;
        Ok(Some(member))
    }

    /// The same, up to where its value begins: the value is still to be gone over, and seems to be empty.
    pub fn begin_member(&mut self, first: bool) -> Result<Option<Member>, BodyError> {
        if !self.more(first, b'}', "expected ',' or '}' after a member")? {
            return Ok(None);
        }
        let (key_start, key_end, escaped) = self.key()?;
        self.space();
        Ok(Some(Member {
            key_start: key_start as u32,
            key_end: key_end as u32,
            value_start: self.at as u32,
            value_end: self.at as u32,
            escaped,
        }))
    }

    /// The span of the next element of the array the position is in; `None` behind its closing bracket.
    pub fn next_element(&mut self, first: bool) -> Result<Option<&'a [u8]>, BodyError> {
        let Some(start) = self.begin_element(first)? else { return Ok(None) };
        self.value()?;
        Ok(Some(&self.text[start..self.at]))
    }

    /// Where it begins: it is still to be gone over.
    pub fn begin_element(&mut self, first: bool) -> Result<Option<usize>, BodyError> {
        if !self.more(first, b']', "expected ',' or ']' after an element")? {
            return Ok(None);
        }
        self.space();
        Ok(Some(self.at))
    }

    /// Only blanks may follow.
    pub fn end(&mut self) -> Result<(), BodyError> {
        self.space();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.bad("text after the end of the object")),
        }
    }

    /// Skips blanks, then the opening `bracket`, if it is there.
    pub fn open(&mut self, bracket: u8) -> bool {
        self.space();
        self.skip(bracket)
    }

    /// Goes over one value, leading blanks included.
    pub fn value(&mut self) -> Result<(), BodyError> {
        self.levels.clear();
        loop {
            self.space();
            let opened = match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    self.string()?;
                    false
                }
                Some(b'{') => self.enter(Level::Object)?,
                Some(b'[') => {
                    let opened = self.enter(Level::Array)?;
                    if opened {
                        self.ids();
                    }
                    opened
                }
                Some(b'-' | b'0'..=b'9') => {
                    self.number()?;
                    false
                }
                _ => {
                    self.literal()?;
                    false
                }
            };
            if !opened && !self.after_value()? {
                return Ok(());
            }
        }
    }

    /// Behind a value: true if another one follows inside an open container, false if the outermost has ended.
    fn after_value(&mut self) -> Result<bool, BodyError> {
        while let Some(level) = self.levels.last() {
            let level = *level;
            let more = match level {
                Level::Object => self.more(false, b'}', "expected ',' or '}' after a member")?,
                Level::Array => self.more(false, b']', "expected ',' or ']' after an element")?,
            };
            if more {
                if level == Level::Object {
                    self.key()?;
                }
                return Ok(true);
            }
            self.levels.pop();
        }
        Ok(false)
    }

    /// Goes into a container. True if a value follows, false if the container was empty and is closed again.
    fn enter(&mut self, level: Level) -> Result<bool, BodyError> {
        // the body itself is a level that is not on the stack
        if self.levels.len() + 1 >= self.max_depth {
            return Err(BodyError::TooDeep { limit: self.max_depth });
        }
        self.at += 1;
        let close = if level == Level::Object { b'}' } else { b']' };
        if !self.more(true, close, "")? {
            return Ok(false);
        }
        if level == Level::Object {
            self.key()?;
        }
        self.levels.push(level);
        Ok(true)
    }

    /// Goes over the comma before an item or over the closing bracket. True if an item must follow.
    fn more(&mut self, first: bool, close: u8, missing: &'static str) -> Result<bool, BodyError> {
        self.space();
        if self.skip(close) {
            return Ok(false);
        }
        if first {
            return Ok(true);
        }
        if self.skip(b',') {
            return Ok(true);
        }
        Err(self.bad(if self.peek().is_none() { "the text ends too early" } else { missing }))
    }

    /// A member's name and its colon: where the name stands between its quotes, and if it holds escapes.
    fn key(&mut self) -> Result<(usize, usize, bool), BodyError> {
        self.space();
        if !self.skip(b'"') {
            return Err(self.bad(BAD_KEY));
        }
        let start = self.at;
        let escaped = self.string()?;
        let end = self.at - 1;
        self.space();
        if !self.skip(b':') {
            return Err(self.bad("expected ':' after a member name"));
        }
        Ok((start, end, escaped))
    }

    /// From behind the opening quote to behind the closing one. True if there were escapes.
    fn string(&mut self) -> Result<bool, BodyError> {
        let start = self.at;
        let mut escaped = false;
        let mut high = false;
        loop {
            let stop = plain(self.text, self.at, &mut high);
            self.at = stop;
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.bad(BAD_CONTROL)),
                None => return Err(self.bad(BAD_STRING)),
            }
        }
        if high && simdutf8::basic::from_utf8(&self.text[start..self.at]).is_err() {
            return Err(BodyError::NotJson { offset: start, what: BAD_UTF8 });
        }
        self.at += 1;
        Ok(escaped)
    }

    fn escape(&mut self) -> Result<(), BodyError> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => match self.text.get(self.at + 2..self.at + 6) {
                Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => {
                    self.at += 6;
                    Ok(())
                }
                _ => Err(self.bad("\\u needs four hex digits")),
            },
            _ => Err(self.bad(BAD_ESCAPE)),
        }
    }

    fn number(&mut self) -> Result<(), BodyError> {
        self.skip(b'-');
        let zero = self.peek() == Some(b'0');
        let start = self.at;
        self.digits()?;
        if zero && self.at > start + 1 {
            return Err(self.bad("a number may not start with 0"));
        }
        // token ids are whole numbers: one look is enough for them
        if !matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return Ok(());
        }
        if self.skip(b'.') {
            self.digits()?;
        }
        if self.skip(b'e') || self.skip(b'E') {
            if !self.skip(b'+') {
                self.skip(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    #[inline]
    fn digits(&mut self) -> Result<(), BodyError> {
        let count = digits(&self.text[self.at..]);
        self.at += count;
        if count == 0 { Err(self.bad(BAD_NUMBER)) } else { Ok(()) }
    }

    /// At an item of an array: goes over those that are nothing but digits and a comma, up to the first that is
    /// something else, is blown up with blanks or has no comma behind it. That one is left to the whole grammar.
    fn ids(&mut self) {
        let mut at = self.at;
        loop {
            let start = at;
            at += digits(&self.text[at..]);
            let long_zero = self.text.get(start) == Some(&b'0') && at > start + 1;
            if at == start || long_zero || self.text.get(at) != Some(&b',') {
                return;
            }
            at += 1;
            self.at = at;
        }
    }

    fn literal(&mut self) -> Result<(), BodyError> {
        let rest = &self.text[self.at..];
        let word = [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word));
        match word {
            Some(word) => {
                self.at += word.len();
                Ok(())
            }
            None => Err(self.bad(if rest.is_empty() { "the text ends too early" } else { BAD_VALUE })),
        }
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    #[inline]
    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    #[cold]
    fn bad(&self, what: &'static str) -> BodyError {
        BodyError::NotJson { offset: self.at, what }
    }
}

/// The first quote, backslash or control byte at or behind `at`, or the end of the text.
/// `high` is set if a non-ASCII byte was passed; it may also be set by one that follows shortly after.
fn plain(text: &[u8], mut at: usize, high: &mut bool) -> usize {
    // Names and most values are short: a few words decide before a block pays.
    for _ in 0..4 {
        match word(text, &mut at, high) {
            Some(true) => return at,
            Some(false) => {}
            None => return tail(text, at, high),
        }
    }
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let window = &rest[..rest.len().min(WINDOW)];
        let stop = memchr::memchr2(b'"', b'\\', window);
        let run = &window[..stop.unwrap_or(window.len())];
        let (lowest, top) = run.iter().fold((u8::MAX, 0), |(low, top), byte| (low.min(*byte), top | byte));
        *high |= top >= 0x80;
        if lowest < 0x20 {
            return at + run.iter().position(|byte| *byte < 0x20).unwrap_or(run.len());
        }
        at += run.len();
        if stop.is_some() {
            break;
        }
    }
    at
}

/// Looks at eight bytes: true if the text stops in them (`at` is where), `None` if there are no eight.
#[inline]
fn word(text: &[u8], at: &mut usize, high: &mut bool) -> Option<bool> {
    let word = u64::from_le_bytes(*text.get(*at..)?.first_chunk::<8>()?);
    *high |= word & ONES << 7 != 0;
    let stops = stops(word);
    *at += if stops == 0 { 8 } else { stops.trailing_zeros() as usize / 8 };
    Some(stops != 0)
}

/// How many digits a text begins with.
#[inline]
pub(crate) fn digits(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(eight) = text.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        // Digits become 0 to 9, which the sum leaves below 128. What it carries over runs upwards, so the lowest mark is exact.
        let value = u64::from_le_bytes(*eight) ^ (ONES * u64::from(b'0'));
        let others = (value.wrapping_add(ONES * 0x76) | value) & ONES << 7;
        if others != 0 {
            return at + others.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// The last bytes of a text, one by one.
fn tail(text: &[u8], mut at: usize, high: &mut bool) -> usize {
    while let Some(byte) = text.get(at) {
        *high |= *byte >= 0x80;
        if matches!(byte, 0..0x20 | b'"' | b'\\') {
            break;
        }
        at += 1;
    }
    at
}

/// How much is looked at in one go: small enough to be in the nearest cache the second time.
const WINDOW: usize = 4096;

const ONES: u64 = u64::from_le_bytes([1; 8]);

/// Marks the high bit of each byte that ends plain text. Marks above the lowest one may be false (borrows run
/// upwards), the lowest is exact.
#[inline]
fn stops(word: u64) -> u64 {
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & ONES << 7;
    // With its second bit turned over, the quote is the one byte that stands next to the control bytes.
    below(word ^ (ONES * 2), 0x21) | below(word ^ (ONES * u64::from(b'\\')), 1)
}
