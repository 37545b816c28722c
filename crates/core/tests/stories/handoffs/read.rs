//! Both legs at once, and the prefill's answer counts: MoRI-IO's concurrent WRITE, TensorRT-LLM's
//! `generation_first`. The decode's answer goes out only when the prefill's has passed.

use expect_test::expect;

use super::{check, check_retried};

#[test]
fn all_goes_well() {
    check(
        &["placed moriio-write", "answered over", "head decode", "ended decode"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            answered over            -> judge prefill good, free prefill
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_decode_is_ready_first() {
    // It waits for the prefill's answer to pass, not for its head.
    check(
        &["placed moriio-write", "head decode", "head prefill", "answered over", "ended decode"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            head prefill             -> nothing
            answered over            -> judge prefill good, free prefill, start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_hand_off_is_dead_while_the_decode_waits_for_it() {
    // It would wait for a push that never comes: closed at once, blamed on nobody.
    check(
        &["placed moriio-write", "answered dead"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            answered dead            -> judge prefill bad, free prefill, cancel decode, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
        "#]],
    );
}

#[test]
fn the_hand_off_is_dead_after_the_decodes_head() {
    check(
        &["placed moriio-write", "head decode", "answered dead"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            answered dead            -> judge prefill bad, free prefill, cancel decode, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
        "#]],
    );
}

#[test]
fn the_hand_off_is_dead_and_another_pair_serves() {
    check_retried(
        &[
            "placed moriio-write",
            "head decode",
            "answered dead",
            "resume",
            "placed moriio-write",
            "answered over",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            answered dead            -> judge prefill bad, free prefill, cancel decode, judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed moriio-write      -> send prefill, send decode
            answered over            -> judge prefill good, free prefill
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_prefill_hands_nothing_over() {
    check(
        &["placed moriio-write", "head decode", "answered nothing", "ended decode"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            answered nothing         -> judge prefill good, free prefill, start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_prefill_ends_the_request() {
    check(
        &["placed moriio-write", "head decode", "answered final"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            answered final           -> judge prefill good, free prefill, cancel decode, judge decode mute, free decode, tell, settle served
        "#]],
    );
}

#[test]
fn the_prefill_refuses() {
    check(
        &["placed moriio-write", "head decode", "prefill refuses 400"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            prefill refuses 400      -> judge prefill mute, free prefill, cancel decode, judge decode mute, free decode, fail 400 prefill_bad_request, settle failed
        "#]],
    );
}

#[test]
fn the_prefill_dies() {
    check(
        &["placed moriio-write", "head decode", "prefill breaks off"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            prefill breaks off       -> judge prefill bad, free prefill, cancel decode, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
        "#]],
    );
}

#[test]
fn the_decode_refuses() {
    // It takes no push, so nobody waits for the prefill.
    check(
        &["placed moriio-write", "decode refuses 400"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            decode refuses 400       -> judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, fail 400 decode_bad_request, settle failed
        "#]],
    );
}

#[test]
fn the_decode_refuses_after_the_hand_off_passed() {
    check(
        &["placed moriio-write", "answered over", "decode refuses 503"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            answered over            -> judge prefill good, free prefill
            decode refuses 503       -> judge decode bad, free decode, fail 503 decode_unavailable, settle failed
        "#]],
    );
}

#[test]
fn the_decode_dies_after_its_first_byte() {
    check(
        &["placed moriio-write", "answered over", "head decode", "decode breaks off"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            answered over            -> judge prefill good, free prefill
            head decode              -> start
            decode breaks off        -> judge decode bad, free decode, cut decode_read_failed, settle cut
        "#]],
    );
}

#[test]
fn the_client_leaves_before_the_hand_off_passes() {
    check(
        &["placed moriio-write", "head decode", "client gone"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            client gone              -> cancel decode, judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, settle client_gone
        "#]],
    );
}

#[test]
fn the_client_leaves_while_streaming() {
    check(
        &["placed moriio-write", "answered over", "head decode", "client gone"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            answered over            -> judge prefill good, free prefill
            head decode              -> start
            client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
        "#]],
    );
}

#[test]
fn the_deadline_passes_before_the_hand_off_passes() {
    // The decode has given its head, the prefill no sign of life.
    check(
        &["placed moriio-write", "head decode", "deadline"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            deadline                 -> cancel prefill, judge prefill bad, free prefill, cancel decode, judge decode mute, free decode, fail 504 request_timeout, settle failed
        "#]],
    );
}

#[test]
fn the_gateway_drains_before_the_hand_off_passes() {
    check(
        &["placed moriio-write", "head decode", "drain"],
        expect![[r#"
            placed moriio-write      -> send prefill, send decode
            head decode              -> nothing
            drain                    -> cancel decode, judge decode mute, free decode, cancel prefill, judge prefill mute, free prefill, fail 503 draining, settle failed
        "#]],
    );
}
