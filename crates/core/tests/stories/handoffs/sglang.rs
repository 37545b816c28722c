//! SGLang: both legs at once; the prefill's answer is the transfer's, and closing it early aborts that.

use expect_test::expect;

use super::{check, check_retried};

#[test]
fn all_goes_well() {
    // The prefill's answer is read to its end in the background, and judged there.
    check(
        &["placed sglang", "head prefill", "head decode", "ended decode"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        head decode              -> start, detach prefill
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn the_prefill_ends_first() {
    check(
        &["placed sglang", "head prefill", "ended prefill", "head decode", "ended decode"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            ended prefill            -> judge prefill good, free prefill
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_decode_is_ready_first() {
    check(
        &["placed sglang", "head decode", "head prefill", "ended decode"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head decode              -> nothing
        head prefill             -> start, detach prefill
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn the_prefill_refuses() {
    // The decode would wait 300 s for KV that never comes: it is closed at once.
    check(
        &["placed sglang", "prefill refuses 400"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            prefill refuses 400      -> judge prefill mute, free prefill, abort by name (http_status), cancel decode, judge decode mute, free decode, fail 400 prefill_bad_request, settle failed
        "#]],
    );
}

#[test]
fn the_prefill_refuses_after_the_decodes_head() {
    // The answer waits for both heads, so that this can still be told.
    check(
        &["placed sglang", "head decode", "prefill refuses 400"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            head decode              -> nothing
            prefill refuses 400      -> judge prefill mute, free prefill, abort by name (http_status), cancel decode, judge decode mute, free decode, fail 400 prefill_bad_request, settle failed
        "#]],
    );
}

#[test]
fn the_prefill_fails_and_another_pair_serves() {
    check_retried(
        &[
            "placed sglang",
            "prefill refuses 503",
            "resume",
            "placed sglang",
            "head prefill",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            prefill refuses 503      -> judge prefill bad, free prefill, abort by name (http_status), cancel decode, judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> start, detach prefill
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_prefill_dies_before_the_answer() {
    check(
        &["placed sglang", "head prefill", "prefill breaks off"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            prefill breaks off       -> judge prefill bad, free prefill, abort by name (transport), cancel decode, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
        "#]],
    );
}

#[test]
fn the_prefill_dies_after_the_answer_began() {
    // The stream lives on; the background judges the prefill.
    check(
        &["placed sglang", "head prefill", "head decode", "prefill breaks off", "ended decode"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> start, detach prefill
            prefill breaks off       -> nothing
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_decode_refuses() {
    // The prefill would wait for it: closed at once, blamed on nobody.
    check(
        &["placed sglang", "decode refuses 400"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        decode refuses 400       -> judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, fail 400 decode_bad_request, settle failed
    "#]],
    );
}

#[test]
fn the_decode_is_unreachable() {
    // A fresh pair with a fresh room; the orphaned room's prefill is closed.
    check_retried(
        &[
            "placed sglang",
            "decode unreachable",
            "resume",
            "placed sglang",
            "head prefill",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            decode unreachable       -> judge decode bad, free decode, cancel prefill, judge prefill mute, free prefill, wait 50ms
            resume                   -> place
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> start, detach prefill
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_decode_dies_before_its_first_byte() {
    check(
        &["placed sglang", "head prefill", "decode lost"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        decode lost              -> judge decode bad, free decode, cancel prefill, judge prefill mute, free prefill, fail 502 decode_request_failed, settle failed
    "#]],
    );
}

#[test]
fn the_decode_dies_after_its_first_byte() {
    // The client has bytes: cut, not retried.
    check_retried(
        &["placed sglang", "head prefill", "head decode", "decode breaks off"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        head decode              -> start, detach prefill
        decode breaks off        -> judge decode bad, free decode, cut decode_read_failed, settle cut
    "#]],
    );
}

#[test]
fn the_client_leaves_during_the_prefill() {
    check(
        &["placed sglang", "client gone"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        client gone              -> cancel decode, judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, settle client_gone
    "#]],
    );
}

#[test]
fn the_client_leaves_during_the_transfer() {
    // The prefill has begun its answer and the decode is pulling: both are closed, which aborts both.
    check(
        &["placed sglang", "head prefill", "client gone"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        client gone              -> cancel decode, judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, settle client_gone
    "#]],
    );
}

#[test]
fn the_client_leaves_while_streaming() {
    // Only the decode is closed; the prefill is read on in the background.
    check(
        &["placed sglang", "head prefill", "head decode", "client gone"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        head decode              -> start, detach prefill
        client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
    "#]],
    );
}

#[test]
fn the_deadline_passes_with_both_silent() {
    // Each may be waiting for the other: neither is blamed.
    check(
        &["placed sglang", "deadline"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        deadline                 -> cancel decode, judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn the_deadline_passes_with_the_decode_silent() {
    check(
        &["placed sglang", "head prefill", "deadline"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        deadline                 -> cancel decode, judge decode bad, free decode, cancel prefill, judge prefill mute, free prefill, fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn the_deadline_passes_with_the_prefill_silent() {
    check(
        &["placed sglang", "head decode", "deadline"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head decode              -> nothing
        deadline                 -> cancel prefill, judge prefill bad, free prefill, cancel decode, judge decode mute, free decode, fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn the_deadline_passes_while_streaming() {
    check(
        &["placed sglang", "head prefill", "head decode", "deadline"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        head decode              -> start, detach prefill
        deadline                 -> cancel decode, judge decode mute, free decode, cut request_timeout, settle cut
    "#]],
    );
}

#[test]
fn the_gateway_drains_before_the_answer() {
    check(
        &["placed sglang", "head prefill", "drain"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        drain                    -> cancel decode, judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, fail 503 draining, settle failed
    "#]],
    );
}

#[test]
fn the_gateway_drains_while_streaming() {
    check(
        &["placed sglang", "head prefill", "head decode", "drain"],
        expect![[r#"
        placed sglang            -> send prefill, send decode
        head prefill             -> nothing
        head decode              -> start, detach prefill
        drain                    -> cancel decode, judge decode mute, free decode, cut draining, settle cut
    "#]],
    );
}

#[test]
fn with_log_probabilities_the_answer_waits_for_the_prefills_end() {
    check(
        &["placed sglang-logprobs", "head prefill", "head decode", "ended prefill", "ended decode"],
        expect![[r#"
            placed sglang-logprobs   -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> nothing
            ended prefill            -> judge prefill good, free prefill, start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn with_log_probabilities_a_prefill_that_breaks_off_fails_the_request() {
    check(
        &["placed sglang-logprobs", "head prefill", "head decode", "prefill breaks off"],
        expect![[r#"
            placed sglang-logprobs   -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> nothing
            prefill breaks off       -> judge prefill bad, free prefill, abort by name (transport), cancel decode, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
        "#]],
    );
}

#[test]
fn a_plain_answer_starts_on_both_heads_too() {
    check(
        &["placed sglang-plain", "head decode", "head prefill", "ended decode"],
        expect![[r#"
        placed sglang-plain      -> send prefill, send decode
        head decode              -> nothing
        head prefill             -> start, detach prefill
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn a_plain_answers_refused_prefill_is_told() {
    check(
        &["placed sglang-plain", "head decode", "prefill refuses 404"],
        expect![[r#"
            placed sglang-plain      -> send prefill, send decode
            head decode              -> nothing
            prefill refuses 404      -> judge prefill mute, free prefill, abort by name (http_status), cancel decode, judge decode mute, free decode, fail 404 prefill_not_found, settle failed
        "#]],
    );
}
