//! Another decode for a prefill whose own could not be reached.

use baton_core::dice::Dice;
use baton_core::fleet::{Role, Status};
use baton_core::place::partner;

use crate::yard::{RESTED, fleet, pairs, seat, trip};

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
