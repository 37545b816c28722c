//! What the client gets, as far as the engine's answer has come.

use std::collections::VecDeque;

use baton_core::ask::Api;
use baton_core::fault::Fault;
use baton_core::merge::{PromptLogprobs, StreamJoin};
use baton_core::record::Record;
use baton_core::sse::{SseWatch, usage_of_answer};
use baton_core::time::Instant;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};

use super::told::headers;
use crate::edge::http::{flavour, outward};
use crate::edge::{answer, named};
use crate::upstream::Head;

/// The decode's own is put behind this.
enum Joint {
    Stream(Box<StreamJoin>),
    Plain(PromptLogprobs),
}

/// The client's answer.
pub struct Answer {
    api: Api,
    /// Pieces of the decode's body that came before the client's answer began.
    ahead: VecDeque<Bytes>,
    ended: bool,
    heard: Option<Instant>,
    watch: Option<SseWatch>,
    joint: Option<Joint>,
    status: Option<u16>,
    headers: HeaderMap,
    body: BytesMut,
    /// What went wrong: in the answer, or in the middle of it.
    failed: Option<Value>,
    /// The client has all of it.
    whole: bool,
    gone: bool,
}

impl Answer {
    pub fn new(api: Api) -> Answer {
        Answer {
            api,
            ahead: VecDeque::new(),
            ended: false,
            heard: None,
            watch: None,
            joint: None,
            status: None,
            headers: HeaderMap::new(),
            body: BytesMut::new(),
            failed: None,
            whole: false,
            gone: false,
        }
    }

    /// Another attempt's legs will answer.
    pub fn begins_anew(&mut self) {
        (self.heard, self.ended, self.joint) = (None, false, None);
        self.ahead.clear();
    }

    /// When the last piece was passed on.
    pub fn heard(&self) -> Option<Instant> {
        self.heard
    }

    pub fn begins_with(&mut self, prompt: PromptLogprobs, stream: bool) {
        let stream = stream.then(|| StreamJoin::new(prompt.clone()));
        self.joint = Some(stream.map_or_else(|| Joint::Plain(prompt), |join| Joint::Stream(Box::new(join))));
    }

    pub fn comes(&mut self, piece: Bytes) {
        self.ahead.push_back(piece);
    }

    pub fn ends(&mut self) {
        self.ended = true;
    }

    /// A stream that has said that it is done.
    pub fn is_complete(&self) -> bool {
        self.watch.as_ref().is_some_and(SseWatch::is_complete)
    }

    pub fn starts(&mut self, head: Head, record: &Record) {
        let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let is_stream = kind.get(..17).is_some_and(|k| k.eq_ignore_ascii_case(b"text/event-stream"));
        self.watch = is_stream.then(|| SseWatch::new(flavour(self.api)));
        self.status = Some(head.status);
        self.headers = outward(head.headers);
        named::workers(&mut self.headers, record);
        answer::id(&mut self.headers, &record.request_id, self.api.shape());
    }

    /// What has come goes to the client. True: and that was all.
    pub fn pass(&mut self, now: Instant, record: &mut Record) -> bool {
        while let Some(piece) = self.ahead.pop_front() {
            self.heard = Some(now);
            record.answer_bytes += piece.len() as u64;
            let first = match &mut self.watch {
                None => true,
                Some(watch) => {
                    watch.feed(&piece);
                    watch.first_data_seen()
                }
            };
            if first && record.moments.first_byte.is_none() {
                record.moments.first_byte = Some(now);
            }
            match &mut self.joint {
                Some(Joint::Stream(join)) => self.body.extend_from_slice(&join.feed(&piece)),
                _ => self.body.extend_from_slice(&piece),
            }
        }
        let all = self.ended && !self.whole;
        if all {
            match self.joint.take() {
                Some(Joint::Stream(mut join)) => self.body.extend_from_slice(&join.rest()),
                Some(Joint::Plain(prompt)) => {
                    let own = std::mem::take(&mut self.body).freeze();
                    self.body = BytesMut::from(&prompt.join_plain(&own)[..]);
                }
                None => {}
            }
            self.whole = true;
        }
        all
    }

    /// Notes the tokens that the engine has reported so far.
    pub fn count(&self, record: &mut Record) {
        record.usage = match &self.watch {
            Some(watch) => watch.usage(),
            None => usage_of_answer(&self.body),
        };
    }

    /// The prefill had the last word.
    pub fn tells(&mut self, body: Bytes, record: &mut Record, now: Instant) {
        record.status = answer::OK;
        record.moments.first_byte = Some(now);
        record.answer_bytes = body.len() as u64;
        record.usage = usage_of_answer(&body);
        self.status = Some(record.status);
        named::workers(&mut self.headers, record);
        answer::id(&mut self.headers, &record.request_id, self.api.shape());
        self.body = BytesMut::from(&body[..]);
        self.whole = true;
    }

    pub fn fails(&mut self, fault: &Fault, request_id: &str) {
        let shape = self.api.shape();
        let reply = answer::fault(fault, shape, request_id);
        self.body = BytesMut::from(fault.answer().body(shape, request_id).as_bytes());
        self.status = Some(reply.status().as_u16());
        self.headers = reply.headers().clone();
        self.failed = Some(error(fault));
        self.whole = true;
    }

    /// The answer had begun.
    pub fn cut(&mut self, fault: &Fault) {
        self.failed = Some(error(fault));
    }

    /// The client has left.
    pub fn is_gone(&mut self) {
        self.gone = true;
    }

    pub fn to_json(&self) -> Value {
        json!({
            "status": self.status,
            "headers": headers(&self.headers),
            "error": self.failed,
            "body": String::from_utf8_lossy(&self.body),
            "complete": self.whole,
            "left": self.gone,
        })
    }
}

fn error(fault: &Fault) -> Value {
    json!({"code": fault.code(), "message": fault.answer().message})
}
