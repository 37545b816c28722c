//! A worker that runs both phases: the client's body as it is, less what is the gateway's.

use smallvec::smallvec;

use super::nixl::DECODE_ONLY;
use super::{Deliver, Plan, request_id, stripped};
use crate::ask::Ask;
use crate::dice::Dice;
use crate::exchange::Course;
use crate::fleet::Worker;
use crate::record::HandoffResult;

pub fn plan(_worker: &Worker, ask: &Ask, dice: &mut Dice) -> Plan {
    Plan {
        course: Course { whole: true, ..DECODE_ONLY },
        prefill: smallvec![],
        decode: stripped(ask),
        deliver: Deliver::Nothing,
        request_id: request_id(ask, dice),
        mode: None,
        result: HandoffResult::None,
    }
}
