//! AIBrix's cases of aborts and the watchdog, a row each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use baton_core::abort::{AbortRule, Asked, Class, Gist, Questions, Why};
use baton_core::fault::{Cause, Fault, LegName, Refusal};
use baton_core::time::{Duration, Instant};
use baton_core::watchdog::{Sight, Silence, Watchdog};

fn refused(status: u16) -> Fault {
    Fault::Refused { leg: LegName::Prefill, refusal: Refusal { status, ..Refusal::default() } }
}

#[test]
fn aibrix_k1_a_failure_has_one_class() {
    let leg = LegName::Prefill;
    for (case, fault, class) in [
        ("K1: an error of the engine", refused(500), Some(Class::HttpStatus)),
        ("K1: a request that took too long", Fault::Deadline { leg, seconds: 30 }, Some(Class::Timeout)),
        ("K1: a client that left", Fault::ClientGone, Some(Class::Canceled)),
        ("K1: nobody listens", Fault::Unreachable { leg, cause: "refused".into() }, Some(Class::Transport)),
        (
            "K1: no connection in time",
            Fault::Unreachable { leg, cause: Cause { late: true, ..Cause::default() } },
            Some(Class::Timeout),
        ),
        ("K1: it broke off", Fault::Broken { leg, cause: "reset".into() }, Some(Class::Transport)),
        ("K1: what is asked for is not known", Fault::TrtContext, Some(Class::RequestSetup)),
        ("K1: a hand-off that is none", Fault::MoriioHandoff { reason: "no JSON" }, Some(Class::BadResponse)),
        ("K1: the decode's own failure", Fault::Broken { leg: LegName::Decode, cause: "reset".into() }, None),
    ] {
        assert_eq!(Class::of(&fault), class, "{case}");
    }
}

#[test]
fn aibrix_k22_an_engine_s_error_keeps_its_status_and_anything_else_is_502() {
    // AIBrix turns 418 into 502 because Envoy does not know it.
    for (case, status, outward) in
        [("K4", 500, 500), ("K22", 422, 422), ("K22", 418, 418), ("K22", 799, 502), ("K22", 302, 502)]
    {
        let answer = refused(status).answer();
        assert_eq!(
            (answer.status, answer.flag),
            (outward, Some(("x-error-pd-prefill", "true".into()))),
            "{case}"
        );
    }
}

#[test]
fn aibrix_k6_what_is_no_json_object_is_no_answer() {
    for (case, kind, pieces, class) in [
        ("an answer", "application/json", &["{\"a\":", "1}\n"][..], None),
        ("in pieces of one byte", "", &[" ", "{", "}", " "], None),
        ("events", "text/event-stream; charset=utf-8", &["data: {}\n\n"], None),
        ("nothing", "application/json", &[], Some(Class::BadResponse)),
        ("words", "application/json", &["ok"], Some(Class::BadResponse)),
        ("a page", "text/html", &["<html>", "</html>"], Some(Class::BadResponse)),
        ("a list", "application/json", &["[1]"], Some(Class::BadResponse)),
        ("half of one", "application/json", &["{\"a\":"], Some(Class::BadResponse)),
    ] {
        let mut gist = Gist::of(kind.as_bytes());
        pieces.iter().for_each(|piece| gist.feed(piece.as_bytes()));
        assert_eq!(gist.class(), class, "{case}");
    }
}

fn asked(body: &str, again: Option<u64>) -> Result<Questions, Asked> {
    let again = again.map(Duration::from_millis);
    Ok(Questions { body: body.to_owned(), timeout: Duration::from_secs(3), again })
}

#[test]
fn whether_an_engine_is_asked_and_how_often() {
    let prefill = |class| Why::Prefill { class, answering: false };
    let failed = prefill(Class::HttpStatus);
    let answering = Why::Prefill { class: Class::Transport, answering: true };
    let silent = Why::Silence(Silence::FirstResponse);
    let rule = AbortRule { retry_delay: Some(Duration::from_millis(50)), ..AbortRule::default() };
    let once = AbortRule { retry_delay: None, ..rule };
    let off = AbortRule { timeout: None, ..rule };
    let body = r#"{"rid":"a-1"}"#;
    for (case, rule, why, rid, target, due) in [
        ("K4: by the request's name", rule, failed, Some("a-1"), true, asked(body, Some(50))),
        ("K7: a decode that answers", rule, answering, Some("a-1"), true, Err(Asked::SkippedStreaming)),
        ("K8: twice", rule, prefill(Class::Timeout), Some("a-1"), true, asked(body, Some(50))),
        ("K8: once", once, failed, Some("a-1"), true, asked(body, None)),
        (
            "K9: it answers before it is asked",
            once,
            answering,
            Some("a-1"),
            true,
            Err(Asked::SkippedStreaming),
        ),
        ("K10: switched off", off, failed, Some("a-1"), true, Err(Asked::SkippedDisabled)),
        ("K10: no name", rule, failed, None, true, Err(Asked::SkippedNoRid)),
        ("K10: an empty name", rule, failed, Some(""), true, Err(Asked::SkippedNoRid)),
        ("K10: nobody to ask", rule, failed, Some("a-1"), false, Err(Asked::SkippedNoTarget)),
        ("K12: after a silence once", rule, silent, Some("a-1"), true, asked(body, None)),
        ("K18: no name", rule, silent, None, true, Err(Asked::SkippedNoRid)),
    ] {
        assert_eq!(rule.ask(why, rid, target), due, "{case}");
    }
    let odd = rule.ask(silent, Some("q\"}"), true).unwrap().body;
    assert_eq!(odd, r#"{"rid":"q\"}"}"#);
}

#[test]
fn when_the_watchdog_barks() {
    let (ms, at) = (Duration::from_millis, |ms: u64| Instant::from_micros(ms * 1000));
    let dog = |first, response, idle| Watchdog {
        first_response: Some(ms(first)),
        response: (response > 0).then(|| ms(response)),
        stream_idle: Some(ms(idle)),
    };
    let seen = |stream, last_piece: Option<u64>| Sight {
        leg: LegName::Decode,
        stream,
        armed: Some(at(0)),
        last_piece: last_piece.map(at),
    };
    for (case, dog, stream, piece, fires) in [
        ("K12: no answer", dog(150, 0, 60_000), true, None, Some((150, Silence::FirstResponse))),
        ("K13: a head and no body", dog(200, 0, 60_000), true, None, Some((200, Silence::FirstResponse))),
        ("K14: a piece in time", dog(150, 0, 60_000), true, Some(100), Some((60_100, Silence::StreamIdle))),
        ("K15: not streamed, no limit", dog(150, 0, 200), false, None, None),
        ("K15: not streamed", dog(60_000, 150, 200), false, None, Some((150, Silence::FirstResponse))),
        ("K16: a piece at last", dog(150, 0, 200), true, Some(600), Some((800, Silence::StreamIdle))),
    ] {
        let due = dog.due(&seen(stream, piece));
        assert_eq!(due.map(|due| (due.at, due.phase)), fires.map(|(ms, phase)| (at(ms), phase)), "{case}");
    }
}
