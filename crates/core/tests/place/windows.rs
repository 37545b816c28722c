//! Windows: a decode worker is never given more than it runs at once, and who waits for room gets it in turn.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_core::ask::Ask;
use baton_core::dice::Dice;
use baton_core::fault::{Fault, LegName};
use baton_core::fleet::{Fleet, FleetChange, Role, Seat};
use baton_core::place::{Look, Miss, Placement, PolicyName, Queue, Strategy, Want, partner};
use proptest::prelude::*;

use crate::yard::{POLICIES, RESTED, fleet, ids, seat, strategy, wide};

/// Prefills `p0..` and, for each of these windows, a decode `d0..`. 0 is no window.
fn windowed(prefills: u32, windows: &[u32]) -> Fleet {
    let p = (0..prefills).map(|i| seat(i, &format!("p{i}"), Role::Prefill));
    let decode =
        |(i, window): (usize, &u32)| of(prefills + i as u32, &format!("d{i}"), Role::Decode, *window);
    fleet(p.chain(windows.iter().enumerate().map(decode)))
}

fn of(slot: u32, id: &str, role: Role, window: u32) -> Seat {
    let mut seat = seat(slot, id, role);
    let mut worker = (*seat.worker).clone();
    worker.labels.insert("max_running_requests".into(), window.to_string());
    seat.worker = Arc::new(worker);
    seat
}

fn place(fleet: &Fleet, strategy: &Strategy, ask: &Ask, dice: &mut Dice) -> Result<Placement, Miss> {
    strategy.place(&Look::new(fleet, ask, RESTED), dice)
}

fn decodes(fleet: &Fleet) -> Vec<u32> {
    fleet.decode().iter().map(|s| s.load.in_flight()).collect()
}

fn full(leg: LegName) -> Miss {
    Miss::Full(Fault::Shed { leg, rooms: 1, widest: None })
}

#[test]
fn a_burst_fills_every_window_and_no_more() {
    for policy in POLICIES {
        let (fleet, strategy) = (windowed(2, &[3, 5, 1]), strategy(policy));
        let (held, ask) = (Mutex::new(vec![]), wide(None, 1));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (fleet, strategy, held, ask) = (&fleet, &strategy, &held, &ask);
                scope.spawn(move || {
                    let mut dice = Dice::new(thread);
                    for _ in 0..10 {
                        match place(fleet, strategy, ask, &mut dice) {
                            Ok(placement) => held.lock().unwrap().push(placement),
                            Err(miss) => assert_eq!(miss, full(LegName::Decode)),
                        }
                    }
                });
            }
        });
        assert_eq!(decodes(&fleet), [3, 5, 1], "{policy:?}");
        let prefills: u32 = fleet.prefill().iter().map(|p| p.seat.load.in_flight()).sum();
        assert_eq!(prefills, 9, "a prefill without room behind it is left alone");
        held.lock().unwrap().clear();
        assert_eq!(decodes(&fleet), [0, 0, 0], "{policy:?}");
    }
}

/// Requests of any width come and go on many threads, and at no moment is a window exceeded.
#[test]
fn no_moment_of_a_storm_exceeds_a_window() {
    for policy in POLICIES {
        let (fleet, strategy) = (windowed(1, &[4, 2, 7]), strategy(policy));
        let windows: Vec<u32> = fleet.decode().iter().filter_map(|s| s.window).collect();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (fleet, strategy, windows) = (&fleet, &strategy, &windows);
                scope.spawn(move || {
                    let (mut dice, mut held) = (Dice::new(thread), vec![]);
                    for _ in 0..400 {
                        let ask = wide(None, 1 + dice.below(4) as u32);
                        held.extend(place(fleet, strategy, &ask, &mut dice).ok());
                        let loads = decodes(fleet);
                        assert!(loads.iter().zip(windows).all(|(load, w)| load <= w), "{loads:?}");
                        if held.len() > dice.below(3) {
                            held.swap_remove(dice.below(held.len()));
                        }
                    }
                });
            }
        });
        assert_eq!(decodes(&fleet), [0, 0, 0], "{policy:?}");
    }
}

