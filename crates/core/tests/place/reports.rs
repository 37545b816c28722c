//! What workers say of their load, as policies heed it.

use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fault::{Fault, LegName};
use baton_core::fleet::{Fleet, Role, Seat};
use baton_core::place::{
    Legwise, LoadMetric, Look, Miss, Overload, Placement, Policy, PolicyName, Reports, Strategy, Tuning,
};
use baton_core::time::Instant;

use crate::yard::{POLICIES, ask, fleet, ids, pairs, seat};

fn strategy(name: PolicyName, reports: Reports) -> Strategy {
    let policy = || Policy::tuned(name, Tuning { reports: reports.clone(), ..Tuning::default() });
    Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
}

fn heeded() -> Reports {
    Reports { wanted: true, ..Reports::default() }
}

fn place(fleet: &Fleet, strategy: &Strategy, ask: &Ask, dice: &mut Dice) -> Result<Placement, Miss> {
    strategy.place(&Look::new(fleet, ask, Instant::from_micros(1)), dice)
}

fn chat(text: &str) -> Ask {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    Ask::read(Api::Chat, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap()).unwrap()
}

#[test]
fn a_worker_with_too_much_work_is_passed_over_while_another_has_not() {
    for name in POLICIES {
        let (fleet, mut dice) = (pairs(3, 3), Dice::new(1));
        let (strategy, ask) = (strategy(name, heeded()), ask(None));
        fleet.prefill()[0].seat.gauges.waiting.set(Some(8.0));
        fleet.decode()[1].gauges.kv_usage.set(Some(0.8));
        for _ in 0..30 {
            let placement = place(&fleet, &strategy, &ask, &mut dice).unwrap();
            let ids = ids(&placement);
            assert!(ids[0] != "p0" && ids[1] != "d1", "{name:?}: {ids:?}");
        }
        assert!(fleet.gauges_wanted());
        // All have: the least loaded, by any policy.
        for seat in fleet.seats() {
            seat.gauges.waiting.set(Some(9.0));
            seat.gauges.ours.set(Some(0.0));
        }
        let _busy: Vec<_> =
            fleet.seats().filter(|s| !["p2", "d2"].contains(&&*s.worker.id)).map(|s| s.load.take()).collect();
        let placement = place(&fleet, &strategy, &ask, &mut dice).unwrap();
        assert_eq!(ids(&placement), ["p2", "d2"], "{name:?}");
    }
}

#[test]
fn a_leg_of_which_all_have_too_much_work_is_refused_where_that_is_asked_for() {
    let shed = Overload { waiting: 8.0, kv_usage: 0.8, shed: true };
    let refused = |fleet: &Fleet, leg: LegName| {
        let strategy = strategy(PolicyName::RoundRobin, Reports { overload: Some(shed), ..heeded() });
        let miss = place(fleet, &strategy, &ask(None), &mut Dice::new(1)).unwrap_err();
        assert_eq!(miss, Miss::Nobody(Fault::Shed { leg, rooms: 1, widest: None }));
        assert!(fleet.seats().all(|s| s.load.in_flight() == 0));
    };
    let of_pairs = pairs(2, 2);
    let over = |seats: &mut dyn Iterator<Item = &Arc<Seat>>, n| seats.for_each(|s| s.gauges.waiting.set(n));
    over(&mut of_pairs.decode().iter(), Some(8.0));
    refused(&of_pairs, LegName::Decode);
    over(&mut of_pairs.prefill().iter().map(|p| &p.seat), Some(8.0));
    over(&mut of_pairs.decode().iter(), None);
    refused(&of_pairs, LegName::Prefill);
    let whole = fleet((0..2).map(|i| seat(i, &format!("w{i}"), Role::Whole)));
    over(&mut whole.whole().iter(), Some(8.0));
    refused(&whole, LegName::Whole);
    over(&mut whole.whole().iter().take(1), None);
    let strategy = strategy(PolicyName::RoundRobin, Reports { overload: Some(shed), ..heeded() });
    assert!(place(&whole, &strategy, &ask(None), &mut Dice::new(1)).is_ok());
}

#[test]
fn protection_can_be_off_and_nothing_is_heeded_that_nobody_asked_for() {
    let all_to_second = |reports: Reports| {
        let (fleet, mut dice) = (pairs(1, 2), Dice::new(1));
        let strategy = strategy(PolicyName::LeastLoad, reports);
        fleet.decode()[0].gauges.waiting.set(Some(50.0));
        fleet.decode()[1].gauges.waiting.set(Some(0.0));
        let spread: Vec<String> = (0..40)
            .map(|_| ids(&place(&fleet, &strategy, &ask(None), &mut dice).unwrap())[1].to_owned())
            .collect();
        spread.iter().all(|id| id == "d1")
    };
    assert!(all_to_second(heeded()));
    assert!(all_to_second(Reports { overload: None, ..heeded() }), "the expected wait says the same");
    assert!(!all_to_second(Reports::default()));
}

