//! vLLM with a store, or a connector whose protocol is not known: in turn, but no KV is pinned for the decode.

use expect_test::expect;

use super::check;

#[test]
fn all_goes_well() {
    check(
        &["placed store", "answered nothing", "head decode", "ended decode"],
        expect![[r#"
        placed store             -> send prefill
        answered nothing         -> judge prefill good, free prefill, send decode
        head decode              -> start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn what_the_prefill_returns_is_relayed() {
    check(
        &["placed store", "answered over", "head decode", "ended decode"],
        expect![[r#"
        placed store             -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn the_prefill_fails() {
    check(
        &["placed store", "prefill refuses 500"],
        expect![[r#"
        placed store             -> send prefill
        prefill refuses 500      -> judge prefill bad, free prefill, judge decode mute, free decode, fail 500 prefill_upstream_error, settle failed
    "#]],
    );
}

#[test]
fn the_decode_refuses() {
    check(
        &["placed store", "answered over", "decode refuses 404"],
        expect![[r#"
        placed store             -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode refuses 404       -> judge decode mute, free decode, fail 404 decode_not_found, settle failed
    "#]],
    );
}

#[test]
fn the_decode_is_unreachable() {
    // Nothing to release: the store keeps what it has.
    check(
        &["placed store", "answered over", "decode unreachable"],
        expect![[r#"
        placed store             -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        decode unreachable       -> judge decode bad, free decode, fail 502 decode_request_failed, settle failed
    "#]],
    );
}

#[test]
fn the_decode_dies_after_its_first_byte() {
    check(
        &["placed store", "answered over", "head decode", "decode breaks off"],
        expect![[r#"
        placed store             -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        decode breaks off        -> judge decode bad, free decode, cut decode_read_failed, settle cut
    "#]],
    );
}

#[test]
fn the_client_leaves_during_the_prefill() {
    check(
        &["placed store", "client gone"],
        expect![[r#"
        placed store             -> send prefill
        client gone              -> cancel prefill, judge prefill mute, free prefill, judge decode mute, free decode, settle client_gone
    "#]],
    );
}

#[test]
fn the_client_leaves_during_the_transfer() {
    check(
        &["placed store", "answered over", "client gone"],
        expect![[r#"
        placed store             -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
    "#]],
    );
}

#[test]
fn the_client_leaves_while_streaming() {
    check(
        &["placed store", "answered over", "head decode", "client gone"],
        expect![[r#"
        placed store             -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
    "#]],
    );
}

#[test]
fn the_deadline_passes() {
    check(
        &["placed store", "answered over", "deadline"],
        expect![[r#"
        placed store             -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        deadline                 -> cancel decode, judge decode bad, free decode, fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn the_gateway_drains() {
    check(
        &["placed store", "answered over", "head decode", "drain"],
        expect![[r#"
        placed store             -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        drain                    -> cancel decode, judge decode mute, free decode, cut draining, settle cut
    "#]],
    );
}
