//! A request that falls into parts: one exchange a part, all in the task of the client's connection.
//!
//! The parts start together and fail together: the first fault is the client's, and dropping the other
//! exchanges ends their legs. How a request is cut and how answers are joined is `core::fan`'s.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use baton_core::ask::{Api, Ask};
use baton_core::body::Envelope;
use baton_core::exchange::{Event, Failure, Leg, Outcome};
use baton_core::fan::{self, plain, stream::Join};
use baton_core::fault::{Fault, LegName};
use baton_core::record::Record;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, header};

use super::{Drive, Entry, Turn};
use crate::edge::answer::{self, AnswerBody, Reply};
use crate::edge::http::{Desk, name_workers, outward};
use crate::entrance::Permit;
use crate::gateway::Gateway;
use crate::lane::Lane;
use crate::upstream::Head;

/// Boxed: a drive runs as its own future and outlives it.
type Part = Box<Drive>;
type Starting = Pin<Box<dyn Future<Output = (Box<Drive>, Turn)> + Send>>;

/// The request as the client knows it, told once at its end.
struct Whole {
    gateway: Arc<Gateway>,
    lane: Arc<Lane>,
    record: Record,
    settled: bool,
    _permit: Option<Permit>,
}

/// Serves the request as `parts` exchanges.
pub async fn run(desk: &Desk, entry: Entry, parts: u32) -> Reply {
    let (gateway, lane) = (desk.gateway.clone(), desk.lane.clone());
    let Entry { ask, body, forward, record, terms, permit, line: _ } = entry;
    let api = ask.api;
    let mut whole = Whole { gateway, lane, record, settled: false, _permit: permit };
    if parts > fan::PARTS_MAX {
        return whole.fail(api, &Fault::InvalidValue { param: "n", message: "n is larger than 128." });
    }
    let mut drives = Vec::with_capacity(parts as usize);
    for index in 0..parts {
        let text = fan::part(&body, &ask, index);
        let Ok(body) = Envelope::parse(text, &whole.gateway.rules.body) else { continue };
        let ask = match Ask::read(api, &body) {
            Ok(part) => Ask { names_peers: ask.names_peers, ..part },
            Err(fault) => return whole.fail(api, &fault),
        };
        let record = Record {
            part: true,
            request_id: format!("{}-{index}", whole.record.request_id),
            ..whole.record.clone()
        };
        let entry = Entry { ask, body, forward: forward.clone(), record, terms, permit: None, line: None };
        drives.push(Drive::new(whole.gateway.clone(), whole.lane.clone(), entry));
    }
    match start(drives).await {
        Err(fault) => whole.fail(api, &fault),
        Ok(started) => whole.answer(api, started).await,
    }
}

/// All parts' heads, or the first fault. Dropping the rest ends their legs.
async fn start(drives: Vec<Part>) -> Result<Vec<(Box<Drive>, Head)>, Fault> {
    let mut starting: Vec<Option<Starting>> =
        drives.into_iter().map(|d| Some(Box::pin(d.run()) as Starting)).collect();
    let mut started: Vec<Option<(Box<Drive>, Head)>> = starting.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (slot, done) in starting.iter_mut().zip(&mut started) {
            let Some(part) = slot else { continue };
            if let Poll::Ready((drive, turn)) = part.as_mut().poll(cx) {
                *slot = None;
                match turn {
                    Turn::Start(head) => *done = Some((drive, head)),
                    Turn::Fail(fault) => return Poll::Ready(Err(fault)),
                    Turn::Tell(_) => return Poll::Ready(Err(ended_early())),
                }
            }
        }
        if starting.iter().all(Option::is_none) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    Ok(started.into_iter().flatten().collect())
}

/// Parts are joined from what decodes answer; an engine that can do without one is not asked in parts.
fn ended_early() -> Fault {
    Fault::Broken { leg: LegName::Prefill, cause: "one sample ended with its first token".to_owned() }
}

impl Whole {
    fn fail(&mut self, api: Api, fault: &Fault) -> Reply {
        self.record.blame(fault);
        self.record.status = fault.status();
        let id = self.record.request_id.clone();
        self.settle(Outcome::Failed);
        answer::fault(fault, api.shape(), &id)
    }

    fn settle(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        self.record.outcome = outcome;
        self.record.moments.ended = self.lane.clock.now();
        self.gateway.telemetry.record(&self.record);
    }

    async fn answer(mut self, api: Api, started: Vec<(Box<Drive>, Head)>) -> Reply {
        let mut headers = http::HeaderMap::new();
        let mut drives = Vec::with_capacity(started.len());
        for (i, (drive, head)) in started.into_iter().enumerate() {
            if i == 0 {
                self.record.status = head.status;
                (self.record.pd, self.record.engine) = (drive.record.pd, drive.record.engine);
                headers = outward(head.headers);
                name_workers(&mut headers, &drive.record);
            }
            drives.push(drive);
        }
        answer::id(&mut headers, &self.record.request_id, api.shape());
        let status = self.record.status;
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let body = if kind.starts_with(b"text/event-stream") {
            AnswerBody::Fan(Box::new(FanRelay::new(api, drives, self)))
        } else {
            match self.collect(api, drives).await {
                Ok(joined) => {
                    self.record.answer_bytes = joined.len() as u64;
                    self.record.usage = baton_core::sse::usage_of_answer(&joined);
                    self.settle(Outcome::Served);
                    AnswerBody::text(joined)
                }
                Err(fault) => return self.fail(api, &fault),
            }
        };
        let mut reply = Response::new(body);
        *reply.status_mut() = answer::status(status);
        *reply.headers_mut() = headers;
        reply
    }

