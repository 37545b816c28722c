//! Did a one-token leg end at its cap, or by itself?
//!
//! A vLLM connector keeps the KV of a request that ended at its length and drops that of one that ended
//! with its first token (vLLM 0.33). A connector that returns its hand-off says so by returning none; of
//! one that is told up front only the reason of the ending tells.

use crate::ask::Api;
use crate::body::{Envelope, scalar};

/// Whether the answer ended at its cap. `None`: it does not say.
pub fn at_cap(api: Api, answer: &Envelope) -> Option<bool> {
    match api {
        Api::Chat | Api::Completions => first_choice(answer)
            .and_then(|choice| scalar::member(choice, "finish_reason"))
            .and_then(scalar::as_str)
            .map(|reason| reason == "length"),
        Api::Messages => {
            answer.get("stop_reason").and_then(scalar::as_str).map(|reason| reason == "max_tokens")
        }
        Api::Responses => answer.get("status").and_then(scalar::as_str).map(|status| status == "incomplete"),
        Api::Generate | Api::CountTokens | Api::Rerank => None,
    }
}

/// The first of an OpenAI answer's choices.
pub fn first_choice(answer: &Envelope) -> Option<&[u8]> {
    scalar::elements(answer.get("choices")?).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::BodyLimits;

    #[test]
    fn each_api_has_its_own_word_for_it() {
        for (api, answer, at_its_cap) in [
            (Api::Chat, r#"{"choices":[{"finish_reason":"length"}]}"#, Some(true)),
            (Api::Chat, r#"{"choices":[{"finish_reason":"stop"}]}"#, Some(false)),
            (
                Api::Completions,
                r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}]}"#,
                Some(false),
            ),
            (Api::Completions, r#"{"choices":[{"finish_reason":null}]}"#, None),
            (Api::Completions, r#"{"choices":[]}"#, None),
            (Api::Completions, r#"{"choices":7}"#, None),
            (Api::Messages, r#"{"stop_reason":"max_tokens"}"#, Some(true)),
            (Api::Messages, r#"{"stop_reason":"end_turn"}"#, Some(false)),
            (Api::Responses, r#"{"status":"incomplete"}"#, Some(true)),
            (Api::Responses, r#"{"status":"completed"}"#, Some(false)),
            (Api::Responses, "{}", None),
            (Api::Generate, r#"{"choices":[{"finish_reason":"stop"}]}"#, None),
        ] {
            let envelope = Envelope::parse(answer.into(), &BodyLimits::default()).unwrap();
            assert_eq!(at_cap(api, &envelope), at_its_cap, "{api:?} {answer}");
        }
    }
}
