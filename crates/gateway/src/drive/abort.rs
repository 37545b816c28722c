//! Asking an engine by name to drop a request: carries out `core::abort`, in the background.

use baton_core::abort::{Asked, Why};
use baton_core::exchange::Leg;

use super::Drive;
use crate::probe::Target;

/// SGLang's route (0.5.23).
const PATH: &str = "/abort_request";

impl Drive {
    /// Asks the decode's engine. Each question is bounded in time, and all of them in number, with the legs that live
    /// on without their request.
    pub(super) fn ask_abort(&self, why: Why) {
        let told = self.gateway.telemetry.background().clone();
        let rid = self.plan.as_ref().and_then(|plan| plan.abort_rid.as_deref());
        let worker = self.taken[Leg::Decode as usize].as_ref().map(|taken| taken.seat.worker.clone());
        let questions = self.terms.abort.ask(why, rid, worker.is_some());
        let (questions, worker) = match (questions, worker) {
            (Ok(questions), Some(worker)) => (questions, worker),
            (Err(skipped), _) => return told.asked(skipped, why),
            (Ok(_), None) => return told.asked(Asked::SkippedNoTarget, why),
        };
        let Some((runtime, place)) = self.background() else { return told.asked(Asked::SkippedBusy, why) };
        let target =
            Target { url: worker.url.clone(), api_key: worker.api_key.clone(), timeout: questions.timeout };
        runtime.spawn(async move {
            let mut again = questions.again;
            loop {
                let answer = target.post(PATH, questions.body.clone()).await;
                let well = answer.is_ok_and(|reply| reply.status.is_success());
                told.asked(if well { Asked::Ok } else { Asked::Error }, why);
                let Some(wait) = again.take() else { break };
                tokio::time::sleep(wait).await;
            }
            drop(place);
        });
    }
}
