//! A decode's body with the prompt's log probabilities put in as it passes. How is `core::merge`'s.

use std::task::{Context, Poll, ready};

use baton_core::merge::{PromptLogprobs, StreamJoin};
use bytes::{Bytes, BytesMut};

use crate::upstream::{Leg, Lost};

pub enum Joint {
    Stream(StreamJoin),
    /// A plain answer is held until it is whole.
    Plain(PromptLogprobs, BytesMut),
    /// All has gone out.
    Over,
}

impl Joint {
    pub fn new(prompt: PromptLogprobs, stream: bool) -> Joint {
        if stream { Joint::Stream(StreamJoin::new(prompt)) } else { Joint::Plain(prompt, BytesMut::new()) }
    }

    /// The next piece for the client.
    pub fn poll(
        &mut self,
        leg: &mut Leg,
        cx: &mut Context<'_>,
        max_bytes: usize,
    ) -> Poll<Option<Result<Bytes, Lost>>> {
        if matches!(self, Joint::Over) {
            return Poll::Ready(None);
        }
        loop {
            let piece = match ready!(leg.poll_body(cx)) {
                Some(Ok(piece)) => piece,
                Some(Err(lost)) => return Poll::Ready(Some(Err(lost))),
                None => {
                    let last = self.finish();
                    return Poll::Ready(Some(Ok(last)).filter(|r| r.as_ref().is_ok_and(|b| !b.is_empty())));
                }
            };
            match self {
                Joint::Stream(join) => {
                    let out = join.feed(&piece);
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(out)));
                    }
                }
                Joint::Plain(_, held) if held.len() + piece.len() > max_bytes => {
                    let cause = format!("the answer is larger than {max_bytes} bytes");
                    return Poll::Ready(Some(Err(Lost { cause, delivered: true, late: false })));
                }
                Joint::Plain(_, held) => held.extend_from_slice(&piece),
                Joint::Over => return Poll::Ready(None),
            }
        }
    }

    fn finish(&mut self) -> Bytes {
        match std::mem::replace(self, Joint::Over) {
            Joint::Stream(mut join) => join.rest(),
            Joint::Plain(prompt, held) => prompt.join_plain(&held.freeze()),
            Joint::Over => Bytes::new(),
        }
    }
}
