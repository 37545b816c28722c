//! Any fleet in any condition: the choice is one that may be made, by rules written down here once more.

use std::sync::Arc;

use baton_core::dice::Dice;
use baton_core::fault::{Fault, LegName};
use baton_core::fleet::{Descriptor, Fleet, PairingMode, Role, Seat, Status, mismatch};
use baton_core::load::Lease;
use baton_core::place::{Look, Miss, Placement, PolicyName};
use baton_core::time::Instant;
use proptest::prelude::*;

use crate::yard::{POLICIES, RESTED, ask, chosen, fleet, seat, strategy, trip, wide};

/// One worker in one condition.
#[derive(Clone, Debug)]
struct One {
    role: Role,
    /// Workers of different groups do not pair; none pairs with any.
    group: Option<&'static str>,
    models: Vec<String>,
    status: Status,
    breaker: Ill,
    load: usize,
    /// Of a decode or whole worker.
    window: Option<u32>,
    tried: bool,
}

impl One {
    fn has_room(&self, rooms: u32) -> bool {
        self.role == Role::Prefill || self.window.is_none_or(|w| self.load as u32 + rooms <= w)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ill {
    No,
    /// Half-open, its probe free.
    Half,
    /// Half-open, its probe out.
    Probed,
    /// Still open.
    Open,
}

fn one() -> impl Strategy<Value = One> {
    let role =
        prop::sample::select(vec![Role::Prefill, Role::Prefill, Role::Decode, Role::Decode, Role::Whole]);
    let group = prop::sample::select(vec![None, Some("a"), Some("b")]);
    let models =
        prop::sample::select(vec![vec![], vec!["m".to_owned()], vec!["x".to_owned(), "m".to_owned()]]);
    let status = prop::sample::select(vec![Status::Ready, Status::Ready, Status::Ready, Status::NotReady]);
    let breaker = prop::sample::select(vec![Ill::No, Ill::No, Ill::No, Ill::Half, Ill::Probed, Ill::Open]);
    let window = prop::sample::select(vec![None, Some(1), Some(2), Some(4)]);
    let all = (role, group, models, status, breaker, 0..3usize, window, any::<bool>());
    all.prop_map(|(role, group, models, status, breaker, load, window, tried)| One {
        role,
        group,
        models,
        status,
        breaker,
        load,
        window,
        tried,
    })
}

/// The fleet, and the leases that make its load.
fn build(ones: &[One]) -> (Fleet, Vec<Lease>) {
    let seats = ones.iter().enumerate().map(|(slot, one)| {
        let mut seat = seat(slot as u32, &format!("w{slot}"), one.role);
        let mut worker = (*seat.worker).clone();
        worker.pairing_protocol = one.group.map(str::to_owned);
        worker.models.clone_from(&one.models);
        worker.labels.extend(one.window.map(|w| ("max_num_seqs".to_owned(), w.to_string())));
        seat.worker = Arc::new(worker);
        seat.pulse.set_status(one.status);
        match one.breaker {
            Ill::No => {}
            Ill::Half => trip(&seat),
            Ill::Probed => {
                trip(&seat);
                assert!(seat.pulse.enter(RESTED));
            }
            Ill::Open => seat.pulse.record(
                baton_core::breaker::Verdict::Bad,
                &crate::yard::RULE,
                RESTED.after(crate::yard::RULE.rest),
            ),
        }
        seat
    });
    let fleet = fleet(seats);
    let leases = ones.iter().enumerate().flat_map(|(slot, one)| {
        let load = &fleet.seat(slot as u32).unwrap().load;
        (0..one.load).map(|_| load.take()).collect::<Vec<_>>()
    });
    let leases = leases.collect();
    (fleet, leases)
}

/// May a request for this model go to this worker now?
fn fit(one: &One, model: Option<&str>) -> bool {
    one.status == Status::Ready && matches!(one.breaker, Ill::No | Ill::Half) && serves(one, model)
}

fn serves(one: &One, model: Option<&str>) -> bool {
    model.is_none_or(|m| one.models.is_empty() || one.models.iter().any(|x| x == m))
}

fn pair(a: &Seat, b: &Seat) -> bool {
    mismatch(PairingMode::Lenient, &Descriptor::of(&a.worker), &Descriptor::of(&b.worker)).is_none()
}

/// A fleet's conditions, its workers' loads and whether each would be let through.
fn condition(fleet: &Fleet) -> Vec<(u32, bool)> {
    fleet.seats().map(|s| (s.load.in_flight(), s.pulse.available(RESTED))).collect()
}

struct Case<'a> {
    ones: &'a [One],
    fleet: &'a Fleet,
    model: Option<&'a str>,
    policy: PolicyName,
    rooms: u32,
}

impl Case<'_> {
    fn one(&self, seat: &Seat) -> &One {
        &self.ones[seat.slot as usize]
    }

