//! Policies that send like requests to like workers, and what keeps them from sending all to one.

use std::collections::BTreeMap;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, FleetChange, Role, Status};
use baton_core::place::{Assignment, Legwise, Look, Placement, Policy, PolicyName, Strategy, Tuning};
use baton_core::time::{Duration, Instant};
use proptest::prelude::*;

use crate::yard::{POLICIES, fleet, ids, pairs, seat, strategy};

const KEYS: [PolicyName; 2] = [PolicyName::ConsistentHashing, PolicyName::Manual];

fn read(api: Api, body: &str) -> Ask {
    Ask::read(api, &Envelope::parse(body.to_owned().into(), &BodyLimits::default()).unwrap()).unwrap()
}

fn chat(text: &str) -> Ask {
    read(Api::Chat, &format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#))
}

fn keyed(key: &str) -> Ask {
    let mut ask = chat("hi");
    assert!(ask.hints.hear_key(key.as_bytes()));
    ask
}

fn letters(seed: u64, count: usize) -> String {
    let mut dice = Dice::new(seed);
    (0..count).map(|_| char::from(b'a' + dice.below(26) as u8)).collect()
}

fn tuned(name: PolicyName, tuning: &Tuning) -> Strategy {
    let policy = || Policy::tuned(name, tuning.clone());
    Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
}

/// One after the other, a second apart.
struct Desk {
    fleet: Fleet,
    strategy: Strategy,
    dice: Dice,
    secs: u64,
}

impl Desk {
    fn new(fleet: Fleet, strategy: Strategy) -> Desk {
        Desk { fleet, strategy, dice: Dice::new(1), secs: 100 }
    }

    fn try_place(&mut self, ask: &Ask) -> Option<Placement> {
        self.secs += 1;
        let now = Instant::from_micros(self.secs * 1_000_000);
        let look = Look::new(&self.fleet, ask, now);
        self.strategy.place(&look, &mut self.dice).ok()
    }

    fn place(&mut self, ask: &Ask) -> Placement {
        self.try_place(ask).unwrap()
    }

    /// Places it, serves it, and says who it was.
    fn serve(&mut self, ask: &Ask) -> Vec<String> {
        let mut placement = self.place(ask);
        let ids = ids(&placement).into_iter().map(str::to_owned).collect();
        match &mut placement {
            Placement::Whole { worker } | Placement::Prefill { worker } => worker.computed(),
            Placement::Pair { prefill, decode } => {
                [prefill, decode].map(|t| t.computed()).into_iter().collect()
            }
        }
        ids
    }

    fn change(&mut self, changes: impl IntoIterator<Item = FleetChange>) {
        self.fleet = self.fleet.with(changes);
    }
}

fn wholes(n: u32) -> Fleet {
    fleet((0..n).map(|i| seat(i, &format!("w{i}"), Role::Whole)))
}

#[test]
fn cache_aware_sends_a_prompt_where_it_was_and_another_one_elsewhere() {
    let mut desk = Desk::new(pairs(2, 2), strategy(PolicyName::CacheAware));
    let (a, b) = (letters(1, 2000), letters(2, 2000));
    let first = desk.serve(&chat(&a));
    assert_eq!(desk.serve(&chat(&a)), first);
    let other = desk.serve(&chat(&b));
    assert!(other[0] != first[0] && other[1] != first[1], "{first:?} {other:?}");
    assert_eq!(desk.serve(&chat(&format!("{a} and more"))), first);
    assert_eq!(desk.serve(&chat(&format!("{b} and more"))), other);
}

#[test]
fn a_prompt_whose_prefill_failed_is_not_taken_to_be_there() {
    let mut desk = Desk::new(pairs(4, 1), strategy(PolicyName::CacheAware));
    let a = chat(&letters(1, 2000));
    let first = ids(&desk.place(&a))[0].to_owned();
    // It was not computed: the worker that was longest not chosen is as good as any.
    assert_ne!(desk.serve(&a)[0], first);
}

#[test]
fn a_burst_of_one_prompt_sees_itself_and_spreads_when_the_queue_costs_more() {
    let mut desk = Desk::new(pairs(4, 1), strategy(PolicyName::CacheAware));
    // 8000 tokens: as much as eight requests in flight, and it is in their way too.
    let hot = letters(1, 32_000);
    let held: Vec<_> = (0..12).map(|i| desk.place(&chat(&format!("{hot} {i}")))).collect();
    let mut loads: Vec<u32> = desk.fleet.prefill().iter().map(|p| p.seat.load.in_flight()).collect();
    loads.sort_unstable();
    assert!(loads[3] >= 5 && loads[..2] == [0, 0], "{loads:?}");
    drop(held);
    assert!(desk.fleet.seats().all(|s| s.load.in_flight() == 0 && s.load.work() == 0));
}

/// The hot prefix is worth two requests: no worker is pinned by it, and a new one gets its share, not all.
#[test]
fn one_hot_prefix_pins_nobody_and_a_new_worker_is_not_flooded() {
    let mut desk = Desk::new(wholes(4), strategy(PolicyName::CacheAware));
    let hot = letters(1, 2000);
    let mut held: Vec<Placement> = vec![];
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut run = |desk: &mut Desk, from: u64, n: u64| {
        counts.clear();
        for i in from..from + n {
            let text = if i % 10 == 0 { letters(i, 2000) } else { format!("{hot} tail {i}") };
            let placement = desk.place(&chat(&text));
            *counts.entry(ids(&placement)[0].to_owned()).or_default() += 1;
            held.push(placement);
            if held.len() > 6 {
                // The oldest is served.
                if let Placement::Whole { mut worker } = held.remove(0) {
                    worker.computed();
                }
            }
        }
        counts.clone()
    };
    let spread = run(&mut desk, 0, 400);
    assert!(spread.values().all(|n| *n <= 180), "{spread:?}");
    desk.change([FleetChange::Join(seat(9, "w9", Role::Whole))]);
    let spread = run(&mut desk, 1000, 100);
    assert!((10..=40).contains(&spread["w9"]), "{spread:?}");
}

#[test]
fn a_worker_that_left_or_began_anew_holds_nothing() {
    let mut desk = Desk::new(pairs(2, 1), strategy(PolicyName::CacheAware));
    let a = chat(&letters(1, 4000));
    let first = desk.serve(&a)[0].clone();
    let at = desk.fleet.prefill().iter().find(|p| p.seat.worker.id == first).unwrap().seat.clone();
    at.pulse.set_status(Status::NotReady);
    let second = desk.serve(&a)[0].clone();
    assert_ne!(first, second);
    at.pulse.set_status(Status::Ready);
    assert_eq!(desk.serve(&a)[0], second, "the first one may be another process now");
    let index = |desk: &Desk| match &desk.strategy {
        Strategy::Legwise(legwise) => legwise.prefill.index().unwrap().bytes(),
        #[allow(unreachable_patterns)]
        _ => 0,
    };
    assert!(index(&desk) > 0);
    let slots: Vec<u32> = desk.fleet.prefill().iter().map(|p| p.seat.slot).collect();
    desk.change(slots.into_iter().map(|slot| FleetChange::Leave { slot }));
    desk.change([FleetChange::Join(seat(77, "p77", Role::Prefill))]);
    desk.place(&chat("hi"));
    assert_eq!(index(&desk), 0);
}

#[test]
fn equal_keys_get_equal_pairs_and_keys_spread() {
    for name in KEYS {
        let mut desk = Desk::new(pairs(4, 4), strategy(name));
        let first: Vec<_> = (0..64).map(|i| desk.serve(&keyed(&format!("user-{i}")))).collect();
        for (i, ids) in first.iter().enumerate() {
            assert_eq!(&desk.serve(&keyed(&format!("user-{i}"))), ids, "{name:?}");
            assert_eq!(&desk.serve(&keyed(&format!("user-{i}_t7_r12"))), ids, "a turn of the same session");
        }
        let prefills: std::collections::BTreeSet<_> = first.iter().map(|ids| &ids[0]).collect();
        assert_eq!(prefills.len(), 4, "{name:?}");
    }
}

#[test]
fn any_policy_keeps_a_session_on_its_workers_where_that_is_asked_for() {
    let tuning = Tuning { sticky: true, ..Tuning::default() };
    for name in POLICIES {
        let mut desk = Desk::new(pairs(4, 4), tuned(name, &tuning));
        let ask = keyed("s");
        let first = desk.serve(&ask);
        for _ in 0..20 {
            assert_eq!(desk.serve(&ask), first, "{name:?}");
            desk.serve(&chat("another"));
        }
    }
}

#[test]
fn a_session_in_a_hurry_is_served_by_others_and_comes_back() {
    let tuning = Tuning { sticky: true, ..Tuning::default() };
    let mut desk = Desk::new(wholes(3), tuned(PolicyName::LeastLoad, &tuning));
    let ask = keyed("s");
    let held: Vec<_> = (0..2).map(|_| desk.place(&ask)).collect();
    let home = ids(&held[0])[0].to_owned();
    assert_eq!(ids(&held[1]), [&*home]);
    let third = desk.place(&ask);
    assert_ne!(ids(&third), [&*home], "two of its own are in flight there");
    drop((held, third));
    let now = desk.serve(&ask);
    assert_eq!(desk.serve(&ask), now);
}

#[test]
fn a_key_whose_worker_is_ill_moves_and_one_that_was_idle_is_forgotten() {
    let tuning = Tuning {
        assignment: Some(Assignment::MinGroup),
        max_idle: Duration::from_secs(60),
        ..Tuning::default()
    };
    let mut desk = Desk::new(wholes(3), tuned(PolicyName::Manual, &tuning));
    let homes: std::collections::BTreeSet<_> =
        (0..3).flat_map(|i| desk.serve(&keyed(&format!("k{i}")))).collect();
    assert_eq!(homes.len(), 3, "each has one key");
    let home = desk.serve(&keyed("k0"));
    let seat = desk.fleet.whole().iter().find(|s| s.worker.id == home[0]).unwrap().clone();
    seat.pulse.set_status(Status::NotReady);
    let other = desk.serve(&keyed("k0"));
    assert_ne!(other, home);
    seat.pulse.set_status(Status::Ready);
    assert_eq!(desk.serve(&keyed("k0")), other);
    desk.secs += 1000;
    assert_eq!(desk.serve(&keyed("new")).len(), 1);
}

#[test]
fn a_named_worker_is_taken_or_nobody() {
    let mut desk = Desk::new(wholes(3), strategy(PolicyName::ConsistentHashing));
    let mut ask = chat("hi");
    for (index, id) in [("2", Some("w2")), ("0", Some("w0")), ("3", None), ("x", None), ("-1", None)] {
        ask.hints.hear_target(index.as_bytes());
        let got = desk.try_place(&ask);
        assert_eq!(got.as_ref().map(|p| ids(p)[0]), id, "{index}");
    }
}

/// Token ids, lists, and texts that look like JSON: each is told by what it is.
#[test]
fn prompts_without_a_key_spread_and_come_back() {
    let kinds: [fn(u32) -> Ask; 3] = [
        |i| {
            let ids: Vec<_> = (i..i + 64).map(|id| id.to_string()).collect();
            read(Api::Completions, &format!(r#"{{"model":"m","prompt":[{}]}}"#, ids.join(",")))
        },
        |i| chat(&format!(r#"{{\"user\": \"bob\"}} question {i}"#)),
        |i| read(Api::Completions, &format!(r#"{{"prompt":["{}","b"]}}"#, "a".repeat(i as usize + 1))),
    ];
    for kind in kinds {
        for name in [PolicyName::ConsistentHashing, PolicyName::PrefixHash] {
            let mut desk = Desk::new(wholes(4), strategy(name));
            let mut counts: BTreeMap<String, u32> = BTreeMap::new();
            for i in 0..200 {
                let ids = desk.serve(&kind(i));
                assert_eq!(desk.serve(&kind(i)), ids);
                *counts.entry(ids[0].clone()).or_default() += 1;
            }
            assert!(
                counts.len() == 4 && counts.values().all(|n| (28..=72).contains(n)),
                "{name:?} {counts:?}"
            );
        }
    }
}

#[test]
fn prefix_hash_looks_at_the_beginning_and_not_at_an_overloaded_owner() {
    let mut desk = Desk::new(pairs(4, 1), strategy(PolicyName::PrefixHash));
    let head = letters(1, 1100);
    let home = desk.serve(&chat(&format!("{head}{}", letters(2, 500))))[0].clone();
    assert_eq!(desk.serve(&chat(&format!("{head}{}", letters(3, 900))))[0], home);
    let mut homes = std::collections::BTreeSet::new();
    for i in 0..40 {
        homes.insert(desk.serve(&chat(&letters(100 + i, 1200)))[0].clone());
    }
    assert_eq!(homes.len(), 4);
    // The mean plus ten is what the owner may have: then the second owner, always the same.
    let held: Vec<_> = (0..16).map(|i| desk.place(&chat(&format!("{head}{i}")))).collect();
    let counts = held.iter().fold(BTreeMap::new(), |mut counts: BTreeMap<String, u32>, p| {
        *counts.entry(ids(p)[0].to_owned()).or_default() += 1;
        counts
    });
    assert!(counts.len() == 2 && counts[&home] >= 12, "{counts:?}");
}

#[test]
fn bucket_keeps_short_prompts_from_long_ones() {
    let mut desk = Desk::new(pairs(2, 1), {
        let policy = |name| Policy::new(name);
        let (prefill, decode) = (policy(PolicyName::Bucket), policy(PolicyName::LeastLoad));
        Strategy::Legwise(Legwise { prefill, decode, whole: policy(PolicyName::LeastLoad) })
    });
    let sides = |desk: &mut Desk| {
        let mut of = |len: usize| desk.serve(&chat(&"x".repeat(len)))[0].clone();
        (of(20), of(100), of(6000), of(9000))
    };
    let (a, b, c, d) = sides(&mut desk);
    assert!(a == b && c == d && a != c, "{a} {b} {c} {d}");
    // Learnt: all prompts are long now, and the cut moves up.
    for i in 0..200 {
        desk.serve(&chat(&"y".repeat(if i % 10 == 0 { 90_000 } else { 10_000 })));
    }
    assert_ne!(desk.serve(&chat(&"y".repeat(10_000)))[0], desk.serve(&chat(&"y".repeat(90_000)))[0]);
    // Load goes before size.
    let held: Vec<_> = (0..40).map(|_| desk.place(&chat("short"))).collect();
    let least = desk.fleet.prefill().iter().map(|p| p.seat.load.in_flight()).min();
    assert!(least > Some(8), "{least:?}");
    drop(held);
}

#[test]
fn a_warm_choice_is_likelier_the_cheaper_it_is() {
    let tuning = Tuning { temperature: 0.5, ..Tuning::default() };
    let mut desk = Desk::new(wholes(2), tuned(PolicyName::CacheAware, &tuning));
    let a = chat(&letters(1, 4000));
    let home = desk.serve(&a);
    let there = (0..400).filter(|_| ids(&desk.place(&a)) == home.iter().collect::<Vec<_>>()).count();
    // exp(-1/0.5) to 1: 0.88 of all.
    assert!((310..390).contains(&there), "{there}");
}

/// Many at once on idle workers: each policy that looks at load spreads them evenly.
#[test]
fn a_burst_of_distinct_prompts_is_spread_evenly() {
    for name in [PolicyName::LeastLoad, PolicyName::CacheAware, PolicyName::RoundRobin] {
        let mut desk = Desk::new(pairs(4, 1), strategy(name));
        let held: Vec<_> = (0..256).map(|i| desk.place(&chat(&letters(i, 400)))).collect();
        let loads: Vec<u32> = desk.fleet.prefill().iter().map(|p| p.seat.load.in_flight()).collect();
        assert!(loads.iter().all(|n| (63..=65).contains(n)), "{name:?} {loads:?}");
        drop(held);
    }
    // Of one size, and many threads: the size says nothing, so the least loaded does.
    let (fleet, strategy) = (pairs(4, 1), strategy(PolicyName::Bucket));
    let prompts: Vec<Ask> = (0..256).map(|_| chat("")).collect();
    let held = std::sync::Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for part in prompts.chunks(32) {
            let (fleet, strategy, held) = (&fleet, &strategy, &held);
            scope.spawn(move || {
                let mut dice = Dice::new(1);
                for ask in part {
                    let look = Look::new(fleet, ask, Instant::from_micros(1));
                    held.lock().unwrap().push(strategy.place(&look, &mut dice).unwrap());
                }
            });
        }
    });
    assert_eq!(held.lock().unwrap().len(), 256);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    /// A worker that leaves moves its own keys and no others, whatever the order of the workers.
    #[test]
    fn a_leaving_worker_moves_its_own_keys_only(n in 2..9u32, gone in any::<prop::sample::Index>(), backwards: bool) {
        let seats = (0..n).map(|i| seat(if backwards { n - i } else { i }, &format!("w{i}"), Role::Whole));
        let mut desk = Desk::new(fleet(seats), strategy(PolicyName::ConsistentHashing));
        let key = |i: u32| keyed(&format!("key-{i}"));
        let before: Vec<_> = (0..60).map(|i| desk.serve(&key(i))).collect();
        let mut alone = Desk::new(wholes(n), strategy(PolicyName::ConsistentHashing));
        prop_assert!((0..60).all(|i| alone.serve(&key(i)) == before[i as usize]), "other gateways agree");
        let left = desk.fleet.whole()[gone.index(n as usize)].clone();
        desk.change([FleetChange::Leave { slot: left.slot }]);
        for (i, was) in (0..60).zip(before) {
            let now = desk.serve(&key(i));
            prop_assert!(now == was || was[0] == left.worker.id);
        }
    }

    /// Any mix of requests held and given back in any order: all counters come back to zero, and the same seed
    /// makes the same choices.
    #[test]
    fn charges_and_releases_commute(
        name in prop::sample::select(POLICIES.to_vec()),
        steps in prop::collection::vec((0..5u64, 1..40usize, any::<prop::sample::Index>()), 1..60),
        sticky: bool,
    ) {
        let tuning = Tuning { sticky, ..Tuning::default() };
        let run = || {
            let mut desk = Desk::new(pairs(3, 2), tuned(name, &tuning));
            let (mut held, mut said) = (vec![], vec![]);
            for (seed, len, which) in &steps {
                let mut ask = chat(&letters(*seed, 64 * len));
                ask.hints.hear_key(seed.to_string().as_bytes());
                let placement = desk.place(&ask);
                said.push(ids(&placement).join(" "));
                held.push(placement);
                if *seed > 2 {
                    held.swap_remove(which.index(held.len()));
                }
            }
            drop(held);
            assert!(desk.fleet.seats().all(|s| s.load.in_flight() == 0 && s.load.work() == 0));
            if let Strategy::Legwise(legwise) = &desk.strategy
                && let Some(index) = legwise.prefill.index()
            {
                assert_eq!((index.bytes(), index.recount()), (0, 0), "nothing was computed");
            }
            said
        };
        prop_assert_eq!(run(), run());
    }
}
