//! SMG's strategy: the prefill policy picks among prefills that have an available partner, then the
//! decode policy picks among that prefill's partners (SMG 1.13).
//!
//! A worker whose window is full is no candidate, and a prefill all of whose partners are full is none
//! either: nothing is computed that would then have to wait for a decode.

use std::sync::Arc;

use super::field::{Field, Teams};
use super::telling;
use super::{Indexes, Look, Miss, Placement, Policy, Taken};
use crate::ask::Api;
use crate::dice::Dice;
use crate::fault::{Fault, LegName};
use crate::fleet::{Role, Seat, Serving};
use crate::kv::KvIndex;

/// One policy a leg, each with its own state. Whole workers have a third.
#[derive(Debug)]
pub struct Legwise {
    pub prefill: Policy,
    pub decode: Policy,
    pub whole: Policy,
}

impl Legwise {
    pub(super) fn hearing(self, events: &Arc<KvIndex>) -> Legwise {
        let Legwise { prefill, decode, whole } = self;
        Legwise {
            prefill: prefill.hearing(events),
            decode: decode.hearing(events),
            whole: whole.hearing(events),
        }
    }

    pub(super) fn counts(&self) -> bool {
        [&self.prefill, &self.decode, &self.whole].into_iter().any(Policy::counts)
    }

    pub(super) fn indexes(&self) -> Indexes {
        let legs = [
            (LegName::Prefill, &self.prefill),
            (LegName::Decode, &self.decode),
            (LegName::Whole, &self.whole),
        ];
        legs.into_iter().filter_map(|(leg, policy)| Some((leg.as_str(), policy.index()?.clone()))).collect()
    }

    /// The policy that chooses workers like this one.
    pub(super) fn of(&self, seat: &Seat) -> &Policy {
        match seat.worker.role {
            Role::Prefill | Role::Encode => &self.prefill,
            Role::Decode => &self.decode,
            Role::Whole => &self.whole,
        }
    }

    /// A pair (or a prefill, where that is all it takes) if one can serve, else a whole worker.
    pub(super) fn place(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
        telling::begin(look);
        let placed = self.choose(look, dice);
        telling::end(look, placed.as_ref().ok());
        placed
    }

    fn choose(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
        look.known_model()?;
        let serving = look.fleet.serving(look.ask.model.as_deref());
        if let Some(placement) = self.legs(look, &serving, dice) {
            return Ok(placement);
        }
        let mut field = Field::of(look, look.fleet.wholes(), &serving, look.rooms());
        match pick(&self.whole, &mut field, dice) {
            Some(worker) => Ok(Placement::Whole { worker }),
            None => Err(self.nobody(look)),
        }
    }

    /// Why neither legs nor a whole worker serve it.
    fn nobody(&self, look: &Look<'_>) -> Miss {
        let pair = match look.ask.api {
            Api::CountTokens => {
                let registered = !look.fleet.prefill().is_empty();
                Miss::Nobody(Fault::NoWorker { leg: LegName::Prefill, registered })
            }
            _ => self.absent(look),
        };
        let well = || look.fleet.whole().iter().filter(|s| look.fits(s));
        let full = match self.whole.sheds(well(), look) {
            true => Some(shed(LegName::Whole, look)),
            false => full(well(), LegName::Whole, look).filter(|_| !self.whole.takes_names(look)),
        };
        self.whole_missing(pair, full, look)
    }

    /// What to say when there is no pair and no whole worker either. Room that may come says most, then a
    /// request that is too wide, then whatever the legs lack.
    fn whole_missing(&self, pair: Miss, whole: Option<Miss>, look: &Look<'_>) -> Miss {
        let (fleet, model) = (look.fleet, look.ask.model.as_deref());
        let serves = |s: &Arc<Seat>| s.worker.serves(model);
        match (pair, whole) {
            (pair @ (Miss::Full(_) | Miss::Nobody(Fault::Shed { .. })), None) => pair,
            (pair @ Miss::Full(_), Some(_)) => pair,
            (_, Some(whole)) => whole,
            (pair, None) => {
                let pd = fleet.prefill().iter().any(|p| serves(&p.seat)) || fleet.decode().iter().any(serves);
                if pd || !fleet.whole().iter().any(serves) {
                    return pair;
                }
                Miss::Nobody(Fault::NoWorker { leg: LegName::Whole, registered: true })
            }
        }
    }

