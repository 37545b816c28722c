//! Values as Python writes them, which is what engines' templates have: as JSON (`tojson`), and as text.
//!
//! It matters for calls of tools, whose arguments are a client's: `1e-7` is `1e-07` there, and a truth that is written
//! out is `True`. What a string joins by `~` is not changed: values other than texts and numbers are written as
//! minijinja does.

use std::fmt::{self, Write};
use std::io;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

/// Levels of lists and objects that are written out as text.
const DEPTH_MAX: usize = 64;

/// Has templates write so.
pub fn teach(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| text(value));
    environment.set_formatter(write);
}

fn write(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&text(value)?)?),
    }
}

/// As Python's `str`.
fn text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    if !value.is_undefined() {
        repr(&mut out, value, 0)?;
    }
    Ok(out)
}

/// As Python's `repr`.
fn repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None | ValueKind::Undefined => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => write!(out, "{value}").map_err(failed)?,
        },
        ValueKind::String => quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (at, item) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(out, &item, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(out, &key, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").map_err(failed)?,
    }
    Ok(())
}

fn quoted(out: &mut String, text: &str) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// A float: with a point, or from 1e16 on and below 0.0001 with an exponent of two digits at least.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => {
            let plain = number.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

/// As Python's `json.dumps`, which sorts nothing and leaves letters as they are.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _same: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut json = Vec::new();
    match indent {
        Some(indent) => {
            let blanks = vec![b' '; indent.min(16)];
            let lines = Lines(PrettyFormatter::with_indent(&blanks));
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, lines)).map_err(failed)?;
        }
        None => {
            value
                .serialize(&mut serde_json::Serializer::with_formatter(&mut json, Spaced))
                .map_err(failed)?;
        }
    }
    String::from_utf8(json).map_err(failed)
}

fn failed(error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::BadSerialization, error.to_string())
}

/// A blank behind each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn write_f64<W: ?Sized + io::Write>(&mut self, to: &mut W, value: f64) -> io::Result<()> {
        to.write_all(float(value).as_bytes())
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}

/// A line for each value.
struct Lines<'a>(PrettyFormatter<'a>);

impl Formatter for Lines<'_> {
    fn write_f64<W: ?Sized + io::Write>(&mut self, to: &mut W, value: f64) -> io::Result<()> {
        to.write_all(float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_array(to)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_array(to)
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(to, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_array_value(to)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object(to)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object(to)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(to, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object_value(to)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object_value(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let numbers =
            [1e-7, 0.0001, 0.00012345, 1e15, 1e16, 1.5e300, 100.0, -0.0, 0.1, 123_456_789.125, 5e-324];
        let expected = [
            "1e-07",
            "0.0001",
            "0.00012345",
            "1000000000000000.0",
            "1e+16",
            "1.5e+300",
            "100.0",
            "-0.0",
            "0.1",
            "123456789.125",
            "5e-324",
        ];
        assert_eq!(numbers.map(float), expected);
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let value: Value =
            serde_json::from_str(r#"{"a":[true,null,1,2.50,"it's","\"'\n\u0001é"],"b":{}}"#).unwrap();
        let expected = r#"{'a': [True, None, 1, 2.5, "it's", '"\'\n\x01é'], 'b': {}}"#;
        assert_eq!(text(&value).unwrap(), expected);
        assert_eq!(text(&Value::UNDEFINED).unwrap(), "");
        let mut deep = Value::from(1);
        for _ in 0..DEPTH_MAX + 1 {
            deep = Value::from(vec![deep]);
        }
        assert!(text(&deep).is_err());
    }
}
