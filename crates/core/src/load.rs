//! The live load of each worker, and leases on it.
//!
//! A counter goes up when a lease is taken and down when the lease is dropped; there is no other way
//! to change it, so it cannot go negative and cannot stick. Readers do not lock. Taking is one step
//! with choosing: [`Load::take_if`] takes only if the load is still what the chooser saw, and
//! [`Load::take_within`] only if a window has room, so that a burst sees itself.
//!
//! A lease weighs as many rooms as the leg makes sequences on its worker: one, but for several samples or
//! prompts in one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::time::Instant;

/// What is in flight on one worker, and what has been. One line of the processor's cache, with all that a walk over
/// many workers has to read of each.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Load {
    in_flight: AtomicU32,
    /// How the worker is: written by its [`crate::fleet::Pulse`], which says what it means.
    pub(crate) state: AtomicU32,
    /// How often the worker may have lost all that it remembered.
    pub(crate) life: AtomicU32,
    /// The life in which it last answered, and one more. 0: never.
    pub(crate) answered: AtomicU32,
    taken: AtomicU64,
    /// Leases that were given back.
    finished: AtomicU64,
    /// Tokens that the legs in flight have to compute.
    work: AtomicU64,
    /// Microseconds.
    chosen: AtomicU64,
}

impl Load {
    /// Rooms taken now: one for each sequence of each leg in flight.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Tokens of prompts that the legs in flight have to compute, as far as leases carry them.
    #[inline]
    pub fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    /// When a policy that goes round last chose this worker.
    #[inline]
    pub fn last_chosen(&self) -> Instant {
        Instant::from_micros(self.chosen.load(Ordering::Relaxed))
    }

    pub fn chosen_at(&self, now: Instant) {
        self.chosen.store(now.as_micros(), Ordering::Relaxed);
    }

    /// Leases taken since the worker joined.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Leases given back since the worker joined.
    pub fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// Takes one room on the worker whatever its load.
    pub fn take(self: &Arc<Load>) -> Lease {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.leased(1)
    }

    /// Takes rooms only if the load is still `seen`.
    pub fn take_if(self: &Arc<Load>, seen: u32, rooms: u32) -> Option<Lease> {
        let after = seen.checked_add(rooms)?;
        self.in_flight.compare_exchange(seen, after, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        Some(self.leased(rooms))
    }

    /// Takes rooms only if the load stays within `window` with them. `None` is no window.
    pub fn take_within(self: &Arc<Load>, window: Option<u32>, rooms: u32) -> Option<Lease> {
        let window = window.unwrap_or(u32::MAX);
        let after = |load: u32| load.checked_add(rooms).filter(|after| *after <= window);
        self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()?;
        Some(self.leased(rooms))
    }

    fn leased(self: &Arc<Load>, rooms: u32) -> Lease {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Lease { load: self.clone(), rooms, work: 0 }
    }
}

/// One leg's place on a worker. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped at once counts for nothing"]
pub struct Lease {
    load: Arc<Load>,
    rooms: u32,
    work: u64,
}

impl Lease {
    /// How many rooms it holds.
    pub fn rooms(&self) -> u32 {
        self.rooms
    }

    /// This leg has so many tokens more to compute, until the lease is given back.
    pub fn carry(&mut self, tokens: u64) {
        self.work = self.work.saturating_add(tokens);
        self.load.work.fetch_add(tokens, Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.load.in_flight.fetch_sub(self.rooms, Ordering::Relaxed);
        self.load.finished.fetch_add(1, Ordering::Relaxed);
        if self.work > 0 {
            self.load.work.fetch_sub(self.work, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_gives_back_and_a_stale_sight_does_not_take() {
        let load = Arc::new(Load::default());
        let mut a = load.take();
        a.carry(700);
        assert_eq!(load.work(), 700);
        assert!(load.take_if(0, 1).is_none());
        let b = load.take_if(1, 1);
        assert_eq!(load.in_flight(), 2);
        drop((a, b));
        assert_eq!((load.in_flight(), load.taken(), load.work(), load.finished()), (0, 2, 0, 2));
    }

    #[test]
    fn a_lease_of_several_rooms_is_taken_whole_or_not_at_all() {
        let load = Arc::new(Load::default());
        let a = load.take_within(Some(4), 3).unwrap();
        assert!(load.take_within(Some(4), 2).is_none());
        let b = load.take_within(Some(4), 1);
        assert_eq!((load.in_flight(), a.rooms(), b.is_some()), (4, 3, true));
        assert!(load.take_within(Some(4), 1).is_none());
        let c = load.take_within(None, 7);
        drop((a, b, c));
        assert_eq!((load.in_flight(), load.taken()), (0, 3));
        assert!(load.take_within(None, u32::MAX).is_some() && load.in_flight() == 0);
    }

    #[test]
    fn many_threads_choosing_the_least_loaded_spread_exactly() {
        let loads: Vec<Arc<Load>> = (0..4).map(|_| Arc::default()).collect();
        let leases = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..32 {
                        let lease = loop {
                            let Some(l) = loads.iter().min_by_key(|l| l.in_flight()) else { return };
                            let seen = l.in_flight();
                            if loads.iter().any(|o| o.in_flight() < seen) {
                                continue;
                            }
                            if let Some(lease) = l.take_if(seen, 1) {
                                break lease;
                            }
                        };
                        leases.lock().unwrap().push(lease);
                    }
                });
            }
        });
        let total: u32 = loads.iter().map(|l| l.in_flight()).sum();
        assert_eq!(total, 256);
        drop(leases);
        assert!(loads.iter().all(|l| l.in_flight() == 0));
    }
}
