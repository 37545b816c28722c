//! What the strategy by legs writes around what its policies write: who it is, and who was no candidate and why not.

use std::sync::Arc;

use super::receipt::{OfLeg, Receipt, Score};
use super::{Look, Placement};
use crate::fleet::{Role, Seat, Status};

/// What the strategy is called in receipts.
pub const LEGWISE: &str = "legwise";

fn leg_of<'r>(receipt: &'r mut Receipt, seat: &Seat) -> &'r mut OfLeg {
    if seat.worker.role == Role::Prefill { &mut receipt.prefill } else { &mut receipt.decode }
}

/// A decision by legs begins.
pub fn begin(look: &Look<'_>) {
    look.telling(|receipt| {
        if receipt.is_on() {
            receipt.again();
            LEGWISE.clone_into(&mut receipt.strategy);
        }
    });
}

/// The decision is made: those that were no candidates, and why not.
pub fn end(look: &Look<'_>, placed: Option<&Placement>) {
    look.telling(|receipt| {
        if !receipt.is_on() {
            return;
        }
        let whole = match placed {
            Some(Placement::Whole { .. }) => Some(true),
            Some(_) => Some(false),
            None => None,
        };
        for seat in look.fleet.seats() {
            let of_whole = seat.worker.role == Role::Whole;
            if seat.worker.role == Role::Encode || whole.is_some_and(|whole| whole != of_whole) {
                continue;
            }
            let leg = leg_of(receipt, seat);
            if !leg.scores.iter().any(|score| score.worker == seat.worker.id) {
                let load = f64::from(seat.load.in_flight());
                leg.scores.push(Score {
                    worker: seat.worker.id.clone(),
                    score: load,
                    terms: vec![("in_flight", load)],
                    skipped: Some(why_not(look, seat, placed).into()),
                });
            }
        }
    });
}

fn why_not(look: &Look<'_>, seat: &Seat, placed: Option<&Placement>) -> &'static str {
    if !seat.worker.serves(look.ask.model.as_deref()) {
        return "serves another model";
    }
    if seat.pulse.status() != Status::Ready {
        return "not ready";
    }
    if !seat.pulse.available(look.now) {
        return "its breaker is open";
    }
    let rooms = if seat.worker.role == Role::Prefill { 1 } else { look.rooms() };
    if !seat.has_room(rooms) {
        return "its window is full";
    }
    if look.tried.contains(&seat.slot) {
        return "tried before";
    }
    let open = |s: &Arc<Seat>| look.fits(s) && s.has_room(look.rooms());
    let prefills = look.fleet.prefill();
    let pairs = match placed {
        // Of decodes, only those of the chosen prefill could have served.
        Some(Placement::Pair { prefill, .. }) if seat.worker.role == Role::Decode => {
            let own = prefills.iter().find(|p| p.seat.slot == prefill.seat.slot);
            own.is_some_and(|p| p.partners.iter().any(|s| s.slot == seat.slot))
        }
        _ => prefills.iter().find(|p| p.seat.slot == seat.slot).is_none_or(|p| p.partners.iter().any(open)),
    };
    if pairs { "too much work, or passed over" } else { "no pair" }
}
