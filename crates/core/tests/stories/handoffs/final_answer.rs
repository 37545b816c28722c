//! TensorRT-LLM, `context_first`: the prefill's first token may have ended the request.

use expect_test::expect;

use super::{check, check_retried};

#[test]
fn all_goes_well() {
    check(
        &["placed context-first", "answered over", "head decode", "ended decode"],
        expect![[r#"
        placed context-first     -> send prefill
        answered over            -> judge prefill good, free prefill, send decode
        head decode              -> start
        ended decode             -> judge decode good, free decode, settle served
    "#]],
    );
}

#[test]
fn the_first_token_ends_it() {
    // The decode is not asked; its lease comes back and nobody judges it.
    check(
        &["placed context-first", "answered final"],
        expect![[r#"
        placed context-first     -> send prefill
        answered final           -> judge prefill good, free prefill, judge decode mute, free decode, tell, settle served
    "#]],
    );
}

#[test]
fn the_first_token_ends_the_second_attempt() {
    check_retried(
        &["placed context-first", "prefill lost", "resume", "placed context-first", "answered final"],
        expect![[r#"
            placed context-first     -> send prefill
            prefill lost             -> judge prefill bad, free prefill, judge decode mute, free decode, wait 50ms
            resume                   -> place
            placed context-first     -> send prefill
            answered final           -> judge prefill good, free prefill, judge decode mute, free decode, tell, settle served
        "#]],
    );
}

#[test]
fn the_answer_is_wrong() {
    check(
        &["placed context-first", "answered dead"],
        expect![[r#"
        placed context-first     -> send prefill
        answered dead            -> judge prefill bad, free prefill, judge decode mute, free decode, fail 502 prefill_read_failed, settle failed
    "#]],
    );
}

#[test]
fn the_client_leaves_just_before_the_first_token_ends_it() {
    check(
        &["placed context-first", "client gone", "answered final"],
        expect![[r#"
            placed context-first     -> send prefill
            client gone              -> linger prefill, judge decode mute, free decode, settle client_gone
            answered final           -> nothing
        "#]],
    );
}
