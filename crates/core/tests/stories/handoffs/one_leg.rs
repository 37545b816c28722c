//! One leg: a worker that runs both phases, or a decode that computes the prompt itself.

use expect_test::expect;

use crate::telling::Telling;

use super::{check, check_retried};

#[test]
fn whole_all_goes_well() {
    check(
        &["placed whole", "head whole", "ended whole"],
        expect![[r#"
        placed whole             -> send decode
        head whole               -> start
        ended whole              -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn whole_refuses() {
    check(
        &["placed whole", "whole refuses 400"],
        expect![[r#"
        placed whole             -> send decode
        whole refuses 400        -> judge decode mute, free decode, fail 400 upstream_error, settle failed
    "#]],
    );
}

#[test]
fn whole_fails_and_another_one_serves() {
    check_retried(
        &["placed whole", "whole refuses 500", "resume", "placed whole", "head whole", "ended whole"],
        expect![[r#"
            placed whole             -> send decode
            whole refuses 500        -> judge decode bad, free decode, wait 50ms
            resume                   -> place
            placed whole             -> send decode
            head whole               -> start
            ended whole              -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn whole_dies_after_its_first_byte() {
    check_retried(
        &["placed whole", "head whole", "whole breaks off"],
        expect![[r#"
        placed whole             -> send decode
        head whole               -> start
        whole breaks off         -> judge decode bad, free decode, cut read_response_failed, settle cut
    "#]],
    );
}

#[test]
fn whole_the_client_leaves() {
    check(
        &["placed whole", "client gone"],
        expect![[r#"
        placed whole             -> send decode
        client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
    "#]],
    );
}

#[test]
fn decode_only_all_goes_well() {
    // The placement's prefill is not in the plan: the driver gives it back by itself.
    check(
        &["placed decode-only", "head decode", "ended decode"],
        expect![[r#"
        placed decode-only       -> send decode
        head decode              -> start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn decode_only_fails() {
    check(
        &["placed decode-only", "decode refuses 500"],
        expect![[r#"
        placed decode-only       -> send decode
        decode refuses 500       -> judge decode bad, free decode, fail 500 decode_internal_error, settle failed
    "#]],
    );
}

#[test]
fn decode_only_the_client_leaves_while_streaming() {
    check(
        &["placed decode-only", "head decode", "client gone"],
        expect![[r#"
        placed decode-only       -> send decode
        head decode              -> start
        client gone              -> cancel decode, judge decode mute, free decode, settle client_gone
    "#]],
    );
}

#[test]
fn decode_only_the_deadline_passes() {
    check(
        &["placed decode-only", "deadline"],
        expect![[r#"
        placed decode-only       -> send decode
        deadline                 -> cancel decode, judge decode bad, free decode, fail 504 request_timeout, settle failed
    "#]],
    );
}

#[test]
fn decode_only_the_gateway_drains() {
    check(
        &["placed decode-only", "drain"],
        expect![[r#"
        placed decode-only       -> send decode
        drain                    -> cancel decode, judge decode mute, free decode, fail 503 draining, settle failed
    "#]],
    );
}

#[test]
fn no_worker_at_all() {
    check_retried(
        &["unplaced"],
        expect![[r#"
        unplaced                 -> fail 503 no_available_workers, settle failed
    "#]],
    );
}

#[test]
fn the_client_leaves_before_a_worker_is_chosen() {
    // A placement that comes too late changes nothing: its leases are dropped with it.
    check(
        &["client gone", "placed whole"],
        expect![[r#"
        client gone              -> settle client_gone
        placed whole             -> nothing
    "#]],
    );
}

#[test]
fn a_retry_may_land_on_another_kind_of_plan() {
    check_retried(
        &[
            "placed nixl",
            "answered over",
            "decode unreachable",
            "resume",
            "unplaced",
            "placed whole",
            "head whole",
            "ended whole",
        ],
        expect![[r#"
            placed nixl              -> send prefill
            answered over            -> judge prefill good, free prefill, send decode
            decode unreachable       -> judge decode bad, free decode, wait 50ms
            resume                   -> replace
            unplaced                 -> release, place
            placed whole             -> send decode
            head whole               -> start
            ended whole              -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn a_part_of_a_request_is_dropped_before_it_has_begun() {
    assert_eq!(Telling::new(1).hear("client gone"), "settle client_gone");
}
