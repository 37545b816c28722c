//! What is charged, what goes back, and what else the strategy remembers: prompts, sessions, bands.

use std::collections::BTreeSet;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::fleet::{FleetChange, Status};
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore};
use baton_core::place::cascade::ledger::Charge;
use baton_core::place::{Computed, Placement};
use baton_core::time::Duration;
use baton_core::wishes::Wish;

use crate::desk::*;

#[test]
fn h_charges_are_held_by_the_legs() {
    let fleet = fleet(["p1", "d1", "d2"].map(|id| of(id, "rs")));
    let knobs = Knobs {
        prefill_score: PrefillScore::TokenLoad,
        decode_score: DecodeScore::TokenLoad,
        ..Knobs::default()
    };
    let mut desk = Desk::new(knobs);
    let charged = |desk: &Desk, id: &str| desk.cascade().books().open().ledger.tokens(seat(&fleet, id).slot);
    let long = desk.place(&fleet, &ask(40_000, None)).unwrap().0;
    let Placement::Pair { prefill, decode } = long else { panic!("no pair") };
    let tokens = (ask(40_000, None).size / 4) as u64;
    let on = charged(&desk, "p1");
    assert_eq!((on.active, on.kv), (3500 + tokens, 3500 + tokens));
    let home = decode.seat.worker.id.clone();
    assert_eq!(charged(&desk, &home).decode, tokens);
    drop(prefill);
    let on = charged(&desk, "p1");
    assert_eq!((on.active, on.kv), (0, 3500 + tokens), "the prefill is done");
    let shorts = [(); 2].map(|()| desk.place(&fleet, &ask(400, None)).unwrap().0);
    for short in &shorts {
        let Placement::Pair { decode, .. } = short else { panic!("no pair") };
        assert_ne!(decode.seat.worker.id, home, "H22");
    }
    drop(decode);
    assert_eq!(charged(&desk, &home).decode, 0, "H23");
    drop(shorts);
    for id in ["p1", "d1", "d2"] {
        let left = charged(&desk, id);
        assert_eq!((left.active, left.kv, left.decode), (0, 0, 0), "H24 {id}");
    }
    at_rest(&fleet);
}

#[test]
fn g5_g7_a_decode_that_has_just_come() {
    let fleet = fleet([of("p", "rs"), of("d-warm", "rs"), of("d-cold", "rs")]);
    seat(&fleet, "d-warm").pulse.answers();
    let held = [seat(&fleet, "d-cold").load.take(), seat(&fleet, "d-cold").load.take()];
    let (placement, receipt) = Desk::new(Knobs::default()).place(&fleet, &ask(40, None)).unwrap();
    let cold = receipt.decode.scores.iter().find(|s| s.worker == "d-cold").unwrap();
    assert_eq!((cold.score, ids(&placement).as_str()), (3.0, "p+d-warm"), "G5");
    drop((held, placement));
    let knobs = Knobs { decode_score: DecodeScore::TokenLoad, ..Knobs::default() };
    let mut desk = Desk::new(knobs);
    let books = desk.cascade().books().clone();
    let charge = |id: &str, tokens| Charge {
        prefill: None,
        decode: Some((seat(&fleet, id).slot, tokens)),
        at: NOW,
        ttl: Duration::ZERO,
    };
    let held = {
        let mut open = books.open();
        [books.charge(&mut open, charge("d-warm", 3000)), books.charge(&mut open, charge("d-cold", 5000))]
    };
    assert_eq!(desk.chosen(&fleet, &ask(40, None)), "p+d-warm", "G7");
    drop(held);
    at_rest(&fleet);
}

