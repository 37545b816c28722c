//! What an engine waits for, by time. Every timer can be cancelled, so none outlives what it is for.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::message::PeerAddr;
use crate::engine::sequence::{SeqId, TimerKey};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Timer {
    /// A pinned hand-off's lease may have ended.
    Lease(String),
    /// Leases of hand-offs that wait here must be renewed.
    Beat,
    /// A bootstrap server must be asked whether it lives.
    Ping(PeerAddr),
    /// Nobody came for a decode side that waits in a room.
    ForgetJoin(u64),
    /// Nobody came for KV that is kept under a transfer id.
    Kept(String),
    /// A transfer has ended.
    Pushed(String),
    /// KV that somebody asked for by a transfer id was never computed here.
    ForgetTaker(String),
    /// The engine core dies late.
    Death,
    Seq(SeqId, Due),
}

/// What is due for a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// SGLang prefill: no decode side came.
    MeetTimeout,
    /// SGLang decode: no KV came.
    ReceiveTimeout,
    /// By transfer id, decode: no KV came.
    TakeTimeout,
    /// NIXL: the transfer has ended.
    Arrived,
    /// NIXL: the handshake timed out. SGLang: the bootstrap server never answered.
    Unreachable,
    /// SGLang decode: the prefill side was known and is gone.
    Lost,
    /// SGLang prefill: the transfer has ended.
    Sent,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeMap<TimerKey, Timer>,
    last: u64,
}

impl Timers {
    pub fn set(&mut self, at: Duration, timer: Timer) -> TimerKey {
        self.last += 1;
        let key = (at, self.last);
        self.by_time.insert(key, timer);
        key
    }

    pub fn cancel(&mut self, key: Option<TimerKey>) {
        if let Some(key) = key {
            self.by_time.remove(&key);
        }
    }

    pub fn next(&self) -> Option<Duration> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next timer that is due.
    pub fn due(&mut self, now: Duration) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.by_time.pop_first().map(|(_, timer)| timer)
    }
}
