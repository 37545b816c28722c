//! Runs the scripts in `tests/scripts`: lines that begin with `>` go in, what stands below them comes out.
//!
//! `UPDATE_EXPECT=1` rewrites the outputs; the diff is what a reviewer reads. A script's first line names the
//! machine that it drives.

mod fleet;
mod simple;

use std::path::{Path, PathBuf};

use expect_test::expect_file;

use crate::telling::Telling;
use fleet::FleetScript;
use simple::{AdmissionScript, BreakerScript, HealthScript};

/// One machine, driven by lines.
trait Machine {
    /// What comes of one line.
    fn hear(&mut self, words: &[&str]) -> String;
}

impl Machine for Telling {
    fn hear(&mut self, words: &[&str]) -> String {
        Telling::hear(self, &words.join(" ")).replace(", ", "\n")
    }
}

/// `= breaker failures=2 rest=5`: the name and its settings.
fn machine(head: &str) -> Box<dyn Machine> {
    let mut words = head.trim_start_matches("= ").split_whitespace();
    let name = words.next().unwrap_or_default();
    let settings: Vec<(&str, u32)> = words
        .map(|word| {
            let (key, value) = word.split_once('=').expect("settings are written key=value");
            (key, value.parse().expect("a setting is a number"))
        })
        .collect();
    let get = |key: &str| {
        let found = settings.iter().find(|(k, _)| *k == key);
        found.unwrap_or_else(|| panic!("{name} wants {key}=N")).1
    };
    match name {
        "exchange" => Box::new(Telling::new(get("attempts"))),
        "breaker" => Box::new(BreakerScript::new(get("failures"), get("successes"), get("rest"))),
        "health" => Box::new(HealthScript::new(get("success"), get("failure"))),
        "admission" => Box::new(AdmissionScript::new(get("concurrent"), get("queue"))),
        "fleet" => Box::new(FleetScript::default()),
        other => panic!("no such machine: {other}"),
    }
}

/// The script with its outputs as they are now. Comments stay.
fn run(script: &str) -> String {
    let head = script.lines().find(|line| line.starts_with("= ")).expect("a script names its machine");
    let mut machine = machine(head);
    let mut out = String::new();
    for line in script.lines() {
        if let Some(input) = line.strip_prefix("> ") {
            let words: Vec<&str> = input.split_whitespace().collect();
            out += &format!("{line}\n{}\n", machine.hear(&words));
        } else if line.is_empty() || line.starts_with(['#', '=']) {
            out += &format!("{line}\n");
        }
    }
    out
}

fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    // Another machine's scripts have a directory of their own.
    let mut all: Vec<PathBuf> = all.filter(|path| path.is_file()).collect();
    all.sort();
    all
}

#[test]
fn each_script_says_what_comes_out() {
    let all = scripts();
    assert!(all.len() > 5, "the scripts are not where they should be");
    for path in all {
        println!("{}", path.display());
        let script = std::fs::read_to_string(&path).unwrap();
        expect_file![&path].assert_eq(&run(&script));
    }
}
