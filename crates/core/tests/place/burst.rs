//! Many requests at once: a burst sees itself, and every lease comes back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use baton_core::dice::Dice;
use baton_core::fleet::Fleet;
use baton_core::place::{Placement, PolicyName};

use crate::yard::{Laps, POLICIES, pairs, place, strategy};

fn loads(fleet: &Fleet) -> (Vec<u32>, Vec<u32>) {
    let prefill = fleet.prefill().iter().map(|p| p.seat.load.in_flight()).collect();
    let decode = fleet.decode().iter().map(|s| s.load.in_flight()).collect();
    (prefill, decode)
}

/// `threads` place `each` requests at once, and hold them.
fn burst(fleet: &Fleet, policy: PolicyName, threads: usize, each: usize) -> Vec<Placement> {
    let (strategy, held) = (strategy(policy), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (strategy, held) = (&strategy, &held);
            scope.spawn(move || {
                let mut dice = Dice::new(thread as u64);
                for _ in 0..each {
                    let placement = place(fleet, strategy, &mut dice).unwrap();
                    held.lock().unwrap().push(placement);
                }
            });
        }
    });
    held.into_inner().unwrap()
}

#[test]
fn counts_are_exact_in_a_burst_and_zero_after_it() {
    for policy in POLICIES {
        for threads in [1, 8] {
            let fleet = pairs(2, 4);
            let held = burst(&fleet, policy, threads, 512 / threads);
            let (prefill, decode) = loads(&fleet);
            assert_eq!(prefill.iter().sum::<u32>(), 512, "{policy:?}");
            assert_eq!(decode.iter().sum::<u32>(), 512, "{policy:?}");
            if matches!(policy, PolicyName::RoundRobin | PolicyName::LeastLoad) {
                assert_eq!((prefill, decode), (vec![256; 2], vec![128; 4]), "{policy:?}, {threads} threads");
            } else if policy == PolicyName::PowerOfTwo {
                assert!(decode.iter().all(|n| (118..=138).contains(n)), "{decode:?}");
            }
            drop(held);
            assert_eq!(loads(&fleet), (vec![0; 2], vec![0; 4]), "{policy:?}");
            let taken: u64 = fleet.seats().map(|s| s.load.taken()).sum();
            assert_eq!(taken, 1024);
        }
    }
}

#[test]
fn the_least_loaded_are_never_two_apart() {
    let fleet = pairs(1, 5);
    let (strategy, mut dice) = (strategy(PolicyName::LeastLoad), Dice::new(4));
    let mut held = vec![];
    for _ in 0..200 {
        held.push(place(&fleet, &strategy, &mut dice).unwrap());
        let (_, decode) = loads(&fleet);
        let spread = decode.iter().max().unwrap() - decode.iter().min().unwrap();
        assert!(spread <= 1, "{decode:?}");
    }
}

#[test]
fn nothing_is_left_after_threads_that_place_and_give_back() {
    for policy in POLICIES {
        let (fleet, strategy) = (pairs(3, 3), strategy(policy));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (fleet, strategy) = (&fleet, &strategy);
                scope.spawn(move || {
                    let mut dice = Dice::new(thread);
                    let mut held: Vec<Placement> = vec![];
                    for _ in 0..500 {
                        held.push(place(fleet, strategy, &mut dice).unwrap());
                        if held.len() > dice.below(6) {
                            held.swap_remove(dice.below(held.len()));
                        }
                    }
                });
            }
        });
        assert_eq!(loads(&fleet), (vec![0; 3], vec![0; 3]), "{policy:?}");
    }
}

/// Two requests that arrive at the same moment do not both take the worker that was idle for each of them.
/// The many busy workers are there to keep both looking for a while.
#[test]
fn requests_at_the_same_moment_see_each_other() {
    const ROUNDS: u32 = 1000;
    let (fleet, strategy, laps) = (pairs(1, 202), strategy(PolicyName::LeastLoad), Laps::new(2));
    let _busy: Vec<_> = fleet.decode()[2..].iter().map(|s| [s.load.take(), s.load.take()]).collect();
    let crowded = AtomicU32::new(0);
    let rounds = |thread| {
        let mut dice = Dice::new(thread);
        for _ in 0..ROUNDS {
            laps.wait();
            let placement = place(&fleet, &strategy, &mut dice).unwrap();
            laps.wait();
            let loads = fleet.decode()[..2].iter().map(|s| s.load.in_flight());
            // Counted, not asserted: a thread that panics would leave the other one waiting.
            crowded.fetch_add(u32::from(!loads.eq([1, 1])), Ordering::Relaxed);
            laps.wait();
            drop(placement);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|thread| drop(scope.spawn(move || rounds(thread)))));
    assert_eq!(crowded.into_inner(), 0);
}
