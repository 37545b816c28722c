//! AIBrix's cascade, step by step. Rows bear the numbers of its cases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(
    clippy::type_complexity,
    clippy::excessive_precision,
    clippy::inconsistent_digit_grouping,
    reason = "rows of figures"
)]

use baton_core::dice::Dice;
use baton_core::place::cascade::bands::{Group, plan};
use baton_core::place::cascade::fast::{self, Check, Most};
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore, ServeMode};
use baton_core::place::cascade::ledger::{Charge, Ledger, Part, prompt_tokens};
use baton_core::place::cascade::pick::{Picked, Pool, Terms, pick};
use baton_core::place::cascade::profile::{Bounds, Features, ModelConfig, complaints};
use baton_core::place::cascade::score::{self, Batch, Prompt};
use baton_core::place::cascade::sessions::{SessionRule, Sessions, Turn};
use baton_core::place::cascade::sight::{Candidate, Sight};
use baton_core::place::cascade::traffic::{Traffic, bin, centre};
use baton_core::place::cascade::words::{Named, Ways};
use baton_core::place::receipt::Receipt;
use baton_core::time::{Duration, Instant};

fn near(got: f64, due: f64, case: &str) {
    assert!((got - due).abs() <= 1e-9, "{case}: {got} instead of {due}");
}

fn at(secs: u64) -> Instant {
    Instant::from_micros(secs * 1_000_000)
}

#[test]
fn c_the_prefill_fast_path() {
    let rows: [(&str, &[u32], u64, Option<&[usize]>); 8] = [
        ("C2", &[10, 15, 20], 16, None),
        ("C3", &[5, 40, 45], 16, Some(&[0])),
        ("C4", &[2, 2, 50, 45], 16, Some(&[0, 1])),
        ("C5", &[10], 16, None),
        ("C5 empty", &[], 16, None),
        ("C6", &[0, 50], 16, Some(&[0])),
        ("C8", &[0, 17], 16, Some(&[0])),
        ("C9", &[0, 5], 4, Some(&[0])),
    ];
    for (case, counts, spread, due) in rows {
        assert_eq!(fast::prefill(counts, spread).as_deref(), due, "{case}");
    }
    assert_eq!(fast::prefill(&[0, 16], 16), None, "the spread itself is not above it");
}

fn decode(count: u32, throughput: f64, kv: f64) -> Sight {
    Sight { count, observed: true, throughput: Some(throughput), kv_usage: Some(kv), ..Sight::default() }
}

fn draining(count: u32, drain: Option<f64>) -> Sight {
    Sight { count, observed: true, drain, ..Sight::default() }
}

#[test]
fn d_the_decode_fast_path() {
    let knobs = Knobs::default();
    let unseen = Sight::default();
    let rows: Vec<(&str, Vec<Sight>, Option<(Check, Vec<usize>)>)> = vec![
        ("D1", vec![decode(5, 100.0, 0.5), decode(7, 120.0, 0.6)], None),
        (
            "D2",
            vec![decode(2, 100.0, 0.3), decode(40, 120.0, 0.8), decode(35, 110.0, 0.7)],
            Some((Check::Requests, vec![0])),
        ),
        ("D4", vec![decode(10, 100.0, 0.4), decode(12, 200.0, 0.5)], None),
        ("D8", vec![draining(8, Some(2.0)), draining(6, Some(0.3))], Some((Check::Drain, vec![0]))),
        ("D10", vec![draining(8, Some(2.0)), draining(6, None)], None),
        ("D11", vec![decode(4, 1.0, 0.0), decode(20, 1.0, 0.0)], Some((Check::Requests, vec![0]))),
        ("D12", vec![decode(1, 0.0, 0.0), decode(1, 2048.0, 0.0)], None),
        ("D13", vec![draining(2, Some(1.0)), draining(3, Some(1.0))], None),
        ("D14", vec![draining(0, Some(1.0)), draining(9, Some(1.0))], None),
        ("D16", vec![draining(3, None), draining(25, None), unseen], Some((Check::Requests, vec![0]))),
        ("D17", vec![draining(20, None), unseen], None),
        ("D18", vec![decode(0, 5000.0, 0.0), decode(20, 0.0, 0.0)], Some((Check::Requests, vec![0]))),
    ];
    for (case, sights, due) in &rows {
        assert_eq!(&fast::decode(sights, &knobs), due, "{case}");
    }
    let by_tokens = Knobs { decode_score: DecodeScore::TokenLoad, ..Knobs::default() };
    assert_eq!(fast::decode(&rows[1].1, &by_tokens), None, "D19");
    let most = Most::of(&rows[1].1);
    assert_eq!((most.requests, most.throughput, most.free_pct), (40.0, 120.0, 70.0), "D2");
    let most = Most::of(&[unseen]);
    assert_eq!((most.requests, most.throughput, most.free_pct), (1.0, 1.0, 100.0), "D6");
    assert_eq!([0.95, 1.0].map(|kv| decode(0, 0.0, kv).free_pct()), [5.0, 0.1], "D7");
}

