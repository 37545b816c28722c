//! A client's connection: is the client still there?
//!
//! A client that closes its socket and one that only closes its sending half look the same from here: both
//! send FIN. Only what happens to our next bytes tells them apart, so while a request is being served an
//! end of input is answered with an interim `100 Continue`, which every HTTP/1.1 client skips. A client
//! that is gone resets the connection in reply, and that is a disconnect; one that is waiting gets its
//! answer. Once a stream has begun the same question is put by an SSE comment, which the relay writes.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use baton_core::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use crate::alarm::Alarm;
use crate::clock::Clock;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Between two requests.
    Idle = 0,
    /// A request's head is arriving.
    Head = 1,
    /// A request is being served and nothing of the answer has been written.
    Busy = 2,
    /// The answer is being written.
    Answering = 3,
}

/// How long a client may take to read on once its request's time is over: what it has not read by then is not waited
/// for, because an answer that cannot be written cannot be ended either.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The part of a connection that the lane and the request in it share.
#[derive(Debug, Default)]
pub struct Line {
    phase: AtomicU8,
    since_micros: AtomicU64,
    /// The client sends nothing more. A body that is not complete by then never will be.
    input_ended: AtomicBool,
    /// The input has ended while the answer was being written.
    pub ask_client: AtomicBool,
    /// Nothing of an HTTP/1.1 answer waits to be written.
    flushed: AtomicBool,
    interim_ok: AtomicBool,
    doomed: AtomicBool,
    /// When the request that is served has to be over, in microseconds; 0: not known.
    ends_micros: AtomicU64,
    cut: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// The timer of the request that is served; here between two requests.
    alarm: Mutex<Option<Alarm>>,
}

