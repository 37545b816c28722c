//! A scenario played: the fleet that it describes, and its requests in the order of time.
//!
//! Nothing is decided here. Settings come from [`Config`], workers are described by [`crate::registry::Spec`], requests
//! are read by [`Ask`] and placed by [`Strategies`], each as when serving; what is missing is the network.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Edit, Envelope, scalar};
use baton_core::breaker::{BreakerRule, Verdict};
use baton_core::dice::Dice;
use baton_core::fault::{Fault, LegName};
use baton_core::fleet::{Fleet, FleetChange, Role, Seat, Status};
use baton_core::load::Lease;
use baton_core::place::cascade::books::{self, Books, SWEEP};
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::cascade::ledger::{Charge, Stale};
use baton_core::place::cascade::resolve::{Routing, resolve};
use baton_core::place::cascade::shared::{Others, Reading, RedisClock, key, keys};
use baton_core::place::cascade::yard;
use baton_core::place::receipt::Receipt;
use baton_core::place::{self, Computed, Look, Miss, Strategies, Strategy, Taken};
use baton_core::size::Measure;
use baton_core::time::{Duration, Instant};
use serde_json::{Map, Value};

use super::engine::Word;
use super::line::Line;
use super::output::Decision;
use super::paper::house::{Around, House};
use super::paper::{self, Arrived, Paper};
use super::request::{Failure, Incoming, Retried};
use super::scenario::{Held, Member, Scenario};
use super::state::State;
use crate::config::Config;
use crate::edge::{answer::REQUEST_ID, hints, http::malformed};
use crate::gateway;
use crate::ledger;
use crate::probe::{ANSWER_MAX_BYTES, Facts, context_said};
use crate::registry::Settings;
use crate::tokenizers;

/// When a scenario begins. Not at zero, which is what a worker that was never chosen shows.
const BEGIN: Duration = Duration::from_secs(1);

/// What Redis' clock shows then, in microseconds.
const REDIS_BEGINS_US: u64 = 1_000_000_000;

/// What goes back with a prefill's answer, and with the end of a request.
type Charged = (Option<books::Held>, Option<books::Held>);

/// The state that requests act on.
struct World<'a> {
    config: &'a Config,
    fleet: Arc<Fleet>,
    strategies: Strategies,
    knobs: Arc<Knobs>,
    dice: Dice,
    /// What the scenario says is in flight.
    _held: (Vec<Lease>, Vec<Charged>),
    /// When charges that were lost were last looked for, and what was found.
    swept: Instant,
    stale: Vec<Stale>,
    breaker: BreakerRule,
    measure: Arc<Measure>,
    line: Line,
    /// By request.
    flying: Vec<Flight>,
    house: House,
    /// Requests that are carried out, when something happens to them next, and when something has last.
    papers: Vec<(usize, Paper)>,
    due: BTreeSet<(Instant, usize)>,
    last: Instant,
    shows_legs: bool,
    requests: &'a [Incoming],
}

/// A request that was placed.
#[derive(Default)]
struct Flight {
    /// Its prefill, and its decode or whole worker.
    legs: [Option<Taken>; 2],
    /// What another try goes by.
    again: Option<Once>,
    /// Who was tried, the prefill first.
    tried: Vec<u32>,
    prefill: Option<String>,
    kv_charge: Option<u64>,
}

/// What a try goes by.
struct Once {
    ask: Ask,
    body: Envelope,
    routing: Routing,
    /// The decision tells the legs.
    shows: bool,
}

/// What happens at a moment. At one and the same, room is made before it is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// A context server says something else.
    Retold,
    PrefillDone,
    Fail,
    Done,
    Arrive,
    /// Of a request that arrives at the same moment.
    PrefillDoneAtOnce,
    FailAtOnce,
    DoneAtOnce,
}

/// What came of a scenario.
pub struct Played {
    /// One for each request, in the order of the scenario.
    pub decisions: Vec<Decision>,
    /// What of the workers' configs cannot be used.
    pub complaints: Vec<String>,
    /// When the last has happened, or at the moment that the scenario names.
    pub state: State,
    /// What was counted, where requests were carried out.
    pub counters: Option<Map<String, Value>>,
}

