//! The index of prompts as policies use it: from a request's body to who holds how much, within a budget.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::prefix::{Found, HOLDERS_MAX, Holder, PrefixIndex};
use baton_core::prompt::Blocks;
use baton_core::time::Instant;
use proptest::prelude::*;

fn blocks(prompt: &str) -> Arc<Blocks> {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
    let body = Envelope::parse(body.into(), &BodyLimits::default()).unwrap();
    Ask::read(Api::Completions, &body).unwrap().prompt.blocks(16)
}

/// Letters that no other seed gives.
fn letters(seed: u64, count: usize) -> String {
    let mut dice = Dice::new(seed);
    (0..count).map(|_| char::from(b'a' + dice.below(26) as u8)).collect()
}

fn first_life(slot: u32) -> Holder {
    Holder { slot, life: 0 }
}

/// Puts it in for good.
fn hold(index: &Arc<PrefixIndex>, prompt: &str, holder: Holder, now: u64) {
    index.hold(&blocks(prompt), holder, Instant::from_micros(now)).unwrap().keep();
}

fn found(index: &PrefixIndex, prompt: &str) -> Found {
    index.find(&blocks(prompt))
}

#[test]
fn a_conversation_is_found_where_it_went() {
    let index = Arc::new(PrefixIndex::new(1 << 20));
    let turn = letters(1, 6400);
    hold(&index, &turn, first_life(3), 1);
    hold(&index, &turn[..3200], first_life(900), 2);
    let next = found(&index, &format!("{turn}and so on, at some length, until another block is full of it"));
    // The mark in front of a prompt moves its last letter into a block that is not whole.
    assert_eq!(next.holders(), [(first_life(3), 100), (first_life(900), 50)]);
    assert_eq!((next.most(), next.of(first_life(900)), next.of(first_life(4))), (100, 50, 0));
    assert_eq!(next.by_slot()[1].0, first_life(900));
    assert_eq!(found(&index, &letters(2, 6400)).most(), 0);
    assert_eq!(found(&index, "short"), Found::default());
}

#[test]
fn a_prefill_that_failed_leaves_nothing() {
    let index = Arc::new(PrefixIndex::new(1 << 20));
    let (common, tail) = (letters(1, 1280), letters(2, 1280));
    hold(&index, &common, first_life(1), 1);
    let before = index.bytes();
    let long = blocks(&format!("{common}{tail}"));
    let mark = index.hold(&long, first_life(1), Instant::from_micros(2)).unwrap();
    assert!(index.find(&long).most() > 30);
    drop(mark);
    assert_eq!((index.find(&long).most(), index.bytes()), (20, before));
    let mark = index.hold(&long, first_life(2), Instant::from_micros(3)).unwrap();
    assert_eq!(index.find(&long).holders()[0].0, first_life(2));
    drop(mark);
    assert_eq!(index.find(&long).holders(), [(first_life(1), 20)]);
}

#[test]
fn who_left_or_began_anew_has_nothing_at_once() {
    let index = Arc::new(PrefixIndex::new(1 << 20));
    let prompt = letters(1, 1280);
    for slot in 0..100 {
        hold(&index, &prompt, first_life(slot), 1);
    }
    index.forget(7);
    assert_eq!(index.find(&blocks(&prompt)).holders().len(), HOLDERS_MAX);
    index.keep_only(1, [3, 70].map(first_life).into_iter());
    let left = index.find(&blocks(&prompt)).by_slot();
    assert_eq!(left.as_slice(), [(first_life(3), 20), (first_life(70), 20)]);
    index.keep_only(1, [].into_iter());
    assert_eq!(found(&index, &prompt).holders().len(), 2, "that picture was seen");
    // A new life: nothing of the old one counts, and the first prompt of the new one clears it away.
    let reborn = Holder { slot: 3, life: 1 };
    assert_eq!(found(&index, &prompt).of(reborn), 0);
    hold(&index, &letters(2, 1280), reborn, 2);
    assert_eq!(found(&index, &prompt).holders(), [(first_life(70), 20)]);
    index.keep_only(2, [].into_iter());
    assert_eq!((index.bytes(), index.recount()), (0, 0));
}

