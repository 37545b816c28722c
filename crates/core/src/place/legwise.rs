//! SMG's strategy: the prefill policy picks among prefills that have an available partner, then the
//! decode policy picks among that prefill's partners (SMG 1.13).

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Look, Placement, Policy, Taken};
use crate::dice::Dice;
use crate::fault::{Fault, LegName};
use crate::fleet::{Prefill, Seat};

/// One policy a leg, each with its own state. Whole workers have a third.
#[derive(Debug)]
pub struct Legwise {
    pub prefill: Policy,
    pub decode: Policy,
    pub whole: Policy,
}

type Seats<'a> = SmallVec<[&'a Arc<Seat>; 16]>;

impl Legwise {
    /// A pair if there is a prefill or a decode worker at all, else a whole worker.
    pub(super) fn place(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Fault> {
        let (fleet, model) = (look.fleet, look.ask.model.as_deref());
        if let Some(m) = model.filter(|m| !fleet.is_empty() && !fleet.knows(m)) {
            return Err(Fault::ModelNotFound { model: m.to_owned(), known: fleet.models().join(", ") });
        }
        let serves = |s: &Seat| s.worker.serves(model);
        let pd = fleet.prefill().iter().any(|p| serves(&p.seat)) || fleet.decode().iter().any(|s| serves(s));
        match self.pair(look, dice) {
            Ok(pair) => Ok(pair),
            Err(fault) => {
                let whole: Seats<'_> = fleet.whole().iter().filter(|s| serves(s)).collect();
                match (pick(&self.whole, whole, look, dice), pd) {
                    (Some(worker), _) => Ok(Placement::Whole { worker }),
                    (None, true) => Err(fault),
                    (None, false) if fleet.whole().iter().any(|s| serves(s)) => {
                        Err(Fault::NoWorker { leg: LegName::Whole, registered: true })
                    }
                    (None, false) => Err(fault),
                }
            }
        }
    }

    fn pair(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Fault> {
        let model = look.ask.model.as_deref();
        let fits = |s: &Arc<Seat>| s.worker.serves(model) && s.pulse.available(look.now);
        let fits_any = |p: &&Prefill| fits(&p.seat) && p.partners.iter().any(fits);
        let able: SmallVec<[&Prefill; 16]> = look.fleet.prefill().iter().filter(fits_any).collect();
        // A prefill that was not tried, or one with a partner that was not, before all others.
        let fresh = |p: &&&Prefill| !look.tried.contains(&p.seat.slot);
        let seats: Seats<'_> = able.iter().filter(fresh).map(|p| &p.seat).collect();
        let seats = if seats.is_empty() { able.iter().map(|p| &p.seat).collect() } else { seats };
        let prefill = take(&self.prefill, seats, look, dice).ok_or_else(|| self.absent(look))?;
        let partners = able.iter().find(|p| p.seat.slot == prefill.seat.slot).map(|p| &p.partners[..]);
        let partners: Seats<'_> = partners.unwrap_or_default().iter().filter(|s| fits(s)).collect();
        let decode = pick(&self.decode, partners, look, dice);
        let Some(decode) = decode else {
            prefill.seat.pulse.step_back(look.now);
            return Err(Fault::NoWorker { leg: LegName::Decode, registered: true });
        };
        Ok(Placement::Pair { prefill, decode })
    }

    /// Why there is no pair: which leg is missing, or what keeps the legs apart.
    fn absent(&self, look: &Look<'_>) -> Fault {
        let (fleet, model) = (look.fleet, look.ask.model.as_deref());
        let fits = |s: &Seat| s.worker.serves(model) && s.pulse.available(look.now);
        if fleet.prefill().is_empty() {
            return Fault::NoWorker { leg: LegName::Prefill, registered: false };
        }
        if fleet.decode().is_empty() {
            return Fault::NoWorker { leg: LegName::Decode, registered: false };
        }
        if let Some(detail) = fleet.no_pair() {
            return Fault::NoPair { detail };
        }
        let prefill_up = fleet.prefill().iter().any(|p| fits(&p.seat));
        let leg = if prefill_up { LegName::Decode } else { LegName::Prefill };
        Fault::NoWorker { leg, registered: true }
    }
}

/// From those that are well, and not tried before if there are any.
fn pick(policy: &Policy, seats: Seats<'_>, look: &Look<'_>, dice: &mut Dice) -> Option<Taken> {
    let well: Seats<'_> = seats.into_iter().filter(|s| s.pulse.available(look.now)).collect();
    let fresh: Seats<'_> = well.iter().copied().filter(|s| !look.tried.contains(&s.slot)).collect();
    take(policy, if fresh.is_empty() { well } else { fresh }, look, dice)
}

/// A worker whose half-open breaker has its probe out already steps aside.
fn take(policy: &Policy, mut seats: Seats<'_>, look: &Look<'_>, dice: &mut Dice) -> Option<Taken> {
    while let Some(taken) = policy.take(&seats, dice) {
        if taken.seat.pulse.enter(look.now) {
            return Some(taken);
        }
        seats.retain(|s| s.slot != taken.seat.slot);
    }
    None
}
