//! Who is tried with whom, and who is let in: stories, and every order of events in a small fleet.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::handoff::Rules;
use baton_core::preflight::{
    AGAIN_MAX, AGAIN_PAUSE, AGAIN_PAUSE_MAX, Board, FIRST_PAUSE, GIVE_UP, Outcome, State, Step, TRIALS_MAX,
    Trial,
};
use baton_core::time::{Duration, Instant};

const HOLD: Duration = Duration::from_secs(20);

fn worker(slot: u32, role: Role) -> Worker {
    let mut worker = Worker::new(format!("w{slot}"), format!("http://h:{slot}"), role);
    worker.engine = Engine::Vllm;
    worker.kv_connector = Some("NixlConnector".into());
    worker
}

/// Prefills in the first slots, decodes behind them, none of them ready.
fn fleet(prefills: u32, decodes: u32) -> Fleet {
    let role = |slot| if slot < prefills { Role::Prefill } else { Role::Decode };
    let seats = (0..prefills + decodes).map(|slot| Seat::new(slot, worker(slot, role(slot))));
    Fleet::new(PairingMode::Lenient).with(seats.map(FleetChange::Join))
}

/// A board with the fleet it is about, and the trials it has begun.
struct Table {
    board: Board,
    fleet: Fleet,
    now: Instant,
    trials: Vec<Trial>,
    begun: usize,
    gave_up: Vec<u32>,
}

impl Table {
    fn new(fleet: Fleet) -> Table {
        Table::holding(fleet, HOLD)
    }

    fn holding(fleet: Fleet, hold: Duration) -> Table {
        let board = Board::new(hold, Rules::default());
        Table { board, fleet, now: Instant::ZERO, trials: Vec::new(), begun: 0, gave_up: Vec::new() }
    }

    fn seat(&self, slot: u32) -> &Arc<Seat> {
        self.fleet.seat(slot).unwrap()
    }

    /// The worker is found well, as the registry takes it in.
    fn comes(&mut self, slot: u32) {
        let seat = self.seat(slot);
        match self.board.holds(&seat.worker) {
            true => seat.pulse.hold(),
            false => seat.pulse.set_status(Status::Ready),
        }
        self.look();
    }

    fn goes(&mut self, slot: u32) {
        self.seat(slot).pulse.set_status(Status::NotReady);
        self.look();
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.look();
    }

    /// Does what the board says. Gives when it wants to look again.
    fn look(&mut self) -> Option<Instant> {
        let look = self.board.look(&self.fleet, self.now);
        for step in look.steps {
            match step {
                Step::Try(trial) => {
                    self.begun += 1;
                    self.trials.push(trial);
                }
                Step::LetIn(seat) => drop(seat.pulse.let_in()),
                Step::GaveUp(seat) => self.gave_up.push(seat.slot),
            }
        }
        assert_eq!(self.board.trials(), self.trials.len());
        look.next
    }

    /// The oldest trial ends so.
    fn ends(&mut self, outcome: &Outcome) -> (u32, u32) {
        let trial = self.trials.remove(0);
        self.board.ended(trial.decode.slot, outcome, self.now);
        self.look();
        (trial.prefill.slot, trial.decode.slot)
    }

    fn state(&self, slot: u32) -> Option<State> {
        self.board.standing(slot).map(|standing| standing.state)
    }

    fn in_service(&self, slot: u32) -> bool {
        self.seat(slot).pulse.in_service()
    }
}

fn failed() -> Outcome {
    Outcome::Failed("500".into())
}

fn degraded() -> Outcome {
    Outcome::Degraded("still".into())
}

#[test]
fn a_lone_worker_is_let_in_and_its_partner_is_held_until_both_are_proved() {
    let mut t = Table::new(fleet(1, 1));
    t.comes(0);
    assert!(t.in_service(0) && t.trials.is_empty());
    assert_eq!(t.board.standing(0).unwrap().why.as_deref(), Some("no ready partner to try it with"));
    t.comes(1);
    assert!(!t.in_service(1) && !t.fleet.ready());
    assert_eq!(t.ends(&Outcome::Proved), (0, 1));
    assert!(t.in_service(1) && t.fleet.ready());
    assert_eq!((t.state(0), t.state(1)), (Some(State::Proved), Some(State::Proved)));
    assert_eq!(t.board.standing(0).unwrap().partner.as_deref(), Some("http://h:1"));
    assert_eq!(t.look(), None, "nothing is left to do");
}

