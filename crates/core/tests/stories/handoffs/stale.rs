//! A connection that had grown old, for every kind of plan: the attempt begins anew, and nobody is blamed.

use expect_test::expect;

use super::{check, check_retried};

#[test]
fn of_the_only_leg() {
    check(
        &["placed whole", "whole stale", "placed whole", "head whole", "ended whole"],
        expect![[r#"
        placed whole             -> send decode
        whole stale              -> judge decode mute, free decode, renew
        placed whole             -> send decode
        head whole               -> start
        ended whole              -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn of_a_prefill_in_turn() {
    check(
        &["placed nixl", "prefill stale", "placed nixl", "answered over", "head decode", "ended decode"],
        expect![[r#"
            placed nixl              -> send prefill
            prefill stale            -> judge prefill mute, free prefill, judge decode mute, free decode, renew
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn of_a_decode_in_turn() {
    // It may have read the hand-off: the prompt is computed again, and the first KV is left alone.
    check(
        &[
            "placed nixl",
            "answered over",
            "decode stale",
            "placed nixl",
            "answered over",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode stale             -> judge decode mute, free decode, renew
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn of_either_leg_at_once() {
    check(
        &["placed sglang", "prefill stale", "placed sglang", "head prefill", "head decode", "ended decode"],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            prefill stale            -> judge prefill mute, free prefill, abort by name (transport), cancel decode, judge decode mute, free decode, renew
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> start, detach prefill
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
    check(
        &[
            "placed sglang",
            "head prefill",
            "decode stale",
            "placed sglang",
            "head prefill",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            decode stale             -> judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, renew
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> start, detach prefill
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
    check(
        &[
            "placed generation-first",
            "head decode",
            "prefill stale",
            "placed generation-first",
            "answered nothing",
        ],
        expect![[r#"
            placed generation-first  -> send prefill, send decode
            head decode              -> nothing
            prefill stale            -> judge prefill mute, free prefill, cancel decode, judge decode mute, free decode, renew
            placed generation-first  -> send prefill, send decode
            answered nothing         -> judge prefill good, free prefill
        "#]],
    );
}

#[test]
fn once_for_each_attempt() {
    check_retried(
        &[
            "placed nixl",
            "prefill stale",
            "placed nixl",
            "prefill stale",
            "resume",
            "placed nixl",
            "prefill stale",
            "placed nixl",
            "prefill lost",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            prefill stale            -> judge prefill mute, free prefill, judge decode mute, free decode, renew
            placed nixl              -> send prefill
            prefill stale            -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed nixl              -> send prefill
            prefill stale            -> judge prefill mute, free prefill, judge decode mute, free decode, renew
            placed nixl              -> send prefill
            prefill lost             -> judge prefill bad, free prefill, judge decode mute, free decode, fail 502 prefill_request_failed, settle failed
        "#]],
    );
}

#[test]
fn and_then_nobody_takes_it() {
    check(
        &["placed nixl", "prefill stale", "unplaced"],
        expect![[r#"
        placed nixl              -> send prefill
        prefill stale            -> judge prefill mute, free prefill, judge decode mute, free decode, renew
        unplaced                 -> fail 503 no_available_workers, settle failed
    "#]],
    );
    check(
        &["placed nixl", "prefill stale", "full", "room", "placed nixl", "client gone"],
        expect![[r#"
            placed nixl              -> send prefill
            prefill stale            -> judge prefill mute, free prefill, judge decode mute, free decode, renew
            full                     -> queue
            room                     -> place
            placed nixl              -> send prefill
            client gone              -> linger prefill, judge decode mute, free decode, settle client_gone
        "#]],
    );
}
