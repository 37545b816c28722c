//! Who can be chosen for one leg?
//!
//! Not a list: whoever chooses by chance, by turn or by hash asks for the few that it comes upon, and whoever compares
//! loads walks them once. Each is asked anew whenever it is come upon, so that a worker that falls ill or fills up in
//! between is not chosen.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Look, Seats, turns};
use crate::dice::Dice;
use crate::fleet::{Bench, Row, Seat, Serving};

/// Draws by chance before those that can be chosen are counted.
const DRAWS: usize = 16;

/// One that can be chosen, with its load as it was seen.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    pub seat: &'a Arc<Seat>,
    pub row: &'a Row,
    pub load: u32,
    /// Where it is on its bench.
    pub at: u32,
}

/// Those that were seen, in the order of their slots.
pub type AllSeen<'a> = Vec<Seen<'a>>;

/// Which teams have a decode that is well and has room. Looked up for those that are asked for, each once.
pub struct Teams<'a> {
    look: &'a Look<'a>,
    serving: &'a Serving,
    known: SmallVec<[Cell<Open>; 64]>,
}

#[derive(Clone, Copy, PartialEq)]
enum Open {
    Unknown,
    Yes,
    No,
}

impl<'a> Teams<'a> {
    pub fn new(look: &'a Look<'a>, serving: &'a Serving) -> Teams<'a> {
        let known = std::iter::repeat_n(Cell::new(Open::Unknown), look.fleet.teams()).collect();
        Teams { look, serving, known }
    }

    fn is_open(&self, team: u32) -> bool {
        let Some(known) = self.known.get(team as usize) else { return false };
        if known.get() == Open::Unknown {
            let open = |bench| {
                let field = Field::of(self.look, bench, self.serving, self.look.rooms());
                (0..bench.len()).any(|at| field.may(at))
            };
            known.set(if self.look.fleet.team(team).is_some_and(open) { Open::Yes } else { Open::No });
        }
        known.get() == Open::Yes
    }

    /// Nobody of the team could be had after all.
    pub fn close(&self, team: u32) {
        if let Some(known) = self.known.get(team as usize) {
            known.set(Open::No);
        }
    }
}

/// The candidates of one leg.
pub struct Field<'a> {
    look: &'a Look<'a>,
    bench: &'a Bench,
    serving: &'a Serving,
    /// Room that each must have.
    rooms: u32,
    /// Of prefills: their partners.
    teams: Option<&'a Teams<'a>>,
    /// Not those that were tried before.
    fresh: bool,
    /// Slots that were struck out.
    out: SmallVec<[u32; 4]>,
    /// Only these of the bench.
    only: Option<SmallVec<[u32; 32]>>,
}

