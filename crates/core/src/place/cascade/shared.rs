//! The decode ledger shared between gateways through Redis, to the letter as AIBrix shares it.
//!
//! Each gateway writes what it has charged a pod with into the hash `aibrix:dtl:<namespace>/<pod>`, under its own
//! instance id, as `tokens,charges,sumChargedAt`: absolute values, so that a lost write is mended by the next one. The
//! moments are seconds since 1970 on Redis' clock, the only one that all gateways can agree on. Who is alive says the
//! sorted set `aibrix:rrq:gateways`, by the moment of each instance's last sign of life. (AIBrix as of September 2026.)
//!
//! Here is what to write ([`Posted`]), what a reading means ([`Reading`], [`Others`]) and what may be deleted of gateways
//! that are gone ([`Orphans`]). Who talks to Redis, and when, is the shell's business. Plain data.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::fleet::{Fleet, Worker};
use crate::time::{Duration, Instant};

/// The sorted set of instances by their last sign of life, in milliseconds.
pub const INSTANCES_KEY: &str = "aibrix:rrq:gateways";
/// Time between two signs of life; also between two writes of what has not changed.
pub const BEAT: Duration = Duration::from_secs(1);
/// An instance that gave no sign of life for longer is as good as dead: its charges do not count.
pub const SEEN_WITHIN: Duration = Duration::from_secs(3);
/// How long Redis keeps what nobody writes, and remembers an instance.
pub const KEPT_FOR: Duration = Duration::from_secs(600);
/// Fields of dead instances are deleted if they were there at two looks so far apart.
pub const PRUNE_EVERY: Duration = Duration::from_secs(10);
/// Instances that are heeded for one pod; more are left out.
pub const INSTANCES_MAX: usize = 1024;

/// Numbers beyond these are no ledger's.
const TOKENS_MOST: f64 = 1e15;
const CHARGES_MOST: i64 = u32::MAX as i64;
const SINCE_MOST: f64 = 1e19;

/// The hash of a worker. A worker that is no pod goes by its URL; of an engine with several ranks each has its own.
pub fn key(worker: &Worker) -> String {
    let namespace = worker.namespace().unwrap_or("default");
    match (&worker.pod, worker.dp_rank) {
        (Some(pod), None) => format!("aibrix:dtl:{namespace}/{}", pod.name),
        (Some(pod), Some(rank)) => format!("aibrix:dtl:{namespace}/{}@{rank}", pod.name),
        (None, _) => format!("aibrix:dtl:{namespace}/{}", worker.url),
    }
}

/// The hashes of all workers that decode, each with their slots.
pub fn keys(fleet: &Fleet) -> BTreeMap<String, Vec<u32>> {
    let mut keys = BTreeMap::<String, Vec<u32>>::new();
    for seat in fleet.decode() {
        keys.entry(key(&seat.worker)).or_default().push(seat.slot);
    }
    keys
}

/// What one gateway has charged one pod with, as Redis keeps it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    pub tokens: f64,
    pub charges: u32,
    /// The sum of the moments of the charges, each in seconds since 1970.
    pub since_secs: f64,
}

impl Field {
    /// `None`: it is malformed, or nothing is charged. What is below 0 is 0.
    pub fn parse(text: &[u8]) -> Option<Field> {
        let mut parts = std::str::from_utf8(text).ok()?.split(',');
        let (tokens, charges, since) = (parts.next()?, parts.next()?, parts.next()?);
        let (tokens, since_secs): (f64, f64) = (tokens.parse().ok()?, since.parse().ok()?);
        let charges: i64 = charges.parse().ok().filter(|n| (1..=CHARGES_MOST).contains(n))?;
        let usable = parts.next().is_none() && tokens <= TOKENS_MOST && since_secs.abs() <= SINCE_MOST;
        (usable && tokens.is_finite()).then_some(Field {
            tokens: tokens.max(0.0),
            charges: u32::try_from(charges).ok()?,
            since_secs,
        })
    }

