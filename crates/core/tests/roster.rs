//! Workers of a list: from any list to any other, what is there in the end is what the list says, and nobody else was
//! touched.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::slice::from_ref;

use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::roster::{Entry, Moves, Relief, Twice, distinct, moves};
use proptest::prelude::*;

fn entry(key: &str, url: &str, mark: u64) -> Entry {
    Entry { key: key.into(), url: url.into(), role: Role::Decode, engine: None, mark, fixed: false }
}

fn relieved(fleet: &Fleet, going: &BTreeSet<u32>, worker: &Worker) -> bool {
    Relief::new(fleet, going).is_there_for(worker)
}

fn none() -> BTreeSet<&'static str> {
    BTreeSet::new()
}

#[test]
fn a_list_that_says_the_same_moves_nobody() {
    let list = [entry("a", "u1", 1), entry("b", "u2", 1)];
    assert_eq!(moves(&list, &none(), &list), Moves::default());
}

#[test]
fn what_changed_changes_in_place_where_the_process_is_the_same() {
    let here = entry("a", "u1", 1);
    let described = entry("a", "u1", 2);
    let in_place = Moves { change: vec![0], ..Moves::default() };
    assert_eq!(moves(from_ref(&here), &none(), from_ref(&described)), in_place);
    let told = Entry { engine: Some(Engine::Vllm), ..described.clone() };
    assert_eq!(moves(from_ref(&here), &none(), &[told]), in_place, "an engine that is told now");
    let anew = Moves { leave: vec![0], join: vec![0], ..Moves::default() };
    let here = Entry { engine: Some(Engine::Sglang), ..here };
    for (here, there) in [
        (here.clone(), entry("a", "u2", 2)),
        (here.clone(), Entry { role: Role::Prefill, ..described.clone() }),
        (here.clone(), Entry { engine: Some(Engine::Vllm), ..described.clone() }),
        (here.clone(), Entry { fixed: true, ..described.clone() }),
        (Entry { fixed: true, ..here }, described),
    ] {
        assert_eq!(moves(&[here], &none(), &[there]), anew);
    }
}

#[test]
fn names_that_trade_addresses_leave_before_they_join() {
    let here = [entry("a", "u1", 1), entry("b", "u2", 2)];
    let list = [entry("a", "u2", 3), entry("b", "u1", 4)];
    let trade = Moves { leave: vec![0, 1], join: vec![0, 1], ..Moves::default() };
    assert_eq!(moves(&here, &none(), &list), trade);
}

#[test]
fn an_address_that_somebody_else_brought_in_is_not_to_be_had() {
    let list = [entry("a", "u1", 1), entry("b", "u2", 1)];
    let held = Moves { join: vec![1], taken: vec![0], ..Moves::default() };
    assert_eq!(moves(&[], &["u1"].into(), &list), held);
    // The worker that moved there is gone all the same: it is not where it was.
    let moved = Moves { leave: vec![0], taken: vec![0], ..Moves::default() };
    assert_eq!(moves(&[entry("a", "u0", 0)], &["u1"].into(), &list[..1]), moved);
}

#[test]
fn of_two_workers_with_one_name_the_one_that_is_meant_stays() {
    // A worker whose address changed, and changed back before the first one had gone.
    let here = [entry("a", "u1", 1), entry("a", "u2", 2)];
    let back = Moves { leave: vec![1], ..Moves::default() };
    assert_eq!(moves(&here, &none(), &[entry("a", "u1", 1)]), back);
    assert_eq!(moves(&here, &none(), &[]), Moves { leave: vec![0, 1], ..Moves::default() });
}

/// A fleet of workers: role, model, roleset, status.
fn fleet(workers: &[(Role, &str, &str, Status)]) -> Fleet {
    let join = |(slot, (role, model, roleset, status)): (u32, &(Role, &str, &str, Status))| {
        let mut worker = Worker::new(slot.to_string(), format!("http://h:{slot}"), *role);
        worker.models = [*model].into_iter().filter(|m| !m.is_empty()).map(str::to_owned).collect();
        if !roleset.is_empty() {
            worker.labels.insert("roleset-name".into(), (*roleset).into());
        }
        let seat = Seat::new(slot, worker);
        seat.pulse.set_status(*status);
        FleetChange::Join(seat)
    };
    Fleet::new(PairingMode::Lenient).with((0..).zip(workers).map(join))
}

#[test]
fn who_is_taken_out_goes_when_he_is_not_needed() {
    use Role::{Decode, Prefill, Whole};
    use Status::{Failed, NotReady, Pending, Ready};
    let pair = [(Prefill, "m", "", Ready), (Decode, "m", "", Ready)];
    // The first two go, and these are the others.
    for (others, goes) in [
        (vec![], true),
        (vec![(Whole, "m", "", Ready)], true),
        (vec![(Prefill, "m", "", Ready), (Decode, "m", "", Ready)], true),
        (vec![(Prefill, "m", "", Pending), (Decode, "m", "", Ready)], false),
        (vec![(Prefill, "", "", Pending), (Decode, "", "", Pending)], false),
        (vec![(Whole, "m", "", Pending)], false),
        (vec![(Prefill, "m", "", Ready), (Decode, "m", "x", Ready)], true),
        (vec![(Prefill, "m", "", Ready), (Decode, "m", "x", Ready), (Whole, "m", "", Pending)], false),
        (vec![(Prefill, "m", "", Pending)], true),
        (vec![(Whole, "other", "", Pending)], true),
        (vec![(Whole, "other", "", Ready), (Whole, "m", "", Pending)], false),
        (vec![(Whole, "m", "", Failed)], true),
        (vec![(Whole, "m", "", NotReady)], true),
    ] {
        let fleet = fleet(&[pair.as_slice(), &others].concat());
        for slot in [0, 1] {
            let worker = fleet.seat(slot).unwrap().worker.clone();
            assert_eq!(relieved(&fleet, &[0, 1].into(), &worker), goes, "{slot} {others:?}");
        }
    }
    let held = fleet(&[(Whole, "m", "", Ready), (Whole, "m", "", Ready)]);
    held.seat(1).unwrap().pulse.hold();
    let worker = held.seat(0).unwrap().worker.clone();
    assert!(!relieved(&held, &[0].into(), &worker), "its pre-flight has not ended");
    held.seat(1).unwrap().pulse.let_in();
    assert!(relieved(&held, &[0].into(), &worker));
}

