//! Seats side by side, as a choice among many of them reads them.
//!
//! What a worker is, how it is and what it has in flight lie in different places of the memory, and a choice that goes
//! to all of them for each of thousands of workers waits for the memory most of its time. Here stands in one array
//! what every choice reads, made once for a picture of the fleet, and what changes is in one line of the cache for
//! each worker ([`Load`]).
//!
//! Lists of models are compared once a request for each distinct list, not for each worker: a large fleet has few.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::{Seat, is_calm, serves_now};
use crate::load::Load;
use crate::time::Instant;

/// No window, or no team.
const NONE: u32 = u32::MAX;

/// One seat.
#[derive(Debug)]
pub struct Row {
    pub load: Arc<Load>,
    /// See [`Seat::point`].
    pub point: u64,
    pub slot: u32,
    window: u32,
    /// Which list of models the worker has, by [`Kinds`].
    kind: u32,
    /// Of a prefill, who it pairs with ([`super::Fleet::team`]).
    pub team: u32,
}

impl Row {
    /// As [`Seat::has_room`].
    #[inline]
    pub fn has_room(&self, rooms: u32) -> bool {
        self.load.in_flight().checked_add(rooms).is_some_and(|after| after <= self.window)
    }
}

/// Seats in the order of their slots.
#[derive(Debug, Default)]
pub struct Bench {
    rows: Box<[Row]>,
    seats: Box<[Arc<Seat>]>,
    by_point: OnceLock<Box<[u32]>>,
}

impl Bench {
    pub(crate) fn of<'s>(
        seats: impl Iterator<Item = (&'s Arc<Seat>, Option<u32>)>,
        kinds: &mut Kinds,
    ) -> Bench {
        let (rows, seats): (Vec<Row>, Vec<Arc<Seat>>) = seats
            .map(|(seat, team)| {
                let row = Row {
                    load: seat.load.clone(),
                    point: seat.point,
                    slot: seat.slot,
                    window: seat.window.unwrap_or(NONE),
                    kind: kinds.of(&seat.worker.models),
                    team: team.unwrap_or(NONE),
                };
                (row, Arc::clone(seat))
            })
            .unzip();
        Bench { rows: rows.into(), seats: seats.into(), by_point: OnceLock::new() }
    }

    /// These seats, whatever models they serve and wherever they come from.
    pub fn loose<'s>(seats: impl Iterator<Item = &'s Arc<Seat>>) -> Bench {
        Bench::of(seats.map(|seat| (seat, None)), &mut Kinds::default())
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    #[inline]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    #[inline]
    pub fn row(&self, at: usize) -> &Row {
        &self.rows[at]
    }

    #[inline]
    pub fn seat(&self, at: usize) -> &Arc<Seat> {
        &self.seats[at]
    }

    /// Where the worker with this slot is.
    pub fn find(&self, slot: u32) -> Option<usize> {
        self.rows.binary_search_by_key(&slot, |row| row.slot).ok()
    }

    /// May a request go there now? Reads no more than the row and its load while all is well.
    #[inline]
    pub fn available(&self, at: usize, now: Instant) -> bool {
        let load = &self.rows[at].load;
        is_calm(load) || serves_now(load) && self.seats[at].pulse.available(now)
    }

    /// All of them by who they are: it does not count in which order they joined.
    pub fn by_point(&self) -> &[u32] {
        self.by_point.get_or_init(|| {
            let mut all: Box<[u32]> = (0u32..).take(self.rows.len()).collect();
            all.sort_unstable_by_key(|at| {
                let row = &self.rows[*at as usize];
                (row.point, row.slot)
            });
            all
        })
    }
}

/// The distinct lists of models of a fleet.
#[derive(Debug, Default)]
pub struct Kinds {
    lists: Vec<Box<[String]>>,
    numbers: HashMap<Box<[String]>, u32>,
}

impl Kinds {
    pub(super) fn of(&mut self, models: &[String]) -> u32 {
        if let Some(number) = self.numbers.get(models) {
            return *number;
        }
        let number = self.lists.len() as u32;
        self.lists.push(models.into());
        self.numbers.insert(models.into(), number);
        number
    }

    /// Which of them take requests for this model? An empty list takes any.
    pub fn serving(&self, model: Option<&str>) -> Serving {
        let Some(model) = model else { return Serving(None) };
        let serves = |list: &[String]| list.is_empty() || list.iter().any(|own| own == model);
        match self.lists.iter().position(|list| !serves(list)) {
            None => Serving(None),
            Some(first) => {
                let rest = self.lists[first..].iter().map(|list| serves(list));
                Serving(Some(std::iter::repeat_n(true, first).chain(rest).collect()))
            }
        }
    }
}

/// Who serves one model, by their kinds. Nothing in it: everybody.
#[derive(Clone, Debug)]
pub struct Serving(Option<SmallVec<[bool; 16]>>);

impl Serving {
    /// Everybody.
    pub const ALL: Serving = Serving(None);

    #[inline]
    pub fn has(&self, row: &Row) -> bool {
        match &self.0 {
            None => true,
            Some(kinds) => kinds.get(row.kind as usize).copied().unwrap_or_default(),
        }
    }

    /// Somebody.
    pub fn any(&self) -> bool {
        self.0.as_ref().is_none_or(|kinds| kinds.contains(&true))
    }

    /// Tells those of one model from those of another.
    pub fn mark(&self) -> u64 {
        let kinds = self.0.iter().flatten();
        kinds.fold(1, |mark: u64, serves| {
            mark.rotate_left(1).wrapping_mul(0x100_0000_01b3) ^ u64::from(*serves)
        })
    }
}
