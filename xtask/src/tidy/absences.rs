//! What must not be mentioned, and where it may be after all.
//!
//! Most of the design is held up by absences: a core without a clock, a status code in one table, metrics written in one
//! place. Each is one row here. `allowed` lists the places where the thing belongs, not exceptions won by asking.

use super::code::{Code, Mention};
use super::tree::under;
use super::{Finding, Rule, Tree};

pub struct Absence {
    name: &'static str,
    why: &'static str,
    mend: &'static str,
    /// Files and folders (ending in `/`) that the rule looks at.
    scope: &'static [&'static str],
    /// Those inside the scope where the thing belongs.
    allowed: &'static [&'static str],
    /// Whether test code counts as well.
    in_tests: bool,
    needles: &'static [Needle],
    check: fn(&Tree) -> Vec<Finding>,
}

enum Needle {
    /// This path or anything below it, after resolving imports.
    Path(&'static str),
    /// A path that ends in these segments.
    PathEnd(&'static str),
    /// These tokens in a row.
    Tokens(&'static [&'static str]),
    /// These tokens in a row, then a string literal.
    TokensThenText(&'static [&'static str]),
    /// A constant of `http::StatusCode`, or a number from 100 to 599 next to the word `status` or `code`.
    StatusCode,
    /// A variant of one of these enums.
    VariantOf(&'static [&'static str]),
}

use Needle::{Path, PathEnd, StatusCode, Tokens, TokensThenText, VariantOf};

const PRODUCT: &[&str] = &["crates/core/", "crates/gateway/", "crates/sim/", "crates/baton/"];
const CORE: &[&str] = &["crates/core/src/"];

macro_rules! absences {
    ($($name:literal { $($field:ident : $value:expr),* $(,)? })*) => {
        pub const RULES: &[Absence] = &[$(Absence {
            name: $name,
            check: |tree| find(tree, $name),
            $($field: $value),*
        }),*];
    };
}

