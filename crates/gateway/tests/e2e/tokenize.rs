//! Engines are asked what they make of prompts (`--tokenizer-path engine`): their count decides, and without it requests
//! are served all the same.

use baton_core::fleet::{Role, Secret};
use baton_core::kv::Trust;
use baton_gateway::registry::Spec;
use baton_sim::{Dialect, FleetSpec, Form, PromptId, text};
use serde_json::json;

use crate::support::{Ask, Gate, House, Plan, Raw, Reply, Step, until};

const CONFIG: &str = "model.aibrix.ai/config";

/// A pair for prompts of up to 100 tokens, and a worker for both phases for those of 101 and more.
fn two_tiers(spec: &mut Spec) {
    let bounds = match spec.role {
        Role::Prefill | Role::Decode => json!({"promptLenBucketMaxLength": 100}),
        _ => json!({"combined": true, "promptLenBucketMinLength": 101}),
    };
    let (name, part) = match spec.role {
        Role::Prefill => ("prefill-0", Some("prefill")),
        Role::Decode => ("decode-0", Some("decode")),
        _ => ("standard-0", None),
    };
    let labels = [("model.aibrix.ai/engine", "vllm"), ("model.aibrix.ai/port", "8000"), ("pod_name", name)];
    let group = part.map(|part| [("role-name", part), ("roleset-name", "group-0")]);
    let all = labels.into_iter().chain(group.into_iter().flatten());
    spec.labels = all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let config = json!({"profiles": {"default": {"routingStrategy": "pd", "routingConfig": bounds}}});
    spec.annotations = [(CONFIG.to_owned(), config.to_string())].into();
}

fn tiers() -> Plan {
    let engines = FleetSpec::pairs(Dialect::Vllm, 1, 1).and(FleetSpec::whole(Dialect::Vllm, 1));
    let plan = Plan::new(engines).env("AIBRIX_PROMPT_LENGTH_BUCKETING", "true").registered(two_tiers);
    plan.args("--tokenizer-path engine --explain-header").tapped()
}

/// Of so many tokens to the simulated engines, and of many more to any other tokenizer.
fn words(tokens: usize) -> String {
    let words = vec!["zqxjvk"; tokens].join(" ");
    assert_eq!(text::tokenize(&words).len(), tokens);
    words
}

/// Sends it, and says who answered and how the prompt's size was found.
async fn placed(house: &House, ask: &Ask) -> (String, String) {
    let reply = ask.post_with(house.address, &[("x-baton-explain", "1")]).await;
    ask.check(&reply);
    let told: serde_json::Value = serde_json::from_str(reply.header("x-baton-explain")).unwrap();
    (reply.header("target-pod").to_owned(), told["prompt"].as_str().unwrap().to_owned())
}

async fn results(house: &House) -> String {
    let page = house.page().await;
    let each = baton_core::tokenize::Outcome::ALL.into_iter().filter_map(|outcome| {
        let label = format!("result=\"{}\"", outcome.as_str());
        let sum = page.sum("baton_tokenize_questions_total", &[&label]);
        (sum > 0.0).then(|| format!("{} {sum}", outcome.as_str()))
    });
    each.collect::<Vec<_>>().join(", ")
}

fn questions(house: &House) -> usize {
    house.taps.iter().map(|tap| tap.questions().len()).sum()
}

/// As [`House::close`]; and every question has given its place back. What went on without the engine's count still does.
async fn close(house: House, places: usize) {
    until("no question is out", || house.gateway().asking.places() == places).await;
    house.close().await;
}

