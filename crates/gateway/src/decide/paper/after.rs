//! A prefill's leg that lives on without its exchange.

use baton_core::abort::Class;
use baton_core::breaker::Verdict;
use baton_core::exchange::{Handed, Leg, Outcome};
use baton_core::fault::LegName;
use baton_core::place::Taken;
use baton_core::time::Instant;
use serde_json::json;

use super::super::engine::Step;
use super::Paper;
use super::house::Around;
use super::leg::{PaperLeg, Said};
use crate::drive::background::{failed, judged};
use crate::telemetry::{DetachedLeg, LegEnd};
use crate::upstream::LegEvent;

/// The leg, and how long it may go on.
pub struct Background {
    io: PaperLeg,
    taken: Taken,
    until: Instant,
    /// Its exchange has called it off.
    recalled: bool,
    /// Its client has left: what it still hands over is fetched.
    lingers: bool,
    counted: Option<DetachedLeg>,
}

impl Background {
    pub fn until(&self) -> Instant {
        self.until
    }

    pub fn taken(&self) -> &Taken {
        &self.taken
    }
}

impl Paper {
    pub(super) fn detach(&mut self, leg: Leg, around: &Around<'_>) {
        self.lives_on(leg, around.house.rules.exchange.detach_timeout, false, around);
        self.told.event(around, "gateway", "detaches", json!({"leg": "prefill"}));
    }

    /// Lets the prefill answer, if it does soon.
    pub(super) fn linger(&mut self, around: &Around<'_>) {
        self.lives_on(Leg::Prefill, around.house.rules.exchange.linger_timeout, true, around);
        self.told.event(around, "gateway", "lingers", json!({"leg": "prefill"}));
    }

    fn lives_on(&mut self, leg: Leg, limit: baton_core::time::Duration, lingers: bool, around: &Around<'_>) {
        let (Some(io), Some(taken)) = (self.legs[leg as usize].take(), self.taken[leg as usize].take())
        else {
            return;
        };
        let counted = around.house.background().map(|background| background.detached());
        let until = around.now.after(limit);
        self.background = Some(Background { io, taken, until, recalled: false, lingers, counted });
    }

    /// The exchange ended so: is the leg that lives on still of use?
    pub(super) fn recall(&mut self, outcome: Outcome, around: &Around<'_>) {
        let recalls = self.plan.as_ref().is_some_and(|plan| plan.course.recalls(outcome));
        if let Some(background) = self.background.as_mut().filter(|b| recalls && !b.lingers) {
            let last = around.now.after(around.house.rules.exchange.recall_timeout);
            (background.recalled, background.until) = (true, background.until.min(last));
        }
    }

    /// False: it is not for such a leg.
    pub(super) fn hear_background(&mut self, step: &Step, around: &Around<'_>) -> bool {
        let Some(background) = &mut self.background else { return false };
        let Some(said) = background.io.hear(&step.does) else { return false };
        self.told.event(around, step.who.as_str(), step.does.as_str(), json!({"background": true}));
        for said in said {
            if let Said::Event(event) = said
                && !matches!(event, LegEvent::Head(_))
            {
                self.background_over(Some(event), around);
            }
        }
        true
    }

    /// The leg is over: it said so, or its time is.
    pub(super) fn background_over(&mut self, event: Option<LegEvent>, around: &Around<'_>) {
        let Some(background) = self.background.take() else { return };
        let Background { mut taken, recalled, lingers, counted, .. } = background;
        let odd: Option<Class> = match &event {
            Some(LegEvent::Ended(gist)) => gist.class(),
            _ => None,
        };
        let (end, verdict) = match &event {
            Some(event) => judged(event, LegName::Prefill),
            None if lingers => (LegEnd::TimedOut, Verdict::Mute),
            None if recalled => (LegEnd::Dropped, Verdict::Mute),
            None => (LegEnd::TimedOut, Verdict::Bad),
        };
        if verdict == Verdict::Good {
            taken.computed();
        }
        taken.seat.pulse.record(verdict, &around.house.rules.breaker, around.now);
        self.watch.over(Leg::Prefill, around.now);
        let class = failed(end, odd).filter(|_| !lingers);
        if let (Some(class), Some(background)) = (class, around.house.background()) {
            background.prefill_failed(class);
        }
        if let Some(counted) = counted {
            counted.ended(end);
        }
        let told =
            json!({"leg": "prefill", "result": end.as_str(), "class": class.map(|class| class.as_str())});
        self.told.event(around, "gateway", "is_done_with", told);
        let seat = taken.seat.clone();
        drop(taken);
        if let (Some(LegEvent::Answer(answer)), true, Some(plan)) = (event, lingers, &mut self.plan) {
            let worker = &around.fleet.seat(seat.slot).unwrap_or(&seat).worker;
            if plan.hears(&answer, worker, &around.house.rules.answer).handed == Handed::Over {
                self.handoff = around.house.background().map(|background| background.issued());
                self.release(around);
            }
        }
    }
}
