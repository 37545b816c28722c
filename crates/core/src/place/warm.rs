//! Who is new here, and so has to be given prompts that it would not win?
//!
//! `cache_aware` prefers whoever knows a prompt, and a worker that has just joined knows none: where one hot prompt
//! is most of the traffic and those who know it keep up, the new one stays idle. So while it is new it gets a share
//! of the prompts that nobody knows, and one in so many of those that somebody knows, until it holds half of what
//! others hold (SMG 1.13 has the same settings for its index of KV events). Not while it has more than its share of
//! the load: a new worker is not to be flooded either.
//!
//! Workers that were there at the first look are not new: when all are, nobody has anything to catch up with.
//! One that began a new life is new again.
//!
//! Off the request's path: the fleet is looked at when it has changed and now and then; a request reads two
//! numbers, and a list while somebody is new.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use smallvec::SmallVec;

use super::policy::holder;
use super::{Look, Tuning};
use crate::prefix::{Holder, PrefixIndex};
use crate::time::{Duration, Instant};

/// Time between two looks while somebody is new.
const OFTEN: Duration = Duration::from_millis(100);
/// And while nobody is, to see who began a new life.
const SELDOM: Duration = Duration::from_secs(1);

/// Slots, rising.
pub type Slots = SmallVec<[u32; 4]>;

#[derive(Debug, Default)]
pub struct WarmUp {
    /// The last picture of the fleet that was looked at.
    picture: AtomicU64,
    /// Microseconds; when to look again.
    next: AtomicU64,
    known: Mutex<Known>,
    anybody: AtomicBool,
    cold: RwLock<Cold>,
    /// Prompts that nobody knew and that somebody knew, while somebody was new.
    misses: AtomicU64,
    hits: AtomicU64,
}

/// Since when each worker is new; `None` if it never was. By slot.
#[derive(Debug, Default)]
struct Known {
    looked: bool,
    since: HashMap<u32, (u32, Option<Instant>)>,
}

#[derive(Debug, Default)]
struct Cold {
    new: Slots,
    /// Those of them that hold little.
    thin: Slots,
}

impl WarmUp {
    /// For whom this prompt is, if it is their turn.
    pub fn turn(&self, hit: bool, look: &Look<'_>, index: &PrefixIndex, tuning: &Tuning) -> Option<Slots> {
        let lasts = tuning.warm_up?;
        self.look(lasts, look, index, tuning);
        if !self.anybody.load(Ordering::Acquire) {
            return None;
        }
        let theirs = if hit {
            let before = self.hits.fetch_add(1, Ordering::Relaxed);
            tuning.divert_every > 0 && (before + 1).is_multiple_of(tuning.divert_every)
        } else {
            let before = self.misses.fetch_add(1, Ordering::Relaxed) as f64;
            ((before + 1.0) * tuning.warm_up_share).floor() > (before * tuning.warm_up_share).floor()
        };
        if !theirs {
            return None;
        }
        let cold = self.cold.read().unwrap_or_else(PoisonError::into_inner);
        let slots = if hit { &cold.thin } else { &cold.new };
        (!slots.is_empty()).then(|| slots.clone())
    }

    /// One of those who come here at the same time looks, the others take what was seen last.
    fn look(&self, lasts: Duration, look: &Look<'_>, index: &PrefixIndex, tuning: &Tuning) {
        let (picture, now) = (look.fleet.version(), look.now);
        let changed = self.picture.load(Ordering::Relaxed) != picture;
        if !changed && now.as_micros() < self.next.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut known) = self.known.try_lock() else { return };
        self.picture.store(picture, Ordering::Relaxed);
        let cold = known.look(lasts, look, index, tuning);
        let pause = if cold.new.is_empty() { SELDOM } else { OFTEN };
        self.next.store(now.after(pause).as_micros(), Ordering::Relaxed);
        self.anybody.store(!cold.new.is_empty(), Ordering::Release);
        *self.cold.write().unwrap_or_else(PoisonError::into_inner) = cold;
    }
}

impl Known {
    fn look(&mut self, lasts: Duration, look: &Look<'_>, index: &PrefixIndex, tuning: &Tuning) -> Cold {
        let joined = std::mem::replace(&mut self.looked, true).then_some(look.now);
        self.since.retain(|slot, _| look.fleet.seat(*slot).is_some());
        let (mut old, mut new): (Vec<Holder>, Vec<Holder>) = (vec![], vec![]);
        for seat in look.fleet.seats() {
            let this = holder(seat);
            let entry = self.since.entry(this.slot).or_insert((this.life, joined));
            if entry.0 != this.life {
                *entry = (this.life, Some(look.now));
            }
            let is_new = entry.1.is_some_and(|since| look.now.since(since) < lasts);
            if is_new { new.push(this) } else { old.push(this) }
        }
        if new.is_empty() {
            return Cold::default();
        }
        // Those of the other leg hold nothing here.
        let mut others: Vec<u64> = index.held(&old).into_iter().filter(|blocks| *blocks > 0).collect();
        others.sort_unstable();
        let Some(median) = others.get(others.len() / 2).copied() else { return Cold::default() };
        let mut cold = Cold::default();
        for (this, blocks) in new.iter().zip(index.held(&new)) {
            if blocks < tuning.warm_up_blocks {
                cold.new.push(this.slot);
                if (blocks as f64) < median as f64 * tuning.thin_ratio {
                    cold.thin.push(this.slot);
                }
            }
        }
        cold
    }
}
