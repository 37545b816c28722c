//! Shows a configuration: as YAML for people, as JSON for the admin endpoint.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::{Config, Sources, settings};

pub(super) fn describe(config: &Config) -> Value {
    let mut sections = Map::new();
    for setting in settings() {
        let section = sections.entry(setting.group).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(section) = section {
            section.insert(setting.key(), setting.value(config));
        }
    }
    Value::Object(sections)
}

pub(super) fn yaml(config: &Config, sources: &Sources) -> String {
    let mut text = String::new();
    let mut section = "";
    for setting in settings() {
        if setting.group != section {
            section = setting.group;
            text += &format!("{section}:\n");
        }
        let key = setting.key();
        // A path with a line break must not end the comment.
        let source = sources.of(setting.flag).to_string().replace(['\n', '\r'], " ");
        // Writing to a String cannot fail.
        let _ = match setting.value(config) {
            Value::Array(items) if !items.is_empty() => {
                let _ = writeln!(text, "  {key}: # {source}");
                items.iter().try_for_each(|item| writeln!(text, "    - {}", scalar(item)))
            }
            value => writeln!(text, "  {key}: {} # {source}", scalar(&value)),
        };
    }
    text
}

/// A text is written bare only where no YAML reader could take it for something else.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if bare(text) => text.clone(),
        other => other.to_string(),
    }
}

fn bare(text: &str) -> bool {
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:=".contains(c));
    let keyword = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    word && !keyword.contains(&text.to_ascii_lowercase().as_str())
}
