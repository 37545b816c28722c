//! AIBrix's strategies outside `pd`: named by header, environment or the model's config, on workers that run both
//! phases.

use std::collections::BTreeSet;

use baton_gateway::registry::Spec;
use baton_sim::{Dialect, FleetSpec};
use serde_json::json;

use crate::support::{Ask, House, PROMPT, Plan, Reply, until};

const NAMES: [&str; 16] = [
    "random",
    "least-request-top-k",
    "load-balance",
    "least-latency",
    "least-gpu-cache",
    "least-utilization",
    "least-busy-time",
    "vtc-basic",
    "least-latency:2,load-balance:1",
    "least-request",
    "power-of-two",
    "least-kv-cache",
    "throughput",
    "prefix-cache",
    "session-affinity",
    "prefix-cache:2,least-request:1",
];

fn whole(n: usize) -> Plan {
    Plan::new(FleetSpec::whole(Dialect::Vllm, n))
}

/// Workers are pods of AIBrix's with this config.
fn pods(config: &'static str) -> impl FnMut(&mut Spec) + Send + 'static {
    let mut count = 0;
    move |spec| {
        let pod = format!("pod-{count}");
        count += 1;
        let labels =
            [("model.aibrix.ai/name", "sim"), ("pod_name", &pod), ("model.aibrix.ai/config", config)];
        spec.labels.extend(labels.map(|(name, value)| (name.to_owned(), value.to_owned())));
        spec.labels.retain(|_, value| !value.is_empty());
    }
}

fn ask(at: usize) -> Ask {
    Ask::completion(&format!("{PROMPT} {at}"), 4)
}

async fn by(house: &House, strategy: &str, at: usize) -> Reply {
    let reply = ask(at).post_with(house.address, &[("routing-strategy", strategy)]).await;
    ask(at).check(&reply);
    reply
}

#[tokio::test]
async fn each_name_serves_and_says_which_pod_did() {
    let house = whole(2).registered(pods("")).open().await;
    for name in NAMES {
        for at in 0..4 {
            let reply = by(&house, name, at).await;
            assert_eq!(reply.header("routing-strategy"), name);
            assert!(["pod-0", "pod-1"].contains(&reply.header("target-pod")), "{name}");
            assert!(reply.header("target-pod-ip").starts_with("127.0.0.1:"));
            assert!(!reply.header("request-id").is_empty());
            assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
            for absent in ["prefill-target-pod", "prefill-target-pod-ip", "x-aibrix-config-profile"] {
                assert_eq!(reply.header(absent), "", "{name}: {absent}");
            }
            assert_eq!(reply.header("x-session-id").is_empty(), name != "session-affinity");
        }
    }
    let picks = |policy: &str| format!("policy=\"{policy}\"");
    let page = house.page().await;
    for (policy, due) in [("random", 4.0), ("vtc-basic", 4.0), ("session-affinity", 4.0), ("list", 8.0)] {
        assert_eq!(page.sum("smg_worker_selection_total", &[&picks(policy)]), due, "{policy}");
    }
    let own = ask(0).served(house.address).await;
    assert_eq!((own.header("routing-strategy"), own.header("request-id")), ("", ""));
    house.close().await;
}

#[tokio::test]
async fn l11_a_name_that_nobody_knows_is_400_in_aibrixs_words() {
    let house = whole(1).open().await;
    for name in ["rrandom", "pd:-1", "random,,least-request", "random:x", "least-request:0"] {
        let reply = ask(0).post_with(house.address, &[("routing-strategy", name)]).await;
        assert_eq!((reply.status, reply.header("x-error-routing")), (400, "true"), "{name}");
        let error = reply.json()["error"].clone();
        assert!(
            error["message"].as_str().unwrap().contains(&format!("incorrect routing strategy {name}")),
            "{error}"
        );
        assert_eq!(error["type"], "invalid_request_error");
    }
    house.close().await;
}

#[tokio::test]
async fn l4_the_environment_names_a_strategy_where_nobody_else_does() {
    let house = whole(2).env("ROUTING_ALGORITHM", "least-request").open().await;
    assert_eq!(ask(0).served(house.address).await.header("routing-strategy"), "least-request");
    assert_eq!(by(&house, "random", 1).await.header("routing-strategy"), "random");
    house.close().await;
}

#[tokio::test]
async fn l1_l2_l3_lock_header_and_profile() {
    let locked =
        r#"{"lockedRoutingStrategy":"least-request","profiles":{"default":{"routingStrategy":"random"}}}"#;
    let house = whole(1).registered(pods(locked)).open().await;
    assert_eq!(by(&house, "throughput", 0).await.header("routing-strategy"), "least-request");
    house.close().await;
    let profiles = r#"{"defaultProfile":"a","profiles":{"a":{"routingStrategy":"random"},
        "b":{"routingStrategy":"least-request"},"c":{"routingStrategy":"power-of-two","routingConfig":{"maxTokensLt":9}}}}"#;
    let house = whole(1).registered(pods(profiles)).open().await;
    let named = async |headers: &[(&str, &str)]| ask(0).post_with(house.address, headers).await;
    for (headers, strategy, profile) in [
        (&[("routing-strategy", "throughput")][..], "throughput", ""),
        (&[], "random", ""),
        (&[("config-profile", "b")], "least-request", ""),
        (&[("config-profile", "missing")], "random", ""),
        (&[("config-profile", " AUTO ")], "power-of-two", "c"),
    ] {
        let reply = named(headers).await;
        ask(0).check(&reply);
        assert_eq!(reply.header("routing-strategy"), strategy, "{headers:?}");
        assert_eq!(reply.header("x-aibrix-config-profile"), profile, "{headers:?}");
    }
    house.close().await;
}

