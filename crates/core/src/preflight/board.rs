//! Who is tried with whom, and when; who is let in; what is shown.
//!
//! Every worker is tried with some partner, once in its life: a restart, another engine id or another description
//! begins a new one. So N prefill and M decode workers take about max(N, M) trials and not N times M. Workers that
//! are alike pair alike; so each two descriptions that pair are tried once too, with whoever is there.
//!
//! - A decode takes part in one trial at a time, because its counters are one for all.
//! - A worker whose partner is not there yet is not held: its requests could not be served anyway, and the partner
//!   is held when it comes.
//! - One that has found no decode with room for its trial is let in, and tried when there is some.
//! - One whose trials came to nothing serves, and is tried again later, a bounded number of times: what was wrong may
//!   have been mended without a restart of it.
//! - A worker in service that begins a new life goes on serving while it is tried: it was let in before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ready::{Ready, is_ready, shared_model};
use super::{
    AGAIN_MAX, AGAIN_PAUSE, AGAIN_PAUSE_MAX, FIRST_PAUSE, GIVE_UP, LAST_PAUSE, Outcome, Standing, State,
    TRIALS_MAX,
};
use crate::fleet::{Descriptor, Fleet, Seat, Worker};
use crate::handoff::{Proof, Rules, proof};
use crate::time::{Duration, Instant};

/// One tiny request through this pair.
#[derive(Clone, Debug)]
pub struct Trial {
    pub prefill: Arc<Seat>,
    pub decode: Arc<Seat>,
    pub model: Option<String>,
    pub proof: Proof,
}

/// What is to be done.
#[derive(Debug)]
pub enum Step {
    Try(Trial),
    /// The worker is held no longer.
    LetIn(Arc<Seat>),
    /// The worker's trials came to nothing, and it is left at that.
    GaveUp(Arc<Seat>),
}

/// What is to be done now, and when to look again if nothing happens before.
#[derive(Debug, Default)]
pub struct Look {
    pub steps: Vec<Step>,
    pub next: Option<Instant>,
}

/// What makes a worker another one than was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Life {
    count: u32,
    engine_ids: Option<BTreeMap<u32, String>>,
    descriptor: Descriptor,
}

/// A worker that was not yet tried in this life.
#[derive(Clone, Debug, Default)]
struct Need {
    /// When it was first seen with a partner.
    since: Option<Instant>,
    failed: u32,
    not_before: Instant,
    /// Whom it failed with last.
    avoid: Option<u32>,
    why: Option<(String, String)>,
    /// Nobody had room to try it with: it is not held for that.
    crowded: bool,
}

/// A worker whose trials came to nothing, and when it is tried once more.
#[derive(Clone, Copy, Debug)]
struct Again {
    at: Instant,
    done: u32,
}

#[derive(Debug)]
struct Entry {
    worker: Arc<Worker>,
    life: Life,
    need: Option<Need>,
    again: Option<Again>,
    standing: Standing,
}

#[derive(Debug)]
struct Running {
    trial: Trial,
    lives: [Life; 2],
}

/// See the top of this file.
#[derive(Debug)]
pub struct Board {
    hold: Duration,
    rules: Rules,
    entries: BTreeMap<u32, Entry>,
    running: Vec<Running>,
    /// Descriptions that were tried, each with those it was tried with. Those of workers that are not there any more
    /// are forgotten.
    kinds: BTreeMap<Descriptor, BTreeSet<Descriptor>>,
    /// Some may be left.
    kinds_due: bool,
}

impl Board {
    /// Workers are held for `hold` at most, from when they have a partner.
    pub fn new(hold: Duration, rules: Rules) -> Board {
        let (entries, kinds) = (BTreeMap::new(), BTreeMap::new());
        Board { hold, rules, entries, running: Vec::new(), kinds, kinds_due: false }
    }

    /// Are workers that become ready to be held?
    pub fn holds(&self, worker: &Worker) -> bool {
        !self.hold.is_zero() && worker.is_leg()
    }

    /// What is known of the worker in this slot. `None`: it is not ready, or no leg.
    pub fn standing(&self, slot: u32) -> Option<&Standing> {
        self.entries.get(&slot).map(|entry| &entry.standing)
    }

    /// Trials under way.
    pub fn trials(&self) -> usize {
        self.running.len()
    }

