//! TensorRT-LLM: `context_first` in turn, `generation_first` both at once.
//!
//! One id for both legs, minted by the gateway. In turn the context server's answer names the KV
//! (`disaggregated_params`) and the prompt in token ids, and both become members of the generation request.
//! At once the generation request is told up front where the KV will be, from what the context server says
//! of itself in `/server_info`; without that no leg is sent (AIBrix's page, "TensorRT-LLM Parallel
//! Scheduling"). The answer then waits for the context server's, which is done before the first token can
//! come, so that a context leg that fails is told as what it is.
//!
//! The engine takes one prompt and one sample for each hand-off, on the two OpenAI routes that have one;
//! everything else goes to the generation server alone, which then computes the prompt too.

mod answer;
mod last;
mod snowflake;

pub use answer::Due;
pub(super) use answer::{lost_kv, told};

use super::deliver::Deliver;
use super::nixl::{IN_TURN, hands_over};
use super::{Mint, Plan, quoted, shape};
use crate::ask::{Api, Ask};
use crate::body::Edit;
use crate::exchange::{Course, Order, Start};
use crate::fault::Fault;
use crate::fleet::Worker;
use crate::record::HandoffResult;

/// Labels under which a context server's word of `/server_info` is kept.
pub const CTX_INFO_ENDPOINT: &str = "ctx_info_endpoint";
pub const CTX_DP_RANK: &str = "ctx_dp_rank";
pub const OPAQUE_STATE: &str = "encoded_opaque_state";

/// `AIBRIX_TRT_SCHEDULE_STYLE` and `AIBRIX_TRT_MACHINE_ID`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrtRule {
    /// Both legs at once; else the context leg first.
    pub generation_first: bool,
    /// Tells this gateway's ids from those of others that share its workers: below 1024.
    pub machine: u16,
}

const AT_ONCE: Course = Course {
    order: Order::Together,
    start: Start::PrefillEnd,
    release: false,
    reads_prefill: true,
    by_name: false,
    ..IN_TURN
};

/// # Errors
/// The context server has not said where its KV can be fetched.
pub fn plan(context: &Worker, ask: &Ask, rule: TrtRule, mint: &mut Mint<'_>) -> Result<Plan, Fault> {
    let mut plan = Plan::decode_only(ask, None, mint);
    if !hands_over(ask) || !matches!(ask.api, Api::Chat | Api::Completions) {
        return Ok(plan);
    }
    let id = snowflake::id(mint.unix_ms, rule.machine, mint.number());
    plan.prefill.clone_from(&plan.decode);
    shape::one_token(ask, &mut plan.prefill);
    // One cap, in the older spelling: the only one that every context server knows.
    plan.prefill.extend([Edit::remove("max_completion_tokens"), Edit::set("max_tokens", &b"1"[..])]);
    let mut context_params = format!(r#"{{"request_type":"context_only","disagg_request_id":{id}"#);
    if rule.generation_first {
        context_params += r#","schedule_style":1"#;
        plan.decode.push(Edit::set("disaggregated_params", generation_params(context, id)?));
        plan.course = AT_ONCE;
        plan.deliver = Deliver::TrtTold;
        plan.result = HandoffResult::Minted;
    } else {
        plan.course = IN_TURN;
        plan.deliver =
            Deliver::Trt(Due { id, api: ask.api, stream: ask.stream, usage: ask.has.stream_options });
    }
    plan.prefill.push(Edit::set("disaggregated_params", context_params + "}"));
    Ok(plan)
}

/// What the generation server is told before the context server has computed anything.
fn generation_params(context: &Worker, id: u64) -> Result<String, Fault> {
    let rank = context.label(CTX_DP_RANK).and_then(|rank| rank.parse::<u64>().ok());
    let (Some(endpoint), Some(rank)) = (context.label(CTX_INFO_ENDPOINT), rank) else {
        return Err(Fault::TrtContext);
    };
    let mut params = format!(
        r#"{{"request_type":"generation_only","disagg_request_id":{id},"ctx_request_id":{id},"schedule_style":1,"ctx_info_endpoint":{},"ctx_dp_rank":{rank}"#,
        quoted(endpoint)
    );
    if let Some(state) = context.label(OPAQUE_STATE) {
        params += &format!(r#","encoded_opaque_state":{}"#, quoted(state));
    }
    Ok(params + "}")
}
