//! The request that is sent through a pair, and what its end says.

use std::fmt::Write;

use super::Outcome;
use crate::dice::Dice;
use crate::fault::{Fault, Retry};
use crate::handoff::{Proof, Seen};
use crate::record::HandoffResult;

/// Words of its prompt. Each is a token at least: more than any engine's usual block of KV (16 to 128), and so few
/// that every model has room for them.
const WORDS: usize = 200;

/// Output tokens. A request for one would not be handed over: there would be nothing left for the decode to do.
const TOKENS: u32 = 2;

/// A prompt that no engine has seen before, so that no prefix cache can stand in for the hand-off. An end of the
/// text is ignored: a prefill whose first token is the last has nothing to hand over.
pub fn request(model: Option<&str>, dice: &mut Dice) -> String {
    let mut body = String::with_capacity(64 + 6 * WORDS);
    body.push('{');
    if let Some(model) = model {
        let _ = write!(body, "\"model\":{},", serde_json::Value::from(model));
    }
    body.push_str("\"prompt\":\"");
    for word in 0..WORDS {
        if word > 0 {
            body.push(' ');
        }
        for _ in 0..5 {
            body.push(char::from(b'a' + dice.below(26) as u8));
        }
    }
    let _ = write!(body, "\",\"max_tokens\":{TOKENS},\"temperature\":0,\"ignore_eos\":true}}");
    body
}

impl Outcome {
    /// The request was not answered. One that the engine refuses for what it says cannot show anything.
    pub fn of_fault(fault: &Fault) -> Outcome {
        let why = format!("{}: {}", fault.code(), fault.answer().message);
        match fault.retry() {
            Retry::Safe => Outcome::Failed(why),
            Retry::Never => Outcome::Unjudged(why),
        }
    }

    /// The request was answered. `handed` is what became of its hand-off on the way, with the reason if it was lost;
    /// `seen` is what the decode counted, where it counts.
    pub fn of_answer(
        proof: Proof,
        handed: (HandoffResult, Option<&'static str>),
        seen: Option<Seen>,
    ) -> Outcome {
        let (result, why) = handed;
        let lost = matches!(result, HandoffResult::Missing | HandoffResult::Invalid);
        let still =
            || why.unwrap_or("the decode counts no KV from the prefill: it computed the prompt itself");
        match (proof, seen) {
            (Proof::Counted { .. }, Some(Seen::Moved)) => Outcome::Proved,
            (Proof::Counted { .. }, Some(Seen::Restarted)) => {
                Outcome::Failed("the decode restarted meanwhile".to_owned())
            }
            (Proof::Counted { promised: true }, Some(Seen::Still)) => Outcome::Degraded(still().to_owned()),
            (Proof::Counted { promised: false }, Some(Seen::Still)) => Outcome::Answered,
            (Proof::Answer, _) if !lost => Outcome::Proved,
            _ if lost => Outcome::Degraded(still().to_owned()),
            _ => Outcome::Answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::{Api, Ask};
    use crate::body::{BodyLimits, Envelope};
    use crate::fault::{LegName, Refusal};

    #[test]
    fn the_prompt_is_new_each_time_and_the_hand_off_is_worth_it() {
        let mut dice = Dice::new(5);
        let (a, b) = (request(Some("a \"model\""), &mut dice), request(None, &mut dice));
        assert_ne!(a.split("prompt").nth(1), b.split("prompt").nth(1));
        let read = |text: String| {
            Ask::read(Api::Completions, &Envelope::parse(text.into(), &BodyLimits::default()).unwrap())
                .unwrap()
        };
        let (a, b) = (read(a), read(b));
        assert_eq!((a.model.as_deref(), b.model), (Some("a \"model\""), None));
        assert_eq!((a.max_tokens, a.stream, a.is_single()), (Some(u64::from(TOKENS)), false, true));
    }

    #[test]
    fn what_an_answer_shows() {
        const NONE: (HandoffResult, Option<&str>) = (HandoffResult::None, None);
        let lost = (HandoffResult::Missing, Some("no params"));
        let counted = |promised| Proof::Counted { promised };
        let word = |outcome: Outcome| outcome.as_str();
        for (proof, handed, seen, expected) in [
            (counted(true), NONE, Some(Seen::Moved), "proved"),
            (counted(true), NONE, Some(Seen::Still), "degraded"),
            (counted(false), NONE, Some(Seen::Still), "answered"),
            (counted(false), NONE, Some(Seen::Moved), "proved"),
            (counted(true), NONE, Some(Seen::Restarted), "failed"),
            (Proof::Answer, NONE, None, "proved"),
            (Proof::Answer, lost, None, "degraded"),
            (Proof::Unseen, NONE, None, "answered"),
            (Proof::Unseen, lost, None, "degraded"),
        ] {
            assert_eq!(
                word(Outcome::of_answer(proof, handed, seen)),
                expected,
                "{proof:?} {handed:?} {seen:?}"
            );
        }
        let degraded = Outcome::of_answer(counted(true), lost, Some(Seen::Still));
        assert_eq!(degraded.why(), Some("no params"));
    }

    #[test]
    fn a_refusal_cannot_be_judged_and_a_failure_is_tried_again() {
        for (status, word) in
            [(400, "unchecked"), (404, "unchecked"), (429, "failed"), (500, "failed"), (503, "failed")]
        {
            let refusal = Refusal { status, message: "no".into(), ..Refusal::default() };
            let outcome = Outcome::of_fault(&Fault::Refused { leg: LegName::Decode, refusal });
            assert_eq!(outcome.as_str(), word, "{status}");
        }
        let lost = Fault::Unreachable { leg: LegName::Prefill, cause: "refused".into() };
        assert_eq!(Outcome::of_fault(&lost).as_str(), "failed");
        assert_eq!(Outcome::of_fault(&Fault::TrtContext).as_str(), "unchecked");
    }
}
