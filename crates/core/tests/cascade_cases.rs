//! AIBrix's cascade, more of its cases: scores, charges, sessions, bands, profiles and variables as plain numbers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use baton_core::dice::Dice;
use baton_core::place::cascade::bands::{Group, plan, segments};
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore, ServeMode};
use baton_core::place::cascade::ledger::{Charge, Ledger, Part};
use baton_core::place::cascade::pick::{Picked, Pool, Terms, pick};
use baton_core::place::cascade::profile::{Bounds, Features, ModelConfig, OPEN, is_auto};
use baton_core::place::cascade::score::{self, Batch, Prompt};
use baton_core::place::cascade::serve::Serving;
use baton_core::place::cascade::sessions::{KEY_MAX, SessionRule, Sessions, Turn};
use baton_core::place::cascade::sight::{Candidate, Sight};
use baton_core::place::cascade::traffic::Traffic;
use baton_core::place::receipt::Receipt;
use baton_core::time::{Duration, Instant};

fn near(got: f64, due: f64, case: &str) {
    assert!((got - due).abs() <= 1e-9, "{case}: {got} instead of {due}");
}

fn at(secs: u64) -> Instant {
    Instant::from_micros(secs * 1_000_000)
}

fn by(prefill_score: PrefillScore) -> Knobs {
    Knobs { prefill_score, ..Knobs::default() }
}

fn prefill(knobs: &Knobs, sight: Sight, most: f64, bytes: u64) -> f64 {
    score::prefill(&sight, Prompt { bytes, most }, knobs).score
}

#[test]
fn b_bounds() {
    let of = |min: i64, max: i64| Bounds::of(Some(min), Some(max));
    for (case, bounds, tokens, due) in [
        ("B2", of(1000, 2000), 900, false),
        ("B2", of(1000, 2000), 2100, false),
        ("B2", of(1000, 2000), 2000, true),
        ("B3", of(2000, 1000), 1500, false),
        ("B4", of(-5, 0), 1_000_000, true),
        ("B5", Bounds::of(None, None), 1_000_000, true),
    ] {
        assert_eq!(bounds.suit(tokens), due, "{case} {tokens}");
    }
}

#[test]
fn e_scores_with_thresholds_and_loads() {
    let knobs = Knobs { min_match_pct: 30.0, ..by(PrefillScore::PrefixCache) };
    let sight = |count, matched_pct| Sight { count, matched_pct, ..Sight::default() };
    near(prefill(&knobs, sight(1, 10), 4.0, 0), 10.25, "E3");
    near(prefill(&knobs, sight(1, 30), 4.0, 0), 7.25, "E3");
    let loaded = |active, kv, matched_pct| Sight {
        active_tokens: active,
        kv_tokens: kv,
        matched_pct,
        ..Sight::default()
    };
    let hybrid = |factor, min_match_pct| Knobs {
        hybrid_factor: factor,
        min_match_pct,
        kv_weight: 0.5,
        ..by(PrefillScore::HybridCacheLoad)
    };
    near(prefill(&hybrid(0.5, 0.0), loaded(0, 1, 100), 1.0, 0), 0.5, "E20: below 1 is idle");
    near(prefill(&hybrid(0.5, 60.0), loaded(0, 0, 50), 1.0, 0), 1.0, "E21");
    near(prefill(&hybrid(0.5, 60.0), loaded(0, 0, 60), 1.0, 0), 0.82, "E21");
    near(prefill(&hybrid(1.0, 0.0), loaded(1_000_000, 0, 100), 1.0, 0), 0.0, "E22");
    near(prefill(&hybrid(0.0, 0.0), loaded(700, 0, 100), 1.0, 0), 700.0, "E23");
    near(prefill(&hybrid(0.0, 0.0), loaded(0, 0, 100), 1.0, 0), 1.0, "E23");
    near(prefill(&hybrid(0.5, 0.0), loaded(1, 0, 50), 1.0, 0), 0.875, "E24");
    let knobs = by(PrefillScore::TokenLoad);
    let (long, short) = (loaded(11_500, 11_500, 0), loaded(7200, 7200, 0));
    near(prefill(&knobs, long, 1.0, 0), 14_950.0, "H4");
    near(prefill(&knobs, short, 1.0, 0), 9360.0, "H4");
    let knobs = by(PrefillScore::Conductor);
    let slow = Sight { prefill_ms: Some(50.0), ..sight(4, 75) };
    near(prefill(&knobs, sight(0, 0), 1.0, 8000), 0.001 * 8000f64.powf(1.5) + 5.0, "F7");
    near(prefill(&knobs, slow, 1.0, 8000), 325.442_719_099_991_6, "F7");
}

