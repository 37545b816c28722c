//! Tables of bodies: what is refused and why, what must survive, what the readers make of single values.

#![allow(clippy::unwrap_used)]

use baton_core::body::scalar::{self, Kind};
use baton_core::body::{BodyError, BodyLimits, Edit, Envelope};
use bytes::Bytes;

fn parse(text: impl AsRef<[u8]>) -> Result<Envelope, BodyError> {
    Envelope::parse(Bytes::copy_from_slice(text.as_ref()), &BodyLimits::default())
}

fn splice(text: &str, edits: &[Edit]) -> String {
    String::from_utf8(parse(text).unwrap().splice(edits).to_bytes().to_vec()).unwrap()
}

/// Values taken inside `{"v":...}`, after the well-known JSON test suites.
#[test]
fn grammar_accepts() {
    let values = [
        "[]",
        "[ ]",
        "{}",
        "{ }",
        "0",
        "-0",
        "-0.0",
        "1",
        "10",
        "1.5",
        "1e5",
        "1E+5",
        "1e-5",
        "0e1",
        "0.70",
        "1e400",
        "-1e-400",
        "9007199254740993",
        "123456789012345678901234567890",
        "true",
        "false",
        "null",
        "\"\"",
        "\"\\\"\"",
        "\"\\u0000\"",
        "\"\\uD834\\uDd1e\"",
        "\"\\uD800\"",
        "\"\\uDFFF\\uD800\"",
        "\"\u{7f}\"",
        "\"\u{2028}\u{2029}\"",
        "\"\u{10FFFF}\"",
        "\"\u{FEFF}\"",
        "[[[],{}],[{\"a\":[]}]]",
        "{\"a\":1,\"a\":2}",
        "{\"\":0}",
        "\"/*\"",
        "\"\\/\"",
        "[1\n,\t2\r]",
        "\"data: [DONE]\"",
    ];
    for value in values {
        let text = format!("{{\"v\":{value}}}");
        let envelope = parse(&text).unwrap_or_else(|error| panic!("{value}: {error}"));
        assert_eq!(envelope.get("v"), Some(value.as_bytes()));
        assert_eq!(envelope.bytes(), text.as_bytes());
        assert_eq!(envelope.len(), text.len());
    }
}

#[test]
fn grammar_refuses() {
    let values: [&[u8]; 68] = [
        b"",
        b",",
        b":",
        b"]",
        b"}",
        b"[",
        b"{",
        b"[1",
        b"[1,",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b"[1,,2]",
        b"{\"a\"",
        b"{\"a\":",
        b"{\"a\":1",
        b"{\"a\":1,",
        b"{\"a\":1,}",
        b"{,}",
        b"{a:1}",
        b"{'a':1}",
        b"{1:1}",
        b"{\"a\" 1}",
        b"{\"a\":1 \"b\":2}",
        b"{\"a\",1}",
        b"[}",
        b"{]",
        b"[1}",
        b"{\"a\":1]",
        b"+1",
        b"01",
        b"-01",
        b"-",
        b".5",
        b"1.",
        b"1.e1",
        b"1e",
        b"1e+",
        b"0x1",
        b"1_0",
        b"1.2.3",
        b"--1",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"True",
        b"nul",
        b"nulll",
        b"tru",
        b"undefined",
        b"'a'",
        b"\"",
        b"\"a",
        b"\"\\\"",
        b"\"\\x\"",
        b"\"\\u12\"",
        b"\"\\u12G4\"",
        b"\"\\u\"",
        b"\"\t\"",
        b"\"\n\"",
        b"\"\x00\"",
        b"\"\x1f\"",
        b"\"\xff\"",
        b"\"\xc0\xaf\"",
        b"\"\xed\xa0\x80\"",
        b"\"\xf4\x90\x80\x80\"",
        b"\"\xe9\"",
        b"1 // x",
    ];
    for value in values {
        let text = [b"{\"v\":", value, b"}"].concat();
        let shown = String::from_utf8_lossy(&text).into_owned();
        match parse(&text) {
            Err(BodyError::NotJson { offset, .. }) => assert!(offset <= text.len(), "{shown}"),
            other => panic!("{shown}: {other:?}"),
        }
    }
}

