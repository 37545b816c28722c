//! vLLM without a connector whose protocol is known here, and engines without a PD protocol of their own:
//! nothing is tagged, the prefill still runs first, and whatever `kv_transfer_params` it returns is
//! relayed (page, "Connector Modes"). A store connector works by that: the KV goes through the store.

use smallvec::smallvec;

use super::nixl::{DECODE_ONLY, IN_TURN, hands_over};
use super::{Deliver, Plan, request_id, shape, stripped};
use crate::ask::Ask;
use crate::dice::Dice;
use crate::exchange::Course;
use crate::fleet::Connector;
use crate::record::HandoffResult;

pub fn plan(connector: &Connector, ask: &Ask, dice: &mut Dice) -> Plan {
    let decode = stripped(ask);
    let mut plan = Plan {
        course: DECODE_ONLY,
        prefill: smallvec![],
        decode,
        deliver: Deliver::Nothing,
        request_id: request_id(ask, dice),
        mode: Some(connector.mode()),
        result: HandoffResult::None,
    };
    if hands_over(ask) {
        plan.course = Course { release: false, ..IN_TURN };
        plan.deliver = Deliver::Relay;
        plan.prefill.clone_from(&plan.decode);
        shape::one_token(ask, &mut plan.prefill);
    }
    plan
}
