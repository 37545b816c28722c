//! Sending legs, and reading what they say.

use baton_core::exchange::{Event, Failure, Leg, Order};
use baton_core::fault::{Fault, LegName, read_refusal};
use baton_core::handoff::Edits;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, header};

use super::Drive;
use crate::edge::answer::REQUEST_ID;
use crate::upstream::{self, LegBody, LegEvent, LegRequest, Want};

impl Drive {
    pub(super) fn send(&mut self, leg: Leg) {
        let now = self.lane.clock.now();
        let (Some(plan), Some(taken)) = (&self.plan, &self.taken[leg as usize]) else { return };
        let want = match (leg, plan.course.order) {
            (Leg::Decode, _) => Want::Relayed,
            (Leg::Prefill, Order::Together) => Want::Drained,
            (Leg::Prefill, _) => {
                Want::Whole { max_bytes: self.gateway.rules.exchange.prefill_answer_max_bytes }
            }
        };
        let request = match leg {
            Leg::Prefill => self.request(&plan.prefill, &plan.request_id),
            Leg::Decode if self.derived.is_empty() => self.request(&plan.decode, &plan.request_id),
            Leg::Decode => {
                let mut edits = plan.decode.clone();
                edits.extend(self.derived.iter().cloned());
                self.request(&edits, &plan.request_id)
            }
        };
        let moments = &mut self.record.moments;
        match leg {
            Leg::Prefill => (moments.prefill_sent, moments.prefill_done) = (Some(now), None),
            Leg::Decode => (moments.decode_sent, moments.decode_head) = (Some(now), None),
        }
        self.legs[leg as usize] =
            Some(upstream::Leg::send(&self.lane.pool, self.lane.clock, &taken.seat, request, want));
    }

    /// The client's request with these edits, under the id that both engines log.
    pub(super) fn request(&self, edits: &Edits, request_id: &str) -> LegRequest {
        let mut headers = self.forward.clone();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(id) = HeaderValue::from_str(request_id) {
            headers.insert(REQUEST_ID, id);
        }
        LegRequest {
            method: Method::POST,
            path: PathAndQuery::from_static(self.ask.api.path()),
            headers,
            body: LegBody::new(self.body.splice(edits).pieces()),
        }
    }

    /// What a leg's event means for the exchange.
    pub(super) fn told_by(&mut self, leg: Leg, event: LegEvent) -> Event {
        let now = self.lane.clock.now();
        match event {
            LegEvent::Head(head) => {
                match leg {
                    Leg::Prefill => self.record.moments.prefill_done = Some(now),
                    Leg::Decode => {
                        self.record.moments.decode_head = Some(now);
                        self.record.status = head.status;
                        self.head = Some(head);
                    }
                }
                Event::Head(leg)
            }
            LegEvent::Answer(answer) => {
                self.record.moments.prefill_done = Some(now);
                let Some(plan) = &self.plan else { return Event::Ended(leg) };
                let reading = plan.deliver.read(&answer, &self.gateway.rules.answer);
                if let Some(why) = reading.why {
                    let worker = self.record.prefill.as_ref().map_or("", |w| w.url.as_str());
                    tracing::warn!(worker, why, "no hand-off: the decode computes the prompt itself");
                }
                (self.derived, self.record.handoff) = (reading.edits, reading.result);
                Event::Answered(reading.handed)
            }
            LegEvent::Ended => Event::Ended(leg),
            LegEvent::Refused { status, body, retry_after } => {
                let alone = self.plan.as_ref().is_some_and(|p| p.course.order == Order::InTurn);
                let refusal = read_refusal(status, &body, retry_after, alone);
                self.failure(leg, |leg| Fault::Refused { leg, refusal }, true)
            }
            LegEvent::Unreachable(lost) => {
                self.suspect(leg);
                self.failure(leg, |leg| Fault::Unreachable { leg, cause: lost.cause }, lost.delivered)
            }
            LegEvent::Broken(lost) => {
                self.suspect(leg);
                self.failure(leg, |leg| Fault::Broken { leg, cause: lost.cause }, true)
            }
        }
    }

    fn failure(&self, leg: Leg, fault: impl FnOnce(LegName) -> Fault, delivered: bool) -> Event {
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