#[test]
fn a_decode_that_is_replaced_is_charged_once_and_its_prefill_as_before() {
    let fleet = fleet(["p", "d1", "d2"].map(|id| of(id, "rs")));
    let mut desk = Desk::new(Knobs {
        prefill_score: PrefillScore::TokenLoad,
        decode_score: DecodeScore::TokenLoad,
        ..Knobs::default()
    });
    let charged = |desk: &Desk, id: &str| {
        let tokens = desk.cascade().books().open().ledger.tokens(seat(&fleet, id).slot);
        (tokens.active, tokens.kv, tokens.decode)
    };
    // The second turn of a session: 500 tokens of 1500 are new.
    let turn = |bytes| wishing(sized(bytes), &[(Wish::SessionKey, "s")]);
    drop(desk.place(&fleet, &turn(4000)).unwrap());
    let (placement, _) = desk.place(&fleet, &turn(6000)).unwrap();
    let [Some(mut prefill), Some(decode)] = placement.into_legs() else { panic!("no pair") };
    let (first, kv_charge) = (decode.seat.worker.id.clone(), decode.kv_charge());
    assert_eq!((charged(&desk, "p"), charged(&desk, &first)), ((4000, 4000, 0), (0, 0, 1500)));
    prefill.computed();
    let tried = [prefill.seat.slot, decode.seat.slot];
    drop((prefill, decode));
    assert_eq!(
        (charged(&desk, "p"), charged(&desk, &first)),
        ((0, 0, 0), (0, 0, 0)),
        "the decode has failed"
    );
    let (decode, receipt) =
        desk.replaced(&fleet, (&turn(6000), &tried), Computed { prefill: "p", kv_charge });
    let second = decode.seat.worker.id.clone();
    assert_ne!(second, first);
    assert_eq!(charged(&desk, "p"), (0, 4000, 0), "what it keeps, and no more");
    assert_eq!((charged(&desk, &first), charged(&desk, &second)), ((0, 0, 0), (0, 0, 1500)));
    let told: Vec<_> = receipt.charges.iter().map(|c| (c.worker.as_str(), c.what, c.tokens)).collect();
    assert_eq!(told, [("p", "kv", 4000), (second.as_str(), "decode", 1500)]);
    assert_eq!(decode.kv_charge(), kv_charge, "for the next one");
    drop(decode);
    assert_eq!((charged(&desk, "p"), charged(&desk, &second)), ((0, 0, 0), (0, 0, 0)));
    at_rest(&fleet);
}

#[test]
fn a_prefill_that_is_not_asked_after_all_keeps_no_charge() {
    let fleet = fleet(["p", "d"].map(|id| of(id, "rs")));
    let mut desk = Desk::new(Knobs {
        prefill_score: PrefillScore::TokenLoad,
        decode_score: DecodeScore::TokenLoad,
        ..Knobs::default()
    });
    let charged = |desk: &Desk, id: &str| {
        let tokens = desk.cascade().books().open().ledger.tokens(seat(&fleet, id).slot);
        (tokens.active, tokens.kv, tokens.decode)
    };
    let (placement, _) = desk.place(&fleet, &sized(4000)).unwrap();
    let [prefill, Some(mut decode)] = placement.into_legs() else { panic!("no pair") };
    assert_eq!((charged(&desk, "p"), charged(&desk, "d")), ((4500, 4500, 0), (0, 0, 1000)));
    drop(prefill);
    decode.forgo_prefill();
    assert_eq!((charged(&desk, "p"), charged(&desk, "d")), ((0, 0, 0), (0, 0, 1000)));
    decode.forgo_prefill();
    drop(decode);
    assert_eq!((charged(&desk, "p"), charged(&desk, "d")), ((0, 0, 0), (0, 0, 0)));
    at_rest(&fleet);
}

#[test]
fn a_combined_worker_that_computed_a_prompt_is_known_to_hold_it() {
    let fleet = fleet([of("p", "rs"), of("d", "rs"), combined("c", 0, 0)]);
    let mut desk = Desk::new(bucketing());
    let long = ask(4000, Some(40));
    let has = |desk: &Desk, id: &str| {
        let found = desk.cascade().index().find(&long.prompt.blocks(16), NOW);
        found.iter().any(|(held_by, blocks)| held_by.slot == seat(&fleet, id).slot && *blocks > 60)
    };
    seat(&fleet, "p").pulse.set_status(Status::NotReady);
    let (placement, _) = desk.place(&fleet, &long).unwrap();
    let [None, Some(worker)] = placement.into_legs() else { panic!("a pair") };
    drop(worker);
    assert!(!has(&desk, "c"), "it has failed");
    let (placement, _) = desk.place(&fleet, &long).unwrap();
    let [None, Some(mut worker)] = placement.into_legs() else { panic!("a pair") };
    worker.computed();
    drop(worker);
    assert!(has(&desk, "c"));
    at_rest(&fleet);
}

