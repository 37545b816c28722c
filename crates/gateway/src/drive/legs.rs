//! Sending legs, and reading what they say.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use baton_core::ask::Api;
use baton_core::body::Envelope;
use baton_core::exchange::{Event, Failure, Handed, Leg};
use baton_core::fault::{Fault, LegName};
use baton_core::fleet::Worker;
use baton_core::handoff::{Edits, Plan};
use baton_core::place::Taken;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::Drive;
use super::joint::Joint;
use crate::upstream::{self, LegBody, LegEvent, LegRequest, Route, Want};

/// A prefill's answer that has to wait until its worker has said that it is still the same.
pub(super) struct Held {
    pub answer: Bytes,
    pub again: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// What the client sent, as far as legs are made of it.
pub(crate) struct Original<'a> {
    pub api: Api,
    pub forward: &'a [(HeaderName, HeaderValue)],
    pub body: &'a Envelope,
}

impl Original<'_> {
    pub fn with(&self, edits: &Edits, request_id: &str) -> LegRequest {
        LegRequest {
            route: Route::Api(self.api),
            id: HeaderValue::from_str(request_id).ok(),
            rank: None,
            forward: self.forward.to_vec(),
            body: LegBody::new(self.body.splice(edits).pieces()),
            fresh: false,
        }
    }
}

/// What a leg's event means for the exchange, if it is not one that brings something.
pub(crate) fn meant(plan: &Plan, leg: Leg, event: LegEvent) -> Event {
    let name = plan.course.name(leg);
    let failed = |fault, delivered| Event::Failed(Failure { leg, fault, delivered });
    match event {
        LegEvent::Head(_) => Event::Head(leg),
        LegEvent::Ended(_) | LegEvent::Answer(_) => Event::Ended(leg),
        LegEvent::Refused { status, body, retry_after } => {
            failed(plan.refused(leg, status, &body, retry_after), true)
        }
        LegEvent::Stale(lost) => {
            let fault = Fault::Unreachable { leg: name, cause: lost.into() };
            Event::Stale(Failure { leg, fault, delivered: true })
        }
        LegEvent::Unreachable(lost) => {
            let delivered = lost.delivered;
            failed(Fault::Unreachable { leg: name, cause: lost.into() }, delivered)
        }
        LegEvent::Broken(lost) => failed(Fault::Broken { leg: name, cause: lost.cause }, true),
    }
}

impl Drive {
    pub(super) fn send(&mut self, leg: Leg) {
        self.now = self.lane.clock.now();
        let now = self.now;
        let (Some(plan), Some(taken)) = (&self.plan, &self.taken[leg as usize]) else { return };
        let want = Want::of(leg, &plan.course, self.gateway.rules.exchange.prefill_answer_max_bytes);
        let rank = plan.ranks[leg as usize];
        let request = match leg {
            Leg::Prefill => self.request(&plan.prefill, &plan.request_id, rank),
            Leg::Decode => self.request(&plan.decode, &plan.request_id, rank),
        };
        let moments = &mut self.record.moments;
        match leg {
            Leg::Prefill => (moments.prefill_sent, moments.prefill_done) = (Some(now), None),
            Leg::Decode => (moments.decode_sent, moments.decode_head) = (Some(now), None),
        }
        self.watch.sent(leg, now);
        self.legs[leg as usize] =
            Some(upstream::Leg::send(&self.lane.pool, self.lane.clock, &taken.seat, request, want));
    }

    /// The client's request with these edits, under the id that both engines log, for one rank of the
    /// engine where the plan wants it there.
    pub(super) fn request(&self, edits: &Edits, request_id: &str, rank: Option<u32>) -> LegRequest {
        LegRequest { rank, fresh: self.fresh, ..self.original().with(edits, request_id) }
    }