    /// What is to be done, with the fleet as it is now.
    pub fn look(&mut self, fleet: &Fleet, now: Instant) -> Look {
        self.meet(fleet);
        let ready = Ready::of(fleet);
        let mut look = Look::default();
        self.wait_for_partners(fleet, &ready, now, &mut look);
        self.try_workers(fleet, &ready, now, &mut look);
        self.try_kinds(&ready, &mut look);
        self.try_again(fleet, &ready, now, &mut look);
        self.let_in(fleet, now, &mut look);
        look
    }

    /// A trial with this decode is over.
    pub fn ended(&mut self, decode: u32, outcome: &Outcome, now: Instant) {
        let Some(at) = self.running.iter().position(|r| r.trial.decode.slot == decode) else { return };
        let Running { trial, lives } = self.running.swap_remove(at);
        let legs = [(&trial.prefill, &trial.decode), (&trial.decode, &trial.prefill)];
        for ((own, other), life) in legs.into_iter().zip(&lives) {
            if let Some(entry) = self.entries.get_mut(&own.slot).filter(|entry| entry.life == *life) {
                entry.learn(other, outcome, now);
            }
        }
    }

    /// Brings the entries in step with the fleet.
    fn meet(&mut self, fleet: &Fleet) {
        let before = self.entries.len();
        self.entries.retain(|slot, _| fleet.seat(*slot).is_some_and(|seat| is_ready(seat)));
        let mut changed = before != self.entries.len();
        for seat in legs(fleet) {
            let count = seat.pulse.life();
            let known = self.entries.get_mut(&seat.slot);
            if let Some(entry) = known {
                if Arc::ptr_eq(&entry.worker, &seat.worker) && entry.life.count == count {
                    continue;
                }
                entry.worker = seat.worker.clone();
                if entry.life == Life::of(seat, count) {
                    continue;
                }
            }
            changed = true;
            self.entries.insert(seat.slot, Entry::new(seat, Life::of(seat, count)));
        }
        if changed {
            self.kinds_due = true;
            let there: BTreeSet<&Descriptor> = self.entries.values().map(|e| &e.life.descriptor).collect();
            self.kinds.retain(|kind, _| there.contains(kind));
            self.kinds.values_mut().for_each(|with| with.retain(|kind| there.contains(kind)));
        }
    }

