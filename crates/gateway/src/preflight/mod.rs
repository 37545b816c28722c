//! Carries out core's pre-flight: sends trials through pairs before they serve, and lets workers in.
//!
//! One task on the control thread looks at the board whenever the fleet or a worker's status has changed, a trial has
//! ended, or somebody's patience is over. A trial is a task of its own and holds a lease on both workers, so that a
//! worker which is being removed waits for it as for any request. It is no exchange: no record is made of it, and no
//! breaker hears of it.

mod trial;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, Worker};
use baton_core::preflight::{Board, Outcome, Standing, Step, Trial};
use baton_core::time::Instant;
use tokio::task::JoinSet;

use crate::gateway::Gateway;

/// The board, for those who ask it and the one task that works at it.
pub struct Desk(Mutex<Board>);

impl Desk {
    pub fn new(board: Board) -> Desk {
        Desk(Mutex::new(board))
    }

    /// Is this worker to be held when it becomes ready?
    pub fn holds(&self, worker: &Worker) -> bool {
        self.board().holds(worker)
    }

    /// What is known of the worker in this slot.
    pub fn standing(&self, slot: u32) -> Option<Standing> {
        self.board().standing(slot).cloned()
    }

    /// No trial is under way.
    pub fn is_idle(&self) -> bool {
        self.board().trials() == 0
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Works at the board until it is aborted, and its trials with it. A gateway that takes its leave begins no trial and
/// holds nobody.
pub async fn run(gateway: Arc<Gateway>, desk: Arc<Desk>, dice: Dice) {
    let mut changes = gateway.registry.changes();
    let mut work = Work { gateway, desk, dice, trials: JoinSet::new() };
    loop {
        changes.borrow_and_update();
        let next = work.look();
        let clock = work.gateway.clock;
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(clock.timer(next)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            Some(ended) = work.trials.join_next() => {
                if let Ok((trial, outcome)) = ended {
                    work.ended(&trial, &outcome);
                }
                // Whatever else has ended meanwhile needs no look of its own.
                while let Some(Ok((trial, outcome))) = work.trials.try_join_next() {
                    work.ended(&trial, &outcome);
                }
            }
            () = due => {}
        }
    }
}

struct Work {
    gateway: Arc<Gateway>,
    desk: Arc<Desk>,
    dice: Dice,
    trials: JoinSet<(Trial, Outcome)>,
}

impl Work {
    /// Does what the board says. Gives when to look again.
    fn look(&mut self) -> Option<Instant> {
        let registry = &self.gateway.registry;
        let fleet = registry.load_full();
        if registry.is_draining() {
            let_all_in(&fleet);
            return None;
        }
        let look = self.desk.board().look(&fleet, self.gateway.clock.now());
        let mut let_in = false;
        for step in look.steps {
            match step {
                Step::Try(trial) => {
                    self.trials.spawn(trial::run(self.gateway.clone(), trial, self.dice.split()));
                }
                Step::LetIn(seat) => let_in |= seat.pulse.let_in(),
                Step::GaveUp(seat) => {
                    let standing = self.desk.standing(seat.slot).unwrap_or_default();
                    let (state, why) = (standing.state.as_str(), standing.why.unwrap_or_default());
                    tracing::warn!(worker = seat.worker.url, state, why, "pre-flight given up");
                }
            }
        }
        if let_in {
            registry.changed();
        }
        look.next
    }

    fn ended(&self, trial: &Trial, outcome: &Outcome) {
        self.gateway.telemetry.background().tried(outcome.as_str());
        let (prefill, decode) = (&trial.prefill.worker.url, &trial.decode.worker.url);
        let (result, why) = (outcome.as_str(), outcome.why().unwrap_or_default());
        match outcome {
            Outcome::Proved | Outcome::Answered => {
                tracing::info!(prefill, decode, result, "pre-flight");
            }
            Outcome::Unjudged(_) | Outcome::Crowded => {
                tracing::info!(prefill, decode, result, why, "pre-flight")
            }
            Outcome::Degraded(_) | Outcome::Failed(_) => {
                tracing::warn!(prefill, decode, result, why, "pre-flight");
            }
        }
        self.desk.board().ended(trial.decode.slot, outcome, self.gateway.clock.now());
    }
}

fn let_all_in(fleet: &Fleet) {
    for seat in fleet.seats() {
        seat.pulse.let_in();
    }
}
