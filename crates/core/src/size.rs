//! How many tokens is a prompt, and how well is that known?
//!
//! In this order: the client sent token ids, which are counted; an engine was asked, and told them
//! ([`crate::tokenize`]); the model's tokenizer is at hand, and counts the text;
//! or the text is divided by the bytes that a token of this model took so far, which engines tell with every answer
//! ([`Ratios`]); and while none has answered, by [`TOKEN_BYTES`]. What a chat template puts around messages is in the
//! learnt ratio and in no other count: a few tokens for each message.
//!
//! Tokenising takes about a second for a few megabytes, on the thread that serves other requests too. So no more than
//! [`EXACT_BYTES`] of a text are tokenised, and what is longer is worked out from its beginning.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::body::{Envelope, scalar};
use crate::prompt::{Piece, Prompt, TOKEN_BYTES};
use crate::sse::Usage;

/// Bytes of one text that are tokenised.
pub const EXACT_BYTES: usize = 128 << 10;

/// Models whose ratio is kept. Others count as unknown.
pub const MODELS_MAX: usize = 256;

/// Places that a model's name may stand at in the table.
const PROBES: usize = 16;

/// Prompts shorter than this are mostly template.
const LEARN_TOKENS: u64 = 32;

/// A token takes no fewer and no more bytes than this, whatever an engine says.
const BOUNDS: (f32, f32) = (0.25, 32.0);

/// One report moves the estimate by so much of their distance at least.
const STEP: f32 = 1.0 / 64.0;

/// After so many reports one in [`SAMPLE`] is enough.
const KNOWN: u32 = 256;
const SAMPLE: u32 = 16;

/// How a size was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// The client sent token ids.
    Ids,
    /// An engine was asked, and told the tokens.
    Engine,
    /// The tokenizer counted all of the text.
    Tokenizer,
    /// The tokenizer counted the beginning of a long text.
    Beginning,
    /// By bytes, as the engines' counts say for this model.
    Learnt,
    /// By bytes, as if it were English.
    Assumed,
}

impl How {
    pub const ALL: [How; 6] =
        [How::Ids, How::Engine, How::Tokenizer, How::Beginning, How::Learnt, How::Assumed];

    pub fn as_str(self) -> &'static str {
        match self {
            How::Ids => "token ids",
            How::Engine => "the engine's /tokenize",
            How::Tokenizer => "tokenizer",
            How::Beginning => "tokenizer, beginning only",
            How::Learnt => "learnt ratio",
            How::Assumed => "assumed ratio",
        }
    }

    /// No estimate.
    pub fn is_exact(self) -> bool {
        matches!(self, How::Ids | How::Engine | How::Tokenizer)
    }
}

/// A prompt's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub tokens: u64,
    pub how: How,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens ({})", self.tokens, self.how.as_str())
    }
}

/// A model's way to cut text into tokens.
pub trait Tokenizer: fmt::Debug + Send + Sync {
    /// How many tokens the text is, without what an engine puts in front.
    fn count(&self, text: &str) -> usize;

    /// The tokens that an engine makes of a prompt of this text, with what it puts in front. `None`: it cannot say.
    fn encode(&self, text: &str) -> Option<Vec<u32>>;

    /// The tokens that an engine makes of the conversation in this body, by the model's chat template.
    ///
    /// # Errors
    /// Why it cannot say.
    fn chat(&self, _: &Envelope) -> Result<Vec<u32>, Unknown> {
        Err("the model's chat template is not at hand".into())
    }
}

/// Why a prompt's tokens are not known.
pub type Unknown = Cow<'static, str>;

/// Whether engines count what a chat template makes. One that was started with another template, or reads a
/// member of a request in another way, would make other tokens, and nothing that it tells would be found.
///
/// Each prompt of another size counts as much as [`Doubt::WRONG`] of the same. Past [`Doubt::LIMIT`] the template is
/// not used, but for one prompt in about so many as a wrong one counts.
#[derive(Debug, Default)]
struct Doubt(AtomicU32);

impl Doubt {
    const WRONG: u32 = 64;
    const LIMIT: u32 = 96;
    const MOST: u32 = 192;

