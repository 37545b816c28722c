//! Where a request goes, and what its legs say. As the driver does it, with core's strategies and handoffs.

use baton_core::ask::Ask;
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::exchange::{Event, Leg, Order};
use baton_core::fan;
use baton_core::fault::{Fault, LegName};
use baton_core::handoff::{self, Mint, Pair, Plan};
use baton_core::place::receipt::Receipt;
use baton_core::place::{Computed, Look, Miss, Placement, Taken, cascade};
use baton_core::record::HandoffResult;

use super::super::output::Decision;
use super::super::request::Incoming;
use super::Paper;
use super::house::Around;
use super::told::{Sent, Source, Told};
use crate::edge::http::forwarded;

/// What the legs of a request on these workers would say.
///
/// # Errors
/// These workers cannot serve it, and no leg would be sent.
pub fn legs(
    (ask, body): (&Ask, &Envelope),
    dice: &mut Dice,
    placement: &Placement,
    request: &Incoming,
    around: &Around<'_>,
) -> Result<Told, Fault> {
    let mut told = Told::default();
    let part = part(body, ask, around);
    told.parts = part.as_ref().map(|(n, ..)| *n);
    let (body, ask) = part.as_ref().map_or((body, ask), |(_, body, ask)| (body, ask));
    let plan = plan(placement, ask, dice, around)?;
    let forward = forwarded(&request.headers, around.house.own_key);
    let source = Source { api: ask.api, forward: &forward, body };
    let [prefill, answering] = match placement {
        Placement::Whole { worker } | Placement::Prefill { worker } => [None, Some(worker)],
        Placement::Pair { prefill, decode } => [Some(prefill), Some(decode)],
    };
    let single = plan.course.order == Order::Single;
    for (leg, taken) in [(Leg::Prefill, prefill.filter(|_| !single)), (Leg::Decode, answering)] {
        let Some(taken) = taken else { continue };
        let mut all = Sent::of(&plan, leg, &taken.seat.worker).to_json(&source);
        if leg == Leg::Decode && plan.course.order == Order::InTurn {
            all.insert("after".into(), "prefill".into());
        }
        told.leg(all);
    }
    Ok(told)
}

/// The first part of a request that falls into several: how many, its body, and what that says.
fn part(body: &Envelope, ask: &Ask, around: &Around<'_>) -> Option<(u32, Envelope, Ask)> {
    let parts = fan::parts(around.fleet, ask);
    if parts < 2 {
        return None;
    }
    let body = Envelope::parse(fan::part(body, ask, 0), &BodyLimits::default()).ok()?;
    let mut own = Ask::read(ask.api, &body).ok()?;
    own.wishes.clone_from(&ask.wishes);
    own.prompt_tokens = ask.prompt_tokens;
    Some((parts, body, own))
}

fn plan(placement: &Placement, ask: &Ask, dice: &mut Dice, around: &Around<'_>) -> Result<Plan, Fault> {
    let pair = match placement {
        Placement::Whole { worker } => Pair::Whole(&worker.seat.worker),
        Placement::Prefill { worker } => Pair::Prefill(&worker.seat.worker),
        Placement::Pair { prefill, decode } => {
            Pair::Legs { prefill: &prefill.seat.worker, decode: &decode.seat.worker }
        }
    };
    let house = around.house;
    let mut mint = Mint { dice, unix_ms: house.unix_ms(around.now), serial: &house.serial };
    handoff::plan(pair, ask, &house.rules.handoff, &mut mint)
}

impl Paper {
    /// A request that falls into several is carried out as the first of them.
    pub(super) fn divide(&mut self, around: &Around<'_>) {
        if let Some((parts, body, ask)) = part(&self.body, &self.ask, around) {
            self.told.parts = Some(parts);
            (self.body, self.ask) = (body, ask);
        }
    }

