//! SMG's strategy: the prefill policy picks among prefills that have an available partner, then the
//! decode policy picks among that prefill's partners (SMG 1.13).
//!
//! A worker whose window is full is no candidate, and a prefill all of whose partners are full is none
//! either: nothing is computed that would then have to wait for a decode.

use std::sync::Arc;

use smallvec::SmallVec;

use super::telling;
use super::{Indexes, Look, Miss, Placement, Policy, Seats, Taken};
use crate::ask::Api;
use crate::dice::Dice;
use crate::fault::{Fault, LegName};
use crate::fleet::{Prefill, Role, Seat};
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
        let fleet = look.fleet;
        let pair = match self.legs(look, dice) {
            Ok(pair) => return Ok(pair),
            Err(miss) => miss,
        };
        let well: Seats<'_> = fleet.whole().iter().filter(|s| look.fits(s)).collect();
        let full = match self.whole.sheds(well.iter().copied(), look) {
            true => Some(shed(LegName::Whole, look)),
            false => {
                full(well.iter().copied(), LegName::Whole, look).filter(|_| !self.whole.takes_names(look))
            }
        };
        match pick(&self.whole, well, look, dice) {
            Some(worker) => Ok(Placement::Whole { worker }),
            None => Err(self.whole_missing(pair, full, look)),
        }
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

    fn legs(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
        match look.ask.api {
            Api::CountTokens => self.prefill_alone(look, dice),
            _ => self.pair(look, dice),
        }
    }

    /// A prefill, whether or not it has a partner.
    fn prefill_alone(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
        let all = look.fleet.prefill();
        let well: Seats<'_> = all.iter().map(|p| &p.seat).filter(|s| look.fits(s)).collect();
        pick(&self.prefill, well, look, dice)
            .map(|worker| Placement::Prefill { worker })
            .ok_or(Miss::Nobody(Fault::NoWorker { leg: LegName::Prefill, registered: !all.is_empty() }))
    }

    fn pair(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
        let open = |s: &Arc<Seat>| look.fits(s) && s.has_room(look.rooms());
        let fits_any = |p: &&Prefill| look.fits(&p.seat) && p.partners.iter().any(open);
        let mut able: SmallVec<[&Prefill; 16]> = look.fleet.prefill().iter().filter(fits_any).collect();
        loop {
            // A prefill that was not tried before all others.
            let fresh = |p: &&&Prefill| !look.tried.contains(&p.seat.slot);
            let seats: Seats<'_> = able.iter().filter(fresh).map(|p| &p.seat).collect();
            let seats = if seats.is_empty() { able.iter().map(|p| &p.seat).collect() } else { seats };
            let Some(prefill) = take(&self.prefill, seats, 1, look, dice) else {
                return Err(self.absent(look));
            };
            let own = able.iter().find(|p| p.seat.slot == prefill.seat.slot);
            match own.and_then(|own| self.partner(&own.partners, look, dice)) {
                Some(decode) => return Ok(Placement::Pair { prefill, decode }),
                // Others took its partners in the meantime; another prefill may still have one.
                None => {
                    prefill.seat.pulse.step_back(look.now);
                    able.retain(|p| p.seat.slot != prefill.seat.slot);
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

    /// One of these decodes, by the decode policy.
    pub(super) fn partner(&self, all: &[Arc<Seat>], look: &Look<'_>, dice: &mut Dice) -> Option<Taken> {
        pick(&self.decode, all.iter().filter(|s| look.fits(s)).collect(), look, dice)
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

/// From those that are well, and not tried before if there are any with room.
fn pick(policy: &Policy, well: Seats<'_>, look: &Look<'_>, dice: &mut Dice) -> Option<Taken> {
    let fresh: Seats<'_> = well.iter().copied().filter(|s| !look.tried.contains(&s.slot)).collect();
    take(policy, fresh, look.rooms(), look, dice).or_else(|| take(policy, well, look.rooms(), look, dice))
}

/// A worker whose half-open breaker has its probe out already steps aside.
fn take(
    policy: &Policy,
    mut seats: Seats<'_>,
    rooms: u32,
    look: &Look<'_>,
    dice: &mut Dice,
) -> Option<Taken> {
    while let Some(taken) = policy.take(&mut seats, rooms, look, dice) {
        if taken.seat.pulse.enter(look.now) {
            return Some(taken);
        }
        seats.retain(|s| s.slot != taken.seat.slot);
    }
    None
}
