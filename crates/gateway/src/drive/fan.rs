//! A request that falls into parts: one exchange a part, all in the task of the client's connection.
//!
//! The parts start together and fail together: the first fault is the client's, and dropping the other
//! exchanges ends their legs. How a request is cut and how answers are joined is `core::fan`'s.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use baton_core::ask::{Api, Ask};
use baton_core::body::Envelope;
use baton_core::exchange::{Event, Failure, Leg, Outcome};
use baton_core::fan::gather::{Gather, Next, Said};
use baton_core::fan::stream::{Join, Over};
use baton_core::fan::{self, plain};
use baton_core::fault::{Fault, LegName};
use baton_core::record::Record;
use baton_core::time::Instant;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, header};

use super::{Drive, Entry, Turn};
use crate::alarm::Alarm;
use crate::edge::answer::{self, AnswerBody, Reply};
use crate::edge::client::Line;
use crate::edge::http::{Desk, outward};
use crate::edge::named;
use crate::entrance::Permit;
use crate::gateway::Gateway;
use crate::lane::Lane;
use crate::relay::{STILL_THERE, alive};
use crate::upstream::Head;

/// Boxed: a drive runs as its own future and outlives it.
type Boxed = Box<Drive>;
type Starting = Pin<Box<dyn Future<Output = (Boxed, Turn)> + Send>>;

/// A part whose answer has begun.
struct Part {
    drive: Boxed,
    /// What is there of its answer and has not been joined: all of it, if the prefill had the last word (one event
    /// stream, or one JSON object); else what came while other parts had not begun.
    ahead: VecDeque<Bytes>,
    ahead_bytes: usize,
    /// Nothing comes behind that.
    ended: bool,
}

impl Part {
    fn begun(drive: Boxed, told: Option<Bytes>) -> Part {
        Part { drive, ended: told.is_some(), ahead: told.into_iter().collect(), ahead_bytes: 0 }
    }

    /// Reads on while the client's answer cannot begin: a part that ends makes the room at a decode worker that
    /// another part of the same request may be waiting for. Ready if it fails.
    fn read_ahead(&mut self, max_bytes: usize, cx: &mut Context<'_>) -> Poll<Fault> {
        while !self.ended && self.ahead_bytes < max_bytes {
            match ready!(poll_drive(&mut self.drive, cx)) {
                Err(fault) => return Poll::Ready(fault),
                Ok(Some(piece)) => {
                    self.ahead_bytes += piece.len();
                    self.ahead.push_back(piece);
                }
                Ok(None) => self.ended = true,
            }
        }
        Poll::Pending
    }
}

/// The request as the client knows it, told once at its end.
struct Whole {
    gateway: Arc<Gateway>,
    lane: Arc<Lane>,
    record: Record,
    settled: bool,
    line: Option<Arc<Line>>,
    _permit: Option<Permit>,
}

/// Serves the request as `parts` exchanges.
pub async fn run(desk: &Desk, entry: Entry, parts: u32) -> Reply {
    let (gateway, lane) = (desk.gateway.clone(), desk.lane.clone());
    let Entry { ask, body, forward, record, routing, explains, permit, line } = entry;
    let api = ask.api;
    let mut whole = Whole { gateway, lane, record, settled: false, line, _permit: permit };
    if parts > fan::PARTS_MAX {
        return whole.fail(api, &Fault::InvalidValue { param: "n", message: "n is larger than 128." });
    }
    let mut drives = Vec::with_capacity(parts as usize);
    for index in 0..parts {
        let text = fan::part(&body, &ask, index);
        let Ok(body) = Envelope::parse(text, &whole.gateway.rules.body) else {
            let message = "The request cannot be asked for one sample at a time.".to_owned();
            return whole.fail(api, &Fault::InvalidJson { message });
        };
        let ask = match Ask::read(api, &body) {
            Ok(mut part) => {
                part.prompt.measure_by(&whole.gateway.measure);
                part.prompt.told_as(&ask.prompt);
                Ask { names_peers: ask.names_peers, hints: ask.hints, ..part }
            }
            Err(fault) => return whole.fail(api, &fault),
        };
        let record = Record {
            part: true,
            request_id: format!("{}-{index}", whole.record.request_id),
            ..whole.record.clone()
        };
        let (forward, routing) = (forward.clone(), routing.clone());
        let entry = Entry { ask, body, forward, record, routing, explains, permit: None, line: None };
        drives.push(Drive::new(whole.gateway.clone(), whole.lane.clone(), entry));
    }
    let mut gather = Gather::new(drives.len());
    let ahead = whole.gateway.rules.answer.max_bytes / drives.len().max(1);
    match start(drives, &mut gather, ahead).await {
        Err(fault) => whole.fail(api, &fault),
        Ok(started) => whole.answer(api, started, gather).await,
    }
}

