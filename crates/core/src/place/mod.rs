//! Which workers?
//!
//! A [`Strategy`] looks at the fleet and the ask and returns a [`Placement`]: the chosen workers with
//! their leases already taken, so that a burst sees itself. Pure but for the lease counters; ties are
//! broken by the dice that are handed in.
//!
//! The seam for what comes later: another strategy is another arm of [`Strategy`], another policy is
//! another arm of [`Policy`] and a file beside `policy.rs`.

mod affinity;
pub mod cascade;
mod field;
mod holders;
mod keys;
mod legwise;
mod policy;
mod queue;
pub mod receipt;
pub mod sieve;
mod sizes;
mod telling;
mod tuning;
mod turns;
mod wait;
mod warm;
pub mod whole;

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

pub use cascade::Cascade;
pub use legwise::Legwise;
pub use policy::{Policy, PolicyName};
pub use queue::{Queue, Ticket, Want};
pub use tuning::{Assignment, Tuning};
pub use wait::{LoadMetric, Overload, Reports};
pub use whole::Whole;

use smallvec::SmallVec;

use crate::ask::Ask;
use crate::breaker::{BreakerRule, Verdict};
use crate::dice::Dice;
use crate::fault::Fault;
use crate::fleet::{Fleet, Seat};
use crate::kv::{Expected, KvIndex};
use crate::load::Lease;
use crate::prefix::{Mark, Memory};
use crate::prompt::Prompt;
use crate::time::Instant;
use cascade::books::Held;
use cascade::resolve::Routing;
use keys::KeyLease;
use receipt::Receipt;

/// The chosen workers and the places taken on them.
#[derive(Debug)]
pub enum Placement {
    Whole {
        worker: Taken,
    },
    /// A prefill alone, for a request whose answer is in its prompt.
    Prefill {
        worker: Taken,
    },
    Pair {
        prefill: Taken,
        decode: Taken,
    },
}

/// A worker with a place taken on it.
#[derive(Debug)]
pub struct Taken {
    pub seat: Arc<Seat>,
    pub lease: Lease,
    /// What the policy believes that the worker will have of the prompt.
    mark: Option<Mark>,
    /// The prompt is on its way to the worker, whose events will say so.
    expected: Option<Expected>,
    /// One request of its routing key.
    key: Option<KeyLease>,
    /// Tokens that it is charged with.
    charge: Option<Held>,
}

impl Placement {
    /// The prefill's and the answering worker's.
    pub fn into_legs(self) -> [Option<Taken>; 2] {
        match self {
            Placement::Whole { worker } | Placement::Prefill { worker } => [None, Some(worker)],
            Placement::Pair { prefill, decode } => [Some(prefill), Some(decode)],
        }
    }
}

impl Taken {
    fn new(seat: &Arc<Seat>, lease: Lease) -> Taken {
        Taken { seat: Arc::clone(seat), lease, mark: None, expected: None, key: None, charge: None }
    }

    /// The worker has computed the prompt. Without this it is taken to have nothing of it that it had not
    /// before.
    pub fn computed(&mut self) {
        if let Some(mark) = &mut self.mark {
            mark.keep();
        }
    }

    /// Its leg is over and says this of the worker.
    pub fn judged(&mut self, verdict: Verdict, rule: &BreakerRule, now: Instant) {
        if verdict == Verdict::Good {
            self.computed();
            self.seat.pulse.answers();
        }
        self.seat.pulse.record(verdict, rule, now);
    }

    /// It computes the prompt itself: the prefill that was chosen with it is not asked.
    pub fn forgo_prefill(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.forgo_prefill();
        }
    }

    /// What this leg holds of the other one's charge: the tokens that its prefill keeps for it.
    pub fn kv_charge(&self) -> Option<u64> {
        self.charge.as_ref().and_then(Held::kv)
    }
}

