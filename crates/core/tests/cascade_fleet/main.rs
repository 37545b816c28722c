//! AIBrix's cascade on a fleet with live workers: who is chosen, what is charged, what goes back. Rows bear the numbers
//! of its cases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::type_complexity, reason = "rows of cases")]

mod charges;
mod desk;
mod shared;

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::dice::Dice;
use baton_core::fault::Fault;
use baton_core::fleet::{Engine, Fleet, FleetChange, Seat, Status, Worker};
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore};
use baton_core::place::cascade::resolve::{Routing, resolve};
use baton_core::place::cascade::yard::complaints;
use baton_core::place::{Cascade, Look, Miss, Placement, Strategy, Tuning};
use baton_core::wishes::Wish;

use desk::*;

const NOT_READY: &str = "error on selecting target pod: prefill pods are not ready: prefill=0, decode=0";

#[test]
fn a_partition_and_complete_rolesets() {
    let group = |id: &str, index: &str| pod(id, &[("roleset-name", "test"), (INDEX, index)], None);
    let rows: Vec<(&str, Vec<Worker>, &str)> = vec![
        ("A1", vec![of("p", "test"), of("d", "test")], "p+d"),
        ("A2", vec![of("p", "test"), of("d", "test"), pod("p0", &[], None)], "p+d"),
        (
            "A3",
            vec![
                of("p", "test"),
                of("d", "test"),
                of("x", "test"),
                pod("y", &[], None),
                pod("z", &[("role-name", "unknown")], None),
            ],
            "p+d",
        ),
        ("A5", vec![of("p", "test"), of("d", "test")], "p+d"),
        ("A6 invalid", vec![of("p", "test"), of("d", "test"), group("p0", "invalid")], "p+d"),
        ("A6 empty", vec![of("p", "test"), of("d", "test"), group("p0", "")], "p+d"),
        ("A6 -1", vec![of("p", "test"), of("d", "test"), group("p0", "-1")], "p+d"),
        ("A6 index 0", vec![group("p", "0"), group("d", "0")], "p+d"),
        ("A7", vec![of("d", "test")], NOT_READY),
        ("A8", vec![of("p", "test")], NOT_READY),
        ("A9", vec![group("p", "1"), group("d", "1")], NOT_READY),
        ("A9 empty", vec![], NOT_READY),
        ("two halves", vec![of("p", "one"), of("d", "two")], NOT_READY),
    ];
    for (case, workers, due) in rows {
        let fleet = fleet(workers);
        for seed in 0..8 {
            let mut desk = Desk { dice: Dice::new(seed), ..Desk::new(Knobs::default()) };
            assert_eq!(desk.chosen(&fleet, &ask(40, None)), due, "{case}");
        }
        at_rest(&fleet);
    }
}

#[test]
fn a_candidates_are_those_of_complete_rolesets() {
    let candidates = |workers: Vec<Worker>| {
        let fleet = fleet(workers);
        let (_, receipt) = Desk::new(Knobs::default()).place(&fleet, &ask(40, None)).unwrap();
        (receipt.prefill.scores.len(), receipt.decode.scores.len())
    };
    let a11 = vec![of("p1", "rs1"), of("d1", "rs1"), of("p2", "rs2"), of("d2", "rs2"), of("d3", "rs2")];
    assert_eq!(candidates(a11), (2, 3), "A11");
    let first = ["p1", "p2", "d1", "d2", "d3"].map(|id| of(id, "9svsx"));
    let second = ["p3", "p4", "d4", "d5"].map(|id| of(id, "v8h7g"));
    assert_eq!(candidates(first.into_iter().chain(second).collect()), (4, 5), "A12");
}

#[test]
fn a_engines_do_not_mix_and_names_are_not_ids() {
    let other = |id: &str| Worker { engine: Engine::Sglang, ..of(id, "b") };
    let mixed = fleet([of("p", "a"), of("d", "a"), other("p2"), other("d2")]);
    let mut desk = Desk::new(Knobs::default());
    let due = "error on selecting target pod: inconsistent LLM engines";
    assert_eq!(desk.chosen(&mixed, &ask(40, None)), due, "A13");
    let unknown = Worker { engine: Engine::Unspecified, ..of("d", "a") };
    assert_eq!(desk.chosen(&fleet([of("p", "a"), unknown]), &ask(40, None)), "p+d", "A14");

    let named = |id: &str, roleset: &str| {
        let mut w = of(id, roleset);
        w.labels.insert("pod_name".into(), "prefill-0".into());
        w
    };
    let twins = fleet([named("p-a", "rs"), named("p-b", "rs"), of("d", "rs")]);
    let busy = [seat(&twins, "p-a").load.take(), seat(&twins, "p-a").load.take()];
    let knobs = Knobs { prefill_score: PrefillScore::LeastRequest, ..Knobs::default() };
    assert_eq!(Desk::new(knobs).chosen(&twins, &ask(40, None)), "p-b+d", "A15");
    drop(busy);
}

