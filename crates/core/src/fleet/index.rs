//! The pairs of a fleet, worked out once for each description and not for each pair: a large fleet has
//! thousands of workers and a handful of descriptions, or a handful of workers in each roleset.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::pairing::{Descriptor, PairingMode, mismatch};
use super::{Prefill, Seat};

/// Most keys of one leg in the reason why nobody pairs. The rest is counted.
const KEYS_MOST: usize = 8;

/// Most descriptions of one leg that are compared to find that reason.
const COMPARED_MOST: usize = 64;

/// Who pairs with whom.
pub(super) struct Partners<'a> {
    mode: PairingMode,
    rolesets: BTreeMap<Option<String>, Group<'a>>,
    known: BTreeMap<Descriptor, u32>,
    lists: Vec<Arc<[Arc<Seat>]>>,
}

/// The decode workers of one roleset, each with its description.
#[derive(Default)]
struct Group<'a> {
    seats: Vec<(&'a Arc<Seat>, usize)>,
    index: BTreeMap<Descriptor, usize>,
}

impl<'a> Partners<'a> {
    pub fn of(mode: PairingMode, decode: &'a [Arc<Seat>]) -> Partners<'a> {
        let mut rolesets: BTreeMap<Option<String>, Group<'a>> = BTreeMap::new();
        for seat in decode {
            let descriptor = Descriptor::of(&seat.worker);
            let group = rolesets.entry(descriptor.roleset().map(str::to_owned)).or_default();
            let next = group.index.len();
            group.seats.push((seat, *group.index.entry(descriptor).or_insert(next)));
        }
        Partners { mode, rolesets, known: BTreeMap::new(), lists: Vec::new() }
    }

    /// The decode workers that a prefill worker of this description may pair with, and the number of the list.
    pub fn list(&mut self, own: Descriptor) -> (u32, Arc<[Arc<Seat>]>) {
        if let Some(number) = self.known.get(&own) {
            return (*number, self.lists[*number as usize].clone());
        }
        let group = self.rolesets.get(&own.roleset().map(str::to_owned));
        let fits: BTreeSet<usize> = group
            .iter()
            .flat_map(|group| &group.index)
            .filter(|(other, _)| mismatch(self.mode, &own, other).is_none())
            .map(|(_, at)| *at)
            .collect();
        let seats = group.iter().flat_map(|group| &group.seats);
        let list: Arc<[Arc<Seat>]> =
            seats.filter(|(_, at)| fits.contains(at)).map(|(seat, _)| Arc::clone(seat)).collect();
        let number = self.lists.len() as u32;
        self.known.insert(own, number);
        self.lists.push(list.clone());
        (number, list)
    }

    /// All lists, by their numbers.
    pub fn into_lists(self) -> Vec<Arc<[Arc<Seat>]>> {
        self.lists
    }
}

/// Why no prefill pairs with any decode. `None` if one does, or one of the legs has no worker at all.
pub(super) fn apart(mode: PairingMode, prefill: &[Prefill], decode: &[Arc<Seat>]) -> Option<String> {
    if prefill.is_empty() || decode.is_empty() || prefill.iter().any(|p| !p.partners.is_empty()) {
        return None;
    }
    let p: BTreeSet<Descriptor> = prefill.iter().map(|p| Descriptor::of(&p.seat.worker)).collect();
    let d: BTreeSet<Descriptor> = decode.iter().map(|s| Descriptor::of(&s.worker)).collect();
    let some = || d.iter().take(COMPARED_MOST);
    let why = p.iter().take(COMPARED_MOST).flat_map(|p| some().filter_map(|d| mismatch(mode, p, d)));
    let why: BTreeSet<String> = why.map(|m| m.to_string()).collect();
    let why: Vec<String> = why.into_iter().collect();
    Some(format!("mismatch in {}; prefill [{}], decode [{}]", why.join(", "), keys(&p), keys(&d)))
}

fn keys(all: &BTreeSet<Descriptor>) -> String {
    let all: BTreeSet<String> = all.iter().map(Descriptor::key).collect();
    let mut shown: Vec<String> = all.iter().take(KEYS_MOST).cloned().collect();
    if all.len() > KEYS_MOST {
        shown.push(format!("and {} more", all.len() - KEYS_MOST));
    }
    shown.join(", ")
}
