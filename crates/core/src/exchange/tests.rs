//! The usual courses, step by step.

use super::*;

pub(crate) const IN_TURN: Course = Course {
    order: Order::InTurn,
    start: Start::DecodeHead,
    prefill_abort: Abort::Cancel,
    release: true,
    reads_prefill: false,
    by_name: false,
    answers: LegName::Decode,
};
pub(crate) const TOGETHER: Course = Course {
    order: Order::Together,
    start: Start::BothHeads,
    prefill_abort: Abort::Cancel,
    release: false,
    reads_prefill: false,
    by_name: false,
    answers: LegName::Decode,
};

fn run(course: Course, events: Vec<Event>) -> Vec<Vec<Action>> {
    let mut x = Exchange::new(
        RetryRule { attempts: 2, jitter: 0.0, ..RetryRule::default() },
        Duration::from_secs(30),
    );
    let mut d = Dice::new(1);
    let mut out = vec![x.on(Event::Begin, &mut d).to_vec(), x.on(Event::Placed(course), &mut d).to_vec()];
    out.extend(events.into_iter().map(|e| x.on(e, &mut d).to_vec()));
    out
}

#[test]
fn in_turn_runs_to_its_end() {
    use Action::{Free, Judge, Place, Send, Settle, Start};
    let got = run(
        IN_TURN,
        vec![Event::Answered(Handed::Over), Event::Head(Leg::Decode), Event::Ended(Leg::Decode)],
    );
    assert_eq!(
        got,
        [
            vec![Place],
            vec![Send(Leg::Prefill)],
            vec![Judge(Leg::Prefill, Verdict::Good), Free(Leg::Prefill), Send(Leg::Decode)],
            vec![Start],
            vec![Judge(Leg::Decode, Verdict::Good), Free(Leg::Decode), Settle(Outcome::Served)],
        ]
    );
}

#[test]
fn together_waits_for_both_heads_and_detaches_the_prefill() {
    let got = run(TOGETHER, vec![Event::Head(Leg::Decode), Event::Head(Leg::Prefill), Event::ClientGone]);
    assert_eq!(got[2], []);
    assert_eq!(got[3], [Action::Start, Action::Detach(Leg::Prefill)]);
    assert_eq!(got[4][0], Action::Cancel(Leg::Decode));
    assert!(!got[4].contains(&Action::Free(Leg::Prefill)), "its lease went along with the detached leg");
}

#[test]
fn a_decode_that_could_not_be_reached_leaves_the_kv_to_another() {
    let fault = Fault::Unreachable { leg: LegName::Decode, cause: "refused".into() };
    let fail = |delivered| Event::Failed(Failure { leg: Leg::Decode, fault: fault.clone(), delivered });
    let got = run(IN_TURN, vec![Event::Answered(Handed::Over), fail(false)]);
    assert!(!got[3].contains(&Action::Release) && matches!(got[3].last(), Some(Action::Wait(_))));
    let got = run(
        IN_TURN,
        vec![Event::Answered(Handed::Over), fail(false), Event::Resume, Event::Placed(IN_TURN), fail(false)],
    );
    assert_eq!((&got[4][..], &got[5][..]), (&[Action::Replace][..], &[Action::Send(Leg::Decode)][..]));
    assert!(got[6].contains(&Action::Release) && matches!(got[6].last(), Some(Action::Settle(_))));
    let got = run(IN_TURN, vec![Event::Answered(Handed::Over), fail(true)]);
    assert!(!got[3].contains(&Action::Release));
}

#[test]
fn when_no_worker_is_left_the_first_fault_is_told() {
    let fault = Fault::Unreachable { leg: LegName::Prefill, cause: "refused".into() };
    let none = Fault::NoWorker { leg: LegName::Prefill, registered: true };
    let got = run(
        IN_TURN,
        vec![
            Event::Failed(Failure { leg: Leg::Prefill, fault: fault.clone(), delivered: false }),
            Event::Resume,
            Event::Unplaced(none),
        ],
    );
    assert_eq!(got[4], [Action::Fail(fault), Action::Settle(Outcome::Failed)]);
}

#[test]
fn a_deadline_blames_the_leg_that_is_waited_for() {
    let got = run(IN_TURN, vec![Event::Deadline]);
    assert!(got[2].contains(&Action::Judge(Leg::Prefill, Verdict::Bad)));
    assert!(matches!(got[2].last(), Some(Action::Settle(Outcome::Failed))));
}
