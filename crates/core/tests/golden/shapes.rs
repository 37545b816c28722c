//! What must hold for the legs of any request: bodies put together at random from members that matter.

use std::sync::atomic::AtomicU64;

use baton_core::ask::{Api, Ask, OWNED, OWNED_PREFIX};
use baton_core::body::{BodyLimits, Envelope, scalar};
use baton_core::dice::Dice;
use baton_core::exchange::Order;
use baton_core::fleet::{Engine, Role, Worker};
use baton_core::handoff::{Mint, Pair, Rules, plan, release_edits};
use proptest::prelude::*;

use crate::{leg, minted};

/// Members as a client may write them, and what is best not believed of them.
const MEMBERS: [&str; 34] = [
    r#""model":"m""#,
    r#""stream":true"#,
    r#""stream":null"#,
    r#""str\u0065am":false"#,
    r#""stream_options":{"include_usage":true}"#,
    r#""n":1"#,
    r#""n":3"#,
    r#""min_tokens":2"#,
    r#""max_tokens":16"#,
    r#""max_tokens":1"#,
    r#""m\u0061x_tokens":7"#,
    r#""max_completion_tokens":9"#,
    r#""max_output_tokens":32"#,
    r#""prompt":"a, b}""#,
    r#""prompt":["a","b"]"#,
    r#""prompt":[1,2]"#,
    r#""text":["a"]"#,
    r#""input_ids":[[1],[2]]"#,
    r#""messages":[{"role":"user","content":"\"kv_transfer_params\":{}"}]"#,
    r#""logprobs":true"#,
    r#""best_of":2"#,
    r#""echo":true"#,
    r#""sampling_params":{"n":2,"max_new_tokens":1}"#,
    r#""temperature":0.70"#,
    r#""x":1e400"#,
    r#""x":{"bootstrap_room":1}"#,
    r#""kv_transfer_params":{"do_remote_prefill":true}"#,
    r#""kv_transfer_p\u0061rams":[]"#,
    r#""bootstrap_room":5"#,
    r#""bootstrap_host":"h""#,
    r#""rid":"r""#,
    r#""routed_dp_rank":0"#,
    r#""disaggregated_params":null"#,
    r#""":0"#,
];

fn body() -> impl Strategy<Value = String> {
    let space = prop::sample::select(vec!["", " ", "\n\t", "  "]);
    let member = (prop::sample::select(MEMBERS.to_vec()), space.clone());
    (prop::collection::vec(member, 0..9), space).prop_map(|(members, space)| {
        let members: Vec<_> =
            members.iter().map(|(member, after)| format!("{space}{member}{after}")).collect();
        format!("{{{}}}", members.join(","))
    })
}

/// A pair's workers, and the members that the gateway itself writes into each leg of a pair in turn.
struct Kind {
    prefill: Worker,
    tags: [&'static [&'static str]; 2],
}

fn kinds() -> Vec<Kind> {
    const PARAMS: &[&str] = &["kv_transfer_params"];
    let kind = |engine, connector: Option<&str>, tags| Kind {
        prefill: Worker {
            engine,
            kv_connector: connector.map(str::to_owned),
            kv_engine_id: Some("e".into()),
            labels: [("moriio_mode".to_owned(), "read".to_owned())].into(),
            ..Worker::new("p", "http://p:1", Role::Prefill)
        },
        tags,
    };
    let aibrix = |name: &str, tags| {
        let mut kind = kind(Engine::Vllm, None, tags);
        kind.prefill.labels.insert("model.aibrix.ai/kv-connector-type".into(), name.into());
        kind
    };
    vec![
        kind(Engine::Sglang, None, [&[], &[]]),
        kind(Engine::Vllm, Some("NixlConnector"), [PARAMS, &[]]),
        kind(Engine::Vllm, Some("MooncakeConnector"), [PARAMS, &[]]),
        kind(Engine::Vllm, Some("MoRIIOConnector"), [PARAMS, &[]]),
        aibrix("shfs", [PARAMS, &[]]),
        aibrix("nixl", [&[], &[]]),
        kind(Engine::Vllm, Some("MooncakeStoreConnector"), [&[], &[]]),
        kind(Engine::Vllm, None, [&[], &[]]),
        kind(Engine::Generic, None, [&[], &[]]),
    ]
}

/// The value of a member of a leg; null and absent are the same to an engine.
fn value<'a>(leg: &'a Envelope, key: &str) -> Option<&'a [u8]> {
    leg.get(key).filter(|v| scalar::kind(v) != scalar::Kind::Null)
}

fn parsed(body: String) -> Envelope {
    Envelope::parse(body.into(), &BodyLimits::default()).unwrap()
}

/// What the gateway itself says of a hand-off, and nobody else.
fn no_foreign_hand_off(leg: &Envelope, minted: &[&str]) {
    for (key, _) in leg.members() {
        let owned = OWNED.contains(&key.as_ref()) || key.starts_with(OWNED_PREFIX);
        assert!(!owned || minted.contains(&key.as_ref()), "{key} reaches an engine");
    }
}

