//! A generating request as both dialects understand it: what to read, how much to write, how to hand it over.

use std::sync::Arc;

use serde_json::Value;

use crate::engine::sequence::{Ending, KvState};
use crate::serve::json::Members;
use crate::serve::refusal::Refusal;
use crate::text::{self, Prompt, PromptId};

/// Which endpoint a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Completions,
    Chat,
    /// SGLang's native one.
    Generate,
    Messages,
    Responses,
    /// Scores documents. Works as a request that makes one token for each.
    Rerank,
}

impl Api {
    /// The endpoint of a path, if it is one that the engine works for.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/v1/completions" => Some(Self::Completions),
            "/v1/chat/completions" => Some(Self::Chat),
            "/generate" => Some(Self::Generate),
            "/v1/messages" => Some(Self::Messages),
            "/v1/responses" => Some(Self::Responses),
            "/v1/rerank" => Some(Self::Rerank),
            _ => None,
        }
    }
}

/// What the client wants.
#[derive(Debug)]
pub struct Wish {
    pub api: Api,
    pub model: String,
    /// The id that the answer shows.
    pub id: String,
    pub prompts: Vec<Arc<Prompt>>,
    /// `/generate` was given a list, so it answers a list.
    pub listed: bool,
    pub n: u32,
    pub stream: bool,
    /// A last chunk tells the usage.
    pub include_usage: bool,
    /// How many alternatives to tell for each token.
    pub logprobs: Option<u32>,
    /// `/generate`: tell the prompt's log probabilities from this token on.
    pub prompt_logprobs_from: Option<u32>,
    pub echo: bool,
    /// One for each prompt and choice, in the order of the answer's indexes.
    pub choices: Vec<Choice>,
    /// What a rerank request ranks.
    pub documents: Documents,
}

/// The documents of a rerank request.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    pub texts: Vec<String>,
    /// `top_n`.
    pub most: Option<usize>,
    /// They are told again in the answer (SGLang: `return_documents`).
    pub told: bool,
}

impl Documents {
    /// The documents, and the prompt that each makes with the query.
    pub fn read(members: &Members<'_>) -> Result<(Self, Vec<Arc<Prompt>>), Refusal> {
        let query = members.text("query")?.unwrap_or_default();
        let texts = members.texts("documents")?;
        if query.trim().is_empty() {
            return Err(Refusal::bad("Query cannot be empty".into(), None));
        }
        if texts.is_empty() {
            return Err(Refusal::bad("Documents cannot be empty".into(), None));
        }
        let prompts = texts.iter().map(|text| Prompt::from_text(text::pair_text(query, text))).collect();
        let most = members.int("top_n")?.and_then(|most| usize::try_from(most).ok()).filter(|most| *most > 0);
        let told = members.body.get("return_documents") != Some(&Value::Bool(false));
        Ok((Self { texts, most, told }, prompts))
    }
}

/// One answer to come.
#[derive(Clone, Debug)]
pub struct Choice {
    pub prompt: Arc<Prompt>,
    /// Which of the `n` choices of its prompt.
    pub number: u32,
    pub tokens: u32,
    pub ending: Ending,
    /// Where a stop string cuts the text, in bytes.
    cut: Option<usize>,
}

/// How long answers may be.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub max_tokens: u32,
    /// The model ends by itself here.
    pub natural: Option<u32>,
    pub stop: Vec<String>,
    pub keep_stop: bool,
}

impl Choice {
    #[must_use]
    pub fn new(prompt: Arc<Prompt>, number: u32, limits: &Limits) -> Self {
        let (tokens, ending) = match limits.natural {
            Some(natural) if natural < limits.max_tokens => (natural, Ending::Eos),
            _ => (limits.max_tokens, Ending::Length),
        };
        let mut choice = Self { prompt, number, tokens, ending, cut: None };
        choice.find_stop(limits);
        choice
    }

    /// The text is known beforehand, and so is where a stop string comes up in it.
    fn find_stop(&mut self, limits: &Limits) {
        if limits.stop.is_empty() {
            return;
        }
        let mut text = String::new();
        for index in 0..self.tokens {
            text.push_str(text::token_text(self.prompt.id, self.number, index));
            let first = limits.stop.iter().filter(|stop| !stop.is_empty());
            let first = first.filter_map(|stop| text.find(stop.as_str()).map(|at| (at, stop))).min();
            if let Some((at, stop)) = first {
                self.cut = Some(if limits.keep_stop { at + stop.len() } else { at });
                self.tokens = index + 1;
                self.ending = Ending::Stop(stop.clone());
                return;
            }
        }
    }

    /// Whose words the answer is made of: another prompt's when the KV was.
    fn source(&self, kv: KvState) -> PromptId {
        match kv {
            KvState::Right => self.prompt.id,
            KvState::Wrong => PromptId(text::mix(self.prompt.id.0, 1)),
            KvState::Stale => PromptId(text::mix(self.prompt.id.0, 2)),
        }
    }

    /// The score of a rerank request's document; below 0 when it was made from other KV than the prompt's.
    #[must_use]
    pub fn score(&self, kv: KvState) -> f64 {
        if kv == KvState::Right { text::score_of(self.prompt.id) } else { -1.0 }
    }

