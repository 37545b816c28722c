//! Answers to clients: the one place where a fault becomes bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use baton_core::fault::{Fault, Shape};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};

use super::client::{Line, Phase};
use crate::clock::Clock;
use crate::drive::fan::FanRelay;
use crate::relay::{Relay, RelayError};

pub const ERROR_CODE: HeaderName = HeaderName::from_static("x-smg-error-code");
pub const OK: u16 = 200;
pub const NO_CONTENT: u16 = 204;
/// Where Anthropic's SDKs read the id of a request, and where AIBrix's gateway tells it.
pub const AIBRIX_ID: HeaderName = HeaderName::from_static("request-id");
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a client gets: bytes that are there, or a decode's bytes as they come.
pub enum AnswerBody {
    Full(Option<Bytes>),
    Relay(Box<Relay>),
    /// Several decodes' streams as one.
    Fan(Box<FanRelay>),
}

impl AnswerBody {
    pub fn text(text: impl Into<Bytes>) -> AnswerBody {
        AnswerBody::Full(Some(text.into()).filter(|b| !b.is_empty()))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match &mut *self {
            AnswerBody::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            AnswerBody::Relay(relay) => relay.poll_piece(cx).map(|p| p.map(|r| r.map(Frame::data))),
            AnswerBody::Fan(fan) => fan.poll_piece(cx).map(|p| p.map(|b| Ok(Frame::data(b)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Full(bytes) => bytes.is_none(),
            AnswerBody::Relay(relay) => relay.is_over(),
            AnswerBody::Fan(fan) => fan.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            AnswerBody::Relay(relay) => relay.left().map_or_else(SizeHint::default, SizeHint::with_exact),
            AnswerBody::Fan(_) => SizeHint::default(),
        }
    }
}

/// The body of an answer on a client's connection; marks the connection idle once it is through.
pub struct Served {
    body: AnswerBody,
    line: Arc<Line>,
    clock: Clock,
}

impl Served {
    pub fn new(body: AnswerBody, line: Arc<Line>, clock: Clock) -> Served {
        line.work(Phase::Answering);
        Served { body, line, clock }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.line.turn(Phase::Idle, self.clock.now());
    }
}

impl Body for Served {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pub type Reply = Response<AnswerBody>;

/// A status from a number that core decided on.
pub fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The answer that a fault knows.
pub fn fault(fault: &Fault, shape: Shape, request_id: &str) -> Reply {
    let answer = fault.answer();
    let mut reply = json(answer.status, answer.body(shape, request_id));
    let headers = reply.headers_mut();
    if let Ok(code) = HeaderValue::from_str(&answer.code) {
        headers.insert(ERROR_CODE, code);
    }
    let set = [
        (header::RETRY_AFTER, answer.retry_after.as_deref()),
        (header::ALLOW, answer.allow),
        (header::WWW_AUTHENTICATE, answer.authenticate),
    ];
    for (name, value) in set {
        if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
            headers.insert(name, value);
        }
    }
    if let Some((name, value)) = &answer.flag {
        // A model's name may not fit into a header.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
        if let Ok(id) = HeaderValue::from_str(request_id) {
            headers.insert(AIBRIX_ID, id);
        }
    }
    if matches!(fault, Fault::BodyStalled | Fault::BodyBroken | Fault::BodyTooLarge { .. }) {
        // The rest of the body will not be read, so the connection cannot serve again.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    id(headers, request_id, shape);
    reply
}

/// Names the request, as the API's own clients look for it too.
pub fn id(headers: &mut HeaderMap, request_id: &str, shape: Shape) {
    let Ok(value) = HeaderValue::from_str(request_id) else { return };
    if shape == Shape::Anthropic {
        headers.insert(AIBRIX_ID, value.clone());
    }
    headers.insert(REQUEST_ID, value);
}

pub fn json(code: u16, body: String) -> Reply {
    with_type(code, body, HeaderValue::from_static("application/json"))
}

pub fn text(code: u16, body: &'static str) -> Reply {
    with_type(code, body, HeaderValue::from_static("text/plain; charset=utf-8"))
}

fn with_type(code: u16, body: impl Into<Bytes>, kind: HeaderValue) -> Reply {
    let mut reply = Response::new(AnswerBody::text(body));
    *reply.status_mut() = status(code);
    reply.headers_mut().insert(header::CONTENT_TYPE, kind);
    reply
}
