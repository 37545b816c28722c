//! vLLM with MoRI-IO (AMD): READ in turn, WRITE in turn or both legs at once.
//!
//! A MoRI-IO decode never computes a prompt itself: without a valid hand-off it answers over KV that never
//! came (READ) or waits for a push that never comes (WRITE). So nothing is sent to it unless the hand-off
//! is right, and what cannot have one is refused before either leg is contacted (page, "MoRI-IO"): first
//! the pair, then the route, then requests that would share one hand-off, then request ids that the
//! connector would read as a peer's address. Of that the page is the source where SMG 1.13 differs: several
//! data-parallel ranks are refused, `remote_dp_size` is always 1.
//!
//! The connector hands over only when the prefill ends at its one-token cap, so the prefill leg loses its
//! stops. READ: the decode pulls what the prefill's answer names. WRITE: the prefill pushes to the decode,
//! whose address it is told; in turn the decode is told by the prefill's answer, at once by the labels of the
//! prefill worker, and then the answer must name the same ports before the client sees anything.

mod answer;
mod side;

pub use answer::Due;

use side::Side;

use super::deliver::Deliver;
use super::nixl::IN_TURN;
use super::{Mint, Plan, quoted, shape};
use crate::ask::{Api, Ask};
use crate::body::Edit;
use crate::exchange::{Course, Order, Start};
use crate::fault::Fault;
use crate::fleet::Worker;
use crate::record::HandoffResult;

/// The prefill's answer is judged before the client's begins.
const AT_ONCE: Course = Course {
    order: Order::Together,
    start: Start::PrefillEnd,
    release: false,
    reads_prefill: true,
    by_name: false,
    ..IN_TURN
};

/// # Errors
/// The pair or the request cannot be served, in the order above.
pub fn plan(prefill: &Worker, decode: &Worker, ask: &Ask, mint: &mut Mint<'_>) -> Result<Plan, Fault> {
    let (from, to) = side::pair(prefill, decode).map_err(|reason| Fault::MoriioPair { reason })?;
    check(ask)?;
    let mut plan = Plan::decode_only(ask, Some("moriio"), mint);
    let transfer = format!("tx-{}", mint.uuid7());
    plan.prefill.clone_from(&plan.decode);
    shape::one_token(ask, &mut plan.prefill);
    plan.prefill.extend([
        Edit::set("ignore_eos", &b"true"[..]),
        Edit::remove("stop"),
        Edit::remove("stop_token_ids"),
        Edit::set("kv_transfer_params", params(Way::ToDecode, &transfer, &to)),
    ]);
    // What was told to write to one decode's blocks must not be asked for by another: it would write over what that one
    // keeps there. So WRITE is neither handed to another decode nor released by one; its push is given up by the engine.
    plan.course = Course { release: !to.write, ..IN_TURN };
    let mut told = None;
    if to.write && to.concurrent {
        plan.course = AT_ONCE;
        plan.decode.push(Edit::set("kv_transfer_params", params(Way::FromPrefill, &transfer, &from)));
        plan.result = HandoffResult::Minted;
        told = Some((from.handshake, from.notify));
    }
    plan.deliver = Deliver::Moriio(Due { transfer, told });
    Ok(plan)
}

fn check(ask: &Ask) -> Result<(), Fault> {
    if !matches!(ask.api, Api::Chat | Api::Completions) {
        return Err(Fault::MoriioRoute);
    }
    if !ask.is_single() {
        return Err(Fault::MoriioFanout);
    }
    if ask.names_peers {
        return Err(Fault::MoriioRequestId);
    }
    if ask.cuts {
        // The legs would have different prompts, and the decode the wrong KV.
        let message = "MoRI-IO workers cannot cut a prompt to what its output cap leaves room for.";
        return Err(Fault::InvalidValue { param: "truncate_prompt_tokens", message });
    }
    Ok(())
}

/// Which leg is told, and so whose side the peer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToDecode,
    FromPrefill,
}

fn params(way: Way, transfer: &str, peer: &Side<'_>) -> String {
    let (to, from) = match way {
        Way::ToDecode => (true, false),
        Way::FromPrefill => (false, true),
    };
    let mut json = format!(
        r#"{{"do_remote_decode":{to},"do_remote_prefill":{from},"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"{transfer}","remote_dp_size":1"#
    );
    if peer.write {
        json += &format!(
            r#","remote_host":{},"remote_handshake_port":{},"remote_notify_port":{}"#,
            quoted(peer.host),
            peer.handshake,
            peer.notify
        );
    }
    if let Some(tp) = peer.tp {
        json += &format!(r#","remote_tp_size":{tp}"#);
    }
    json.push('}');
    json
}
