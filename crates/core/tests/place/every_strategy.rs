//! What holds for every strategy and each of its policies: SMG's nine by legs, AIBrix's `pd` with each pair of its scores,
//! AIBrix's strategies for whole workers and lists of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::ask::Ask;
use baton_core::dice::Dice;
use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::gauges::usable;
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore};
use baton_core::place::cascade::ledger::{Charge, Ledger, Part};
use baton_core::place::cascade::resolve::resolve;
use baton_core::place::receipt::{OfLeg, Receipt};
use baton_core::place::{
    Cascade, Legwise, Look, Placement, Policy, PolicyName, Strategies, Strategy, Taken, Tuning, Whole,
};
use baton_core::time::{Duration, Instant};
use baton_core::wishes::{Wish, Wishes};
use proptest::prelude::*;
use proptest::strategy::Strategy as Gen;

use crate::props::{Said, said};
use crate::yard::{POLICIES, chosen};

/// One strategy with its policies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Legwise(PolicyName),
    /// With bucketing, or without.
    Pd(PrefillScore, DecodeScore, bool),
    Whole(&'static str),
}

const WHOLE: [&str; 9] = [
    "random",
    "least-request",
    "power-of-two",
    "least-kv-cache",
    "throughput",
    "prefix-cache",
    "session-affinity",
    "prefix-cache:2,least-request",
    "throughput,least-kv-cache:3",
];

fn kinds() -> Vec<Kind> {
    let pd = PrefillScore::ALL.into_iter().flat_map(|p| {
        DecodeScore::ALL
            .into_iter()
            .flat_map(move |d| [false, true].map(|bucketing| Kind::Pd(p, d, bucketing)))
    });
    POLICIES.map(Kind::Legwise).into_iter().chain(pd).chain(WHOLE.map(Kind::Whole)).collect()
}

impl Kind {
    fn knobs(self) -> Knobs {
        let plain = Knobs::default();
        match self {
            Kind::Legwise(_) => plain,
            Kind::Pd(prefill_score, decode_score, bucketing) => Knobs {
                prefill_score,
                decode_score,
                bucketing,
                bucket_serve: bucketing,
                routing_algorithm: Some("pd".to_owned()),
                ..plain
            },
            Kind::Whole(ways) => Knobs { routing_algorithm: Some(ways.to_owned()), ..plain },
        }
    }

    fn roles(self) -> &'static [Role] {
        match self {
            Kind::Whole(_) => &[Role::Whole],
            Kind::Legwise(_) | Kind::Pd(_, _, false) => &[Role::Prefill, Role::Decode],
            Kind::Pd(_, _, true) => &[Role::Prefill, Role::Decode, Role::Whole],
        }
    }
}

const COMBINED: &str = r#"{"profiles":{"default":{"routingConfig":{"combined":true}}}}"#;

/// Three workers of each role that the kind knows, in two rolesets.
fn workers(kind: Kind) -> Vec<Worker> {
    let each = kind.roles().iter().flat_map(|role| {
        ["a", "a", "b"].into_iter().enumerate().map(move |(i, roleset)| {
            let id = format!("{}{i}", &role.as_str()[..1]);
            let mut worker = Worker::new(&id, format!("http://{id}:8000"), *role);
            worker.engine = Engine::Sglang;
            worker.labels.insert("roleset-name".to_owned(), roleset.to_owned());
            if *role == Role::Whole {
                worker.annotations.insert("model.aibrix.ai/config".to_owned(), COMBINED.to_owned());
            }
            worker
        })
    });
    each.collect()
}

/// A gateway with this strategy, and what it has placed.
struct Desk {
    fleet: Fleet,
    strategies: Strategies,
    knobs: Arc<Knobs>,
    dice: Dice,
    now: u64,
}

