//! The walk's rules can fail: each of these exchanges has one bug, and the walk must find it.
//!
//! A bug is a change to what a sound exchange answers, so that a rule that stops biting shows here.

use baton_core::abort::Why;
use baton_core::breaker::Verdict;
use baton_core::exchange::{
    Abort, Action, Actions, Course, Event, Failure, Handed, Leg, Order, Outcome, Start,
};
use baton_core::fault::Fault;
use baton_core::time::Duration;
use baton_core::watchdog::Silence;

use crate::walk::{
    DECODE_ONLY, IN_TURN, IN_TURN_FREE, TOGETHER, TOGETHER_READ, TOGETHER_TO_END, WHOLE, walk,
};
use crate::world::Bend;

/// What such an exchange does wrong, how, and what the walk has to say about it.
type Mutant = (&'static str, Bend, &'static str);

type Says = (&'static str, fn(&Event, Actions) -> Actions, &'static str);
type Hears = (&'static str, fn(Event) -> Event, &'static str);

const COURSES: &[Course] = &[
    DECODE_ONLY,
    WHOLE,
    IN_TURN,
    IN_TURN_FREE,
    TOGETHER,
    TOGETHER_TO_END,
    TOGETHER_READ,
    Course { prefill_abort: Abort::Detach, ..TOGETHER },
];

/// The actions without those that fit.
fn without(actions: Actions, fits: impl Fn(&Action) -> bool) -> Actions {
    actions.into_iter().filter(|a| !fits(a)).collect()
}

/// Each action as it is, or as what it is turned into.
fn turned(actions: Actions, turn: impl Fn(Action) -> Action) -> Actions {
    actions.into_iter().map(turn).collect()
}

/// The actions that fit, twice.
fn doubled(actions: Actions, fits: impl Fn(&Action) -> bool) -> Actions {
    actions.into_iter().flat_map(|a| if fits(&a) { vec![a.clone(), a] } else { vec![a] }).collect()
}

/// One more action, before the others or after them.
fn with(mut actions: Actions, more: Action, first: bool) -> Actions {
    let at = if first { 0 } else { actions.len() };
    actions.insert(at, more);
    actions
}

const LEASES: [Says; 6] = [
    ("forgets a lease", |_, a| without(a, |a| matches!(a, Action::Free(_))), "still has its lease"),
    ("gives a lease back twice", |_, a| doubled(a, |a| matches!(a, Action::Free(_))), "no lease of"),
    (
        "gives the lease of a running leg back",
        |e, a| match e {
            Event::Placed(_) if !a.is_empty() => with(a, Action::Free(Leg::Decode), false),
            _ => a,
        },
        "is freed in flight",
    ),
    (
        "gives the lease of a detached leg back",
        |e, a| match e {
            Event::Ended(Leg::Decode) if !a.is_empty() => with(a, Action::Free(Leg::Prefill), true),
            _ => a,
        },
        "no lease of Prefill",
    ),
    ("forgets to judge", |_, a| without(a, |a| matches!(a, Action::Judge(..))), "never judged"),
    ("judges twice", |_, a| doubled(a, |a| matches!(a, Action::Judge(..))), "judged twice"),
];

const VERDICTS: [Says; 6] = [
    (
        "blames a worker for a connection that had grown old",
        |e, a| match e {
            Event::Stale(f) => turned(a, |a| match a {
                Action::Judge(leg, _) if leg == f.leg => Action::Judge(leg, Verdict::Bad),
                a => a,
            }),
            _ => a,
        },
        "judged Bad, should be Mute",
    ),
    (
        "blames a leg that was dropped",
        |_, a| {
            turned(a, |a| match a {
                Action::Judge(leg, Verdict::Mute) => Action::Judge(leg, Verdict::Bad),
                a => a,
            })
        },
        "judged Bad, should be Mute",
    ),
    (
        "blames nobody for a silence",
        |e, a| match e {
            Event::Silent(_) => turned(a, |a| match a {
                Action::Judge(leg, _) => Action::Judge(leg, Verdict::Mute),
                a => a,
            }),
            _ => a,
        },
        "Decode judged Mute, should be Bad",
    ),
    (
        "praises a leg that failed",
        |_, a| {
            turned(a, |a| match a {
                Action::Judge(leg, Verdict::Bad) => Action::Judge(leg, Verdict::Good),
                a => a,
            })
        },
        "judged Good, should be Bad",
    ),
    (
        "judges a leg that goes on in the background",
        |_, a| {
            let detaches = a.contains(&Action::Detach(Leg::Prefill));
            if detaches { with(a, Action::Judge(Leg::Prefill, Verdict::Mute), false) } else { a }
        },
        "the background will do that",
    ),
    (
        "judges a leg of another plan",
        |e, a| match e {
            Event::Placed(c) if *c == DECODE_ONLY && !a.is_empty() => {
                with(a, Action::Judge(Leg::Prefill, Verdict::Mute), false)
            }
            _ => a,
        },
        "the plan has none",
    ),
];