/// 200,000 prompts against 64 MiB, a sixteenth of it; the example `prefix_memory` does it in full.
#[test]
fn memory_stays_within_its_budget_under_churn() {
    const BUDGET: usize = 4 << 20;
    let index = Arc::new(PrefixIndex::new(BUDGET));
    let text = letters(0, 1 << 20);
    let mut dice = Dice::new(9);
    for i in 0..12_500u64 {
        let slot = (i % 4) as u32 + if i > 6_000 { 2 } else { 0 };
        if i == 6_001 {
            index.keep_only(1, (2..6).map(first_life));
        }
        // The first block tells prompts apart, as random text would.
        let from = dice.below(text.len() - 4000);
        let prompt = format!("{i:064}{}", &text[from..from + 3936]);
        hold(&index, &prompt, first_life(slot), i);
        assert!(index.bytes() <= BUDGET, "{} after {i}", index.bytes());
        if i % 500 == 0 {
            assert_eq!(index.bytes(), index.recount());
            assert_eq!(found(&index, &prompt).holders(), [(first_life(slot), 62)]);
        }
    }
    assert!(index.bytes() > BUDGET / 10 * 9, "what there is to use is used");
    assert_eq!(found(&index, &format!("{:064}{}", 0, &text[..3936])).most(), 0, "the oldest is forgotten");
}

#[test]
fn the_budget_grows_with_the_fleet() {
    let index = Arc::new(PrefixIndex::new(100_000));
    assert_eq!(index.budget(), 100_000);
    index.keep_only(1, (0..65).map(first_life));
    assert_eq!(index.budget(), 200_000);
    for i in 0..1000 {
        hold(&index, &letters(i, 640), first_life(i as u32 % 65), i);
    }
    assert!(index.bytes() > 180_000);
    index.keep_only(2, (0..64).map(first_life));
    assert!(index.budget() == 100_000 && index.bytes() <= 100_000);
    assert_eq!(index.bytes(), index.recount());
}

#[test]
fn many_threads_leave_it_whole() {
    let index = Arc::new(PrefixIndex::new(200_000));
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let index = &index;
            scope.spawn(move || {
                let mut dice = Dice::new(thread);
                for now in 0..400 {
                    let prompt = letters(dice.below(40) as u64, 1280);
                    let cut = 64 * (1 + dice.below(19));
                    let slot = dice.below(6) as u32;
                    let mark =
                        index.hold(&blocks(&prompt[..cut]), first_life(slot), Instant::from_micros(now));
                    if let Some(mut mark) = mark.filter(|_| dice.below(3) > 0) {
                        mark.keep();
                    }
                    if dice.below(50) == 0 {
                        index.forget(slot);
                    }
                }
            });
        }
    });
    assert_eq!(index.bytes(), index.recount());
    (0..6).for_each(|slot| index.forget(slot));
    assert_eq!((index.bytes(), index.recount()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    /// Against a list of everything that was sent: with room for all, the index knows exactly that.
    #[test]
    fn it_knows_what_was_sent(sent in prop::collection::vec((0..5u64, 1..12usize, 0..70u32, any::<bool>()), 1..40)) {
        let index = Arc::new(PrefixIndex::new(1 << 20));
        let mut list: Vec<(Vec<u64>, u32)> = vec![];
        for (now, (seed, len, slot, good)) in (0..).zip(sent) {
            // Prompts with common beginnings of one, two or four blocks.
            let common = 64 * (1 << (seed % 3));
            let text = format!("{}{}", letters(100, common), letters(seed, 64 * len));
            let blocks = blocks(&text);
            let expected = |slot: u32| list
                .iter()
                .filter(|(_, s)| *s == slot)
                .map(|(held, _)| held.iter().zip(&blocks.hashes).take_while(|(a, b)| a == b).count() as u32)
                .max()
                .unwrap_or(0);
            let found = index.find(&blocks);
            for slot in 0..70 {
                prop_assert_eq!(found.of(first_life(slot)), expected(slot));
            }
            let mark = index.hold(&blocks, first_life(slot), Instant::from_micros(now));
            if let Some(mut mark) = mark.filter(|_| good) {
                mark.keep();
                list.push((blocks.hashes.to_vec(), slot));
            }
            prop_assert_eq!(index.bytes(), index.recount());
        }
    }
}