impl Desk {
    fn new(kind: Kind, workers: Vec<Worker>, seed: u64) -> Desk {
        let seats = (0u32..).zip(workers).map(|(slot, worker)| {
            let seat = Seat::new(slot, worker);
            seat.pulse.set_status(Status::Ready);
            FleetChange::Join(seat)
        });
        let fleet = Fleet::new(PairingMode::Lenient).with(seats);
        fleet.want_gauges();
        let (knobs, tuning) = (Arc::new(kind.knobs()), Tuning::default());
        let name = if let Kind::Legwise(name) = kind { name } else { PolicyName::Random };
        let policy = || Policy::new(name);
        let own = Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() });
        let pd = Cascade::new(&knobs, &tuning);
        let whole = Strategy::Whole(Whole::new(&knobs, &tuning, pd.index().clone()));
        let strategies = Strategies { own, pd: Strategy::Cascade(pd), whole };
        Desk { fleet, strategies, knobs, dice: Dice::new(seed), now: 1_000_000 }
    }

    fn place(&mut self, said: &Said) -> Option<(Placement, Receipt)> {
        self.now += 250_000;
        let mut ask: Ask = said.ask();
        ask.model = Some("m".to_owned());
        let mut wishes = Wishes::default();
        if let Some(key) = said.key() {
            wishes.hear(Wish::SessionKey, key.to_string().as_bytes());
        }
        ask.wishes = Some(Box::new(wishes));
        let routing = resolve(&self.fleet, &ask, &self.knobs).unwrap();
        let look = Look::new(&self.fleet, &ask, Instant::from_micros(self.now));
        let look = Look { routing: Some(&routing), receipt: Receipt::on().into(), ..look };
        let placement = self.strategies.of(&routing).place(&look, &mut self.dice).ok()?;
        Some((placement, look.into_receipt()))
    }

    /// What workers say, as far as it is usable.
    fn say(&self, gauges: &[[Option<f64>; 4]]) {
        for (seat, [waiting, throughput, kv, drain]) in self.fleet.seats().zip(gauges.iter().cycle()) {
            seat.gauges.waiting.set(waiting.and_then(usable));
            seat.gauges.throughput.set(throughput.and_then(usable));
            seat.gauges.kv_usage.set(kv.and_then(usable).map(|share| share.min(1.0)));
            seat.gauges.drain_rate.set(drain.and_then(usable));
        }
    }

    /// In flight, and charged, of each worker.
    fn loads(&self) -> Vec<(String, u32, [u64; 3])> {
        let rows = self.strategies.cascade().unwrap().books().rows();
        let of = |seat: &Arc<Seat>| {
            let row = rows.iter().find(|(slot, _)| *slot == seat.slot);
            let charged = row.map_or([0; 3], |(_, t)| [t.active, t.kv, t.decode]);
            (seat.worker.id.clone(), seat.load.in_flight(), charged)
        };
        self.fleet.seats().map(of).collect()
    }
}

/// Numbers that workers may say, however odd.
fn number() -> impl Gen<Value = Option<f64>> {
    let odd = vec![0.0, 0.5, 1.0, 3.0, 2000.0, -1.0, 1e300, f64::INFINITY, f64::NAN];
    prop::option::of(prop::sample::select(odd))
}

/// A request that is placed, and what it must give back: in flight and charged, leg by leg.
struct Held {
    legs: [Option<Taken>; 2],
    /// By leg: whose, which of the charges, how much.
    owed: [Vec<(String, usize, u64)>; 2],
}

impl Held {
    fn new(placement: Placement, receipt: &Receipt) -> Held {
        let mut owed = [Vec::new(), Vec::new()];
        for charge in &receipt.charges {
            let (leg, which) = match charge.what {
                "active" => (0, 0),
                "kv" => (1, 1),
                "decode" => (1, 2),
                other => panic!("{other}"),
            };
            owed[leg].push((charge.worker.clone(), which, charge.tokens));
        }
        Held { legs: placement.into_legs(), owed }
    }
}

/// What workers have, by what is held of them.
fn due(desk: &Desk, held: &[Held]) -> Vec<(String, u32, [u64; 3])> {
    let mut all: BTreeMap<String, (u32, [u64; 3])> = BTreeMap::new();
    for held in held {
        for (taken, owed) in held.legs.iter().zip(&held.owed) {
            let Some(taken) = taken else { continue };
            all.entry(taken.seat.worker.id.clone()).or_default().0 += 1;
            for (worker, which, tokens) in owed {
                all.entry(worker.clone()).or_default().1[*which] += tokens;
            }
        }
    }
    let of = |seat: &Arc<Seat>| {
        let (n, charged) = all.get(&seat.worker.id).copied().unwrap_or_default();
        (seat.worker.id.clone(), n, charged)
    };
    desk.fleet.seats().map(of).collect()
}

