//! A leg on paper: what an engine does becomes what a leg over HTTP would say of it.

use baton_core::abort::Gist;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, header};

use super::super::engine::{Does, Head};
use crate::upstream::{self, LegEvent, Lost, Want};

/// What a leg says.
pub enum Said {
    Event(LegEvent),
    /// Of a body that is relayed.
    Piece(Bytes),
    /// The end of such a body.
    End,
}

/// One leg in flight.
pub struct PaperLeg {
    want: Want,
    /// Of an answer that has begun: what it looks like, and what is kept of it.
    open: Option<(Gist, BytesMut)>,
}

impl PaperLeg {
    pub fn new(want: Want) -> PaperLeg {
        PaperLeg { want, open: None }
    }

    /// `None`: the leg is not where the step belongs, since it is another attempt's.
    pub fn hear(&mut self, does: &Does) -> Option<Vec<Said>> {
        let lost = |cause: &str, delivered, late| Lost { cause: cause.to_owned(), delivered, late };
        let event = match (does, self.open.is_some()) {
            (Does::Answers { head, body }, false) if head.status.is_success() => {
                let mut said = self.begin(head);
                said.extend(self.piece(body));
                said.extend(self.end());
                return Some(said);
            }
            (Does::Answers { head, body }, false) => LegEvent::Refused {
                status: head.status.as_u16(),
                body: body.clone(),
                retry_after: head
                    .headers
                    .get(header::RETRY_AFTER)
                    .and_then(|v| v.to_str().ok())
                    .map(str::to_owned),
            },
            (Does::Head(head), false) => return Some(self.begin(head)),
            (Does::Chunk(text), true) => return Some(self.piece(text).into_iter().collect()),
            (Does::Ends, true) => return Some(self.end().into_iter().collect()),
            (Does::Refuses, false) => LegEvent::Unreachable(lost("connection refused", false, false)),
            (Does::Stalls, false) => LegEvent::Unreachable(lost("no connection in time", false, true)),
            (Does::Ages, false) => LegEvent::Stale(lost("the connection was closed", true, false)),
            (Does::Breaks, false) => LegEvent::Unreachable(lost("the connection broke", true, false)),
            (Does::Breaks, true) => LegEvent::Broken(lost("the connection broke", true, false)),
            _ => return None,
        };
        Some(vec![Said::Event(event)])
    }

    fn begin(&mut self, head: &Head) -> Vec<Said> {
        let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        self.open = Some((Gist::of(kind), BytesMut::new()));
        let told =
            || LegEvent::Head(upstream::Head { status: head.status.as_u16(), headers: head.headers.clone() });
        match self.want {
            Want::Whole { .. } => Vec::new(),
            Want::Drained | Want::Relayed => vec![Said::Event(told())],
        }
    }

    fn piece(&mut self, text: &Bytes) -> Option<Said> {
        let (gist, kept) = self.open.as_mut()?;
        match self.want {
            Want::Whole { max_bytes } if kept.len() + text.len() > max_bytes => {
                let cause = format!("the answer is larger than {max_bytes} bytes");
                Some(Said::Event(LegEvent::Broken(Lost { cause, delivered: true, late: false })))
            }
            Want::Whole { .. } => {
                kept.extend_from_slice(text);
                None
            }
            Want::Drained => {
                gist.feed(text);
                None
            }
            Want::Relayed => Some(Said::Piece(text.clone())).filter(|_| !text.is_empty()),
        }
    }

    fn end(&mut self) -> Option<Said> {
        let (gist, kept) = self.open.take()?;
        Some(match self.want {
            Want::Whole { .. } => Said::Event(LegEvent::Answer(kept.freeze())),
            Want::Drained => Said::Event(LegEvent::Ended(gist)),
            Want::Relayed => Said::End,
        })
    }
}
