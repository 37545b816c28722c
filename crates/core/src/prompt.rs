//! A request's prompt as policies see it: its text in the order in which an engine reads it, its length, and
//! the hashes of its blocks.
//!
//! Nothing is read before a policy asks, and the blocks are hashed once for each request, however many
//! workers are compared. Block `i`'s hash stands for all text up to its end: two prompts with the same hash
//! at the same place are the same up to there.
//!
//! A token id counts as much as four bytes of text, which is what a token of English takes. It does not know
//! chat templates: what it hands out is what a template is made from, so prompts that begin alike here begin
//! alike at the engine, but for templates that put the date or the like in front. How many tokens it is, and how well
//! that is known, says [`Prompt::size`].

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::ask::Api;
use crate::body::{Envelope, scalar};
use crate::chat;
use crate::kv::Chains;
use crate::size::{Measure, Size, Unknown};
use crate::tokenize::{self, Question};

/// Bytes of text that count as one token where nothing better is known.
pub const TOKEN_BYTES: usize = 4;

/// Blocks of one prompt that are hashed. What comes after is not told apart: at 16 tokens a block this is a
/// prompt of a million tokens.
pub const BLOCKS_MAX: usize = 65_536;

/// Members of a prompt's part that are longer than this count as one word: a picture is no text.
const OPAQUE_BYTES: usize = 1024;

/// What keeps prompts of equal text apart, because engines keep their KV apart.
const SPACES: [&str; 4] = ["cache_salt", "extra_key", "lora_path", "lora_name"];

/// Members that an engine's template puts in front, in its order, by API.
fn members(api: Api) -> &'static [&'static str] {
    match api {
        Api::Chat => &["tools", "messages"],
        Api::Messages | Api::CountTokens => &["tools", "system", "messages"],
        Api::Responses => &["tools", "instructions", "input"],
        Api::Completions => &["prompt"],
        Api::Generate => &["text", "input_ids"],
        Api::Rerank => &["query"],
    }
}

/// The prompt of one request.
#[derive(Clone, Debug)]
pub struct Prompt {
    api: Api,
    body: Envelope,
    blocks: OnceLock<Arc<Blocks>>,
    heads: OnceLock<(Arc<[usize]>, Arc<Blocks>)>,
    measure: Option<Arc<Measure>>,
    size: OnceLock<Size>,
    ids: OnceLock<Result<Arc<[u32]>, Unknown>>,
    chains: Chains,
    said_bytes: OnceLock<u64>,
    /// A conversation of another API as chat messages.
    chat: OnceLock<Option<Result<Envelope, Unknown>>>,
    /// What an engine said when it was asked, or why it said nothing.
    told: Option<Result<Arc<[u32]>, Unknown>>,
    /// What policies look at instead of the body, as the client wants it.
    stand_in: Option<Box<[u32]>>,
}

/// What a prompt is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Keeps apart what would otherwise read as one text.
    Mark(u8),
    Text(&'a [u8]),
    /// A token's number.
    Id(u32),
    /// What is no text, a picture for one: its hash.
    Other(u64),
}

/// A prompt's text as hashes of its whole blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// What is left behind the last whole block has none.
    pub hashes: Box<[u64]>,
    /// The length of the text, in bytes.
    pub bytes: u64,
    /// The size of a block, in bytes.
    pub block_bytes: usize,
    /// Where each block ends, if they are not all of one size.
    pub ends: Box<[u64]>,
}

impl Blocks {
    /// How many bytes of the text so many blocks are.
    pub fn bytes_of(&self, blocks: usize) -> u64 {
        if let Some(last) = blocks.min(self.ends.len()).checked_sub(1) {
            return self.ends[last];
        }
        (blocks as u64 * self.block_bytes as u64).min(self.bytes)
    }
}

impl Prompt {
    pub fn of(api: Api, body: Envelope) -> Prompt {
        Prompt {
            api,
            body,
            blocks: OnceLock::new(),
            heads: OnceLock::new(),
            measure: None,
            size: OnceLock::new(),
            ids: OnceLock::new(),
            chains: Chains::default(),
            said_bytes: OnceLock::new(),
            chat: OnceLock::new(),
            told: None,
            stand_in: None,
        }
    }

