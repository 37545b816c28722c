//! One leg's choice among candidates that are all fit to serve.
//!
//! A choice is made on what is seen of the request once ([`Sight`]: its prompt's blocks and who holds them,
//! its key, its size), and made again when the load it was made on has changed before the place was taken.
//!
//! Load is what this gateway has in flight. A worker is passed over by every policy of affinity when it has
//! more than its share ([`super::affinity::gate`]), so that no hot prompt or key can pin it.

mod told;

use std::cell::OnceCell;
use std::sync::Arc;

use super::affinity::{self, Backlog};
use super::field::{AllSeen, Field, Seen};
use super::holders::{self, Holders};
use super::keys::{Keys, Pin};
use super::sizes::Sizes;
use super::turns::Turns;
use super::wait::LoadMetric;
use super::warm::{self, WarmUp};
use super::{Assignment, Look, Taken, Tuning};
use crate::dice::Dice;
use crate::fleet::{Fleet, Row, Seat};
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
    /// Whose turn it is to be the first of two, drawn once.
    of_two: OnceCell<usize>,
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
    /// worker that is none.
    pub(super) fn take(&self, field: &mut Field<'_>, dice: &mut Dice) -> Option<Taken> {
        let (look, rooms) = (field.look(), field.rooms());
        let heard = self.hears(look);
        let all_over = heard && self.spare(field);
        if all_over && self.sheds_overload() || field.is_empty() {
            return None;
        }
        let sight = Sight { heard, all_over, ..self.see(look) };
        for _ in 0..TRIES {
            let note = self.note(field, &sight);
            let (seat, seen) = self.choose(field, &sight, dice).map(|choice| self.by_rank(choice, field))?;
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
        }
        while let Some((seat, _)) = self.choose(field, &sight, dice) {
            if let Some(lease) = seat.load.take_within(seat.window, rooms) {
                return Some(self.taken(Taken::new(seat, lease), sight));
            }
            field.strike(seat.slot);
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
        let of_two = OnceCell::new();
        Sight { look, hash, heads, key, backlog, turn, bytes, of_two, heard: false, all_over: false }
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

    fn choose<'a>(&self, field: &Field<'a>, sight: &Sight<'_>, dice: &mut Dice) -> Option<Choice<'a>> {
        if sight.all_over {
            return self.least(field, sight, dice);
        }
        if let Some((_, pin)) = &sight.key {
            match pin.slots.iter().find_map(|slot| field.by_slot(*slot)) {
                Some(seat) if self.name == PolicyName::Manual || pin.busy < OWN_BUSY => {
                    return Some((seat, None));
                }
                None => return self.assign(field, sight, dice),
                Some(_) => {}
            }
        }
        if self.name == PolicyName::Manual {
            return self.assign(field, sight, dice);
        }
        self.follow(field, sight, dice)
    }

    /// A worker for a key that has none here, and for requests without a key where keys are all that counts.
    fn assign<'a>(&self, field: &Field<'a>, sight: &Sight<'_>, dice: &mut Dice) -> Option<Choice<'a>> {
        let manual = self.name == PolicyName::Manual;
        let default = if manual { Assignment::Random } else { Assignment::Delegate };
        match self.tuning.assignment.unwrap_or(default) {
            Assignment::Random => any(field, dice),
            Assignment::Delegate if !manual => self.follow(field, sight, dice),
            Assignment::MinLoad | Assignment::Delegate => field.least(dice).map(seen),
            Assignment::MinGroup => {
                let group = |seat: &Seat| self.keys.as_ref().map_or(0, |keys| keys.group(seat.slot));
                let all = field.all();
                let fewest = all.iter().map(|s| group(s.seat)).min()?;
                least_seen(all.iter().filter(|s| group(s.seat) == fewest), dice).map(seen)
            }
        }
    }

    /// The policy itself.
    fn follow<'a>(&self, field: &Field<'a>, sight: &Sight<'_>, dice: &mut Dice) -> Option<Choice<'a>> {
        match self.name {
            PolicyName::RoundRobin => {
                field.in_turn(|set| self.turns.next(set, || 0)).map(|seat| (seat, None))
            }
            PolicyName::Random | PolicyName::Manual => any(field, dice),
            PolicyName::PowerOfTwo => self.of_two(field, sight, dice),
            PolicyName::LeastLoad => self.least(field, sight, dice),
            PolicyName::CacheAware => match &sight.backlog {
                Some(_) if sight.heard && self.tuning.reports.too_full(&field.seats()) => {
                    self.least(field, sight, dice)
                }
                Some(backlog) => {
                    let theirs = sight.turn.as_ref().map(|slots| self.of_turn(slots, &field.all()));
                    match theirs.filter(|theirs| !theirs.is_empty()) {
                        Some(theirs) => backlog.cheapest_of(&theirs, dice).map(seen),
                        None => backlog.cheapest(field, dice).map(seen),
                    }
                }
                None => self.least(field, sight, dice),
            },
            PolicyName::PrefixHash => match sight.hash {
                Some(hash) => self.near(hash, &sight.heads, field),
                None => self.least(field, sight, dice),
            },
            PolicyName::ConsistentHashing => match (sight.look.ask.hints.target, sight.hash) {
                (Some(target), _) => target.and_then(|at| Some((*field.seats().get(at)?, None))),
                (None, Some(hash)) => {
                    field.highest(|row| affinity::rank(hash, row.point), |_| true).map(|s| (s.seat, None))
                }
                (None, None) => any(field, dice),
            },
            PolicyName::Bucket => self.sized(field, sight, dice),
        }
    }

    /// The better of two: one whose turn it is, which is taken where both are as good, and one by chance. Both are
    /// as likely to be any worker as if both were by chance; but no worker is left out of a burst.
    fn of_two<'a>(&self, field: &Field<'a>, sight: &Sight<'_>, dice: &mut Dice) -> Option<Choice<'a>> {
        let reports = &self.tuning.reports;
        if reports.metric == LoadMetric::LeastRequests {
            return match sight.heard {
                true => reports.fewest(&field.seats(), dice).map(known),
                false => field.least(dice).map(seen),
            };
        }
        let turn = sight.of_two.get_or_init(|| self.turns.next(field.mark(), || dice.below(usize::MAX)));
        let mut two = field.two(*turn, dice)?;
        if sight.heard {
            two.retain(|s| reports.may(s.seat, s.load));
        }
        let better = |a: &Seen<'a>, b: &Seen<'a>| match sight.heard {
            true => reports.is_better(a, b),
            false => a.load < b.load,
        };
        match two.as_slice() {
            [first, other] if better(other, first) => Some(seen(*other)),
            [first, ..] => Some(seen(*first)),
            [] => None,
        }
    }

    /// The one where a request waits least, as far as that is known.
    fn least<'a>(&self, field: &Field<'a>, sight: &Sight<'_>, dice: &mut Dice) -> Option<Choice<'a>> {
        match sight.heard {
            true => self.tuning.reports.least(&field.seats(), dice).map(known),
            false => field.least(dice).map(seen),
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
    fn spare(&self, field: &mut Field<'_>) -> bool {
        let is_over = |seat: &Seat| self.tuning.reports.is_over(seat);
        let (over, rest) = field.count(is_over);
        if over > 0 && rest > 0 {
            field.keep(|seat| !is_over(seat));
        }
        over > 0 && rest == 0
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
    fn by_rank<'a>(&self, choice: Choice<'a>, field: &Field<'a>) -> Choice<'a> {
        let (seat, _) = choice;
        if !self.tuning.by_rank || seat.worker.dp_rank.is_none() {
            return choice;
        }
        let load = |seat: &Seat| (seat.load.work(), seat.load.in_flight(), seat.slot);
        let candidates = field.seats();
        let ranks = candidates.iter().filter(|other| other.worker.base_url() == seat.worker.base_url());
        let least = ranks.min_by_key(|seat| load(seat)).copied().unwrap_or(seat);
        (least, Some(least.load.in_flight()))
    }

    /// Of these, those who have no more than their share of the load.
    fn of_turn<'a>(&self, slots: &warm::Slots, all: &[Seen<'a>]) -> AllSeen<'a> {
        let gate = affinity::gate_of(all.iter().map(|s| s.load), &self.tuning);
        let may = |s: &&Seen<'a>| slots.binary_search(&s.row.slot).is_ok() && f64::from(s.load) <= gate;
        all.iter().filter(may).copied().collect()
    }

    /// The owner of the hash if that one has no more than its share, else the owner of a shallower head that has not,
    /// else the next owner.
    fn near<'a>(&self, hash: u64, heads: &[u64], field: &Field<'a>) -> Option<Choice<'a>> {
        let (n, all) = field.sum();
        let mean = (all as f64 + 1.0) / n as f64;
        let most = (mean * self.tuning.prefix_load_factor).max(mean + self.tuning.prefix_abs);
        let may = |load: u32| f64::from(load) <= most;
        let owner = |hash: u64| move |row: &Row| affinity::rank(hash, row.point);
        let mut shallower = heads.iter().rev();
        shallower
            .find_map(|head| field.highest(owner(*head), |_| true).filter(|seen| may(seen.load)))
            .or_else(|| field.highest(owner(hash), may))
            .map(seen)
    }

    /// The least loaded of those whose range this size is in; of all, if they have more than their share.
    fn sized<'a>(&self, field: &Field<'a>, sight: &Sight<'_>, dice: &mut Dice) -> Option<Choice<'a>> {
        let (n, sum) = field.sum();
        let sizes = self.sizes.as_ref().filter(|_| sight.bytes > 0);
        let (first, last) = match sizes {
            Some(sizes) => sizes.range(sight.bytes, n).into_inner(),
            None => (0, n),
        };
        if first == 0 && last + 1 >= n {
            return field.least(dice).map(seen);
        }
        let all = field.all();
        let own = least_seen(field.ranked(&all, first, last).iter(), dice)?;
        if f64::from(own.load) > affinity::gate(sum, n, &self.tuning) {
            return least_seen(all.iter(), dice).map(seen);
        }
        Some(seen(own))
    }
}