#[test]
fn the_fewest_requests_of_all_spread_a_burst_exactly() {
    for reports in [Reports::default(), heeded()] {
        let strategy =
            strategy(PolicyName::PowerOfTwo, Reports { metric: LoadMetric::LeastRequests, ..reports });
        let (fleet, ask, mut dice) = (pairs(4, 1), ask(None), Dice::new(1));
        fleet.seats().for_each(|seat| seat.gauges.kv_usage.set(Some(0.3)));
        let held: Vec<_> = (0..256).map(|_| place(&fleet, &strategy, &ask, &mut dice).unwrap()).collect();
        assert!(fleet.prefill().iter().all(|p| p.seat.load.in_flight() == 64));
        drop(held);
    }
}

#[test]
fn prompts_are_not_kept_together_where_memory_is_full() {
    let reports = Reports { kv_most: 0.7, overload: None, ..heeded() };
    let (fleet, mut dice) = (pairs(2, 1), Dice::new(1));
    let strategy = strategy(PolicyName::CacheAware, reports);
    let text = chat(&"a long text that is the same every time. ".repeat(50));
    let mut home = || {
        let mut placement = place(&fleet, &strategy, &text, &mut dice).unwrap();
        if let Placement::Pair { prefill, .. } = &mut placement {
            prefill.computed();
        }
        ids(&placement)[0].to_owned()
    };
    let first = home();
    assert!((0..10).all(|_| home() == first));
    let full = fleet.prefill().iter().find(|p| p.seat.worker.id == first).unwrap();
    fleet.prefill().iter().for_each(|p| p.seat.gauges.kv_usage.set(Some(0.1)));
    full.seat.gauges.kv_usage.set(Some(0.75));
    assert!((0..10).all(|_| home() != first), "the other one waits less");
    full.seat.gauges.kv_usage.set(Some(0.65));
    home();
}

/// Two engines of four ranks each.
fn ranks() -> Fleet {
    fleet((0..8u32).map(|slot| {
        let mut one = seat(slot, &format!("w{slot}"), Role::Whole);
        let mut worker = (*one.worker).clone();
        let (engine, rank) = (slot / 4, slot % 4);
        (worker.url, worker.dp_rank) = (format!("http://e{engine}:8000@{rank}"), Some(rank));
        one.worker = Arc::new(worker);
        one
    }))
}

#[test]
fn the_rank_with_the_fewest_tokens_is_taken() {
    for name in [PolicyName::Random, PolicyName::RoundRobin, PolicyName::ConsistentHashing] {
        let fleet = ranks();
        let policy = || Policy::tuned(name, Tuning { by_rank: true, ..Tuning::default() });
        let strategy = Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() });
        let (mut dice, mut held) = (Dice::new(1), vec![]);
        for i in 0..200 {
            // One in ten is as long as all others together.
            let long = chat(&"x".repeat(if i % 10 == 0 { 9000 } else { 1000 }));
            held.push(place(&fleet, &strategy, &long, &mut dice).unwrap());
        }
        for engine in ["http://e0:8000", "http://e1:8000"] {
            let of_engine = |s: &&Arc<Seat>| s.worker.base_url() == engine;
            let work: Vec<u64> = fleet.seats().filter(of_engine).map(|s| s.load.work()).collect();
            let (least, most) = (work.iter().min().unwrap(), work.iter().max().unwrap());
            assert!(most - least <= 2300, "{name:?} {engine}: {work:?}");
        }
        drop(held);
        assert!(fleet.seats().all(|s| s.load.work() == 0 && s.load.in_flight() == 0));
    }
}

#[test]
fn tokens_that_the_client_names_stand_for_the_prompt() {
    for name in [PolicyName::PrefixHash, PolicyName::CacheAware] {
        let (fleet, mut dice) = (fleet((0..4).map(|i| seat(i, &format!("w{i}"), Role::Whole))), Dice::new(1));
        let strategy = strategy(name, Reports::default());
        let ids_of = |from: u32| (from..from + 200).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
        let mut home = |text: &str, tokens: &str| {
            let mut ask = chat(text);
            let size = ask.prompt.size();
            ask.hear_tokens(tokens.as_bytes());
            assert_eq!(ask.prompt.size(), size, "no prompt is shorter for it");
            let mut placement = place(&fleet, &strategy, &ask, &mut dice).unwrap();
            if let Placement::Whole { worker } = &mut placement {
                worker.computed();
            }
            ids(&placement)[0].to_owned()
        };
        for from in [0, 1000, 2000, 70_000] {
            let first = home("one text", &ids_of(from));
            for text in ["another", "and another one, which is longer"] {
                assert_eq!(home(text, &ids_of(from)), first, "{name:?}");
            }
        }
    }
}

#[test]
fn a_list_of_tokens_that_is_none_is_ignored() {
    let plain = chat("some text, long enough to have a block of its own, and more").prompt.blocks(4);
    let long = vec!["1"; 513].join(",");
    let wide = format!("{}1", " ".repeat(4096));
    for odd in ["", ",", "1,", "1,x", "-1", "4294967296", "1.5", &long, &wide] {
        let mut ask = chat("some text, long enough to have a block of its own, and more");
        ask.hear_tokens(odd.as_bytes());
        assert_eq!(ask.prompt.blocks(4), plain, "{odd:?}");
    }
    let mut ask = chat("some text");
    ask.hear_tokens(b"1, 2,4294967295");
    assert_eq!(ask.prompt.blocks(1).hashes.len(), 3);
}
