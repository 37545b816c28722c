//! Partition and step 0: which rolesets are complete, and which of their workers take a prompt of this length?

use std::fmt;

use smallvec::SmallVec;

use super::bands::Group;
use super::pick::Pool;
use super::sight::{Candidate, Sight};
use super::yard::{Part, Yard};
use crate::fleet::mixed;

/// Why nobody can be chosen, in AIBrix's words where it has any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nobody {
    /// No roleset has both legs, and no combined worker may step in.
    NotReady,
    /// Nobody takes a prompt of so many tokens.
    NoBucket { tokens: u64 },
    /// Workers of several engines serve the model.
    MixedEngines,
    /// Every prefill of every roleset has far more requests than the others.
    AllSkipped,
}

impl fmt::Display for Nobody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nobody::NotReady => f.write_str("prefill pods are not ready: prefill=0, decode=0"),
            Nobody::NoBucket { tokens } => write!(
                f,
                "no prompt-length bucket matches prompt length {tokens} and no combined pods available"
            ),
            Nobody::MixedEngines => f.write_str("inconsistent LLM engines"),
            Nobody::AllSkipped => f.write_str("target prefill pod is nil: all are far above the mean load"),
        }
    }
}

/// What a request brings to the partition.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The profile by whose bounds each worker is asked. `None`: each worker's default one.
    pub profile: Option<&'a str>,
    pub bucketing: bool,
    pub tokens: u64,
}

/// Who is left, and what the plan of step 2b is made from.
#[derive(Clone, Debug)]
pub struct Sorted<'a> {
    pub pool: Pool<'a>,
    /// No pair takes this length, a combined worker does.
    pub only_combined: bool,
    /// The complete rolesets by their index, and what the plan sees of each. In order.
    pub groups: Vec<(u32, Group)>,
}

/// A leg: the pod's index and its group.
type Leg = (usize, u32);
type Legs = SmallVec<[Leg; 32]>;

/// Sorts the workers of these indices, which are well and serve the model. Their loads come later.
///
/// # Errors
/// [`Nobody`] that could be chosen, before anything was looked at but labels and lengths.
pub fn sort<'a>(yard: &'a Yard, ready: &[usize], wanted: Wanted<'_>) -> Result<Sorted<'a>, Nobody> {
    if mixed(ready.iter().map(|at| &*yard.pods[*at].seat.worker)) {
        return Err(Nobody::MixedEngines);
    }
    let (mut prefills, mut decodes) = (legs(yard, ready, Part::Prefill), legs(yard, ready, Part::Decode));
    complete(yard, &mut prefills, &mut decodes);
    if !wanted.bucketing {
        if prefills.is_empty() {
            return Err(Nobody::NotReady);
        }
        let pool = Pool { combined: Vec::new(), ..pool(yard, &prefills, &decodes) };
        return Ok(Sorted { pool, only_combined: false, groups: Vec::new() });
    }
    let groups = groups(yard, &prefills, wanted);
    let terms = |at: usize| yard.pods[at].terms(wanted.profile);
    let whole = || ready.iter().copied().filter(|at| yard.pods[*at].part == Part::Whole);
    let suits = |at: &usize| {
        let (bounds, combined) = terms(*at);
        combined && bounds.suit(wanted.tokens)
    };
    let combined: Vec<Candidate<'_>> =
        whole().filter(suits).map(|at| candidate(yard, (at, u32::MAX))).collect();
    let nobody = prefills.is_empty() && !whole().any(|at| terms(at).1);
    prefills.retain(|(at, _)| terms(*at).0.suit(wanted.tokens));
    decodes.retain(|(at, _)| terms(*at).0.suit(wanted.tokens));
    complete(yard, &mut prefills, &mut decodes);
    let only_combined = prefills.is_empty();
    if only_combined && combined.is_empty() {
        return Err(if nobody { Nobody::NotReady } else { Nobody::NoBucket { tokens: wanted.tokens } });
    }
    Ok(Sorted { pool: Pool { combined, ..pool(yard, &prefills, &decodes) }, only_combined, groups })
}

fn legs(yard: &Yard, ready: &[usize], part: Part) -> Legs {
    let own = ready.iter().copied().filter(|at| yard.pods[*at].part == part);
    own.flat_map(|at| yard.pods[at].groups.iter().map(move |group| (at, *group))).collect()
}

/// Drops the legs of rolesets that lack the other leg.
fn complete(yard: &Yard, prefills: &mut Legs, decodes: &mut Legs) {
    let mut has: SmallVec<[(bool, bool); 32]> = SmallVec::from_elem((false, false), yard.groups.len());
    prefills.iter().for_each(|(_, group)| has[*group as usize].0 = true);
    decodes.iter().for_each(|(_, group)| has[*group as usize].1 = true);
    let both = |(_, group): &mut Leg| has[*group as usize] == (true, true);
    prefills.retain(both);
    decodes.retain(both);
}

fn pool<'a>(yard: &'a Yard, prefills: &[Leg], decodes: &[Leg]) -> Pool<'a> {
    let of = |legs: &[Leg]| legs.iter().map(|leg| candidate(yard, *leg)).collect();
    Pool { prefill: of(prefills), decode: of(decodes), combined: Vec::new() }
}

pub(super) fn candidate(yard: &Yard, (at, roleset): Leg) -> Candidate<'_> {
    Candidate { name: &yard.pods[at].seat.worker.id, at, roleset, sight: Sight::default() }
}

/// A roleset has the bounds of its first prefill, and as many replicas as it has prefills.
fn groups(yard: &Yard, prefills: &[Leg], wanted: Wanted<'_>) -> Vec<(u32, Group)> {
    let mut found: Vec<(u32, Group)> = Vec::new();
    for (at, roleset) in prefills {
        match found.iter_mut().find(|(known, _)| known == roleset) {
            Some((_, group)) => group.replicas += 1,
            None => {
                let bounds = yard.pods[*at].terms(wanted.profile).0;
                let name = yard.groups[*roleset as usize].clone();
                found.push((*roleset, Group::new(name, bounds, 1)));
            }
        }
    }
    found.sort_unstable_by_key(|(roleset, _)| *roleset);
    found
}
