//! One leg and no hand-off: the client's body as it is, less what is the gateway's.
//!
//! Such a leg goes to a worker that runs both phases; to a prefill whose answer is in the prompt alone (a
//! count of its tokens); and, for a request that generates nothing and therefore leaves no KV worth moving
//! (rerank), to the decode of a vLLM pair. SMG 1.13 cuts that one down to a token as if it generated, and
//! takes the first of a list of results for the hand-off.

use super::nixl::DECODE_ONLY;
use super::{Mint, Plan, sglang};
use crate::ask::Ask;
use crate::exchange::Course;
use crate::fault::LegName;
use crate::fleet::{Engine, Worker};

pub fn plan(answers: LegName, worker: &Worker, ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let mut plan = Plan::decode_only(ask, None, mint);
    plan.course = Course { answers, ..DECODE_ONLY };
    if worker.engine == Engine::Sglang {
        plan.decode.extend(sglang::routed(worker));
    }
    plan
}