#[test]
fn b_buckets_and_combined_workers() {
    let no_bucket = |tokens: u64| {
        format!(
            "error on selecting target pod: no prompt-length bucket matches prompt length {tokens} and no \
             combined pods available"
        )
    };
    let short = || vec![ranged("p", "short", 0, 15), ranged("d", "short", 0, 15)];
    let with = |mut list: Vec<Worker>, more: Vec<Worker>| {
        list.extend(more);
        list
    };
    let rows: Vec<(&str, Vec<Worker>, u64, String)> = vec![
        (
            "B8",
            vec![
                ranged("p-ok", "rs", 0, 1_000_000),
                ranged("d-ok", "rs", 0, 1_000_000),
                ranged("p-blocked", "rs", 1_000_000, 2_000_000),
                ranged("d-blocked", "rs", 1_000_000, 2_000_000),
            ],
            10,
            "p-ok+d-ok".into(),
        ),
        ("B9", vec![ranged("p", "rs", 0, 100), ranged("d", "rs", 200, 300)], 10, no_bucket(10)),
        ("B10", vec![ranged("p", "rs", 200, 300), ranged("d", "rs", 0, 100)], 10, no_bucket(10)),
        ("B10 neither", vec![ranged("p", "rs", 200, 300), ranged("d", "rs", 200, 300)], 10, no_bucket(10)),
        (
            "B11",
            vec![
                ranged("p1", "rs1", 0, 100),
                ranged("d1", "rs1", 0, 100),
                ranged("p2", "rs2", 0, 100),
                ranged("d2", "rs2", 200, 300),
            ],
            10,
            "p1+d1".into(),
        ),
        ("B12", with(short(), vec![ranged("pm", "medium", 16, 32), combined("c", 0, 0)]), 20, "c".into()),
        ("B14", vec![ranged("p", "rs", 0, 1), ranged("d", "rs", 0, 1)], 2, no_bucket(2)),
        ("B15", with(short(), vec![combined("c", 5000, 0)]), 40, no_bucket(40)),
        ("B16", with(short(), vec![combined("c", 0, 0)]), 40, "c".into()),
        ("B18", vec![combined("c", 0, 0)], 40, "c".into()),
        ("D13: both at the bound, the pair", with(short(), vec![combined("c", 15, 0)]), 15, "p+d".into()),
    ];
    for (case, workers, tokens, due) in rows {
        let fleet = fleet(workers);
        let mut desk = Desk::new(bucketing());
        assert_eq!(desk.chosen(&fleet, &ask(40, Some(tokens))), due, "{case}");
        at_rest(&fleet);
    }
    let far = fleet([ranged("p", "rs", 99_999, 100_000), ranged("d", "rs", 99_999, 100_000)]);
    assert_eq!(Desk::new(Knobs::default()).chosen(&far, &told("hello", None)), "p+d", "B6");
    let alone = fleet([combined("c", 0, 0)]);
    assert_eq!(Desk::new(Knobs::default()).chosen(&alone, &ask(40, None)), NOT_READY, "B17");
    let tiers = fleet([
        ranged("p1", "short", 0, 15),
        ranged("d1", "short", 0, 15),
        ranged("p2", "medium", 16, 32),
        ranged("d2", "medium", 16, 32),
        combined("c", 0, 0),
    ]);
    let mut desk = Desk::new(bucketing());
    let chosen = [10, 20, 40].map(|tokens| desk.chosen(&tiers, &ask(40, Some(tokens))));
    assert_eq!(chosen, ["p1+d1", "p2+d2", "c"], "B20");
    seat(&tiers, "d1").pulse.set_status(Status::NotReady);
    assert_eq!(desk.chosen(&tiers, &ask(40, Some(10))), "c", "a decode that is down leaves no pair");
}

