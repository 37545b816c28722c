//! Small pieces of JSON writing and reading. Answers are written by hand, in the engines' own order of members.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::engine::spec::Dialect;
use crate::serve::refusal::{Problem, Refusal};

/// A JSON string.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    out
}

/// Appends a JSON string.
pub fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// How Python prints a JSON value, for pydantic's messages.
#[must_use]
pub fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| format!("'{key}': {}", python(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Reads members of a request's body with the types that the engine's schema gives them.
pub struct Members<'a> {
    pub dialect: Dialect,
    pub body: &'a Map<String, Value>,
}

impl Members<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.body.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, kind: &str, text: &str) -> Refusal {
        let input = self.body.get(name).map_or_else(|| "None".into(), python);
        Refusal::schema(self.dialect, name, &Problem { kind, text, input: &input })
    }

    /// An integer; pydantic also takes one written as text or as a float without fraction.
    pub fn int(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = match value {
            Value::Number(number) => number.as_i64().or_else(|| whole(number.as_f64()?)),
            Value::String(text) => {
                let text = text.trim().parse().ok();
                let msg = "Input should be a valid integer, unable to parse string as an integer";
                return text.map(Some).ok_or_else(|| self.wrong(name, "int_parsing", msg));
            }
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.wrong(name, "int_type", "Input should be a valid integer"))
    }

    pub fn float(&self, name: &str) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
        number.map(Some).ok_or_else(|| self.wrong(name, "float_type", "Input should be a valid number"))
    }

    pub fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.wrong(name, "bool_type", "Input should be a valid boolean")),
        }
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong(name, "string_type", "Input should be a valid string"))
    }

    pub fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value
            .as_object()
            .map(Some)
            .ok_or_else(|| self.wrong(name, "dict_type", "Input should be a valid dictionary"))
    }

    /// One string or a list of them.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, Refusal> {
        let texts = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => return Ok(vec![text.clone()]),
            Some(Value::Array(items)) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            Some(_) => None,
        };
        texts.ok_or_else(|| self.wrong(name, "string_type", "Input should be a valid string"))
    }

    /// A member that must be there.
    pub fn needed(&self, name: &str) -> Result<&Value, Refusal> {
        self.get(name).ok_or_else(|| {
            let problem = Problem { kind: "missing", text: "Field required", input: "{...}" };
            Refusal::schema(self.dialect, name, &problem)
        })
    }
}

fn whole(number: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
    (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64)
}
