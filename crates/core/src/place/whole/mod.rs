//! AIBrix's strategies outside `pd`: one worker that runs both phases serves the whole request.
//!
//! `random` takes any, `least-request-top-k` any of the idlest ([`few`]). The others score each worker ([`score`]): by its
//! requests in flight, by what it says of itself ([`said`]), by both ([`balance`]), by the prompt's beginning that it has
//! been sent, by the session that it serves, by what the user has used ([`fair`]). `least-request` and `power-of-two`
//! count requests and nothing else, unlike Baton's own policies, which heed what workers say once they are asked. A list
//! of strategies with weights adds up what each makes of a worker, brought to a common scale ([`blend`]).
//!
//! What workers say is as old as the last look at them, and a burst comes in between two looks. So what was placed
//! since counts as much as what runs there does, on the average; a worker that has more than its share of the requests
//! in flight is passed over by scores that do not count requests; and among equals the one with the fewest is taken.
//! AIBrix sends a burst to one worker until the next look.

mod balance;
mod blend;
pub mod fair;
mod few;
pub mod rules;
mod said;
mod score;
pub mod session;

use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::cascade::knobs::Knobs;
use super::cascade::resolve::Routing;
use super::cascade::words::{Way, Ways};
use super::holders::{self, Holders};
use super::policy::holder;
use super::receipt::{Receipt, Score};
use super::turns::{self, Turns};
use super::{Look, Miss, Placement, Seats, Taken, Tuning, affinity};
use crate::dice::Dice;
use crate::fault::{Fault, LegName};
use crate::fleet::{Fleet, Seat};
use crate::kv::KvIndex;
use crate::prefix::Memory;
use crate::prompt::Prompt;
use crate::time::{Duration, Instant};
use blend::Blended;
use fair::{Usage, Users};

/// How often a choice is made anew because another request took the place first. Past it the place is taken whatever
/// the load, if the window has room.
const TRIES: usize = 64;

/// The strategies and what they remember.
#[derive(Debug)]
pub struct Whole {
    index: Memory,
    /// What workers say that they hold.
    events: Option<Arc<KvIndex>>,
    tuning: Tuning,
    turns: Turns,
    /// What users have used lately.
    users: Mutex<Users>,
    /// Of a request that comes without a routing of its own.
    plain: Routing,
}

/// What a decision looks at of the request, read once.
struct Sight<'a> {
    look: &'a Look<'a>,
    knobs: &'a Knobs,
    /// Only where a strategy asks for that.
    prompt: Option<Holders<'a>>,
    /// The worker that the session belongs to: its slot.
    home: Option<u32>,
    /// What the user has used, if there is one and somebody asks.
    usage: Option<Usage>,
    /// Somebody will read what scores are made of.
    explain: bool,
    /// Whose turn it is to be the first of two.
    turn: usize,
}

impl Whole {
    /// The index is shared with other strategies of AIBrix's: what one of them sent somewhere, all know.
    pub fn new(knobs: &Arc<Knobs>, tuning: &Tuning, index: Memory) -> Whole {
        Whole {
            index,
            events: None,
            tuning: tuning.clone(),
            turns: Turns::default(),
            users: Mutex::default(),
            plain: Routing::plain(knobs),
        }
    }

    /// Heeds what workers say that they hold.
    pub(super) fn hearing(self, events: &Arc<KvIndex>) -> Whole {
        Whole { events: Some(events.clone()), ..self }
    }

    pub(super) fn counts(&self, routing: &Routing) -> bool {
        let looks_up = routing.ways.as_ref().is_some_and(|ways| ways.has(Way::PrefixCache));
        looks_up && holders::looks_up(self.events.as_ref())
    }

    /// # Errors
    /// As [`super::Strategy::place`].
    pub(super) fn place(&self, look: &Look<'_>, dice: &mut Dice) -> Result<Placement, Miss> {
        look.known_model()?;
        let routing = look.routing.unwrap_or(&self.plain);
        let well: Seats<'_> = look.fleet.whole().iter().filter(|s| look.fits(s)).collect();
        let fresh: Seats<'_> = well.iter().copied().filter(|s| !look.tried.contains(&s.slot)).collect();
        let taken = look.telling(|receipt| {
            if receipt.is_on() {
                receipt.strategy = routing.ways.as_ref().map_or_else(String::new, Ways::to_string);
                receipt.profile.clone_from(&routing.profile);
            }
            let mut choose = |seats| self.among(seats, routing, look, (dice, &mut *receipt));
            choose(fresh).or_else(|| choose(well.clone()))
        });
        if taken.is_some() {
            self.bill(look, routing);
        }
        taken.map(|worker| Placement::Whole { worker }).ok_or_else(|| miss(look, &well))
    }

