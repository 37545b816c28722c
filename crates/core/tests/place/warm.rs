//! A worker that has just joined knows no prompt: it is given some until it does, and not more than it can take.

use std::collections::BTreeMap;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, FleetChange, Role, Status};
use baton_core::place::{Legwise, Look, Placement, Policy, PolicyName, Strategy, Tuning};
use baton_core::time::{Duration, Instant};

use crate::yard::{fleet, ids, seat};

fn chat(text: &str) -> Ask {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    Ask::read(Api::Chat, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap()).unwrap()
}

fn letters(seed: u64, count: usize) -> String {
    let mut dice = Dice::new(seed);
    (0..count).map(|_| char::from(b'a' + dice.below(26) as u8)).collect()
}

/// Workers that keep up with their requests: each takes a tenth of a second, and one comes every 40 ms.
struct Street {
    fleet: Fleet,
    strategy: Strategy,
    dice: Dice,
    ms: u64,
    held: Vec<(u64, Placement)>,
    hot: String,
}

impl Street {
    fn new(workers: u32, tuning: Tuning) -> Street {
        let policy = || Policy::tuned(PolicyName::CacheAware, tuning.clone());
        Street {
            fleet: fleet((0..workers).map(|i| seat(i, &format!("w{i}"), Role::Whole))),
            strategy: Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() }),
            dice: Dice::new(1),
            ms: 1000,
            held: vec![],
            hot: letters(1, 2000),
        }
    }

    fn send(&mut self, text: &str) -> String {
        self.ms += 40;
        let now = Instant::from_micros(self.ms * 1000);
        let (done, held) =
            std::mem::take(&mut self.held).into_iter().partition(|(until, _)| *until <= self.ms);
        self.held = held;
        for (_, placement) in done {
            if let Placement::Whole { mut worker } = placement {
                worker.computed();
            }
        }
        let ask = chat(text);
        let look = Look::new(&self.fleet, &ask, now);
        let placement = self.strategy.place(&look, &mut self.dice).unwrap();
        let id = ids(&placement)[0].to_owned();
        self.held.push((self.ms + 100, placement));
        id
    }

    /// So many requests, nine of ten with the hot prefix, and who got how many.
    fn run(&mut self, from: u64, n: u64) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for i in from..from + n {
            let tail = letters(i, 2000);
            let text = if i % 10 == 3 { tail } else { format!("{} tail {}", self.hot, &tail[..40]) };
            *counts.entry(self.send(&text)).or_default() += 1;
        }
        counts
    }

    fn join(&mut self, slot: u32) {
        self.fleet = self.fleet.with([FleetChange::Join(seat(slot, &format!("w{slot}"), Role::Whole))]);
    }
}

fn got(counts: &BTreeMap<String, u32>, id: &str) -> u32 {
    counts.get(id).copied().unwrap_or_default()
}

#[test]
fn a_new_worker_gets_its_share_of_a_hot_prefix_that_others_keep_up_with() {
    let mut street = Street::new(4, Tuning::default());
    street.run(0, 240);
    street.join(9);
    let counts = street.run(1000, 100);
    assert!((10..=40).contains(&got(&counts, "w9")), "{counts:?}");
}

#[test]
fn without_warm_up_it_gets_what_it_wins() {
    let mut street = Street::new(4, Tuning { warm_up: None, ..Tuning::default() });
    street.run(0, 240);
    street.join(9);
    let counts = street.run(1000, 100);
    assert!(got(&counts, "w9") < 10, "{counts:?}");
}

#[test]
fn a_worker_that_began_a_new_life_is_new_again() {
    let mut street = Street::new(5, Tuning::default());
    street.run(0, 240);
    let again = street.fleet.whole()[4].clone();
    again.pulse.set_status(Status::NotReady);
    street.run(500, 40);
    again.pulse.set_status(Status::Ready);
    let counts = street.run(1000, 100);
    assert!((10..=40).contains(&got(&counts, "w4")), "{counts:?}");
}

/// Where nobody has anything to catch up with, every turn of a conversation goes where the last one was.
#[test]
fn conversations_of_workers_that_began_together_are_not_diverted() {
    let mut street = Street::new(4, Tuning::default());
    let mut said = letters(7, 3000);
    let home = street.send(&said);
    for turn in 0..60 {
        said.push_str(&letters(100 + turn, 300));
        street.ms += 200;
        assert_eq!(street.send(&said), home, "turn {turn}");
    }
}

#[test]
fn shares_are_what_the_settings_say() {
    let one_in_four = Tuning { divert_every: 4, warm_up_share: 0.5, thin_ratio: 1e9, ..Tuning::default() };
    let mut street = Street::new(2, one_in_four);
    let home = street.send(&letters(1, 2000));
    street.ms += 1000;
    street.join(9);
    let hot = street.hot.clone();
    // The first look at the new worker; the prompt's home is idle each time.
    let mut next = |text: &str| {
        street.ms += 1000;
        street.send(text)
    };
    let hits: Vec<bool> = (0..4).map(|_| next(&hot) == home).collect();
    assert_eq!(hits, [true, true, true, false]);
    let misses = (0..20).filter(|i| next(&letters(50 + i, 2000)) == "w9").count();
    assert!(misses >= 10, "half at least: {misses}");
}

#[test]
fn one_that_holds_so_many_blocks_is_warm() {
    let first_hits = |blocks: u64| {
        let tuning = Tuning { divert_every: 1, thin_ratio: 1e9, warm_up_blocks: blocks, ..Tuning::default() };
        let mut street = Street::new(2, tuning);
        let home = street.send(&letters(1, 2000));
        street.ms += 1000;
        street.join(9);
        let hot = street.hot.clone();
        let mut next = || {
            street.ms += 1000;
            street.send(&hot) == home
        };
        [next(), next()]
    };
    assert!(!first_hits(1024)[0], "a hit is its turn");
    assert_eq!(first_hits(0), [true, true], "who holds none has enough");
}

#[test]
fn it_is_not_new_for_ever() {
    let brief = Tuning { warm_up: Some(Duration::from_secs(1)), ..Tuning::default() };
    let mut street = Street::new(2, brief);
    let home = street.send(&letters(1, 2000));
    street.ms += 1000;
    street.join(9);
    let hot = street.hot.clone();
    street.send(&hot);
    street.ms += 2000;
    for _ in 0..30 {
        street.ms += 1000;
        assert_eq!(street.send(&hot), home);
    }
}

#[test]
fn one_that_is_loaded_is_left_alone() {
    let mut street = Street::new(4, Tuning { divert_every: 1, thin_ratio: 1e9, ..Tuning::default() });
    street.run(0, 40);
    street.join(9);
    let joined = street.fleet.whole().iter().find(|s| s.slot == 9).unwrap().clone();
    let _busy: Vec<_> = (0..40).map(|_| joined.load.take()).collect();
    let counts = street.run(1000, 40);
    assert_eq!(got(&counts, "w9"), 0, "{counts:?}");
}