#[test]
fn a_prefill_whose_partners_are_full_is_passed_over() {
    let group = |mut seat: Seat, name: &str| {
        let mut worker = (*seat.worker).clone();
        worker.pairing_protocol = Some(name.to_owned());
        seat.worker = Arc::new(worker);
        seat
    };
    let fleet = fleet([
        group(seat(0, "p0", Role::Prefill), "a"),
        group(seat(1, "p1", Role::Prefill), "b"),
        group(of(2, "d0", Role::Decode, 1), "a"),
        group(of(3, "d1", Role::Decode, 1), "b"),
    ]);
    let (strategy, ask, mut dice) = (strategy(PolicyName::RoundRobin), wide(None, 1), Dice::new(1));
    let a = place(&fleet, &strategy, &ask, &mut dice).unwrap();
    let b = place(&fleet, &strategy, &ask, &mut dice).unwrap();
    assert_eq!((ids(&a), ids(&b)), (vec!["p0", "d0"], vec!["p1", "d1"]));
    assert_eq!(place(&fleet, &strategy, &ask, &mut dice).unwrap_err(), full(LegName::Decode));
    drop(b);
    for _ in 0..3 {
        assert_eq!(ids(&place(&fleet, &strategy, &ask, &mut dice).unwrap()), ["p1", "d1"]);
    }
}

#[test]
fn a_whole_worker_has_a_window_too() {
    let fleet = fleet([of(0, "w0", Role::Whole, 2)]);
    let (strategy, mut dice) = (strategy(PolicyName::LeastLoad), Dice::new(1));
    let held = place(&fleet, &strategy, &wide(None, 2), &mut dice).unwrap();
    assert_eq!(place(&fleet, &strategy, &wide(None, 1), &mut dice).unwrap_err(), full(LegName::Whole));
    drop(held);
    let wide = place(&fleet, &strategy, &wide(None, 3), &mut dice).unwrap_err();
    assert_eq!(wide, Miss::Nobody(Fault::Shed { leg: LegName::Whole, rooms: 3, widest: Some(2) }));
}

#[test]
fn a_request_may_be_too_wide_for_some_windows() {
    let (fleet, strategy, mut dice) = (windowed(1, &[2, 4]), strategy(PolicyName::RoundRobin), Dice::new(1));
    for _ in 0..3 {
        assert_eq!(ids(&place(&fleet, &strategy, &wide(None, 3), &mut dice).unwrap()), ["p0", "d1"]);
    }
    let miss = place(&fleet, &strategy, &wide(None, 5), &mut dice).unwrap_err();
    assert_eq!(miss, Miss::Nobody(Fault::Shed { leg: LegName::Decode, rooms: 5, widest: Some(4) }));
}

#[test]
fn a_throw_away_decode_does_not_wait_for_room() {
    let fleet = windowed(1, &[1, 1]);
    let _held = [fleet.decode()[0].load.take(), fleet.decode()[1].load.take()];
    let taken = partner(&fleet, "p0", "d0", RESTED, &mut Dice::new(1)).unwrap();
    assert_eq!((taken.seat.worker.id.as_str(), decodes(&fleet)), ("d1", vec![1, 2]));
}

#[test]
fn a_new_description_changes_the_window_and_keeps_the_load() {
    let (fleet, strategy, ask) = (windowed(1, &[1]), strategy(PolicyName::LeastLoad), wide(None, 1));
    let held = place(&fleet, &strategy, &ask, &mut Dice::new(1)).unwrap();
    assert!(place(&fleet, &strategy, &ask, &mut Dice::new(1)).is_err());
    let mut worker = (*fleet.decode()[0].worker).clone();
    worker.labels.insert("max_num_seqs".into(), "2".into());
    let fleet = fleet.with([FleetChange::Describe { slot: 1, worker: Box::new(worker) }]);
    let second = place(&fleet, &strategy, &ask, &mut Dice::new(1)).unwrap();
    assert_eq!(place(&fleet, &strategy, &ask, &mut Dice::new(1)).unwrap_err(), full(LegName::Decode));
    drop((held, second));
    assert_eq!(decodes(&fleet), [0]);
}

/// A shell for the queue: a request that finds no room enters, is woken when rooms come free, and leaves.
struct Door {
    fleet: Fleet,
    strategy: Strategy,
    queue: Mutex<Queue<mpsc::Sender<()>>>,
    /// The most that ran at once.
    most: AtomicU32,
}

