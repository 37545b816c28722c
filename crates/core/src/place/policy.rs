//! One leg's choice among candidates that are all fit to serve.
//!
//! A choice is made on what is seen of the request once ([`Sight`]: its prompt's blocks and who holds them,
//! its key, its size), and made again when the load it was made on has changed before the place was taken.
//!
//! Load is what this gateway has in flight. A worker is passed over by every policy of affinity when it has
//! more than its share ([`super::affinity::gate`]), so that no hot prompt or key can pin it.

mod told;

use std::ops::RangeInclusive;
use std::sync::Arc;

use smallvec::SmallVec;

use super::affinity::{self, Backlog};
use super::holders::{self, Holders};
use super::keys::{Keys, Pin};
use super::sizes::Sizes;
use super::turns::Turns;
use super::wait::{self, LoadMetric};
use super::warm::{self, WarmUp};
use super::{Assignment, Look, Seats, Taken, Tuning};
use crate::dice::Dice;
use crate::fleet::{Fleet, Seat};
use crate::kv::KvIndex;
use crate::prefix::{Heads, Holder, Memory, PrefixIndex};
use crate::prompt::Prompt;
use crate::time::Instant;

/// SMG's policy names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyName {
    RoundRobin,
    Random,
    PowerOfTwo,
    LeastLoad,
    CacheAware,
    PrefixHash,
    ConsistentHashing,
    Manual,
    Bucket,
}

impl PolicyName {
    pub const ALL: [PolicyName; 9] = [
        PolicyName::RoundRobin,
        PolicyName::Random,
        PolicyName::PowerOfTwo,
        PolicyName::LeastLoad,
        PolicyName::CacheAware,
        PolicyName::PrefixHash,
        PolicyName::ConsistentHashing,
        PolicyName::Manual,
        PolicyName::Bucket,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::RoundRobin => "round_robin",
            PolicyName::Random => "random",
            PolicyName::PowerOfTwo => "power_of_two",
            PolicyName::LeastLoad => "least_load",
            PolicyName::CacheAware => "cache_aware",
            PolicyName::PrefixHash => "prefix_hash",
            PolicyName::ConsistentHashing => "consistent_hashing",
            PolicyName::Manual => "manual",
            PolicyName::Bucket => "bucket",
        }
    }

    /// Makes its own use of routing keys: nothing overrides it.
    fn keyed(self) -> bool {
        matches!(self, PolicyName::ConsistentHashing | PolicyName::Manual)
    }
}

/// One leg's policy with its own state.
#[derive(Debug)]
pub struct Policy {
    name: PolicyName,
    tuning: Tuning,
    turns: Turns,
    memory: Option<Memory>,
    warm: WarmUp,
    /// What workers say that they hold.
    events: Option<Arc<KvIndex>>,
    keys: Option<Arc<Keys>>,
    sizes: Option<Sizes>,
}

/// What a choice looks at of the request, read once.
struct Sight<'a> {
    look: &'a Look<'a>,
    /// What hashing policies hash; where the prompt is cut, what they fall back to first.
    hash: Option<u64>,
    heads: Box<[u64]>,
    /// The key that sticks, and where it is.
    key: Option<(u64, Pin)>,
    backlog: Option<Backlog<'a>>,
    /// It is the turn of these, as long as they have no more than their share.
    turn: Option<warm::Slots>,
    bytes: u64,
    /// What workers say of their load counts.
    heard: bool,
    /// All have too much work: the least loaded, whatever the policy.
    all_over: bool,
}

/// A chosen worker, and the load it was chosen on if the load mattered.
type Choice<'a> = (&'a Arc<Seat>, Option<u32>);

/// How often a choice is made anew because another request took the place first. Past it the place is
/// taken whatever the load, if the window has room: the count stays right, only the choice may be one off.
const TRIES: usize = 64;

/// A pinned worker that has so many requests of the key in flight is not the only choice any more (SMG 1.13).
const OWN_BUSY: u32 = 2;

impl Policy {
    pub fn new(name: PolicyName) -> Policy {
        Policy::tuned(name, Tuning::default())
    }

