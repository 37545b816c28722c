//! The socket under a leg, which notes whether the worker has said anything yet.
//!
//! That one fact decides whether a reused connection that died had grown old: only if not a single byte of an
//! answer came (RFC 9112, 9.3.1).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::bell::Bell;

/// Plain or TLS.
pub enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub struct Stream {
    wire: Wire,
    bell: Arc<Bell>,
}

impl Stream {
    pub(super) fn new(wire: Wire, bell: Arc<Bell>) -> Stream {
        Stream { wire, bell }
    }
}

macro_rules! on_wire {
    ($self:ident, $wire:ident => $call:expr) => {
        match &mut $self.wire {
            Wire::Plain($wire) => $call,
            Wire::Tls($wire) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = on_wire!(self, w => Pin::new(w).poll_read(cx, buf));
        if buf.filled().len() > before {
            self.bell.hear();
        }
        polled
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_wire!(self, w => Pin::new(w).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_wire!(self, w => Pin::new(w).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Wire::Plain(w) => w.is_write_vectored(),
            Wire::Tls(w) => w.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(self, w => Pin::new(w).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(self, w => Pin::new(w).poll_shutdown(cx))
    }
}
