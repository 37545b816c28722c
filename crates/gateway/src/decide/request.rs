//! The requests of a scenario: what they ask for, and what becomes of them in time.

use std::sync::Arc;

use baton_core::ask::Api;
use baton_core::time::Instant;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::engine::{self, Step};
use super::read::{self, Keys};
use super::scenario::REQUESTS_MAX;
use crate::yaml::{Broken, Node, Tree};

/// Latest moment, in milliseconds: a year.
const LATEST_MS: f64 = 31_536_000_000.0;

/// A request of the scenario.
#[derive(Clone)]
pub struct Incoming {
    /// Which of the requests that are listed it is one of.
    pub listed: usize,
    pub api: Api,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Counts instead of what the gateway would count.
    pub prompt_tokens: Option<u64>,
    pub at: Instant,
    pub prefill_done_at: Option<Instant>,
    pub done_at: Option<Instant>,
    pub failure: Option<Failure>,
    /// What engines and client do. `None`: it is placed and not carried out.
    pub engine: Option<Arc<[Step]>>,
}

/// A worker fails the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub at: Instant,
    /// The prefill; else the worker that answers.
    pub of_prefill: bool,
    pub retried: Option<Retried>,
}

/// What is tried after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// Everything is chosen anew.
    Pair,
    /// Another decode for what the prefill has computed.
    Decode,
}

/// As many requests as one entry of the list stands for.
///
/// # Errors
/// The line, and what is wrong there.
pub fn requests(node: Node, listed: usize) -> Result<Vec<Incoming>, Broken> {
    let mut keys = Keys::of(node, "a request")?;
    let line = keys.line;
    let times = keys.read("times", read::up_to(REQUESTS_MAX as u64))?.unwrap_or(1);
    if times == 0 {
        return Err((line, "times of a request must be 1 or more".to_owned()));
    }
    let api = keys.read("path", api)?.unwrap_or(Api::Chat);
    let headers = keys.texts("headers")?;
    let body = keys.take("body").map_or_else(|| "{}".to_owned(), body);
    let tokens = keys.read("prompt_tokens", Tokens::read)?;
    let at = keys.read("at_ms", moment)?.unwrap_or(Instant::ZERO);
    let prefill_done_at = keys.read("prefill_done_at_ms", moment)?;
    let done_at = keys.read("done_at_ms", moment)?;
    let failure = failure(&mut keys)?;
    let engine = keys.read("engine", |node, what| engine::steps(node, what, at))?.map(Arc::from);
    keys.end()?;
    let whole = Incoming {
        listed,
        api,
        headers: header_map(headers).map_err(|reason| (line, reason))?,
        body: body.into(),
        prompt_tokens: None,
        at,
        prefill_done_at,
        done_at,
        failure,
        engine,
    };
    in_order(&whole).map_err(|why| (line, why.to_owned()))?;
    let one = |i| Incoming { prompt_tokens: tokens.map(|t| t.of(i, times)), ..whole.clone() };
    Ok((0..times).map(one).collect())
}

fn failure(keys: &mut Keys) -> Result<Option<Failure>, Broken> {
    let line = keys.line;
    let of_prefill = keys.read("prefill_fails_at_ms", moment)?;
    let of_answering = keys.read("fails_at_ms", moment)?;
    let retried = keys.read("retried", retried)?;
    let (at, of_prefill) = match (of_prefill, of_answering) {
        (Some(at), None) => (at, true),
        (None, Some(at)) => (at, false),
        (None, None) if retried.is_none() => return Ok(None),
        (None, None) => return Err((line, "what is retried must have failed".to_owned())),
        (Some(_), Some(_)) => {
            return Err((line, "prefill_fails_at_ms and fails_at_ms: a request fails once".to_owned()));
        }
    };
    Ok(Some(Failure { at, of_prefill, retried }))
}