fn candidate(name: &'static str, at: usize, roleset: u32, sight: Sight) -> Candidate<'static> {
    Candidate { name, at, roleset, sight }
}

#[test]
fn e_and_g_the_pair_of_one_roleset() {
    let of = |count| Sight { count, ..Sight::default() };
    let chosen = |knobs: &Knobs, prefill: Vec<Candidate<'static>>, decode: Vec<Candidate<'static>>| {
        let (pool, terms) =
            (Pool { prefill, decode, combined: vec![] }, Terms { knobs, bytes: 0, band: None });
        let mut receipt = Receipt::on();
        let picked = pick(pool, &terms, &mut Dice::new(3), &mut receipt);
        (picked, receipt)
    };
    let least = by(PrefillScore::LeastRequest);
    let prefills = vec![
        candidate("p1", 1, 0, of(0)),
        candidate("p2", 2, 0, of(3)),
        candidate("p3", 3, 1, of(1)),
        candidate("p4", 4, 1, of(0)),
    ];
    let decodes = vec![candidate("d1", 5, 0, of(1)), candidate("d2", 6, 1, of(0))];
    let (picked, receipt) = chosen(&least, prefills, decodes);
    assert_eq!(picked, Some(Picked::Pair { prefill: 4, decode: 6 }), "E8");
    assert_eq!(receipt.prefill.scores.len(), 4, "E8");
    assert_eq!(chosen(&least, vec![], vec![candidate("d1", 5, 0, of(1))]).0, None, "E9");

    let hybrid = by(PrefillScore::HybridCacheLoad);
    let held = |matched_pct| Sight { matched_pct, ..Sight::default() };
    let prefills = vec![candidate("a", 0, 0, held(0)), candidate("b", 1, 1, held(100))];
    let decodes = vec![candidate("da", 2, 0, of(0)), candidate("db", 3, 1, of(0))];
    let (picked, _) = chosen(&hybrid, prefills, decodes);
    assert_eq!(picked, Some(Picked::Pair { prefill: 1, decode: 3 }), "G9");

    let skipped = vec![
        candidate("p1", 0, 0, of(0)),
        candidate("p2", 1, 0, of(0)),
        candidate("p3", 2, 0, of(0)),
        candidate("p4", 3, 1, of(10)),
    ];
    let decodes = vec![candidate("d1", 4, 0, of(9)), candidate("d2", 5, 1, of(0))];
    let (picked, receipt) = chosen(&least, skipped, decodes);
    assert!(matches!(picked, Some(Picked::Pair { decode: 4, .. })), "E16: {picked:?}");
    assert!(receipt.prefill.scores[3].skipped.is_some(), "E16");
}

#[test]
fn b29_and_g8_the_lowest_wins() {
    let queue = |waiting, drain| Sight { waiting, drain: Some(drain), ..Sight::default() };
    let pool = Pool {
        prefill: vec![candidate("p", 0, 0, queue(10.0, 5.0))],
        decode: vec![candidate("d", 1, 0, queue(1.0, 4.0))],
        combined: vec![
            candidate("c-high", 2, u32::MAX, queue(10.0, 5.0)),
            candidate("c-low", 3, u32::MAX, queue(2.0, 20.0)),
        ],
    };
    let knobs = Knobs::default();
    let terms = Terms { knobs: &knobs, bytes: 0, band: None };
    let picked = pick(pool, &terms, &mut Dice::new(1), &mut Receipt::off());
    assert_eq!(picked, Some(Picked::Combined(3)), "B29");

    // Prefills that score 2.75 and 10.25, decodes that score 2.5 and a third.
    let prefill = |count, matched_pct| Sight { count, matched_pct, ..Sight::default() };
    let decode = |count, throughput, kv| Sight {
        count,
        observed: true,
        throughput: Some(throughput),
        kv_usage: Some(kv),
        ..Sight::default()
    };
    let pool = Pool {
        prefill: vec![candidate("pa", 0, 0, prefill(3, 80)), candidate("pb", 1, 1, prefill(1, 0))],
        decode: vec![
            candidate("da", 2, 0, decode(9, 30.0, 0.5)),
            candidate("db", 3, 1, decode(3, 90.0, 0.0)),
        ],
        combined: vec![],
    };
    let mut receipt = Receipt::on();
    let picked = pick(pool, &terms, &mut Dice::new(1), &mut receipt);
    let sum = |i: usize| {
        let most =
            |scores: &[baton_core::place::receipt::Score]| scores.iter().map(|s| s.score).fold(0.0, f64::max);
        let (p, d) = (&receipt.prefill.scores, &receipt.decode.scores);
        p[i].score / most(p) + d[i].score / most(d)
    };
    assert!(sum(1) < sum(0), "{} {}", sum(0), sum(1));
    assert_eq!(picked, Some(Picked::Pair { prefill: 1, decode: 3 }), "G8: the sum of both shares");
}

#[test]
fn g_decode_scores() {
    let seen = |count, throughput, kv| Sight {
        count,
        observed: true,
        throughput: Some(throughput),
        kv_usage: Some(kv),
        ..Sight::default()
    };
    let of = |sights: &[Sight], i: usize, knobs: &Knobs| {
        score::decode(&sights[i], &Batch::of(sights), knobs).map(|s| s.score)
    };
    let two = [seen(5, 10.0, 0.5), seen(10, 100.0, 0.0)];
    near(of(&two, 0, &Knobs::default()).unwrap(), 2.8, "G1");
    let heavy = Knobs { weight_running: 3.0, ..Knobs::default() };
    near(of(&two, 0, &heavy).unwrap(), 4.8, "G1");
    let most = Batch::of(&[seen(0, 100.0, 0.2), seen(5, 120.0, 0.3)]).most;
    assert_eq!((most.requests, most.throughput, most.free_pct), (5.0, 120.0, 80.0), "D5");
    let full = [seen(10, 100.0, 1.0), seen(1, 1.0, 0.95)];
    near(of(&full, 0, &Knobs::default()).unwrap(), 50.0, "G3");
    let load = Knobs { decode_score: DecodeScore::TokenLoad, ..Knobs::default() };
    let tokens = |count, throughput, decode_tokens, decode_secs| Sight {
        count,
        observed: true,
        throughput: Some(throughput),
        decode_tokens,
        decode_secs,
        ..Sight::default()
    };
    let two = [tokens(4, 100.0, 2000, 14.0), tokens(2, 0.0, 2200, 2.0)];
    near(of(&two, 0, &load).unwrap(), 2350.0, "H26");
    near(of(&two, 1, &load).unwrap(), 2250.0, "H27");
    let still = Knobs { output_growth: false, ..load };
    assert_eq!((of(&two, 0, &still), of(&two, 1, &still)), (Some(2000.0), Some(2200.0)), "H27");
    let broken = Sight { throughput: Some(f64::NAN), ..seen(1, 0.0, 0.0) };
    let conductor = Knobs { decode_score: DecodeScore::Conductor, ..Knobs::default() };
    assert!(of(&[broken], 0, &conductor).is_none_or(|score| !score.is_nan()), "G14");
}

#[test]
fn h_charges_and_their_time() {
    let charge = |worker, cost, now, ttl| Charge {
        prefill: Some((worker, cost)),
        decode: None,
        at: at(now),
        ttl: Duration::from_secs(ttl),
    };
    let mut ledger = Ledger::default();
    assert!(!ledger.charge(1, charge(1, 100, 0, 0)));
    assert!(ledger.charge(1, charge(2, 100, 0, 0)), "H14: said so");
    assert_eq!((ledger.tokens(1).active, ledger.tokens(2).active), (0, 100), "H14");
    ledger.release_all(1);
    ledger.charge(2, charge(1, 7, 0, 60));
    ledger.charge(3, charge(1, 9, 30, 60));
    let swept: Vec<u64> = ledger.sweep(at(61)).iter().map(|stale| stale.id).collect();
    assert_eq!((swept, ledger.tokens(1).active), (vec![2], 9), "H15");
    ledger.release(3, Part::Rest);
    ledger.release(3, Part::Active);
    let rows = |ledger: &Ledger| ledger.rows().map(|(worker, _)| worker).collect::<Vec<_>>();
    ledger.sweep(at(62));
    assert_eq!(rows(&ledger), [1], "H17: it was used since the last look");
    ledger.sweep(at(122));
    assert!(rows(&ledger).is_empty(), "H17: a quiet interval");
    ledger.charge(4, charge(1, 9, 130, 0));
    ledger.sweep(at(200));
    ledger.sweep(at(300));
    assert_eq!(ledger.tokens(1).kv, 9, "H17: never one with a charge");
}

#[test]
fn h_sessions() {
    let rule = SessionRule { max: 2, ttl: Duration::from_secs(1800) };
    let mut sessions = Sessions::default();
    let turn = |key, prompt_tokens, matched_pct, ttl| Turn {
        model: "m",
        key: Some(key),
        prompt_tokens,
        matched_pct,
        ttl: Duration::from_secs(ttl),
        again: false,
    };
    let (long, longest) = ("k".repeat(KEY_MAX + 1), "k".repeat(KEY_MAX));
    for (key, due) in [(&long, 1500), (&longest, 500)] {
        sessions.new_tokens(&turn(key, 1000, None, 1800), rule, at(0));
        assert_eq!(sessions.new_tokens(&turn(key, 1500, None, 1800), rule, at(0)), due, "H8");
    }
    assert_eq!(sessions.len(), 1, "H8: nothing stored");
    let mut sessions = Sessions::default();
    let mut new = |key, n, matched, now| sessions.new_tokens(&turn(key, n, matched, 1800), rule, at(now));
    assert_eq!((new("s1", 1000, None, 0), new("s2", 1000, None, 0)), (1000, 1000), "H9");
    for (n, due) in [(1000, 600), (1500, 900), (2000, 1200)] {
        assert_eq!(new("s3", n, Some(40), 0), due, "H9: no room for a third");
    }
    assert_eq!(new("s1", 1500, None, 1800), 500, "H9");
    sessions.sweep(at(1860));
    let mut new = |key, n, now| sessions.new_tokens(&turn(key, n, None, 1800), rule, at(now));
    assert_eq!((new("s3", 1000, 1860), new("s3", 1500, 1860)), (1000, 500), "H10");
    let mut sessions = Sessions::default();
    sessions.new_tokens(&turn("s", 150, None, 1800), rule, at(0));
    assert_eq!(sessions.new_tokens(&turn("s", 200, None, 0), rule, at(0)), 200, "H11");
    let mut sessions = Sessions::default();
    let first = turn("again", 1000, None, 1800);
    let second = turn("again", 1500, None, 1800);
    let other = |turn| Turn { again: true, ..turn };
    let tries = [first, other(first), second, other(second), other(second), second];
    let new = tries.map(|turn| sessions.new_tokens(&turn, rule, at(0)));
    assert_eq!(new, [1000, 1000, 500, 500, 500, 1500], "another try is charged as the first was");
    let own = |n, ttl, now| (turn("own", n, None, ttl), at(now));
    let mut sessions = Sessions::default();
    let mut new = |(turn, now): (Turn<'_>, _)| sessions.new_tokens(&turn, rule, now);
    let told = [own(100, 60, 0), own(150, 60, 60), own(250, 60, 121), own(300, 1800, 221)].map(&mut new);
    assert_eq!(told, [100, 50, 250, 50], "a profile's time is for its own requests");
    let off = SessionRule { ttl: Duration::ZERO, ..rule };
    let mut new = |(turn, now): (Turn<'_>, _)| sessions.new_tokens(&turn, off, now);
    assert_eq!([own(400, 0, 222), own(500, 60, 223)].map(&mut new), [400, 100], "the variable says 0");
    sessions.sweep(at(2023));
    assert_eq!(sessions.len(), 1, "the longest that was asked for");
    sessions.sweep(at(2024));
    assert!(sessions.is_empty());
}

fn even(from: u64, to: u64, n: u64) -> Vec<u64> {
    (0..n).map(|i| (from as f64 + (to - from) as f64 * i as f64 / (n - 1) as f64).round() as u64).collect()
}

fn bands(mode: ServeMode, lengths: &[u64], groups: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    let mut traffic = Traffic::new(at(0));
    lengths.iter().for_each(|n| traffic.observe(*n, at(0)));
    let group = |(name, min, max): &(&str, u64, u64)| Group::new(*name, Bounds { min: *min, max: *max }, 1);
    let groups: Vec<Group> = groups.iter().map(group).collect();
    let plan = plan(&groups, traffic.weights(mode == ServeMode::Throughput));
    let mut found: Vec<_> = plan.iter().map(|b| (groups[b.group].name.clone(), b.min, b.max)).collect();
    found.sort_by_key(|(_, min, _)| *min);
    found
}

#[test]
fn i_more_bands() {
    let due = |rows: &[(&str, u64, u64)]| {
        rows.iter().map(|(n, a, b)| ((*n).to_owned(), *a, *b)).collect::<Vec<_>>()
    };
    let (rps, tokens) = (ServeMode::Rps, ServeMode::Throughput);
    let mix: Vec<u64> = even(200, 4000, 100).into_iter().chain(even(4200, 7800, 200)).chain([200]).collect();
    let groups = [("general", 0, 8192), ("short", 0, 4096)];
    assert_eq!(bands(rps, &mix, &groups), due(&[("short", 0, 4096)]), "I4");
    let groups =
        [("long-a", 4001, 40_000), ("long-b", 4001, 40_000), ("short-a", 0, 4000), ("short-b", 0, 4000)];
    let mix: Vec<u64> =
        even(200, 4000, 1000).into_iter().chain(even(10_000, 30_000, 20)).chain([200]).collect();
    assert_eq!(bands(rps, &mix, &groups), due(&[("short-a", 0, 2138), ("short-b", 2139, 4000)]), "I5");
    let mix: Vec<u64> = [100; 10].into_iter().chain([1000; 10]).collect();
    let groups = [("a", 0, 2048), ("b", 0, 2048)];
    assert_eq!(bands(rps, &mix, &groups), due(&[("a", 0, 102), ("b", 103, 2048)]), "I7");
    assert_eq!(bands(tokens, &mix, &groups), due(&[("a", 0, 980), ("b", 981, 2048)]), "I7");
    let mix: Vec<u64> = [100; 100].into_iter().chain([1000; 10]).chain([3000; 5]).collect();
    assert_eq!(bands(rps, &mix, &[("a", 0, 2048), ("b", 1024, 8192)]), due(&[]), "I9");
    let groups = [Group::new("open", Bounds::ALL, 1), Group::new("short", Bounds { min: 0, max: 4096 }, 1)];
    let found: Vec<_> = segments(&groups).iter().map(|s| (s.min, s.max, s.groups.len())).collect();
    assert_eq!(found, [(0, 4096, 2), (4097, OPEN - 1, 1)], "I14");
}

#[test]
fn i11_a_plan_is_good_for_five_seconds() {
    let mut serving = Serving::new(at(0));
    even(200, 4000, 100).into_iter().for_each(|n| serving.observe(n, at(0)));
    let group = |name: &str| Group::new(name, Bounds { min: 0, max: 4096 }, 1);
    let two = [group("a"), group("b")];
    let three = [group("a"), group("b"), group("c")];
    let mut refreshed =
        |groups: &[Group], now| serving.advise(200, ServeMode::Rps, groups, at(now)).refreshed;
    let seen = [refreshed(&two, 0), refreshed(&two, 4), refreshed(&two, 5), refreshed(&three, 5)];
    assert_eq!(seen, [true, false, true, true], "I11");
    assert_eq!(serving.maxima().map(|(name, _)| name.to_owned()).collect::<Vec<_>>().len(), 5);
}

#[test]
fn l9_the_profile_that_fits() {
    let config = r#"{"profiles":{"default":{},
        "large-input":{"routingConfig":{"promptTokensGte":8192}},
        "offline-generation":{"routingConfig":{"maxTokensGte":2048}},
        "combined":{"routingConfig":{"promptTokensGte":8192,"maxTokensGte":2048}},
        "short-input":{"routingConfig":{"promptTokensLt":2048}},
        "narrow-short-input":{"routingConfig":{"promptTokensLt":512}},
        "short-output":{"routingConfig":{"maxTokensLt":4096}},
        "narrow-short-output":{"routingConfig":{"maxTokensLt":1024}}}}"#;
    let config = ModelConfig::parse(config).unwrap();
    for (prompt_tokens, max_tokens, due) in [
        (Some(9000), None, Some("large-input")),
        (None, Some(5000), Some("offline-generation")),
        (Some(9000), Some(2048), Some("combined")),
        (Some(2048), None, None),
        (Some(100), None, Some("narrow-short-input")),
        (None, Some(512), Some("narrow-short-output")),
        (None, None, None),
    ] {
        assert_eq!(
            config.auto(Features { prompt_tokens, max_tokens }),
            due,
            "L9 {prompt_tokens:?} {max_tokens:?}"
        );
    }
    assert!(is_auto(" AUTO ") && !is_auto("autos"), "L9");
}

#[test]
fn l_variables_and_profiles_beside_each_other() {
    let read = |name: &'static str, value: &'static str| {
        Knobs::read(&move |n| (n == name).then(|| value.to_owned())).0
    };
    for (value, due) in [("", 0.0), ("30", 30.0), ("-1", 0.0), ("101", 0.0), ("abc", 0.0), ("Inf", 0.0)] {
        near(read("AIBRIX_MIN_MATCH_PCT", value).min_match_pct, due, "L13");
    }
    for (value, due) in [("-1", 1800), (" 0 ", 0), ("60", 60)] {
        let knobs = read("AIBRIX_TOKEN_LOAD_SESSION_TTL_SECONDS", value);
        assert_eq!(knobs.session_ttl, Duration::from_secs(due), "L14 {value:?}");
    }
    for (value, due) in [("", 60), ("0", 0), ("30", 30), ("-1", 60), ("abc", 60)] {
        let knobs = read("AIBRIX_DECODE_FIRST_RESPONSE_TIMEOUT", value);
        assert_eq!(knobs.first_response_timeout, Duration::from_secs(due), "K19 {value:?}");
    }
    for (on, mode, due) in [
        ("", "", (false, ServeMode::Throughput)),
        ("true", "rps", (true, ServeMode::Rps)),
        ("1", "THROUGHPUT", (true, ServeMode::Throughput)),
        ("1", "bad", (true, ServeMode::Throughput)),
        ("yes", "rps", (false, ServeMode::Rps)),
    ] {
        let both = move |name: &str| match name {
            "AIBRIX_BUCKET_SERVE" => Some(on.to_owned()),
            "AIBRIX_BUCKET_SERVE_MODE" => Some(mode.to_owned()),
            _ => None,
        };
        let (knobs, _) = Knobs::read(&both);
        assert_eq!((knobs.bucket_serve, knobs.serve_mode), due, "I16 {on:?} {mode:?}");
    }
    let config = r#"{"profiles":{"a":{"routingConfig":{"pd":{"decodeAbortTimeout":1}}},
        "b":{"routingConfig":{"pd":{"decodeAbortTimeout":9}}},
        "c":{"routingConfig":{"prefillScorePolicy":"prefix_cache","decodeScorePolicy":"least_request"}}}}"#;
    let config = ModelConfig::parse(config).unwrap();
    let env = Knobs { prefill_score: PrefillScore::LeastRequest, ..Knobs::default() };
    let under = |name: &str| env.under(config.profile(Some(name)).map(|(_, p)| p)).unwrap().into_owned();
    let times = ["a", "b"].map(|name| under(name).terms().abort.timeout);
    assert_eq!(times, [1, 9].map(|s| Some(Duration::from_secs(s))), "L16");
    let c = under("c");
    assert_eq!(
        (c.prefill_score, c.decode_score),
        (PrefillScore::PrefixCache, DecodeScore::LeastRequest),
        "G12"
    );
    let none = env.under(None).unwrap();
    assert_eq!(
        (none.prefill_score, none.decode_score),
        (PrefillScore::LeastRequest, DecodeScore::LoadBalancing),
        "G12"
    );
}