    /// The plain answers of all parts, joined.
    async fn collect(&mut self, api: Api, mut drives: Vec<Part>) -> Result<Bytes, Fault> {
        let max = self.gateway.rules.answer.max_bytes;
        let mut answers = vec![BytesMut::new(); drives.len()];
        let mut open = vec![true; drives.len()];
        poll_fn(|cx| {
            for ((drive, answer), open) in drives.iter_mut().zip(&mut answers).zip(&mut open) {
                while *open {
                    match poll_part(drive, cx) {
                        Poll::Pending => break,
                        Poll::Ready(Ok(Some(piece))) if answer.len() + piece.len() <= max => {
                            answer.extend_from_slice(&piece)
                        }
                        Poll::Ready(Ok(Some(_))) => {
                            return Poll::Ready(Err(broken("a part's answer is too long")));
                        }
                        Poll::Ready(Ok(None)) => *open = false,
                        Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                    }
                }
            }
            if open.contains(&true) { Poll::Pending } else { Poll::Ready(Ok(())) }
        })
        .await?;
        self.record.moments.first_byte = Some(self.lane.clock.now());
        let answers: Vec<Bytes> = answers.into_iter().map(BytesMut::freeze).collect();
        plain::join(api, &answers, &self.gateway.rules.answer).map_err(|why| broken(why.0))
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if !self.settled {
            self.record.status = Fault::ClientGone.status();
            self.record.blame(&Fault::ClientGone);
            self.settle(Outcome::ClientGone);
        }
    }
}

fn broken(cause: &str) -> Fault {
    Fault::Broken { leg: LegName::Decode, cause: cause.to_owned() }
}

/// The next piece of a part's body; at its end the part is settled.
fn poll_part(drive: &mut Drive, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Fault>> {
    match drive.poll_decode(cx) {
        Poll::Ready(Some(Ok(piece))) => {
            drive.record.answer_bytes += piece.len() as u64;
            Poll::Ready(Ok(Some(piece)))
        }
        Poll::Ready(Some(Err(lost))) => {
            let fault = broken(&lost.cause);
            let event = Event::Failed(Failure { leg: Leg::Decode, fault: fault.clone(), delivered: true });
            Poll::Ready(Err(drive.relay_over(event).unwrap_or(fault)))
        }
        Poll::Ready(None) => {
            drive.relay_over(Event::Ended(Leg::Decode));
            Poll::Ready(Ok(None))
        }
        Poll::Pending => match drive.poll_event(cx) {
            Poll::Ready(event) => {
                Poll::Ready(Err(drive.relay_over(event).unwrap_or_else(|| broken("cut off"))))
            }
            Poll::Pending => Poll::Pending,
        },
    }
}

/// Several parts' event streams on their way to the client as one.
pub struct FanRelay {
    whole: Whole,
    api: Api,
    join: Join,
    /// Parts whose stream has ended are gone.
    drives: Vec<Option<Box<Drive>>>,
    over: bool,
}

impl FanRelay {
    fn new(api: Api, drives: Vec<Part>, whole: Whole) -> FanRelay {
        let join = Join::new(api, drives.len() as u32, whole.gateway.rules.answer);
        FanRelay { whole, api, join, drives: drives.into_iter().map(Some).collect(), over: false }
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.over {
            return Poll::Ready(None);
        }
        let mut out = BytesMut::new();
        let mut all_over = false;
        for part in 0..self.drives.len() as u32 {
            let Some(drive) = self.drives[part as usize].as_mut() else { continue };
            // One piece of each part a turn: a fast part does not hold up the others.
            match poll_part(drive, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(Some(piece))) => {
                    if self.join.feed(part, &piece, &mut out).is_err() {
                        return Poll::Ready(Some(self.cut(out, None)));
                    }
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(Ok(None)) => {
                    self.drives[part as usize] = None;
                    all_over |= self.join.ended(part);
                }
                Poll::Ready(Err(fault)) => return Poll::Ready(Some(self.cut(out, Some(&fault)))),
            }
        }
        if all_over {
            self.over = true;
            self.join.end(&mut out);
            self.whole.settle(Outcome::Served);
        }
        if out.is_empty() {
            return Poll::Pending;
        }
        let now = self.whole.lane.clock.now();
        self.whole.record.moments.first_byte.get_or_insert(now);
        self.whole.record.answer_bytes += out.len() as u64;
        Poll::Ready(Some(out.freeze()))
    }

    /// Ends the stream with the fault, or with the error that a part has just reported itself.
    fn cut(&mut self, mut out: BytesMut, fault: Option<&Fault>) -> Bytes {
        self.over = true;
        self.drives.clear();
        match fault {
            Some(fault) => {
                self.whole.record.blame(fault);
                out.extend_from_slice(fault.answer().events(self.api.shape()).as_bytes());
            }
            None => out.extend_from_slice(b"data: [DONE]\n\n"),
        }
        self.whole.settle(Outcome::Cut);
        out.freeze()
    }
}
