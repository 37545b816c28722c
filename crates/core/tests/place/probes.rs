//! Half-open workers: one request at a time, and a place that is not used is free again.

use std::sync::atomic::{AtomicUsize, Ordering};

use baton_core::breaker::{BreakerState, Verdict};
use baton_core::dice::Dice;
use baton_core::fault::{Fault, LegName};
use baton_core::fleet::{Fleet, Seat};
use baton_core::place::Miss;
use baton_core::place::PolicyName;

use crate::yard::{Laps, POLICIES, RESTED, RULE, pairs, place, settle, strategy, trip};

fn prefill(fleet: &Fleet, i: usize) -> &Seat {
    &fleet.prefill()[i].seat
}

#[test]
fn one_request_probes_a_pair_and_the_next_finds_none() {
    for policy in POLICIES {
        let (fleet, strategy, mut dice) = (pairs(1, 1), strategy(policy), Dice::new(1));
        trip(prefill(&fleet, 0));
        trip(&fleet.decode()[0]);
        let probe = place(&fleet, &strategy, &mut dice).unwrap();
        let none = place(&fleet, &strategy, &mut dice).unwrap_err();
        assert_eq!(none, Miss::Nobody(Fault::NoWorker { leg: LegName::Prefill, registered: true }));
        settle(probe, Verdict::Mute);
        let probe = place(&fleet, &strategy, &mut dice).unwrap();
        settle(probe, Verdict::Good);
        assert_eq!(fleet.decode()[0].pulse.breaker().state(), BreakerState::Closed);
        assert!(place(&fleet, &strategy, &mut dice).is_ok());
    }
}

#[test]
fn a_prefill_is_not_probed_for_a_decode_that_cannot_serve() {
    let (fleet, strategy, mut dice) = (pairs(1, 1), strategy(PolicyName::LeastLoad), Dice::new(1));
    trip(prefill(&fleet, 0));
    trip(&fleet.decode()[0]);
    assert!(fleet.decode()[0].pulse.enter(RESTED), "somebody else's probe");
    let none = place(&fleet, &strategy, &mut dice).unwrap_err();
    assert_eq!(none, Miss::Nobody(Fault::NoWorker { leg: LegName::Decode, registered: true }));
    assert!(prefill(&fleet, 0).pulse.available(RESTED), "its probe is free");
    assert_eq!(prefill(&fleet, 0).load.in_flight(), 0);
}

#[test]
fn requests_go_round_a_worker_whose_probe_is_out() {
    for policy in POLICIES {
        let (fleet, strategy, mut dice) = (pairs(2, 2), strategy(policy), Dice::new(1));
        trip(prefill(&fleet, 0));
        let held: Vec<_> = (0..6).map(|_| place(&fleet, &strategy, &mut dice).unwrap()).collect();
        assert!(prefill(&fleet, 0).load.in_flight() <= 1, "{policy:?}");
        held.into_iter().for_each(|placement| settle(placement, Verdict::Mute));
        assert!(prefill(&fleet, 0).pulse.available(RESTED));
    }
}

/// What two threads found that placed on the fleet at the same moments, and gave back at once.
struct Race {
    served: usize,
    /// Probes or leases that were not free again between two rounds.
    stuck: usize,
}

/// All workers that are not open are half-open; each round only one of two requests can be served.
fn race(fleet: &Fleet, rounds: usize) -> Race {
    let (laps, served, stuck) = (Laps::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
    let strategy = strategy(PolicyName::Random);
    let free: Vec<bool> = fleet.seats().map(|seat| seat.pulse.available(RESTED)).collect();
    let run = |thread| {
        let mut dice = Dice::new(thread);
        for _ in 0..rounds {
            laps.wait();
            let placed = place(fleet, &strategy, &mut dice);
            laps.wait();
            if let Ok(placement) = placed {
                settle(placement, Verdict::Mute);
                served.fetch_add(1, Ordering::Relaxed);
            }
            laps.wait();
            // Counted, not asserted: a thread that panics would leave the other one waiting.
            let seats = fleet.seats().zip(&free);
            let bad = |(s, free): &(&_, &bool)| {
                let seat: &std::sync::Arc<Seat> = s;
                seat.pulse.available(RESTED) != **free || seat.load.in_flight() != 0
            };
            stuck.fetch_add(seats.filter(bad).count(), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|thread| drop(scope.spawn(move || run(thread)))));
    Race { served: served.into_inner(), stuck: stuck.into_inner() }
}

/// Whoever got a prefill and not the one decode must give the prefill's probe back.
#[test]
fn a_placement_that_fails_half_way_gives_its_probe_back() {
    let fleet = pairs(24, 1);
    fleet.seats().for_each(|seat| trip(seat));
    let race = race(&fleet, 1000);
    assert_eq!((race.served, race.stuck), (1000, 0));
}

/// Both see the prefill's probe free; only one gets it. The many ill decodes keep both looking for a while.
#[test]
fn of_two_requests_one_gets_the_probe() {
    let fleet = pairs(1, 200);
    fleet.seats().for_each(|seat| trip(seat));
    for ill in &fleet.decode()[..199] {
        ill.pulse.record(Verdict::Bad, &RULE, RESTED);
    }
    let race = race(&fleet, 1000);
    assert_eq!((race.served, race.stuck), (1000, 0));
}
