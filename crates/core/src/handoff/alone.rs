//! One leg and no hand-off: the client's body as it is, less what is the gateway's.
//!
//! Such a leg goes to a worker that runs both phases; to a prefill whose answer is in the prompt alone (a
//! count of its tokens); and, for a request that generates nothing and therefore leaves no KV worth moving
//! (rerank), to the decode of a vLLM pair. SMG 1.13 cuts that one down to a token as if it generated, and
//! takes the first of a list of results for the hand-off.

use super::nixl::DECODE_ONLY;
use super::{Mint, Plan};
use crate::ask::Ask;
use crate::exchange::Course;
use crate::fault::LegName;

pub fn plan(answers: LegName, ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let plan = Plan::decode_only(ask, None, mint);
    Plan { course: Course { answers, ..DECODE_ONLY }, ..plan }
}
