//! What a scenario says of its engines: what each does to a request's legs and when, and what a context server tells.
//!
//! Steps are checked here as far as a list of them can be: a leg has a head before it has a body, one of each at a time,
//! and time goes on. Whether anybody still listens when a step comes is found out when it is played.

use baton_core::time::Instant;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::read::{self, Keys};
use super::request::{body, header_map, moment};
use crate::edge::answer;
use crate::yaml::{Broken, Node, Tree};

/// Most steps of one request's engines.
pub const STEPS_MAX: usize = 10_000;
/// Most answers of one context server.
pub const ANSWERS_MAX: usize = 1000;

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Prefill,
    /// The worker that answers the client, whatever its role.
    Decode,
    Client,
}

impl Who {
    pub fn as_str(self) -> &'static str {
        match self {
            Who::Prefill => "prefill",
            Who::Decode => "decode",
            Who::Client => "client",
        }
    }
}

/// What somebody does.
#[derive(Clone, Debug)]
pub enum Does {
    /// A whole answer, at once.
    Answers {
        head: Head,
        body: Bytes,
    },
    Head(Head),
    /// A piece of the body.
    Chunk(Bytes),
    /// The body's end.
    Ends,
    /// Nobody listens at the worker's address.
    Refuses,
    /// No connection is made in time.
    Stalls,
    /// The connection breaks once the request is out.
    Breaks,
    /// A connection that had served before turns out to be closed.
    Ages,
    /// The client goes away.
    Leaves,
}

impl Does {
    const WORDS: [&str; 9] =
        ["answers", "head", "chunk", "ends", "refuses", "stalls", "breaks", "ages", "leaves"];

    pub fn as_str(&self) -> &'static str {
        let at = match self {
            Does::Answers { .. } => 0,
            Does::Head(_) => 1,
            Does::Chunk(_) => 2,
            Does::Ends => 3,
            Does::Refuses => 4,
            Does::Stalls => 5,
            Does::Breaks => 6,
            Does::Ages => 7,
            Does::Leaves => 8,
        };
        Does::WORDS[at]
    }
}

/// The beginning of an engine's answer.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: StatusCode,
    pub headers: HeaderMap,
}

/// One thing that happens to a request.
#[derive(Clone, Debug)]
pub struct Step {
    pub at: Instant,
    pub who: Who,
    pub does: Does,
}

/// What a context server says of where its KV is, from a moment on.
#[derive(Clone, Debug)]
pub struct Word {
    pub at: Instant,
    pub status: StatusCode,
    pub body: Bytes,
}

/// The steps of one request, which comes at `from`.
pub fn steps(node: Node, what: &str, from: Instant) -> Result<Vec<Step>, Broken> {
    let mut order = Order { last: from, open: [false; 2], gone: false };
    listed(node, what, STEPS_MAX, |node| {
        let line = node.line;
        let step = step(node)?;
        order.fits(&step).map_err(|why| (line, why))?;
        Ok(step)
    })
}

/// The answers of one context server.
pub fn words(node: Node, what: &str) -> Result<Vec<Word>, Broken> {
    let mut last = Instant::ZERO;
    listed(node, what, ANSWERS_MAX, |node| {
        let line = node.line;
        let word = word(node)?;
        if word.at < last {
            return Err((line, "at_ms of an answer must not go backwards".to_owned()));
        }
        last = word.at;
        Ok(word)
    })
}

fn listed<T>(
    node: Node,
    what: &str,
    most: usize,
    read: impl FnMut(Node) -> Result<T, Broken>,
) -> Result<Vec<T>, Broken> {
    match node.value {
        Tree::List(nodes) if nodes.len() > most => {
            Err((node.line, format!("{what} must have at most {most} entries")))
        }
        Tree::List(nodes) => nodes.into_iter().map(read).collect(),
        _ => Err((node.line, format!("{what} must be a list"))),
    }
}

/// Where the legs are, as far as the list says.
struct Order {
    last: Instant,
    /// A leg's head has come and its end has not.
    open: [bool; 2],
    /// The client has left.
    gone: bool,
}

