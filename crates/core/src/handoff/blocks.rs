//! The list of KV blocks that a prefill returned.
//!
//! It is as long as the prompt, and has been gone over as JSON before it comes here. So one look at the bytes is
//! enough: where nothing stands but digits, commas, brackets and blanks, every item is a whole number or a list.

use crate::body::{digits, scalar};

pub(super) const NO_LIST: &str = "remote_block_ids is missing or not a list";
const ODD: &str = "remote_block_ids holds something that is no block id";
const EMPTY: &str = "remote_block_ids names no block";

/// The longest number that is a block id: all of so many digits fit 64 bits.
const ID_DIGITS: usize = 19;

/// Is it a flat list of ids, or one list for each KV cache group, with at least one id in all? `list` is a JSON value.
///
/// # Errors
/// What is wrong with it, in words for the log.
pub(super) fn check(list: &[u8]) -> Result<(), &'static str> {
    if scalar::kind(list) != scalar::Kind::Array {
        return Err(NO_LIST);
    }
    let (mut depth, mut groups, mut ids, mut flat) = (0u32, false, false, false);
    let mut rest = list;
    while let Some(byte) = rest.first() {
        let mut length = 1;
        match byte {
            b'0'..=b'9' => {
                length = digits(rest);
                ids = true;
                flat |= depth < 2;
                if length > ID_DIGITS {
                    return Err(ODD);
                }
            }
            b',' | b' ' | b'\n' | b'\r' | b'\t' => {}
            b'[' if depth < 2 => {
                groups |= depth == 1;
                depth += 1;
            }
            b']' => depth = depth.saturating_sub(1),
            _ => return Err(ODD),
        }
        rest = &rest[length..];
    }
    match (ids, flat && groups) {
        (_, true) => Err(ODD),
        (false, _) => Err(EMPTY),
        (true, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_ids_and_lists_of_such_lists() {
        for good in
            ["[1]", "[0,1,12345678]", "[[1,2]]", "[ [ 1 ,\t2 ] , [] ]", "[[1],[2,1234567890123456789]]"]
        {
            assert_eq!(check(good.as_bytes()), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("null", NO_LIST),
            ("{}", NO_LIST),
            ("\"[1]\"", NO_LIST),
            ("[]", EMPTY),
            ("[ [ ] , [ ] ]", EMPTY),
            ("[1,[2]]", ODD),
            ("[[],2]", ODD),
            ("[[[1]]]", ODD),
            ("[\"1\"]", ODD),
            ("[1.5]", ODD),
            ("[[1],-2]", ODD),
            ("[[1e3]]", ODD),
            ("[1,true]", ODD),
            ("[null]", ODD),
            ("[1,{}]", ODD),
            ("[12345678901234567890]", ODD),
        ] {
            assert_eq!(check(bad.as_bytes()), Err(why), "{bad}");
        }
    }
}
