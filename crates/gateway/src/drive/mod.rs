//! The driver: carries out what `core::exchange` says and tells it what happened.
//!
//! It knows legs as two slots and a plan as edits and a course; it never asks whose engine it is. All of
//! one exchange is polled in the task of its client's connection: dropping the [`Drive`] is the client
//! leaving, and ends or hands over every leg by the plan's rules.

mod abort;
pub(crate) mod background;
mod explain;
pub mod fan;
pub use background::sweep;
mod joint;
pub(crate) mod legs;
mod linger;
mod watch;

use legs::Held;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use baton_core::ask::Ask;
use baton_core::body::Envelope;
use baton_core::dice::Dice;
use baton_core::exchange::{Action, Event, Exchange, Ledger, Leg, Outcome};
use baton_core::fault::{Fault, LegName};
use baton_core::handoff::{self, Mint, Pair, Plan};
use baton_core::limits::Terms;
use baton_core::place::cascade::{self, resolve::Routing};
use baton_core::place::{self, Look, Miss, Placement, Taken};
use baton_core::record::{HandoffResult, Record};
use baton_core::time::Instant;
use baton_core::watchdog::Watch;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Sleep;
use tracing::Span;

use self::joint::Joint;
use crate::alarm::Alarm;
use crate::edge::answer;
use crate::edge::client::Line;
use crate::entrance::Permit;
use crate::gateway::Gateway;
use crate::lane::Lane;
use crate::rooms;
use crate::telemetry::{ExchangeSpan, HandoffOut};
use crate::upstream::{self, Head, LegEvent};

/// What the client gets next.
pub enum Turn {
    /// The decode's answer begins.
    Start(Head),
    /// This is the whole answer: a JSON object, or all events of a stream.
    Tell(Bytes),
    /// The exchange failed before that.
    Fail(Fault),
}

/// A request as it enters the driver.
pub struct Entry {
    pub ask: Ask,
    pub body: Envelope,
    /// Headers of the client that both legs get.
    pub forward: Vec<(HeaderName, HeaderValue)>,
    pub record: Record,
    pub routing: Arc<Routing>,
    /// The client asked why its workers were chosen, and may know.
    pub explains: bool,
    /// `None`: a part of a request, which holds the place for all its parts.
    pub permit: Option<Permit>,
    /// The client's connection; `None` for a part of a request.
    pub line: Option<Arc<Line>>,
}

/// One exchange under way.
pub struct Drive {
    gateway: Arc<Gateway>,
    lane: Arc<Lane>,
    exchange: Exchange,
    dice: Dice,
    ask: Ask,
    body: Envelope,
    forward: Vec<(HeaderName, HeaderValue)>,
    plan: Option<Plan>,
    /// What is put in front of the decode's own, in its answer.
    joint: Option<Joint>,
    taken: [Option<Taken>; 2],
    /// What the prefill was charged for keeping, until the end.
    kv_charge: Option<u64>,
    legs: [Option<upstream::Leg>; 2],
    held: Option<Held>,
    /// The hand-off that is out.
    handoff: Option<HandoffOut>,
    routing: Arc<Routing>,
    terms: Terms,
    watch: Watch,
    /// The prefill's leg where it lives on in the background, and when it ends there.
    detached: Option<JoinHandle<Instant>>,
    /// Calls that leg off.
    recall: Option<oneshot::Sender<()>>,
    tried: SmallVec<[u32; 4]>,
    /// How many of them belong to attempts before this one.
    tried_before: usize,
    /// A connection had grown old: no more such connections for this request.
    fresh: bool,
    /// This moment: the last reading of the clock.
    now: Instant,
    deadline: Instant,
    /// The client is told why its workers were chosen.
    explains: bool,
    alarm: Alarm,
    backoff: Option<Pin<Box<Sleep>>>,
    /// Since when the request waits for room on a decode worker.
    place_in_line: Option<rooms::Place>,
    patience: Option<Pin<Box<Sleep>>>,
    pending: VecDeque<Event>,
    head: Option<Head>,
    /// What the prefill answered, if that was the last word.
    answer: Option<Bytes>,
    told: Option<Fault>,
    pub(crate) record: Record,
    span: ExchangeSpan,
    _permit: Option<Permit>,
    line: Option<Arc<Line>>,
}

