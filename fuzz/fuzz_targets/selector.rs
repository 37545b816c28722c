//! Any bytes as the header `external-filter`: a selector, or words that say why it is none; one that is a selector writes
//! itself down as one that selects the same.
//!
//! Input: the header, a zero byte, labels as `key=value` lines.

#![no_main]

use std::collections::BTreeMap;

use baton_core::selector::Selector;
use baton_core::wishes::{Wish, Wishes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut halves = input.splitn(2, |byte| *byte == 0);
    let mut wishes = Wishes::default();
    for value in halves.next().unwrap_or_default().split(|byte| *byte == b'\n') {
        wishes.hear(Wish::Filter, value);
    }
    let text = wishes.filter.unwrap_or_default();
    let lines = String::from_utf8_lossy(halves.next().unwrap_or_default()).into_owned();
    let labels: BTreeMap<String, String> =
        lines.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
    match Selector::parse(&text) {
        Ok(selector) => {
            let again = Selector::parse(&selector.to_string()).expect("what it writes is a selector");
            assert_eq!(again, selector);
            assert_eq!(again.selects(&labels), selector.selects(&labels));
        }
        Err(bad) => assert!(!bad.to_string().is_empty()),
    }
});
