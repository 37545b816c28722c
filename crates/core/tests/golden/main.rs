//! Golden transcripts of the hand-offs: a client's body in, both legs' bodies out.
//!
//! Each case in the text files beside this one gives the workers, the route, the body and perhaps the
//! prefill's answer; what stands below its `---` lines is what came out and is rewritten with
//! `UPDATE_EXPECT=1`. The dice are seeded alike for each case, so equal rooms in two cases mean nothing.
//!
//! Besides, each leg is checked for what no reviewer sees: every member that no edit concerns is there, in its
//! place, with the very bytes that the client sent.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod case;
mod shapes;

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Edit, Envelope};
use baton_core::dice::Dice;
use baton_core::exchange::{Abort, Course, Handed, Leg, Order, Start};
use baton_core::fault::{Fault, LegName};
use baton_core::handoff::{Deliver, Edits, Mint, Pair, Plan, plan, release_edits};

use bytes::Bytes;
use expect_test::expect_file;

use case::Case;

/// What comes of a case, as the file shows it.
fn come_of(case: &Case) -> String {
    let envelope = match Envelope::parse(case.body.clone(), &BodyLimits::default()) {
        Ok(envelope) => envelope,
        Err(error) => return format!("--- refused\n{error}\n"),
    };
    match Ask::read(case.api, &envelope) {
        Ok(mut ask) => {
            ask.hear_request_id(case.request_id.as_deref().unwrap_or_default().as_bytes());
            legs(case, &envelope, &ask)
        }
        Err(fault) => refused(&fault),
    }
}

fn refused(fault: &Fault) -> String {
    let answer = fault.answer();
    let param = answer.param.unwrap_or_default();
    format!("--- refused\n{} {} {param}: {}\n", answer.status, answer.code, answer.message)
}

fn legs(case: &Case, envelope: &Envelope, ask: &Ask) -> String {
    let pair = match &case.prefill {
        Some(prefill) if case.api == Api::CountTokens => Pair::Prefill(prefill),
        Some(prefill) => Pair::Legs { prefill, decode: &case.answering },
        None => Pair::Whole(&case.answering),
    };
    let plan = match minted(1, |mint| plan(pair, ask, &case.rules, mint)) {
        Ok(plan) => plan,
        Err(fault) => return refused(&fault),
    };
    let mut out = format!("--- plan\n{}\n", say(&plan));
    let mut told = Told { case, envelope, out: &mut out };
    if plan.course.order != Order::Single {
        told.leg("prefill", &plan.prefill);
    }
    if plan.course.order == Order::Together {
        told.decode(&plan, &plan.decode);
    }
    let mut decode = plan.decode.clone();
    let mut handed = Handed::Nothing;
    if plan.course.awaits_answer() {
        let answer = case.answer.clone().unwrap_or_else(|| case::ANSWER.into());
        let prefill = case.prefill.as_ref().expect("a pair");
        let reading = plan.deliver.read(&answer, prefill, &BodyLimits::default());
        let why = reading.why.map(|why| format!(": {why}")).unwrap_or_default();
        writeln!(told.out, "--- hand-off {}{why}", reading.result.as_str()).unwrap();
        decode.extend(reading.edits);
        if let Some(answer) = reading.answer {
            let answer = String::from_utf8(answer.to_vec()).unwrap();
            writeln!(told.out, "--- answer\n{}", answer.trim_end()).unwrap();
            return out;
        }
        if let Handed::Dead(fault) = reading.handed {
            return out + &refused(&fault);
        }
        handed = reading.handed;
    }
    if plan.course.order != Order::Together {
        told.decode(&plan, &decode);
    }
    if case.release && plan.course.release && handed == Handed::Over {
        told.leg("release", &release_edits(ask, &decode));
    }
    out
}

/// Tells of the legs of a case.
struct Told<'a> {
    case: &'a Case,
    envelope: &'a Envelope,
    out: &'a mut String,
}

impl Told<'_> {
    fn leg(&mut self, name: &str, edits: &Edits) {
        let body = leg(self.envelope, edits);
        writeln!(self.out, "--- {name}\n{body}").unwrap();
    }

    fn decode(&mut self, plan: &Plan, edits: &Edits) {
        let body = leg(self.envelope, edits);
        let text = match body {
            body if plan.course.order == Order::Together && body == leg(self.envelope, &plan.prefill) => {
                "(the same)".to_owned()
            }
            body if body.as_bytes() == self.case.body => "(the client's, byte for byte)".to_owned(),
            body => body,
        };
        writeln!(self.out, "--- decode\n{text}").unwrap();
    }
}