const ENDS: [Says; 14] = [
    ("settles twice", |_, a| doubled(a, |a| matches!(a, Action::Settle(_))), "comes after Settle"),
    ("settles first", |_, a| a.into_iter().rev().collect(), "Decode still has its lease"),
    ("never settles", |_, a| without(a, |a| matches!(a, Action::Settle(_))), "it is not settled"),
    (
        "settles as something else",
        |_, a| {
            turned(a, |a| match a {
                Action::Settle(Outcome::Served) => Action::Settle(Outcome::ClientGone),
                a => a,
            })
        },
        "settled as ClientGone, should be Served",
    ),
    ("answers nothing", |_, a| without(a, |a| matches!(a, Action::Fail(_))), "settled on"),
    ("starts twice", |_, a| doubled(a, |a| matches!(a, Action::Start)), "started after Started"),
    ("gives the prefill's answer twice", |_, a| doubled(a, |a| *a == Action::Tell), "told the client twice"),
    (
        "keeps the prefill's answer to itself",
        |_, a| without(a, |a| *a == Action::Tell),
        "settled on Answered(Final)",
    ),
    (
        "gives an answer that was not the last word",
        |e, a| match e {
            Event::Answered(Handed::Nothing) if !a.is_empty() => with(a, Action::Tell, true),
            _ => a,
        },
        "told an answer that is Alive",
    ),
    (
        "tells that nobody is left, and not what failed before",
        |e, a| match e {
            Event::Unplaced(none) => turned(a, |a| match a {
                Action::Fail(_) => Action::Fail(none.clone()),
                a => a,
            }),
            _ => a,
        },
        "the client is told NoWorker",
    ),
    (
        "fails an answer that had begun",
        |_, a| {
            turned(a, |a| match a {
                Action::Cut(fault) => Action::Fail(fault),
                a => a,
            })
        },
        "the client was told before",
    ),
    (
        "cuts an answer that had not begun",
        |_, a| {
            turned(a, |a| match a {
                Action::Fail(fault) => Action::Cut(fault),
                a => a,
            })
        },
        "cut an answer that is Nothing",
    ),
    (
        "does not mind a silence",
        |e, a| if matches!(e, Event::Silent(_)) { Actions::new() } else { a },
        "it went on",
    ),
    (
        "goes on when the client has left",
        |e, a| if matches!(e, Event::ClientGone) { Actions::new() } else { a },
        "it went on",
    ),
];

const LEGS: [Says; 12] = [
    (
        "leaves a leg running",
        |e, a| match e {
            Event::ClientGone => without(a, |a| matches!(a, Action::Cancel(_))),
            _ => a,
        },
        "in flight",
    ),
    (
        "lets a silent leg run",
        |e, a| match e {
            Event::Silent(_) => without(a, |a| matches!(a, Action::Cancel(_))),
            _ => a,
        },
        "in flight",
    ),
    (
        "cancels a leg that is not running",
        |e, a| match e {
            Event::Ended(Leg::Decode) if !a.is_empty() => with(a, Action::Cancel(Leg::Decode), true),
            _ => a,
        },
        "is not in flight",
    ),
    (
        "forgets to ask the engine by name",
        |_, a| without(a, |a| matches!(a, Action::AskAbort(_))),
        "aborted by name 0 times",
    ),
    (
        "asks the engine by name whenever a client leaves",
        |e, a| match e {
            Event::ClientGone if a.contains(&Action::Cancel(Leg::Decode)) => {
                with(a, Action::AskAbort(Why::Silence(Silence::StreamIdle)), true)
            }
            _ => a,
        },
        "the engine takes no names",
    ),
    ("sends twice", |_, a| doubled(a, |a| matches!(a, Action::Send(_))), "is sent while Sent"),
    (
        "sends the decode before the prefill has answered",
        |e, a| match e {
            Event::Placed(c) if *c == IN_TURN && !a.is_empty() => with(a, Action::Send(Leg::Decode), false),
            _ => a,
        },
        "decode is sent on a hand-off that is Sent",
    ),
    (
        "sends the decode on a dead hand-off",
        |e, a| match e {
            Event::Answered(Handed::Dead(_)) if !a.is_empty() => with(a, Action::Send(Leg::Decode), true),
            _ => a,
        },
        "decode is sent on a hand-off that is Dropped, Dead",
    ),
    (
        "closes the prefill that the answer lives on",
        |_, a| {
            let started = a.contains(&Action::Start);
            turned(a, |a| match a {
                Action::Detach(leg) if started => Action::Cancel(leg),
                a => a,
            })
        },
        "aborts the transfer",
    ),
    (
        "forgets the prefill once the answer has begun",
        |_, a| without(a, |a| matches!(a, Action::Detach(_))),
        "Prefill still has its lease",
    ),
    (
        "detaches where the plan says to cancel",
        |_, a| {
            turned(a, |a| match a {
                Action::Cancel(Leg::Prefill) => Action::Detach(Leg::Prefill),
                a => a,
            })
        },
        "the plan says to cancel it",
    ),
    (
        "takes an event that cannot be",
        |e, a| match e {
            Event::Ended(Leg::Prefill) if a.is_empty() => with(a, Action::Send(Leg::Decode), false),
            _ => a,
        },
        "does not fit and still led to",
    ),
];

