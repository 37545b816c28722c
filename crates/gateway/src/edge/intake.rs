//! Reading a request's body: bounded in size, and in how long it may pause.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use baton_core::fault::Fault;
use bytes::{Bytes, BytesMut};
use http_body::Body;
use hyper::body::Incoming;

use super::client::Line;

/// Grown to what a client announces only up to here; beyond it the buffer follows what really arrives.
const TRUST_BYTES: u64 = 1 << 20;

/// # Errors
/// [`Fault::BodyTooLarge`], [`Fault::BodyStalled`], [`Fault::BodyBroken`].
pub async fn collect(
    mut body: Incoming,
    max_bytes: u64,
    stall: Option<Duration>,
    line: &Line,
) -> Result<Bytes, Fault> {
    let too_large = Fault::BodyTooLarge { limit_bytes: max_bytes };
    let announced = body.size_hint().exact();
    if announced.is_some_and(|n| n > max_bytes) {
        return Err(too_large);
    }
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    while let Some(piece) = next(&mut body, stall, line).await? {
        if (all.len() + first.as_ref().map_or(0, Bytes::len) + piece.len()) as u64 > max_bytes {
            return Err(too_large);
        }
        match first.take() {
            // The common case: the whole body came at once and is not copied.
            None if all.is_empty() && body.is_end_stream() => return Ok(piece),
            None if all.is_empty() => first = Some(piece),
            None => all.extend_from_slice(&piece),
            Some(held) => {
                all.reserve(announced.unwrap_or(0).min(TRUST_BYTES) as usize);
                all.extend_from_slice(&held);
                all.extend_from_slice(&piece);
            }
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

async fn next(body: &mut Incoming, stall: Option<Duration>, line: &Line) -> Result<Option<Bytes>, Fault> {
    let mut patience = None;
    poll_fn(|cx| {
        loop {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Fault::BodyBroken)),
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Ok(Some(data)));
                    }
                }
                Poll::Pending => break,
            }
        }
        if line.input_ended() {
            return Poll::Ready(Err(Fault::BodyBroken));
        }
        let Some(stall) = stall else { return Poll::Pending };
        let patience = patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        patience.as_mut().poll(cx).map(|()| Err(Fault::BodyStalled))
    })
    .await
}