    pub fn tuned(name: PolicyName, tuning: Tuning) -> Policy {
        let sticks = name == PolicyName::Manual || tuning.sticky && !name.keyed();
        let memory = || match tuning.heads_last {
            None => Memory::Tree(Arc::new(PrefixIndex::new(tuning.index_bytes))),
            Some(lasts) => Memory::Heads(Arc::new(Heads::new(tuning.index_bytes, &tuning.boundaries, lasts))),
        };
        Policy {
            name,
            turns: Turns::default(),
            memory: (name == PolicyName::CacheAware).then(memory),
            warm: WarmUp::default(),
            events: None,
            keys: sticks.then(|| Arc::new(Keys::new(&tuning))),
            sizes: (name == PolicyName::Bucket).then(|| Sizes::new(tuning.bucket_every)),
            tuning,
        }
    }

    /// Heeds what workers say that they hold.
    pub fn hearing(self, events: &Arc<KvIndex>) -> Policy {
        Policy { events: Some(events.clone()), ..self }
    }

    pub fn name(&self) -> PolicyName {
        self.name
    }

    /// The client has named the worker: that one or nobody, and nobody waits for its room.
    pub(super) fn takes_names(&self, look: &Look<'_>) -> bool {
        self.name == PolicyName::ConsistentHashing && look.ask.hints.target.is_some()
    }