#[tokio::test]
async fn l17_a_model_that_does_not_hear_its_clients_hides_how_it_routes() {
    let config =
        r#"{"authoritativeRoutingPolicy":true,"profiles":{"default":{"routingStrategy":"least-request"}}}"#;
    let house = whole(1).registered(pods(config)).open().await;
    let headers = [("routing-strategy", "nonsense"), ("config-profile", "auto")];
    let reply = ask(0).post_with(house.address, &headers).await;
    ask(0).check(&reply);
    for hidden in ["routing-strategy", "target-pod", "target-pod-ip", "x-aibrix-config-profile"] {
        assert_eq!(reply.header(hidden), "", "{hidden}");
    }
    assert!(house.page().await.sum("smg_worker_selection_total", &["policy=\"least-request\""]) > 0.0);
    house.close().await;
}

#[tokio::test]
async fn engines_see_nothing_of_what_clients_say_about_routing() {
    let house = whole(1).tapped().open().await;
    let headers = [
        ("routing-strategy", "session-affinity"),
        ("config-profile", "a"),
        ("x-aibrix-session-key", "key"),
        ("x-session-id", "MTAuMC4wLjE6ODAwMA=="),
        ("external-filter", "!a"),
        ("user", "somebody"),
        ("target-pod", "10.0.0.1:80"),
    ];
    ask(0).check(&ask(0).post_with(house.address, &headers).await);
    let seen = house.taps[0].seen();
    let leg = seen.iter().find(|seen| seen.path == "/v1/completions").unwrap();
    for (name, _) in headers {
        assert_eq!(leg.header(name), "", "{name}");
    }
    house.close().await;
}

#[tokio::test]
async fn a_session_goes_back_to_the_worker_it_was_told_of() {
    let house = whole(3).open().await;
    let strategy = ("routing-strategy", "session-affinity");
    let first = ask(0).post_with(house.address, &[strategy]).await;
    let (id, worker) =
        (first.header("x-session-id").to_owned(), first.header("x-smg-routed-worker-id").to_owned());
    for at in 0..6 {
        let again = ask(at).post_with(house.address, &[strategy, ("x-session-id", &id)]).await;
        assert_eq!((again.header("x-smg-routed-worker-id"), again.header("x-session-id")), (&*worker, &*id));
    }
    let mut homes = BTreeSet::new();
    for at in 0..6 {
        let keyed = ask(at).post_with(house.address, &[strategy, ("x-aibrix-session-key", "chat 7")]).await;
        homes.insert(keyed.header("x-smg-routed-worker-id").to_owned());
    }
    assert_eq!(homes.len(), 1);
    house.close().await;
}

