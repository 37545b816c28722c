//! Any bytes as what other gateways wrote into Redis: what counts of it is made of usable numbers, reads as it is written
//! again, and makes a score that is a number.
//!
//! Input: lines, each the field of another gateway.

#![no_main]

use std::collections::BTreeMap;

use baton_core::place::cascade::shared::{Field, Others, Reading, RedisClock};
use baton_core::time::Instant;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    let usable = lines.iter().filter_map(|line| Field::parse(line));
    let mut tokens = 0.0;
    for field in usable {
        assert!(field.tokens.is_finite() && field.tokens >= 0.0 && field.charges > 0, "{field:?}");
        assert_eq!(Field::parse(field.to_string().as_bytes()), Some(field));
        tokens += field.tokens;
    }
    let now = Instant::from_micros(5_000_000);
    let clock = RedisClock::measured(1_700_000_000_000_000, now, now);
    let instance = |at: usize| at.to_string().into_bytes();
    let seen = (0..lines.len()).map(|at| (instance(at), 1_700_000_000_000)).collect();
    let fields = lines.iter().enumerate().map(|(at, line)| (instance(at), line.to_vec())).collect();
    let reading = Reading { seen, hashes: vec![("key".to_owned(), fields)] };
    let keys = BTreeMap::from([("key".to_owned(), vec![7])]);
    let sum = Others::of(&reading, b"own", &keys, clock).on(7, now);
    assert!(sum.tokens.is_finite() && sum.secs.is_finite() && sum.secs >= 0.0, "{sum:?}");
    assert!(sum.tokens <= tokens, "{sum:?}");
});