fn prefill_score(score: PrefillScore, count: u32, matched: u32, most: f64) -> f64 {
    let sight = Sight { count, matched_pct: matched, ..Sight::default() };
    let knobs = Knobs { prefill_score: score, ..Knobs::default() };
    score::prefill(&sight, Prompt { bytes: 0, most }, &knobs).score
}

#[test]
fn e_prefill_scores() {
    for (case, m, count, most, due) in [
        ("E2", 10, 4, 4.0, 10.0),
        ("E2 less", 10, 3, 4.0, 9.75),
        ("E4", 10, 0, 1.0, 9.0),
        ("E6", 80, 3, 4.0, 2.75),
    ] {
        near(prefill_score(PrefillScore::PrefixCache, count, m, most), due, case);
    }
    for (m, min, due) in [
        (0, 0.0, 0),
        (30, 0.0, 30),
        (30, 30.0, 30),
        (29, 30.0, 0),
        (100, 30.0, 100),
        (50, 100.0, 0),
        (50, -1.0, 50),
    ] {
        let knobs = Knobs { min_match_pct: min, ..Knobs::default() };
        assert_eq!(knobs.counted(m), due, "E5 {m} {min}");
    }
    for (case, counts, n, due) in [
        ("E10", vec![0, 1000], 1, 1207.106_781_186_547_5),
        ("E11", vec![0, 0, 10], 1, 9.106_836_025_229_591),
        ("E12", vec![0, 0, 0, 10], 1, 7.5),
        ("E14", vec![5, 5, 5], 1, 5.0),
        ("E15", vec![0, 0, 10], 2, 14.880_338_717_125_85),
    ] {
        near(score::limit(&counts, n), due, case);
    }
    for (m, due) in [(0, 1.0), (50, 0.875), (100, 0.5), (30, 0.955), (60, 0.82), (70, 0.755)] {
        near(prefill_score(PrefillScore::HybridCacheLoad, 0, m, 1.0), due, "E17, E18");
    }
}

#[test]
fn f_conductor() {
    let ttft = |bytes, matched_pct, count, prefill_ms| {
        let sight = Sight { count, matched_pct, prefill_ms, ..Sight::default() };
        let knobs = Knobs { prefill_score: PrefillScore::Conductor, ..Knobs::default() };
        score::prefill(&sight, Prompt { bytes, most: 1.0 }, &knobs).score
    };
    near(ttft(4, 0, 3, Some(2.0)), 11.008, "F1");
    near(ttft(0, 0, 3, Some(2.0)), 6.0, "F2");
    near(ttft(1000, 0, 0, None), 36.622_776_601_683_796, "F4");
    near(ttft(1000, 100, 0, None), 6.0, "F5");
    near(ttft(1000, 50, 2, Some(100.0)), 219.680_339_887_498_95, "F6");
    let tbt = |count, throughput, free: f64| {
        let knobs = Knobs { decode_score: DecodeScore::Conductor, ..Knobs::default() };
        let sight = decode(count, throughput, 1.0 - free / 100.0);
        score::decode(&sight, &Batch::of(&[sight]), &knobs).unwrap().score
    };
    near(tbt(4, 50.0, 5.0), 37.5, "F8");
    near(tbt(0, 50.0, 50.0), 40.0, "F10");
    near(tbt(10, 1000.0, 10.0), 1.1, "F11");
    near(tbt(10, 1000.0, 9.0), 1.65, "F11 under pressure");
}

