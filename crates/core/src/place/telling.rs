//! What is written around what policies and strategies write themselves: who the strategy by legs is, who was no candidate
//! and why not, and whom the client's filter left out. In one pass over the fleet, however large it is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::receipt::{OfLeg, Receipt, Score};
use super::{Look, Placement, Strategy};
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
        let mut told = told(receipt);
        let paths = Paths::of(look, placed);
        for seat in look.fleet.seats() {
            let of_whole = seat.worker.role == Role::Whole;
            if seat.worker.role == Role::Encode || whole.is_some_and(|whole| whole != of_whole) {
                continue;
            }
            let own = usize::from(seat.worker.role != Role::Prefill);
            if told[own].insert(seat.worker.id.clone()) {
                leg_of(receipt, seat).scores.push(no_candidate(seat, why_not(look, seat, &paths)));
            }
        }
    });
}

/// What left-out workers show.
const FILTERED: &str = "left out by external-filter";

/// The workers that have their lines already: of the prefill leg, and of the one that answers.
fn told(receipt: &Receipt) -> [HashSet<String>; 2] {
    [&receipt.prefill, &receipt.decode].map(|leg| leg.scores.iter().map(|s| s.worker.clone()).collect())
}

/// Whom the client's filter left out, if it sent one, of those that the strategy would have looked at.
pub fn filtered(look: &Look<'_>, strategy: &Strategy, nobody_is_left: bool) {
    let Some(sieve) = look.sieve() else { return };
    let looks_at = |seat: &Seat| match strategy {
        _ if nobody_is_left => seat.worker.role != Role::Encode,
        // It says so itself.
        Strategy::Legwise(_) => false,
        Strategy::Cascade(_) => seat.worker.role != Role::Encode,
        Strategy::Whole(_) => seat.worker.role == Role::Whole,
    };
    look.telling(|receipt| {
        if !receipt.is_on() {
            return;
        }
        let told = told(receipt);
        let (mut serve, mut out) = (0, 0);
        for seat in look.fleet.seats().filter(|s| s.worker.serves(look.ask.model.as_deref())) {
            serve += 1;
            if look.lets(seat) {
                continue;
            }
            out += 1;
            if looks_at(seat) && told.iter().all(|leg| !leg.contains(&seat.worker.id)) {
                leg_of(receipt, seat).scores.push(no_candidate(seat, FILTERED));
            }
        }
        receipt.first("external_filter", out > 0, || {
            format!("{} selects {} of {serve} workers", sieve.text, serve - out)
        });
    });
}

fn no_candidate(seat: &Seat, why: &'static str) -> Score {
    let load = f64::from(seat.load.in_flight());
    let (worker, terms) = (seat.worker.id.clone(), vec![("in_flight", load)]);
    Score { worker, score: load, terms, skipped: Some(why.into()) }
}

/// Who could have paired, worked out once.
struct Paths {
    /// By the slot of each prefill: has it a partner that could serve?
    open: HashMap<u32, bool>,
    /// The chosen prefill's partners: of decodes, only those could have served.
    partners: Option<HashSet<u32>>,
}

impl Paths {
    fn of(look: &Look<'_>, placed: Option<&Placement>) -> Paths {
        let chosen = match placed {
            Some(Placement::Pair { prefill, .. }) => Some(prefill.seat.slot),
            _ => None,
        };
        let may = |s: &Arc<Seat>| look.fits(s) && s.has_room(look.rooms());
        // Prefills of one description share one list.
        let mut lists: HashMap<*const Arc<Seat>, bool> = HashMap::new();
        let (mut open, mut partners) = (HashMap::new(), None);
        for prefill in look.fleet.prefill() {
            let list = &prefill.partners;
            let has = *lists.entry(list.as_ptr()).or_insert_with(|| list.iter().any(may));
            open.insert(prefill.seat.slot, has);
            if chosen == Some(prefill.seat.slot) {
                partners = Some(list.iter().map(|s| s.slot).collect());
            }
        }
        Paths { open, partners }
    }

    /// Was there anybody that the worker could have paired with?
    fn pairs(&self, seat: &Seat) -> bool {
        match &self.partners {
            Some(partners) if seat.worker.role == Role::Decode => partners.contains(&seat.slot),
            _ => self.open.get(&seat.slot).copied().unwrap_or(true),
        }
    }
}

fn why_not(look: &Look<'_>, seat: &Seat, paths: &Paths) -> &'static str {
    if !seat.worker.serves(look.ask.model.as_deref()) {
        return "serves another model";
    }
    if !look.lets(seat) {
        return FILTERED;
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
    if paths.pairs(seat) { "too much work, or passed over" } else { "no pair" }
}
