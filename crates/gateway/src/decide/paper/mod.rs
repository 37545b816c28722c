//! A request carried out on paper: the driver's part, with engines that a scenario describes.
//!
//! Nothing is decided here, as in [`crate::drive`]: what comes next says core's exchange, what legs say its handoffs, who
//! is silent its watchdog, who is asked to drop a request its rule for that. Events come from the scenario's steps and
//! from times that run out. What a network adds is not there: a throw-away decode and a question to drop a request are
//! answered well at once, connections have no age of their own, and nobody waits for room.

mod acts;
mod after;
pub mod house;
mod leg;
mod placing;
mod told;

use std::collections::VecDeque;
use std::sync::Arc;

use baton_core::abort::{Questions, Why};
use baton_core::ask::Ask;
use baton_core::body::Envelope;
use baton_core::dice::Dice;
use baton_core::exchange::{Event, Exchange, Ledger, Leg};
use baton_core::fault::Fault;
use baton_core::fleet::Worker;
use baton_core::handoff::Plan;
use baton_core::limits::Terms;
use baton_core::place::Taken;
use baton_core::place::cascade::resolve::Routing;
use baton_core::record::{Moments, Record};
use baton_core::time::Instant;
use baton_core::watchdog::Watch;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use serde_json::json;

pub use placing::legs;
pub use told::Told;

use self::after::Background;
use self::house::Around;
use self::leg::{PaperLeg, Said};
use super::engine::{Does, Step, Who};
use super::output::Decision;
use super::request::Incoming;
use crate::drive::legs::meant;
use crate::edge::http::{forwarded, given_id};
use crate::telemetry::HandoffOut;
use crate::upstream::{Head, LegEvent};

/// A request that may go to workers.
pub struct Arrived {
    pub ask: Ask,
    pub body: Envelope,
    pub routing: Routing,
    pub dice: Dice,
}

/// One exchange under way.
pub struct Paper {
    exchange: Exchange,
    dice: Dice,
    ask: Ask,
    body: Envelope,
    forward: Vec<(HeaderName, HeaderValue)>,
    plan: Option<Plan>,
    taken: [Option<Taken>; 2],
    /// What the prefill was charged for keeping, until the end.
    kv_charge: Option<u64>,
    legs: [Option<PaperLeg>; 2],
    /// A prefill's leg that lives on.
    background: Option<Background>,
    handoff: Option<HandoffOut>,
    routing: Arc<Routing>,
    terms: Terms,
    watch: Watch,
    tried: Vec<u32>,
    /// How many of them belong to attempts before this one.
    tried_before: usize,
    deadline: Instant,
    resume: Option<Instant>,
    /// Second questions to drop a request, and when they are put.
    again: Vec<(Instant, Questions, Why, Arc<Worker>)>,
    pending: VecDeque<Event>,
    /// The scenario's, and how many of them have been played.
    steps: (Arc<[Step]>, usize),
    head: Option<Head>,
    answer: answer::Answer,
    /// What the prefill answered, if that was the last word.
    last_word: Option<Bytes>,
    fault: Option<Fault>,
    record: Record,
    told: Told,
    /// Of the first placement.
    decision: Option<Decision>,
}

mod answer;

impl Paper {
    /// The request comes, and its first legs are sent.
    pub fn begin(arrived: Arrived, request: &Incoming, around: &Around<'_>) -> Paper {
        let Arrived { ask, body, routing, mut dice } = arrived;
        let (rules, routing) = (&around.house.rules, Arc::new(routing));
        let id = given_id(&around.house.id_headers, &request.headers);
        let record = Record {
            request_id: id.map_or_else(|| dice.id(ask.api.id_prefix()), str::to_owned),
            api: Some(ask.api),
            method: "POST",
            path: ask.api.path().into(),
            model: ask.model.clone(),
            stream: ask.stream,
            routing: Some(routing.clone()),
            request_bytes: request.body.len() as u64,
            moments: Moments {
                received: around.now,
                admitted: Some(around.now),
                ended: around.now,
                ..Moments::default()
            },
            ..Record::default()
        };
        let terms = routing.knobs.terms();
        around.house.budget.request(around.now);
        let mut paper = Paper {
            exchange: Exchange::new(rules.retry.clone(), rules.exchange.request_timeout),
            dice,
            watch: Watch::new(terms.watchdog, ask.stream),
            forward: forwarded(&request.headers, around.house.own_key),
            answer: answer::Answer::new(ask.api),
            ask,
            body,
            plan: None,
            taken: [None, None],
            kv_charge: None,
            legs: [None, None],
            background: None,
            handoff: None,
            routing,
            terms,
            tried: Vec::new(),
            tried_before: 0,
            deadline: around.now.after(rules.exchange.request_timeout),
            resume: None,
            again: Vec::new(),
            pending: VecDeque::new(),
            steps: (request.engine.clone().unwrap_or_default(), 0),
            head: None,
            last_word: None,
            fault: None,
            record,
            told: Told::default(),
            decision: None,
        };
        paper.divide(around);
        paper.on(Event::Begin, around);
        paper
    }

