//! Another decode for a prefill whose own could not be reached.

use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, Role, Status};
use baton_core::place::{Computed, Look, PolicyName, Taken, partner};

use crate::yard::{RESTED, ask, fleet, pairs, seat, strategy, trip};

#[test]
fn another_one_if_there_is_one_else_the_same() {
    let fleet = pairs(1, 2);
    for seed in 0..20 {
        let taken = partner(&fleet, "p0", "d0", RESTED, &mut Dice::new(seed)).unwrap();
        assert_eq!((taken.seat.worker.id.as_str(), taken.seat.load.in_flight()), ("d1", 1));
    }
    fleet.decode()[1].pulse.set_status(Status::NotReady);
    let taken = partner(&fleet, "p0", "d0", RESTED, &mut Dice::new(1)).unwrap();
    assert_eq!(taken.seat.worker.id, "d0");
    drop(taken);
    assert!(fleet.seats().all(|seat| seat.load.in_flight() == 0));
}

#[test]
fn none_that_is_ill_and_none_for_a_prefill_that_left() {
    let fleet = pairs(1, 1);
    trip(&fleet.decode()[0]);
    let probe = partner(&fleet, "p0", "", RESTED, &mut Dice::new(1)).unwrap();
    assert!(partner(&fleet, "p0", "", RESTED, &mut Dice::new(1)).is_none(), "the probe is out");
    drop(probe);
    fleet.decode()[0].pulse.step_back(RESTED);
    assert!(partner(&fleet, "gone", "", RESTED, &mut Dice::new(1)).is_none());
    assert!(partner(&fleet, "p0", "", RESTED, &mut Dice::new(1)).is_some());
}

#[test]
fn only_one_that_pairs_with_the_prefill() {
    let apart = |slot, id: &str, role, group: &str| {
        let mut seat = seat(slot, id, role);
        let mut worker = (*seat.worker).clone();
        worker.pairing_protocol = Some(group.to_owned());
        seat.worker = std::sync::Arc::new(worker);
        seat
    };
    let fleet = fleet([
        apart(0, "p0", Role::Prefill, "a"),
        apart(1, "d0", Role::Decode, "a"),
        apart(2, "d1", Role::Decode, "b"),
    ]);
    for seed in 0..20 {
        let taken = partner(&fleet, "p0", "d0", RESTED, &mut Dice::new(seed)).unwrap();
        assert_eq!(taken.seat.worker.id, "d0", "d1 could not read the KV");
    }
}

fn replaced(fleet: &Fleet, tried: &[u32]) -> Option<Taken> {
    let ask = ask(None);
    let look = Look::new(fleet, &ask, RESTED).after(tried);
    strategy(PolicyName::LeastLoad).replace(
        &look,
        Computed { prefill: "p0", kv_charge: None },
        &mut Dice::new(1),
    )
}

#[test]
fn a_retry_takes_another_decode_if_there_is_one_with_room() {
    let fleet = pairs(1, 3);
    let _busy = fleet.decode()[1].load.take();
    let id = |taken: Option<Taken>| taken.map(|t| t.seat.worker.id.clone());
    assert_eq!(id(replaced(&fleet, &[1])).as_deref(), Some("d2"), "the least loaded that was not tried");
    assert_eq!(id(replaced(&fleet, &[1, 3])).as_deref(), Some("d1"));
    assert_eq!(id(replaced(&fleet, &[1, 2, 3])).as_deref(), Some("d0"), "all were tried");
    assert!(fleet.prefill()[0].seat.load.in_flight() == 0, "the prefill has done its part");
    fleet.decode().iter().for_each(|s| s.pulse.set_status(Status::NotReady));
    assert!(replaced(&fleet, &[]).is_none());
    assert!(replaced(&pairs(0, 1), &[]).is_none(), "the prefill left");
}