/// A request whose body has so many bytes.
fn sized(bytes: usize) -> Ask {
    let ask = ask(bytes - 25, None);
    assert_eq!(ask.size, bytes);
    ask
}

#[test]
fn h_a_prefill_is_charged_for_what_it_does_not_hold() {
    for (case, held, min_match_pct, due, home) in [
        ("H18", 1983, 0.0, 500, Some("p2")),
        ("H21", 1215, 0.0, 700, Some("p2")),
        ("H21 below the least match", 1215, 60.0, 1000, None),
    ] {
        let fleet = fleet([of("p1", "rs"), of("p2", "rs"), of("d", "rs")]);
        let knobs = Knobs {
            prefill_score: PrefillScore::HybridCacheLoad,
            request_cost: 0,
            min_match_pct,
            ..Knobs::default()
        };
        let mut desk = Desk::new(knobs);
        desk.strategy.has_computed(&fleet, seat(&fleet, "p2"), &ask(held, None).prompt, NOW);
        let (placement, _) = desk.place(&fleet, &sized(4000)).unwrap();
        let Placement::Pair { prefill, .. } = &placement else { panic!("no pair") };
        let charged = desk.cascade().books().open().ledger.tokens(prefill.seat.slot).kv;
        assert_eq!(charged, due, "{case}");
        assert!(home.is_none_or(|home| home == prefill.seat.worker.id), "{case}");
    }
}

#[test]
fn h20_turns_of_sessions() {
    let fleet = fleet([of("p", "rs"), of("d", "rs")]);
    let knobs = Knobs { prefill_score: PrefillScore::TokenLoad, request_cost: 0, ..Knobs::default() };
    let mut desk = Desk::new(knobs);
    let mut held = Vec::new();
    for (bytes, key, due) in
        [(4000, "s1", 1000), (6000, "s1", 1500), (6400, "s1", 1600), (4000, "s2", 2600), (4000, "", 3600)]
    {
        let ask = wishing(sized(bytes), &[(Wish::SessionKey, key)]);
        held.push(desk.place(&fleet, &ask).unwrap().0);
        let kv = desk.cascade().books().open().ledger.tokens(seat(&fleet, "p").slot).kv;
        assert_eq!(kv, due, "H20 {bytes} {key}");
    }
    drop(held);
    assert_eq!(desk.cascade().books().open().ledger.tokens(seat(&fleet, "p").slot).kv, 0);
    at_rest(&fleet);
}