/// # Errors
/// A tokenizer that cannot be read.
pub fn play(scenario: &Scenario, config: &Config) -> Result<Played, String> {
    let mut world = World::new(scenario, config)?;
    let complaints = yard::complaints(&Fleet::default(), &world.fleet).into_iter();
    let complaints = complaints.map(|(worker, why)| format!("{} of {worker}: {why}", yard::CONFIG)).collect();
    let mut decisions: Vec<Option<Decision>> = scenario.requests.iter().map(|_| None).collect();
    let words = words(scenario);
    for (at, step, i) in agenda(scenario, &words) {
        let now = at.after(BEGIN);
        world.advance(now, &mut decisions);
        world.lose_patience(Some(now), &mut decisions);
        world.sweep(now);
        match step {
            Step::Retold => world.retold(words[i]),
            Step::Arrive => decisions[i] = Some(world.arrive(&scenario.requests[i], i, now)),
            Step::PrefillDone | Step::PrefillDoneAtOnce => world.prefill_done(i, now),
            Step::Fail | Step::FailAtOnce => {
                let failure = scenario.requests[i].failure;
                let again = failure.and_then(|failure| world.fail(failure, i, now));
                if let Some(decision) = decisions[i].as_mut() {
                    decision.retried = again.map(Box::new);
                }
            }
            Step::Done | Step::DoneAtOnce => {
                world.prefill_done(i, now);
                let answered = world.flying[i].legs[1].take();
                answered.into_iter().for_each(|taken| world.answered(&taken, now));
                world.leave(i, now, &mut decisions);
            }
        }
        if step != Step::Arrive {
            world.let_in(now, &mut decisions);
        }
    }
    world.advance(Instant::from_micros(u64::MAX), &mut decisions);
    world.lose_patience(None, &mut decisions);
    for (i, paper) in &world.papers {
        decisions[*i] = Some(paper.decision().under(&world.knobs, paper.routing()));
    }
    let last = world.last_moment(scenario);
    world.sweep(last);
    let state = State::of(&world.fleet, (&world.strategies, &world.knobs), &world.stale, last);
    let counters = world.house.counts();
    Ok(Played { decisions: decisions.into_iter().flatten().collect(), complaints, state, counters })
}

/// A worker's place, the worker, and what it says of its KV.
type Told<'a> = (u32, &'a Member, &'a Word);

/// What context servers say, by the worker and in the order of its words.
fn words(scenario: &Scenario) -> Vec<Told<'_>> {
    (0..)
        .zip(&scenario.workers)
        .flat_map(|(slot, member)| member.server_info.iter().map(move |word| (slot, member, word)))
        .collect()
}

