//! One leg: a request sent to a worker, its head, its body.
//!
//! A leg is polled, not spawned. It says what happened in [`LegEvent`]s; how much of the body it reads by
//! itself depends on what is wanted of it ([`Want`]). Dropping it closes its connection.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use baton_core::abort::Gist;
use baton_core::exchange::{self, Course};
use baton_core::fleet::Seat;
use baton_core::time::Instant;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::dial::{Address, Route};
use super::link::{Link, Promise};
use super::pool::Pool;
use super::{LegBody, Lost};
use crate::clock::Clock;
use crate::edge::answer::REQUEST_ID;

/// Which rank of the engine is to serve (vLLM 0.33; SGLang takes it too).
const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// How long the body of an error answer may take; after that its status has to do.
const ERROR_BODY_WAIT: Duration = Duration::from_secs(2);

/// A reused connection that dies unheard later than this after the request was sent did not die of its age.
const STALE_WITHIN: Duration = Duration::from_secs(1);

/// How much of the body of an error answer is kept, in bytes.
const ERROR_BODY_MAX: usize = 64 << 10;

/// What is sent, apart from what the worker's [`Address`] adds. Kept until an answer begins, because a
/// reused connection may turn out to be dead before anything is written.
#[derive(Clone, Debug)]
pub struct LegRequest {
    pub route: Route,
    /// The id that both engines log.
    pub id: Option<HeaderValue>,
    /// The rank of the engine that is to serve.
    pub rank: Option<u32>,
    /// Headers of the client that the engine gets.
    pub forward: Vec<(HeaderName, HeaderValue)>,
    pub body: LegBody,
    /// Not on a connection that has served before.
    pub fresh: bool,
}

impl LegRequest {
    pub(crate) fn to(&self, address: &Address) -> Request<LegBody> {
        let mut headers = HeaderMap::with_capacity(8 + self.forward.len());
        headers.insert(header::HOST, address.host.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(self.forward.iter().cloned());
        if let Some(id) = &self.id {
            headers.insert(REQUEST_ID, id.clone());
        }
        if let Some(rank) = self.rank {
            headers.insert(DATA_PARALLEL_RANK, HeaderValue::from(rank));
        }
        if let Some(own) = &address.authorization {
            headers.insert(header::AUTHORIZATION, own.clone());
        }
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = address.route(self.route).clone();
        *request.headers_mut() = headers;
        request
    }
}

/// What is done with the body of a good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Collected, up to so many bytes.
    Whole { max_bytes: usize },
    /// Read and thrown away.
    Drained,
    /// Left for [`Leg::poll_body`].
    Relayed,
}

impl Want {
    /// Of a leg of such a plan.
    pub fn of(leg: exchange::Leg, course: &Course, max_bytes: usize) -> Want {
        match leg {
            exchange::Leg::Decode => Want::Relayed,
            exchange::Leg::Prefill if course.awaits_answer() => Want::Whole { max_bytes },
            exchange::Leg::Prefill => Want::Drained,
        }
    }
}

/// The head of a good answer.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    pub headers: HeaderMap,
}

/// What happened on a leg.
#[derive(Debug)]
pub enum LegEvent {
    /// A 2xx head (not told for [`Want::Whole`]).
    Head(Head),
    /// The whole body of a 2xx answer ([`Want::Whole`]).
    Answer(Bytes),
    /// The body has been drained ([`Want::Drained`]).
    Ended(Gist),
    /// An answer that is not 2xx, with its body as far as it came.
    Refused { status: u16, body: Bytes, retry_after: Option<String> },
    /// No head came.
    Unreachable(Lost),
    /// No head came, and no byte of one: the connection had served before and was closed as soon as it was to serve
    /// again. The worker may have read the request.
    Stale(Lost),
    /// The head came, the body did not end as it should.
    Broken(Lost),
}

/// Most bytes of a body that are read before they can go to the client, but for a last piece.
const AHEAD_MAX: usize = 64 << 10;

type Dial = Pin<Box<dyn Future<Output = Result<Box<Link>, Lost>> + Send>>;

enum State {
    /// A connection is being made.
    Dialing(Dial),
    /// The request is on its way, or the worker is thinking.
    Asking(Box<Link>, Promise),
    /// A good answer whose body is being read.
    Reading(Reader, BytesMut),
    /// A good answer whose body is read and thrown away.
    Draining(Reader, Gist),
    /// A bad answer whose body is being read.
    Refusing {
        reader: Reader,
        told: BytesMut,
        status: u16,
        retry_after: Option<String>,
        until: Pin<Box<Sleep>>,
    },
    /// A good answer whose body is left to the relay.
    Open(Reader),
    Over,
}