/// Scores of those that could be chosen are numbers, and the chosen is one of them. A combined worker whose rate is not
/// known may take for ever.
fn check_leg(kind: Kind, leg: &OfLeg, chosen: &Seat) {
    for score in leg.scores.iter().filter(|score| score.skipped.is_none()) {
        let endless = matches!(kind, Kind::Pd(_, _, true)) && chosen.worker.role == Role::Whole;
        assert!(score.score.is_finite() || endless && !score.score.is_nan(), "{kind:?}: {score:?}");
        assert!(score.terms.iter().all(|(_, x)| !x.is_nan()), "{kind:?}: {score:?}");
    }
    let own = leg.scores.iter().find(|score| score.worker == chosen.worker.id);
    assert!(own.is_none_or(|own| own.skipped.is_none()), "{kind:?}: skipped and chosen: {own:?}");
    assert!(own.is_some() || leg.scores.is_empty(), "{kind:?}: chosen without a score");
    assert!(leg.tied.is_empty() || leg.tied.contains(&chosen.worker.id), "{kind:?}: {:?}", leg.tied);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 250, ..ProptestConfig::default() })]

    /// Scores are finite; only who is well and not skipped is chosen; what is in flight and charged is what is held, at
    /// every moment, so that nothing falls below zero; the same seed says the same.
    #[test]
    fn whatever_is_asked_and_said(
        kind in prop::sample::select(kinds()),
        run in prop::collection::vec(
            (said(), prop::option::of((any::<prop::sample::Index>(), any::<bool>())), 0..6usize), 1..24),
        gauges in prop::collection::vec([number(), number(), number(), number()], 9),
        seed: u64,
    ) {
        let go = || {
            let mut desk = Desk::new(kind, workers(kind), seed);
            desk.say(&gauges);
            let (mut held, mut told): (Vec<Held>, Vec<Vec<String>>) = (vec![], vec![]);
            for (said, change, back) in &run {
                if let Some((who, well)) = change {
                    let status = if *well { Status::Ready } else { Status::NotReady };
                    let all: Vec<_> = desk.fleet.seats().collect();
                    who.get(&all).pulse.set_status(status);
                }
                if let Some((placement, receipt)) = desk.place(said) {
                    let seats = chosen(&placement);
                    assert!(seats.iter().all(|s| s.pulse.status() == Status::Ready), "{kind:?}");
                    told.push(seats.iter().map(|s| s.worker.id.clone()).collect());
                    if let [prefill, decode] = seats[..] {
                        check_leg(kind, &receipt.prefill, prefill);
                        check_leg(kind, &receipt.decode, decode);
                    } else {
                        check_leg(kind, &receipt.decode, seats[0]);
                    }
                    held.push(Held::new(placement, &receipt));
                }
                // A prefill is done, a request is over, in any order; what is over gives back what is left.
                if let Some(at) = held.len().checked_sub(1).map(|last| (back * 7) % (last + 1)) {
                    match back {
                        0..=2 => held[at].legs[0] = None,
                        3 => held[at].legs[1] = None,
                        4 => drop(held.swap_remove(at)),
                        _ => {}
                    }
                }
                assert_eq!(desk.loads(), due(&desk, &held), "{kind:?}");
            }
            held.clear();
            assert!(desk.loads().iter().all(|(_, n, charged)| *n == 0 && *charged == [0; 3]), "{kind:?}");
            told
        };
        prop_assert_eq!(go(), go());
    }

    /// The order in which places and charges are given back does not count.
    #[test]
    fn releases_commute(
        kind in prop::sample::select(kinds()),
        run in prop::collection::vec(said(), 1..16),
        order in prop::collection::vec((any::<prop::sample::Index>(), 0..2usize), 12),
        seed: u64,
    ) {
        let go = |order: &mut dyn Iterator<Item = &(prop::sample::Index, usize)>| {
            let mut desk = Desk::new(kind, workers(kind), seed);
            // Nobody serves who asks for a worker that is not there.
            let placed = run.iter().map(|said| desk.place(said).map_or([None, None], |(p, _)| p.into_legs()));
            let mut held: Vec<[Option<Taken>; 2]> = placed.collect();
            for (which, leg) in order {
                which.get_mut(&mut held)[*leg] = None;
            }
            let after = desk.loads();
            drop(held);
            (after, desk.loads())
        };
        prop_assert_eq!(go(&mut order.iter()), go(&mut order.iter().rev()));
    }

    /// Charges under their own names and releases commute: every order in which none is given back before it was made ends
    /// in the same, and giving back twice, or what was never charged, changes nothing.
    #[test]
    fn charges_and_releases_commute(
        charges in prop::collection::vec((0..3u32, 0..5000u64, 3..6u32, 0..5000u64, any::<bool>()), 1..12),
        releases in prop::collection::vec((0..16u64, any::<bool>()), 0..40),
        seed: u64,
    ) {
        let charge = |(p, new, d, prompt, both): (u32, u64, u32, u64, bool)| Charge {
            prefill: Some((p, new)),
            decode: both.then_some((d, prompt)),
            at: Instant::ZERO,
            ttl: Duration::ZERO,
        };
        let part = |active: bool| if active { Part::Active } else { Part::Rest };
        let all = (0u64..).zip(charges.iter().copied().map(charge));
        let mut plain = Ledger::default();
        for (id, charge) in all.clone() {
            plain.charge(id, charge);
        }
        releases.iter().for_each(|(id, active)| plain.release(*id, part(*active)));
        // The same in another order: each charge at some moment before the first release of it.
        let mut dice = Dice::new(seed);
        let (mut other, mut left): (Ledger, Vec<(u64, Charge)>) = (Ledger::default(), all.collect());
        for (id, active) in &releases {
            while left.iter().any(|(own, _)| own == id) || (!left.is_empty() && dice.below(2) == 0) {
                let (id, charge) = left.swap_remove(dice.below(left.len()));
                other.charge(id, charge);
            }
            other.release(*id, part(*active));
            other.release(*id, part(*active));
        }
        for (id, charge) in left {
            other.charge(id, charge);
        }
        for worker in 0..6 {
            prop_assert_eq!(plain.tokens(worker), other.tokens(worker));
        }
        (0..16).for_each(|id| other.release_all(id));
        let rest: Vec<_> = other.rows().map(|(_, tokens)| tokens).collect();
        prop_assert!(rest.iter().all(|tokens| *tokens == Default::default()), "{:?}", rest);
    }
}