/// A leg that computes the prompt and one token, and that no engine refuses for what was left in it.
fn one_token(leg: &Envelope, api: Api) {
    let cap = |key| value(leg, key).map(|v| scalar::as_u64(v).unwrap());
    let caps = match api {
        Api::Chat => cap("max_completion_tokens").or(cap("max_tokens")),
        Api::Responses => cap("max_output_tokens"),
        _ => cap("max_tokens"),
    };
    assert_eq!(caps, Some(1));
    if api == Api::Chat {
        assert!(cap("max_completion_tokens").is_none() || cap("max_tokens").is_none(), "two caps");
    }
    assert_ne!(value(leg, "stream"), Some(&b"true"[..]));
    assert!(value(leg, "stream_options").is_none() && value(leg, "min_tokens").is_none());
    assert_eq!(value(leg, "n").unwrap_or(b"1"), b"1");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn every_leg_of_any_request(body in body(), seed: u64) {
        let envelope = parsed(body);
        for api in Api::ALL {
            let Ok(ask) = Ask::read(api, &envelope) else { continue };
            for Kind { prefill, tags } in kinds() {
                let decode = Worker { role: Role::Decode, ..prefill.clone() };
                let pair = Pair::Legs { prefill: &prefill, decode: &decode };
                let Ok(made) = minted(seed, |mint| plan(pair, &ask, &Rules::default(), mint)) else { continue };
                let decode = parsed(leg(&envelope, &made.decode));
                match made.course.order {
                    Order::Single => no_foreign_hand_off(&decode, &[]),
                    Order::Together => {
                        let minted = ["bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"];
                        assert_eq!(decode.bytes(), parsed(leg(&envelope, &made.prefill)).bytes());
                        no_foreign_hand_off(&decode, &minted);
                        rooms(&decode, &ask);
                    }
                    Order::InTurn => {
                        let prefill = parsed(leg(&envelope, &made.prefill));
                        no_foreign_hand_off(&prefill, tags[0]);
                        no_foreign_hand_off(&decode, tags[1]);
                        one_token(&prefill, api);
                        one_token(&parsed(leg(&envelope, &release_edits(&ask, &made.decode))), api);
                        assert!(ask.n <= 1 && ask.batch.is_none_or(|b| b <= 1), "a hand-off for several");
                    }
                }
            }
            let whole = Worker::new("w", "http://w:1", Role::Whole);
            let made = minted(seed, |mint| plan(Pair::Whole(&whole), &ask, &Rules::default(), mint)).unwrap();
            no_foreign_hand_off(&parsed(leg(&envelope, &made.decode)), &[]);
        }
    }
}

/// One room each, of 63 bits, all different, in lists of one length if the request is a list.
fn rooms(leg: &Envelope, ask: &Ask) {
    let listed = ask.batch.filter(|b| *b > 0).or(Some(ask.n).filter(|n| *n > 1));
    let mut rooms: Vec<u64> = match listed {
        None => vec![scalar::as_u64(leg.get("bootstrap_room").unwrap()).unwrap()],
        Some(n) => {
            for key in ["bootstrap_host", "bootstrap_port"] {
                assert_eq!(scalar::array_len(leg.get(key).unwrap()), Some(n as usize));
            }
            scalar::elements(leg.get("bootstrap_room").unwrap()).map(|r| scalar::as_u64(r).unwrap()).collect()
        }
    };
    assert_eq!(rooms.len(), listed.unwrap_or(1) as usize);
    assert!(rooms.iter().all(|room| *room < 1 << 63));
    let count = rooms.len();
    rooms.sort_unstable();
    rooms.dedup();
    assert_eq!(rooms.len(), count, "two prompts share a room");
}

/// Another attempt gets other ids, another seed too; the same seed the same ones.
#[test]
fn ids_are_fresh_for_each_attempt_and_repeat_with_the_seed() {
    let envelope = parsed(r#"{"bootstrap_room":5,"rid":"same","prompt":["a","b"]}"#.to_owned());
    let ask = Ask::read(Api::Completions, &envelope).unwrap();
    let prefill = &kinds()[0].prefill;
    let attempts = |seed| {
        let mut dice = Dice::new(seed);
        let pair = Pair::Legs { prefill, decode: prefill };
        let mut attempt = || {
            let mut mint = Mint { dice: &mut dice, unix_ms: 1, serial: &AtomicU64::new(0) };
            let made = plan(pair, &ask, &Rules::default(), &mut mint).unwrap();
            (leg(&envelope, &made.decode), made.request_id)
        };
        [attempt(), attempt()]
    };
    let [first, second] = attempts(1);
    assert!(first.0 != second.0 && first.1 != second.1);
    assert_eq!([first, second], attempts(1));
    assert_ne!(attempts(1), attempts(2));
}

/// An abort names a request by its `rid`, and SGLang takes the beginning of one for the whole.
#[test]
fn aibrix_j9_names_for_aborts_are_all_different_and_none_begins_with_another() {
    let envelope = parsed(r#"{"messages":[],"rid":"same"}"#.to_owned());
    let prefill = &kinds()[0].prefill;
    let pair = Pair::Legs { prefill, decode: prefill };
    let (mut dice, serial) = (Dice::new(3), AtomicU64::new(0));
    let mut rids = std::collections::BTreeSet::new();
    for _ in 0..64 {
        let mut ask = Ask::read(Api::Chat, &envelope).unwrap();
        ask.hear_request_id(b"same");
        let mut mint = Mint { dice: &mut dice, unix_ms: 1, serial: &serial };
        let made = plan(pair, &ask, &Rules::default(), &mut mint).unwrap();
        let rid = made.abort_rid.unwrap();
        let legs = [&made.prefill, &made.decode].map(|edits| parsed(leg(&envelope, edits)));
        let told = legs.each_ref().map(|leg| scalar::as_str(leg.get("rid").unwrap()).unwrap().into_owned());
        assert_eq!(told, [rid.clone(), rid.clone()]);
        rids.insert(rid);
    }
    let lengths: std::collections::BTreeSet<usize> = rids.iter().map(String::len).collect();
    assert_eq!((rids.len(), lengths.len()), (64, 1));
}
