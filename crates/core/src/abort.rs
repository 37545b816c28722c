//! Is the engine asked, by the request's name, to drop what it still does for it?
//!
//! Closing a leg's connection is an abort for every engine. One that takes names (SGLang's `/abort_request`) is asked
//! as well where its decode is stuck: a hung scheduler, or a decode that waits for KV that will never come, may not
//! look at its connections for minutes (AIBrix page, "Decode Watchdog"). The engine answers 200 for a name that it
//! does not know, and a request that is still on its way is not known yet: after a failed prefill it is asked twice.
//!
//! Whether, how often and how far apart is decided here; the asking is the gateway's, and nothing waits for it.

use crate::fault::{Fault, LegName};
use crate::time::Duration;
use crate::watchdog::Silence;

/// How an engine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortRule {
    /// How long one question may take. `None`: nobody is asked. `AIBRIX_DECODE_ABORT_TIMEOUT`.
    pub timeout: Option<Duration>,
    /// How long after the first question the second comes. `None`: there is none. `AIBRIX_DECODE_ABORT_RETRY_DELAY`.
    pub retry_delay: Option<Duration>,
}

impl Default for AbortRule {
    fn default() -> Self {
        AbortRule { timeout: Some(Duration::from_secs(3)), retry_delay: Some(Duration::from_secs(2)) }
    }
}

/// What kind of failure a prefill's was, in AIBrix's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    RequestSetup,
    Timeout,
    Canceled,
    Transport,
    HttpStatus,
    BadResponse,
}

impl Class {
    pub const ALL: [Class; 6] = [
        Class::RequestSetup,
        Class::Timeout,
        Class::Canceled,
        Class::Transport,
        Class::HttpStatus,
        Class::BadResponse,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Class::RequestSetup => "request_setup",
            Class::Timeout => "timeout",
            Class::Canceled => "canceled",
            Class::Transport => "transport",
            Class::HttpStatus => "http_status",
            Class::BadResponse => "bad_response",
        }
    }

    /// `None`: the fault is no failure of a prefill leg.
    pub fn of(fault: &Fault) -> Option<Class> {
        match fault {
            Fault::MoriioHandoff { .. } => Some(Class::BadResponse),
            Fault::TrtContext | Fault::MoriioPair { .. } => Some(Class::RequestSetup),
            Fault::ClientGone => Some(Class::Canceled),
            _ if fault.leg() != Some(LegName::Prefill) => None,
            Fault::Refused { .. } => Some(Class::HttpStatus),
            Fault::Deadline { .. } => Some(Class::Timeout),
            Fault::Unreachable { cause, .. } if cause.late => Some(Class::Timeout),
            Fault::Unreachable { .. } | Fault::Broken { .. } => Some(Class::Transport),
            _ => None,
        }
    }
}

/// What is left of a prefill's answer that was read and thrown away: enough to tell whether it was one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gist {
    events: bool,
    first: Option<u8>,
    last: Option<u8>,
}

impl Gist {
    pub fn of(content_type: &[u8]) -> Gist {
        Gist { events: content_type.starts_with(b"text/event-stream"), ..Gist::default() }
    }

    /// A further piece of the body.
    pub fn feed(&mut self, piece: &[u8]) {
        let piece = piece.trim_ascii();
        self.first = self.first.or(piece.first().copied());
        self.last = piece.last().copied().or(self.last);
    }

    /// How the prefill failed although it answered well: with something that does not begin and end as a JSON object.
    /// No harm comes of it, since nothing is read of such an answer, but nobody can say that the prompt was computed.
    pub fn class(&self) -> Option<Class> {
        let object = (self.first, self.last) == (Some(b'{'), Some(b'}'));
        (!self.events && !object).then_some(Class::BadResponse)
    }
}

/// Why a decode is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Its prefill failed. `answering`: the decode's head had come all the same.
    Prefill { class: Class, answering: bool },
    /// It owed output.
    Silence(Silence),
}

impl Why {
    /// As the label of a metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Prefill { class, .. } => class.as_str(),
            Why::Silence(Silence::FirstResponse) => "watchdog_first_response",
            Why::Silence(Silence::StreamIdle) => "watchdog_stream_idle",
        }
    }
}

/// What came of a question, or why it was not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    Ok,
    Error,
    /// The decode answers: closing its connection is enough.
    SkippedStreaming,
    SkippedDisabled,
    /// The request has no name of its own, such as one with a list of prompts.
    SkippedNoRid,
    /// There is nobody to ask.
    SkippedNoTarget,
    /// Too much goes on in the background already.
    SkippedBusy,
}

impl Asked {
    pub const ALL: [Asked; 7] = [
        Asked::Ok,
        Asked::Error,
        Asked::SkippedStreaming,
        Asked::SkippedDisabled,
        Asked::SkippedNoRid,
        Asked::SkippedNoTarget,
        Asked::SkippedBusy,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Asked::Ok => "ok",
            Asked::Error => "error",
            Asked::SkippedStreaming => "skipped_streaming",
            Asked::SkippedDisabled => "skipped_disabled",
            Asked::SkippedNoRid => "skipped_no_rid",
            Asked::SkippedNoTarget => "skipped_no_target",
            Asked::SkippedBusy => "skipped_busy",
        }
    }
}

/// One or two questions, the same both times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questions {
    /// What the engine gets. Never its `abort_all`.
    pub body: String,
    pub timeout: Duration,
    /// The wait before the second one, whatever came of the first.
    pub again: Option<Duration>,
}

impl AbortRule {
    /// `rid` is the request's name on the engine; `target` says whether there is an engine to ask.
    ///
    /// # Errors
    /// Why nobody is asked.
    pub fn ask(&self, why: Why, rid: Option<&str>, target: bool) -> Result<Questions, Asked> {
        let timeout = self.timeout.ok_or(Asked::SkippedDisabled)?;
        // An empty name is the beginning of every name, and the engine goes by beginnings (SGLang 0.5.23).
        let rid = rid.filter(|rid| !rid.is_empty()).ok_or(Asked::SkippedNoRid)?;
        if !target {
            return Err(Asked::SkippedNoTarget);
        }
        let again = match why {
            Why::Prefill { answering: true, .. } => return Err(Asked::SkippedStreaming),
            Why::Prefill { .. } => self.retry_delay,
            // It has had the request for long.
            Why::Silence(_) => None,
        };
        let body = serde_json::json!({"rid": rid}).to_string();
        Ok(Questions { body, timeout, again })
    }
}
