//! AIBrix's `pd` strategy, a cascade of steps, each a plain function of plain numbers.
//!
//! Settings come from the environment and the model's config ([`knobs`], [`profile`], [`words`]); what they come to for
//! one request is worked out once ([`resolve`]). The fleet is read as its labels describe it ([`yard`]), and sorted into
//! complete rolesets whose workers take a prompt of this length ([`pool`]). Two fast paths look for loads so uneven that
//! nothing else counts ([`fast`]), adaptive bucket serving prefers a roleset by the prompt's length ([`serve`],
//! [`bands`]), scores rank who is left ([`score`]), and the cheapest pair of one roleset wins ([`pick`]). Two scores go
//! by tokens that workers are charged with ([`ledger`], [`sessions`], [`books`]), by this gateway and by others ([`shared`]). [`live`] walks the steps on the
//! loads of this moment and takes the places.

pub mod bands;
pub mod books;
pub mod fast;
pub mod knobs;
pub mod ledger;
pub mod live;
pub mod pick;
pub mod pool;
pub mod profile;
pub mod read;
pub mod resolve;
pub mod score;
pub mod serve;
pub mod sessions;
pub mod shared;
mod shown;
pub mod sight;
pub mod traffic;
pub mod words;
pub mod yard;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use self::books::Books;
use self::knobs::{Knobs, ServeMode};
use self::ledger::Stale;
use self::live::Decision;
use self::pool::Sorted;
use self::resolve::Routing;
use self::serve::Serving;
use self::sessions::SessionRule;
use self::words::Way;
use super::holders::{self, Holders};
use super::policy::{holder, least};
use super::receipt::Receipt;
use super::{Computed, Look, Miss, Placement, Seats, Taken, Tuning};
use crate::ask::{Api, Ask};
use crate::dice::Dice;
use crate::fault::{Fault, LegName};
use crate::fleet::{Fleet, Seat};
use crate::kv::KvIndex;
use crate::prefix::{Memory, PrefixIndex};
use crate::prompt::Prompt;
use crate::time::Instant;

/// Models whose traffic step 2b remembers. For one more, the one that was not asked for longest is forgotten.
pub const MODELS_MAX: usize = 256;

/// Prompt tokens, as buckets and hints of profiles count them.
pub fn tokens(ask: &Ask) -> u64 {
    ask.prompt_tokens.unwrap_or_else(|| ask.prompt.size().tokens)
}

/// The strategy and what it remembers.
#[derive(Debug)]
pub struct Cascade {
    index: Memory,
    block_tokens: usize,
    /// What workers say that they hold.
    events: Option<Arc<KvIndex>>,
    books: Arc<Books>,
    sessions: SessionRule,
    /// Of a request that comes without a routing of its own.
    plain: Routing,
    /// Traffic and plans by model.
    serving: Mutex<BTreeMap<String, Serving>>,
}

impl Cascade {
    /// Knobs of requests come with their [`Routing`]; the ones here are for what requests share.
    pub fn new(knobs: &Arc<Knobs>, tuning: &Tuning) -> Cascade {
        Cascade {
            index: Memory::Tree(Arc::new(PrefixIndex::new(tuning.index_bytes))),
            block_tokens: tuning.block_tokens,
            events: None,
            books: Arc::default(),
            sessions: SessionRule { max: knobs.sessions_max, ttl: knobs.session_ttl },
            plain: Routing::plain(knobs),
            serving: Mutex::default(),
        }
    }

    /// Heeds what workers say that they hold.
    pub(super) fn hearing(self, events: &Arc<KvIndex>) -> Cascade {
        Cascade { events: Some(events.clone()), ..self }
    }

    /// The index of prompts.
    pub fn index(&self) -> &Memory {
        &self.index
    }

    /// What workers are charged with.
    pub fn books(&self) -> &Arc<Books> {
        &self.books
    }

    /// Takes back charges that were never given back, and forgets sessions that went quiet. To be called once in each
    /// [`books::SWEEP`].
    pub fn sweep(&self, now: Instant) -> Vec<Stale> {
        self.books.sweep(now)
    }

    pub(super) fn counts(&self, routing: &Routing) -> bool {
        let looks_up = routing.knobs.prefill_score.looks_up() && holders::looks_up(self.events.as_ref());
        routing.knobs.bucketing || looks_up
    }

    /// A pair, or a combined worker where step 0 or an overflow says so.
    pub(super) fn place(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
        look.known_model()?;
        if look.ask.api == Api::CountTokens {
            return prefill_alone(look, dice);
        }
        look.fleet.want_gauges();
        look.telling(|receipt| self.decision(look, receipt).place(dice, receipt))
    }

    /// Another decode for what this prefill has computed.
    pub(super) fn partner(&self, computed: Computed<'_>, look: &Look<'_>, dice: &mut Dice) -> Option<Taken> {
        look.telling(|receipt| self.decision(look, receipt).replace(computed, dice, receipt))
    }