/// What happens to a request may not go backwards, nor contradict itself.
fn in_order(request: &Incoming) -> Result<(), &'static str> {
    let Incoming { at, prefill_done_at: prefilled, done_at: done, failure, .. } = *request;
    let failed = failure.map(|f| f.at);
    if request.engine.is_some() && (prefilled.is_some() || done.is_some() || failed.is_some()) {
        return Err("engine says what becomes of its request: no other time has a place beside it");
    }
    let after = |earlier: Instant, later: Option<Instant>| later.is_none_or(|later| later >= earlier);
    let begun = prefilled.unwrap_or(at);
    if !after(at, prefilled) || !after(begun, done) || !after(begun, failed) {
        return Err("at_ms, prefill_done_at_ms, fails_at_ms and done_at_ms must not go backwards");
    }
    let Some(failure) = failure else { return Ok(()) };
    if !after(failure.at, done) {
        return Err("done_at_ms must not lie before the failure");
    }
    if failure.of_prefill && prefilled.is_some() {
        return Err("a prefill is done or fails: prefill_done_at_ms and prefill_fails_at_ms are both given");
    }
    match failure.retried {
        Some(Retried::Decode) if prefilled.is_none() => Err(
            "retried: decode needs prefill_done_at_ms: another decode takes what the prefill has computed",
        ),
        _ => Ok(()),
    }
}

fn retried(node: Node, what: &str) -> Result<Retried, Broken> {
    let line = node.line;
    match read::text(node, what)?.as_str() {
        "pair" => Ok(Retried::Pair),
        "decode" => Ok(Retried::Decode),
        other => Err((line, format!("{what} must be pair or decode, not {other:?}"))),
    }
}

/// Prompt tokens of one request, or of several: from the first to the last in even steps.
#[derive(Clone, Copy)]
struct Tokens {
    from: u64,
    to: u64,
}

impl Tokens {
    fn read(node: Node, what: &str) -> Result<Tokens, Broken> {
        if !matches!(node.value, Tree::Map(_)) {
            let n = read::whole(node, what)?;
            return Ok(Tokens { from: n, to: n });
        }
        let mut keys = Keys::of(node, what)?;
        let line = keys.line;
        let (from, to) = (keys.read("from", read::whole)?, keys.read("to", read::whole)?);
        keys.end()?;
        let both = from.zip(to).map(|(from, to)| Tokens { from, to });
        both.ok_or_else(|| (line, format!("{what} must be a number, or have from and to")))
    }

    fn of(self, i: u64, times: u64) -> u64 {
        if self.from == self.to {
            return self.from;
        }
        let share = if times > 1 { i as f64 / (times - 1) as f64 } else { 0.0 };
        (self.from as f64 + (self.to as f64 - self.from as f64) * share).round() as u64
    }
}

fn api(node: Node, what: &str) -> Result<Api, Broken> {
    let line = node.line;
    let path = read::text(node, what)?;
    let all = Api::ALL.map(Api::path).join(", ");
    Api::of_path(&path).ok_or_else(|| (line, format!("{what} must be one of {all}, not {path:?}")))
}

/// A text is the body to the letter, anything else is written as JSON.
pub fn body(node: Node) -> String {
    match node.value {
        Tree::Scalar { text, .. } => text,
        _ => {
            let mut out = String::new();
            read::json(&node, &mut out);
            out
        }
    }
}

/// # Errors
/// No number, or more than a year.
pub fn moment(node: Node, what: &str) -> Result<Instant, Broken> {
    let line = node.line;
    match read::number(node, what)? {
        ms if ms <= LATEST_MS => Ok(Instant::from_micros((ms * 1000.0).round() as u64)),
        _ => Err((line, format!("{what} must be within a year"))),
    }
}

/// # Errors
/// What is no header.
pub fn header_map(headers: Vec<(String, String)>) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let key: HeaderName = name.parse().map_err(|_| format!("{name:?} is no header's name"))?;
        let value = HeaderValue::from_str(&value).map_err(|_| format!("{name} cannot have this value"))?;
        map.append(key, value);
    }
    Ok(map)
}
