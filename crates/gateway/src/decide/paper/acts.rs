//! What the exchange asks for, done on paper.

use std::sync::Arc;

use baton_core::abort::{Asked, Questions, Why};
use baton_core::exchange::{Action, Event, Leg, Outcome};
use baton_core::fault::Fault;
use baton_core::fleet::Worker;
use baton_core::handoff;
use baton_core::place;
use serde_json::json;

use super::Paper;
use super::house::{Around, millis};
use super::leg::PaperLeg;
use super::told::{Sent, Source};
use crate::telemetry::LegEnd;
use crate::upstream::Want;

impl Paper {
    pub(super) fn act(&mut self, action: Action, around: &Around<'_>) {
        match action {
            Action::Place => {
                let event = self.place(around);
                self.pending.push_back(event);
            }
            Action::Renew => {
                self.record.renewed += 1;
                self.tried.truncate(self.tried_before);
                let event = self.place(around);
                self.pending.push_back(event);
            }
            Action::Replace => {
                let event = self.replace(around);
                self.pending.push_back(event);
            }
            // Nobody waits for room.
            Action::Queue => self.pending.push_back(Event::QueueOver),
            Action::Send(leg) => self.send(leg, around),
            Action::Cancel(leg) => self.cancel(leg, around),
            Action::Detach(leg) => self.detach(leg, around),
            Action::Linger => self.linger(around),
            Action::Release => self.release(around),
            Action::AskAbort(why) => self.ask_or_not(why, around),
            Action::Judge(leg, verdict) => {
                if let Some(taken) = &mut self.taken[leg as usize] {
                    taken.judged(verdict, &around.house.rules.breaker, around.now);
                }
            }
            Action::Free(leg) => {
                self.close(leg, around);
                self.taken[leg as usize] = None;
            }
            Action::Start => self.start(around),
            Action::Tell => self.tell(around),
            Action::Fail(fault) => {
                self.answer.fails(&fault, &self.record.request_id);
                let told = json!({"status": fault.status(), "code": fault.code()});
                self.told.event(around, "gateway", "fails", told);
                self.blame(fault);
            }
            Action::Cut(fault) => {
                self.answer.count(&mut self.record);
                self.answer.cut(&fault);
                self.told.event(around, "gateway", "cuts", json!({"code": fault.code()}));
                self.blame(fault);
            }
            Action::Wait(_) if !around.house.budget.take(around.now) => {
                self.record.over_budget = true;
                self.pending.push_back(Event::Spent);
            }
            Action::Wait(wait) => {
                self.record.retries(self.exchange.last_fault(), wait);
                self.told.event(around, "gateway", "waits", json!({"ms": millis(wait)}));
                self.resume = Some(around.now.after(wait));
            }
            Action::Settle(outcome) => self.settle(outcome, around),
        }
    }

    fn blame(&mut self, fault: Fault) {
        self.record.blame(&fault);
        self.fault = Some(fault);
    }

    fn send(&mut self, leg: Leg, around: &Around<'_>) {
        let (Some(plan), Some(taken)) = (&self.plan, &self.taken[leg as usize]) else { return };
        let now = around.now;
        let worker = &taken.seat.worker;
        let source = Source { api: self.ask.api, forward: &self.forward, body: &self.body };
        let mut all = Sent::of(plan, leg, worker).to_json(&source);
        all.insert("at_ms".into(), around.house.at_ms(now));
        all.insert("attempt".into(), self.exchange.attempt().into());
        let told = json!({"leg": plan.course.name(leg).as_str(), "worker": worker.id});
        self.told.leg(all);
        self.told.event(around, "gateway", "sends", told);
        let moments = &mut self.record.moments;
        match leg {
            Leg::Prefill => (moments.prefill_sent, moments.prefill_done) = (Some(now), None),
            Leg::Decode => (moments.decode_sent, moments.decode_head) = (Some(now), None),
        }
        self.watch.sent(leg, now);
        let max_bytes = around.house.rules.exchange.prefill_answer_max_bytes;
        self.legs[leg as usize] = Some(PaperLeg::new(Want::of(leg, &plan.course, max_bytes)));
    }

    fn cancel(&mut self, leg: Leg, around: &Around<'_>) {
        if self.legs[leg as usize].is_some() {
            let name = self.plan.as_ref().map(|plan| plan.course.name(leg).as_str());
            self.told.event(around, "gateway", "closes", json!({"leg": name}));
        }
        self.close(leg, around);
    }

