//! One sequence: a prompt and the tokens that follow it. A request with `n` choices or several prompts is several.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::engine::blocks::BlockId;
use crate::engine::message::PeerAddr;
use crate::text::Prompt;

/// Numbers sequences within one engine.
pub type SeqId = u64;

/// What a sequence is asked to do.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The engine's internal request id (vLLM shows it as `remote_request_id`, SGLang as `rid`).
    pub name: String,
    /// The request that this sequence belongs to; its siblings share a hand-off.
    pub parent: String,
    pub prompt: Arc<Prompt>,
    /// How many tokens to make, at least one.
    pub tokens: u32,
    /// Why it ends there.
    pub ending: Ending,
    pub part: Part,
    /// Whether somebody reads token by token; otherwise only the end is reported.
    pub watched: bool,
    /// The prompt's own log probabilities are wanted: the whole prompt is computed here, whatever is cached.
    pub whole_prompt: bool,
}

/// Which part of a pair's work a sequence is.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Everything happens here.
    Local,
    /// vLLM `do_remote_decode`: keep the blocks for a decode engine, under this name.
    Hold(String),
    /// vLLM `do_remote_prefill`: fetch the KV first.
    Pull(RemoteKv),
    /// Send the KV to whoever asks for it by a transfer id.
    Give(Give),
    /// Ask for KV by a transfer id, and wait until it has come.
    Take(Take),
    /// Nothing is fetched, and the answer is made as if the KV were there.
    Hollow,
    /// The connector's code ends the engine core over it.
    Fatal(&'static str),
    /// SGLang: meet the other half in a room. `at` is where the prefill side's bootstrap server listens.
    Room { room: u64, at: PeerAddr },
}

/// The prefill side of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Give {
    pub transfer: String,
    /// Which data-parallel rank computes it.
    pub rank: u32,
    /// It is computed only when somebody has asked for it.
    pub waits: bool,
    /// Who alone may have it: where that engine says it listens.
    pub to: Option<PeerAddr>,
}

/// The decode side of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub transfer: String,
    /// The engine that is to have it; `None` is whichever listens there.
    pub engine: Option<String>,
    /// `None`: nobody is asked, and it is waited for all the same.
    pub at: Option<PeerAddr>,
    /// Where this engine listens, for one that must know who asks.
    pub from: Option<PeerAddr>,
    /// The prefill side's token comes along and is the first one here.
    pub first: bool,
}

/// `kv_transfer_params` of a vLLM decode leg, as far as the connector reads them.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RemoteKv {
    pub engine: Option<String>,
    pub request: Option<String>,
    pub at: Option<PeerAddr>,
    /// Where the notice goes that it was read; `None` is the same place.
    pub notify: Option<PeerAddr>,
    pub blocks: RemoteBlocks,
    pub tp_size: u32,
}

#[derive(Clone, Debug, PartialEq, Default)]
pub enum RemoteBlocks {
    #[default]
    Missing,
    /// As many as this, and not numbers.
    NotNumbers(usize),
    Ids(Vec<u32>),
}

impl RemoteBlocks {
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Missing => 0,
            Self::NotNumbers(count) => *count,
            Self::Ids(ids) => ids.len(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl RemoteKv {
    /// Reads the object as the connector does: what is not there is simply not there.
    #[must_use]
    pub fn parse(params: &Map<String, Value>) -> Self {
        let text = |key: &str| params.get(key).and_then(Value::as_str).map(str::to_owned);
        let port =
            params.get("remote_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let at = text("remote_host").zip(port).map(|(host, port)| PeerAddr::new(&host, port));
        let tp_size =
            params.get("tp_size").and_then(Value::as_u64).and_then(|tp| u32::try_from(tp).ok()).unwrap_or(1);
        let blocks = params.get("remote_block_ids").map_or(RemoteBlocks::Missing, parse_blocks);
        Self {
            engine: text("remote_engine_id"),
            request: text("remote_request_id"),
            at,
            notify: None,
            blocks,
            tp_size,
        }
    }
}

/// A list of lists (one per KV cache group), a flat list (older builds), or something else that Python would iterate.
pub fn parse_blocks(value: &Value) -> RemoteBlocks {
    let Some(outer) = value.as_array() else {
        let count = value.as_str().map_or(0, |text| text.chars().count());
        return if count == 0 { RemoteBlocks::Missing } else { RemoteBlocks::NotNumbers(count) };
    };
    let group = match outer.first() {
        None => return RemoteBlocks::Missing,
        Some(Value::Array(group)) => group,
        Some(Value::String(text)) => return RemoteBlocks::NotNumbers(text.chars().count()),
        Some(_) => outer,
    };
    let ids: Option<Vec<u32>> =
        group.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    match ids {
        Some(ids) if ids.is_empty() => RemoteBlocks::Missing,
        Some(ids) => RemoteBlocks::Ids(ids),
        None => RemoteBlocks::NotNumbers(group.len()),
    }
}

/// What the prompt's KV was made from, and with it the whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvState {
    #[default]
    Right,
    /// Another prompt's KV, or none at all where some was counted on.
    Wrong,
    /// A hand-off that nobody protected any more.
    Stale,
}

/// Why a sequence has as many tokens as it has.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    Length,
    /// The model ended by itself.
    Eos,
    /// A stop string came up.
    Stop(String),
}

/// How a sequence ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// As it was asked to. `handoff` is what a vLLM prefill leg passes on.
    Ok { ending: Ending, kv: KvState, cached: u32, handoff: Option<Handoff> },
    /// The client or the gateway left.
    Aborted,
    /// The engine gave up with its own message (SGLang) or none (vLLM's internal error).
    Failed { message: Option<String>, status: u16 },
    /// The engine core died.
    Dead,
}