    /// The text of the tokens from `from` up to `to`.
    #[must_use]
    pub fn text(&self, from: u32, to: u32, kv: KvState) -> String {
        let source = self.source(kv);
        let mut out = String::new();
        if from == 0 && to > 0 {
            out.push_str(match kv {
                KvState::Right => "",
                KvState::Wrong => text::WRONG_MARK,
                KvState::Stale => text::STALE_MARK,
            });
        }
        let mut at = self.cut.map_or(0, |_| self.length_of(from, kv));
        for index in from..to {
            let piece = text::token_text(source, self.number, index);
            let end = self.cut.map_or(piece.len(), |cut| cut.saturating_sub(at).min(piece.len()));
            out.push_str(&piece[..end]);
            at += piece.len();
        }
        out
    }

    fn length_of(&self, tokens: u32, kv: KvState) -> usize {
        let source = self.source(kv);
        (0..tokens).map(|index| text::token_text(source, self.number, index).len()).sum()
    }

    /// One token: its text, its id and a made-up log probability.
    #[must_use]
    pub fn token(&self, index: u32) -> Token {
        let id = self.prompt.id;
        Token {
            text: text::token_text(id, self.number, index).into(),
            id: text::output_token(id, self.number, index),
            logprob: Some(text::token_logprob(id, self.number, index)),
        }
    }

    /// The prompt's tokens as `echo` shows them. The first one has no probability.
    #[must_use]
    pub fn prompt_tokens(&self) -> Vec<Token> {
        let texts = self.prompt.text.as_deref().map(text::pieces).unwrap_or_default();
        let tokens = self.prompt.tokens.iter().enumerate().map(|(at, id)| Token {
            text: texts.get(at).cloned().unwrap_or_else(|| format!(" t{id}")),
            id: *id,
            logprob: (at > 0).then(|| f64::from(*id % 4096) / -256.0),
        });
        tokens.collect()
    }

    /// The prompt as text, for `echo`.
    #[must_use]
    pub fn prompt_text(&self) -> String {
        self.prompt
            .text
            .clone()
            .unwrap_or_else(|| self.prompt_tokens().into_iter().map(|token| token.text).collect())
    }
}

/// One token as log probabilities show it.
#[derive(Clone, Debug)]
pub struct Token {
    pub text: String,
    pub id: u32,
    pub logprob: Option<f64>,
}

/// The prompts of a `prompt` or `text` member: a string, a list of strings, token ids, or a list of id lists.
/// The flag says whether it was a list of prompts.
pub fn read_prompts(members: &Members<'_>, name: &str) -> Result<(Vec<Arc<Prompt>>, bool), Refusal> {
    let value = members.needed(name)?;
    let ids = |items: &[Value]| -> Option<Vec<u32>> {
        items.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let prompts = match value {
        Value::String(text) => Some((vec![Prompt::from_text(text.clone())], false)),
        Value::Array(items) => match items.first() {
            Some(Value::Number(_)) => ids(items).map(|ids| (vec![Prompt::from_tokens(ids)], false)),
            Some(Value::String(_)) => {
                let texts = items.iter().map(|text| text.as_str().map(|text| Prompt::from_text(text.into())));
                texts.collect::<Option<Vec<_>>>().map(|prompts| (prompts, true))
            }
            Some(Value::Array(_)) => {
                let lists = items
                    .iter()
                    .map(|list| list.as_array().and_then(|list| ids(list)).map(Prompt::from_tokens));
                lists.collect::<Option<Vec<_>>>().map(|prompts| (prompts, true))
            }
            _ => None,
        },
        _ => None,
    };
    match prompts {
        Some((prompts, _)) if prompts.iter().any(|prompt| prompt.is_empty()) => {
            Err(Refusal::bad("The decoder prompt cannot be empty".into(), None))
        }
        Some(prompts) => Ok(prompts),
        None => {
            let input = crate::serve::json::python(value);
            let problem = crate::serve::refusal::Problem {
                kind: "string_type",
                text: "Input should be a valid string",
                input: &input,
            };
            Err(Refusal::schema(members.dialect, name, &problem))
        }
    }
}

/// The one prompt of a chat-like request.
pub fn chat_prompt(system: Option<&Value>, messages: &Value) -> Arc<Prompt> {
    Prompt::from_text(text::chat_text(&text::with_system(system, messages)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_tokens: u32, stop: &[&str]) -> Limits {
        let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
        Limits { max_tokens, natural: Some(256), stop, keep_stop: false }
    }

    #[test]
    fn an_answer_ends_by_length_by_itself_or_at_a_stop_string() {
        let prompt = Prompt::from_text("hello".into());
        let choice = Choice::new(prompt.clone(), 0, &limits(8, &[]));
        assert_eq!((choice.tokens, choice.ending), (8, Ending::Length));
        let choice = Choice::new(prompt.clone(), 0, &limits(999, &[]));
        assert_eq!((choice.tokens, choice.ending), (256, Ending::Eos));

        let third = text::token_text(prompt.id, 0, 2);
        let choice = Choice::new(prompt.clone(), 0, &limits(8, &[third]));
        assert_eq!((choice.tokens, &choice.ending), (3, &Ending::Stop(third.into())));
        assert_eq!(choice.text(0, 3, KvState::Right), text::expected_text(prompt.id, 2));
        assert_eq!(choice.text(2, 3, KvState::Right), "");
    }

    #[test]
    fn pieces_make_the_whole() {
        let prompt = Prompt::from_text("hello".into());
        let choice = Choice::new(prompt.clone(), 0, &limits(8, &[]));
        let pieces: String = (0..8).map(|at| choice.text(at, at + 1, KvState::Right)).collect();
        assert_eq!(pieces, text::expected_text(prompt.id, 8));
        assert!(choice.text(0, 8, KvState::Stale).starts_with(text::STALE_MARK));
        assert!(choice.text(0, 8, KvState::Wrong).starts_with(text::WRONG_MARK));
    }
}
