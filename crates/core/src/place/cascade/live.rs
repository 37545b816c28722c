//! The cascade on live workers: loads are read, the steps are walked, and the places are taken, all as one step.
//!
//! Without a lock: a choice is made on the loads as they were seen, and its place is taken only if the load is still
//! that, else the choice is made anew. The decode of a chosen prefill is chosen anew alone, so that the prefill's place
//! is never given back and taken again. Where scores go by tokens ([`super::books`]) the books are open from the first
//! look to the charge, so that requests that are placed at the same time see each other's tokens too.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::books::Open;
use super::knobs::{DecodeScore, Knobs, PrefillScore};
use super::ledger::{Charge, prompt_tokens};
use super::pick::{self, Picked, Pool, Terms};
use super::pool::{Leg, Legs, Nobody, Sorted, Wanted, sort};
use super::resolve::Routing;
use super::sessions::Turn;
use super::shared::Remote;
use super::sight::{Candidate, Sight};
use super::yard::{Part, Pod, Yard};
use super::{Cascade, tokens};
use crate::dice::Dice;
use crate::fault::{Fault, LegName};
use crate::fleet::{Seat, Serving, has_answered};
use crate::load::Lease;
use crate::place::holders::Holders;
use crate::place::receipt::{Charged, Receipt};
use crate::place::{Computed, Look, Miss, Placement, Taken};

/// How often a choice is made anew because another request took the place first. Past it the place is taken whatever
/// the load, if the window has room.
const TRIES: usize = 64;

/// One decision.
pub struct Decision<'a> {
    cascade: &'a Cascade,
    look: &'a Look<'a>,
    routing: &'a Routing,
    yard: &'a Yard,
    serving: Serving,
    /// Prompt tokens, as buckets count them.
    tokens: u64,
    bytes: u64,
    /// Only where a score asks for it.
    prompt: Option<Holders<'a>>,
    /// The band that the plan has for the prompt, by group.
    band: Option<u32>,
    /// What the plan said, if it was asked.
    advised: Option<String>,
    /// Slots that are not to be chosen.
    out: SmallVec<[u32; 8]>,
}

/// A pair of which one leg is taken and the other chosen.
struct Half {
    prefill: Taken,
    /// Indices of the pods.
    chosen: usize,
    decode: usize,
}

