//! The fleet as AIBrix's labels and annotations describe it, read once for each picture of the fleet.
//!
//! A request then compares numbers and never reads a label. Who computes and who decodes is the fleet's to say; a
//! worker that runs both phases takes part if its profile calls it combined.
//!
//! Legs pair inside a [`Yard::groups`] entry: a roleset, or, where the two legs of a roleset are not all set up alike,
//! those of it that may pair ([`crate::fleet::pairing`]). AIBrix looks at the roleset alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use super::profile::{self, Bounds, ModelConfig};
use crate::fleet::{Bench, Fleet, Kinds, Prefill, Seat, Serving, Worker, mixed};

/// The annotation that holds a model's config.
pub const CONFIG: &str = "model.aibrix.ai/config";
/// Legs of one roleset pair.
pub const ROLESET: &str = "roleset-name";
/// Labels that tell an AIBrix pod: without a roleset it pairs with nobody, where other workers pair with each other.
const POD_LABELS: [&str; 4] = ["model.aibrix.ai/name", "model.aibrix.ai/engine", "role-name", ROLESET];
/// Of the pods that make one replica, the one that listens has the index 0, or none.
const POD_GROUP_INDEX: &str = "stormservice.orchestration.aibrix.ai/pod-group-index";

/// What a worker does in the cascade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Prefill,
    Decode,
    /// Both.
    Whole,
}

/// One worker.
#[derive(Debug)]
pub struct Pod {
    pub seat: Arc<Seat>,
    /// The worker's id, where it is at hand.
    pub id: Box<str>,
    pub part: Part,
    /// Indices into [`Yard::groups`]. A prefill has one at most.
    pub groups: SmallVec<[u32; 1]>,
    pub config: Option<Arc<ModelConfig>>,
}

impl Pod {
    /// The prompt lengths it takes and whether it is combined, by the profile that the request asks for.
    pub fn terms(&self, profile: Option<&str>) -> (Bounds, bool) {
        let found = self.config.as_ref().and_then(|c| c.profile(profile));
        found.map_or((Bounds::ALL, false), |(_, p)| (p.bounds(), p.combined))
    }
}

/// All workers that requests can go to.
#[derive(Debug, Default)]
pub struct Yard {
    /// In the order of their ids.
    pub pods: Vec<Pod>,
    /// The roleset of each group, in order.
    pub groups: Vec<String>,
    /// The pods as choices read them, in the same order.
    bench: Bench,
    parts: Box<[Part]>,
    kinds: Kinds,
    /// Several engines are among them.
    mixed: bool,
    /// Pods that carry a config, in the order in which they joined.
    configured: Vec<usize>,
}

impl Yard {
    pub fn of(fleet: &Fleet) -> Yard {
        let (groups, homes) = groups(fleet.prefill());
        let mut configs: BTreeMap<&str, Option<Arc<ModelConfig>>> = BTreeMap::new();
        let mut pods = Vec::with_capacity(fleet.len());
        let prefill = fleet.prefill().iter().map(|p| (Part::Prefill, &p.seat));
        let decode = fleet.decode().iter().map(|s| (Part::Decode, s));
        let whole = fleet.whole().iter().map(|s| (Part::Whole, s));
        for (part, seat) in prefill.chain(decode).chain(whole).filter(|(_, s)| listens(&s.worker)) {
            let config = seat.worker.annotation(CONFIG).and_then(|text| {
                configs.entry(text).or_insert_with(|| ModelConfig::parse(text).map(Arc::new)).clone()
            });
            let groups = homes.get(&seat.slot).cloned().unwrap_or_default();
            let id = seat.worker.id.as_str().into();
            pods.push(Pod { seat: Arc::clone(seat), id, part, groups, config });
        }
        pods.sort_by(|a, b| a.seat.worker.id.cmp(&b.seat.worker.id).then(a.seat.slot.cmp(&b.seat.slot)));
        let mut configured: Vec<usize> = (0..pods.len()).filter(|at| pods[*at].config.is_some()).collect();
        configured.sort_by_key(|at| pods[*at].seat.slot);
        let mut kinds = Kinds::default();
        let bench = Bench::of(pods.iter().map(|pod| (&pod.seat, None)), &mut kinds);
        let parts = pods.iter().map(|pod| pod.part).collect();
        let mixed = mixed(pods.iter().map(|pod| &*pod.seat.worker));
        Yard { pods, groups, bench, parts, kinds, mixed, configured }
    }