fn say(plan: &Plan) -> String {
    let Course { order, start, prefill_abort, release, reads_prefill, answers, by_name } = plan.course;
    assert!(by_name || plan.abort_rid.is_none(), "a name that nobody is told");
    let order = match (order, answers) {
        (Order::Single, LegName::Whole) => "one leg",
        (Order::Single, LegName::Prefill) => "prefill only",
        (Order::Single, LegName::Decode) => "decode only",
        (Order::InTurn, _) => "in turn",
        (Order::Together, _) => "together",
    };
    let start = match start {
        _ if reads_prefill => "starts when the prefill's answer has passed",
        Start::DecodeHead => "starts on the decode's head",
        Start::BothHeads => "starts on both heads",
        Start::PrefillEnd => "starts on the prefill's end",
    };
    let abort = match prefill_abort {
        Abort::Cancel => "",
        Abort::Detach => ", an unwanted prefill is drained",
    };
    let release = if release { ", unwanted KV is released" } else { "" };
    let deliver = match &plan.deliver {
        Deliver::Nothing => "",
        Deliver::Nixl => ", the answer is checked",
        Deliver::Relay => ", the answer is relayed",
        Deliver::Moriio(due) if due.is_told() => {
            ", the answer is checked, also against what the decode was told"
        }
        Deliver::Moriio(_) => ", the answer must be right",
        Deliver::Shfs { .. } => ", the answer is relayed with the prefill's address",
        Deliver::Neuron => ", the whole answer is relayed",
        Deliver::Trt(_) => ", the answer becomes the decode's or the client's",
        Deliver::TrtTold => ", the prefill has to answer",
        Deliver::Mooncake(_) if plan.deliver.quotes_engine() => {
            ", the engine is asked again if it may be new"
        }
        Deliver::Mooncake(_) => ", of the answer only its ending counts",
        Deliver::Logprobs(_) => ", its prompt's log probabilities go in front of the decode's",
    };
    let mode = plan.mode.map(|mode| format!(", mode {mode}")).unwrap_or_default();
    let pins: String = [Leg::Prefill, Leg::Decode]
        .into_iter()
        .filter_map(|leg| Some(format!(", {leg:?} pinned to rank {}", plan.ranks[leg as usize]?)))
        .collect();
    let rid = plan.abort_rid.as_ref().map(|rid| format!(", aborted as {rid}")).unwrap_or_default();
    let (result, id) = (plan.result.as_str(), &plan.request_id);
    format!("{order}, {start}{abort}{release}{deliver}{mode}{pins}{rid}, hand-off {result}, {id}")
}

/// Ids of one seed, at one moment.
pub fn minted<T>(seed: u64, make: impl FnOnce(&mut Mint<'_>) -> T) -> T {
    let (mut dice, serial) = (Dice::new(seed), AtomicU64::new(0));
    make(&mut Mint { dice: &mut dice, unix_ms: 1_700_000_000_000, serial: &serial })
}

/// The leg's body, once it was found to be the client's outside of the edits.
fn leg(envelope: &Envelope, edits: &Edits) -> String {
    let body = envelope.splice(edits).to_bytes();
    let shaped = Envelope::parse(body.clone(), &BodyLimits::default()).expect("a leg's body is JSON");
    let members = |envelope: &Envelope| -> Vec<(String, Bytes)> {
        let edited = |key: &str| edits.iter().any(|edit| edit.key() == key);
        let all = envelope.members().filter(|(key, _)| !edited(key));
        all.map(|(key, value)| (key.into_owned(), Bytes::copy_from_slice(value))).collect()
    };
    assert_eq!(members(envelope), members(&shaped), "members that no edit concerns");
    for edit in edits {
        let last = edits.iter().rfind(|e| e.key() == edit.key()).unwrap();
        let due = match last {
            Edit::Set { value, .. } => Some(value.as_ref()),
            Edit::Remove { .. } => None,
        };
        assert_eq!(shaped.get(edit.key()), due, "{}", edit.key());
    }
    String::from_utf8(body.to_vec()).unwrap()
}

fn check(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, cases) = case::read(&text);
    assert!(!cases.is_empty(), "{file} has no case");
    let mut out = head;
    for case in &cases {
        println!("{file}: {}", case.title);
        writeln!(out, "{}{}", case.source, come_of(case)).unwrap();
    }
    expect_file![path].assert_eq(&out);
}

#[test]
fn sglang() {
    check("sglang.txt");
}

#[test]
fn vllm_nixl_shapes() {
    check("nixl.txt");
}

#[test]
fn vllm_nixl_hand_offs() {
    check("nixl-answers.txt");
}

#[test]
fn vllm_mooncake() {
    check("mooncake.txt");
}

#[test]
fn vllm_moriio() {
    check("moriio.txt");
}

#[test]
fn vllm_in_aibrix_words() {
    check("aibrix.txt");
}

#[test]
fn trtllm() {
    check("trtllm.txt");
}

#[test]
fn vllm_without_a_known_connector() {
    check("passthrough.txt");
}

#[test]
fn whole() {
    check("whole.txt");
}

#[test]
fn requests_that_generate_nothing() {
    check("no-output.txt");
}

#[test]
fn bytes_outside_the_edits() {
    check("bytes.txt");
}

#[test]
fn members_of_the_gateway() {
    check("owned.txt");
}

#[test]
fn refusals() {
    check("refused.txt");
}
