//! How answers are written: one module for each API, both dialects in each.
//!
//! Members come in the engines' own order, with the members that they always send as `null`. Only numbers and text
//! differ from a recorded answer.

mod messages;
mod native;
mod openai;
mod rerank;
mod responses;

use crate::engine::message::PeerAddr;
use crate::engine::sequence::{Ending, Finish, Handoff, KvState};
use crate::engine::spec::{Connector, Dialect};
use crate::serve::json::quote;
use crate::serve::node::JobPart;
use crate::serve::refusal::Refusal;
use crate::serve::trtllm;
use crate::serve::wish::{Api, Wish};

/// How one choice ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub tokens: u32,
    pub kv: KvState,
    pub cached: u32,
    pub reason: Reason,
    pub handoff: Option<Handoff>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    Length,
    Eos,
    Stop(String),
    Abort,
}

impl Reason {
    /// The OpenAI name.
    fn name(&self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Eos | Self::Stop(_) => "stop",
            Self::Abort => "abort",
        }
    }

    /// The stop string that came up, as JSON.
    fn matched(&self) -> String {
        match self {
            Self::Stop(text) => quote(text),
            _ => "null".into(),
        }
    }
}

/// What an answer needs beside the choices.
#[derive(Debug)]
pub struct Teller {
    pub dialect: Dialect,
    pub connector: Connector,
    pub wish: Wish,
    /// Unix seconds.
    pub created: u64,
    /// First part of the engine's id, as in vLLM's `system_fingerprint`.
    pub fingerprint: String,
    /// Where hand-offs of this engine can be read.
    pub host: String,
    pub port: u16,
    /// MoRI-IO's port for handshakes.
    pub handshake: u16,
    /// The answer ends before it is finished (TensorRT-LLM's context servers).
    pub unfinished: bool,
    /// The answer names the prompt's token ids (vLLM).
    pub return_token_ids: bool,
    /// An SGLang decode engine has no log probabilities of the prompt.
    pub knows_prompt: bool,
}

/// Whether a part has ended, and how. An engine's error becomes what the engine would say.
pub fn ended(dialect: Dialect, part: &JobPart, tokens: u32) -> Option<Result<Ended, Refusal>> {
    let finish = part.finish.as_ref()?;
    Some(match finish {
        Finish::Ok { ending, kv, cached, handoff } => {
            let reason = match ending {
                Ending::Length => Reason::Length,
                Ending::Eos => Reason::Eos,
                Ending::Stop(text) => Reason::Stop(text.clone()),
            };
            Ok(Ended { tokens, kv: *kv, cached: *cached, reason, handoff: handoff.clone() })
        }
        Finish::Aborted => {
            Ok(Ended { tokens: part.tokens, kv: part.kv, cached: 0, reason: Reason::Abort, handoff: None })
        }
        Finish::Failed { message: Some(message), status } => Err(Refusal::abort(message.clone(), *status)),
        Finish::Failed { message: None, .. } if dialect == Dialect::Trtllm => {
            Err(Refusal::bad("Error in kv cache transfer for generation requests".into(), None))
        }
        Finish::Failed { message: None, .. } => Err(Refusal::internal()),
        Finish::Dead if dialect == Dialect::Vllm => Err(Refusal::core_died()),
        Finish::Dead => Err(Refusal::internal()),
    })
}

impl Teller {
    /// The whole answer.
    #[must_use]
    pub fn plain(&self, ended: &[Ended]) -> String {
        match self.wish.api {
            Api::Completions => openai::completion(self, ended),
            Api::Chat => openai::chat(self, ended),
            Api::Generate => native::generate(self, ended),
            Api::Messages => messages::message(self, ended),
            Api::Responses => responses::response(self, ended),
            Api::Rerank => rerank::ranking(self, ended),
        }
    }

    /// What a stream begins with, once the first token is there.
    #[must_use]
    pub fn opening(&self) -> Vec<String> {
        match self.wish.api {
            Api::Chat => openai::chat_opening(self),
            Api::Messages => messages::opening(self),
            Api::Responses => responses::opening(self),
            Api::Completions | Api::Generate | Api::Rerank => Vec::new(),
        }
    }