#[test]
fn i_bands_narrow_the_choice_while_their_roleset_has_a_pair() {
    let fleet = fleet([
        ranged("p1", "a", 0, 4096),
        ranged("d1", "a", 0, 4096),
        ranged("p2", "b", 0, 4096),
        ranged("d2", "b", 0, 4096),
    ]);
    let knobs = Knobs { bucket_serve: true, ..bucketing() };
    let mut desk = Desk::new(knobs);
    for n in 0..200 {
        let placed = desk.place(&fleet, &ask(40, Some(200 + n * 19)));
        drop(placed.unwrap());
    }
    desk.now = NOW.after(Duration::from_secs(6));
    let mut homes = BTreeSet::new();
    for tokens in [300, 3900] {
        for _ in 0..8 {
            let (placement, receipt) = desk.place(&fleet, &ask(40, Some(tokens))).unwrap();
            assert!(receipt.banded, "{receipt:?}");
            homes.insert((tokens, ids(&placement)));
        }
    }
    assert_eq!(homes.len(), 2, "one roleset for each length: {homes:?}");
    let maxima: Vec<_> = desk.cascade().band_maxima(&fleet).into_iter().collect();
    assert!(maxima.len() == 2 && maxima.iter().any(|(_, max)| *max == 4096), "{maxima:?}");
    let short = homes.first().unwrap().1.clone();
    let decode = if short == "p1+d1" { "d1" } else { "d2" };
    seat(&fleet, decode).pulse.set_status(Status::NotReady);
    desk.now = NOW.after(Duration::from_secs(7));
    let (placement, receipt) = desk.place(&fleet, &ask(40, Some(300))).unwrap();
    assert!(!receipt.banded && ids(&placement) != short, "I17: the roleset has no decode left");
    assert_eq!(desk.cascade().band_maxima(&fleet).len(), 2, "the plan with both is of a moment ago");
    let without = fleet.with([FleetChange::Leave { slot: seat(&fleet, &decode.replace('d', "p")).slot }]);
    assert_eq!(desk.cascade().band_maxima(&without).len(), 1, "a roleset that is gone");
    desk.now = NOW.after(Duration::from_secs(13));
    drop(desk.place(&fleet, &ask(40, Some(300))).unwrap());
    assert!(desk.cascade().band_maxima(&fleet).is_empty(), "one roleset alone has no bands");
    let unnamed = Envelope::parse("{\"prompt\":\"x\"}".into(), &BodyLimits::default()).unwrap();
    let unnamed = Ask::read(Api::Completions, &unnamed).unwrap();
    let (_, receipt) = desk.place(&fleet, &Ask { prompt_tokens: Some(0), ..unnamed }).unwrap();
    assert!(!receipt.banded, "I15");
    drop(placement);
    at_rest(&fleet);
}

/// The share of its prompt that each prefill is seen to hold.
fn matched(prompt: &str, held: &[(&str, &str)]) -> Vec<(String, f64)> {
    let fleet = fleet([of("p1", "rs"), of("p2", "rs"), of("d", "rs")]);
    let mut desk = Desk::new(Knobs::default());
    for (id, text) in held {
        desk.strategy.has_computed(&fleet, seat(&fleet, id), &told(text, None).prompt, NOW);
    }
    let (_, receipt) = desk.place(&fleet, &told(prompt, None)).unwrap();
    let term = |terms: &[(&str, f64)]| terms.iter().find(|(name, _)| *name == "matched_pct").unwrap().1;
    receipt.prefill.scores.iter().map(|s| (s.worker.clone(), term(&s.terms))).collect()
}

#[test]
fn e26_e28_matches_count_from_the_first_block_on() {
    let blocks = |from: usize, n: usize| (0..n).map(|i| format!("{:-<64}", from + i)).collect::<String>();
    let due = |a: f64, b: f64| vec![("p1".to_owned(), a), ("p2".to_owned(), b)];
    assert_eq!(matched(&blocks(0, 7), &[("p2", &blocks(0, 2))]), due(0.0, 28.0), "E26: 2 of 7");
    assert_eq!(matched("abc", &[("p2", "abc")]), due(0.0, 0.0), "E27: shorter than a block");
    assert_eq!(matched(&blocks(0, 10), &[("p1", &blocks(1, 9))]), due(0.0, 0.0), "E28: not the first");
}

#[test]
fn h2_every_request_costs_something() {
    let fleet = fleet([of("p", "rs"), of("d", "rs")]);
    let knobs = Knobs { prefill_score: PrefillScore::HybridCacheLoad, ..Knobs::default() };
    let mut desk = Desk::new(knobs);
    let charged = |desk: &mut Desk, ask: &Ask| {
        let placed = desk.place(&fleet, ask).unwrap();
        let active = desk.cascade().books().open().ledger.tokens(seat(&fleet, "p").slot).active;
        drop(placed);
        active
    };
    assert_eq!(charged(&mut desk, &sized(4800)), 4700, "H2");
    desk.strategy.has_computed(&fleet, seat(&fleet, "p"), &sized(4800).prompt, NOW);
    assert_eq!(charged(&mut desk, &sized(4800)), 3500, "H2: nothing is new");
}