#[test]
fn g_decode_scores() {
    let knobs = Knobs::default();
    let of =
        |sights: &[Sight], i: usize| score::decode(&sights[i], &Batch::of(sights), &knobs).unwrap().score;
    let d1 = [decode(5, 100.0, 0.5), decode(7, 120.0, 0.6)];
    near(of(&d1, 0), 5.0 / 7.0 + 1.0 / 6.0, "G2");
    near(of(&d1, 1), 1.25, "G2");
    let cold = Sight { count: 2, ..Sight::default() };
    near(of(&[decode(1, 1.0, 0.0), cold], 1), 3.0, "G5");
    near(of(&[Sight::default()], 0), 1.0, "G6");
    assert_eq!(DecodeScore::parse(" Token_Load "), Some(DecodeScore::TokenLoad), "G13");
    let broken = ModelConfig::parse(
        r#"{"profiles":{"default":{"routingConfig":{"decodeScorePolicy":"not_a_real_policy"}}}}"#,
    );
    let broken = broken.unwrap();
    let error = knobs.under(broken.profile(None).map(|(_, p)| p)).unwrap_err();
    assert!(error.to_string().contains("unknown decodeScorePolicy"), "G11");
}

/// A burst whose choices see each other, as charging and choosing are one step.
#[test]
fn g15_a_burst_spreads_exactly() {
    let knobs = Knobs { prefill_score: PrefillScore::LeastRequest, ..Knobs::default() };
    let (names, mut counts, mut dice) = (["a", "b", "c", "d"], [0u32; 4], Dice::new(1));
    for _ in 0..256 {
        let candidate = |i: usize, count| Candidate {
            name: names[i],
            at: i,
            roleset: 0,
            sight: Sight { count, ..Sight::default() },
        };
        let pool = Pool {
            prefill: (0..4).map(|i| candidate(i, counts[i])).collect(),
            decode: vec![candidate(0, 0)],
            combined: vec![],
        };
        let terms = Terms { knobs: &knobs, bytes: 0, band: None };
        match pick(pool, &terms, &mut dice, &mut Receipt::off()).unwrap() {
            Picked::Pair { prefill, .. } => counts[prefill] += 1,
            Picked::Combined(_) => panic!("nobody is combined"),
        }
    }
    assert_eq!(counts, [64; 4]);
}

#[test]
fn h_sessions_and_charges() {
    assert_eq!([0, 3, 100].map(prompt_tokens), [0, 0, 25], "H3");
    let rule = SessionRule { max: 2, ttl: Duration::from_secs(1800) };
    let mut sessions = Sessions::default();
    let mut tokens = |model, key, prompt_tokens, matched_pct, now| {
        let turn = Turn { model, key, prompt_tokens, matched_pct, ttl: rule.ttl, again: false };
        sessions.new_tokens(&turn, rule, now)
    };
    for (n, matched, due) in [
        (1000, None, 1000),
        (1000, Some(0), 1000),
        (1000, Some(60), 400),
        (1000, Some(100), 0),
        (1000, Some(150), 0),
    ] {
        assert_eq!(tokens("m", None, n, matched, at(0)), due, "H5");
    }
    for (n, matched, due) in [
        (1000, Some(40), 600),
        (1500, Some(0), 500),
        (1500, Some(90), 150),
        (800, None, 800),
        (1000, None, 200),
    ] {
        assert_eq!(tokens("m", Some("s1"), n, matched, at(0)), due, "H6");
    }
    assert_eq!(tokens("other", Some("s1"), 1000, None, at(0)), 1000, "H6");
    let mut ledger = Ledger::default();
    let charge = |at, ttl| Charge {
        prefill: Some((1, 100)),
        decode: Some((2, 40)),
        at,
        ttl: Duration::from_secs(ttl),
    };
    ledger.charge(1, charge(at(0), 60));
    ledger.release(1, Part::Rest);
    ledger.release(1, Part::Rest);
    assert_eq!((ledger.tokens(1).active, ledger.tokens(1).kv, ledger.tokens(2).decode), (100, 0, 0), "H12");
    ledger.release_all(1);
    ledger.release_all(9);
    assert_eq!(ledger.tokens(1).active, 0, "H12");
    for (id, ttl) in [(1, 5), (2, 0), (3, 3600)] {
        ledger.charge(id, charge(at(0), ttl));
    }
    let swept = |ledger: &mut Ledger, now| ledger.sweep(at(now)).iter().map(|s| s.id).collect::<Vec<_>>();
    assert_eq!((swept(&mut ledger, 6), swept(&mut ledger, 7200)), (vec![1], vec![3]), "H16");
    assert_eq!(ledger.tokens(1).active, 100, "H16: the one without a time is never taken back");
}