    /// The events for token `at` of choice `index`; `ended` when it is the choice's last one.
    #[must_use]
    pub fn token(&self, index: usize, at: u32, kv: KvState, ended: Option<&Ended>) -> Vec<String> {
        match self.wish.api {
            Api::Completions => openai::completion_token(self, index, (at, kv), ended),
            Api::Chat => openai::chat_token(self, index, (at, kv), ended),
            Api::Generate => native::token(self, index, (at, kv), ended),
            Api::Messages => messages::token(self, index, (at, kv), ended),
            Api::Responses => responses::token(self, index, (at, kv), ended),
            Api::Rerank => Vec::new(),
        }
    }

    /// What a stream ends with.
    #[must_use]
    pub fn closing(&self, ended: &[Ended]) -> Vec<String> {
        match self.wish.api {
            Api::Completions | Api::Chat => openai::closing(self, ended),
            Api::Generate => vec![DONE.into()],
            Api::Messages => messages::closing(self, ended),
            Api::Responses => responses::closing(self, ended),
            Api::Rerank => Vec::new(),
        }
    }

    /// How a stream tells an error.
    #[must_use]
    pub fn error(&self, refusal: &Refusal) -> Vec<String> {
        match self.wish.api {
            Api::Generate => vec![native::error(self, refusal), DONE.into()],
            Api::Messages => messages::error(self.dialect, refusal),
            _ => vec![refusal.event(self.dialect), DONE.into()],
        }
    }

    /// `kv_transfer_params` of the answer, as vLLM writes them; `null` when there is no hand-off.
    fn kv_params(&self, ended: &[Ended]) -> String {
        // Several prompts: the first one's. Several choices: the last one's. The others stay stranded, as in vLLM.
        let n = usize::try_from(self.wish.n).unwrap_or(1).max(1);
        let Some(handoff) = ended.get(n - 1).and_then(|ended| ended.handoff.as_ref()) else {
            return "null".into();
        };
        match self.connector {
            Connector::Nixl => self.nixl_json(handoff),
            // The gateway knows all that a decode engine must be told.
            Connector::Mooncake => "null".into(),
            Connector::MoriioRead | Connector::MoriioWrite => self.moriio_json(handoff),
        }
    }

    fn moriio_json(&self, handoff: &Handoff) -> String {
        let blocks = handoff.blocks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        format!(
            r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[{blocks}]],"remote_engine_id":{},"remote_host":{},"remote_handshake_port":{},"remote_notify_port":{},"remote_dp_rank":0,"remote_dp_rank_override":true,"remote_dp_size":1,"remote_dp_size_local":1,"tp_size":1,"transfer_id":{}}}"#,
            quote(&handoff.engine),
            quote(&self.host),
            self.handshake,
            self.port,
            quote(&handoff.request),
        )
    }

    /// `disaggregated_params` of a choice, as TensorRT-LLM writes them.
    fn context_params(&self, index: usize, ended: &Ended) -> String {
        let at = PeerAddr::new(&self.host, self.port);
        let known = ended.handoff.as_ref().zip(self.wish.choices.get(index));
        known.map_or("null".into(), |(handoff, choice)| trtllm::params(handoff, choice, &at))
    }

    /// The name of a reason to end.
    fn reason(&self, ended: &Ended) -> &'static str {
        if self.unfinished && ended.reason == Reason::Length { "not_finished" } else { ended.reason.name() }
    }

    fn nixl_json(&self, handoff: &Handoff) -> String {
        let blocks = handoff.blocks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let cached = handoff
            .cached
            .map_or(String::new(), |cached| format!(r#","remote_prefill_cached_tokens":{cached}"#));
        format!(
            r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[{blocks}]],"remote_engine_id":{},"remote_request_id":{},"remote_host":{},"remote_port":{},"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":{},"remote_blocks_expiry_time":null,"transfer_mode":"pull"{cached}}}"#,
            quote(&handoff.engine),
            quote(&handoff.request),
            quote(&self.host),
            self.port,
            handoff.tokens,
        )
    }

    /// Prompt and answer tokens of all choices.
    fn counts(&self, ended: &[Ended]) -> (u64, u64) {
        let prompt = self.wish.prompts.iter().map(|prompt| u64::from(prompt.len())).sum();
        let made = ended.iter().map(|ended| u64::from(ended.tokens)).sum();
        (prompt, made)
    }
}

/// The end mark of a stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// One event of a stream.
fn event(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 8);
    out.push_str("data: ");
    out.push_str(json);
    out.push_str("\n\n");
    out
}