fn agenda(scenario: &Scenario, words: &[Told<'_>]) -> Vec<(Instant, Step, usize)> {
    let retold = words.iter().enumerate().map(|(i, (.., word))| (word.at, Step::Retold, i));
    let mut agenda: Vec<_> = retold.collect();
    for (i, request) in scenario.requests.iter().enumerate() {
        let at_once = |at: Instant, later: Step, now: Step| if at == request.at { now } else { later };
        agenda.push((request.at, Step::Arrive, i));
        if let Some(at) = request.prefill_done_at {
            agenda.push((at, at_once(at, Step::PrefillDone, Step::PrefillDoneAtOnce), i));
        }
        if let Some(Failure { at, .. }) = request.failure {
            agenda.push((at, at_once(at, Step::Fail, Step::FailAtOnce), i));
        }
        if let Some(at) = request.done_at {
            agenda.push((at, at_once(at, Step::Done, Step::DoneAtOnce), i));
        }
    }
    // What a request does at the moment it arrives comes before the next one arrives.
    agenda.sort_by_key(|(at, step, i)| {
        let arrives = *step >= Step::Arrive;
        (*at, arrives, if arrives { *i } else { 0 }, *step, *i)
    });
    agenda
}

impl World<'_> {
    fn new<'a>(scenario: &'a Scenario, config: &'a Config) -> Result<World<'a>, String> {
        let settings = Settings::of(config, crate::clock::Clock::start(), scenario.seed);
        let mut held = Vec::new();
        let join = |(slot, member): (u32, &Member)| {
            let seat = Seat::new(slot, member.spec.worker(&member.name, None));
            if member.load.running.is_some() {
                seat.pulse.answers();
            }
            seat.pulse.set_status(if member.ready { Status::Ready } else { Status::NotReady });
            held.extend(member.load.take(&seat));
            member.load.tell(&seat);
            FleetChange::Join(seat)
        };
        let fleet = Fleet::new(settings.pairing).with((0..).zip(&scenario.workers).map(join));
        let fleet = Arc::new(fleet);
        let house = House::new(scenario, config, settings.handoff, Instant::ZERO.after(BEGIN));
        house.show(&fleet);
        let mut knobs = gateway::knobs(config);
        scenario.beyond.apply(Arc::make_mut(&mut knobs));
        let strategies = gateway::strategies(config, &knobs);
        let seats: Vec<Arc<Seat>> = fleet.seats().cloned().collect();
        if let Strategy::Cascade(cascade) = &strategies.pd
            && ledger::shares(config, &knobs)
        {
            cascade.books().hear(Arc::new(elsewhere(&fleet, &seats, &scenario.workers)));
        }
        let mut charged = Vec::new();
        for (seat, member) in seats.iter().zip(&scenario.workers) {
            if let Strategy::Cascade(cascade) = &strategies.pd {
                member.load.charge(seat, cascade.books(), &mut charged);
            }
            for (request, text) in each_of_both(&scenario.requests, &member.cached) {
                if let Some(ask) = as_prompt(request, text) {
                    strategies.has_computed(&fleet, seat, &ask.prompt, Instant::ZERO.after(BEGIN));
                }
            }
        }
        Ok(World {
            config,
            fleet,
            strategies,
            knobs,
            dice: Dice::new(scenario.seed),
            _held: (held, charged),
            swept: Instant::ZERO.after(BEGIN),
            stale: Vec::new(),
            breaker: gateway::breaker_rule(config),
            measure: Arc::new(tokenizers::measure(&config.affinity.tokenizers, config.aibrix.bucketing)?),
            line: Line::new(config.admission.decode_admission_wait),
            flying: scenario.requests.iter().map(|_| Flight::default()).collect(),
            house,
            papers: Vec::new(),
            due: BTreeSet::new(),
            last: Instant::ZERO.after(BEGIN),
            shows_legs: scenario.shows_legs,
            requests: &scenario.requests,
        })
    }

    fn arrive(&mut self, request: &Incoming, i: usize, now: Instant) -> Decision {
        let (mut ask, body) = match self.read(request) {
            Ok(read) => read,
            Err(fault) => return Decision::fault(&fault, Receipt::on()),
        };
        for id in request.headers.get_all(REQUEST_ID) {
            ask.hear_request_id(id.as_bytes());
        }
        hints::hear(&gateway::routing_key_headers(self.config), &request.headers, &mut ask);
        ask.wishes = hints::wishes(&request.headers);
        let routing = match resolve(&self.fleet, &ask, &self.knobs) {
            Ok(routing) => routing,
            Err(fault) => return Decision::fault(&fault, Receipt::on()),
        };
        if request.engine.is_some() {
            let around = Around { house: &self.house, fleet: &self.fleet, strategies: &self.strategies, now };
            let paper =
                Paper::begin(Arrived { ask, body, routing, dice: self.dice.split() }, request, &around);
            self.due.extend(paper.due(&around).map(|at| (at, self.papers.len())));
            let decision = paper.decision().under(&self.knobs, paper.routing());
            self.papers.push((i, paper));
            return decision;
        }
        let once = Once { shows: self.shows_legs, ask, body, routing };
        let want = place::want(&once.ask, &once.routing);
        let (decision, full) = if self.line.must_wait(want) {
            let shed = Fault::Shed { leg: LegName::Decode, rooms: want.rooms, widest: None };
            (Decision::fault(&shed, Receipt::on()).under(&self.knobs, &once.routing), true)
        } else {
            self.place(i, &once, now)
        };
        if full {
            self.line.enter(want, i, now);
        }
        // Only what waits, or will fail, is tried again.
        self.flying[i].again = (full || request.failure.is_some()).then_some(once);
        decision
    }

    /// Those whose turn it is try for a room, until nobody of them finds one.
    fn let_in(&mut self, now: Instant, decisions: &mut [Option<Decision>]) {
        let served = |world: &mut World<'_>, i: &usize| {
            let again = world.flying[*i].again.take()?;
            let (decision, _) = world.place(*i, &again, now);
            world.flying[*i].again = Some(again);
            world.flying[*i].legs.iter().any(Option::is_some).then_some((*i, decision))
        };
        while let Some((i, mut decision)) = self.line.next().iter().find_map(|i| served(self, i)) {
            decision.waited = self.line.leave(i).map(|since| now.since(since));
            decisions[i] = Some(decision);
        }
    }

    /// Its client has left: it waits no more.
    fn leave(&mut self, i: usize, now: Instant, decisions: &mut [Option<Decision>]) {
        if let (Some(since), Some(decision)) = (self.line.leave(i), decisions[i].as_mut()) {
            decision.waited = Some(now.since(since));
        }
    }

    /// Those who waited for long enough before this moment are told that there is no room.
    fn lose_patience(&mut self, now: Option<Instant>, decisions: &mut [Option<Decision>]) {
        while let Some((i, at)) = self.line.over(now) {
            self.leave(i, at, decisions);
            self.let_in(at, decisions);
        }
    }

    /// Chooses workers, not those that were tried for this request if there are others. True: it could be served, but
    /// for windows that are full.
    fn place(&mut self, i: usize, once: &Once, now: Instant) -> (Decision, bool) {
        let Once { ask, body, routing, shows } = once;
        let flight = &mut self.flying[i];
        let look = Look { routing: Some(routing), ..Look::new(&self.fleet, ask, now) };
        let look = Look { receipt: Receipt::on().into(), ..look.after(&flight.tried) };
        let mut dice = self.dice.split();
        let placement = self.strategies.of(routing).place(&look, &mut dice);
        let receipt = look.into_receipt();
        let full = matches!(placement, Err(Miss::Full(_)));
        let decision = match placement {
            Ok(placement) => {
                let mut decision = Decision::placed(&placement, receipt);
                if *shows {
                    let request = &self.requests[i];
                    let around =
                        Around { house: &self.house, fleet: &self.fleet, strategies: &self.strategies, now };
                    match paper::legs((ask, body), &mut dice, &placement, request, &around) {
                        Ok(told) => decision = decision.carried(told),
                        Err(fault) => return (decision.but(&fault).under(&self.knobs, routing), full),
                    }
                }
                flight.board(placement.into_legs());
                decision
            }
            Err(Miss::Nobody(fault) | Miss::Full(fault)) => Decision::fault(&fault, receipt),
        };
        (decision.under(&self.knobs, routing), full)
    }

    /// Another decode for what the prefill has computed.
    fn replace(&mut self, i: usize, (ask, routing): (&Ask, &Routing), now: Instant) -> Decision {
        let flight = &mut self.flying[i];
        let look = Look { routing: Some(routing), ..Look::new(&self.fleet, ask, now) };
        let look = Look { receipt: Receipt::on().into(), ..look.after(&flight.tried) };
        let strategy = self.strategies.of(routing);
        let prefill = flight.prefill.clone().unwrap_or_default();
        let computed = Computed { prefill: &prefill, kv_charge: flight.kv_charge };
        let decode = strategy.replace(&look, computed, &mut self.dice.split());
        let receipt = look.into_receipt();
        let decision = match decode {
            Some(decode) => {
                let decision = Decision::replaced(&prefill, &decode, receipt);
                flight.tried.push(decode.seat.slot);
                flight.legs = [None, Some(decode)];
                decision
            }
            None => {
                let none = Fault::NoWorker { leg: LegName::Decode, registered: true };
                Decision::fault(&none, receipt)
            }
        };
        decision.under(&self.knobs, routing)
    }

    /// A worker has failed the request: everything that it holds goes back, and what was expected of its prefill is
    /// not. Gives what another try comes to, if there is one.
    fn fail(&mut self, failure: Failure, i: usize, now: Instant) -> Option<Decision> {
        let legs = &mut self.flying[i].legs;
        // One that has no such leg, or none any more, does not fail.
        let blamed = legs[usize::from(!failure.of_prefill)].take()?;
        let legs = std::mem::take(legs);
        blamed.seat.pulse.record(Verdict::Bad, &self.breaker, now);
        drop((blamed, legs));
        let again = self.flying[i].again.take()?;
        let decision = match failure.retried? {
            Retried::Pair => self.place(i, &Once { shows: false, ..again }, now).0,
            Retried::Decode => self.replace(i, (&again.ask, &again.routing), now),
        };
        Some(decision)
    }

    fn read(&self, request: &Incoming) -> Result<(Ask, Envelope), Fault> {
        let max_bytes = self.config.limits.max_payload_bytes.get();
        let limits = BodyLimits { max_bytes, ..BodyLimits::default() };
        let body = Envelope::parse(request.body.clone(), &limits);
        let body = body.map_err(|e| malformed(&e, max_bytes as u64))?;
        let mut ask = Ask::read(request.api, &body)?;
        ask.prompt.measure_by(&self.measure);
        ask.prompt_tokens = request.prompt_tokens;
        Ok((ask, body))
    }

    /// All that happens until then to requests that are carried out.
    fn advance(&mut self, until: Instant, decisions: &mut [Option<Decision>]) {
        while let Some(&(at, k)) = self.due.first().filter(|(at, _)| *at <= until) {
            self.due.pop_first();
            self.lose_patience(Some(at), decisions);
            self.last = at;
            self.sweep(at);
            let around =
                Around { house: &self.house, fleet: &self.fleet, strategies: &self.strategies, now: at };
            if let Some((_, paper)) = self.papers.get_mut(k) {
                paper.turn(&around);
                self.due.extend(paper.due(&around).map(|at| (at, k)));
            }
            self.let_in(at, decisions);
        }
    }

    /// A worker is described by what it says of its KV, from now on, as when serving. The probe reads no more than so much.
    fn retold(&mut self, (slot, member, word): Told<'_>) {
        let read = Some(&word.body).filter(|body| body.len() <= ANSWER_MAX_BYTES);
        let labels = read.map(|body| context_said(word.status, body)).unwrap_or_default();
        let facts = Facts { labels, ..Facts::default() };
        let worker = Box::new(member.spec.worker(&member.name, Some(&facts)));
        self.fleet = Arc::new(self.fleet.with([FleetChange::Describe { slot, worker }]));
        self.house.show(&self.fleet);
    }

    /// Takes back what was lost, as often as a gateway does.
    fn sweep(&mut self, now: Instant) {
        let Strategy::Cascade(cascade) = &self.strategies.pd else { return };
        let passed = now.since(self.swept).as_secs() / SWEEP.as_secs();
        // Of several looks in a row the last two have the same effect as all.
        for back in (0..passed.min(2)).rev() {
            let at = self.swept.after(SWEEP.saturating_mul(u32::try_from(passed - back).unwrap_or(u32::MAX)));
            self.stale.extend(cascade.sweep(at));
            if back == 0 {
                self.swept = at;
            }
        }
    }

    /// The prompt is computed, and the place of its worker is free.
    fn prefill_done(&mut self, i: usize, now: Instant) {
        let legs = &mut self.flying[i].legs;
        legs.iter_mut().flatten().for_each(Taken::computed);
        if let Some(taken) = legs[0].take() {
            self.answered(&taken, now);
        }
    }

    fn answered(&self, taken: &Taken, now: Instant) {
        taken.seat.pulse.answers();
        taken.seat.pulse.record(Verdict::Good, &self.breaker, now);
    }

    /// When nothing is left to happen, or when the scenario says.
    fn last_moment(&self, scenario: &Scenario) -> Instant {
        let of = |request: &Incoming| {
            let failed = request.failure.map(|failure| failure.at);
            [Some(request.at), request.prefill_done_at, request.done_at, failed].into_iter().flatten().max()
        };
        let last = scenario.requests.iter().filter_map(of).max().unwrap_or(Instant::ZERO);
        scenario.until.unwrap_or(last).max(last).after(BEGIN).max(self.last)
    }
}

