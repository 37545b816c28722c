//! One trial: what is counted before, the legs as a request's would be sent, what is counted after.
//!
//! The plan is made as for any request, and its legs go the way of any request's, but for the pool: what is to be found
//! out is also whether the workers take connections, so each leg has its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use baton_core::ask::{Api, Ask};
use baton_core::body::Envelope;
use baton_core::dice::Dice;
use baton_core::exchange::{Handed, Leg, Order};
use baton_core::fault::{Fault, LegName, read_refusal};
use baton_core::fleet::Seat;
use baton_core::handoff::{self, KvCount, Mint, Pair, Plan, Proof, Seen};
use baton_core::preflight::{self, Outcome, Trial};
use baton_core::record::HandoffResult;
use bytes::Bytes;
use http::HeaderValue;

use crate::gateway::Gateway;
use crate::probe::Target;
use crate::upstream::{self, LegBody, LegEvent, LegRequest, Pool, PoolRule, Route, Want};

/// Longest time for a trial.
const TRIAL_MAX: Duration = Duration::from_secs(10);

/// Longest time until a decode has counted what it answered. Engines count when they have a moment for it.
const COUNT_WAIT: Duration = Duration::from_secs(2);

/// How often it is asked.
const COUNT_LOOK: Duration = Duration::from_millis(100);

/// Carries out a trial, with a lease on both workers.
pub(super) async fn run(gateway: Arc<Gateway>, trial: Trial, mut dice: Dice) -> (Trial, Outcome) {
    let prefill = trial.prefill.load.take();
    let Some(decode) = trial.decode.load.take_within(trial.decode.window, 1) else {
        return (trial, Outcome::Crowded);
    };
    let end = tokio::time::timeout(TRIAL_MAX, through(&gateway, &trial, &mut dice)).await;
    let late = || Outcome::Failed(format!("no answer within {} s", TRIAL_MAX.as_secs()));
    let outcome = end.unwrap_or_else(|_| late());
    drop((prefill, decode));
    gateway.rooms.freed(&trial.decode.worker);
    (trial, outcome)
}

async fn through(gateway: &Gateway, trial: &Trial, dice: &mut Dice) -> Outcome {
    let before = match trial.proof {
        Proof::Counted { .. } => match count(&trial.decode).await {
            Ok(Some(count)) => Some(count),
            Ok(None) => {
                return Outcome::Unjudged("its /metrics do not count KV that was handed over".to_owned());
            }
            Err(silence) => return Outcome::Failed(format!("/metrics of the decode: {silence}")),
        },
        Proof::Answer | Proof::Unseen => None,
    };
    let body = Bytes::from(preflight::request(trial.model.as_deref(), dice));
    let Ok(body) = Envelope::parse(body, &gateway.rules.body) else {
        return Outcome::Unjudged("--max-payload-size is smaller than the request".to_owned());
    };
    let pair = Pair::Legs { prefill: &trial.prefill.worker, decode: &trial.decode.worker };
    let unix_ms = gateway.clock.unix_millis();
    let mut mint = Mint { dice, unix_ms, serial: &gateway.serial };
    let planned = Ask::read(Api::Completions, &body)
        .and_then(|ask| handoff::plan(pair, &ask, &gateway.rules.handoff, &mut mint));
    let plan = match planned {
        Ok(plan) if plan.course.order == Order::Single => {
            return Outcome::Unjudged("its hand-off has one leg".to_owned());
        }
        Ok(plan) => plan,
        Err(fault) => return Outcome::of_fault(&fault),
    };
    match (Legs { gateway, trial, body }).send(plan).await {
        Ok(handed) => {
            let seen = match before {
                Some(before) => seen(&trial.decode, &before).await,
                None => None,
            };
            Outcome::of_answer(trial.proof, handed, seen)
        }
        Err(Ended::Fault(fault)) => Outcome::of_fault(&fault),
        Err(Ended::Early) => Outcome::Unjudged("the prefill had the last word".to_owned()),
    }
}

/// Why the legs were not both answered.
enum Ended {
    Fault(Fault),
    /// The prefill's answer was all of it.
    Early,
}

type HandedOver = (HandoffResult, Option<&'static str>);

struct Legs<'a> {
    gateway: &'a Gateway,
    trial: &'a Trial,
    body: Envelope,
}