    fn of(decodes: &Decodes, clock: RedisClock) -> Field {
        let since_us = decodes.since_us as f64 + decodes.charges as f64 * clock.at_zero_us as f64;
        Field {
            tokens: decodes.tokens as f64,
            charges: u32::try_from(decodes.charges).unwrap_or(u32::MAX),
            since_secs: since_us / 1e6,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.tokens, self.charges, self.since_secs)
    }
}

/// Tells Redis' time by this gateway's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisClock {
    /// What Redis' clock showed when this gateway's stood at zero, in microseconds since 1970.
    at_zero_us: i64,
}

impl RedisClock {
    /// Redis said that it is `micros` since 1970, between these two moments.
    pub fn measured(micros: u64, asked: Instant, answered: Instant) -> RedisClock {
        let between = asked.as_micros() / 2 + answered.as_micros() / 2;
        RedisClock { at_zero_us: micros as i64 - between as i64 }
    }

    pub fn millis(self, now: Instant) -> i64 {
        self.micros(now).div_euclid(1000)
    }

    fn micros(self, now: Instant) -> i64 {
        self.at_zero_us.saturating_add(now.as_micros() as i64)
    }
}

/// What this gateway has charged one worker with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decodes {
    pub tokens: u64,
    pub charges: u64,
    /// The sum of the moments of the charges, in microseconds of this gateway's clock.
    pub since_us: u128,
}

/// A write that Redis owes nothing but its doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Set { key: String, value: String },
    Delete { key: String },
}

/// What is to be written, and what will be known once it is.
#[derive(Debug, Default)]
pub struct Due {
    pub writes: Vec<Write>,
    after: BTreeMap<String, Option<Decodes>>,
}

/// What Redis has of this gateway. Bounded by the workers there are.
#[derive(Debug, Default)]
pub struct Posted {
    /// By hash. `None`: something of this gateway may be there, and nobody knows what.
    sent: BTreeMap<String, Option<Decodes>>,
    /// Hashes of workers that hold charges: one that has left the fleet still answers its requests.
    names: BTreeMap<u32, String>,
}

impl Posted {
    /// What differs from what Redis has; with `again` everything that is held. Workers that share a hash add up. Until it
    /// is [`Posted::written`] nobody knows whether Redis has it.
    pub fn due(&mut self, held: &[(u32, Decodes)], fleet: &Fleet, clock: RedisClock, again: bool) -> Due {
        let name = |slot: &u32| {
            let seat = fleet.seat(*slot).map(|seat| key(&seat.worker));
            seat.or_else(|| self.names.get(slot).cloned()).map(|name| (*slot, name))
        };
        self.names = held.iter().filter_map(|(slot, _)| name(slot)).collect();
        let mut wanted = BTreeMap::<&str, Decodes>::new();
        for (slot, own) in held.iter().filter(|(_, own)| own.charges > 0) {
            let Some(name) = self.names.get(slot) else { continue };
            let sum = wanted.entry(name).or_default();
            sum.tokens = sum.tokens.saturating_add(own.tokens);
            sum.charges = sum.charges.saturating_add(own.charges);
            sum.since_us = sum.since_us.saturating_add(own.since_us);
        }
        let mut due = Due::default();
        for (name, own) in &wanted {
            if again || self.sent.get(*name) != Some(&Some(*own)) {
                let (key, value) = ((*name).to_owned(), Field::of(own, clock).to_string());
                due.writes.push(Write::Set { key, value });
            }
        }
        for name in self.sent.keys().filter(|name| !wanted.contains_key(name.as_str())) {
            due.writes.push(Write::Delete { key: name.clone() });
        }
        due.after = wanted.into_iter().map(|(name, own)| (name.to_owned(), Some(own))).collect();
        for Write::Set { key, .. } | Write::Delete { key } in &due.writes {
            self.sent.insert(key.clone(), None);
        }
        due
    }

    /// Redis has it.
    pub fn written(&mut self, due: Due) {
        self.sent = due.after;
    }

    /// What Redis had may be gone: all of it is written anew.
    pub fn uncertain(&mut self) {
        self.sent.values_mut().for_each(|own| *own = None);
    }

    /// Every hash in which something of this gateway may be.
    pub fn hashes(&self) -> impl Iterator<Item = &str> {
        self.sent.keys().map(String::as_str)
    }
}

