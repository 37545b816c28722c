//! AIBrix's `pd` strategy on simulated engines: its page's example of three tiers, seen from the headers of answers.

use baton_core::fleet::Role;
use baton_gateway::registry::Spec;
use baton_sim::{Dialect, FaultKind, FleetSpec, Where};
use http::Method;
use serde_json::json;

use crate::support::{Ask, House, PROMPT, Plan, Reply, on, request, until};

const CONFIG: &str = "model.aibrix.ai/config";

fn config(routing: &serde_json::Value) -> String {
    json!({"profiles": {"default": {"routingStrategy": "pd", "routingConfig": routing}}}).to_string()
}

/// As the page has it: a pair for prompts of up to 2048 tokens, and a standard pod for those of 2048 and more.
fn three_tiers(spec: &mut Spec) {
    let (name, labels, routing) = match spec.role {
        Role::Prefill => ("prefill-0", Some("prefill"), json!({"promptLenBucketMaxLength": 2048})),
        Role::Decode => ("decode-0", Some("decode"), json!({"promptLenBucketMaxLength": 2048})),
        _ => ("standard-0", None, json!({"combined": true, "promptLenBucketMinLength": 2048})),
    };
    let engine = [("model.aibrix.ai/engine", "vllm"), ("model.aibrix.ai/port", "8000"), ("pod_name", name)];
    spec.labels = engine.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    if let Some(role) = labels {
        spec.labels.insert("role-name".into(), role.into());
        spec.labels.insert("roleset-name".into(), "group-0".into());
    }
    spec.annotations = [(CONFIG.to_owned(), config(&routing))].into();
}

fn tiers() -> Plan {
    let engines = FleetSpec::pairs(Dialect::Vllm, 1, 1).and(FleetSpec::whole(Dialect::Vllm, 1));
    Plan::new(engines).env("AIBRIX_PROMPT_LENGTH_BUCKETING", "true").registered(three_tiers)
}

/// The page's example in a file that the gateway reads: pods as they are written there, each with the port of its engine.
const THREE_TIERS: &str = include_str!("aibrix/three_tiers.yaml");

fn three_tiers_at(urls: &[String]) -> String {
    let port = |url: &String| format!("\"{}\"", url.rsplit(':').next().unwrap());
    let pods = THREE_TIERS.split("---\n").zip(urls);
    pods.map(|(pod, url)| pod.replace("\"8000\"", &port(url))).collect::<Vec<_>>().join("---\n")
}

fn tiers_of_a_file() -> Plan {
    let engines = FleetSpec::pairs(Dialect::Vllm, 1, 1).and(FleetSpec::whole(Dialect::Vllm, 1));
    Plan::new(engines).env("AIBRIX_PROMPT_LENGTH_BUCKETING", "true").listed(three_tiers_at)
}

/// The page's example, pod by pod.
const PODS: &str = include_str!("aibrix/three_tiers.json");

fn long() -> Ask {
    Ask::chat(&"a word after another ".repeat(600), 5)
}

/// Prefill and answering pod, as the answer names them.
fn pods(reply: &Reply) -> (&str, &str) {
    (reply.header("prefill-target-pod"), reply.header("target-pod"))
}

const PAIR: (&str, &str) = ("prefill-0", "decode-0");
const ALONE: (&str, &str) = ("", "standard-0");

#[tokio::test]
async fn short_prompts_go_to_the_pair_and_long_ones_to_the_standard_pod() {
    let house = tiers_of_a_file().open().await;
    assert_eq!([0, 1, 2].map(|at| house.seat(at).worker.role), [Role::Prefill, Role::Decode, Role::Whole]);
    for _ in 0..3 {
        for ask in [Ask::chat(PROMPT, 5), Ask::chat(PROMPT, 5).streamed()] {
            let short = ask.served(house.address).await;
            assert_eq!((pods(&short), short.header("routing-strategy")), (PAIR, "pd"));
        }
        assert_eq!(pods(&long().served(house.address).await), ALONE);
    }
    assert!(house.gateway().knobs.bucketing);
    house.close().await;
}