    fn counted(&self, same: bool) {
        let next = |doubt: u32| match same {
            true => doubt.saturating_sub(1),
            false => (doubt + Doubt::WRONG).min(Doubt::MOST),
        };
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |doubt| Some(next(doubt)));
    }

    /// Is it believed for this prompt?
    fn passes(&self) -> bool {
        let less = |doubt: u32| (doubt >= Doubt::LIMIT).then(|| doubt - 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
    }
}

/// A doubt for each way in which a prompt comes to be messages ([`Prompt::way`]).
#[derive(Debug, Default)]
struct Doubts([Doubt; 3]);

impl Doubts {
    fn about(&self, prompt: &Prompt) -> &Doubt {
        &self.0[prompt.way()]
    }
}

/// A tokenizer, and the model that it is of; without a name, every model that has none of its own.
#[derive(Debug)]
struct Own {
    model: Option<String>,
    tokenizer: Arc<dyn Tokenizer>,
    doubts: Doubts,
}

/// A model whose prompts its engines are asked about; without a name, every model of which nothing else is said.
#[derive(Debug)]
struct Asks {
    model: Option<String>,
    doubts: Doubts,
}

/// All that is known of how models count.
#[derive(Debug, Default)]
pub struct Measure {
    pub ratios: Ratios,
    /// Reports so far.
    turn: AtomicU32,
    tokenizers: Vec<Own>,
    /// Models whose engines are asked.
    asks: Vec<Asks>,
}

static DEFAULT: LazyLock<Measure> = LazyLock::new(Measure::default);

impl Measure {
    pub fn new(tokenizers: Vec<(Option<String>, Arc<dyn Tokenizer>)>) -> Measure {
        let own = |(model, tokenizer)| Own { model, tokenizer, doubts: Doubts::default() };
        Measure { tokenizers: tokenizers.into_iter().map(own).collect(), ..Measure::default() }
    }

    /// Engines of these models are asked what they make of a prompt; `None` stands for every model that has no
    /// tokenizer of its own.
    pub fn asking(self, models: impl IntoIterator<Item = Option<String>>) -> Measure {
        let asks = models.into_iter().map(|model| Asks { model, doubts: Doubts::default() }).collect();
        Measure { asks, ..self }
    }

    /// Is an engine to be asked about this prompt? Not if the client sent its tokens.
    pub fn asks(&self, prompt: &Prompt) -> bool {
        if self.asks.is_empty() || prompt.bare().is_some_and(|raw| scalar::kind(raw) == scalar::Kind::Array) {
            return false;
        }
        let asks = self.asks_of(prompt.model().as_deref());
        asks.is_some_and(|asks| asks.doubts.about(prompt).passes())
    }

    fn asks_of(&self, model: Option<&str>) -> Option<&Asks> {
        let of = |name: Option<&str>| self.asks.iter().find(|asks| asks.model.as_deref() == name);
        let has_own =
            || self.tokenizers.iter().any(|own| own.model.is_some() && own.model.as_deref() == model);
        model.and_then(|model| of(Some(model))).or_else(|| of(None).filter(|_| !has_own()))
    }

    pub(crate) fn or_default(own: Option<&Measure>) -> &Measure {
        own.unwrap_or(&DEFAULT)
    }

    /// The tokenizer of this model, if it is at hand.
    pub fn tokenizer(&self, model: Option<&str>) -> Option<&Arc<dyn Tokenizer>> {
        self.own(model).map(|own| &own.tokenizer)
    }

    fn own(&self, model: Option<&str>) -> Option<&Own> {
        let of = |name: Option<&str>| self.tokenizers.iter().find(|own| own.model.as_deref() == name);
        model.and_then(|model| of(Some(model))).or_else(|| of(None))
    }

