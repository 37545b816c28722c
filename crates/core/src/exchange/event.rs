//! What can happen to an exchange, and what it can ask for.

use smallvec::SmallVec;

use super::course::{Course, Leg};
use crate::abort::Why;
use crate::breaker::Verdict;
use crate::fault::Fault;
use crate::time::Duration;

/// What the prefill's answer was worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handed {
    /// It handed KV over; the decode leg can be told.
    Over,
    /// There is nothing to hand over; the decode computes the prompt itself.
    Nothing,
    /// It ended the request (its first token was the last): the client gets this answer, and no decode is
    /// needed. TensorRT-LLM's `context_first`.
    Final,
    /// The hand-off cannot be used and the decode must not be asked.
    Dead(Fault),
}

/// A leg failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub leg: Leg,
    pub fault: Fault,
    /// The engine may have got the request.
    pub delivered: bool,
}

/// What happened. Legs are those of the attempt under way: what an earlier one still had to say must not
/// be reported.
#[derive(Clone, Debug)]
pub enum Event {
    /// The request was admitted.
    Begin,
    /// Workers were chosen and their leases taken.
    Placed(Course),
    Unplaced(Fault),
    /// Somebody can serve it, but every window is full. The fault is what the client gets if none opens.
    Full(Fault),
    /// A place was given back: the request may try again.
    Room,
    /// The queue is full, or the wait for room is over.
    QueueOver,
    /// A 2xx response head came.
    Head(Leg),
    /// The prefill leg of a plan in turn, or of one that reads it, has answered in full.
    Answered(Handed),
    /// A leg's body ended as it should: the decode's after `Start`, the prefill's of a plan that sends both.
    Ended(Leg),
    Failed(Failure),
    /// A leg went out on a connection that had served before, and the worker closed that without a byte of an answer,
    /// as it does with one that was idle for long. It may have read the request.
    Stale(Failure),
    /// The decode leg owed output and sent none for too long ([`crate::watchdog`]).
    Silent(Fault),
    ClientGone,
    /// The request's time is over.
    Deadline,
    /// The gateway stops now.
    Drain,
    /// The wait before another attempt is over.
    Resume,
    /// There is to be no such attempt: too many requests have been tried again of late ([`crate::retry::Budget`]).
    Spent,
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Choose workers and make a plan; report `Placed`, `Unplaced` or `Full`.
    Place,
    /// The same for an attempt that begins anew: its workers are as good as any, and its legs go out on connections
    /// that are new.
    Renew,
    /// Choose another decode for the KV that the prefill holds, keeping the hand-off; report `Placed` with
    /// the plan's course, and a lease for the decode alone, or `Unplaced`: no partner has room, or the KV
    /// has been held for too long.
    Replace,
    /// Let it wait for room, in its order; report `Room` or `QueueOver`. It keeps its turn, and its wait
    /// goes on, when a try in vain asks for this again.
    Queue,
    Send(Leg),
    Cancel(Leg),
    /// Drain the leg in the background; its lease goes along.
    Detach(Leg),
    /// Let the prefill leg go on in the background for a moment, with its lease: if it answers, what it hands over is
    /// consumed by a throw-away decode; if not, it is closed.
    Linger,
    /// Consume the handed-over KV by a throw-away decode in the background.
    Release,
    /// Ask the decode's engine, by the request's name, to drop it: it is given up while it is stuck.
    AskAbort(Why),
    /// What the leg says about its worker.
    Judge(Leg, Verdict),
    /// Give the leg's lease back.
    Free(Leg),
    /// Give the client the decode's head, then its body as it comes.
    Start,
    /// Give the client the prefill's answer, which was the whole of it.
    Tell,
    /// Answer the client with the fault.
    Fail(Fault),
    /// End the begun answer with the fault.
    Cut(Fault),
    /// Wait, then report `Resume`; or report `Spent`.
    Wait(Duration),
    /// Write the record. Nothing comes after it.
    Settle(Outcome),
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Outcome {
    Served,
    /// Answered with an error.
    #[default]
    Failed,
    /// The answer had begun and was cut.
    Cut,
    ClientGone,
}

impl Outcome {
    pub const ALL: [Outcome; 4] = [Outcome::Served, Outcome::Failed, Outcome::Cut, Outcome::ClientGone];

    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Served => "served",
            Outcome::Failed => "failed",
            Outcome::Cut => "cut",
            Outcome::ClientGone => "client_gone",
        }
    }
}

pub type Actions = SmallVec<[Action; 3]>;
