//! What does the prefill's answer give the decode leg?
//!
//! The other half of a hand-off: the plan says how the answer will be read, and this reads it. Whatever it
//! holds, the outcome is one of a few: KV was handed over and the decode is told so, or nothing was and
//! the decode computes the prompt itself, or the request has to end here.

use bytes::Bytes;

use super::{Edits, mooncake, moriio, neuron, nixl, shfs, trt};
use crate::body::{BodyLimits, Edit, Envelope, scalar};
use crate::exchange::Handed;
use crate::fault::Refusal;
use crate::fleet::Worker;
use crate::merge::{Form, PromptLogprobs};
use crate::record::HandoffResult;

/// How the decode leg learns of the prefill's KV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deliver {
    /// It was told up front, or there is nothing to tell.
    Nothing,
    /// NIXL: what the prefill returns is checked and relayed verbatim; nothing returned is a loss.
    Nixl,
    /// Another connector: whatever object the prefill returns is relayed; nothing returned is normal.
    Relay,
    /// MoRI-IO: what the prefill returns is checked, and without a right hand-off the request ends.
    Moriio(moriio::Due),
    /// Mooncake: the gateway tells the decode what this prefill would not; of the answer only its ending
    /// counts.
    Mooncake(mooncake::Due),
    /// AIBrix's `shfs`: what the prefill returns is relayed with the prefill's address in it.
    Shfs { host: String },
    /// Neuron: the whole of the answer goes to the decode.
    Neuron,
    /// TensorRT-LLM, in turn: the answer becomes the generation request's, or is the last word.
    Trt(trt::Due),
    /// TensorRT-LLM, at once: the generation leg was told; the context leg has to answer.
    TrtTold,
    /// SGLang: the prompt's log probabilities, which are put in front of the decode's.
    Logprobs(Form),
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
    /// To be put in front of what the decode answers.
    pub prompt: Option<PromptLogprobs>,
    /// What the client gets if this was the last word: a JSON object, or all events of a stream.
    pub answer: Option<Bytes>,
}

impl Deliver {
    /// Is the decode told something that the prefill's engine once said of itself? Then it must have said so
    /// since it began to serve, or it may be another engine by now.
    pub fn quotes_engine(&self) -> bool {
        matches!(self, Deliver::Mooncake(due) if due.is_live())
    }

    /// Does the decode refuse because of the KV that it was told of? Its own words say so; the request itself was
    /// taken by the prefill before, or is by then.
    pub fn lost_kv(&self, refusal: &Refusal) -> bool {
        matches!(self, Deliver::Trt(_) | Deliver::TrtTold) && trt::lost_kv(refusal)
    }

    /// What the prefill's answer gives the decode leg. `prefill` is what is known of the worker now.
    pub fn read(&self, answer: &Bytes, prefill: &Worker, limits: &BodyLimits) -> Reading {
        let read = || Envelope::parse(answer.clone(), limits).ok();
        match self {
            Deliver::Nothing => Reading::nothing(HandoffResult::None, None),
            Deliver::Nixl => nixl::read(params(read())),
            Deliver::Moriio(due) => due.read(params(read())),
            Deliver::Shfs { host } => shfs::read(params(read()), host, limits),
            Deliver::Neuron => neuron::read(read().as_ref()),
            Deliver::Relay => relayed(params(read())),
            Deliver::Mooncake(due) => due.read(read().as_ref(), prefill),
            Deliver::Trt(due) => due.read(read().as_ref(), limits),
            Deliver::TrtTold => trt::told(read().as_ref()),
            Deliver::Logprobs(form) => {
                let prompt = PromptLogprobs::read(*form, answer, limits);
                Reading { prompt, ..Reading::nothing(HandoffResult::Minted, None) }
            }
        }
    }
}

impl Reading {
    /// These parameters go to the decode.
    pub(super) fn over(params: Bytes) -> Reading {
        Reading {
            handed: Handed::Over,
            edits: vec![Edit::set("kv_transfer_params", params)],
            result: HandoffResult::Relayed,
            why: None,
            prompt: None,
            answer: None,
        }
    }

    /// The decode computes the prompt itself.
    pub(super) fn nothing(result: HandoffResult, why: Option<&'static str>) -> Reading {
        Reading { handed: Handed::Nothing, edits: Edits::new(), result, why, prompt: None, answer: None }
    }
}

/// What a vLLM prefill returned; null is nothing.
fn params(answer: Option<Envelope>) -> Option<Bytes> {
    answer?.get_bytes("kv_transfer_params").filter(|p| p.as_ref() != b"null")
}

fn relayed(params: Option<Bytes>) -> Reading {
    match params {
        None => Reading::nothing(HandoffResult::None, None),
        Some(params) if scalar::kind(&params) == scalar::Kind::Object => Reading::over(params),
        Some(_) => Reading::nothing(HandoffResult::Invalid, Some("kv_transfer_params is not an object")),
    }
}