    /// For policies these tokens are the prompt. Its size stays what the body says.
    pub fn stand_in(&mut self, ids: Box<[u32]>) {
        (self.stand_in, self.blocks, self.heads) = (Some(ids), OnceLock::new(), OnceLock::new());
    }

    /// What is known of tokens is asked of `measure` from now on.
    pub fn measure_by(&mut self, measure: &Arc<Measure>) {
        self.measure = Some(measure.clone());
        (self.size, self.ids, self.chains) = (OnceLock::new(), OnceLock::new(), Chains::default());
    }

    /// What to ask an engine about it.
    ///
    /// # Errors
    /// Why it is not asked.
    pub fn question(&self) -> Result<Question, Unknown> {
        match self.conversation() {
            Some(chat) => tokenize::question(Api::Chat, chat?),
            None => tokenize::question(self.api, &self.body),
        }
    }

    /// An engine was asked, and these are its tokens; or why it did not say.
    pub fn tell(&mut self, told: Result<Arc<[u32]>, Unknown>) {
        (self.size, self.ids, self.told) = (OnceLock::new(), OnceLock::new(), Some(told));
        self.chains = Chains::default();
    }

    /// What came of asking an engine, if one was to be asked.
    pub fn told(&self) -> Option<&Result<Arc<[u32]>, Unknown>> {
        self.told.as_ref()
    }

    /// It is the same as the other one, which an engine was asked about.
    pub fn told_as(&mut self, other: &Prompt) {
        if let Some(told) = &other.told {
            self.tell(told.clone());
        }
    }

    /// How many tokens it is: the one place that says so. Worked out when it is first asked for.
    pub fn size(&self) -> Size {
        *self.size.get_or_init(|| Measure::or_default(self.measure.as_deref()).size(self))
    }

    /// Its tokens as the engine will have them, where that is known: the client sent them, or the model's tokenizer is at
    /// hand, and its chat template for a conversation. Worked out when it is first asked for.
    ///
    /// # Errors
    /// Why they are not known.
    pub fn ids(&self) -> Result<Arc<[u32]>, Unknown> {
        let ids = || Measure::or_default(self.measure.as_deref()).ids(self);
        self.ids.get_or_init(ids).clone()
    }

    /// Chains of its tokens' blocks.
    pub(crate) fn chains(&self) -> &Chains {
        &self.chains
    }

    /// Why its tokens are not known, if they were asked for.
    pub fn unknown(&self) -> Option<Unknown> {
        self.ids.get().and_then(|ids| ids.as_ref().err().cloned())
    }

    /// How many tokens the chat template made of it, if that was asked for.
    pub(crate) fn templated(&self) -> Option<usize> {
        let made = self.ids.get().filter(|_| !matches!(self.told, Some(Ok(_))))?;
        self.conversation()?.ok()?;
        made.as_ref().ok().map(|ids| ids.len())
    }

    /// The body of a conversation that engines put a chat template around, as the chat API has it; or why it is not
    /// known what they make of it. Worked out when it is first asked for.
    pub(crate) fn conversation(&self) -> Option<Result<&Envelope, Unknown>> {
        if self.api == Api::Chat {
            return Some(Ok(&self.body));
        }
        let made = self.chat.get_or_init(|| chat::of(self.api, &self.body));
        made.as_ref().map(|made| made.as_ref().map_err(Clone::clone))
    }

    /// Which way to the messages it has: that may be right where another one is not.
    pub(crate) fn way(&self) -> usize {
        match self.api {
            Api::Messages => 1,
            Api::Responses => 2,
            _ => 0,
        }
    }