const HAND_OFFS: [Says; 9] = [
    (
        "closes a prefill that may be in its last step",
        |_, a| turned(a, |a| if a == Action::Linger { Action::Cancel(Leg::Prefill) } else { a }),
        "closed in what may be its last step",
    ),
    (
        "lets a prefill go on whose KV nobody could release",
        |e, a| match e {
            Event::ClientGone => {
                turned(a, |a| if a == Action::Cancel(Leg::Prefill) { Action::Linger } else { a })
            }
            _ => a,
        },
        "nothing could be released",
    ),
    ("forgets the KV", |_, a| without(a, |a| matches!(a, Action::Release)), "KV is held for nobody"),
    ("releases twice", |_, a| doubled(a, |a| matches!(a, Action::Release)), "KV released that is Released"),
    (
        "gives KV away that another decode could have",
        |e, a| match e {
            Event::Resume if a.contains(&Action::Replace) => {
                [Action::Release, Action::Place].into_iter().collect()
            }
            _ => a,
        },
        "KV was given away",
    ),
    (
        "computes the prompt again while its KV is held",
        |_, a| {
            turned(a, |a| match a {
                Action::Replace => Action::Place,
                a => a,
            })
        },
        "KV is held for nobody",
    ),
    (
        "looks for another decode without KV for it",
        |e, a| match e {
            Event::Resume => turned(a, |a| match a {
                Action::Place => Action::Replace,
                a => a,
            }),
            _ => a,
        },
        "another decode for KV that is None",
    ),
    (
        "sends the prefill again to another decode",
        |e, a| match e {
            Event::Placed(Course { order: Order::InTurn, .. }) if a[..] == [Action::Send(Leg::Decode)] => {
                with(a, Action::Send(Leg::Prefill), true)
            }
            _ => a,
        },
        "Prefill is sent while Ended",
    ),
    (
        "releases KV that the decode was told of",
        |e, a| match e {
            Event::Deadline if a.contains(&Action::Cancel(Leg::Decode)) => with(a, Action::Release, true),
            _ => a,
        },
        "KV released that is",
    ),
];

const RETRIES: [Says; 10] = [
    (
        "begins anew as often as it likes",
        |e, a| match e {
            Event::Stale(_) => turned(a, |a| if matches!(a, Action::Wait(_)) { Action::Renew } else { a }),
            _ => a,
        },
        "begins anew twice",
    ),
    (
        "begins anew after any failure",
        |e, a| match e {
            Event::Failed(_) => turned(a, |a| if matches!(a, Action::Wait(_)) { Action::Renew } else { a }),
            _ => a,
        },
        "begins anew after Failed",
    ),
    (
        "retries for ever",
        |e, a| match e {
            Event::Failed(_) if a.iter().any(|a| matches!(a, Action::Fail(_))) => {
                let a = without(a, |a| matches!(a, Action::Fail(_) | Action::Settle(_)));
                with(a, Action::Wait(Duration::ZERO), false)
            }
            _ => a,
        },
        "it says (done, attempt)",
    ),
    (
        "retries an answer that had begun",
        |e, a| match e {
            Event::Failed(Failure { leg: Leg::Decode, .. })
                if a.iter().any(|a| matches!(a, Action::Cut(_))) =>
            {
                let a = without(a, |a| matches!(a, Action::Cut(_) | Action::Settle(_)));
                with(a, Action::Wait(Duration::ZERO), false)
            }
            _ => a,
        },
        "a retry after the client was answered",
    ),
    (
        "tries again after a silence",
        |e, a| match e {
            Event::Silent(_) if a.iter().any(|a| matches!(a, Action::Fail(_))) => {
                let a = without(a, |a| matches!(a, Action::Fail(_) | Action::Settle(_)));
                with(a, Action::Wait(Duration::ZERO), false)
            }
            _ => a,
        },
        "tries again after Silent",
    ),
    (
        "waits without a bound",
        |_, a| {
            turned(a, |a| match a {
                Action::Wait(_) => Action::Wait(Duration::MAX),
                a => a,
            })
        },
        "waits",
    ),
    (
        "counts waiting for room as an attempt",
        |e, a| match e {
            Event::Room if !a.is_empty() => {
                [Action::Fail(Fault::Draining), Action::Settle(Outcome::Failed)].into_iter().collect()
            }
            _ => a,
        },
        "it gave up on Room",
    ),
    (
        "waits for room when nobody can serve",
        |e, a| match e {
            Event::Unplaced(_) if !a.is_empty() => [Action::Queue].into_iter().collect(),
            _ => a,
        },
        "it waits for room that nobody missed",
    ),
    (
        "tries again without a turn",
        |e, a| match e {
            Event::Full(_) if !a.is_empty() => [Action::Place].into_iter().collect(),
            _ => a,
        },
        "begins",
    ),
    (
        "places anew at once",
        |_, a| {
            turned(a, |a| match a {
                Action::Wait(_) => Action::Place,
                a => a,
            })
        },
        "it says (done, attempt)",
    ),
];