    fn of(&self, role: Role) -> Vec<&Seat> {
        self.fleet.seats().map(Arc::as_ref).filter(|s| s.worker.role == role).collect()
    }

    /// Decodes that are well and pair with it, whatever their windows.
    fn friends(&self, prefill: &Seat) -> Vec<&Seat> {
        let fit = |s: &&Seat| fit(self.one(s), self.model) && pair(prefill, s);
        self.of(Role::Decode).into_iter().filter(fit).collect()
    }

    fn partners(&self, prefill: &Seat) -> Vec<&Seat> {
        self.friends(prefill).into_iter().filter(|s| self.one(s).has_room(self.rooms)).collect()
    }

    /// Windows that are in the way of a request that could be served but for them.
    fn windows(&self) -> Vec<u32> {
        let prefills = self.of(Role::Prefill).into_iter().filter(|s| fit(self.one(s), self.model));
        let decodes = prefills.flat_map(|p| self.friends(p));
        let wholes = self.of(Role::Whole).into_iter().filter(|s| fit(self.one(s), self.model));
        decodes.chain(wholes).filter_map(|s| self.one(s).window).collect()
    }

    /// Prefills that can serve: well themselves, with a partner that is well and has room.
    fn prefills(&self) -> Vec<&Seat> {
        let able = |s: &&Seat| fit(self.one(s), self.model) && !self.partners(s).is_empty();
        self.of(Role::Prefill).into_iter().filter(able).collect()
    }

    fn wholes(&self) -> Vec<&Seat> {
        let able = |s: &&Seat| fit(self.one(s), self.model) && self.one(s).has_room(self.rooms);
        self.of(Role::Whole).into_iter().filter(able).collect()
    }

    /// The choice is among these, untried before tried, and the least loaded if the policy says so.
    fn check_choice(&self, chosen: &Seat, among: &[&Seat], loads: &[(u32, bool)]) {
        assert!(among.iter().any(|s| s.slot == chosen.slot), "{} cannot serve", chosen.worker.id);
        let fresh: Vec<&&Seat> = among.iter().filter(|s| !self.one(s).tried).collect();
        let among: Vec<&&Seat> = if fresh.is_empty() { among.iter().collect() } else { fresh };
        assert!(
            among.iter().any(|s| s.slot == chosen.slot),
            "{} was tried, another can serve",
            chosen.worker.id
        );
        if self.policy == PolicyName::LeastLoad {
            let load = |s: &Seat| loads[s.slot as usize].0;
            assert!(
                among.iter().all(|s| load(s) >= load(chosen)),
                "{} is not the least loaded",
                chosen.worker.id
            );
        }
    }

    fn check_miss(&self, miss: &Miss) {
        assert!(
            self.prefills().is_empty() && self.wholes().is_empty(),
            "{miss:?} with workers that can serve"
        );
        let windows = self.windows();
        match miss {
            Miss::Full(Fault::Shed { rooms, widest: None, .. }) => {
                assert!(windows.iter().any(|w| *w >= self.rooms) && *rooms == self.rooms, "{windows:?}");
            }
            Miss::Nobody(Fault::Shed { rooms, widest, .. }) => {
                assert!(windows.iter().all(|w| *w < self.rooms) && *rooms == self.rooms, "{windows:?}");
                assert!(widest.is_some_and(|widest| windows.contains(&widest)), "{widest:?} of {windows:?}");
            }
            Miss::Full(other) => panic!("{other:?}"),
            Miss::Nobody(fault) => {
                assert!(windows.is_empty(), "{fault:?} where windows are in the way: {windows:?}");
                self.check_fault(fault);
            }
        }
    }

