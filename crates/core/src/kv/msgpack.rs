//! Reading MessagePack that somebody else wrote.
//!
//! A cursor over borrowed bytes: nothing is allocated, nothing recurses, and no length is believed before the bytes
//! are there. Extension types are read and mean nothing.

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// One value; of a list or a map only how many values (or pairs) follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    List(u32),
    Map(u32),
    Other,
}

#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// # Errors
    /// The bytes end within the value, or begin with the one byte that no value begins with.
    pub fn value(&mut self) -> Result<Value<'a>, Malformed> {
        let first = self.take(1)?[0];
        Ok(match first {
            0x00..=0x7f => Value::Unsigned(u64::from(first)),
            0x80..=0x8f => Value::Map(u32::from(first & 0x0f)),
            0x90..=0x9f => Value::List(u32::from(first & 0x0f)),
            0xa0..=0xbf => Value::Text(self.take(usize::from(first & 0x1f))?),
            0xc0 => Value::Nil,
            0xc1 => return Err(Malformed("a byte that begins no value")),
            0xc2 | 0xc3 => Value::Bool(first == 0xc3),
            0xc4..=0xc6 => Value::Bytes(self.sized(first - 0xc4)?),
            0xc7..=0xc9 => {
                let size = self.number(1 << (first - 0xc7))?;
                self.take(1)?;
                self.long(size)?;
                Value::Other
            }
            0xca => Value::Float(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xcb => Value::Float(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => Value::Unsigned(self.number(1 << (first - 0xcc))?),
            0xd0..=0xd3 => signed(self.number(1 << (first - 0xd0))?, 64 - (8 << (first - 0xd0))),
            0xd4..=0xd8 => {
                self.take(1 + (1 << (first - 0xd4)))?;
                Value::Other
            }
            0xd9..=0xdb => Value::Text(self.sized(first - 0xd9)?),
            0xdc | 0xdd => Value::List(self.number(2 << (first - 0xdc))? as u32),
            0xde | 0xdf => Value::Map(self.number(2 << (first - 0xde))? as u32),
            0xe0..=0xff => Value::Negative(i64::from(first as i8)),
        })
    }

    /// Passes over one value with all that is in it, and gives its bytes.
    ///
    /// # Errors
    /// Those of [`Reader::value`].
    pub fn skip(&mut self) -> Result<Reader<'a>, Malformed> {
        let (from, mut left) = (self.rest, 1_u64);
        while left > 0 {
            left -= 1;
            match self.value()? {
                Value::List(n) => left += u64::from(n),
                Value::Map(n) => left += 2 * u64::from(n),
                _ => {}
            }
        }
        Ok(Reader { rest: &from[..from.len() - self.rest.len()] })
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// How many values are worth making room for, if so many are announced: each takes a byte at least.
    pub fn room(&self, announced: u32) -> usize {
        (announced as usize).min(self.rest.len())
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(Malformed("the bytes end too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number of 1, 2, 4 or 8 bytes, the highest first.
    fn number(&mut self, bytes: usize) -> Result<u64, Malformed> {
        Ok(self.take(bytes)?.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    fn sized(&mut self, power: u8) -> Result<&'a [u8], Malformed> {
        let size = self.number(1 << power)?;
        self.long(size)
    }

    fn long(&mut self, size: u64) -> Result<&'a [u8], Malformed> {
        self.take(usize::try_from(size).unwrap_or(usize::MAX))
    }
}

/// A number whose sign stands so many bits below the highest one.
fn signed(number: u64, shift: u32) -> Value<'static> {
    let number = ((number << shift) as i64) >> shift;
    u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_kind_of_value() {
        for (bytes, value) in [
            (&[0x05][..], Value::Unsigned(5)),
            (&[0xcd, 1, 0], Value::Unsigned(256)),
            (&[0xff], Value::Negative(-1)),
            (&[0xd0, 0x80], Value::Negative(-128)),
            (&[0xd1, 0x00, 0x80], Value::Unsigned(128)),
            (&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], Value::Negative(i64::MIN)),
            (&[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Value::Unsigned(u64::MAX)),
            (&[0xca, 0x3f, 0xc0, 0, 0], Value::Float(1.5)),
            (&[0xa2, b'a', b'b'], Value::Text(b"ab")),
            (&[0xd9, 1, b'a'], Value::Text(b"a")),
            (&[0xc4, 1, 7], Value::Bytes(&[7])),
            (&[0xdc, 0, 3], Value::List(3)),
            (&[0xdf, 0, 0, 0, 2], Value::Map(2)),
            (&[0xc0], Value::Nil),
            (&[0xc3], Value::Bool(true)),
            (&[0xd5, 1, 0, 0], Value::Other),
            (&[0xc7, 2, 1, 0, 0], Value::Other),
        ] {
            let mut reader = Reader::new(bytes);
            assert_eq!(reader.value(), Ok(value), "{bytes:x?}");
            assert!(reader.is_empty(), "{bytes:x?}");
        }
        assert!(Reader::new(&[0xc1]).value().is_err());
        assert!(Reader::new(&[0xc6, 0xff, 0xff, 0xff, 0xff, 0]).value().is_err());
    }

    proptest! {
        /// Any bytes end in an error or in a value, and passing over goes where reading goes.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes);
            while let Ok(passed) = reader.skip() {
                prop_assert!(!passed.rest().is_empty());
                let mut again = passed;
                prop_assert!(again.skip().is_ok() && again.is_empty());
            }
        }
    }
}
