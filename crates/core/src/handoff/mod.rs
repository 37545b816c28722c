//! What do the legs say?
//!
//! One file an engine and connector: `(pair, ask, dice) -> Plan`, and `prefill answer -> decode edits`.
//! Everything that an engine must be told so that the KV really moves is decided here and nowhere else;
//! the driver carries a [`Plan`] out without knowing whose it is. A new engine is one file here, one arm
//! of [`plan`], one golden transcript, one dialect of the simulator.
//!
//! Ids (rooms, request ids) are minted from the dice, fresh for every attempt, never from client input.

mod nixl;
mod passthrough;
mod sglang;
mod shape;
mod whole;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use crate::ask::Ask;
use crate::body::{BodyLimits, Edit, Envelope, scalar};
use crate::dice::Dice;
use crate::exchange::{Course, Handed};
use crate::fleet::{Connector, Engine, Worker};
use crate::record::HandoffResult;

pub type Edits = SmallVec<[Edit; 8]>;

/// A hand-off made concrete for one attempt of one request.
#[derive(Clone, Debug)]
pub struct Plan {
    pub course: Course,
    /// Edits of the client's body for the prefill leg. Unused by a single plan.
    pub prefill: Edits,
    /// Edits of the client's body for the answering leg, before the prefill's answer adds its own.
    pub decode: Edits,
    pub deliver: Deliver,
    /// The id both engines get in `X-Request-Id`, so that their logs can be told together.
    pub request_id: String,
    /// `mode` of `smg_pd_kv_connector_mode_total`, for plans that have one.
    pub mode: Option<&'static str>,
    /// What is known of the hand-off before any leg has answered.
    pub result: HandoffResult,
}

/// How the decode leg learns of the prefill's KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deliver {
    /// It was told up front, or there is nothing to tell.
    Nothing,
    /// NIXL: what the prefill returns is checked and relayed verbatim; nothing returned is a loss.
    Nixl,
    /// Another connector: whatever object the prefill returns is relayed; nothing returned is normal.
    Relay,
}

/// The prefill's answer, read.
#[derive(Clone, Debug)]
pub struct Reading {
    pub handed: Handed,
    /// Further edits of the decode leg.
    pub edits: Edits,
    pub result: HandoffResult,
    /// Why nothing was handed over, for the log.
    pub why: Option<&'static str>,
}

/// The workers of a placement.
#[derive(Clone, Copy, Debug)]
pub enum Pair<'a> {
    Whole(&'a Worker),
    Legs { prefill: &'a Worker, decode: &'a Worker },
}

/// The plan for this request on these workers.
pub fn plan(pair: Pair<'_>, ask: &Ask, dice: &mut Dice) -> Plan {
    match pair {
        Pair::Whole(worker) => whole::plan(worker, ask, dice),
        Pair::Legs { prefill, decode: _ } => match (prefill.engine, prefill.connector()) {
            (Engine::Vllm, Connector::Nixl) => nixl::plan(ask, dice),
            (Engine::Vllm | Engine::Generic | Engine::Trtllm, connector) => {
                passthrough::plan(&connector, ask, dice)
            }
            (Engine::Sglang | Engine::Tokenspeed | Engine::Unspecified, _) => {
                sglang::plan(prefill, ask, dice)
            }
        },
    }
}

/// The body that consumes a hand-off nobody wants any more: the decode leg's, capped at one token and not
/// streamed (design: *release*).
pub fn release_edits(ask: &Ask, decode: &Edits) -> Edits {
    let mut edits = decode.clone();
    shape::one_token(ask, &mut edits);
    edits
}

impl Deliver {
    /// What the prefill's answer gives the decode leg.
    pub fn read(self, answer: &Bytes, limits: &BodyLimits) -> Reading {
        let nothing = |result, why| Reading { handed: Handed::Nothing, edits: smallvec![], result, why };
        if self == Deliver::Nothing {
            return nothing(HandoffResult::None, None);
        }
        let params =
            Envelope::parse(answer.clone(), limits).ok().and_then(|env| env.get_bytes("kv_transfer_params"));
        match (self, params.filter(|p| p.as_ref() != b"null")) {
            (Deliver::Nixl, None) => {
                nothing(HandoffResult::Missing, Some("the prefill returned no kv_transfer_params"))
            }
            (_, None) => nothing(HandoffResult::None, None),
            (Deliver::Nixl, Some(params)) => match nixl::check(&params) {
                Ok(()) => over(params),
                Err(why) => nothing(HandoffResult::Invalid, Some(why)),
            },
            (_, Some(params)) if scalar::kind(&params) == scalar::Kind::Object => over(params),
            (_, Some(_)) => nothing(HandoffResult::Invalid, Some("kv_transfer_params is not an object")),
        }
    }
}

fn over(params: Bytes) -> Reading {
    Reading {
        handed: Handed::Over,
        edits: smallvec![Edit::set("kv_transfer_params", params)],
        result: HandoffResult::Relayed,
        why: None,
    }
}

/// A fresh id for the engines, such as `chatcmpl-` and 24 letters and digits.
fn request_id(ask: &Ask, dice: &mut Dice) -> String {
    let mut id = String::with_capacity(34);
    id.push_str(ask.api.id_prefix());
    id.extend(dice.id24().iter().map(|b| char::from(*b)));
    id
}

/// The client's body without the members that are the gateway's.
fn stripped(ask: &Ask) -> Edits {
    ask.strip.iter().cloned().collect()
}
