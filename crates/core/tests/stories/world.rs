//! A model of everything around an exchange: the driver, both legs, the leases, the KV, the client.
//!
//! It knows which events can happen when, carries the exchange's actions out on paper, and refuses any
//! action that a real driver could not or must not carry out. It knows nothing of how the exchange decides:
//! what it checks is stated in terms of the world.

use baton_core::breaker::Verdict;
use baton_core::dice::Dice;
use baton_core::exchange::{
    Abort, Action, Actions, Course, Event, Exchange, Failure, Handed, Leg, Order, Outcome, Start,
};
use baton_core::fault::{Fault, LegName, Refusal};
use baton_core::retry::RetryRule;
use baton_core::time::Duration;

pub const LEGS: [Leg; 2] = [Leg::Prefill, Leg::Decode];

/// The exchange as it is, or with a bug for the walk to find.
#[derive(Clone, Copy)]
pub enum Bend {
    Straight,
    /// It takes an event for another one.
    Hears(fn(Event) -> Event),
    /// It asks for something else than it should.
    Says(fn(&Event, Actions) -> Actions),
}

/// The exchange under test.
#[derive(Clone)]
pub struct Subject {
    pub exchange: Exchange,
    bend: Bend,
}

impl Subject {
    pub fn new(rule: RetryRule, bend: Bend) -> Subject {
        Subject { exchange: Exchange::new(rule, Duration::from_secs(30)), bend }
    }

    pub fn on(&mut self, event: &Event) -> Actions {
        // Fresh dice each time: equal states stay equal. The rules used here have no jitter.
        let dice = &mut Dice::new(1);
        match self.bend {
            Bend::Straight => self.exchange.on(event.clone(), dice),
            Bend::Hears(mistake) => self.exchange.on(mistake(event.clone()), dice),
            Bend::Says(mistake) => mistake(event, self.exchange.on(event.clone(), dice)),
        }
    }
}

/// Where a leg of the attempt under way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The plan has no such leg.
    Absent,
    Placed,
    Sent,
    Head,
    /// Its body ended as it should.
    Ended,
    /// It failed, or was cancelled.
    Dropped,
    /// It goes on in the background with its lease.
    Detached,
}

/// What is known of the KV that the prefill holds for the decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kv {
    None,
    /// The prefill holds it, and the decode surely does not know of it.
    Held,
    /// The decode may know of it: fetching or dropping it is between the engines now.
    Told,
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Begin,
    Placement,
    /// Another decode for the KV that is held.
    Partner,
    /// It stands in line, and its wait may end.
    Room,
    Resume,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Started,
    /// The client has the prefill's answer.
    Given,
    Failed,
    Cut,
}

/// What a prefill whose answer counts said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    None,
    Alive,
    /// That was all: there is nothing left for a decode to do.
    Final,
    Dead,
}

/// All that a driver would hold for one exchange.
#[derive(Clone, Debug)]
pub struct World {
    courses: &'static [Course],
    attempts_allowed: u32,
    course: Option<Course>,
    attempts: u32,
    /// How often the driver may still find it room to try for: its wait has an end.
    rooms: u32,
    at: [At; 2],
    leased: [bool; 2],
    judged: [bool; 2],
    kv: Kv,
    word: Word,
    owed: Owed,
    told: Told,
    /// What the attempt before failed with.
    last: Option<Fault>,
    settled: Option<Outcome>,
}

const GIVEN_AWAY: &str = "KV was given away that another decode could have had";

type Checked = Result<(), String>;

fn must(held: bool, what: impl FnOnce() -> String) -> Checked {
    if held { Ok(()) } else { Err(what()) }
}

impl World {
    /// `courses`: what a placement may come to, at each attempt.
    pub fn new(courses: &'static [Course], attempts_allowed: u32) -> World {
        World {
            courses,
            attempts_allowed,
            course: None,
            attempts: 0,
            rooms: 2,
            at: [At::Absent; 2],
            leased: [false; 2],
            judged: [false; 2],
            kv: Kv::None,
            word: Word::None,
            owed: Owed::Begin,
            told: Told::Nothing,
            last: None,
            settled: None,
        }
    }

