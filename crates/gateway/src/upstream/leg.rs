//! One leg: a request sent to a worker, its head, its body.
//!
//! A leg is polled, not spawned. It says what happened in [`LegEvent`]s; how much of the body it reads by
//! itself depends on what is wanted of it ([`Want`]). Dropping it closes its connection.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use baton_core::fleet::Seat;
use baton_core::time::Instant;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, header, uri::PathAndQuery};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::pool::{Link, Pool};
use super::{LegBody, Lost};
use crate::clock::Clock;

/// How long the body of an error answer may take; after that its status has to do.
const ERROR_BODY_WAIT: Duration = Duration::from_secs(2);

/// What is sent.
#[derive(Clone, Debug)]
pub struct LegRequest {
    pub method: Method,
    pub path: PathAndQuery,
    pub headers: HeaderMap,
    pub body: LegBody,
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
    Ended,
    /// An answer that is not 2xx, with its body as far as it came.
    Refused { status: u16, body: Bytes, retry_after: Option<String> },
    /// No head came.
    Unreachable(Lost),
    /// The head came, the body did not end as it should.
    Broken(Lost),
}

type Opening = Pin<Box<dyn Future<Output = Result<(Response<Incoming>, Box<Link>), Lost>> + Send>>;

enum State {
    Opening(Opening),
    /// A good answer whose body is being read.
    Reading(Reader, BytesMut),
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
    error_max_bytes: usize,
    since: Option<Instant>,
}

impl Leg {
    /// Begins to send. Nothing moves until the leg is polled.
    pub fn send(pool: &Arc<Pool>, clock: Clock, seat: &Seat, request: LegRequest, want: Want) -> Leg {
        let opening = open(pool.clone(), clock, seat.clone(), request);
        let state = State::Opening(Box::pin(opening));
        Leg {
            state,
            want,
            slot: seat.slot,
            pool: pool.clone(),
            clock,
            error_max_bytes: 64 << 10,
            since: None,
        }
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
                State::Opening(opening) => {
                    let opened = ready!(opening.as_mut().poll(cx));
                    if let Some(event) = self.opened(opened) {
                        return Poll::Ready(event);
                    }
                }
                State::Reading(reader, kept) => match ready!(reader.poll(cx)) {
                    Some(Ok(bytes)) => {
                        if let Want::Whole { max_bytes } = self.want {
                            if kept.len() + bytes.len() > max_bytes {
                                self.state = State::Over;
                                let cause = format!("the answer is larger than {max_bytes} bytes");
                                return Poll::Ready(LegEvent::Broken(Lost::after(cause)));
                            }
                            kept.extend_from_slice(&bytes);
                        }
                    }
                    Some(Err(lost)) => {
                        self.state = State::Over;
                        return Poll::Ready(LegEvent::Broken(lost));
                    }
                    None => {
                        let whole = std::mem::take(kept).freeze();
                        self.finish();
                        let drained = self.want == Want::Drained;
                        return Poll::Ready(if drained { LegEvent::Ended } else { LegEvent::Answer(whole) });
                    }
                },
                State::Refusing { .. } => return self.poll_refusal(cx),
                State::Open(_) | State::Over => return Poll::Pending,
            }
        }
    }

    fn opened(&mut self, opened: Result<(Response<Incoming>, Box<Link>), Lost>) -> Option<LegEvent> {
        let (response, link) = match opened {
            Ok(opened) => opened,
            Err(lost) => {
                self.state = State::Over;
                return Some(LegEvent::Unreachable(lost));
            }
        };
        self.since = Some(link.opened);
        let (parts, incoming) = response.into_parts();
        let reader = Reader { incoming, link: Some(link) };
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
                self.state = State::Reading(reader, BytesMut::new());
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
                    let room = self.error_max_bytes.saturating_sub(told.len());
                    told.extend_from_slice(&bytes[..bytes.len().min(room)]);
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

    /// The next piece of a relayed body; `None` at its end.
    pub fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>> {
        let State::Open(reader) = &mut self.state else { return Poll::Ready(None) };
        let piece = ready!(reader.poll(cx));
        match &piece {
            None => self.finish(),
            Some(Err(_)) => self.state = State::Over,
            Some(Ok(_)) => {}
        }
        Poll::Ready(piece)
    }

    /// The body has ended: its connection may serve again.
    fn finish(&mut self) {
        let over = std::mem::replace(&mut self.state, State::Over);
        if let State::Reading(reader, _) | State::Open(reader) | State::Refusing { reader, .. } = over
            && let Some(link) = reader.link
        {
            self.pool.give(self.slot, link, self.clock.now());
        }
    }
}

