//! A model of everything around an exchange: the driver, both legs, the leases, the KV, the client.
//!
//! It knows which events can happen when, carries the exchange's actions out on paper, and refuses any
//! action that a real driver could not or must not carry out. It knows nothing of how the exchange decides:
//! what it checks is stated in terms of the world.

use baton_core::breaker::Verdict;
use baton_core::dice::Dice;
use baton_core::exchange::{
    Abort, Action, Actions, Course, Event, Exchange, Failure, Fate, Handed, Ledger, Leg, Order, Outcome,
    Start,
};
use baton_core::fault::{Fault, LegName, Refusal};
use baton_core::retry::RetryRule;
use baton_core::time::Duration;
use baton_core::watchdog::Silence;

mod events;
mod rules;

pub use events::silence;

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
    /// Whether connections grow old.
    ages: bool,
    at: [At; 2],
    leased: [bool; 2],
    /// The attempt has begun anew.
    renewed: bool,
    judged: [bool; 2],
    kv: Kv,
    /// The hand-off in the book, whether or not its KV can be released.
    ledger: Ledger,
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
            ages: true,
            at: [At::Absent; 2],
            leased: [false; 2],
            renewed: false,
            judged: [false; 2],
            kv: Kv::None,
            ledger: Ledger::Nothing,
            word: Word::None,
            owed: Owed::Begin,
            told: Told::Nothing,
            last: None,
            settled: None,
        }
    }

    /// Where room never comes and no connection grows old: there are orders of events enough to walk.
    pub fn calm(self) -> World {
        World { rooms: 0, ages: false, ..self }
    }

    pub fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.settled
    }

    /// The client has had the decode's head, or the prefill's last word.
    pub fn has_begun(&self) -> bool {
        matches!(self.told, Told::Started | Told::Given | Told::Cut)
    }

    /// What separates this world from another, as far as the future is concerned.
    pub fn key(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            self.course,
            (self.attempts, self.rooms, self.renewed),
            self.at,
            self.leased,
            self.judged,
            (self.kv, self.ledger, self.word),
            self.owed,
            (self.told, &self.last),
            self.settled
        )
    }

    fn at(&self, leg: Leg) -> At {
        self.at[leg as usize]
    }

    /// Only a hand-off that is out can end.
    fn ends(&mut self, fate: Fate) {
        if self.ledger == Ledger::Out {
            self.ledger = Ledger::Over(fate);
        }
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

    /// The exchange's book of hand-offs is the world's.
    fn book(&mut self, told: Ledger) -> Checked {
        if self.is(Order::Together) && LEGS.iter().all(|leg| !self.in_flight(*leg)) {
            self.ends(Fate::Aborted);
        }
        must(told == self.ledger, || format!("the hand-off is {told:?}, should be {:?}", self.ledger))?;
        must(self.settled.is_none() || told != Ledger::Out, || "settled with its hand-off out".to_owned())
    }

    /// A decode that can be asked by name to drop the request is given up for what it did not do itself.
    fn sticks(&self, event: &Event) -> bool {
        let given_up = match event {
            Event::Failed(f) | Event::Stale(f) => f.leg == Leg::Prefill,
            Event::Answered(Handed::Dead(_)) | Event::Silent(_) => true,
            _ => false,
        };
        given_up && self.fits(event) && self.in_flight(Leg::Decode) && self.course.is_some_and(|c| c.by_name)
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
        let asked = actions.iter().filter(|a| matches!(a, Action::AskAbort(_))).count();
        must(asked == usize::from(was.sticks(event)), || {
            format!("{actions:?}: aborted by name {asked} times")
        })?;
        self.rest(event, &was).map_err(|why| format!("after {actions:?}: {why}"))?;
        let seen = (subject.exchange.is_done(), subject.exchange.attempt());
        must(seen == (self.settled.is_some(), self.attempts), || {
            format!("it says (done, attempt) {seen:?}, the world says attempt {}", self.attempts)
        })?;
        must(
            subject.exchange.has_started() == (self.told == Told::Started && self.settled.is_none()),
            || "has_started does not agree with what the client got".to_owned(),
        )?;
        self.book(subject.exchange.handoff())
    }
}

pub const SHED: Fault = Fault::Shed { leg: LegName::Decode, rooms: 1, widest: None };