impl Drive {
    pub fn new(gateway: Arc<Gateway>, lane: Arc<Lane>, entry: Entry) -> Box<Drive> {
        let rules = &gateway.rules;
        let exchange = Exchange::new(rules.retry.clone(), rules.exchange.request_timeout);
        let dice = lane.dice();
        let terms = entry.routing.knobs.terms();
        let now = entry.record.moments.admitted.unwrap_or_else(|| lane.clock.now());
        let alarm = match &entry.line {
            Some(line) => line.take_alarm(lane.clock),
            None => Alarm::new(lane.clock),
        };
        Box::new(Drive {
            exchange,
            dice,
            terms,
            watch: Watch::new(terms.watchdog, entry.ask.stream),
            routing: entry.routing,
            detached: None,
            recall: None,
            ask: entry.ask,
            body: entry.body,
            forward: entry.forward,
            plan: None,
            joint: None,
            taken: [None, None],
            kv_charge: None,
            legs: [None, None],
            held: None,
            handoff: None,
            tried: SmallVec::new(),
            tried_before: 0,
            fresh: false,
            now,
            explains: entry.explains,
            deadline: now.after(rules.exchange.request_timeout),
            alarm,
            backoff: None,
            place_in_line: None,
            patience: None,
            pending: VecDeque::new(),
            head: None,
            answer: None,
            told: None,
            span: ExchangeSpan::new(&entry.record.request_id, entry.record.method, &entry.record.path),
            record: entry.record,
            _permit: entry.permit,
            line: entry.line,
            gateway,
            lane,
        })
    }

    /// Runs until the client can be told something.
    pub async fn run(mut self: Box<Drive>) -> (Box<Drive>, Turn) {
        self.gateway.budget.request(self.now);
        self.pending.push_back(Event::Begin);
        loop {
            let event = match self.pending.pop_front() {
                Some(event) => event,
                None => poll_fn(|cx| self.poll_event(cx)).await,
            };
            self.on(event);
            if let Some(head) = self.head.take_if(|_| self.exchange.has_started()) {
                return (self, Turn::Start(head));
            }
            if let Some(answer) = self.answer.take_if(|_| self.exchange.is_done()) {
                return (self, Turn::Tell(answer));
            }
            if let Some(fault) = self.told.take_if(|_| self.exchange.is_done()) {
                return (self, Turn::Fail(fault));
            }
        }
    }

