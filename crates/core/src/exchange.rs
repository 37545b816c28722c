//! The life of one client request: what happens next?
//!
//! A state machine without I/O. The driver feeds what happened as [`Event`]s and carries out the
//! [`Action`]s it gets back, in their order. It knows legs, their order and the plan's abort rules; it
//! does not know engines, bodies, sockets or clocks. HTTP and gRPC legs run the same machine.
//!
//! Invariants, proved by the walk in `tests/stories`:
//! - exactly one `Settle`, always last;
//! - no leg outlives its exchange except one that was detached, and the driver bounds that;
//! - each lease is given back exactly once (`Free`, or along with a detached leg);
//! - a decode leg is never sent on a hand-off that is dead or not there yet;
//! - the client is answered at most once, and nothing is retried once it was;
//! - nothing is held while the request waits for room.

mod course;
mod event;
mod ledger;

pub use course::{Abort, Course, Leg, Order, Start};
pub use event::{Action, Actions, Event, Failure, Handed, Outcome};
pub use ledger::{Fate, Ledger};

use course::NOWHERE;

use crate::abort::{Class, Why};
use crate::breaker::Verdict;
use crate::dice::Dice;
use crate::fault::{Fault, LegName};
use crate::retry::{Decision, RetryRule};
use crate::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    New,
    Placing,
    Queued,
    Running,
    Waiting,
    Relaying,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LegState {
    Idle,
    Sent,
    Head,
    Over,
}

/// One client request's life, from admission to settlement.
#[derive(Clone, Debug)]
pub struct Exchange {
    retry: RetryRule,
    timeout: Duration,
    phase: Phase,
    course: Course,
    attempt: u32,
    prefill: LegState,
    decode: LegState,
    leased: [bool; 2],
    /// KV waits at the prefill for a decode. Between attempts: for another decode.
    handed: bool,
    /// The attempt has begun anew, which it may do once.
    renewed: bool,
    /// What became of the attempt's hand-off.
    ledger: Ledger,
    /// What the attempt before failed with: told if no worker is left to try.
    last: Option<Fault>,
    /// What the client gets if no window opens.
    shed: Option<Fault>,
}

impl Exchange {
    pub fn new(retry: RetryRule, timeout: Duration) -> Exchange {
        Exchange {
            retry,
            timeout,
            phase: Phase::New,
            course: NOWHERE,
            attempt: 0,
            prefill: LegState::Idle,
            decode: LegState::Idle,
            leased: [false; 2],
            handed: false,
            renewed: false,
            ledger: Ledger::Nothing,
            last: None,
            shed: None,
        }
    }

    /// The attempt under way, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What the attempt before failed with.
    pub fn last_fault(&self) -> Option<&Fault> {
        self.last.as_ref()
    }

    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// The hand-off of the attempt under way, or of the last one. What is [`Ledger::Out`] ends before another
    /// one is issued, and before `Settle`.
    pub fn handoff(&self) -> Ledger {
        self.ledger
    }

    /// The client's answer has begun.
    pub fn has_started(&self) -> bool {
        self.phase == Phase::Relaying
    }

