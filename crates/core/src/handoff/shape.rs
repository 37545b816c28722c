//! The one-token leg: how a generation request is cut down so that an engine only computes its prompt.
//!
//! `stream` off and `stream_options` gone (an engine refuses them without `stream`), `n` 1, `min_tokens`
//! gone (an engine refuses more than the cap), and the output cap 1 in the client's own spelling: with
//! both spellings present `max_completion_tokens` would win (vLLM 0.33; seen on 0.32).

use super::Edits;
use crate::ask::{Api, Ask, Cap};
use crate::body::Edit;

pub fn one_token(ask: &Ask, edits: &mut Edits) {
    if ask.has.stream {
        edits.push(Edit::set("stream", &b"false"[..]));
    }
    if ask.has.stream_options {
        edits.push(Edit::remove("stream_options"));
    }
    if ask.has.n {
        edits.push(Edit::set("n", &b"1"[..]));
    }
    if ask.has.min_tokens {
        edits.push(Edit::remove("min_tokens"));
    }
    match ask.cap {
        Cap::MaxCompletionTokens if ask.api == Api::Chat => {
            edits.push(Edit::set("max_completion_tokens", &b"1"[..]));
            if ask.has.max_tokens {
                edits.push(Edit::remove("max_tokens"));
            }
        }
        cap => edits.push(Edit::set(cap.key(), &b"1"[..])),
    }
}