    /// So often may a request that waits for room try in vain.
    pub fn with_rooms(self, rooms: u32) -> World {
        World { rooms, ..self }
    }

    pub fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// What separates this world from another, as far as the future is concerned.
    pub fn key(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            self.course,
            (self.attempts, self.rooms),
            self.at,
            self.leased,
            self.judged,
            (self.kv, self.word),
            self.owed,
            (self.told, &self.last),
            self.settled
        )
    }

    fn at(&self, leg: Leg) -> At {
        self.at[leg as usize]
    }

    fn in_flight(&self, leg: Leg) -> bool {
        matches!(self.at(leg), At::Sent | At::Head)
    }

    pub fn is(&self, order: Order) -> bool {
        self.course.is_some_and(|c| c.order == order)
    }

    /// The prefill's answer is read, and ends the leg.
    fn reads_prefill(&self) -> bool {
        self.is(Order::InTurn) || (self.is(Order::Together) && self.course.is_some_and(|c| c.reads_prefill))
    }

    /// Events that come by themselves: if none is left, the exchange must have settled.
    pub fn natural(&self) -> Vec<Event> {
        let mut events = match self.owed {
            Owed::Begin => vec![Event::Begin],
            Owed::Resume => vec![Event::Resume],
            Owed::Placement => {
                let none = Fault::NoWorker { leg: LegName::Prefill, registered: true };
                let mut all: Vec<Event> = self.courses.iter().copied().map(Event::Placed).collect();
                all.extend([Event::Unplaced(none), Event::Full(SHED)]);
                all
            }
            Owed::Partner => {
                let none = Fault::NoWorker { leg: LegName::Decode, registered: true };
                let mut all: Vec<Event> = self.course.map(Event::Placed).into_iter().collect();
                all.extend([Event::Unplaced(none), Event::Full(SHED)]);
                all
            }
            Owed::Room if self.rooms > 0 => vec![Event::Room, Event::QueueOver],
            Owed::Room => vec![Event::QueueOver],
            Owed::Nothing => vec![],
        };
        for leg in LEGS {
            events.extend(self.of_leg(leg));
        }
        events
    }

    fn of_leg(&self, leg: Leg) -> Vec<Event> {
        let read = leg == Leg::Prefill && self.reads_prefill();
        let name = self.course.map_or(LegName::Decode, |c| c.name(leg));
        let broken = Fault::Broken { leg: name, cause: "reset".into() };
        let mut events = vec![];
        match self.at(leg) {
            At::Sent => {
                events.push(Event::Head(leg));
                events.extend(refusals(name).map(|f| failed(leg, f, true)));
                let lost = Fault::Unreachable { leg: name, cause: "refused".into() };
                events.extend([true, false].map(|delivered| failed(leg, lost.clone(), delivered)));
            }
            At::Head if leg == Leg::Prefill && !read => {
                events.extend([Event::Ended(leg), failed(leg, broken, true)]);
            }
            At::Head if leg == Leg::Decode && self.told == Told::Started => {
                events.extend([Event::Ended(leg), failed(leg, broken, true)]);
            }
            At::Head => events.push(failed(leg, broken, true)),
            _ => {}
        }
        // Whether a driver reports the head of a prefill that it reads is its own affair.
        if read && self.in_flight(leg) {
            let dead = Fault::Broken { leg: LegName::Prefill, cause: "no hand-off in the answer".into() };
            let all = [Handed::Over, Handed::Nothing, Handed::Final, Handed::Dead(dead)];
            events.extend(all.map(Event::Answered));
        }
        events
    }

    /// Events from outside, possible until the end.
    pub fn exogenous(&self) -> Vec<Event> {
        if self.settled.is_some() || self.owed == Owed::Begin {
            return vec![];
        }
        vec![Event::ClientGone, Event::Deadline, Event::Drain]
    }

    /// Can this happen now?
    fn fits(&self, event: &Event) -> bool {
        self.settled.is_none()
            && match event {
                Event::Begin => self.owed == Owed::Begin,
                Event::Resume => self.owed == Owed::Resume,
                Event::Placed(_) | Event::Unplaced(_) | Event::Full(_) => {
                    matches!(self.owed, Owed::Placement | Owed::Partner)
                }
                Event::Room | Event::QueueOver => self.owed == Owed::Room,
                Event::Head(leg) => self.at(*leg) == At::Sent,
                Event::Answered(_) => self.reads_prefill() && self.in_flight(Leg::Prefill),
                Event::Ended(Leg::Prefill) => !self.reads_prefill() && self.in_flight(Leg::Prefill),
                Event::Ended(Leg::Decode) => self.told == Told::Started && self.in_flight(Leg::Decode),
                Event::Failed(f) => self.in_flight(f.leg),
                Event::ClientGone | Event::Deadline | Event::Drain => self.owed != Owed::Begin,
            }
    }

    /// Events that cannot happen now; if a driver reports one all the same, nothing may come of it.
    pub fn stray(&self) -> Vec<Event> {
        let none = Fault::NoWorker { leg: LegName::Decode, registered: true };
        let lost = Fault::Unreachable { leg: LegName::Decode, cause: "refused".into() };
        let dead = Handed::Dead(Fault::Broken { leg: LegName::Prefill, cause: "reset".into() });
        let mut all =
            vec![Event::Begin, Event::Resume, Event::Placed(self.courses[0]), Event::Unplaced(none)];
        all.extend([Event::ClientGone, Event::Deadline, Event::Drain]);
        all.extend([Event::Full(SHED), Event::Room, Event::QueueOver]);
        all.extend([Handed::Over, Handed::Nothing, Handed::Final, dead].map(Event::Answered));
        for leg in LEGS {
            all.extend([Event::Head(leg), Event::Ended(leg)]);
            all.extend([true, false].map(|delivered| failed(leg, lost.clone(), delivered)));
        }
        all.retain(|event| !self.fits(event));
        all
    }

    /// The event happens, and the exchange's answer to it is carried out.
    pub fn step(&mut self, subject: &mut Subject, event: &Event) -> Checked {
        let was = self.clone();
        self.happen(event);
        let actions = subject.on(event);
        for (i, action) in actions.iter().enumerate() {
            must(self.settled.is_none(), || format!("{action:?} comes after Settle"))?;
            self.carry_out(action, event, &was)
                .map_err(|why| format!("action {} of {actions:?}: {why}", i + 1))?;
        }
        self.rest(event).map_err(|why| format!("after {actions:?}: {why}"))?;
        let seen = (subject.exchange.is_done(), subject.exchange.attempt());
        must(seen == (self.settled.is_some(), self.attempts), || {
            format!("it says (done, attempt) {seen:?}, the world says attempt {}", self.attempts)
        })?;
        must(subject.exchange.has_started() == (self.told == Told::Started && self.settled.is_none()), || {
            "has_started does not agree with what the client got".to_owned()
        })
    }

    fn happen(&mut self, event: &Event) {
        if !self.fits(event) {
            return;
        }
        match event {
            Event::Begin | Event::Resume | Event::Unplaced(_) => self.owed = Owed::Nothing,
            Event::Full(_) | Event::QueueOver => self.owed = Owed::Nothing,
            Event::Room => {
                self.owed = Owed::Nothing;
                self.rooms -= 1;
            }
            Event::Placed(_) if self.owed == Owed::Partner => {
                self.owed = Owed::Nothing;
                (self.at[1], self.leased[1], self.judged[1]) = (At::Placed, true, false);
            }
            Event::Placed(course) => {
                self.owed = Owed::Nothing;
                self.course = Some(*course);
                let prefill = course.order != Order::Single;
                self.at = [if prefill { At::Placed } else { At::Absent }, At::Placed];
                self.leased = [prefill, true];
                self.judged = [!prefill, false];
                (self.kv, self.word) = (Kv::None, Word::None);
            }
            Event::Head(leg) => self.at[*leg as usize] = At::Head,
            Event::Ended(leg) => self.at[*leg as usize] = At::Ended,
            Event::Failed(f) => {
                self.at[f.leg as usize] = At::Dropped;
                if f.leg == Leg::Decode && !f.delivered && self.kv == Kv::Told {
                    self.kv = Kv::Held;
                }
            }
            Event::Answered(handed) => {
                (self.at[0], self.word) = match handed {
                    Handed::Over | Handed::Nothing => (At::Ended, Word::Alive),
                    Handed::Final => (At::Ended, Word::Final),
                    Handed::Dead(_) => (At::Dropped, Word::Dead),
                };
                if *handed == Handed::Over && self.course.is_some_and(|c| c.release) {
                    self.kv = Kv::Held;
                }
            }
            Event::ClientGone | Event::Deadline | Event::Drain => {}
        }
    }

    fn carry_out(&mut self, action: &Action, event: &Event, was: &World) -> Checked {
        match action {
            Action::Place => self.place(event, was),
            Action::Replace => {
                must(self.owed == Owed::Nothing, || "replaced while something else is awaited".to_owned())?;
                must(self.kv == Kv::Held, || format!("another decode for KV that is {:?}", self.kv))?;
                self.owed = Owed::Partner;
                self.begin_attempt()?;
                self.legs_back()
            }
            Action::Queue => {
                must(matches!(event, Event::Full(_)), || "it waits for room that nobody missed".to_owned())?;
                must(self.owed == Owed::Nothing, || "queued while something else is awaited".to_owned())?;
                self.owed = Owed::Room;
                self.all_back()
            }
            Action::Send(leg) => self.send(*leg),
            Action::Cancel(leg) => {
                must(self.in_flight(*leg), || format!("{leg:?} is not in flight"))?;
                let lived_on = *leg == Leg::Prefill && self.told == Told::Started;
                must(!lived_on, || "closing it aborts the transfer that the answer lives on".to_owned())?;
                self.at[*leg as usize] = At::Dropped;
                Ok(())
            }
            Action::Detach(leg) => self.detach(*leg),
            Action::Release => {
                must(self.kv == Kv::Held, || format!("KV released that is {:?}", self.kv))?;
                self.kv = Kv::Released;
                Ok(())
            }
            Action::Judge(leg, verdict) => self.judge(*leg, *verdict, event, was),
            Action::Free(leg) => {
                must(self.leased[*leg as usize], || format!("no lease of {leg:?} to give back"))?;
                must(!self.in_flight(*leg), || format!("{leg:?} is freed in flight"))?;
                self.leased[*leg as usize] = false;
                Ok(())
            }
            Action::Start => self.start(),
            Action::Tell => {
                must(self.told == Told::Nothing, || format!("told the client twice: {:?}", self.told))?;
                must(self.word == Word::Final, || format!("told an answer that is {:?}", self.word))?;
                self.told = Told::Given;
                Ok(())
            }
            Action::Fail(fault) => {
                self.names(fault, event)?;
                must(self.told == Told::Nothing, || format!("the client was told before: {:?}", self.told))?;
                self.told = Told::Failed;
                Ok(())
            }
            Action::Cut(fault) => {
                self.names(fault, event)?;
                must(self.told == Told::Started, || format!("cut an answer that is {:?}", self.told))?;
                self.told = Told::Cut;
                Ok(())
            }
            Action::Wait(wait) => {
                must(*wait <= RetryRule::default().max_backoff, || format!("waits {wait:?}"))?;
                must(self.told == Told::Nothing, || "a retry after the client was answered".to_owned())?;
                must(self.owed == Owed::Nothing, || "two waits at once".to_owned())?;
                self.owed = Owed::Resume;
                must(was.kv != Kv::Told || self.kv != Kv::Released, || GIVEN_AWAY.into())?;
                self.last = match event {
                    Event::Failed(f) => Some(f.fault.clone()),
                    Event::Answered(Handed::Dead(fault)) => Some(fault.clone()),
                    _ => return Err(format!("tries again after {event:?}")),
                };
                self.legs_back()
            }
            Action::Settle(outcome) => self.settle(*outcome, event),
        }
    }

    fn place(&mut self, event: &Event, was: &World) -> Checked {
        must(self.owed == Owed::Nothing, || "placed while something else is awaited".to_owned())?;
        must(self.told == Told::Nothing, || "placed after the client was answered".to_owned())?;
        must(!matches!(event, Event::Resume) || was.kv != Kv::Held || self.kv == Kv::Held, || {
            GIVEN_AWAY.into()
        })?;
        // Having waited for room or looked for another decode in vain is no failure: the attempt goes on.
        if !matches!(event, Event::Room) && was.owed != Owed::Partner {
            self.begin_attempt()?;
        }
        self.owed = Owed::Placement;
        self.all_back()
    }

    fn begin_attempt(&mut self) -> Checked {
        self.attempts += 1;
        must(self.attempts <= self.attempts_allowed, || format!("attempt {} begins", self.attempts))
    }

    fn send(&mut self, leg: Leg) -> Checked {
        must(self.at(leg) == At::Placed, || format!("{leg:?} is sent while {:?}", self.at(leg)))?;
        must(self.leased[leg as usize], || format!("{leg:?} is sent without a lease"))?;
        must(self.told == Told::Nothing, || "sent after the client was answered".to_owned())?;
        if leg == Leg::Decode && self.is(Order::InTurn) {
            must(self.at[0] == At::Ended && self.word == Word::Alive, || {
                format!("decode is sent on a hand-off that is {:?}, {:?}", self.at[0], self.word)
            })?;
        }
        if leg == Leg::Decode && self.kv == Kv::Held {
            self.kv = Kv::Told;
        }
        self.at[leg as usize] = At::Sent;
        Ok(())
    }

    fn detach(&mut self, leg: Leg) -> Checked {
        must(leg == Leg::Prefill && self.in_flight(leg), || format!("{leg:?} detached, not in flight"))?;
        must(!self.judged[leg as usize], || format!("{leg:?} was judged before it was detached"))?;
        let by_plan = self.course.is_some_and(|c| c.prefill_abort == Abort::Detach);
        must(by_plan || self.told == Told::Started, || "the plan says to cancel it".to_owned())?;
        self.at[leg as usize] = At::Detached;
        must(std::mem::take(&mut self.leased[leg as usize]), || format!("{leg:?} has no lease to take along"))
    }

    fn judge(&mut self, leg: Leg, verdict: Verdict, event: &Event, was: &World) -> Checked {
        must(self.at(leg) != At::Absent, || format!("{leg:?} judged, the plan has none"))?;
        must(self.at(leg) != At::Detached, || format!("{leg:?} judged, the background will do that"))?;
        must(!self.in_flight(leg), || format!("{leg:?} judged in flight"))?;
        must(!std::mem::replace(&mut self.judged[leg as usize], true), || format!("{leg:?} judged twice"))?;
        let due = match event {
            Event::Failed(f) if f.leg == leg => f.fault.verdict(self.name(leg)),
            Event::Answered(Handed::Dead(fault)) if leg == Leg::Prefill => fault.verdict(self.name(leg)),
            Event::Answered(_) if leg == Leg::Prefill => Verdict::Good,
            Event::Ended(l) if *l == leg => Verdict::Good,
            Event::Deadline if was.only_silent(leg) => Verdict::Bad,
            _ => Verdict::Mute,
        };
        must(verdict == due, || format!("{leg:?} judged {verdict:?}, should be {due:?}"))
    }

    /// The client is told what went wrong: the event itself, or what the attempt before failed with if the
    /// event only says that nobody takes the request now.
    fn names(&self, fault: &Fault, event: &Event) -> Checked {
        let due = match event {
            Event::Failed(f) => &f.fault,
            Event::Answered(Handed::Dead(fault)) => fault,
            Event::Unplaced(fault) => self.last.as_ref().unwrap_or(fault),
            Event::QueueOver => self.last.as_ref().unwrap_or(&SHED),
            Event::Drain => &Fault::Draining,
            Event::Deadline => {
                return must(matches!(fault, Fault::Deadline { .. }), || {
                    format!("the time is up: {fault:?}")
                });
            }
            _ => return Err(format!("it gave up on {event:?}")),
        };
        must(fault == due, || format!("the client is told {fault:?}, not {due:?}"))
    }

    fn name(&self, leg: Leg) -> LegName {
        self.course.map_or(LegName::Decode, |c| c.name(leg))
    }

    /// It was sent and has not said a word, while the other leg is not in the same position.
    fn only_silent(&self, leg: Leg) -> bool {
        self.at(leg) == At::Sent && self.at.iter().filter(|at| **at == At::Sent).count() == 1
    }

    fn start(&mut self) -> Checked {
        must(self.told == Told::Nothing, || format!("started after {:?}", self.told))?;
        must(self.at[1] == At::Head, || format!("started while decode is {:?}", self.at[1]))?;
        let Some(course) = self.course else { return Err("started without a plan".to_owned()) };
        let prefill_ready = match (course.order, course.start) {
            (Order::Together, _) if course.reads_prefill => self.word == Word::Alive,
            (Order::Single | Order::InTurn, _) | (Order::Together, Start::DecodeHead) => true,
            (Order::Together, Start::BothHeads) => matches!(self.at[0], At::Head | At::Ended),
            (Order::Together, Start::PrefillEnd) => self.at[0] == At::Ended,
        };
        must(prefill_ready, || format!("started while prefill is {:?}", self.at[0]))?;
        self.told = Told::Started;
        Ok(())
    }

    fn settle(&mut self, outcome: Outcome, event: &Event) -> Checked {
        self.settled = Some(outcome);
        let due = match (self.told, event) {
            (Told::Started, Event::Ended(Leg::Decode)) => Outcome::Served,
            (Told::Given, Event::Answered(Handed::Final)) => Outcome::Served,
            (Told::Started | Told::Nothing, Event::ClientGone) => Outcome::ClientGone,
            (Told::Failed, _) => Outcome::Failed,
            (Told::Cut, _) => Outcome::Cut,
            (told, event) => return Err(format!("settled on {event:?} with the client {told:?}")),
        };
        must(outcome == due, || format!("settled as {outcome:?}, should be {due:?}"))?;
        // A wait or a placement that was asked for is dropped along with the exchange.
        self.owed = Owed::Nothing;
        self.all_back()
    }

    /// Before a fresh pair is chosen and at the end: no leg in flight, leases back, legs judged, no KV held.
    fn all_back(&self) -> Checked {
        self.legs_back()?;
        must(self.kv != Kv::Held, || "KV is held for nobody".to_owned())
    }

    /// Between attempts: the same, but KV may be held for another decode.
    fn legs_back(&self) -> Checked {
        for leg in LEGS {
            must(!self.in_flight(leg), || format!("{leg:?} is still in flight"))?;
            must(!self.leased[leg as usize], || format!("{leg:?} still has its lease"))?;
            let judged = self.judged[leg as usize] || matches!(self.at(leg), At::Absent | At::Detached);
            must(judged, || format!("{leg:?} was never judged: a probe would stick"))?;
        }
        Ok(())
    }

    /// After each event: an exchange that is not over waits for something that can come.
    fn rest(&self, event: &Event) -> Checked {
        let over = self.settled.is_some();
        let ends = matches!(event, Event::ClientGone | Event::Deadline | Event::Drain);
        must(over || !ends || self.owed == Owed::Begin, || "it went on".to_owned())?;
        must(self.word != Word::Final || self.told == Told::Given, || {
            "the prefill's answer was the last word and the client does not have it".to_owned()
        })?;
        must(over || !self.natural().is_empty(), || "nothing is awaited and it is not settled".to_owned())?;
        let another = matches!(self.owed, Owed::Resume | Owed::Partner);
        must(self.kv != Kv::Held || another, || {
            "the decode will never be told of the KV, and it was not released".into()
        })
    }
}

pub const SHED: Fault = Fault::Shed { leg: LegName::Decode, rooms: 1, widest: None };

fn failed(leg: Leg, fault: Fault, delivered: bool) -> Event {
    Event::Failed(Failure { leg, fault, delivered })
}

/// A client's mistake, push-back in both its forms, a failure.
fn refusals(leg: LegName) -> impl Iterator<Item = Fault> {
    [(400, None), (429, None), (503, Some("1")), (500, None)].into_iter().map(move |(status, later)| {
        let refusal = Refusal { status, retry_after: later.map(str::to_owned), ..Refusal::default() };
        Fault::Refused { leg, refusal }
    })
}