/// How workers are listed says nothing: each gets as many, by who it is, not by where it stands. Those by legs are looked
/// at in `props`.
#[test]
fn the_order_of_the_workers_does_not_change_who_gets_how_many() {
    let seeds = |kind: Kind| if matches!(kind, Kind::Pd(..)) { 3 } else { 32 };
    let run: Vec<Said> = (0..16).map(|i| Said::plain(i % 5, 150 + 300 * (i as usize % 4))).collect();
    let served = |kind: Kind, back: bool| {
        let mut counts: BTreeMap<String, f64> = BTreeMap::new();
        for seed in 0..seeds(kind) {
            let mut workers = workers(kind);
            if back {
                workers.reverse();
            }
            let mut desk = Desk::new(kind, workers, seed);
            let placed: Vec<_> = run.iter().map(|said| desk.place(said).unwrap().0).collect();
            for seat in placed.iter().flat_map(chosen) {
                *counts.entry(seat.worker.id.clone()).or_default() += 1.0;
            }
        }
        counts
    };
    for kind in kinds().into_iter().filter(|kind| !matches!(kind, Kind::Legwise(_))) {
        let all = (seeds(kind) * run.len() as u64) as f64;
        let (plain, other) = (served(kind, false), served(kind, true));
        for who in workers(kind).iter().map(|worker| &worker.id) {
            let [a, b] = [&plain, &other].map(|counts| counts.get(who).copied().unwrap_or_default());
            assert!((a - b).abs() <= 6.0 * (all * 0.25).sqrt(), "{kind:?}: {plain:?} {other:?}");
        }
        if matches!(kind, Kind::Pd(..)) {
            assert_eq!(plain, other, "{kind:?}: the same seed chooses among the same names");
        }
    }
}