#[test]
fn each_outcome_lets_in_but_a_failure_which_is_tried_again() {
    for (outcome, state) in [
        (Outcome::Proved, State::Proved),
        (Outcome::Answered, State::Answered),
        (degraded(), State::Degraded),
        (Outcome::Unjudged("404".into()), State::Unchecked),
    ] {
        let mut t = Table::new(fleet(1, 1));
        (0..2).for_each(|slot| t.comes(slot));
        t.ends(&outcome);
        assert!(t.in_service(0) && t.in_service(1), "{outcome:?}");
        assert_eq!((t.state(0), t.begun), (Some(state), 1));
        let partner = (state == State::Degraded).then(|| "http://h:1".to_owned());
        assert_eq!(t.board.standing(0).unwrap().degraded_with, partner);
    }
    let mut t = Table::new(fleet(1, 1));
    (0..2).for_each(|slot| t.comes(slot));
    t.ends(&failed());
    assert!(!t.in_service(1) && t.trials.is_empty());
    assert_eq!(t.look(), Some(t.now.after(FIRST_PAUSE)));
    t.wait(FIRST_PAUSE);
    t.ends(&failed());
    assert_eq!(t.look(), Some(t.now.after(FIRST_PAUSE * 2)));
    t.wait(FIRST_PAUSE * 2);
    t.ends(&Outcome::Proved);
    assert_eq!((t.state(1), t.begun, t.in_service(1)), (Some(State::Proved), 3, true));
}

#[test]
fn patience_ends() {
    let mut t = Table::new(fleet(1, 1));
    (0..2).for_each(|slot| t.comes(slot));
    t.ends(&failed());
    t.wait(HOLD);
    assert!(t.in_service(1), "let in while it is still tried");
    assert_eq!(t.state(1), Some(State::Waiting));
    t.ends(&failed());
    t.wait(GIVE_UP - HOLD);
    assert_eq!((t.state(0), t.state(1)), (Some(State::Failed), Some(State::Failed)));
    assert_eq!(t.gave_up, [0, 1]);
    assert_eq!(t.board.standing(1).unwrap().why.as_deref(), Some("500"));
    t.trials.clear();

    // A trial that never ends does not keep anybody out.
    let mut t = Table::new(fleet(1, 1));
    (0..2).for_each(|slot| t.comes(slot));
    t.wait(GIVE_UP);
    assert!(t.in_service(1) && t.trials.len() == 1);
    assert_eq!(t.state(1), Some(State::Unchecked));
    t.ends(&Outcome::Proved);
    assert_eq!(t.state(1), Some(State::Proved), "what it said in the end counts");
}

/// A prefill that joins where all decodes are full is needed, and is not to blame.
#[test]
fn where_nobody_has_room_a_worker_serves_and_is_tried_when_there_is_some() {
    let mut t = Table::new(fleet(2, 1));
    [0, 2].into_iter().for_each(|slot| t.comes(slot));
    t.ends(&Outcome::Proved);
    t.comes(1);
    assert!(!t.in_service(1));
    t.ends(&Outcome::Crowded);
    assert!(t.in_service(1), "at once");
    assert_eq!(t.state(1), Some(State::Waiting));
    assert_eq!(t.board.standing(1).unwrap().why.as_deref(), Some("the decode has no room"));
    assert_eq!(t.state(2), Some(State::Proved), "nor is the decode");
    t.wait(FIRST_PAUSE);
    t.ends(&Outcome::Crowded);
    assert_eq!((t.trials.len(), t.look()), (0, Some(t.now.after(FIRST_PAUSE * 2))), "it waits longer");
    t.wait(FIRST_PAUSE * 2);
    t.ends(&Outcome::Proved);
    assert_eq!((t.state(1), t.look()), (Some(State::Proved), None));
}

#[test]
fn a_worker_that_was_let_in_for_want_of_room_is_left_at_that_and_tried_later() {
    let mut t = Table::new(fleet(1, 1));
    (0..2).for_each(|slot| t.comes(slot));
    t.ends(&Outcome::Crowded);
    t.wait(GIVE_UP);
    assert_eq!(t.state(0), Some(State::Unchecked));
    assert_eq!(t.board.standing(0).unwrap().why.as_deref(), Some("no decode had room for a trial"));
    if !t.trials.is_empty() {
        t.ends(&Outcome::Crowded);
    }
    assert_eq!(t.look(), Some(t.now.after(AGAIN_PAUSE)));
    t.wait(AGAIN_PAUSE);
    t.ends(&Outcome::Proved);
    assert_eq!(t.state(0), Some(State::Proved));
}

