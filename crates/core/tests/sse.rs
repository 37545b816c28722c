//! Streams as engines send them, cut in every way, and the odd ones the standard allows.

#![allow(clippy::unwrap_used)]

use baton_core::sse::{EVENT_LIMIT, Flavour, SseWatch, Usage, usage_of_answer};

/// All that a watch tells.
#[derive(Debug, PartialEq)]
struct Seen {
    events: u64,
    chunks: u64,
    first: bool,
    done: bool,
    error: bool,
    usage: Option<Usage>,
    restore: &'static [u8],
}

fn watch<'a>(flavour: Flavour, chunks: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut watch = SseWatch::new(flavour);
    chunks.into_iter().for_each(|chunk| watch.feed(chunk));
    assert_eq!(watch.at_boundary(), watch.restore().is_empty());
    Seen {
        events: watch.events(),
        chunks: watch.chunks(),
        first: watch.first_data_seen(),
        done: watch.done_seen(),
        error: watch.error_seen(),
        usage: watch.usage(),
        restore: watch.restore(),
    }
}

fn openai(stream: &str) -> Seen {
    watch(Flavour::OpenAi, [stream.as_bytes()])
}

/// The same whatever the cut: every single position, and byte by byte.
fn every_split(flavour: Flavour, stream: &str) -> Seen {
    let bytes = stream.as_bytes();
    let whole = watch(flavour, [bytes]);
    for at in 0..=bytes.len() {
        assert_eq!(watch(flavour, [&bytes[..at], &bytes[at..]]), whole, "cut at {at}");
    }
    assert_eq!(watch(flavour, bytes.chunks(1)), whole, "byte by byte");
    whole
}

fn content(text: &str) -> String {
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
         \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n"
    )
}

const FINISH: &str =
    "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\
                     \"total_tokens\":10}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn counts(prompt_tokens: u64, completion_tokens: u64, cached_tokens: Option<u64>) -> Option<Usage> {
    Some(Usage { prompt_tokens, completion_tokens, cached_tokens })
}

#[test]
fn events_split_anywhere() {
    let seen = every_split(Flavour::OpenAi, &[&content("hello"), FINISH, USAGE, DONE].concat());
    let want = Seen {
        events: 4,
        chunks: 3,
        first: true,
        done: true,
        error: false,
        usage: counts(7, 3, None),
        restore: b"",
    };
    assert_eq!(seen, want);
}

