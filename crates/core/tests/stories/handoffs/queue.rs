//! Every decode worker runs as many requests as it can: the request waits for room, before any leg is sent.

use expect_test::expect;

use super::{check, check_retried};

#[test]
fn room_comes() {
    check(
        &["full", "room", "placed nixl", "answered over", "head decode", "ended decode"],
        expect![[r#"
        full                     -> queue
        room                     -> place
        placed nixl              -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn another_one_is_faster() {
    // The try in vain counts for nothing; the place in the line is kept.
    check(
        &["full", "room", "full", "room", "placed whole", "head whole", "ended whole"],
        expect![[r#"
        full                     -> queue
        room                     -> place
        full                     -> queue
        room                     -> place
        placed whole             -> send decode
        head whole               -> start
        ended whole              -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn no_room_comes() {
    check(
        &["full", "queue over"],
        expect![[r#"
        full                     -> queue
        queue over               -> fail 503 worker_overload_protection_shed, settle failed
    "#]],
    );
}

#[test]
fn the_workers_are_gone_when_room_comes() {
    check(
        &["full", "room", "unplaced"],
        expect![[r#"
        full                     -> queue
        room                     -> place
        unplaced                 -> fail 503 no_available_workers, settle failed
    "#]],
    );
}

#[test]
fn no_room_comes_for_the_second_attempt() {
    // What went wrong first says more.
    check_retried(
        &["placed nixl", "prefill refuses 500", "resume", "full", "queue over"],
        expect![[r#"
        placed nixl              -> send prefill
        prefill refuses 500      -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
        resume                   -> place
        full                     -> queue
        queue over               -> fail 500 prefill_upstream_error, settle failed
    "#]],
    );
}

#[test]
fn room_comes_for_the_second_attempt() {
    check_retried(
        &[
            "placed sglang",
            "decode refuses 503",
            "resume",
            "full",
            "room",
            "placed sglang",
            "head prefill",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed sglang            -> send prefill, send decode
            decode refuses 503       -> judge decode bad, free decode, cancel prefill, judge prefill mute, free prefill, wait 50ms
            resume                   -> place
            full                     -> queue
            room                     -> place
            placed sglang            -> send prefill, send decode
            head prefill             -> nothing
            head decode              -> start, detach prefill
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn waiting_for_room_is_no_attempt() {
    // Of two attempts one is left after all the waiting.
    check_retried(
        &[
            "full",
            "room",
            "full",
            "room",
            "placed nixl",
            "prefill lost",
            "resume",
            "placed nixl",
            "prefill lost",
        ],
        expect![[r#"
            full                     -> queue
            room                     -> place
            full                     -> queue
            room                     -> place
            placed nixl              -> send prefill
            prefill lost             -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed nixl              -> send prefill
            prefill lost             -> judge prefill bad, free prefill, judge decode mute, free decode, fail 502 prefill_request_failed, settle failed
        "#]],
    );
}

#[test]
fn the_client_leaves_the_line() {
    check(
        &["full", "client gone", "room"],
        expect![[r#"
        full                     -> queue
        client gone              -> settle client_gone
        room                     -> nothing
    "#]],
    );
}

#[test]
fn the_deadline_passes_in_the_line() {
    check(
        &["full", "deadline"],
        expect![[r#"
        full                     -> queue
        deadline                 -> fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn the_gateway_drains() {
    check(
        &["full", "drain"],
        expect![[r#"
        full                     -> queue
        drain                    -> fail 503 draining, settle failed
    "#]],
    );
}