    /// The engine has counted a prompt: the ratio of its model follows. Once it is well known, most reports are let
    /// go by, because the text must be walked to know its length.
    pub fn learn(&self, prompt: &Prompt, usage: &Usage) {
        let Some(model) = prompt.model() else { return };
        // Anthropic's count leaves out what was cached.
        let cached = usage.cached_tokens.filter(|_| prompt.leaves_out_cached()).unwrap_or(0);
        let counted = usage.prompt_tokens.saturating_add(cached);
        if let (Some(made), Some(own)) = (prompt.templated(), self.own(Some(&model))) {
            own.doubts.about(prompt).counted(made as u64 == counted);
        }
        if let (Some(Ok(told)), Some(asks)) = (prompt.told(), self.asks_of(Some(&model))) {
            asks.doubts.about(prompt).counted(told.len() as u64 == counted);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        if self.ratios.reports(&model) >= KNOWN && !turn.is_multiple_of(SAMPLE) {
            return;
        }
        if let (0, bytes) = weigh(prompt) {
            self.ratios.learn(&model, bytes, counted);
        }
    }

    pub(crate) fn size(&self, prompt: &Prompt) -> Size {
        if let Some(Ok(told)) = prompt.told() {
            return Size { tokens: told.len() as u64, how: How::Engine };
        }
        let (model, (ids, bytes)) = (prompt.model(), weigh(prompt));
        if bytes == 0 {
            return Size { tokens: ids, how: How::Ids };
        }
        if let Some(tokenizer) = self.tokenizer(model.as_deref()) {
            let (text, all) = beginning(prompt);
            let counted = tokenizer.count(&text) as u64;
            let (tokens, how) = match all {
                true => (counted, How::Tokenizer),
                false => (scale(counted, bytes, text.len() as u64), How::Beginning),
            };
            return Size { tokens: ids + tokens, how };
        }
        match model.and_then(|model| self.ratios.bytes_per_token(&model)) {
            Some(ratio) => {
                let tokens = (bytes as f64 / f64::from(ratio)).ceil() as u64;
                Size { tokens: ids + tokens, how: How::Learnt }
            }
            None => Size { tokens: ids + bytes.div_ceil(TOKEN_BYTES as u64), how: How::Assumed },
        }
    }

    pub(crate) fn ids(&self, prompt: &Prompt) -> Result<Arc<[u32]>, Unknown> {
        if let Some(Ok(told)) = prompt.told() {
            return Ok(told.clone());
        }
        let none = || match prompt.told() {
            Some(Err(why)) => Unknown::from(format!("no engine said: {why}")),
            _ => "the model's tokenizer is not at hand".into(),
        };
        let own = || self.own(prompt.model().as_deref()).ok_or_else(none);
        if let Some(body) = prompt.conversation() {
            let (body, own) = (body?, own()?);
            if !own.doubts.about(prompt).passes() {
                return Err("engines count other prompts than the chat template makes".into());
            }
            return own.tokenizer.chat(body).map(Arc::from);
        }
        let raw = prompt.bare().ok_or("what engines make of this API's prompts is not known")?;
        match scalar::kind(raw) {
            scalar::Kind::Array => {
                let id = |item| scalar::as_u64(item).and_then(|id| u32::try_from(id).ok());
                let ids: Option<_> = scalar::elements(raw).map(id).collect();
                ids.ok_or_else(|| "it is several prompts".into())
            }
            scalar::Kind::String => {
                // An escape makes a text shorter, never longer.
                let text = scalar::as_str(raw).filter(|text| text.len() <= EXACT_BYTES);
                let text = text.ok_or("the prompt is too long to be tokenised")?;
                let ids = own()?.tokenizer.encode(&text);
                ids.map(Arc::from).ok_or_else(|| "the tokenizer is no engine's".into())
            }
            _ => Err("there is no prompt".into()),
        }
    }
}

/// Token ids, and bytes of text.
fn weigh(prompt: &Prompt) -> (u64, u64) {
    let (mut ids, mut bytes) = (0, 0);
    prompt.pieces(&mut |piece| {
        match piece {
            Piece::Id(_) => ids += 1,
            Piece::Text(text) => bytes += text.len() as u64,
            Piece::Mark(_) => {}
            Piece::Other(_) => bytes += 8,
        }
        true
    });
    (ids, bytes)
}

/// The text up to what is tokenised, and whether that is all of it. Parts stand on lines of their own.
fn beginning(prompt: &Prompt) -> (String, bool) {
    let (mut text, mut all) = (Vec::new(), true);
    prompt.pieces(&mut |piece| {
        match piece {
            Piece::Text(more) => {
                let room = EXACT_BYTES - text.len();
                all = more.len() <= room;
                text.extend_from_slice(&more[..more.len().min(room)]);
            }
            Piece::Mark(_) if !text.is_empty() && text.len() < EXACT_BYTES => text.push(b'\n'),
            Piece::Mark(_) | Piece::Id(_) | Piece::Other(_) => {}
        }
        all
    });
    (String::from_utf8_lossy(&text).into_owned(), all)
}

fn scale(part: u64, whole_bytes: u64, part_bytes: u64) -> u64 {
    let tokens = u128::from(part) * u128::from(whole_bytes) / u128::from(part_bytes.max(1));
    u64::try_from(tokens).unwrap_or(u64::MAX)
}

/// Bytes that a token takes, for each model, learnt from what engines count.
///
/// Two atomics for each model at a place that its name's hash says: neither reading nor learning locks. One report in
/// error moves an estimate by no more than half of a doubling's step, so that it takes many to spoil it.
#[derive(Debug)]
pub struct Ratios(Box<[Kept; MODELS_MAX]>);

#[derive(Debug, Default)]
struct Kept {
    /// The hash of the model's name; 0: nobody's place.
    model: AtomicU64,
    /// The estimate's bits, and in the upper half how many reports it is made of.
    state: AtomicU64,
}

impl Default for Ratios {
    fn default() -> Self {
        Ratios(Box::new(std::array::from_fn(|_| Kept::default())))
    }
}

impl Ratios {
    /// `None` while no engine has counted a prompt of this model.
    pub fn bytes_per_token(&self, model: &str) -> Option<f32> {
        let (estimate, reports) = self.state(model);
        (reports > 0).then_some(estimate)
    }

