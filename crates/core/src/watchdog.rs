//! Does the decode still owe the client something, and for how long has it been silent?
//!
//! From the moment the prefill has succeeded the worker that answers owes output: the first piece of it
//! within one limit, the next pieces of a stream within another. A worker whose scheduler hangs accepts
//! requests, and may send the head of a stream, and then nothing: its connection looks well, and so a head
//! does not stop this clock. What is owed and not paid is a [`Fault`] that is not tried again (AIBrix page,
//! "Decode Watchdog", there for SGLang; here for every engine).
//!
//! Does not know what a piece holds: a keep-alive comment of the engine counts as one.

use crate::exchange::Leg;
use crate::fault::{Fault, LegName};
use crate::time::{Duration, Instant};

/// How long the worker that answers may be silent. `None` switches a limit off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// From the prefill's success to the first piece of a stream. `AIBRIX_DECODE_FIRST_RESPONSE_TIMEOUT`.
    pub first_response: Option<Duration>,
    /// The same for an answer in one piece, which comes when all of it is computed: a safe value depends on
    /// the request. `AIBRIX_DECODE_RESPONSE_TIMEOUT`.
    pub response: Option<Duration>,
    /// Between two pieces of a stream. `AIBRIX_DECODE_STREAM_IDLE_TIMEOUT`.
    pub stream_idle: Option<Duration>,
}

impl Default for Watchdog {
    fn default() -> Self {
        let seconds = |n| Some(Duration::from_secs(n));
        Watchdog { first_response: seconds(60), response: None, stream_idle: seconds(120) }
    }
}

/// Which silence: AIBrix's names, as in its metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Silence {
    FirstResponse,
    StreamIdle,
}

impl Silence {
    pub const ALL: [Silence; 2] = [Silence::FirstResponse, Silence::StreamIdle];

    pub fn as_str(self) -> &'static str {
        match self {
            Silence::FirstResponse => "first_response",
            Silence::StreamIdle => "stream_idle",
        }
    }
}

/// What was seen of the leg that answers.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    pub leg: LegName,
    /// The client asked for a stream.
    pub stream: bool,
    /// Since when the worker owes output: the prefill's success, or the sending of a leg that waits for no
    /// prefill. `None`: not yet.
    pub armed: Option<Instant>,
    /// When the last piece of the body came. The head is none.
    pub last_piece: Option<Instant>,
}

/// When the next piece has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    pub at: Instant,
    pub phase: Silence,
    pub limit: Duration,
}

/// What the prefill is doing, as far as the decode's debt depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefill {
    /// The plan has none, or it has not been sent.
    Absent,
    Runs,
    Over(Instant),
}

/// What the legs of a request's attempt have done so far: since when is output owed?
///
/// A prefill that is still at work is what the decode waits for. Once its leg is over, however it ended, there is
/// nothing left to wait for.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    limits: Watchdog,
    stream: bool,
    leg: LegName,
    prefill: Prefill,
    sent: Option<Instant>,
}

impl Watch {
    /// `stream`: the client asked for one.
    pub fn new(limits: Watchdog, stream: bool) -> Watch {
        Watch { limits, stream, leg: LegName::Decode, prefill: Prefill::Absent, sent: None }
    }

    /// Workers were chosen for an attempt; the answering one is called this.
    pub fn begins(&mut self, leg: LegName) {
        *self = Watch { leg, ..Watch::new(self.limits, self.stream) };
    }

    pub fn sent(&mut self, leg: Leg, now: Instant) {
        match leg {
            Leg::Prefill => self.prefill = Prefill::Runs,
            Leg::Decode => self.sent = Some(now),
        }
    }

    /// The leg is over, whether it succeeded, failed or was closed.
    pub fn over(&mut self, leg: Leg, now: Instant) {
        match leg {
            Leg::Prefill if self.prefill == Prefill::Runs => self.prefill = Prefill::Over(now),
            Leg::Prefill => {}
            Leg::Decode => self.sent = None,
        }
    }

    /// Does the end of the prefill's leg still matter, wherever that leg lives now?
    pub fn waits_for_prefill(&self) -> bool {
        self.prefill == Prefill::Runs && self.sent.is_some() && self.first().is_some()
    }

    /// When the next piece has to be there. `last_piece` is the last one of the answer's body.
    pub fn due(&self, last_piece: Option<Instant>) -> Option<Due> {
        self.limits.due(&self.sight(last_piece))
    }

    /// The fault, if the silence has lasted too long by now.
    pub fn barks(&self, last_piece: Option<Instant>, now: Instant) -> Option<Fault> {
        self.limits.barks(&self.sight(last_piece), now)
    }

    fn first(&self) -> Option<Duration> {
        if self.stream { self.limits.first_response } else { self.limits.response }
    }

    fn sight(&self, last_piece: Option<Instant>) -> Sight {
        let armed = match self.prefill {
            Prefill::Absent => self.sent,
            Prefill::Runs => None,
            Prefill::Over(at) => self.sent.map(|sent| sent.max(at)),
        };
        Sight { leg: self.leg, stream: self.stream, armed, last_piece }
    }
}

