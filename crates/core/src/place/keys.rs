//! Which worker does this routing key belong to?
//!
//! Keys are kept as 64-bit hashes, so a key takes the same memory however long it is. Those that were idle
//! for too long go at the next look for them; when there are too many, one that was idle for long goes at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::Tuning;
use crate::time::{Duration, Instant};

const SHARDS: usize = 16;

/// Routing keys that one leg remembers.
pub const KEYS_MAX: usize = 1 << 18;

/// Keys looked at for one that may go.
const LOOKED_AT: usize = 32;

/// Workers that a key remembers: the one it is on, and the one before, in case that comes back.
const WORKERS_OF_A_KEY: usize = 2;

#[derive(Debug)]
pub struct Keys {
    shards: Box<[Mutex<Shard>]>,
    /// How many keys each worker has, by slot.
    groups: Mutex<HashMap<u32, usize>>,
    max_idle: Duration,
    sweep_every: Duration,
}

#[derive(Debug, Default)]
struct Shard {
    pins: HashMap<u64, Pin>,
    swept: Instant,
}

#[derive(Clone, Debug, Default)]
pub struct Pin {
    /// Slots; the one it is on comes first.
    pub slots: SmallVec<[u32; WORKERS_OF_A_KEY]>,
    /// Requests of this key in flight.
    pub busy: u32,
    used: Instant,
}

impl Keys {
    pub fn new(tuning: &Tuning) -> Keys {
        Keys {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            groups: Mutex::default(),
            max_idle: tuning.max_idle,
            sweep_every: tuning.sweep_every,
        }
    }

    /// What is known of this key.
    pub fn find(&self, key: u64, now: Instant) -> Pin {
        let shard = self.shard(key);
        let pin = shard.pins.get(&key).filter(|pin| pin.busy > 0 || now.since(pin.used) <= self.max_idle);
        pin.cloned().unwrap_or_default()
    }

    /// A request of this key goes to `slot`; the key moves there if `moves`, or if it was nowhere.
    pub fn go(self: &Arc<Self>, key: u64, slot: u32, moves: bool, now: Instant) -> KeyLease {
        let mut shard = self.shard(key);
        let mut left: SmallVec<[u32; 4]> = SmallVec::new();
        self.sweep(&mut shard, now, &mut left);
        if !shard.pins.contains_key(&key) && shard.pins.len() >= KEYS_MAX / SHARDS {
            let idle = shard.pins.iter().take(LOOKED_AT).min_by_key(|(_, pin)| (pin.busy > 0, pin.used));
            if let Some(old) = idle.map(|(key, _)| *key) {
                left.extend(shard.pins.remove(&old).and_then(|pin| pin.slots.first().copied()));
            }
        }
        let pin = shard.pins.entry(key).or_default();
        pin.used = now;
        pin.busy += 1;
        let home = pin.slots.first().copied();
        let moved = home != Some(slot) && (moves || home.is_none());
        if moved {
            left.extend(home);
            pin.slots.retain(|other| *other != slot);
            pin.slots.insert(0, slot);
            pin.slots.truncate(WORKERS_OF_A_KEY);
        }
        if moved || !left.is_empty() {
            // Before anybody else can move the key on: it would leave a worker that it was not counted at yet.
            self.regroup(&left, moved.then_some(slot));
        }
        drop(shard);
        KeyLease { keys: self.clone(), key }
    }

    /// How many keys this worker has.
    pub fn group(&self, slot: u32) -> usize {
        self.groups().get(&slot).copied().unwrap_or(0)
    }

    /// Keys remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).pins.len()).sum()
    }

    fn sweep(&self, shard: &mut Shard, now: Instant, left: &mut SmallVec<[u32; 4]>) {
        if now.since(shard.swept) < self.sweep_every {
            return;
        }
        shard.swept = now;
        shard.pins.retain(|_, pin| {
            let stays = pin.busy > 0 || now.since(pin.used) <= self.max_idle;
            if !stays {
                left.extend(pin.slots.first().copied());
            }
            stays
        });
    }

    fn regroup(&self, left: &[u32], joined: Option<u32>) {
        let mut groups = self.groups();
        for slot in left {
            if let Some(count) = groups.get_mut(slot) {
                *count -= 1;
                if *count == 0 {
                    groups.remove(slot);
                }
            }
        }
        if let Some(slot) = joined {
            *groups.entry(slot).or_default() += 1;
        }
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[key as usize % SHARDS])
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request of a key, until it is over.
#[derive(Debug)]
pub struct KeyLease {
    keys: Arc<Keys>,
    key: u64,
}

impl Drop for KeyLease {
    fn drop(&mut self) {
        // The key may have been forgotten meanwhile.
        if let Some(pin) = self.keys.shard(self.key).pins.get_mut(&self.key) {
            pin.busy = pin.busy.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Instant {
        Instant::from_micros(secs * 1_000_000)
    }

    #[test]
    fn a_key_stays_moves_and_is_forgotten_when_idle() {
        let keys = Arc::new(Keys::new(&Tuning { max_idle: Duration::from_secs(10), ..Tuning::default() }));
        let lease = keys.go(1, 7, false, at(1));
        assert_eq!((keys.find(1, at(2)).slots.as_slice(), keys.find(1, at(2)).busy), (&[7][..], 1));
        drop(keys.go(1, 8, false, at(2)));
        assert_eq!(keys.find(1, at(2)).slots.as_slice(), [7], "a guest");
        drop(keys.go(1, 8, true, at(3)));
        assert_eq!(keys.find(1, at(3)).slots.as_slice(), [8, 7]);
        assert_eq!((keys.group(7), keys.group(8)), (0, 1));
        assert_eq!(keys.find(1, at(50)).slots.len(), 2, "it has a request in flight");
        drop(lease);
        assert!(keys.find(1, at(50)).slots.is_empty());
        let _other = keys.go(17, 9, false, at(200));
        assert_eq!((keys.len(), keys.group(8), keys.group(9)), (1, 0, 1), "the look for idle ones came by");
    }

    #[test]
    fn many_threads_that_move_keys_count_each_once() {
        let keys = Arc::new(Keys::new(&Tuning::default()));
        std::thread::scope(|s| {
            for thread in 0..4 {
                let keys = &keys;
                s.spawn(move || {
                    (0..20_000u32)
                        .for_each(|i| drop(keys.go(u64::from(i % 3), (i + thread) % 5, true, at(1))));
                });
            }
        });
        assert_eq!((0..5).map(|slot| keys.group(slot)).sum::<usize>(), 3);
    }

    #[test]
    fn keys_are_bounded() {
        let keys = Arc::new(Keys::new(&Tuning::default()));
        for key in 0..(KEYS_MAX as u64 + 1000) {
            drop(keys.go(key, 1, false, at(1)));
        }
        assert_eq!((keys.len(), keys.group(1)), (KEYS_MAX, KEYS_MAX));
    }
}
