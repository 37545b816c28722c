//! Names that say nothing.

use super::{Finding, Rule, Tree};

pub const RULES: [Rule; 2] = [
    Rule {
        name: "plain-type-names",
        why: "A type called Manager or Helper has no one job; the vocabulary of ARCHITECTURE.md has a word for each.",
        check: types,
    },
    Rule {
        name: "plain-file-names",
        why: "A file called utils collects what nobody could place, and grows.",
        check: files,
    },
];

const ENDINGS: [&str; 7] = ["Manager", "Handler", "Helper", "Util", "Utils", "Context", "Info"];
const FILES: [&str; 8] = ["util", "utils", "helper", "helpers", "common", "misc", "manager", "types"];

fn types(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, code) in tree.code(&["crates/", "xtask/"]) {
        for name in &code.types {
            if let Some(ending) = ENDINGS.iter().find(|ending| name.text.ends_with(*ending)) {
                let message = format!("type `{}` ends in {ending}: name it after what it is", name.text);
                found.push(Finding::new(&file.path, name.line, message));
            }
        }
    }
    found
}

fn files(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
        let name =
            file.path.trim_end_matches(".rs").trim_end_matches("/mod").rsplit('/').next().unwrap_or_default();
        // tests/common is where cargo looks for what test binaries share.
        if FILES.contains(&name) && !file.path.contains("/tests/") {
            let message =
                format!("`{name}` is no subject: move each item to the file whose story it belongs to");
            found.push(Finding::new(&file.path, 0, message));
        }
    }
    found
}
