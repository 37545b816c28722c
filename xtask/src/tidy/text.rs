//! Rules on plain text: what every file of the repository keeps to.

use super::tree::File;
use super::{Finding, Rule, Tree};

pub const RULES: [Rule; 7] = [
    Rule {
        name: "module-docs",
        why: "A reader starts at the top: what the file decides, why so, and what it does not know.",
        check: module_docs,
    },
    Rule {
        name: "no-machine-paths",
        why: "A path of somebody's machine is wrong on every other one.",
        check: machine_paths,
    },
    Rule {
        name: "no-registry-hosts",
        why: "Where packages come from is the reader's own setting; lock files alone record it.",
        check: registry_hosts,
    },
    Rule {
        name: "no-trailing-space",
        why: "Invisible changes make noise in every diff.",
        check: trailing_space,
    },
    Rule {
        name: "docs-are-linked",
        why: "A page that nothing links to is a page that nobody finds.",
        check: docs_linked,
    },
    Rule {
        name: "links-lead-somewhere",
        why: "A dead link costs the reader the trust in the live ones.",
        check: dead_links,
    },
    Rule {
        name: "pages-exist",
        why: "A comment that names a page as its source sends the reader there.",
        check: missing_pages,
    },
];

pub fn parses(tree: &Tree) -> Vec<Finding> {
    tree.files
        .iter()
        .filter_map(|file| {
            let error = file.broken.as_ref()?;
            Some(Finding::new(&file.path, 0, format!("does not parse as Rust: {error}")))
        })
        .collect()
}

fn module_docs(tree: &Tree) -> Vec<Finding> {
    let source = |file: &&File| {
        let inside = file.path.starts_with("crates/") || file.path.starts_with("xtask/");
        inside && file.path.contains("/src/") && file.path.ends_with(".rs")
    };
    tree.files
        .iter()
        .filter(source)
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| Finding::new(&file.path, 1, "begin with a `//!` doc: what this file decides and why"))
        .collect()
}

/// Findings for every line of `files` that holds one of `words` not glued to a longer word in front.
fn lines_with(tree: &Tree, words: &[String], wanted: impl Fn(&File) -> bool, mend: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| wanted(file)) {
        for (number, line) in file.text.lines().enumerate() {
            let holds = |word: &&String| {
                line.match_indices(word.as_str()).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "._-/}".contains(c))
                })
            };
            if let Some(word) = words.iter().find(holds) {
                found.push(Finding::new(&file.path, number + 1, format!("`{word}`: {mend}")));
            }
        }
    }
    found
}

// The words below are put together so that this file does not contain them.

fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let words = ["root", "work", "tmp", "home"].map(|folder| format!("/{folder}/"));
    let mend = "take the path as a setting, or use one relative to the repository or under target/";
    lines_with(tree, &words, |_| true, mend)
}

fn registry_hosts(tree: &Tree) -> Vec<Finding> {
    let words = [
        ["crates", "io"].as_slice(),
        &["index", "crates", "io"],
        &["static", "crates", "io"],
        &["pypi", "org"],
        &["files", "pythonhosted", "org"],
        &["registry", "npmjs", "org"],
        &["deb", "debian", "org"],
    ]
    .map(|parts| parts.join("."));
    let is_lock = |file: &File| file.path.ends_with(".lock") || file.path.ends_with("-lock.json");
    lines_with(
        tree,
        &words,
        |file| !is_lock(file),
        "name the package and let the client know where to fetch it",
    )
}

fn trailing_space(tree: &Tree) -> Vec<Finding> {
    const KINDS: [&str; 9] = [".rs", ".toml", ".md", ".sh", ".py", ".yml", ".yaml", ".ci/run", ".gitignore"];
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| KINDS.iter().any(|kind| file.path.ends_with(kind))) {
        for (number, line) in file.text.lines().enumerate() {
            if line.ends_with([' ', '\t']) {
                found.push(Finding::new(&file.path, number + 1, "trailing space: delete it"));
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            found.push(Finding::new(&file.path, file.lines(), "no newline at the end: add one"));
        }
    }
    found
}

fn docs_linked(tree: &Tree) -> Vec<Finding> {
    let hubs = ["README.md", "docs/README.md"];
    let linked: Vec<String> = hubs
        .iter()
        .filter_map(|hub| tree.get(hub))
        .flat_map(|file| links(file).into_iter().map(|(_, to)| to))
        .collect();
    tree.files
        .iter()
        .filter(|file| {
            file.path.starts_with("docs/")
                && file.path.ends_with(".md")
                && !hubs.contains(&file.path.as_str())
        })
        .filter(|file| !linked.contains(&file.path))
        .map(|file| Finding::new(&file.path, 0, "link this page from docs/README.md"))
        .collect()
}

fn dead_links(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, to) in links(file) {
            let folder = format!("{}/", to.trim_end_matches('/'));
            if tree.get(&to).is_none() && !tree.files.iter().any(|other| other.path.starts_with(&folder)) {
                found.push(Finding::new(&file.path, line, format!("link to {to}, which does not exist")));
            }
        }
    }
    found
}

/// Pages named in Rust and in our own pages, as `page.md`, that are nowhere in the repository. The rules' own source is
/// left out: it names pages that may not be there yet.
fn missing_pages(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let wanted = |file: &&File| [".rs", ".md"].iter().any(|kind| file.path.ends_with(kind));
    for file in tree.files.iter().filter(wanted).filter(|file| !file.path.starts_with("xtask/")) {
        for (number, line) in file.text.lines().enumerate() {
            let inside = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
            for page in line.split(|c| !inside(c)).map(|word| word.trim_end_matches(['.', ':'])) {
                let name = page.trim_start_matches("./").trim_start_matches("../");
                let is_page = name.len() > 3 && name.ends_with(".md") && !name.contains("://");
                let end = format!("/{name}");
                if is_page && !tree.files.iter().any(|other| other.path == name || other.path.ends_with(&end))
                {
                    let message = format!(
                        "`{page}` is not here: name a page that is, or the engine and version itself"
                    );
                    found.push(Finding::new(&file.path, number + 1, message));
                }
            }
        }
    }
    found
}

/// (line, target relative to the root) of every relative Markdown link outside code blocks.
fn links(file: &File) -> Vec<(usize, String)> {
    let base = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in file.text.lines().enumerate() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let Some((target, _)) = line[at + 2..].split_once(')') else { continue };
            let target = target.split(['#', ' ']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            found.push((number + 1, resolve(base, target)));
        }
    }
    found
}

fn resolve(base: &str, target: &str) -> String {
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_resolved_from_the_page_they_stand_on() {
        assert_eq!(resolve("docs", "../README.md"), "README.md");
        assert_eq!(resolve("docs", "flags.md"), "docs/flags.md");
        assert_eq!(resolve("", "./docs/flags.md"), "docs/flags.md");
    }
}
