//! What the end-to-end tests stand on: a gateway with its engines ([`House`]), clients, taps between the two,
//! requests whose answer is known beforehand ([`Ask`]), and the metrics page.
//!
//! Nothing here sleeps for a length of time and hopes: what must come about is awaited with a bound.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part")]

mod ask;
mod client;
mod house;
mod list;
mod page;
mod raw;
mod redis;
mod tap;

use std::future::Future;
use std::time::Duration;

pub use ask::{Ask, PROMPT};
pub use client::{Line, Reply, Streamed, events, request};
pub use house::{House, Plan, fault, on};
pub use list::List;
pub use page::Page;
pub use raw::Raw;
pub use redis::{Door, Redis, Way};
pub use tap::{Gate, Seen, Step, Tap, sse};

/// Longest wait for anything that must come about.
pub const BOUND: Duration = Duration::from_secs(20);
/// How soon a leg that is not wanted any more must be gone, and the like.
pub const SOON: Duration = Duration::from_secs(2);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// What `future` gives, if it is there in time.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {limit:?}"),
    }
}

/// Waits until `done` is true, at most [`BOUND`].
pub async fn until(what: &str, done: impl FnMut() -> bool) {
    until_within(BOUND, what, done).await;
}

/// Waits until `done` is true, at most `limit`.
pub async fn until_within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    within(limit, what, async {
        while !done() {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
}
