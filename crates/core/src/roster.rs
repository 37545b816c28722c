//! Workers that a list brings in: who joins, changes or leaves when the list is another one.
//!
//! A list (a file, the pods of a cluster) is read again and again, and each reading is the whole truth about the workers
//! that it brought in, and says nothing about any other. So the question is never what happened since the last reading,
//! which a missed event would answer wrongly, but what is between what is there and what should be.
//!
//! A list that replaces everybody would leave nobody for as long as it takes to find the new ones well. So whoever is
//! taken out of a list goes when he is not needed any more: [`Relief`].
//!
//! It does not know where lists come from, nor how a worker leaves: that its requests end first is the registry's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::fleet::{Engine, Fleet, Role, Seat, Status, Worker};

/// A worker as a list names it, or as one that the list brought in is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The list's name for it: by that it is the same worker in two lists.
    pub key: String,
    pub url: String,
    /// What makes it another process, whatever its name: role and engine are set when an engine starts.
    pub role: Role,
    /// None: to be found out.
    pub engine: Option<Engine>,
    /// Equal: described alike, in everything.
    pub mark: u64,
    /// It is several workers (an engine's ranks), which cannot be described anew.
    pub fixed: bool,
}

/// What to do, in this order: addresses are free before somebody joins at them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Who leaves: places among those that are there.
    pub leave: Vec<usize>,
    /// Workers that stay and are described anew: places in the list, like those that follow.
    pub change: Vec<usize>,
    pub join: Vec<usize>,
    /// Not to be had: somebody else brought in a worker at this address.
    pub taken: Vec<usize>,
}

impl Moves {
    pub fn is_empty(&self) -> bool {
        self.leave.is_empty() && self.change.is_empty() && self.join.is_empty()
    }
}

/// Two entries of a list that cannot both be: their places, the first one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twice {
    Key(usize, usize),
    Url(usize, usize),
}

/// # Errors
/// Two entries have one key, or one address.
pub fn distinct(list: &[Entry]) -> Result<(), Twice> {
    let (mut keys, mut urls) = (BTreeMap::new(), BTreeMap::new());
    for (at, entry) in list.iter().enumerate() {
        if let Some(first) = keys.insert(entry.key.as_str(), at) {
            return Err(Twice::Key(first, at));
        }
        if let Some(first) = urls.insert(entry.url.as_str(), at) {
            return Err(Twice::Url(first, at));
        }
    }
    Ok(())
}

/// What leads from the workers that are there to those of the list, which is [`distinct`]. `present` are those that this
/// list brought in; `others` are the addresses of all other workers. Whoever is leaving is neither.
pub fn moves(present: &[Entry], others: &BTreeSet<&str>, list: &[Entry]) -> Moves {
    let wanted: BTreeMap<&str, usize> = list.iter().enumerate().map(|(at, e)| (e.key.as_str(), at)).collect();
    let mut moves = Moves::default();
    let mut stays = BTreeSet::new();
    for (place, here) in present.iter().enumerate() {
        let wanted = wanted.get(here.key.as_str()).and_then(|at| Some((*at, list.get(*at)?)));
        match wanted {
            Some((at, there)) if there.mark == here.mark => drop(stays.insert(at)),
            Some((at, there)) if same_process(here, there) => {
                moves.change.push(at);
                stays.insert(at);
            }
            _ => moves.leave.push(place),
        }
    }
    for (at, entry) in list.iter().enumerate().filter(|(at, _)| !stays.contains(at)) {
        match others.contains(entry.url.as_str()) {
            true => moves.taken.push(at),
            false => moves.join.push(at),
        }
    }
    moves
}

fn same_process(here: &Entry, there: &Entry) -> bool {
    let other_engine = here.engine.zip(there.engine).is_some_and(|(here, there)| here != there);
    !here.fixed && !there.fixed && here.url == there.url && here.role == there.role && !other_engine
}

/// May workers that are to go, go now?
///
/// Not while those that stay cannot serve all of its models and somebody is coming who will make them able to. That is
/// found out once for each model, since a list of thousands may replace as many.
pub struct Relief<'a> {
    fleet: &'a Fleet,
    /// The slots of all that are to go.
    going: &'a BTreeSet<u32>,
    known: BTreeMap<Option<String>, bool>,
}

impl<'a> Relief<'a> {
    pub fn new(fleet: &'a Fleet, going: &'a BTreeSet<u32>) -> Relief<'a> {
        Relief { fleet, going, known: BTreeMap::new() }
    }

    /// May this one go?
    pub fn is_there_for(&mut self, worker: &Worker) -> bool {
        match worker.models.as_slice() {
            [] => self.serves(None),
            models => models.iter().all(|model| self.serves(Some(model))),
        }
    }

    fn serves(&mut self, model: Option<&String>) -> bool {
        let model = model.cloned();
        if let Some(known) = self.known.get(&model) {
            return *known;
        }
        let stays =
            |seat: &Arc<Seat>| !self.going.contains(&seat.slot) && seat.worker.serves(model.as_deref());
        let can_serve = |fit: fn(&Seat) -> bool| {
            let fits = |seat: &Arc<Seat>| stays(seat) && fit(seat);
            let pairs = |p: &crate::fleet::Prefill| fits(&p.seat) && p.partners.iter().any(fits);
            self.fleet.whole().iter().any(fits) || self.fleet.prefill().iter().any(pairs)
        };
        let coming = |seat: &Seat| {
            seat.pulse.in_service() || seat.pulse.is_held() || seat.pulse.status() == Status::Pending
        };
        let relieved = can_serve(|seat| seat.pulse.in_service()) || !can_serve(coming);
        self.known.insert(model, relieved);
        relieved
    }
}
