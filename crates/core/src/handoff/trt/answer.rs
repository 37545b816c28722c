//! What a context server's answer gives the generation leg.
//!
//! Its `disaggregated_params`, at the top or in the one choice, go over as they are but for the kind of request:
//! ids beyond 2^53 stay exact because they are never read as numbers. A generation server ends its whole
//! process on some that are wrong, so the ids must be there; where AIBrix ends the request for an answer
//! of the wrong type, the generation server computes the prompt itself. The prompt goes over in the token ids
//! that the context server made of it, so that both count the same tokens.

use bytes::Bytes;

use super::last;
use crate::ask::Api;
use crate::body::{BodyLimits, Edit, Envelope, scalar};
use crate::exchange::Handed;
use crate::fault::{Fault, LegName, Refusal};
use crate::handoff::deliver::Reading;
use crate::handoff::finish;
use crate::record::HandoffResult;

/// What is to become of the context server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Our id of the hand-off.
    pub(super) id: u64,
    pub(super) api: Api,
    pub(super) stream: bool,
    /// The client wants usage at the end of its stream.
    pub(super) usage: bool,
}

impl Due {
    pub(in crate::handoff) fn read(&self, answer: Option<&Envelope>, limits: &BodyLimits) -> Reading {
        let invalid = |why| Reading::nothing(HandoffResult::Invalid, Some(why));
        let Some(answer) = answer else { return invalid("the context server's answer is not a JSON object") };
        if let Some(told) = self.is_last(answer).then(|| last::told(self, answer)).flatten() {
            return Reading {
                handed: Handed::Final,
                answer: Some(told),
                ..Reading::nothing(HandoffResult::None, None)
            };
        }
        let params = match find(answer) {
            None => {
                let why = "the context server returned no disaggregated_params";
                return Reading::nothing(HandoffResult::Missing, Some(why));
            }
            Some(params) => Envelope::parse(Bytes::copy_from_slice(params), limits),
        };
        let Ok(params) = params else { return invalid("disaggregated_params is not an object") };
        match self.edits(answer, &params) {
            Err(why) => invalid(why),
            Ok(edits) => {
                let over = Reading::nothing(HandoffResult::Relayed, None);
                Reading { handed: Handed::Over, edits, ..over }
            }
        }
    }

    /// The first token ended the answer: there is nothing left to generate.
    fn is_last(&self, answer: &Envelope) -> bool {
        let choice = finish::first_choice(answer);
        let reason = choice.and_then(|c| scalar::member(c, "finish_reason")).and_then(scalar::as_str);
        reason.is_some_and(|reason| reason != "length" && reason != "not_finished")
    }

    fn edits(&self, answer: &Envelope, params: &Envelope) -> Result<Vec<Edit>, &'static str> {
        if scalar::array_len(answer.get("choices").unwrap_or_default()).is_some_and(|n| n > 1) {
            return Err("the context server's answer has several choices");
        }
        if params.get("ctx_request_id").and_then(scalar::as_u64).is_none() {
            return Err("ctx_request_id is missing or no id");
        }
        let mut changes = vec![Edit::set("request_type", &br#""generation_only""#[..])];
        match params.get("disagg_request_id") {
            Some(id) if scalar::as_u64(id).is_some() => {}
            Some(id) if scalar::kind(id) != scalar::Kind::Null => return Err("disagg_request_id is no id"),
            _ => changes.push(Edit::set_u64("disagg_request_id", self.id)),
        }
        let told = params.splice(&changes).to_bytes();
        let mut edits = vec![Edit::set("disaggregated_params", told)];
        let ids = answer.get_bytes("prompt_token_ids");
        if let Some(ids) = ids.filter(|ids| scalar::kind(ids) == scalar::Kind::Array) {
            let prompt = if self.api == Api::Completions { "prompt" } else { "prompt_token_ids" };
            edits.push(Edit::set(prompt, ids));
        }
        Ok(edits)
    }
}

/// At the top, or in the first choice; null is nothing.
fn find(answer: &Envelope) -> Option<&[u8]> {
    let some = |params: &&[u8]| scalar::kind(params) != scalar::Kind::Null;
    let inside = || scalar::member(finish::first_choice(answer)?, "disaggregated_params");
    answer.get("disaggregated_params").filter(some).or_else(|| inside().filter(some))
}

/// A generation server tells of KV that did not come as of a bad request (TensorRT-LLM 1.3.0rc).
pub(in crate::handoff) fn lost_kv(refusal: &Refusal) -> bool {
    refusal.message.to_ascii_lowercase().contains("kv cache transfer")
}

/// Of a context leg whose generation leg was told up front only this counts: whether it answered.
pub(in crate::handoff) fn told(answer: Option<&Envelope>) -> Reading {
    let minted = Reading::nothing(HandoffResult::Minted, None);
    match answer {
        Some(_) => minted,
        None => {
            let cause = "it is not a JSON object".to_owned();
            let fault = Fault::Broken { leg: LegName::Prefill, cause };
            Reading { handed: Handed::Dead(fault), result: HandoffResult::Invalid, ..minted }
        }
    }
}
