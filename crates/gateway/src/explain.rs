//! Receipts of placements as JSON: whole for pages and `baton decide`, compact for a header.

use std::fmt::Write;

use baton_core::place::receipt::{Charged, OfLeg, Receipt, Score, Step};
use baton_core::record::Record;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

/// Asks for a receipt with `1`, and brings it.
pub const EXPLAIN: HeaderName = HeaderName::from_static("x-baton-explain");

/// Scores of one leg that a receipt in a header has.
const SCORES_TOLD: usize = 8;
/// Longest receipt in a header, in bytes. A longer one is told without terms, then without scores.
pub const RECEIPT_MAX: usize = 4096;

/// Does the client ask for a receipt?
pub fn is_asked(headers: &HeaderMap) -> bool {
    headers.get(EXPLAIN).is_some_and(|value| value == "1")
}

/// The receipt of a record's last placement, for a header. `None`: nothing was written down.
pub fn header(record: &Record) -> Option<HeaderValue> {
    HeaderValue::from_str(&compact(record)?).ok()
}

/// The same as a comment of an event stream.
pub fn comment(record: &Record) -> Option<Bytes> {
    Some(format!(": {EXPLAIN} {}\n\n", compact(record)?).into())
}

fn compact(record: &Record) -> Option<String> {
    let receipt = record.receipts.last()?;
    let ways: [fn(&OfLeg) -> Value; 3] = [|leg| scores(leg, SCORES_TOLD), plain_scores, |_| Value::Null];
    let mut told = ways.iter().map(|scores| {
        let fired = receipt.steps.iter().filter(|s| s.fired);
        let leg = |leg: &OfLeg, worker: Option<&str>| json!({"chosen": worker, "tied": leg.tied.len(), "scores": scores(leg)});
        let id = |worker: &Option<std::sync::Arc<baton_core::fleet::Worker>>| worker.as_ref().map(|w| w.id.clone());
        let (prefill, decode) = (id(&record.prefill), id(&record.decode));
        ascii(&json!({
            "strategy": receipt.strategy,
            "profile": receipt.profile,
            "prompt": receipt.size(),
            "attempts": record.attempts,
            "fired": fired.map(|s| json!([s.name, s.detail])).collect::<Value>(),
            "prefill": leg(&receipt.prefill, prefill.as_deref()),
            "decode": leg(&receipt.decode, decode.as_deref()),
        }).to_string())
    });
    told.find(|text| text.len() <= RECEIPT_MAX)
}

/// As a header can hold it.
fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

/// A receipt as JSON, its numbers to the last digit.
pub fn receipt(receipt: &Receipt) -> Value {
    Value::Object(members(receipt))
}

/// Its members.
pub fn members(receipt: &Receipt) -> Map<String, Value> {
    let step = |s: &Step| json!({"name": s.name, "fired": s.fired, "detail": s.detail});
    let charge = |c: &Charged| json!({"worker": c.worker, "what": c.what, "tokens": c.tokens});
    let mut all = Map::new();
    let mut set = |key: &str, value: Value| drop(all.insert(key.to_owned(), value));
    set("strategy", json!(receipt.strategy));
    set("profile", json!(receipt.profile));
    set("prompt", json!(receipt.size()));
    set("candidates_tied", json!({"prefill": receipt.prefill.tied, "decode": receipt.decode.tied}));
    set("steps", receipt.steps.iter().map(step).collect());
    set("prefill_scores", scores(&receipt.prefill, usize::MAX));
    set("decode_scores", scores(&receipt.decode, usize::MAX));
    set("charges", receipt.charges.iter().map(charge).collect());
    all
}

fn scores(leg: &OfLeg, most: usize) -> Value {
    let terms = |s: &Score| -> Map<String, Value> {
        s.terms.iter().map(|(name, x)| ((*name).to_owned(), number(*x))).collect()
    };
    let each = leg.scores.iter().take(most).map(
        |s| json!({"worker": s.worker, "score": number(s.score), "terms": terms(s), "skipped": s.skipped}),
    );
    each.collect()
}

fn plain_scores(leg: &OfLeg) -> Value {
    let each = leg.scores.iter().take(SCORES_TOLD);
    each.map(|s| json!({"worker": s.worker, "score": number(s.score), "skipped": s.skipped.is_some()}))
        .collect()
}

/// JSON has no infinity, so that is a text; what is no number is null.
fn number(x: f64) -> Value {
    if x.is_infinite() { json!(if x > 0.0 { "Infinity" } else { "-Infinity" }) } else { json!(x) }
}