const EARS: [Hears; 11] = [
    (
        "starts on the decode's head alone",
        |e| match e {
            Event::Placed(c) => Event::Placed(Course { start: Start::DecodeHead, ..c }),
            e => e,
        },
        "started while prefill is Sent",
    ),
    (
        "does not wait for the prefill's end",
        |e| match e {
            Event::Placed(c) => Event::Placed(Course { start: Start::BothHeads, ..c }),
            e => e,
        },
        "started while prefill is Head",
    ),
    (
        "takes a dead hand-off for a good one",
        |e| match e {
            Event::Answered(Handed::Dead(_)) => Event::Answered(Handed::Over),
            e => e,
        },
        "Prefill judged Good, should be Bad",
    ),
    (
        "asks the decode when the prefill had the last word",
        |e| match e {
            Event::Answered(Handed::Final) => Event::Answered(Handed::Over),
            e => e,
        },
        "decode is sent on a hand-off that is Ended, Final",
    ),
    (
        "does not wait for an answer that it should read",
        |e| match e {
            Event::Placed(c) => Event::Placed(Course { reads_prefill: false, ..c }),
            e => e,
        },
        "does not fit and still led to",
    ),
    (
        "takes the end of a prefill for its answer",
        |e| match e {
            Event::Ended(Leg::Prefill) => Event::Answered(Handed::Over),
            e => e,
        },
        "does not fit and still led to",
    ),
    (
        "takes KV that was handed over for none",
        |e| match e {
            Event::Answered(Handed::Over) => Event::Answered(Handed::Nothing),
            e => e,
        },
        "the hand-off is Nothing, should be Out",
    ),
    (
        "releases KV that the decode may have got",
        |e| match e {
            Event::Failed(f) => Event::Failed(Failure { delivered: false, ..f }),
            e => e,
        },
        "KV released that is Told",
    ),
    (
        "does not wait for room",
        |e| match e {
            Event::Full(fault) => Event::Unplaced(fault),
            e => e,
        },
        "it gave up on Full",
    ),
    (
        "takes a deadline for a client that left",
        |e| if matches!(e, Event::Deadline) { Event::ClientGone } else { e },
        "does not fit and still led to",
    ),
    (
        "sends both legs of a plan in turn at once",
        |e| match e {
            Event::Placed(c) if c.order == Order::InTurn => {
                Event::Placed(Course { order: Order::Together, ..c })
            }
            e => e,
        },
        "decode is sent on a hand-off that is Sent",
    ),
];

#[test]
fn the_walk_finds_every_bug() {
    let mut missed = String::new();
    let says = LEASES.into_iter().chain(VERDICTS).chain(ENDS).chain(LEGS).chain(HAND_OFFS).chain(RETRIES);
    let says = says.map(|(name, bend, why)| (name, Bend::Says(bend), why));
    let all: Vec<Mutant> = says.chain(EARS.map(|(name, bend, why)| (name, Bend::Hears(bend), why))).collect();
    for (name, bend, why) in all {
        match walk(COURSES, 2, bend) {
            Ok(_) => missed += &format!("an exchange that {name} passed\n"),
            Err(broken) if broken.why.contains(why) => {}
            Err(broken) => missed += &format!("an exchange that {name}, not for {why:?} but: {broken}"),
        }
    }
    assert!(missed.is_empty(), "{missed}");
}