/// What a prefill has computed and still holds, for a decode that is chosen anew.
#[derive(Clone, Copy, Debug)]
pub struct Computed<'a> {
    /// The prefill's id.
    pub prefill: &'a str,
    /// [`Taken::kv_charge`] of the decode that it was first meant for.
    pub kv_charge: Option<u64>,
}

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Nobody can serve it.
    Nobody(Fault),
    /// Somebody could, but every window is full: it can wait for room. The fault is what to say if it
    /// does not, or not for long enough.
    Full(Fault),
}

/// Candidates of one choice.
pub type Seats<'a> = SmallVec<[&'a Arc<Seat>; 16]>;

/// What one decision may look at besides the fleet.
pub struct Look<'a> {
    pub fleet: &'a Fleet,
    pub ask: &'a Ask,
    /// Slots already tried for this request: avoided while another worker can serve it.
    pub tried: &'a [u32],
    pub now: Instant,
    /// What AIBrix's settings come to for this request. `None`: nobody asked for them.
    pub routing: Option<&'a Routing>,
    /// Where the decision writes down what it looked at. Off, unless somebody will read it.
    pub receipt: RefCell<Receipt>,
    /// Whom the client's filter selects, once somebody asked. Never asked for where there is none.
    pub passing: OnceCell<sieve::Slots>,
}

impl<'a> Look<'a> {
    /// A first look, of which nobody keeps the receipt.
    pub fn new(fleet: &'a Fleet, ask: &'a Ask, now: Instant) -> Look<'a> {
        let (receipt, passing) = (RefCell::new(Receipt::off()), OnceCell::new());
        Look { fleet, ask, tried: &[], now, routing: None, receipt, passing }
    }

    /// Another try after these slots.
    pub fn after(self, tried: &'a [u32]) -> Look<'a> {
        Look { tried, ..self }
    }

    /// What was written down.
    pub fn into_receipt(self) -> Receipt {
        self.receipt.into_inner()
    }

    /// Writes to the receipt.
    fn telling<T>(&self, tell: impl FnOnce(&mut Receipt) -> T) -> T {
        match self.receipt.try_borrow_mut() {
            Ok(mut receipt) => tell(&mut receipt),
            // Nobody writes from inside of `tell`; were it so, those lines would be lost and nothing else.
            Err(_) => tell(&mut Receipt::off()),
        }
    }

    /// # Errors
    /// [`Fault::ModelNotFound`] if there are workers and none serves the model.
    fn known_model(&self) -> Result<(), Miss> {
        let fleet = self.fleet;
        let unknown = |m: &&str| !fleet.is_empty() && !fleet.knows(m);
        match self.ask.model.as_deref().filter(unknown) {
            None => Ok(()),
            Some(model) => {
                let known = fleet.models().join(", ");
                Err(Miss::Nobody(Fault::ModelNotFound { model: model.to_owned(), known }))
            }
        }
    }

    /// The rooms that the request takes on the worker that decodes.
    fn rooms(&self) -> u32 {
        rooms(self.ask)
    }

    /// Serves the model, is well, and is not what the client excludes. Says nothing about room.
    fn fits(&self, seat: &Seat) -> bool {
        self.can_serve(seat) && self.lets(seat)
    }

    fn can_serve(&self, seat: &Seat) -> bool {
        seat.worker.serves(self.ask.model.as_deref()) && seat.pulse.available(self.now)
    }

    /// The client's filter, if it sent one.
    fn sieve(&self) -> Option<&'a sieve::Sieve> {
        self.routing.and_then(|routing| routing.sieve.as_deref())
    }

    /// Does the client's filter select the worker? Everybody, if it sent none.
    fn lets(&self, seat: &Seat) -> bool {
        self.lets_slot(seat.slot)
    }

    fn lets_slot(&self, slot: u32) -> bool {
        self.sieve().is_none_or(|sieve| {
            let passing = self.passing.get_or_init(|| sieve.passing(self.fleet));
            passing.binary_search(&slot).is_ok()
        })
    }

    /// # Errors
    /// [`Fault::FilteredOut`] if workers could serve the request, and the client's filter selects none of them.
    fn filter_leaves_some(&self) -> Result<(), Miss> {
        let Some(sieve) = self.sieve() else { return Ok(()) };
        let mut well = self.fleet.seats().filter(|seat| self.can_serve(seat)).peekable();
        if well.peek().is_none() || well.any(|seat| self.lets(seat)) {
            return Ok(());
        }
        Err(Miss::Nobody(Fault::FilteredOut { selector: sieve.text.clone() }))
    }
}

