//! Why an exchange failed: a closed list in which every entry already knows its answer.
//!
//! One table decides status, code, headers, whom to blame and whether another try is safe. Codes are
//! SMG's where its page or its source names one (1.13). Two deliberate differences: an
//! engine's status is kept whatever it is (SMG turns 422 or 429 of a decode into 500), and an unknown
//! model is 404 over HTTP too.

mod message;

use std::borrow::Cow;

use crate::breaker::Verdict;
use crate::place::cascade::words::UnknownStrategy;
use crate::time::Duration;
use crate::watchdog::Silence;

/// Which leg a fault speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LegName {
    Prefill,
    Decode,
    /// The one leg of a worker that runs both phases.
    Whole,
}

impl LegName {
    pub fn as_str(self) -> &'static str {
        match self {
            LegName::Prefill => "prefill",
            LegName::Decode => "decode",
            LegName::Whole => "whole",
        }
    }
}

/// Why a worker could not be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    pub words: String,
    /// It took too long.
    pub late: bool,
}

impl From<&str> for Cause {
    fn from(words: &str) -> Cause {
        Cause { words: words.to_owned(), late: false }
    }
}

/// What an engine said when it refused a leg.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub message: String,
    pub param: Option<String>,
    /// The engine's own `Retry-After`, in its own words.
    pub retry_after: Option<String>,
    /// The leg belongs to a plan whose prefill runs alone (SMG names such a refusal differently).
    pub alone: bool,
    /// It refuses because of the KV that it was to fetch, not because of the request.
    pub lost_kv: bool,
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    InvalidJson {
        message: String,
    },
    RepeatedMember {
        key: String,
    },
    InvalidType {
        param: &'static str,
        expected: &'static str,
    },
    InvalidValue {
        param: &'static str,
        message: &'static str,
    },
    BodyTooLarge {
        limit_bytes: u64,
    },
    BodyStalled,
    BodyBroken,
    UnknownUrl {
        method: String,
        path: String,
    },
    MethodNotAllowed {
        allow: &'static str,
    },
    Unauthorized {
        given: bool,
    },
    /// Messages that ask for no output: no engine serves them (SMG 1.13).
    ZeroTokens,
    NotServed {
        route: String,
        /// What to do instead, in a sentence.
        advice: &'static str,
    },
    ModelNotFound {
        model: String,
        known: String,
    },
    NoModels,
    QueueFull {
        retry_after_s: u32,
    },
    QueueTimeout {
        retry_after_s: u32,
    },
    Draining,
    NoWorker {
        leg: LegName,
        registered: bool,
    },
    NoPair {
        detail: String,
    },
    /// A strategy of AIBrix's was asked for by a name that none has.
    UnknownStrategy(UnknownStrategy),
    /// The client's `external-filter` is no label selector.
    BadFilter {
        reason: String,
    },
    /// Workers could serve, and the client's `external-filter` selects none of them.
    FilteredOut {
        selector: String,
    },
    /// A strategy of AIBrix's finds nobody. The reason is in the words of its page or its source.
    Unroutable {
        reason: String,
    },
    /// The running windows of all workers that could serve were full for as long as the request could wait.
    Shed {
        leg: LegName,
        /// Sequences that the request makes.
        rooms: u32,
        /// The widest window, if the request is wider than that: waiting would not help.
        widest: Option<u32>,
    },
    Refused {
        leg: LegName,
        refusal: Refusal,
    },
    /// No response head came: the connection could not be made or was lost.
    Unreachable {
        leg: LegName,
        cause: Cause,
    },
    /// The head came, the body did not end as it should.
    Broken {
        leg: LegName,
        cause: String,
    },
    Deadline {
        leg: LegName,
        seconds: u64,
    },
    /// The worker that answers owed output and sent none for too long.
    DecodeSilent {
        leg: LegName,
        phase: Silence,
        limit: Duration,
        stream: bool,
    },
    /// These two workers are not set up to be a pair (MoRI-IO). The reason is for the log.
    MoriioPair {
        reason: String,
    },
    MoriioRoute,
    /// Several answers would share one hand-off, and MoRI-IO cannot do without one.
    MoriioFanout,
    /// The client's request id would be read as the address of a peer.
    MoriioRequestId,
    /// The prefill returned no hand-off that a MoRI-IO decode could take. The reason is for the log.
    MoriioHandoff {
        reason: &'static str,
    },
    /// A TensorRT-LLM context server has not told where its KV can be fetched (`/server_info`).
    TrtContext,
    /// A background reading of a worker's description failed (`/get_server_info` and the like).
    Proxied {
        refusal: Refusal,
    },
    ClientGone,
}

