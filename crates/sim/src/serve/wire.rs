//! One accepted connection: a stream that can be reset, and the loop that serves it until it ends or is ended.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::serve::body::{Body, BreakOff};

/// uvicorn closes a connection that has been idle for this long.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long a dying server lets its connections finish what they are writing.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What a server's connections are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Goes up when idle connections must close.
    pub close_idle: u64,
    /// Finish what is being answered, then close.
    pub finish: bool,
    /// Reset.
    pub kill: bool,
}

/// What is known of a connection.
#[derive(Debug, Default)]
pub struct WireState {
    /// Requests that are being answered.
    busy: AtomicU32,
    /// Closing means resetting.
    reset: AtomicBool,
}

impl WireState {
    /// From now on closing means resetting.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Release);
    }
}

/// A TCP stream whose end is a reset when its state says so.
struct Wire {
    stream: TcpStream,
    state: Arc<WireState>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.state.reset.load(Ordering::Acquire) {
            // Nothing can be done about a socket that is gone already.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.reset.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Serves one connection with `answer` until the client, the answer or an order ends it.
pub async fn serve<F, A>(stream: TcpStream, mut orders: watch::Receiver<Orders>, answer: F)
where
    F: Fn(Request<Incoming>, Arc<WireState>) -> A,
    A: Future<Output = Result<Response<Body>, BreakOff>>,
{
    let _ = stream.set_nodelay(true);
    let state = Arc::new(WireState::default());
    let io = TokioIo::new(Wire { stream, state: state.clone() });
    let service = service_fn(|request| {
        state.busy.fetch_add(1, Ordering::AcqRel);
        let answered = answer(request, state.clone());
        let state = state.clone();
        async move {
            let response = answered.await;
            state.busy.fetch_sub(1, Ordering::AcqRel);
            response
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(KEEP_ALIVE);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let mut seen = *orders.borrow_and_update();
    if seen.kill || seen.finish {
        return;
    }
    loop {
        tokio::select! {
            // An error here is the client's or a fault's doing; either way the connection is over.
            _ = connection.as_mut() => return,
            changed = orders.changed() => {
                let now = if changed.is_ok() { *orders.borrow_and_update() } else { Orders { kill: true, ..seen } };
                if now.kill {
                    state.reset();
                    return;
                }
                let idle = now.close_idle != seen.close_idle && state.busy.load(Ordering::Acquire) == 0;
                if now.finish || idle {
                    connection.as_mut().graceful_shutdown();
                }
                if now.finish {
                    if tokio::time::timeout(LAST_WORDS, connection.as_mut()).await.is_err() {
                        state.reset();
                    }
                    return;
                }
                seen = now;
            }
        }
    }
}
