//! vLLM on Neuron, AIBrix's `nixl`: the prefill runs first, untagged, and the decode gets the whole of its answer
//! as `disagg_prefill_resp` (AIBrix's page, `AIBRIX_KV_CONNECTOR_TYPE`). What is in it is between the engines.

use bytes::Bytes;

use super::deliver::{Deliver, Reading};
use super::nixl::{IN_TURN, hands_over};
use super::{Mint, Plan, shape};
use crate::ask::Ask;
use crate::body::{Edit, Envelope};
use crate::exchange::{Course, Handed};
use crate::fleet::Connector;
use crate::record::HandoffResult;

pub fn plan(ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let mut plan = Plan::decode_only(ask, Some(Connector::Neuron.mode()), mint);
    // A leg without a tag is refused for a thinking budget above its cap, see passthrough.rs.
    if hands_over(ask) && !ask.has.thinking {
        // What a second decode would do to the KV is not known, so nothing is released.
        plan.course = Course { release: false, ..IN_TURN };
        plan.deliver = Deliver::Neuron;
        plan.prefill.clone_from(&plan.decode);
        shape::one_token(ask, &mut plan.prefill);
    }
    plan
}

/// The prefill's answer, if it is one.
pub(super) fn read(answer: Option<&Envelope>) -> Reading {
    let Some(answer) = answer else {
        return Reading::nothing(HandoffResult::Invalid, Some("the prefill's answer is not a JSON object"));
    };
    let whole = Bytes::copy_from_slice(answer.bytes().trim_ascii());
    Reading {
        handed: Handed::Over,
        edits: vec![Edit::set("disagg_prefill_resp", whole)],
        ..Reading::nothing(HandoffResult::Relayed, None)
    }
}
