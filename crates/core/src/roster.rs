//! Workers that a list brings in: who joins, changes or leaves when the list is another one.
//!
//! A list (a file, the pods of a cluster) is read again and again, and each reading is the whole truth about the workers
//! that it brought in, and says nothing about any other. So the question is never what happened since the last reading,
//! which a missed event would answer wrongly, but what is between what is there and what should be.
//!
//! It does not know where lists come from, nor how a worker leaves: that its requests end first is the registry's.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet::{Engine, Role};

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

/// What to do, in this order: addresses are free before somebody joins at them. Numbers are places in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Keys of workers that leave.
    pub leave: Vec<String>,
    /// Workers that stay and are described anew.
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
/// list brought in, each key once; `others` are the addresses of all other workers. Whoever is leaving is neither.
pub fn moves(present: &[Entry], others: &BTreeSet<&str>, list: &[Entry]) -> Moves {
    let wanted: BTreeMap<&str, usize> = list.iter().enumerate().map(|(at, e)| (e.key.as_str(), at)).collect();
    let mut moves = Moves::default();
    let mut stays = BTreeSet::new();
    for here in present {
        let Some(at) = wanted.get(here.key.as_str()).copied() else {
            moves.leave.push(here.key.clone());
            continue;
        };
        let Some(there) = list.get(at) else { continue };
        if there.mark != here.mark {
            if !same_process(here, there) {
                moves.leave.push(here.key.clone());
                continue;
            }
            moves.change.push(at);
        }
        stays.insert(at);
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
