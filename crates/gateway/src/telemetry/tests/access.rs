//! Log lines and spans, as a subscriber sees them.

use std::io;
use std::sync::{Arc, Mutex};

use baton_core::fault::{Fault, LegName};
use baton_core::record::Record;
use expect_test::expect;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

use super::{ExchangeSpan, Stand, records};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Lines;

    fn make_writer(&'w self) -> Lines {
        self.clone()
    }
}

fn logged(filter: &str, what: impl FnOnce()) -> String {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_span_list(false)
        .with_span_events(FmtSpan::CLOSE)
        .without_time()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(lines.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, what);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// Members one a line, without what changes from run to run.
fn spread(line: &str) -> String {
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
    let mut out = String::new();
    for (name, value) in members.iter().filter(|(name, _)| !name.starts_with("time.")) {
        out += &format!("{name}: {value}\n");
    }
    out
}

fn request(stand: &Stand) -> Record {
    Record { request_id: "chatcmpl-1".into(), ..records::served(stand) }
}

#[test]
fn the_line_of_a_served_pair() {
    let stand = Stand::with_pair();
    let line = logged("info", || stand.telemetry.record(&request(&stand)));
    expect![[r#"
        answer_bytes: 2000
        attempts: 1
        cached_tokens: 16
        completion_tokens: 5
        decode: "w2"
        decode_url: "http://h:2"
        handoff: "relayed"
        level: "INFO"
        message: "served"
        method: "POST"
        mode: "nixl"
        model: "llama"
        outcome: "served"
        path: "/v1/chat/completions"
        prefill: "w1"
        prefill_ms: 200.0
        prefill_url: "http://h:1"
        prompt_tokens: 50
        queue_ms: 1.0
        request_bytes: 100
        request_id: "chatcmpl-1"
        status: 200
        stream: true
        target: "baton::access"
        total_ms: 900.0
        ttft_ms: 500.0
    "#]]
    .assert_eq(&spread(&line));
}

#[test]
fn the_line_of_a_failure() {
    let stand = Stand::with_pair();
    let mut record = records::failed(&Fault::Unreachable { leg: LegName::Decode, cause: "reset".into() });
    record.request_id = "cmpl-2".to_owned();
    let line = logged("info", || stand.telemetry.record(&record));
    expect![[r#"
        answer_bytes: 0
        attempts: 1
        code: "decode_request_failed"
        error: "The decode worker could not be reached: reset"
        handoff: "none"
        leg: "decode"
        level: "INFO"
        message: "failed"
        method: "POST"
        outcome: "failed"
        path: "/v1/completions"
        request_bytes: 0
        request_id: "cmpl-2"
        status: 502
        stream: false
        target: "baton::access"
        total_ms: 5.0
    "#]]
    .assert_eq(&spread(&line));
}

#[test]
fn probes_are_logged_at_debug_alone_and_nothing_when_off() {
    let stand = Stand::new();
    let probe = Record { method: "GET", path: "/health".into(), status: 200, ..Record::default() };
    assert_eq!(logged("info", || stand.telemetry.record(&probe)), "");
    assert_eq!(logged("debug", || stand.telemetry.record(&probe)).lines().count(), 1);
    let stand = Stand::with_pair();
    assert_eq!(logged("baton::access=off,info", || stand.telemetry.record(&request(&stand))), "");
}

#[test]
fn the_span_is_made_on_demand_and_has_the_record() {
    let stand = Stand::with_pair();
    let run = || {
        let span = ExchangeSpan::new("chatcmpl-1", "POST", "/v1/chat/completions");
        span.settle(&request(&stand));
        assert!(span.listened().is_none_or(|span| span.metadata().is_some()));
    };
    assert_eq!(logged("info", run), "");
    let line = logged("info,baton::exchange=debug", run);
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    expect![[r#"
        attempts: 1
        decode: "w2"
        handoff: "relayed"
        method: "POST"
        model: "llama"
        name: "exchange"
        outcome: "served"
        path: "/v1/chat/completions"
        prefill: "w1"
        request_id: "chatcmpl-1"
        status: 200
    "#]]
    .assert_eq(&spread(&json["span"].to_string()));
}