    /// The model that it is for, as the client wrote it.
    pub fn model(&self) -> Option<Cow<'_, str>> {
        self.body.get("model").and_then(scalar::as_str)
    }

    /// What keeps its KV apart from that of equal prompts (vLLM's name first, then SGLang's).
    pub fn salt(&self) -> Option<Cow<'_, str>> {
        ["cache_salt", "extra_key"].iter().find_map(|name| self.body.get(name)).and_then(scalar::as_str)
    }

    /// The adapter that the body names (SGLang), if it does.
    pub fn adapter(&self) -> Option<Cow<'_, str>> {
        ["lora_path", "lora_name"].iter().find_map(|name| self.body.get(name)).and_then(scalar::as_str)
    }

    /// An engine's count of it leaves out what was in its cache (Anthropic's API).
    pub(crate) fn leaves_out_cached(&self) -> bool {
        self.api == Api::Messages
    }

    /// The length of what its messages say, in bytes: their contents with a blank between two, and nothing of who says
    /// it (AIBrix's message text). Of other APIs, the prompt's.
    pub fn said_bytes(&self) -> u64 {
        *self.said_bytes.get_or_init(|| self.say_bytes())
    }

    fn say_bytes(&self) -> u64 {
        let content = |value: &[u8]| match scalar::kind(value) {
            scalar::Kind::String => {
                let mut bytes = 0;
                scalar::text(value, &mut |piece| {
                    bytes += piece.len() as u64;
                    true
                });
                bytes
            }
            scalar::Kind::Null => 0,
            _ => value.len() as u64,
        };
        let Some(list) = self.body.get("messages") else {
            let own = members(self.api).iter().filter_map(|name| self.body.get(name));
            return own.map(content).sum();
        };
        let mut messages = 0;
        let said = scalar::elements(list).filter_map(|message| scalar::member(message, "content"));
        let bytes: u64 = said.inspect(|_| messages += 1).map(content).sum();
        bytes + u64::saturating_sub(messages, 1)
    }

    /// The raw value of the one prompt that no template is put around.
    pub(crate) fn bare(&self) -> Option<&[u8]> {
        match self.api {
            Api::Completions => self.body.get("prompt"),
            Api::Generate => self.body.get("input_ids").or_else(|| self.body.get("text")),
            _ => None,
        }
    }

    /// Hands out the text as bytes, piece by piece, until there is no more or `each` says false.
    pub fn walk(&self, each: &mut dyn FnMut(&[u8]) -> bool) {
        if let Some(ids) = &self.stand_in {
            let _all = ids.iter().all(|id| each(&id.to_le_bytes()));
            return;
        }
        self.pieces(&mut |piece| match piece {
            Piece::Mark(what) => each(&[0xf8 | what]),
            Piece::Text(text) => each(text),
            Piece::Id(id) => each(&id.to_le_bytes()),
            Piece::Other(hash) => each(&hash.to_le_bytes()),
        });
    }

    /// Hands out what it is made of, until there is no more or `each` says false.
    pub fn pieces(&self, each: &mut dyn FnMut(Piece<'_>) -> bool) {
        let mut walk = Walk { each };
        for (place, name) in (0u8..).zip(members(self.api)) {
            if let Some(value) = self.body.get(name)
                && !(walk.mark(place) && walk.value(value))
            {
                return;
            }
        }
    }

    /// The length of the text, in bytes.
    pub fn bytes(&self) -> u64 {
        if let Some(blocks) = self.blocks.get() {
            return blocks.bytes;
        }
        let mut bytes = 0;
        self.walk(&mut |piece| {
            bytes += piece.len() as u64;
            true
        });
        bytes
    }

    /// The text in blocks of so many tokens. Kept for the first size that is asked for; another one is hashed
    /// each time.
    pub fn blocks(&self, tokens: usize) -> Arc<Blocks> {
        let size = tokens.max(1).saturating_mul(TOKEN_BYTES);
        let kept = self.blocks.get_or_init(|| Arc::new(self.hash(size)));
        if kept.block_bytes == size { kept.clone() } else { Arc::new(self.hash(size)) }
    }

    /// The text cut at these positions, rising, in tokens: as many blocks as it reaches of them. Kept for the positions
    /// that are asked for first.
    pub fn heads(&self, at: &Arc<[usize]>) -> Arc<Blocks> {
        let kept = self.heads.get_or_init(|| (at.clone(), Arc::new(self.cut(at, true))));
        if kept.0 == *at { kept.1.clone() } else { Arc::new(self.cut(at, true)) }
    }

    /// One number for the beginning of the text up to each of these positions that it reaches, in tokens. What comes
    /// after the last one is not read.
    pub fn beginnings(&self, at: &[usize]) -> Box<[u64]> {
        self.cut(at, false).hashes
    }

    /// One number for the beginning of the text, so many tokens of it; `None` if there is no text.
    pub fn beginning(&self, tokens: usize) -> Option<u64> {
        let mut left = tokens.max(1).saturating_mul(TOKEN_BYTES);
        let mut text = Vec::with_capacity(left.min(4096));
        self.walk(&mut |piece| {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            text.extend_from_slice(piece);
            left > 0
        });
        (!text.is_empty()).then(|| xxh3_64_with_seed(&text, self.space()))
    }

    /// Prompts of another model, adapter or salt share nothing.
    fn space(&self) -> u64 {
        let own = |name: &&str| self.body.get(name).map(|value| (name.len() as u64, value));
        let model = self.body.get("model").map_or(0, xxh3_64);
        SPACES.iter().filter_map(own).fold(model, |seed, (n, value)| xxh3_64_with_seed(value, seed ^ n))
    }

    /// Its length is known if the `whole` of it is read.
    fn cut(&self, at: &[usize], whole: bool) -> Blocks {
        let ends: Vec<u64> =
            at.iter().map(|tokens| (*tokens as u64).saturating_mul(TOKEN_BYTES as u64)).collect();
        let (mut text, mut bytes) = (Xxh3::with_seed(self.space()), 0u64);
        let mut hashes = Vec::with_capacity(ends.len());
        self.walk(&mut |mut piece| {
            while let Some(end) = ends.get(hashes.len())
                && let Some((own, rest)) = piece.split_at_checked(end.saturating_sub(bytes) as usize)
            {
                text.update(own);
                bytes += own.len() as u64;
                hashes.push(text.digest());
                piece = rest;
            }
            if hashes.len() < ends.len() {
                text.update(piece);
            }
            bytes += piece.len() as u64;
            whole || hashes.len() < ends.len()
        });
        let ends = ends[..hashes.len()].into();
        Blocks { hashes: hashes.into(), bytes, block_bytes: 0, ends }
    }

    fn hash(&self, size: usize) -> Blocks {
        let expected = (self.body.len() / size).min(BLOCKS_MAX);
        let mut hasher = Hasher {
            size,
            chain: self.space(),
            hashes: Vec::with_capacity(expected),
            open: Vec::with_capacity(size.min(4096)),
            bytes: 0,
        };
        self.walk(&mut |piece| {
            hasher.feed(piece);
            true
        });
        Blocks { hashes: hasher.hashes.into(), bytes: hasher.bytes, block_bytes: size, ends: Box::default() }
    }
}