/// A worker of several models goes when each of them is served without it.
#[test]
fn all_models_of_one_that_goes_count() {
    use Role::Whole;
    use Status::{Pending, Ready};
    let old = fleet(&[(Whole, "a", "", Ready), (Whole, "a", "", Ready), (Whole, "b", "", Pending)]);
    let mut worker = Worker::clone(&old.seat(0).unwrap().worker);
    worker.models = vec!["a".into(), "b".into()];
    assert!(!relieved(&old, &[0].into(), &worker), "b is coming");
    old.seat(2).unwrap().pulse.set_status(Ready);
    assert!(relieved(&old, &[0].into(), &worker));
    old.seat(2).unwrap().pulse.set_status(Status::Failed);
    assert!(relieved(&old, &[0].into(), &worker), "nobody will ever serve b");
}

#[test]
fn a_name_or_an_address_twice_is_no_list() {
    assert_eq!(distinct(&[entry("a", "u1", 1), entry("b", "u2", 1)]), Ok(()));
    assert_eq!(distinct(&[entry("a", "u1", 1), entry("a", "u2", 1)]), Err(Twice::Key(0, 1)));
    let urls = [entry("a", "u1", 1), entry("b", "u2", 1), entry("c", "u1", 1)];
    assert_eq!(distinct(&urls), Err(Twice::Url(0, 2)));
}

/// The registry as far as it matters here: who is there, and who brought them in.
#[derive(Clone, Debug, Default)]
struct House {
    listed: BTreeMap<String, Entry>,
    others: BTreeSet<String>,
}

impl House {
    fn present(&self) -> Vec<Entry> {
        self.listed.values().cloned().collect()
    }

    fn next(&self, list: &[Entry]) -> Moves {
        moves(&self.present(), &self.others.iter().map(String::as_str).collect(), list)
    }

    fn carry_out(&mut self, moves: &Moves, list: &[Entry]) {
        let present = self.present();
        for at in &moves.leave {
            self.listed.remove(&present[*at].key).expect("only who is there leaves");
        }
        for at in &moves.change {
            let old = self.listed.get_mut(&list[*at].key).expect("only who is there changes");
            assert_eq!((&old.url, old.role), (&list[*at].url, list[*at].role));
            *old = list[*at].clone();
        }
        for at in &moves.join {
            let new = &list[*at];
            assert!(!self.others.contains(&new.url), "at somebody else's address");
            assert!(self.listed.values().all(|e| e.url != new.url), "two at one address");
            assert!(self.listed.insert(new.key.clone(), new.clone()).is_none(), "joins twice");
        }
    }
}

/// Few names and addresses, so that they meet.
fn lists() -> impl Strategy<Value = Vec<Entry>> {
    let one = (0..6u8, 0..8u8, any::<bool>(), any::<bool>(), 0..3u64, prop::bool::weighted(0.1));
    prop::collection::vec(one, 0..7).prop_map(|rows| {
        let mut list = Vec::new();
        for (key, url, decode, told, text, fixed) in rows {
            let entry = Entry {
                key: format!("k{key}"),
                url: format!("u{url}"),
                role: if decode { Role::Decode } else { Role::Prefill },
                engine: told.then_some(Engine::Sglang),
                // As a hash of all the rest is.
                mark: text + 10 * u64::from(url) + 1000 * u64::from(decode) + 2000 * u64::from(told),
                fixed,
            };
            list.push(entry);
            if distinct(&list).is_err() {
                list.pop();
            }
        }
        list
    })
}

proptest! {
    #[test]
    fn any_list_follows_any_other(
        all in prop::collection::vec((lists(), prop::collection::btree_set(0..8u8, 0..3)), 1..5),
    ) {
        let mut house = House::default();
        for (list, others) in all {
            // Somebody adds and removes workers by hand, never at an address that is taken.
            house.others = others.into_iter().map(|url| format!("u{url}")).collect();
            house.others.retain(|url| house.listed.values().all(|e| e.url != *url));
            let by_hand = house.others.clone();
            let next = house.next(&list);
            house.carry_out(&next, &list);
            prop_assert_eq!(&house.others, &by_hand);
            let taken: BTreeSet<usize> = next.taken.iter().copied().collect();
            for (at, entry) in list.iter().enumerate() {
                prop_assert_eq!(house.listed.get(&entry.key).map(|e| e.mark), (!taken.contains(&at)).then_some(entry.mark));
                prop_assert_eq!(taken.contains(&at), by_hand.contains(&entry.url));
            }
            prop_assert_eq!(house.listed.len(), list.len() - taken.len());
            let again = house.next(&list);
            prop_assert!(again.is_empty() && again.taken == next.taken, "{:?}", again);
            let mut backwards = list.clone();
            backwards.reverse();
            prop_assert!(house.next(&backwards).is_empty(), "the order of a list says nothing");
        }
    }
}