/// One leg in flight.
pub struct Leg {
    state: State,
    want: Want,
    slot: u32,
    pool: Arc<Pool>,
    clock: Clock,
    /// Until an answer has begun.
    request: Option<Box<(LegRequest, Arc<Address>)>>,
    since: Option<Instant>,
    asked: Instant,
    /// When the last piece of a relayed body came.
    heard: Option<Instant>,
    /// What came of a relayed body before anybody asked for it, and whether that was all.
    ahead: (VecDeque<Bytes>, bool),
}

impl Leg {
    /// Sends on an idle connection, or begins to make one. Nothing moves until the leg is polled.
    pub fn send(pool: &Arc<Pool>, clock: Clock, seat: &Seat, request: LegRequest, want: Want) -> Leg {
        let mut leg = Leg {
            state: State::Over,
            want,
            slot: seat.slot,
            pool: pool.clone(),
            clock,
            request: None,
            since: None,
            asked: clock.now(),
            heard: None,
            ahead: (VecDeque::new(), false),
        };
        match pool.address(seat) {
            Err(lost) => leg.state = State::Dialing(Box::pin(std::future::ready(Err(lost)))),
            Ok(address) => {
                let idle = if request.fresh { None } else { pool.take(seat.slot, clock.now()) };
                leg.request = Some(Box::new((request, address)));
                match idle {
                    Some(link) => leg.ask(link),
                    None => leg.dial(),
                }
            }
        }
        leg
    }

    fn dial(&mut self) {
        let Some((_, address)) = self.request.as_deref() else { return };
        let (address, timeout) = (address.clone(), self.pool.connect_timeout());
        self.state = State::Dialing(Box::pin(async move { address.connect(timeout).await.map(Box::new) }));
    }

    fn ask(&mut self, mut link: Box<Link>) {
        let Some((request, address)) = self.request.as_deref() else { return };
        let promise = link.ask(request.to(address));
        self.asked = self.clock.now();
        self.state = State::Asking(link, promise);
    }

    /// Since when the worker's process has been this one, as far as its connection tells: a connection does
    /// not outlive the process at its other end. `None` while there is no answer.
    pub fn same_since(&self) -> Option<Instant> {
        self.since
    }