    /// What the request takes counts for its user from now on, once for all its tries.
    fn bill(&self, look: &Look<'_>, routing: &Routing) {
        let Some(user) = user(look, routing).filter(|_| look.tried.is_empty()) else { return };
        let tokens = fair::cost(look.ask.prompt.said_bytes(), &routing.knobs.whole.vtc);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.spend(user, tokens, self.window(), look.now);
    }

    /// One window for all requests, whatever their profiles say: what users have used is remembered once.
    fn window(&self) -> Duration {
        self.plain.knobs.whole.vtc.window()
    }

    /// This worker has the whole prompt.
    pub(super) fn has_computed(&self, fleet: &Fleet, seat: &Seat, prompt: &Prompt, now: Instant) {
        self.index.keep_only(fleet.version(), fleet.seats().map(|seat| holder(seat)));
        if let Some(mut mark) = self.index.hold(&prompt.blocks(self.tuning.block_tokens), holder(seat), now) {
            mark.keep();
        }
    }

    /// One of these, with its place taken. A worker whose half-open breaker has its probe out already steps aside.
    fn among(
        &self,
        mut seats: Seats<'_>,
        routing: &Routing,
        look: &Look<'_>,
        (dice, receipt): (&mut Dice, &mut Receipt),
    ) -> Option<Taken> {
        let rooms = look.rooms();
        seats.retain(|s| s.has_room(rooms));
        let ways = routing.ways.as_ref();
        let sight = self.see((look, routing), &seats, dice, receipt.is_on());
        loop {
            let only = |way: Way| ways.is_some_and(|ways| ways.is_only(way));
            let mut taken = if ways.is_none() || only(Way::Random) {
                by_chance(&mut seats, rooms, (&mut *dice, &mut *receipt))
            } else if only(Way::LeastRequestTopK) {
                of_few(&mut seats, &sight, (&mut *dice, &mut *receipt))
            } else {
                self.scored(&mut seats, ways, &sight, (&mut *dice, &mut *receipt))
            }?;
            if taken.seat.pulse.enter(look.now) {
                // Remembered where it went by whichever strategy: other requests may look for it.
                if let Some(held) = &sight.prompt {
                    held.goes_to(&mut taken, receipt);
                }
                return Some(taken);
            }
            seats.retain(|s| s.slot != taken.seat.slot);
        }
    }

    fn see<'a>(
        &'a self,
        (look, routing): (&'a Look<'a>, &'a Routing),
        seats: &[&Arc<Seat>],
        dice: &mut Dice,
        explain: bool,
    ) -> Sight<'a> {
        let asks = |way: Way| routing.ways.as_ref().is_some_and(|ways| ways.has(way));
        if routing.ways.as_ref().is_some_and(Ways::heed_reports) {
            look.fleet.want_gauges();
        }
        let prompt = asks(Way::PrefixCache).then(|| {
            let (block_tokens, events) = (self.tuning.block_tokens, self.events.as_ref());
            let indexes = holders::Indexes { sent: &self.index, block_tokens, events };
            Holders::of(indexes, look.fleet, look.ask, look.now)
        });
        let home = if asks(Way::SessionAffinity) { session::home(look.ask, seats) } else { None };
        let turn = match asks(Way::PowerOfTwo) {
            true => self.turns.next(turns::mark(1, seats.first(), seats.len()), || dice.below(usize::MAX)),
            false => 0,
        };
        let usage = user(look, routing).map(|user| {
            let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
            users.usage(user, &routing.knobs.whole.vtc, self.window(), look.now)
        });
        let home = home.map(|seat| seat.slot);
        Sight { look, knobs: &routing.knobs, prompt, home, usage, explain, turn }
    }

    /// Chooses by scores and takes rooms in one step: only if the load is still what the choice was made on.
    fn scored(
        &self,
        seats: &mut Seats<'_>,
        ways: Option<&Ways>,
        sight: &Sight<'_>,
        (dice, receipt): (&mut Dice, &mut Receipt),
    ) -> Option<Taken> {
        let rooms = sight.look.rooms();
        for tries in 0.. {
            receipt.again();
            let blended = self.blend(seats, ways, sight, dice);
            let (at, tied) = blended.best(dice)?;
            note(receipt, seats, &blended, &tied);
            let (seat, seen) = (seats[at], blended.loads[at]);
            let lease = match tries < TRIES {
                true if seat.fits_in(seen, rooms) => seat.load.take_if(seen, rooms),
                true => None,
                false => seat.load.take_within(seat.window, rooms),
            };
            if let Some(lease) = lease {
                return Some(Taken::new(seat, lease));
            }
            let full = seat.slot;
            seats.retain(|s| s.has_room(rooms) && (tries < TRIES || s.slot != full));
        }
        None
    }

    /// What each of these is worth.
    fn blend(
        &self,
        seats: &[&Arc<Seat>],
        ways: Option<&Ways>,
        sight: &Sight<'_>,
        dice: &mut Dice,
    ) -> Blended {
        let loads: SmallVec<[u32; 16]> = seats.iter().map(|s| s.load.in_flight()).collect();
        let gate = affinity::gate_of(loads.iter().copied(), &self.tuning);
        let gated = ways.is_some_and(|ways| ways.iter().all(|(way, _)| way.looks_past_requests()));
        let mut blended = Blended::new(loads);
        if ways.is_some_and(|ways| ways.is_only(Way::LoadBalance)) {
            let all = balance::of(seats, &blended.loads, &sight.knobs.whole, sight.explain);
            blended.add(Way::LoadBalance, 1, all.worth);
            blended.pass_over("too little KV memory is left", |at| all.full[at]);
            blended.tell_equals_by(all.memory);
            return blended;
        }
        for (way, weight) in ways.into_iter().flat_map(Ways::iter) {
            let worth = score::each(way, seats, &blended.loads, sight, dice);
            blended.add(way, weight, worth);
        }
        if gated {
            let loads = blended.loads.clone();
            blended.pass_over("more than its share of requests", |at| f64::from(loads[at]) > gate);
        }
        blended
    }
}

