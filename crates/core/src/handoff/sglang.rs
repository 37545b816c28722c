//! SGLang: both legs at once, introduced by a bootstrap room.
//!
//! The same three members go to both legs: the prefill's host, the bootstrap port it was registered with
//! (null if it has none: over HTTP nothing is substituted, as SMG 1.13) and a fresh 63-bit room. A request
//! that lists its prompts gets lists of the same length with a room each (SGLang 0.5.23). The prefill
//! answers only after the KV transfer ended, and closing it early aborts the transfer, so once the answer
//! has begun it is drained, not closed (SGLang 0.5.23).
//!
//! A single request also gets a `rid` of the gateway's, of one width for each API and with a random tail: an
//! abort names the request by it, and the engine takes the beginning of a `rid` for the whole (SGLang
//! 0.5.23). Workers that are ranks of one engine are named by their rank: `routed_dp_rank` on each leg, and on
//! the decode the prefill's, so that it need not ask (`disagg_prefill_dp_rank`).
//!
//! The answer starts on both heads, so that a prefill that refuses is told as what it is; with log
//! probabilities it waits for the prefill's answer (page, "HTTP streams start on the response heads"). So
//! does a plain answer, though SMG 1.13 reads the prefill's whole body there: a real prefill answers in one
//! piece, and before the decode does.

use bytes::Bytes;

use super::{Deliver, Mint, Plan, quoted};
use crate::ask::{Api, Ask};
use crate::body::Edit;
use crate::exchange::{Abort, Course, Order, Start};
use crate::fault::LegName;
use crate::fleet::Worker;
use crate::merge::Form;
use crate::record::HandoffResult;

const TOGETHER: Course = Course {
    order: Order::Together,
    start: Start::BothHeads,
    prefill_abort: Abort::Cancel,
    release: false,
    reads_prefill: false,
    by_name: true,
    answers: LegName::Decode,
};

pub fn plan(prefill: &Worker, decode: &Worker, ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let mut plan = Plan::decode_only(ask, None, mint);
    let start = if ask.logprobs { Start::PrefillEnd } else { Start::BothHeads };
    let prompts = prompts_logprobs(ask);
    plan.course = Course { start, reads_prefill: prompts.is_some(), ..TOGETHER };
    if let Some(form) = prompts {
        plan.deliver = Deliver::Logprobs(form);
    }
    plan.result = HandoffResult::Minted;
    let host = quoted(&prefill.bootstrap_host);
    let port = prefill.bootstrap_port.map_or_else(|| "null".to_owned(), |p| p.to_string());
    let (host, port, room) = match rooms(ask) {
        None => (host, port, room(prefill, mint).to_string()),
        Some(n) => {
            let rooms: Vec<String> = (0..n).map(|_| room(prefill, mint).to_string()).collect();
            (list(&vec![host; n]), list(&vec![port; n]), list(&rooms))
        }
    };
    plan.decode.push(Edit::set("bootstrap_host", Bytes::from(host)));
    plan.decode.push(Edit::set("bootstrap_port", Bytes::from(port)));
    plan.decode.push(Edit::set("bootstrap_room", Bytes::from(room)));
    if rooms(ask).is_none() && ask.api.generates() {
        plan.decode.push(Edit::set_str("rid", &plan.request_id));
        plan.abort_rid = Some(plan.request_id.clone());
    }
    plan.prefill.clone_from(&plan.decode);
    if let Some(rank) = prefill.dp_rank {
        plan.prefill.push(Edit::set_u64("routed_dp_rank", u64::from(rank)));
        plan.decode.push(Edit::set_u64("disagg_prefill_dp_rank", u64::from(rank)));
    }
    plan.decode.extend(routed(decode));
    plan
}

/// Where the answer tells the prompt's log probabilities, if it may: only the prefill has them.
fn prompts_logprobs(ask: &Ask) -> Option<Form> {
    match ask.api {
        Api::Generate if ask.logprobs => Some(Form::Native),
        Api::Completions if ask.logprobs && ask.echoes => Some(Form::Completion),
        _ => None,
    }
}

/// The rank that a worker is, for an engine that takes it in the body.
pub(super) fn routed(worker: &Worker) -> Option<Edit> {
    worker.dp_rank.map(|rank| Edit::set_u64("routed_dp_rank", u64::from(rank)))
}

/// A fresh room. A prefill with several ranks may take the rank from the room, so its room says the same.
fn room(prefill: &Worker, mint: &mut Mint<'_>) -> u64 {
    let room = mint.dice.room();
    match (prefill.dp_rank, prefill.dp_size) {
        (Some(rank), Some(size @ 2..)) => {
            let (rank, size) = (u64::from(rank), u64::from(size));
            // Below the largest multiple of the size, so that nothing is added beyond 63 bits.
            let most = (u64::MAX >> 1) / size;
            (room / size).min(most - 1) * size + rank % size
        }
        _ => room,
    }
}

/// `None`: one room. A list of prompts takes lists even when it holds one; so do several samples of one
/// prompt (SMG 1.13).
fn rooms(ask: &Ask) -> Option<usize> {
    let n = match (ask.batch, ask.n) {
        (Some(b), _) if b > 0 => b,
        (_, n) if n > 1 => n,
        _ => return None,
    };
    Some(n as usize)
}

fn list(items: &[String]) -> String {
    format!("[{}]", items.join(","))
}
