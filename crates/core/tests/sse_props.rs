//! Streams made at random: the cuts do not matter, and a slow reader of the standard's rules sees the same events.

#![allow(clippy::unwrap_used)]

use baton_core::sse::{Flavour, SseWatch, Usage};
use proptest::prelude::*;

type Seen = (u64, u64, bool, bool, Option<Usage>, &'static [u8]);

fn watch<'a>(flavour: Flavour, chunks: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut watch = SseWatch::new(flavour);
    chunks.into_iter().for_each(|chunk| watch.feed(chunk));
    (watch.events(), watch.chunks(), watch.done_seen(), watch.error_seen(), watch.usage(), watch.restore())
}

/// The data of each event, by the letter of the standard.
fn slow_events(stream: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace('\r', "\n");
    let mut events = Vec::new();
    let mut data: Option<String> = None;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.split('\n') {
        if line.is_empty() {
            events.extend(data.take());
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            data = Some(data.map_or(value.to_owned(), |data| data + "\n" + value));
        }
    }
    events
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let known = vec![
        "data: [DONE]",
        "data:[DONE]",
        "data: {\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\\n\\n\"}}]}",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}",
        "data: {\"text\":\"\",\"meta_info\":{\"prompt_tokens\":2,\"finish_reason\":{\"type\":\"abort\"}}}",
        "data: {\"usage\":{\"output_tokens\":5}}",
        "data: {\"error\":{\"message\":\"x\"}}",
        "data: {",
        "data: }",
        "data",
        "event: error",
        "event: ping",
        "event:message_stop",
        ": ping",
        "id: 1",
    ];
    prop_oneof![
        6 => prop::sample::select(known).prop_map(|line| line.as_bytes().to_vec()),
        1 => prop::collection::vec(prop::sample::select(b"dat:e \xff{}\"".to_vec()), 0..12),
    ]
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let end = prop::sample::select(vec!["\n\n", "\n\n", "\n", "\r\n", "\r\n\r\n", "\r", "\r\r", ""]);
    prop::collection::vec((line(), end), 0..12).prop_map(|lines| {
        lines.into_iter().flat_map(|(line, end)| [line, end.as_bytes().to_vec()].concat()).collect()
    })
}

fn flavour() -> impl Strategy<Value = Flavour> {
    prop::sample::select(vec![Flavour::OpenAi, Flavour::Generate, Flavour::Messages, Flavour::Responses])
}

/// Cuts `bytes` at the given places.
fn cut(bytes: &[u8], at: Vec<prop::sample::Index>) -> Vec<&[u8]> {
    let mut at: Vec<_> = at.into_iter().map(|index| index.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn cuts_do_not_matter(
        flavour in flavour(), stream in stream(), at in prop::collection::vec(any::<prop::sample::Index>(), 0..9)
    ) {
        let whole = watch(flavour, [stream.as_slice()]);
        prop_assert_eq!(&watch(flavour, cut(&stream, at)), &whole);
        prop_assert_eq!(&watch(flavour, stream.chunks(1)), &whole);
    }

    #[test]
    fn any_bytes_any_cuts(
        bytes in prop::collection::vec(prop::sample::select(b"data: [DONE]{\"usage\"}\r\n\n\r:e\xef\xbb\xbf".to_vec()), 0..80),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..5)
    ) {
        prop_assert_eq!(watch(Flavour::OpenAi, cut(&bytes, at)), watch(Flavour::OpenAi, [bytes.as_slice()]));
    }

    #[test]
    fn events_are_those_of_the_standard(stream in stream()) {
        let slow = slow_events(&stream);
        let (events, ..) = watch(Flavour::OpenAi, [stream.as_slice()]);
        prop_assert_eq!(events, slow.len() as u64);
    }

    /// Wherever a stream breaks off, an error event can follow, and nothing else is put into it.
    #[test]
    fn an_error_can_follow_anywhere(stream in stream(), at in any::<prop::sample::Index>()) {
        let stream = &stream[..at.index(stream.len() + 1)];
        let (events, .., restore) = watch(Flavour::OpenAi, [stream]);
        let error = "data: {\"error\":\"cut\"}\n\n";
        let ended = [stream, restore, error.as_bytes()].concat();
        let slow = slow_events(&ended);
        prop_assert_eq!(slow.last().map(String::as_str), Some("{\"error\":\"cut\"}"));
        let (after, _, _, failed, _, left) = watch(Flavour::OpenAi, [ended.as_slice()]);
        prop_assert!(failed && left.is_empty());
        prop_assert!(after == events + 1 || (after == events + 2 && !restore.is_empty()));
    }
}
