//! One line and one span an exchange.
//!
//! Both are made from the record, with the same words as the metrics. Neither costs anything while nobody listens: the
//! line asks first, the span is not made. Probe routes are logged at debug: they are asked every second by machines.

use baton_core::record::Record;
use baton_core::time::{Duration, Instant};
use tracing::field::Empty;
use tracing::{Level, Span};

use super::labels::Route;

/// The access log line.
pub fn write(record: &Record) {
    // `event!` takes its level as a constant, so the two lines are two calls.
    if tracing::enabled!(target: "baton::access", Level::INFO) && !Route::of(record).is_probe() {
        line(record);
    } else if tracing::enabled!(target: "baton::access", Level::DEBUG) {
        let Record { request_id, method, status, .. } = record;
        let path = &*record.path;
        tracing::debug!(target: "baton::access", request_id, method, path, status, "{}", record.outcome.as_str());
    }
}

fn line(record: &Record) {
    let Record { request_id, method, stream, status, attempts, .. } = record;
    let path = &*record.path;
    let at = &record.moments;
    let (prefill, decode) = (record.prefill.as_deref(), record.decode.as_deref());
    let usage = record.usage.as_ref();
    tracing::info!(
        target: "baton::access",
        request_id,
        method,
        path,
        model = record.model.as_deref(),
        stream,
        status,
        outcome = record.outcome.as_str(),
        code = record.code,
        error = record.error.as_deref(),
        leg = record.leg.map(|leg| leg.as_str()),
        prefill = prefill.map(|w| w.id.as_str()),
        prefill_url = prefill.map(|w| w.url.as_str()),
        decode = decode.map(|w| w.id.as_str()),
        decode_url = decode.map(|w| w.url.as_str()),
        attempts,
        retry = record.over_budget.then_some("over budget"),
        handoff = record.handoff.as_str(),
        mode = record.mode,
        queue_ms = ms(Some(at.received), at.admitted),
        tokenize_ms = record.asked.and_then(|asked| asked.took).map(millis),
        prefill_ms = ms(at.prefill_sent, at.prefill_done),
        ttft_ms = ms(Some(at.received), at.first_byte),
        total_ms = ms(Some(at.received), Some(at.ended)),
        request_bytes = record.request_bytes,
        answer_bytes = record.answer_bytes,
        prompt_tokens = usage.map(|u| u.prompt_tokens),
        completion_tokens = usage.map(|u| u.completion_tokens),
        cached_tokens = usage.and_then(|u| u.cached_tokens),
        "{}",
        record.outcome.as_str(),
    );
}

fn ms(from: Option<Instant>, to: Option<Instant>) -> Option<f64> {
    Some(millis(to?.since(from?)))
}

fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

/// The span of one exchange. Made only if somebody listens (`baton::exchange=debug`).
#[derive(Clone, Debug)]
pub struct ExchangeSpan(Span);

impl ExchangeSpan {
    pub fn new(request_id: &str, method: &str, path: &str) -> ExchangeSpan {
        ExchangeSpan(tracing::debug_span!(
            target: "baton::exchange",
            "exchange",
            request_id,
            method,
            path,
            model = Empty,
            status = Empty,
            outcome = Empty,
            code = Empty,
            prefill = Empty,
            decode = Empty,
            attempts = Empty,
            handoff = Empty,
        ))
    }

    /// To enter, if somebody listens.
    pub fn listened(&self) -> Option<Span> {
        (!self.0.is_disabled()).then(|| self.0.clone())
    }

    /// What the record has is put into the span.
    pub fn settle(&self, record: &Record) {
        if self.0.is_disabled() {
            return;
        }
        self.0.record("model", record.model.as_deref());
        self.0.record("status", record.status);
        self.0.record("outcome", record.outcome.as_str());
        self.0.record("code", record.code);
        self.0.record("prefill", record.prefill.as_deref().map(|w| w.id.as_str()));
        self.0.record("decode", record.decode.as_deref().map(|w| w.id.as_str()));
        self.0.record("attempts", record.attempts);
        self.0.record("handoff", record.handoff.as_str());
    }
}