    /// Next actions. An event that does not fit the state changes nothing.
    pub fn on(&mut self, event: Event, dice: &mut Dice) -> Actions {
        let mut todo = Actions::new();
        match (self.phase, event) {
            (Phase::New, Event::Begin) => self.place(&mut todo),
            (Phase::New, Event::ClientGone) => self.settle(Outcome::ClientGone, &mut todo),
            (Phase::Waiting, Event::Resume) => self.place(&mut todo),
            (Phase::Waiting, Event::Spent) => self.spent(&mut todo),
            (Phase::Placing, Event::Placed(_)) if self.handed => self.send_again(&mut todo),
            (Phase::Placing, Event::Unplaced(_) | Event::Full(_)) if self.handed => {
                // Nobody was asked, so the attempt is not used up: it goes on with a fresh pair.
                self.release(&mut todo);
                todo.push(Action::Place);
            }
            (Phase::Placing, Event::Placed(course)) => self.send(course, &mut todo),
            (Phase::Placing, Event::Unplaced(fault)) => self.unplaced(fault, &mut todo),
            (Phase::Placing, Event::Full(fault)) => {
                self.phase = Phase::Queued;
                self.shed = Some(fault);
                todo.push(Action::Queue);
            }
            (Phase::Queued, Event::Room) => {
                // The attempt that found no room goes on.
                (self.phase, self.shed) = (Phase::Placing, None);
                todo.push(Action::Place);
            }
            (Phase::Queued, Event::QueueOver) => {
                if let Some(fault) = self.shed.take() {
                    self.unplaced(fault, &mut todo);
                }
            }
            (Phase::Running, Event::Head(leg)) => self.head(leg, &mut todo),
            (Phase::Running, Event::Answered(handed)) => self.answered(handed, dice, &mut todo),
            (Phase::Running, Event::Ended(leg)) => self.ended(leg, &mut todo),
            (Phase::Running, Event::Failed(failure)) => self.failed(failure, dice, &mut todo),
            (Phase::Running, Event::Stale(failure)) => self.stale(failure, dice, &mut todo),
            (Phase::Relaying, Event::Ended(Leg::Decode)) => {
                self.close(Leg::Decode, Verdict::Good, &mut todo);
                self.settle(Outcome::Served, &mut todo);
            }
            (Phase::Relaying, Event::Failed(Failure { leg: Leg::Decode, fault, .. })) => {
                self.close(Leg::Decode, fault.verdict(self.course.name(Leg::Decode)), &mut todo);
                todo.push(Action::Cut(fault));
                self.settle(Outcome::Cut, &mut todo);
            }
            (Phase::New | Phase::Done, _) => {}
            (_, Event::Silent(fault)) if self.in_flight(Leg::Decode) => {
                // Of a prefill that has said nothing either, it may be the decode that is kept waiting.
                let heard = self.prefill != LegState::Sent;
                let verdict =
                    if heard { fault.verdict(self.course.name(Leg::Decode)) } else { Verdict::Mute };
                if let Some(silence) = fault.silence() {
                    self.ask_abort(Why::Silence(silence), &mut todo);
                }
                self.end(Some(fault), Some((Leg::Decode, verdict)), &mut todo);
            }
            (_, Event::ClientGone) => self.end(None, None, &mut todo),
            (_, Event::Deadline) => {
                let fault = Fault::Deadline { leg: self.waited_for(), seconds: self.timeout.as_secs() };
                let blamed = self.silent().map(|leg| (leg, Verdict::Bad));
                self.end(Some(fault), blamed, &mut todo);
            }
            (_, Event::Drain) => self.end(Some(Fault::Draining), None, &mut todo),
            _ => {}
        }
        todo
    }

    fn place(&mut self, todo: &mut Actions) {
        self.attempt += 1;
        self.renewed = false;
        self.phase = Phase::Placing;
        todo.push(if self.handed { Action::Replace } else { Action::Place });
    }

    /// There is to be no other attempt: the client gets what the last one failed with.
    fn spent(&mut self, todo: &mut Actions) {
        self.drop_legs(todo);
        if let Some(fault) = self.last.take() {
            self.fail(fault, todo);
        }
    }

    /// Nobody takes the request. What an earlier attempt failed with says more than that.
    fn unplaced(&mut self, fault: Fault, todo: &mut Actions) {
        let told = self.last.take().unwrap_or(fault);
        self.fail(told, todo);
    }

    fn send(&mut self, course: Course, todo: &mut Actions) {
        self.phase = Phase::Running;
        self.course = course;
        self.handed = false;
        self.ledger = Ledger::sent(course.order);
        (self.prefill, self.decode) = (LegState::Idle, LegState::Idle);
        self.leased = [course.order != Order::Single, true];
        if course.order != Order::Single {
            self.prefill = LegState::Sent;
            todo.push(Action::Send(Leg::Prefill));
        }
        if course.order != Order::InTurn {
            self.decode = LegState::Sent;
            todo.push(Action::Send(Leg::Decode));
        }
    }

    /// Another decode is told of the KV that the last one never heard of.
    fn send_again(&mut self, todo: &mut Actions) {
        self.phase = Phase::Running;
        self.leased[Leg::Decode as usize] = true;
        self.decode = LegState::Sent;
        todo.push(Action::Send(Leg::Decode));
    }

    fn head(&mut self, leg: Leg, todo: &mut Actions) {
        match leg {
            Leg::Prefill if self.prefill == LegState::Sent => self.prefill = LegState::Head,
            Leg::Decode if self.decode == LegState::Sent => {
                self.decode = LegState::Head;
                self.handed = false;
                if self.course.order == Order::InTurn {
                    self.ledger.ends(Fate::Consumed);
                }
            }
            _ => return,
        }
        self.try_start(todo);
    }