impl Flight {
    fn board(&mut self, legs: [Option<Taken>; 2]) {
        self.tried.extend(legs.iter().flatten().map(|taken| taken.seat.slot));
        self.prefill = legs[0].as_ref().map(|taken| taken.seat.worker.id.clone());
        self.kv_charge = legs[1].as_ref().and_then(Taken::kv_charge);
        self.legs = legs;
    }
}

/// What other gateways have charged workers with.
fn elsewhere(fleet: &Fleet, seats: &[Arc<Seat>], members: &[Member]) -> Others {
    let begin = Instant::ZERO.after(BEGIN);
    let clock = RedisClock::measured(REDIS_BEGINS_US, begin, begin);
    let mut reading = Reading::default();
    for (seat, member) in seats.iter().zip(members) {
        let mut fields = Vec::new();
        for own in &member.load.remote {
            let instance = own.instance.clone().into_bytes();
            reading.seen.insert(instance.clone(), clock.millis(own.seen.after(BEGIN)));
            fields.push((instance, own.value.clone().into_bytes()));
        }
        reading.hashes.push((key(&seat.worker), fields));
    }
    Others::of(&reading, &[], &keys(fleet), clock)
}

fn each_of_both<'a>(
    requests: &'a [Incoming],
    texts: &'a [String],
) -> impl Iterator<Item = (&'a Incoming, &'a str)> {
    texts.iter().flat_map(move |text| requests.iter().map(move |request| (request, text.as_str())))
}

