//! Any bytes as an engine's answer to a question about a prompt: no more tokens than bytes, and as many as it says.
//! And any body as a conversation of another API: what is made of it can be asked about, in JSON and within the limit.
//!
//! Input: one byte that picks which of these it is, then the bytes.

#![no_main]

use baton_core::ask::Api;
use baton_core::body::{BodyLimits, Envelope, scalar};
use baton_core::{chat, tokenize};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fn object(bytes: &[u8]) -> Option<Envelope> {
    Envelope::parse(Bytes::copy_from_slice(bytes), &BodyLimits::default()).ok()
}

fuzz_target!(|input: &[u8]| {
    let [which, rest @ ..] = input else { return };
    if which % 4 == 0 {
        let Ok(ids) = tokenize::read(Bytes::copy_from_slice(rest)) else { return };
        let said = object(rest).expect("what is read is an object");
        assert_eq!(said.get("count").and_then(scalar::as_u64), Some(ids.len() as u64));
        assert!(ids.len() <= rest.len());
        return;
    }
    let Some(body) = object(rest) else { return };
    let api = [Api::Chat, Api::Messages, Api::Responses][usize::from(which % 4) - 1];
    let made = match chat::of(api, &body) {
        Some(Ok(made)) => made,
        Some(Err(_)) => return,
        None => body,
    };
    if let Ok(question) = tokenize::question(Api::Chat, &made) {
        assert!(question.body.len() <= tokenize::QUESTION_MAX_BYTES);
        assert!(object(&question.body).is_some());
    }
});
