//! Engines with several data-parallel ranks, as one worker for each rank (SMG's `--dp-aware`).
//!
//! The ranks share an address and differ in their URL, `http://host:port@rank`. How many there are is what the
//! operator says (`dp_size`), or else the engine: then the worker that was registered becomes its first rank, under
//! the id that it was answered with, and the others join beside it. An engine that comes back with another number
//! of ranks gets as many workers. One rank is no reason for anything: the worker stays what it was.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::fleet::FleetChange;

use super::book::Book;
use super::settings::Settings;
use super::spec::Spec;
use crate::probe::Facts;

/// Most ranks of one engine. One that says more is taken for one worker.
const ENGINE_RANKS_MAX: u32 = 1024;

/// What a registration stands for: the worker itself, or each rank that the operator says it has.
pub(super) fn specs(spec: Spec, dp_aware: bool) -> Vec<Spec> {
    match spec.told_ranks().filter(|n| (2..=ENGINE_RANKS_MAX).contains(n)) {
        Some(n) if dp_aware && spec.dp_rank.is_none() => (0..n).map(|rank| spec.rank(rank, n)).collect(),
        _ => vec![spec],
    }
}

/// How many ranks the engine has, as it says itself. Where it only lists them (Mooncake's bootstrap server), not
/// fewer than are known: one that starts has not listed all of them yet.
fn found(facts: &Facts, known: u32) -> Option<u32> {
    let highest = facts.kv_engine_ids.as_ref().and_then(|ids| ids.keys().next_back());
    let listed = highest.map(|rank| rank.saturating_add(1).max(known));
    facts.dp_size.or(listed).filter(|n| (1..=ENGINE_RANKS_MAX).contains(n))
}

impl Book {
    /// The worker in this slot, or the ranks of its engine, become as many as the engine says it has. Gives what that
    /// changes in the fleet, and the ids of the workers whose rank is gone.
    pub fn arrange(&mut self, slot: u32, settings: &Settings) -> (Vec<FleetChange>, Vec<String>) {
        let none = (Vec::new(), Vec::new());
        let Some(entry) = self.entries.get(&slot).filter(|e| settings.dp_aware && !e.draining) else {
            return none;
        };
        let whole = entry.spec.dp_rank.is_none() && entry.spec.told_ranks().is_none();
        let known = entry.spec.dp_size.unwrap_or(1);
        let Some(size) = entry.facts.as_deref().and_then(|facts| found(facts, known)) else { return none };
        let same = if whole { size == 1 } else { !entry.found_ranks || entry.spec.dp_size == Some(size) };
        if same {
            return none;
        }
        let (spec, facts) = (entry.spec.clone(), entry.facts.clone());
        let (mut changes, mut gone) = (Vec::new(), Vec::new());
        let mut there = BTreeSet::new();
        let own = self.of_engine(spec.base_url());
        if !self.has_room((size as usize).saturating_sub(own.len())) {
            tracing::warn!(url = spec.url, size, "too many workers already for one of each rank");
            return none;
        }
        for at in own {
            let Some(entry) = self.entries.get_mut(&at) else { continue };
            match entry.spec.dp_rank.unwrap_or(0) {
                rank if rank >= size => gone.push(entry.id.clone()),
                rank => {
                    there.insert(rank);
                    entry.spec = Arc::new(entry.spec.rank(rank, size));
                    entry.found_ranks = true;
                    changes.push(entry.describe());
                }
            }
        }
        for rank in (0..size).filter(|rank| !there.contains(rank)) {
            let (_, joined) = self.enter(spec.rank(rank, size), facts.clone(), settings);
            changes.push(joined);
        }
        (changes, gone)
    }

    /// The slots of this engine's workers that stay.
    fn of_engine(&self, base: &str) -> Vec<u32> {
        let own = self.entries.iter().filter(|(_, e)| !e.draining && e.spec.base_url() == base);
        own.map(|(slot, _)| *slot).collect()
    }
}
