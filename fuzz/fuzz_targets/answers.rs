//! Any bytes as a prefill's answer to a leg of any hand-off: whatever it says, the decode's body is an object, and
//! what is passed on as a hand-off is one that its engine can take. So too what a bootstrap server says of its ids.
//!
//! Input: a byte that picks the hand-off, one that picks the request, then the answer.

#![no_main]

use std::sync::atomic::AtomicU64;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::exchange::Handed;
use baton_core::fleet::{Engine, Role, Worker};
use baton_core::handoff::{Mint, Pair, Plan, Rules, TrtRule, engine_ids, plan, release_edits};
use baton_core::record::HandoffResult;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Engine, connector as registered, AIBrix's label.
const KINDS: [(Engine, &str, &str); 8] = [
    (Engine::Vllm, "NixlConnector", ""),
    (Engine::Vllm, "MooncakeConnector", ""),
    (Engine::Vllm, "MoRIIOConnector", ""),
    (Engine::Vllm, "", "shfs"),
    (Engine::Vllm, "", "nixl"),
    (Engine::Vllm, "", ""),
    (Engine::Trtllm, "", ""),
    (Engine::Sglang, "", ""),
];

const REQUESTS: [(Api, &str); 8] = [
    (Api::Chat, r#"{"model":"m","messages":[],"max_tokens":9}"#),
    (Api::Chat, r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true},"x":{"a":0.10}}"#),
    (Api::Completions, r#"{"prompt":"a","max_tokens":9,"kv_transfer_params":{"junk":1}}"#),
    (Api::Completions, r#"{"prompt":"a","stream":true,"min_tokens":2}"#),
    (Api::Messages, r#"{"messages":[],"max_tokens":9}"#),
    (Api::Responses, r#"{"input":"a","stream":true}"#),
    (Api::Generate, r#"{"text":"a","return_logprob":true,"logprob_start_len":0}"#),
    (Api::Generate, r#"{"text":"a","sampling_params":{"max_new_tokens":9}}"#),
];

fuzz_target!(|input: &[u8]| {
    let [kind, request, answer @ ..] = input else { return };
    let limits = BodyLimits::default();
    let answer = Bytes::copy_from_slice(answer);
    ids(&answer, &limits);

    let (engine, connector, label) = KINDS[usize::from(*kind % 8)];
    let at_once = kind & 8 != 0;
    let worker = |id: &str, role| {
        let mut worker = Worker::new(id, format!("http://{id}:8000"), role);
        worker.engine = engine;
        worker.kv_connector = Some(connector.to_owned()).filter(|name| !name.is_empty());
        worker.kv_engine_id = Some("e".to_owned());
        let dispatch = if at_once { "concurrent" } else { "sequential" };
        let labels = [
            ("model.aibrix.ai/kv-connector-type", label),
            ("moriio_mode", "write"),
            ("moriio_write_dispatch", dispatch),
            ("ctx_info_endpoint", "tcp://c:1"),
            ("ctx_dp_rank", "0"),
        ];
        let given = labels.into_iter().filter(|(_, value)| !value.is_empty());
        worker.labels = given.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        worker
    };
    let (prefill, decode) = (worker("p", Role::Prefill), worker("d", Role::Decode));
    let (api, body) = REQUESTS[usize::from(*request % 8)];
    let body = Envelope::parse(body.into(), &limits).expect("a request");
    let ask = Ask::read(api, &body).expect("a request");
    let rules = Rules { trt: TrtRule { generation_first: at_once, machine: 0 }, ..Rules::default() };
    let (mut dice, serial) = (Dice::new(1), AtomicU64::new(0));
    let mut mint = Mint { dice: &mut dice, unix_ms: 1_700_000_000_000, serial: &serial };
    let pair = Pair::Legs { prefill: &prefill, decode: &decode };
    let Ok(made) = plan(pair, &ask, &rules, &mut mint) else { return };
    read(&made, &ask, &body, &answer, &prefill, connector);
});

fn read(made: &Plan, ask: &Ask, body: &Envelope, answer: &Bytes, prefill: &Worker, connector: &str) {
    let limits = BodyLimits::default();
    let reading = made.deliver.read(answer, prefill, &limits);
    if let Some(last) = &reading.answer {
        assert_eq!(reading.handed, Handed::Final);
        told(last, ask.stream);
    }
    let mut edits = made.decode.clone();
    edits.extend(reading.edits);
    for edits in [&edits, &release_edits(ask, &edits)] {
        let decode = body.splice(edits).to_bytes();
        let roomy = BodyLimits { max_depth: usize::MAX, max_members: usize::MAX, ..limits };
        let decode = Envelope::parse(decode, &roomy).expect("the decode's body is an object");
        if reading.result != HandoffResult::Relayed || reading.handed != Handed::Over {
            continue;
        }
        let member = |key: &str| decode.get(key).and_then(|raw| serde_json::from_slice::<Value>(raw).ok());
        match connector {
            // Half of one ends a real decode engine.
            "NixlConnector" => nixl(&member("kv_transfer_params")),
            "MoRIIOConnector" => {
                let params = member("kv_transfer_params");
                assert!(params.is_none() || params.is_some_and(|p| p["do_remote_prefill"] == true));
            }
            _ => {}
        }
        if let Some(params) = decode.get("disaggregated_params") {
            // A member given twice is the last one's, to every reader of JSON.
            let Ok(params) = serde_json::from_slice::<Value>(params) else { continue };
            assert_eq!(params["request_type"], "generation_only");
            assert!(params["ctx_request_id"].is_u64() && params["disagg_request_id"].is_u64(), "{params}");
        }
    }
}

fn nixl(params: &Option<Value>) {
    // serde_json refuses lone surrogates and numbers beyond its range, which pass as they are.
    let Some(params) = params else { return };
    assert_eq!(params["do_remote_prefill"], true);
    assert_ne!(params["do_remote_decode"], true);
    for key in ["remote_engine_id", "remote_host"] {
        assert!(params[key].as_str().is_some_and(|text| !text.trim().is_empty()), "{key}: {params}");
    }
    assert!(params["remote_port"].as_u64().is_some_and(|port| (1..=65535).contains(&port)), "{params}");
    let blocks = params["remote_block_ids"].as_array().expect("a list of blocks");
    let ids = blocks.iter().flat_map(|item| match item {
        Value::Array(group) => group.iter().collect(),
        id => vec![id],
    });
    let ids: Vec<&Value> = ids.collect();
    assert!(!ids.is_empty() && ids.iter().all(|id| id.is_u64()), "{params}");
}

/// The client's answer: one object, or events that each hold one, up to the mark.
fn told(last: &[u8], stream: bool) {
    let is_object = |json: &[u8]| Envelope::parse(Bytes::copy_from_slice(json), &BodyLimits::default()).is_ok();
    if !stream {
        assert!(is_object(last));
        return;
    }
    let events: Vec<&[u8]> = last.strip_suffix(b"\n\n").expect("a last event").split(|b| *b == b'\n').collect();
    let data: Vec<&[u8]> = events.into_iter().filter(|line| !line.is_empty()).collect();
    let (mark, chunks) = data.split_last().expect("a mark");
    assert_eq!(*mark, b"data: [DONE]");
    assert!(chunks.iter().all(|chunk| is_object(chunk.strip_prefix(b"data: ").expect("data"))));
}

/// `GET /query` of a Mooncake bootstrap server.
fn ids(answer: &Bytes, limits: &BodyLimits) {
    let Ok(envelope) = Envelope::parse(answer.clone(), limits) else { return };
    let ids = engine_ids(&envelope);
    assert!(ids.len() <= envelope.members().count());
    assert!(ids.values().all(|id| !id.trim().is_empty()));
}
