//! Asks engines what they make of prompts: carries out what `core::tokenize` decides.
//!
//! One question for each request, on a connection of the lane's pool, within a time and a number of questions at once.
//! Nobody waits for a place: whoever finds none goes on by what is known without the engine. The client's headers have no
//! part in it; the worker's own key has.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use baton_core::ask::Ask;
use baton_core::body::Pieces;
use baton_core::fleet::Seat;
use baton_core::size::Unknown;
use baton_core::tokenize::{self, Asked, Outcome, Question};
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::gateway::Gateway;
use crate::lane::Lane;
use crate::upstream::{Leg, LegBody, LegEvent, LegRequest, Route, Want};

/// How engines are asked.
#[derive(Debug)]
pub struct Asking {
    timeout: Duration,
    /// Questions that there may still be.
    places: Semaphore,
}

impl Asking {
    pub fn of(config: &Config) -> Asking {
        let places = Semaphore::new(config.affinity.tokenize_at_once.get());
        Asking { timeout: config.affinity.tokenize_timeout, places }
    }

    /// Questions that could be put now.
    pub fn places(&self) -> usize {
        self.places.available_permits()
    }
}

/// What came of a question.
type End = Result<Arc<[u32]>, (Outcome, Unknown)>;

/// Asks about the request's prompt, and tells the prompt what came of it. `None`: nobody is to be asked, or was asked
/// already.
pub async fn ask(gateway: &Gateway, lane: &Lane, ask: &mut Ask) -> Option<Asked> {
    if ask.prompt.told().is_some() || !gateway.measure.asks(&ask.prompt) {
        return None;
    }
    let mut took = None;
    let (told, outcome) = match inquire(gateway, lane, ask, &mut took).await {
        Ok((ids, outcome)) => (Ok(ids), outcome),
        Err((outcome, why)) => (Err(why), outcome),
    };
    ask.prompt.tell(told);
    Some(Asked { outcome, took })
}

async fn inquire(
    gateway: &Gateway,
    lane: &Lane,
    ask: &Ask,
    took: &mut Option<Duration>,
) -> Result<(Arc<[u32]>, Outcome), (Outcome, Unknown)> {
    let not = |outcome: Outcome| (outcome, outcome.why().into());
    let question = ask.prompt.question().map_err(|why| (Outcome::Unaskable, why))?;
    let asked = lane.clock.now();
    let kept = lane.memo().find(question.key, asked);
    if let Some(ids) = kept {
        return Ok((ids, Outcome::Kept));
    }
    let _place = gateway.asking.places.try_acquire().map_err(|_| not(Outcome::Busy))?;
    let whom = {
        let fleet = gateway.registry.fleet();
        tokenize::whom(&fleet, ask.model.as_deref(), asked, &mut lane.dice()).cloned()
    };
    let seat = whom.ok_or_else(|| not(Outcome::Nobody))?;
    let limit = gateway.asking.timeout;
    let end = tokio::time::timeout(limit, answer(lane, &seat, &question)).await;
    let late = || (Outcome::Late, format!("no answer within {} ms", limit.as_millis()).into());
    let end = end.unwrap_or_else(|_| Err(late()));
    let now = lane.clock.now();
    *took = Some(now.since(asked));
    let outcome = end.as_ref().map_or_else(|(outcome, _)| *outcome, |_| Outcome::Counted);
    if question.judges(outcome) {
        seat.standing.heard(outcome, asked, now);
    }
    match end {
        Ok(ids) => {
            lane.memo().keep(question.key, &ids, now);
            Ok((ids, outcome))
        }
        Err((outcome, why)) => {
            let worker = seat.worker.url.as_str();
            match outcome {
                Outcome::NoRoute => tracing::warn!(worker, %why, "is not asked about prompts for a while"),
                _ => tracing::debug!(worker, %why, "did not say what it makes of a prompt"),
            }
            Err((outcome, format!("{worker}: {why}").into()))
        }
    }
}

/// What this worker answers. A connection that had grown old counts for nothing: a question may be put twice.
async fn answer(lane: &Lane, seat: &Seat, question: &Question) -> End {
    let mut fresh = false;
    loop {
        let request = LegRequest {
            route: Route::Tokenize,
            id: None,
            rank: None,
            forward: Vec::new(),
            body: LegBody::new(Pieces::from_iter([question.body.clone()])),
            fresh,
        };
        let want = Want::Whole { max_bytes: question.answer_max_bytes() };
        let mut leg = Leg::send(&lane.pool, lane.clock, seat, request, want);
        return match poll_fn(|cx| leg.poll_event(cx)).await {
            LegEvent::Answer(answer) => tokenize::read(answer).map_err(|why| (Outcome::Unusable, why.into())),
            LegEvent::Stale(_) if !fresh => {
                fresh = true;
                continue;
            }
            LegEvent::Refused { status, body, .. } => {
                let outcome = Outcome::of_status(status, &body);
                Err((outcome, format!("{}, it answered {status}", outcome.why()).into()))
            }
            LegEvent::Unreachable(lost) | LegEvent::Stale(lost) => Err((Outcome::Failed, lost.cause.into())),
            LegEvent::Broken(lost) => Err((Outcome::Unusable, lost.cause.into())),
            LegEvent::Head(_) | LegEvent::Ended(_) => {
                Err((Outcome::Unusable, Outcome::Unusable.why().into()))
            }
        };
    }
}
