//! Any bytes as a body: accepted exactly when serde_json takes them for one object, with the same members, and no
//! reader of raw values panics on any of it.

#![no_main]

use std::collections::BTreeMap;

use baton_core::body::{BodyError, BodyLimits, Envelope, scalar};
use baton_core::sse::usage_of_answer;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

fuzz_target!(|text: &[u8]| {
    read(text);
    let limits = BodyLimits { max_members: usize::MAX, max_depth: usize::MAX, ..BodyLimits::default() };
    let ours = Envelope::parse(Bytes::copy_from_slice(text), &limits);
    let theirs = serde_json::from_slice::<&RawValue>(text).is_ok_and(|raw| raw.get().starts_with('{'));
    assert_eq!(ours.is_ok(), theirs, "{ours:?}");
    let Ok(envelope) = ours else { return };
    assert_eq!(envelope.bytes(), text);

    for (key, value) in envelope.members() {
        assert!(serde_json::from_slice::<&RawValue>(value).is_ok(), "{key}");
        read(value);
    }
    // serde_json refuses lone surrogates where it decodes a name
    if let Ok(theirs) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(text) {
        for (key, value) in &theirs {
            assert_eq!(envelope.get(key), Some(value.get().as_bytes()), "{key}");
            assert_eq!(scalar::member(text, key), Some(value.get().as_bytes()), "{key}");
        }
        let names = envelope.members().filter(|(key, _)| theirs.contains_key(&**key)).count();
        assert_eq!(names, envelope.members().count());
        let repeated = theirs.keys().any(|key| envelope.refuse_repeated(&[key]).is_err());
        assert_eq!(repeated, names > theirs.len());
    }
    let flat = BodyLimits { max_depth: 2, ..limits };
    let nested = envelope.members().any(|(_, value)| {
        scalar::elements(value).chain(scalar::members(value).map(|(_, value)| value)).any(is_container)
    });
    let refused =
        Envelope::parse(envelope.bytes().clone(), &flat).err() == Some(BodyError::TooDeep { limit: 2 });
    assert_eq!(refused, nested);
});

fn is_container(raw: &[u8]) -> bool {
    matches!(scalar::kind(raw), scalar::Kind::Array | scalar::Kind::Object)
}

fn read(raw: &[u8]) {
    let _ = (scalar::as_bool(raw), scalar::as_u64(raw), scalar::as_f64(raw), usage_of_answer(raw));
    if let Ok(text) = serde_json::from_slice::<String>(raw) {
        assert_eq!(scalar::as_str(raw).as_deref(), Some(&*text));
    }
    let list = serde_json::from_slice::<Vec<&RawValue>>(raw).ok();
    assert_eq!(scalar::array_len(raw).filter(|_| list.is_some()), list.as_ref().map(Vec::len));
    if let Some(list) = list {
        assert!(scalar::elements(raw).eq(list.iter().map(|raw| raw.get().as_bytes())));
    }
    assert!(scalar::members(raw).count() <= raw.len());
}