absences! {
    "core-is-pure" {
        why: "Decisions are functions of their arguments: they can be walked exhaustively, replayed and proved only \
              without sockets, files, threads, environment, log or metrics.",
        mend: "pass the value in as an argument, or move the code to the gateway",
        scope: CORE,
        allowed: &[],
        in_tests: false,
        needles: &[
            Path("tokio"), Path("hyper"), Path("std::net::TcpStream"), Path("std::net::TcpListener"),
            Path("std::net::UdpSocket"), Path("std::fs"), Path("std::io::stdin"), Path("std::io::stdout"),
            Path("std::io::stderr"), Path("std::env"), Path("std::thread"), Path("std::process"), Path("tracing"),
            Path("log"), Path("prometheus_client"), Path("rand"), Path("getrandom"), Path("uuid"),
        ],
    }
    "core-clock" {
        why: "Time is an argument of the core, so that a story, a replay and a bug report can set it.",
        mend: "take `now` as an argument",
        scope: CORE,
        allowed: &[],
        in_tests: true,
        needles: &[PathEnd("Instant::now"), PathEnd("SystemTime::now"), Tokens(&[".", "elapsed", "("])],
    }
    "core-dice" {
        why: "Chance is an argument of the core: the same seed must give the same answer.",
        mend: "draw from `Dice`, which the caller seeds",
        scope: CORE,
        allowed: &["crates/core/src/dice.rs"],
        in_tests: false,
        needles: &[Path("fastrand")],
    }
    "one-clock" {
        why: "One file reads the clock, so that paused time in tests and virtual time in simulations reach everything.",
        mend: "use clock.rs of the crate",
        scope: &["crates/gateway/src/", "crates/sim/src/", "crates/baton/src/"],
        allowed: &["crates/gateway/src/clock.rs", "crates/sim/src/clock.rs"],
        in_tests: false,
        needles: &[PathEnd("Instant::now"), PathEnd("SystemTime::now"), Tokens(&[".", "elapsed", "("])],
    }
    "one-environment" {
        why: "One road for settings: flags, environment and file become one config, or `baton check` tells lies.",
        mend: "add a setting to the config instead",
        scope: PRODUCT,
        allowed: &["crates/gateway/src/config/", "crates/baton/src/main.rs", "crates/baton/src/launch.rs"],
        in_tests: false,
        needles: &[Path("std::env")],
    }
    "one-status-table" {
        why: "What a client sees for each fault stands in one table; statuses spread over the code contradict each other.",
        mend: "give the fault a row in core's fault.rs and pass statuses from upstream on as they are",
        scope: PRODUCT,
        allowed: &["crates/core/src/fault.rs", "crates/gateway/src/edge/", "crates/sim/"],
        in_tests: false,
        needles: &[StatusCode],
    }
    "one-metrics-home" {
        why: "Metrics are made from the record of an exchange; a metric call in a handler is forgotten on the next path.",
        mend: "put what you know into the record or an event and count it in telemetry",
        scope: PRODUCT,
        allowed: &["crates/gateway/src/telemetry/"],
        in_tests: false,
        needles: &[Path("prometheus_client"), Path("prometheus"), Path("metrics")],
    }
    "no-unsafe" {
        why: "Nothing here is worth a memory bug.",
        mend: "write it safely, or use a library that proves its case",
        scope: PRODUCT,
        allowed: &[],
        in_tests: true,
        needles: &[Tokens(&["unsafe"])],
    }
    "no-panic" {
        why: "A gateway that panics drops the streams of everyone on that worker thread.",
        mend: "return an error or a fault, or make the bad state unrepresentable",
        scope: &["crates/core/", "crates/gateway/", "crates/sim/", "crates/baton/", "xtask/"],
        allowed: &[],
        in_tests: false,
        needles: &[
            Tokens(&[".", "unwrap", "("]), TokensThenText(&[".", "expect", "("]), Tokens(&["panic", "!"]),
            Tokens(&["todo", "!"]), Tokens(&["unimplemented", "!"]), Tokens(&["unreachable", "!"]),
        ],
    }
    "no-print" {
        why: "Output of the libraries goes through the record and the log; a stray print corrupts what scripts read.",
        mend: "log it, return it, or print it in the binary",
        scope: &["crates/core/", "crates/gateway/", "crates/sim/"],
        allowed: &[],
        in_tests: false,
        needles: &[
            Tokens(&["println", "!"]), Tokens(&["print", "!"]), Tokens(&["eprintln", "!"]), Tokens(&["eprint", "!"]),
            Tokens(&["dbg", "!"]),
        ],
    }
    "no-thread-sleep" {
        why: "A sleeping thread stalls every stream on it, and a sleeping test is slow on some days and wrong on others.",
        mend: "wait for an event, or use paused time in tests",
        scope: PRODUCT,
        allowed: &[],
        in_tests: true,
        needles: &[Path("std::thread::sleep")],
    }
    "engine-unasked" {
        why: "An engine or a connector is one file in core::handoff. Code elsewhere that asks which engine it is talking to \
              has to be found and changed for every new one.",
        mend: "let the plan say what differs",
        scope: PRODUCT,
        allowed: &[
            "crates/core/src/handoff/", "crates/core/src/fleet/", "crates/gateway/src/config/",
            "crates/gateway/src/probe/", "crates/gateway/src/discovery/", "crates/gateway/src/discovery.rs", "crates/gateway/src/edge/admin/",
            "crates/sim/", "crates/baton/src/demo.rs", "crates/baton/src/sim.rs",
        ],
        in_tests: false,
        needles: &[VariantOf(&["Engine", "Runtime", "Connector"])],
    }
    "role-unasked" {
        why: "Prefill/decode is not a mode that code asks about: who pairs with whom is the fleet's, what to send is the \
              plan's.",
        mend: "ask the fleet for the workers of a leg, or the plan for its legs",
        scope: PRODUCT,
        allowed: &[
            "crates/core/src/handoff/", "crates/core/src/fleet/", "crates/core/src/place/",
            "crates/gateway/src/config/", "crates/gateway/src/probe/", "crates/gateway/src/discovery/", "crates/gateway/src/discovery.rs",
            "crates/gateway/src/decide/", "crates/gateway/src/edge/admin/", "crates/gateway/src/telemetry/", "crates/sim/",
            "crates/baton/src/demo.rs", "crates/baton/src/sim.rs",
        ],
        in_tests: false,
        needles: &[VariantOf(&["Role"])],
    }
}