    /// How many reports it is made of.
    fn reports(&self, model: &str) -> u32 {
        self.state(model).1
    }

    fn state(&self, model: &str) -> (f32, u32) {
        let name = name(model);
        let kept = self.places(name).find(|kept| kept.model.load(Ordering::Acquire) == name);
        kept.map_or((0.0, 0), |kept| unpack(kept.state.load(Ordering::Acquire)))
    }

    /// An engine counted so many tokens in a prompt of so many bytes.
    pub fn learn(&self, model: &str, bytes: u64, tokens: u64) {
        if tokens < LEARN_TOKENS || bytes == 0 {
            return;
        }
        let (name, seen) = (name(model), bytes as f32 / tokens as f32);
        let own = |kept: &&Kept| {
            let taken = kept.model.compare_exchange(0, name, Ordering::AcqRel, Ordering::Acquire);
            taken.is_ok() || taken == Err(name)
        };
        let Some(kept) = self.places(name).find(own) else { return };
        let next = |state: u64| {
            let (estimate, reports) = unpack(state);
            Some(pack(follow(estimate, reports, seen), reports.saturating_add(1)))
        };
        // A lost race loses one report.
        let _ = kept.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    fn places(&self, name: u64) -> impl Iterator<Item = &Kept> {
        (0..PROBES).filter_map(move |step| self.0.get((name as usize).wrapping_add(step) % MODELS_MAX))
    }
}

fn name(model: &str) -> u64 {
    xxh3_64(model.as_bytes()).max(1)
}

/// The mean at first, a slow average later; no report counts for more than twice or less than half of what is known.
fn follow(estimate: f32, reports: u32, seen: f32) -> f32 {
    let seen = seen.clamp(BOUNDS.0, BOUNDS.1);
    if reports == 0 {
        return seen;
    }
    let seen = seen.clamp(estimate / 2.0, estimate * 2.0);
    let step = (1.0 / (reports as f32 + 1.0)).max(STEP);
    (estimate.ln() + step * (seen.ln() - estimate.ln())).exp()
}

fn pack(estimate: f32, reports: u32) -> u64 {
    u64::from(reports) << 32 | u64::from(estimate.to_bits())
}

fn unpack(state: u64) -> (f32, u32) {
    (f32::from_bits(state as u32), (state >> 32) as u32)
}

#[cfg(test)]
mod tests;
