//! What do the legs say?
//!
//! One file an engine and connector: `(pair, ask, mint) -> Plan`, and `prefill answer -> decode edits`.
//! Everything that an engine must be told so that the KV really moves is decided here and nowhere else;
//! the driver carries a [`Plan`] out without knowing whose it is. A new engine is one file here, one arm
//! of [`plan`], one golden transcript, one dialect of the simulator.
//!
//! Ids (rooms, transfer ids, request ids) come from the [`Mint`], fresh for every attempt, never from client
//! input.

mod alone;
mod blocks;
mod deliver;
mod finish;
mod mint;
mod mooncake;
mod moriio;
mod neuron;
mod nixl;
mod passthrough;
mod proof;
mod rules;
mod sglang;
mod shape;
mod shfs;
mod trt;

pub use deliver::{Deliver, Reading};
pub use mint::Mint;
pub use mooncake::engine_ids;
pub use proof::{KvCount, Proof, Seen, proof};
pub use rules::Rules;
pub use trt::{CTX_DP_RANK, CTX_INFO_ENDPOINT, OPAQUE_STATE, TrtRule};

use bytes::Bytes;

use crate::ask::Ask;
use crate::body::{BodyLimits, Edit};
use crate::dice::Dice;
use crate::exchange::{Course, Leg, Order};
use crate::fault::{Fault, LegName, read_refusal};
use crate::fleet::{Connector, Engine, Role, Worker};
use crate::record::HandoffResult;

pub type Edits = Vec<Edit>;

/// A hand-off made concrete for one attempt of one request.
#[derive(Clone, Debug)]
pub struct Plan {
    pub course: Course,
    /// Edits of the client's body for the prefill leg. Unused by a single plan.
    pub prefill: Edits,
    /// Edits of the client's body for the answering leg, to which the prefill's answer adds its own.
    pub decode: Edits,
    pub deliver: Deliver,
    /// The id both engines get in `X-Request-Id`, so that their logs can be told together.
    pub request_id: String,
    /// The name under which the engine can be asked to abort the request, where it takes one.
    pub abort_rid: Option<String>,
    /// The data-parallel rank that a leg asks for in `X-data-parallel-rank`, by [`Leg`].
    pub ranks: [Option<u32>; 2],
    /// `mode` of `smg_pd_kv_connector_mode_total`, for plans that have one.
    pub mode: Option<&'static str>,
    /// What is known of the hand-off before any leg has answered.
    pub result: HandoffResult,
}

