//! vLLM without a connector whose protocol is known here, and engines without a PD protocol of their own:
//! nothing is tagged, the prefill still runs first, and whatever `kv_transfer_params` it returns is
//! relayed (page, "Connector Modes"). A store connector works by that: the KV goes through the store.
//!
//! A thinking budget above the one-token cap is refused by a leg without a tag (vLLM 0.32), and without it the
//! prompt may be another one, so a request that has one goes to the decode alone.

use super::nixl::{IN_TURN, hands_over};
use super::{Deliver, Mint, Plan, shape};
use crate::ask::Ask;
use crate::exchange::Course;
use crate::fleet::Connector;

pub fn plan(connector: &Connector, ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let mut plan = Plan::decode_only(ask, Some(connector.mode()), mint);
    if hands_over(ask) && !ask.has.thinking {
        plan.course = Course { release: false, ..IN_TURN };
        plan.deliver = Deliver::Relay;
        plan.prefill.clone_from(&plan.decode);
        shape::one_token(ask, &mut plan.prefill);
    }
    plan
}
