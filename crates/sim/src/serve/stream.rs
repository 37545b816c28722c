//! Streamed answers: one task for each, which tells the tokens as they come.
//!
//! vLLM, `/generate` and SGLang's `/v1/messages` send the head at once; its OpenAI endpoints wait for the first token. A client that goes
//! away ends the task, and with it the engine's work.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use http::Response;
use tokio::sync::mpsc;

use crate::engine::sequence::KvState;
use crate::engine::spec::Dialect;
use crate::serve::answer::{self, Ended, Teller};
use crate::serve::body::{Body, BreakOff};
use crate::serve::fault::{Fault, Kind};
use crate::serve::http::respond;
use crate::serve::node::{JobPart, Work};
use crate::serve::refusal::Refusal;
use crate::serve::server::Server;
use crate::serve::wire::WireState;
use crate::serve::wish::Api;

/// How many events may wait for a slow client.
const MOST_EVENTS: usize = 16;

/// Counts an HTTP request as open until it is dropped.
pub(crate) struct Open {
    server: Weak<Server>,
}

impl Open {
    pub fn new(server: &Arc<Server>) -> Self {
        server.open.fetch_add(1, Ordering::AcqRel);
        Self { server: Arc::downgrade(server) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade() {
            server.open.fetch_sub(1, Ordering::AcqRel);
            server.ended.notify_waiters();
        }
    }
}

/// A fault that strikes in the middle of an answer.
pub(crate) struct Break {
    pub fault: Fault,
    pub wire: Arc<WireState>,
    pub server: Weak<Server>,
}

impl Break {
    /// Whether the fault comes now, after `sent` chunks.
    fn is_due(&self, sent: u32) -> bool {
        let breaks = matches!(self.fault.kind, Kind::Reset | Kind::Stall | Kind::Kill | Kind::ErrorEvent);
        breaks && sent >= self.fault.chunks.unwrap_or(0)
    }
}

type Frames = mpsc::Sender<Result<Bytes, BreakOff>>;

/// Answers with a stream.
pub(crate) async fn answer(teller: Teller, work: Work, breaks: Option<Break>, open: Open) -> Response<Body> {
    let late_head =
        teller.dialect == Dialect::Sglang && !matches!(teller.wish.api, Api::Generate | Api::Messages);
    if late_head {
        work.job.any_token().await;
    }
    let kind = breaks.as_ref().map(|breaks| breaks.fault.kind);
    let content_type = match kind {
        Some(Kind::WrongContentType) => "text/html; charset=utf-8",
        _ => "text/event-stream; charset=utf-8",
    };
    let (frames, body) = mpsc::channel(MOST_EVENTS);
    let garbage = kind == Some(Kind::GarbageBody);
    let tell = Tell { teller, frames: frames.clone(), breaks, sent: 0 };
    tokio::spawn(async move {
        let _open = open;
        tokio::select! {
            // The client or the connection is gone: dropping the work aborts it.
            () = frames.closed() => {}
            () = run(tell, &work, garbage) => {}
        }
        drop(work);
    });
    let mut response = respond(200, content_type, String::new());
    *response.body_mut() = Body::Frames(body);
    response
}

/// Half of a plain answer, then the fault.
pub(crate) fn half(body: String, breaks: Break) -> Response<Body> {
    let (frames, receiver) = mpsc::channel(2);
    let mut response = respond(200, "application/json", String::new());
    *response.body_mut() = Body::Frames(receiver);
    tokio::spawn(async move {
        let first = body.len() / 2;
        let head = Bytes::copy_from_slice(&body.as_bytes()[..first]);
        if frames.send(Ok(head)).await.is_ok() {
            strike(&breaks, &frames).await;
        }
    });
    response
}

/// Resets, stalls or kills.
async fn strike(breaks: &Break, frames: &Frames) {
    match breaks.fault.kind {
        Kind::Reset => {
            breaks.wire.reset();
            let _ = frames.send(Err(BreakOff)).await;
        }
        Kind::Kill => {
            if let Some(server) = breaks.server.upgrade() {
                server.kill_later(false);
            }
            frames.closed().await;
        }
        _ => frames.closed().await,
    }
}

/// The state of one stream.
struct Tell {
    teller: Teller,
    frames: Frames,
    breaks: Option<Break>,
    sent: u32,
}

/// The stream cannot go on: the client left, or a fault struck.
struct Over;

async fn run(mut tell: Tell, work: &Work, garbage: bool) {
    if garbage {
        let _ = tell.send("data: {this is not JSON\n\n".into()).await;
        return;
    }
    // However it ends, there is nobody left to tell.
    let _ = tell.all(work).await;
}

impl Tell {
    async fn send(&mut self, text: String) -> Result<(), Over> {
        if let Some(breaks) = self.breaks.as_ref().filter(|breaks| breaks.is_due(self.sent)) {
            if breaks.fault.kind == Kind::ErrorEvent {
                let refusal = Refusal::internal();
                for event in self.teller.error(&refusal) {
                    let _ = self.frames.send(Ok(Bytes::from(event))).await;
                }
            } else {
                strike(breaks, &self.frames).await;
            }
            return Err(Over);
        }
        self.sent += 1;
        self.frames.send(Ok(Bytes::from(text))).await.map_err(|_| Over)
    }