/// May the same request be tried again elsewhere?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    Safe,
    Never,
}

/// What the client sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub code: Cow<'static, str>,
    pub message: String,
    pub param: Option<String>,
    pub retry_after: Option<String>,
    /// `Allow` of a 405.
    pub allow: Option<&'static str>,
    /// `WWW-Authenticate` of a 401.
    pub authenticate: Option<&'static str>,
    /// A further header, by which AIBrix tells its own failures from the engines'.
    pub flag: Option<(&'static str, Cow<'static, str>)>,
}

/// Statuses after which another try may help (SMG 1.13).
const TRANSIENT: [u16; 6] = [408, 429, 500, 502, 503, 504];

impl Refusal {
    /// "Later, please": says nothing about the worker's health.
    pub fn is_push_back(&self) -> bool {
        self.status == 429 || (self.status == 503 && self.retry_after.is_some())
    }

    /// The status the client gets: the engine's own if it is an error of the request's or the engine's, else 502 (a
    /// redirect is not followed, and KV that did not come is not the client's mistake).
    fn outward(&self) -> u16 {
        if self.lost_kv {
            return 502;
        }
        if (400..600).contains(&self.status) { self.status } else { 502 }
    }
}

impl Fault {
    /// Another try with a fresh pair: safe only while the client has no body byte, which the exchange knows.
    pub fn retry(&self) -> Retry {
        let safe = match self {
            Fault::Refused { refusal, .. } => TRANSIENT.contains(&refusal.outward()),
            Fault::Unreachable { .. } | Fault::Broken { .. } | Fault::MoriioHandoff { .. } => true,
            _ => false,
        };
        if safe { Retry::Safe } else { Retry::Never }
    }

    /// The leg that the fault speaks of. `None`: no worker had a part in it.
    pub fn leg(&self) -> Option<LegName> {
        match self {
            Fault::NoWorker { leg, .. }
            | Fault::Shed { leg, .. }
            | Fault::Refused { leg, .. }
            | Fault::Unreachable { leg, .. }
            | Fault::Broken { leg, .. }
            | Fault::Deadline { leg, .. }
            | Fault::DecodeSilent { leg, .. } => Some(*leg),
            _ => None,
        }
    }

    /// What the fault says about the worker of `leg`.
    pub fn verdict(&self, leg: LegName) -> Verdict {
        match self {
            Fault::Refused { leg: l, refusal } if *l == leg => match refusal.outward() {
                _ if refusal.is_push_back() || refusal.lost_kv => Verdict::Mute,
                500 | 502 | 503 | 504 => Verdict::Bad,
                // A client's mistake counts neither way: it must not clear a row of failures, nor close a
                // half-open breaker.
                400..500 => Verdict::Mute,
                _ => Verdict::Good,
            },
            Fault::Unreachable { leg: l, .. } | Fault::Broken { leg: l, .. } if *l == leg => Verdict::Bad,
            Fault::Deadline { leg: l, .. } | Fault::DecodeSilent { leg: l, .. } if *l == leg => Verdict::Bad,
            _ => Verdict::Mute,
        }
    }

    /// Which silence it was, if the fault is one.
    pub fn silence(&self) -> Option<Silence> {
        match self {
            Fault::DecodeSilent { phase, .. } => Some(*phase),
            _ => None,
        }
    }

