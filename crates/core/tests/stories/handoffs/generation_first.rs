//! TensorRT-LLM, `generation_first`: both legs at once, and the answer waits for the context server's.

use expect_test::expect;

use super::{check, check_retried};

#[test]
fn all_goes_well() {
    check(
        &["placed generation-first", "head decode", "answered nothing", "ended decode"],
        expect![[r#"
        placed generation-first  -> send prefill, send decode
        head decode              -> nothing
        answered nothing         -> judge prefill good, free prefill, start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn the_context_server_answers_first() {
    check(
        &["placed generation-first", "answered nothing", "head decode", "ended decode"],
        expect![[r#"
        placed generation-first  -> send prefill, send decode
        answered nothing         -> judge prefill good, free prefill
        head decode              -> start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn the_context_server_refuses_after_the_generation_servers_head() {
    // It is told as what it is; the generation server, which waits for KV that never comes, is let go.
    check(
        &["placed generation-first", "head decode", "prefill refuses 400"],
        expect![[r#"
        placed generation-first  -> send prefill, send decode
        head decode              -> nothing
        prefill refuses 400      -> judge prefill mute, free prefill, cancel decode, judge decode mute, free decode, fail 400 prefill_bad_request, settle failed
    "#]],
    );
}

#[test]
fn the_context_servers_answer_is_none() {
    check(
        &["placed generation-first", "head decode", "answered dead"],
        expect![[r#"
        placed generation-first  -> send prefill, send decode
        head decode              -> nothing
        answered dead            -> judge prefill bad, free prefill, cancel decode, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
    "#]],
    );
}

#[test]
fn the_generation_server_is_lost_and_another_pair_serves() {
    // A fresh id: the first attempt's may still be known to either server.
    check_retried(
        &[
            "placed generation-first",
            "decode lost",
            "resume",
            "placed generation-first",
            "answered nothing",
            "head decode",
            "ended decode",
        ],
        expect![[r#"
            placed generation-first  -> send prefill, send decode
            decode lost              -> judge decode bad, free decode, cancel prefill, judge prefill mute, free prefill, wait 50ms
            resume                   -> place
            placed generation-first  -> send prefill, send decode
            answered nothing         -> judge prefill good, free prefill
            head decode              -> start
            ended decode             -> judge decode good, free decode, settle served
        "#]],
    );
}

#[test]
fn the_generation_server_dies_while_the_context_server_computes() {
    check(
        &["placed generation-first", "head decode", "decode breaks off"],
        expect![[r#"
        placed generation-first  -> send prefill, send decode
        head decode              -> nothing
        decode breaks off        -> judge decode bad, free decode, cancel prefill, judge prefill mute, free prefill, fail 502 decode_read_failed, settle failed
    "#]],
    );
}

#[test]
fn the_client_leaves() {
    for events in [&["placed generation-first"][..], &["placed generation-first", "head decode"]] {
        let told = crate::telling::tell(1, &[events, &["client gone", "answered nothing"]].concat());
        assert!(told.contains("cancel prefill") && told.contains("cancel decode"), "{told}");
        assert!(told.ends_with("answered nothing         -> nothing\n"), "{told}");
    }
}

#[test]
fn the_deadline_passes_with_the_context_server_silent() {
    check(
        &["placed generation-first", "head decode", "deadline"],
        expect![[r#"
        placed generation-first  -> send prefill, send decode
        head decode              -> nothing
        deadline                 -> cancel prefill, judge prefill bad, free prefill, cancel decode, judge decode mute, free decode, fail 504 request_timeout, settle failed
    "#]],
    );
}
