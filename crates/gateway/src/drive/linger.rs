//! A prefill whose client has left goes on for a moment.
//!
//! Closing its connection aborts it, unless the engine is in the last step of its prompt: then it ends that step, keeps
//! the KV for a decode, and has nobody left to tell of it, so that the KV stays until its lease ends (vLLM 0.32: 30 s).
//! One that answers within the moment is told of by its answer, and a throw-away decode fetches what it holds.

use std::sync::Arc;

use baton_core::ask::Ask;
use baton_core::body::Envelope;
use baton_core::breaker::Verdict;
use baton_core::dice::Dice;
use baton_core::exchange::{Handed, Leg};
use baton_core::fault::LegName;
use baton_core::handoff::{self, Plan};
use baton_core::place::Taken;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::background::{Kv, ThrowAway, judged, read_out};
use super::legs::{Held, Original};
use super::{Drive, give_back};
use crate::gateway::Gateway;
use crate::lane::Lane;
use crate::telemetry::LegEnd;
use crate::upstream::{self, LegEvent};

/// All that is left of the request.
struct Lingering {
    gateway: Arc<Gateway>,
    lane: Arc<Lane>,
    dice: Dice,
    ask: Ask,
    body: Envelope,
    forward: Vec<(HeaderName, HeaderValue)>,
    plan: Plan,
    taken: Taken,
    io: upstream::Leg,
    held: Option<Held>,
}

impl Drive {
    /// Lets the prefill answer in the background, if it does soon.
    pub(super) fn linger(&mut self) {
        let at = Leg::Prefill as usize;
        let (Some(io), Some(taken), Some(plan)) = (self.legs[at].take(), self.taken[at].take(), &self.plan)
        else {
            return;
        };
        let Some((runtime, place)) = self.background() else { return self.judge(&taken, Verdict::Mute) };
        let lingering = Lingering {
            gateway: self.gateway.clone(),
            lane: self.lane.clone(),
            dice: self.lane.dice(),
            ask: self.ask.clone(),
            body: self.body.clone(),
            forward: self.forward.clone(),
            plan: plan.clone(),
            taken,
            io,
            held: self.held.take(),
        };
        drop(runtime.spawn(async move {
            lingering.run().await;
            drop(place);
        }));
    }
}

impl Lingering {
    async fn run(mut self) {
        let counted = self.gateway.telemetry.background().detached();
        let limit = self.gateway.rules.exchange.linger_timeout;
        let event = match self.held.take() {
            None => read_out(&mut self.io, limit).await,
            // It has answered.
            Some(Held { answer, again }) => {
                again.await;
                Some(LegEvent::Answer(answer))
            }
        };
        // One that is closed now was closed for its client.
        let told = event.as_ref().map(|event| judged(event, LegName::Prefill));
        let (end, verdict) = told.unwrap_or((LegEnd::TimedOut, Verdict::Mute));
        if verdict == Verdict::Good {
            self.taken.computed();
        }
        self.taken.seat.pulse.record(verdict, &self.gateway.rules.breaker, self.lane.clock.now());
        counted.ended(end);
        match event {
            Some(LegEvent::Answer(answer)) => self.fetch(answer).await,
            _ => {
                drop(self.io);
                give_back(self.taken, &self.gateway);
            }
        }
    }

    /// What the prefill handed over goes to a throw-away decode.
    async fn fetch(mut self, answer: Bytes) {
        let seat = self.taken.seat.clone();
        if let Some(since) = self.io.same_since().filter(|since| seat.pulse.told_at() < *since)
            && self.plan.deliver.quotes_engine()
        {
            self.gateway.registry.clone().ask_again(seat.slot, since).await;
        }
        drop(self.io);
        give_back(self.taken, &self.gateway);
        let fleet = self.gateway.registry.fleet();
        let prefill = fleet.seat(seat.slot).map_or(&seat.worker, |seat| &seat.worker);
        let reading = self.plan.hears(&answer, prefill, &self.gateway.rules.answer);
        if reading.handed != Handed::Over {
            return;
        }
        let handoff = Some(self.gateway.telemetry.background().issued());
        let edits = handoff::release_edits(&self.ask, &self.plan.decode);
        let original = Original { api: self.ask.api, forward: &self.forward, body: &self.body };
        let request = original.with(&edits, &self.plan.request_id);
        let kv = Kv { prefill: &prefill.id, avoid: "", request };
        match ThrowAway::send(&self.gateway, &self.lane, kv, &mut self.dice) {
            Some(throw_away) => throw_away.end(handoff).await,
            None => self.gateway.telemetry.background().released(LegEnd::Dropped, handoff),
        }
    }
}
