//! Short numbers for workers, so that a set of them is a few words of bits.
//!
//! A slot is never used again, so slots of a fleet that has come and gone for a while are large. Numbers are
//! used again, and only after every trace of their last owner is gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;

use super::shard::Found;

/// Workers that an index tells apart. Others are not remembered.
pub const OWNERS_MAX: usize = 8192;

/// One life of one worker: what it held before a restart is not held after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    pub slot: u32,
    pub life: u32,
}

#[derive(Debug, Default)]
pub(super) struct Owners {
    table: RwLock<Table>,
    /// The newest picture of the fleet that was looked at.
    picture: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    numbers: HashMap<u32, (u32, usize)>,
    owners: Vec<Option<Holder>>,
    free: Vec<usize>,
}

impl Owners {
    /// Is this picture of the fleet newer than all before? Whoever is told so has to look at it.
    pub fn news(&self, picture: u64) -> bool {
        self.picture.load(Ordering::Relaxed) < picture
            && self.picture.fetch_max(picture, Ordering::Relaxed) < picture
    }

    /// The number of this life of this worker.
    pub fn number(&self, holder: Holder) -> Option<usize> {
        let table = self.read();
        let (life, number) = *table.numbers.get(&holder.slot)?;
        (life == holder.life).then_some(number)
    }

    /// The numbers of several.
    pub fn numbers(&self, holders: &[Holder]) -> impl Iterator<Item = Option<usize>> {
        let table = self.read();
        holders.iter().map(move |holder| {
            let (life, number) = *table.numbers.get(&holder.slot)?;
            (life == holder.life).then_some(number)
        })
    }

    /// A number for a worker that has none. `None` if there are too many, or if it was given one in the
    /// meantime for another life.
    pub fn admit(&self, holder: Holder) -> Option<usize> {
        let mut table = self.write();
        if let Some((life, number)) = table.numbers.get(&holder.slot) {
            return (*life == holder.life).then_some(*number);
        }
        let number = match table.free.pop() {
            Some(number) => number,
            None if table.owners.len() < OWNERS_MAX => {
                table.owners.push(None);
                table.owners.len() - 1
            }
            None => return None,
        };
        table.owners[number] = Some(holder);
        table.numbers.insert(holder.slot, (holder.life, number));
        Some(number)
    }

    /// The worker's number stands for nobody from now on.
    pub fn dismiss(&self, slot: u32) -> Option<usize> {
        let mut table = self.write();
        let (_, number) = table.numbers.remove(&slot)?;
        table.owners[number] = None;
        Some(number)
    }

    /// No trace of the number is left: somebody else may have it.
    pub fn free(&self, number: usize) {
        self.write().free.push(number);
    }

    /// Slots of those who are not there any more.
    pub fn gone(&self, there: &BTreeSet<Holder>) -> Vec<u32> {
        let table = self.read();
        table.owners.iter().flatten().filter(|owner| !there.contains(owner)).map(|owner| owner.slot).collect()
    }

    pub fn name(&self, found: &Found) -> SmallVec<[(Holder, u32); 8]> {
        let table = self.read();
        let owner = |number: &usize| table.owners.get(*number).copied().flatten();
        found.iter().filter_map(|(number, blocks)| Some((owner(number)?, *blocks))).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}
