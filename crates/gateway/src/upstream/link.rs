//! One connection to a worker: who moves its bytes, and when.
//!
//! It is looked at only after its [`Bell`] rang. What hyper's two halves tell each other stays inside the
//! look: the promise of an answer and the body are filled by the connection alone, which is polled right
//! before them, so they need no waker of their own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use baton_core::time::Instant;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;

use super::bell::Bell;
use super::leg::cause;
use super::stream::Stream;
use super::{LegBody, Lost};

/// A request's answer, as far as its head.
pub(super) type Promise = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

/// One connection to a worker, with the machine that moves its bytes.
pub struct Link {
    send: SendRequest<LegBody>,
    conn: Option<Connection<TokioIo<Stream>, LegBody>>,
    bell: Arc<Bell>,
    /// The bell as a waker.
    ringer: Waker,
    /// The task that the bell tells.
    told: Waker,
    pub(super) reused: bool,
    /// When the connection stood.
    pub(super) opened: Instant,
}

impl Link {
    pub(super) fn new(
        send: SendRequest<LegBody>,
        conn: Connection<TokioIo<Stream>, LegBody>,
        bell: Arc<Bell>,
    ) -> Link {
        let ringer = Waker::from(bell.clone());
        Link {
            send,
            conn: Some(conn),
            bell,
            ringer,
            told: Waker::noop().clone(),
            reused: false,
            opened: Instant::ZERO,
        }
    }

    /// Hands a request over to the connection.
    pub(super) fn ask(&mut self, request: Request<LegBody>) -> Promise {
        self.bell.listen();
        Box::pin(self.send.send_request(request))
    }

    /// The head of the answer.
    pub(super) fn poll_head(
        &mut self,
        promise: &mut Promise,
        cx: &mut Context<'_>,
    ) -> Poll<hyper::Result<Response<Incoming>>> {
        self.tell(cx);
        if !self.bell.has_rung() {
            return Poll::Pending;
        }
        self.bell.hold();
        self.turn();
        let head = promise.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.bell.release(head, cx)
    }

    /// The next piece of an answer's body that is not empty.
    pub(super) fn poll_body(
        &mut self,
        incoming: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Lost>>> {
        self.tell(cx);
        self.bell.hold();
        if self.bell.has_rung() {
            self.turn();
        }
        let mut came = piece(incoming);
        // Asking for a piece can be what the connection waited for.
        if came.is_pending() && self.bell.has_rung() {
            self.turn();
            came = piece(incoming);
        }
        if incoming.is_end_stream() {
            // What rang was the last piece being taken, and nothing comes behind it.
            self.bell.answer();
        }
        self.bell.release(came, cx)
    }

    /// Moves bytes.
    fn turn(&mut self) {
        self.bell.answer();
        if let Some(conn) = self.conn.as_mut()
            && Pin::new(conn).poll(&mut Context::from_waker(&self.ringer)).is_ready()
        {
            self.conn = None;
        }
    }

    fn tell(&mut self, cx: &Context<'_>) {
        if !self.told.will_wake(cx.waker()) {
            self.told.clone_from(cx.waker());
            self.bell.tell(&self.told);
        }
    }

    /// Has the worker said anything since the request?
    pub(super) fn has_heard(&self) -> bool {
        self.bell.has_heard()
    }

    /// Is it open and ready for a request? From now on it tells nobody.
    pub(super) fn rest(&mut self) -> bool {
        self.tell(&Context::from_waker(Waker::noop()));
        self.is_fit()
    }

    /// Open, and ready for a request?
    pub(super) fn is_fit(&mut self) -> bool {
        if self.bell.has_rung() || !self.send.is_ready() {
            self.turn();
        }
        self.conn.is_some() && self.send.is_ready()
    }
}

/// What has come of a body. Trailers say nothing that a client of these APIs reads.
pub(super) fn piece(incoming: &mut Incoming) -> Poll<Option<Result<Bytes, Lost>>> {
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        match Pin::new(&mut *incoming).poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(data))),
                Err(_) => {}
            },
            Poll::Ready(Some(Err(e))) => return Poll::Ready(Some(Err(Lost::after(cause(&e))))),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => return Poll::Pending,
        }
    }
}
