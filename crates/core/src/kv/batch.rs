//! What an engine says about its KV blocks, decoded.
//!
//! A batch is a MessagePack list: a time, a list of events, a data-parallel rank or nothing. An event is a map with its
//! name under `type` (vLLM 0.24 and later, SGLang 0.5.23), or a list that begins with its name and has the same members in
//! a fixed order, those at the end left out (older builds of both). Both are taken. Events and members that are not
//! known here mean nothing; a member of the wrong type makes the batch [`Malformed`].
//!
//! Hashes are the engine's own and mean nothing outside it: numbers of either sign, or bytes, of which a hash is taken.

use xxhash_rust::xxh3::xxh3_64;

use super::msgpack::{Malformed, Reader, Value};

/// Events of one step of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Seconds since 1970, by the engine's clock.
    pub at: f64,
    pub rank: Option<u32>,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Stored(Stored),
    Removed(Removed),
    /// All of it is gone.
    Cleared,
    /// About blocks that no prompt can hit on this worker at once: in another tier or place, or of a group of layers
    /// that does not keep all of a prompt.
    Elsewhere,
    /// Of a name that is not known.
    Unknown,
}

/// Blocks that follow each other were filled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    pub hashes: Vec<u64>,
    /// The block before them; `None` if they begin a prompt.
    pub parent: Option<u64>,
    pub tokens: Vec<u32>,
    /// Tokens in a block.
    pub block_tokens: u32,
    pub lora: Option<Box<str>>,
    pub salt: Option<Box<str>>,
    /// For each block a hash of what its content depends on besides: pictures, for one. Empty: nothing.
    pub extras: Vec<Option<u64>>,
    pub group: Option<u32>,
}

/// Blocks were given to somebody else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Removed {
    pub hashes: Vec<u64>,
    pub group: Option<u32>,
}

impl Batch {
    /// # Errors
    /// The bytes are no such batch.
    pub fn decode(payload: &[u8]) -> Result<Batch, Malformed> {
        let mut reader = Reader::new(payload);
        let Value::List(members @ 2..) = reader.value()? else {
            return Err(Malformed("a batch is a list of a time and events"));
        };
        let at = match reader.value()? {
            Value::Float(at) => at,
            Value::Unsigned(at) => at as f64,
            _ => return Err(Malformed("a batch begins with its time")),
        };
        let Value::List(count) = reader.value()? else {
            return Err(Malformed("events are a list"));
        };
        let mut events = Vec::with_capacity(reader.room(count).min(1024));
        for _ in 0..count {
            events.push(event(reader.skip()?)?);
        }
        let rank = if members > 2 { optional(reader.skip()?, small)? } else { None };
        Ok(Batch { at, rank, events })
    }
}

/// Members of an event, wherever they stood.
#[derive(Default)]
struct Members<'a> {
    hashes: Option<Reader<'a>>,
    parent: Option<Reader<'a>>,
    tokens: Option<Reader<'a>>,
    block_size: Option<Reader<'a>>,
    lora_id: Option<Reader<'a>>,
    lora_name: Option<Reader<'a>>,
    medium: Option<Reader<'a>>,
    extra_keys: Option<Reader<'a>>,
    cache_salt: Option<Reader<'a>>,
    group: Option<Reader<'a>>,
    kind: Option<Reader<'a>>,
    locality: Option<Reader<'a>>,
}

const STORED: &[u8] = b"BlockStored";
const REMOVED: &[u8] = b"BlockRemoved";
const CLEARED: &[u8] = b"AllBlocksCleared";

fn event(mut reader: Reader<'_>) -> Result<Event, Malformed> {
    let mut members = Members::default();
    let name = match reader.value()? {
        Value::List(count @ 1..) => {
            let name = text(&mut reader)?;
            for place in 0..count - 1 {
                members.put_at(name, place, reader.skip()?);
            }
            name
        }
        Value::Map(count) => {
            let mut name = None;
            for _ in 0..count {
                match text(&mut reader)? {
                    b"type" => name = Some(text(&mut reader)?),
                    key => members.put(key, reader.skip()?),
                }
            }
            name.ok_or(Malformed("an event has no type"))?
        }
        _ => return Err(Malformed("an event is a map or a list that begins with its name")),
    };
    match name {
        STORED => members.stored(),
        REMOVED => members.removed(),
        CLEARED => Ok(Event::Cleared),
        _ => Ok(Event::Unknown),
    }
}

impl<'a> Members<'a> {
    /// In the order of vLLM 0.20's lists; SGLang's are the beginning of it.
    fn put_at(&mut self, event: &[u8], place: u32, value: Reader<'a>) {
        let stored: [&[u8]; 9] = [
            b"block_hashes",
            b"parent_block_hash",
            b"token_ids",
            b"block_size",
            b"lora_id",
            b"medium",
            b"lora_name",
            b"extra_keys",
            b"group_idx",
        ];
        let removed: [&[u8]; 3] = [b"block_hashes", b"medium", b"group_idx"];
        let names: &[&[u8]] = if event == STORED { &stored } else { &removed };
        if let Some(name) = names.get(place as usize) {
            self.put(name, value);
        }
    }

    fn put(&mut self, name: &[u8], value: Reader<'a>) {
        let place = match name {
            b"block_hashes" => &mut self.hashes,
            b"parent_block_hash" => &mut self.parent,
            b"token_ids" => &mut self.tokens,
            b"block_size" => &mut self.block_size,
            b"lora_id" => &mut self.lora_id,
            b"lora_name" => &mut self.lora_name,
            b"medium" => &mut self.medium,
            b"extra_keys" => &mut self.extra_keys,
            b"cache_salt" => &mut self.cache_salt,
            b"group_idx" => &mut self.group,
            b"kv_cache_spec_kind" => &mut self.kind,
            b"locality" => &mut self.locality,
            _ => return,
        };
        *place = Some(value);
    }

