//! A leg's request body: the pieces of a spliced client body, not joined again.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use baton_core::body::Pieces;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Pieces of a body, sent in order. Cloning copies no bytes, so a leg can be sent again.
#[derive(Clone, Debug, Default)]
pub struct LegBody {
    pieces: Pieces,
    next: usize,
    left: u64,
}

impl LegBody {
    pub fn new(pieces: Pieces) -> LegBody {
        let left = pieces.iter().map(|p| p.len() as u64).sum();
        LegBody { pieces, next: 0, left }
    }
}

impl Body for LegBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.next;
        let Some(piece) = self.pieces.get_mut(next).map(std::mem::take) else { return Poll::Ready(None) };
        self.next += 1;
        self.left = self.left.saturating_sub(piece.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.next >= self.pieces.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
