//! The repository's rules as code: each has a name, a reason, and a message that says how to mend what it found.
//!
//! A rule is a function from the tree of files to findings. It reads nothing else (the one exception, `packages`, asks
//! cargo), so that each is tested on a few lines of text in `fixtures`, once where it must bite and once where it must
//! not. What a rule cannot express has no place here: it belongs in STYLE.md, for people.

mod absences;
mod code;
mod crates;
mod docs;
#[cfg(test)]
mod fixtures;
mod names;
mod packages;
mod sizes;
mod text;
mod tree;

use std::path::Path;
use std::process::ExitCode;

pub use tree::Tree;

pub enum Mode {
    Check,
    /// Check after rewriting the ratchet.
    Bless,
}

pub struct Rule {
    pub name: &'static str,
    pub why: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

#[derive(Debug)]
pub struct Finding {
    pub path: String,
    /// Counted from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong and how to mend it.
    pub message: String,
}

impl Finding {
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

/// Findings shown of each rule; after a dozen of one kind the rest says nothing new.
const SHOWN: usize = 12;

/// Every rule that needs nothing but the files.
pub fn rules() -> Vec<Rule> {
    let mut rules = vec![
        Rule {
            name: "parses",
            why: "A file that does not parse is a file that no other rule has looked at.",
            check: text::parses,
        },
        Rule {
            name: "crate-direction",
            why: "Decisions stay testable without a runtime only while the core depends on nothing of ours.",
            check: crates::direction,
        },
    ];
    rules.extend(absences::RULES.iter().map(absences::Absence::rule));
    rules.extend(names::RULES);
    rules.extend(sizes::RULES);
    rules.extend(docs::RULES);
    rules.extend(text::RULES);
    rules
}

/// `cargo xtask tidy`.
pub fn run(root: &Path, mode: Mode) -> ExitCode {
    match check(root, mode) {
        Ok(report) => {
            print!("{}", report.text);
            if report.findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}

/// `cargo xtask tidy --rules`.
pub fn list() -> ExitCode {
    for rule in rules() {
        println!("{:<22} {}", rule.name, rule.why);
    }
    println!("{:<22} {}", packages::NAME, packages::WHY);
    ExitCode::SUCCESS
}

struct Report {
    findings: usize,
    text: String,
}

fn check(root: &Path, mode: Mode) -> Result<Report, Box<dyn std::error::Error>> {
    if matches!(mode, Mode::Bless) {
        let blessed = sizes::bless(&Tree::read(root)?);
        std::fs::write(root.join(sizes::RATCHET), blessed)?;
    }
    let tree = Tree::read(root)?;
    let mut text = String::new();
    let mut findings = 0;
    let mut add = |name: &str, why: &str, found: Vec<Finding>| {
        findings += found.len();
        if !found.is_empty() {
            text.push_str(&format!("{name}: {why}\n"));
        }
        for Finding { path, line, message } in found.iter().take(SHOWN) {
            text.push_str(&format!("  {path}:{line}: {message}\n"));
        }
        if let Some(more) = found.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            text.push_str(&format!("  ... and {more} more\n"));
        }
    };
    for rule in rules() {
        add(rule.name, rule.why, (rule.check)(&tree));
    }
    add(packages::NAME, packages::WHY, packages::check(root, &tree)?);
    text.push_str(&sizes::summary(&tree));
    text.push_str(&format!("tidy: {} rules, {findings} findings\n", rules().len() + 1));
    Ok(Report { findings, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let report = check(&crate::root(), Mode::Check).unwrap();
        assert_eq!(report.findings, 0, "\n{}", report.text);
    }
}
