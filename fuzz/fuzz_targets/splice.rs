//! A body and some edits: the result is an object in which the edits hold and all else is as it was.
//!
//! Input: the edits, one byte each, up to a zero byte; then the body.

#![no_main]

use std::collections::BTreeMap;

use baton_core::body::{BodyLimits, Edit, Envelope};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

const VALUES: [&str; 4] = ["null", "\"x\"", "[1,{\"a\":2}]", " 0.70 "];
const NAMES: [&str; 4] = ["model", "stream", "kv_transfer_params", "a\"\\\n"];

fuzz_target!(|input: &[u8]| {
    let Some(end) = input.iter().take(40).position(|byte| *byte == 0) else { return };
    let limits = BodyLimits::default();
    let Ok(envelope) = Envelope::parse(Bytes::copy_from_slice(&input[end + 1..]), &limits) else { return };
    let names: Vec<String> = envelope.members().map(|(key, _)| key.into_owned()).collect();
    let edits: Vec<Edit> = input[..end].iter().map(|byte| edit(*byte, &names)).collect();

    let spliced = envelope.splice(&edits);
    let joined = spliced.to_bytes();
    assert_eq!(joined.len(), spliced.len());
    assert_eq!(spliced.pieces().concat(), joined);
    let roomy = BodyLimits { max_members: usize::MAX, ..limits };
    let after = Envelope::parse(joined, &roomy).expect("the result is an object");

    let wanted: BTreeMap<&str, &Edit> = edits.iter().map(|edit| (edit.key(), edit)).collect();
    for (key, edit) in &wanted {
        match edit {
            // blanks around a value belong to the gap, not to the value
            Edit::Set { value, .. } => assert_eq!(after.get(key), Some(value.trim_ascii())),
            Edit::Remove { .. } => assert_eq!(after.get(key), None),
        }
        assert_eq!(after.refuse_repeated(&[key]), Ok(()));
    }
    // a lone surrogate in a name reads as a character that an edit may name, but the edit does not mean that member
    let untouched = |envelope: &Envelope| -> Vec<(String, Vec<u8>)> {
        let kept =
            envelope.members().filter(|(key, _)| !wanted.contains_key(&**key) || key.contains('\u{fffd}'));
        kept.map(|(key, value)| (key.into_owned(), value.to_vec())).collect()
    };
    if !wanted.keys().any(|key| key.contains('\u{fffd}')) {
        assert_eq!(untouched(&after), untouched(&envelope));
    }
    if wanted.keys().all(|key| envelope.get(key).is_none()) && wanted.values().all(|edit| is_removal(edit)) {
        assert_eq!(after.bytes(), envelope.bytes());
    }
});

fn is_removal(edit: &Edit) -> bool {
    matches!(edit, Edit::Remove { .. })
}

fn edit(byte: u8, names: &[String]) -> Edit {
    let pick = usize::from(byte >> 3);
    let known = names.get(pick % (names.len() + 1)).cloned();
    let name = known.unwrap_or_else(|| NAMES[pick % NAMES.len()].to_owned());
    match VALUES.get(usize::from(byte & 7)) {
        Some(value) => Edit::set(name, *value),
        None => Edit::remove(name),
    }
}
