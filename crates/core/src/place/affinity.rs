//! Where has a prompt, or a key, its home, and what does it cost to go elsewhere?
//!
//! `cache_aware` counts in tokens: what a worker has in flight, each request at [`REQUEST_TOKENS`] and what of
//! its prompt was not there; and what of this prompt is not there, [`COMPUTED`] times. The cheapest worker is
//! taken, so a match counts as what it saves: a hot prompt goes to its worker while the queue there costs less
//! than computing it elsewhere, and then to a second one, which has it from then on. SMG sends to whoever holds a prompt
//! until that one is far over the mean (SMG 1.13); that bound stands here too ([`gate`]).
//!
//! Hashes are placed by rendezvous: each worker's share of all keys is the same, and a worker that leaves
//! moves its own keys and no others. Nothing is kept, so gateways side by side agree. SMG's ring of 150 points
//! for each worker does the same, less evenly.

use std::cmp::Ordering;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Tuning;
use super::field::{Field, Seen};
use super::holders::{Holders, Said};
use crate::dice::Dice;
use crate::fleet::Seat;
use crate::load::Load;
use crate::prompt::TOKEN_BYTES;
use crate::time::Instant;

/// What a request in flight counts besides its prompt: its steps of decoding, and the fixed cost of a prefill.
const REQUEST_TOKENS: f64 = 1024.0;

/// What is computed costs the request its time, and everybody behind it theirs.
const COMPUTED: f64 = 2.0;

/// The load above which a worker has more than its share (SMG 1.13), of so many workers that have so much.
pub fn gate(all: u64, workers: usize, tuning: &Tuning) -> f64 {
    let mean = all as f64 / workers.max(1) as f64;
    let margin = (2.0 * mean.sqrt()).ceil().max(4.0).min(tuning.balance_abs);
    (mean * tuning.balance_rel).max(mean + margin)
}

/// The same by the loads of all.
pub fn gate_of(loads: impl Iterator<Item = u32>, tuning: &Tuning) -> f64 {
    let (all, n) = loads.fold((0, 0), |(all, n), load| (all + u64::from(load), n + 1));
    gate(all, n, tuning)
}

/// The worker that a key belongs to.
pub fn owner<'a>(hash: u64, candidates: impl Iterator<Item = &'a Arc<Seat>>) -> Option<&'a Arc<Seat>> {
    candidates.max_by_key(|seat| (rank(hash, seat.point), seat.slot))
}

/// A key belongs to the worker, by its point, for which this is highest.
#[inline]
pub fn rank(hash: u64, point: u64) -> u64 {
    mix(hash ^ point)
}

/// Every bit of the result depends on every bit given.
#[inline]
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

/// One prompt, and what each worker would have to compute of it.
pub struct Backlog<'t> {
    pub held: Holders<'t>,
    tuning: &'t Tuning,
    /// Share of the prompt that what was sent must be to count.
    threshold: f64,
}

/// What a candidate's cost is made of, in tokens.
pub struct Weighed {
    pub queued: f64,
    /// The prompt, and what of it is there as far as it counts.
    pub total: f64,
    pub cached: f64,
    /// It has more than its share of the load.
    pub over: bool,
    pub tokens: f64,
}

/// One candidate's worth.
struct Cost<'a> {
    seen: Seen<'a>,
    tokens: f64,
}

/// What a walk over the candidates finds.
struct Least<'a> {
    best: Option<Seen<'a>>,
    /// The most rooms taken of those who are as good as the best.
    heaviest: u32,
    /// The fewest of all.
    idlest: u32,
}

