//! The limits on what one request may make the gateway hold or wait for.
//!
//! Each has a unit in its name and a default here; the shell's config may change it. A limit that is
//! reached is a [`crate::fault::Fault`] or a bounded background leg, never a growing buffer.

use crate::abort::AbortRule;
use crate::time::Duration;
use crate::watchdog::Watchdog;

/// What may differ from one request to the next: the gateway's settings, where nothing says otherwise for its model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    pub watchdog: Watchdog,
    pub abort: AbortRule,
}

/// Limits of one exchange.
#[derive(Clone, Debug)]
pub struct ExchangeLimits {
    /// From admission to the last byte. SMG `--request-timeout-secs`.
    pub request_timeout: Duration,
    /// How much of a prefill answer is kept in memory to find the hand-off in it.
    pub prefill_answer_max_bytes: usize,
    /// How much of an error answer of an engine is read to find its message.
    pub error_answer_max_bytes: usize,
    /// How long a detached prefill leg may go on. Above SGLang's own 300 s + 300 s is of no use;
    /// just above 300 s lets the engine's own error come first (SGLang 0.5.23).
    pub detach_timeout: Duration,
    /// How long a throw-away decode may take to consume a hand-off nobody wants any more.
    pub release_timeout: Duration,
    /// How long a prefill whose client has left may go on, to answer if it is in its last step.
    pub linger_timeout: Duration,
    /// How long a detached prefill leg may go on once its answer was cut or its client has left: a transfer under way
    /// ends by then, and one whose decode was closed before anything had moved never does (SGLang 0.5.23).
    pub recall_timeout: Duration,
    /// How long after the prefill's answer its KV may still be offered to another decode. vLLM 0.24 and later
    /// free it after 30 s if no decode has come by then, and the decode that comes later does not notice.
    pub reuse_max_age: Duration,
}

impl Default for ExchangeLimits {
    fn default() -> Self {
        ExchangeLimits {
            request_timeout: Duration::from_secs(1800),
            prefill_answer_max_bytes: 64 << 20,
            error_answer_max_bytes: 64 << 10,
            detach_timeout: Duration::from_secs(330),
            release_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_millis(500),
            recall_timeout: Duration::from_secs(5),
            reuse_max_age: Duration::from_secs(10),
        }
    }
}