impl<'a> Decision<'a> {
    pub fn new(cascade: &'a Cascade, look: &'a Look<'a>, routing: &'a Routing) -> Decision<'a> {
        let prompt = routing.knobs.prefill_score.looks_up().then(|| cascade.holders(look));
        let by_bytes = routing.knobs.prefill_score == PrefillScore::Conductor;
        let bytes = if by_bytes { look.ask.prompt.said_bytes() } else { 0 };
        let tokens = if routing.knobs.bucketing { tokens(look.ask) } else { 0 };
        let (yard, out) = (look.fleet.yard(), SmallVec::new());
        let serving = yard.serving(look.ask.model.as_deref());
        Decision {
            cascade,
            look,
            routing,
            yard,
            serving,
            tokens,
            bytes,
            prompt,
            band: None,
            advised: None,
            out,
        }
    }

    fn knobs(&self) -> &'a Knobs {
        &self.routing.knobs
    }

    /// Workers that were not tried before any that were. Where one leg has nobody else, the other one still has.
    pub fn place(&mut self, dice: &mut Dice, receipt: &mut Receipt) -> Result<Placement, Miss> {
        if !self.look.tried.is_empty() {
            let own = |part: Option<bool>| {
                let prefill = |slot: &u32| {
                    self.yard.pods.iter().any(|p| p.seat.slot == *slot && p.part == Part::Prefill)
                };
                let tried = self.look.tried.iter().copied();
                tried
                    .filter(|slot| part.is_none_or(|part| prefill(slot) == part))
                    .collect::<SmallVec<[u32; 8]>>()
            };
            for out in [own(None), own(Some(true)), own(Some(false))] {
                self.out = out;
                if let Ok(placement) = self.among_rest(dice, receipt) {
                    return Ok(placement);
                }
            }
            self.out.clear();
        }
        self.among_rest(dice, receipt).map_err(|nobody| self.miss(nobody))
    }

    fn among_rest(&mut self, dice: &mut Dice, receipt: &mut Receipt) -> Result<Placement, Nobody> {
        let mut tries = 0;
        loop {
            receipt.again();
            if let Some(held) = &self.prompt {
                receipt.step("index", held.anybody(), || held.summary());
            }
            let ready = self.ready(true);
            let sorted = sort(self.yard, &ready, self.wanted())?;
            self.advise(&sorted, receipt);
            if let Some(placement) = self.attempt(sorted, tries >= TRIES, dice, receipt)? {
                return Ok(placement);
            }
            tries += 1;
        }
    }

    fn wanted(&self) -> Wanted<'a> {
        Wanted {
            profile: self.routing.profile.as_deref(),
            bucketing: self.knobs().bucketing,
            tokens: self.tokens,
        }
    }

    /// Workers that serve the model and are well; of those that decode, those with room if that is asked for.
    fn ready(&self, room: bool) -> SmallVec<[usize; 64]> {
        let (bench, parts, rooms) = (self.yard.bench(), self.yard.parts(), self.look.rooms());
        let fits = |at: usize| {
            let row = bench.row(at);
            let open = !room || parts[at] == Part::Prefill || row.has_room(rooms);
            self.serving.has(row)
                && open
                && bench.available(at, self.look.now)
                && self.look.lets_slot(row.slot)
                && !self.out.contains(&row.slot)
        };
        let mut ready = SmallVec::with_capacity(bench.len());
        (0..bench.len()).filter(|at| fits(*at)).for_each(|at| ready.push(at));
        ready
    }

    /// Asks the plan of step 2b, once.
    fn advise(&mut self, sorted: &Sorted, receipt: &mut Receipt) {
        let serves = self.knobs().bucketing && self.knobs().bucket_serve;
        if !serves || sorted.only_combined || self.tokens == 0 {
            return;
        }
        if self.advised.is_none() {
            let advised = self.cascade.advise(sorted, self.knobs().serve_mode, self.tokens, self.look);
            self.band = advised.and_then(|(group, _)| group);
            self.advised = Some(if receipt.is_on() { self.said(advised) } else { String::new() });
        }
        if let Some(said) = self.advised.clone().filter(|_| receipt.is_on()) {
            receipt.step("bucket_plan", false, || said);
        }
    }

    /// In words: which roleset the plan has for the prompt, and whether the plan is new.
    fn said(&self, advised: Option<(Option<u32>, bool)>) -> String {
        let Some((group, refreshed)) = advised else { return "no model, no plan".to_owned() };
        let name = group.and_then(|group| self.yard.groups.get(group as usize));
        let whose = name.map_or("nobody's band", String::as_str);
        let age = if refreshed { "a new plan" } else { "the plan in use" };
        format!("{age} in mode {}: {} tokens go to {whose}", self.knobs().serve_mode.as_str(), self.tokens)
    }

    /// One choice. `None`: the load has changed before the place was taken, or a breaker let another request through.
    fn attempt(
        &mut self,
        sorted: Sorted,
        whatever: bool,
        dice: &mut Dice,
        receipt: &mut Receipt,
    ) -> Result<Option<Placement>, Nobody> {
        let mut open = self.books(self.knobs().prefill_score.charges());
        let see = |legs: &Legs| legs.iter().map(|leg| self.see(*leg, &sorted, open.as_deref())).collect();
        let mut pool = Pool {
            prefill: see(&sorted.prefill),
            decode: see(&sorted.decode),
            combined: see(&sorted.combined),
        };
        let terms = Terms { knobs: self.knobs(), bytes: self.bytes, band: self.band };
        let picked = if sorted.only_combined {
            receipt.step("bucket", true, || "no pair takes a prompt of this length".to_owned());
            pick::idlest(&pool.combined, true, dice, receipt).map(Picked::Combined)
        } else {
            pick::pick_of_sorted(&mut pool, &terms, dice, receipt)
        };
        Ok(match picked.ok_or(Nobody::AllSkipped)? {
            Picked::Combined(at) => {
                let worker = self.take(at, &pool.combined, self.look.rooms(), whatever);
                worker.map(|mut worker| {
                    // It computes the prompt as a prefill would: strategies for whole workers look for that.
                    if let Some(held) = &self.prompt {
                        held.goes_to(&mut worker, receipt);
                    }
                    Placement::Whole { worker }
                })
            }
            Picked::Pair { prefill: chosen, decode } => match self.take(chosen, &pool.prefill, 1, whatever) {
                None => None,
                Some(prefill) => {
                    let half = Half { prefill, chosen, decode };
                    self.with_decode(half, (&mut pool, &sorted), &mut open, (dice, receipt))
                }
            },
        })
    }

    /// The prefill's place is taken: the decode's too, and then the charge is made.
    fn with_decode(
        &mut self,
        half: Half,
        (pool, sorted): (&mut Pool<'a>, &Sorted),
        open: &mut Option<MutexGuard<'_, Open>>,
        (dice, receipt): (&mut Dice, &mut Receipt),
    ) -> Option<Placement> {
        let Half { mut prefill, chosen, decode: mut at } = half;
        let own = of(&pool.prefill, chosen)?;
        let (group, matched) = (own.roleset, own.sight.matched_pct);
        let mut tries = 0;
        let mut decode = loop {
            if let Some(decode) = self.take(at, &pool.decode, self.look.rooms(), tries > TRIES) {
                break decode;
            }
            tries += 1;
            // All of its partners, whomever the steps had left.
            let may = |(at, own): &&Leg| {
                let row = self.yard.bench().row(*at);
                *own == group && row.has_room(self.look.rooms()) && !self.out.contains(&row.slot)
            };
            let legs = sorted.decode.iter().filter(may);
            pool.decode = legs.map(|leg| self.see(*leg, sorted, open.as_deref())).collect();
            let Some(next) = pick::decode_alone(&pool.decode, self.knobs(), dice, receipt) else {
                // Others took the rooms of all its partners: another prefill may still have one.
                prefill.seat.pulse.step_back(self.look.now);
                return None;
            };
            at = next;
        };
        if let Some(open) = open {
            self.charge(open, (&mut prefill, &mut decode), matched, receipt);
        }
        if let Some(held) = &self.prompt {
            held.goes_to(&mut prefill, receipt);
        }
        Some(Placement::Pair { prefill, decode })
    }

    /// The place of a chosen one, if its load is as it was seen and its breaker lets the request through.
    fn take(&mut self, at: usize, seen: &[Candidate<'_>], rooms: u32, whatever: bool) -> Option<Taken> {
        let seat = &self.yard.pods[at].seat;
        let count = of(seen, at)?.sight.count;
        let lease: Option<Lease> = if whatever {
            seat.load.take_within(seat.window, rooms)
        } else if seat.fits_in(count, rooms) {
            seat.load.take_if(count, rooms)
        } else {
            None
        };
        let taken = Taken::new(seat, lease?);
        if taken.seat.pulse.enter(self.look.now) {
            return Some(taken);
        }
        self.out.push(seat.slot);
        None
    }

    /// One candidate, and what is known of it now, as far as its part in this decision asks for it.
    fn see(&self, (at, roleset): Leg, sorted: &Sorted, open: Option<&Open>) -> Candidate<'a> {
        let (pod, load) = (&self.yard.pods[at], &self.yard.bench().row(at).load);
        let mut sight = Sight { count: load.in_flight(), ..Sight::default() };
        if pod.part == Part::Prefill {
            sight.matched_pct = self.prompt.as_ref().map_or(0, |held| held.percent(&pod.seat));
            if self.knobs().prefill_score == PrefillScore::Conductor {
                sight.prefill_ms = pod.seat.gauges.prefill_ms();
            }
        } else {
            let gauges = &pod.seat.gauges;
            sight.observed = has_answered(load) || gauges.observed();
            (sight.throughput, sight.kv_usage) = (gauges.throughput.get(), gauges.kv_usage.get());
        }
        // How long queues are counts where a combined worker may step in; how fast they drain, of decodes too.
        if !sorted.combined.is_empty() || pod.part == Part::Decode {
            let gauges = &pod.seat.gauges;
            sight.drain = gauges.drain_rate.get();
            sight.waiting = match gauges.waiting.get() {
                Some(_) => gauges.waiting_for_anything(),
                None => estimated(pod.part, sight.count, sight.drain),
            };
        }
        if let Some(tokens) = open.map(|open| open.ledger.tokens(pod.seat.slot)) {
            (sight.active_tokens, sight.kv_tokens) = (tokens.active, tokens.kv);
            (sight.decode_tokens, sight.decode_secs) = (tokens.decode, tokens.decode_secs(self.look.now));
            sight.remote = self.elsewhere(pod, open);
        }
        Candidate { name: &pod.id, at, roleset, sight }
    }

    /// What other gateways have charged the worker with.
    fn elsewhere(&self, pod: &Pod, open: Option<&Open>) -> Remote {
        let counts = pod.part == Part::Decode && self.knobs().decode_score == DecodeScore::TokenLoad;
        let open = open.filter(|_| counts);
        open.map(|open| open.others.on(pod.seat.slot, self.look.now)).unwrap_or_default()
    }

    /// The books, where scores or charges go by them: of the prefill, or of the decode.
    fn books(&self, of_prefill: bool) -> Option<MutexGuard<'a, Open>> {
        let of_decode = self.knobs().decode_score == DecodeScore::TokenLoad;
        if of_decode {
            self.cascade.books.want_others();
        }
        (of_decode || of_prefill).then(|| self.cascade.books.open())
    }

    fn charge(
        &self,
        open: &mut Open,
        (prefill, decode): (&mut Taken, &mut Taken),
        matched: u32,
        receipt: &mut Receipt,
    ) {
        let (knobs, ask, now) = (self.knobs(), self.look.ask, self.look.now);
        let prompt = prompt_tokens(ask.size);
        let turn = Turn {
            model: ask.model.as_deref().unwrap_or_default(),
            key: self.routing.session_key.as_deref(),
            prompt_tokens: prompt,
            matched_pct: knobs.prefill_score.looks_up().then(|| knobs.counted(matched)),
            ttl: knobs.session_ttl,
            again: !self.look.tried.is_empty(),
        };
        let of_prefill = knobs.prefill_score.charges().then(|| {
            let (new, by) = open.sessions.new_by(&turn, self.cascade.sessions, now);
            let cost = knobs.request_cost;
            receipt.step("charge", false, || {
                format!("{cost} for the request, {new} new tokens of {prompt}: {by}")
            });
            (prefill.seat.slot, cost.saturating_add(new))
        });
        let of_decode = self.decode_charge(decode);
        let charge = Charge { prefill: of_prefill, decode: of_decode, at: now, ttl: knobs.charge_ttl };
        let (active, rest) = self.cascade.books.charge(open, charge);
        (prefill.charge, decode.charge) = (Some(active), Some(rest));
        tell_charge(receipt, &prefill.seat, "active", of_prefill);
        tell_charge(receipt, &prefill.seat, "kv", of_prefill);
        tell_charge(receipt, &decode.seat, "decode", of_decode);
    }

    /// The whole prompt, all of whose KV the decode receives.
    fn decode_charge(&self, decode: &Taken) -> Option<(u32, u64)> {
        let charges = self.knobs().decode_score == DecodeScore::TokenLoad;
        charges.then(|| (decode.seat.slot, prompt_tokens(self.look.ask.size)))
    }

    /// What to say when nobody can be chosen: windows say most, because room may come.
    fn miss(&self, nobody: Nobody) -> Miss {
        let (rooms, all) = (self.look.rooms(), self.ready(false));
        if all.len() > self.ready(true).len()
            && let Ok(sorted) = sort(self.yard, &all, self.wanted())
        {
            let (list, leg) = match sorted.only_combined {
                true => (&sorted.combined, LegName::Whole),
                false => (&sorted.decode, LegName::Decode),
            };
            let widest = list.iter().filter_map(|(at, _)| self.yard.pods[*at].seat.window).max();
            return match widest.filter(|widest| *widest < rooms) {
                Some(widest) => Miss::Nobody(Fault::Shed { leg, rooms, widest: Some(widest) }),
                None => Miss::Full(Fault::Shed { leg, rooms, widest: None }),
            };
        }
        Miss::Nobody(Fault::Unroutable { reason: nobody.to_string() })
    }

    /// Another decode for what this prefill has computed, by step 4 alone. What the request holds there is charged
    /// again as it was: its charge went back with the decode that is gone.
    pub fn replace(
        &mut self,
        computed: Computed<'_>,
        dice: &mut Dice,
        receipt: &mut Receipt,
    ) -> Option<Taken> {
        let own = self.yard.pod(computed.prefill).filter(|pod| pod.part == Part::Prefill)?;
        self.out = self.look.tried.into();
        let kv = computed.kv_charge.map(|tokens| (own.seat.slot, tokens));
        self.decode_for((own, kv), dice, receipt).or_else(|| {
            self.out.clear();
            self.decode_for((own, kv), dice, receipt)
        })
    }

    fn decode_for(
        &mut self,
        (prefill, kv): (&Pod, Option<(u32, u64)>),
        dice: &mut Dice,
        receipt: &mut Receipt,
    ) -> Option<Taken> {
        let group = *prefill.groups.first()?;
        let knobs = self.knobs();
        let mut tries = 0;
        loop {
            receipt.again();
            let mut open = self.books(kv.is_some());
            let own = |at: &usize| {
                let pod = &self.yard.pods[*at];
                pod.part == Part::Decode && pod.groups.contains(&group)
            };
            let decode: Legs = self.ready(true).into_iter().filter(own).map(|at| (at, group)).collect();
            let sorted = Sorted { decode, ..Sorted::default() };
            let see = |leg: &Leg| self.see(*leg, &sorted, open.as_deref());
            let list: Vec<_> = sorted.decode.iter().map(see).collect();
            let at = pick::decode_alone(&list, knobs, dice, receipt)?;
            if let Some(mut taken) = self.take(at, &list, self.look.rooms(), tries >= TRIES) {
                if let Some(open) = &mut open {
                    let decode = self.decode_charge(&taken);
                    let charge = Charge { prefill: kv, decode, at: self.look.now, ttl: knobs.charge_ttl };
                    taken.charge = Some(self.cascade.books.charge_rest(open, charge));
                    tell_charge(receipt, &prefill.seat, "kv", kv);
                    tell_charge(receipt, &taken.seat, "decode", decode);
                }
                return Some(taken);
            }
            tries += 1;
        }
    }
}

/// The candidate with this index. They are in the order of their names, and so of their indices.
fn of<'c, 'a>(list: &'c [Candidate<'a>], at: usize) -> Option<&'c Candidate<'a>> {
    list.get(list.binary_search_by_key(&at, |c| c.at).ok()?)
}

fn tell_charge(receipt: &mut Receipt, seat: &Seat, what: &'static str, charged: Option<(u32, u64)>) {
    if let Some((_, tokens)) = charged.filter(|_| receipt.is_on()) {
        receipt.charges.push(Charged { worker: seat.worker.id.clone(), what, tokens });
    }
}

/// Requests that wait on a worker that does not say so, by what the gateway has there: a prefill computes one prompt
/// and the others wait; a decode runs all that its window lets in; a worker for both phases is not idle while it has
/// any. Where nothing was finished yet, nobody can say how long that takes, and nobody waits.
fn estimated(part: Part, count: u32, drain: Option<f64>) -> f64 {
    match part {
        Part::Prefill if drain.is_some_and(|rate| rate > 0.0) => f64::from(count.saturating_sub(1)),
        Part::Whole => f64::from(count),
        Part::Prefill | Part::Decode => 0.0,
    }
}