#[tokio::test]
async fn the_engines_count_decides_to_the_token() {
    let house = tiers().open().await;
    let chat = |tokens: usize| {
        let head = text::tokenize(&text::chat_text(&json!([{"role": "user", "content": ""}]))).len();
        let ask = Ask::chat("", 3).with(json!({"messages": [{"role": "user", "content": ""}]}));
        let mut n = tokens - head;
        loop {
            let messages = json!([{"role": "user", "content": words(n)}]);
            if text::tokenize(&text::chat_text(&messages)).len() == tokens {
                return ask.with(json!({"messages": messages})).of(PromptId::of_chat(&messages));
            }
            n += 1;
        }
    };
    for (tokens, pod) in [(100, "decode-0"), (101, "standard-0")] {
        for ask in [Ask::completion(&words(tokens), 3), chat(tokens), chat(tokens).streamed()] {
            let (answered, size) = placed(&house, &ask).await;
            assert_eq!((&*answered, size), (pod, format!("{tokens} tokens (the engine's /tokenize)")));
        }
    }
    // The same prompt was asked about a moment ago.
    assert_eq!(results(&house).await, "counted 4, kept 2");
    assert_eq!(house.page().await.sum("baton_tokenize_seconds_count", &[]), 4.0);
    let asked = house.taps.iter().flat_map(|tap| tap.questions()).map(|seen| seen.json());
    for question in asked {
        let members: Vec<_> = question.as_object().unwrap().keys().cloned().collect();
        assert!(members == ["messages", "model"] || members == ["model", "prompt"], "{members:?}");
    }
    // The client's own tokens are counted, and nobody is asked.
    let ids = text::tokenize(&words(100));
    let (pod, size) = placed(&house, &Ask::completion(&words(100), 3).with(json!({"prompt": ids}))).await;
    assert_eq!((&*pod, &*size), ("decode-0", "100 tokens (token ids)"));
    assert_eq!(questions(&house), 4);
    close(house, 32).await;
}

#[tokio::test]
async fn a_profile_for_prompts_of_some_length_is_found_by_the_engines_count() {
    let auto = r#"{"profiles":{"default":{"routingStrategy":"pd"},
        "small":{"routingStrategy":"pd","routingConfig":{"promptTokensLt":101}}}}"#;
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).args("--tokenizer-path engine").tapped();
    let house =
        plan.registered(|s| s.annotations = [(CONFIG.to_owned(), auto.to_owned())].into()).open().await;
    for (tokens, profile) in [(100, "small"), (101, "default")] {
        let ask = Ask::completion(&words(tokens), 3);
        let reply = ask.post_with(house.address, &[("config-profile", "auto")]).await;
        ask.check(&reply);
        assert_eq!(reply.header("x-aibrix-config-profile"), profile);
        // Nothing depends on it.
        ask.served(house.address).await;
    }
    assert_eq!((questions(&house), results(&house).await), (2, "counted 2".to_owned()));
    close(house, 32).await;
}