    /// What the client sent.
    pub(super) fn original(&self) -> Original<'_> {
        Original { api: self.ask.api, forward: &self.forward, body: &self.body }
    }

    /// Holds an answer back while its worker is asked whether it is still the one that the plan knew.
    pub(super) fn unless_held(&mut self, event: LegEvent) -> Option<LegEvent> {
        let LegEvent::Answer(answer) = event else { return Some(event) };
        let (leg, taken) = (&self.legs[Leg::Prefill as usize], &self.taken[Leg::Prefill as usize]);
        let quotes = self.plan.as_ref().is_some_and(|plan| plan.deliver.quotes_engine());
        match (leg.as_ref().and_then(upstream::Leg::same_since), taken) {
            (Some(since), Some(taken)) if quotes && taken.seat.pulse.told_at() < since => {
                let again = self.gateway.registry.clone().ask_again(taken.seat.slot, since);
                self.held = Some(Held { answer, again: Box::pin(again) });
                None
            }
            _ => Some(LegEvent::Answer(answer)),
        }
    }

    /// What is known of the prefill worker now.
    fn prefill_now(&self) -> Option<Arc<Worker>> {
        let taken = self.taken[Leg::Prefill as usize].as_ref()?;
        let fleet = self.gateway.registry.fleet();
        let now = fleet.seat(taken.seat.slot).map(|seat| &seat.worker);
        Some(now.unwrap_or(&taken.seat.worker).clone())
    }

    /// What a leg's event means for the exchange.
    pub(super) fn told_by(&mut self, leg: Leg, event: LegEvent) -> Event {
        let now = self.now;
        match event {
            LegEvent::Head(head) => {
                match leg {
                    Leg::Prefill => self.record.moments.prefill_done = Some(now),
                    Leg::Decode => {
                        // An answer that begins has its prompt behind it.
                        self.taken[Leg::Decode as usize].iter_mut().for_each(Taken::computed);
                        self.record.moments.decode_head = Some(now);
                        self.record.status = head.status;
                        self.head = Some(head);
                    }
                }
                Event::Head(leg)
            }
            LegEvent::Answer(answer) => {
                self.record.moments.prefill_done = Some(now);
                let Some(prefill) = self.prefill_now() else { return Event::Ended(leg) };
                let Some(plan) = &mut self.plan else { return Event::Ended(leg) };
                let reading = plan.hears(&answer, &prefill, &self.gateway.rules.answer);
                if let Some(why) = reading.why {
                    let then = match reading.handed {
                        Handed::Dead(_) => "the request ends",
                        _ => "the decode computes the prompt itself",
                    };
                    tracing::warn!(worker = prefill.url, why, then, "no hand-off");
                }
                self.record.handoff = reading.result;
                self.joint = reading.prompt.map(|prompt| Joint::new(prompt, self.ask.stream));
                self.answer = reading.answer;
                Event::Answered(reading.handed)
            }
            LegEvent::Ended(gist) => {
                self.record.odd = gist.class();
                Event::Ended(leg)
            }
            other => {
                if matches!(other, LegEvent::Unreachable(_) | LegEvent::Broken(_)) {
                    self.suspect(leg);
                }
                if let LegEvent::Unreachable(lost) = &other
                    && let Some(taken) = self.taken[leg as usize].as_ref().filter(|_| !lost.delivered)
                {
                    // Nobody is there: whoever comes back remembers no prompts.
                    taken.seat.pulse.reborn();
                }
                let Some(plan) = &self.plan else { return Event::Ended(leg) };
                meant(plan, leg, other)
            }
        }
    }

    pub(super) fn failure(&self, leg: Leg, fault: impl FnOnce(LegName) -> Fault, delivered: bool) -> Event {
        let name = self.plan.as_ref().map_or(LegName::Decode, |p| p.course.name(leg));
        Event::Failed(Failure { leg, fault: fault(name), delivered })
    }

    /// The connection to the worker failed: its health is worth an early look.
    fn suspect(&self, leg: Leg) {
        if let Some(taken) = &self.taken[leg as usize] {
            self.gateway.registry.suspect(taken.seat.slot);
        }
    }
}
