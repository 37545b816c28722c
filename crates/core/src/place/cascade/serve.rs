//! Step 2b's memory: one model's traffic, and the plans that were made of it.

use std::collections::VecDeque;

use super::bands::{Band, Group, plan};
use super::knobs::ServeMode;
use super::traffic::Traffic;
use crate::time::{Duration, Instant};

/// A plan is good for this long.
const PLAN_AGE: Duration = Duration::from_secs(5);
/// Plans of one model that are kept: one for each mode and set of rolesets that requests see.
const PLANS_MAX: usize = 8;

/// Who should serve which lengths.
#[derive(Debug)]
pub struct Plan {
    pub mode: ServeMode,
    pub groups: Vec<Group>,
    pub bands: Vec<Band>,
    pub made: Instant,
}

/// Who should serve a length, and whether the plan is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice<'a> {
    /// Index among the groups that were given.
    pub group: Option<usize>,
    pub bands: &'a [Band],
    pub refreshed: bool,
}

/// One model's.
#[derive(Debug)]
pub struct Serving {
    traffic: Traffic,
    plans: VecDeque<Plan>,
}

impl Serving {
    pub fn new(now: Instant) -> Serving {
        Serving { traffic: Traffic::new(now), plans: VecDeque::new() }
    }

    /// Counts a prompt.
    pub fn observe(&mut self, tokens: u64, now: Instant) {
        self.traffic.observe(tokens, now);
    }

    /// Prompts by length, of late.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// The plans that are kept, the oldest first.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.plans.iter()
    }

    /// When a prompt was last counted.
    pub fn asked_at(&self) -> Instant {
        self.traffic.at()
    }

    /// The longest prompt that each roleset is banded to, by the plans in use: a plan that was not made anew while the
    /// last one was is of rolesets or bounds that are no more.
    pub fn maxima(&self) -> impl Iterator<Item = (&str, u64)> {
        let last = self.plans.back().map(|plan| plan.made).unwrap_or_default();
        let used = self.plans.iter().filter(move |plan| last.since(plan.made) < PLAN_AGE);
        let bands = used.flat_map(|plan| plan.bands.iter().map(move |band| (plan, band)));
        bands.filter_map(|(plan, band)| Some((plan.groups.get(band.group)?.name.as_str(), band.max)))
    }

    /// Which roleset is a prompt of this length banded to? Groups come in the order of their names.
    pub fn advise(&mut self, tokens: u64, mode: ServeMode, groups: &[Group], now: Instant) -> Advice<'_> {
        let known = |p: &Plan| p.mode == mode && p.groups == groups;
        let at = self.plans.iter().position(known);
        let fresh = at.filter(|at| self.plans.get(*at).is_some_and(|p| now.since(p.made) < PLAN_AGE));
        let refreshed = fresh.is_none();
        if refreshed {
            if let Some(at) = at {
                self.plans.remove(at);
            } else if self.plans.len() == PLANS_MAX {
                self.plans.pop_front();
            }
            let weights = self.traffic.weights(mode == ServeMode::Throughput);
            let bands = plan(groups, weights);
            self.plans.push_back(Plan { mode, groups: groups.to_vec(), bands, made: now });
        }
        let bands = match fresh {
            Some(at) => self.plans.get(at),
            None => self.plans.back(),
        };
        let bands = bands.map(|p| p.bands.as_slice()).unwrap_or_default();
        let group = bands.iter().find(|b| (b.min..=b.max).contains(&tokens)).map(|b| b.group);
        Advice { group, bands, refreshed }
    }
}
