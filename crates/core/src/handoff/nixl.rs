//! vLLM with NIXL: prefill first, tagged; what it returns goes to the decode verbatim.
//!
//! The prefill pins the KV and names it in `kv_transfer_params`; the decode pulls it. A real decode engine
//! dies of a hand-off with missing or wrong-typed members (seen on vLLM 0.32), so what the prefill
//! returned is checked member by member before it is passed on, and left out when it fails: the decode
//! then computes the prompt itself, which is slow but right.
//!
//! The hand-off has one consumer. Several samples, several prompts or a search would share it, so such
//! requests go to the decode alone (page, "The handoff falls back to a local recompute"); so does a
//! request for a single token, where a second pass would compute the same token twice, one whose prompt is
//! cut to what its output cap leaves room for (`truncate_prompt_tokens` of -1, in vLLM's renderer: the
//! legs would have different prompts, and the decode the wrong KV), and one for the prompt's own log
//! probabilities, which the decode has to compute anyway (seen on vLLM 0.32).

use bytes::Bytes;

use super::deliver::{Deliver, Reading};
use super::{Mint, Plan, blocks, shape};
use crate::ask::Ask;
use crate::body::{Edit, scalar};
use crate::exchange::{Abort, Course, Order, Start};
use crate::fault::LegName;
use crate::record::HandoffResult;

const TAG: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false}"#;

pub(super) const IN_TURN: Course = Course {
    order: Order::InTurn,
    start: Start::DecodeHead,
    prefill_abort: Abort::Cancel,
    release: true,
    reads_prefill: false,
    by_name: false,
    answers: LegName::Decode,
};

pub(super) const DECODE_ONLY: Course = Course { order: Order::Single, release: false, ..IN_TURN };

pub fn plan(ask: &Ask, mint: &mut Mint<'_>) -> Plan {
    let mut plan = Plan::decode_only(ask, Some("nixl"), mint);
    if hands_over(ask) {
        plan.course = IN_TURN;
        plan.deliver = Deliver::Nixl;
        plan.prefill.clone_from(&plan.decode);
        shape::one_token(ask, &mut plan.prefill);
        plan.prefill.push(Edit::set("kv_transfer_params", TAG));
    }
    plan
}

/// What the prefill returned, for the decode.
pub(super) fn read(params: Option<Bytes>) -> Reading {
    let Some(params) = params else {
        let why = "the prefill returned no kv_transfer_params";
        return Reading::nothing(HandoffResult::Missing, Some(why));
    };
    match check(&params) {
        Ok(()) => Reading::over(params),
        Err(why) => Reading::nothing(HandoffResult::Invalid, Some(why)),
    }
}

/// Is a hand-off of use, and safe, for this request?
pub(super) fn hands_over(ask: &Ask) -> bool {
    let worth_it = ask.is_single() && ask.max_tokens.is_none_or(|m| m > 1);
    worth_it && !ask.echoes && !ask.cuts && !is_mistaken(ask)
}

/// A mistake that shaping the prefill leg would hide: the decode alone refuses it without KV in its hands,
/// where after a prefill the KV would stay pinned for the lease (real vLLM 0.32: 30 s).
fn is_mistaken(ask: &Ask) -> bool {
    let more_than_allowed = ask.min_tokens.zip(ask.max_tokens).is_some_and(|(least, most)| least > most);
    more_than_allowed || (ask.has.stream_options && !ask.stream)
}

/// Is this object one that a decode engine can take?
///
/// # Errors
/// What is wrong with it, in words for the log.
pub(super) fn check(params: &[u8]) -> Result<(), &'static str> {
    if scalar::kind(params) != scalar::Kind::Object {
        return Err("kv_transfer_params is not an object");
    }
    // One pass over the members: the list of blocks is long for a long prompt.
    let mut found = Members::default();
    for (key, value) in scalar::members(params) {
        match &*key {
            "do_remote_prefill" => found.flag = scalar::as_bool(value) == Some(true),
            "do_remote_decode" => found.turned = scalar::as_bool(value) == Some(true),
            "remote_engine_id" => found.engine = text(value),
            "remote_host" => found.host = text(value),
            "remote_port" => found.port = scalar::as_u64(value).is_some_and(|p| (1..=65535).contains(&p)),
            "remote_request_id" => found.bad_request_id = scalar::as_str(value).is_none(),
            "remote_block_ids" => found.blocks = Some(blocks::check(value)),
            _ => {}
        }
    }
    found.judge()
}

/// What a decode engine needs of a hand-off, as far as it was there and right.
#[derive(Default)]
struct Members {
    flag: bool,
    turned: bool,
    engine: bool,
    host: bool,
    port: bool,
    bad_request_id: bool,
    blocks: Option<Result<(), &'static str>>,
}

impl Members {
    fn judge(self) -> Result<(), &'static str> {
        if !self.flag {
            return Err("do_remote_prefill is not true");
        }
        // A decode that is told so pins blocks as if it were a prefill (real vLLM 0.32).
        if self.turned {
            return Err("do_remote_decode is true");
        }
        if !self.engine {
            return Err("remote_engine_id is missing or not a string");
        }
        if !self.host {
            return Err("remote_host is missing or not a string");
        }
        if !self.port {
            return Err("remote_port is missing or not a port");
        }
        if self.bad_request_id {
            return Err("remote_request_id is not a string");
        }
        self.blocks.unwrap_or(Err(blocks::NO_LIST))
    }
}

fn text(value: &[u8]) -> bool {
    scalar::as_str(value).is_some_and(|s| !s.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_hand_off_passes() {
        let good = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600,"x":null}"#;
        assert_eq!(check(good.as_bytes()), Ok(()));
        for (from, to) in [
            ("[[1,2]]", "[]"),
            ("[[1,2]]", "[[\"1\"]]"),
            ("[[1,2]]", "null"),
            ("\"e\"", "\" \""),
            ("\"h\"", "7"),
            ("5600", "0"),
            ("5600", "70000"),
            ("\"r\"", "3"),
            ("\"do_remote_prefill\":true", "\"do_remote_prefill\":false"),
            ("\"do_remote_decode\":false", "\"do_remote_decode\":true"),
        ] {
            assert!(check(good.replace(from, to).as_bytes()).is_err(), "{from} -> {to}");
        }
        // older builds send a flat list
        assert_eq!(check(good.replace("[[1,2]]", "[1,2]").as_bytes()), Ok(()));
        assert!(check(b"[]").is_err());
    }
}
