//! Scenarios of `baton decide`: every one under `crates/core/tests/scripts/decide` plays as it expects, and what is no
//! scenario is refused with its line.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test crate are not seen as tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use baton_core::dice::Dice;
use baton_core::place::cascade::knobs::Knobs;
use baton_gateway::config::setting::{Effect, Setting};
use baton_gateway::config::settings;
use baton_gateway::decide::{decide, decide_file};
use serde_json::{Value, json};

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/scripts/decide")
}

/// The scenarios of one sheet, by name.
fn sheet(name: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(scripts().join(name)).unwrap();
    let mut all: Vec<PathBuf> = all.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

fn stem(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

/// Plays a sheet, and looks for cases without a scenario.
fn plays(name: &str, cases: &[&str]) {
    let paths = sheet(name);
    let mut wrong = Vec::new();
    for path in &paths {
        match decide_file(path.to_str().unwrap()) {
            Err(bad) => wrong.push(bad.to_string()),
            Ok(report) => {
                if !std::fs::read_to_string(path).unwrap().contains("\nexpect:\n  - ") {
                    wrong.push(format!("{}: expects nothing", path.display()));
                }
                wrong.extend(report.unmet.iter().map(|unmet| format!("{}: {unmet}", path.display())));
                let due =
                    |w: &str| w.contains("the default is") || w.starts_with("model.aibrix.ai/config of ");
                let unused = report.warnings.iter().filter(|w| !due(w));
                wrong.extend(unused.map(|w| format!("{}: {w}", path.display())));
            }
        }
    }
    let has = |case: &str| paths.iter().any(|path| stem(path).split('-').next() == Some(case));
    wrong
        .extend(cases.iter().filter(|case| !has(case)).map(|case| format!("{name}: {case} has no scenario")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn smgs_policies_and_pairing() {
    plays("smg", &["23", "24", "31", "32", "33", "33a", "47", "69", "75", "77", "78", "79", "80"]);
}

/// The cases of AIBrix's page that a scenario can tell, by part.
const AIBRIX: [(&str, &[u32]); 11] = [
    ("A", &[1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15]),
    ("B", &[2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30]),
    ("C", &[2, 3, 4, 5, 6, 8, 9, 10]),
    ("D", &[1, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20]),
    ("E", &[2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 21, 22, 23, 24, 26, 27, 28]),
    ("F", &[1, 2, 4, 5, 6, 7, 8, 10, 11]),
    ("G", &[1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15]),
    ("H", &[2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30]),
    ("J", &[1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23, 25]),
    ("K", &[1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22]),
    ("L", &[1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17]),
];

/// Bands, of which each is a case of its own.
const BANDS: [u32; 15] = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17];

#[test]
fn aibrixs_cases() {
    let parts = AIBRIX.into_iter().chain([("I", &BANDS[..])]);
    let cases: Vec<String> =
        parts.flat_map(|(part, numbers)| numbers.iter().map(move |n| format!("{part}{n}"))).collect();
    plays("aibrix", &cases.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Settings of choice that a described fleet has no say in, and where they are tried instead.
const ELSEWHERE: [(&str, &str); 18] = [
    ("worker-warmup-secs", "core's place::warm: nobody joins in a scenario"),
    ("worker-warmup-share", "the same"),
    ("worker-warmup-blocks", "the same"),
    ("worker-warmup-thin-ratio", "the same"),
    ("worker-warmup-divert-every", "the same"),
    ("eviction-interval", "core's place::keys"),
    ("max-tree-size", "core's prefix"),
    ("tokenizer-path", "core's size, and e2e tokenize"),
    ("tokenize-timeout-ms", "e2e tokenize"),
    ("tokenize-at-once", "e2e tokenize"),
    ("kv-events-port", "e2e hearing"),
    ("kv-events-replay-port", "e2e hearing"),
    ("kv-events-max-bytes", "core's kv"),
    ("policy", "every scenario's"),
    ("prefill-policy", "every scenario's"),
    ("decode-policy", "every scenario's"),
    ("routing-key-override", "smg/33-sticky"),
    ("selection-policy", "has no effect, on purpose"),
];

#[test]
fn every_setting_of_choice_makes_a_difference_in_a_scenario() {
    let paths = ["aibrix", "legs", "smg", "whole"].into_iter().flat_map(sheet);
    let all: String = paths.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let elsewhere = |flag: &str| ELSEWHERE.iter().any(|(other, _)| *other == flag);
    let of_choice = |s: &&Setting| ["policy", "affinity"].contains(&s.group) && s.note.effect == Effect::Now;
    let flags = settings().filter(of_choice).map(|s| s.flag).filter(|flag| !elsewhere(flag));
    let flags = flags.map(|flag| format!("--{flag}"));
    // As AIBrix's page lists them, beside the variables of the same meaning.
    let in_profiles = [
        "promptLengthBucketing",
        "bucketServe",
        "bucketServeMode",
        "prefillScorePolicy",
        "decodeScorePolicy",
        "standardDeviationFactor",
        "prefillRequestTimeout",
        "prefillLoadImbalanceMinSpread",
        "decodeLoadImbalanceMinSpread",
        "decodeThroughputImbalanceMinSpread",
        "decodeScoreRatioThreshold",
        "decodeLBWeightRunning",
        "decodeLBWeightThroughput",
        "tokenLoadKVWeight",
        "tokenLoadRequestCost",
        "tokenLoadTTLSeconds",
        "tokenLoadSessionTTLSeconds",
        "hybridCacheLoadFactor",
        "minMatchPct",
        "decodeAbortTimeout",
        "decodeAbortRetryDelay",
        "decodeFirstResponseTimeout",
        "decodeResponseTimeout",
        "decodeStreamIdleTimeout",
    ];
    let quoted = in_profiles.iter().map(|name| format!("\"{name}\""));
    let variables = Knobs::variables().map(str::to_owned);
    let named: Vec<String> = flags.chain(quoted).chain(variables).collect();
    let ends = |text: &str| !text.starts_with(|c: char| c.is_ascii_alphanumeric() || "_-".contains(c));
    let has = |name: &&String| all.match_indices(name.as_str()).any(|(at, _)| ends(&all[at + name.len()..]));
    let lost: Vec<_> = named.iter().filter(|name| !has(name)).collect();
    assert!(
        lost.is_empty() && named.len() > 80,
        "{} settings, of which no scenario has {lost:?}",
        named.len()
    );
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/aibrix.md"));
    let page = page.unwrap();
    let silent: Vec<_> = in_profiles.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(silent.is_empty(), "docs/aibrix.md does not name {silent:?}");
}

#[test]
fn aibrix_j9_no_name_for_aborts_is_the_beginning_of_another() {
    let report = decide_file(scripts().join("aibrix/J9.yaml").to_str().unwrap()).unwrap().to_json();
    let rid = |request: &Value| {
        let body: Value = serde_json::from_str(request["legs"][0]["body"].as_str().unwrap()).unwrap();
        body["rid"].as_str().unwrap().to_owned()
    };
    let rids: BTreeSet<String> = report["requests"].as_array().unwrap().iter().map(rid).collect();
    assert_eq!((rids.len(), rids.iter().map(String::len).collect::<BTreeSet<_>>().len()), (64, 1));
}

/// Some steps that a list of them may have.
fn steps(dice: &mut Dice) -> String {
    let (mut at, mut open, mut out) = (0, [false; 2], "[".to_owned());
    for _ in 0..dice.below(12) {
        at += [0, 1, 40, 300, 70_000][dice.below(5)];
        let leg = dice.below(2);
        let who = ["prefill", "decode"][leg];
        let does = match (open[leg], dice.below(7)) {
            (false, 0 | 1) => "answers",
            (false, 2) => "answers, status: 500",
            (false, 3) => "refuses",
            (false, 4) => "ages",
            (false, 5) => "answers, body: {kv_transfer_params: {do_remote_prefill: true}}",
            (false, _) => "head",
            (true, 0..4) => "chunk, text: \"data: {}\\n\\n\"",
            (true, 4) => "breaks",
            (true, _) => "ends",
        };
        open[leg] = does == "head" || (open[leg] && does.starts_with("chunk"));
        out += &format!("{{at_ms: {at}, who: {who}, does: {does}}}, ");
    }
    if dice.below(4) == 0 {
        out += &format!("{{at_ms: {at}, who: client, does: leaves}}");
    }
    out + "]"
}

#[test]
fn whatever_engines_do_a_request_ends_once_and_gives_everything_back() {
    let info =
        "server_info: [{body: {disaggregated_params: {ctx_info_endpoint: 'tcp://a:1', ctx_dp_rank: 0}}}]";
    let kinds = [
        ("sglang", "", ""),
        ("vllm", "labels: {kv_connector: NixlConnector}", ""),
        ("vllm", "roleset: r", "ROUTING_ALGORITHM: pd"),
        ("trtllm", "", ""),
        ("trtllm", info, "AIBRIX_TRT_SCHEDULE_STYLE: generation_first"),
    ];
    for seed in 0..300 {
        let mut dice = Dice::new(seed);
        let (engine, more, env) = kinds[dice.below(kinds.len())];
        let worker = |id: &str, role: &str, more: &str| {
            format!("  - {{id: {id}, role: {role}, engine: {engine}, {more}}}\n")
        };
        let decodes = if more == info { "" } else { more };
        let mut text = format!("seed: {seed}\nenv: {{{env}}}\nflags: [--pd-disaggregation]\nworkers:\n");
        for n in 0..2 {
            text += &worker(&format!("p{n}"), "prefill", more);
            text += &worker(&format!("d{n}"), "decode", decodes);
        }
        text += "requests:\n";
        for _ in 0..3 {
            let stream = dice.below(2) == 0;
            text +=
                &format!("  - {{body: {{messages: [], stream: {stream}}}, engine: {}}}\n", steps(&mut dice));
        }
        let report = decide("s", &text).unwrap().to_json();
        for request in report["requests"].as_array().unwrap() {
            let events = request["events"].as_array().unwrap();
            let ends = events.iter().filter(|event| event["does"] == "settles").count();
            assert_eq!((ends, &request["held"]), (1, &json!([])), "{text}\n{request}");
            let client = &request["client"];
            let told = client["complete"] == true || client["error"].is_object() || client["left"] == true;
            assert!(told, "{text}\n{request}");
        }
        for worker in report["state"]["workers"].as_array().unwrap() {
            let charged =
                ["active", "kv", "decode"].map(|what| worker["charged"][what].as_u64().unwrap_or(0));
            assert_eq!((&worker["in_flight"], charged), (&json!(0), [0; 3]), "{text}\n{worker}");
        }
        let sum = |family: &str| {
            let all = report["counters"].as_object().unwrap().iter();
            all.filter(|(name, _)| name.starts_with(family)).filter_map(|(_, n)| n.as_u64()).sum::<u64>()
        };
        let (issued, ended) = (sum("baton_handoffs_issued_total"), sum("baton_handoffs_ended_total"));
        assert_eq!(issued, ended, "{text}");
        assert_eq!(sum("baton_exchanges_total"), 3, "{text}");
    }
}

#[test]
fn aibrixs_strategies_for_one_worker() {
    plays("whole", &["L1", "L10", "L11"]);
}

#[test]
fn what_becomes_of_legs() {
    plays("legs", &[]);
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let scenario = |seed: u64| {
        let requests = "  - {}\n".repeat(40);
        let workers: String = (0..8).map(|i| format!("  - {{id: w{i}, role: whole}}\n")).collect();
        format!("seed: {seed}\nflags: [--policy random]\nworkers:\n{workers}requests:\n{requests}")
    };
    let play = |seed| decide("s", &scenario(seed)).unwrap().to_json()["requests"].clone();
    assert_eq!(play(1), play(1));
    assert_ne!(play(1), play(2));
}

#[test]
fn what_is_no_scenario_is_refused_with_its_line() {
    let worker = "workers:\n  - {id: a, role: decode}\n";
    for (text, why) in [
        ("sed: 1", "s:1: unknown key sed in the scenario: did you mean seed?"),
        ("seed: -1", "s:1: seed of the scenario must be a whole number, 0 or more, not \"-1\""),
        ("seed: 1\nseed: 2", "s:2: seed is given twice, first in line 1"),
        ("workers: {a: 1}", "s:1: workers of the scenario must be a list"),
        ("workers:\n  - {role: decode}", "s:2: a worker has no id"),
        (
            "workers:\n  - {id: a, role: dcode}",
            "s:2: role of a worker must be prefill, decode, encode or whole, not \"dcode\"",
        ),
        ("workers:\n  - id: a\n    ready: yes", "s:3: ready of a worker must be true or false, not \"yes\""),
        (
            "workers:\n  - {id: a, url: 'h:1'}",
            "s:2: url of a worker: \"h:1\" must start with http:// or https://",
        ),
        ("workers:\n  - {id: a}\n  - {id: a}", "s:3: there is a worker a already"),
        (
            "workers:\n  - id: a\n    load: {runing: 1}",
            "s:3: unknown key runing in load of a worker: did you mean running?",
        ),
        (
            "workers:\n  - {id: a, load: {kv_usage: -0.5}}",
            "s:2: kv_usage of load of a worker must be a number, 0 or more, not -0.5",
        ),
        (
            "workers:\n  - {id: a, load: {kv_usage: 55}}",
            "s:2: kv_usage of load of a worker must be at most 1, not 55",
        ),
        (
            "workers:\n  - {id: a, load: {remote: [{instance: b, value: '1,1,1', sen_ms: 1}]}}",
            "s:2: unknown key sen_ms in what another gateway has charged: did you mean seen_ms?",
        ),
        (
            "workers:\n  - {id: a, load: {remote: [{value: '1,1,1'}]}}",
            "s:2: what another gateway has charged needs an instance and a value",
        ),
        (
            "workers:\n  - {id: a, load: {remote: [{instance: b, value: x}, {instance: b, value: y}]}}",
            "s:2: instance b is there already",
        ),
        (
            "workers:\n  - {id: a, load: {remote: [{instance: b, value: x}]}}\n  - {id: c, load: {remote: [{instance: b, value: x, seen_ms: 5}]}}",
            "s:3: instance b has another seen_ms before",
        ),
        (
            "requests: [{path: /v1/chat}]",
            "s:1: path of a request must be one of /v1/chat/completions, /v1/comp",
        ),
        (
            "requests: [{at_ms: 5, done_at_ms: 4}]",
            "s:1: at_ms, prefill_done_at_ms, fails_at_ms and done_at_ms must not go",
        ),
        ("requests: [{fails_at_ms: 5, done_at_ms: 4}]", "s:1: done_at_ms must not lie before the failure"),
        ("requests: [{retried: pair}]", "s:1: what is retried must have failed"),
        ("requests: [{fails_at_ms: 5, retried: both}]", "s:1: retried of a request must be pair or decode"),
        ("requests: [{fails_at_ms: 5, retried: decode}]", "s:1: retried: decode needs prefill_done_at_ms"),
        (
            "requests: [{fails_at_ms: 5, prefill_fails_at_ms: 5}]",
            "s:1: prefill_fails_at_ms and fails_at_ms: a request fails once",
        ),
        (
            "requests: [{prefill_done_at_ms: 4, prefill_fails_at_ms: 5}]",
            "s:1: a prefill is done or fails: prefill_done_at_ms and prefill_fails_at_ms are both given",
        ),
        ("requests: [{prompt_tokens: -5}]", "s:1: prompt_tokens of a request must be a whole number, 0"),
        ("requests: [{prompt_tokens: {from: 1}}]", "s:1: prompt_tokens of a request must be a number, or"),
        ("requests: [{times: 0}]", "s:1: times of a request must be 1 or more"),
        ("requests: [{times: 60000}, {times: 60000}]", "s:1: there are more than 100000 requests"),
        (
            "requests: [{body: {repeat: x, times: y}}]",
            "s:1: times of a text must be a whole number, 0 or more",
        ),
        ("requests: [{body: {repeat: xx, times: 40000000}}]", "s:1: texts that are repeated stand for more"),
        ("knobs: {request_cost: -1}", "s:1: request_cost of knobs of the scenario must be a whole number"),
        ("knobs: {charge: 1}", "s:1: unknown key charge in knobs of the scenario: known are request_cost"),
        ("until_ms: 1e20", "s:1: until_ms of the scenario must be within a year"),
        (
            "workers: [{id: a, load: {drain_rate: .nan}}]",
            "s:1: drain_rate of load of a worker must be a number",
        ),
        ("requests: [{headers: {'a b': c}}]", "s:1: \"a b\" is no header's name"),
        ("flags: [--polcy random]", "s: unknown flag --polcy: did you mean --policy?"),
        ("flags: [--decode-policy bucket]", "s: --decode-policy bucket: bucket sorts prompts by size"),
        ("flags: [--tokenizer-path /nowhere]", "s: --tokenizer-path /nowhere: "),
        ("flags: [--policy passthrough]", "s: --policy passthrough is not served"),
        ("env: {BATON_POLICY: rendom}", "s: BATON_POLICY rendom: must be one of"),
        ("expect: [{}]", "s:1: expect has 1 outputs for 0 requests"),
        ("a: &b 1", "s:1: anchors, aliases and tags are not read"),
        ("show: [leg]", "s:1: show of the scenario must be legs, not \"leg\""),
        ("unix_ms: 1.5", "s:1: unix_ms of the scenario must be a whole number, 0 or more, not \"1.5\""),
        ("expect_counters: {'a b': 1}", "s:1: \"a b\" is no counter: write its name, and labels as name{"),
        (
            "workers:\n  - {id: a, role: prefill, engine: vllm, server_info: [{}]}",
            "s:2: server_info is for prefill workers of trtllm: no other is asked where its KV is",
        ),
        (
            "workers:\n  - {id: a, role: prefill, engine: trtllm, server_info: [{at_ms: 2}, {at_ms: 1}]}",
            "s:2: at_ms of an answer must not go backwards",
        ),
        (
            "requests: [{engine: [], done_at_ms: 1}]",
            "s:1: engine says what becomes of its request: no other time has a place beside it",
        ),
    ] {
        let error = decide("s", text).unwrap_err().to_string();
        assert!(error.starts_with(why), "{text}\n{error}\n{why}");
    }
    assert!(decide("s", worker).unwrap().decisions.is_empty());
    let typo = decide("s", "env: {AIBRIX_MIN_MATCH_PTC: 30}").unwrap();
    assert_eq!(typo.warnings, ["AIBRIX_MIN_MATCH_PTC is read by nothing here"]);
    let config =
        "{model.aibrix.ai/config: '{\"profiles\":{\"default\":{\"routingConfig\":{\"combined\":\"yes\"}}}}'}";
    let text = format!("workers: [{{id: a, annotations: {config}}}, {{id: b, annotations: {config}}}]");
    let why =
        "model.aibrix.ai/config of a: combined of profile \"default\" is left out: \"yes\" cannot be used";
    assert_eq!(decide("s", &text).unwrap().warnings, [why]);
}

#[test]
fn an_entry_that_stands_for_several_requests_has_an_output_for_each() {
    let fleet = "workers:\n  - {id: p, role: prefill}\n  - {id: d, role: decode}\n";
    let requests = "requests: [{times: 3, prompt_tokens: {from: 10, to: 20}}, {}]\n";
    let expect =
        "expect: [{prefill: p}, {prefill: q}]\nexpect_output: {state: {workers: {d: {in_flight: 5}}}}";
    let text = format!("{fleet}{requests}{expect}");
    let report = decide("s", &text).unwrap();
    let unmet = [r#"request 2: prefill: "p" instead of "q""#, "state.workers.d.in_flight: 4 instead of 5"];
    assert_eq!((report.decisions.len(), &report.unmet[..]), (4, &unmet.map(str::to_owned)[..]));
    assert!(report.to_text().contains("at the end d: 4 in flight"), "{}", report.to_text());
}

#[test]
fn a_failure_opens_the_breaker_and_the_next_try_goes_elsewhere() {
    let flags = "flags: [--policy least_load, --cb-failure-threshold 1]\n";
    let prefills =
        "workers:\n  - {id: p1, role: prefill}\n  - {id: p2, role: prefill, load: {prefill_in_flight: 1}}\n";
    let rest = "  - {id: d, role: decode}\nrequests: [{prefill_fails_at_ms: 5, retried: pair}]";
    let text = format!("{flags}{prefills}{rest}");
    let json = decide("s", &text).unwrap().to_json();
    let first = &json["requests"][0];
    assert_eq!((&first["prefill"], &first["retried"]["prefill"]), (&"p1".into(), &"p2".into()), "{json}");
    let workers = json["state"]["workers"].as_array().unwrap();
    let open = workers.iter().map(|w| (w["worker"].as_str().unwrap(), w["open"].as_bool().unwrap()));
    assert!(open.eq([("p1", false), ("p2", true), ("d", true)]), "{workers:?}");
}

#[test]
fn what_is_no_step_is_refused_with_its_line() {
    for (steps, why) in [
        ("{at_ms: 1}", "s:4: a step has no who"),
        ("{who: prefill, does: ends}", "s:4: a step has no at_ms"),
        ("{at_ms: 1, who: prefill}", "s:4: a step has no does"),
        (
            "{at_ms: 1, who: encode, does: ends}",
            "s:4: who of a step must be prefill, decode or client, not \"encode\"",
        ),
        (
            "{at_ms: 1, who: decode, does: dies}",
            "s:4: does of a step must be one of answers, head, chunk, ends, refuses, stalls, breaks, ages, leaves, \
             not \"dies\"",
        ),
        ("{at_ms: 1, who: decode, does: leaves}", "s:4: a client leaves, and nobody else does"),
        ("{at_ms: 1, who: client, does: ends}", "s:4: a client leaves, and nobody else does"),
        ("{at_ms: 1, who: decode, does: ends, status: 200}", "s:4: unknown key status in a step"),
        (
            "{at_ms: 1, who: decode, does: answers, status: 100}",
            "s:4: status of a step must be from 200 to 999, not 100",
        ),
        (
            "{at_ms: 1, who: decode, does: head, status: 500}",
            "s:4: a head of status 500 comes with its body: it answers",
        ),
        ("{at_ms: 1, who: decode, does: chunk}", "s:4: a chunk has no text"),
        ("{at_ms: 1, who: decode, does: ends}", "s:4: decode ends before its head has come"),
        (
            "{at_ms: 1, who: decode, does: head}\n      - {at_ms: 2, who: decode, does: answers}",
            "s:5: decode answers in the middle of an answer",
        ),
        (
            "{at_ms: 2, who: decode, does: head}\n      - {at_ms: 1, who: decode, does: ends}",
            "s:5: at_ms of a step must not go backwards",
        ),
        (
            "{at_ms: 1, who: client, does: leaves}\n      - {at_ms: 1, who: client, does: leaves}",
            "s:5: the client leaves once",
        ),
    ] {
        let text = format!("requests:\n  - at_ms: 1\n    engine:\n      - {steps}\n");
        let error = decide("s", &text).unwrap_err().to_string();
        assert!(error.starts_with(why), "{steps}\n{error}\n{why}");
    }
}

#[test]
fn a_body_is_read_as_a_gateway_reads_it() {
    let fleet = "workers:\n  - {id: w, role: whole}\nrequests:\n";
    for (body, code) in [
        ("'{\"n\":0}'", Some("invalid_value")),
        ("'[1]'", Some("invalid_json")),
        ("'{\"stream\":true,\"stream\":true}'", Some("repeated_member")),
        ("{n: 2, stop: [a, null, 1.5], tools: [{type: function}]}", None),
        ("'{\"n\":1}'", None),
    ] {
        let report = decide("s", &format!("{fleet}  - body: {body}\n")).unwrap().to_json();
        assert_eq!(report["requests"][0]["fault"]["code"].as_str(), code, "{body}: {report}");
    }
}
