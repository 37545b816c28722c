//! Reading a tree strictly: what is not known, of the wrong type or given twice is an error that names its line.

use std::str::FromStr;

use baton_core::gauges::usable;
use serde_json::Value;

use crate::config::nearest;
pub use crate::yaml::value;
use crate::yaml::{Broken, Node, Tree};

/// The keys of one mapping, taken one by one; what is left at the end is not known.
pub struct Keys {
    what: String,
    pub line: usize,
    left: Vec<(String, Node)>,
    known: Vec<&'static str>,
}

impl Keys {
    pub fn of(node: Node, what: impl Into<String>) -> Result<Keys, Broken> {
        let (what, line) = (what.into(), node.line);
        match node.value {
            Tree::Map(left) => Ok(Keys { what, line, left, known: Vec::new() }),
            Tree::Null => Ok(Keys { what, line, left: Vec::new(), known: Vec::new() }),
            _ => Err((line, format!("{what} must be a mapping of keys to values"))),
        }
    }

    /// The value of this key. One that is null counts as not given.
    pub fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        let at = self.left.iter().position(|(own, _)| own == key)?;
        Some(self.left.remove(at).1).filter(|node| !matches!(node.value, Tree::Null))
    }

    pub fn read<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(Node, &str) -> Result<T, Broken>,
    ) -> Result<Option<T>, Broken> {
        let what = format!("{key} of {}", self.what);
        self.take(key).map(|node| read(node, &what)).transpose()
    }

    pub fn list<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(Node, &str) -> Result<T, Broken>,
    ) -> Result<Vec<T>, Broken> {
        let what = format!("{key} of {}", self.what);
        let Some(node) = self.take(key) else { return Ok(Vec::new()) };
        match node.value {
            Tree::List(nodes) => nodes.into_iter().map(|node| read(node, &what)).collect(),
            _ => Err((node.line, format!("{what} must be a list"))),
        }
    }

    /// Texts by name.
    pub fn texts(&mut self, key: &'static str) -> Result<Vec<(String, String)>, Broken> {
        let what = format!("{key} of {}", self.what);
        let Some(node) = self.take(key) else { return Ok(Vec::new()) };
        let entries = Keys::of(node, what.as_str())?.left;
        entries
            .into_iter()
            .map(|(name, node)| {
                let value = text(node, &format!("{name} in {what}"))?;
                Ok((name, value))
            })
            .collect()
    }

    /// # Errors
    /// A key that nobody took.
    pub fn end(self) -> Result<(), Broken> {
        let Some((key, node)) = self.left.first() else { return Ok(()) };
        let hint = match nearest(key, self.known.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("known are {}", self.known.join(", ")),
        };
        Err((node.line, format!("unknown key {key} in {}: {hint}", self.what)))
    }
}

/// A text. Numbers and the like are taken as they are written.
pub fn text(node: Node, what: &str) -> Result<String, Broken> {
    match node.value {
        Tree::Scalar { text, .. } => Ok(text),
        Tree::Null => Ok(String::new()),
        _ => Err((node.line, format!("{what} must be a single value"))),
    }
}

pub fn switch(node: Node, what: &str) -> Result<bool, Broken> {
    let line = node.line;
    match text(node, what)?.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err((line, format!("{what} must be true or false, not {other:?}"))),
    }
}

fn parsed<T: FromStr>(node: Node, what: &str, due: &str) -> Result<T, Broken> {
    let line = node.line;
    let text = text(node, what)?;
    text.parse().map_err(|_| (line, format!("{what} must be {due}, not {text:?}")))
}

pub fn whole(node: Node, what: &str) -> Result<u64, Broken> {
    parsed(node, what, "a whole number, 0 or more")
}

/// As [`whole`], and no more than so many.
pub fn up_to(most: u64) -> impl Fn(Node, &str) -> Result<u64, Broken> {
    move |node, what| {
        let line = node.line;
        match whole(node, what)? {
            n if n > most => Err((line, format!("{what} must be at most {most}"))),
            n => Ok(n),
        }
    }
}

pub fn number(node: Node, what: &str) -> Result<f64, Broken> {
    let (line, due) = (node.line, "a number, 0 or more");
    match parsed(node, what, due)? {
        x if (0.0..f64::INFINITY).contains(&x) => Ok(x),
        x => Err((line, format!("{what} must be {due}, not {x}"))),
    }
}

/// A number that an engine says. It may say one that is none, or that has no end; what comes of that is what would
/// come of it on a page of its metrics.
pub fn said(node: Node, what: &str) -> Result<Option<f64>, Broken> {
    if let Tree::Scalar { text, plain: true } = &node.value {
        match text.as_str() {
            ".nan" | ".NaN" | ".NAN" => return Ok(usable(f64::NAN)),
            ".inf" | ".Inf" | ".INF" => return Ok(usable(f64::INFINITY)),
            _ => {}
        }
    }
    number(node, what).map(usable)
}

/// The same of a number from 0 to 1.
pub fn share(node: Node, what: &str) -> Result<Option<f64>, Broken> {
    let line = node.line;
    match said(node, what)? {
        Some(x) if x > 1.0 => Err((line, format!("{what} must be at most 1, not {x}"))),
        x => Ok(x),
    }
}

/// A tree as JSON, keys in their order. A scalar without quotes is what JSON reads in it, if it reads anything.
pub fn json(node: &Node, out: &mut String) {
    match &node.value {
        Tree::Null => out.push_str("null"),
        Tree::Scalar { .. } => out.push_str(&value(node).to_string()),
        Tree::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                json(item, out);
            }
            out.push(']');
        }
        Tree::Map(entries) => {
            out.push('{');
            for (i, (key, item)) in entries.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                json(item, out);
            }
            out.push('}');
        }
    }
}
