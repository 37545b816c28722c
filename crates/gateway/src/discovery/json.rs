//! JSON in which no member stands twice: which of the two was meant nobody can tell.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// # Errors
/// What is wrong, with line and column.
pub fn read(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).map(|Once(value)| value)
}

struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Once, D::Error> {
        from.deserialize_any(Reader).map(Once)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Once(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if all.contains_key(&name) {
                return Err(A::Error::custom(format!("{name:?} is given twice")));
            }
            let Once(value) = members.next_value()?;
            all.insert(name, value);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read_as_it_is() {
        for text in [
            r#"{"a":[1,-2,1.5,"x\n\"ä",true,false,null,{},[]],"b":{"a":{"a":1}}}"#,
            "18446744073709551615",
            "-9223372036854775808",
            "1e400",
            "{",
            "[1,]",
            "",
        ] {
            assert_eq!(read(text).ok(), serde_json::from_str(text).ok(), "{text}");
        }
    }

    #[test]
    fn a_member_stands_once_however_deep() {
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            let told = read(text).unwrap_err().to_string();
            assert!(told.starts_with("\"a\" is given twice at line 1 column "), "{told}");
        }
        assert!(read(r#"{"a":{"a":1},"b":{"a":1}}"#).is_ok());
    }
}