/// All parts' heads, or the first fault. Dropping the rest ends their legs. Of the body of each part that has begun
/// `ahead` bytes are read meanwhile, and a last piece.
async fn start(
    drives: Vec<Boxed>,
    gather: &mut Gather,
    ahead: usize,
) -> Result<Vec<(Part, Option<Head>)>, Fault> {
    let mut starting: Vec<Option<Starting>> =
        drives.into_iter().map(|d| Some(Box::pin(d.run()) as Starting)).collect();
    let mut started: Vec<Option<(Part, Option<Head>)>> = starting.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (part, (slot, done)) in starting.iter_mut().zip(&mut started).enumerate() {
            if let Some((begun, _)) = done
                && let Poll::Ready(fault) = begun.read_ahead(ahead, cx)
            {
                gather.on(part, Said::Failed);
                return Poll::Ready(Err(fault));
            }
            let Some(starts) = slot else { continue };
            let Poll::Ready((drive, turn)) = starts.as_mut().poll(cx) else { continue };
            *slot = None;
            *done = Some(match turn {
                Turn::Start(head) => (Part::begun(drive, None), Some(head)),
                Turn::Tell(told) => (Part::begun(drive, Some(told)), None),
                Turn::Fail(fault) => {
                    gather.on(part, Said::Failed);
                    return Poll::Ready(Err(fault));
                }
            });
            if gather.on(part, Said::Begun) == Next::Begin {
                return Poll::Ready(Ok(()));
            }
            // So that its body is polled, too.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await?;
    Ok(started.into_iter().flatten().collect())
}

/// The head of the whole answer: the first one that a decode sent, else what a prefill's last word needs.
fn head_of(started: &mut [(Part, Option<Head>)], stream: bool) -> Head {
    let sent = started.iter_mut().find_map(|(_, head)| head.take());
    sent.unwrap_or_else(|| {
        let kind = if stream { "text/event-stream" } else { "application/json" };
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))].into_iter().collect();
        Head { status: answer::OK, headers }
    })
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
        self.lane.recent.keep(&self.record);
    }

    async fn answer(mut self, api: Api, mut started: Vec<(Part, Option<Head>)>, gather: Gather) -> Reply {
        // Named are the workers of the part whose head it is.
        let named = started.iter().position(|(_, head)| head.is_some()).unwrap_or(0);
        let head = head_of(&mut started, self.record.stream);
        self.record.status = head.status;
        let mut headers = outward(head.headers);
        let drives: Vec<Part> = started.into_iter().map(|(part, _)| part).collect();
        if let Some(Part { drive, .. }) = drives.get(named) {
            (self.record.pd, self.record.engine) = (drive.record.pd, drive.record.engine);
            named::workers(&mut headers, &drive.record);
            drive.explain(&mut headers);
        }
        answer::id(&mut headers, &self.record.request_id, api.shape());
        let status = self.record.status;
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let body = if kind.starts_with(b"text/event-stream") {
            AnswerBody::Fan(Box::new(FanRelay::new(api, drives, self, gather)))
        } else {
            match self.collect(api, drives, gather).await {
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
    async fn collect(&mut self, api: Api, mut drives: Vec<Part>, mut gather: Gather) -> Result<Bytes, Fault> {
        let max = self.gateway.rules.answer.max_bytes;
        let mut answers = vec![BytesMut::new(); drives.len()];
        let mut open = vec![true; drives.len()];
        poll_fn(|cx| {
            for (part, ((drive, answer), open)) in
                drives.iter_mut().zip(&mut answers).zip(&mut open).enumerate()
            {
                while *open {
                    match poll_part(drive, cx) {
                        Poll::Pending => break,
                        Poll::Ready(Ok(Some(piece))) if answer.len() + piece.len() <= max => {
                            answer.extend_from_slice(&piece)
                        }
                        Poll::Ready(Ok(Some(_))) => {
                            return Poll::Ready(Err(broken("a part's answer is too long")));
                        }
                        Poll::Ready(Ok(None)) => {
                            *open = false;
                            if gather.on(part, Said::Ended) == Next::Finish {
                                return Poll::Ready(Ok(()));
                            }
                        }
                        Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                    }
                }
            }
            Poll::Pending
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
fn poll_part(part: &mut Part, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Fault>> {
    match part.ahead.pop_front() {
        Some(piece) => Poll::Ready(Ok(Some(piece))),
        None if part.ended => Poll::Ready(Ok(None)),
        None => poll_drive(&mut part.drive, cx),
    }
}

fn poll_drive(drive: &mut Boxed, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Fault>> {
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
    gather: Gather,
    /// Parts whose stream has ended are gone.
    drives: Vec<Option<Part>>,
    /// When the client last got something, and the timer of a silence.
    heard: Instant,
    alarm: Alarm,
    /// What the stream begins with: why the first part's workers were chosen, if the client asked.
    comment: Option<Bytes>,
}

impl FanRelay {
    fn new(api: Api, drives: Vec<Part>, whole: Whole, gather: Gather) -> FanRelay {
        let join = Join::new(api, drives.len() as u32, whole.gateway.rules.answer);
        let (heard, alarm) = (whole.lane.clock.now(), Alarm::new(whole.lane.clock));
        let comment = drives.first().and_then(|part| part.drive.comment());
        let drives = drives.into_iter().map(Some).collect();
        FanRelay { whole, api, join, gather, drives, heard, alarm, comment }
    }

    pub fn is_over(&self) -> bool {
        self.gather.is_over()
    }

    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.gather.is_over() {
            return Poll::Ready(None);
        }
        if let Some(comment) = self.comment.take() {
            return Poll::Ready(Some(comment));
        }
        let mut out = BytesMut::new();
        let mut finished = false;
        for at in 0..self.drives.len() {
            let Some(drive) = self.drives[at].as_mut() else { continue };
            // One piece of each part a turn: a fast part does not hold up the others.
            match poll_part(drive, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(Some(piece))) => {
                    let fault = match self.join.feed(at as u32, &piece, &mut out) {
                        Ok(()) => {
                            cx.waker().wake_by_ref();
                            continue;
                        }
                        Err(Over::Reported) => None,
                        Err(Over::TooLong) => Some(broken("an event of its stream is too long")),
                    };
                    return Poll::Ready(Some(self.cut(at, out, fault.as_ref())));
                }
                Poll::Ready(Ok(None)) => {
                    self.drives[at] = None;
                    finished |= self.gather.on(at, Said::Ended) == Next::Finish;
                }
                Poll::Ready(Err(fault)) => return Poll::Ready(Some(self.cut(at, out, Some(&fault)))),
            }
        }
        if finished {
            self.join.end(&mut out);
            self.whole.settle(Outcome::Served);
        }
        if out.is_empty() {
            return self.poll_quiet(cx);
        }
        let now = self.whole.lane.clock.now();
        self.heard = now;
        self.whole.record.moments.first_byte.get_or_insert(now);
        self.whole.record.answer_bytes += out.len() as u64;
        Poll::Ready(Some(out.freeze()))
    }

    /// Nothing came. Events go out whole, so that a comment is never in the middle of one.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.whole.line.as_ref().is_some_and(|line| line.ask_client.swap(false, Ordering::Relaxed)) {
            return Poll::Ready(Some(Bytes::from_static(STILL_THERE)));
        }
        let Some(every) = self.whole.gateway.timeouts.keepalive else { return Poll::Pending };
        let now = self.whole.lane.clock.now();
        if self.alarm.poll(self.heard.after(every), now, cx).is_pending() {
            return Poll::Pending;
        }
        self.heard = now;
        Poll::Ready(Some(Bytes::from_static(alive(self.api.shape()))))
    }

    /// Ends the stream with the fault, or with the error that a part has just reported itself.
    fn cut(&mut self, part: usize, mut out: BytesMut, fault: Option<&Fault>) -> Bytes {
        self.gather.on(part, Said::Failed);
        self.drives.clear();
        match fault {
            Some(fault) => {
                self.whole.record.blame(fault);
                out.extend_from_slice(fault.answer().events(self.api.shape(), 0).as_bytes());
            }
            None => out.extend_from_slice(b"data: [DONE]\n\n"),
        }
        self.whole.settle(Outcome::Cut);
        out.freeze()
    }
}