    /// What is for the operator alone, beside the message.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Fault::MoriioPair { reason } => Some(reason),
            Fault::MoriioHandoff { reason } => Some(reason),
            _ => None,
        }
    }

    /// A hand-off was due and there will be none (the page's `smg_pd_kv_transfer_failures_total`).
    pub fn loses_handoff(&self) -> bool {
        matches!(self, Fault::MoriioPair { .. } | Fault::MoriioHandoff { .. })
    }

    /// The code, as in `X-SMG-Error-Code`, the metrics and docs/errors.md.
    pub fn code(&self) -> &'static str {
        match self {
            Fault::InvalidJson { .. } => "invalid_json",
            Fault::RepeatedMember { .. } => "repeated_member",
            Fault::InvalidType { .. } => "invalid_type",
            Fault::InvalidValue { .. } => "invalid_value",
            Fault::BodyTooLarge { .. } => "request_body_too_large",
            Fault::BodyStalled => "request_body_stalled",
            Fault::BodyBroken => "request_body_broken",
            Fault::UnknownUrl { .. } => "unknown_url",
            Fault::MethodNotAllowed { .. } => "method_not_allowed",
            Fault::Unauthorized { .. } => "invalid_api_key",
            Fault::ZeroTokens => "max_tokens_zero_not_relayed",
            Fault::NotServed { .. } => "not_implemented",
            Fault::ModelNotFound { .. } => "model_not_found",
            Fault::NoModels => "no_models_available",
            Fault::QueueFull { .. } => "admission_queue_full",
            Fault::QueueTimeout { .. } => "admission_queue_timeout",
            Fault::Draining => "draining",
            Fault::NoWorker { .. } => "no_available_workers",
            Fault::NoPair { .. } => "no_compatible_pd_pair",
            Fault::UnknownStrategy(_) => "incorrect_routing_strategy",
            Fault::BadFilter { .. } => "invalid_external_filter",
            Fault::FilteredOut { .. } => "external_filter_selects_nobody",
            Fault::Unroutable { .. } => "service_unavailable",
            Fault::Shed { .. } => "worker_overload_protection_shed",
            Fault::Refused { leg, refusal } => refused_code(*leg, refusal),
            Fault::Unreachable { leg, .. } => match leg {
                LegName::Prefill => "prefill_request_failed",
                LegName::Decode => "decode_request_failed",
                LegName::Whole => "worker_request_failed",
            },
            Fault::Broken { leg, .. } => match leg {
                LegName::Prefill => "prefill_read_failed",
                LegName::Decode => "decode_read_failed",
                LegName::Whole => "read_response_failed",
            },
            Fault::Deadline { .. } => "request_timeout",
            Fault::DecodeSilent { .. } => "pd_decode_watchdog",
            Fault::TrtContext => "trtllm_context_unknown",
            Fault::MoriioPair { .. } => "moriio_pair_misconfigured",
            Fault::MoriioRoute => "moriio_route_unsupported",
            Fault::MoriioFanout => "moriio_fanout_unsupported",
            Fault::MoriioRequestId => "moriio_request_id_reserved",
            Fault::MoriioHandoff { .. } => "moriio_handoff_invalid",
            Fault::Proxied { refusal } => match refusal.outward() {
                400 => "server_bad_request",
                404 => "server_not_found",
                500 => "server_internal_error",
                503 => "server_unavailable",
                502 => "server_bad_gateway",
                _ => "server_error",
            },
            Fault::ClientGone => "client_gone",
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Fault::InvalidJson { .. }
            | Fault::RepeatedMember { .. }
            | Fault::InvalidType { .. }
            | Fault::InvalidValue { .. }
            | Fault::MoriioFanout
            | Fault::MoriioRequestId
            | Fault::ZeroTokens
            | Fault::UnknownStrategy(_)
            | Fault::BadFilter { .. }
            | Fault::BodyBroken => 400,
            Fault::Unauthorized { .. } => 401,
            Fault::UnknownUrl { .. } | Fault::ModelNotFound { .. } => 404,
            Fault::MethodNotAllowed { .. } => 405,
            Fault::BodyStalled => 408,
            Fault::BodyTooLarge { .. } => 413,
            Fault::QueueFull { .. } => 429,
            Fault::ClientGone => 499,
            Fault::NotServed { .. } | Fault::MoriioRoute => 501,
            Fault::Unreachable { .. } | Fault::Broken { .. } | Fault::MoriioHandoff { .. } => 502,
            Fault::NoModels
            | Fault::QueueTimeout { .. }
            | Fault::Draining
            | Fault::NoWorker { .. }
            | Fault::NoPair { .. }
            | Fault::Unroutable { .. }
            | Fault::FilteredOut { .. }
            | Fault::Shed { .. }
            | Fault::TrtContext
            | Fault::MoriioPair { .. } => 503,
            Fault::Deadline { .. } | Fault::DecodeSilent { .. } => 504,
            Fault::Refused { refusal, .. } | Fault::Proxied { refusal } => refusal.outward(),
        }
    }

    /// A failed prefill leg, a decode that fell silent, or a strategy that finds nobody, whatever the engine
    /// (AIBrix page).
    fn flag(&self) -> Option<(&'static str, Cow<'static, str>)> {
        let name = match self {
            Fault::DecodeSilent { leg: LegName::Decode, .. } => "x-error-pd-decode",
            Fault::Refused { leg: LegName::Prefill, .. }
            | Fault::Unreachable { leg: LegName::Prefill, .. }
            | Fault::Broken { leg: LegName::Prefill, .. }
            | Fault::Deadline { leg: LegName::Prefill, .. }
            | Fault::MoriioHandoff { .. } => "x-error-pd-prefill",
            Fault::UnknownStrategy(_) | Fault::BadFilter { .. } | Fault::Unroutable { .. } => {
                "x-error-routing"
            }
            Fault::InvalidJson { .. } | Fault::RepeatedMember { .. } => "x-error-request-body-processing",
            Fault::NoWorker { .. } | Fault::FilteredOut { .. } => "x-error-no-model-backends",
            Fault::ModelNotFound { model, .. } => {
                return Some(("x-error-no-model-backends", model.clone().into()));
            }
            _ => return None,
        };
        Some((name, "true".into()))
    }

    /// What the client sees.
    pub fn answer(&self) -> Answer {
        let mut a = Answer {
            status: self.status(),
            code: Cow::Borrowed(self.code()),
            message: self.message(),
            param: None,
            retry_after: None,
            allow: None,
            authenticate: None,
            flag: self.flag(),
        };
        match self {
            Fault::RepeatedMember { key } => a.param = Some(key.clone()),
            Fault::InvalidType { param, .. } | Fault::InvalidValue { param, .. } => {
                a.param = Some((*param).to_owned())
            }
            Fault::ZeroTokens => a.param = Some("max_tokens".to_owned()),
            Fault::BadFilter { .. } => a.param = Some("external-filter".to_owned()),
            Fault::ModelNotFound { .. } => a.param = Some("model".to_owned()),
            Fault::MethodNotAllowed { allow } => a.allow = Some(allow),
            Fault::Unauthorized { given } => {
                a.authenticate = Some(if *given {
                    "Bearer realm=\"data-plane\", error=\"invalid_token\""
                } else {
                    "Bearer realm=\"data-plane\""
                });
            }
            Fault::QueueFull { retry_after_s } | Fault::QueueTimeout { retry_after_s } => {
                a.retry_after = Some(retry_after_s.to_string());
            }
            Fault::NoWorker { .. } | Fault::Unroutable { .. } | Fault::Draining => {
                a.retry_after = Some("1".to_owned())
            }
            // SMG 1.13: the interval at which it looks at loads.
            Fault::Shed { .. } => a.retry_after = Some("10".to_owned()),
            Fault::Refused { refusal, .. } => {
                a.param.clone_from(&refusal.param);
                a.retry_after.clone_from(&refusal.retry_after);
                if refusal.status == 429 && a.retry_after.is_none() {
                    a.retry_after = Some("1".to_owned());
                }
            }
            _ => {}
        }
        a
    }
}