#[tokio::test]
async fn labels_and_annotations_are_all_that_is_registered() {
    let engines = FleetSpec::pairs(Dialect::Vllm, 1, 1).and(FleetSpec::whole(Dialect::Vllm, 1));
    let plan = Plan::new(engines).env("AIBRIX_PROMPT_LENGTH_BUCKETING", "true").empty();
    let mut house = plan.open().await;
    let pods: Vec<serde_json::Value> = serde_json::from_str(PODS).unwrap();
    for (at, mut pod) in pods.into_iter().enumerate() {
        pod["url"] = house.url(at).into();
        let body = pod.to_string();
        let json = [("content-type", "application/json")];
        let reply = Reply::send(house.address, request(Method::POST, "/workers", &json, body.into())).await;
        assert_eq!(reply.status, 202, "{}", reply.text());
    }
    house.ready().await;
    let roles = [0, 1, 2].map(|at| house.seat(at).worker.role);
    assert_eq!(roles, [Role::Prefill, Role::Decode, Role::Whole]);
    assert_eq!(pods_of(&house, Ask::chat(PROMPT, 5)).await, ("prefill-0".into(), "decode-0".into()));
    assert_eq!(pods_of(&house, long()).await, (String::new(), "standard-0".into()));
    house.close().await;
}

async fn pods_of(house: &House, ask: Ask) -> (String, String) {
    let reply = ask.served(house.address).await;
    let (prefill, answering) = pods(&reply);
    (prefill.to_owned(), answering.to_owned())
}

#[tokio::test]
async fn a_decode_that_is_down_leaves_prompts_of_its_range_to_whom_takes_them() {
    let mut house = tiers_of_a_file().no_retries().open().await;
    let urls = [0, 1, 2].map(|at| house.url(at));
    let whole = three_tiers_at(&urls);
    assert_eq!(pods(&Ask::chat(PROMPT, 5).served(house.address).await), PAIR);
    // The decode pod is about to end.
    house.list().write(&whole.replace("  name: decode-0\n", "  name: decode-0\n  deletionTimestamp: now\n"));
    let registry = house.gateway().registry.clone();
    until("the decode has left", || registry.load_full().decode().is_empty()).await;
    let refused = Ask::chat(PROMPT, 5).post(house.address).await;
    assert_eq!(refused.error(), (503, "service_unavailable".into()));
    assert_eq!(refused.header("x-error-routing"), "true");
    assert!(refused.text().contains("no prompt-length bucket matches prompt length"), "{}", refused.text());
    assert_eq!(pods(&long().served(house.address).await), ALONE);
    // A standard pod without a range takes any length. Its worker stays who it is.
    let any = |text: &str| text.replace(r#", "promptLenBucketMinLength": 2048 }"#, " }");
    let standard = house.seat(2);
    house
        .list()
        .write(&any(&whole).replace("  name: decode-0\n", "  name: decode-0\n  deletionTimestamp: now\n"));
    let takes_any = |fleet: &baton_core::fleet::Fleet| {
        let seat = fleet.seat(standard.slot).unwrap();
        seat.pulse.in_service() && !seat.worker.annotation(CONFIG).unwrap().contains("MinLength")
    };
    until("the standard pod takes any length", || takes_any(&registry.load_full())).await;
    assert_eq!(pods(&Ask::chat(PROMPT, 5).served(house.address).await), ALONE);
    house.list().write(&any(&whole));
    until("the decode is back", || registry.load_full().decode().iter().any(|d| d.pulse.in_service())).await;
    assert_eq!(pods(&Ask::chat(PROMPT, 5).served(house.address).await), PAIR);
    house.note_seats();
    house.close().await;
}

#[tokio::test]
async fn an_idle_standard_pod_takes_what_a_saturated_pair_cannot() {
    let any = |spec: &mut Spec| {
        three_tiers(spec);
        if spec.role == Role::Whole {
            spec.annotations = [(CONFIG.to_owned(), config(&json!({"combined": true})))].into();
        }
    };
    let house = tiers().args("--worker-metrics never").registered(any).open().await;
    let show = |at: usize, waiting: f64, drain: f64| {
        let gauges = house.seat(at).gauges.clone();
        gauges.waiting.set(Some(waiting));
        gauges.drain_rate.set(Some(drain));
    };
    show(0, 1.0, 4.0);
    show(1, 1.0, 4.0);
    show(2, 0.0, 8.0);
    assert_eq!(pods(&Ask::chat(PROMPT, 5).served(house.address).await), PAIR);
    show(0, 10.0, 5.0);
    assert_eq!(pods(&Ask::chat(PROMPT, 5).served(house.address).await), ALONE, "two seconds of queue");
    show(2, 10.0, 5.0);
    assert_eq!(pods(&Ask::chat(PROMPT, 5).served(house.address).await), PAIR, "nobody is idle");
    house.close().await;
}

#[tokio::test]
async fn the_strategy_is_the_clients_to_name_unless_the_operator_says_so() {
    let with = |text: &'static str| {
        move |spec: &mut Spec| {
            three_tiers(spec);
            spec.annotations = [(CONFIG.to_owned(), text.to_owned())].into();
        }
    };
    let pair = || Plan::pairs(Dialect::Vllm, 1, 1);
    let house: House = pair().open().await;
    let reply = Ask::chat(PROMPT, 5).post_with(house.address, &[("routing-strategy", "pd")]).await;
    assert_eq!((reply.status, reply.header("routing-strategy")), (200, "pd"));
    let reply = Ask::chat(PROMPT, 5).post_with(house.address, &[("routing-strategy", "rrandom")]).await;
    assert_eq!(reply.error(), (400, "incorrect_routing_strategy".into()));
    assert!(reply.text().contains("incorrect routing strategy rrandom"), "{}", reply.text());
    assert_eq!(reply.header("x-error-routing"), "true");
    house.close().await;

    let deaf = r#"{"authoritativeRoutingPolicy":true,"profiles":{"default":{"routingStrategy":"pd"}}}"#;
    let house = pair().registered(with(deaf)).open().await;
    let reply = Ask::chat(PROMPT, 5).post_with(house.address, &[("routing-strategy", "rrandom")]).await;
    assert_eq!(reply.status, 200, "the client's does not count");
    for hidden in ["routing-strategy", "target-pod", "target-pod-ip", "x-aibrix-config-profile"] {
        assert_eq!(reply.header(hidden), "", "{hidden}");
    }
    house.close().await;

    let auto = r#"{"profiles":{"default":{"routingStrategy":"pd"},
        "small":{"routingStrategy":"pd","routingConfig":{"promptTokensLt":2000}}}}"#;
    let house = pair().registered(with(auto)).open().await;
    let reply = Ask::chat(PROMPT, 5).post_with(house.address, &[("config-profile", "auto")]).await;
    assert_eq!(reply.header("x-aibrix-config-profile"), "small");
    let reply = Ask::chat(PROMPT, 5).served(house.address).await;
    assert_eq!(reply.header("x-aibrix-config-profile"), "");
    house.close().await;
}

