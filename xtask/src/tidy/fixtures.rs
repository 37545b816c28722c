//! For every rule: files where it must bite, and the mended files where it must not. A rule that cannot fail is no rule.

use super::{Tree, rules};

type Files = &'static [(&'static str, &'static str)];

const CORE: &str = "crates/core/src/x.rs";
const GATEWAY: &str = "crates/gateway/src/x.rs";

/// (rule, files that break it, files that keep it)
const CASES: &[(&str, Files, Files)] = &[
    ("parses", &[(CORE, "//! X.\nfn {")], &[(CORE, "//! X.\nfn f() {}\n")]),
    (
        "crate-direction",
        &[("crates/core/Cargo.toml", "[dependencies]\nbaton-gateway = { workspace = true }\n")],
        &[
            ("crates/core/Cargo.toml", "[dependencies]\nbytes = \"1\"\n"),
            (
                "crates/gateway/Cargo.toml",
                "[dependencies]\nbaton-core = { workspace = true }\n[dev-dependencies]\nbaton-sim = { workspace = true }\n",
            ),
        ],
    ),
    (
        "crate-direction",
        &[(
            "crates/gateway/Cargo.toml",
            "[target.'cfg(unix)'.dependencies]\ns = { package = \"baton-sim\" }\n",
        )],
        &[("crates/baton/Cargo.toml", "[dependencies]\nbaton-sim = { workspace = true }\n")],
    ),
    ("crate-direction", &[("crates/new/Cargo.toml", "[package]\n")], &[]),
    ("core-is-pure", &[(CORE, "use std::{env, fmt};\n")], &[(CORE, "use std::fmt;\n")]),
    (
        "core-is-pure",
        &[(CORE, "fn f() { tracing::info!(\"x\"); }\n")],
        &[(CORE, "fn f(log: u8) -> u8 { log }\n")],
    ),
    (
        "core-is-pure",
        &[(CORE, "use tokio::sync::mpsc;\n")],
        &[(CORE, "#[cfg(test)]\nmod tests { use std::fs; }\n")],
    ),
    (
        "core-clock",
        &[(CORE, "use std::time::Instant as I; fn f() { I::now(); }\n")],
        &[(CORE, "use std::time::Instant; fn f(now: Instant) {}\n")],
    ),
    (
        "core-clock",
        &[(CORE, "fn f(t: T) { t.elapsed(); }\n")],
        &[(CORE, "fn f(t: T, now: T) { now.since(t); }\n")],
    ),
    (
        "core-dice",
        &[(CORE, "fn f() { fastrand::u64(..); }\n")],
        &[("crates/core/src/dice.rs", "use fastrand::Rng;\n")],
    ),
    (
        "one-clock",
        &[(GATEWAY, "fn f() { tokio::time::Instant::now(); }\n")],
        &[("crates/gateway/src/clock.rs", "fn f() { tokio::time::Instant::now(); }\n")],
    ),
    (
        "one-clock",
        &[(GATEWAY, "fn f() { select! { _ = at(Instant::now()) => {} } }\n")],
        &[(GATEWAY, "#[test]\nfn f() { Instant::now(); }\n")],
    ),
    (
        "one-environment",
        &[(GATEWAY, "fn f() { std::env::var(\"X\"); }\n")],
        &[("crates/gateway/src/config/env.rs", "fn f() { std::env::var(\"X\"); }\n")],
    ),
    (
        "one-status-table",
        &[(GATEWAY, "fn f() { r.status(StatusCode::BAD_GATEWAY); }\n")],
        &[("crates/gateway/src/edge/answer.rs", "fn f() { StatusCode::OK; }\n")],
    ),
    (
        "one-status-table",
        &[(GATEWAY, "fn f() { if status == 503 {} }\n")],
        &[(GATEWAY, "fn f() { if status.is_success() { wait(503) } }\n")],
    ),
    (
        "one-status-table",
        &[(CORE, "fn f() { matches!(status, 500..=599); }\n")],
        &[(CORE, "use http::StatusCode; fn f(s: StatusCode) {}\n")],
    ),
    (
        "one-metrics-home",
        &[(GATEWAY, "use prometheus_client::metrics::counter::Counter;\n")],
        &[("crates/gateway/src/telemetry/a.rs", "use prometheus_client::registry::Registry;\n")],
    ),
    ("no-unsafe", &[(CORE, "fn f() { unsafe { g() } }\n")], &[(CORE, "fn f() { \"unsafe\"; }\n")]),
    (
        "no-panic",
        &[(CORE, "fn f() { g().unwrap(); }\n")],
        &[(CORE, "fn f() { g().unwrap_or(1); }\n#[cfg(test)]\nmod tests { fn f() { g().unwrap(); } }\n")],
    ),
    (
        "no-panic",
        &[(CORE, "fn f() { g().expect(\"never\"); }\n")],
        &[(CORE, "fn f(p: P) { p.expect(b'x'); }\n")],
    ),
    (
        "no-panic",
        &[(CORE, "fn f() { panic!(); }\n")],
        &[("crates/core/tests/x.rs", "fn f() { panic!(); }\n")],
    ),
    (
        "no-print",
        &[(GATEWAY, "fn f() { println!(\"x\"); }\n")],
        &[("crates/baton/src/demo.rs", "fn f() { println!(\"x\"); }\n")],
    ),
    (
        "no-thread-sleep",
        &[(GATEWAY, "#[test]\nfn f() { std::thread::sleep(d); }\n")],
        &[(GATEWAY, "async fn f() { tokio::time::sleep(d).await; }\n")],
    ),
    (
        "engine-unasked",
        &[(GATEWAY, "fn f() { if e == Engine::Vllm {} }\n")],
        &[("crates/core/src/handoff/vllm.rs", "fn f() { Engine::Vllm; }\n")],
    ),
    (
        "role-unasked",
        &[(GATEWAY, "fn f() { match r { Role::Prefill => {} } }\n")],
        &[("crates/core/src/fleet/worker.rs", "fn f() { Role::Prefill; }\n")],
    ),
    ("plain-type-names", &[(CORE, "struct PoolManager;\n")], &[(CORE, "struct Pool;\n")]),
    (
        "plain-file-names",
        &[("crates/core/src/utils/mod.rs", "//! U.\n")],
        &[("crates/core/src/load.rs", "//! L.\n")],
    ),
    (
        "function-lines",
        &[("xtask/ratchet.toml", "[function-lines]\n\"a::f\" = 80\n")],
        &[("xtask/ratchet.toml", "")],
    ),
    ("file-lines", &[("xtask/ratchet.toml", "[file-lines]\n\"a\" = 800\n")], &[("xtask/ratchet.toml", "")]),
    (
        "arguments",
        &[(CORE, "fn f(a: A, b: B, c: C, d: D, e: E, f: F) {}\n")],
        &[(CORE, "fn f(a: A, b: B, c: C, d: D, e: E) {}\n")],
    ),
    (
        "ratchet-format",
        &[("xtask/ratchet.toml", "[lines]\n")],
        &[("xtask/ratchet.toml", "[arguments]\n\"a\" = 7\n")],
    ),
    (
        "flags-documented",
        &[("crates/baton/src/demo.rs", "struct A { #[arg(long)] once: bool }\n")],
        &[
            ("crates/baton/src/demo.rs", "struct A { #[arg(long)] once: bool }\n"),
            ("docs/flags.md", "`--once`\n"),
        ],
    ),
    (
        "environment-documented",
        &[(GATEWAY, "const A: &str = \"BATON_PORT\";\n")],
        &[(GATEWAY, "const A: &str = \"BATON_PORT\";\n"), ("docs/flags.md", "`BATON_PORT`\n")],
    ),
    (
        "metrics-documented",
        &[("crates/gateway/src/telemetry/a.rs", "const A: &str = \"baton_legs\";\n")],
        &[
            ("crates/gateway/src/telemetry/a.rs", "const A: &str = \"baton_legs\";\n"),
            ("docs/metrics.md", "`baton_legs_total`\n"),
        ],
    ),
    (
        "fault-codes-documented",
        &[("crates/core/src/fault.rs", "const A: &str = \"no_pair\";\n")],
        &[("crates/core/src/fault.rs", "const A: &str = \"no_pair\";\n"), ("docs/errors.md", "`no_pair`\n")],
    ),
    (
        "limits-documented",
        &[("crates/core/src/limits.rs", "pub struct Limits { pub body_bytes: u64 }\n")],
        &[
            ("crates/core/src/limits.rs", "pub struct Limits { pub body_bytes: u64 }\n"),
            ("docs/limits.md", "`body_bytes`\n"),
        ],
    ),
    ("module-docs", &[(CORE, "fn f() {}\n")], &[(CORE, "//! What it decides.\n")]),
    (
        "no-machine-paths",
        &[("README.md", concat!("see /", "tmp/x\n"))],
        &[("README.md", concat!("see target/", "tmp/x\n"))],
    ),
    (
        "no-registry-hosts",
        &[("README.md", concat!("from pypi", ".org\n"))],
        &[("Cargo.lock", concat!("from pypi", ".org\n"))],
    ),
    ("no-trailing-space", &[("README.md", "text \n")], &[("README.md", "text\n")]),
    ("no-trailing-space", &[("README.md", "text")], &[("a.txt", "text ")]),
    ("docs-are-linked", &[("docs/a.md", "A\n")], &[("docs/a.md", "A\n"), ("README.md", "[a](docs/a.md)\n")]),
    (
        "links-lead-somewhere",
        &[("README.md", "[a](docs/a.md)\n")],
        &[("README.md", "[a](docs/a.md#x) [b](https://b.example)\n"), ("docs/a.md", "A\n")],
    ),
    (
        "pages-exist",
        &[(CORE, "//! X (see facts.md 3).\n")],
        &[(CORE, "//! X (see docs/facts.md).\n"), ("docs/facts.md", "Facts: https://a.example/b.md.\n")],
    ),
];

fn findings(rule: &str, files: Files) -> usize {
    let tree = Tree::of(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect());
    let rule = rules().into_iter().find(|candidate| candidate.name == rule).unwrap();
    (rule.check)(&tree).len()
}

#[test]
fn every_rule_bites_where_it_must_and_only_there() {
    for (rule, bad, good) in CASES {
        assert!(findings(rule, bad) > 0, "{rule} does not bite on {bad:?}");
        assert_eq!(findings(rule, good), 0, "{rule} bites on {good:?}");
    }
}

#[test]
fn every_rule_has_a_fixture() {
    let untested: Vec<&str> = rules()
        .iter()
        .map(|rule| rule.name)
        .filter(|name| !CASES.iter().any(|(rule, ..)| rule == name))
        .collect();
    assert!(untested.is_empty(), "no fixture for {untested:?}");
}