#[test]
fn b_overflow_to_an_idle_combined_worker() {
    type Queue = (f64, Option<f64>);
    let rows: [(&str, Queue, Queue, Queue, &str); 9] = [
        ("B21", (10.0, Some(5.0)), (1.0, Some(4.0)), (0.0, Some(8.0)), "c"),
        ("B22", (0.0, Some(8.0)), (10.0, Some(5.0)), (0.0, Some(8.0)), "c"),
        ("B23", (10.0, Some(5.0)), (1.0, Some(4.0)), (10.0, Some(5.0)), "p+d"),
        ("B24", (1.0, Some(4.0)), (1.0, Some(4.0)), (0.0, Some(8.0)), "p+d"),
        ("B26", (5.0, Some(5.0)), (0.0, Some(5.0)), (0.0, Some(8.0)), "p+d"),
        ("B27", (10.0, Some(5.0)), (0.0, Some(5.0)), (2.0, Some(8.0)), "p+d"),
        ("B28", (200.0, Some(100.0)), (30.0, Some(100.0)), (0.0, Some(200.0)), "c"),
        ("B28 busy", (200.0, Some(100.0)), (30.0, Some(100.0)), (100.0, Some(100.0)), "p+d"),
        ("B30", (0.0, None), (0.0, None), (0.0, None), "p+d"),
    ];
    for (case, p, d, c, due) in rows {
        let fleet = fleet([of("p", "rs"), of("d", "rs"), combined("c", 0, 0)]);
        for (id, (waiting, drain)) in [("p", p), ("d", d), ("c", c)] {
            let gauges = &seat(&fleet, id).gauges;
            gauges.waiting.set(Some(waiting));
            gauges.drain_rate.set(drain);
        }
        assert_eq!(Desk::new(bucketing()).chosen(&fleet, &ask(40, None)), due, "{case}");
    }
}

#[test]
fn g15_a_burst_spreads_exactly() {
    let fleet = fleet(["p1", "p2", "p3", "p4", "d1", "d2"].map(|id| of(id, "rs")));
    let knobs = Arc::new(Knobs { prefill_score: PrefillScore::LeastRequest, ..Knobs::default() });
    let strategy = Strategy::Cascade(Cascade::new(&knobs, &Tuning::default()));
    let routing = Routing::plain(&knobs);
    let held = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (fleet, strategy, routing, held) = (&fleet, &strategy, &routing, &held);
            scope.spawn(move || {
                let mut dice = Dice::new(seed);
                for _ in 0..32 {
                    let ask = ask(40, None);
                    let look = Look { routing: Some(routing), ..Look::new(fleet, &ask, NOW) };
                    let placement = strategy.place(&look, &mut dice).unwrap();
                    held.lock().unwrap().push(placement);
                }
            });
        }
    });
    let loads = ["p1", "p2", "p3", "p4"].map(|id| seat(&fleet, id).load.in_flight());
    assert_eq!(loads, [64; 4], "G15");
    drop(held);
    at_rest(&fleet);
}

#[test]
fn retries_avoid_who_was_tried_and_windows_are_heeded() {
    let narrow = |id: &str| {
        let mut w = of(id, "rs");
        w.labels.insert("max_num_seqs".into(), "1".into());
        w
    };
    let fleet = fleet([of("p1", "rs"), of("p2", "rs"), narrow("d1"), narrow("d2")]);
    let mut desk = Desk::new(Knobs::default());
    let (first, _) = desk.place(&fleet, &ask(40, None)).unwrap();
    let Placement::Pair { prefill, decode } = &first else { panic!("no pair") };
    let tried = [prefill.seat.slot, decode.seat.slot];
    let (second, _) = desk.after(&fleet, &ask(40, None), &tried).unwrap();
    let Placement::Pair { prefill, decode } = &second else { panic!("no pair") };
    assert!(!tried.contains(&prefill.seat.slot) && !tried.contains(&decode.seat.slot));
    let full = desk.place(&fleet, &ask(40, None)).unwrap_err();
    assert!(matches!(full, Miss::Full(Fault::Shed { rooms: 1, .. })), "{full:?}");
    let mut wide = ask(40, None);
    wide.n = 2;
    let wide = desk.place(&fleet, &wide).unwrap_err();
    assert!(matches!(wide, Miss::Nobody(Fault::Shed { rooms: 2, widest: Some(1), .. })), "{wide:?}");
    drop(first);
    assert!(desk.after(&fleet, &ask(40, None), &[0, 1, 2, 3]).is_ok(), "rather a tried one than none");
    drop(second);
    at_rest(&fleet);
}

