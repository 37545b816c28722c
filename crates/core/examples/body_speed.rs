//! How long parsing and splicing take for usual and for large bodies.
//! `cargo run --release -p baton-core --example body_speed`

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use baton_core::body::{BodyLimits, Edit, Envelope, scalar};
use bytes::Bytes;

fn main() {
    let chat = r#"{"model":"meta-llama/Llama-3.1-8B-Instruct","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"What is the capital of France? Answer in one word."}],"temperature":0.70,"max_tokens":128,"stream":true,"stream_options":{"include_usage":true},"user":"u-1"}"#;
    measure("chat, 0.3 KB", chat.to_owned());
    let turn = r#"{"role":"user","content":"Tell me more about \"this\", please.\nAnd be brief."},"#;
    measure("chat, 1000 turns", format!(r#"{{"messages":[{}{{}}],"stream":true}}"#, turn.repeat(1000)));
    for kib in [64, 1024, 10 * 1024] {
        measure(&format!("ASCII prompt, {kib} KiB"), prompt("all of it plain text ", kib * 1024));
    }
    measure("prompt with \\n every 60, 1 MiB", prompt(&format!("{}\\n", "x".repeat(60)), 1 << 20));
    measure("code with escapes, 1 MiB", prompt(r#"let a = \"b\";\n    if (c) {\n"#, 1 << 20));
    measure("Chinese prompt, 1 MiB", prompt("从前有座山，山里有座庙。", 1 << 20));
    measure("\\u escapes only, 1 MiB", prompt(r"\u4ece\u524d", 1 << 20));
    let ids: Vec<_> = (0..100_000u32).map(|id| (id * 7919 % 128_000).to_string()).collect();
    measure("100000 token ids", format!(r#"{{"prompt":[{}]}}"#, ids.join(",")));
    measure("the same, spaced", format!(r#"{{"prompt":[{}]}}"#, ids.join(", ")));
    let raw = format!("[{}]", ids.join(","));
    report("array_len of them", raw.len(), || {
        black_box(scalar::array_len(black_box(raw.as_bytes())));
    });
}

fn prompt(unit: &str, bytes: usize) -> String {
    format!(r#"{{"model":"m","prompt":"{}","stream":true}}"#, unit.repeat(bytes / unit.len()))
}

fn measure(name: &str, body: String) {
    let body = Bytes::from(body);
    report(name, body.len(), || {
        black_box(Envelope::parse(black_box(body.clone()), &BodyLimits::default()).unwrap());
    });
    let envelope = Envelope::parse(body.clone(), &BodyLimits::default()).unwrap();
    let edits = [
        Edit::set("bootstrap_host", "\"10.0.0.1\""),
        Edit::set("bootstrap_port", "8998"),
        Edit::set_u64("bootstrap_room", 1 << 61),
        Edit::set("stream", "false"),
        Edit::set("max_tokens", "1"),
        Edit::remove("stream_options"),
        Edit::remove("kv_transfer_params"),
    ];
    report("  splice, 7 edits", body.len(), || {
        black_box(black_box(&envelope).splice(black_box(&edits)).pieces());
    });
}

/// The best of several rounds: the least disturbed by whatever else the machine does.
fn report(name: &str, bytes: usize, mut run: impl FnMut()) {
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let (start, mut rounds) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(10) {
            for _ in 0..(20_000 / bytes).max(1) {
                run();
                rounds += 1;
            }
        }
        best = best.min(start.elapsed() / rounds);
    }
    let rate = bytes as f64 / best.as_secs_f64() / 1e9;
    println!("{name:34} {bytes:>9} B  {best:>11.2?}  {rate:7.2} GB/s");
}