    /// Where prompts are remembered, if the policy does so.
    pub fn index(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// Goes by the prompt's tokens, or by how many they are.
    pub(super) fn counts(&self) -> bool {
        let looks_up = self.memory.is_some() && holders::looks_up(self.events.as_ref());
        looks_up || self.tuning.by_rank && self.memory.is_none()
    }

    /// The worker has the whole prompt.
    pub(super) fn has_computed(&self, fleet: &Fleet, seat: &Seat, prompt: &Prompt, now: Instant) {
        let Some(memory) = &self.memory else { return };
        memory.keep_only(fleet.version(), fleet.seats().map(|seat| holder(seat)));
        if let Some(mut mark) = memory.hold(&memory.cut(prompt, self.tuning.block_tokens), holder(seat), now)
        {
            mark.keep();
        }
    }

    /// Chooses and takes rooms in one step. `None` if no candidate has room for them, or if the client named a
    /// worker that is none. Candidates that turn out to be full are left out.
    pub fn take(
        &self,
        candidates: &mut Seats<'_>,
        rooms: u32,
        look: &Look<'_>,
        dice: &mut Dice,
    ) -> Option<Taken> {
        candidates.retain(|s| s.has_room(rooms));
        let heard = self.hears(look);
        let all_over = heard && self.spare(candidates);
        if candidates.is_empty() || all_over && self.sheds_overload() {
            return None;
        }
        let sight = Sight { heard, all_over, ..self.see(look) };
        for _ in 0..TRIES {
            let note = self.note(candidates, &sight);
            let (seat, seen) =
                self.choose(candidates, &sight, dice).map(|choice| self.by_rank(choice, candidates))?;
            let lease = match seen {
                // The choice looked at the load anew, so it may have seen a window that filled up meanwhile.
                Some(seen) if seat.fits_in(seen, rooms) => seat.load.take_if(seen, rooms),
                Some(_) => None,
                None => seat.load.take_within(seat.window, rooms),
            };
            if let Some(lease) = lease {
                self.write(note, seat, &sight);
                return Some(self.taken(Taken::new(seat, lease), sight));
            }
            candidates.retain(|s| s.has_room(rooms));
        }
        while let Some((seat, _)) = self.choose(candidates, &sight, dice) {
            if let Some(lease) = seat.load.take_within(seat.window, rooms) {
                return Some(self.taken(Taken::new(seat, lease), sight));
            }
            let full = seat.slot;
            candidates.retain(|s| s.slot != full);
        }
        None
    }

    /// Reads what the policy needs of the request, and no more.
    fn see<'a>(&'a self, look: &'a Look<'a>) -> Sight<'a> {
        let (hints, prompt) = (&look.ask.hints, &look.ask.prompt);
        let cuts = self.name == PolicyName::PrefixHash && !self.tuning.boundaries.is_empty();
        let heads = match cuts && hints.key.is_none() {
            true => prompt.beginnings(&self.tuning.boundaries),
            false => Box::default(),
        };
        let deepest = heads.last().copied();
        let hash = match self.name {
            PolicyName::PrefixHash => {
                hints.key.or(deepest).or_else(|| prompt.beginning(self.tuning.prefix_tokens))
            }
            PolicyName::ConsistentHashing => {
                let implied = hints.key.or(hints.implied);
                implied.or_else(|| prompt.beginning(self.tuning.prefix_tokens))
            }
            _ => None,
        };
        let keys = self.keys.as_ref().zip(hints.key);
        let key = keys.map(|(keys, key)| (key, keys.find(key, look.now)));
        let backlog = self.memory.as_ref().map(|sent| {
            let (block_tokens, events) = (self.tuning.block_tokens, self.events.as_ref());
            let indexes = holders::Indexes { sent, block_tokens, events };
            Backlog::new(Holders::of(indexes, look.fleet, look.ask, look.now), &self.tuning)
        });
        let turn = match (&self.memory, &backlog) {
            (Some(Memory::Tree(index)), Some(backlog)) => {
                self.warm.turn(backlog.is_hit(), look, index, &self.tuning)
            }
            _ => None,
        };
        let bytes = if self.sizes.is_some() { prompt.bytes() } else { 0 };
        Sight { look, hash, heads, key, backlog, turn, bytes, heard: false, all_over: false }
    }

    /// The place is taken: what follows from it.
    fn taken(&self, mut taken: Taken, sight: Sight<'_>) -> Taken {
        let (seat, now) = (taken.seat.clone(), sight.look.now);
        if let Some(backlog) = &sight.backlog {
            seat.load.chosen_at(now);
            taken.lease.carry(backlog.uncached(&seat));
            sight.look.telling(|receipt| backlog.held.goes_to(&mut taken, receipt));
        }
        if self.tuning.by_rank && self.memory.is_none() && seat.worker.dp_rank.is_some() {
            taken.lease.carry(sight.look.ask.prompt.size().tokens.max(1));
        }
        if let Some(sizes) = &self.sizes {
            sizes.sent(sight.bytes, now);
        }
        if let (Some(keys), Some((key, pin))) = (&self.keys, &sight.key) {
            let home = pin.slots.first().and_then(|slot| sight.look.fleet.seat(*slot));
            // The load of the chosen one counts this request already.
            let better = |home: &Arc<Seat>| seat.load.in_flight() <= home.load.in_flight();
            let moves = home.is_none_or(|home| !sight.look.fits(home) || better(home));
            taken.key = Some(keys.go(*key, seat.slot, moves, now));
        }
        taken
    }

    fn choose<'a>(
        &self,
        candidates: &[&'a Arc<Seat>],
        sight: &Sight<'_>,
        dice: &mut Dice,
    ) -> Option<Choice<'a>> {
        if sight.all_over {
            return self.least(candidates, sight, dice).map(seen);
        }
        if let Some((_, pin)) = &sight.key {
            let mut slots = pin.slots.iter();
            let pinned = slots.find_map(|slot| candidates.iter().find(|s| s.slot == *slot).copied());
            match pinned {
                Some(seat) if self.name == PolicyName::Manual || pin.busy < OWN_BUSY => {
                    return Some((seat, None));
                }
                None => return self.assign(candidates, sight, dice),
                Some(_) => {}
            }
        }
        if self.name == PolicyName::Manual {
            return self.assign(candidates, sight, dice);
        }
        self.follow(candidates, sight, dice)
    }

    /// A worker for a key that has none here, and for requests without a key where keys are all that counts.
    fn assign<'a>(
        &self,
        candidates: &[&'a Arc<Seat>],
        sight: &Sight<'_>,
        dice: &mut Dice,
    ) -> Option<Choice<'a>> {
        let manual = self.name == PolicyName::Manual;
        let default = if manual { Assignment::Random } else { Assignment::Delegate };
        match self.tuning.assignment.unwrap_or(default) {
            Assignment::Random => any(candidates, dice),
            Assignment::Delegate if !manual => self.follow(candidates, sight, dice),
            Assignment::MinLoad | Assignment::Delegate => least(candidates.iter().copied(), dice).map(seen),
            Assignment::MinGroup => {
                let group = |seat: &Seat| self.keys.as_ref().map_or(0, |keys| keys.group(seat.slot));
                let fewest = candidates.iter().map(|s| group(s)).min()?;
                let smallest = candidates.iter().copied().filter(|s| group(s) == fewest);
                least(smallest, dice).map(seen)
            }
        }
    }

    /// The policy itself.
    fn follow<'a>(
        &self,
        candidates: &[&'a Arc<Seat>],
        sight: &Sight<'_>,
        dice: &mut Dice,
    ) -> Option<Choice<'a>> {
        let n = candidates.len();
        if n == 0 {
            return None;
        }
        match self.name {
            PolicyName::RoundRobin => Some((candidates[self.turns.next(candidates)], None)),
            PolicyName::Random | PolicyName::Manual => any(candidates, dice),
            PolicyName::PowerOfTwo if sight.heard => self.tuning.reports.of_two(candidates, dice).map(seen),
            PolicyName::PowerOfTwo if self.tuning.reports.metric == LoadMetric::LeastRequests => {
                least(candidates.iter().copied(), dice).map(seen)
            }
            PolicyName::PowerOfTwo => least(wait::two(candidates, dice)?.into_iter(), dice).map(seen),
            PolicyName::LeastLoad => self.least(candidates, sight, dice).map(seen),
            PolicyName::CacheAware => match &sight.backlog {
                _ if sight.heard && self.tuning.reports.too_full(candidates) => {
                    self.least(candidates, sight, dice).map(seen)
                }
                Some(backlog) => {
                    let theirs = sight.turn.as_ref().map(|slots| self.of_turn(slots, candidates));
                    let among = theirs.as_deref().filter(|theirs| !theirs.is_empty());
                    backlog.cheapest(among.unwrap_or(candidates), dice).map(seen)
                }
                None => self.least(candidates, sight, dice).map(seen),
            },
            PolicyName::PrefixHash => match sight.hash {
                Some(hash) => self.near(hash, &sight.heads, candidates),
                None => self.least(candidates, sight, dice).map(seen),
            },
            PolicyName::ConsistentHashing => match (sight.look.ask.hints.target, sight.hash) {
                (Some(target), _) => target.and_then(|at| candidates.get(at)).map(|seat| (*seat, None)),
                (None, Some(hash)) => affinity::owner(hash, candidates.iter().copied()).map(|s| (s, None)),
                (None, None) => any(candidates, dice),
            },
            PolicyName::Bucket => self.sized(candidates, sight, dice),
        }
    }

    /// The one where a request waits least, as far as that is known.
    fn least<'a>(
        &self,
        candidates: &[&'a Arc<Seat>],
        sight: &Sight<'_>,
        dice: &mut Dice,
    ) -> Option<(&'a Arc<Seat>, u32)> {
        match sight.heard {
            true => self.tuning.reports.least(candidates, dice),
            false => least(candidates.iter().copied(), dice),
        }
    }

    /// Does what workers say of their load count? They are asked if this policy wants it.
    fn hears(&self, look: &Look<'_>) -> bool {
        if self.tuning.reports.wanted {
            look.fleet.want_gauges();
        }
        look.fleet.gauges_wanted()
    }

    /// Leaves out those that have too much work, unless all have: then true.
    fn spare(&self, candidates: &mut Seats<'_>) -> bool {
        let reports = &self.tuning.reports;
        let over = candidates.iter().filter(|seat| reports.is_over(seat)).count();
        let all = over > 0 && over == candidates.len();
        if over > 0 && !all {
            candidates.retain(|seat| !reports.is_over(seat));
        }
        all
    }

    fn sheds_overload(&self) -> bool {
        self.tuning.reports.overload.is_some_and(|rule| rule.shed)
    }

    /// All of these have too much work, and none is to get more.
    pub(super) fn sheds<'a>(&self, all: impl Iterator<Item = &'a Arc<Seat>>, look: &Look<'_>) -> bool {
        let mut all = all.filter(|seat| look.fits(seat)).peekable();
        let hears = self.sheds_overload() && self.hears(look) && all.peek().is_some();
        hears && all.all(|seat| self.tuning.reports.is_over(seat))
    }

    /// The rank of the chosen engine that has the fewest tokens to compute, if that is how ranks are chosen.
    fn by_rank<'a>(&self, choice: Choice<'a>, candidates: &[&'a Arc<Seat>]) -> Choice<'a> {
        let (seat, _) = choice;
        if !self.tuning.by_rank || seat.worker.dp_rank.is_none() {
            return choice;
        }
        let load = |seat: &Seat| (seat.load.work(), seat.load.in_flight(), seat.slot);
        let ranks = candidates.iter().filter(|other| other.worker.base_url() == seat.worker.base_url());
        let least = ranks.min_by_key(|seat| load(seat)).copied().unwrap_or(seat);
        (least, Some(least.load.in_flight()))
    }

    /// Of these, those who have no more than their share of the load.
    fn of_turn<'a>(&self, slots: &warm::Slots, candidates: &[&'a Arc<Seat>]) -> Seats<'a> {
        let gate = affinity::gate(candidates, &self.tuning);
        let may =
            |s: &&&Arc<Seat>| slots.binary_search(&s.slot).is_ok() && f64::from(s.load.in_flight()) <= gate;
        candidates.iter().filter(may).copied().collect()
    }

    /// The owner of the hash if that one has no more than its share, else the owner of a shallower head that has not,
    /// else the next owner.
    fn near<'a>(&self, hash: u64, heads: &[u64], candidates: &[&'a Arc<Seat>]) -> Option<Choice<'a>> {
        let loads: SmallVec<[u32; 16]> = candidates.iter().map(|s| s.load.in_flight()).collect();
        let all: f64 = loads.iter().map(|load| f64::from(*load)).sum();
        let mean = (all + 1.0) / candidates.len() as f64;
        let most = (mean * self.tuning.prefix_load_factor).max(mean + self.tuning.prefix_abs);
        let load = |owner: &Seat| {
            candidates.iter().zip(&loads).find(|(s, _)| s.slot == owner.slot).map(|(_, load)| *load)
        };
        let may = |load: u32| f64::from(load) <= most;
        let mut shallower = heads.iter().rev();
        let owner = shallower
            .find_map(|head| {
                let owner = affinity::owner(*head, candidates.iter().copied())?;
                load(owner).is_some_and(may).then_some(owner)
            })
            .or_else(|| {
                let free = candidates.iter().zip(&loads).filter(|(_, load)| may(**load));
                affinity::owner(hash, free.map(|(seat, _)| *seat))
            })?;
        Some((owner, load(owner)))
    }

    /// The least loaded of those whose range this size is in; of all, if they have more than their share.
    fn sized<'a>(
        &self,
        candidates: &[&'a Arc<Seat>],
        sight: &Sight<'_>,
        dice: &mut Dice,
    ) -> Option<Choice<'a>> {
        let sizes = self.sizes.as_ref().filter(|_| sight.bytes > 0);
        let range = sizes.map_or(0..=candidates.len() - 1, |s| s.range(sight.bytes, candidates.len()));
        let own = least(ranked(candidates, range).into_iter(), dice)?;
        let gate = affinity::gate(candidates, &self.tuning);
        if f64::from(own.1) > gate {
            return least(candidates.iter().copied(), dice).map(seen);
        }
        Some(seen(own))
    }
}

