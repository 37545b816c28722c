//! Bodies made at random, checked against serde_json and against a splice done the slow way.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use baton_core::body::{BodyError, BodyLimits, Edit, Envelope, scalar};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::value::RawValue;

/// A member as text: blanks before the name, name, blanks and colon, value, blanks behind.
#[derive(Debug, Clone)]
struct Part {
    before: &'static str,
    key: String,
    colon: &'static str,
    value: String,
    after: &'static str,
}

#[derive(Debug, Clone)]
struct Doc {
    lead: &'static str,
    inside: &'static str,
    parts: Vec<Part>,
    tail: &'static str,
}

impl Doc {
    fn text(&self) -> String {
        self.with(&self.parts.iter().map(|part| Some(part.value.clone())).collect::<Vec<_>>(), &[])
    }

    /// The document with these values (`None`: member gone) and these members added.
    fn with(&self, values: &[Option<String>], added: &[(String, String)]) -> String {
        let mut text = format!("{}{{", self.lead);
        text += self.parts.first().map_or("", |first| first.before);
        let mut any = false;
        for (index, (part, value)) in self.parts.iter().zip(values).enumerate() {
            let Some(value) = value else { continue };
            if any {
                text += &format!("{},{}", self.parts[index - 1].after, part.before);
            }
            text += &format!("{}{}{value}", part.key, part.colon);
            any = true;
        }
        for (key, value) in added {
            text += &format!("{}{}:{value}", if any { "," } else { "" }, serde_json::to_string(key).unwrap());
            any = true;
        }
        text += self.parts.last().map_or(self.inside, |last| last.after);
        text + "}" + self.tail
    }

    /// Index of the last member of that name.
    fn last(&self, key: &str) -> Option<usize> {
        self.parts.iter().rposition(|part| name(&part.key) == key)
    }
}

fn name(raw: &str) -> String {
    serde_json::from_str(raw).unwrap()
}

fn parse(text: &str) -> Result<Envelope, BodyError> {
    Envelope::parse(Bytes::copy_from_slice(text.as_bytes()), &BodyLimits::default())
}

fn blank() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", "", " ", "\n\t", "\r\n  "])
}