#[test]
fn a_retry_takes_another_prefill_though_there_is_one_decode() {
    let fleet = fleet(["p1", "p2", "d1"].map(|id| of(id, "rs")));
    let tried = ["p1", "d1"].map(|id| seat(&fleet, id).slot);
    for seed in 0..16 {
        let mut desk = Desk { dice: Dice::new(seed), ..Desk::new(Knobs::default()) };
        let (placement, _) = desk.after(&fleet, &ask(40, None), &tried).unwrap();
        assert_eq!(ids(&placement), "p2+d1");
    }
    let other = self::fleet(["p1", "d1", "d2"].map(|id| of(id, "rs")));
    for seed in 0..16 {
        let mut desk = Desk { dice: Dice::new(seed), ..Desk::new(Knobs::default()) };
        let (placement, _) = desk.after(&other, &ask(40, None), &tried.map(|slot| slot.min(1))).unwrap();
        assert_eq!(ids(&placement), "p1+d2");
    }
    at_rest(&fleet);
}

#[test]
fn who_has_more_than_can_be_counted_is_full() {
    let fleet = fleet([of("p", "rs"), of("d", "rs"), of("x", "rs")]);
    let mut wide = told("x", None);
    (wide.n, wide.batch) = (4096, Some(4096));
    let mut desk = Desk::new(Knobs::default());
    let mut held = Vec::new();
    let miss = loop {
        match desk.place(&fleet, &wide) {
            Ok((placement, _)) => held.push(placement),
            Err(miss) => break miss,
        }
    };
    assert!(matches!(miss, Miss::Full(Fault::Shed { widest: None, .. })), "{miss:?}");
    assert_eq!(held.len(), (u32::MAX / (4096 * 4096)) as usize);
    drop(held);
    assert_eq!(desk.chosen(&fleet, &wide), "p+d");
    at_rest(&fleet);
}

#[test]
fn names_of_models_that_nobody_serves_long_take_no_bands_from_those_that_are_asked_for() {
    let legs =
        ["a", "b"].map(|rs| [ranged(&format!("p{rs}"), rs, 0, 4000), ranged(&format!("d{rs}"), rs, 0, 4000)]);
    let fleet = fleet(legs.into_iter().flatten());
    let mut desk = Desk::new(Knobs { bucket_serve: true, ..bucketing() });
    let mut banded = |model: String, tokens: u64| {
        desk.now = desk.now.after(std::time::Duration::from_millis(10));
        let mut ask = ask(40, Some(tokens));
        ask.model = Some(model);
        desk.place(&fleet, &ask).unwrap().1.banded
    };
    for i in 0..300 {
        banded(format!("m{i}"), 100);
    }
    let found = (0..1000).map(|i| banded("m".to_owned(), 100 + i % 20 * 100)).filter(|fired| *fired).count();
    assert!(found > 400, "{found}");
}

#[test]
fn c10_d20_fast_paths_keep_to_one_roleset() {
    let two = || fleet([of("p1", "a"), of("d1", "a"), of("p2", "b"), of("d2", "b"), of("d3", "b")]);
    let busy =
        |fleet: &Fleet, id: &str, n: u32| (0..n).map(|_| seat(fleet, id).load.take()).collect::<Vec<_>>();
    let knobs = || Knobs { prefill_score: PrefillScore::LeastRequest, ..Knobs::default() };
    let fleet = two();
    fleet.seats().for_each(|s| s.pulse.answers());
    let held = [busy(&fleet, "p2", 20), busy(&fleet, "d1", 3)];
    assert_eq!(Desk::new(knobs()).chosen(&fleet, &ask(40, None)), "p1+d1", "C10");
    drop(held);
    let held = [busy(&fleet, "d1", 2), busy(&fleet, "d2", 40), busy(&fleet, "d3", 35), busy(&fleet, "p1", 9)];
    assert_eq!(Desk::new(knobs()).chosen(&fleet, &ask(40, None)), "p1+d1", "D20: the decode's roleset");
    let charged = Knobs { decode_score: DecodeScore::TokenLoad, ..knobs() };
    let (_, receipt) = Desk::new(charged).place(&fleet, &ask(40, None)).unwrap();
    assert_eq!(receipt.decode.scores.len(), 3, "D19: all are scored");
    drop(held);
    at_rest(&fleet);
}