/// The main events of a response, with the given last one.
fn response(last: &str, over: &str) -> String {
    let named = |name: &str, rest: &str| format!("event: {name}\ndata: {{\"type\":\"{name}\"{rest}}}\n\n");
    [
        named("response.created", r#","response":{"status":"in_progress","usage":null}"#),
        named("response.in_progress", r#","response":{"status":"in_progress"}"#),
        named("response.output_item.added", r#","item":{"content":[]}"#),
        named("response.output_text.delta", r#","delta":"the \"usage\" of data: [DONE]""#),
        named("response.output_text.done", r#","text":"the \"usage\" of data: [DONE]""#),
        named(last, over),
    ]
    .concat()
}

#[test]
fn a_response_ends_with_its_usage() {
    let over = r#","response":{"object":"response","output":[],"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":3,"total_tokens":10},"user":null}"#;
    for last in ["response.completed", "response.incomplete"] {
        let seen = every_split(Flavour::Responses, &response(last, over));
        let want = Seen {
            events: 6,
            chunks: 3,
            first: true,
            done: true,
            error: false,
            usage: counts(7, 3, Some(4)),
            restore: b"",
        };
        assert_eq!(seen, want, "{last}");
    }
    let failed = every_split(Flavour::Responses, &response("response.failed", r#","response":{"error":{}}"#));
    assert_eq!((failed.done, failed.error, failed.usage), (true, true, None));
    let cut = response("response.completed", over);
    let cut = every_split(Flavour::Responses, cut.strip_suffix("\n").unwrap());
    assert_eq!((cut.done, cut.error, cut.usage), (false, false, None));
    // Announced only: no token has come.
    let begun = "event: response.created\ndata: {\"response\":{}}\n\n";
    assert!(!watch(Flavour::Responses, [begun.as_bytes()]).first);
}

#[test]
fn the_model_says_done() {
    let text =
        [content("see data: [DONE]\\n\\ndata: [DONE] ok"), content("still here"), FINISH.into()].concat();
    let seen = every_split(Flavour::OpenAi, &text);
    assert_eq!((seen.chunks, seen.done), (3, false));
    let seen = every_split(Flavour::OpenAi, &[&text, DONE].concat());
    assert_eq!((seen.chunks, seen.done), (3, true));
    // a write that begins with the very words
    let at = text.find("data: [DONE]").unwrap();
    assert!(!watch(Flavour::OpenAi, [&text.as_bytes()[..at], &text.as_bytes()[at..]]).done);
}

#[test]
fn done_only_as_a_whole_event() {
    let yes = [
        DONE.to_owned(),
        [&content("a"), DONE].concat(),
        "data: [DONE]\r\n\r\n".into(),
        "data:[DONE]\r\r".into(),
        "\ndata: [DONE]\n\n".into(),
        ": ping\ndata: [DONE]\n\n".into(),
        "id: 3\ndata: [DONE]\n\n".into(),
    ];
    for stream in yes {
        assert!(every_split(Flavour::OpenAi, &stream).done, "{stream:?}");
    }
    let no = [
        "data: [DONE]",
        "data: [DONE]\n",
        "data: [DONE]\r\n",
        "data: [DONE]{\"a\":1}\n\n",
        "data: [DONE]\ndata: x\n\n",
        "xdata: [DONE]\n\n",
        " data: [DONE]\n\n",
        "data : [DONE]\n\n",
        ": data: [DONE]\n\n",
        "event: data: [DONE]\n\n",
        "data: \"[DONE]\"\n\n",
        "data: [done]\n\n",
    ];
    for stream in no {
        assert!(!every_split(Flavour::OpenAi, stream).done, "{stream:?}");
    }
}

#[test]
fn other_legal_framings() {
    let stream = ": ping\r\n\r\n\
        event: x\r\nid: 7\r\ndata:{\"id\":\"c1\",\"choices\":[{\"delta\":{\"content\":\"A\"}}]}\r\n\r\n\
        data: {\"id\":\"c1\",\ndata: \"choices\":[],\ndata:\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n\
        data: {\"id\":\"c1\",\"choices\":[]}\r\r\
        retry: 10\n\n\
        data\n\n\
        data:[DONE]\r\n\r\n";
    let seen = every_split(Flavour::OpenAi, stream);
    assert_eq!((seen.events, seen.chunks, seen.done), (5, 4, true));
    assert_eq!(seen.usage, counts(4, 2, None));
    assert_eq!(seen.restore, b"");

    let comments = every_split(Flavour::OpenAi, ": ping\r\n\r\n:\n:keep-alive\n\n");
    assert_eq!((comments.events, comments.first), (0, false));
    let marked = every_split(Flavour::OpenAi, &format!("\u{feff}{DONE}"));
    assert!(marked.done, "a byte order mark may come first");
}

#[test]
fn usage_with_and_without_choices() {
    for usage in [
        "{\"prompt_tokens\":7,\"total_tokens\":10,\"completion_tokens\":3}",
        "{\"prompt_tokens\":7,\"completion_tokens\":3,\"prompt_tokens_details\":null}",
        "{\"x\":{\"usage\":{\"prompt_tokens\":99}},\"prompt_tokens\":7,\"completion_tokens\":3}",
    ] {
        for stream in [
            format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n"),
            format!("data: {{\"usage\" : {usage} ,\"choices\":[{{\"delta\":{{}}}}]}}\n\n"),
            format!("data: {{\"choices\":[],\"usage\":{usage},\"kv_transfer_params\":{{\"a\":[1]}}}}\n\n"),
            format!("data: {{\"usage\":{{\"prompt_tokens\":1}}}}\n\ndata: {{\"usage\":{usage}}}\n\n{DONE}"),
            format!("data: {{\"usage\":{usage}}}\n\ndata: {{\"usage\":null}}\n\n{DONE}"),
        ] {
            assert_eq!(openai(&stream).usage, counts(7, 3, None), "{stream}");
        }
    }
    let cached = "data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\
                  \"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n";
    assert_eq!(every_split(Flavour::OpenAi, cached).usage, counts(7, 3, Some(5)));
}

#[test]
fn words_that_are_no_usage() {
    for data in [
        r#"{"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":9}"}}]}"#,
        r#"{"choices":[{"delta":{"content":"usage"}}]}"#,
        r#"{"choices":[{"delta":{"usage":{"prompt_tokens":9}}}]}"#,
        r#"{"a":"\"usage":{"prompt_tokens":9}}"#,
        r#"{"\"usage":{"prompt_tokens":9}}"#,
        r#"{"usage":null}"#,
        r#"{"usage":[]}"#,
        r#"{"usage":{}}"#,
        r#"{"usage":{"prompt_tokens":"9"}}"#,
        r#"{"usage":{"prompt_tokens":9}"#,
        r#"{"meta_info":{"prompt_tokens":9}}"#,
        r#""usage":{"prompt_tokens":9}"#,
    ] {
        assert_eq!(openai(&format!("data: {data}\n\n")).usage, None, "{data}");
    }
}

#[test]
fn generate_streams() {
    let stream = "data: {\"text\":\"a\",\"output_ids\":[5],\"meta_info\":{\"id\":\"r-1\",\"finish_reason\":null,\
        \"prompt_tokens\":4,\"completion_tokens\":1,\"cached_tokens\":0,\"weight_version\":\"default\"}}\n\n\
        data: {\"text\":\"a \\\"meta_info\\\"\",\"meta_info\":{\"finish_reason\":{\"type\":\"length\",\"length\":2},\
        \"prompt_tokens\":4,\"completion_tokens\":2,\"cached_tokens\":3,\"e2e_latency\":0.1}}\n\n\
        data: [DONE]\n\n";
    let seen = every_split(Flavour::Generate, stream);
    assert_eq!((seen.chunks, seen.done, seen.error, seen.usage), (2, true, false, counts(4, 2, Some(3))));

    let abort = "data: {\"text\":\"\",\"meta_info\":{\"id\":\"r-1\",\"finish_reason\":{\"type\":\"abort\",\
        \"message\":\"Decode transfer failed\",\"status_code\":500}}}\n\n";
    let seen = every_split(Flavour::Generate, abort);
    assert_eq!((seen.error, seen.usage), (true, None));
}

#[test]
fn messages_streams() {
    let stream = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":\
        {\"input_tokens\":25,\"cache_read_input_tokens\":8,\"output_tokens\":1}}}\n\n\
        event: ping\ndata: {\"type\":\"ping\"}\n\n\
        event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"usage\"}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
        \"usage\":{\"output_tokens\":15}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let seen = every_split(Flavour::Messages, stream);
    assert_eq!((seen.events, seen.chunks, seen.done, seen.error), (5, 3, true, false));
    assert_eq!(seen.usage, counts(25, 15, Some(8)));
    assert!(!watch(Flavour::Messages, [&b"event: ping\ndata: {\"type\":\"ping\"}\n\n"[..]]).first);
}

#[test]
fn errors_in_the_stream() {
    for stream in [
        "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n",
        "data:{ \"error\" : \"x\"}\r\n\r\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"}}\n\n",
        "data: whatever\nevent:error\n\n",
    ] {
        let seen = every_split(Flavour::OpenAi, stream);
        assert!(seen.error && !seen.first && seen.events == 1, "{stream}");
    }
    for stream in [
        "data: {\"error\":null,\"choices\":[]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"{\\\"error\\\":1}\"}}]}\n\n",
        "event: errors\ndata: {}\n\n",
        "data: \"error\"\n\n",
        ": {\"error\":1}\n\n",
    ] {
        assert!(!every_split(Flavour::OpenAi, stream).error, "{stream}");
    }
}

#[test]
fn what_restores_the_framing() {
    let table: [(&str, &[u8]); 15] = [
        ("", b""),
        ("data: {}\n\n", b""),
        ("data: {}\r\n\r\n", b""),
        ("data: {}\r\r", b""),
        ("data: {}\r\n\r", b""),
        ("\n\n\n", b""),
        (": ping\n", b""),
        (": pi", b"\n\n"),
        ("d", b"\n\n"),
        ("data: {\"id", b"\n\n"),
        ("data: {}\n\ndata: [DO", b"\n\n"),
        ("data: {}\n", b"\n"),
        ("data: {}\r\n", b"\n"),
        ("data: {}\r", b"\n\n"),
        ("event: x\n: ping\n", b"\n"),
    ];
    let error = "data: {\"error\":{\"message\":\"Stream error\"}}\n\n";
    for (stream, restore) in table {
        let before = every_split(Flavour::OpenAi, stream);
        assert_eq!(before.restore, restore, "{stream:?}");
        let after = watch(Flavour::OpenAi, [stream.as_bytes(), restore, error.as_bytes()]);
        assert!(after.error && after.restore.is_empty(), "{stream:?}");
    }
}

#[test]
fn a_huge_event_is_counted() {
    let huge = content(&"x".repeat(8 << 20));
    let stream = [&content("a"), &huge, USAGE, DONE].concat();
    for size in [1000, 16 * 1024, stream.len()] {
        let seen = watch(Flavour::OpenAi, stream.as_bytes().chunks(size));
        assert_eq!((seen.events, seen.chunks, seen.done, seen.usage), (4, 3, true, counts(7, 3, None)));
    }
    // many lines of one event count together
    let lines =
        format!("{}data: {{\"usage\":{{\"prompt_tokens\":1}}}}\n\n", "data: {}\n".repeat(EVENT_LIMIT));
    assert_eq!(watch(Flavour::OpenAi, [lines.as_bytes()]).usage, None);
    let long_name = format!("{}: x\n\n{DONE}", "data".repeat(EVENT_LIMIT));
    assert!(watch(Flavour::OpenAi, long_name.as_bytes().chunks(4096)).done);
    let long_error = format!("data: {{\"error\":\"{}\"}}\n\n", "x".repeat(EVENT_LIMIT));
    assert!(openai(&long_error).error);
}

#[test]
fn ten_thousand_events_in_one_write() {
    let stream = [content("x").repeat(10_000), USAGE.into(), DONE.into()].concat();
    let seen = openai(&stream);
    assert_eq!((seen.events, seen.chunks, seen.done), (10_002, 10_001, true));
}

#[test]
fn bytes_that_make_no_sense() {
    for stream in
        ["\0\u{1}\n\n", "<html>\n</html>\n", ":::::\n\n", "{\"error\":1}", "\u{feff}\u{feff}data: [DONE]\n\n"]
    {
        let seen = every_split(Flavour::OpenAi, stream);
        assert_eq!((seen.events, seen.done, seen.error), (0, false, false), "{stream:?}");
    }
}

#[test]
fn usage_of_plain_answers() {
    let text = "x".repeat(100_000);
    let table = [
        (format!(r#"{{"choices":[{{"text":"{text}"}}],"usage":{{"prompt_tokens":9,"completion_tokens":2}}}}"#), (9, 2, None)),
        (r#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}},"kv_transfer_params":{"usage":1}}"#.into(), (9, 2, Some(8))),
        (r#"{"content":[],"usage":{"input_tokens":8,"output_tokens":8}} "#.into(), (8, 8, None)),
        (r#"{"text":"a","meta_info":{"prompt_tokens":3,"completion_tokens":4,"cached_tokens":1,"input_token_logprobs":[[-1.5,3,null]]}}"#.into(), (3, 4, Some(1))),
        (r#" [{"text":"a","meta_info":{"prompt_tokens":3,"completion_tokens":4,"cached_tokens":1}}, {"meta_info":{"prompt_tokens":3,"completion_tokens":5}}]"#.into(), (6, 9, Some(1))),
    ];
    for (answer, (prompt, completion, cached)) in table {
        assert_eq!(usage_of_answer(answer.as_bytes()), counts(prompt, completion, cached), "{answer}");
    }
    let many = format!("{{\"usage\":{{\"prompt_tokens\":1}},\"x\":[{}]}}", "\"usage\",".repeat(7) + "1");
    assert_eq!(
        usage_of_answer(many.as_bytes()),
        counts(1, 0, None),
        "the eighth from the end is still tried"
    );
    for none in
        ["", "{}", "[]", "null", "{\"usage\":null}", "<html>", "{\"a\":{\"usage\":{\"prompt_tokens\":1}}}"]
    {
        assert_eq!(usage_of_answer(none.as_bytes()), None, "{none}");
    }
}