    fn check_fault(&self, fault: &Fault) {
        let served = |role| self.of(role).into_iter().any(|s| serves(self.one(s), self.model));
        let known = [Role::Prefill, Role::Decode, Role::Whole].into_iter().any(served);
        match fault {
            Fault::ModelNotFound { model, .. } => {
                assert!(!self.ones.is_empty() && !known && Some(model.as_str()) == self.model);
            }
            Fault::NoWorker { leg, registered } => {
                assert!(self.ones.is_empty() || known, "the model is not known");
                let role = match leg {
                    LegName::Prefill => Role::Prefill,
                    LegName::Decode => Role::Decode,
                    LegName::Whole => Role::Whole,
                };
                assert_eq!(*registered, !self.of(role).is_empty(), "{fault:?}");
                let whole_only = !served(Role::Prefill) && !served(Role::Decode) && served(Role::Whole);
                assert_eq!(*leg == LegName::Whole, whole_only, "{fault:?}");
            }
            Fault::NoPair { detail } => {
                assert!(detail.contains("pairing_protocol"), "{detail}");
                let apart = |p: &&Seat| self.of(Role::Decode).iter().all(|d| !pair(p, d));
                assert!(self.of(Role::Prefill).iter().all(apart), "some pair exists: {detail}");
            }
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn the_choice_is_one_that_may_be_made(
        ones in prop::collection::vec(one(), 0..8),
        model in prop::sample::select(vec![None, Some("m"), Some("x"), Some("y")]),
        policy in prop::sample::select(POLICIES.to_vec()),
        rooms in prop::sample::select(vec![1, 1, 2, 3]),
        seed: u64,
    ) {
        let (fleet, _load) = build(&ones);
        let tried: Vec<u32> = (0..ones.len() as u32).filter(|slot| ones[*slot as usize].tried).collect();
        let ask = wide(model, rooms);
        let look = Look::new(&fleet, &ask, RESTED).after(&tried);
        let before = condition(&fleet);
        let case = Case { ones: &ones, fleet: &fleet, model, policy, rooms };
        match strategy(policy).place(&look, &mut Dice::new(seed)) {
            Err(miss) => {
                case.check_miss(&miss);
                assert_eq!(condition(&fleet), before, "a failed placement leaves nothing behind");
            }
            Ok(placement) => {
                let slots: Vec<u32> = chosen(&placement).iter().map(|s| s.slot).collect();
                match &placement {
                    Placement::Pair { prefill, decode } => {
                        case.check_choice(&prefill.seat, &case.prefills(), &before);
                        case.check_choice(&decode.seat, &case.partners(&prefill.seat), &before);
                    }
                    Placement::Prefill { .. } => panic!("a chat takes a pair"),
                    Placement::Whole { worker } => {
                        assert!(case.prefills().is_empty(), "a pair could serve");
                        case.check_choice(&worker.seat, &case.wholes(), &before);
                    }
                }
                for (slot, (load, available)) in condition(&fleet).into_iter().enumerate() {
                    let mine = slots.contains(&(slot as u32));
                    let taken = if ones[slot].role == Role::Prefill { 1 } else { rooms };
                    assert_eq!(load, before[slot].0 + if mine { taken } else { 0 }, "the load of w{slot}");
                    // A half-open worker that was chosen has its one probe out now.
                    let probed = mine && ones[slot].breaker == Ill::Half;
                    assert_eq!(available, before[slot].1 && !probed, "w{slot}");
                }
                crate::yard::settle(placement, baton_core::breaker::Verdict::Mute);
                assert_eq!(condition(&fleet), before, "all is given back");
            }
        }
    }

    /// Neither the order of joining nor what happened in between counts, only who is there.
    #[test]
    fn the_order_of_joining_does_not_count(
        ones in prop::collection::vec(one(), 1..7),
        policy in prop::sample::select(POLICIES.to_vec()),
        seed: u64,
    ) {
        use baton_core::fleet::FleetChange::{Join, Leave};
        let (fleet, _load) = build(&ones);
        let seats: Vec<Seat> = fleet.seats().map(|s| Seat::clone(s)).collect();
        let backwards = Fleet::new(PairingMode::Lenient).with(seats.into_iter().rev().map(Join));
        let backwards = backwards.with([Join(seat(99, "z", Role::Decode)), Leave { slot: 99 }]);
        let look = |fleet| {
            let (ask, mut dice, strategy) = (ask(None), Dice::new(seed), strategy(policy));
            let look = Look::new(fleet, &ask, Instant::ZERO);
            let ids = |p: &Placement| crate::yard::ids(p).join(" ");
            let said: Vec<_> = (0..3).map(|_| strategy.place(&look, &mut dice).map(|p| ids(&p))).collect();
            said
        };
        assert_eq!(look(&fleet), look(&backwards));
    }
}
