//! Questions, answers, whom to ask, and what is remembered.

use super::*;
use crate::fleet::{FleetChange, PairingMode, Role, Status, Worker};

fn asked(api: Api, body: &str) -> Result<String, Unknown> {
    let body = Envelope::parse(body.to_owned().into(), &BodyLimits::default()).unwrap();
    question(api, &body).map(|question| String::from_utf8(question.body.to_vec()).unwrap())
}

#[test]
fn a_question_has_what_the_engine_makes_the_prompt_of_and_nothing_else() {
    for (api, body, expected) in [
        (
            Api::Completions,
            r#"{"prompt":"a\u0062 ", "kv_transfer_params":{},"model":"m","max_tokens":5}"#,
            r#"{"model":"m","prompt":"a\u0062 "}"#,
        ),
        (
            Api::Completions,
            r#"{"prompt":"a","add_special_tokens":false}"#,
            r#"{"prompt":"a","add_special_tokens":false}"#,
        ),
        (Api::Generate, r#"{"text":"a","sampling_params":{}}"#, r#"{"prompt":"a"}"#),
        (
            Api::Chat,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}],"x":1}],"stream":true,"tools":null,
                "chat_template_kwargs":{"thinks":true},"model":"m","user":"u","tool_choice":"auto","documents":null}"#,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}],"x":1}],"tool_choice":"auto","chat_template_kwargs":{"thinks":true}}"#,
        ),
    ] {
        assert_eq!(asked(api, body).as_deref(), Ok(expected), "{body}");
    }
}