#[test]
fn l_who_names_the_strategy() {
    let config = |locked: &str, more: &str| {
        format!(
            r#"{{{locked}"profiles":{{"default":{{"routingStrategy":"random"}},"quick":{{"routingStrategy":"pd",
            "routingConfig":{{"pd":{{"minMatchPct":40,"tokenLoadKVWeight":0}}}}}}}}{more}}}"#
        )
    };
    let plain = config("", "");
    let locked = config(r#""lockedRoutingStrategy":"pd","#, "");
    let deaf = config("", r#","authoritativeRoutingPolicy":true"#);
    let broken = config(r#""lockedRoutingStrategy":"invalid-strategy","#, "");
    let rows: Vec<(&str, &str, Vec<(Wish, &str)>, &str)> = vec![
        ("L1", &locked, vec![(Wish::Strategy, "throughput")], "pd"),
        ("L2", &plain, vec![(Wish::Strategy, "throughput")], "throughput"),
        ("L2 pd", &plain, vec![(Wish::Strategy, "pd")], "pd"),
        ("L3", &plain, vec![], "random"),
        ("L4", "", vec![], "least-request"),
        ("L5", &broken, vec![], "incorrect routing strategy invalid-strategy"),
        ("L7", &plain, vec![(Wish::Profile, "missing")], "random"),
        ("L7 found", &plain, vec![(Wish::Profile, "quick")], "pd"),
        ("L11", &plain, vec![(Wish::Strategy, "  ")], "incorrect routing strategy   "),
        ("L17", &deaf, vec![(Wish::Strategy, "pd"), (Wish::Profile, "quick")], "random"),
    ];
    let knobs = Arc::new(Knobs { routing_algorithm: Some("least-request".into()), ..Knobs::default() });
    for (case, config, wishes, due) in rows {
        let config = Some(config).filter(|c| !c.is_empty());
        let fleet = fleet([pod("p", &[("roleset-name", "rs")], Some("{")), pod("d", &[], config)]);
        let got = match resolve(&fleet, &wishing(ask(40, None), &wishes), &knobs) {
            Ok(routing) => routing.ways.unwrap().to_string(),
            Err(fault) => fault.answer().message,
        };
        assert!(got == due || got.starts_with(&format!("{due}: ")), "{case}: {got}");
    }
    let fleet = fleet([pod("p", &[("roleset-name", "rs")], Some(&plain))]);
    let quick = resolve(&fleet, &wishing(ask(40, None), &[(Wish::Profile, "quick")]), &knobs).unwrap();
    assert_eq!((quick.profile.as_deref(), quick.auto), (Some("quick"), false));
    assert_eq!((quick.knobs.min_match_pct, quick.knobs.kv_weight), (40.0, 0.3), "L15");
    let nobody = resolve(&self::fleet([]), &ask(40, None), &Arc::default()).unwrap();
    assert!(nobody.ways.is_none() && nobody.profile.is_none());
}

#[test]
fn what_a_config_gets_wrong_is_told_once() {
    let odd = |id: &str, text: &str| pod(id, &[("roleset-name", "rs")], Some(text));
    let first = fleet([odd("p", "{"), odd("p2", "{"), of("d", "rs")]);
    let told = complaints(&Fleet::default(), &first);
    assert_eq!(told.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["p"]);
    let same = first.with([FleetChange::Join(Seat::new(7, odd("p3", "{")))]);
    assert_eq!(complaints(&first, &same), [] as [(String, String); 0]);
    let other = same.with([FleetChange::Describe { slot: 7, worker: Box::new(odd("p3", "[]")) }]);
    assert_eq!(complaints(&same, &other).len(), 1);
}

#[test]
fn g11_an_unknown_decode_policy_routes_nothing() {
    let config = r#"{"profiles":{"default":{"routingStrategy":"pd",
        "routingConfig":{"decodeScorePolicy":"not_a_real_policy"}}}}"#;
    let fleet = fleet([pod("p", &[("roleset-name", "rs")], Some(config))]);
    let fault = resolve(&fleet, &ask(40, None), &Arc::default()).unwrap_err();
    assert!(fault.answer().message.contains("unknown decodeScorePolicy"));
    assert_eq!(fault.status(), 503);
    let random = wishing(ask(40, None), &[(Wish::Strategy, "random")]);
    assert!(resolve(&fleet, &random, &Arc::default()).is_ok(), "only the cascade scores decodes");
}

#[test]
fn the_order_of_the_list_decides_nothing() {
    let workers = || ["p1", "p2", "p3", "d1", "d2", "d3"].map(|id| of(id, "rs"));
    let spread = |reverse: bool| -> BTreeSet<String> {
        let mut list: Vec<Worker> = workers().into();
        if reverse {
            list.reverse();
        }
        let fleet = fleet(list);
        (0..200)
            .map(|seed| {
                let mut desk = Desk { dice: Dice::new(seed), ..Desk::new(Knobs::default()) };
                format!("{seed} {}", desk.chosen(&fleet, &ask(40, None)))
            })
            .collect()
    };
    assert_eq!(spread(false), spread(true), "same seed, same choice");
}