#[test]
fn a_decode_with_room_is_tried_before_one_without() {
    let mut full = worker(1, Role::Decode);
    full.labels.insert("max_num_seqs".into(), "1".into());
    let seats = [worker(0, Role::Prefill), full, worker(2, Role::Decode)];
    let seats = (0..).zip(seats).map(|(slot, worker)| FleetChange::Join(Seat::new(slot, worker)));
    let mut t = Table::new(Fleet::new(PairingMode::Lenient).with(seats));
    let _full = t.seat(1).load.take();
    let _more = [t.seat(2).load.take(), t.seat(2).load.take()];
    for slot in [1, 2] {
        t.seat(slot).pulse.set_status(Status::Ready);
    }
    t.comes(0);
    assert_eq!(t.trials[0].decode.slot, 2, "it has more to do, and room");
}

/// What was wrong was mended without a restart of the worker that was blamed.
#[test]
fn a_worker_that_was_given_up_is_tried_again_later_and_so_often() {
    let given_up = || {
        let mut t = Table::new(fleet(1, 1));
        (0..2).for_each(|slot| t.comes(slot));
        t.ends(&failed());
        t.wait(GIVE_UP);
        if !t.trials.is_empty() {
            t.ends(&failed());
        }
        assert_eq!((t.state(0), t.state(1)), (Some(State::Failed), Some(State::Failed)));
        assert!(t.in_service(0) && t.in_service(1));
        t
    };
    let mut t = given_up();
    let begun = t.begun;
    let next = t.look().unwrap();
    assert_eq!((next, t.begun), (t.now.after(AGAIN_PAUSE), begun));
    t.wait(AGAIN_PAUSE);
    assert_eq!(t.begun, begun + 1);
    assert!(t.in_service(0) && t.in_service(1), "nobody is held for it");
    t.ends(&Outcome::Proved);
    assert_eq!((t.state(0), t.state(1), t.look()), (Some(State::Proved), Some(State::Proved), None));

    let mut t = given_up();
    let begun = t.begun;
    let mut pauses = Vec::new();
    while let Some(next) = t.look() {
        pauses.push(next.since(t.now));
        t.now = next;
        t.look();
        t.ends(&failed());
    }
    assert_eq!(t.begun - begun, AGAIN_MAX as usize, "{pauses:?}");
    assert_eq!(pauses[..3], [AGAIN_PAUSE, AGAIN_PAUSE * 2, AGAIN_PAUSE * 4]);
    assert_eq!(pauses.last(), Some(&AGAIN_PAUSE_MAX));
    assert_eq!(t.state(1), Some(State::Failed));
    // Another life begins anew.
    t.seat(1).pulse.reborn();
    t.look();
    t.ends(&Outcome::Proved);
    assert_eq!(t.state(1), Some(State::Proved));
}

#[test]
fn a_hold_of_zero_holds_nobody_and_tries_all_the_same() {
    let mut t = Table::holding(fleet(1, 1), Duration::ZERO);
    (0..2).for_each(|slot| t.comes(slot));
    assert!(t.in_service(0) && t.in_service(1));
    t.ends(&degraded());
    assert_eq!(t.state(1), Some(State::Degraded));
}

#[test]
fn each_worker_is_tried_once_and_not_each_pair() {
    let mut t = Table::new(fleet(40, 60));
    (0..100).for_each(|slot| t.comes(slot));
    let mut seen = BTreeSet::new();
    while !t.trials.is_empty() {
        assert!(t.trials.len() <= TRIALS_MAX);
        let decodes: BTreeSet<u32> = t.trials.iter().map(|trial| trial.decode.slot).collect();
        assert_eq!(decodes.len(), t.trials.len(), "a decode is in one trial at a time");
        let (p, d) = t.ends(&Outcome::Proved);
        seen.extend([p, d]);
    }
    assert_eq!(seen.len(), 100);
    assert!(t.begun <= 61, "{} trials", t.begun);
    assert!((0..100).all(|slot| t.in_service(slot)));
}