fn even(from: u64, to: u64, n: u64) -> Vec<u64> {
    (0..n).map(|i| (from as f64 + (to - from) as f64 * i as f64 / (n - 1) as f64).round() as u64).collect()
}

fn bands(mode: ServeMode, lengths: &[u64], groups: &[(&str, u64, u64, u64)]) -> Vec<(String, u64, u64)> {
    let mut traffic = Traffic::new(at(0));
    lengths.iter().for_each(|n| traffic.observe(*n, at(0)));
    let group =
        |(name, min, max, n): &(&str, u64, u64, u64)| Group::new(*name, Bounds { min: *min, max: *max }, *n);
    let groups: Vec<Group> = groups.iter().map(group).collect();
    let plan = plan(&groups, traffic.weights(mode == ServeMode::Throughput));
    let mut found: Vec<_> = plan.iter().map(|b| (groups[b.group].name.clone(), b.min, b.max)).collect();
    found.sort_by_key(|(_, min, _)| *min);
    found
}

#[test]
fn i_bands() {
    let due = |rows: &[(&str, u64, u64)]| {
        rows.iter().map(|(n, a, b)| ((*n).to_owned(), *a, *b)).collect::<Vec<_>>()
    };
    assert_eq!([1, 2, 100, 1000, 4096].map(bin), [0, 8, 53, 79, 96], "I13");
    assert_eq!([53, 79, 96].map(centre), [103, 981, 4277], "I13");
    let (rps, tokens) = (ServeMode::Rps, ServeMode::Throughput);
    let traffic: Vec<u64> = even(200, 4000, 400).into_iter().chain([200]).collect();
    let (one, three) = ([("a", 0, 4096, 1), ("b", 0, 4096, 1)], [("a", 0, 4096, 1), ("b", 0, 4096, 3)]);
    assert_eq!(bands(rps, &traffic, &three), due(&[("b", 0, 3024), ("a", 3025, 4096)]), "I1");
    assert_eq!(bands(rps, &traffic, &one), due(&[("a", 0, 2138), ("b", 2139, 4096)]), "I2");
    assert_eq!(bands(tokens, &traffic, &one), due(&[("a", 0, 2773), ("b", 2774, 4096)]), "I3");
    let mix: Vec<u64> = [100; 20].into_iter().chain([1500; 40]).chain([3000; 10]).collect();
    let two = [("a", 0, 2048, 1), ("b", 1024, 8192, 1)];
    assert_eq!(bands(rps, &mix, &two), due(&[("b", 1024, 1511), ("a", 1512, 2048)]), "I8");
    assert_eq!(bands(tokens, &mix, &two), due(&[("a", 1024, 1511), ("b", 1512, 2048)]), "I8");
    assert_eq!(bands(rps, &mix, &one[..1]), due(&[]), "I10");
}

#[test]
fn l_strategies_and_profiles() {
    let all =
        Named { locked: Some("pd"), header: Some("throughput"), profile: Some("random"), ..Named::default() };
    assert_eq!(all.word(), Some("pd"), "L1");
    assert_eq!(Named { locked: None, ..all }.word(), Some("throughput"), "L2");
    assert_eq!(Named { locked: None, header: None, ..all }.word(), Some("random"), "L3");
    assert_eq!(Named::default().word(), None, "L4");
    for (text, due) in [("prefix-cache:2,pd", Some("pd")), ("pd:0,random", Some("random")), ("pd:-1", None)] {
        assert_eq!(Ways::parse(text).ok().map(|w| w.to_string()).as_deref(), due, "L10");
    }
    for text in ["", "  ", "rrandom", "invalid-strategy"] {
        assert!(Ways::parse(text).is_err(), "L11, L5: {text:?}");
    }
    assert!(ModelConfig::parse("{").is_none() && ModelConfig::parse("{}").is_none(), "L8");
    let config = r#"{"profiles":{"default":{},
        "large":{"routingConfig":{"promptTokensGte":8192}},
        "short":{"routingConfig":{"promptTokensLt":2048}},
        "narrow":{"routingConfig":{"promptTokensLt":512}}}}"#;
    let config = ModelConfig::parse(config).unwrap();
    let auto = |n| config.auto(Features { prompt_tokens: n, max_tokens: None });
    assert_eq!(
        [Some(9000), Some(2048), Some(1000), Some(100), None].map(auto),
        [Some("large"), None, Some("short"), Some("narrow"), None]
    );
    assert_eq!(config.profile(Some("missing")).map(|(n, _)| n), Some("default"), "L7");
    let weight = r#"{"profiles":{"default":{"routingConfig":{"pd":{"tokenLoadKVWeight":0}}}}}"#;
    let weight = ModelConfig::parse(weight).unwrap();
    let knobs = Knobs::default();
    let under = knobs.under(weight.profile(None).map(|(_, p)| p)).unwrap();
    assert_eq!((under.kv_weight, weight.unused.len()), (0.3, 1), "L15");
}

