//! What holds for every policy, whatever is asked and whatever workers say of themselves.

use std::collections::BTreeMap;
use std::sync::Mutex;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, Role, Status};
use baton_core::load::Lease;
use baton_core::place::{Assignment, Legwise, Look, Placement, Policy, PolicyName, Strategy, Tuning};
use baton_core::time::Instant;
use proptest::prelude::*;
use proptest::strategy::Strategy as Gen;

use crate::yard::{POLICIES, chosen, fleet, ids, pairs, seat};

/// A request as clients send them: some text, perhaps a key, perhaps a place.
#[derive(Clone, Debug)]
pub struct Said {
    text: u64,
    len: usize,
    key: Option<u8>,
    target: Option<String>,
}

impl Said {
    /// Some text of this length.
    pub fn plain(text: u64, len: usize) -> Said {
        Said { text, len, key: None, target: None }
    }

    pub fn key(&self) -> Option<u8> {
        self.key
    }

    pub fn ask(&self) -> Ask {
        let mut dice = Dice::new(self.text);
        let text: String = (0..self.len).map(|_| char::from(b'a' + dice.below(26) as u8)).collect();
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
        let mut ask = Ask::read(Api::Chat, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap());
        let ask = ask.as_mut().unwrap();
        if let Some(key) = self.key {
            assert!(ask.hints.hear_key(&[b'k', b'a' + key]));
        }
        if let Some(target) = &self.target {
            ask.hints.hear_target(target.as_bytes());
        }
        ask.clone()
    }
}

pub fn said() -> impl Gen<Value = Said> {
    let target = prop::option::weighted(0.1, prop::sample::select(vec!["0", "1", "7", "x"]));
    let all = (0..6u64, 0..3000usize, prop::option::of(0..4u8), target);
    all.prop_map(|(text, len, key, target)| Said { text, len, key, target: target.map(str::to_owned) })
}

