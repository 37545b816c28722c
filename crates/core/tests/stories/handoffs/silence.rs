//! The worker that answers owes output and falls silent: never tried again, told or cut at once.

use expect_test::expect;

use super::{check, check_retried};

#[test]
fn no_head_comes_after_the_prefill() {
    // It may have the hand-off, so nothing is released behind its back.
    check_retried(
        &["placed nixl", "answered over", "silent decode"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        silent decode            -> cancel decode, judge decode bad, free decode, fail 504 pd_decode_watchdog, settle failed
    "#]],
    );
}

#[test]
fn a_head_comes_and_nothing_more() {
    check_retried(
        &["placed nixl", "answered over", "head decode", "silent decode"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        silent decode            -> cancel decode, judge decode bad, free decode, cut pd_decode_watchdog, settle cut
    "#]],
    );
}

#[test]
fn nothing_is_owed_while_the_prefill_runs() {
    check(
        &["placed nixl", "silent decode", "answered over"],
        expect![[r#"
        placed nixl              -> send prefill
        silent decode            -> nothing
        answered over            -> judge prefill good, free prefill, send decode
    "#]],
    );
}

#[test]
fn both_legs_at_once_and_the_prefill_is_done() {
    check_retried(
        &["placed sglang", "head prefill", "ended prefill", "silent decode"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            ended prefill            -> judge prefill good, free prefill
            silent decode            -> abort by name (watchdog_first_response), cancel decode, judge decode bad, free decode, fail 504 pd_decode_watchdog, settle failed
        "#]],
    );
}

#[test]
fn both_legs_at_once_and_the_prefill_is_silent_too() {
    // The decode may be waiting for it: nobody is blamed.
    check_retried(
        &["placed sglang", "silent decode"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            silent decode            -> abort by name (watchdog_first_response), cancel decode, judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, fail 504 pd_decode_watchdog, settle failed
        "#]],
    );
}

#[test]
fn both_legs_at_once_and_the_stream_stops() {
    check_retried(
        &["placed sglang", "head prefill", "head decode", "silent decode"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> start, detach prefill
            silent decode            -> abort by name (watchdog_first_response), cancel decode, judge decode bad, free decode, cut pd_decode_watchdog, settle cut
        "#]],
    );
}

#[test]
fn the_hand_off_has_passed_and_nothing_comes() {
    check_retried(
        &["placed moriio-write", "answered over", "silent decode"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            answered over            -> judge prefill good, free prefill
            silent decode            -> cancel decode, judge decode bad, free decode, fail 504 pd_decode_watchdog, settle failed
        "#]],
    );
}

#[test]
fn one_worker_for_both_phases() {
    check_retried(
        &["placed whole", "silent whole"],
        expect![[r#"
        placed whole             -> send decode
        silent whole             -> cancel decode, judge decode bad, free decode, fail 504 pd_decode_watchdog, settle failed
    "#]],
    );
}

#[test]
fn an_attempt_that_failed_before_does_not_count() {
    // What went wrong last is told.
    check_retried(
        &["placed nixl", "prefill refuses 500", "resume", "placed nixl", "answered over", "silent decode"],
        expect![[r#"
            placed nixl              -> send prefill
            prefill refuses 500      -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            silent decode            -> cancel decode, judge decode bad, free decode, fail 504 pd_decode_watchdog, settle failed
        "#]],
    );
}

#[test]
fn it_answers_in_the_same_moment() {
    check(
        &["placed whole", "head whole", "ended whole", "silent whole"],
        expect![[r#"
        placed whole             -> send decode
        head whole               -> start
        ended whole              -> judge decode good, free decode, settle served
        silent whole             -> nothing
    "#]],
    );
}
