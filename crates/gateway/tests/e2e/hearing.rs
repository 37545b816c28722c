//! KV events: the gateway knows what engines hold, and notices when it does not.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_core::ask::Api;
use baton_core::fleet::{Role, Seat};
use baton_core::kv::{Trouble, Trust};
use baton_core::zmtp;
use baton_gateway::registry::Spec;
use baton_sim::{Dialect, FleetSpec, Form, PromptId};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Ask, House, Plan, Reply, until};

/// Warm-up sends requests elsewhere on purpose.
const ARGS: &str = "--policy cache_aware --worker-warmup-secs 0";

/// AIBrix's strategies have no warm-up.
const EXPLAINED: &str = "--explain-header";

fn plan(dialect: Dialect, form: Form) -> Plan {
    let fleet = FleetSpec::whole(dialect, 2).with(|spec| spec.kv_events = Some(form));
    Plan::new(fleet).args(ARGS)
}

/// A prompt of these token ids.
fn ask(ids: Range<u32>) -> Ask {
    let ids: Vec<u32> = ids.map(|id| id % 30_000).collect();
    let prompt = PromptId::of_tokens(&ids);
    Ask::completion("", 3).with(json!({"prompt": ids})).of(prompt)
}

/// Straight to the engine, past the gateway.
async fn behind(house: &House, at: usize, ids: Range<u32>) {
    ask(ids).served(house.engine(at).addr()).await;
}

async fn served_by(house: &House, ids: Range<u32>) -> String {
    let ask = ask(ids);
    let reply = ask.served(house.address).await;
    reply.header("x-smg-routed-worker-id").to_owned()
}

async fn heard(house: &House, at: usize, trust: Trust, blocks: usize) -> Arc<Seat> {
    let seat = house.seat(at);
    let known = || (seat.view.trust(seat.pulse.life()), seat.view.blocks());
    until(&format!("{trust:?} with {blocks} blocks of engine {at}"), || known() == (trust, blocks)).await;
    seat
}

/// Each turn has what was before and goes on; the gateway saw none of the first turns.
async fn second_turns_go_where_the_first_were(mut house: House) {
    house.ready().await;
    behind(&house, 1, 0..1600).await;
    behind(&house, 0, 10_000..11_600).await;
    heard(&house, 0, Trust::Whole, 100).await;
    heard(&house, 1, Trust::Whole, 100).await;
    for _ in 0..3 {
        assert_eq!(served_by(&house, 0..1700).await, house.url(1));
        assert_eq!(served_by(&house, 10_000..11_700).await, house.url(0));
    }
    heard(&house, 0, Trust::Whole, 106).await;
    heard(&house, 1, Trust::Whole, 106).await;
    let page = house.page().await;
    assert_eq!(page.sum("baton_kv_choices_total", &["known=\"whole\""]), 6.0);
    assert_eq!(page.sum("baton_worker_kv_trust", &[]), 4.0);
    assert_eq!(page.sum("baton_kv_index_blocks", &[]), 212.0);
    assert!(page.sum("baton_kv_index_bytes", &[]) < page.sum("baton_kv_index_budget_bytes", &[]));
    assert_eq!(page.sum("baton_worker_kv_troubles_total", &[]), 0.0);
    house.close().await;
}

#[tokio::test]
async fn a_second_turn_goes_to_the_vllm_that_holds_the_first() {
    second_turns_go_where_the_first_were(plan(Dialect::Vllm, Form::Map).open().await).await;
}

#[tokio::test]
async fn a_second_turn_goes_to_the_sglang_that_holds_the_first_and_says_where_it_publishes() {
    second_turns_go_where_the_first_were(plan(Dialect::Sglang, Form::List).open().await).await;
}

#[tokio::test]
async fn prefills_are_known_by_what_they_hold() {
    let fleet = FleetSpec::pairs(Dialect::Vllm, 2, 1).with(|spec| spec.kv_events = Some(Form::Map));
    let house = Plan::new(fleet).args(ARGS).open().await;
    for (at, ids) in [(1, 0..1600), (0, 5000..6600)] {
        behind(&house, at, ids).await;
        heard(&house, at, Trust::Whole, 100).await;
    }
    let before = house.engine(1).stats().tokens.cached;
    ask(0..1700).served(house.address).await;
    assert_eq!(house.engine(1).stats().tokens.cached - before, 1600);
    house.close().await;
}