    /// Patience runs from the moment that a worker has a partner to be tried with.
    fn wait_for_partners<'a>(&mut self, fleet: &'a Fleet, ready: &Ready<'a>, now: Instant, look: &mut Look) {
        let rules = &self.rules;
        for (slot, entry) in &mut self.entries {
            let (Some(need), Some(seat)) = (&mut entry.need, fleet.seat(*slot)) else { continue };
            let mut with = ready.pairs(seat);
            if !with.any(|(p, d)| may_try(p, d, rules)) {
                (need.since, entry.standing.why) = (None, Some("no ready partner to try it with".to_owned()));
                continue;
            }
            if need.since.is_none() {
                (need.since, entry.standing.why) = (Some(now), None);
            }
            let limit = self.hold.max(GIVE_UP);
            if need.since.is_some_and(|since| now.since(since) >= limit) {
                entry.give_up(limit, now);
                look.steps.push(Step::GaveUp(seat.clone()));
            }
        }
    }

    fn try_workers<'a>(&mut self, fleet: &'a Fleet, ready: &Ready<'a>, now: Instant, look: &mut Look) {
        let since = |(slot, entry): (&u32, &Entry)| Some((entry.need.as_ref()?.since?, *slot));
        let mut waiting: Vec<(Instant, u32)> = self.entries.iter().filter_map(since).collect();
        // Whoever waits for longest goes first.
        waiting.sort_unstable();
        for (_, slot) in waiting {
            if self.running.len() >= TRIALS_MAX {
                return;
            }
            let Some(seat) = fleet.seat(slot).filter(|_| !self.is_tried(slot)) else { continue };
            let not_before = self.need(slot).map_or(now, |need| need.not_before);
            if not_before > now {
                look.next = earlier(look.next, not_before);
            } else if let Some(trial) = self.choose(seat, ready) {
                self.begin(trial, look);
            }
        }
    }

    /// Those that were left at that, if nobody waits for a first trial.
    fn try_again<'a>(&mut self, fleet: &'a Fleet, ready: &Ready<'a>, now: Instant, look: &mut Look) {
        let due = |(slot, entry): (&u32, &Entry)| Some((entry.again?.at, *slot));
        let mut waiting: Vec<(Instant, u32)> = self.entries.iter().filter_map(due).collect();
        waiting.sort_unstable();
        for (at, slot) in waiting {
            if at > now {
                look.next = earlier(look.next, at);
                return;
            }
            if self.running.len() >= TRIALS_MAX {
                return;
            }
            let Some(seat) = fleet.seat(slot).filter(|_| !self.is_tried(slot)) else { continue };
            if let Some(trial) = self.choose(seat, ready) {
                self.begin(trial, look);
            }
        }
    }

    /// The pair to try this worker in: with somebody who needs it too, whom it has not just failed with, and who has
    /// little to do; a decode with room before all others. `None`: whoever there is takes part in another trial.
    fn choose<'a>(&self, seat: &'a Arc<Seat>, ready: &Ready<'a>) -> Option<Trial> {
        let avoid = self.need(seat.slot).and_then(|need| need.avoid);
        let free = |(p, d): &(&Arc<Seat>, &Arc<Seat>)| !self.is_busy(d) && may_try(p, d, &self.rules);
        let mut best = None;
        let mut least = (true, true, true, u32::MAX);
        for (prefill, decode) in ready.pairs(seat).filter(free) {
            let other = if prefill.slot == seat.slot { decode } else { prefill };
            let settled = self.need(other.slot).is_none() || self.is_tried(other.slot);
            let rank = (!decode.has_room(1), avoid == Some(other.slot), settled, other.load.in_flight());
            if best.is_none() || rank < least {
                (best, least) = (Some((prefill, decode)), rank);
            }
            // There is none better, and a large fleet is not looked through.
            if rank == (false, false, false, 0) {
                break;
            }
        }
        best.and_then(|(prefill, decode)| self.trial(prefill, decode))
    }

    /// Descriptions that pair and were never tried together.
    fn try_kinds(&mut self, ready: &Ready<'_>, look: &mut Look) {
        if !self.kinds_due {
            return;
        }
        self.kinds_due = false;
        for group in &ready.groups {
            let Some(prefill) = group.prefills.iter().min_by_key(|p| p.load.in_flight()) else { continue };
            for decode in &group.decodes {
                if self.knows_kind(prefill, decode) {
                    continue;
                }
                let Some(trial) = self.trial(prefill, decode) else { continue };
                // What waits for its own trial is tried there.
                let settled = self.need(prefill.slot).is_none() && self.need(decode.slot).is_none();
                if settled && self.running.len() < TRIALS_MAX && !self.is_busy(decode) {
                    self.begin(trial, look);
                } else {
                    self.kinds_due = true;
                }
            }
        }
    }

    fn let_in(&mut self, fleet: &Fleet, now: Instant, look: &mut Look) {
        for (slot, entry) in &self.entries {
            let Some(seat) = fleet.seat(*slot) else { continue };
            let since = entry.need.as_ref().map(|need| need.since);
            let crowded = entry.need.as_ref().is_some_and(|need| need.crowded);
            let until = since.flatten().filter(|_| !crowded).map(|since| since.after(self.hold));
            if seat.pulse.is_held() {
                match until {
                    Some(until) if until > now => look.next = earlier(look.next, until),
                    _ => look.steps.push(Step::LetIn(seat.clone())),
                }
            }
            if let Some(since) = since.flatten() {
                look.next = earlier(look.next, since.after(self.hold.max(GIVE_UP)));
            }
        }
    }

    fn begin(&mut self, trial: Trial, look: &mut Look) {
        let life = |seat: &Seat| self.entries.get(&seat.slot).map(|entry| entry.life.clone());
        let Some((p, d)) = life(&trial.prefill).zip(life(&trial.decode)) else { return };
        self.kinds.entry(p.descriptor.clone()).or_default().insert(d.descriptor.clone());
        look.steps.push(Step::Try(trial.clone()));
        self.running.push(Running { trial, lives: [p, d] });
    }

    fn trial(&self, prefill: &Arc<Seat>, decode: &Arc<Seat>) -> Option<Trial> {
        let (model, proof) = could_try(prefill, decode, &self.rules)?;
        Some(Trial { prefill: prefill.clone(), decode: decode.clone(), model, proof })
    }

    fn need(&self, slot: u32) -> Option<&Need> {
        self.entries.get(&slot)?.need.as_ref()
    }

    fn knows_kind(&self, prefill: &Seat, decode: &Seat) -> bool {
        let of = |seat: &Seat| self.entries.get(&seat.slot).map(|entry| &entry.life.descriptor);
        of(prefill).zip(of(decode)).is_some_and(|(p, d)| self.kinds.get(p).is_some_and(|own| own.contains(d)))
    }

    fn is_tried(&self, slot: u32) -> bool {
        self.running.iter().any(|r| r.trial.prefill.slot == slot || r.trial.decode.slot == slot)
    }

    /// Its counters are watched for another trial. Ranks of one engine have one page of them.
    fn is_busy(&self, decode: &Seat) -> bool {
        let page = decode.worker.base_url();
        self.running.iter().any(|r| r.trial.decode.worker.base_url() == page)
    }
}

