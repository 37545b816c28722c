//! Licences and refused packages: the part of deny.toml that needs no tool of its own.
//!
//! The same file serves cargo-deny, which knows advisories as well, on machines that have it. Here cargo is asked for the
//! packages that this host's build resolves to, build scripts included, and each licence expression is evaluated against
//! the allowed list.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Finding, Tree};

pub const NAME: &str = "packages";
pub const WHY: &str =
    "Everything linked in may be shipped under our licence, and builds with a C compiler alone.";

const POLICY: &str = "deny.toml";

/// # Errors
/// When cargo or deny.toml cannot be read.
pub fn check(root: &Path, tree: &Tree) -> Result<Vec<Finding>, Box<dyn Error>> {
    let policy = Policy::parse(tree.get(POLICY).map_or("", |file| &file.text))?;
    Ok(policy.check(&resolved(root)?))
}

struct Package {
    name: String,
    version: String,
    licence: Option<String>,
}

/// The packages that a build on this host uses, ours left out.
fn resolved(root: &Path) -> Result<Vec<Package>, Box<dyn Error>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let host = Command::new(&cargo).arg("-vV").output()?;
    let host = String::from_utf8(host.stdout)?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("cargo -vV names no host")?;
    let output = Command::new(&cargo)
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let ids = |pointer: &str, key: &str| -> BTreeSet<String> {
        let items = metadata.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|item| item.get(key).and_then(Value::as_str)).map(str::to_owned).collect()
    };
    let used = ids("/resolve/nodes", "id");
    let packages =
        metadata.get("packages").and_then(Value::as_array).ok_or("no packages in cargo metadata")?;
    Ok(packages
        .iter()
        .filter(|package| !package["source"].is_null())
        .filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id)))
        .map(|package| Package {
            name: package["name"].as_str().unwrap_or_default().to_owned(),
            version: package["version"].as_str().unwrap_or_default().to_owned(),
            licence: package["license"].as_str().map(str::to_owned),
        })
        .collect())
}

/// What deny.toml says, as far as it is enforced here.
struct Policy {
    allowed: BTreeSet<String>,
    /// (package, licence) allowed for that package alone.
    exceptions: BTreeSet<(String, String)>,
    /// (package, reason)
    refused: Vec<(String, String)>,
}

impl Policy {
    fn parse(text: &str) -> Result<Policy, Box<dyn Error>> {
        let table: toml::Table = text.parse()?;
        let list = |section: &str, key: &str| -> Vec<toml::Value> {
            let section = table.get(section).and_then(|section| section.get(key));
            section.and_then(toml::Value::as_array).cloned().unwrap_or_default()
        };
        let text =
            |value: &toml::Value, key: &str| value.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let mut exceptions = BTreeSet::new();
        for entry in list("licenses", "exceptions") {
            let package = text(&entry, "crate").ok_or("an exception names no crate")?;
            let allowed = entry.get("allow").and_then(toml::Value::as_array).cloned().unwrap_or_default();
            exceptions.extend(
                allowed.iter().filter_map(toml::Value::as_str).map(|l| (package.clone(), l.to_owned())),
            );
        }
        let mut refused = Vec::new();
        for entry in list("bans", "deny") {
            let package = text(&entry, "crate").ok_or("a ban names no crate")?;
            refused.push((package, text(&entry, "reason").unwrap_or_default()));
        }
        let allowed =
            list("licenses", "allow").iter().filter_map(toml::Value::as_str).map(str::to_owned).collect();
        Ok(Policy { allowed, exceptions, refused })
    }

    fn check(&self, packages: &[Package]) -> Vec<Finding> {
        let mut found = Vec::new();
        for package in packages {
            let named = format!("{} {}", package.name, package.version);
            if let Some((_, reason)) = self.refused.iter().find(|(name, _)| *name == package.name) {
                let message = format!(
                    "{named} is refused ({reason}): `cargo tree -i {}` shows who uses it",
                    package.name
                );
                found.push(Finding::new("Cargo.lock", 0, message));
            }
            if let Err(problem) = self.licensed(package) {
                let message =
                    format!("{named}: {problem}; use another package, or allow it in {POLICY} with a reason");
                found.push(Finding::new("Cargo.lock", 0, message));
            }
        }
        found
    }

    fn licensed(&self, package: &Package) -> Result<(), String> {
        let licence = package.licence.as_deref().ok_or("states no licence")?;
        let expression = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX)
            .map_err(|error| format!("licence `{licence}` cannot be read: {}", error.reason))?;
        let allowed = expression.evaluate(|requirement| {
            let name = requirement.to_string();
            self.allowed.contains(&name) || self.exceptions.contains(&(package.name.clone(), name))
        });
        if allowed { Ok(()) } else { Err(format!("licence `{licence}` is not allowed")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "[licenses]\nallow = [\"MIT\", \"Apache-2.0\"]\n\
                          exceptions = [{ crate = \"roots\", allow = [\"CDLA-Permissive-2.0\"] }]\n\
                          [bans]\ndeny = [{ crate = \"openssl-sys\", reason = \"system library\" }]\n";

    fn findings(name: &str, licence: Option<&str>) -> usize {
        let package =
            Package { name: name.into(), version: "1.0.0".into(), licence: licence.map(str::to_owned) };
        Policy::parse(POLICY).unwrap().check(&[package]).len()
    }

    #[test]
    fn a_licence_must_be_allowed_in_one_of_its_alternatives() {
        assert_eq!(findings("a", Some("MIT OR GPL-3.0-only")), 0);
        assert_eq!(findings("a", Some("MIT/Apache-2.0")), 0);
        assert_eq!(findings("a", Some("MIT AND GPL-3.0-only")), 1);
        assert_eq!(findings("a", None), 1);
    }

    #[test]
    fn an_exception_holds_for_its_package_alone() {
        assert_eq!(findings("roots", Some("CDLA-Permissive-2.0")), 0);
        assert_eq!(findings("a", Some("CDLA-Permissive-2.0")), 1);
    }

    #[test]
    fn a_refused_package_is_found() {
        assert_eq!(findings("openssl-sys", Some("MIT")), 1);
    }
}