impl Legs<'_> {
    /// Sends both legs as the plan says, and tells what became of the hand-off.
    async fn send(self, mut plan: Plan) -> Result<HandedOver, Ended> {
        if plan.course.order == Order::InTurn {
            let answer = self.leg(Leg::Prefill, &plan).await?;
            let handed = self.read(&mut plan, &answer)?;
            self.leg(Leg::Decode, &plan).await?;
            return Ok(handed);
        }
        let (answer, _) = tokio::try_join!(self.leg(Leg::Prefill, &plan), self.leg(Leg::Decode, &plan))?;
        if plan.course.awaits_answer() { self.read(&mut plan, &answer) } else { Ok((plan.result, None)) }
    }

    fn read(&self, plan: &mut Plan, answer: &Bytes) -> Result<HandedOver, Ended> {
        let slot = self.trial.prefill.slot;
        let known = self.gateway.registry.fleet().seat(slot).map(|seat| seat.worker.clone());
        let prefill = known.unwrap_or_else(|| self.trial.prefill.worker.clone());
        let reading = plan.deliver.read(answer, &prefill, &self.gateway.rules.answer);
        match reading.handed {
            Handed::Dead(fault) => return Err(Ended::Fault(fault)),
            Handed::Final => return Err(Ended::Early),
            Handed::Over | Handed::Nothing => {}
        }
        plan.decode.extend(reading.edits);
        Ok((reading.result, reading.why))
    }

    /// One leg to its end, on a connection of its own.
    async fn leg(&self, leg: Leg, plan: &Plan) -> Result<Bytes, Ended> {
        let (seat, edits) = match leg {
            Leg::Prefill => (&self.trial.prefill, &plan.prefill),
            Leg::Decode => (&self.trial.decode, &plan.decode),
        };
        let request = LegRequest {
            route: Route::Api(Api::Completions),
            id: HeaderValue::from_str(&plan.request_id).ok(),
            rank: plan.ranks[leg as usize],
            forward: Vec::new(),
            body: LegBody::new(self.body.splice(edits).pieces()),
            fresh: true,
        };
        let rule = PoolRule { max_idle_per_worker: 0, ..self.gateway.rules.pool.clone() };
        let pool = Arc::new(Pool::new(rule));
        let max_bytes = self.gateway.rules.exchange.prefill_answer_max_bytes;
        let mut io = upstream::Leg::send(&pool, self.gateway.clock, seat, request, Want::Whole { max_bytes });
        let fault = match poll_fn(|cx| io.poll_event(cx)).await {
            LegEvent::Answer(answer) => return Ok(answer),
            LegEvent::Head(_) | LegEvent::Ended(_) => return Ok(Bytes::new()),
            LegEvent::Refused { status, body, retry_after } => {
                let refusal = read_refusal(status, &body, retry_after, false);
                Fault::Refused { leg: name(leg), refusal }
            }
            LegEvent::Unreachable(lost) | LegEvent::Stale(lost) => {
                Fault::Unreachable { leg: name(leg), cause: lost.into() }
            }
            LegEvent::Broken(lost) => Fault::Broken { leg: name(leg), cause: lost.cause },
        };
        Err(Ended::Fault(fault))
    }
}

fn name(leg: Leg) -> LegName {
    match leg {
        Leg::Prefill => LegName::Prefill,
        Leg::Decode => LegName::Decode,
    }
}

/// What the decode counts. `None`: it does not count KV that was handed over.
async fn count(decode: &Seat) -> Result<Option<KvCount>, String> {
    let worker = &decode.worker;
    let url = worker.base_url().to_owned();
    let target = Target { url, api_key: worker.api_key.clone(), timeout: COUNT_WAIT };
    let reply = target.get("/metrics").await.map_err(|silence| silence.to_string())?;
    if reply.status.is_server_error() {
        return Err(format!("answered {}", reply.status));
    }
    let page = std::str::from_utf8(&reply.body).unwrap_or_default();
    Ok(if reply.status.is_success() { KvCount::read(page) } else { None })
}

/// Waits for the decode to count what it answered. `None`: it does not say any more.
async fn seen(decode: &Seat, before: &KvCount) -> Option<Seen> {
    let look = async {
        loop {
            let seen = count(decode).await.ok().flatten().map(|after| after.since(before));
            if seen != Some(Seen::Still) {
                return seen;
            }
            tokio::time::sleep(COUNT_LOOK).await;
        }
    };
    tokio::time::timeout(COUNT_WAIT, look).await.unwrap_or(Some(Seen::Still))
}