#[test]
fn what_engines_would_read_differently_is_not_asked() {
    let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(QUESTION_MAX_BYTES));
    for (api, body, why) in [
        (Api::Chat, r#"{"messages":[],"reasoning_effort":"low"}"#, "has reasoning_effort"),
        (Api::Chat, r#"{"messages":[],"chat_template":"x"}"#, "has chat_template"),
        (Api::Chat, r#"{"model":"m"}"#, "no prompt"),
        (
            Api::Chat,
            r#"{"messages":[{"role":"user","content":"a"},{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]}"#,
            "no text",
        ),
        (Api::Completions, r#"{"prompt":["a","b"]}"#, "several prompts"),
        (Api::Completions, r#"{"prompt":"a","truncate_prompt_tokens":5}"#, "has truncate_prompt_tokens"),
        (Api::Completions, &long, "longer than"),
        (Api::Generate, r#"{"text":"a","image_data":"b"}"#, "has image_data"),
        (Api::Rerank, r#"{"query":"a"}"#, "not known"),
    ] {
        let said = asked(api, body).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    }
}

#[test]
fn an_answer_is_believed_if_it_fits_together() {
    let read = |text: &str| read(text.to_owned().into()).map(|ids| ids.to_vec());
    // As vLLM 0.32 and SGLang 0.5.23 write it.
    assert_eq!(
        read(r#"{"count":4,"max_model_len":2048,"tokens":[525,426,435,463],"token_strs":null}"#),
        Ok(vec![525, 426, 435, 463])
    );
    assert_eq!(read(r#"{"tokens":[1, 4294967295],"count":2,"max_model_len":-1}"#), Ok(vec![1, u32::MAX]));
    assert_eq!(read(r#"{"tokens":[],"count":0}"#), Ok(vec![]));
    for odd in [
        "",
        "[1,2]",
        r#"{"count":2}"#,
        r#"{"count":2,"tokens":2}"#,
        r#"{"count":2,"tokens":[1]}"#,
        r#"{"count":"1","tokens":[1]}"#,
        r#"{"count":[1],"tokens":[[1]]}"#,
        r#"{"count":1,"tokens":[-1]}"#,
        r#"{"count":1,"tokens":[1.5]}"#,
        r#"{"count":1,"tokens":[4294967296]}"#,
        r#"{"count":1,"tokens":["1"]}"#,
        r#"{"count":1,"tokens":[1],"tokens":[2]}"#,
        r#"{"count":1,"tokens":[1]"#,
        r#"{"count":1,"tokens":[1],"a":[[[[1]]]]}"#,
    ] {
        assert!(read(odd).is_err(), "{odd}");
    }
}

#[test]
fn an_answer_is_as_long_as_its_question_allows() {
    let most = |bytes: usize| Question { body: vec![b'x'; bytes].into(), key: 0 }.answer_max_bytes();
    assert_eq!((most(0), most(1000)), (512 << 10, (512 << 10) + 8000));
    assert_eq!(most(QUESTION_MAX_BYTES), ANSWER_MAX_BYTES);
}

#[test]
fn a_route_that_is_not_there_is_told_from_a_model_that_is_not() {
    let of = |status, body: &str| Outcome::of_status(status, body.as_bytes());
    assert_eq!(of(404, r#"{"detail":"Not Found"}"#), Outcome::NoRoute);
    assert_eq!(of(404, "<html>"), Outcome::NoRoute);
    assert_eq!(of(404, r#"{"error":{"message":"The model `x` does not exist."}}"#), Outcome::Refused);
    assert_eq!(of(404, r#"{"object":"error","message":"no such model"}"#), Outcome::Refused);
    assert_eq!([401, 403, 405, 501].map(|status| of(status, "")), [Outcome::NoRoute; 4]);
    assert_eq!([400, 413, 422, 429].map(|status| of(status, "")), [Outcome::Refused; 4]);
    assert_eq!([500, 503, 302].map(|status| of(status, "")), [Outcome::Failed; 3]);
}

const MS: fn(u64) -> Instant = |ms| Instant::from_micros(1 + ms * 1000);

#[test]
fn a_worker_that_fails_rests_longer_each_time_and_one_question_tries_it() {
    let worker = Standing::default();
    assert!(worker.enter(MS(0)) && worker.enter(MS(0)) && worker.enter(MS(0)));
    // Three were out together.
    for at in [250, 251, 260] {
        worker.heard(Outcome::Late, MS(0), MS(at));
    }
    assert!(worker.rests(MS(1249)) && !worker.enter(MS(1249)));
    assert!(worker.enter(MS(1250)) && !worker.enter(MS(1250)), "one tries");
    worker.heard(Outcome::Failed, MS(1250), MS(1260));
    assert!(worker.rests(MS(3259)) && !worker.rests(MS(3260)));
    assert!(worker.enter(MS(3260)));
    worker.heard(Outcome::Counted, MS(3260), MS(3261));
    assert!(worker.enter(MS(3261)) && worker.enter(MS(3261)));
    worker.heard(Outcome::Unusable, MS(3261), MS(3262));
    assert!(!worker.rests(MS(4262)), "it begins anew");
    let mut at = 4262;
    for _ in 0..40 {
        assert!(worker.enter(MS(at)));
        worker.heard(Outcome::Failed, MS(at), MS(at));
        let next = (at..).step_by(500).find(|at| !worker.rests(MS(*at))).unwrap();
        assert!(next - at <= 60_500, "{}", next - at);
        at = next;
    }
    assert!(at > 30 * 60_000);
}

#[test]
fn one_that_tries_and_is_never_heard_of_leaves_its_place() {
    let worker = Standing::default();
    worker.heard(Outcome::Failed, MS(0), MS(0));
    assert!(worker.enter(MS(1000)) && !worker.enter(MS(1500)) && worker.enter(MS(2000)));
}

#[test]
fn a_worker_without_the_route_rests_a_minute_and_what_says_nothing_of_it_changes_nothing() {
    let worker = Standing::default();
    worker.heard(Outcome::NoRoute, MS(0), MS(5));
    assert!(worker.rests(MS(60_004)) && !worker.rests(MS(60_005)));
    let other = Standing::default();
    for outcome in [Outcome::Refused, Outcome::Kept, Outcome::Busy, Outcome::Nobody, Outcome::Unaskable] {
        other.heard(outcome, MS(0), MS(5));
        assert!(other.enter(MS(5)), "{outcome:?}");
    }
}

#[test]
fn those_that_serve_the_model_and_are_well_share_the_questions() {
    let worker = |id: u32, model: &str| {
        let mut worker = Worker::new(id.to_string(), format!("http://w{id}"), Role::Whole);
        worker.models = vec![model.to_owned()];
        Seat::new(id, worker)
    };
    let seats: Vec<_> = (0..5).map(|id| worker(id, if id == 4 { "other" } else { "m" })).collect();
    let joined = seats.iter().map(|seat| FleetChange::Join(seat.clone()));
    let fleet = Fleet::new(PairingMode::Lenient).with(joined);
    seats.iter().for_each(|seat| seat.pulse.set_status(Status::Ready));
    seats[0].pulse.set_status(Status::NotReady);
    seats[1].standing.heard(Outcome::NoRoute, MS(0), MS(0));
    let mut dice = Dice::new(1);
    let mut asked = [0; 5];
    for _ in 0..400 {
        asked[whom(&fleet, Some("m"), MS(1), &mut dice).unwrap().slot as usize] += 1;
    }
    assert_eq!((asked[0], asked[1], asked[4]), (0, 0, 0));
    assert!(asked[2] > 150 && asked[3] > 150, "{asked:?}");
    assert!(whom(&fleet, Some("nobody's"), MS(1), &mut dice).is_none());
}

#[test]
fn a_memo_is_bounded_in_prompts_tokens_and_time() {
    let mut memo = Memo::default();
    let ids = |n: usize| -> Arc<[u32]> { vec![7; n].into() };
    for key in 0..2 * PROMPTS_MAX as u128 {
        memo.keep(key, &ids(3), MS(0));
    }
    let known = |memo: &mut Memo, ms| (0..200).filter(|key| memo.find(*key, MS(ms)).is_some()).count();
    assert_eq!((known(&mut memo, 1), memo.find(127, MS(1)), memo.find(0, MS(1))), (64, Some(ids(3)), None));
    memo.keep(1, &ids(TOKENS_MAX), MS(1));
    assert_eq!((known(&mut memo, 1), memo.find(1, MS(1)).is_some()), (1, true));
    memo.keep(2, &ids(TOKENS_MAX + 1), MS(1));
    assert_eq!(memo.find(2, MS(1)), None);
    assert_eq!(known(&mut memo, 60_002), 0);
}