/// How many sequences the request makes on the worker that decodes: one for each sample of each prompt.
pub fn rooms(ask: &Ask) -> u32 {
    ask.n.max(1).saturating_mul(ask.batch.unwrap_or(1).max(1))
}

/// What the request waits for where all windows are full.
pub fn want<'a>(ask: &'a Ask, routing: &'a Routing) -> Want<'a> {
    let filter = routing.sieve.as_deref().map(|sieve| sieve.text.as_str());
    Want { model: ask.model.as_deref(), rooms: rooms(ask), filter }
}

/// How workers are chosen.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a gateway has one of each")]
pub enum Strategy {
    /// SMG's: one policy a leg.
    Legwise(Legwise),
    /// AIBrix's `pd`.
    Cascade(Cascade),
    /// AIBrix's others.
    Whole(Whole),
}

impl Strategy {
    /// Chooses workers and takes places on them. Writes to the look's receipt as it goes.
    ///
    /// # Errors
    /// [`Miss::Full`] if only windows are in the way. Otherwise [`Fault::ModelNotFound`], [`Fault::FilteredOut`],
    /// [`Fault::NoWorker`] naming the leg, [`Fault::NoPair`] naming what differs, [`Fault::Shed`] for a
    /// request that is wider than every window, or [`Fault::Unroutable`] in AIBrix's words.
    pub fn place(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
        look.telling(|receipt| {
            if receipt.is_on() {
                let prompt = &look.ask.prompt;
                receipt.prompt = Some(prompt.size());
                receipt.untold = prompt.told().and_then(|told| told.as_ref().err().cloned());
            }
        });
        let left = look.filter_leaves_some();
        let nobody_is_left = left.is_err();
        let placed = left.and_then(|()| match self {
            Strategy::Legwise(legwise) => legwise.place(look, dice),
            Strategy::Cascade(cascade) => cascade.place(look, dice),
            Strategy::Whole(whole) => whole.place(look, dice),
        });
        telling::filtered(look, self, nobody_is_left);
        placed
    }

    /// Does the choice go by the prompt's tokens, or by how many they are? Then it is worth asking an engine.
    pub fn counts(&self, routing: &Routing) -> bool {
        match self {
            Strategy::Legwise(legwise) => legwise.counts(),
            Strategy::Cascade(cascade) => cascade.counts(routing),
            Strategy::Whole(whole) => whole.counts(routing),
        }
    }

    /// This worker has the whole prompt, as far as anybody who knows it says.
    pub fn has_computed(&self, fleet: &Fleet, seat: &Seat, prompt: &Prompt, now: Instant) {
        match self {
            Strategy::Legwise(legwise) => legwise.of(seat).has_computed(fleet, seat, prompt, now),
            Strategy::Cascade(cascade) => cascade.has_computed(fleet, seat, prompt, now),
            Strategy::Whole(whole) => whole.has_computed(fleet, seat, prompt, now),
        }
    }

    /// Heeds what workers say that they hold.
    pub fn hearing(self, events: &Arc<KvIndex>) -> Strategy {
        match self {
            Strategy::Legwise(legwise) => Strategy::Legwise(legwise.hearing(events)),
            Strategy::Cascade(cascade) => Strategy::Cascade(cascade.hearing(events)),
            Strategy::Whole(whole) => Strategy::Whole(whole.hearing(events)),
        }
    }

    /// The indexes of what was sent where, by what they are for.
    pub fn indexes(&self) -> Indexes {
        match self {
            Strategy::Legwise(legwise) => legwise.indexes(),
            Strategy::Cascade(cascade) => SmallVec::from_iter([("pd", cascade.index().clone())]),
            // The cascade's.
            Strategy::Whole(_) => SmallVec::new(),
        }
    }

