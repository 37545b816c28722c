//! The part of a plan that steers the exchange: which legs, in which order, when the answer begins.

use super::Outcome;
use crate::fault::LegName;

/// A leg's place in the plan. The one leg of a single plan sits in the place of the decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leg {
    Prefill,
    Decode,
}

/// In which order legs are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// One leg.
    Single,
    /// Prefill, and when it has answered, decode.
    InTurn,
    /// Both at once.
    Together,
}

/// When the client's answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// On the decode's response head.
    DecodeHead,
    /// On both response heads: a prefill that refuses can still be told as what it is.
    BothHeads,
    /// On the decode's head once the prefill's answer has ended.
    PrefillEnd,
}

/// What to do with a leg that is not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abort {
    /// Close its connection: the engine takes that as an abort.
    Cancel,
    /// Let it finish in the background, within a limit.
    Detach,
}

/// The part of a plan that steers the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Course {
    pub order: Order,
    pub start: Start,
    /// A prefill leg in flight when the exchange ends before the answer began.
    pub prefill_abort: Abort,
    /// Between prefill's answer and decode's the KV is held for a decode that only the gateway can send:
    /// if that will not happen, a throw-away decode consumes it (design: *release*).
    pub release: bool,
    /// Both at once, and the prefill's answer is read whole and judged all the same (`Answered`): the
    /// client's answer begins only after that, whatever `start` says. MoRI-IO's concurrent WRITE (SMG page),
    /// TensorRT-LLM's `generation_first`.
    pub reads_prefill: bool,
    /// The engine can be asked to drop a request by its name: a decode that is given up while it is stuck is
    /// ([`crate::abort`]).
    pub by_name: bool,
    /// What the answering leg is called: a worker that runs both phases, or a prefill that only reads its
    /// prompt, answers in the decode's place.
    pub answers: LegName,
}

impl Course {
    /// The prefill's answer says what it was worth, and the exchange waits to hear it.
    pub const fn awaits_answer(&self) -> bool {
        match self.order {
            Order::Single => false,
            Order::InTurn => true,
            Order::Together => self.reads_prefill,
        }
    }

    /// Is a prefill that lives on since the answer began called off, now that the exchange ended so? It was kept for
    /// the KV that its decode lived on, and may wait for minutes for a decode that was closed (SGLang 0.5.23).
    pub fn recalls(&self, outcome: Outcome) -> bool {
        outcome != Outcome::Served && self.prefill_abort == Abort::Cancel
    }

    pub const fn name(&self, leg: Leg) -> LegName {
        match leg {
            Leg::Prefill => LegName::Prefill,
            Leg::Decode => self.answers,
        }
    }
}

/// The course before there is a plan.
pub(super) const NOWHERE: Course = Course {
    order: Order::Single,
    start: Start::DecodeHead,
    prefill_abort: Abort::Cancel,
    release: false,
    reads_prefill: false,
    by_name: false,
    answers: LegName::Decode,
};