    /// The output of the request, as far as it is known.
    pub fn decision(&self) -> Decision {
        let decision = self.decision.clone().unwrap_or_default();
        let mut told = self.told.clone();
        told.client(self.answer.to_json());
        let held = self.taken.iter().flatten().chain(self.background.as_ref().map(Background::taken));
        told.held(held.map(|taken| taken.seat.worker.id.clone()).collect());
        decision.carried(told)
    }

    /// Whose settings the request goes by.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// When the next thing happens. `None`: nothing will any more.
    pub fn due(&self, around: &Around<'_>) -> Option<Instant> {
        let own = (!self.exchange.is_done()).then(|| {
            let late = self.prefill_due();
            let silent = self.watch.due(self.answer.heard()).map(|due| due.at);
            [self.resume, late, silent].into_iter().flatten().fold(self.deadline, Instant::min)
        });
        let step = self.step().map(|step| step.at.after(around.house.begin()));
        let again = self.again.iter().map(|(at, ..)| *at).min();
        let background = self.background.as_ref().map(Background::until);
        [own, step, again, background].into_iter().flatten().min()
    }

    /// The next thing happens. Legs come before times that run out, as when serving.
    pub fn turn(&mut self, around: &Around<'_>) {
        let now = around.now;
        if self.step().is_some_and(|step| step.at.after(around.house.begin()) <= now) {
            let (steps, next) = self.steps.clone();
            self.steps.1 += 1;
            return self.hear(&steps[next], around);
        }
        if let Some(at) = self.again.iter().position(|(at, ..)| *at <= now) {
            let (_, questions, why, worker) = self.again.swap_remove(at);
            return self.ask_abort(&questions, why, &worker, around);
        }
        if self.background.as_ref().is_some_and(|background| background.until() <= now) {
            return self.background_over(None, around);
        }
        if self.exchange.is_done() {
            return;
        }
        if self.resume.take_if(|at| *at <= now).is_some() {
            return self.on(Event::Resume, around);
        }
        let late = self.prefill_due().filter(|late| *late < self.deadline);
        let silent = self.watch.due(self.answer.heard()).map(|due| due.at);
        let silent = silent.filter(|due| *due < late.unwrap_or(self.deadline));
        let (of, event) = match (silent, late) {
            (Some(_), _) => match self.watch.barks(self.answer.heard(), now) {
                Some(fault) => (fault.silence().map_or("", |silence| silence.as_str()), Event::Silent(fault)),
                None => return,
            },
            (None, Some(_)) => {
                let Some(plan) = &self.plan else { return };
                let seconds = self.routing.knobs.prefill_timeout.as_secs();
                let fault = Fault::Deadline { leg: plan.course.name(Leg::Prefill), seconds };
                let failure = baton_core::exchange::Failure { leg: Leg::Prefill, fault, delivered: true };
                ("prefill", Event::Failed(failure))
            }
            (None, None) => ("request", Event::Deadline),
        };
        self.told.event(around, "gateway", "times_out", json!({"of": of}));
        self.on(event, around);
    }

    /// The next step.
    fn step(&self) -> Option<&Step> {
        self.steps.0.get(self.steps.1)
    }

    /// When the prefill has to have answered, where AIBrix's strategy gives it a time of its own.
    fn prefill_due(&self) -> Option<Instant> {
        let limit = self.routing.prefill_limit()?;
        let moments = &self.record.moments;
        let runs = self.legs[Leg::Prefill as usize].is_some() && moments.prefill_done.is_none();
        moments.prefill_sent.filter(|_| runs).map(|sent| sent.after(limit))
    }

