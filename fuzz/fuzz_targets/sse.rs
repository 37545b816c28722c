//! Any bytes as a stream, cut anywhere: the cuts do not matter, and an error event can follow at every point.
//!
//! Input: one byte for the flavour, one for the length of the chunks; then the stream.

#![no_main]

use baton_core::sse::{Flavour, SseWatch, Usage};
use libfuzzer_sys::fuzz_target;

type Seen = (u64, u64, bool, bool, Option<Usage>, &'static [u8]);

fn watch<'a>(flavour: Flavour, chunks: impl IntoIterator<Item = &'a [u8]>) -> Seen {
    let mut watch = SseWatch::new(flavour);
    chunks.into_iter().for_each(|chunk| watch.feed(chunk));
    assert_eq!(watch.at_boundary(), watch.restore().is_empty());
    (watch.events(), watch.chunks(), watch.done_seen(), watch.error_seen(), watch.usage(), watch.restore())
}

fuzz_target!(|input: &[u8]| {
    let [flavour, size, stream @ ..] = input else { return };
    let all = [Flavour::OpenAi, Flavour::Generate, Flavour::Messages, Flavour::Responses];
    let flavour = all[usize::from(*flavour) % all.len()];
    let whole = watch(flavour, [stream]);
    assert_eq!(watch(flavour, stream.chunks(usize::from(*size).max(1))), whole);
    assert_eq!(whole.0, slow_count(stream));

    let ended = [stream, whole.5, b"data: {\"error\":1}\n\n"].concat();
    let after = watch(flavour, [ended.as_slice()]);
    assert!(after.3 && after.5.is_empty());
    assert_eq!(after.0, slow_count(&ended));
    assert!(after.0 == whole.0 + 1 || after.0 == whole.0 + 2 && !whole.5.is_empty());
});

/// Events with data, by the letter of the standard.
fn slow_count(stream: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(stream);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut has_data) = (0, false);
    let mut lines: Vec<_> = text.split('\n').collect();
    lines.pop();
    for line in lines {
        if line.is_empty() {
            events += u64::from(std::mem::take(&mut has_data));
        }
        has_data |= line == "data" || line.starts_with("data:");
    }
    events
}
