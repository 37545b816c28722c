//! All that is known when an exchange ends.
//!
//! Metrics, the access log line and the trace span are made from this one value, in one place of the
//! shell; nothing else counts anything about a request.

use std::borrow::Cow;
use std::sync::Arc;

use crate::abort::Class;
use crate::ask::Api;
use crate::exchange::Outcome;
use crate::fault::{Fault, LegName, Retry};
use crate::fleet::{Engine, Worker};
use crate::place::cascade::resolve::Routing;
use crate::place::cascade::words::Ways;
use crate::place::receipt::Receipt;
use crate::sse::Usage;
use crate::time::{Duration, Instant};
use crate::tokenize::Asked;
use crate::watchdog::Silence;

/// What became of the hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum HandoffResult {
    /// The plan had none (one leg), or it was not reached.
    #[default]
    None,
    /// The engines were introduced by ids that the gateway minted.
    Minted,
    /// What the prefill returned was relayed.
    Relayed,
    /// The prefill returned nothing: the decode computed the prompt itself.
    Missing,
    /// The prefill returned something unusable, and it was not passed on.
    Invalid,
}

impl HandoffResult {
    pub const ALL: [HandoffResult; 5] = [
        HandoffResult::None,
        HandoffResult::Minted,
        HandoffResult::Relayed,
        HandoffResult::Missing,
        HandoffResult::Invalid,
    ];

    /// Of a request that ended before its plan was made.
    pub fn unplanned(fault: &Fault) -> HandoffResult {
        if fault.loses_handoff() { HandoffResult::Invalid } else { HandoffResult::None }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            HandoffResult::None => "none",
            HandoffResult::Minted => "minted",
            HandoffResult::Relayed => "relayed",
            HandoffResult::Missing => "missing",
            HandoffResult::Invalid => "invalid",
        }
    }
}

/// Moments of one exchange. The last attempt's, where there were several.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    pub received: Instant,
    pub admitted: Option<Instant>,
    /// It began to wait for a decode worker's room.
    pub queued: Option<Instant>,
    pub prefill_sent: Option<Instant>,
    /// The prefill's answer in turn, its head when both legs run at once.
    pub prefill_done: Option<Instant>,
    pub decode_sent: Option<Instant>,
    pub decode_head: Option<Instant>,
    /// The first body byte from the decode.
    pub first_byte: Option<Instant>,
    pub ended: Instant,
}

/// One failed attempt before the last.
#[derive(Clone, Debug, Default)]
pub struct Retried {
    pub code: &'static str,
    /// How long the next attempt waited.
    pub wait: Duration,
    /// The leg that failed.
    pub leg: Option<LegName>,
    /// How the prefill failed, if it was that one.
    pub class: Option<Class>,
    pub prefill: Option<Arc<Worker>>,
    pub decode: Option<Arc<Worker>>,
}

impl Retried {
    /// The attempt on these workers that `fault` ended.
    pub fn new(fault: &Fault, prefill: Option<Arc<Worker>>, decode: Option<Arc<Worker>>) -> Retried {
        let class = Class::of(fault);
        Retried { code: fault.code(), wait: Duration::ZERO, leg: fault.leg(), class, prefill, decode }
    }
}

/// One exchange, told once, at its end.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub request_id: String,
    pub api: Option<Api>,
    /// One of several parts of a client's request: its legs count, the request itself is told by the whole's
    /// record.
    pub part: bool,
    pub method: &'static str,
    pub path: Cow<'static, str>,
    pub model: Option<String>,
    pub stream: bool,
    pub outcome: Outcome,
    /// What the client got; 499 if it left before anything was sent.
    pub status: u16,
    /// The fault's code, if there was one.
    pub code: Option<&'static str>,
    /// The fault in words, for the log.
    pub error: Option<String>,
    /// The fault's status, which an answer that had begun cannot show any more.
    pub fault_status: Option<u16>,
    /// The leg that failed.
    pub leg: Option<LegName>,
    /// How the prefill failed, if it was that one.
    pub class: Option<Class>,
    /// What the prefill answered was no answer, and nothing came of it.
    pub odd: Option<Class>,
    /// How the worker that answers fell silent, if that was it.
    pub silence: Option<Silence>,
    pub prefill: Option<Arc<Worker>>,
    pub decode: Option<Arc<Worker>>,
    /// What AIBrix's settings came to for it, once that was worked out.
    pub routing: Option<Arc<Routing>>,
    /// `regular` or `pd`: SMG's `backend_type`.
    pub pd: bool,
    /// Adaptive bucket serving chose the roleset: which, and the prompt's tokens.
    pub band: Option<(String, u64)>,
    /// The engine of the decode leg.
    pub engine: Engine,
    /// `mode` of `smg_pd_kv_connector_mode_total`; vLLM plans only.
    pub mode: Option<&'static str>,
    pub handoff: HandoffResult,
    /// How often workers were found and tried.
    pub attempts: u32,
    pub retried: Vec<Retried>,
    /// How often an attempt began anew, because a connection had grown old.
    pub renewed: u32,
    pub retries_exhausted: bool,
    /// It would have been tried again if the gateway's retries had not been used up.
    pub over_budget: bool,
    pub moments: Moments,
    pub request_bytes: u64,
    pub answer_bytes: u64,
    pub usage: Option<Usage>,
    /// What came of asking an engine what it makes of the prompt, if one was to be asked.
    pub asked: Option<Asked>,
    /// Of each placement, where somebody will read them.
    pub receipts: Vec<Receipt>,
}

impl Record {
    /// AIBrix's strategy that serves the request. `None`: the gateway's own policies do.
    pub fn ways(&self) -> Option<&Ways> {
        self.routing.as_deref()?.ways.as_ref()
    }

    /// Another attempt follows after `wait`, since the one on these workers was ended by `fault`.
    pub fn retries(&mut self, fault: Option<&Fault>, wait: Duration) {
        if let Some(fault) = fault {
            let ended = Retried::new(fault, self.prefill.clone(), self.decode.clone());
            self.retried.push(Retried { wait, ..ended });
        }
    }

    /// The exchange is over. `told`: what the client was told of a failure.
    pub fn settle(&mut self, outcome: Outcome, told: Option<&Fault>, now: Instant) {
        self.outcome = outcome;
        self.moments.ended = now;
        self.status = match (outcome, told) {
            (Outcome::ClientGone, _) if self.moments.first_byte.is_none() => Fault::ClientGone.status(),
            (Outcome::Failed, Some(fault)) => fault.status(),
            _ => self.status,
        };
        if outcome == Outcome::ClientGone {
            self.code = Some(Fault::ClientGone.code());
        }
        self.retries_exhausted = outcome == Outcome::Failed
            && self.attempts > 1
            && !self.over_budget
            && told.is_some_and(|fault| fault.retry() == Retry::Safe);
    }

    /// The exchange ended with `fault`: code, words and leg. `status` stays what the client got.
    pub fn blame(&mut self, fault: &Fault) {
        self.code = Some(fault.code());
        self.error = Some(fault.answer().message);
        self.leg = fault.leg();
        self.fault_status = Some(fault.status());
        self.silence = fault.silence();
        self.class = Class::of(fault);
    }
}