    /// In the engine's own fast memory, or where nobody says. What is elsewhere must be fetched first.
    fn is_here(&self) -> Result<bool, Malformed> {
        let medium = self.text(self.medium)?;
        let locality = self.text(self.locality)?;
        let kind = self.text(self.kind)?;
        let whole = |kind: &str| kind.contains("full") || kind.contains("mla");
        Ok(medium.is_none_or(|medium| medium.eq_ignore_ascii_case("gpu"))
            && locality.is_none_or(|locality| !locality.eq_ignore_ascii_case("remote"))
            && kind.is_none_or(|kind| whole(&kind.to_ascii_lowercase())))
    }

    fn text(&self, value: Option<Reader<'a>>) -> Result<Option<&'a str>, Malformed> {
        let bytes = value.map_or(Ok(None), |value| optional(value, text_of))?;
        bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| Malformed("text is UTF-8"))).transpose()
    }

    fn group(&self) -> Result<Option<u32>, Malformed> {
        self.group.map_or(Ok(None), |group| optional(group, small))
    }

    fn stored(&self) -> Result<Event, Malformed> {
        let hashes = list(self.hashes, "block_hashes", hash)?;
        let tokens = list(self.tokens, "token_ids", small)?;
        let block_tokens = self.block_size.map_or(Ok(None), |size| optional(size, small))?;
        let block_tokens = block_tokens.ok_or(Malformed("blocks were stored without their size"))?;
        let parent = self.parent.map_or(Ok(None), |parent| optional(parent, hash))?;
        let lora = match self.text(self.lora_name)? {
            Some(name) => Some(name.into()),
            // An adapter without its name is somebody, and nobody that a request can name.
            None => {
                self.lora_id.map_or(Ok(None), |id| optional(id, small))?.map(|id| format!("\0{id}").into())
            }
        };
        if !self.is_here()? {
            return Ok(Event::Elsewhere);
        }
        if tokens.len() as u64 != hashes.len() as u64 * u64::from(block_tokens) {
            return Err(Malformed("stored blocks have more or fewer tokens than they hold"));
        }
        let mut stored = Stored {
            hashes,
            parent,
            tokens,
            block_tokens,
            salt: self.text(self.cache_salt)?.map(Box::from),
            lora,
            extras: Vec::new(),
            group: self.group()?,
        };
        if let Some(keys) = self.extra_keys {
            stored.depend(keys)?;
        }
        Ok(Event::Stored(stored))
    }

    fn removed(&self) -> Result<Event, Malformed> {
        let hashes = list(self.hashes, "block_hashes", hash)?;
        let group = self.group()?;
        Ok(if self.is_here()? { Event::Removed(Removed { hashes, group }) } else { Event::Elsewhere })
    }
}

impl Stored {
    /// Each block's keys: nothing, or a list of the adapter's name, of pictures and, in a prompt's first block, of its
    /// salt (vLLM).
    fn depend(&mut self, mut keys: Reader<'_>) -> Result<(), Malformed> {
        let Value::List(count) = keys.value()? else { return Ok(()) };
        for place in 0..count {
            let mut own = keys.skip()?;
            let (mut extra, mut others) = (None, 0);
            if let Value::List(parts) = own.value()? {
                for _ in 0..parts {
                    let part = own.skip()?;
                    let text = optional(part, text_of).ok().flatten();
                    if text.is_some() && text == self.lora.as_deref().map(str::as_bytes) {
                        continue;
                    }
                    others += 1;
                    extra = Some(extra.unwrap_or(0) ^ xxh3_64(part.rest()).wrapping_mul(others));
                    let first = place == 0 && self.parent.is_none() && others == 1;
                    if let Some(salt) = text.filter(|_| first).and_then(|s| std::str::from_utf8(s).ok()) {
                        self.salt = Some(salt.into());
                        extra = None;
                    }
                }
            }
            if self.extras.len() < self.hashes.len() {
                self.extras.push(extra);
            }
        }
        Ok(())
    }
}

/// Nothing, or what `read` makes of it.
fn optional<'a, T>(
    mut value: Reader<'a>,
    read: impl Fn(Value<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    match value.value()? {
        Value::Nil => Ok(None),
        value => read(value).map(Some),
    }
}

fn list<'a, T>(
    value: Option<Reader<'a>>,
    what: &'static str,
    read: impl Fn(Value<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let mut value = value.ok_or(Malformed(what))?;
    let Value::List(count) = value.value()? else { return Err(Malformed(what)) };
    let mut out = Vec::with_capacity(value.room(count));
    for _ in 0..count {
        out.push(read(value.value()?)?);
    }
    Ok(out)
}

fn hash(value: Value<'_>) -> Result<u64, Malformed> {
    match value {
        Value::Unsigned(n) => Ok(n),
        Value::Negative(n) => Ok(n as u64),
        Value::Bytes(bytes) | Value::Text(bytes) => Ok(xxh3_64(bytes)),
        _ => Err(Malformed("a block's hash is a number or bytes")),
    }
}

fn small(value: Value<'_>) -> Result<u32, Malformed> {
    match value {
        Value::Unsigned(n) => u32::try_from(n).map_err(|_| Malformed("a number is too large")),
        _ => Err(Malformed("a number is none")),
    }
}

fn text_of(value: Value<'_>) -> Result<&[u8], Malformed> {
    match value {
        Value::Text(text) => Ok(text),
        _ => Err(Malformed("a text is none")),
    }
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    text_of(reader.value()?)
}