/// The cases that are about routing, by their numbers. Those of the shared ledger (H28 to H30) are not here: charges
/// are a gateway's own.
const CASES: &str = "A1 A2 A3 A5 A6 A7 A8 A9 A11 A12 A13 A14 A15 B2 B3 B4 B5 B6 B8 B9 B10 B11 B12 B14 B15 B16 B17 B18 \
    B20 B21 B22 B23 B24 B26 B27 B28 B29 B30 C2 C3 C4 C5 C6 C8 C9 C10 D1 D2 D4 D5 D6 D7 D8 D10 D11 D12 D13 D14 D16 D17 \
    D18 D19 D20 E2 E3 E4 E5 E6 E8 E9 E10 E11 E12 E14 E15 E16 E17 E18 E20 E21 E22 E23 E24 E26 E27 E28 F1 F2 F4 F5 F6 F7 \
    F8 F10 F11 G1 G2 G3 G5 G6 G7 G8 G9 G11 G12 G13 G14 G15 H2 H3 H4 H5 H6 H8 H9 H10 H11 H12 H14 H15 H16 H17 H18 H20 \
    H21 H22 H23 H24 H26 H27 I1 I2 I3 I4 I5 I7 I8 I9 I10 I11 I13 I14 I15 I16 I17 L1 L2 L3 L4 L5 L7 L8 L9 L10 L11 L13 \
    L14 L15 L16 L17";

#[test]
fn every_case_has_its_row() {
    let sources = [
        include_str!("cascade.rs"),
        include_str!("cascade_cases.rs").split("const CASES").next().unwrap(),
        include_str!("cascade_fleet/main.rs"),
        include_str!("cascade_fleet/charges.rs"),
    ];
    let rows: String = sources.iter().flat_map(|text| text.lines()).filter(|l| l.contains('"')).collect();
    for case in CASES.split_whitespace() {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_digit());
        let starts = |before: &str| !before.ends_with(|c: char| c.is_ascii_alphanumeric());
        let found = |at: usize| starts(&rows[..at]) && ends(&rows[at + case.len()..]);
        let quoted = rows.match_indices(case).filter(|(at, _)| found(*at)).count();
        assert!(quoted >= 1, "{case} has no row");
    }
}