/// The fields of a hash: each instance, and what it wrote.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What Redis said at one look.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Instances that gave a sign of life within [`KEPT_FOR`], and when, in milliseconds.
    pub seen: HashMap<Vec<u8>, i64>,
    /// The fields of each hash that was asked for.
    pub hashes: Vec<(String, Fields)>,
}

/// What another gateway has charged a pod with.
#[derive(Clone, Copy, Debug)]
struct Share {
    seen_ms: i64,
    field: Field,
}

/// What other gateways have charged workers with, as of the last look. Each instance's part falls silent with it: one
/// that gave no sign of life for [`SEEN_WITHIN`] does not count, and so neither does a look that is as old as that.
#[derive(Clone, Debug, Default)]
pub struct Others {
    clock: RedisClock,
    by_slot: HashMap<u32, Arc<[Share]>>,
}

/// What the others have on one worker together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Remote {
    pub tokens: f64,
    /// For how long their charges have been there, in seconds, all together.
    pub secs: f64,
}

impl Others {
    /// Sorts a reading by workers. `own` is this gateway's instance: its part is in its own ledger.
    pub fn of(reading: &Reading, own: &[u8], keys: &BTreeMap<String, Vec<u32>>, clock: RedisClock) -> Others {
        let mut by_slot = HashMap::new();
        for (key, fields) in &reading.hashes {
            let heeded = fields.iter().filter(|(instance, _)| instance != own);
            let shares = heeded.filter_map(|(instance, value)| {
                let seen_ms = *reading.seen.get(instance)?;
                Some(Share { seen_ms, field: Field::parse(value)? })
            });
            let shares: Arc<[Share]> = shares.take(INSTANCES_MAX).collect();
            if !shares.is_empty() {
                let slots = keys.get(key).map(Vec::as_slice).unwrap_or_default();
                by_slot.extend(slots.iter().map(|slot| (*slot, shares.clone())));
            }
        }
        Others { clock, by_slot }
    }

    /// What they have on this worker now.
    pub fn on(&self, slot: u32, now: Instant) -> Remote {
        let Some(shares) = self.by_slot.get(&slot) else { return Remote::default() };
        let until_us = self.clock.micros(now);
        let oldest_ms = until_us.div_euclid(1000) - SEEN_WITHIN.as_millis() as i64;
        let (mut sum, mut charges, mut since_secs) = (Remote::default(), 0_u64, 0.0);
        for share in shares.iter().filter(|share| share.seen_ms >= oldest_ms) {
            sum.tokens += share.field.tokens;
            charges += u64::from(share.field.charges);
            since_secs += share.field.since_secs;
        }
        sum.secs = (charges as f64 * (until_us as f64 / 1e6) - since_secs).max(0.0);
        sum
    }
}

impl Reading {
    /// Other instances that are alive.
    pub fn alive(&self, own: &[u8], clock: RedisClock, now: Instant) -> usize {
        let oldest_ms = clock.millis(now) - SEEN_WITHIN.as_millis() as i64;
        self.seen.iter().filter(|(instance, seen)| **seen >= oldest_ms && *instance != own).count()
    }
}

/// Fields whose instance Redis has forgotten: a gateway that is gone, or one that has just begun. Bounded by the fields
/// of one reading.
#[derive(Debug, Default)]
pub struct Orphans(BTreeSet<(String, Vec<u8>)>);

impl Orphans {
    /// Those that were orphans at the last look already, by hash: they can be deleted. To be called once in each
    /// [`PRUNE_EVERY`].
    pub fn look(&mut self, reading: &Reading, own: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut now = BTreeSet::new();
        for (key, fields) in &reading.hashes {
            let lost = |instance: &Vec<u8>| instance != own && !reading.seen.contains_key(instance);
            let lost = fields.iter().map(|(instance, _)| instance).filter(|instance| lost(instance));
            now.extend(lost.take(INSTANCES_MAX).map(|instance| (key.clone(), instance.clone())));
        }
        let both = now.intersection(&self.0).cloned().collect();
        self.0 = now;
        both
    }
}
