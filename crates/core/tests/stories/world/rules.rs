//! What the exchange may ask for when: each action is carried out on paper, or refused.

use super::*;

impl World {
    pub(super) fn carry_out(&mut self, action: &Action, event: &Event, was: &World) -> Checked {
        match action {
            Action::Place => self.place(event, was),
            Action::Renew => {
                must(matches!(event, Event::Stale(_)), || format!("begins anew after {event:?}"))?;
                must(!std::mem::replace(&mut self.renewed, true), || "begins anew twice".to_owned())?;
                must(self.owed == Owed::Nothing, || "renewed while something else is awaited".to_owned())?;
                must(self.told == Told::Nothing, || "renewed after the client was answered".to_owned())?;
                self.owed = Owed::Placement;
                self.all_back()
            }
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
                let lingers = matches!(event, Event::ClientGone)
                    && *leg == Leg::Prefill
                    && self.course.is_some_and(|c| c.release);
                must(!lingers, || "closed in what may be its last step".to_owned())?;
                must(!lived_on, || "closing it aborts the transfer that the answer lives on".to_owned())?;
                self.at[*leg as usize] = At::Dropped;
                if *leg == Leg::Decode && self.is(Order::InTurn) {
                    self.ends(Fate::Unknown);
                }
                Ok(())
            }
            Action::Detach(leg) => self.detach(*leg),
            Action::Linger => {
                must(matches!(event, Event::ClientGone), || format!("lingers after {event:?}"))?;
                must(self.course.is_some_and(|c| c.release), || "nothing could be released".to_owned())?;
                must(self.told == Told::Nothing, || "lingers after the client was answered".to_owned())?;
                self.live_on(Leg::Prefill)
            }
            Action::Release => {
                must(self.kv == Kv::Held, || format!("KV released that is {:?}", self.kv))?;
                self.kv = Kv::Released;
                self.ends(Fate::Released);
                Ok(())
            }
            Action::AskAbort(_) => {
                must(self.course.is_some_and(|c| c.by_name), || "the engine takes no names".to_owned())?;
                must(was.in_flight(Leg::Decode), || "there is no decode to abort".to_owned())
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
                    Event::Failed(f) | Event::Stale(f) => Some(f.fault.clone()),
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
        (self.attempts, self.renewed) = (self.attempts + 1, false);
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
        if leg == Leg::Decode && self.is(Order::Together) {
            self.ledger = Ledger::Out;
        }
        Ok(())
    }

    fn detach(&mut self, leg: Leg) -> Checked {
        let by_plan = self.course.is_some_and(|c| c.prefill_abort == Abort::Detach);
        must(by_plan || self.told == Told::Started, || "the plan says to cancel it".to_owned())?;
        self.live_on(leg)
    }

    /// The leg goes on without the exchange.
    fn live_on(&mut self, leg: Leg) -> Checked {
        must(leg == Leg::Prefill && self.in_flight(leg), || format!("{leg:?} detached, not in flight"))?;
        must(!self.judged[leg as usize], || format!("{leg:?} was judged before it was detached"))?;
        self.at[leg as usize] = At::Detached;
        must(std::mem::take(&mut self.leased[leg as usize]), || format!("{leg:?} has no lease to take along"))
    }

    fn judge(&mut self, leg: Leg, verdict: Verdict, event: &Event, was: &World) -> Checked {
        must(self.at(leg) != At::Absent, || format!("{leg:?} judged, the plan has none"))?;
        must(self.at(leg) != At::Detached, || format!("{leg:?} judged, the background will do that"))?;
        must(!self.in_flight(leg), || format!("{leg:?} judged in flight"))?;
        must(!std::mem::replace(&mut self.judged[leg as usize], true), || format!("{leg:?} judged twice"))?;
        let due = match event {
            Event::Stale(f) if f.leg == leg && !was.renewed => Verdict::Mute,
            Event::Failed(f) | Event::Stale(f) if f.leg == leg => f.fault.verdict(self.name(leg)),
            Event::Answered(Handed::Dead(fault)) if leg == Leg::Prefill => fault.verdict(self.name(leg)),
            Event::Answered(_) if leg == Leg::Prefill => Verdict::Good,
            Event::Ended(l) if *l == leg => Verdict::Good,
            Event::Deadline if was.only_silent(leg) => Verdict::Bad,
            // It may be waiting for a prefill that has said nothing either.
            Event::Silent(_) if leg == Leg::Decode && was.at(Leg::Prefill) != At::Sent => Verdict::Bad,
            _ => Verdict::Mute,
        };
        must(verdict == due, || format!("{leg:?} judged {verdict:?}, should be {due:?}"))
    }

    /// The client is told what went wrong: the event itself, or what the attempt before failed with if the
    /// event only says that nobody takes the request now.
    fn names(&self, fault: &Fault, event: &Event) -> Checked {
        let due = match event {
            Event::Failed(f) => &f.fault,
            Event::Stale(f) if self.renewed => &f.fault,
            Event::Answered(Handed::Dead(fault)) => fault,
            Event::Unplaced(fault) => self.last.as_ref().unwrap_or(fault),
            Event::QueueOver => self.last.as_ref().unwrap_or(&SHED),
            Event::Spent => self.last.as_ref().ok_or("no attempt has failed")?,
            Event::Silent(fault) => fault,
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

    pub(super) fn name(&self, leg: Leg) -> LegName {
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
        self.ends(Fate::Consumed);
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
    pub(super) fn rest(&self, event: &Event, was: &World) -> Checked {
        let over = self.settled.is_some();
        let ends = matches!(event, Event::ClientGone | Event::Deadline | Event::Drain | Event::Silent(_));
        must(over || !ends || !was.fits(event), || "it went on".to_owned())?;
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