impl Order {
    fn fits(&mut self, step: &Step) -> Result<(), String> {
        if step.at < self.last {
            return Err("at_ms of a step must not go backwards, nor before its request comes".to_owned());
        }
        self.last = step.at;
        let (who, does) = (step.who.as_str(), step.does.as_str());
        let open = match step.who {
            Who::Prefill => &mut self.open[0],
            Who::Decode => &mut self.open[1],
            Who::Client => {
                let twice = std::mem::replace(&mut self.gone, true);
                return if twice { Err("the client leaves once".to_owned()) } else { Ok(()) };
            }
        };
        *open = match (&step.does, *open) {
            (Does::Chunk(_) | Does::Ends, false) => {
                return Err(format!("{who} {does} before its head has come"));
            }
            (Does::Chunk(_), true) | (Does::Head(_), false) => true,
            (Does::Breaks | Does::Ends, _) => false,
            (_, false) => false,
            (_, true) => return Err(format!("{who} {does} in the middle of an answer")),
        };
        Ok(())
    }
}

fn step(node: Node) -> Result<Step, Broken> {
    let mut keys = Keys::of(node, "a step")?;
    let line = keys.line;
    let at = keys.read("at_ms", moment)?.ok_or_else(|| (line, "a step has no at_ms".to_owned()))?;
    let who = keys.read("who", who)?.ok_or_else(|| (line, "a step has no who".to_owned()))?;
    let word = keys.read("does", read::text)?.ok_or_else(|| (line, "a step has no does".to_owned()))?;
    if (word == "leaves") != (who == Who::Client) {
        return Err((line, "a client leaves, and nobody else does".to_owned()));
    }
    let does = match word.as_str() {
        "answers" => {
            let (json, body) = bytes(keys.take("body"));
            let head = head(&mut keys, |_| true, json)?;
            Does::Answers { head, body }
        }
        "head" => Does::Head(head(&mut keys, StatusCode::is_success, false)?),
        "chunk" => {
            let text = keys.read("text", read::text)?.filter(|text| !text.is_empty());
            Does::Chunk(text.ok_or_else(|| (line, "a chunk has no text".to_owned()))?.into())
        }
        "ends" => Does::Ends,
        "refuses" => Does::Refuses,
        "stalls" => Does::Stalls,
        "breaks" => Does::Breaks,
        "ages" => Does::Ages,
        "leaves" => Does::Leaves,
        other => {
            let all = Does::WORDS.join(", ");
            return Err((line, format!("does of a step must be one of {all}, not {other:?}")));
        }
    };
    keys.end()?;
    Ok(Step { at, who, does })
}

fn who(node: Node, what: &str) -> Result<Who, Broken> {
    let line = node.line;
    let word = read::text(node, what)?;
    let found = [Who::Prefill, Who::Decode, Who::Client].into_iter().find(|who| who.as_str() == word);
    found.ok_or_else(|| (line, format!("{what} must be prefill, decode or client, not {word:?}")))
}

/// Status and headers. `json`: the body is written as a mapping.
fn head(keys: &mut Keys, fits: impl Fn(&StatusCode) -> bool, json: bool) -> Result<Head, Broken> {
    let line = keys.line;
    let status = keys.read("status", status)?.unwrap_or_else(|| answer::status(answer::OK));
    if !fits(&status) {
        return Err((line, format!("a head of status {} comes with its body: it answers", status.as_u16())));
    }
    let mut headers = header_map(keys.texts("headers")?).map_err(|why| (line, why))?;
    if json && !headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    Ok(Head { status, headers })
}

fn status(node: Node, what: &str) -> Result<StatusCode, Broken> {
    let line = node.line;
    let n = read::up_to(999)(node, what)?;
    let found = u16::try_from(n).ok().filter(|n| *n >= 200).and_then(|n| StatusCode::from_u16(n).ok());
    found.ok_or_else(|| (line, format!("{what} must be from 200 to 999, not {n}")))
}

/// A body, and whether it is written as a mapping or a list. Not given: an empty object.
fn bytes(node: Option<Node>) -> (bool, Bytes) {
    match node {
        None => (true, Bytes::from_static(b"{}")),
        Some(node) => (!matches!(node.value, Tree::Scalar { .. }), body(node).into()),
    }
}

fn word(node: Node) -> Result<Word, Broken> {
    let mut keys = Keys::of(node, "an answer")?;
    let at = keys.read("at_ms", moment)?.unwrap_or(Instant::ZERO);
    let status = keys.read("status", status)?.unwrap_or_else(|| answer::status(answer::OK));
    let (_, body) = bytes(keys.take("body"));
    keys.end()?;
    Ok(Word { at, status, body })
}
