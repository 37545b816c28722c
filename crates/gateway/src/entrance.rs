//! The entrance: carries out what `core::admission` decides.
//!
//! Waiting requests stand in the semaphore's own queue, first come first served. A permit is held until the
//! answer's last byte and given back by dropping it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_core::admission::{Admission, AdmissionRule};
use baton_core::fault::Fault;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct Entrance {
    rule: AdmissionRule,
    places: Arc<Semaphore>,
    running: AtomicUsize,
    waiting: AtomicUsize,
}

/// A request's place in the gateway.
pub struct Permit {
    entrance: Arc<Entrance>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.entrance.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a waiting request for as long as it waits, also if it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Entrance {
    pub fn new(rule: AdmissionRule) -> Entrance {
        let places = rule.concurrent.min(Semaphore::MAX_PERMITS);
        Entrance {
            places: Arc::new(Semaphore::new(places)),
            rule,
            running: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Fault::QueueFull`] at once, [`Fault::QueueTimeout`] after the wait.
    pub async fn enter(self: &Arc<Entrance>) -> Result<Permit, Fault> {
        if self.rule.concurrent == 0 {
            return Ok(self.permit(None));
        }
        let busy = self.rule.concurrent.saturating_sub(self.places.available_permits());
        match self.rule.decide(busy, self.waiting()) {
            Admission::Refuse(fault) => return Err(fault),
            Admission::Enter => {
                if let Ok(place) = self.places.clone().try_acquire_owned() {
                    return Ok(self.permit(Some(place)));
                }
            }
            Admission::Wait { .. } => {}
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _counted = Waiting(&self.waiting);
        match tokio::time::timeout(self.rule.queue_timeout, self.places.clone().acquire_owned()).await {
            Ok(Ok(place)) => Ok(self.permit(Some(place))),
            Ok(Err(_)) | Err(_) => Err(self.rule.timed_out()),
        }
    }

    fn permit(self: &Arc<Entrance>, place: Option<OwnedSemaphorePermit>) -> Permit {
        self.running.fetch_add(1, Ordering::Relaxed);
        Permit { entrance: self.clone(), _place: place }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entrance(concurrent: usize, queue: usize) -> Arc<Entrance> {
        Arc::new(Entrance::new(AdmissionRule { concurrent, queue, queue_timeout: Duration::from_secs(1) }))
    }

    #[tokio::test(start_paused = true)]
    async fn one_runs_one_waits_in_vain_the_third_is_refused() {
        let e = entrance(1, 1);
        let first = e.enter().await.unwrap();
        let second = tokio::spawn({
            let e = e.clone();
            async move { e.enter().await.err() }
        });
        while e.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(e.enter().await, Err(Fault::QueueFull { .. })));
        assert!(matches!(second.await.unwrap(), Some(Fault::QueueTimeout { .. })));
        assert_eq!((e.running(), e.waiting()), (1, 0));
        drop(first);
        assert_eq!(e.running(), 0);
        drop(e.enter().await.unwrap());
    }

    #[tokio::test]
    async fn a_waiter_that_leaves_is_not_counted_any_more() {
        let e = entrance(1, 4);
        let first = e.enter().await.unwrap();
        let waiter = tokio::spawn({
            let e = e.clone();
            async move { e.enter().await.is_ok() }
        });
        while e.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        assert_eq!(e.waiting(), 0);
        drop(first);
    }
}
