//! What can be wrong with a configuration: each error is one sentence that names the place and what to do.

use std::fmt;

use super::setting::{Setting, Shape};
use super::value::without_user;
use super::{Given, Source};

/// Why there is no configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A flag that neither Baton nor SMG has.
    UnknownFlag { flag: String, hint: Option<String> },
    /// A flag that SMG has and Baton does not.
    LeftOut { flag: String, reason: &'static str },
    /// A word that no flag takes.
    StrayWord { word: String },
    /// A flag that is given too often, or without its value.
    Misused { flag: String, reason: &'static str },
    /// A section or key of the file that does not exist.
    UnknownKey { source: Source, key: String, hint: Option<String> },
    /// The file cannot be read, or is not YAML of the expected form.
    File { path: String, line: Option<usize>, reason: String },
    /// A value that cannot be read; the value is empty where it is not to be shown.
    BadValue { source: Source, setting: &'static str, value: String, reason: String },
    /// Values that cannot stand together.
    Conflict(String),
    /// Help, version, or another message of the command line's own.
    Usage(String),
}

impl ConfigError {
    pub(super) fn bad_value(setting: &'static Setting, given: &Given, reason: String) -> ConfigError {
        // Of a list, the reason names the item; a secret stays one.
        let value = match (&setting.shape, given.items.as_slice()) {
            (Shape::Switch | Shape::One | Shape::Word(_), [item]) if !setting.secret => {
                without_user(item).into_owned()
            }
            _ => String::new(),
        };
        ConfigError::BadValue { source: given.source.clone(), setting: setting.flag, value, reason }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mean = |hint: &Option<String>| match hint {
            Some(hint) => format!(": {hint}"),
            None => String::new(),
        };
        match self {
            ConfigError::UnknownFlag { flag, hint: None } => {
                write!(f, "unknown flag {flag}: see baton launch --help")
            }
            ConfigError::UnknownFlag { flag, hint } => write!(f, "unknown flag {flag}{}", mean(hint)),
            ConfigError::LeftOut { flag, reason } => {
                write!(f, "{flag} is not part of Baton ({reason}): see docs/flags.md")
            }
            ConfigError::StrayWord { word } => write!(f, "unexpected {word:?}: no flag before it takes it"),
            ConfigError::Misused { flag, reason } => write!(f, "{flag} {reason}"),
            ConfigError::UnknownKey { source, key, hint } => {
                write!(f, "{source}: unknown key {key}{}", mean(hint))
            }
            ConfigError::File { path, line: Some(line), reason } => write!(f, "{path}:{line}: {reason}"),
            ConfigError::File { path, line: None, reason } => write!(f, "{path}: {reason}"),
            ConfigError::BadValue { source, setting, value, reason } if value.is_empty() => {
                write!(f, "{}: {reason}", source.name(setting))
            }
            ConfigError::BadValue { source, setting, value, reason } => {
                write!(f, "{} {value}: {reason}", source.name(setting))
            }
            ConfigError::Conflict(reason) => f.write_str(reason),
            ConfigError::Usage(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ConfigError {}

/// The candidate that was most likely meant, if any is near enough.
pub(crate) fn nearest<'a>(given: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const NEAR: f64 = 0.85;
    candidates
        .map(|candidate| (strsim::jaro_winkler(given, candidate), candidate))
        .filter(|(score, _)| *score >= NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
