//! A worker that runs both phases: the client's body as it is, less what is the gateway's.

use super::nixl::DECODE_ONLY;
use super::{Mint, Plan};
use crate::ask::Ask;
use crate::exchange::Course;
use crate::fleet::Worker;

pub fn plan(_worker: &Worker, ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let plan = Plan::decode_only(ask, None, mint);
    Plan { course: Course { whole: true, ..DECODE_ONLY }, ..plan }
}