/// What a prefill leg answers for its decode leg.
#[derive(Clone, Debug, PartialEq)]
pub struct Handoff {
    pub engine: String,
    pub request: String,
    pub blocks: Vec<BlockId>,
    pub tokens: u32,
    /// Prompt tokens found in the prefix cache; present when one token was made.
    pub cached: Option<u32>,
}

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// SGLang prefill: no decode side in the room yet. Holds no blocks.
    Meeting,
    /// In the queue; holds no blocks.
    Waiting,
    /// Holds blocks and waits for KV from the other half.
    Receiving,
    /// In the batch.
    Running,
    /// SGLang prefill: computed, the transfer runs.
    Sending,
    /// vLLM decode with broken parameters: never answers.
    Stuck,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub ask: Ask,
    pub state: State,
    /// Hash of the prompt up to the end of each block.
    pub chain: Vec<u64>,
    pub blocks: Vec<BlockId>,
    /// Tokens that need no computing any more.
    pub computed: u32,
    /// Tokens to compute before the next token comes: the prompt, after a preemption also what was made.
    pub target: u32,
    /// Prompt tokens found in the local prefix cache.
    pub cached: u32,
    /// Prompt tokens that came from the other half.
    pub pulled: u32,
    /// Tokens made.
    pub made: u32,
    pub kv: KvState,
    /// Nobody waits any more; ends as soon as what it is in the middle of has ended.
    pub left: bool,
    /// SGLang prefill: the decode side that joined, if any.
    pub partner: Option<Partner>,
    /// The timer that is running for it.
    pub timer: Option<TimerKey>,
    pub times: Times,
}

/// When things happened to a sequence, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub arrived: Duration,
    pub started: Duration,
    pub first_token: Duration,
    pub last_token: Duration,
}

/// A decode side that waits in a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partner {
    pub link: u64,
    pub ticket: SeqId,
}

/// A running timer: when, and a number that makes it unique.
pub(crate) type TimerKey = (Duration, u64);

impl Sequence {
    pub fn new(ask: Ask, chain: Vec<u64>, now: Duration) -> Self {
        Self {
            target: ask.prompt.len(),
            ask,
            state: State::Waiting,
            chain,
            blocks: Vec::new(),
            computed: 0,
            cached: 0,
            pulled: 0,
            made: 0,
            kv: KvState::Right,
            left: false,
            partner: None,
            timer: None,
            times: Times { arrived: now, ..Times::default() },
        }
    }

    /// Prompt and answer so far, in tokens.
    pub fn context(&self) -> u32 {
        self.ask.prompt.len().saturating_add(self.made)
    }

    /// Whether tokens are left to compute before the next one comes.
    pub fn in_prefill(&self) -> bool {
        self.computed < self.target
    }

    /// The transfer id under which its KV goes out.
    pub fn gives(&self) -> Option<&Give> {
        match &self.ask.part {
            Part::Give(give) => Some(give),
            _ => None,
        }
    }

    pub fn room(&self) -> Option<(u64, &PeerAddr)> {
        match &self.ask.part {
            Part::Room { room, at } => Some((*room, at)),
            _ => None,
        }
    }
}
