//! Idle connections of one lane, by worker.
//!
//! A connection is offered again only while it is younger than the engines' own 5 s keep-alive and only
//! after a look at the socket: one that the worker has closed meanwhile is dropped here, before a request
//! is risked on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_core::fleet::{Fleet, Seat, Worker};
use baton_core::time::Instant;
use rustc_hash::FxHashMap;

use super::Lost;
use super::dial::Address;
use super::link::Link;

/// How long and how many.
#[derive(Clone, Debug)]
pub struct PoolRule {
    /// `None`: connections are kept until the worker closes them.
    pub idle: Option<Duration>,
    pub max_idle_per_worker: usize,
    pub connect_timeout: Duration,
}

impl PoolRule {
    /// The rule for one of several lanes: together they keep what the rule allows, and each at least one.
    pub fn share_of(&self, lanes: usize) -> PoolRule {
        let share = self.max_idle_per_worker / lanes;
        PoolRule { max_idle_per_worker: share.max(self.max_idle_per_worker.min(1)), ..self.clone() }
    }
}

struct Desk {
    worker: Arc<Worker>,
    address: Arc<Address>,
    idle: Vec<(Box<Link>, Instant)>,
}

/// The idle connections of one lane.
pub struct Pool {
    rule: PoolRule,
    resends: AtomicU64,
    desks: Mutex<FxHashMap<u32, Desk>>,
}

impl Pool {
    pub fn new(rule: PoolRule) -> Pool {
        Pool { rule, resends: AtomicU64::new(0), desks: Mutex::default() }
    }

    /// A request is sent once more because its reused connection had died.
    pub(super) fn note_resend(&self) {
        self.resends.fetch_add(1, Ordering::Relaxed);
    }

    /// Resends since this was last asked.
    pub fn take_resends(&self) -> u64 {
        self.resends.swap(0, Ordering::Relaxed)
    }

    pub fn connect_timeout(&self) -> Duration {
        self.rule.connect_timeout
    }

    /// The worker's address.
    pub(super) fn address(&self, seat: &Seat) -> Result<Arc<Address>, Lost> {
        let mut desks = self.lock();
        if let Some(desk) = desks.get(&seat.slot).filter(|d| Arc::ptr_eq(&d.worker, &seat.worker)) {
            return Ok(desk.address.clone());
        }
        let address = Arc::new(Address::of(&seat.worker)?);
        let desk = Desk { worker: seat.worker.clone(), address: address.clone(), idle: Vec::new() };
        desks.insert(seat.slot, desk);
        Ok(address)
    }

    /// The youngest idle connection that is still open.
    pub(super) fn take(&self, slot: u32, now: Instant) -> Option<Box<Link>> {
        loop {
            let (mut link, since) = self.lock().get_mut(&slot)?.idle.pop()?;
            if self.rule.idle.is_some_and(|idle| now.since(since) >= idle) {
                // The ones below are older still.
                if let Some(desk) = self.lock().get_mut(&slot) {
                    desk.idle.clear();
                }
                return None;
            }
            if link.is_fit() {
                link.reused = true;
                return Some(link);
            }
        }
    }

    /// Keeps a connection whose answer has ended, if it can serve again.
    pub(super) fn give(&self, slot: u32, mut link: Box<Link>, now: Instant) {
        if !link.rest() {
            return;
        }
        if let Some(desk) =
            self.lock().get_mut(&slot).filter(|d| d.idle.len() < self.rule.max_idle_per_worker)
        {
            desk.idle.push((link, now));
        }
    }

    /// Closes what is too old or dead, forgets workers that left.
    pub fn sweep(&self, fleet: &Fleet, now: Instant) {
        let mut desks = self.lock();
        desks.retain(|slot, _| fleet.seat(*slot).is_some());
        for desk in desks.values_mut() {
            desk.idle.retain_mut(|(link, since)| {
                self.rule.idle.is_none_or(|idle| now.since(*since) < idle) && link.is_fit()
            });
        }
    }

    /// Closes every idle connection.
    pub fn close(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u32, Desk>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lanes_share_what_may_be_idle() {
        let share = |most, lanes| {
            let rule = PoolRule { idle: None, max_idle_per_worker: most, connect_timeout: Duration::ZERO };
            rule.share_of(lanes).max_idle_per_worker
        };
        assert_eq!((share(500, 1), share(500, 3), share(2, 8), share(0, 8)), (500, 166, 1, 0));
    }
}
