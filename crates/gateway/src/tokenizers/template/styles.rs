//! Templates in the styles that models come with, and what Python's Jinja makes of them.
//!
//! The `.jinja` files are written for this test in four styles that are in use: functions told to the system with calls
//! in tags, functions shown to the user with one call at a time, functions in brackets with ids of a fixed length, and
//! calls with a tag for each argument. The `.json` files have the texts that transformers 5.19 with Jinja2 3.1.6 makes of
//! `conversations.json`, prepared as vLLM 0.32 prepares conversations.

use baton_core::body::{BodyLimits, Envelope};
use serde_json::Value;

use super::ChatTemplate;

const CONVERSATIONS: &str = include_str!("styles/conversations.json");

const STYLES: [(&str, &str, &str); 4] = [
    ("turns", include_str!("styles/turns.jinja"), include_str!("styles/turns.json")),
    ("headers", include_str!("styles/headers.jinja"), include_str!("styles/headers.json")),
    ("brackets", include_str!("styles/brackets.jinja"), include_str!("styles/brackets.json")),
    ("parameters", include_str!("styles/parameters.jinja"), include_str!("styles/parameters.json")),
];

#[test]
fn calls_of_tools_are_rendered_as_engines_render_them() {
    let bodies: Vec<&serde_json::value::RawValue> = serde_json::from_str(CONVERSATIONS).unwrap();
    for (style, source, expected) in STYLES {
        let tokens = serde_json::json!({"bos_token": "<s>", "eos_token": "</s>"});
        let template = ChatTemplate::parse(source.to_owned(), &tokens).unwrap();
        let expected: Vec<Value> = serde_json::from_str(expected).unwrap();
        assert_eq!(expected.len(), bodies.len());
        for (at, (body, expected)) in bodies.iter().zip(expected).enumerate() {
            let body = Envelope::parse(body.get().to_owned().into(), &BodyLimits::default()).unwrap();
            match (template.render(&body), expected) {
                (Ok(text), Value::String(expected)) => assert_eq!(text, expected, "{style} {at}"),
                (Err(why), Value::Object(refused)) => {
                    let said = refused["failed"].as_str().unwrap();
                    assert!(why.ends_with(said), "{style} {at}: {why}");
                }
                (made, expected) => panic!("{style} {at}: {made:?}, not {expected}"),
            }
        }
    }
}