#[tokio::test]
async fn prefix_cache_sends_a_prompt_back_to_where_it_was() {
    let house = whole(3).open().await;
    let long = "A long beginning that all of these prompts have in common. ".repeat(40);
    let mut served = BTreeSet::new();
    for at in 0..6 {
        let asked = Ask::completion(&format!("{long} {at}"), 4);
        let reply = asked.post_with(house.address, &[("routing-strategy", "prefix-cache")]).await;
        asked.check(&reply);
        served.insert(reply.header("x-smg-routed-worker-id").to_owned());
    }
    assert_eq!(served.len(), 1);
    house.close().await;
}

#[tokio::test]
async fn least_kv_cache_goes_by_what_the_engines_say() {
    let plan = whole(2).engines(|spec| (spec.time_scale, spec.kv_blocks) = (0.2, 512));
    let house = plan.args("--worker-metrics-interval-ms 10").open().await;
    let strategy = [("routing-strategy", "least-kv-cache")];
    by(&house, "least-kv-cache", 0).await;
    // It holds its prompt's KV where nobody counted it: at the engine, and not through the gateway.
    let filler = "many words to fill memory with and ".repeat(150);
    let busy = Ask::completion(&filler, 3000).with(json!({"ignore_eos": true})).streamed();
    let mut stream = busy.stream(house.engine(0).addr()).await;
    stream.read_events(2).await;
    let full = house.seat(0);
    until("the engine has told it", || full.gauges.kv_usage.get().is_some_and(|used| used > 0.1)).await;
    let idle = house.seat(1);
    until("so has the other", || idle.gauges.kv_usage.get().is_some_and(|used| used < 0.1)).await;
    for at in 0..8 {
        let reply = ask(at).post_with(house.address, &strategy).await;
        ask(at).check(&reply);
        assert_eq!(reply.header("x-smg-routed-worker-id"), house.url(1), "{at}");
    }
    stream.leave();
    until("its memory is free again", || full.gauges.kv_usage.get() == Some(0.0)).await;
    house.close().await;
}

#[tokio::test]
async fn a_pair_serves_no_strategy_that_needs_one_worker() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).open().await;
    let reply = ask(0).post_with(house.address, &[("routing-strategy", "random")]).await;
    assert_eq!(reply.error(), (503, "service_unavailable".to_owned()));
    assert_eq!(reply.header("x-error-routing"), "true");
    house.close().await;
}

/// Half of the workers are in tier `gold`.
fn tiers() -> impl FnMut(&mut Spec) + Send + 'static {
    let mut count = 0;
    move |spec| {
        let tier = if count % 2 == 0 { "gold" } else { "iron" };
        let labels = [("pod_name", format!("{tier}-{count}")), ("tier", tier.to_owned())];
        spec.labels.insert("model.aibrix.ai/name".to_owned(), "sim".to_owned());
        spec.labels.extend(labels.map(|(name, value)| (name.to_owned(), value)));
        count += 1;
    }
}

#[tokio::test]
async fn a_clients_filter_keeps_its_requests_to_workers_that_it_selects() {
    let house = whole(4).registered(tiers()).open().await;
    for strategy in ["", "random", "least-request", "prefix-cache,least-request"] {
        for (filter, tier) in [("tier=iron", "iron-"), ("tier notin (iron, lead)", "gold-")] {
            for at in 0..4 {
                let headers = [("external-filter", filter), ("routing-strategy", strategy)];
                let sent = if strategy.is_empty() { &headers[..1] } else { &headers[..] };
                let reply = ask(at).post_with(house.address, sent).await;
                ask(at).check(&reply);
                let pod = reply.header("target-pod");
                assert!(pod.starts_with(tier), "{strategy} {filter}: {pod}");
            }
        }
    }
    let nobody = ask(0).post_with(house.address, &[("external-filter", "tier=lead")]).await;
    assert_eq!(nobody.error(), (503, "external_filter_selects_nobody".into()));
    assert_eq!(nobody.header("x-error-no-model-backends"), "true");
    let wrong = ask(0).post_with(house.address, &[("external-filter", "tier in gold")]).await;
    assert_eq!(wrong.error(), (400, "invalid_external_filter".into()));
    assert_eq!(wrong.header("x-error-routing"), "true");
    assert!(wrong.text().contains("found \\\"gold\\\" where"), "{}", wrong.text());
    house.close().await;
}