fn refused_code(leg: LegName, refusal: &Refusal) -> &'static str {
    let row = match refusal.outward() {
        400 => 0,
        404 => 1,
        500 => 2,
        503 => 3,
        502 => 4,
        _ => 5,
    };
    match leg {
        LegName::Prefill if refusal.alone => "prefill_upstream_error",
        LegName::Prefill => [
            "prefill_bad_request",
            "prefill_not_found",
            "prefill_internal_error",
            "prefill_unavailable",
            "prefill_bad_gateway",
            "prefill_error",
        ][row],
        LegName::Decode => [
            "decode_bad_request",
            "decode_not_found",
            "decode_internal_error",
            "decode_unavailable",
            "decode_bad_gateway",
            "decode_error",
        ][row],
        LegName::Whole => "upstream_error",
    }
}

/// The error shapes of the APIs served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Shape {
    #[default]
    OpenAi,
    Anthropic,
    /// OpenAI's responses: as its other APIs, but for the end of a stream, whose events have names and numbers.
    Responses,
}

impl Answer {
    /// `type` of the error object (SMG 1.13).
    pub fn kind(&self, shape: Shape) -> &'static str {
        match (shape, self.status) {
            (Shape::Anthropic, 401) => "authentication_error",
            (Shape::Anthropic, 404) => "not_found_error",
            (Shape::Anthropic, 413) => "request_too_large",
            (Shape::Anthropic, 503 | 529) => "overloaded_error",
            (_, 403) => "permission_error",
            (_, 429) => "rate_limit_error",
            (Shape::Anthropic, 500..) => "api_error",
            (_, 500..) => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The JSON body of the answer.
    pub fn body(&self, shape: Shape, request_id: &str) -> String {
        match shape {
            Shape::OpenAi | Shape::Responses => serde_json::json!({"error": {
                "message": self.message, "type": self.kind(shape), "param": self.param, "code": self.code}}),
            Shape::Anthropic => serde_json::json!({"type": "error", "error": {
                "type": self.kind(shape), "message": self.message}, "request_id": request_id}),
        }
        .to_string()
    }

    /// The same as the last events of a stream that had begun, `told` events before.
    pub fn events(&self, shape: Shape, told: u64) -> String {
        match shape {
            Shape::OpenAi => {
                let error = serde_json::json!({"error": {
                    "message": self.message, "type": "stream_error", "param": null, "code": self.code}});
                format!("data: {error}\n\ndata: [DONE]\n\n")
            }
            Shape::Anthropic => {
                let error = serde_json::json!({"type": "error", "error": {
                    "type": "api_error", "message": self.message}});
                format!("event: error\ndata: {error}\n\n")
            }
            Shape::Responses => {
                let error = serde_json::json!({"type": "error", "code": self.code, "message": self.message,
                    "param": null, "sequence_number": told});
                format!("event: error\ndata: {error}\n\n")
            }
        }
    }
}

/// Finds an engine's own message in its error answer: nested under `error`, flat, FastAPI's `detail`, or
/// the text itself (vLLM 0.33 nests, SGLang 0.5.23 is flat).
pub fn read_refusal(status: u16, body: &[u8], retry_after: Option<String>, alone: bool) -> Refusal {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let object = json.as_ref().map(|v| v.get("error").filter(|e| e.is_object()).unwrap_or(v));
    let field = |name: &str| object.and_then(|o| o.get(name)).and_then(|v| v.as_str()).map(str::to_owned);
    let text = || String::from_utf8_lossy(body).trim().chars().take(2000).collect::<String>();
    let flat_error =
        || json.as_ref().and_then(|v| v.get("error")).and_then(|v| v.as_str()).map(str::to_owned);
    let mut message = field("message").or_else(flat_error).or_else(|| field("detail")).unwrap_or_else(text);
    if message.is_empty() {
        message = format!("The worker answered with status {status} and no message.");
    }
    Refusal { status, message, param: field("param"), retry_after, alone, lost_kv: false }
}

#[cfg(test)]
mod tests;