#[test]
fn long_strings_are_checked_at_every_byte() {
    for at in 0..100 {
        for (bad, accepted) in [
            (&b"\x01"[..], false),
            (b"\x80", false),
            (b"\xc3", false),
            (b"\xc3\xa9", true),
            (b"\\n", true),
            (b"\"", false),
        ] {
            let mut text = b"{\"v\":\"".to_vec();
            text.extend([b'x'].repeat(at));
            text.extend(bad);
            text.extend([b'y'].repeat(99 - at));
            text.extend(b"\",\"w\":1}");
            assert_eq!(parse(&text).is_ok(), accepted, "{bad:?} at {at}");
        }
    }
}

#[test]
fn whole_text_must_be_one_object() {
    assert_eq!(parse("").unwrap_err(), BodyError::Empty);
    assert_eq!(parse(" \r\n\t").unwrap_err(), BodyError::Empty);
    for text in ["[]", "\"a\"", "1", "-1", "true", "null", "[{\"model\":\"m\"}]"] {
        assert_eq!(parse(text).unwrap_err(), BodyError::NotAnObject, "{text}");
    }
    for text in ["{} {}", "{}x", "{},", "}", "<html>", "model=m", "\u{b}{}", "{}\0", "\0", "{"] {
        assert!(matches!(parse(text), Err(BodyError::NotJson { .. })), "{text}");
    }
    for text in ["{}", " {} ", "\n{\t}\r\n"] {
        assert_eq!(parse(text).unwrap().members().count(), 0, "{text}");
    }
}

#[test]
fn refusals_tell_what_to_fix() {
    let told = |text: &str| parse(text).unwrap_err().to_string();
    assert_eq!(
        told("\u{feff}{}"),
        "the request body is not valid JSON at byte 0: starts with a byte order mark; send plain UTF-8"
    );
    let told_bytes = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
    let at_0 = "the request body is not valid JSON at byte 0: ";
    for (bytes, why) in [
        (&b"\x1f\x8b\x08\0"[..], "the body is compressed; send it as it is"),
        (b"\x28\xb5\x2f\xfd\0", "the body is compressed; send it as it is"),
        (b"\xff\xfe{\0}\0", "the body is UTF-16; send UTF-8"),
        (b"\xfe\xff\0{\0}", "the body is UTF-16; send UTF-8"),
    ] {
        assert_eq!(told_bytes(bytes), format!("{at_0}{why}"));
    }
    assert_eq!(
        told("{\"a\":1,}"),
        "the request body is not valid JSON at byte 7: expected a member name in double quotes"
    );
    assert_eq!(told("{\"a\":[1,2"), "the request body is not valid JSON at byte 9: the text ends too early");
    assert_eq!(told("[]"), "the request body must be a JSON object, like {\"model\": ...}");
    let twice = parse("{\"bootstrap_room\":1,\"bootstrap\\u005froom\":2,\"x\":1,\"x\":2}").unwrap();
    assert_eq!(
        twice.refuse_repeated(&["model", "bootstrap_room"]).unwrap_err().to_string(),
        "the member \"bootstrap_room\" stands more than once in the request body; send it once"
    );
    assert_eq!(twice.refuse_repeated(&["model", "stream"]), Ok(()));
}

