//! What each fault may show to a client, and how soon.
//!
//! A request that does not end well is held against what befell the engines of its model while it was under way: each
//! fault has its own list, and an end that is on none of these lists is a mistake of the gateway. Most faults strike one
//! leg once, before anything went out, and another attempt serves the request: their lists are empty.

use std::time::Duration;

use baton_sim::{EngineHandle, Fault, FaultKind, Happened, Kind};
use tokio::time::Instant;

/// How one request ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Right,
    /// The client left by itself.
    Left,
    /// A begun stream ended with this error.
    Cut(String),
    /// A begun plain answer broke off.
    Broken,
    Failed(u16, String),
}

/// What a request may end with that met a fault.
struct Allowed {
    failed: &'static [(u16, &'static [&'static str])],
    cut: &'static [&'static str],
    broken: bool,
    /// Only while another engine is felt to be away: else another attempt would have served the request.
    alone: bool,
    /// How long after the fault, or after the request began if that was later.
    within: Duration,
}

/// A fault that is told at once, with room for a busy machine: well below any of the gateway's own limits.
const TOLD: Duration = Duration::from_millis(2500);
/// A silence that is ended by the gateway's own limit, with the same room.
pub const SILENCE: Duration = Duration::from_secs(3);
/// The whole request's limit.
pub const REQUEST: Duration = Duration::from_secs(6);
/// How long an engine that was away is felt: until its health was asked again, and its breaker closed.
const FELT: Duration = Duration::from_secs(2);

const SURVIVED: Allowed = Allowed { failed: &[], cut: &[], broken: false, alone: false, within: TOLD };

/// A client's mistake, as the engine says: nothing is tried again.
const REFUSED: Allowed = Allowed {
    failed: &[(400, &["prefill_upstream_error", "prefill_bad_request", "decode_bad_request"])],
    ..SURVIVED
};

const NOT_IMPLEMENTED: Allowed =
    Allowed { failed: &[(501, &["prefill_upstream_error", "prefill_error", "decode_error"])], ..SURVIVED };

/// What another attempt is made for; with nobody left to try, the engine's own word is the last one.
const TRIED_AGAIN: Allowed = Allowed {
    failed: &[
        (429, &["prefill_upstream_error", "prefill_error", "decode_error"]),
        (500, &["prefill_upstream_error", "prefill_internal_error", "decode_internal_error"]),
        (503, &["prefill_upstream_error", "prefill_unavailable", "decode_unavailable"]),
    ],
    alone: true,
    ..SURVIVED
};

/// A connection that breaks when the answer has begun.
const BROKEN_OFF: Allowed = Allowed { cut: &["decode_read_failed"], broken: true, ..SURVIVED };

/// The engine's own words, passed on.
const ERROR_EVENT: Allowed = Allowed { cut: &[OF_THE_ENGINE, ABORT], ..SURVIVED };

const SILENT: Allowed = Allowed {
    failed: &[(504, &["request_timeout", "pd_decode_watchdog"])],
    cut: &["request_timeout", "pd_decode_watchdog"],
    broken: true,
    alone: false,
    within: Duration::from_secs(REQUEST.as_secs() + 2),
};

/// An engine that goes down takes with it what runs there, and the other half of what it shares with a peer; until it
/// is back and trusted, its peers may be too few.
const DOWN: Allowed = Allowed {
    failed: &[
        (500, &["prefill_upstream_error", "prefill_internal_error", "decode_internal_error"]),
        (
            502,
            &["prefill_request_failed", "decode_request_failed", "prefill_read_failed", "decode_read_failed"],
        ),
        (502, &["moriio_handoff_invalid", "decode_bad_gateway"]),
        (503, &["no_available_workers", "trtllm_context_unknown"]),
    ],
    cut: &["decode_read_failed", OF_THE_ENGINE, ABORT],
    broken: true,
    alone: false,
    within: Duration::from_secs(TOLD.as_secs() + 1),
};

/// What stands for an error that an engine told in its own form.
pub const OF_THE_ENGINE: &str = "of the engine";
/// SGLang's native stream ends with an abort as its finish reason.
pub const ABORT: &str = "abort";

fn allowed(kind: Kind, fault: &Fault) -> &'static Allowed {
    match (fault.kind, fault.status, fault.chunks) {
        (FaultKind::Status, Some(400), _) => &REFUSED,
        (FaultKind::Status, Some(501), _) => &NOT_IMPLEMENTED,
        (FaultKind::Status, ..) => &TRIED_AGAIN,
        (FaultKind::Reset, _, Some(_)) => &BROKEN_OFF,
        (FaultKind::ErrorEvent, ..) => &ERROR_EVENT,
        (FaultKind::Stall, ..) => &SILENT,
        // Its decode was told to wait for KV before, and none will come.
        (FaultKind::NullParams, ..) if kind == Kind::Mooncake => &SILENT,
        // That the engine goes down is a line of its own.
        _ => &SURVIVED,
    }
}

/// From when to when something was felt, and what it may have led to.
struct Felt {
    from: Instant,
    to: Option<Instant>,
    what: String,
    /// An engine is away.
    away: bool,
    allowed: &'static Allowed,
}

/// All that befell these engines.
fn felt(engines: &[EngineHandle]) -> Vec<Felt> {
    let mut all = Vec::new();
    for engine in engines {
        let mut down: Option<usize> = None;
        for (at, happened) in engine.story() {
            match happened {
                Happened::Struck(fault) => {
                    let what = format!("{:?} {:?} {:?}", fault.kind, fault.status, fault.chunks);
                    all.push(Felt {
                        from: at,
                        to: Some(at),
                        what,
                        away: false,
                        allowed: allowed(engine.spec().kind(), &fault),
                    });
                }
                Happened::Down => {
                    down = Some(all.len());
                    all.push(Felt { from: at, to: None, what: "Down".into(), away: true, allowed: &DOWN });
                }
                Happened::Up => {
                    if let Some(down) = down.take() {
                        all[down].to = Some(at + FELT);
                    }
                }
            }
        }
    }
    all
}

/// Why this end is a mistake, if it is one. `engines` are those of its model.
pub fn mistake(end: &End, began: Instant, ended: Instant, engines: &[EngineHandle]) -> Option<String> {
    if matches!(end, End::Right | End::Left) {
        return None;
    }
    let mut seen = Vec::new();
    let mut all = felt(engines);
    all.retain(|felt| felt.from <= ended && felt.to.is_none_or(|to| to >= began));
    let away = all.iter().any(|felt| felt.away);
    for felt in all {
        let listed = match end {
            End::Failed(status, code) => {
                felt.allowed.failed.iter().any(|(s, codes)| s == status && codes.contains(&code.as_str()))
            }
            End::Cut(code) => felt.allowed.cut.contains(&code.as_str()),
            End::Broken => felt.allowed.broken,
            End::Right | End::Left => true,
        };
        let took = ended - felt.from.max(began);
        if listed && (away || !felt.allowed.alone) && took <= felt.allowed.within {
            return None;
        }
        seen.push(format!("{} {} ms before", felt.what, took.as_millis()));
    }
    Some(format!(
        "{end:?} after {:?}, and what befell its engines does not explain it: {seen:?}",
        ended - began
    ))
}
