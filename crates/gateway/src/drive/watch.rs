//! Looking after the worker that answers: carries out `core::watchdog`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use baton_core::exchange::{Event, Leg};
use baton_core::fault::Fault;
use baton_core::time::Instant;

use super::Drive;
use crate::upstream;

impl Drive {
    /// When the next piece of the answer has to be there, if one is owed.
    pub(super) fn due(&mut self, cx: &mut Context<'_>) -> Option<Instant> {
        let heard = self.heard();
        // Looked at only while it arms something, so that it wakes nobody for nothing.
        if heard.is_none()
            && self.watch.waits_for_prefill()
            && let Some(task) = &mut self.detached
            && let Poll::Ready(ended) = Pin::new(task).poll(cx)
        {
            self.detached = None;
            self.watch.over(Leg::Prefill, ended.unwrap_or(self.now));
        }
        self.watch.due(heard).map(|due| due.at)
    }

    /// The worker that answers has been silent for too long.
    pub(super) fn silence(&self) -> Option<Fault> {
        self.watch.barks(self.heard(), self.now)
    }

    /// When the prefill has to have answered, where AIBrix's strategy gives it a time of its own.
    pub(super) fn prefill_due(&self) -> Option<Instant> {
        let limit = self.routing.prefill_limit()?;
        let moments = &self.record.moments;
        let runs = self.legs[Leg::Prefill as usize].is_some() && moments.prefill_done.is_none();
        moments.prefill_sent.filter(|_| runs).map(|sent| sent.after(limit))
    }

    /// It has not.
    pub(super) fn prefill_late(&self) -> Event {
        let seconds = self.routing.knobs.prefill_timeout.as_secs();
        self.failure(Leg::Prefill, |leg| Fault::Deadline { leg, seconds }, true)
    }

    /// When the last piece of the answer's body came.
    pub(crate) fn heard(&self) -> Option<Instant> {
        self.legs[Leg::Decode as usize].as_ref().and_then(upstream::Leg::heard)
    }
}
