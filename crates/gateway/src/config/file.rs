//! The YAML file: sections of keys, read with line numbers.
//!
//! Scalars are read as they are written, so `port: 08` or `policy: no` is judged as a flag would be.

use std::collections::BTreeMap;

use super::error::nearest;
use super::setting::{Setting, Shape};
use super::{ConfigError, Given, Source, settings};
use crate::yaml::{self, Node, Tree};

/// Largest file that is read.
const MOST_BYTES: u64 = 1 << 20;
/// Section, key, list, member of a list item.
const MOST_DEPTH: usize = 4;

/// Reads the file into what was given, by flag.
pub(super) fn read(path: &str) -> Result<BTreeMap<&'static str, Given>, ConfigError> {
    let broken = |reason: String| ConfigError::File { path: path.into(), line: None, reason };
    let size = std::fs::metadata(path).map_err(|error| broken(format!("cannot be read: {error}")))?.len();
    if size > MOST_BYTES {
        return Err(broken(format!("is larger than {MOST_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| broken(format!("cannot be read: {error}")))?;
    parse(path, &text)
}

/// As [`read`], from text; `path` is for messages.
pub(super) fn parse(path: &str, text: &str) -> Result<BTreeMap<&'static str, Given>, ConfigError> {
    let at =
        |(line, reason): (usize, String)| ConfigError::File { path: path.into(), line: Some(line), reason };
    let root = yaml::document(text, yaml::Bounds::depth(MOST_DEPTH)).map_err(at)?;
    let mut found = BTreeMap::new();
    for (section, node) in entries(root, "the file").map_err(at)? {
        if !settings().any(|setting| setting.group == section) {
            return Err(unknown_section(path, &section, node.line));
        }
        for (key, node) in entries(node, &section).map_err(at)? {
            let source = Source::File { path: path.into(), line: node.line };
            let known = settings().find(|setting| setting.group == section && setting.key() == key);
            let Some(setting) = known else { return Err(unknown_key(source, &section, &key)) };
            if let Some(items) = items(setting, node).map_err(at)? {
                found.insert(setting.flag, Given { items, source });
            }
        }
    }
    Ok(found)
}

fn unknown_section(path: &str, section: &str, line: usize) -> ConfigError {
    let source = Source::File { path: path.into(), line };
    let hint = elsewhere(section).or_else(|| {
        nearest(section, settings().map(|setting| setting.group)).map(|near| format!("did you mean {near}?"))
    });
    ConfigError::UnknownKey { source, key: section.into(), hint }
}

fn unknown_key(source: Source, section: &str, key: &str) -> ConfigError {
    let keys: Vec<String> = settings().filter(|setting| setting.group == section).map(Setting::key).collect();
    let hint = elsewhere(key).or_else(|| {
        nearest(key, keys.iter().map(String::as_str)).map(|near| format!("did you mean {section}.{near}?"))
    });
    ConfigError::UnknownKey { source, key: format!("{section}.{key}"), hint }
}

/// Where a key that is known, or was left out, belongs.
fn elsewhere(key: &str) -> Option<String> {
    let flag = key.replace('_', "-");
    if let Some(reason) = super::left_out::reason(&flag) {
        return Some(format!("it is not part of Baton ({reason})"));
    }
    let same = |setting: &&Setting| setting.flag == flag || setting.note.aliases.contains(&flag.as_str());
    settings().find(same).map(|setting| format!("write it as {}", setting.path()))
}

fn entries(node: Node, what: &str) -> Result<Vec<(String, Node)>, (usize, String)> {
    match node.value {
        Tree::Map(entries) => Ok(entries),
        Tree::Null => Ok(Vec::new()),
        _ => Err((node.line, format!("{what} must be a mapping of keys to values"))),
    }
}

fn items(setting: &Setting, node: Node) -> Result<Option<Vec<String>>, (usize, String)> {
    let many = matches!(setting.shape, Shape::List | Shape::Pairs | Shape::Leg);
    match node.value {
        Tree::Null => Ok(None),
        Tree::Scalar { text, .. } => Ok(Some(vec![text])),
        Tree::List(nodes) if many => {
            nodes.into_iter().map(|node| item(setting, node)).collect::<Result<_, _>>().map(Some)
        }
        Tree::Map(entries) if setting.shape == Shape::Pairs => {
            let pair = |(key, node): (String, Node)| scalar(node, &key).map(|text| format!("{key}={text}"));
            entries.into_iter().map(pair).collect::<Result<_, _>>().map(Some)
        }
        Tree::List(_) => Err((node.line, format!("{} takes one value, not a list", setting.path()))),
        Tree::Map(_) => Err((node.line, format!("{} takes no keys of its own", setting.path()))),
    }
}

/// One item of a list. A worker may be a text (`URL PORT`) or a mapping of `url` and `bootstrap_port`.
fn item(setting: &Setting, node: Node) -> Result<String, (usize, String)> {
    let (line, path) = (node.line, setting.path());
    match node.value {
        Tree::Map(entries) if setting.shape == Shape::Leg => {
            let (mut url, mut port) = (None, String::new());
            for (key, node) in entries {
                match key.as_str() {
                    "url" => url = Some(scalar(node, "url")?),
                    "bootstrap_port" if matches!(node.value, Tree::Null) => port = "none".into(),
                    "bootstrap_port" => port = scalar(node, "bootstrap_port")?,
                    _ => {
                        return Err((
                            node.line,
                            format!("unknown key {key} in {path}: url and bootstrap_port are known"),
                        ));
                    }
                }
            }
            url.map(|url| format!("{url} {port}").trim_end().to_owned())
                .ok_or_else(|| (line, format!("an item of {path} has no url")))
        }
        _ => scalar(node, &path),
    }
}

fn scalar(node: Node, what: &str) -> Result<String, (usize, String)> {
    match node.value {
        Tree::Scalar { text, .. } => Ok(text),
        _ => Err((node.line, format!("{what} must be a single value"))),
    }
}
