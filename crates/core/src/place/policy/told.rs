//! What a policy writes on the receipt: each candidate, with what the policy saw of it. Nothing is worked out for a
//! receipt that nobody reads.

use std::fmt::Write;

use super::{Policy, PolicyName, Sight};
use crate::fleet::Seat;
use crate::place::field::{Field, Seen};
use crate::place::receipt::{OfLeg, Score};
use crate::place::wait::LoadMetric;
use std::sync::Arc;

/// What is written once a worker is chosen.
pub(super) struct Note {
    leg: OfLeg,
    candidates: usize,
}

impl Policy {
    /// What the choice is about to be made on. `None`: nobody will read it.
    pub(super) fn note(&self, field: &Field<'_>, sight: &Sight<'_>) -> Option<Note> {
        if !sight.look.telling(|receipt| receipt.is_on()) {
            return None;
        }
        let all = field.all();
        let scores = self.scores(&all, sight);
        let least = scores.iter().map(|s| s.score).fold(f64::INFINITY, f64::min);
        let tied = scores.iter().filter(|s| self.throws(sight) || self.looks(sight) && s.score <= least);
        let tied = tied.map(|s| s.worker.clone()).collect();
        Some(Note { leg: OfLeg { scores, tied }, candidates: all.len() })
    }

    pub(super) fn write(&self, note: Option<Note>, seat: &Seat, sight: &Sight<'_>) {
        let Some(Note { mut leg, candidates }) = note else { return };
        if !leg.tied.contains(&seat.worker.id) {
            leg.tied = vec![seat.worker.id.clone()];
        }
        let is_prefill = sight.look.fleet.prefill().iter().any(|p| p.seat.slot == seat.slot);
        sight.look.telling(|receipt| {
            "legwise".clone_into(&mut receipt.strategy);
            let name = if is_prefill { "prefill_policy" } else { "policy" };
            receipt.step(name, true, || self.detail(seat, candidates, sight));
            let of = if is_prefill { &mut receipt.prefill } else { &mut receipt.decode };
            *of = leg;
        });
    }

    fn detail(&self, seat: &Seat, candidates: usize, sight: &Sight<'_>) -> String {
        let mut said = format!("{}: {} of {candidates}", self.name.as_str(), seat.worker.id);
        if sight.all_over {
            said.push_str("; all have too much work, so the one where a request waits least");
        } else if let Some((_, pin)) = &sight.key {
            let home = pin.slots.first() == Some(&seat.slot);
            said.push_str(if home { "; its key is there" } else { "; its key was not there" });
        }
        if sight.turn.as_ref().is_some_and(|slots| slots.binary_search(&seat.slot).is_ok()) {
            said.push_str("; it is warmed up");
        }
        if let Some(backlog) = &sight.backlog {
            let known = match backlog.held.known(seat) {
                Some(known) => format!("{:?}", known.trust).to_lowercase(),
                None => "none".to_owned(),
            };
            let _ = write!(said, "; index of what was sent, events: {known}");
        }
        said
    }

    fn scores(&self, all: &[Seen<'_>], sight: &Sight<'_>) -> Vec<Score> {
        let score = |seen: &Seen<'_>, score: f64, terms: Vec<(&'static str, f64)>| Score {
            worker: seen.seat.worker.id.clone(),
            score,
            terms,
            skipped: None,
        };
        if let Some(backlog) = sight.backlog.as_ref().filter(|_| !sight.all_over) {
            let weighed = all.iter().zip(backlog.weighed(all)).map(|(seen, weighed)| {
                let terms = vec![
                    ("queued_tokens", weighed.queued),
                    ("prompt_tokens", weighed.total),
                    ("cached_tokens", weighed.cached),
                ];
                let skipped = weighed.over.then(|| "more than its share of the load".into());
                Score { skipped, ..score(seen, weighed.tokens, terms) }
            });
            return weighed.collect();
        }
        if sight.heard && self.looks(sight) {
            let seats: Vec<&Arc<Seat>> = all.iter().map(|seen| seen.seat).collect();
            let waits = all.iter().zip(self.tuning.reports.waits(&seats));
            return waits.map(|(seen, (wait, terms))| score(seen, wait, terms)).collect();
        }
        let load = |seen: &Seen<'_>| {
            let load = f64::from(seen.load);
            score(seen, load, vec![("in_flight", load)])
        };
        all.iter().map(load).collect()
    }

    /// Are the scores what it goes by?
    fn looks(&self, sight: &Sight<'_>) -> bool {
        sight.all_over
            || matches!(self.name, PolicyName::LeastLoad | PolicyName::PowerOfTwo | PolicyName::CacheAware)
    }

    /// Do the dice choose among all?
    fn throws(&self, sight: &Sight<'_>) -> bool {
        let two =
            self.name == PolicyName::PowerOfTwo && self.tuning.reports.metric != LoadMetric::LeastRequests;
        !sight.all_over && (self.name == PolicyName::Random || two)
    }
}
