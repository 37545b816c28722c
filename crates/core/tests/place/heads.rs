//! Prompts that are cut where engines keep a prefix: `--cache-boundaries`.

use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, FleetChange, Role};
use baton_core::place::{Legwise, Look, Placement, Policy, PolicyName, Strategy, Tuning};
use baton_core::prefix::{HEAD_HOLDERS, Heads, Holder, Memory};
use baton_core::time::{Duration, Instant};
use proptest::prelude::*;

use crate::yard::{fleet, seat};

fn prompt(text: &str) -> Ask {
    let body = format!(r#"{{"prompt":"{text}"}}"#);
    Ask::read(Api::Completions, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap()).unwrap()
}

fn letters(seed: u64, count: usize) -> String {
    let mut dice = Dice::new(seed);
    (0..count).map(|_| char::from(b'a' + dice.below(26) as u8)).collect()
}

/// Cut after 100 and 1000 tokens, remembered for a minute.
fn tuning() -> Tuning {
    Tuning {
        boundaries: Arc::new([100, 1000]),
        heads_last: Some(Duration::from_secs(60)),
        ..Tuning::default()
    }
}

fn strategy(name: PolicyName) -> Strategy {
    let policy = || Policy::tuned(name, tuning());
    Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
}

fn wholes(n: u32) -> Fleet {
    fleet((0..n).map(|i| seat(i, &format!("w{i}"), Role::Whole)))
}

struct Desk {
    fleet: Fleet,
    strategy: Strategy,
    dice: Dice,
    secs: u64,
}

impl Desk {
    fn new(name: PolicyName) -> Desk {
        Desk { fleet: wholes(4), strategy: strategy(name), dice: Dice::new(1), secs: 100 }
    }

    fn place(&mut self, text: &str) -> Placement {
        self.secs += 1;
        let ask = prompt(text);
        let look = Look::new(&self.fleet, &ask, Instant::from_micros(self.secs * 1_000_000));
        self.strategy.place(&look, &mut self.dice).unwrap()
    }

    /// Served to its end.
    fn serve(&mut self, text: &str) -> String {
        let Placement::Whole { mut worker } = self.place(text) else { panic!("a whole worker") };
        worker.computed();
        worker.seat.worker.id.clone()
    }
}

#[test]
fn a_prompt_comes_back_by_the_deepest_head_it_shares() {
    let mut desk = Desk::new(PolicyName::CacheAware);
    let (system, a, b) = (letters(1, 600), letters(2, 8000), letters(3, 8000));
    let (first, second) = (format!("{system}{a}"), format!("{system}{b}"));
    let home = desk.serve(&first);
    // A tenth of it is known, which would be too little of it for an index of blocks.
    let mut also = vec![desk.serve(&second)];
    assert_eq!(also, [home.as_str()], "the head after 100 tokens is there");
    also = (0..4).map(|_| desk.serve(&format!("{first} and so on"))).collect();
    assert_eq!(also, [home.as_str(); 4]);
    // Shorter than any head: nobody is known to have it, and they go round.
    let short: std::collections::BTreeSet<_> = (0..4).map(|_| desk.serve("hi")).collect();
    assert!(short.len() > 2, "{short:?}");
    assert!(desk.fleet.seats().all(|seat| seat.load.in_flight() == 0 && seat.load.work() == 0));
}

#[test]
fn a_placement_is_forgotten_after_its_time_and_when_its_worker_leaves() {
    let mut desk = Desk::new(PolicyName::CacheAware);
    let text = letters(1, 5000);
    let known = |desk: &Desk| {
        let Strategy::Legwise(legwise) = &desk.strategy else { panic!("legwise") };
        let now = Instant::from_micros((desk.secs + 1) * 1_000_000);
        let heads = prompt(&text).prompt.heads(&tuning().boundaries);
        let found = legwise.whole.index().unwrap().find(&heads, now);
        found.iter().map(|(holder, heads)| (holder.slot, *heads)).collect::<Vec<_>>()
    };
    let home = desk.serve(&text);
    let slot: u32 = home.trim_start_matches('w').parse().unwrap();
    assert_eq!(known(&desk), [(slot, 2)]);
    desk.secs += 58;
    assert_eq!(known(&desk), [(slot, 2)]);
    desk.secs += 1;
    assert_eq!(known(&desk), []);
    let home = desk.serve(&text);
    assert_eq!(desk.serve(&text), home);
    desk.fleet = desk.fleet.with([FleetChange::Leave { slot: home[1..].parse().unwrap() }]);
    assert_ne!(desk.serve(&text), home);
}

#[test]
fn a_prompt_that_was_not_computed_leaves_nothing() {
    let mut desk = Desk::new(PolicyName::CacheAware);
    drop(desk.place(&letters(1, 5000)));
    let Strategy::Legwise(legwise) = &desk.strategy else { panic!("legwise") };
    assert_eq!(legwise.whole.index().unwrap().bytes(), 0);
}

#[test]
fn a_hot_head_names_the_last_three_and_memory_stays_within_its_budget() {
    let memory = Memory::Heads(Arc::new(Heads::new(1 << 16, &tuning().boundaries, Duration::from_secs(60))));
    let at: Arc<[usize]> = tuning().boundaries;
    let hot = prompt(&letters(1, 5000)).prompt.heads(&at);
    for slot in 0..5 {
        let now = Instant::from_micros(u64::from(slot));
        memory.hold(&hot, Holder { slot, life: 0 }, now).unwrap().keep();
    }
    let slots: Vec<u32> = memory.find(&hot, Instant::from_micros(9)).iter().map(|(h, _)| h.slot).collect();
    assert_eq!((slots.len(), slots), (HEAD_HOLDERS, vec![2, 3, 4]));
    for seed in 2..2000 {
        let heads = prompt(&letters(seed, 5000)).prompt.heads(&at);
        memory.hold(&heads, Holder { slot: 1, life: 0 }, Instant::from_micros(seed * 1000)).unwrap().keep();
        memory.hold(&hot, Holder { slot: 2, life: 0 }, Instant::from_micros(seed * 1000)).unwrap().keep();
        assert!(memory.bytes() <= memory.budget(), "{} of {}", memory.bytes(), memory.budget());
    }
    assert!(memory.evictions() > 1000);
    let found = memory.find(&hot, Instant::from_micros(2_000_000));
    assert!(
        found.contains(&(Holder { slot: 2, life: 0 }, 2)),
        "what is sent again and again stays: {found:?}"
    );
    // Another life of the same worker holds nothing.
    assert!(!found.iter().any(|(holder, _)| holder.life == 1));
}

#[test]
fn prefix_hash_goes_by_the_deepest_head_and_then_by_a_shallower_one() {
    let mut desk = Desk::new(PolicyName::PrefixHash);
    let (system, tail) = (letters(1, 600), letters(2, 8000));
    let by_system = desk.serve(&format!("{system} one"));
    assert_eq!(desk.serve(&format!("{system} another, a little longer")), by_system);
    // A deep head that belongs to somebody else.
    let deep = (3..)
        .map(|seed| format!("{system}{}", letters(seed, 4000)))
        .find(|text| desk.serve(text) != by_system);
    let deep = deep.unwrap();
    let owner = desk.serve(&deep);
    assert_eq!(
        desk.serve(&format!("{deep}{tail}")),
        owner,
        "what comes after the last position does not count"
    );
    // Its owner gets more than its share: the owner of the shallower head is next.
    let slot: u32 = owner.trim_start_matches('w').parse().unwrap();
    let busy: Vec<_> = (0..40).map(|_| desk.fleet.seat(slot).unwrap().load.take()).collect();
    assert_eq!(desk.serve(&deep), by_system);
    drop(busy);
    assert_eq!(desk.serve(&deep), owner);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// Against a list that is searched from its end: who was sent a prompt last, how long ago, and what was taken back.
    #[test]
    fn heads_are_as_a_list_says(steps in prop::collection::vec((0..4u64, 0..6u32, any::<bool>(), 0..30u64), 1..60)) {
        let at: Arc<[usize]> = Arc::new([100]);
        let memory = Memory::Heads(Arc::new(Heads::new(1 << 20, &at, Duration::from_secs(60))));
        let heads: Vec<_> = (0..4).map(|seed| prompt(&letters(seed, 500)).prompt.heads(&at)).collect();
        // For each prompt, who was sent it and when; the newest first.
        let mut list: Vec<Vec<(u32, u64)>> = vec![vec![]; 4];
        let mut now = 100;
        for (which, slot, kept, pause) in steps {
            now += pause;
            let at = Instant::from_micros(now * 1_000_000);
            let mut mark = memory.hold(&heads[which as usize], Holder { slot, life: 0 }, at).unwrap();
            if kept {
                mark.keep();
            }
            drop(mark);
            let own = &mut list[which as usize];
            own.retain(|(_, since)| now - since < 60);
            let before = own.iter().any(|(other, _)| *other == slot);
            own.retain(|(other, _)| *other != slot);
            own.insert(0, (slot, now));
            own.truncate(HEAD_HOLDERS);
            if !kept && !before {
                own.remove(0);
            }
            let mut slots: Vec<u32> = own.iter().map(|(slot, _)| *slot).collect();
            slots.sort_unstable();
            let found: Vec<u32> = memory.find(&heads[which as usize], at).iter().map(|(h, _)| h.slot).collect();
            prop_assert_eq!(found, slots);
        }
    }
}