/// The request with this text as its whole prompt: what a worker that has computed the text would have of it. `None`
/// if it is no request.
fn as_prompt(request: &Incoming, text: &str) -> Option<Ask> {
    let body = Envelope::parse(request.body.clone(), &BodyLimits::default()).ok()?;
    let quoted = serde_json::Value::from(text).to_string();
    let edit = match request.api {
        Api::Chat | Api::Messages | Api::CountTokens => {
            let first = body.get("messages").and_then(|list| scalar::elements(list).next());
            let role = first.and_then(|message| scalar::member(message, "role"));
            let role = role.map_or(r#""user""#.into(), String::from_utf8_lossy);
            Edit::set("messages", format!(r#"[{{"role":{role},"content":{quoted}}}]"#))
        }
        Api::Completions => Edit::set("prompt", quoted),
        Api::Generate => Edit::set("text", quoted),
        Api::Responses => Edit::set("input", quoted),
        Api::Rerank => Edit::set("query", quoted),
    };
    let body = Envelope::parse(body.splice(&[edit]).to_bytes(), &BodyLimits::default()).ok()?;
    Ask::read(request.api, &body).ok()
}

impl Held {
    /// Takes what is in flight. A prefill decodes nothing, so what is said of that does not count there.
    fn take(&self, seat: &Seat) -> Option<Lease> {
        let decoding = self.running.unwrap_or(0) + self.pending_decode;
        let all = match seat.worker.role {
            Role::Prefill | Role::Encode => self.prefill_in_flight,
            Role::Decode => decoding,
            Role::Whole => self.prefill_in_flight + decoding,
        };
        let rooms = u32::try_from(all).ok().filter(|rooms| *rooms > 0)?;
        seat.load.take_within(None, rooms)
    }

    /// Charges the worker with tokens that nothing gives back.
    fn charge(&self, seat: &Seat, books: &Arc<Books>, held: &mut Vec<Charged>) {
        let both = self.active_tokens.min(self.kv_tokens);
        let charge = |prefill: u64, decode: u64| {
            let of = |tokens: u64| (tokens > 0).then_some((seat.slot, tokens));
            let (prefill, decode) = (of(prefill), of(decode));
            let (at, ttl) = (Instant::ZERO.after(BEGIN), Duration::ZERO);
            let (active, rest) = books.charge(&mut books.open(), Charge { prefill, decode, at, ttl });
            (Some(active), Some(rest))
        };
        held.push(charge(both, self.decode_tokens));
        held.push((charge(self.active_tokens - both, 0).0, None));
        held.push((None, charge(self.kv_tokens - both, 0).1));
    }

    fn tell(&self, seat: &Seat) {
        let gauges = &seat.gauges;
        gauges.asked_after(seat.load.taken());
        gauges.running.set(self.running.map(|n| n as f64));
        gauges.waiting.set(self.waiting);
        gauges.prefill_prealloc.set(self.prefill_prealloc);
        gauges.decode_prealloc.set(self.decode_prealloc);
        gauges.throughput.set(self.throughput);
        gauges.kv_usage.set(self.kv_usage);
        gauges.drain_rate.set(self.drain_rate);
        gauges.prefill_time_sum_s.set(self.prefill_time_sum_s);
        gauges.prefill_time_count.set(self.prefill_time_count);
        gauges.host_kv_usage.set(self.host_kv_usage);
        gauges.pace.set(self.pace.or(self.throughput).filter(|pace| *pace > 0.0));
        gauges.utilization.set(self.utilization);
        gauges.busy.set(self.busy);
        gauges.queue_mean_s.set(self.queue_s);
        gauges.prefill_mean_s.set(self.prefill_s.or_else(|| gauges.prefill_ms().map(|ms| ms / 1000.0)));
        gauges.decode_mean_s.set(self.decode_s);
        gauges.prompt_mean.set(self.prompt_mean);
        gauges.answer_mean.set(self.answer_mean);
    }
}
