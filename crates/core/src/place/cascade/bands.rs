//! Step 2b's plan: which roleset should take which prompt lengths?
//!
//! Every roleset is owed a share of the traffic by its replicas. What only it can serve is taken off that; ranges
//! that several rolesets share are cut into bands, one for each roleset that is still owed something, at quantiles of
//! what was seen. The plan advises: where it has no band, or its roleset has no pair left, nothing changes.

use super::profile::{Bounds, OPEN};
use super::traffic::{BINS, centre};

/// One roleset as the plan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    pub name: String,
    pub min: u64,
    pub max: u64,
    /// Prefill workers, at least 1.
    pub replicas: u64,
}

impl Group {
    pub fn new(name: impl Into<String>, bounds: Bounds, replicas: u64) -> Group {
        Group { name: name.into(), min: bounds.min, max: bounds.max, replicas: replicas.max(1) }
    }
}

/// Lengths that one roleset should take, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    pub group: usize,
    pub min: u64,
    pub max: u64,
}

/// Lengths that the same rolesets cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub min: u64,
    pub max: u64,
    pub groups: Vec<usize>,
}

/// Share of the traffic below which a shared range is not worth cutting.
const SHARE_MIN: f64 = 0.05;
/// Bands of one plan.
const BANDS_MAX: usize = 16;

/// The longest ranges in which the same rolesets are at hand.
pub fn segments(groups: &[Group]) -> Vec<Segment> {
    let bounds: Vec<(u64, u64)> = groups.iter().map(|g| (g.min, g.max.min(OPEN - 1))).collect();
    let mut cuts: Vec<u64> = bounds.iter().flat_map(|(min, max)| [*min, max + 1]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut found: Vec<Segment> = Vec::new();
    for ends in cuts.windows(2) {
        let (min, max) = (ends[0], ends[1] - 1);
        let covers = |i: &usize| bounds[*i].0 <= min && max <= bounds[*i].1;
        let own: Vec<usize> = (0..groups.len()).filter(covers).collect();
        match found.last_mut() {
            _ if own.is_empty() => {}
            Some(last) if last.groups == own && last.max + 1 == min => last.max = max,
            _ => found.push(Segment { min, max, groups: own }),
        }
    }
    found
}

/// The bands for this traffic. Empty: nothing to divide, or nothing worth dividing.
pub fn plan(groups: &[Group], weights: &[f64; BINS]) -> Vec<Band> {
    if groups.len() < 2 {
        return Vec::new();
    }
    let segments = segments(groups);
    let weight = |s: &Segment| -> f64 {
        (0..BINS).filter(|b| (s.min..=s.max).contains(&centre(*b))).map(|b| weights[b]).sum()
    };
    let weighed: Vec<(&Segment, f64)> = segments.iter().map(|s| (s, weight(s))).collect();
    let total: f64 = weighed.iter().map(|(_, w)| w).sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let needs = needs(groups, &weighed, total);
    let mut shared: Vec<(&Segment, f64)> = weighed
        .into_iter()
        .filter(|(s, w)| s.groups.len() > 1 && w / total >= SHARE_MIN)
        .filter(|(s, _)| s.groups.iter().any(|g| needs[*g] > 0.0))
        .collect();
    shared.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.min.cmp(&b.0.min)));
    let mut bands = Vec::new();
    for (segment, weight) in shared {
        let mut owed: Vec<usize> = segment.groups.iter().copied().filter(|g| needs[*g] > 0.0).collect();
        owed.sort_by(|a, b| {
            needs[*b].total_cmp(&needs[*a]).then_with(|| groups[*a].name.cmp(&groups[*b].name))
        });
        let parts = owed.len().min(BANDS_MAX - bands.len());
        match parts {
            0 => break,
            1 if owed.len() == 1 => {
                bands.push(Band { group: owed[0], min: segment.min, max: segment.max });
            }
            1 => {}
            _ => bands.extend(cut(segment, weight, &owed[..parts], &needs, weights)),
        }
    }
    bands
}

/// What each roleset is still owed once the traffic that only it can serve is taken off its share.
fn needs(groups: &[Group], weighed: &[(&Segment, f64)], total: f64) -> Vec<f64> {
    let replicas: u64 = groups.iter().map(|g| g.replicas).sum();
    let own = |g: usize| -> f64 { weighed.iter().filter(|(s, _)| s.groups == [g]).map(|(_, w)| w).sum() };
    let need = |(i, group): (usize, &Group)| total * group.replicas as f64 / replicas as f64 - own(i);
    groups.iter().enumerate().map(need).collect()
}

/// Cuts one shared range in proportion to what each is owed, the neediest first. `None`: it cannot be cut.
fn cut(segment: &Segment, weight: f64, owed: &[usize], needs: &[f64], weights: &[f64; BINS]) -> Vec<Band> {
    let all: f64 = owed.iter().map(|g| needs[*g]).sum();
    let parts = owed.len();
    let mut cuts = Vec::with_capacity(parts - 1);
    let mut due = 0.0;
    for (i, group) in owed[..parts - 1].iter().enumerate() {
        due += needs[*group];
        let at = quantile(segment, weight * due / all, weights)
            .filter(|at| (segment.min + 1..=segment.max).contains(at));
        let even = || {
            let width = u128::from(segment.max - segment.min) + 1;
            segment.min + (width * (i as u128 + 1) / parts as u128) as u64
        };
        cuts.push(at.unwrap_or_else(even).clamp(segment.min + 1, segment.max.max(segment.min + 1)));
    }
    cuts.sort_unstable();
    for i in 1..cuts.len() {
        cuts[i] = cuts[i].max(cuts[i - 1] + 1);
    }
    if cuts.last().is_some_and(|last| *last > segment.max) {
        return Vec::new();
    }
    let starts = std::iter::once(segment.min).chain(cuts.iter().copied());
    let ends = cuts.iter().map(|cut| cut - 1).chain([segment.max]);
    let bands = starts.zip(ends).zip(owed);
    bands.map(|((min, max), group)| Band { group: *group, min, max }).collect()
}

/// The length up to which this much of the segment's traffic lies.
fn quantile(segment: &Segment, target: f64, weights: &[f64; BINS]) -> Option<u64> {
    let mut seen = 0.0;
    (0..BINS).filter(|b| (segment.min..=segment.max).contains(&centre(*b))).find_map(|b| {
        seen += weights[b];
        (seen >= target).then(|| centre(b))
    })
}