impl Door {
    /// Serves one request of this width; panics if it is forgotten.
    fn serve(&self, rooms: u32, dice: &mut Dice) {
        let (ask, (wake, woken)) = (wide(None, rooms), mpsc::channel());
        let mut ticket = None;
        let must_wait = self.queue.lock().unwrap().must_wait(Want::of(None, rooms));
        let mut placed = if must_wait { None } else { place(&self.fleet, &self.strategy, &ask, dice).ok() };
        while placed.is_none() {
            let mut queue = self.queue.lock().unwrap();
            let mut try_at_once = false;
            let own = ticket.get_or_insert_with(|| {
                try_at_once = true;
                queue.enter(Want::of(None, rooms), wake.clone()).unwrap()
            });
            try_at_once &= queue.may_try(own);
            drop(queue);
            if !try_at_once {
                let heard = woken.recv_timeout(Duration::from_secs(20));
                assert_ne!(heard, Err(RecvTimeoutError::Timeout), "a request was forgotten");
            }
            placed = place(&self.fleet, &self.strategy, &ask, dice).ok();
        }
        if let Some(ticket) = ticket {
            self.queue.lock().unwrap().leave(&ticket).for_each(wake_up);
        }
        self.most.fetch_max(decodes(&self.fleet).iter().sum(), Ordering::SeqCst);
        std::thread::yield_now();
        drop(placed);
        self.queue.lock().unwrap().next(|_| true).for_each(wake_up);
    }
}

/// Its request may be gone by now.
fn wake_up(waiter: &mpsc::Sender<()>) {
    let _ = waiter.send(());
}

#[test]
fn a_burst_of_ten_times_the_window_is_served_and_nobody_is_forgotten() {
    let door = Door {
        fleet: windowed(1, &[2, 2]),
        strategy: strategy(PolicyName::LeastLoad),
        queue: Mutex::new(Queue::new(1000)),
        most: AtomicU32::new(0),
    };
    for round in 0..5 {
        std::thread::scope(|scope| {
            for thread in 0..40 {
                let door = &door;
                let rooms = if thread % 5 == 0 { 2 } else { 1 };
                scope.spawn(move || door.serve(rooms, &mut Dice::new(100 * round + thread)));
            }
        });
        assert_eq!(decodes(&door.fleet), [0, 0]);
        assert!(door.queue.lock().unwrap().is_empty());
    }
    assert!(door.most.load(Ordering::SeqCst) <= 4);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

    /// Any order of arrivals, departures and room: nobody is overtaken by a later one that needs as much and could not go
    /// anywhere else.
    #[test]
    fn nobody_is_overtaken(
        steps in prop::collection::vec((0..3u8, 1..5u32, 0..4usize, any::<prop::sample::Index>()), 1..60),
    ) {
        let mut queue: Queue<u32> = Queue::new(12);
        let mut waiting: Vec<(u32, Want<'static>, _)> = vec![];
        for (number, (step, rooms, filter, which)) in (0u32..).zip(steps) {
            let want = Want { filter: [None, None, Some("a"), Some("b")][filter], ..Want::of(None, rooms) };
            let before = |a: &Want<'_>, b: &Want<'_>| {
                a.rooms <= b.rooms && (a.filter.is_none() || a.filter == b.filter)
            };
            let first: Vec<u32> = waiting
                .iter()
                .enumerate()
                .filter(|(at, (_, own, _))| !waiting[..*at].iter().any(|(_, other, _)| before(other, own)))
                .map(|(_, (number, ..))| *number)
                .collect();
            let mut next: Vec<u32> = queue.next(|_| false).copied().collect();
            next.sort_unstable();
            prop_assert_eq!(&next, &first);
            prop_assert_eq!(queue.must_wait(want), waiting.iter().any(|(_, own, _)| before(own, &want)));
            match step {
                0 => match queue.enter(want, number) {
                    Some(ticket) => waiting.push((number, want, ticket)),
                    None => prop_assert_eq!(waiting.len(), 12),
                },
                // One that may try is served.
                1 if !first.is_empty() => {
                    let number = first[which.index(first.len())];
                    let at = waiting.iter().position(|(n, ..)| *n == number).unwrap();
                    let (_, _, ticket) = waiting.remove(at);
                    prop_assert!(queue.may_try(&ticket));
                    prop_assert!(queue.leave(&ticket).all(|n| *n != number));
                    prop_assert!(!queue.may_try(&ticket));
                }
                // Somebody gives up.
                _ if !waiting.is_empty() => {
                    let (_, _, ticket) = waiting.remove(which.index(waiting.len()));
                    let _ = queue.leave(&ticket).count();
                }
                _ => {}
            }
            prop_assert_eq!(queue.len(), waiting.len());
        }
    }
}
