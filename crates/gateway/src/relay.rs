//! The relay: a decode's bytes to the client, as they come.
//!
//! A piece that arrives is handed on in the same turn; nothing is held back, split, joined or changed.
//! Accounting looks at the bytes in passing and can neither delay nor fail them. When the client's
//! connection does not take more, the worker's is not read: back-pressure is the absence of a buffer.
//!
//! Added to a stream, between two events only: a comment after a silence, and at a break the error in the
//! API's own form.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use baton_core::exchange::{Event, Failure, Leg};
use baton_core::fault::{Fault, Shape};
use baton_core::sse::{Flavour, SseWatch, usage_of_answer};
use baton_core::time::{Duration, Instant};
use bytes::{Bytes, BytesMut};

use crate::clock::Clock;
use crate::drive::Drive;
use crate::edge::client::Line;
use crate::upstream::Lost;

/// The answer was cut and its form has no room for an error.
#[derive(Debug)]
pub struct RelayError(String);

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RelayError {}

/// How much of a plain answer's end is kept to read its token counts from.
const TAIL_BYTES: usize = 64 << 10;

/// Finds out whether a client is there that has closed its sending half.
pub const STILL_THERE: &[u8] = b": still there?\n\n";

/// What fills a silence: a comment, or Anthropic's own event for it.
pub fn alive(shape: Shape) -> &'static [u8] {
    match shape {
        Shape::OpenAi | Shape::Responses => b": keep-alive\n\n",
        Shape::Anthropic => b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
    }
}

type Piece = Poll<Option<Result<Bytes, RelayError>>>;

/// What the relay watches in passing.
enum Watch {
    Stream(SseWatch),
    Plain(BytesMut),
}

/// A decode's body on its way to the client.
pub struct Relay {
    drive: Box<Drive>,
    line: Arc<Line>,
    clock: Clock,
    watch: Watch,
    shape: Shape,
    left: Option<u64>,
    keepalive: Option<Duration>,
    heard: Instant,
    over: bool,
    /// Told before anything else.
    comment: Option<Bytes>,
    /// What ends an answer whose form has no room for an error, once the bytes before it are out.
    break_off: Option<RelayError>,
}

impl Drop for Relay {
    /// The client left: what was generated until then was generated all the same.
    fn drop(&mut self) {
        if !self.over {
            self.count();
        }
    }
}

/// What the head says of the body that follows.
pub struct Form {
    pub shape: Shape,
    pub flavour: Flavour,
    pub is_stream: bool,
    pub length: Option<u64>,
    pub keepalive: Option<Duration>,
    /// What a stream begins with.
    pub comment: Option<Bytes>,
}

impl Relay {
    pub fn new(drive: Box<Drive>, line: Arc<Line>, clock: Clock, form: Form) -> Relay {
        let watch = if form.is_stream {
            Watch::Stream(SseWatch::new(form.flavour))
        } else {
            Watch::Plain(BytesMut::new())
        };
        let mut relay = Relay {
            drive,
            line,
            clock,
            watch,
            shape: form.shape,
            left: form.length,
            keepalive: form.keepalive.filter(|_| form.is_stream),
            heard: clock.now(),
            over: false,
            comment: form.comment,
            break_off: None,
        };
        if relay.left == Some(0) {
            relay.end();
        }
        relay
    }

    pub fn is_over(&self) -> bool {
        self.over && self.break_off.is_none() && self.comment.is_none()
    }

    /// Bytes still to come, if the worker said how many.
    pub fn left(&self) -> Option<u64> {
        if self.over { Some(0) } else { self.left }
    }

    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Piece {
        if let Some(comment) = self.comment.take() {
            return Poll::Ready(Some(Ok(comment)));
        }
        if let Some(error) = self.break_off.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if self.over {
            return Poll::Ready(None);
        }
        match self.drive.poll_decode(cx) {
            Poll::Ready(Some(Ok(piece))) => {
                self.pass(&piece);
                if self.left == Some(0) {
                    // The server asks for no more than was announced, so the end has to be noticed here.
                    let _ = self.drive.poll_decode(cx);
                    self.end();
                }
                Poll::Ready(Some(Ok(piece)))
            }
            Poll::Ready(Some(Err(lost))) => self.broke(lost, cx),
            Poll::Ready(None) if self.left.is_some_and(|n| n > 0) => self
                .broke(Lost { cause: "fewer bytes than announced".into(), delivered: true, late: false }, cx),
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Pending => self.poll_quiet(cx),
        }
    }