    /// Tells the exchange what happened and does what it says.
    fn on(&mut self, event: Event, around: &Around<'_>) {
        self.pending.push_back(event);
        while let Some(event) = self.pending.pop_front() {
            for action in self.exchange.on(event, &mut self.dice) {
                self.act(action, around);
            }
            match self.exchange.handoff() {
                Ledger::Nothing => {}
                Ledger::Out if self.handoff.is_none() => {
                    self.handoff = around.house.background().map(|background| background.issued());
                }
                Ledger::Out => {}
                // One that is released was given to its throw-away decode.
                Ledger::Over(fate) => {
                    if let Some(handoff) = self.handoff.take() {
                        handoff.ended(fate);
                    }
                }
            }
            if self.exchange.has_started() {
                self.catch_up(around);
            }
        }
    }

    /// A step of the scenario.
    fn hear(&mut self, step: &Step, around: &Around<'_>) {
        let leg = match step.who {
            Who::Client => {
                let unheard = self.exchange.is_done().then_some(false);
                self.told.event(around, "client", "leaves", json!({"heard": unheard}));
                return self.on(Event::ClientGone, around);
            }
            Who::Prefill => Leg::Prefill,
            Who::Decode => Leg::Decode,
        };
        let said = self.legs[leg as usize].as_mut().and_then(|io| io.hear(&step.does));
        let Some(said) = said else {
            if leg == Leg::Decode || !self.hear_background(step, around) {
                self.told.event(around, step.who.as_str(), step.does.as_str(), json!({"heard": false}));
            }
            return;
        };
        let status = match &step.does {
            Does::Answers { head, .. } | Does::Head(head) => Some(head.status.as_u16()),
            _ => None,
        };
        self.told.event(around, step.who.as_str(), step.does.as_str(), json!({"status": status}));
        for said in said {
            self.said(leg, said, around);
        }
    }

    /// What a leg says. What it still has to say once it is closed nobody hears.
    fn said(&mut self, leg: Leg, said: Said, around: &Around<'_>) {
        if self.legs[leg as usize].is_none() {
            return;
        }
        let event = match said {
            Said::Piece(piece) => {
                self.answer.comes(piece);
                if self.exchange.has_started() {
                    self.catch_up(around);
                }
                return;
            }
            Said::End => {
                self.answer.ends();
                if self.exchange.has_started() {
                    self.catch_up(around);
                }
                return;
            }
            // A stream that had said it was done lost nothing by the break.
            Said::Event(LegEvent::Broken(_)) if leg == Leg::Decode && self.answer.is_complete() => {
                Event::Ended(leg)
            }
            Said::Event(event) => match self.means(leg, event, around) {
                Some(event) => event,
                None => return,
            },
        };
        self.on(event, around);
    }

    /// What a leg's event means for the exchange.
    fn means(&mut self, leg: Leg, event: LegEvent, around: &Around<'_>) -> Option<Event> {
        let now = around.now;
        match event {
            LegEvent::Head(head) if leg == Leg::Decode => {
                self.taken[leg as usize].iter_mut().for_each(Taken::computed);
                self.record.moments.decode_head = Some(now);
                self.record.status = head.status;
                self.head = Some(head);
                Some(Event::Head(leg))
            }
            LegEvent::Head(_) => {
                self.record.moments.prefill_done = Some(now);
                Some(Event::Head(leg))
            }
            LegEvent::Answer(answer) => {
                self.record.moments.prefill_done = Some(now);
                let taken = self.taken[Leg::Prefill as usize].as_ref()?;
                let seat = around.fleet.seat(taken.seat.slot).unwrap_or(&taken.seat);
                let reading = self.plan.as_mut()?.hears(&answer, &seat.worker, &around.house.rules.answer);
                self.record.handoff = reading.result;
                let told = json!({"handoff": reading.result.as_str(), "why": reading.why});
                self.told.event(around, "gateway", "reads", told);
                if let Some(prompt) = reading.prompt {
                    self.answer.begins_with(prompt, self.ask.stream);
                }
                self.last_word = reading.answer;
                Some(Event::Answered(reading.handed))
            }
            LegEvent::Ended(gist) => {
                self.record.odd = gist.class();
                Some(Event::Ended(leg))
            }
            other => {
                if let LegEvent::Unreachable(lost) = &other
                    && let Some(taken) = self.taken[leg as usize].as_ref().filter(|_| !lost.delivered)
                {
                    taken.seat.pulse.reborn();
                }
                Some(meant(self.plan.as_ref()?, leg, other))
            }
        }
    }

    /// The client gets what has come of the answer's body.
    fn catch_up(&mut self, around: &Around<'_>) {
        if self.answer.pass(around.now, &mut self.record) {
            self.answer.count(&mut self.record);
            self.on(Event::Ended(Leg::Decode), around);
        }
    }
}