#[tokio::test]
async fn engines_without_the_route_are_asked_once_and_not_again_for_a_while() {
    let house = tiers().open().await;
    for tap in &house.taps {
        tap.tokenizes([Step::json(404, "", r#"{"detail":"Not Found"}"#)]);
    }
    for at in 0..6 {
        let (_, size) = placed(&house, &Ask::completion(&words(40 + at), 3)).await;
        let why = if at < 3 { "it answered 404" } else { "no worker that can be asked is well" };
        assert!(size.contains("ratio); no engine said: ") && size.contains(why), "{size}");
    }
    assert_eq!(house.taps.iter().map(|tap| tap.questions().len()).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(results(&house).await, "nobody 3, no_route 3");
    close(house, 32).await;
}

#[tokio::test]
async fn an_engine_that_hangs_costs_no_more_than_the_time_and_then_is_left_alone() {
    let house = tiers().args("--tokenize-timeout-ms 30").open().await;
    house.taps.iter().for_each(|tap| tap.tokenizes([Step::Never]));
    for at in 0..5 {
        let (pod, size) = placed(&house, &Ask::completion(&words(40 + at), 3)).await;
        assert!(!pod.is_empty());
        let (late, nobody) = ("no answer within 30 ms", "no worker that can be asked is well");
        // On a slow machine the first one's rest may be over by then.
        assert!(size.contains(late) || at >= 3 && size.contains(nobody), "{size}");
    }
    // What is late is not waited for: its connection is closed.
    until("every question was given up", || {
        house.taps.iter().all(|tap| tap.questions().iter().all(|question| question.is_gone()))
    })
    .await;
    let page = house.page().await;
    let took = page.sum("baton_tokenize_seconds_sum", &[]) / page.sum("baton_tokenize_seconds_count", &[]);
    assert!((0.03..10.0).contains(&took), "{took}");
    house.taps.iter().for_each(|tap| tap.clear());
    let (seats, clock) = ([0, 1, 2].map(|at| house.seat(at)), house.gateway().clock);
    until("they may be asked again", || seats.iter().all(|seat| !seat.standing.rests(clock.now()))).await;
    let (_, size) = placed(&house, &Ask::completion(&words(50), 3)).await;
    assert_eq!(size, "50 tokens (the engine's /tokenize)");
    close(house, 32).await;
}

#[tokio::test]
async fn no_more_are_asked_at_once_than_may_be_and_nobody_waits_for_that() {
    let house = tiers().args("--tokenize-at-once 1 --tokenize-timeout-ms 20000").open().await;
    let gate = Gate::default();
    house.taps.iter().for_each(|tap| tap.tokenizes([Step::Wait(gate.clone()), Step::Pass]));
    let (first, address) = (Ask::completion(&words(100), 3), house.address);
    let sent = first.clone();
    let waiting = tokio::spawn(async move { sent.post_with(address, &[("x-baton-explain", "1")]).await });
    until("it is asked", || questions(&house) == 1).await;
    for _ in 0..2 {
        let (_, size) = placed(&house, &Ask::completion(&words(60), 3)).await;
        assert!(size.contains("no engine said: as many are asked as may be"), "{size}");
    }
    gate.open();
    let reply = waiting.await.unwrap();
    first.check(&reply);
    assert_eq!(reply.header("target-pod"), "decode-0");
    assert_eq!(results(&house).await, "counted 1, busy 2");
    // A client that leaves gives its place back too.
    house.taps.iter().for_each(|tap| tap.tokenizes([Step::Never]));
    let body = Ask::completion(&words(70), 3).body.to_string();
    let raw = Raw::post(address, "/v1/completions", &body).await;
    until("it is asked", || questions(&house) == 2).await;
    drop(raw);
    close(house, 1).await;
}

#[tokio::test]
async fn what_an_engine_says_is_believed_if_it_fits_together() {
    let house = tiers().open().await;
    for (at, (status, body, why)) in [
        (200, r#"{"count":3,"tokens":[1]}"#, "the count is not that of the tokens"),
        (200, r#"{"count":1}"#, "there is no list of tokens"),
        (200, "<html>", "no JSON object"),
        (500, "{}", "it answered 500"),
        (400, r#"{"error":{"message":"no"}}"#, "it answered 400"),
        (404, r#"{"error":{"message":"The model `sim` does not exist."}}"#, "the engine refused the prompt"),
    ]
    .into_iter()
    .enumerate()
    {
        house.taps.iter().for_each(|tap| tap.tokenizes([Step::json(status, "", body)]));
        let (seats, clock) = ([0, 1, 2].map(|at| house.seat(at)), house.gateway().clock);
        until("one may be asked", || seats.iter().any(|seat| !seat.standing.rests(clock.now()))).await;
        let (_, size) = placed(&house, &Ask::completion(&words(30 + at), 3)).await;
        assert!(size.contains("ratio); no engine said: ") && size.contains(why), "{why}: {size}");
    }
    let huge = format!(r#"{{"count":1,"tokens":[{}1]}}"#, " ".repeat(1 << 20));
    house.taps.iter().for_each(|tap| tap.tokenizes([Step::json(200, "", &huge)]));
    let (seats, clock) = ([0, 1, 2].map(|at| house.seat(at)), house.gateway().clock);
    until("one may be asked", || seats.iter().any(|seat| !seat.standing.rests(clock.now()))).await;
    let (_, size) = placed(&house, &Ask::completion(&words(29), 3)).await;
    assert!(size.contains("the answer is larger than 52"), "half a MiB, and 8 bytes for each asked: {size}");
    assert_eq!(results(&house).await, "refused 2, failed 1, unusable 4");
    close(house, 32).await;
}

#[tokio::test]
async fn an_engine_is_shown_its_own_key_and_none_of_the_clients() {
    for (gateway_key, worker_key) in [(true, true), (false, true), (false, false)] {
        let plan = if gateway_key { tiers().arg("--api-key", "gateway-key") } else { tiers() };
        let mut house = plan
            .registered(move |spec| {
                two_tiers(spec);
                spec.api_key = worker_key.then(|| Secret::new("worker-key"));
            })
            .open()
            .await;
        house.no_after();
        let headers = [
            ("authorization", "Bearer gateway-key"),
            ("x-api-key", "clients-key"),
            ("x-correlation-id", "clients-own"),
            ("traceparent", "00-11111111111111111111111111111111-2222222222222222-01"),
        ];
        for at in 0..4 {
            let ask = Ask::completion(&words(80 + at), 3);
            ask.check(&ask.post_with(house.address, &headers).await);
        }
        assert_eq!(questions(&house), 4);
        for seen in house.taps.iter().flat_map(|tap| tap.questions()) {
            let expected = if worker_key { "Bearer worker-key" } else { "" };
            assert_eq!(seen.header("authorization"), expected);
            let mut names: Vec<&str> = seen.headers.keys().map(|name| name.as_str()).collect();
            names.retain(|name| *name != "authorization");
            names.sort_unstable();
            assert_eq!(names, ["content-length", "content-type", "host"]);
        }
        close(house, 32).await;
    }
}

/// No tokenizer is at hand, the gateway saw none of the first turns, and no client sent a token's number.
#[tokio::test]
async fn who_holds_a_conversation_is_found_by_the_engines_tokens() {
    let turn = |role: &str, what: &str| json!({"role": role, "content": what.repeat(300)});
    let first = [turn("user", "one two "), turn("user", "six ten ")];
    let second = first.clone().map(|user| json!([user, turn("assistant", "go on "), turn("user", "yes ")]));
    let first = first.map(|user| json!([user]));
    let fleet = FleetSpec::whole(Dialect::Vllm, 2).with(|spec| spec.kv_events = Some(Form::Map));
    let args = "--policy cache_aware --worker-warmup-secs 0 --explain-header --tokenizer-path engine";
    let house = Plan::new(fleet).args(args).tapped().open().await;
    let ask = |messages: &serde_json::Value| {
        Ask::chat("", 3).with(json!({"messages": messages})).of(PromptId::of_chat(messages))
    };
    for at in [1, 0] {
        ask(&first[at]).served(house.engine(at).addr()).await;
        let blocks = text::tokenize(&text::chat_text(&first[at])).len() / 16;
        let seat = house.seat(at);
        let known = || (seat.view.trust(seat.pulse.life()), seat.view.blocks());
        until("its blocks are known", || known() == (Trust::Whole, blocks)).await;
    }
    for at in [1, 0, 0, 1] {
        let asked = ask(&second[at]);
        let reply: Reply = asked.post_with(house.address, &[("x-baton-explain", "1")]).await;
        asked.check(&reply);
        assert_eq!(reply.header("x-smg-routed-worker-id"), house.url(at));
        let said = reply.header("x-baton-explain");
        assert!(said.contains(" % by events (whole, last "), "{said}");
    }
    assert_eq!(results(&house).await, "counted 2, kept 2");
    // An engine that does not say: what was sent there counts.
    house.taps.iter().for_each(|tap| tap.tokenizes([Step::json(400, "", "{}")]));
    let third = json!([first[1][0], turn("assistant", "well "), turn("user", "no ")]);
    let asked = ask(&third);
    let reply = asked.post_with(house.address, &[("x-baton-explain", "1")]).await;
    asked.check(&reply);
    let said = reply.header("x-baton-explain");
    assert!(said.contains("learnt ratio); no engine said: ") && !said.contains(" by events ("), "{said}");
    close(house, 32).await;
}

#[tokio::test]
async fn a_request_for_several_samples_is_one_question() {
    let fleet = FleetSpec::pairs(Dialect::Sglang, 1, 1).with(|spec| spec.kv_events = Some(Form::Map));
    let args = "--policy cache_aware --tokenizer-path engine";
    let house = Plan::new(fleet).args(args).tapped().open().await;
    Ask::completion(&words(64), 3).served(house.address).await;
    let seat = house.seat(0);
    until("its blocks are known", || seat.view.blocks() == 4).await;
    assert_eq!(questions(&house), 0, "nobody told what it holds");
    let ask = Ask::completion(&words(80), 3).with(json!({"n": 3}));
    let reply = ask.served(house.address).await;
    assert_eq!(reply.json()["choices"].as_array().unwrap().len(), 3);
    assert_eq!((questions(&house), results(&house).await), (1, "counted 1".to_owned()));
    assert_eq!(
        house.page().await.sum("baton_kv_choices_total", &["known=\"whole\""]),
        6.0,
        "both legs of each"
    );
    close(house, 32).await;
}