/// A string's text in quotes. `lone`: may hold lone surrogate escapes.
fn string(lone: bool) -> impl Strategy<Value = String> {
    let escapes = ["\\n", "\\\"", "\\\\", "\\/", "\\u0041", "\\uD83D\\ude00", "\\u0000", "\\u00e9"];
    let odd = if lone { vec!["\\ud800", "\\udc00x", "\\ud800\\u0041"] } else { vec!["é"] };
    let piece = prop_oneof![
        3 => "[ -!#-\\[\\]-~]{0,40}",
        1 => "[^\"\\\\\\x00-\\x1f]{0,9}",
        2 => prop::sample::select(escapes.to_vec()).prop_map(str::to_owned),
        1 => prop::sample::select(odd).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn value() -> impl Strategy<Value = String> {
    let numbers =
        ["0", "-0", "0.70", "1e400", "9007199254740993", "-1.5E-3", "123456789012345678901234567890"];
    let leaf = prop_oneof![
        prop::sample::select(vec!["true", "false", "null"]).prop_map(str::to_owned),
        prop::sample::select(numbers.to_vec()).prop_map(str::to_owned),
        any::<i64>().prop_map(|number| number.to_string()),
        string(true),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let item = (blank(), inner, blank())
            .prop_map(|(before, value, after)| format!("{before}{value}{after}"))
            .boxed();
        let member =
            (string(true), blank(), item.clone()).prop_map(|(key, gap, item)| format!("{key}{gap}:{item}"));
        prop_oneof![
            (prop::collection::vec(item, 0..5), blank()).prop_map(|(items, gap)| {
                if items.is_empty() { format!("[{gap}]") } else { format!("[{}]", items.join(",")) }
            }),
            (prop::collection::vec(member, 0..5), blank())
                .prop_map(|(members, gap)| format!("{{{gap}{}}}", members.join(","))),
        ]
    })
}

/// Few names, several spellings: repeats and escaped twins are common.
fn key() -> impl Strategy<Value = String> {
    let known = ["\"a\"", "\"b\"", "\"\\u0061\"", "\"room\"", "\"r\\u006fom\"", "\"\"", "\"\\\"q\"", "\"é\""];
    prop_oneof![4 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => string(false)]
}

fn doc() -> impl Strategy<Value = Doc> {
    let colon = prop::sample::select(vec![":", ": ", " : ", "\n:\t"]);
    let part = (blank(), key(), colon, value(), blank())
        .prop_map(|(before, key, colon, value, after)| Part { before, key, colon, value, after });
    (blank(), blank(), prop::collection::vec(part, 0..7), blank())
        .prop_map(|(lead, inside, parts, tail)| Doc { lead, inside, parts, tail })
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = (key(), prop::option::of(value())).prop_map(|(key, value)| match value {
        Some(value) => Edit::set(name(&key), value),
        None => Edit::remove(name(&key)),
    });
    prop::collection::vec(edit, 0..6)
}

/// What `edits` make of `doc`, told one name at a time.
fn expected(doc: &Doc, edits: &[Edit]) -> String {
    let mut values: Vec<_> = doc.parts.iter().map(|part| Some(part.value.clone())).collect();
    let mut added = Vec::new();
    for (at, edit) in edits.iter().enumerate() {
        if edits[at + 1..].iter().any(|later| later.key() == edit.key()) {
            continue;
        }
        for (slot, part) in values.iter_mut().zip(&doc.parts) {
            if name(&part.key) == edit.key() {
                *slot = None;
            }
        }
        if let Edit::Set { key, value } = edit {
            let value = String::from_utf8(value.to_vec()).unwrap();
            match doc.last(key) {
                Some(last) => values[last] = Some(value),
                None => added.push((key.to_string(), value)),
            }
        }
    }
    doc.with(&values, &added)
}

proptest! {
    #[test]
    fn members_are_those_written(doc in doc()) {
        let text = doc.text();
        let envelope = parse(&text).unwrap();
        let seen: Vec<_> = envelope.members().map(|(key, value)| (key.into_owned(), value.to_vec())).collect();
        let written: Vec<_> =
            doc.parts.iter().map(|part| (name(&part.key), part.value.clone().into_bytes())).collect();
        prop_assert_eq!(seen, written);
    }

    #[test]
    fn members_equal_serde_json(doc in doc()) {
        let text = doc.text();
        let envelope = parse(&text).unwrap();
        let theirs: BTreeMap<String, &RawValue> = serde_json::from_str(&text).unwrap();
        for (key, value) in &theirs {
            prop_assert_eq!(envelope.get(key), Some(value.get().as_bytes()));
            prop_assert_eq!(scalar::member(text.as_bytes(), key), Some(value.get().as_bytes()));
        }
        prop_assert_eq!(envelope.get("absent"), None);
        let names: Vec<_> = doc.parts.iter().map(|part| name(&part.key)).collect();
        for key in theirs.keys() {
            let repeated = names.iter().filter(|name| *name == key).count() > 1;
            prop_assert_eq!(envelope.refuse_repeated(&[key]).is_err(), repeated);
        }
    }

    #[test]
    fn splice_changes_only_what_it_should(doc in doc(), edits in edits()) {
        let envelope = parse(&doc.text()).unwrap();
        let spliced = envelope.splice(&edits);
        let bytes = spliced.to_bytes();
        prop_assert_eq!(spliced.len(), bytes.len());
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        prop_assert_eq!(&text, &expected(&doc, &edits));
        prop_assert!(parse(&text).is_ok());
    }

    #[test]
    fn large_splice_is_the_same_in_pieces(doc in doc(), edits in edits(), filler in 4_000usize..40_000, at in 0usize..8) {
        let mut doc = doc;
        let long = Part { before: "", key: "\"long\"".into(), colon: ":", value: format!("\"{}\"", "x".repeat(filler)), after: "" };
        doc.parts.insert(at.min(doc.parts.len()), long);
        let envelope = parse(&doc.text()).unwrap();
        let spliced = envelope.splice(&edits);
        let len = spliced.len();
        let pieces = spliced.pieces();
        prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
        let text = String::from_utf8(pieces.concat()).unwrap();
        prop_assert_eq!(text.len(), len);
        prop_assert!(text == expected(&doc, &edits));
    }

    /// One byte changed, dropped or added: accepted exactly when serde_json takes it for an object.
    #[test]
    fn accepts_what_serde_json_accepts(doc in doc(), at in any::<prop::sample::Index>(), kind in 0..3, byte in damage()) {
        let mut text = doc.text().into_bytes();
        let at = at.index(text.len());
        match kind {
            0 => text[at] = byte,
            1 => { text.remove(at); }
            _ => text.insert(at, byte),
        }
        let theirs = serde_json::from_slice::<&RawValue>(&text).is_ok_and(|raw| raw.get().starts_with('{'));
        let ours = Envelope::parse(text.clone().into(), &BodyLimits::default());
        prop_assert_eq!(ours.is_ok(), theirs, "{:?} {:?}", ours, String::from_utf8_lossy(&text));
    }

    #[test]
    fn strings_decode_as_serde_json_does(text in string(false)) {
        let theirs: String = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(scalar::as_str(text.as_bytes()).unwrap(), theirs);
    }

    #[test]
    fn arrays_have_the_elements_of_serde_json(text in value()) {
        let theirs = serde_json::from_str::<Vec<&RawValue>>(&text).ok();
        prop_assert_eq!(scalar::array_len(text.as_bytes()), theirs.as_ref().map(Vec::len));
        let seen: Vec<_> = scalar::elements(text.as_bytes()).collect();
        let want: Vec<_> = theirs.iter().flatten().map(|raw| raw.get().as_bytes()).collect();
        prop_assert_eq!(&seen, &want);
        let from: Vec<_> = scalar::elements_from(text.as_bytes()).map(scalar::first).collect();
        prop_assert_eq!(from, want);
    }

    /// What is read from its beginning on is what is read whole.
    #[test]
    fn members_are_the_same_from_their_beginning_on(doc in doc()) {
        let text = doc.text();
        let whole: Vec<_> = scalar::members(text.as_bytes()).collect();
        let from: Vec<_> =
            scalar::members_from(text.as_bytes()).map(|(key, value)| (key, scalar::first(value))).collect();
        prop_assert_eq!(from, whole);
    }

    /// A string's text ends at its quote, whatever comes after it.
    #[test]
    fn a_strings_text_in_pieces_is_its_text(text in string(true), filler in 0..40_000usize) {
        let long = format!("\"{}{}", "x".repeat(filler), &text[1..]);
        let mut pieces = vec![];
        let all = scalar::text(format!("{long}, \"more\": \"x\"").as_bytes(), &mut |piece| {
            pieces.extend_from_slice(piece);
            true
        });
        prop_assert!(all);
        let whole = scalar::as_str(long.as_bytes()).unwrap().into_owned();
        prop_assert_eq!(pieces, whole.into_bytes());
    }

    /// The readers may be given anything.
    #[test]
    fn readers_never_panic(raw in prop::collection::vec(damage(), 0..30)) {
        let _ = (scalar::kind(&raw), scalar::as_bool(&raw), scalar::as_u64(&raw), scalar::as_f64(&raw));
        let _ = (scalar::as_str(&raw), scalar::array_len(&raw), scalar::member(&raw, "a"));
        let _ = (scalar::elements(&raw).count(), scalar::members(&raw).count());
        let _ = (scalar::elements_from(&raw).count(), scalar::members_from(&raw).count());
        let _ = (scalar::first(&raw), scalar::text(&raw, &mut |piece| !piece.is_empty()));
    }
}

/// Bytes likely to matter to the grammar, and any other.
fn damage() -> impl Strategy<Value = u8> {
    prop_oneof![
        3 => prop::sample::select(b"{}[],:\"\\ \n0-+.eEutfn1\x00\x1f\x7f\xc3\xa9\xff".to_vec()),
        1 => any::<u8>(),
    ]
}
