//! What a client's headers say about where its request should go.

use baton_core::ask::{Ask, Hints};
use baton_core::wishes::{Wish, Wishes};
use http::{HeaderMap, HeaderName, header};

const TARGET_WORKER: HeaderName = HeaderName::from_static("x-smg-target-worker");
const TOKENS: HeaderName = HeaderName::from_static("x-smg-routing-tokens");

/// Hears the routing key in the first of the headers that has one, and what goes with it (without names no policy asks
/// for any of that), and the tokens that stand for the prompt.
pub fn hear(names: &[HeaderName], headers: &HeaderMap, ask: &mut Ask) {
    if let Some(list) = headers.get(TOKENS) {
        ask.hear_tokens(list.as_bytes());
    }
    hear_key(names, headers, &mut ask.hints);
}

fn hear_key(names: &[HeaderName], headers: &HeaderMap, hints: &mut Hints) {
    if names.is_empty() {
        return;
    }
    let _found = names.iter().filter_map(|name| headers.get(name)).any(|key| hints.hear_key(key.as_bytes()));
    if let Some(index) = headers.get(TARGET_WORKER) {
        hints.hear_target(index.as_bytes());
    }
    if let Some(text) = headers.get("x-forwarded-for").or_else(|| headers.get(header::COOKIE)) {
        hints.imply(text.as_bytes());
    }
}

/// What the client asks of routing in AIBrix's headers.
pub fn wishes(headers: &HeaderMap) -> Option<Box<Wishes>> {
    let mut found: Option<Box<Wishes>> = None;
    for wish in Wish::ALL {
        // Where a header may be a list, each of its values counts.
        let most = if wish == Wish::Filter { usize::MAX } else { 1 };
        for value in headers.get_all(wish.header()).iter().take(most) {
            found.get_or_insert_default().hear(wish, value.as_bytes());
        }
    }
    found
}