/// Those of these ranks by who they are: it does not count in which order they joined.
fn ranked<'a>(candidates: &[&'a Arc<Seat>], ranks: RangeInclusive<usize>) -> Seats<'a> {
    let mut all: Seats<'a> = candidates.iter().copied().collect();
    let (first, last) = (*ranks.start(), (*ranks.end()).min(all.len().saturating_sub(1)));
    if first > last {
        return Seats::new();
    }
    let who = |seat: &&Arc<Seat>| (seat.point, seat.slot);
    all.select_nth_unstable_by_key(first, who);
    if last > first {
        all[first + 1..].select_nth_unstable_by_key(last - first - 1, who);
    }
    all.drain(first..=last).collect()
}

/// This life of a worker, as the index of prompts knows it.
pub(super) fn holder(seat: &Seat) -> Holder {
    Holder { slot: seat.slot, life: seat.pulse.life() }
}

fn seen<'a>((seat, load): (&'a Arc<Seat>, u32)) -> Choice<'a> {
    (seat, Some(load))
}

fn any<'a>(candidates: &[&'a Arc<Seat>], dice: &mut Dice) -> Option<Choice<'a>> {
    candidates.get(dice.below(candidates.len())).map(|seat| (*seat, None))
}

/// The candidate with the fewest rooms taken, and how many that are; among equals each is as likely.
pub(super) fn least<'a>(
    candidates: impl Iterator<Item = &'a Arc<Seat>>,
    dice: &mut Dice,
) -> Option<(&'a Arc<Seat>, u32)> {
    let mut best: Option<(&Arc<Seat>, u32)> = None;
    let mut equals = 0;
    for seat in candidates {
        let load = seat.load.in_flight();
        match best {
            Some((_, least)) if load > least => {}
            Some((_, least)) if load == least => {
                equals += 1;
                if dice.below(equals) == 0 {
                    best = Some((seat, load));
                }
            }
            _ => (best, equals) = (Some((seat, load)), 1),
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::{Api, Ask};
    use crate::body::{BodyLimits, Envelope};
    use crate::fleet::{Fleet, Role, Worker};
    use crate::time::Instant;

    fn ask() -> Ask {
        let body = Envelope::parse("{}".into(), &BodyLimits::default()).unwrap();
        Ask::read(Api::Chat, &body).unwrap()
    }

    fn seats(n: u32) -> Vec<Arc<Seat>> {
        (0..n)
            .map(|i| Arc::new(Seat::new(i, Worker::new(i.to_string(), "http://h:1", Role::Decode))))
            .collect()
    }

    fn spread(name: PolicyName, requests: usize, n: u32) -> Vec<u32> {
        let (seats, policy, mut dice) = (seats(n), Policy::new(name), Dice::new(3));
        let (fleet, ask) = (Fleet::default(), ask());
        let look = Look::new(&fleet, &ask, Instant::ZERO);
        let take = |_| policy.take(&mut seats.iter().collect(), 1, &look, &mut dice).unwrap();
        let held: Vec<_> = (0..requests).map(take).collect();
        let out = seats.iter().map(|s| s.load.in_flight()).collect();
        drop(held);
        assert!(seats.iter().all(|s| s.load.in_flight() == 0));
        out
    }

    #[test]
    fn a_burst_spreads_as_the_policy_says() {
        assert_eq!(spread(PolicyName::LeastLoad, 256, 4), [64; 4]);
        assert_eq!(spread(PolicyName::RoundRobin, 256, 4), [64; 4]);
        assert!(spread(PolicyName::PowerOfTwo, 256, 4).iter().all(|n| (62..=66).contains(n)));
        assert!(spread(PolicyName::Random, 400, 4).iter().all(|n| (60..=140).contains(n)));
    }

    #[test]
    fn no_candidate_no_choice() {
        let (fleet, ask) = (Fleet::default(), ask());
        let look = Look::new(&fleet, &ask, Instant::ZERO);
        for name in PolicyName::ALL {
            assert!(Policy::new(name).take(&mut Seats::new(), 1, &look, &mut Dice::new(1)).is_none());
        }
        assert_eq!(spread(PolicyName::PowerOfTwo, 3, 1), [3]);
    }
}