/// Whose request it is, if a strategy asks for that.
fn user(look: &Look<'_>, routing: &Routing) -> Option<u64> {
    let asks = routing.ways.as_ref().is_some_and(|ways| ways.has(Way::VtcBasic));
    look.ask.wishes.as_deref().filter(|_| asks)?.user
}

/// Any of the few with the fewest requests; if others took all their rooms, of the rest.
fn of_few(
    seats: &mut Seats<'_>,
    sight: &Sight<'_>,
    (dice, receipt): (&mut Dice, &mut Receipt),
) -> Option<Taken> {
    let rooms = sight.look.rooms();
    while !seats.is_empty() {
        let loads: SmallVec<[u32; 16]> = seats.iter().map(|s| s.load.in_flight()).collect();
        let few = few::of(seats, &loads, &sight.knobs.whole, sight.look.now, dice);
        if receipt.is_on() {
            receipt.again();
            receipt.decode.scores = few.told(seats, &loads);
        }
        let of = |eligible: bool| -> Seats<'_> {
            let own = seats.iter().zip(&few.eligible).filter(|(_, own)| **own == eligible);
            own.map(|(seat, _)| *seat).collect()
        };
        let (mut eligible, rest) = (of(true), of(false));
        if let Some(taken) = by_chance(&mut eligible, rooms, (&mut *dice, &mut *receipt)) {
            return Some(taken);
        }
        *seats = rest;
        seats.retain(|s| s.has_room(rooms));
    }
    None
}

/// Any of these that has room.
fn by_chance(seats: &mut Seats<'_>, rooms: u32, (dice, receipt): (&mut Dice, &mut Receipt)) -> Option<Taken> {
    if receipt.is_on() {
        receipt.decode.tied = seats.iter().map(|seat| seat.worker.id.clone()).collect();
    }
    while !seats.is_empty() {
        let seat = seats[dice.below(seats.len())];
        if let Some(lease) = seat.load.take_within(seat.window, rooms) {
            return Some(Taken::new(seat, lease));
        }
        seats.retain(|s| s.slot != seat.slot);
    }
    None
}

/// Writes down what the choice was made on.
fn note(receipt: &mut Receipt, seats: &[&Arc<Seat>], blended: &Blended, tied: &[usize]) {
    if !receipt.is_on() {
        return;
    }
    let name = |at: usize| seats[at].worker.id.clone();
    receipt.decode.tied = tied.iter().map(|at| name(*at)).collect();
    receipt.decode.scores = (0..seats.len())
        .map(|at| Score {
            worker: name(at),
            score: blended.cost(at),
            terms: blended.terms(at),
            skipped: blended.passed_over(at).map(Into::into),
        })
        .collect();
}

/// Why there is nobody: all windows are full, or no worker that runs both phases is well and serves the model.
fn miss(look: &Look<'_>, well: &[&Arc<Seat>]) -> Miss {
    let (leg, rooms) = (LegName::Whole, look.rooms());
    let registered = look.fleet.whole().iter().any(|s| s.worker.serves(look.ask.model.as_deref()));
    match well.iter().filter_map(|s| s.window).max() {
        Some(widest) if widest < rooms => Miss::Nobody(Fault::Shed { leg, rooms, widest: Some(widest) }),
        Some(_) => Miss::Full(Fault::Shed { leg, rooms, widest: None }),
        None if registered => Miss::Nobody(Fault::NoWorker { leg, registered }),
        None => {
            let reason = "no worker runs both phases, and this strategy needs one".to_owned();
            Miss::Nobody(Fault::Unroutable { reason })
        }
    }
}