impl Watchdog {
    /// From whole seconds as the environment gives them: 0 switches a limit off.
    pub fn limit(seconds: u64) -> Option<Duration> {
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// `None`: nothing is owed, or no limit is set for it.
    pub fn due(&self, sight: &Sight) -> Option<Due> {
        let (phase, since, limit) = match (sight.last_piece, sight.stream) {
            (None, true) => (Silence::FirstResponse, sight.armed?, self.first_response?),
            (None, false) => (Silence::FirstResponse, sight.armed?, self.response?),
            (Some(piece), true) => (Silence::StreamIdle, piece, self.stream_idle?),
            // It is arriving; how long it takes is the request's limit.
            (Some(_), false) => return None,
        };
        Some(Due { at: since.after(limit), phase, limit })
    }

    /// The fault, if the silence has lasted too long by now.
    pub fn barks(&self, sight: &Sight, now: Instant) -> Option<Fault> {
        let Due { phase, limit, .. } = self.due(sight).filter(|due| due.at <= now)?;
        Some(Fault::DecodeSilent { leg: sight.leg, phase, limit, stream: sight.stream })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Watchdog = Watchdog {
        first_response: Some(Duration::from_secs(2)),
        response: Some(Duration::from_secs(5)),
        stream_idle: Some(Duration::from_secs(3)),
    };

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    fn sight(stream: bool, armed: Option<u64>, last_piece: Option<u64>) -> Sight {
        Sight { leg: LegName::Decode, stream, armed: armed.map(at), last_piece: last_piece.map(at) }
    }

    #[test]
    fn what_is_owed_when() {
        let none = Watchdog { first_response: None, response: None, stream_idle: None };
        for (dog, stream, armed, piece, due) in [
            (ALL, true, None, None, None),
            (ALL, true, Some(10), None, Some((12, Silence::FirstResponse))),
            (ALL, true, Some(10), Some(11), Some((14, Silence::StreamIdle))),
            (ALL, true, Some(10), Some(200), Some((203, Silence::StreamIdle))),
            // The first piece may come before the prefill has said that it is done.
            (ALL, true, None, Some(11), Some((14, Silence::StreamIdle))),
            (ALL, false, None, None, None),
            (ALL, false, Some(10), None, Some((15, Silence::FirstResponse))),
            (ALL, false, Some(10), Some(11), None),
            (none, true, Some(10), None, None),
            (none, true, Some(10), Some(11), None),
            (none, false, Some(10), None, None),
            (Watchdog::default(), true, Some(10), None, Some((70, Silence::FirstResponse))),
            (Watchdog::default(), true, Some(10), Some(11), Some((131, Silence::StreamIdle))),
            (Watchdog::default(), false, Some(10), None, None),
        ] {
            let got = dog.due(&sight(stream, armed, piece)).map(|due| (due.at, due.phase));
            let due = due.map(|(second, phase)| (at(second), phase));
            assert_eq!(got, due, "stream {stream}, armed {armed:?}, piece {piece:?}");
        }
    }

    #[test]
    fn it_barks_when_the_time_is_up_and_not_before() {
        let silent = sight(true, Some(10), None);
        assert_eq!(ALL.barks(&silent, Instant::from_micros(11_999_999)), None);
        let fault = ALL.barks(&silent, at(12)).unwrap();
        let answer = fault.answer();
        assert_eq!((answer.status, &*answer.code), (504, "pd_decode_watchdog"));
        assert_eq!(answer.flag, Some(("x-error-pd-decode", "true".into())));
        assert_eq!(answer.message, "The decode worker did not start responding within 2s.");
        let plain = ALL.barks(&sight(false, Some(10), None), at(99)).unwrap().answer();
        assert_eq!(plain.message, "The decode worker did not finish responding within 5s.");
        let idle = ALL.barks(&sight(true, Some(10), Some(20)), at(23)).unwrap().answer();
        assert_eq!(idle.message, "The decode worker fell silent for 3s in the middle of its answer.");
    }

    #[test]
    fn output_is_owed_once_nothing_else_is_waited_for() {
        let mut watch = Watch::new(ALL, true);
        let due = |watch: &Watch| watch.due(None).map(|due| due.at);
        watch.begins(LegName::Whole);
        assert_eq!(due(&watch), None);
        watch.sent(Leg::Decode, at(10));
        assert_eq!(
            (due(&watch), watch.waits_for_prefill()),
            (Some(at(12)), false),
            "one leg owes from its sending"
        );

        // Legs in turn: the decode is sent when the prefill is over, and another decode owes anew.
        watch.begins(LegName::Decode);
        watch.sent(Leg::Prefill, at(20));
        watch.over(Leg::Prefill, at(50));
        assert_eq!(due(&watch), None);
        watch.sent(Leg::Decode, at(51));
        assert_eq!(due(&watch), Some(at(53)));
        watch.over(Leg::Decode, at(52));
        assert_eq!(due(&watch), None, "a leg that is over owes nothing");
        watch.sent(Leg::Decode, at(60));
        assert_eq!(due(&watch), Some(at(62)));

        // Both at once: not before the prefill is over.
        watch.begins(LegName::Decode);
        watch.sent(Leg::Prefill, at(70));
        watch.sent(Leg::Decode, at(70));
        assert_eq!((due(&watch), watch.waits_for_prefill()), (None, true));
        assert_eq!(watch.due(Some(at(75))).map(|due| due.at), Some(at(78)), "it has begun all the same");
        watch.over(Leg::Prefill, at(90));
        watch.over(Leg::Prefill, at(95));
        assert_eq!((due(&watch), watch.waits_for_prefill()), (Some(at(92)), false));
        assert!(matches!(watch.barks(None, at(92)), Some(Fault::DecodeSilent { leg: LegName::Decode, .. })));
    }

    #[test]
    fn nobody_waits_for_a_prefill_whose_end_arms_nothing() {
        for (stream, waits) in [(true, true), (false, false)] {
            let mut watch = Watch::new(Watchdog::default(), stream);
            watch.begins(LegName::Decode);
            watch.sent(Leg::Prefill, at(1));
            watch.sent(Leg::Decode, at(1));
            assert_eq!(watch.waits_for_prefill(), waits, "stream {stream}");
        }
    }

    #[test]
    fn nought_switches_off() {
        assert_eq!((Watchdog::limit(0), Watchdog::limit(7)), (None, Some(Duration::from_secs(7))));
    }
}