/// AIBrix's strategies heed the same events. The gateway saw none of the first turns.
#[tokio::test]
async fn aibrix_strategies_go_by_what_engines_hold() {
    let pairs = FleetSpec::pairs(Dialect::Vllm, 2, 1);
    let whole = FleetSpec::whole(Dialect::Vllm, 2);
    let scores = ["prefix_cache", "conductor", "hybrid_cache_load"];
    let pd = scores.map(|score| ("pd", score, pairs.clone()));
    for (strategy, score, fleet) in pd.into_iter().chain([("prefix-cache", "prefix_cache", whole)]) {
        let fleet = fleet.with(|spec| spec.kv_events = Some(Form::Map));
        let plan = Plan::new(fleet).env("ROUTING_ALGORITHM", strategy);
        let house = plan.env("AIBRIX_PREFILL_SCORE_POLICY", score).args(EXPLAINED).open().await;
        for (at, ids) in [(1, 0..1600), (0, 5000..6600)] {
            behind(&house, at, ids).await;
            heard(&house, at, Trust::Whole, 100).await;
        }
        for (at, from) in [(1, 0), (0, 5000)] {
            let before = house.engine(at).stats().tokens.cached;
            let ask = ask(from..from + 1700);
            let reply = ask.post_with(house.address, &[("x-baton-explain", "1")]).await;
            ask.check(&reply);
            assert_eq!(house.engine(at).stats().tokens.cached - before, 1600, "{strategy} {score}");
            let said = reply.header("x-baton-explain");
            assert!(said.contains("94 % by events (whole, last "), "{strategy} {score}: {said}");
        }
        assert_eq!(house.page().await.sum("baton_kv_choices_total", &["known=\"whole\""]), 2.0);
        house.close().await;
    }
}

/// A model's directory as the simulated engines would have one: their way to cut text, and their chat template.
struct ModelDirectory(std::path::PathBuf);

impl ModelDirectory {
    fn new(texts: &[String]) -> ModelDirectory {
        let pieces = texts.iter().flat_map(|text| baton_sim::text::pieces(text));
        let mut vocab: serde_json::Map<_, _> =
            pieces.map(|piece| (piece.clone(), json!(baton_sim::text::tokenize(&piece)[0]))).collect();
        vocab.insert("<unk>".into(), json!(0));
        let cut = r"(?s)(?:.(?!(?<=\S)\s)){0,7}.";
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
            "added_tokens": [], "post_processor": null,
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": false},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
        });
        let template = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}\
            {% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% endif %}";
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("baton-e2e-model-{}-{made}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(path.join("chat_template.jinja"), template).unwrap();
        ModelDirectory(path)
    }
}

