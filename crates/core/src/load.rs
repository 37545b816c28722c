//! The live load of each worker, and leases on it.
//!
//! A counter goes up when a lease is taken and down when the lease is dropped; there is no other way
//! to change it, so it cannot go negative and cannot stick. Readers do not lock. Taking is one step
//! with choosing: [`Load::take_if`] takes only if the load is still what the chooser saw, so that a
//! burst sees itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What is in flight on one worker, and what has been.
#[derive(Debug, Default)]
pub struct Load {
    in_flight: AtomicU32,
    taken: AtomicU64,
}

impl Load {
    /// Legs in flight now.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Leases taken since the worker joined.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes a place on the worker whatever its load.
    pub fn take(self: &Arc<Load>) -> Lease {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.taken.fetch_add(1, Ordering::Relaxed);
        Lease(self.clone())
    }

    /// Takes a place only if the load is still `seen`.
    pub fn take_if(self: &Arc<Load>, seen: u32) -> Option<Lease> {
        self.in_flight
            .compare_exchange(seen, seen.saturating_add(1), Ordering::Relaxed, Ordering::Relaxed)
            .ok()?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Lease(self.clone()))
    }
}

/// One leg's place on a worker. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped at once counts for nothing"]
pub struct Lease(Arc<Load>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_gives_back_and_a_stale_sight_does_not_take() {
        let load = Arc::new(Load::default());
        let a = load.take();
        assert!(load.take_if(0).is_none());
        let b = load.take_if(1);
        assert_eq!(load.in_flight(), 2);
        drop((a, b));
        assert_eq!((load.in_flight(), load.taken()), (0, 2));
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
                            if let Some(lease) = l.take_if(seen) {
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
