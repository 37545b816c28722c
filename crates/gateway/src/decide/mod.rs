//! `baton decide`: who would serve these requests, and why? A described fleet instead of a real one.
//!
//! The scenario is read strictly ([`scenario`]), played on the core that serves ([`replay`]), and what came of it is
//! shown ([`output`]) or compared with what the scenario expects ([`expect`]). docs/decide.md describes both files.

mod engine;
mod expect;
mod line;
mod output;
mod paper;
mod read;
mod replay;
mod request;
mod scenario;
mod spell;
mod state;

use std::fmt;

use serde_json::{Map, Value, json};

pub use output::Decision;
pub use scenario::REQUESTS_MAX;
pub use spell::SPELLED_MAX_BYTES;
pub use state::State;

use replay::Played;
use scenario::Scenario;

use crate::config::{Config, is_read};

/// Largest scenario that is read, in bytes.
pub const SCENARIO_MAX_BYTES: u64 = 64 << 20;

/// A scenario that cannot be played: where, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct BadScenario {
    path: String,
    line: Option<usize>,
    reason: String,
}

impl fmt::Display for BadScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.reason),
            None => write!(f, "{}: {}", self.path, self.reason),
        }
    }
}

impl std::error::Error for BadScenario {}

/// What came of one scenario.
#[derive(Debug)]
pub struct Report {
    pub path: String,
    /// Settings that were given and have no effect, and what of the workers' configs has none.
    pub warnings: Vec<String>,
    /// In the order of the scenario's requests.
    pub decisions: Vec<Decision>,
    /// Of the fleet, at the end.
    pub state: State,
    /// What was counted, where requests were carried out.
    pub counters: Option<Map<String, Value>>,
    /// Where an output is not as the scenario expects, one sentence each.
    pub unmet: Vec<String>,
}

impl Report {
    pub fn to_json(&self) -> Value {
        let requests: Value = self.decisions.iter().map(Decision::to_json).collect();
        let mut all = json!({
            "scenario": self.path,
            "warnings": self.warnings,
            "requests": requests,
            "state": self.state.to_json(),
            "unmet": self.unmet,
        });
        if let Some(counters) = &self.counters {
            all["counters"] = json!(counters);
        }
        all
    }

    pub fn to_text(&self) -> String {
        let mut out = format!("{}\n", self.path);
        for (i, decision) in (1..).zip(&self.decisions) {
            out += &format!("request {i}: {}", decision.to_text());
        }
        out += &self.state.to_text();
        for unmet in &self.unmet {
            out += &format!("not as expected: {unmet}\n");
        }
        out
    }
}

/// Reads and plays the scenario in this file.
///
/// # Errors
/// The file cannot be read, or is no scenario.
pub fn decide_file(path: &str) -> Result<Report, BadScenario> {
    let broken = |reason: String| BadScenario { path: path.to_owned(), line: None, reason };
    let unreadable = |error: std::io::Error| broken(format!("cannot be read: {error}"));
    if std::fs::metadata(path).map_err(unreadable)?.len() > SCENARIO_MAX_BYTES {
        return Err(broken(format!("is larger than {SCENARIO_MAX_BYTES} bytes")));
    }
    decide(path, &std::fs::read_to_string(path).map_err(unreadable)?)
}

/// As [`decide_file`], from text; `path` is for messages.
///
/// # Errors
/// The text is no scenario.
pub fn decide(path: &str, text: &str) -> Result<Report, BadScenario> {
    let broken = |line, reason| BadScenario { path: path.to_owned(), line, reason };
    let scenario = scenario::parse(text).map_err(|(line, reason)| broken(Some(line), reason))?;
    let args = scenario.flags.iter().flat_map(|flag| words(flag)).map(Into::into);
    let env = |name: &str| scenario.env.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
    let loaded = Config::load(args, &env).map_err(|error| broken(None, error.to_string()))?;
    if let [first, ..] = loaded.refusals().as_slice() {
        return Err(broken(None, first.clone()));
    }
    let mut warnings = loaded.warnings();
    warnings.extend(
        scenario
            .env
            .iter()
            .filter(|(name, _)| !is_read(name))
            .map(|(name, _)| format!("{name} is read by nothing here")),
    );
    let played = replay::play(&scenario, &loaded.config).map_err(|reason| broken(None, reason))?;
    let Played { decisions, complaints, state, counters } = played;
    warnings.extend(complaints);
    let mut report =
        Report { path: path.to_owned(), warnings, decisions, state, counters, unmet: Vec::new() };
    report.unmet = unmet(&scenario, &report);
    Ok(report)
}

/// Where the output is not as the scenario expects.
fn unmet(scenario: &Scenario, report: &Report) -> Vec<String> {
    let mut unmet = Vec::new();
    if let Some(due) = &scenario.expect {
        let mut got: Vec<Vec<Value>> = due.iter().map(|_| Vec::new()).collect();
        for (request, decision) in scenario.requests.iter().zip(&report.decisions) {
            got[request.listed].push(decision.to_json());
        }
        unmet.extend(expect::unmet(due, &got));
    }
    let counters = report.counters.clone().unwrap_or_default();
    unmet.extend(expect::miscounted(&scenario.expect_counters, &counters));
    if let Some(due) = &scenario.expect_output {
        unmet.extend(expect::unmet_of(due, &report.to_json()));
    }
    unmet
}

/// A flag may stand with its values in one text.
fn words(flag: &str) -> Vec<&str> {
    if flag.starts_with("--") { flag.split_whitespace().collect() } else { vec![flag] }
}