#[test]
fn limits_hold_exactly() {
    let nested = |levels: usize| format!("{{\"v\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert!(parse(nested(128)).is_ok());
    assert_eq!(parse(nested(129)).unwrap_err(), BodyError::TooDeep { limit: 128 });
    let objects = format!("{}1{}", "{\"v\":".repeat(129), "}".repeat(129));
    assert_eq!(parse(objects).unwrap_err(), BodyError::TooDeep { limit: 128 });
    assert_eq!(
        parse(format!("{{\"v\":{}", "[".repeat(1 << 20))).unwrap_err(),
        BodyError::TooDeep { limit: 128 }
    );

    let limits = BodyLimits { max_bytes: 20, max_depth: 1, max_members: 2 };
    let parse = |text: &'static str| Envelope::parse(Bytes::from_static(text.as_bytes()), &limits);
    assert!(parse("{\"a\":1,\"b\":2       }").is_ok());
    assert_eq!(parse("{\"a\":1,\"b\":2        }").unwrap_err(), BodyError::TooLarge { limit: 20 });
    assert_eq!(parse("{\"a\":[]}").unwrap_err(), BodyError::TooDeep { limit: 1 });
    assert_eq!(parse("{\"a\":1,\"b\":2,\"\":3}").unwrap_err(), BodyError::TooManyMembers { limit: 2 });
}

#[test]
fn depth_is_no_recursion() {
    let levels = 1_000_000;
    let text = format!("{{\"v\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    let limits = BodyLimits { max_depth: usize::MAX, ..BodyLimits::default() };
    let envelope = Envelope::parse(text.into(), &limits).unwrap();
    assert_eq!(scalar::array_len(envelope.get("v").unwrap()), Some(1));
}

#[test]
fn names_compare_decoded() {
    let envelope =
        parse(r#"{"\u006bv_transfer_params":1,"a\"b":2,"\ud83d\ude00":3,"\ud800":4,"�":5}"#).unwrap();
    assert_eq!(envelope.get("kv_transfer_params"), Some(&b"1"[..]));
    assert_eq!(envelope.get("a\"b"), Some(&b"2"[..]));
    assert_eq!(envelope.get("😀"), Some(&b"3"[..]));
    assert_eq!(envelope.get("\u{fffd}"), Some(&b"5"[..]), "a lone surrogate is no replacement character");
    assert_eq!(envelope.get("kv_transfer_param"), None);
    assert_eq!(envelope.get("kv_transfer_params2"), None);
    let names: Vec<_> = envelope.members().map(|(key, _)| key.into_owned()).collect();
    assert_eq!(names, ["kv_transfer_params", "a\"b", "😀", "\u{fffd}", "\u{fffd}"]);
    assert_eq!(parse(r#"{"a":1,"a":2}"#).unwrap().get("a"), Some(&b"2"[..]), "the last one");
}

#[test]
fn splice_table() {
    let set = |key: &'static str, value: &'static str| Edit::set(key, value);
    let gone = |key: &'static str| Edit::remove(key);
    let table: &[(&str, &[Edit], &str)] = &[
        ("{}", &[], "{}"),
        ("{}", &[set("a", "1")], r#"{"a":1}"#),
        ("{ }", &[set("a", "1"), set("b", "2")], r#"{"a":1,"b":2 }"#),
        ("{\n}\n", &[gone("a")], "{\n}\n"),
        (r#"{"a":1}"#, &[set("b", "[2]")], r#"{"a":1,"b":[2]}"#),
        ("{\n  \"a\": 1\n}", &[set("b", "2")], "{\n  \"a\": 1,\"b\":2\n}"),
        (r#"{"a": 1, "b": 2, "c": 3}"#, &[set("b", "null")], r#"{"a": 1, "b": null, "c": 3}"#),
        (r#"{"a": 1, "b": 2, "c": 3}"#, &[gone("a")], r#"{"b": 2, "c": 3}"#),
        (r#"{"a": 1, "b": 2, "c": 3}"#, &[gone("b")], r#"{"a": 1, "c": 3}"#),
        (r#"{"a": 1, "b": 2, "c": 3}"#, &[gone("c")], r#"{"a": 1, "b": 2}"#),
        (r#"{"a": 1, "b": 2, "c": 3}"#, &[gone("c"), gone("a")], r#"{"b": 2}"#),
        (r#"{ "a": 1, "b": 2 }"#, &[gone("b"), gone("a")], "{  }"),
        (r#"{ "a": 1, "b": 2 }"#, &[gone("b"), gone("a"), set("c", "3")], r#"{ "c":3 }"#),
        (r#"{"a":1,"b":2,"a":3}"#, &[gone("a")], r#"{"b":2}"#),
        (r#"{"a":1,"b":2,"a":3}"#, &[set("a", "4")], r#"{"b":2,"a":4}"#),
        (r#"{"a":1}"#, &[set("a", "2"), gone("a")], "{}"),
        (r#"{"a":1}"#, &[gone("a"), set("a", "2")], r#"{"a":2}"#),
        (r#"{"a":1}"#, &[set("b", "2"), set("b", "3")], r#"{"a":1,"b":3}"#),
        (r#"{"\u0061" : 1}"#, &[set("a", "2")], r#"{"\u0061" : 2}"#),
        (r#"{"x":{"a":1},"a":2}"#, &[gone("a")], r#"{"x":{"a":1}}"#),
        (
            r#"{"t":0.70,"s":9007199254740993,"u":1e400}"#,
            &[set("n", "1")],
            r#"{"t":0.70,"s":9007199254740993,"u":1e400,"n":1}"#,
        ),
        (r#"{"z":1,"z":2,"p":"\ud800 😀\u00e9"}"#, &[gone("q")], r#"{"z":1,"z":2,"p":"\ud800 😀\u00e9"}"#),
        ("{}", &[set("a\"\n", "1")], r#"{"a\"\n":1}"#),
        ("{}", &[Edit::set_str("a", "x\"\\\n\u{1}é")], r#"{"a":"x\"\\\n\u0001é"}"#),
        (
            "{}",
            &[Edit::set_u64("a", u64::MAX), Edit::set_bool("b", false)],
            r#"{"a":18446744073709551615,"b":false}"#,
        ),
    ];
    for (body, edits, want) in table {
        assert_eq!(&splice(body, edits), want, "{body} {edits:?}");
    }
}

#[test]
fn a_large_value_is_not_copied() {
    let prompt = format!("\"{}\"", "long ".repeat(100_000));
    let envelope = parse(format!("{{\"prompt\":{prompt},\"stream\":true,\"n\":1}}")).unwrap();
    let original = envelope.get("prompt").unwrap().as_ptr();
    let spliced = envelope.splice(&[Edit::set("stream", "false"), Edit::set("max_tokens", "1")]);
    let want = format!("{{\"prompt\":{prompt},\"stream\":false,\"n\":1,\"max_tokens\":1}}");
    assert_eq!(spliced.to_bytes(), want.as_bytes());
    let pieces = spliced.pieces();
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces[0][b"{\"prompt\":".len()..].as_ptr(), original);

    let small = envelope.splice(&[Edit::remove("prompt"), Edit::set_u64("max_tokens", 1)]);
    assert_eq!(small.pieces().to_vec(), ["{\"stream\":true,\"n\":1,\"max_tokens\":1}"]);
    assert_eq!(envelope.splice(&[]).pieces()[0].as_ptr(), envelope.bytes().as_ptr());
}

#[test]
fn a_prefill_answer_gives_its_params() {
    let answer = r#"{"id":"cmpl-1","choices":[{"text":"a"}],"usage":{"prompt_tokens":9,"prompt_tokens_details":null},
        "kv_transfer_params": {"remote_block_ids":[[1,2,3]],"remote_port":5600,"tp_size":1.0}}"#;
    let envelope = parse(answer).unwrap();
    let params = envelope.get_bytes("kv_transfer_params").unwrap();
    assert_eq!(params, r#"{"remote_block_ids":[[1,2,3]],"remote_port":5600,"tp_size":1.0}"#);
    assert_eq!(scalar::member(&params, "remote_port").and_then(scalar::as_u64), Some(5600));
    let blocks = scalar::member(&params, "remote_block_ids").unwrap();
    let group = scalar::elements(blocks).next().unwrap();
    assert_eq!(scalar::elements(group).filter_map(scalar::as_u64).collect::<Vec<_>>(), [1, 2, 3]);
    let names: Vec<_> = scalar::members(&params).map(|(key, _)| key.into_owned()).collect();
    assert_eq!(names, ["remote_block_ids", "remote_port", "tp_size"]);
}

#[test]
fn single_values() {
    let kinds: [(&[u8], Kind); 8] = [
        (b"null", Kind::Null),
        (b"", Kind::Null),
        (b"true", Kind::Bool),
        (b"-1", Kind::Number),
        (b"0.5", Kind::Number),
        (b"\"\"", Kind::String),
        (b"[]", Kind::Array),
        (b"{}", Kind::Object),
    ];
    for (raw, kind) in kinds {
        assert_eq!(scalar::kind(raw), kind);
    }
    assert_eq!(scalar::as_bool(b"true"), Some(true));
    assert_eq!(scalar::as_bool(b"1"), None);
    assert_eq!(scalar::as_u64(b"18446744073709551615"), Some(u64::MAX));
    for none in [&b"18446744073709551616"[..], b"-1", b"1.0", b"1e3", b"\"1\"", b"", b"01", b"1 2"] {
        assert_eq!(scalar::as_u64(none), None, "{none:?}");
    }
    assert_eq!(scalar::as_f64(b"0.70"), Some(0.7));
    assert_eq!(scalar::as_f64(b"1e400"), Some(f64::INFINITY));
    assert_eq!(scalar::as_f64(b"NaN"), None);
    assert_eq!(scalar::as_str(br#""a\u00e9\ud83d\ude00\ud800\n""#).unwrap(), "aé😀\u{fffd}\n");
    assert_eq!(scalar::as_str(b"null"), None);
    assert_eq!(scalar::as_str(b"\""), None);
    assert_eq!(scalar::array_len(b"[]"), Some(0));
    assert_eq!(scalar::array_len(br#"["a",["b","c"],{"d":[1,2]}]"#), Some(3));
    assert_eq!(scalar::array_len(b"\"text\""), None);
    assert_eq!(scalar::array_len(b"[1,2"), None);
    assert_eq!(scalar::member(br#"{"a":1,"\u0061":2}"#, "a"), Some(&b"2"[..]));
    assert_eq!(scalar::member(b"[1]", "a"), None);
}

/// The grammar takes short cuts through long lists of ids and long strings: what stands at their ends and edges.
#[test]
fn short_cuts_read_what_the_grammar_reads() {
    let numbers = [
        "0",
        "7",
        "12",
        "12345678",
        "123456789",
        "1234567890123456",
        "12345678901234567",
        "-1",
        "1.5",
        "0e1",
    ];
    let others = ["[]", "[1,2]", "{}", "\"1\"", "true", "null", " 3", "4 "];
    let broken = ["", "01", "00", "1a", "-", "1.", "+1", "1:", "1;", "1/", "0x1", "\u{e9}", "]"];
    let all = numbers.iter().chain(&others).chain(&broken);
    for (a, b) in all.clone().flat_map(|a| all.clone().map(move |b| (a, b))) {
        for list in [format!("[{a},{b}]"), format!("[1,2,{a},3,{b},4]"), format!("[[{a},1],[2,{b}]]")] {
            let ours = parse(format!("{{\"v\":{list}}}")).is_ok();
            assert_eq!(ours, serde_json::from_str::<serde_json::Value>(&list).is_ok(), "{list}");
        }
    }
}

#[test]
fn strings_end_where_they_end_however_long_they_are() {
    for length in [0, 1, 7, 8, 31, 32, 33, 63, 4095, 4096, 4127, 4128, 4129, 8192, 8300] {
        let plain = "x".repeat(length);
        for end in [
            "\"",
            "\\\"\"",
            "\\\\\"",
            "\u{e9}\"",
            "\u{1f600}yy\"",
            "\n\"",
            "\0\"",
            "\x1f\"",
            "\\x\"",
            "",
            "\\",
        ] {
            for tail in ["", "zz", &plain] {
                let json = format!(
                    "{{\"v\":\"{plain}{}{tail}{}",
                    end.trim_end_matches('"'),
                    if end.ends_with('"') { "\"}" } else { "" }
                );
                let ours = parse(&json);
                let theirs = serde_json::from_str::<serde_json::Value>(&json);
                assert_eq!(ours.is_ok(), theirs.is_ok(), "{length} {end:?} {}", tail.len());
                let Ok(body) = ours else { continue };
                let said = scalar::as_str(body.get("v").unwrap()).unwrap().into_owned();
                assert_eq!(said, theirs.unwrap()["v"].as_str().unwrap());
            }
        }
    }
    let mut bytes = br#"{"v":""#.to_vec();
    bytes.extend([b'x'; 5000]);
    bytes.extend(b"\xff\"}");
    assert!(parse(bytes).is_err(), "not UTF-8");
}
