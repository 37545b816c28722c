//! Partition and step 0: which rolesets are complete, and which of their workers take a prompt of this length?

use std::fmt;

use smallvec::SmallVec;

use super::bands::Group;
use super::yard::{Part, Yard};

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

/// Who is left, in the order of their names, and what the plan of step 2b is made from.
#[derive(Clone, Debug, Default)]
pub struct Sorted {
    pub prefill: Legs,
    pub decode: Legs,
    pub combined: Legs,
    /// No pair takes this length, a combined worker does.
    pub only_combined: bool,
    /// The complete rolesets by their index, and what the plan sees of each. In order.
    pub groups: Vec<(u32, Group)>,
}

/// A leg: the pod's index and its group.
pub type Leg = (usize, u32);
pub type Legs = SmallVec<[Leg; 32]>;

/// Sorts the workers of these indices, which are well and serve the model. Their loads come later.
///
/// # Errors
/// [`Nobody`] that could be chosen, before anything was looked at but labels and lengths.
pub fn sort(yard: &Yard, ready: &[usize], wanted: Wanted<'_>) -> Result<Sorted, Nobody> {
    if yard.is_mixed(ready) {
        return Err(Nobody::MixedEngines);
    }
    let (mut prefill, mut decode) = (legs(yard, ready, Part::Prefill), legs(yard, ready, Part::Decode));
    complete(yard, &mut prefill, &mut decode);
    if !wanted.bucketing {
        if prefill.is_empty() {
            return Err(Nobody::NotReady);
        }
        let (combined, groups) = (Legs::new(), Vec::new());
        return Ok(Sorted { prefill, decode, combined, only_combined: false, groups });
    }
    let groups = groups(yard, &prefill, wanted);
    let terms = |at: usize| yard.pods[at].terms(wanted.profile);
    let whole = || ready.iter().copied().filter(|at| yard.pods[*at].part == Part::Whole);
    let suits = |at: &usize| {
        let (bounds, combined) = terms(*at);
        combined && bounds.suit(wanted.tokens)
    };
    let combined: Legs = whole().filter(suits).map(|at| (at, u32::MAX)).collect();
    let nobody = prefill.is_empty() && !whole().any(|at| terms(at).1);
    prefill.retain(|(at, _)| terms(*at).0.suit(wanted.tokens));
    decode.retain(|(at, _)| terms(*at).0.suit(wanted.tokens));
    complete(yard, &mut prefill, &mut decode);
    let only_combined = prefill.is_empty();
    if only_combined && combined.is_empty() {
        return Err(if nobody { Nobody::NotReady } else { Nobody::NoBucket { tokens: wanted.tokens } });
    }
    Ok(Sorted { prefill, decode, combined, only_combined, groups })
}

fn legs(yard: &Yard, ready: &[usize], part: Part) -> Legs {
    let mut legs = Legs::with_capacity(ready.len());
    for at in ready.iter().copied().filter(|at| yard.parts()[*at] == part) {
        legs.extend(yard.pods[at].groups.iter().map(|group| (at, *group)));
    }
    legs
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

/// A roleset has the bounds of its first prefill, and as many replicas as it has prefills.
fn groups(yard: &Yard, prefills: &[Leg], wanted: Wanted<'_>) -> Vec<(u32, Group)> {
    let mut found: Vec<Option<Group>> = vec![None; yard.groups.len()];
    for (at, roleset) in prefills {
        let own = &mut found[*roleset as usize];
        match own {
            Some(group) => group.replicas += 1,
            None => {
                let bounds = yard.pods[*at].terms(wanted.profile).0;
                let name = yard.groups[*roleset as usize].clone();
                *own = Some(Group::new(name, bounds, 1));
            }
        }
    }
    (0..).zip(found).filter_map(|(roleset, group)| Some((roleset, group?))).collect()
}