impl Line {
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            1 => Phase::Head,
            2 => Phase::Busy,
            3 => Phase::Answering,
            _ => Phase::Idle,
        }
    }

    /// The request that is served has to be over by then.
    pub fn expect_end(&self, at: Instant) {
        self.ends_micros.store(at.as_micros(), Ordering::Relaxed);
    }

    /// Has its time been over for so long that its client cannot have taken what ends its answer?
    pub fn is_overdue(&self, now: Instant) -> bool {
        let ends = self.ends_micros.load(Ordering::Relaxed);
        ends > 0 && now.since(Instant::from_micros(ends)) > LAST_WORD
    }

    pub fn turn(&self, phase: Phase, now: Instant) {
        self.ends_micros.store(0, Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.since_micros.store(now.as_micros(), Ordering::Relaxed);
    }

    /// Bytes went out. A client that is slow to read the end of an answer is not idle.
    fn wrote(&self, clock: Clock) {
        if self.phase() == Phase::Idle {
            self.since_micros.store(clock.now().as_micros(), Ordering::Relaxed);
        }
    }

    /// A request is served now; nobody asks since when.
    pub fn work(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub fn since(&self) -> Instant {
        Instant::from_micros(self.since_micros.load(Ordering::Relaxed))
    }

    /// May an interim answer be written? Not to an HTTP/1.0 client.
    pub fn set_interim_ok(&self, ok: bool) {
        self.interim_ok.store(ok, Ordering::Relaxed);
    }

    pub fn input_ended(&self) -> bool {
        self.input_ended.load(Ordering::Relaxed)
    }

    /// Ends the connection at its next turn.
    pub fn doom(&self) {
        self.doomed.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Ends the connection at its next turn, whatever waits to be written.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    pub fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::Relaxed)
    }

    /// The connection's timer, for one request.
    pub fn take_alarm(&self, clock: Clock) -> Alarm {
        let kept = self.alarm.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.unwrap_or_else(|| Alarm::new(clock))
    }

    pub fn keep_alarm(&self, alarm: Alarm) {
        *self.alarm.lock().unwrap_or_else(PoisonError::into_inner) = Some(alarm);
    }

    pub fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn remember(&self, cx: &Context<'_>) {
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match waker.as_mut() {
            Some(w) => w.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }
}

/// Plain or TLS.
pub enum ClientWire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// How often a half-closed connection is asked whether it was reset.
const LOOK: Duration = Duration::from_millis(50);
/// So many looks later it is asked again: it may have gone meanwhile, and only a write finds out.
const ASK_AGAIN: u32 = 20;

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

pub struct ClientIo {
    wire: ClientWire,
    line: Arc<Line>,
    clock: Clock,
    /// Set once the input has ended in the middle of a request.
    half: Option<Pin<Box<Sleep>>>,
    /// How often a client that sends no more was looked at, and when to ask it next.
    looks: u32,
    ask_at: u32,
}

impl ClientIo {
    pub fn new(wire: ClientWire, line: Arc<Line>, clock: Clock) -> ClientIo {
        line.flushed.store(true, Ordering::Relaxed);
        ClientIo { wire, line, clock, half: None, looks: 0, ask_at: 0 }
    }

    /// The input has ended. Gone, or only half closed?
    fn poll_half(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.line.input_ended.swap(true, Ordering::Relaxed) {
            cx.waker().wake_by_ref();
        }
        loop {
            if let Some(end) = self.is_gone(cx) {
                return Poll::Ready(end);
            }
            let look = self.half.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK)));
            ready!(look.as_mut().poll(cx));
            self.half = None;
            self.looks = self.looks.wrapping_add(1);
        }
    }

    /// What is known of a client that sends no more; asks it now and then. `None`: it may still be there.
    fn is_gone(&mut self, cx: &mut Context<'_>) -> Option<io::Result<()>> {
        let ClientWire::Plain(tcp) = &self.wire else { return Some(Ok(())) };
        if let Ok(Some(e)) | Err(e) = tcp.take_error() {
            return Some(Err(e));
        }
        let due = self.looks >= self.ask_at;
        match self.line.phase() {
            Phase::Idle | Phase::Head => return Some(Ok(())),
            Phase::Busy if !self.line.interim_ok.load(Ordering::Relaxed) => return Some(Ok(())),
            Phase::Busy if due && self.line.flushed.load(Ordering::Relaxed) => {
                self.ask_at = self.looks + ASK_AGAIN;
                if tcp.try_write(INTERIM).is_err() {
                    return Some(Err(io::ErrorKind::ConnectionReset.into()));
                }
            }
            Phase::Answering if due => {
                self.ask_at = self.looks + ASK_AGAIN;
                self.line.ask_client.store(true, Ordering::Relaxed);
                cx.waker().wake_by_ref();
            }
            Phase::Busy | Phase::Answering => {}
        }
        None
    }
}

macro_rules! on_wire {
    ($self:ident, $wire:ident => $call:expr) => {
        match &mut $self.wire {
            ClientWire::Plain($wire) => $call,
            ClientWire::Tls($wire) => $call,
        }
    };
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.half.is_some() {
            return self.poll_half(cx);
        }
        let before = buf.filled().len();
        ready!(on_wire!(self, w => Pin::new(w).poll_read(cx, buf)))?;
        if buf.filled().len() == before {
            return self.poll_half(cx);
        }
        if self.line.phase() == Phase::Idle {
            self.line.turn(Phase::Head, self.clock.now());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.line.flushed.store(false, Ordering::Relaxed);
        let wrote = on_wire!(self, w => Pin::new(w).poll_write(cx, buf));
        if wrote.is_ready() {
            self.line.wrote(self.clock);
        }
        wrote
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.line.flushed.store(false, Ordering::Relaxed);
        let wrote = on_wire!(self, w => Pin::new(w).poll_write_vectored(cx, bufs));
        if wrote.is_ready() {
            self.line.wrote(self.clock);
        }
        wrote
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            ClientWire::Plain(w) => w.is_write_vectored(),
            ClientWire::Tls(w) => w.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = on_wire!(self, w => Pin::new(w).poll_flush(cx));
        if flushed.is_ready() {
            self.line.flushed.store(true, Ordering::Relaxed);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(self, w => Pin::new(w).poll_shutdown(cx))
    }
}