#[test]
fn l_what_is_of_another_type_is_left_out_and_told() {
    let of = |config: &str| complaints(&format!(r#"{{"profiles":{{"default":{config}}}}}"#));
    for (config, due) in [
        (r#"7"#, "all"),
        (r#"{"routingStrategy":1}"#, "routingStrategy"),
        (r#"{"routingConfig":[]}"#, "routingConfig"),
        (r#"{"routingConfig":{"promptLenBucketMinLength":"2048"}}"#, "promptLenBucketMinLength"),
        (r#"{"routingConfig":{"promptLenBucketMaxLength":1.5}}"#, "promptLenBucketMaxLength"),
        (r#"{"routingConfig":{"promptTokensGte":1e30}}"#, "promptTokensGte"),
        (r#"{"routingConfig":{"combined":"true"}}"#, "combined"),
        (r#"{"routingConfig":{"pd":"x"}}"#, "pd"),
        (r#"{"routingConfig":{"prefixCache":2}}"#, "prefixCache"),
        (r#"{"requestsPerSecond":5}"#, "requestsPerSecond"),
        (r#"{"requestsPerSecondPerReplica":1}"#, "requestsPerSecondPerReplica"),
        (r#"{"requestsInflight":8,"requestsPerSecond":0}"#, "requestsInflight"),
        (r#"{"ttftThresholdS":2}"#, "ttftThresholdS"),
        (r#"{"routingConfig":{"pd":{"minMatchPct":101}}}"#, "minMatchPct"),
    ] {
        let told = of(config);
        assert!(told.len() == 1 && told[0].starts_with(&format!("{due} of profile ")), "{config}: {told:?}");
    }
    assert_eq!(of(r#"{"routingStrategy":null,"routingConfig":{"combined":null,"other":7}}"#), [""; 0]);
    let of = |member: &str| complaints(&format!(r#"{{"profiles":{{"a":{{}}}},{member}}}"#)).len();
    assert_eq!(of(r#""authoritativeRoutingPolicy":"true""#), 1);
    assert_eq!(of(r#""lockedRoutingStrategy":["pd"]"#), 1);
    assert_eq!(of(r#""defaultProfile":{}"#), 1);
    assert_eq!(of(r#""defaultProfile":"","lockedRoutingStrategy":null"#), 0);
    for text in ["", "[]", "{}", r#"{"profiles":{}}"#, r#"{"profiles":[1]}"#, &"[".repeat(100_000)] {
        assert_eq!(complaints(text).len(), 1);
    }
    let many: String = (0..1000).map(|i| format!(r#""p{i}":"{}","#, "x".repeat(500))).collect();
    let told = complaints(&format!(r#"{{"profiles":{{{many}"last":{{}}}}}}"#));
    assert!(told.len() == 16 && told.iter().all(|why| why.len() < 200), "{told:?}");
}

#[test]
fn l_the_environment() {
    let env = [
        ("AIBRIX_BUCKET_SERVE", "yes"),
        ("AIBRIX_BUCKET_SERVE_MODE", "RPS"),
        ("AIBRIX_MIN_MATCH_PCT", "101"),
        ("AIBRIX_TOKEN_LOAD_KV_WEIGHT", "bad"),
        ("AIBRIX_TOKEN_LOAD_REQUEST_COST", ""),
        ("AIBRIX_TOKEN_LOAD_TTL_SECONDS", "0"),
        ("AIBRIX_TOKEN_LOAD_SESSION_TTL_SECONDS", " 0 "),
        ("AIBRIX_TOKEN_LOAD_MAX_SESSIONS", "0"),
    ];
    let find = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let (knobs, unused) = Knobs::read(&find);
    let due = Knobs { serve_mode: ServeMode::Rps, session_ttl: Duration::ZERO, ..Knobs::default() };
    assert_eq!((knobs, unused.len()), (due, 5), "I16, L13, L14: {unused:?}");
}