    /// Another decode for what a prefill has computed: by the decode policy, not one that was
    /// tried if there is another. `None`: none of its partners is well and has room.
    pub fn replace(&self, look: &Look<'_>, computed: Computed<'_>, dice: &mut Dice) -> Option<Taken> {
        match self {
            Strategy::Legwise(legwise) => {
                telling::begin(look);
                let own = look.fleet.prefill().iter().find(|p| p.seat.worker.id == computed.prefill)?;
                let serving = look.fleet.serving(look.ask.model.as_deref());
                legwise.partner(own.team, look, &serving, dice)
            }
            Strategy::Cascade(cascade) => cascade.partner(computed, look, dice),
            // Nothing is handed over.
            Strategy::Whole(_) => None,
        }
    }
}

/// All strategies of a gateway, each with what it remembers.
#[derive(Debug)]
pub struct Strategies {
    /// Serves what AIBrix's settings say nothing about.
    pub own: Strategy,
    /// AIBrix's `pd`.
    pub pd: Strategy,
    /// AIBrix's others.
    pub whole: Strategy,
}

/// Indexes of what was sent where: a leg's name, or `pd`.
pub type Indexes = SmallVec<[(&'static str, Memory); 4]>;

impl Strategies {
    /// Heeds what workers say that they hold.
    pub fn hearing(self, events: &Arc<KvIndex>) -> Strategies {
        let of = |strategy: Strategy| strategy.hearing(events);
        Strategies { own: of(self.own), pd: of(self.pd), whole: of(self.whole) }
    }

    /// The indexes of what was sent where, by what they are for.
    pub fn indexes(&self) -> Indexes {
        let mut all = self.own.indexes();
        all.extend(self.pd.indexes());
        all
    }

    /// The one that serves a request: the same for all its tries.
    pub fn of(&self, routing: &Routing) -> &Strategy {
        match &routing.ways {
            None => &self.own,
            Some(ways) if ways.is_pd() => &self.pd,
            Some(_) => &self.whole,
        }
    }

    /// Does the choice of workers for this request go by its prompt's tokens, or by how many they are?
    pub fn counts(&self, routing: &Routing, ask: &Ask) -> bool {
        ask.prompt_tokens.is_none() && self.of(routing).counts(routing)
    }

    /// AIBrix's `pd`, and what it keeps.
    pub fn cascade(&self) -> Option<&Cascade> {
        match &self.pd {
            Strategy::Cascade(cascade) => Some(cascade),
            Strategy::Legwise(_) | Strategy::Whole(_) => None,
        }
    }

    /// This worker has the whole prompt, as far as anybody who knows it says.
    pub fn has_computed(&self, fleet: &Fleet, seat: &Seat, prompt: &Prompt, now: Instant) {
        // What one of AIBrix's knows, all know.
        [&self.own, &self.pd].iter().for_each(|s| s.has_computed(fleet, seat, prompt, now));
    }
}

/// A decode worker that may pair with the prefill of this id, not the one to avoid if there is another:
/// the one that is least loaded, with a place taken on it. For a throw-away decode, so windows do not count:
/// KV that waits for room is held while those that have room wait for KV.
pub fn partner(fleet: &Fleet, prefill: &str, avoid: &str, now: Instant, dice: &mut Dice) -> Option<Taken> {
    let own = fleet.prefill().iter().find(|p| p.seat.worker.id == prefill)?;
    let well: Seats<'_> = own.partners.iter().filter(|s| s.pulse.available(now)).collect();
    let other: Seats<'_> = well.iter().copied().filter(|s| s.worker.id != avoid).collect();
    let seat = policy::least(if other.is_empty() { well } else { other }.into_iter(), dice)?.0;
    let taken = Taken::new(seat, seat.load.take());
    taken.seat.pulse.enter(now).then_some(taken)
}
