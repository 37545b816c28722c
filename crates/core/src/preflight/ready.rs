//! Who could be tried with whom now: the ready workers of each leg, in the groups in which they pair.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fleet::{Fleet, Seat, Status};

/// Prefill workers that have the same partners, and those partners.
#[derive(Default)]
pub(super) struct Group<'a> {
    pub prefills: Vec<&'a Arc<Seat>>,
    pub decodes: Vec<&'a Arc<Seat>>,
}

/// All ready workers that may be one leg of a pair.
pub(super) struct Ready<'a> {
    pub groups: Vec<Group<'a>>,
    /// In which groups a worker is, and whether as a prefill.
    places: BTreeMap<u32, (bool, Vec<usize>)>,
}

impl<'a> Ready<'a> {
    pub fn of(fleet: &'a Fleet) -> Ready<'a> {
        let mut groups: Vec<Group<'a>> = Vec::new();
        // One list for all prefill workers that describe themselves alike, so its address names the group.
        let mut known = BTreeMap::<usize, usize>::new();
        let mut places = BTreeMap::<u32, (bool, Vec<usize>)>::new();
        for prefill in fleet.prefill().iter().filter(|p| is_ready(&p.seat)) {
            let at = *known.entry(Arc::as_ptr(&prefill.partners).cast::<()>().addr()).or_insert_with(|| {
                let decodes: Vec<_> = prefill.partners.iter().filter(|d| is_ready(d)).collect();
                for decode in &decodes {
                    places.entry(decode.slot).or_default().1.push(groups.len());
                }
                groups.push(Group { prefills: Vec::new(), decodes });
                groups.len() - 1
            });
            groups[at].prefills.push(&prefill.seat);
            places.insert(prefill.seat.slot, (true, vec![at]));
        }
        Ready { groups, places }
    }

    /// The pairs that this worker could be part of: prefill, decode.
    pub fn pairs(&self, seat: &'a Arc<Seat>) -> impl Iterator<Item = (&'a Arc<Seat>, &'a Arc<Seat>)> {
        let (is_prefill, groups) = self.places.get(&seat.slot).map_or((false, &[][..]), |(p, g)| (*p, g));
        groups.iter().filter_map(|at| self.groups.get(*at)).flat_map(move |group| {
            let others = if is_prefill { &group.decodes } else { &group.prefills };
            others.iter().map(move |other| if is_prefill { (seat, *other) } else { (*other, seat) })
        })
    }
}

pub(super) fn is_ready(seat: &Seat) -> bool {
    seat.pulse.status() == Status::Ready
}

/// A name of a model that both serve; `Some(None)` if neither says which it serves.
pub(super) fn shared_model<'a>(prefill: &'a Seat, decode: &'a Seat) -> Option<Option<&'a str>> {
    let (p, d) = (&prefill.worker, &decode.worker);
    if p.models.is_empty() {
        return Some(d.models.first().map(String::as_str));
    }
    p.models.iter().find(|model| d.serves(Some(model))).map(|model| Some(model.as_str()))
}