    /// Looks at a piece in passing.
    fn pass(&mut self, piece: &Bytes) {
        self.heard = self.drive.heard().unwrap_or_else(|| self.clock.now());
        let record = &mut self.drive.record;
        record.answer_bytes += piece.len() as u64;
        self.left = self.left.map(|n| n.saturating_sub(piece.len() as u64));
        let first = match &mut self.watch {
            Watch::Stream(sse) => {
                sse.feed(piece);
                sse.first_data_seen()
            }
            Watch::Plain(tail) => {
                let keep = piece.len().min(TAIL_BYTES);
                if tail.len() + keep > 2 * TAIL_BYTES {
                    let cut = tail.len().saturating_sub(TAIL_BYTES);
                    drop(tail.split_to(cut));
                }
                tail.extend_from_slice(&piece[piece.len() - keep..]);
                true
            }
        };
        if first && record.moments.first_byte.is_none() {
            record.moments.first_byte = Some(self.heard);
        }
    }

    /// Nothing came: is there something else to do?
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Piece {
        if let Poll::Ready(event) = self.drive.poll_event(cx) {
            self.count();
            let fault = self.drive.relay_over(event);
            return self.cut(fault, cx);
        }
        // The client's sending half has ended: a comment finds out whether anybody is there.
        if self.at_boundary() && self.line.ask_client.swap(false, Ordering::Relaxed) {
            return Poll::Ready(Some(Ok(Bytes::from_static(STILL_THERE))));
        }
        let Some(every) = self.keepalive else { return Poll::Pending };
        loop {
            if self.drive.poll_alarm(self.heard.after(every), cx).is_pending() {
                return Poll::Pending;
            }
            self.heard = self.clock.now();
            if self.at_boundary() {
                return Poll::Ready(Some(Ok(Bytes::from_static(alive(self.shape)))));
            }
        }
    }

    fn at_boundary(&self) -> bool {
        matches!(&self.watch, Watch::Stream(sse) if sse.at_boundary())
    }

    fn end(&mut self) {
        self.over = true;
        self.count();
        self.drive.relay_over(Event::Ended(Leg::Decode));
    }

    /// Notes the tokens that the engine has reported so far.
    fn count(&mut self) {
        self.drive.record.usage = match &self.watch {
            Watch::Stream(sse) => sse.usage(),
            Watch::Plain(tail) => usage_of_answer(tail),
        };
    }

    fn broke(&mut self, lost: Lost, cx: &mut Context<'_>) -> Piece {
        let leg = self.drive.answers();
        // A stream that had said it was done lost nothing by the break.
        if matches!(&self.watch, Watch::Stream(sse) if sse.is_complete()) {
            self.end();
            return Poll::Ready(None);
        }
        self.count();
        let fault = Fault::Broken { leg, cause: lost.cause };
        let event = Event::Failed(Failure { leg: Leg::Decode, fault, delivered: true });
        let fault = self.drive.relay_over(event);
        self.cut(fault, cx)
    }

    /// The last thing the client gets: the error, in the form of what had begun.
    fn cut(&mut self, fault: Option<Fault>, cx: &mut Context<'_>) -> Piece {
        let Some(fault) = fault else { return Poll::Ready(None) };
        self.over = true;
        let Watch::Stream(sse) = &self.watch else {
            // A turn later, so that the head and what came of the body are not lost with the connection.
            self.break_off = Some(RelayError(fault.answer().message));
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        let mut last = BytesMut::from(sse.restore());
        // An event under way is ended, and counts.
        let told = sse.events() + u64::from(!sse.at_boundary());
        last.extend_from_slice(fault.answer().events(self.shape, told).as_bytes());
        Poll::Ready(Some(Ok(last.freeze())))
    }
}
