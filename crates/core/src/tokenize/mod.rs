//! What does an engine make of this prompt? Asked of its own `/tokenize`.
//!
//! vLLM and SGLang have that route and read the same question: a text as `prompt`, or a conversation as `messages` with
//! what its chat template heeds (vLLM 0.32, SGLang 0.5.23; TensorRT-LLM has none). Only what both of them make of it as
//! they would of the request itself is asked; anything else has a reason why not.
//!
//! Here stand the question, how its answer is read, whom to ask ([`whom`], [`Standing`]) and what is remembered of
//! answers ([`Memo`]). That a policy wants to know says [`Strategies::counts`], that an engine may be asked
//! [`Measure::asks`], and the asking is the shell's.
//!
//! [`Strategies::counts`]: crate::place::Strategies::counts
//! [`Measure::asks`]: crate::size::Measure::asks

mod memo;
mod standing;

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_128;

pub use memo::{AGE, Memo, PROMPTS_MAX, TOKENS_MAX};
pub use standing::{REST, ROUTE_REST, Standing};

use crate::ask::Api;
use crate::body::{BodyLimits, Envelope, scalar};
use crate::dice::Dice;
use crate::fleet::{Fleet, Seat};
use crate::size::{EXACT_BYTES, Unknown};
use crate::time::{Duration, Instant};

/// Every engine's route.
pub const PATH: &str = "/tokenize";

/// Longest question, in bytes. Engines tokenise in the process that serves their other requests too.
pub const QUESTION_MAX_BYTES: usize = 1 << 20;

/// Longest answer that is read, in bytes.
pub const ANSWER_MAX_BYTES: usize = 8 << 20;

/// A token is no less than a byte of the question, and takes no more than eight of the answer.
const TOKEN_BYTES: usize = 8;

/// What a chat template may add, and what else an engine says.
const ANSWER_BESIDES_BYTES: usize = 512 << 10;

/// Deepest nesting of an answer, and its members.
const SHAPE: BodyLimits = BodyLimits { max_bytes: ANSWER_MAX_BYTES, max_depth: 4, max_members: 64 };

/// Members of a conversation that go into the question as they are.
const CHAT: [&str; 7] = [
    "messages",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
];

/// Members that change the prompt, and of which not every engine's `/tokenize` knows.
const REFUSED: [&str; 14] = [
    "chat_template",
    "documents",
    "reasoning_effort",
    "reasoning",
    "truncate_prompt_tokens",
    "prompt_embeds",
    "input_embeds",
    "input_ids",
    "image_data",
    "audio_data",
    "video_data",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "suffix",
];

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub body: Bytes,
    /// The same for the same question.
    pub key: u128,
}

impl Question {
    /// Longest answer that is read. An engine that tells many tokens of a short prompt has gone astray, and all that it
    /// says would have to be read between other requests.
    pub fn answer_max_bytes(&self) -> usize {
        ANSWER_MAX_BYTES.min(ANSWER_BESIDES_BYTES + TOKEN_BYTES * self.body.len())
    }

    /// Does this end say anything of the worker? A long prompt may well take too long on one that is well, and clients
    /// must not be able to keep all workers from being asked.
    pub fn judges(&self, outcome: Outcome) -> bool {
        outcome != Outcome::Late || self.body.len() <= EXACT_BYTES
    }
}

/// How the asking ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The engine told the tokens.
    Counted,
    /// It had told them a moment ago, of the same prompt.
    Kept,
    /// Not asked: nobody could be sure of the answer, or it is too long.
    Unaskable,
    /// Not asked: as many are asked as may be.
    Busy,
    /// Not asked: no worker that serves the model is well and has the route.
    Nobody,
    /// The engine has no such route, or does not let the gateway use it.
    NoRoute,
    /// It refused the prompt.
    Refused,
    Late,
    /// It could not be reached, or failed.
    Failed,
    /// What it answered is no answer.
    Unusable,
}

impl Outcome {
    pub const ALL: [Outcome; 10] = [
        Outcome::Counted,
        Outcome::Kept,
        Outcome::Unaskable,
        Outcome::Busy,
        Outcome::Nobody,
        Outcome::NoRoute,
        Outcome::Refused,
        Outcome::Late,
        Outcome::Failed,
        Outcome::Unusable,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Counted => "counted",
            Outcome::Kept => "kept",
            Outcome::Unaskable => "unaskable",
            Outcome::Busy => "busy",
            Outcome::Nobody => "nobody",
            Outcome::NoRoute => "no_route",
            Outcome::Refused => "refused",
            Outcome::Late => "late",
            Outcome::Failed => "failed",
            Outcome::Unusable => "unusable",
        }
    }

    /// Why the engine's count is not known.
    pub fn why(self) -> &'static str {
        match self {
            Outcome::Counted | Outcome::Kept => "it is",
            Outcome::Unaskable => "not every engine would tell it",
            Outcome::Busy => "as many are asked as may be",
            Outcome::Nobody => "no worker that can be asked is well",
            Outcome::NoRoute => "the engine has no /tokenize",
            Outcome::Refused => "the engine refused the prompt",
            Outcome::Late => "no answer in time",
            Outcome::Failed => "the engine failed",
            Outcome::Unusable => "its answer is unusable",
        }
    }

    /// An answer other than 200. A route that is not there and a model that is not both are 404: of a model, engines
    /// say so in an error of their own (vLLM 0.32: `{"error":{...}}`; a route: `{"detail":"Not Found"}`).
    pub fn of_status(status: u16, body: &[u8]) -> Outcome {
        let own_words = || scalar::members(body).any(|(name, _)| matches!(&*name, "error" | "object"));
        match status {
            404 if own_words() => Outcome::Refused,
            401 | 403 | 404 | 405 | 501 => Outcome::NoRoute,
            400..=499 => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }
}