    /// The pods side by side.
    pub fn bench(&self) -> &Bench {
        &self.bench
    }

    /// What each of them does.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Which of them serve this model.
    pub fn serving(&self, model: Option<&str>) -> Serving {
        self.kinds.serving(model)
    }

    /// Do these run different engines?
    pub fn is_mixed(&self, some: &[usize]) -> bool {
        self.mixed && mixed(some.iter().map(|at| &*self.pods[*at].seat.worker))
    }

    /// The config of a model: that of the first worker that serves it and has one. An operator's word holds whether
    /// or not that worker is well.
    pub fn config(&self, model: Option<&str>) -> Option<&Arc<ModelConfig>> {
        let mut pods = self.configured.iter().map(|at| &self.pods[*at]);
        pods.find(|pod| pod.seat.worker.serves(model)).and_then(|pod| pod.config.as_ref())
    }

    /// The pod of a worker, by its id.
    pub fn pod(&self, id: &str) -> Option<&Pod> {
        let at = self.pods.binary_search_by(|pod| pod.seat.worker.id.as_str().cmp(id)).ok()?;
        self.pods.get(at)
    }
}

/// What cannot be used of the configs that `next` has and `last` had not: the id of a worker with it, and a sentence.
pub fn complaints(last: &Fleet, next: &Fleet) -> Vec<(String, String)> {
    let mut told: Vec<&str> = Vec::new();
    let mut all = Vec::new();
    for seat in next.seats() {
        let same = |old: &Arc<Seat>| Arc::ptr_eq(&old.worker, &seat.worker);
        let Some(text) = seat.worker.annotation(CONFIG) else { continue };
        if last.seat(seat.slot).is_some_and(same) || told.contains(&text) {
            continue;
        }
        told.push(text);
        if !last.seats().any(|old| old.worker.annotation(CONFIG) == Some(text)) {
            let id = &seat.worker.id;
            all.extend(profile::complaints(text).into_iter().map(|why| (id.clone(), why)));
        }
    }
    all
}

/// The groups' names in order, and the groups of each leg by its slot.
fn groups(prefill: &[Prefill]) -> (Vec<String>, HashMap<u32, SmallVec<[u32; 1]>>) {
    // Prefills of one description share one list of partners, so the list tells them apart.
    let mut found: Vec<(String, &Prefill, Vec<u32>)> = Vec::new();
    let mut known: HashMap<(String, *const Arc<Seat>), usize> = HashMap::new();
    for p in prefill.iter().filter(|p| listens(&p.seat.worker)) {
        let Some(name) = roleset(&p.seat.worker) else { continue };
        let at = *known.entry((name.clone(), p.partners.as_ptr())).or_insert(found.len());
        match found.get_mut(at) {
            Some((_, _, slots)) => slots.push(p.seat.slot),
            None => found.push((name, p, vec![p.seat.slot])),
        }
    }
    found.sort_by(|(a, _, s), (b, _, t)| a.cmp(b).then_with(|| s.cmp(t)));
    let mut homes: HashMap<u32, SmallVec<[u32; 1]>> = HashMap::new();
    for (group, (name, p, slots)) in (0u32..).zip(&found) {
        let own = |s: &&Arc<Seat>| roleset(&s.worker).as_ref() == Some(name);
        let partners = p.partners.iter().filter(own).map(|s| s.slot);
        slots.iter().copied().chain(partners).for_each(|slot| homes.entry(slot).or_default().push(group));
    }
    (found.into_iter().map(|(name, ..)| name).collect(), homes)
}

/// The roleset that a leg pairs in. Legs that are nobody's pods have one together.
fn roleset(worker: &Worker) -> Option<String> {
    let named = worker.label(ROLESET).map(str::to_owned);
    let pod = POD_LABELS.iter().any(|label| worker.labels.contains_key(*label));
    named.or_else(|| (!pod).then(String::new))
}

fn listens(worker: &Worker) -> bool {
    worker.labels.get(POD_GROUP_INDEX).is_none_or(|index| index == "0")
}
