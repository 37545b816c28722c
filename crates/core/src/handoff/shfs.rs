//! vLLM in AIBrix's words, `shfs`: NIXL's protocol as AIBrix speaks it.
//!
//! The tag spells out that nothing is known yet, and the decode is told the prefill's own address whatever the
//! prefill says of its host, because a pod may know itself by a name that the other does not (AIBrix's page,
//! `AIBRIX_KV_CONNECTOR_TYPE`). Answers of engines that leave members out are passed on as they are, unless
//! they claim to be a hand-off of NIXL's: then all of it must be right, since half of one ends a decode engine
//! (vLLM 0.32). Where AIBrix ends a request for an answer of the wrong type, the decode computes the prompt.

use bytes::Bytes;

use super::deliver::{Deliver, Reading};
use super::nixl::{self, IN_TURN, hands_over};
use super::{Mint, Plan, shape};
use crate::ask::Ask;
use crate::body::{BodyLimits, Edit, Envelope, scalar};
use crate::fleet::{Connector, Worker, host_of};
use crate::record::HandoffResult;

const TAG: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

pub fn plan(prefill: &Worker, ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let mut plan = Plan::decode_only(ask, Some(Connector::Shfs.mode()), mint);
    if hands_over(ask) {
        plan.course = IN_TURN;
        plan.deliver = Deliver::Shfs { host: address(prefill).to_owned() };
        plan.prefill.clone_from(&plan.decode);
        shape::one_token(ask, &mut plan.prefill);
        plan.prefill.push(Edit::set("kv_transfer_params", TAG));
    }
    plan
}

/// The pod's address, without the brackets of an IPv6 one.
fn address(prefill: &Worker) -> &str {
    let host = prefill.pod.as_ref().map_or_else(|| host_of(&prefill.url), |pod| &pod.ip);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// What the prefill returned, for the decode.
pub(super) fn read(params: Option<Bytes>, host: &str, limits: &BodyLimits) -> Reading {
    let Some(params) = params else {
        let why = "the prefill returned no kv_transfer_params";
        return Reading::nothing(HandoffResult::Missing, Some(why));
    };
    let Ok(object) = Envelope::parse(params, limits) else {
        return Reading::nothing(HandoffResult::Invalid, Some("kv_transfer_params is not an object"));
    };
    let params = object.splice(&[Edit::set_str("remote_host", host)]).to_bytes();
    let claims = object.get("do_remote_prefill").and_then(scalar::as_bool) == Some(true);
    match nixl::check(&params) {
        Err(why) if claims => Reading::nothing(HandoffResult::Invalid, Some(why)),
        _ => Reading::over(params),
    }
}