/// All of them are there when the gateway begins.
#[test]
fn a_large_fleet_takes_as_many_trials_as_it_has_pairs() {
    let mut t = Table::new(fleet(256, 256));
    for seat in t.fleet.seats() {
        seat.pulse.hold();
    }
    t.look();
    while !t.trials.is_empty() {
        t.ends(&Outcome::Proved);
    }
    assert_eq!(t.begun, 256);
    assert!((0..512).all(|slot| t.in_service(slot)));
}

#[test]
fn a_failed_worker_is_tried_with_somebody_else() {
    let mut t = Table::new(fleet(2, 1));
    (0..3).for_each(|slot| t.comes(slot));
    let (first, _) = t.ends(&failed());
    t.wait(FIRST_PAUSE);
    let (second, _) = t.ends(&Outcome::Proved);
    assert_ne!(first, second);
}

#[test]
fn a_proved_worker_is_not_to_blame_for_another() {
    let mut t = Table::new(fleet(1, 2));
    (0..2).for_each(|slot| t.comes(slot));
    t.ends(&Outcome::Proved);
    t.comes(2);
    assert_eq!(t.ends(&degraded()), (0, 2));
    assert_eq!((t.state(0), t.state(2)), (Some(State::Proved), Some(State::Degraded)));
    assert_eq!(t.board.standing(0).unwrap().degraded_with.as_deref(), Some("http://h:2"));
}

#[test]
fn a_new_life_is_tried_again() {
    let mut t = Table::new(fleet(1, 1));
    (0..2).for_each(|slot| t.comes(slot));
    t.ends(&Outcome::Proved);
    // Away and back: held again.
    t.goes(1);
    assert_eq!(t.state(1), None);
    t.comes(1);
    assert!(!t.in_service(1));
    t.ends(&Outcome::Proved);
    // A restart that only the data path noticed: tried while it serves.
    t.seat(1).pulse.reborn();
    t.look();
    assert!(t.in_service(1) && t.state(1) == Some(State::Waiting));
    t.ends(&Outcome::Proved);
    // Another engine id, another description.
    for change in [
        |w: &mut Worker| w.kv_engine_ids = Some([(0, "e".into())].into()),
        |w: &mut Worker| drop(w.labels.insert("version".into(), "2".into())),
    ] {
        let mut worker = worker(1, Role::Decode);
        change(&mut worker);
        t.fleet = t.fleet.with([FleetChange::Describe { slot: 1, worker: Box::new(worker) }]);
        t.look();
        t.ends(&Outcome::Proved);
        assert_eq!(t.state(1), Some(State::Proved));
    }
    assert_eq!(t.begun, 5);
    // What pairs and engines do not tell apart is no new life.
    let mut worker = Worker::clone(&t.seat(1).worker);
    worker.priority = 3;
    t.fleet = t.fleet.with([FleetChange::Describe { slot: 1, worker: Box::new(worker) }]);
    t.look();
    assert_eq!(t.begun, 5);
}

#[test]
fn a_result_of_an_earlier_life_counts_for_the_other_alone() {
    let mut t = Table::new(fleet(1, 1));
    (0..2).for_each(|slot| t.comes(slot));
    t.goes(1);
    t.comes(1);
    t.ends(&Outcome::Proved);
    assert_eq!((t.state(0), t.state(1)), (Some(State::Proved), Some(State::Waiting)));
    assert!(!t.in_service(1) && t.trials.len() == 1, "tried once more");
    t.ends(&Outcome::Proved);
    assert!(t.in_service(1));
    // And one that has left is not missed.
    t.goes(1);
    t.comes(1);
    t.fleet = t.fleet.with([FleetChange::Leave { slot: 1 }]);
    t.look();
    t.ends(&failed());
    assert_eq!(t.look(), None);
}

#[test]
fn who_does_not_pair_is_not_tried() {
    let mut other = worker(1, Role::Decode);
    other.models = vec!["b".into()];
    let mut own = worker(0, Role::Prefill);
    own.models = vec!["a".into()];
    let mut whole = worker(2, Role::Whole);
    whole.models = vec!["a".into()];
    let mut generic = worker(3, Role::Decode);
    generic.engine = Engine::Generic;
    let seats = [own, other, whole, generic].into_iter().enumerate();
    let seats = seats.map(|(slot, worker)| FleetChange::Join(Seat::new(slot as u32, worker)));
    let mut t = Table::new(Fleet::new(PairingMode::Off).with(seats));
    (0..4).for_each(|slot| t.comes(slot));
    assert_eq!(t.begun, 0);
    assert!((0..4).all(|slot| t.in_service(slot)));
    assert_eq!(t.state(2), None, "it is no leg");
}