#[tokio::test]
async fn a_prefill_that_takes_too_long_fails_its_request_alone() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let config = r#"{"profiles":{"default":{"routingStrategy":"pd",
            "routingConfig":{"pd":{"prefillRequestTimeout":1}}}}}"#;
        let pair = Plan::pairs(dialect, 1, 1).no_retries().registered(move |spec| {
            spec.annotations = [(CONFIG.to_owned(), config.to_owned())].into();
        });
        let mut house = pair.open().await;
        house.expire_what_was_stranded();
        house.arm(0, on(Where::Prefill, FaultKind::Stall)).await;
        let late = Ask::chat(PROMPT, 5).post(house.address).await;
        assert_eq!(late.error(), (504, "request_timeout".into()), "{dialect:?}");
        assert_eq!(late.header("x-error-pd-prefill"), "true");
        assert!(late.text().contains("1 s; waiting for the prefill"), "{}", late.text());
        Ask::chat(PROMPT, 5).served(house.address).await;
        house.close().await;
    }
}

#[tokio::test]
async fn charges_are_shown_and_go_back() {
    let house = Plan::pairs(Dialect::Vllm, 1, 2)
        .engines(|spec| spec.time_scale = 1.0)
        .env("ROUTING_ALGORITHM", "pd")
        .env("AIBRIX_PREFILL_SCORE_POLICY", "token_load")
        .env("AIBRIX_DECODE_SCORE_POLICY", "token_load")
        .open()
        .await;
    let endless = Ask::chat(PROMPT, 4000).with(json!({"ignore_eos": true})).streamed();
    let mut stream = endless.stream(house.address).await;
    stream.read_events(2).await;
    let page = house.page().await;
    assert_eq!(page.sum("pd_token_load_active_tokens", &[]), 0.0, "the prefill is done");
    assert!(page.sum("pd_token_load_kv_tokens", &[]) > 3500.0, "its KV is held until the decode is done");
    assert!(page.sum("pd_token_load_decode_tokens", &[]) > 0.0);
    stream.leave();
    let books = || house.gateway().strategies.cascade().unwrap().books().rows();
    until("charges are back", || books().iter().all(|(_, t)| (t.active, t.kv, t.decode) == (0, 0, 0))).await;
    for _ in 0..4 {
        Ask::chat(PROMPT, 5).served(house.address).await;
    }
    until("charges are back", || books().iter().all(|(_, t)| (t.active, t.kv, t.decode) == (0, 0, 0))).await;
    house.close().await;
}
