//! Sizes: which source counts, and what engines' counts teach.

use super::*;
use crate::ask::{Api, Ask};
use crate::body::{BodyLimits, Envelope};
use proptest::prelude::*;

/// A token is a letter of the text; one stands in front of a prompt.
#[derive(Debug)]
struct Letters;

impl Tokenizer for Letters {
    fn count(&self, text: &str) -> usize {
        text.chars().filter(|c| c.is_alphabetic()).count()
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        Some(std::iter::once(0).chain(text.chars().map(u32::from)).collect())
    }

    fn chat(&self, body: &Envelope) -> Result<Vec<u32>, Unknown> {
        if body.get("tools").is_some() { Err("no tools".into()) } else { Ok(vec![1, 2, 3]) }
    }
}

fn prompt(api: Api, body: &str, measure: &Arc<Measure>) -> Prompt {
    let body = Envelope::parse(body.to_owned().into(), &BodyLimits::default()).unwrap();
    let mut prompt = Ask::read(api, &body).unwrap().prompt;
    prompt.measure_by(measure);
    prompt
}

fn chat(text: &str, measure: &Arc<Measure>) -> Size {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    prompt(Api::Chat, &body, measure).size()
}

#[test]
fn the_best_source_at_hand_is_taken() {
    let measure = Arc::new(Measure::default());
    assert_eq!(chat(&"x".repeat(396), &measure), Size { tokens: 100, how: How::Assumed });
    measure.ratios.learn("m", 400, 200);
    assert_eq!(chat(&"x".repeat(396), &measure), Size { tokens: 200, how: How::Learnt });
    let measure = Arc::new(Measure::new(vec![(Some("m".into()), Arc::new(Letters))]));
    assert_eq!(chat(&"x ".repeat(300), &measure), Size { tokens: 304, how: How::Tokenizer });
    let ids = prompt(Api::Completions, r#"{"model":"m","prompt":[5,6,7]}"#, &measure);
    assert_eq!(ids.size(), Size { tokens: 3, how: How::Ids });
    assert_eq!(ids.size().to_string(), "3 tokens (token ids)");
}

#[test]
fn what_an_engine_told_goes_before_all_but_the_clients_tokens() {
    let own =
        |model: Option<&str>| -> (_, Arc<dyn Tokenizer>) { (model.map(str::to_owned), Arc::new(Letters)) };
    let measure = Measure::new(vec![own(Some("own")), own(None)]);
    let measure = Arc::new(measure.asking([Some("m".to_owned()), None]));
    let text = |model: &str| format!(r#"{{"model":"{model}","prompt":"abc"}}"#);
    let asks = |body: &str| measure.asks(&prompt(Api::Completions, body, &measure));
    assert!(asks(&text("m")) && asks(&text("other")) && !asks(&text("own")));
    assert!(!asks(r#"{"model":"m","prompt":[1,2]}"#), "the client sent them");
    let mut told = prompt(Api::Completions, &text("m"), &measure);
    assert_eq!(told.size().how, How::Tokenizer);
    told.tell(Ok([5, 6, 7, 8].into()));
    assert_eq!(told.size(), Size { tokens: 4, how: How::Engine });
    assert_eq!(told.ids().unwrap().to_vec(), [5, 6, 7, 8]);
    let mut part = prompt(Api::Completions, &text("m"), &measure);
    part.told_as(&told);
    assert_eq!(part.size(), told.size());
    // It said nothing: what is known without it.
    told.tell(Err("it is late".into()));
    assert_eq!((told.size().how, told.ids().unwrap().len()), (How::Tokenizer, 4));
    let bare = Arc::new(Measure::default().asking([None]));
    let mut untold = prompt(Api::Completions, &text("m"), &bare);
    untold.tell(Err("it is late".into()));
    assert_eq!(untold.ids(), Err("no engine said: it is late".into()));
    assert_eq!(untold.size().how, How::Assumed);
}

#[test]
fn an_engine_that_tells_other_tokens_than_engines_count_is_left_and_tried_again() {
    let measure = Arc::new(Measure::default().asking([None]));
    let served = |counted: u64| {
        let mut prompt = prompt(Api::Completions, r#"{"model":"m","prompt":"abc"}"#, &measure);
        let asks = measure.asks(&prompt);
        if asks {
            prompt.tell(Ok([1, 2, 3].into()));
        }
        measure.learn(&prompt, &Usage { prompt_tokens: counted, ..Usage::default() });
        asks
    };
    assert_eq!([3, 4, 3, 3].map(served), [true; 4], "one of them may be odd");
    assert!((5..25).contains(&(0..1000).filter(|_| served(4)).count()));
    assert!((0..1000).filter(|_| served(3)).count() > 800);
}

#[test]
fn a_long_text_is_worked_out_from_its_beginning() {
    let measure = Arc::new(Measure::new(vec![(None, Arc::new(Letters))]));
    let text = "x ".repeat(EXACT_BYTES);
    let Size { tokens, how } = chat(&text, &measure);
    assert_eq!(how, How::Beginning);
    assert!(tokens.abs_diff(EXACT_BYTES as u64) < 100, "{tokens}");
    let long = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
    assert!(prompt(Api::Completions, &long, &measure).ids().is_err());
}

#[test]
fn tokens_are_known_for_certain_or_not_at_all() {
    let measure = Arc::new(Measure::new(vec![(Some("m".into()), Arc::new(Letters))]));
    let ids = |api, body: &str| prompt(api, body, &measure).ids().ok().map(|ids| ids.to_vec());
    assert_eq!(ids(Api::Completions, r#"{"model":"m","prompt":"ab"}"#), Some(vec![0, 97, 98]));
    assert_eq!(ids(Api::Completions, r#"{"model":"m","prompt":[1,2]}"#), Some(vec![1, 2]));
    assert_eq!(ids(Api::Generate, r#"{"input_ids":[3],"text":"a"}"#), Some(vec![3]));
    for unsure in [
        r#"{"model":"other","prompt":"ab"}"#,
        r#"{"model":"m","prompt":["a","b"]}"#,
        r#"{"model":"m","prompt":[[1],[2]]}"#,
        r#"{"model":"m","prompt":[1,-2]}"#,
        r#"{"model":"m"}"#,
    ] {
        assert_eq!(ids(Api::Completions, unsure), None, "{unsure}");
    }
    assert_eq!(ids(Api::Chat, r#"{"model":"m","messages":[]}"#), Some(vec![1, 2, 3]));
    for (api, body, why) in [
        (Api::Chat, r#"{"model":"m","messages":[],"tools":[]}"#, "no tools"),
        (Api::Chat, r#"{"model":"n","messages":[]}"#, "the model's tokenizer is not at hand"),
        (
            Api::CountTokens,
            r#"{"model":"m","messages":[]}"#,
            "what engines make of this API's prompts is not known",
        ),
        (
            Api::Messages,
            r#"{"model":"m","messages":[],"tools":[{"type":"bash"}]}"#,
            "tools is not as engines know it",
        ),
        (
            Api::Responses,
            r#"{"model":"m","input":"a","previous_response_id":"b"}"#,
            "the request has previous_response_id",
        ),
    ] {
        let prompt = prompt(api, body, &measure);
        assert_eq!((prompt.unknown(), prompt.ids()), (None, Err(Unknown::from(why))));
        assert_eq!(prompt.unknown().as_deref(), Some(why));
    }
}

/// Doubt about one API's way to the messages is none about another's.
#[test]
fn conversations_of_other_apis_are_known_until_engines_count_others() {
    let measure = Arc::new(Measure::new(vec![(None, Arc::new(Letters))]));
    let served = |api, counted: u64| {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"input":"a"}"#;
        let prompt = prompt(api, body, &measure);
        let known = prompt.ids().is_ok();
        let usage = Usage { prompt_tokens: counted, cached_tokens: Some(2), ..Usage::default() };
        measure.learn(&prompt, &usage);
        known
    };
    // Anthropic's count leaves out what was cached.
    assert!((0..100).all(|_| served(Api::Messages, 1) && served(Api::Responses, 3)));
    assert!((0..1000).filter(|_| served(Api::Responses, 4)).count() < 25);
    assert!((0..100).all(|_| served(Api::Messages, 1) && served(Api::Chat, 3)));
}

#[test]
fn a_template_that_engines_do_not_count_by_is_left_and_tried_again() {
    let measure = Arc::new(Measure::new(vec![(None, Arc::new(Letters))]));
    let served = |counted: u64| {
        let prompt = prompt(Api::Chat, r#"{"model":"m","messages":[]}"#, &measure);
        let known = prompt.ids().is_ok();
        measure.learn(&prompt, &Usage { prompt_tokens: counted, ..Usage::default() });
        known
    };
    assert_eq!([3, 3, 4, 3, 3].map(served), [true; 5], "one of them may be odd");
    let wrong = (0..1000).filter(|_| served(4)).count();
    assert!((5..25).contains(&wrong), "{wrong}");
    let right = (0..1000).filter(|_| served(3)).count();
    assert!(right > 800, "{right}");
    assert!((0..100).all(|_| served(3)));
}

#[test]
fn short_prompts_teach_nothing_and_one_report_in_error_moves_little() {
    let ratios = Ratios::default();
    ratios.learn("m", 1000, LEARN_TOKENS - 1);
    assert_eq!(ratios.bytes_per_token("m"), None);
    for _ in 0..100 {
        ratios.learn("m", 3000, 1000);
    }
    ratios.learn("m", 1, 1_000_000);
    ratios.learn("m", u64::MAX, 100);
    let after = ratios.bytes_per_token("m").unwrap();
    assert!((2.9..3.1).contains(&after), "{after}");
    assert_eq!(ratios.bytes_per_token("n"), None);
}

#[test]
fn more_models_than_there_is_room_for_are_unknown_and_hurt_nobody() {
    let ratios = Ratios::default();
    for i in 0..4 * MODELS_MAX {
        ratios.learn(&i.to_string(), 300, 100);
    }
    let known = (0..4 * MODELS_MAX).filter(|i| ratios.bytes_per_token(&i.to_string()).is_some()).count();
    assert!((MODELS_MAX / 2..=MODELS_MAX).contains(&known), "{known}");
}

proptest! {
    /// Whatever is reported, an estimate is a number within bounds, and it comes near what is reported steadily.
    #[test]
    fn an_estimate_follows(reports in prop::collection::vec((any::<u64>(), any::<u64>()), 0..50), steady in 64u64..2000) {
        let ratios = Ratios::default();
        for (bytes, tokens) in reports {
            ratios.learn("m", bytes, tokens);
            let known = ratios.bytes_per_token("m");
            prop_assert!(known.is_none_or(|r| (BOUNDS.0..=BOUNDS.1).contains(&r)));
        }
        for _ in 0..2000 {
            ratios.learn("m", steady, 100);
        }
        let (known, is) = (ratios.bytes_per_token("m").unwrap(), steady as f32 / 100.0);
        prop_assert!((known / is - 1.0).abs() < 0.05, "{known} {is}");
    }
}
