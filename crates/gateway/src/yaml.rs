//! A YAML document as a tree with line numbers.
//!
//! The parser gives events with positions, and scalars as they are written; no YAML type rules come in between, so
//! that whoever reads the tree judges each value by what it is for. Anchors, aliases and tags have no use here and are
//! refused, which also bounds what a small file can grow to.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Number, Value};

/// A value, and where it was written.
pub struct Node {
    pub line: usize,
    pub value: Tree,
}

pub enum Tree {
    /// Not given: `null`, `~` or nothing.
    Null,
    Scalar {
        text: String,
        /// Without quotes: it may mean more than a text.
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// A line, and what is wrong there.
pub type Broken = (usize, String);

/// How much may be in a text.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Levels below the root of a document.
    pub depth: usize,
    /// Values in all, those that hold others too: the shortest takes two bytes of the text, and a hundred as a tree.
    pub values: usize,
}

impl Bounds {
    /// Of a text whose length is bound enough.
    pub fn depth(depth: usize) -> Bounds {
        Bounds { depth, values: usize::MAX }
    }
}

struct Events<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    /// Values that there may still be.
    left: usize,
}

/// The one document of a text.
///
/// # Errors
/// The line, and what is wrong there.
pub fn document(text: &str, bounds: Bounds) -> Result<Node, Broken> {
    let mut documents = documents(text, bounds)?.into_iter();
    let root = documents.next().unwrap_or(Node { line: 1, value: Tree::Null });
    match documents.next() {
        Some(second) => Err((second.line, "a second document is not read".into())),
        None => Ok(root),
    }
}

/// All documents of a text.
///
/// # Errors
/// The line, and what is wrong there.
pub fn documents(text: &str, bounds: Bounds) -> Result<Vec<Node>, Broken> {
    let Bounds { depth, values } = bounds;
    let mut events = Events { parser: Parser::new_from_str(text), left: values };
    let mut roots = Vec::new();
    loop {
        let (event, span) = next(&mut events)?;
        match event {
            Event::StreamEnd => return Ok(roots),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
            event => roots.push(node(&mut events, event, span, depth)?),
        }
    }
}

/// A tree as a value; the order of keys is lost.
pub fn value(node: &Node) -> Value {
    match &node.value {
        Tree::Null => Value::Null,
        Tree::Scalar { text, plain: false } => Value::from(text.as_str()),
        Tree::Scalar { text, plain: true } => plain(text),
        Tree::List(items) => items.iter().map(value).collect(),
        Tree::Map(entries) => {
            let each = entries.iter().map(|(key, item)| (key.clone(), value(item)));
            Value::Object(each.collect::<Map<_, _>>())
        }
    }
}

fn plain(text: &str) -> Value {
    let number = || text.parse::<Number>().ok().map(Value::Number);
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => number().unwrap_or_else(|| Value::from(text)),
    }
}

fn next<'a>(events: &mut Events<'a>) -> Result<(Event<'a>, Span), Broken> {
    match events.parser.next() {
        Some(Ok((event, span))) => {
            if matches!(event, Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..)) {
                let too_many = || (span.start.line(), "there are too many values".to_owned());
                events.left = events.left.checked_sub(1).ok_or_else(too_many)?;
            }
            Ok((event, span))
        }
        Some(Err(error)) => Err((error.marker().line(), format!("is not YAML: {}", error.info()))),
        None => Ok((Event::StreamEnd, Span::default())),
    }
}

fn node<'a>(events: &mut Events<'a>, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Broken> {
    let line = span.start.line();
    let too_deep = || (line, "is nested too deeply".to_owned());
    let value = match event {
        Event::Scalar(text, style, 0, None) => plain_or_null(text, style),
        Event::SequenceStart(0, None) => {
            Tree::List(list(events, depth.checked_sub(1).ok_or_else(too_deep)?)?)
        }
        Event::MappingStart(0, None) => Tree::Map(map(events, depth.checked_sub(1).ok_or_else(too_deep)?)?),
        Event::Alias(_) | Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) => {
            return Err((line, "anchors, aliases and tags are not read".into()));
        }
        _ => return Err((line, "is not YAML: a value is missing".into())),
    };
    Ok(Node { line, value })
}

fn plain_or_null(text: Cow<'_, str>, style: ScalarStyle) -> Tree {
    match (style, text.as_ref()) {
        (ScalarStyle::Plain, "" | "~" | "null" | "Null" | "NULL") => Tree::Null,
        _ => Tree::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain },
    }
}

fn list<'a>(events: &mut Events<'a>, depth: usize) -> Result<Vec<Node>, Broken> {
    let mut nodes = Vec::new();
    loop {
        let (event, span) = next(events)?;
        match event {
            Event::SequenceEnd => return Ok(nodes),
            event => nodes.push(node(events, event, span, depth)?),
        }
    }
}

fn map<'a>(events: &mut Events<'a>, depth: usize) -> Result<Vec<(String, Node)>, Broken> {
    let mut entries: Vec<(String, Node)> = Vec::new();
    let mut lines = HashMap::new();
    loop {
        let (event, span) = next(events)?;
        let line = span.start.line();
        let key = match event {
            Event::MappingEnd => return Ok(entries),
            Event::Scalar(key, ..) => key.into_owned(),
            _ => return Err((line, "a key must be a single word".into())),
        };
        if let Some(first) = lines.insert(key.clone(), line) {
            return Err((line, format!("{key} is given twice, first in line {first}")));
        }
        let (event, span) = next(events)?;
        let mut value = node(events, event, span, depth)?;
        // A value on the lines below its key is reported at the key.
        value.line = line;
        entries.push((key, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_values_than_may_be() {
        let text = "a: [1, {}]\n---\nb";
        let read = |values| documents(text, Bounds { depth: 9, values }).map(|roots| roots.len());
        // A key is one too.
        assert_eq!(read(6), Ok(2));
        assert_eq!(read(5), Err((3, "there are too many values".to_owned())));
        assert_eq!(read(3), Err((1, "there are too many values".to_owned())));
    }
}
