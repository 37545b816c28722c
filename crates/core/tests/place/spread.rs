//! How requests spread over workers that can all serve.

use std::collections::BTreeMap;

use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, Role, Status};
use baton_core::place::{Placement, PolicyName};

use crate::yard::{POLICIES, fleet, ids, pairs, place, seat, strategy};

/// All orders of four things.
fn orders() -> Vec<[usize; 4]> {
    let mut all = vec![];
    for a in 0..4 {
        for b in (0..4).filter(|b| *b != a) {
            for c in (0..4).filter(|c| *c != a && *c != b) {
                all.push([a, b, c, 6 - a - b - c]);
            }
        }
    }
    all
}

/// One prefill, and four decodes that stand in the fleet in this order with this load each.
fn stand(order: [usize; 4], loads: [usize; 4]) -> (Fleet, Vec<baton_core::load::Lease>) {
    let decodes =
        order.iter().enumerate().map(|(at, who)| seat(at as u32 + 1, &who.to_string(), Role::Decode));
    let fleet = fleet(decodes.chain([seat(9, "p", Role::Prefill)]));
    let leases = fleet.decode().iter().flat_map(|s| {
        let who: usize = s.worker.id.parse().unwrap();
        (0..loads[who]).map(|_| s.load.take()).collect::<Vec<_>>()
    });
    let leases = leases.collect();
    (fleet, leases)
}

/// How often each of the four is chosen in `rounds` single requests.
fn counts(fleet: &Fleet, policy: PolicyName, rounds: u64) -> [u32; 4] {
    let mut counts = [0; 4];
    for seed in 0..rounds {
        let placement = place(fleet, &strategy(policy), &mut Dice::new(seed)).unwrap();
        counts[ids(&placement)[1].parse::<usize>().unwrap()] += 1;
    }
    counts
}

#[test]
fn where_a_worker_stands_in_the_fleet_does_not_count() {
    // Expected shares in twelfths, by load: the less loaded of two taken at random, the least loaded of all, any.
    let rows = [
        (PolicyName::PowerOfTwo, [0, 1, 2, 3], [6, 4, 2, 0]),
        (PolicyName::PowerOfTwo, [0, 0, 0, 0], [3, 3, 3, 3]),
        (PolicyName::PowerOfTwo, [1, 0, 1, 1], [2, 6, 2, 2]),
        (PolicyName::LeastLoad, [2, 1, 1, 5], [0, 6, 6, 0]),
        (PolicyName::LeastLoad, [0, 0, 0, 0], [3, 3, 3, 3]),
        (PolicyName::Random, [9, 0, 0, 0], [3, 3, 3, 3]),
    ];
    const ROUNDS: u64 = 360;
    for (policy, loads, twelfths) in rows {
        for order in orders() {
            let (fleet, _load) = stand(order, loads);
            let counts = counts(&fleet, policy, ROUNDS);
            for who in 0..4 {
                let due = ROUNDS as f64 * f64::from(twelfths[who]) / 12.0;
                let swing = 5.0 * (due * (1.0 - due / ROUNDS as f64)).sqrt();
                let off = (f64::from(counts[who]) - due).abs();
                assert!(
                    off <= swing,
                    "{policy:?} {loads:?} in order {order:?}: {counts:?}, {who} is due {due}"
                );
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_choices() {
    for policy in POLICIES {
        let run = |seed| {
            let (fleet, strategy, mut dice) = (pairs(3, 4), strategy(policy), Dice::new(seed));
            let mut held: Vec<Placement> = vec![];
            let mut said = vec![];
            for i in 0..200 {
                let placement = place(&fleet, &strategy, &mut dice).unwrap();
                said.push(ids(&placement).join(" "));
                held.push(placement);
                if i % 3 == 0 {
                    held.remove(i % held.len());
                }
            }
            said
        };
        assert_eq!(run(1), run(1), "{policy:?}");
        assert!(policy == PolicyName::RoundRobin || run(1) != run(2), "{policy:?} has no dice");
    }
}

#[test]
fn round_robin_alternates_strictly_on_each_leg() {
    let (fleet, strategy, mut dice) = (pairs(2, 2), strategy(PolicyName::RoundRobin), Dice::new(1));
    let run: Vec<_> = (0..6).map(|_| ids(&place(&fleet, &strategy, &mut dice).unwrap()).join(" ")).collect();
    assert_eq!(run, ["p0 d0", "p1 d1", "p0 d0", "p1 d1", "p0 d0", "p1 d1"]);
    let (fleet, strategy) = (pairs(2, 3), crate::yard::strategy(PolicyName::RoundRobin));
    let run: Vec<_> = (0..6).map(|_| ids(&place(&fleet, &strategy, &mut dice).unwrap()).join(" ")).collect();
    assert_eq!(run, ["p0 d0", "p1 d1", "p0 d2", "p1 d0", "p0 d1", "p1 d2"]);
}

#[test]
fn round_robin_goes_on_when_a_worker_falls_ill_and_recovers() {
    let (fleet, strategy) = (pairs(1, 3), strategy(PolicyName::RoundRobin));
    let decode = || ids(&place(&fleet, &strategy, &mut Dice::new(1)).unwrap())[1].to_owned();
    assert_eq!([decode(), decode()], ["d0", "d1"]);
    let ill = &fleet.decode()[1];
    ill.pulse.set_status(Status::NotReady);
    let mut without: Vec<String> = (0..4).map(|_| decode()).collect();
    assert_eq!(without[..2], without[2..]);
    without.sort();
    assert_eq!(without, ["d0", "d0", "d2", "d2"]);
    ill.pulse.set_status(Status::Ready);
    assert_eq!([decode(), decode(), decode()], ["d2", "d0", "d1"], "it goes on where it was");
}

/// Groups that ask in turn each keep their own turn: none of their workers starves.
#[test]
fn round_robin_serves_every_worker_of_every_group() {
    let group = |slot, id: &str, role, name: &str| {
        let mut seat = seat(slot, id, role);
        let mut worker = (*seat.worker).clone();
        worker.pairing_protocol = Some(name.to_owned());
        seat.worker = std::sync::Arc::new(worker);
        seat
    };
    let fleet = fleet([
        group(0, "p0", Role::Prefill, "a"),
        group(1, "p1", Role::Prefill, "b"),
        group(2, "a0", Role::Decode, "a"),
        group(3, "a1", Role::Decode, "a"),
        group(4, "b0", Role::Decode, "b"),
        group(5, "b1", Role::Decode, "b"),
    ]);
    let (strategy, mut dice) = (strategy(PolicyName::RoundRobin), Dice::new(1));
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..40 {
        for id in ids(&place(&fleet, &strategy, &mut dice).unwrap()) {
            *counts.entry(id.to_owned()).or_default() += 1;
        }
    }
    assert!(counts.iter().all(|(id, n)| *n == if id.starts_with('p') { 20 } else { 10 }), "{counts:?}");
}
