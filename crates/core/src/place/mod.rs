//! Which workers?
//!
//! A [`Strategy`] looks at the fleet and the ask and returns a [`Placement`]: the chosen workers with
//! their leases already taken, so that a burst sees itself. Pure but for the lease counters; ties are
//! broken by the dice that are handed in.
//!
//! The seam for what comes later: another strategy is another arm of [`Strategy`], another policy is
//! another arm of [`Policy`] and a file beside `policy.rs`.

mod legwise;
mod policy;
mod turns;

use std::sync::Arc;

pub use legwise::Legwise;
pub use policy::{Policy, PolicyName};

use crate::ask::Ask;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::fleet::{Fleet, Seat};
use crate::load::Lease;
use crate::time::Instant;

/// The chosen workers and the places taken on them.
#[derive(Debug)]
pub enum Placement {
    Whole { worker: Taken },
    Pair { prefill: Taken, decode: Taken },
}

/// A worker with a place taken on it.
#[derive(Debug)]
pub struct Taken {
    pub seat: Arc<Seat>,
    pub lease: Lease,
}

/// What one decision may look at besides the fleet.
pub struct Look<'a> {
    pub fleet: &'a Fleet,
    pub ask: &'a Ask,
    /// Slots already tried for this request: avoided while another worker can serve it.
    pub tried: &'a [u32],
    pub now: Instant,
}

/// How workers are chosen.
#[derive(Debug)]
pub enum Strategy {
    /// SMG's: one policy a leg.
    Legwise(Legwise),
}

impl Strategy {
    /// # Errors
    /// [`Fault::ModelNotFound`], [`Fault::NoWorker`] naming the leg, [`Fault::NoPair`] naming what differs.
    pub fn place(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Fault> {
        match self {
            Strategy::Legwise(legwise) => legwise.place(look, dice),
        }
    }
}

/// A decode worker that may pair with the prefill of this id, not the one to avoid if there is another:
/// the one that is least loaded, with a place taken on it.
pub fn partner(fleet: &Fleet, prefill: &str, avoid: &str, now: Instant, dice: &mut Dice) -> Option<Taken> {
    let own = fleet.prefill().iter().find(|p| p.seat.worker.id == prefill)?;
    let well: Vec<&Arc<Seat>> = own.partners.iter().filter(|s| s.pulse.available(now)).collect();
    let other: Vec<&Arc<Seat>> = well.iter().copied().filter(|s| s.worker.id != avoid).collect();
    let taken = Policy::LeastLoad.take(if other.is_empty() { &well } else { &other }, dice)?;
    taken.seat.pulse.enter(now).then_some(taken)
}