/// What a worker may say of itself, however odd.
fn gauge() -> impl Gen<Value = Option<f64>> {
    let odd = vec![0.0, 0.5, 1.0, 3.0, 2000.0, -1.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    prop::option::of(prop::sample::select(odd))
}

fn tunings() -> impl Gen<Value = Tuning> {
    let assignment = prop::sample::select(vec![
        None,
        Some(Assignment::Random),
        Some(Assignment::MinLoad),
        Some(Assignment::MinGroup),
        Some(Assignment::Delegate),
    ]);
    let temperature = prop::sample::select(vec![0.0, 0.0, 0.5]);
    (any::<bool>(), assignment, temperature, 0..3usize).prop_map(|(sticky, assignment, temperature, odd)| {
        Tuning { sticky, assignment, temperature, overlap_decay: odd as f64, ..Tuning::default() }
    })
}

fn strategy(name: PolicyName, tuning: &Tuning) -> Strategy {
    let policy = || Policy::tuned(name, tuning.clone());
    Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
}

fn place(fleet: &Fleet, strategy: &Strategy, ask: &Ask, at: u64, dice: &mut Dice) -> Option<Placement> {
    let look = Look::new(fleet, ask, Instant::from_micros(at));
    strategy.place(&look, dice).ok()
}

fn loads(fleet: &Fleet) -> Vec<(u32, u64)> {
    fleet.seats().map(|s| (s.load.in_flight(), s.load.work())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    /// A run of requests on workers of which some are ill and all say odd things: only well ones are chosen, somebody
    /// is as long as somebody is well, every place taken is counted and comes back, and the same seed says the same.
    #[test]
    fn only_the_well_are_chosen_whatever_anybody_says(
        name in prop::sample::select(POLICIES.to_vec()),
        tuning in tunings(),
        run in prop::collection::vec((said(), prop::option::of((0..5usize, any::<bool>()))), 1..24),
        gauges in prop::collection::vec((gauge(), gauge(), gauge()), 5),
        seed: u64,
    ) {
        let go = || {
            let (fleet, strategy, mut dice) = (pairs(3, 2), strategy(name, &tuning), Dice::new(seed));
            if tuning.overlap_decay < 2.0 {
                fleet.want_gauges();
            }
            for (seat, (waiting, throughput, kv)) in fleet.seats().zip(&gauges) {
                seat.gauges.waiting.set(*waiting);
                seat.gauges.throughput.set(*throughput);
                seat.gauges.kv_usage.set(*kv);
            }
            let (mut held, mut told): (Vec<Placement>, Vec<String>) = (vec![], vec![]);
            for (at, (said, change)) in (1u64..).zip(&run) {
                if let Some((who, well)) = change {
                    let status = if *well { Status::Ready } else { Status::NotReady };
                    fleet.seats().nth(*who).unwrap().pulse.set_status(status);
                }
                let well = |s: &&std::sync::Arc<baton_core::fleet::Seat>| s.pulse.status() == Status::Ready;
                let prefill = fleet.prefill().iter().map(|p| &p.seat).filter(well).count();
                let decode = fleet.decode().iter().filter(well).count();
                let placement = place(&fleet, &strategy, &said.ask(), at * 300_000, &mut dice);
                let named = name == PolicyName::ConsistentHashing && said.target.is_some();
                prop_assert!(placement.is_some() == (prefill * decode > 0) || named && placement.is_none());
                let Some(placement) = placement else { continue };
                prop_assert!(chosen(&placement).iter().all(|s| s.pulse.status() == Status::Ready));
                told.push(ids(&placement).join(" "));
                held.push(placement);
                let counted: u32 = fleet.seats().map(|s| s.load.in_flight()).sum();
                prop_assert_eq!(counted as usize, 2 * held.len());
                if at % 3 == 0 {
                    held.swap_remove(at as usize % held.len());
                }
            }
            drop(held);
            prop_assert!(loads(&fleet).iter().all(|load| *load == (0, 0)));
            Ok(told)
        };
        prop_assert_eq!(go()?, go()?);
    }

    /// The order in which places are given back does not count.
    #[test]
    fn releases_commute(
        name in prop::sample::select(POLICIES.to_vec()),
        run in prop::collection::vec(said(), 1..24),
        order in prop::collection::vec(any::<prop::sample::Index>(), 12),
        seed: u64,
    ) {
        let go = |order: &mut dyn Iterator<Item = &prop::sample::Index>| {
            let (fleet, strategy, mut dice) = (pairs(3, 2), strategy(name, &Tuning::default()), Dice::new(seed));
            let mut held: Vec<Option<Placement>> = vec![];
            for (at, said) in (1u64..).zip(&run) {
                held.push(place(&fleet, &strategy, &said.ask(), at, &mut dice));
            }
            for which in order {
                held[which.index(run.len())] = None;
            }
            let after = loads(&fleet);
            drop(held);
            (after, loads(&fleet))
        };
        prop_assert_eq!(go(&mut order.iter()), go(&mut order.iter().rev()));
    }
}

/// Four decodes of these loads, in this order of slots, behind one prefill; or four whole workers.
fn stand(order: &[usize], load: [usize; 4]) -> (Fleet, Vec<Lease>) {
    let seats = order.iter().enumerate().map(|(at, who)| seat(at as u32, &format!("w{who}"), Role::Whole));
    let fleet = fleet(seats);
    let leases = fleet.whole().iter().flat_map(|s| {
        let who: usize = s.worker.id[1..].parse().unwrap();
        (0..load[who]).map(|_| s.load.take()).collect::<Vec<_>>()
    });
    let leases = leases.collect();
    (fleet, leases)
}

/// Who gets how many of a run of requests that are served one after the other.
fn served(order: &[usize], load: [usize; 4], name: PolicyName, said: &[Said]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for seed in 0..40 {
        let (fleet, _leases) = stand(order, load);
        let (strategy, mut dice) = (strategy(name, &Tuning::default()), Dice::new(seed));
        for (at, said) in (1u64..).zip(said) {
            let mut placement = place(&fleet, &strategy, &said.ask(), at * 1000, &mut dice).unwrap();
            if let Placement::Whole { worker } = &mut placement {
                worker.computed();
            }
            *counts.entry(ids(&placement)[0].to_owned()).or_default() += 1;
        }
    }
    counts
}

/// How workers are listed says nothing: each gets as many, by who it is, not by where it stands.
#[test]
fn the_order_of_the_workers_does_not_change_who_gets_how_many() {
    let said: Vec<Said> = (0..24)
        .map(|i| Said {
            text: i % 7,
            len: 200 + 400 * (i as usize % 5),
            key: (i % 3 == 0).then_some(i as u8),
            target: None,
        })
        .collect();
    for name in POLICIES {
        for load in [[0; 4], [0, 1, 2, 3], [5, 0, 0, 5]] {
            let plain = served(&[0, 1, 2, 3], load, name, &said);
            for order in [[3, 2, 1, 0], [2, 0, 3, 1]] {
                let other = served(&order, load, name, &said);
                let all = (40 * said.len()) as f64;
                for who in ["w0", "w1", "w2", "w3"] {
                    let [a, b] = [&plain, &other].map(|c| c.get(who).copied().unwrap_or_default() as f64);
                    let swing = 6.0 * (all * 0.25).sqrt().max(1.0);
                    assert!((a - b).abs() <= swing, "{name:?} {load:?} {order:?}: {plain:?} {other:?}");
                }
                if matches!(name, PolicyName::ConsistentHashing | PolicyName::PrefixHash) {
                    assert_eq!(plain, other, "{name:?}: no chance in it");
                }
            }
        }
    }
}

/// 256 requests at once on four idle prefills.
fn burst(name: PolicyName, tuning: &Tuning, threads: u64, said: &(dyn Fn(u64) -> Said + Sync)) -> Vec<u32> {
    let (fleet, strategy, held) = (pairs(4, 1), strategy(name, tuning), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (fleet, strategy, held) = (&fleet, &strategy, &held);
            scope.spawn(move || {
                let mut dice = Dice::new(thread);
                let asks: Vec<Ask> = (0..256 / threads).map(|i| said(1000 * thread + i).ask()).collect();
                for ask in &asks {
                    let placement = place(fleet, strategy, ask, 1_000_000, &mut dice).unwrap();
                    held.lock().unwrap().push(placement);
                }
            });
        }
    });
    let mut loads: Vec<u32> = fleet.prefill().iter().map(|p| p.seat.load.in_flight()).collect();
    loads.sort_unstable();
    drop(held);
    assert!(fleet.seats().all(|s| s.load.in_flight() == 0 && s.load.work() == 0));
    loads
}

#[test]
fn a_burst_is_spread_evenly_by_every_policy_that_looks_at_load() {
    let one_size = |i| Said { text: i, len: 400, key: None, target: None };
    let no_text = |_| Said { text: 0, len: 0, key: None, target: None };
    let plain = Tuning::default();
    let least = Tuning { assignment: Some(Assignment::MinLoad), ..Tuning::default() };
    for threads in [1, 8] {
        for (name, tuning) in [(PolicyName::LeastLoad, &plain), (PolicyName::Manual, &least)] {
            assert_eq!(burst(name, tuning, threads, &one_size), [64; 4], "{name:?}, {threads} threads");
        }
        // All of one size: its worker, up to its share of the load.
        let loads = burst(PolicyName::Bucket, &plain, threads, &no_text);
        assert!(loads[3] <= 97 && loads[0] >= 52, "{threads} threads: {loads:?}");
        let loads = burst(PolicyName::CacheAware, &plain, threads, &one_size);
        assert!(loads.iter().all(|n| (63..=65).contains(n)), "{threads} threads: {loads:?}");
    }
}
