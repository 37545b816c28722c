//! What can happen when: the driver's reports, as far as the world allows them, and what they mean for it.

use super::*;

impl World {
    /// Events that come by themselves: if none is left, the exchange must have settled.
    pub fn natural(&self) -> Vec<Event> {
        let mut events = match self.owed {
            Owed::Begin => vec![Event::Begin],
            Owed::Resume => vec![Event::Resume, Event::Spent],
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
                if self.ages {
                    events.push(stale(leg, lost));
                }
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
        if self.settled.is_some() {
            return vec![];
        }
        if self.owed == Owed::Begin {
            return vec![Event::ClientGone];
        }
        let mut events = vec![Event::ClientGone, Event::Deadline, Event::Drain];
        if self.in_flight(Leg::Decode) {
            events.push(Event::Silent(silence(self.name(Leg::Decode))));
        }
        events
    }

    /// Can this happen now?
    pub(super) fn fits(&self, event: &Event) -> bool {
        self.settled.is_none()
            && match event {
                Event::Begin => self.owed == Owed::Begin,
                Event::Resume | Event::Spent => self.owed == Owed::Resume,
                Event::Placed(_) | Event::Unplaced(_) | Event::Full(_) => {
                    matches!(self.owed, Owed::Placement | Owed::Partner)
                }
                Event::Room | Event::QueueOver => self.owed == Owed::Room,
                Event::Head(leg) => self.at(*leg) == At::Sent,
                Event::Answered(_) => self.reads_prefill() && self.in_flight(Leg::Prefill),
                Event::Ended(Leg::Prefill) => !self.reads_prefill() && self.in_flight(Leg::Prefill),
                Event::Ended(Leg::Decode) => self.told == Told::Started && self.in_flight(Leg::Decode),
                Event::Failed(f) => self.in_flight(f.leg),
                Event::Stale(f) => self.at(f.leg) == At::Sent,
                Event::Silent(_) => self.in_flight(Leg::Decode),
                Event::ClientGone => true,
                Event::Deadline | Event::Drain => self.owed != Owed::Begin,
            }
    }

    /// Events that cannot happen now; if a driver reports one all the same, nothing may come of it.
    pub fn stray(&self) -> Vec<Event> {
        let none = Fault::NoWorker { leg: LegName::Decode, registered: true };
        let lost = Fault::Unreachable { leg: LegName::Decode, cause: "refused".into() };
        let dead = Handed::Dead(Fault::Broken { leg: LegName::Prefill, cause: "reset".into() });
        let mut all = vec![
            Event::Begin,
            Event::Resume,
            Event::Spent,
            Event::Placed(self.courses[0]),
            Event::Unplaced(none),
        ];
        all.extend([Event::ClientGone, Event::Deadline, Event::Drain]);
        all.push(Event::Silent(silence(LegName::Decode)));
        all.extend([Event::Full(SHED), Event::Room, Event::QueueOver]);
        all.extend([Handed::Over, Handed::Nothing, Handed::Final, dead].map(Event::Answered));
        for leg in LEGS {
            all.extend([Event::Head(leg), Event::Ended(leg)]);
            all.extend([true, false].map(|delivered| failed(leg, lost.clone(), delivered)));
            if !self.in_flight(leg) {
                all.push(stale(leg, lost.clone()));
            }
        }
        all.retain(|event| !self.fits(event));
        all
    }

    pub(super) fn happen(&mut self, event: &Event) {
        if !self.fits(event) {
            return;
        }
        match event {
            Event::Begin | Event::Resume | Event::Spent | Event::Unplaced(_) => self.owed = Owed::Nothing,
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
                self.ledger = Ledger::Nothing;
            }
            Event::Head(leg) => {
                self.at[*leg as usize] = At::Head;
                if *leg == Leg::Decode && self.is(Order::InTurn) {
                    self.ends(Fate::Consumed);
                }
            }
            Event::Ended(leg) => self.at[*leg as usize] = At::Ended,
            Event::Failed(f) | Event::Stale(f) => {
                self.at[f.leg as usize] = At::Dropped;
                if f.leg == Leg::Decode && !f.delivered && self.kv == Kv::Told {
                    self.kv = Kv::Held;
                }
                if f.leg == Leg::Decode && self.is(Order::InTurn) {
                    match self.kv {
                        Kv::Held => {}
                        _ if f.delivered => self.ends(Fate::Unknown),
                        _ => self.ends(Fate::Expired),
                    }
                }
            }
            Event::Answered(handed) => {
                (self.at[0], self.word) = match handed {
                    Handed::Over | Handed::Nothing => (At::Ended, Word::Alive),
                    Handed::Final => (At::Ended, Word::Final),
                    Handed::Dead(_) => (At::Dropped, Word::Dead),
                };
                if *handed == Handed::Over && self.is(Order::InTurn) {
                    self.ledger = Ledger::Out;
                }
                if *handed == Handed::Over && self.course.is_some_and(|c| c.release) {
                    self.kv = Kv::Held;
                }
            }
            Event::Silent(_) | Event::ClientGone | Event::Deadline | Event::Drain => {}
        }
    }
}

/// The leg that answers owes output.
pub fn silence(leg: LegName) -> Fault {
    Fault::DecodeSilent { leg, phase: Silence::FirstResponse, limit: Duration::from_secs(60), stream: true }
}

fn failed(leg: Leg, fault: Fault, delivered: bool) -> Event {
    Event::Failed(Failure { leg, fault, delivered })
}

fn stale(leg: Leg, fault: Fault) -> Event {
    Event::Stale(Failure { leg, fault, delivered: true })
}

/// A client's mistake, push-back in both its forms, a failure.
fn refusals(leg: LegName) -> impl Iterator<Item = Fault> {
    [(400, None), (429, None), (503, Some("1")), (500, None)].into_iter().map(move |(status, later)| {
        let refusal = Refusal { status, retry_after: later.map(str::to_owned), ..Refusal::default() };
        Fault::Refused { leg, refusal }
    })
}