impl Absence {
    pub fn rule(&self) -> Rule {
        Rule { name: self.name, why: self.why, check: self.check }
    }
}

fn find(tree: &Tree, name: &str) -> Vec<Finding> {
    let Some(absence) = RULES.iter().find(|absence| absence.name == name) else { return Vec::new() };
    let mut found = Vec::new();
    for (file, code) in tree.code(absence.scope).filter(|(file, _)| !under(&file.path, absence.allowed)) {
        let mut hits: Vec<Mention> = absence.needles.iter().flat_map(|needle| needle.hits(code)).collect();
        hits.retain(|hit| absence.in_tests || !hit.test);
        hits.sort_by_key(|hit| hit.line);
        hits.dedup();
        found.extend(hits.iter().map(|hit| {
            Finding::new(&file.path, hit.line, format!("`{}`: {}", hit.text.trim(), absence.mend))
        }));
    }
    found
}

impl Needle {
    fn hits(&self, code: &Code) -> Vec<Mention> {
        match self {
            Path(wanted) => {
                let below = format!("{wanted}::");
                let is_it = |path: &str| path == *wanted || path.starts_with(&below);
                code.paths
                    .iter()
                    .filter(|path| is_it(&path.text))
                    .filter(|path| is_path(code, path))
                    .cloned()
                    .collect()
            }
            PathEnd(wanted) => {
                let end = format!("::{wanted}");
                let ends = |path: &str| path == *wanted || path.ends_with(&end);
                code.paths.iter().filter(|path| ends(&path.text)).cloned().collect()
            }
            Tokens(pattern) => runs(code, pattern, |_| true),
            TokensThenText(pattern) => runs(code, pattern, |next| next.starts_with(['"', 'r'])),
            StatusCode => statuses(code),
            VariantOf(enums) => {
                let is_variant = |path: &str| {
                    let mut parts = path.rsplit("::");
                    let (last, owner) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                    enums.contains(&owner)
                        && last.starts_with(char::is_uppercase)
                        && last.contains(char::is_lowercase)
                };
                code.paths.iter().filter(|path| is_variant(&path.text)).cloned().collect()
            }
        }
    }
}

/// A bare word such as a variable called `log` is no mention of the crate `log`.
fn is_path(code: &Code, path: &Mention) -> bool {
    path.text.contains("::")
        || code
            .tokens
            .windows(2)
            .any(|two| two[0].line == path.line && two[0].text == "use" && two[1].text == path.text)
}

fn runs(code: &Code, pattern: &[&str], next: impl Fn(&str) -> bool) -> Vec<Mention> {
    let length = pattern.len();
    let matches = |run: &[Mention]| run.iter().zip(pattern).all(|(token, wanted)| token.text == *wanted);
    (0..code.tokens.len().saturating_sub(length))
        .filter(|&at| matches(&code.tokens[at..at + length]) && next(&code.tokens[at + length].text))
        .map(|at| Mention { text: pattern.concat(), ..code.tokens[at].clone() })
        .collect()
}

fn statuses(code: &Code) -> Vec<Mention> {
    let constant = |path: &&Mention| {
        let (owner, name) = path.text.rsplit_once("::").unwrap_or_default();
        owner.ends_with("StatusCode") && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    let mut found: Vec<Mention> = code.paths.iter().filter(constant).cloned().collect();
    for run in code.tokens.windows(3) {
        let word = run[0].text.to_ascii_lowercase();
        let speaks_of_it = word.ends_with("status") || word.ends_with("code") || word == "from_u16";
        let joins = [":", "=", "==", "!=", "<", ">", "<=", ">=", "(", ","].contains(&run[1].text.as_str());
        if speaks_of_it && joins && is_status(&run[2].text) {
            let text = format!("{} {} {}", run[0].text, run[1].text, run[2].text);
            found.push(Mention { text, ..run[2].clone() });
        }
    }
    found
}

fn is_status(literal: &str) -> bool {
    let digits = literal.trim_end_matches("u16");
    digits.len() == 3 && digits.parse::<u16>().is_ok_and(|n| (100..600).contains(&n))
}
