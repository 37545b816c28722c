//! Has a connection news since it was last looked at?
//!
//! A leg's connection is polled in the client's task, and that task wakes for many reasons: the client's
//! socket, the other leg, a timer. Worse, hyper wakes a connection whenever its other half takes something,
//! which here happens in the middle of our own look at it. So the connection does not get the task's waker
//! but a [`Bell`]. It notes that it rang; without a ring the connection is not looked at, and a ring during
//! a look is answered by that look instead of by another turn of the task.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// It rang and nobody has looked since.
const RUNG: u8 = 1;
/// Somebody is looking: rings are noted and not passed on.
const HELD: u8 = 2;
/// The worker has said something since [`Bell::listen`].
const HEARD: u8 = 4;

/// What a connection wakes. One for its life, whoever uses it.
pub(super) struct Bell {
    state: AtomicU8,
    /// Whom to tell.
    task: Mutex<Waker>,
}

impl Bell {
    pub(super) fn new() -> Arc<Bell> {
        Arc::new(Bell { state: AtomicU8::new(RUNG), task: Mutex::new(Waker::noop().clone()) })
    }

    pub(super) fn has_rung(&self) -> bool {
        self.state.load(Ordering::Acquire) & RUNG != 0
    }

    /// It has been heard; the one who looks now will see what there is.
    pub(super) fn answer(&self) {
        self.state.fetch_and(!RUNG, Ordering::AcqRel);
    }

    /// Whom to tell from now on.
    pub(super) fn tell(&self, task: &Waker) {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).clone_from(task);
    }

    /// Somebody looks: what rings until [`Bell::release`] is theirs to answer.
    pub(super) fn hold(&self) {
        self.state.fetch_or(HELD, Ordering::AcqRel);
    }

    /// The look is over. If it waits for more and left a ring unanswered, the task has to come again.
    pub(super) fn release<T>(&self, seen: Poll<T>, cx: &Context<'_>) -> Poll<T> {
        let left = self.state.fetch_and(!HELD, Ordering::AcqRel);
        if seen.is_pending() && left & RUNG != 0 {
            cx.waker().wake_by_ref();
        }
        seen
    }

    /// Forgets what the worker said so far.
    pub(super) fn listen(&self) {
        self.state.fetch_and(!HEARD, Ordering::Relaxed);
    }

    pub(super) fn has_heard(&self) -> bool {
        self.state.load(Ordering::Relaxed) & HEARD != 0
    }

    /// The worker says something.
    pub(super) fn hear(&self) {
        self.state.fetch_or(HEARD, Ordering::Relaxed);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        if self.state.fetch_or(RUNG, Ordering::AcqRel) & (RUNG | HELD) == 0 {
            self.task.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn bell() -> (Arc<Bell>, Waker, Arc<Count>) {
        let (bell, count) = (Bell::new(), Arc::new(Count::default()));
        bell.tell(&Waker::from(count.clone()));
        bell.answer();
        let waker = Waker::from(bell.clone());
        (bell, waker, count)
    }

    #[test]
    fn one_ring_wakes_the_task_once_until_it_is_answered() {
        let (bell, waker, count) = bell();
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(bell.has_rung());
        bell.answer();
        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_ring_during_a_look_is_passed_on_only_if_the_look_waits_and_did_not_answer_it() {
        let (bell, waker, count) = bell();
        let task = Waker::from(count.clone());
        let cx = Context::from_waker(&task);
        bell.hold();
        waker.wake_by_ref();
        assert!(bell.release(Poll::Ready(()), &cx).is_ready() && bell.has_rung());
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "whoever got an answer asks again");
        bell.hold();
        bell.answer();
        assert!(bell.release::<()>(Poll::Pending, &cx).is_pending());
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "it was answered");
        bell.hold();
        waker.wake_by_ref();
        assert!(bell.release::<()>(Poll::Pending, &cx).is_pending());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn hearing_is_apart_from_ringing() {
        let (bell, _, _) = bell();
        bell.hear();
        assert!(bell.has_heard() && !bell.has_rung());
        bell.listen();
        assert!(!bell.has_heard());
    }
}