impl<'a> Field<'a> {
    pub fn of(look: &'a Look<'a>, bench: &'a Bench, serving: &'a Serving, rooms: u32) -> Field<'a> {
        Field { look, bench, serving, rooms, teams: None, fresh: false, out: SmallVec::new(), only: None }
    }

    /// Only those with a partner.
    pub fn paired(self, teams: &'a Teams<'a>) -> Field<'a> {
        Field { teams: Some(teams), ..self }
    }

    pub fn look(&self) -> &'a Look<'a> {
        self.look
    }

    pub fn rooms(&self) -> u32 {
        self.rooms
    }

    /// Leaves out those that were tried before, or does not. True if that makes a difference.
    pub fn leave_out_tried(&mut self, fresh: bool) -> bool {
        self.fresh = fresh;
        !self.look.tried.is_empty()
    }

    /// It is not to be chosen any more.
    pub fn strike(&mut self, slot: u32) {
        self.out.push(slot);
    }

    /// Leaves out all that are not so, whatever becomes of them.
    pub fn keep(&mut self, so: impl Fn(&Seat) -> bool) {
        let kept = self.places().filter(|at| self.may(*at) && so(self.bench.seat(*at)));
        self.only = Some(kept.map(|at| at as u32).collect());
    }

    /// How many can be chosen now that are so, and how many that are not.
    pub fn count(&self, so: impl Fn(&Seat) -> bool) -> (usize, usize) {
        let all = self.places().filter(|at| self.may(*at)).map(|at| so(self.bench.seat(at)));
        all.fold((0, 0), |(n, rest), so| if so { (n + 1, rest) } else { (n, rest + 1) })
    }

    /// How many there are at most.
    #[inline]
    fn most(&self) -> usize {
        self.only.as_ref().map_or(self.bench.len(), SmallVec::len)
    }

    #[inline]
    fn place(&self, number: usize) -> usize {
        self.only.as_ref().map_or(number, |only| only[number] as usize)
    }

    #[inline]
    fn places(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.most()).map(|number| self.place(number))
    }

    /// Can it be chosen now?
    #[inline]
    fn may(&self, at: usize) -> bool {
        let row = self.bench.row(at);
        self.serving.has(row)
            && row.has_room(self.rooms)
            && self.bench.available(at, self.look.now)
            && !self.out.contains(&row.slot)
            && self.look.lets_slot(row.slot)
            && !(self.fresh && self.look.tried.contains(&row.slot))
            && self.teams.is_none_or(|teams| teams.is_open(row.team))
    }

    #[inline]
    fn seen(&self, at: usize) -> Seen<'a> {
        let row = self.bench.row(at);
        Seen { seat: self.bench.seat(at), row, load: row.load.in_flight(), at: at as u32 }
    }

    /// Nobody can be chosen.
    pub fn is_empty(&self) -> bool {
        !self.places().any(|at| self.may(at))
    }

    /// Those of which it was not asked yet whether they can be chosen.
    pub fn unasked(&self) -> impl Iterator<Item = Seen<'a>> + '_ {
        self.places().map(|at| self.seen(at))
    }

    /// Can it be chosen?
    pub fn lets(&self, seen: &Seen<'_>) -> bool {
        self.may(seen.at as usize)
    }

    /// All that can be chosen now.
    pub fn all(&self) -> AllSeen<'a> {
        let mut all = AllSeen::with_capacity(self.most());
        self.places().filter(|at| self.may(*at)).for_each(|at| all.push(self.seen(at)));
        all
    }

    /// The one whose turn it is among those that can be chosen now, by the numbers that `turn` gives to each such set.
    /// Sets are told apart by their slots.
    pub fn in_turn(&self, turn: impl FnOnce(u64) -> usize) -> Option<&'a Arc<Seat>> {
        let (mut set, mut count) = (0xcbf2_9ce4_8422_2325, 0);
        for at in self.places().filter(|at| self.may(*at)) {
            set = (set ^ u64::from(self.bench.row(at).slot)).wrapping_mul(0x0100_0000_01b3);
            count += 1;
        }
        let number = turn((set ^ (set >> 32)).max(1)).checked_rem(count)?;
        if count == self.most() {
            return Some(self.bench.seat(self.place(number)));
        }
        // Should one have fallen ill since, the last one is as good.
        let first = self.places().filter(|at| self.may(*at)).take(number + 1);
        first.last().map(|at| self.bench.seat(at))
    }

    /// The same without their loads.
    pub fn seats(&self) -> Seats<'a> {
        let mut seats = Seats::with_capacity(self.most());
        self.places().filter(|at| self.may(*at)).for_each(|at| seats.push(self.bench.seat(at)));
        seats
    }

    /// The worker with this slot, if it can be chosen.
    pub fn by_slot(&self, slot: u32) -> Option<&'a Arc<Seat>> {
        let at = self.bench.find(slot).filter(|at| self.may(*at))?;
        let within = self.only.as_ref().is_none_or(|only| only.contains(&(at as u32)));
        within.then(|| self.bench.seat(at))
    }

    /// Any of them.
    pub fn any(&self, dice: &mut Dice) -> Option<&'a Arc<Seat>> {
        self.draw(None, dice).map(|at| self.bench.seat(at))
    }

    /// Any of them but this one: each is as likely.
    fn draw(&self, but: Option<usize>, dice: &mut Dice) -> Option<usize> {
        let most = self.most();
        for _ in 0..DRAWS.min(most) {
            let at = self.place(dice.below(most));
            if Some(at) != but && self.may(at) {
                return Some(at);
            }
        }
        let rest: SmallVec<[usize; 32]> =
            self.places().filter(|at| Some(*at) != but && self.may(*at)).collect();
        rest.get(dice.below(rest.len())).copied()
    }

    /// The one whose turn it is, or any other where that one cannot be chosen; and any other one besides.
    pub fn two(&self, turn: usize, dice: &mut Dice) -> Option<SmallVec<[Seen<'a>; 2]>> {
        let most = self.most();
        if most == 0 {
            return None;
        }
        let due = Some(self.place(turn % most)).filter(|at| self.may(*at));
        let first = due.or_else(|| self.draw(None, dice))?;
        let other = if most > 1 { self.draw(Some(first), dice) } else { None };
        Some(std::iter::once(first).chain(other).map(|at| self.seen(at)).collect())
    }

    /// Tells these candidates from others, as far as turns go: who they are at most, not who of them is well.
    pub fn mark(&self) -> u64 {
        let first = (self.most() > 0).then(|| self.bench.seat(self.place(0)));
        turns::mark(self.serving.mark(), first.as_ref(), self.most())
    }

    /// The one with the fewest rooms taken; among equals each is as likely.
    pub fn least(&self, dice: &mut Dice) -> Option<Seen<'a>> {
        let mut best: Option<(usize, u32)> = None;
        let mut equals = 0;
        for at in self.places() {
            let load = self.bench.row(at).load.in_flight();
            // The load first: it rules most of them out.
            if best.is_some_and(|(_, least)| load > least) || !self.may(at) {
                continue;
            }
            if best.is_none_or(|(_, least)| load < least) {
                (best, equals) = (Some((at, load)), 1);
            } else {
                equals += 1;
                if dice.below(equals) == 0 {
                    best = Some((at, load));
                }
            }
        }
        best.map(|(at, load)| Seen { load, ..self.seen(at) })
    }

    /// How many can be chosen now, and the rooms taken on all of them.
    pub fn sum(&self) -> (usize, u64) {
        let loads = self.places().filter(|at| self.may(*at)).map(|at| self.bench.row(at).load.in_flight());
        loads.fold((0, 0), |(n, sum), load| (n + 1, sum + u64::from(load)))
    }

    /// Of those with such a load, the one with the highest number. The number depends on who it is and not on how it
    /// is, so the few that come out highest so far are asked how they are, and no others.
    pub fn highest(&self, number: impl Fn(&Row) -> u64, load: impl Fn(u32) -> bool) -> Option<Seen<'a>> {
        let mut best: Option<((u64, u32), Seen<'a>)> = None;
        for at in self.places() {
            let row = self.bench.row(at);
            let own = (number(row), row.slot);
            if best.is_none_or(|(highest, _)| own > highest) && self.may(at) {
                let seen = self.seen(at);
                if load(seen.load) {
                    best = Some((own, seen));
                }
            }
        }
        best.map(|(_, seen)| seen)
    }

    /// The candidates of these ranks by who they are, and not by when they joined.
    pub fn ranked(&self, all: &AllSeen<'a>, first: usize, last: usize) -> AllSeen<'a> {
        if all.len() == self.bench.len() {
            let order = self.bench.by_point().iter().take(last + 1).skip(first);
            return order.map(|at| all[*at as usize]).collect();
        }
        let mut all = all.clone();
        all.sort_unstable_by_key(|seen| (seen.row.point, seen.row.slot));
        all.truncate(last + 1);
        all.drain(..first.min(all.len()));
        all
    }
}