/// A body and the connection that brings it.
struct Reader {
    incoming: Incoming,
    link: Option<Box<Link>>,
}

impl Reader {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>> {
        loop {
            // The connection first: it is what fills the body.
            if let Some(link) = self.link.as_mut()
                && link.turn(cx).is_ready()
            {
                self.link = None;
            }
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Poll::Ready(Some(Ok(data))),
                    // Trailers say nothing that a client of these APIs reads.
                    Err(_) => {}
                },
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Some(Err(Lost::after(cause(&e))))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Sends a request on an idle connection or a new one, and waits for the head.
///
/// A reused connection may have been closed by the worker in the same moment; if it dies before a single
/// byte of an answer, the request is sent once more, on a new connection, and only then.
async fn open(
    pool: Arc<Pool>,
    clock: Clock,
    seat: Seat,
    request: LegRequest,
) -> Result<(Response<Incoming>, Box<Link>), Lost> {
    let address = pool.address(&seat)?;
    let mut headers = request.headers;
    headers.insert(header::HOST, address.host.clone());
    if let Some(own) = &address.authorization {
        headers.insert(header::AUTHORIZATION, own.clone());
    }
    let path = prefixed(&address.prefix, request.path)?;
    if let Some(link) = pool.take(seat.slot, clock.now()) {
        let mut outgoing = Request::new(request.body.clone());
        *outgoing.method_mut() = request.method.clone();
        *outgoing.uri_mut() = path.clone().into();
        *outgoing.headers_mut() = headers.clone();
        match exchange(link, outgoing).await {
            Err((_, true)) => pool.note_resend(),
            Err((lost, false)) => return Err(lost),
            Ok(opened) => return Ok(opened),
        }
    }
    let mut link = Box::new(address.connect(pool.connect_timeout()).await?);
    link.opened = clock.now();
    let mut outgoing = Request::new(request.body);
    *outgoing.method_mut() = request.method;
    *outgoing.uri_mut() = path.into();
    *outgoing.headers_mut() = headers;
    exchange(link, outgoing).await.map_err(|(lost, _)| lost)
}

/// One request on one connection. The error says whether the connection was a reused one that died unheard.
async fn exchange(
    mut link: Box<Link>,
    request: Request<LegBody>,
) -> Result<(Response<Incoming>, Box<Link>), (Lost, bool)> {
    link.listen();
    let mut head = std::pin::pin!(link.send.send_request(request));
    let answer = poll_fn(|cx| {
        let ended = link.turn(cx).is_ready();
        match head.as_mut().poll(cx) {
            Poll::Pending if ended => head.as_mut().poll(cx),
            other => other,
        }
    })
    .await;
    match answer {
        Ok(response) => Ok((response, link)),
        Err(e) => {
            let unheard = !link.heard();
            let delivered = !e.is_canceled();
            let lost = Lost { cause: cause(&e), delivered };
            Err((lost, link.reused && unheard && !e.is_timeout()))
        }
    }
}

fn prefixed(prefix: &str, path: PathAndQuery) -> Result<PathAndQuery, Lost> {
    if prefix.is_empty() {
        return Ok(path);
    }
    PathAndQuery::try_from(format!("{prefix}{path}")).map_err(Lost::before)
}

/// The innermost words of an error: those that name the system's reason.
fn cause(e: &hyper::Error) -> String {
    let mut deepest: &dyn std::error::Error = e;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let (outer, inner) = (e.to_string(), deepest.to_string());
    if outer == inner { outer } else { format!("{outer}: {inner}") }
}
