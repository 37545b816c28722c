//! SGLang: both legs at once, introduced by a bootstrap room.
//!
//! The same three members go to both legs: the prefill's host, the bootstrap port it was registered with
//! (null if it has none: over HTTP nothing is substituted, as SMG 1.13) and a fresh 63-bit room. A request
//! that lists its prompts gets lists of the same length with a room each (SGLang 0.5.23). The prefill
//! answers only after the KV transfer ended, and closing it early aborts the transfer, so once the answer
//! has begun it is drained, not closed (SGLang 0.5.23).
//!
//! The answer starts on both heads, so that a prefill that refuses is told as what it is; with log
//! probabilities it waits for the prefill's answer (page, "HTTP streams start on the response heads"). So
//! does a plain answer, though SMG 1.13 reads the prefill's whole body there: a real prefill answers in one
//! piece, and before the decode does.

use bytes::Bytes;

use super::{Deliver, Mint, Plan, quoted, request_id, stripped};
use crate::ask::{Api, Ask};
use crate::body::Edit;
use crate::exchange::{Abort, Course, Order, Start};
use crate::fault::LegName;
use crate::fleet::Worker;
use crate::record::HandoffResult;

const TOGETHER: Course = Course {
    order: Order::Together,
    start: Start::BothHeads,
    prefill_abort: Abort::Cancel,
    release: false,
    reads_prefill: false,
    answers: LegName::Decode,
};

pub fn plan(prefill: &Worker, ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let mut edits = stripped(ask);
    let host = quoted(&prefill.bootstrap_host);
    let port = prefill.bootstrap_port.map_or_else(|| "null".to_owned(), |p| p.to_string());
    let (host, port, room) = match rooms(ask) {
        None => (host, port, mint.dice.room().to_string()),
        Some(n) => {
            let rooms: Vec<String> = (0..n).map(|_| mint.dice.room().to_string()).collect();
            (list(&vec![host; n]), list(&vec![port; n]), list(&rooms))
        }
    };
    edits.push(Edit::set("bootstrap_host", Bytes::from(host)));
    edits.push(Edit::set("bootstrap_port", Bytes::from(port)));
    edits.push(Edit::set("bootstrap_room", Bytes::from(room)));
    let start = if ask.logprobs { Start::PrefillEnd } else { Start::BothHeads };
    // Only the native API reports the prompt's log probabilities, and only the prefill has them.
    let merges = ask.logprobs && ask.api == Api::Generate;
    Plan {
        course: Course { start, reads_prefill: merges, ..TOGETHER },
        prefill: edits.clone(),
        decode: edits,
        deliver: if merges { Deliver::Logprobs } else { Deliver::Nothing },
        request_id: request_id(ask, mint.dice),
        ranks: [None; 2],
        mode: None,
        result: HandoffResult::Minted,
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
