//! Sizes, as a ratchet: what is too large today may not grow, and when it shrinks the list must say so.
//!
//! The limits are for what is new. Today's exceptions stand in the ratchet file with their size; `--bless` rewrites it,
//! and the diff shows a reviewer what grew.

use std::collections::BTreeMap;

use super::{Finding, Rule, Tree};

pub const RATCHET: &str = "xtask/ratchet.toml";

const SCOPE: &[&str] = &["crates/", "xtask/"];

pub const RULES: [Rule; 4] = [
    Rule {
        name: "file-lines",
        why: "A file tells one story that is read from the top; past 600 lines it tells several.",
        check: |tree| Kind::FileLines.check(tree),
    },
    Rule {
        name: "function-lines",
        why: "A function fits a screen, or its reader holds in the head what the names should hold.",
        check: |tree| Kind::FunctionLines.check(tree),
    },
    Rule {
        name: "arguments",
        why: "More than five arguments are a type that has not been found yet.",
        check: |tree| Kind::Arguments.check(tree),
    },
    Rule {
        name: "ratchet-format",
        why: "A ratchet that cannot be read holds nothing.",
        check: |tree| match Ratchet::read(tree) {
            Ok(_) => Vec::new(),
            Err(error) => vec![Finding::new(RATCHET, 0, format!("{error}; run `cargo xtask tidy --bless`"))],
        },
    },
];

const KINDS: [Kind; 3] = [Kind::FileLines, Kind::FunctionLines, Kind::Arguments];

#[derive(Clone, Copy)]
enum Kind {
    FileLines,
    FunctionLines,
    Arguments,
}

/// Something measured: key in the ratchet, place, size.
struct Measured {
    key: String,
    path: String,
    line: usize,
    size: usize,
}

impl Kind {
    /// Name in the ratchet file, limit, and what to do about it.
    fn terms(self) -> (&'static str, usize, &'static str) {
        match self {
            Kind::FileLines => ("file-lines", 600, "split it by subject"),
            Kind::FunctionLines => ("function-lines", 70, "give its parts names"),
            Kind::Arguments => ("arguments", 5, "group those that travel together in a type"),
        }
    }

    fn measure(self, tree: &Tree) -> Vec<Measured> {
        let mut all = Vec::new();
        for (file, code) in tree.code(SCOPE) {
            if let Kind::FileLines = self {
                all.push(Measured {
                    key: file.path.clone(),
                    path: file.path.clone(),
                    line: 0,
                    size: file.lines(),
                });
                continue;
            }
            for function in code.functions.iter().filter(|function| !function.test) {
                all.push(Measured {
                    key: format!("{}::{}", file.path, function.name),
                    path: file.path.clone(),
                    line: function.line,
                    size: if let Kind::Arguments = self { function.arguments } else { function.lines },
                });
            }
        }
        all
    }

    fn check(self, tree: &Tree) -> Vec<Finding> {
        let (name, limit, advice) = self.terms();
        let Ok(ratchet) = Ratchet::read(tree) else { return Vec::new() };
        let listed = ratchet.listed(name);
        let sizes = largest(self.measure(tree));
        let mut found = Vec::new();
        for (key, Measured { path, line, size, .. }) in &sizes {
            let message = match listed.get(key) {
                Some(&allowed) if *size > allowed => {
                    format!("{key} grew from {allowed} to {size} ({name}, limit {limit}): {advice}")
                }
                Some(&allowed) if *size < allowed => {
                    format!(
                        "{key} shrank from {allowed} to {size}: run `cargo xtask tidy --bless` to keep it so"
                    )
                }
                None if *size > limit => format!("{key} is {size} ({name}, limit {limit}): {advice}"),
                _ => continue,
            };
            found.push(Finding::new(path, *line, message));
        }
        for key in listed.keys().filter(|key| !sizes.contains_key(*key)) {
            let message = format!("{key} is gone: run `cargo xtask tidy --bless`");
            found.push(Finding::new(RATCHET, 0, message));
        }
        found
    }
}

