//! Which crate may depend on which of ours, read from the manifests.

use super::{Finding, Tree};

/// (crate folder, allowed dependencies, allowed dev-dependencies besides those)
const MAY_USE: [(&str, &[&str], &[&str]); 5] = [
    ("crates/core", &[], &[]),
    ("crates/gateway", &["baton-core"], &["baton-sim"]),
    ("crates/sim", &["baton-core"], &[]),
    ("crates/baton", &["baton-core", "baton-gateway", "baton-sim"], &[]),
    ("xtask", &[], &[]),
];

const OURS: [&str; 5] = ["baton-core", "baton-gateway", "baton-sim", "baton", "xtask"];

pub fn direction(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        let folder = file.path.trim_end_matches("/Cargo.toml");
        if !folder.starts_with("crates/") && folder != "xtask" {
            continue;
        }
        let Some((_, normal, dev)) = MAY_USE.iter().find(|(name, ..)| *name == folder) else {
            let message =
                "unknown crate: add it to MAY_USE in xtask/src/tidy/crates.rs with what it may depend on";
            found.push(Finding::new(&file.path, 0, message));
            continue;
        };
        let manifest: toml::Table = match file.text.parse() {
            Ok(manifest) => manifest,
            Err(error) => {
                found.push(Finding::new(&file.path, 0, format!("not TOML: {error}")));
                continue;
            }
        };
        for (kind, name) in dependencies(&manifest) {
            let allowed = normal.contains(&name.as_str())
                || (kind == "dev-dependencies" && dev.contains(&name.as_str()));
            if OURS.contains(&name.as_str()) && !allowed {
                let line = file.text.lines().position(|line| line.contains(&name)).map_or(0, |n| n + 1);
                let message =
                    format!("{folder} must not depend on {name} ({kind}): move the shared part to core");
                found.push(Finding::new(&file.path, line, message));
            }
        }
    }
    found
}

/// (table, package) of every dependency, target-specific ones included and renames undone.
fn dependencies(manifest: &toml::Table) -> Vec<(&'static str, String)> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = std::iter::once(manifest)
        .chain(targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table)));
    let mut found = Vec::new();
    for table in tables {
        for kind in KINDS {
            let Some(entries) = table.get(kind).and_then(toml::Value::as_table) else { continue };
            found.extend(entries.iter().map(|(key, value)| {
                let package = value.get("package").and_then(toml::Value::as_str);
                (kind, package.unwrap_or(key).to_owned())
            }));
        }
    }
    found
}
