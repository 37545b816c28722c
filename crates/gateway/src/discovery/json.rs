//! JSON in which no member stands twice, since which of the two was meant nobody can tell, and of which there is not too
//! much: a value may be two bytes long and takes many more as a tree.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// No more than so many values.
///
/// # Errors
/// What is wrong, with line and column.
pub fn read(text: &str, most: usize) -> Result<Value, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Reader { left: &Cell::new(most) }.deserialize(&mut json)?;
    json.end().map(|()| value)
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    /// Values that there may still be.
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        let left =
            self.left.get().checked_sub(1).ok_or_else(|| D::Error::custom("there are too many values"))?;
        self.left.set(left);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
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
        while let Some(item) = items.next_element_seed(self)? {
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
            let value = members.next_value_seed(self)?;
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
            "{} {}",
            "[1,]",
            "",
        ] {
            assert_eq!(read(text, 99).ok(), serde_json::from_str(text).ok(), "{text}");
        }
    }

    #[test]
    fn a_member_stands_once_however_deep() {
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            let told = read(text, 99).unwrap_err().to_string();
            assert!(told.starts_with("\"a\" is given twice at line 1 column "), "{told}");
        }
        assert!(read(r#"{"a":{"a":1},"b":{"a":1}}"#, 99).is_ok());
    }

    #[test]
    fn there_are_no_more_values_than_may_be() {
        let text = r#"{"a":[1,{}]}"#;
        assert!(read(text, 4).is_ok() && read("1", 0).is_err());
        assert!(read(text, 3).unwrap_err().to_string().starts_with("there are too many values"));
    }
}
