//! Requests that wait for room at a decode worker: the shell around `core::place::Queue`.
//!
//! While nobody waits, giving a lease back costs one load of a counter. A waiter is woken when a room comes
//! free that it may try for, and looks again by itself now and then, since a worker may also join, recover or
//! get a wider window.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use baton_core::fleet::Worker;
use baton_core::place::{Queue, Ticket, Want};

/// A waiter looks again at least this often.
pub const LOOK: Duration = Duration::from_millis(250);

/// Requests that may wait for room at once, over all models (docs/limits.md).
pub const WAITING_MAX: usize = 16_384;

/// What a waiter is woken by.
#[derive(Debug, Default)]
pub struct Bell {
    rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Bell {
    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    /// Has it been rung since this was last asked?
    pub fn poll(&self, cx: &Context<'_>) -> bool {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        self.rung.swap(false, Ordering::AcqRel)
    }
}

/// The line of all lanes.
pub struct Rooms {
    /// How long a request may wait; zero sheds at once. SMG `--pd-admission-wait-secs`.
    pub wait: Duration,
    waiting: AtomicUsize,
    queue: Mutex<Queue<Arc<Bell>>>,
}

/// A request's place in the line. Dropping it leaves.
pub struct Place {
    rooms: Arc<Rooms>,
    ticket: Ticket,
    pub bell: Arc<Bell>,
}

impl Rooms {
    pub fn new(wait: Duration) -> Rooms {
        Rooms { wait, waiting: AtomicUsize::new(0), queue: Mutex::new(Queue::new(WAITING_MAX)) }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Would a request that comes now overtake one that waits?
    pub fn must_wait(&self, want: Want<'_>) -> bool {
        self.waiting() > 0 && self.queue().must_wait(want)
    }

    /// A place at the end of the line. `None`: the line is full.
    pub fn enter(self: &Arc<Rooms>, want: Want<'_>) -> Option<Place> {
        let bell = Arc::new(Bell::default());
        let mut queue = self.queue();
        let ticket = queue.enter(want, bell.clone())?;
        self.waiting.store(queue.len(), Ordering::Release);
        Some(Place { rooms: self.clone(), ticket, bell })
    }

    /// A lease on this worker was given back.
    pub fn freed(&self, worker: &Worker) {
        if self.waiting.load(Ordering::Acquire) > 0 {
            self.queue().next(|model| worker.serves(Some(model))).for_each(|bell| bell.ring());
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Arc<Bell>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Is it this one's turn?
    pub fn may_try(&self) -> bool {
        self.rooms.queue().may_try(&self.ticket)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queue = self.rooms.queue();
        queue.leave(&self.ticket).for_each(|bell| bell.ring());
        self.rooms.waiting.store(queue.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use baton_core::fleet::Role;

    use super::*;

    #[test]
    fn the_first_in_line_is_woken_and_the_next_when_it_leaves() {
        let rooms = Arc::new(Rooms::new(Duration::from_secs(1)));
        let worker = Worker::new("1", "http://h:1", Role::Decode);
        rooms.freed(&worker);
        let first = rooms.enter(Want::of(Some("m"), 1)).unwrap();
        let second = rooms.enter(Want::of(Some("m"), 1)).unwrap();
        assert!(rooms.must_wait(Want::of(Some("m"), 1)) && !rooms.must_wait(Want::of(Some("x"), 1)));
        let cx = Context::from_waker(Waker::noop());
        assert!(!first.bell.poll(&cx));
        rooms.freed(&worker);
        assert!(first.bell.poll(&cx) && first.may_try());
        assert!(!second.bell.poll(&cx) && !second.may_try());
        drop(first);
        assert!(second.bell.poll(&cx) && second.may_try());
        drop(second);
        assert_eq!(rooms.waiting(), 0);
    }
}
