//! The meaning of a JSON string's text: escapes decoded, but only when somebody asks.

use std::borrow::Cow;

/// One step of decoding.
enum Piece<'a> {
    Plain(&'a [u8]),
    Char(char),
    /// A surrogate escape without its partner: grammatical JSON that is no Unicode text.
    Lone,
    Bad,
}

/// Walks the text between a string's quotes.
struct Pieces<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        match memchr::memchr(b'\\', self.rest) {
            _ if self.rest.is_empty() => None,
            Some(0) => Some(self.escape()),
            stop => {
                let (plain, rest) = self.rest.split_at(stop.unwrap_or(self.rest.len()));
                self.rest = rest;
                Some(Piece::Plain(plain))
            }
        }
    }
}

impl<'a> Pieces<'a> {
    fn escape(&mut self) -> Piece<'a> {
        let Some(letter) = self.rest.get(1) else { return self.bad() };
        let decoded = match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return self.bad(),
        };
        self.rest = &self.rest[2..];
        Piece::Char(decoded)
    }

    fn unicode(&mut self) -> Piece<'a> {
        let Some(first) = unit(self.rest) else { return self.bad() };
        self.rest = &self.rest[6..];
        if let Some(decoded) = char::from_u32(first) {
            return Piece::Char(decoded);
        }
        let Some(second) = unit(self.rest).filter(|unit| (0xDC00..0xE000).contains(unit)) else {
            return Piece::Lone;
        };
        if first >= 0xDC00 {
            return Piece::Lone;
        }
        self.rest = &self.rest[6..];
        match char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)) {
            Some(decoded) => Piece::Char(decoded),
            None => Piece::Lone,
        }
    }

    fn bad(&mut self) -> Piece<'a> {
        self.rest = &[];
        Piece::Bad
    }
}

/// The UTF-16 unit of a `\uXXXX` at the start of the text.
fn unit(text: &[u8]) -> Option<u32> {
    let hex = text.get(..6)?.strip_prefix(b"\\u")?;
    hex.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
}

/// The text that stands for `raw` (without its quotes). A lone surrogate becomes U+FFFD.
/// `None` if the escapes or the UTF-8 are broken, which an [`Envelope`](super::Envelope) has excluded.
pub(super) fn decode(raw: &[u8]) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', raw).is_none() { utf8(raw).map(Cow::Borrowed) } else { unescape(raw) }
}

/// Text that is looked at before it is handed out.
const STEP: usize = 4 * 1024;

/// Hands out the text that stands for `raw` up to its closing quote, piece by piece, until `each` says false. Says
/// what `each` said last. Broken escapes end it.
pub(super) fn walk(raw: &[u8], each: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let mut pieces = Pieces { rest: raw };
    loop {
        let ahead = &pieces.rest[..pieces.rest.len().min(STEP)];
        let stop = memchr::memchr2(b'\\', b'"', ahead).unwrap_or(ahead.len());
        if stop > 0 && !each(&ahead[..stop]) {
            return false;
        }
        pieces.rest = &pieces.rest[stop..];
        let goes_on = match pieces.rest.first() {
            None | Some(b'"') => return true,
            Some(b'\\') => match pieces.escape() {
                Piece::Plain(_) | Piece::Bad => return true,
                Piece::Char(character) => each(character.encode_utf8(&mut [0; 4]).as_bytes()),
                Piece::Lone => each("\u{fffd}".as_bytes()),
            },
            Some(_) => true,
        };
        if !goes_on {
            return false;
        }
    }
}

/// A member's name, of which it is known whether it has escapes.
pub(super) fn name(raw: &[u8], escaped: bool) -> Option<Cow<'_, str>> {
    if escaped { unescape(raw) } else { utf8(raw).map(Cow::Borrowed) }
}

/// The vector code pays only for longer texts.
fn utf8(raw: &[u8]) -> Option<&str> {
    if raw.len() < 64 { std::str::from_utf8(raw).ok() } else { simdutf8::basic::from_utf8(raw).ok() }
}

fn unescape(raw: &[u8]) -> Option<Cow<'_, str>> {
    let mut decoded = String::with_capacity(raw.len());
    for piece in (Pieces { rest: raw }) {
        match piece {
            Piece::Plain(plain) => decoded.push_str(simdutf8::basic::from_utf8(plain).ok()?),
            Piece::Char(character) => decoded.push(character),
            Piece::Lone => decoded.push(char::REPLACEMENT_CHARACTER),
            Piece::Bad => return None,
        }
    }
    Some(Cow::Owned(decoded))
}

/// Does `raw` (without its quotes) spell exactly `name`? Allocates nothing. A lone surrogate spells no name.
pub(super) fn spells(raw: &[u8], name: &str) -> bool {
    let mut left = name.as_bytes();
    for piece in (Pieces { rest: raw }) {
        let mut buffer = [0; 4];
        let piece = match piece {
            Piece::Plain(plain) => plain,
            Piece::Char(character) => character.encode_utf8(&mut buffer).as_bytes(),
            Piece::Lone | Piece::Bad => return false,
        };
        match left.strip_prefix(piece) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    left.is_empty()
}