impl<'t> Backlog<'t> {
    pub fn new(held: Holders<'t>, tuning: &'t Tuning) -> Backlog<'t> {
        // Engines that keep heads keep them whole, whatever share of the prompt they are.
        let threshold = if held.by_heads() { 0.0 } else { tuning.cache_threshold };
        Backlog { held, tuning, threshold }
    }

    /// Does anybody have enough of it to count?
    pub fn is_hit(&self) -> bool {
        self.held.is_hit(self.tuning.cache_threshold, |blocks| self.counted(blocks) > 0.0)
    }

    /// Tokens of the prompt that the worker has not.
    pub fn uncached(&self, seat: &Seat) -> u64 {
        (self.total() - self.cached(seat.slot, seat)) as u64
    }

    fn total(&self) -> f64 {
        self.held.blocks.bytes as f64 / TOKEN_BYTES as f64
    }

    /// Tokens of it that the worker has; none if they are too small a share of it.
    fn cached(&self, slot: u32, seat: &Seat) -> f64 {
        self.held.sure(self.said(slot, seat), seat)
    }

    /// The same by each index.
    #[inline]
    fn said(&self, slot: u32, seat: &Seat) -> Said {
        let told = |share: f64| {
            let enough = share > self.tuning.cache_threshold;
            if enough { share * self.total() } else { 0.0 }
        };
        self.held.said(slot, seat, told, |blocks| self.counted(blocks))
    }

    /// So many first blocks in tokens, if they are enough of it to count.
    fn counted(&self, blocks: u32) -> f64 {
        let tokens = self.held.blocks.bytes_of(blocks as usize) as f64 / TOKEN_BYTES as f64;
        if tokens > self.threshold * self.total() { tokens } else { 0.0 }
    }

    /// The worker that costs least, of all that can be chosen. Among equals the one that was longest not chosen, so that
    /// prompts that nobody knows go round.
    pub fn cheapest<'a>(&self, field: &Field<'a>, dice: &mut Dice) -> Option<Seen<'a>> {
        if self.tuning.temperature > 0.0 || self.tuning.overlap_decay > 0.0 {
            return self.cheapest_of(&field.all(), dice);
        }
        let least = |gate: f64, dice: &mut Dice| {
            self.least(field.unasked(), |seen| field.lets(seen), (gate, 0.0), dice)
        };
        let found = least(f64::INFINITY, dice);
        let fair = |gate: f64| f64::from(found.heaviest) <= gate;
        // The gate makes nobody cheaper: the cheapest without it is so with it, unless it has more than its share. Where
        // that is plain by what the idlest has, which is no more than the mean, nobody's load is added up.
        if fair(gate(u64::from(found.idlest), 1, self.tuning)) {
            return found.best;
        }
        let (n, sum) = field.sum();
        let gate = gate(sum, n, self.tuning);
        if fair(gate) { found.best } else { least(gate, dice).best }
    }

    /// The same of these.
    pub fn cheapest_of<'a>(&self, all: &[Seen<'a>], dice: &mut Dice) -> Option<Seen<'a>> {
        let bounds = self.bounds(all);
        if self.tuning.temperature > 0.0 {
            let cost = |seen: &Seen<'a>| self.cost(*seen, bounds);
            return self.softly(all.iter().map(cost).collect(), dice);
        }
        self.least(all.iter().copied(), |_| true, bounds, dice).best
    }

    fn cost<'a>(&self, seen: Seen<'a>, bounds: (f64, f64)) -> Cost<'a> {
        Cost { seen, tokens: self.weigh(&seen, self.said(seen.row.slot, seen.seat), bounds).tokens }
    }

    /// The cheapest of those that may be chosen. The few that nothing rules out by then are asked.
    fn least<'a>(
        &self,
        all: impl Iterator<Item = Seen<'a>>,
        may: impl Fn(&Seen<'a>) -> bool,
        bounds: (f64, f64),
        dice: &mut Dice,
    ) -> Least<'a> {
        let mut best: Option<(f64, Instant)> = None;
        let (mut found, mut equals) = (Least { best: None, heaviest: 0, idlest: u32::MAX }, 0);
        for seen in all {
            found.idlest = found.idlest.min(seen.load);
            let dear = |tokens: f64| best.is_some_and(|(least, _)| tokens > least);
            // Whatever it has of the prompt, it costs what is queued there.
            let queued = queued(&seen.row.load, seen.load);
            if dear(queued) {
                continue;
            }
            // It has no more than is said; whether that is so is asked where it may matter.
            let said = self.said(seen.row.slot, seen.seat);
            if dear(queued + COMPUTED * (self.total() - said.most())) {
                continue;
            }
            let tokens = self.weigh(&seen, said, bounds).tokens;
            if dear(tokens) {
                continue;
            }
            let own = (tokens, seen.row.load.last_chosen());
            let order = best.map_or(Ordering::Less, |(tokens, chosen)| {
                own.0.total_cmp(&tokens).then_with(|| own.1.cmp(&chosen))
            });
            if order == Ordering::Greater || !may(&seen) {
                continue;
            }
            if order == Ordering::Less {
                (best, equals) = (Some(own), 1);
                (found.best, found.heaviest) = (Some(seen), seen.load);
            } else {
                equals += 1;
                found.heaviest = found.heaviest.max(seen.load);
                if dice.below(equals) == 0 {
                    found.best = Some(seen);
                }
            }
        }
        found
    }

    /// The load above which nobody is wanted, and the fewest tokens that are queued anywhere.
    fn bounds(&self, all: &[Seen<'_>]) -> (f64, f64) {
        let gate = gate_of(all.iter().map(|s| s.load), self.tuning);
        let idlest = match self.tuning.overlap_decay > 0.0 {
            true => all.iter().map(|s| queued(&s.row.load, s.load)).fold(f64::INFINITY, f64::min),
            false => 0.0,
        };
        (gate, idlest)
    }

    #[inline]
    fn weigh(&self, seen: &Seen<'_>, said: Said, (gate, idlest): (f64, f64)) -> Weighed {
        let (queued, total) = (queued(&seen.row.load, seen.load), self.total());
        let mut cached = self.held.sure(said, seen.seat);
        if self.tuning.overlap_decay > 0.0 {
            let excess = (queued - idlest) / total.max(1.0);
            cached /= 1.0 + self.tuning.overlap_decay * excess.max(0.0);
        }
        let over = f64::from(seen.load) > gate;
        // Above the gate nobody is wanted, but the least of those if there is nobody else.
        let computed = COMPUTED * (total - if over { 0.0 } else { cached });
        let tokens = queued + computed + if over { 1e15 } else { 0.0 };
        debug_assert!(tokens.is_finite(), "{queued} {computed}");
        Weighed { queued, total, cached, over, tokens }
    }

    /// What each of them costs now.
    pub fn weighed(&self, all: &[Seen<'_>]) -> Vec<Weighed> {
        let bounds = self.bounds(all);
        all.iter().map(|seen| self.weigh(seen, self.said(seen.row.slot, seen.seat), bounds)).collect()
    }

    /// By chance, the cheaper the likelier: costs from 0 for the least to 1 for the most, over the temperature.
    fn softly<'a>(&self, costs: SmallVec<[Cost<'a>; 16]>, dice: &mut Dice) -> Option<Seen<'a>> {
        let least = costs.iter().map(|c| c.tokens).fold(f64::INFINITY, f64::min);
        let most = costs.iter().map(|c| c.tokens).fold(f64::NEG_INFINITY, f64::max);
        let span = (most - least).max(f64::MIN_POSITIVE);
        let weight = |c: &Cost<'_>| (-(c.tokens - least) / span / self.tuning.temperature).exp();
        let mut left = dice.fraction() * costs.iter().map(weight).sum::<f64>();
        for cost in &costs {
            left -= weight(cost);
            if left < 0.0 {
                return Some(cost.seen);
            }
        }
        costs.last().map(|cost| cost.seen)
    }
}

#[inline]
fn queued(of: &Load, load: u32) -> f64 {
    f64::from(load) * REQUEST_TOKENS + of.work() as f64
}