    fn decision<'a>(&'a self, look: &'a Look<'a>, receipt: &mut Receipt) -> Decision<'a> {
        let routing = look.routing.unwrap_or(&self.plain);
        if receipt.is_on() {
            receipt.strategy = Way::Pd.as_str().to_owned();
            receipt.profile.clone_from(&routing.profile);
        }
        Decision::new(self, look, routing)
    }

    /// Who has how much of the prompt.
    fn holders(&self, look: &Look<'_>) -> Holders<'_> {
        let (block_tokens, events) = (self.block_tokens, self.events.as_ref());
        let indexes = holders::Indexes { sent: &self.index, block_tokens, events };
        Holders::of(indexes, look.fleet, look.ask, look.now)
    }

    /// This worker has the whole prompt.
    pub(super) fn has_computed(&self, fleet: &Fleet, seat: &Seat, prompt: &Prompt, now: Instant) {
        self.index.keep_only(fleet.version(), fleet.seats().map(|seat| holder(seat)));
        if let Some(mut mark) = self.index.hold(&prompt.blocks(self.block_tokens), holder(seat), now) {
            mark.keep();
        }
    }

    /// The group that the plan has for this length, and whether the plan is new. Counts the prompt, but for that of
    /// a retry. `None`: there is no model to plan for.
    fn advise(
        &self,
        sorted: &Sorted,
        mode: ServeMode,
        tokens: u64,
        look: &Look<'_>,
    ) -> Option<(Option<u32>, bool)> {
        let model = look.ask.model.as_deref().filter(|m| !m.is_empty())?;
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if !serving.contains_key(model) {
            if serving.len() >= MODELS_MAX {
                // Names are clients' where a worker serves any: those that nobody means must not stay for ever.
                let idle = serving.iter().min_by_key(|(_, own)| own.asked_at()).map(|(name, _)| name.clone());
                idle.and_then(|name| serving.remove(&name));
            }
            serving.insert(model.to_owned(), Serving::new(look.now));
        }
        let own = serving.get_mut(model)?;
        let groups: Vec<_> = sorted.groups.iter().map(|(_, group)| group.clone()).collect();
        if look.tried.is_empty() {
            own.observe(tokens, look.now);
        }
        let advice = own.advise(tokens, mode, &groups, look.now);
        let group = advice.group.and_then(|at| sorted.groups.get(at)).map(|(group, _)| *group);
        Some((group, advice.refreshed))
    }

    /// Shows what is remembered of each model's traffic, and the plans that are in use.
    pub fn each_serving(&self, mut show: impl FnMut(&str, &Serving)) {
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        serving.iter().for_each(|(model, own)| show(model, own));
    }

    /// The longest prompt that each roleset of the fleet is banded to, by the plans in use.
    pub fn band_maxima(&self, fleet: &Fleet) -> BTreeMap<String, u64> {
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        let there: BTreeSet<&str> = fleet.yard().groups.iter().map(String::as_str).collect();
        let mut all = BTreeMap::new();
        let maxima = serving.values().flat_map(Serving::maxima);
        for (roleset, max) in maxima.filter(|(roleset, _)| there.contains(roleset)) {
            let most = all.entry(roleset.to_owned()).or_insert(max);
            *most = max.max(*most);
        }
        all
    }
}

/// The roleset that adaptive bucket serving chose for the request, and the prompt's tokens. `None`: it chose nothing.
pub fn band(receipt: &Receipt, placement: &Placement, ask: &Ask) -> Option<(String, u64)> {
    let Placement::Pair { prefill, .. } = placement else { return None };
    let roleset = prefill.seat.worker.label(yard::ROLESET).unwrap_or_default();
    receipt.banded.then(|| (roleset.to_owned(), tokens(ask)))
}

/// A request that needs no decode: the least loaded prefill, else the least loaded worker that runs both phases.
fn prefill_alone(look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
    let fleet = look.fleet;
    let fresh = |seats: &Seats<'_>| -> bool { seats.iter().any(|s| !look.tried.contains(&s.slot)) };
    let mut take = |mut seats: Seats<'_>| -> Option<Taken> {
        if fresh(&seats) {
            seats.retain(|s| !look.tried.contains(&s.slot));
        }
        while let Some((seat, _)) = least(seats.iter().copied(), dice) {
            let taken = seat.load.take_within(seat.window, 1).map(|lease| Taken::new(seat, lease));
            if let Some(taken) = taken.filter(|t| t.seat.pulse.enter(look.now)) {
                return Some(taken);
            }
            let slot = seat.slot;
            seats.retain(|s| s.slot != slot);
        }
        None
    };
    let prefills = fleet.prefill().iter().map(|p| &p.seat).filter(|s| look.fits(s)).collect();
    if let Some(worker) = take(prefills) {
        return Ok(Placement::Prefill { worker });
    }
    let registered = !fleet.prefill().is_empty();
    take(fleet.whole().iter().filter(|s| look.fits(s)).collect())
        .map(|worker| Placement::Whole { worker })
        .ok_or(Miss::Nobody(Fault::NoWorker { leg: LegName::Prefill, registered }))
}