    /// The next event. Not to be called again after a final one, nor for the body of a relayed leg.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<LegEvent> {
        loop {
            match &mut self.state {
                State::Dialing(dial) => match ready!(dial.as_mut().poll(cx)) {
                    Ok(mut link) => {
                        link.opened = self.clock.now();
                        self.ask(link);
                    }
                    Err(lost) => {
                        self.state = State::Over;
                        return Poll::Ready(LegEvent::Unreachable(lost));
                    }
                },
                State::Asking(link, promise) => {
                    let answer = ready!(link.poll_head(promise, cx));
                    if let Some(event) = self.answered(answer) {
                        return Poll::Ready(event);
                    }
                }
                State::Reading(reader, kept) => match ready!(reader.poll(cx)) {
                    Some(Ok(bytes)) => {
                        if let Want::Whole { max_bytes } = self.want
                            && kept.len() + bytes.len() > max_bytes
                        {
                            self.state = State::Over;
                            let cause = format!("the answer is larger than {max_bytes} bytes");
                            return Poll::Ready(LegEvent::Broken(Lost::after(cause)));
                        }
                        kept.extend_from_slice(&bytes);
                    }
                    Some(Err(lost)) => {
                        self.state = State::Over;
                        return Poll::Ready(LegEvent::Broken(lost));
                    }
                    None => {
                        let whole = std::mem::take(kept).freeze();
                        self.finish();
                        return Poll::Ready(LegEvent::Answer(whole));
                    }
                },
                State::Draining(reader, gist) => match ready!(reader.poll(cx)) {
                    Some(Ok(bytes)) => gist.feed(&bytes),
                    Some(Err(lost)) => {
                        self.state = State::Over;
                        return Poll::Ready(LegEvent::Broken(lost));
                    }
                    None => {
                        let gist = *gist;
                        self.finish();
                        return Poll::Ready(LegEvent::Ended(gist));
                    }
                },
                State::Refusing { .. } => return self.poll_refusal(cx),
                State::Open(_) | State::Over => return Poll::Pending,
            }
        }
    }

    /// A reused connection may have been closed by the worker in the same moment. A request of which nothing was written
    /// goes out on a new one; whether one that was written had been read nobody knows, and it is told.
    fn answered(&mut self, answer: hyper::Result<Response<Incoming>>) -> Option<LegEvent> {
        let State::Asking(link, _) = std::mem::replace(&mut self.state, State::Over) else { return None };
        let e = match answer {
            Ok(response) => return self.opened(link, response),
            Err(e) => e,
        };
        let old = link.reused && !link.has_heard();
        // Cancelled: hyper gave the request back without having written any of it.
        if old && e.is_canceled() {
            self.pool.note_resend();
            self.dial();
            return None;
        }
        let lost = Lost { cause: cause(&e), delivered: !e.is_canceled(), late: false };
        // One that lived on for a while did not die of its age.
        let at_once = self.clock.now().since(self.asked) <= STALE_WITHIN;
        Some(if old && at_once && !e.is_timeout() {
            LegEvent::Stale(lost)
        } else {
            LegEvent::Unreachable(lost)
        })
    }

    fn opened(&mut self, link: Box<Link>, response: Response<Incoming>) -> Option<LegEvent> {
        self.request = None;
        self.since = Some(link.opened);
        let (parts, incoming) = response.into_parts();
        let reader = Reader { incoming, link };
        if !parts.status.is_success() {
            let retry_after =
                parts.headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()).map(str::to_owned);
            let until = Box::pin(tokio::time::sleep(ERROR_BODY_WAIT));
            let status = parts.status.as_u16();
            self.state = State::Refusing { reader, told: BytesMut::new(), status, retry_after, until };
            return None;
        }
        let head = Head { status: parts.status.as_u16(), headers: parts.headers };
        match self.want {
            Want::Whole { .. } => {
                self.state = State::Reading(reader, BytesMut::new());
                None
            }
            Want::Drained => {
                let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
                self.state = State::Draining(reader, Gist::of(kind));
                Some(LegEvent::Head(head))
            }
            Want::Relayed => {
                self.state = State::Open(reader);
                Some(LegEvent::Head(head))
            }
        }
    }

    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<LegEvent> {
        let State::Refusing { reader, told, status, retry_after, until } = &mut self.state else {
            return Poll::Pending;
        };
        let whole = loop {
            match reader.poll(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    let room = ERROR_BODY_MAX.saturating_sub(told.len());
                    told.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    if told.len() >= ERROR_BODY_MAX {
                        break false;
                    }
                }
                Poll::Ready(None) => break true,
                Poll::Ready(Some(Err(_))) => break false,
                Poll::Pending if until.as_mut().poll(cx).is_ready() => break false,
                Poll::Pending => return Poll::Pending,
            }
        };
        let event = LegEvent::Refused {
            status: *status,
            body: std::mem::take(told).freeze(),
            retry_after: retry_after.take(),
        };
        if whole {
            self.finish();
        } else {
            self.state = State::Over;
        }
        Poll::Ready(event)
    }

    /// Reads a little of a body that is to be relayed later, so that a worker that goes away meanwhile is noticed.
    /// Ready if it does.
    pub fn read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<LegEvent> {
        let State::Open(reader) = &mut self.state else { return Poll::Pending };
        let (pieces, ended) = &mut self.ahead;
        let mut room = AHEAD_MAX.saturating_sub(pieces.iter().map(Bytes::len).sum());
        while room > 0 && !*ended {
            match ready!(reader.poll(cx)) {
                Some(Ok(piece)) => {
                    room = room.saturating_sub(piece.len());
                    pieces.push_back(piece);
                }
                Some(Err(lost)) => {
                    self.state = State::Over;
                    return Poll::Ready(LegEvent::Broken(lost));
                }
                None => *ended = true,
            }
        }
        Poll::Pending
    }

    /// The next piece of a relayed body; `None` at its end.
    pub fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>> {
        let State::Open(reader) = &mut self.state else { return Poll::Ready(None) };
        let piece = match (self.ahead.0.pop_front(), self.ahead.1) {
            (Some(piece), _) => Some(Ok(piece)),
            (None, true) => None,
            (None, false) => ready!(reader.poll(cx)),
        };
        match &piece {
            None => self.finish(),
            Some(Err(_)) => self.state = State::Over,
            Some(Ok(_)) => self.heard = Some(self.clock.now()),
        }
        Poll::Ready(piece)
    }

    /// When the last piece of a relayed body came.
    pub fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// The body has ended: its connection may serve again.
    fn finish(&mut self) {
        let over = std::mem::replace(&mut self.state, State::Over);
        if let State::Reading(reader, _)
        | State::Draining(reader, _)
        | State::Open(reader)
        | State::Refusing { reader, .. } = over
        {
            self.pool.give(self.slot, reader.link, self.clock.now());
        }
    }
}

/// A body and the connection that brings it.
struct Reader {
    incoming: Incoming,
    link: Box<Link>,
}

impl Reader {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>> {
        self.link.poll_body(&mut self.incoming, cx)
    }
}

/// The innermost words of an error: those that name the system's reason.
pub(super) fn cause(e: &hyper::Error) -> String {
    let mut deepest: &dyn std::error::Error = e;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let (outer, inner) = (e.to_string(), deepest.to_string());
    if outer == inner { outer } else { format!("{outer}: {inner}") }
}
