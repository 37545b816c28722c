//! A scenario played: the fleet that it describes, and its requests in the order of time.
//!
//! Nothing is decided here. Settings come from [`Config`], workers are described by [`crate::registry::Spec`], requests
//! are read by [`Ask`] and placed by [`Strategies`], each as when serving; what is missing is the network.

use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Edit, Envelope, scalar};
use baton_core::dice::Dice;
use baton_core::fault::Fault;
use baton_core::fleet::{Fleet, FleetChange, Role, Seat, Status};
use baton_core::load::Lease;
use baton_core::place::cascade::books::{self, Books, SWEEP};
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::cascade::ledger::Charge;
use baton_core::place::cascade::resolve::resolve;
use baton_core::place::cascade::yard;
use baton_core::place::receipt::Receipt;
use baton_core::place::{Look, Miss, Placement, Strategies, Strategy, Taken};
use baton_core::time::{Duration, Instant};

use super::output::Decision;
use super::scenario::{Held, Incoming, Member, Scenario};
use crate::config::Config;
use crate::edge::{hints, http::malformed};
use crate::gateway;
use crate::registry::Settings;

/// When a scenario begins. Not at zero, which is what a worker that was never chosen shows.
const BEGIN: Duration = Duration::from_secs(1);

/// What goes back with a prefill's answer, and with the end of a request.
type Charged = (Option<books::Held>, Option<books::Held>);

/// The state that requests act on.
struct World<'a> {
    config: &'a Config,
    fleet: Fleet,
    strategies: Strategies,
    knobs: Arc<Knobs>,
    dice: Dice,
    /// What the scenario says is in flight.
    _held: (Vec<Lease>, Vec<Charged>),
    /// When charges that were lost were last looked for.
    swept: Instant,
    /// By request: its prefill, and its decode or whole worker.
    flying: Vec<[Option<Taken>; 2]>,
}

/// What happens at a moment. At one and the same, room is made before it is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    PrefillDone,
    Done,
    Arrive,
    /// Of a request that arrives at the same moment.
    PrefillDoneAtOnce,
    DoneAtOnce,
}

/// One decision for each request, in the order of the scenario, and what of the workers' configs cannot be used.
pub fn play(scenario: &Scenario, config: &Config) -> (Vec<Decision>, Vec<String>) {
    let mut world = World::new(scenario, config);
    let complaints = yard::complaints(&Fleet::default(), &world.fleet).into_iter();
    let complaints = complaints.map(|(worker, why)| format!("{} of {worker}: {why}", yard::CONFIG)).collect();
    let mut decisions: Vec<Option<Decision>> = scenario.requests.iter().map(|_| None).collect();
    for (at, step, i) in agenda(&scenario.requests) {
        let now = at.after(BEGIN);
        world.sweep(now);
        match step {
            Step::Arrive => decisions[i] = Some(world.arrive(&scenario.requests[i], i, now)),
            Step::PrefillDone | Step::PrefillDoneAtOnce => world.prefill_done(i),
            Step::Done | Step::DoneAtOnce => {
                world.prefill_done(i);
                if let Some(answered) = world.flying[i][1].take() {
                    answered.seat.pulse.answers();
                }
            }
        }
    }
    (decisions.into_iter().flatten().collect(), complaints)
}

fn agenda(requests: &[Incoming]) -> Vec<(Instant, Step, usize)> {
    let mut agenda = Vec::new();
    for (i, request) in requests.iter().enumerate() {
        let at_once = |at: Instant, later: Step, now: Step| if at == request.at { now } else { later };
        agenda.push((request.at, Step::Arrive, i));
        if let Some(at) = request.prefill_done_at {
            agenda.push((at, at_once(at, Step::PrefillDone, Step::PrefillDoneAtOnce), i));
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
    fn new<'a>(scenario: &Scenario, config: &'a Config) -> World<'a> {
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
        let knobs = gateway::knobs(config);
        let strategies = gateway::strategies(config, &knobs);
        let seats: Vec<Arc<Seat>> = fleet.seats().cloned().collect();
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
        World {
            config,
            fleet,
            strategies,
            knobs,
            dice: Dice::new(scenario.seed),
            _held: (held, charged),
            swept: Instant::ZERO.after(BEGIN),
            flying: scenario.requests.iter().map(|_| [None, None]).collect(),
        }
    }

    fn arrive(&mut self, request: &Incoming, i: usize, now: Instant) -> Decision {
        let mut ask = match self.read(request) {
            Ok(ask) => ask,
            Err(fault) => return Decision::fault(&fault, Receipt::on()),
        };
        hints::hear(&gateway::routing_key_headers(self.config), &request.headers, &mut ask);
        ask.wishes = hints::wishes(&request.headers);
        let routing = match resolve(&self.fleet, &ask, &self.knobs) {
            Ok(routing) => routing,
            Err(fault) => return Decision::fault(&fault, Receipt::on()),
        };
        let look = Look { routing: Some(&routing), ..Look::new(&self.fleet, &ask, now) };
        let look = Look { receipt: Receipt::on().into(), ..look };
        let placement = self.strategies.of(&routing).place(&look, &mut self.dice.split());
        let receipt = look.into_receipt();
        match placement {
            Ok(placement) => {
                let decision = Decision::placed(&placement, receipt);
                self.flying[i] = match placement {
                    Placement::Whole { worker } => [None, Some(worker)],
                    Placement::Prefill { worker } => [Some(worker), None],
                    Placement::Pair { prefill, decode } => [Some(prefill), Some(decode)],
                };
                decision
            }
            Err(Miss::Nobody(fault) | Miss::Full(fault)) => Decision::fault(&fault, receipt),
        }
    }

    fn read(&self, request: &Incoming) -> Result<Ask, Fault> {
        let max_bytes = self.config.limits.max_payload_bytes.get();
        let limits = BodyLimits { max_bytes, ..BodyLimits::default() };
        let body = Envelope::parse(request.body.clone(), &limits);
        let body = body.map_err(|e| malformed(&e, max_bytes as u64))?;
        let mut ask = Ask::read(request.api, &body)?;
        ask.prompt_tokens = request.prompt_tokens;
        Ok(ask)
    }

    /// Takes back what was lost, as often as a gateway does.
    fn sweep(&mut self, now: Instant) {
        let Strategy::Cascade(cascade) = &self.strategies.pd else { return };
        let passed = now.since(self.swept).as_secs() / SWEEP.as_secs();
        // Of several looks in a row the last two have the same effect as all.
        for back in (0..passed.min(2)).rev() {
            let at = self.swept.after(SWEEP.saturating_mul(u32::try_from(passed - back).unwrap_or(u32::MAX)));
            cascade.sweep(at);
            if back == 0 {
                self.swept = at;
            }
        }
    }

    /// The prompt is computed, and the place of its worker is free.
    fn prefill_done(&mut self, i: usize) {
        for taken in self.flying[i].iter_mut().flatten() {
            taken.computed();
        }
        if let Some(answered) = self.flying[i][0].take() {
            answered.seat.pulse.answers();
        }
    }
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
    }
}