/// Cuts text that comes in pieces into blocks, and hashes each with what was before it.
struct Hasher {
    size: usize,
    chain: u64,
    hashes: Vec<u64>,
    /// A block that is not whole yet.
    open: Vec<u8>,
    bytes: u64,
}

impl Hasher {
    fn feed(&mut self, mut piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if !self.open.is_empty() {
            let (own, rest) = piece.split_at(piece.len().min(self.size - self.open.len()));
            self.open.extend_from_slice(own);
            piece = rest;
            if self.open.len() < self.size {
                return;
            }
            let open = std::mem::take(&mut self.open);
            self.close(&open);
            self.open = open;
            self.open.clear();
        }
        let mut whole = piece.chunks_exact(self.size);
        whole.by_ref().for_each(|block| self.close(block));
        self.open.extend_from_slice(whole.remainder());
    }

    fn close(&mut self, block: &[u8]) {
        if self.hashes.len() < BLOCKS_MAX {
            self.chain = xxh3_64_with_seed(block, self.chain);
            self.hashes.push(self.chain);
        }
    }
}

/// Values are given from their beginning on, so that the end of a long one is looked for only by whoever needs it.
/// Every step says whether to go on.
struct Walk<'a> {
    each: &'a mut dyn FnMut(Piece<'_>) -> bool,
}