/// One entry a key: two functions of one name in a file share it, and the larger counts.
fn largest(all: Vec<Measured>) -> BTreeMap<String, Measured> {
    let mut by_key: BTreeMap<String, Measured> = BTreeMap::new();
    for measured in all {
        if by_key.get(&measured.key).is_none_or(|other| other.size < measured.size) {
            by_key.insert(measured.key.clone(), measured);
        }
    }
    by_key
}

/// The committed exceptions: table of kind, then key to size.
struct Ratchet(BTreeMap<String, BTreeMap<String, usize>>);

impl Ratchet {
    fn read(tree: &Tree) -> Result<Ratchet, String> {
        let text = tree.get(RATCHET).map_or("", |file| file.text.as_str());
        let table: toml::Table = text.parse().map_err(|error| format!("not TOML: {error}"))?;
        let mut kinds = BTreeMap::new();
        for (kind, entries) in &table {
            if !KINDS.iter().any(|known| known.terms().0 == kind) {
                return Err(format!("unknown table [{kind}]"));
            }
            let entries = entries.as_table().ok_or_else(|| format!("[{kind}] is no table"))?;
            let mut sizes = BTreeMap::new();
            for (key, size) in entries {
                let size = size.as_integer().and_then(|size| usize::try_from(size).ok());
                sizes.insert(key.clone(), size.ok_or_else(|| format!("{key} is no size"))?);
            }
            kinds.insert(kind.clone(), sizes);
        }
        Ok(Ratchet(kinds))
    }

    fn listed(&self, kind: &str) -> BTreeMap<String, usize> {
        self.0.get(kind).cloned().unwrap_or_default()
    }
}

/// The ratchet file for the tree as it is.
pub fn bless(tree: &Tree) -> String {
    let mut text = String::from(
        "# What is larger than STYLE.md allows, with its size. Written by `cargo xtask tidy --bless`; sizes only go down.\n",
    );
    for kind in KINDS {
        let (name, limit, _) = kind.terms();
        text.push_str(&format!("\n[{name}]\n"));
        for (key, measured) in largest(kind.measure(tree)) {
            if measured.size > limit {
                text.push_str(&format!("\"{key}\" = {}\n", measured.size));
            }
        }
    }
    text
}

/// One line on how long the product's files are.
pub fn summary(tree: &Tree) -> String {
    let mut lines: Vec<usize> =
        tree.code(&["crates/"]).filter(|(_, code)| !code.is_test()).map(|(file, _)| file.lines()).collect();
    lines.sort_unstable();
    let median = lines.get(lines.len() / 2).copied().unwrap_or_default();
    let longest = lines.last().copied().unwrap_or_default();
    format!("sizes: {} files, median {median} lines, longest {longest}\n", lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(lines: usize, ratchet: &str) -> Tree {
        Tree::of(vec![
            ("crates/core/src/a.rs".into(), format!("//! A.\n{}", "// x\n".repeat(lines - 1))),
            (RATCHET.into(), ratchet.into()),
        ])
    }

    const LISTED: &str = "[file-lines]\n\"crates/core/src/a.rs\" = 700\n";

    #[test]
    fn an_exception_may_stay_but_neither_grow_nor_shrink_unseen() {
        assert!(Kind::FileLines.check(&tree(700, LISTED)).is_empty());
        assert!(Kind::FileLines.check(&tree(701, LISTED))[0].message.contains("grew from 700 to 701"));
        assert!(Kind::FileLines.check(&tree(650, LISTED))[0].message.contains("--bless"));
        assert!(Kind::FileLines.check(&tree(601, ""))[0].message.contains("split it"));
        assert!(Kind::FileLines.check(&tree(600, "")).is_empty());
    }

    #[test]
    fn an_exception_that_is_gone_must_be_struck() {
        let listed = "[function-lines]\n\"crates/core/src/a.rs::f\" = 99\n";
        assert!(Kind::FunctionLines.check(&tree(3, listed))[0].message.contains("is gone"));
    }

    #[test]
    fn what_bless_writes_passes() {
        let blessed = bless(&tree(700, ""));
        let tree = tree(700, &blessed);
        assert!(KINDS.iter().all(|kind| kind.check(&tree).is_empty()), "{blessed}");
    }
}