impl Drop for ModelDirectory {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// The gateway saw none of the first turns, and no client sent a token's number.
#[tokio::test]
async fn conversations_are_known_by_the_chat_template() {
    let turn = |role: &str, what: &str| json!({"role": role, "content": what.repeat(300)});
    let first = [turn("user", "one two "), turn("user", "six ten ")];
    let second = first.clone().map(|user| json!([user, turn("assistant", "go on "), turn("user", "yes ")]));
    let first = first.map(|user| json!([user]));
    let texts: Vec<String> = first.iter().chain(&second).map(baton_sim::text::chat_text).collect();
    let directory = ModelDirectory::new(&texts);
    let fleet = FleetSpec::whole(Dialect::Vllm, 2).with(|spec| spec.kv_events = Some(Form::Map));
    let plan = Plan::new(fleet).args(&format!("{ARGS} {EXPLAINED}"));
    let house = plan.arg("--tokenizer-path", directory.0.to_str().unwrap()).open().await;
    let ask = |messages: &serde_json::Value| {
        Ask::chat("", 3).with(json!({"messages": messages})).of(PromptId::of_chat(messages))
    };
    for at in [1, 0] {
        ask(&first[at]).served(house.engine(at).addr()).await;
        let blocks = baton_sim::text::tokenize(&texts[at]).len() / 16;
        heard(&house, at, Trust::Whole, blocks).await;
    }
    for at in [1, 0, 0, 1] {
        let asked = ask(&second[at]);
        let reply = asked.post_with(house.address, &[("x-baton-explain", "1")]).await;
        asked.check(&reply);
        assert_eq!(reply.header("x-smg-routed-worker-id"), house.url(at));
        let said = reply.header("x-baton-explain");
        assert!(said.contains(" % by events (whole, last "), "{said}");
    }
    // What engines make of it is not known, so it goes by what was sent.
    let part = json!([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]);
    let odd = json!([{"role": "user", "content": part}]);
    ask(&odd).served(house.address).await;
    let page = house.page().await;
    assert_eq!(page.sum("baton_kv_choices_total", &["known=\"whole\""]), 4.0);
    assert_eq!(page.sum("baton_kv_choices_total", &["known=\"none\""]), 1.0);
    house.close().await;
}

/// The same conversation as `/v1/messages` and `/v1/responses` have it. In front of a tool's answer stands its call.
fn elsewhere(api: Api, messages: &serde_json::Value) -> serde_json::Value {
    let (system, rest) = messages.as_array().unwrap().split_first().unwrap();
    // Anthropic's system prompt may have several parts, which engines put together without anything between.
    let text = system["content"].as_str().unwrap();
    let (one, two) = text.split_at(text.len() / 2);
    let part = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let mut turns = Vec::new();
    for (at, message) in rest.iter().enumerate() {
        let (role, said) = (&message["role"], &message["content"]);
        let calls = rest.get(at + 1).is_some_and(|next| next["role"] == "tool");
        if api == Api::Messages {
            let mut blocks = vec![json!({"type": "text", "text": said})];
            if role == "tool" {
                blocks = vec![json!({"type": "tool_result", "tool_use_id": "c1", "content": said})];
            }
            blocks.extend(
                calls.then(|| json!({"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}})),
            );
            let role = if role == "tool" { &json!("user") } else { role };
            turns.push(json!({"role": role, "content": blocks}));
        } else if role == "tool" {
            turns.push(json!({"type": "function_call_output", "call_id": "c1", "output": said}));
        } else {
            let kind = if role == "assistant" { "output_text" } else { "input_text" };
            turns.push(json!({"type": "message", "role": role, "content": [{"type": kind, "text": said}]}));
            let call =
                json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"});
            turns.extend(calls.then_some(call));
        }
    }
    match api {
        Api::Messages => {
            json!({"model": "sim", "max_tokens": 3, "system": [part(one), part(two)], "messages": turns})
        }
        _ => {
            json!({"model": "sim", "max_output_tokens": 3, "instructions": text, "input": turns, "store": false})
        }
    }
}

/// By the chat template, and by what the engines say themselves. The gateway saw none of the first turns.
#[tokio::test]
async fn conversations_of_other_apis_are_known_as_what_engines_make_of_them() {
    let turn = |role: &str, what: &str| json!({"role": role, "content": what.repeat(300)});
    let first = [turn("system", "one two "), turn("system", "six ten ")]
        .map(|system| json!([system, turn("user", "why ")]));
    let second = first.clone().map(|first| {
        json!([first[0], first[1], turn("assistant", "go on "), turn("tool", "it is "), turn("user", "yes ")])
    });
    let texts: Vec<String> = first.iter().chain(&second).map(baton_sim::text::chat_text).collect();
    let directory = ModelDirectory::new(&texts);
    for tokenizer in [directory.0.to_str().unwrap(), "engine"] {
        let fleet = FleetSpec::whole(Dialect::Vllm, 2).with(|spec| spec.kv_events = Some(Form::Map));
        let plan = Plan::new(fleet).args(&format!("{ARGS} {EXPLAINED}")).arg("--tokenizer-path", tokenizer);
        let house = plan.open().await;
        for at in [1, 0] {
            let ask = Ask::chat("", 3).with(json!({"messages": first[at]})).of(PromptId::of_chat(&first[at]));
            ask.served(house.engine(at).addr()).await;
            heard(&house, at, Trust::Whole, baton_sim::text::tokenize(&texts[at]).len() / 16).await;
        }
        for api in [Api::Messages, Api::Responses] {
            for at in [1, 0, 0, 1] {
                let body = elsewhere(api, &second[at]);
                let explain = [("x-baton-explain", "1")];
                let reply = Reply::post_with(house.address, api.path(), &explain, &body).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                assert_eq!(reply.header("x-smg-routed-worker-id"), house.url(at), "{api:?} {tokenizer}");
                let said = reply.header("x-baton-explain");
                assert!(said.contains(" % by events (whole, last "), "{api:?}: {said}");
            }
        }
        let page = house.page().await;
        assert_eq!(page.sum("baton_kv_choices_total", &["known=\"whole\""]), 8.0);
        house.close().await;
    }
}

#[tokio::test]
async fn a_restart_is_forgotten_and_what_comes_after_is_known() {
    let mut house = plan(Dialect::Vllm, Form::Map).open().await;
    behind(&house, 1, 0..1600).await;
    heard(&house, 1, Trust::Whole, 100).await;
    assert_eq!(served_by(&house, 0..1616).await, house.url(1));
    house.engine(1).restart().await.unwrap();
    house.ready().await;
    heard(&house, 1, Trust::Whole, 0).await;
    behind(&house, 0, 0..1600).await;
    heard(&house, 0, Trust::Whole, 100).await;
    assert_eq!(served_by(&house, 0..1632).await, house.url(0));
    behind(&house, 1, 20_000..20_160).await;
    heard(&house, 1, Trust::Whole, 10).await;
    house.close().await;
}

#[tokio::test]
async fn what_was_missed_is_asked_for() {
    let house = plan(Dialect::Vllm, Form::Map).open().await;
    behind(&house, 0, 0..160).await;
    let seat = heard(&house, 0, Trust::Whole, 10).await;
    house.engine(0).lose_events(1, false);
    behind(&house, 0, 1000..1160).await;
    behind(&house, 0, 2000..2160).await;
    heard(&house, 0, Trust::Whole, 30).await;
    assert_eq!((seat.view.troubles(Trouble::Replayed), seat.view.troubles(Trouble::Gap)), (1, 0));
    house.close().await;
}

#[tokio::test]
async fn what_cannot_be_had_again_costs_all_that_was_known() {
    let house = plan(Dialect::Sglang, Form::Map).open().await;
    behind(&house, 0, 0..160).await;
    let seat = heard(&house, 0, Trust::Whole, 10).await;
    house.engine(0).lose_events(1, true);
    behind(&house, 0, 1000..1160).await;
    behind(&house, 0, 2000..2160).await;
    heard(&house, 0, Trust::Partial, 10).await;
    assert_eq!(seat.view.troubles(Trouble::Gap), 1);
    // Not known, but sent there: that counts as long as not all is known.
    let home = served_by(&house, 3000..4600).await;
    assert_eq!(served_by(&house, 3000..4700).await, home);
    house.close().await;
}

#[tokio::test]
async fn a_gateway_that_comes_late_asks_for_what_was_before() {
    let house = plan(Dialect::Vllm, Form::List).unready().open().await;
    behind(&house, 0, 0..320).await;
    let late = House::beside(&house, ARGS).await;
    let fleet = late.gateway.registry.load_full();
    let seat = fleet.seats().find(|seat| seat.worker.url == house.url(0)).unwrap().clone();
    until("the first gateway's past is known", || {
        seat.view.trust(seat.pulse.life()) == Trust::Whole && seat.view.blocks() == 20
    })
    .await;
    late.end().await;
    house.close().await;
}

#[tokio::test]
async fn whoever_speaks_nonsense_is_not_heard_and_hurts_nobody() {
    let nonsense = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", nonsense.local_addr().unwrap());
    let speaker = tokio::spawn(async move {
        let huge = [&zmtp::greeting()[..], &zmtp::ready("PUB"), &[2], &u64::MAX.to_be_bytes()].concat();
        let spoilt = [
            &zmtp::greeting()[..],
            &zmtp::ready("PUB"),
            &zmtp::message(&[b"", &[0; 8], b"\x93nonsense"]),
            &zmtp::message(&[b"no batch"]),
        ]
        .concat();
        let all = [b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), huge, spoilt];
        for bytes in all.iter().cycle() {
            let Ok((mut peer, _)) = nonsense.accept().await else { return };
            let _ = peer.write_all(bytes).await;
            // Reads until the other side hangs up.
            let _ = peer.read_to_end(&mut Vec::new()).await;
        }
    });
    let label = move |spec: &mut Spec| {
        spec.labels.insert("kv_events_endpoint".into(), endpoint.clone());
        assert_eq!(spec.role, Role::Whole);
    };
    let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).args(ARGS).registered(label).open().await;
    let seat = house.seat(0);
    until("it was tried and given up", || {
        seat.view.troubles(Trouble::Lost) >= 3 && seat.view.troubles(Trouble::Malformed) >= 1
    })
    .await;
    served_by(&house, 0..640).await;
    assert_eq!(seat.view.blocks(), 0);
    house.close().await;
    speaker.abort();
}