    fn answered(&mut self, handed: Handed, dice: &mut Dice, todo: &mut Actions) {
        if !self.course.awaits_answer() || !self.in_flight(Leg::Prefill) {
            return;
        }
        if let Handed::Dead(fault) = handed {
            return self.failed(Failure { leg: Leg::Prefill, fault, delivered: true }, dice, todo);
        }
        self.close(Leg::Prefill, Verdict::Good, todo);
        match self.course.order {
            _ if handed == Handed::Final => {
                self.drop_legs(todo);
                todo.push(Action::Tell);
                self.settle(Outcome::Served, todo);
            }
            Order::InTurn => {
                if handed == Handed::Over {
                    (self.ledger, self.handed) = (Ledger::Out, self.course.release);
                }
                self.decode = LegState::Sent;
                todo.push(Action::Send(Leg::Decode));
            }
            _ => self.try_start(todo),
        }
    }

    fn ended(&mut self, leg: Leg, todo: &mut Actions) {
        // A prefill whose answer counts ends with `Answered`, which says what it was worth.
        let counts = leg == Leg::Prefill && self.course.awaits_answer();
        if leg == Leg::Prefill && !counts && self.in_flight(leg) {
            self.close(Leg::Prefill, Verdict::Good, todo);
            self.try_start(todo);
        }
    }

    fn try_start(&mut self, todo: &mut Actions) {
        let prefill_ready = match (self.course.order, self.course.start) {
            (Order::Together, _) if self.course.reads_prefill => self.prefill == LegState::Over,
            (Order::Together, Start::BothHeads) => matches!(self.prefill, LegState::Head | LegState::Over),
            (Order::Together, Start::PrefillEnd) => self.prefill == LegState::Over,
            _ => true,
        };
        if self.decode != LegState::Head || !prefill_ready {
            return;
        }
        self.phase = Phase::Relaying;
        self.ledger.ends(Fate::Consumed);
        todo.push(Action::Start);
        if self.in_flight(Leg::Prefill) {
            // Closing it would abort the KV transfer that the decode is living on.
            self.prefill = LegState::Over;
            self.leased[Leg::Prefill as usize] = false;
            todo.push(Action::Detach(Leg::Prefill));
        }
    }

    /// The leg's connection had grown old: nobody's fault. Whether its worker has read the request is not known, so the
    /// same bytes are not sent again, whatever they name: the attempt begins anew, with fresh ids.
    fn stale(&mut self, failure: Failure, dice: &mut Dice, todo: &mut Actions) {
        let waits = [self.prefill, self.decode][failure.leg as usize] == LegState::Sent;
        if !waits || std::mem::replace(&mut self.renewed, true) {
            return self.failed(failure, dice, todo);
        }
        self.lose(failure.leg, &failure.fault, Verdict::Mute, todo);
        // KV that a decode may have been told of is left alone, see `failed`.
        self.handed = false;
        self.drop_legs(todo);
        self.phase = Phase::Placing;
        todo.push(Action::Renew);
    }

    /// The leg is over, and not as it should be. A decode that waits for what its prefill does not send is given up.
    fn lose(&mut self, leg: Leg, fault: &Fault, verdict: Verdict, todo: &mut Actions) {
        self.close(leg, verdict, todo);
        if leg == Leg::Prefill
            && let Some(class) = Class::of(fault)
        {
            let answering = self.decode == LegState::Head;
            self.ask_abort(Why::Prefill { class, answering }, todo);
        }
    }

    fn failed(&mut self, failure: Failure, dice: &mut Dice, todo: &mut Actions) {
        let Failure { leg, fault, delivered } = failure;
        if !self.in_flight(leg) {
            return;
        }
        self.lose(leg, &fault, fault.verdict(self.course.name(leg)), todo);
        // A decode that surely never saw the hand-off did not consume it either. One that may have seen it
        // is left alone: consuming twice reads blocks that may hold another prompt by now.
        if leg == Leg::Decode && self.course.order == Order::InTurn {
            self.handed &= !delivered;
            match (delivered, self.handed) {
                (true, _) => self.ledger.ends(Fate::Unknown),
                (false, false) => self.ledger.ends(Fate::Expired),
                (false, true) => {}
            }
        }
        match self.retry.decide(&fault, self.attempt, false, dice) {
            Decision::Again { wait } => {
                // KV that nobody was told of is good for another decode: the prompt is not computed twice.
                if !self.handed {
                    self.drop_legs(todo);
                }
                self.last = Some(fault);
                self.phase = Phase::Waiting;
                todo.push(Action::Wait(wait));
            }
            Decision::GiveUp => {
                self.drop_legs(todo);
                self.fail(fault, todo);
            }
        }
    }

