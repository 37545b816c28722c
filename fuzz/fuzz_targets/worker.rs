//! Any bytes as the registration of a worker, as a change to it, and as what a context server says of itself: taken
//! or refused in words, and whatever was taken makes a worker that is shown, paired and planned for without a panic.
//!
//! Input: the registration, a zero byte, a change. Without a zero byte both are the whole.

#![no_main]

use std::sync::atomic::AtomicU64;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Role, Worker};
use baton_core::handoff::{Mint, Pair, Rules, TrtRule, engine_ids_url, plan};
use baton_gateway::clock::Clock;
use baton_gateway::config::Config;
use baton_gateway::edge::admin::handle;
use baton_gateway::probe::context_labels;
use baton_gateway::registry::{Registry, Settings};
use bytes::Bytes;
use http::Method;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|input: &[u8]| {
    let labels = context_labels(input);
    assert!(labels.is_empty() || labels.contains_key("ctx_dp_rank") && labels.len() <= 3);

    let mut halves = input.splitn(2, |byte| *byte == 0);
    let spec = halves.next().unwrap_or_default();
    let change = halves.next().unwrap_or(spec);
    let registry = Registry::new(Settings::of(&Config::default(), Clock::start(), 1));
    let call = |method: &Method, path: &str, body: &[u8]| {
        let reply = handle(&registry, method, path, None, &Bytes::copy_from_slice(body)).expect("a route");
        (reply.status, serde_json::from_str::<Value>(&reply.body).expect("JSON"))
    };
    let (status, told) = call(&Method::POST, "/workers", spec);
    assert!([202, 400].contains(&status), "{status} {told}");
    if status == 202 {
        let path = format!("/workers/{}", told["worker_id"].as_str().expect("an id"));
        for method in [Method::PATCH, Method::PUT] {
            let (status, told) = call(&method, &path, change);
            assert!([202, 400, 404, 409].contains(&status), "{status} {told}");
        }
        let (status, shown) = call(&Method::GET, &path, b"");
        assert_eq!((status, shown["id"].as_str()), (200, path.strip_prefix("/workers/")), "{shown}");
    }
    for listed in registry.list() {
        planned(&listed.seat.worker, &labels);
    }
});

/// Legs of this worker with itself, as either.
fn planned(worker: &Worker, labels: &std::collections::BTreeMap<String, String>) {
    let mut worker = worker.clone();
    worker.labels.extend(labels.clone());
    let (prefill, decode) =
        (Worker { role: Role::Prefill, ..worker.clone() }, Worker { role: Role::Decode, ..worker });
    let limits = BodyLimits::default();
    let body = Envelope::parse(r#"{"model":"m","messages":[]}"#.into(), &limits).expect("a request");
    let ask = Ask::read(Api::Chat, &body).expect("a request");
    for generation_first in [false, true] {
        let rules = Rules { trt: TrtRule { generation_first, machine: 0 }, ..Rules::default() };
        let (mut dice, serial) = (Dice::new(1), AtomicU64::new(0));
        let mut mint = Mint { dice: &mut dice, unix_ms: 1_700_000_000_000, serial: &serial };
        let pair = Pair::Legs { prefill: &prefill, decode: &decode };
        let Ok(made) = plan(pair, &ask, &rules, &mut mint) else { continue };
        for edits in [&made.prefill, &made.decode] {
            let leg = body.splice(edits).to_bytes();
            assert!(Envelope::parse(leg, &limits).is_ok(), "a leg's body is an object");
        }
        let _ = engine_ids_url(&prefill, &rules);
    }
}
