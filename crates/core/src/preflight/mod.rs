//! Does KV move between these two workers? Asked before a pair serves, by one tiny request through it: a *trial*.
//!
//! A decode that gets no KV computes the prompt itself and answers right, so that a pair which is set up wrong serves
//! for months at twice the cost and nobody sees it. So a worker that has just become ready is *held*: it is well and
//! gets no requests ([`crate::fleet::Pulse::hold`]) until a trial with a partner has ended, or for as long as the
//! rule has patience. What came of it is shown, and the worker is let in whatever it was: less than all of the proof
//! is no reason to refuse a fleet's only pair.
//!
//! The [`Board`] decides who is tried with whom and when, who is let in, and what is shown of each worker. It does not
//! know how a trial is carried out. What the request says and what its end means is in [`request()`] and [`Outcome`].

mod board;
mod ready;
mod request;

pub use board::{Board, Look, Step, Trial};
pub use request::request;

use crate::time::Duration;

/// Most trials at once: a gateway that begins in front of a thousand pairs knows them within some seconds.
pub const TRIALS_MAX: usize = 32;

/// Longest time that a worker's trials go on failing before it is left at that, if it is not held for longer.
pub const GIVE_UP: Duration = Duration::from_secs(30);

/// The pause after a worker's first trial that failed; it doubles each time.
pub const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// The longest pause.
pub const LAST_PAUSE: Duration = Duration::from_secs(5);

/// The pause before a worker that was left at that is tried again; it doubles each time.
pub const AGAIN_PAUSE: Duration = Duration::from_secs(60);

/// The longest of these pauses.
pub const AGAIN_PAUSE_MAX: Duration = Duration::from_secs(960);

/// Most such trials in one life of a worker.
pub const AGAIN_MAX: u32 = 10;

/// What came of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// KV moved.
    Proved,
    /// The pair answers. Nothing shows whether KV moved.
    Answered,
    /// The pair answers, and no KV moved.
    Degraded(String),
    /// A worker failed or did not answer. Tried again.
    Failed(String),
    /// The decode had no room for it, so that nothing was sent. Tried again, and nobody is held for that: where nobody
    /// has room, workers are needed.
    Crowded,
    /// It could not be tried, and cannot be.
    Unjudged(String),
}

impl Outcome {
    /// The `result` of `baton_preflight_trials_total`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Crowded => "crowded",
            _ => self.state().as_str(),
        }
    }

    pub fn why(&self) -> Option<&str> {
        match self {
            Outcome::Proved | Outcome::Answered => None,
            Outcome::Crowded => Some("the decode has no room"),
            Outcome::Degraded(why) | Outcome::Failed(why) | Outcome::Unjudged(why) => Some(why),
        }
    }

    fn state(&self) -> State {
        match self {
            Outcome::Proved => State::Proved,
            Outcome::Answered => State::Answered,
            Outcome::Degraded(_) => State::Degraded,
            Outcome::Failed(_) => State::Failed,
            Outcome::Unjudged(_) | Outcome::Crowded => State::Unchecked,
        }
    }
}

/// What is known of a worker. What says more about it comes later, and is not forgotten for less: a worker that proved
/// itself with one partner is not to blame for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum State {
    /// Nothing yet: it waits for a trial, or for a partner.
    #[default]
    Waiting,
    Unchecked,
    Failed,
    Degraded,
    Answered,
    Proved,
}

impl State {
    pub const ALL: [State; 6] =
        [State::Waiting, State::Unchecked, State::Failed, State::Degraded, State::Answered, State::Proved];

    pub fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Unchecked => "unchecked",
            State::Failed => "failed",
            State::Degraded => "degraded",
            State::Answered => "answered",
            State::Proved => "proved",
        }
    }
}

/// What is shown of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub state: State,
    /// The URL of the worker that it was tried with.
    pub partner: Option<String>,
    pub why: Option<String>,
    /// The URL of the last worker with which it answered and no KV moved, in this life of it.
    pub degraded_with: Option<String>,
}
