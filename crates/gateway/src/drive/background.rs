//! Legs that live on without their exchange: drained, or sent to release KV.
//!
//! Both are bounded, in number by the gateway's places for them and in time by the limits; without a place
//! the leg is closed, which costs the engine an abort and nothing else.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use baton_core::abort::Class;
use baton_core::breaker::Verdict;
use baton_core::dice::Dice;
use baton_core::exchange::{Leg, Outcome};
use baton_core::fault::{Fault, LegName, read_refusal};
use baton_core::handoff;
use baton_core::place::{self, Taken};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Drive, give_back};
use crate::gateway::Gateway;
use crate::lane::Lane;
use crate::telemetry::{HandoffOut, LegEnd};
use crate::upstream::{self, LegEvent, LegRequest, Want};

impl Drive {
    /// Lets the leg finish in the background, with its lease.
    pub(super) fn detach(&mut self, leg: Leg) {
        let (Some(mut io), Some(mut taken)) =
            (self.legs[leg as usize].take(), self.taken[leg as usize].take())
        else {
            return;
        };
        let Some(name) = self.plan.as_ref().map(|p| p.course.name(leg)) else { return };
        let Some((runtime, place)) = self.background() else {
            self.judge(&taken, Verdict::Mute);
            self.watch.over(leg, self.now);
            return;
        };
        let (limit, last) = {
            let limits = &self.gateway.rules.exchange;
            (limits.detach_timeout, limits.recall_timeout)
        };
        let (gateway, lane) = (self.gateway.clone(), self.lane.clone());
        let counted = gateway.telemetry.background().detached();
        let (recall, recalled) = oneshot::channel();
        self.recall = Some(recall);
        self.detached = Some(runtime.spawn(async move {
            let called_off = async {
                if recalled.await.is_err() {
                    // The exchange has ended and leaves it be.
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(last).await;
            };
            let (end, verdict, odd) = tokio::select! {
                biased;
                drained = drained(&mut io, name, limit) => drained,
                () = called_off => (LegEnd::Dropped, Verdict::Mute, None),
            };
            drop(io);
            if let Some(class) = failed(end, odd) {
                gateway.telemetry.background().prefill_failed(class);
            }
            let now = lane.clock.now();
            if verdict == Verdict::Good {
                taken.computed();
            }
            taken.seat.pulse.record(verdict, &gateway.rules.breaker, now);
            counted.ended(end);
            drop((taken, place));
            now
        }));
    }

    /// The exchange ended so: is the leg that lives on still of use?
    pub(super) fn recall(&mut self, outcome: Outcome) {
        let recalls = self.plan.as_ref().is_some_and(|plan| plan.course.recalls(outcome));
        if let Some(recall) = self.recall.take().filter(|_| recalls) {
            // An error says that the leg had ended.
            let _ = recall.send(());
        }
    }

    /// Makes a decode consume the KV that the prefill holds for this request.
    pub(super) fn release(&mut self) {
        let handoff = self.handoff.take();
        let dropped = |handoff| self.gateway.telemetry.background().released(LegEnd::Dropped, handoff);
        let Some((runtime, place)) = self.background() else { return dropped(handoff) };
        let (Some(plan), Some(prefill)) = (&self.plan, &self.record.prefill) else { return dropped(handoff) };
        let edits = handoff::release_edits(&self.ask, &plan.decode);
        let request = self.original().with(&edits, &plan.request_id);
        let avoid = self.record.decode.as_ref().map_or("", |w| w.id.as_str());
        let kv = Kv { prefill: &prefill.id, avoid, request };
        match ThrowAway::send(&self.gateway, &self.lane, kv, &mut self.dice) {
            None => self.gateway.telemetry.background().released(LegEnd::Dropped, handoff),
            Some(throw_away) => drop(runtime.spawn(async move {
                throw_away.end(handoff).await;
                drop(place);
            })),
        }
    }

    pub(super) fn judge(&self, taken: &Taken, verdict: Verdict) {
        taken.seat.pulse.record(verdict, &self.gateway.rules.breaker, self.now);
    }

    /// A place in the background, if there is one and the runtime still runs.
    pub(super) fn background(&self) -> Option<(tokio::runtime::Handle, OwnedSemaphorePermit)> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let place = self.gateway.background.clone().try_acquire_owned().ok()?;
        Some((runtime, place))
    }
}