/// The workers of a placement.
#[derive(Clone, Copy, Debug)]
pub enum Pair<'a> {
    Whole(&'a Worker),
    /// A prefill that only reads the prompt.
    Prefill(&'a Worker),
    Legs {
        prefill: &'a Worker,
        decode: &'a Worker,
    },
}

/// The plan for this request on these workers.
///
/// # Errors
/// These workers cannot serve this request, and no leg must be sent.
pub fn plan(pair: Pair<'_>, ask: &Ask, rules: &Rules, mint: &mut Mint<'_>) -> Result<Plan, Fault> {
    let mut plan = match pair {
        Pair::Whole(worker) => alone::plan(LegName::Whole, worker, ask, mint),
        Pair::Prefill(worker) => alone::plan(LegName::Prefill, worker, ask, mint),
        Pair::Legs { prefill, decode } if is_moriio(prefill) || is_moriio(decode) => {
            moriio::plan(prefill, decode, ask, mint)?
        }
        Pair::Legs { prefill, decode } => match (prefill.engine, rules.connector(prefill)) {
            (Engine::Vllm | Engine::Generic | Engine::Trtllm, _) if !ask.api.generates() => {
                alone::plan(LegName::Decode, decode, ask, mint)
            }
            (Engine::Vllm, Connector::Nixl) => nixl::plan(ask, mint),
            (Engine::Vllm, Connector::Shfs) => shfs::plan(prefill, ask, mint),
            (Engine::Vllm, Connector::Neuron) => neuron::plan(ask, mint),
            (Engine::Vllm, Connector::Mooncake) => mooncake::plan(prefill, ask, mint),
            (Engine::Trtllm, _) => trt::plan(prefill, ask, rules.trt, mint)?,
            (Engine::Vllm | Engine::Generic, connector) => passthrough::plan(&connector, ask, mint),
            (Engine::Sglang | Engine::Tokenspeed | Engine::Unspecified, _) => {
                sglang::plan(prefill, decode, ask, mint)
            }
        },
    };
    plan.pin(pair);
    Ok(plan)
}

/// A decode of this kind never goes without its hand-off, whatever the prefill is (page, "MoRI-IO").
fn is_moriio(worker: &Worker) -> bool {
    worker.engine == Engine::Vllm && worker.connector() == Some(Connector::Moriio)
}

impl Plan {
    /// One leg, to the worker that answers: the client's body without what is the gateway's.
    fn decode_only(ask: &Ask, mode: Option<&'static str>, mint: &mut Mint<'_>) -> Plan {
        Plan {
            course: nixl::DECODE_ONLY,
            prefill: Edits::new(),
            decode: stripped(ask),
            deliver: Deliver::Nothing,
            request_id: request_id(ask, mint.dice),
            abort_rid: None,
            ranks: [None; 2],
            mode,
            result: HandoffResult::None,
        }
    }

    /// The prefill has answered: the decode leg is told what that gives it. `prefill` is what is known of the worker now.
    pub fn hears(&mut self, answer: &Bytes, prefill: &Worker, limits: &BodyLimits) -> Reading {
        let mut reading = self.deliver.read(answer, prefill, limits);
        self.decode.append(&mut reading.edits);
        reading
    }

    /// An engine refused the leg.
    pub fn refused(&self, leg: Leg, status: u16, body: &[u8], retry_after: Option<String>) -> Fault {
        let alone = self.course.order == Order::InTurn || self.mode.is_some();
        let mut refusal = read_refusal(status, body, retry_after, alone);
        refusal.lost_kv = leg == Leg::Decode && self.deliver.lost_kv(&refusal);
        Fault::Refused { leg: self.course.name(leg), refusal }
    }

    /// A worker that is one rank of a vLLM engine gets its requests by the rank's number.
    fn pin(&mut self, pair: Pair<'_>) {
        let (prefill, answering) = match pair {
            Pair::Whole(worker) | Pair::Prefill(worker) => (None, worker),
            Pair::Legs { prefill, decode } => (Some(prefill), decode),
        };
        for (leg, worker) in [(Leg::Prefill, prefill), (Leg::Decode, Some(answering))] {
            let slot = &mut self.ranks[leg as usize];
            *slot = slot.or(worker.and_then(rank));
        }
    }
}

/// Where a prefill worker tells the ids of its running engines, if its hand-off needs them: a URL that
/// answers [`engine_ids`].
pub fn engine_ids_url(worker: &Worker, rules: &Rules) -> Option<String> {
    let needs = worker.role == Role::Prefill && worker.engine == Engine::Vllm;
    (needs && rules.connector(worker) == Connector::Mooncake)
        .then(|| format!("{}/query", mooncake::bootstrap(worker)))
}

/// The rank by whose number a worker that is one of several of its engine gets its requests.
pub fn rank(worker: &Worker) -> Option<u32> {
    worker.dp_rank.filter(|_| worker.engine == Engine::Vllm)
}

/// The body that consumes a hand-off nobody wants any more: the decode leg's, capped at one token and not
/// streamed (design: *release*). A thinking budget above that cap would be refused with the KV still held
/// (vLLM 0.32), so it goes.
pub fn release_edits(ask: &Ask, decode: &Edits) -> Edits {
    let mut edits = decode.clone();
    shape::one_token(ask, &mut edits);
    if ask.has.thinking {
        edits.push(Edit::remove("thinking"));
    }
    edits
}

/// A fresh id for the engines, such as `chatcmpl-` and 24 letters and digits.
fn request_id(ask: &Ask, dice: &mut Dice) -> String {
    dice.id(ask.api.id_prefix())
}

/// The client's body without the members that are the gateway's.
fn stripped(ask: &Ask) -> Edits {
    ask.strip.clone()
}

/// A text as JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