    /// Tells the exchange what happened and does what it says.
    fn on(&mut self, event: Event) {
        let span = self.span.listened();
        let _inside = span.as_ref().map(Span::enter);
        for action in self.exchange.on(event, &mut self.dice) {
            self.act(action);
        }
        match self.exchange.handoff() {
            Ledger::Nothing => {}
            Ledger::Out => {
                let issued = || self.gateway.telemetry.background().issued();
                self.handoff.get_or_insert_with(issued);
            }
            // One that is released was given to its throw-away decode.
            Ledger::Over(fate) => {
                if let Some(handoff) = self.handoff.take() {
                    handoff.ended(fate);
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Place => {
                let event = self.place();
                self.pending.push_back(event);
            }
            Action::Renew => {
                self.fresh = true;
                self.record.renewed += 1;
                self.tried.truncate(self.tried_before);
                let event = self.place();
                self.pending.push_back(event);
            }
            Action::Replace => {
                let event = self.replace();
                self.pending.push_back(event);
            }
            Action::Send(leg) => self.send(leg),
            Action::Cancel(leg) => self.close(leg),
            Action::Detach(leg) => self.detach(leg),
            Action::Linger => self.linger(),
            Action::Release => self.release(),
            Action::AskAbort(why) => self.ask_abort(why),
            Action::Judge(leg, verdict) => {
                if let Some(taken) = &mut self.taken[leg as usize] {
                    taken.judged(verdict, &self.gateway.rules.breaker, self.now);
                }
            }
            Action::Free(leg) => {
                self.close(leg);
                if let Some(taken) = self.taken[leg as usize].take() {
                    give_back(taken, &self.gateway);
                }
            }
            Action::Start => {}
            Action::Tell => self.tell(),
            Action::Fail(fault) | Action::Cut(fault) => {
                self.record.blame(&fault);
                self.told = Some(fault);
            }
            Action::Wait(_) if !self.gateway.budget.take(self.now) => {
                self.record.over_budget = true;
                self.pending.push_back(Event::Spent);
            }
            Action::Wait(wait) => {
                self.record.retries(self.exchange.last_fault(), wait);
                self.backoff = Some(Box::pin(tokio::time::sleep(wait)));
            }
            Action::Queue => self.queue(),
            Action::Settle(outcome) => self.settle(outcome),
        }
    }

    /// Stands in line for room, or goes on standing there after a try in vain.
    fn queue(&mut self) {
        let rooms = &self.gateway.rooms;
        if self.place_in_line.is_none() {
            let place = rooms.enter(place::want(&self.ask, &self.routing));
            match place.filter(|_| !rooms.wait.is_zero()) {
                Some(place) => self.place_in_line = Some(place),
                None => return self.pending.push_back(Event::QueueOver),
            }
            self.record.moments.queued = Some(self.now);
            self.patience = Some(Box::pin(tokio::time::sleep(rooms.wait)));
        }
        self.backoff = Some(Box::pin(tokio::time::sleep(rooms::LOOK)));
    }

    /// In line: is it this one's turn, or has it waited long enough?
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        let Some(place) = &self.place_in_line else { return Poll::Pending };
        if let Some(patience) = self.patience.as_mut()
            && patience.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Event::QueueOver);
        }
        let looks = self.backoff.as_mut().is_some_and(|b| b.as_mut().poll(cx).is_ready());
        if (place.bell.poll(cx) || looks) && place.may_try() {
            self.backoff = None;
            return Poll::Ready(Event::Room);
        }
        if looks {
            // Not its turn yet: the timer starts anew and is polled so that it wakes this task.
            let mut again = Box::pin(tokio::time::sleep(rooms::LOOK));
            let _ = again.as_mut().poll(cx);
            self.backoff = Some(again);
        }
        Poll::Pending
    }

    /// The prefill had the last word: the client gets that.
    fn tell(&mut self) {
        let answer = self.answer.as_deref().unwrap_or_default();
        self.record.status = answer::OK;
        self.record.moments.first_byte = Some(self.lane.clock.now());
        self.record.answer_bytes = answer.len() as u64;
        self.record.usage = baton_core::sse::usage_of_answer(answer);
    }

    fn close(&mut self, leg: Leg) {
        self.legs[leg as usize] = None;
        self.watch.over(leg, self.now);
        if leg == Leg::Prefill {
            self.held = None;
        }
    }

    fn place(&mut self) -> Event {
        let (gateway, now) = (self.gateway.clone(), self.now);
        if self.place_in_line.is_none() {
            let want = place::want(&self.ask, &self.routing);
            if gateway.rooms.must_wait(want) {
                return Event::Full(Fault::Shed { leg: LegName::Decode, rooms: want.rooms, widest: None });
            }
        }
        let fleet = gateway.registry.fleet();
        let look = Look { routing: Some(&self.routing), ..Look::new(&fleet, &self.ask, now) };
        let look = Look { receipt: self.receipt().into(), ..look.after(&self.tried) };
        let placed = gateway.strategies.of(&self.routing).place(&look, &mut self.dice);
        let receipt = look.into_receipt();
        let band = placed.as_ref().ok().and_then(|placement| cascade::band(&receipt, placement, &self.ask));
        if !matches!(placed, Err(Miss::Full(_))) {
            // Who waits for room looks again and again.
            self.wrote(receipt);
        }
        let placement = match placed {
            Ok(placement) => placement,
            Err(Miss::Nobody(fault)) => return Event::Unplaced(fault),
            Err(Miss::Full(fault)) => return Event::Full(fault),
        };
        self.record.band = band;
        self.joint = None;
        (self.place_in_line, self.patience) = (None, None);
        let plan = match self.plan(&placement) {
            Ok(plan) => plan,
            Err(fault) => return self.unplanned(placement, fault),
        };
        let record = &mut self.record;
        record.attempts = self.exchange.attempt();
        (record.pd, record.prefill) = match &placement {
            Placement::Whole { .. } => (false, None),
            Placement::Prefill { .. } => (true, None),
            Placement::Pair { prefill, .. } => (true, Some(prefill.seat.worker.clone())),
        };
        (record.mode, record.handoff) = (plan.mode, plan.result);
        let course = plan.course;
        self.watch.begins(course.answers);
        (self.detached, self.recall) = (None, None);
        self.plan = Some(plan);
        self.taken = placement.into_legs();
        self.kv_charge = self.taken[Leg::Decode as usize].as_ref().and_then(Taken::kv_charge);
        if course.order == baton_core::exchange::Order::Single {
            self.forgo_prefill();
        }
        let [prefill, answering] = &self.taken;
        self.tried_before = self.tried.len();
        self.tried.extend([prefill, answering].into_iter().flatten().map(|t| t.seat.slot));
        let answering = answering.as_ref().map(|t| t.seat.worker.clone());
        self.record.engine = answering.as_ref().map(|w| w.engine).unwrap_or_default();
        match course.answers {
            LegName::Prefill => (self.record.prefill, self.record.decode) = (answering, None),
            LegName::Decode | LegName::Whole => self.record.decode = answering,
        }
        Event::Placed(course)
    }

    /// What the leg whose answer the client gets is called.
    pub(crate) fn answers(&self) -> LegName {
        self.plan.as_ref().map_or(LegName::Decode, |plan| plan.course.answers)
    }

    fn plan(&mut self, placement: &Placement) -> Result<Plan, Fault> {
        let pair = match placement {
            Placement::Whole { worker } => Pair::Whole(&worker.seat.worker),
            Placement::Prefill { worker } => Pair::Prefill(&worker.seat.worker),
            Placement::Pair { prefill, decode } => {
                Pair::Legs { prefill: &prefill.seat.worker, decode: &decode.seat.worker }
            }
        };
        let gateway = &self.gateway;
        let unix_ms = self.lane.clock.unix_millis();
        let mut mint = Mint { dice: &mut self.dice, unix_ms, serial: &gateway.serial };
        handoff::plan(pair, &self.ask, &gateway.rules.handoff, &mut mint)
    }

    /// No leg is sent to these workers: they get their places back, and their probes.
    fn unplanned(&mut self, placement: Placement, fault: Fault) -> Event {
        let legs = placement.into_legs();
        for taken in legs.iter().flatten() {
            taken.seat.pulse.step_back(self.now);
        }
        let url = |leg: &Option<Taken>| leg.as_ref().map_or(String::new(), |t| t.seat.worker.url.clone());
        let [prefill, decode] = &legs;
        let reason = fault.reason().unwrap_or_default();
        tracing::warn!(code = fault.code(), reason, prefill = url(prefill), decode = url(decode), "no plan");
        if let (Fault::TrtContext, Some(prefill)) = (&fault, prefill) {
            // It may have come up since it was asked.
            self.gateway.registry.suspect(prefill.seat.slot);
        }
        self.record.pd = prefill.is_some();
        self.record.handoff = HandoffResult::unplanned(&fault);
        Event::Unplaced(fault)
    }

    /// Another decode for the KV that the prefill holds, under the plan and the hand-off that are there.
    fn replace(&mut self) -> Event {
        let none = Fault::NoWorker { leg: LegName::Decode, registered: true };
        let (gateway, now) = (self.gateway.clone(), self.now);
        let fleet = gateway.registry.fleet();
        let look = Look { routing: Some(&self.routing), ..Look::new(&fleet, &self.ask, now) };
        let look = Look { receipt: self.receipt().into(), ..look.after(&self.tried) };
        let (Some(plan), Some(prefill)) = (&mut self.plan, &self.record.prefill) else {
            return Event::Unplaced(none);
        };
        let age = self.record.moments.prefill_done.map(|done| now.since(done));
        if age.is_none_or(|age| age > gateway.rules.exchange.reuse_max_age) {
            return Event::Unplaced(none);
        }
        let course = plan.course;
        let computed = place::Computed { prefill: &prefill.id, kv_charge: self.kv_charge };
        let replaced = gateway.strategies.of(&self.routing).replace(&look, computed, &mut self.dice);
        let (receipt, rank) = (look.into_receipt(), replaced.as_ref().map(|d| handoff::rank(&d.seat.worker)));
        plan.ranks[Leg::Decode as usize] = rank.unwrap_or_default();
        self.wrote(receipt);
        let Some(decode) = replaced else { return Event::Unplaced(none) };
        self.record.attempts = self.exchange.attempt();
        self.tried_before = self.tried.len();
        self.tried.push(decode.seat.slot);
        self.record.engine = decode.seat.worker.engine;
        self.record.decode = Some(decode.seat.worker.clone());
        self.taken[Leg::Decode as usize] = Some(decode);
        Event::Placed(course)
    }

    /// The plan does without a prefill: the chosen one gets its place back, and its probe.
    fn forgo_prefill(&mut self) {
        if let Some(prefill) = self.taken[Leg::Prefill as usize].take() {
            prefill.seat.pulse.step_back(self.now);
            self.record.prefill = None;
            self.taken[Leg::Decode as usize].iter_mut().for_each(Taken::forgo_prefill);
        }
    }

    /// The next thing that happens.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        self.now = self.lane.clock.now();
        if self.lane.is_stopping() {
            return Poll::Ready(Event::Drain);
        }
        for leg in [Leg::Prefill, Leg::Decode] {
            if let Some(slot) = self.legs[leg as usize].as_mut()
                && let Poll::Ready(event) = slot.poll_event(cx)
                && let Some(event) = self.unless_held(event)
            {
                return Poll::Ready(self.told_by(leg, event));
            }
        }
        if !self.exchange.has_started()
            && let Some(leg) = self.legs[Leg::Decode as usize].as_mut()
            && let Poll::Ready(event) = leg.read_ahead(cx)
        {
            // Its head came, and then it went away while the prefill's was waited for.
            return Poll::Ready(self.told_by(Leg::Decode, event));
        }
        if let Some(held) = self.held.take_if(|held| held.again.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(self.told_by(Leg::Prefill, LegEvent::Answer(held.answer)));
        }
        if self.place_in_line.is_some() {
            if let Poll::Ready(event) = self.poll_room(cx) {
                return Poll::Ready(event);
            }
        } else if let Some(backoff) = self.backoff.as_mut()
            && backoff.as_mut().poll(cx).is_ready()
        {
            self.backoff = None;
            return Poll::Ready(Event::Resume);
        }
        let late = self.prefill_due().filter(|late| *late < self.deadline);
        let due = self.due(cx).filter(|due| *due < late.unwrap_or(self.deadline));
        ready!(self.alarm.poll(due.or(late).unwrap_or(self.deadline), self.now, cx));
        if due.is_none() && late.is_some() {
            return Poll::Ready(self.prefill_late());
        }
        Poll::Ready(due.and_then(|_| self.silence()).map_or(Event::Deadline, Event::Silent))
    }

    /// Ready once `at` has come. Asked after [`Drive::poll_event`] had nothing to tell.
    pub(crate) fn poll_alarm(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll(at, self.now, cx)
    }

    /// Pieces of the decode's body, once the answer has begun.
    pub(crate) fn poll_decode(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<bytes::Bytes, upstream::Lost>>> {
        let Some(leg) = self.legs[Leg::Decode as usize].as_mut() else { return Poll::Ready(None) };
        match self.joint.as_mut() {
            None => leg.poll_body(cx),
            Some(joint) => joint.poll(leg, cx, self.gateway.rules.answer.max_bytes),
        }
    }

    /// The body that the client gets is longer than the one that the decode announces.
    pub(crate) fn lengthens(&self) -> bool {
        self.joint.is_some()
    }

    /// The answer's body ended, broke off, or was ended from outside. Returns what to tell the client if it
    /// was cut.
    pub(crate) fn relay_over(&mut self, event: Event) -> Option<Fault> {
        self.now = self.lane.clock.now();
        self.on(event);
        self.told.take()
    }

    fn settle(&mut self, outcome: Outcome) {
        self.recall(outcome);
        let record = &mut self.record;
        record.settle(outcome, self.told.as_ref(), self.now);
        self.span.settle(record);
        self.gateway.telemetry.record(record);
        self.lane.recent.keep(record);
        if let Some(usage) = record.usage.filter(|_| outcome == Outcome::Served) {
            self.gateway.measure.learn(&self.ask.prompt, &usage);
        }
    }
}

/// The lease first, then word to those who wait for it.
fn give_back(taken: Taken, gateway: &Gateway) {
    let Taken { seat, lease, .. } = taken;
    drop(lease);
    gateway.rooms.freed(&seat.worker);
}

impl Drop for Drive {
    /// Dropped before its end: the client left.
    fn drop(&mut self) {
        if !self.exchange.is_done() {
            self.now = self.lane.clock.now();
            self.on(Event::ClientGone);
        }
        if let Some(line) = &self.line {
            line.keep_alarm(std::mem::replace(&mut self.alarm, Alarm::new(self.lane.clock)));
        }
    }
}