/// KV that nobody wants any more, and how a decode is told of it.
pub(super) struct Kv<'a> {
    pub prefill: &'a str,
    /// The decode that failed, if there was one.
    pub avoid: &'a str,
    pub request: LegRequest,
}

/// A decode of one token under way, which fetches KV so that its prefill can let go of it.
pub(super) struct ThrowAway {
    gateway: Arc<Gateway>,
    lane: Arc<Lane>,
    taken: Taken,
    io: upstream::Leg,
}

impl ThrowAway {
    /// `None`: no decode can take it.
    pub(super) fn send(
        gateway: &Arc<Gateway>,
        lane: &Arc<Lane>,
        kv: Kv<'_>,
        dice: &mut Dice,
    ) -> Option<ThrowAway> {
        let fleet = gateway.registry.fleet();
        let taken = place::partner(&fleet, kv.prefill, kv.avoid, lane.clock.now(), dice)?;
        // It must not be lost with a connection that had grown old: nothing is sent twice here.
        let request = LegRequest { rank: handoff::rank(&taken.seat.worker), fresh: true, ..kv.request };
        let io = upstream::Leg::send(&lane.pool, lane.clock, &taken.seat, request, Want::Drained);
        Some(ThrowAway { gateway: gateway.clone(), lane: lane.clone(), taken, io })
    }

    pub(super) async fn end(self, handoff: Option<HandoffOut>) {
        let ThrowAway { gateway, lane, taken, mut io } = self;
        let (end, verdict, _) =
            drained(&mut io, LegName::Decode, gateway.rules.exchange.release_timeout).await;
        drop(io);
        // A decode that is too busy for a throw-away request is not ill.
        let verdict = if end == LegEnd::TimedOut { Verdict::Mute } else { verdict };
        taken.seat.pulse.record(verdict, &gateway.rules.breaker, lane.clock.now());
        gateway.telemetry.background().released(end, handoff);
        give_back(taken, &gateway);
    }
}

/// How a prefill failed that went on in the background. `odd`: what was wrong with a good answer.
pub(crate) fn failed(end: LegEnd, odd: Option<Class>) -> Option<Class> {
    match end {
        LegEnd::Done | LegEnd::Dropped => odd,
        LegEnd::Failed => Some(Class::Transport),
        LegEnd::TimedOut => Some(Class::Timeout),
    }
}

/// Reads a leg to its end. What became of it, what that says about its worker, and what was wrong with a good answer.
async fn drained(io: &mut upstream::Leg, name: LegName, limit: Duration) -> (LegEnd, Verdict, Option<Class>) {
    match read_out(io, limit).await {
        None => (LegEnd::TimedOut, Verdict::Bad, None),
        Some(LegEvent::Ended(gist)) => (LegEnd::Done, Verdict::Good, gist.class()),
        Some(event) => {
            let (end, verdict) = judged(&event, name);
            (end, verdict, None)
        }
    }
}

/// The last event of a leg. `None`: it did not come in time.
pub(super) async fn read_out(io: &mut upstream::Leg, limit: Duration) -> Option<LegEvent> {
    let end = poll_fn(|cx: &mut Context<'_>| {
        loop {
            match io.poll_event(cx) {
                Poll::Ready(LegEvent::Head(_)) => {}
                other => return other,
            }
        }
    });
    tokio::time::timeout(limit, end).await.ok()
}

/// What the end of a leg says about its worker.
pub(crate) fn judged(event: &LegEvent, name: LegName) -> (LegEnd, Verdict) {
    match event {
        LegEvent::Ended(_) | LegEvent::Answer(_) | LegEvent::Head(_) => (LegEnd::Done, Verdict::Good),
        LegEvent::Refused { status, body, retry_after } => {
            let refusal = read_refusal(*status, body, retry_after.clone(), false);
            (LegEnd::Failed, Fault::Refused { leg: name, refusal }.verdict(name))
        }
        LegEvent::Stale(_) => (LegEnd::Failed, Verdict::Mute),
        LegEvent::Unreachable(_) | LegEvent::Broken(_) => (LegEnd::Failed, Verdict::Bad),
    }
}

/// Keeps the lane's pool free of dead connections and of workers that left.
pub async fn sweep(gateway: Arc<Gateway>, lane: Arc<Lane>) {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        lane.pool.sweep(&gateway.registry.fleet(), lane.clock.now());
        lane.sweep(&gateway.timeouts);
        gateway.telemetry.background().resent(lane.pool.take_resends());
    }
}