impl Walk<'_> {
    /// No JSON text holds the bytes that marks stand for.
    fn mark(&mut self, what: u8) -> bool {
        (self.each)(Piece::Mark(what))
    }

    fn text(&mut self, raw: &[u8]) -> bool {
        scalar::text(raw, &mut |text| (self.each)(Piece::Text(text)))
    }

    /// A prompt, a list of prompts or of messages, or one of token ids.
    fn value(&mut self, raw: &[u8]) -> bool {
        match scalar::kind(raw) {
            scalar::Kind::String => self.text(raw),
            scalar::Kind::Array => self.list(raw),
            scalar::Kind::Object => self.message(raw),
            _ => true,
        }
    }

    fn list(&mut self, raw: &[u8]) -> bool {
        scalar::elements_from(raw).all(|item| match scalar::kind(item) {
            scalar::Kind::Number => {
                let id = scalar::as_u64(scalar::first(item)).unwrap_or_default();
                (self.each)(Piece::Id(id as u32))
            }
            _ => self.mark(6) && self.value(item),
        })
    }

    /// A message, or a part of one.
    fn message(&mut self, raw: &[u8]) -> bool {
        scalar::members_from(raw).all(|(name, value)| match &*name {
            "content" | "text" => self.value(value),
            "role" => self.mark(7) && self.text(value),
            _ => self.other(name, scalar::first(value)),
        })
    }

    /// What is no text of the conversation: calls of tools, pictures, settings of a part.
    fn other(&mut self, name: Cow<'_, str>, value: &[u8]) -> bool {
        if value.len() > OPAQUE_BYTES && scalar::kind(value) != scalar::Kind::Array {
            return (self.each)(Piece::Other(xxh3_64(value)));
        }
        (self.each)(Piece::Text(name.as_bytes())) && (self.each)(Piece::Text(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::BodyLimits;

    fn prompt(api: Api, body: &str) -> Prompt {
        let body = Envelope::parse(body.to_owned().into(), &BodyLimits::default()).unwrap();
        Prompt::of(api, body)
    }

    fn shared(a: &Prompt, b: &Prompt) -> usize {
        let (a, b) = (a.blocks(16), b.blocks(16));
        a.hashes.iter().zip(&b.hashes).take_while(|(a, b)| a == b).count()
    }

    fn chat(turns: &[&str]) -> Prompt {
        let turn = |t: &&str| format!(r#"{{"role":"user","content":"{t}"}}"#);
        let turns: Vec<_> = turns.iter().map(turn).collect();
        prompt(Api::Chat, &format!(r#"{{"model":"m","messages":[{}]}}"#, turns.join(",")))
    }

    #[test]
    fn the_next_turn_begins_as_the_last_one() {
        let (long, tail) = ("x".repeat(640), "y".repeat(640));
        let (a, b) = (chat(&[&long]), chat(&[&long, &tail]));
        assert_eq!((a.blocks(16).hashes.len(), shared(&a, &b)), (10, 10));
        assert!(b.blocks(16).hashes.len() > 19);
        assert_eq!(shared(&a, &chat(&[&tail, &long])), 0);
    }

    #[test]
    fn escapes_and_pieces_do_not_count() {
        let plain = prompt(Api::Completions, &format!(r#"{{"prompt":"{}"}}"#, "aé".repeat(100)));
        let escaped = prompt(Api::Completions, &format!(r#"{{"prompt":"{}"}}"#, r"\u0061é".repeat(100)));
        assert_eq!(plain.blocks(16), escaped.blocks(16));
        assert_eq!(plain.bytes(), 301);
        assert_eq!(plain.beginning(16), escaped.beginning(16));
    }

    #[test]
    fn heads_are_equal_up_to_where_prompts_part() {
        let at: Arc<[usize]> = Arc::new([16, 100, 300]);
        let (a, b) = (chat(&[&"x".repeat(600), "a"]), chat(&[&"x".repeat(600), "b"]));
        let (one, other) = (a.heads(&at), b.heads(&at));
        assert_eq!((one.hashes.len(), &*one.ends, one.bytes), (2, &[64, 400][..], a.bytes()));
        assert_eq!(one.hashes, other.hashes);
        assert_eq!((a.beginnings(&at), a.beginnings(&at[..1])), (one.hashes.clone(), one.hashes[..1].into()));
        assert_eq!([0, 1, 2, 3].map(|n| one.bytes_of(n)), [0, 64, 400, 400]);
        let longer = chat(&[&"x".repeat(600), &"a".repeat(700)]).heads(&at);
        assert_eq!((longer.hashes.len(), &longer.hashes[..2]), (3, &one.hashes[..]));
        // However the pieces come.
        let parts = ["x".repeat(30), "x".repeat(570)];
        let parts = parts.each_ref().map(|t| format!(r#"{{"type":"text","text":"{t}"}}"#)).join(",");
        let parts = prompt(Api::Chat, &format!(r#"{{"messages":[{{"role":"user","content":[{parts}]}}]}}"#));
        assert_eq!(parts.heads(&at).hashes.len(), 2);
        assert_eq!(a.heads(&at[..1].into()).hashes.len(), 1, "not what was kept");
        assert!(chat(&["hi"]).heads(&at).hashes.is_empty());
    }

    #[test]
    fn token_ids_are_told_apart_by_their_values() {
        let ids = |from: u32| {
            let ids: Vec<_> = (from..from + 64).map(|i| i.to_string()).collect();
            prompt(Api::Completions, &format!(r#"{{"prompt":[{}]}}"#, ids.join(",")))
        };
        let keys: std::collections::BTreeSet<_> = (0..200).map(|i| ids(i).beginning(256)).collect();
        assert_eq!((keys.len(), ids(1).bytes()), (200, 257));
        let listed = |a: &str| prompt(Api::Completions, &format!(r#"{{"prompt":["{a}","b"]}}"#));
        assert_ne!(listed("a").beginning(256), listed("aa").beginning(256));
        assert_eq!(listed("a").beginning(256), listed("a").beginning(256));
    }

    #[test]
    fn models_salts_and_adapters_share_nothing() {
        let of = |more: &str| {
            prompt(Api::Chat, &format!(r#"{{{more}"messages":[{{"content":"{}"}}]}}"#, "x".repeat(200)))
        };
        let all = ["", r#""model":"a","#, r#""model":"b","#, r#""cache_salt":"s","#, r#""lora_path":"s","#];
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                assert_eq!(shared(&of(a), &of(b)), if i == j { 3 } else { 0 }, "{a} {b}");
            }
        }
    }

    #[test]
    fn a_picture_is_one_word() {
        let with = |picture: &str| {
            let part = format!(r#"{{"type":"image_url","image_url":{{"url":"{picture}"}}}}"#);
            prompt(Api::Chat, &format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#))
        };
        let (a, b) = (with(&"A".repeat(100_000)), with(&"B".repeat(100_000)));
        assert!(a.bytes() < 100);
        assert_ne!(a.beginning(256), b.beginning(256));
    }

    #[test]
    fn nothing_is_hashed_past_the_limit_and_an_empty_prompt_has_no_beginning() {
        let long = chat(&[&"z".repeat(BLOCKS_MAX * 8)]);
        assert_eq!(long.blocks(1).hashes.len(), BLOCKS_MAX);
        assert!(long.blocks(1).bytes > (BLOCKS_MAX * 8) as u64);
        assert_eq!(prompt(Api::Chat, "{}").beginning(16), None);
        assert_eq!(prompt(Api::Generate, r#"{"text":null}"#).blocks(16).hashes.len(), 0);
    }
}
