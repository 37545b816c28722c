//! The last exchanges of a lane, for `GET /debug/requests`.
//!
//! Each lane keeps its own, so that keeping one is a push under a lock that only the lane and a reader of the page ever
//! take. What is kept is the record as telemetry got it, with the receipts of its placements; JSON is made when
//! somebody asks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use baton_core::fleet::Worker;
use baton_core::record::{Moments, Record, Retried};
use baton_core::time::Instant;
use serde_json::{Map, Value, json};

use crate::explain;

/// Scores of one leg that a kept receipt has: the lowest.
pub const SCORES_MAX: usize = 64;

/// One lane's last exchanges.
#[derive(Debug)]
pub struct Recent {
    most: usize,
    kept: Mutex<VecDeque<Arc<Record>>>,
}

impl Recent {
    pub fn new(most: usize) -> Recent {
        Recent { most, kept: Mutex::default() }
    }

    /// Keeps a record, in the place of the oldest.
    pub fn keep(&self, record: &Record) {
        if self.most == 0 {
            return;
        }
        let record = Arc::new(record.clone());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= self.most {
            kept.pop_front();
        }
        kept.push_back(record);
    }

    fn all(&self) -> Vec<Arc<Record>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// What all lanes keep, the latest first and no more than one lane may have.
fn gathered<'a>(lanes: impl Iterator<Item = &'a Recent>) -> Vec<Arc<Record>> {
    let mut most = 0;
    let mut all = Vec::new();
    for lane in lanes {
        most = lane.most;
        all.extend(lane.all());
    }
    all.sort_by_key(|record| std::cmp::Reverse(record.moments.ended));
    all.truncate(most);
    all
}

/// The body of `GET /debug/requests`.
pub fn list<'a>(lanes: impl Iterator<Item = &'a Recent>, now: Instant) -> Value {
    let each = gathered(lanes);
    json!({ "requests": each.iter().map(|record| Value::Object(brief(record, now))).collect::<Value>() })
}

/// The body of `GET /debug/requests/{id}`: the latest of that id.
pub fn one<'a>(lanes: impl Iterator<Item = &'a Recent>, id: &str, now: Instant) -> Option<Value> {
    gathered(lanes).iter().find(|record| record.request_id == id).map(|record| full(record, now))
}

fn brief(record: &Record, now: Instant) -> Map<String, Value> {
    let mut all = Map::new();
    let mut set = |key: &str, value: Value| drop(all.insert(key.to_owned(), value));
    set("id", json!(record.request_id));
    set("path", json!(record.path));
    set("model", json!(record.model));
    set("stream", json!(record.stream));
    set("outcome", json!(record.outcome.as_str()));
    set("status", json!(record.status));
    set("code", json!(record.code));
    set("prefill", json!(id_of(record.prefill.as_deref())));
    set("decode", json!(id_of(record.decode.as_deref())));
    set("attempts", json!(record.attempts));
    set("handoff", json!(record.handoff.as_str()));
    set("total_ms", ms(Some(record.moments.received), Some(record.moments.ended)));
    set("ended_ms_ago", ms(Some(record.moments.ended), Some(now)));
    all
}

fn full(record: &Record, now: Instant) -> Value {
    let mut all = brief(record, now);
    let mut set = |key: &str, value: Value| drop(all.insert(key.to_owned(), value));
    let url = |worker: Option<&Worker>| json!(worker.map(|w| w.url.as_str()));
    set("error", json!(record.error));
    set("leg", json!(record.leg.map(|leg| leg.as_str())));
    set("prefill_url", url(record.prefill.as_deref()));
    set("decode_url", url(record.decode.as_deref()));
    set("engine", json!(record.engine.as_str()));
    set("mode", json!(record.mode));
    set("request_bytes", json!(record.request_bytes));
    set("answer_bytes", json!(record.answer_bytes));
    set(
        "usage",
        record.usage.as_ref().map_or(Value::Null, |u| {
            json!({
                "prompt_tokens": u.prompt_tokens,
                "completion_tokens": u.completion_tokens,
                "cached_tokens": u.cached_tokens,
            })
        }),
    );
    set("timings_ms", timings(&record.moments));
    set("retries", record.retried.iter().map(retried).collect());
    set("placements", record.receipts.iter().map(explain::receipt).collect());
    Value::Object(all)
}

/// When each thing happened, counted from the moment the request came.
fn timings(at: &Moments) -> Value {
    let since = |moment: Option<Instant>| ms(Some(at.received), moment);
    json!({
        "admitted": since(at.admitted),
        "queued": since(at.queued),
        "prefill_sent": since(at.prefill_sent),
        "prefill_done": since(at.prefill_done),
        "decode_sent": since(at.decode_sent),
        "decode_head": since(at.decode_head),
        "first_byte": since(at.first_byte),
        "ended": since(Some(at.ended)),
    })
}

fn retried(retried: &Retried) -> Value {
    json!({
        "code": retried.code,
        "leg": retried.leg.map(|leg| leg.as_str()),
        "prefill": id_of(retried.prefill.as_deref()),
        "decode": id_of(retried.decode.as_deref()),
        "wait_ms": retried.wait.as_secs_f64() * 1000.0,
    })
}

fn id_of(worker: Option<&Worker>) -> Option<&str> {
    worker.map(|w| w.id.as_str())
}

fn ms(from: Option<Instant>, to: Option<Instant>) -> Value {
    let (Some(from), Some(to)) = (from, to) else { return Value::Null };
    json!(to.since(from).as_micros() as f64 / 1000.0)
}
