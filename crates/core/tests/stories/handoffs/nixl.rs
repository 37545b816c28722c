//! vLLM with NIXL: prefill, then decode; between the two the prefill's KV is pinned for the decode.

use expect_test::expect;

use super::{check, check_retried};

#[test]
fn all_goes_well() {
    check(
        &["placed nixl", "answered over", "head decode", "ended decode"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn the_prefill_refuses() {
    // The client's mistake is told as the engine told it; the decode is not asked and nobody is blamed.
    check(
        &["placed nixl", "prefill refuses 422"],
        expect![[r#"
        placed nixl              -> send prefill
        prefill refuses 422      -> judge prefill mute, free prefill, judge decode mute, free decode, fail 422 prefill_upstream_error, settle failed
    "#]],
    );
}

#[test]
fn the_prefill_fails() {
    check(
        &["placed nixl", "prefill refuses 500"],
        expect![[r#"
        placed nixl              -> send prefill
        prefill refuses 500      -> judge prefill bad, free prefill, judge decode mute, free decode, fail 500 prefill_upstream_error, settle failed
    "#]],
    );
}

#[test]
fn the_prefill_fails_and_another_pair_serves() {
    check_retried(
        &[
            "placed nixl",
            "prefill refuses 503",
            "resume",
            "placed nixl",
            "answered over",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            prefill refuses 503      -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn no_retry_is_left() {
    check_retried(
        &["placed nixl", "prefill refuses 503", "spent"],
        expect![[r#"
        placed nixl              -> send prefill
        prefill refuses 503      -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
        spent                    -> fail 503 prefill_upstream_error, settle failed
    "#]],
    );
    // Between two attempts the KV is there for another decode.
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "spent"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode unreachable       -> judge decode bad, free decode, wait 50ms
        spent                    -> release, fail 502 decode_request_failed, settle failed
    "#]],
    );
}

#[test]
fn the_prefill_pushes_back() {
    // Tried elsewhere, and blamed on nobody.
    check_retried(
        &["placed nixl", "prefill refuses 429", "resume", "placed nixl", "prefill refuses 429"],
        expect![[r#"
            placed nixl              -> send prefill
            prefill refuses 429      -> judge prefill mute, free prefill, judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed nixl              -> send prefill
            prefill refuses 429      -> judge prefill mute, free prefill, judge decode mute, free decode, fail 429 prefill_upstream_error, settle failed
        "#]],
    );
}

#[test]
fn the_prefill_is_unreachable() {
    check(
        &["placed nixl", "prefill unreachable"],
        expect![[r#"
        placed nixl              -> send prefill
        prefill unreachable      -> judge prefill bad, free prefill, judge decode mute, free decode, fail 502 prefill_request_failed, settle failed
    "#]],
    );
}

#[test]
fn the_prefill_dies() {
    check(
        &["placed nixl", "head prefill", "prefill breaks off"],
        expect![[r#"
        placed nixl              -> send prefill
        head prefill             -> nothing
        prefill breaks off       -> judge prefill bad, free prefill, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
    "#]],
    );
}

#[test]
fn the_prefill_hands_nothing_over() {
    // The decode computes the prompt itself: slow, and right.
    check(
        &["placed nixl", "answered nothing", "head decode", "ended decode"],
        expect![[r#"
        placed nixl              -> send prefill
        answered nothing         -> judge prefill good, free prefill, send decode
        head decode              -> start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn the_hand_off_is_dead() {
    check(
        &["placed nixl", "answered dead"],
        expect![[r#"
        placed nixl              -> send prefill
        answered dead            -> judge prefill bad, free prefill, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
    "#]],
    );
}

#[test]
fn the_decode_refuses() {
    // It got the request, so it has told the prefill. Consuming twice would read blocks that may be another's.
    check(
        &["placed nixl", "answered over", "decode refuses 400"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode refuses 400       -> judge decode mute, free decode, fail 400 decode_bad_request, settle failed
    "#]],
    );
}

#[test]
fn the_decode_pushes_back() {
    check_retried(
        &[
            "placed nixl",
            "answered over",
            "decode refuses 503 later",
            "resume",
            "placed nixl",
            "answered over",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode refuses 503 later -> judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_decode_is_unreachable() {
    // It surely does not know of the KV: a throw-away decode has to consume it.
    check(
        &["placed nixl", "answered over", "decode unreachable"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode unreachable       -> judge decode bad, free decode, release, fail 502 decode_request_failed, settle failed
    "#]],
    );
}

#[test]
fn the_decode_is_unreachable_and_another_one_serves() {
    // It surely does not know of the KV, so another decode gets it: the prompt is not computed twice.
    check_retried(
        &[
            "placed nixl",
            "answered over",
            "decode unreachable",
            "resume",
            "placed nixl",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            placed nixl              -> send decode
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_decode_is_unreachable_and_no_other_one_can_have_its_kv() {
    // None pairs with the prefill, or the KV is held for too long already. Nobody was asked: it is still the
    // second attempt that goes on with a fresh pair.
    check_retried(
        &[
            "placed nixl",
            "answered over",
            "decode unreachable",
            "resume",
            "unplaced",
            "placed nixl",
            "answered over",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            unplaced                 -> release, place
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_decode_is_unreachable_and_all_others_are_full() {
    // KV is not held while a request waits for room.
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "resume", "full", "full", "queue over"],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            full                     -> release, place
            full                     -> queue
            queue over               -> fail 502 decode_request_failed, settle failed
        "#]],
    );
}

#[test]
fn two_decodes_are_unreachable() {
    check_retried(
        &[
            "placed nixl",
            "answered over",
            "decode unreachable",
            "resume",
            "placed nixl",
            "decode unreachable",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            placed nixl              -> send decode
            decode unreachable       -> judge decode bad, free decode, release, fail 502 decode_request_failed, settle failed
        "#]],
    );
}

#[test]
fn the_other_decode_dies_before_its_first_byte() {
    // It may have the hand-off, so nothing is released behind its back.
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "resume", "placed nixl", "decode lost"],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            placed nixl              -> send decode
            decode lost              -> judge decode bad, free decode, fail 502 decode_request_failed, settle failed
        "#]],
    );
}

#[test]
fn no_worker_at_all_is_left_for_the_second_attempt() {
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "resume", "unplaced", "unplaced"],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            unplaced                 -> release, place
            unplaced                 -> fail 502 decode_request_failed, settle failed
        "#]],
    );
}

#[test]
fn the_decode_dies_before_its_first_byte() {
    check(
        &["placed nixl", "answered over", "decode lost"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode lost              -> judge decode bad, free decode, fail 502 decode_request_failed, settle failed
    "#]],
    );
}

#[test]
fn the_decode_dies_before_its_first_byte_and_another_pair_serves() {
    // The same bytes to a fresh pair, with a fresh hand-off.
    check_retried(
        &[
            "placed nixl",
            "answered over",
            "decode lost",
            "resume",
            "placed nixl",
            "answered over",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode lost              -> judge decode bad, free decode, wait 50ms
            resume                   -> place
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_decode_dies_after_its_first_byte() {
    // The client has bytes: no retry, whatever the rule allows.
    check_retried(
        &["placed nixl", "answered over", "head decode", "decode breaks off"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        decode breaks off        -> judge decode bad, free decode, cut decode_read_failed, settle cut
    "#]],
    );
}

#[test]
fn the_client_leaves_during_the_prefill() {
    // The prefill's connection is closed; the decode was never asked.
    check(
        &["placed nixl", "client gone"],
        expect![[r#"
            placed nixl              -> send prefill
            client gone              -> linger prefill, judge decode mute, free decode, settle client_gone
        "#]],
    );
}

#[test]
fn the_client_leaves_between_prefill_and_decode() {
    // There is no between: the decode is sent in the same breath, and a decode dropped at once tells the prefill.
    check(
        &["placed nixl", "answered over", "client gone"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
    "#]],
    );
}

#[test]
fn the_client_leaves_while_a_retry_waits() {
    // No other decode will come for the KV.
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "client gone"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode unreachable       -> judge decode bad, free decode, wait 50ms
        client gone              -> release, settle client_gone
    "#]],
    );
}

#[test]
fn the_client_leaves_while_another_decode_is_chosen() {
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "resume", "client gone", "placed nixl"],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            client gone              -> release, settle client_gone
            placed nixl              -> nothing
        "#]],
    );
}

#[test]
fn the_client_leaves_while_another_decode_is_asked() {
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "resume", "placed nixl", "client gone"],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            placed nixl              -> send decode
            client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
        "#]],
    );
}

#[test]
fn the_deadline_passes_while_kv_waits_for_another_decode() {
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "deadline"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode unreachable       -> judge decode bad, free decode, wait 50ms
        deadline                 -> release, fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn the_gateway_drains_while_kv_waits_for_another_decode() {
    check_retried(
        &["placed nixl", "answered over", "decode unreachable", "drain"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode unreachable       -> judge decode bad, free decode, wait 50ms
        drain                    -> release, fail 503 draining, settle failed
    "#]],
    );
}

#[test]
fn the_client_leaves_while_streaming() {
    check(
        &["placed nixl", "answered over", "head decode", "client gone"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
    "#]],
    );
}

#[test]
fn the_deadline_passes_during_the_prefill() {
    // A prefill that never said a word is to blame.
    check(
        &["placed nixl", "deadline"],
        expect![[r#"
        placed nixl              -> send prefill
        deadline                 -> cancel prefill, judge prefill bad, free prefill, judge decode mute, free decode, fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn the_deadline_passes_before_the_first_byte() {
    // The decode may have the hand-off: it is closed, and nothing is released behind its back.
    check(
        &["placed nixl", "answered over", "deadline"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        deadline                 -> cancel decode, judge decode bad, free decode, fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn the_deadline_passes_while_streaming() {
    // A long answer is not the worker's fault.
    check(
        &["placed nixl", "answered over", "head decode", "deadline"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        deadline                 -> cancel decode, judge decode mute, free decode, cut request_timeout, settle cut
    "#]],
    );
}

#[test]
fn the_deadline_passes_while_a_retry_waits() {
    check_retried(
        &["placed nixl", "prefill lost", "deadline", "resume"],
        expect![[r#"
        placed nixl              -> send prefill
        prefill lost             -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
        deadline                 -> fail 504 request_timeout, settle failed
        resume                   -> nothing
    "#]],
    );
}

#[test]
fn the_gateway_drains_during_the_prefill() {
    check(
        &["placed nixl", "drain"],
        expect![[r#"
        placed nixl              -> send prefill
        drain                    -> cancel prefill, judge prefill mute, free prefill, judge decode mute, free decode, fail 503 draining, settle failed
    "#]],
    );
}

#[test]
fn the_gateway_drains_before_the_first_byte() {
    check(
        &["placed nixl", "answered over", "drain"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        drain                    -> cancel decode, judge decode mute, free decode, fail 503 draining, settle failed
    "#]],
    );
}

#[test]
fn the_gateway_drains_while_streaming() {
    check(
        &["placed nixl", "answered over", "head decode", "drain"],
        expect![[r#"
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        drain                    -> cancel decode, judge decode mute, free decode, cut draining, settle cut
    "#]],
    );
}

#[test]
fn no_pair_is_left_for_the_second_attempt() {
    // What went wrong first says more than that nobody is left.
    check_retried(
        &["placed nixl", "prefill lost", "resume", "unplaced"],
        expect![[r#"
        placed nixl              -> send prefill
        prefill lost             -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
        resume                   -> place
        unplaced                 -> fail 502 prefill_request_failed, settle failed
    "#]],
    );
}
