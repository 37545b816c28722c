//! Looking after the worker that answers: carries out `core::watchdog`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use baton_core::exchange::Leg;
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

    /// When the last piece of the answer's body came.
    pub(crate) fn heard(&self) -> Option<Instant> {
        self.legs[Leg::Decode as usize].as_ref().and_then(upstream::Leg::heard)
    }
}
