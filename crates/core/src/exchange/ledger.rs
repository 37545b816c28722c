//! What became of a hand-off?
//!
//! A hand-off is issued when KV waits for a decode that only the gateway can tell of it: with the prefill's answer in
//! turn, with both requests where the legs go out together. It ends once. Told is what the gateway knows, which is not
//! always what the engines did: a decode that was cut off before it answered may have fetched the KV or not.

use super::course::Order;

/// How a hand-off ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// A decode took it: it answered, in turn with a good head, together once the client's answer could begin.
    Consumed,
    /// A throw-away decode is to fetch it. What came of that the driver knows.
    Released,
    /// No decode was told of it or will be: the engine's own lease ends it.
    Expired,
    /// Both legs were closed before the answer could begin, which engines take for an abort.
    Aborted,
    /// A decode may have had it, and failed or was cut off before it said so.
    Unknown,
}

impl Fate {
    pub const ALL: [Fate; 5] = [Fate::Consumed, Fate::Released, Fate::Expired, Fate::Aborted, Fate::Unknown];

    /// As the label of a metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Fate::Consumed => "consumed",
            Fate::Released => "released",
            Fate::Expired => "expired",
            Fate::Aborted => "aborted",
            Fate::Unknown => "unknown",
        }
    }
}

/// Where an attempt's hand-off is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ledger {
    /// None was issued, or not yet.
    Nothing,
    Out,
    Over(Fate),
}

impl Ledger {
    /// The legs of a plan have been sent.
    pub(super) fn sent(order: Order) -> Ledger {
        if order == Order::Together { Ledger::Out } else { Ledger::Nothing }
    }

    /// What is left of a hand-off whose legs are all closed, and that was not released.
    pub(super) fn left(order: Order) -> Fate {
        if order == Order::Together { Fate::Aborted } else { Fate::Unknown }
    }

    /// Only the first end counts.
    pub(super) fn ends(&mut self, fate: Fate) {
        if *self == Ledger::Out {
            *self = Ledger::Over(fate);
        }
    }
}