    pub(super) fn place(&mut self, around: &Around<'_>) -> Event {
        let look = Look { routing: Some(&self.routing), ..Look::new(around.fleet, &self.ask, around.now) };
        let look = Look { receipt: Receipt::on().into(), ..look.after(&self.tried) };
        let placed = around.strategies.of(&self.routing).place(&look, &mut self.dice);
        let receipt = look.into_receipt();
        let placement = match placed {
            Ok(placement) => placement,
            Err(miss) => {
                let (fault, event): (_, fn(Fault) -> Event) = match miss {
                    Miss::Nobody(fault) => (fault, Event::Unplaced),
                    Miss::Full(fault) => (fault, Event::Full),
                };
                self.decision.get_or_insert_with(|| Decision::fault(&fault, receipt));
                return event(fault);
            }
        };
        self.record.band = cascade::band(&receipt, &placement, &self.ask);
        let plan = match plan(&placement, &self.ask, &mut self.dice, around) {
            Ok(plan) => plan,
            Err(fault) => {
                self.decision.get_or_insert_with(|| Decision::fault(&fault, receipt));
                return self.unplanned(placement, fault, around);
            }
        };
        self.decision.get_or_insert_with(|| Decision::placed(&placement, receipt));
        self.planned(placement, plan, around)
    }

    /// No leg is sent to these workers.
    fn unplanned(&mut self, placement: Placement, fault: Fault, around: &Around<'_>) -> Event {
        let legs = placement.into_legs();
        for taken in legs.iter().flatten() {
            taken.seat.pulse.step_back(around.now);
        }
        self.record.pd = legs[0].is_some();
        self.record.handoff = HandoffResult::unplanned(&fault);
        Event::Unplaced(fault)
    }

    fn planned(&mut self, placement: Placement, plan: Plan, around: &Around<'_>) -> Event {
        let record = &mut self.record;
        record.attempts = self.exchange.attempt();
        record.pd = !matches!(placement, Placement::Whole { .. });
        record.prefill = None;
        (record.mode, record.handoff) = (plan.mode, plan.result);
        let course = plan.course;
        self.answer.begins_anew();
        self.watch.begins(course.answers);
        self.plan = Some(plan);
        self.taken = placement.into_legs();
        self.kv_charge = self.taken[Leg::Decode as usize].as_ref().and_then(Taken::kv_charge);
        if course.order == Order::Single
            && let Some(prefill) = self.taken[Leg::Prefill as usize].take()
        {
            // The plan does without a prefill.
            prefill.seat.pulse.step_back(around.now);
            self.taken[Leg::Decode as usize].iter_mut().for_each(Taken::forgo_prefill);
        }
        let worker = |taken: &Option<Taken>| taken.as_ref().map(|taken| taken.seat.worker.clone());
        self.tried_before = self.tried.len();
        self.tried.extend(self.taken.iter().flatten().map(|taken| taken.seat.slot));
        let [prefill, answering] = [worker(&self.taken[0]), worker(&self.taken[1])];
        record.engine = answering.as_ref().map(|worker| worker.engine).unwrap_or_default();
        (record.prefill, record.decode) = match course.answers {
            LegName::Prefill => (answering, None),
            LegName::Decode | LegName::Whole => (prefill, answering),
        };
        Event::Placed(course)
    }

    /// Another decode for the KV that the prefill holds, under the plan and the hand-off that are there.
    pub(super) fn replace(&mut self, around: &Around<'_>) -> Event {
        let none = Fault::NoWorker { leg: LegName::Decode, registered: true };
        let look = Look { routing: Some(&self.routing), ..Look::new(around.fleet, &self.ask, around.now) };
        let look = look.after(&self.tried);
        let (Some(plan), Some(prefill)) = (&mut self.plan, &self.record.prefill) else {
            return Event::Unplaced(none);
        };
        let age = self.record.moments.prefill_done.map(|done| around.now.since(done));
        if age.is_none_or(|age| age > around.house.rules.exchange.reuse_max_age) {
            return Event::Unplaced(none);
        }
        let computed = Computed { prefill: &prefill.id, kv_charge: self.kv_charge };
        let replaced = around.strategies.of(&self.routing).replace(&look, computed, &mut self.dice);
        let Some(decode) = replaced else { return Event::Unplaced(none) };
        plan.ranks[Leg::Decode as usize] = handoff::rank(&decode.seat.worker);
        self.record.attempts = self.exchange.attempt();
        self.tried_before = self.tried.len();
        self.tried.push(decode.seat.slot);
        self.record.engine = decode.seat.worker.engine;
        self.record.decode = Some(decode.seat.worker.clone());
        self.taken[Leg::Decode as usize] = Some(decode);
        Event::Placed(plan.course)
    }
}
