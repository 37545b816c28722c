//! Why these workers? What one decision looked at, step by step.
//!
//! A decision writes its receipt as it goes, so that the explanation cannot differ from what was done. Nobody
//! reads most of them: one that is off costs a branch for each line that it does not keep.

use std::borrow::Cow;

use crate::size::{Size, Unknown};

/// One step of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub name: &'static str,
    /// It changed who is left.
    pub fired: bool,
    pub detail: String,
}

/// What one candidate scored. Lower is better.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    pub worker: String,
    pub score: f64,
    /// What the score was made of.
    pub terms: Vec<(&'static str, f64)>,
    /// Why it could not be chosen.
    pub skipped: Option<Cow<'static, str>>,
}

/// Tokens that a worker was charged with.
#[derive(Clone, Debug, PartialEq)]
pub struct Charged {
    pub worker: String,
    /// `active`, `kv` or `decode`.
    pub what: &'static str,
    pub tokens: u64,
}

/// The two lists that a decision keeps for each leg.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfLeg {
    pub scores: Vec<Score>,
    /// Those among which the dice chose.
    pub tied: Vec<String>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Receipt {
    on: bool,
    pub strategy: String,
    pub profile: Option<String>,
    /// The prompt's size, and how it was found.
    pub prompt: Option<Size>,
    /// Why no engine told its tokens, if one was to be asked.
    pub untold: Option<Unknown>,
    pub steps: Vec<Step>,
    pub prefill: OfLeg,
    /// Of the worker that answers.
    pub decode: OfLeg,
    pub charges: Vec<Charged>,
    /// Adaptive bucket serving decided on the roleset. Written whether or not the rest is kept, because it is counted.
    pub banded: bool,
}

impl Receipt {
    /// One that is kept.
    pub fn on() -> Receipt {
        Receipt { on: true, ..Receipt::default() }
    }

    /// One that nobody will read.
    pub fn off() -> Receipt {
        Receipt::default()
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// The decision is made anew: what was written about it so far counts no more.
    pub fn again(&mut self) {
        self.steps.clear();
        (self.prefill, self.decode) = (OfLeg::default(), OfLeg::default());
        self.charges.clear();
        self.banded = false;
    }

    /// Keeps no more than so many scores of each leg: the lowest, and those among which the dice chose.
    pub fn shorten(&mut self, most: usize) {
        for leg in [&mut self.prefill, &mut self.decode] {
            if leg.scores.len() > most {
                let tied = std::mem::take(&mut leg.tied);
                leg.scores.sort_by(|a, b| {
                    let rank = |s: &Score| (s.skipped.is_some(), !tied.contains(&s.worker));
                    rank(a).cmp(&rank(b)).then(a.score.total_cmp(&b.score))
                });
                leg.scores.truncate(most);
                leg.tied = tied;
            }
            leg.tied.truncate(most);
        }
    }

    /// A step that came before all that are written. The detail is made only if it is kept.
    pub fn first(&mut self, name: &'static str, fired: bool, detail: impl FnOnce() -> String) {
        if self.on {
            self.steps.insert(0, Step { name, fired, detail: detail() });
        }
    }

    /// The prompt's size, and how it was found, in words.
    pub fn size(&self) -> Option<String> {
        let size = self.prompt?;
        Some(match &self.untold {
            None => size.to_string(),
            Some(why) => format!("{size}; no engine said: {why}"),
        })
    }

    /// A step and what came of it. The detail is made only if it is kept.
    pub fn step(&mut self, name: &'static str, fired: bool, detail: impl FnOnce() -> String) {
        if self.on {
            self.steps.push(Step { name, fired, detail: detail() });
        }
    }
}