#[test]
fn each_two_descriptions_are_tried_together_once() {
    let describe = |slot: u32, role, page: &str| {
        let mut worker = worker(slot, role);
        if !page.is_empty() {
            worker.labels.insert("page_size".into(), page.into());
        }
        FleetChange::Join(Seat::new(slot, worker))
    };
    let seats = [
        describe(0, Role::Prefill, ""),
        describe(1, Role::Prefill, "16"),
        describe(2, Role::Decode, ""),
        describe(3, Role::Decode, "16"),
    ];
    let mut t = Table::new(Fleet::new(PairingMode::Lenient).with(seats));
    (0..4).for_each(|slot| t.comes(slot));
    let mut kinds = BTreeSet::new();
    while !t.trials.is_empty() {
        kinds.insert(t.ends(&Outcome::Proved));
    }
    assert_eq!(kinds.len(), 4, "{kinds:?}");
    assert!(t.begun <= 5, "{} trials", t.begun);
}

/// What may happen to a fleet of two prefills and two decodes.
#[derive(Clone, Copy, Debug)]
enum Event {
    Turn(u32),
    Ends(usize),
    Wait(Duration),
}

const OUTCOMES: usize = 4;

fn happen(t: &mut Table, event: Event) {
    match event {
        Event::Turn(slot) => match t.seat(slot).pulse.status() {
            Status::Ready => t.goes(slot),
            _ => t.comes(slot),
        },
        Event::Ends(_) if t.trials.is_empty() => {}
        Event::Ends(how) => drop(t.ends(&[Outcome::Proved, degraded(), failed(), Outcome::Crowded][how])),
        Event::Wait(time) => t.wait(time),
    }
}

fn check(t: &Table, told: &[Event]) {
    for (at, trial) in t.trials.iter().enumerate() {
        let pairs = t.fleet.prefill().iter().find(|p| p.seat.slot == trial.prefill.slot).unwrap();
        assert!(pairs.partners.iter().any(|d| d.slot == trial.decode.slot), "{told:?}");
        assert!(!t.trials[..at].iter().any(|other| other.decode.slot == trial.decode.slot), "{told:?}");
    }
    for slot in 0..4 {
        let ready = t.seat(slot).pulse.status() == Status::Ready;
        assert_eq!(t.state(slot).is_some(), ready, "{told:?}");
        // Held for a reason: somebody to be tried with is there.
        if t.seat(slot).pulse.is_held() {
            assert_eq!(t.state(slot), Some(State::Waiting), "{told:?}");
            let partners = if slot < 2 { 2..4 } else { 0..2 };
            assert!(partners.into_iter().any(|p| t.seat(p).pulse.status() == Status::Ready), "{told:?}");
        }
    }
}

/// Whatever came before: when failures stop, everybody who is well is tried and let in, without waiting for patience
/// to end.
fn settles(mut t: Table, told: &[Event]) {
    for _ in 0..64 {
        if !t.trials.is_empty() {
            t.ends(&Outcome::Proved);
            continue;
        }
        match t.look() {
            None => break,
            Some(next) => t.now = t.now.max(next),
        }
        t.look();
    }
    assert!(t.trials.is_empty() && t.look().is_none(), "{told:?}");
    let well = |slots: std::ops::Range<u32>| slots.into_iter().any(|s| t.state(s).is_some());
    let pair = well(0..2) && well(2..4);
    for slot in (0..4).filter(|slot| t.state(*slot).is_some()) {
        assert!(t.in_service(slot), "{told:?}");
        assert!(!pair || t.state(slot) != Some(State::Waiting), "{slot} after {told:?}");
    }
}

#[test]
fn every_order_of_seven_events() {
    let mut events: Vec<Event> = (0..4).map(Event::Turn).collect();
    events.extend((0..OUTCOMES).map(Event::Ends));
    events.push(Event::Wait(HOLD));
    let base = events.len();
    // The first two are there from the start: the walk goes on from a pair that is being tried.
    for mut code in 0..base.pow(5) {
        let mut told = vec![Event::Turn(0), Event::Turn(2)];
        for _ in 0..5 {
            told.push(events[code % base]);
            code /= base;
        }
        let mut t = Table::new(fleet(2, 2));
        for so_far in 0..told.len() {
            happen(&mut t, told[so_far]);
            check(&t, &told[..=so_far]);
        }
        settles(t, &told);
    }
}