    /// A pair, or the prefill alone where that is all it takes.
    fn legs(&self, look: &Look<'_>, serving: &Serving, dice: &mut Dice) -> Option<Placement> {
        if look.ask.api == Api::CountTokens {
            // Whether or not it has a partner.
            let mut field = Field::of(look, look.fleet.prefills(), serving, look.rooms());
            return pick(&self.prefill, &mut field, dice).map(|worker| Placement::Prefill { worker });
        }
        let teams = Teams::new(look, serving);
        let mut field = Field::of(look, look.fleet.prefills(), serving, 1).paired(&teams);
        loop {
            // A prefill that was not tried before all others.
            if field.leave_out_tried(true) && field.is_empty() {
                field.leave_out_tried(false);
            }
            let prefill = take(&self.prefill, &mut field, dice)?;
            let team =
                look.fleet.prefills().find(prefill.seat.slot).map(|at| look.fleet.prefills().row(at).team)?;
            match self.partner(team, look, serving, dice) {
                Some(decode) => return Some(Placement::Pair { prefill, decode }),
                // Others took its partners in the meantime; a prefill with other partners may still have one.
                None => {
                    prefill.seat.pulse.step_back(look.now);
                    teams.close(team);
                }
            }
        }
    }

    /// Why there is no pair: windows, a leg that is missing, or what keeps the legs apart.
    fn absent(&self, look: &Look<'_>) -> Miss {
        let fleet = look.fleet;
        let able = fleet.prefill().iter().filter(|p| look.fits(&p.seat));
        let partners = able.flat_map(|p| p.partners.iter()).filter(|s| look.fits(s));
        let prefills = fleet.prefill().iter().map(|p| &p.seat);
        if self.prefill.sheds(prefills, look) {
            return shed(LegName::Prefill, look);
        }
        if self.decode.sheds(fleet.decode().iter(), look) {
            return shed(LegName::Decode, look);
        }
        let named = self.prefill.takes_names(look) || self.decode.takes_names(look);
        if let Some(miss) = full(partners, LegName::Decode, look).filter(|_| !named) {
            return miss;
        }
        Miss::Nobody(if fleet.prefill().is_empty() {
            Fault::NoWorker { leg: LegName::Prefill, registered: false }
        } else if fleet.decode().is_empty() {
            Fault::NoWorker { leg: LegName::Decode, registered: false }
        } else if let Some(detail) = fleet.no_pair() {
            Fault::NoPair { detail: detail.to_owned() }
        } else {
            let prefill_up = fleet.prefill().iter().any(|p| look.fits(&p.seat));
            let leg = if prefill_up { LegName::Decode } else { LegName::Prefill };
            Fault::NoWorker { leg, registered: true }
        })
    }

    /// One of the decodes of this team, by the decode policy.
    pub(super) fn partner(
        &self,
        team: u32,
        look: &Look<'_>,
        serving: &Serving,
        dice: &mut Dice,
    ) -> Option<Taken> {
        pick(&self.decode, &mut Field::of(look, look.fleet.team(team)?, serving, look.rooms()), dice)
    }
}

/// All of a leg have too much work.
fn shed(leg: LegName, look: &Look<'_>) -> Miss {
    Miss::Nobody(Fault::Shed { leg, rooms: look.rooms(), widest: None })
}

/// These could serve, but for their windows. `None` if none of them has one.
fn full<'a>(well: impl Iterator<Item = &'a Arc<Seat>>, leg: LegName, look: &Look<'_>) -> Option<Miss> {
    let (widest, rooms) = (well.filter_map(|s| s.window).max()?, look.rooms());
    Some(if widest < rooms {
        Miss::Nobody(Fault::Shed { leg, rooms, widest: Some(widest) })
    } else {
        Miss::Full(Fault::Shed { leg, rooms, widest: None })
    })
}

/// From those that were not tried before, if there are any with room.
fn pick(policy: &Policy, field: &mut Field<'_>, dice: &mut Dice) -> Option<Taken> {
    if field.leave_out_tried(true)
        && let Some(taken) = take(policy, field, dice)
    {
        return Some(taken);
    }
    field.leave_out_tried(false);
    take(policy, field, dice)
}

/// A worker whose half-open breaker has its probe out already steps aside.
fn take(policy: &Policy, field: &mut Field<'_>, dice: &mut Dice) -> Option<Taken> {
    while let Some(taken) = policy.take(field, dice) {
        if taken.seat.pulse.enter(field.look().now) {
            return Some(taken);
        }
        field.strike(taken.seat.slot);
    }
    None
}