/// One asking, for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub outcome: Outcome,
    /// How long the engine took, where one was asked.
    pub took: Option<Duration>,
}

/// The question about this request's prompt.
///
/// # Errors
/// Why it is not asked.
pub fn question(api: Api, body: &Envelope) -> Result<Question, Unknown> {
    let member = |name: &str| body.get(name).filter(|raw| scalar::kind(raw) != scalar::Kind::Null);
    if let Some(name) = REFUSED.into_iter().find(|name| member(name).is_some()) {
        return Err(format!("the request has {name}").into());
    }
    let mut members: SmallVec<[(&str, &[u8]); 8]> = SmallVec::new();
    members.extend(member("model").map(|model| ("model", model)));
    match api {
        Api::Chat => {
            let messages = member("messages").ok_or("there is no prompt")?;
            only_text(messages)?;
            members.extend(CHAT.into_iter().filter_map(|name| Some((name, member(name)?))));
        }
        Api::Completions | Api::Generate => {
            let name = if api == Api::Generate { "text" } else { "prompt" };
            let prompt = member(name).ok_or("there is no prompt")?;
            if scalar::kind(prompt) != scalar::Kind::String {
                return Err("it is several prompts".into());
            }
            members.push(("prompt", prompt));
            members.extend(member("add_special_tokens").map(|flag| ("add_special_tokens", flag)));
        }
        Api::Messages | Api::Responses | Api::CountTokens | Api::Rerank => {
            return Err("what engines make of this API's prompts is not known".into());
        }
    }
    let bytes: usize = members.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    if bytes > QUESTION_MAX_BYTES {
        return Err(format!("its question would be longer than {QUESTION_MAX_BYTES} bytes").into());
    }
    let mut text = Vec::with_capacity(bytes + 1);
    for (name, value) in members {
        text.extend_from_slice(if text.is_empty() { b"{\"" } else { b",\"" });
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"\":");
        text.extend_from_slice(value);
    }
    text.push(b'}');
    Ok(Question { key: xxh3_128(&text), body: text.into() })
}

/// A picture would be fetched by the engine, and how many tokens it is nobody need know for that.
fn only_text(messages: &[u8]) -> Result<(), Unknown> {
    let is_text = |part: &[u8]| {
        let kind = scalar::member(part, "type").and_then(scalar::as_str);
        kind.is_none_or(|kind| matches!(&*kind, "text" | "refusal" | "thinking"))
    };
    let contents = scalar::elements(messages).filter_map(|message| scalar::member(message, "content"));
    match contents.flat_map(scalar::elements).find(|part| !is_text(part)) {
        None => Ok(()),
        Some(_) => Err("a message has a part that is no text".into()),
    }
}

/// The tokens that an engine told: foreign bytes, of which nothing is believed that does not fit together.
///
/// # Errors
/// What is wrong with them.
pub fn read(answer: Bytes) -> Result<Arc<[u32]>, &'static str> {
    let answer = Envelope::parse(answer, &SHAPE).map_err(|_| "no JSON object of the right size")?;
    answer.refuse_repeated(&["tokens", "count"]).map_err(|_| "a member stands twice")?;
    let tokens = answer.get("tokens").filter(|raw| scalar::kind(raw) == scalar::Kind::Array);
    let tokens = tokens.ok_or("there is no list of tokens")?;
    let id = |raw| scalar::as_u64(raw).and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = scalar::elements(tokens).map(id).collect();
    let ids = ids.ok_or("a token is no number")?;
    match answer.get("count").and_then(scalar::as_u64) {
        Some(count) if count == ids.len() as u64 => Ok(ids.into()),
        _ => Err("the count is not that of the tokens"),
    }
}

/// A worker to ask: any that serves the model, is well and is not known to have nothing to say. By chance, so that
/// all have their share of the work.
pub fn whom<'f>(
    fleet: &'f Fleet,
    model: Option<&str>,
    now: Instant,
    dice: &mut Dice,
) -> Option<&'f Arc<Seat>> {
    let fits = |seat: &&Arc<Seat>| {
        seat.worker.serves(model) && seat.pulse.available(now) && !seat.standing.rests(now)
    };
    let mut all: SmallVec<[&Arc<Seat>; 16]> = fleet.seats().filter(fits).collect();
    while !all.is_empty() {
        let seat = all.swap_remove(dice.below(all.len()));
        if seat.standing.enter(now) {
            return Some(seat);
        }
    }
    None
}

#[cfg(test)]
mod tests;
