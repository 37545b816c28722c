//! A connection's timer for waits that hardly ever come to their end.
//!
//! A request has a deadline and is over long before. A timer of the runtime's for each request costs an
//! allocation, two trips to the timer wheel and the lock around it. An [`Alarm`] stays where it was set: it
//! rings at the earliest moment that anybody has asked for, and whoever finds that their own has not come
//! asks again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use baton_core::time::Instant;
use tokio::time::Sleep;

use crate::clock::Clock;

#[derive(Debug)]
pub struct Alarm {
    clock: Clock,
    set: Option<Set>,
}

#[derive(Debug)]
struct Set {
    sleep: Pin<Box<Sleep>>,
    rings: Instant,
    /// Whom it wakes.
    wakes: Waker,
}

impl Alarm {
    pub fn new(clock: Clock) -> Alarm {
        Alarm { clock, set: None }
    }

    /// Ready once `at` has come. Until then the task is woken at `at`, and perhaps before.
    pub fn poll(&mut self, at: Instant, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if now >= at {
            return Poll::Ready(());
        }
        let set = self.set.get_or_insert_with(|| Set {
            sleep: Box::pin(tokio::time::sleep_until(self.clock.timer(at))),
            rings: at,
            wakes: Waker::noop().clone(),
        });
        let rings_in_time = now < set.rings && set.rings <= at;
        if rings_in_time && set.wakes.will_wake(cx.waker()) {
            return Poll::Pending;
        }
        if !rings_in_time {
            set.sleep.as_mut().reset(self.clock.timer(at));
            set.rings = at;
        }
        set.wakes.clone_from(cx.waker());
        // Unconstrained: a budget that is spent would leave the timer without anybody to wake.
        std::pin::pin!(tokio::task::unconstrained(set.sleep.as_mut())).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    async fn wait(alarm: &mut Alarm, clock: Clock, at: Instant) -> u32 {
        let mut turns = 0;
        poll_fn(|cx| {
            turns += 1;
            alarm.poll(at, clock.now(), cx)
        })
        .await;
        assert_eq!(clock.now(), at);
        turns
    }

    #[tokio::test(start_paused = true)]
    async fn rings_for_each_wait_at_its_own_moment() {
        let clock = Clock::start();
        let mut alarm = Alarm::new(clock);
        let at = |ms| Instant::ZERO.after(Duration::from_millis(ms));
        assert_eq!(wait(&mut alarm, clock, at(10)).await, 2);
        // A later request: it is left at 500, which is early for 700.
        let first = poll_fn(|cx| Poll::Ready(alarm.poll(at(500), clock.now(), cx))).await;
        assert!(first.is_pending());
        assert_eq!(wait(&mut alarm, clock, at(700)).await, 3);
        // An earlier one moves it.
        let first = poll_fn(|cx| Poll::Ready(alarm.poll(at(9000), clock.now(), cx))).await;
        assert!(first.is_pending());
        assert_eq!(wait(&mut alarm, clock, at(800)).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn another_task_is_woken_once_it_has_asked() {
        let clock = Clock::start();
        let mut alarm = Alarm::new(clock);
        let at = Instant::ZERO.after(Duration::from_secs(1800));
        assert!(alarm.poll(at, clock.now(), &mut Context::from_waker(Waker::noop())).is_pending());
        let task = tokio::spawn(async move { wait(&mut alarm, clock, at).await });
        assert_eq!(task.await.unwrap(), 2);
    }
}
