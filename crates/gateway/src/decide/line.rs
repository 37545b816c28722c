//! Requests of a scenario that wait for room: the order is core's, time is the scenario's.

use baton_core::place::{Queue, Ticket, Want};
use baton_core::time::{Duration, Instant};

use crate::rooms::WAITING_MAX;

/// The line, as `rooms` keeps it when serving.
pub struct Line {
    queue: Queue<usize>,
    places: Vec<Place>,
    /// How long each waits. Zero: nobody does.
    wait: Duration,
}

struct Place {
    request: usize,
    ticket: Ticket,
    since: Instant,
}

impl Line {
    pub fn new(wait: Duration) -> Line {
        Line { queue: Queue::new(WAITING_MAX), places: Vec::new(), wait }
    }

    /// Would it overtake one that waits?
    pub fn must_wait(&self, want: Want<'_>) -> bool {
        self.queue.must_wait(want)
    }

    /// A place at the end, if there is one.
    pub fn enter(&mut self, want: Want<'_>, request: usize, now: Instant) {
        if self.wait.is_zero() {
            return;
        }
        if let Some(ticket) = self.queue.enter(want, request) {
            self.places.push(Place { request, ticket, since: now });
        }
    }

    /// Is it in the line? Then it leaves, and this is since when it was there.
    pub fn leave(&mut self, request: usize) -> Option<Instant> {
        let at = self.places.iter().position(|place| place.request == request)?;
        let place = self.places.remove(at);
        self.queue.leave(&place.ticket).for_each(drop);
        Some(place.since)
    }

    /// Those who may try for a room.
    pub fn next(&self) -> Vec<usize> {
        self.queue.next(|_| true).copied().collect()
    }

    /// The first to have waited for long enough before this moment, and when that was.
    pub fn over(&self, now: Option<Instant>) -> Option<(usize, Instant)> {
        let over = self.places.iter().map(|place| (place.request, place.since.after(self.wait)));
        over.filter(|(_, at)| now.is_none_or(|now| *at < now)).min_by_key(|(_, at)| *at)
    }
}