    /// Ends the exchange from outside: the client left (no fault), its time is over, the gateway stops. Never
    /// tried again. The leg that is to blame, if one is, is closed first.
    fn end(&mut self, fault: Option<Fault>, blamed: Option<(Leg, Verdict)>, todo: &mut Actions) {
        let started = self.phase == Phase::Relaying;
        if let Some((leg, verdict)) = blamed {
            todo.push(Action::Cancel(leg));
            self.close(leg, verdict, todo);
            // A decode that was sent may have got the hand-off.
            self.handed = false;
        }
        if fault.is_none() && self.course.release && self.in_flight(Leg::Prefill) {
            // In its last step the engine does not stop any more, and holds KV that only its answer tells how to release.
            self.prefill = LegState::Over;
            self.leased[Leg::Prefill as usize] = false;
            todo.push(Action::Linger);
        }
        self.drop_legs(todo);
        match fault {
            None => self.settle(Outcome::ClientGone, todo),
            Some(fault) if started => {
                todo.push(Action::Cut(fault));
                self.settle(Outcome::Cut, todo);
            }
            Some(fault) => self.fail(fault, todo),
        }
    }

    fn ask_abort(&self, why: Why, todo: &mut Actions) {
        if self.course.by_name && self.in_flight(Leg::Decode) {
            todo.push(Action::AskAbort(why));
        }
    }

    /// Ends every leg in flight by the plan's abort rule, releases KV that nobody will fetch.
    fn drop_legs(&mut self, todo: &mut Actions) {
        if self.in_flight(Leg::Decode) {
            todo.push(Action::Cancel(Leg::Decode));
            self.close(Leg::Decode, Verdict::Mute, todo);
            self.handed = false;
        }
        if self.in_flight(Leg::Prefill) {
            match self.course.prefill_abort {
                Abort::Cancel => {
                    todo.push(Action::Cancel(Leg::Prefill));
                    self.close(Leg::Prefill, Verdict::Mute, todo);
                }
                Abort::Detach => {
                    self.prefill = LegState::Over;
                    self.leased[Leg::Prefill as usize] = false;
                    todo.push(Action::Detach(Leg::Prefill));
                }
            }
        }
        if self.handed {
            self.release(todo);
        }
        self.ledger.ends(Ledger::left(self.course.order));
        // A leg that was placed and never sent still holds its worker's lease, and perhaps its probe.
        for leg in [Leg::Prefill, Leg::Decode] {
            if self.leased[leg as usize] {
                self.close(leg, Verdict::Mute, todo);
            }
        }
    }

    /// Nobody will be told of the KV any more: a throw-away decode fetches it.
    fn release(&mut self, todo: &mut Actions) {
        self.handed = false;
        self.ledger.ends(Fate::Released);
        todo.push(Action::Release);
    }

    /// The leg is over: judge it and give its lease back.
    fn close(&mut self, leg: Leg, verdict: Verdict, todo: &mut Actions) {
        match leg {
            Leg::Prefill => self.prefill = LegState::Over,
            Leg::Decode => self.decode = LegState::Over,
        }
        todo.push(Action::Judge(leg, verdict));
        self.free(leg, todo);
    }

    fn free(&mut self, leg: Leg, todo: &mut Actions) {
        if std::mem::take(&mut self.leased[leg as usize]) {
            todo.push(Action::Free(leg));
        }
    }

    fn fail(&mut self, fault: Fault, todo: &mut Actions) {
        todo.push(Action::Fail(fault));
        self.settle(Outcome::Failed, todo);
    }

    fn settle(&mut self, outcome: Outcome, todo: &mut Actions) {
        self.phase = Phase::Done;
        todo.push(Action::Settle(outcome));
    }

    fn in_flight(&self, leg: Leg) -> bool {
        let state = match leg {
            Leg::Prefill => self.prefill,
            Leg::Decode => self.decode,
        };
        matches!(state, LegState::Sent | LegState::Head)
    }

    /// The one leg that has given no sign of life. A head says that the worker lives: a long answer is not
    /// its fault. Of two silent legs neither is blamed: each may be waiting for the other.
    fn silent(&self) -> Option<Leg> {
        match (self.prefill, self.decode) {
            (LegState::Sent, LegState::Sent) => None,
            (LegState::Sent, _) => Some(Leg::Prefill),
            (_, LegState::Sent) => Some(Leg::Decode),
            _ => None,
        }
    }

    /// Whose answer is missing? A prefill without a head holds everything up.
    fn waited_for(&self) -> LegName {
        if self.prefill == LegState::Sent { LegName::Prefill } else { self.course.name(Leg::Decode) }
    }
}

#[cfg(test)]
mod tests;