impl Life {
    fn of(seat: &Seat, count: u32) -> Life {
        let worker = &seat.worker;
        Life { count, engine_ids: worker.kv_engine_ids.clone(), descriptor: Descriptor::of(worker) }
    }
}

impl Entry {
    fn new(seat: &Seat, life: Life) -> Entry {
        let (need, standing) = (Some(Need::default()), Standing::default());
        Entry { worker: seat.worker.clone(), life, need, again: None, standing }
    }

    fn learn(&mut self, other: &Seat, outcome: &Outcome, now: Instant) {
        let partner = other.worker.url.clone();
        let why = outcome.why().map(str::to_owned);
        if let Outcome::Failed(_) | Outcome::Crowded = outcome {
            if let Some(need) = &mut self.need {
                need.not_before = now.after(pause(need.failed));
                need.failed = need.failed.saturating_add(1);
                need.crowded = *outcome == Outcome::Crowded;
                if let (Outcome::Failed(_), Some(why)) = (outcome, &why) {
                    (need.avoid, need.why) = (Some(other.slot), Some((partner.clone(), why.clone())));
                }
                (self.standing.partner, self.standing.why) = (Some(partner), why);
            }
            self.again = self.again.and_then(|again| again.after_one_more(now));
            return;
        }
        (self.need, self.again) = (None, None);
        if let Outcome::Degraded(_) = outcome {
            self.standing.degraded_with = Some(partner.clone());
        }
        if outcome.state() >= self.standing.state {
            (self.standing.state, self.standing.partner, self.standing.why) =
                (outcome.state(), Some(partner), why);
        }
    }

    /// It has waited for long enough.
    fn give_up(&mut self, limit: Duration, now: Instant) {
        let Some(need) = self.need.take() else { return };
        let (state, partner, why) = match need.why {
            Some((partner, why)) => (State::Failed, Some(partner), why),
            None if need.crowded => (State::Unchecked, None, "no decode had room for a trial".to_owned()),
            None => (State::Unchecked, None, format!("no trial ended within {} s", limit.as_secs())),
        };
        self.standing = Standing { state, partner, why: Some(why), ..Standing::default() };
        self.again = Some(Again { at: now.after(AGAIN_PAUSE), done: 0 });
    }
}

impl Again {
    /// One more trial has come to nothing. `None`: it was the last.
    fn after_one_more(self, now: Instant) -> Option<Again> {
        let done = self.done + 1;
        let pause = AGAIN_PAUSE.saturating_mul(1 << done.min(16)).min(AGAIN_PAUSE_MAX);
        (done < AGAIN_MAX).then(|| Again { at: now.after(pause), done })
    }
}

/// The pause after so many failed trials before.
fn pause(failed: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failed.min(16)).min(LAST_PAUSE)
}

/// What this pair could be asked for, and how it would show that KV moved.
fn could_try(prefill: &Seat, decode: &Seat, rules: &Rules) -> Option<(Option<String>, Proof)> {
    let proof = proof(&prefill.worker, &decode.worker, rules)?;
    Some((shared_model(prefill, decode)?.map(str::to_owned), proof))
}

/// Is there a trial for this pair?
fn may_try(prefill: &Seat, decode: &Seat, rules: &Rules) -> bool {
    proof(&prefill.worker, &decode.worker, rules).is_some() && shared_model(prefill, decode).is_some()
}

/// The ready legs of a fleet.
fn legs(fleet: &Fleet) -> impl Iterator<Item = &Arc<Seat>> {
    let prefills = fleet.prefill().iter().map(|p| &p.seat);
    prefills.chain(fleet.decode()).filter(|seat| is_ready(seat))
}

fn earlier(one: Option<Instant>, other: Instant) -> Option<Instant> {
    Some(one.map_or(other, |one| one.min(other)))
}
