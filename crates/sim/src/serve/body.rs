//! The body of an answer: bytes that are there, or frames that come.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;

/// Why a connection is broken off on purpose. hyper closes the connection when a service or a body ends with it.
#[derive(Debug, thiserror::Error)]
#[error("the connection is broken off")]
pub struct BreakOff;

impl From<Infallible> for BreakOff {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[derive(Debug)]
pub enum Body {
    Full(Bytes),
    Frames(mpsc::Receiver<Result<Bytes, BreakOff>>),
    /// Breaks off at the next turn.
    Broken,
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BreakOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BreakOff>>> {
        match &mut *self {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Broken => Poll::Ready(Some(Err(BreakOff))),
            Self::Frames(frames) => {
                let frame = std::task::ready!(frames.poll_recv(cx));
                if let Some(Err(BreakOff)) = frame {
                    // A turn later, so that what came before is on the wire and not lost with the connection.
                    *self = Self::Broken;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(frame.map(|frame| frame.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Full(bytes) => http_body::SizeHint::with_exact(bytes.len() as u64),
            Self::Frames(_) | Self::Broken => http_body::SizeHint::default(),
        }
    }
}
