//! What happens to a request, per hand-off, when something goes wrong: the stories worth reading.
//!
//! Left: what happened. Right: what the driver is asked to do. `judge` is what the worker's breaker hears,
//! `free` gives a lease back, `release` lets a throw-away decode consume the KV. Each line is also checked by
//! the world's rules.

mod final_answer;
mod generation_first;
mod nixl;
mod one_leg;
mod queue;
mod read;
mod sglang;
mod silence;
mod stale;
mod store;

use expect_test::Expect;

use crate::telling::tell;

fn check(events: &[&str], expect: Expect) {
    expect.assert_eq(&tell(1, events));
}

fn check_retried(events: &[&str], expect: Expect) {
    expect.assert_eq(&tell(2, events));
}