    async fn all(&mut self, work: &Work) -> Result<(), Over> {
        let mut told: Vec<u32> = vec![0; self.teller.wish.choices.len()];
        let mut opened = false;
        loop {
            let parts = work.job.look();
            for index in 0..parts.len() {
                self.catch_up(index, &parts, &mut told, &mut opened).await?;
            }
            if parts.iter().all(|part| part.finish.is_some()) {
                return self.close(&parts).await;
            }
            work.job.changed().await;
        }
    }

    /// Tells what is new of one choice.
    async fn catch_up(
        &mut self,
        index: usize,
        parts: &[JobPart],
        told: &mut [u32],
        opened: &mut bool,
    ) -> Result<(), Over> {
        let (Some(part), Some(done)) = (parts.get(index), told.get_mut(index)) else { return Ok(()) };
        let total = self.teller.wish.choices.get(index).map_or(0, |choice| choice.tokens);
        let ended = answer::ended(self.teller.dialect, part, total);
        let ended = match ended {
            Some(Ok(ended)) => Some(ended),
            Some(Err(refusal)) => return self.fail(&refusal).await,
            None => None,
        };
        // The last token waits for the end, which says more about it.
        let upto = ended.as_ref().map_or(part.tokens.min(total.saturating_sub(1)), |ended| ended.tokens);
        while *done < upto {
            if !*opened {
                *opened = true;
                for event in self.teller.opening() {
                    self.send(event).await?;
                }
            }
            let last = ended.as_ref().filter(|ended| *done + 1 == ended.tokens);
            let kv = last.map_or(part.kv, |ended| ended.kv);
            self.token(index, *done, kv, last).await?;
            *done += 1;
        }
        Ok(())
    }

    async fn token(&mut self, index: usize, at: u32, kv: KvState, last: Option<&Ended>) -> Result<(), Over> {
        for event in self.teller.token(index, at, kv, last) {
            self.send(event).await?;
        }
        Ok(())
    }

    async fn close(&mut self, parts: &[JobPart]) -> Result<(), Over> {
        let choices = parts.iter().zip(&self.teller.wish.choices);
        let ended: Vec<Ended> = choices
            .filter_map(|(part, choice)| answer::ended(self.teller.dialect, part, choice.tokens)?.ok())
            .collect();
        for event in self.teller.closing(&ended) {
            self.send(event).await?;
        }
        Ok(())
    }

    async fn fail(&mut self, refusal: &Refusal) -> Result<(), Over> {
        if self.teller.dialect == Dialect::Trtllm {
            // What writes the stream dies of it, and the connection goes.
            let _ = self.frames.send(Err(BreakOff)).await;
            return Err(Over);
        }
        for event in self.teller.error(refusal) {
            self.send(event).await?;
        }
        Err(Over)
    }
}