/// This life of a worker, as the index of prompts knows it.
pub(super) fn holder(seat: &Seat) -> Holder {
    Holder { slot: seat.slot, life: seat.pulse.life() }
}

fn seen(seen: Seen<'_>) -> Choice<'_> {
    (seen.seat, Some(seen.load))
}

fn known<'a>((seat, load): (&'a Arc<Seat>, u32)) -> Choice<'a> {
    (seat, Some(load))
}

fn any<'a>(field: &Field<'a>, dice: &mut Dice) -> Option<Choice<'a>> {
    field.any(dice).map(|seat| (seat, None))
}

/// The one with the fewest rooms taken; among equals each is as likely.
fn least_seen<'s, 'a: 's>(all: impl Iterator<Item = &'s Seen<'a>>, dice: &mut Dice) -> Option<Seen<'a>> {
    let mut best: Option<Seen<'a>> = None;
    let mut equals = 0;
    for seen in all {
        match best {
            Some(least) if seen.load > least.load => {}
            Some(least) if seen.load == least.load => {
                equals += 1;
                if dice.below(equals) == 0 {
                    best = Some(*seen);
                }
            }
            _ => (best, equals) = (Some(*seen), 1),
        }
    }
    best
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
    use crate::fleet::{Bench, Fleet, Role, Serving, Status, Worker};
    use crate::time::Instant;

    fn ask() -> Ask {
        let body = Envelope::parse("{}".into(), &BodyLimits::default()).unwrap();
        Ask::read(Api::Chat, &body).unwrap()
    }

    fn seats(n: u32) -> Vec<Arc<Seat>> {
        (0..n)
            .map(|i| Arc::new(Seat::new(i, Worker::new(i.to_string(), "http://h:1", Role::Decode))))
            .inspect(|seat| seat.pulse.set_status(Status::Ready))
            .collect()
    }

    fn spread(name: PolicyName, requests: usize, n: u32) -> Vec<u32> {
        let (seats, policy, mut dice) = (seats(n), Policy::new(name), Dice::new(3));
        let (fleet, ask) = (Fleet::default(), ask());
        let look = Look::new(&fleet, &ask, Instant::ZERO);
        let bench = Bench::loose(seats.iter());
        let take = |_| policy.take(&mut Field::of(&look, &bench, &Serving::ALL, 1), &mut dice).unwrap();
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
            let bench = Bench::default();
            let mut field = Field::of(&look, &bench, &Serving::ALL, 1);
            assert!(Policy::new(name).take(&mut field, &mut Dice::new(1)).is_none());
        }
        assert_eq!(spread(PolicyName::PowerOfTwo, 3, 1), [3]);
    }
}