    fn close(&mut self, leg: Leg, around: &Around<'_>) {
        self.legs[leg as usize] = None;
        self.watch.over(leg, around.now);
    }

    /// Makes a decode consume the KV that the prefill holds for this request, which it does at once.
    pub(super) fn release(&mut self, around: &Around<'_>) {
        let handoff = self.handoff.take();
        let (Some(plan), Some(prefill)) = (&self.plan, &self.record.prefill) else { return };
        let avoid = self.record.decode.as_ref().map_or("", |worker| worker.id.as_str());
        let partner = place::partner(around.fleet, &prefill.id, avoid, around.now, &mut self.dice);
        let end = if partner.is_some() { LegEnd::Done } else { LegEnd::Dropped };
        if let Some(taken) = &partner {
            let worker = &taken.seat.worker;
            let edits = handoff::release_edits(&self.ask, &plan.decode);
            let source = Source { api: self.ask.api, forward: &self.forward, body: &self.body };
            let rank = handoff::rank(worker);
            let sent = Sent { name: "release", worker, edits: &edits, request_id: &plan.request_id, rank };
            let mut all = sent.to_json(&source);
            all.insert("at_ms".into(), around.house.at_ms(around.now));
            all.insert("attempt".into(), self.exchange.attempt().into());
            self.told.leg(all);
        }
        let told = json!({"worker": partner.as_ref().map(|taken| taken.seat.worker.id.as_str()), "result": end.as_str()});
        self.told.event(around, "gateway", "releases", told);
        if let Some(background) = around.house.background() {
            background.released(end, handoff);
        }
    }

    fn ask_or_not(&mut self, why: Why, around: &Around<'_>) {
        let rid = self.plan.as_ref().and_then(|plan| plan.abort_rid.as_deref());
        let worker = self.taken[Leg::Decode as usize].as_ref().map(|taken| taken.seat.worker.clone());
        match (self.terms.abort.ask(why, rid, worker.is_some()), worker) {
            (Ok(questions), Some(worker)) => self.ask_abort(&questions, why, &worker, around),
            (Err(skipped), _) => self.skip_abort(skipped, why, around),
            (Ok(_), None) => self.skip_abort(Asked::SkippedNoTarget, why, around),
        }
    }

    fn skip_abort(&mut self, skipped: Asked, why: Why, around: &Around<'_>) {
        let told = json!({"why": why.as_str(), "result": skipped.as_str()});
        self.told.event(around, "gateway", "asks_nobody", told);
        if let Some(background) = around.house.background() {
            background.asked(skipped, why);
        }
    }

    /// One question, which is answered well at once. The second comes after its wait.
    pub(super) fn ask_abort(
        &mut self,
        questions: &Questions,
        why: Why,
        worker: &Arc<Worker>,
        around: &Around<'_>,
    ) {
        let told = json!({"why": why.as_str(), "worker": worker.id, "body": questions.body});
        self.told.event(around, "gateway", "asks_abort", told);
        if let Some(background) = around.house.background() {
            background.asked(Asked::Ok, why);
        }
        if let Some(wait) = questions.again {
            let last = Questions { again: None, ..questions.clone() };
            self.again.push((around.now.after(wait), last, why, worker.clone()));
        }
    }

    fn start(&mut self, around: &Around<'_>) {
        let Some(head) = self.head.take() else { return };
        self.told.event(around, "gateway", "starts", json!({"status": head.status}));
        self.answer.starts(head, &self.record);
    }

    /// The prefill had the last word: the client gets that.
    fn tell(&mut self, around: &Around<'_>) {
        let answer = self.last_word.take().unwrap_or_default();
        self.told.event(around, "gateway", "tells", json!({"bytes": answer.len()}));
        self.answer.tells(answer, &mut self.record, around.now);
    }

    fn settle(&mut self, outcome: Outcome, around: &Around<'_>) {
        self.recall(outcome, around);
        self.record.settle(outcome, self.fault.as_ref(), around.now);
        around.house.record(&self.record);
        self.told.event(around, "gateway", "settles", json!({"outcome": outcome.as_str()}));
        self.told.end(&self.record, around);
        if outcome == Outcome::ClientGone {
            self.answer.is_gone();
        }
    }
}
