//! Who has how much of one prompt: what workers say themselves, and what was sent where. The one place that says which
//! of the two counts, for all strategies that look prompts up.
//!
//! A worker that tells all that it holds is believed, and what was sent to it before does not count. Of one that tells
//! what it stored since it is heard, the larger of both counts. Of all others, and of prompts whose tokens are not
//! known, there is only what was sent, which is a guess.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Taken;
use super::policy::holder;
use super::receipt::Receipt;
use crate::ask::Ask;
use crate::fleet::{Fleet, Seat};
use crate::kv::{Known, KvIndex, Told, Trust};
use crate::prefix::{Holder, Memory};
use crate::prompt::Blocks;
use crate::size::Unknown;
use crate::time::Instant;

/// What there is to look a prompt up in.
#[derive(Clone, Copy, Debug)]
pub struct Indexes<'a> {
    /// What was sent where, in blocks of so many tokens.
    pub sent: &'a Memory,
    pub block_tokens: usize,
    /// What workers say that they hold, if that counts.
    pub events: Option<&'a Arc<KvIndex>>,
}

/// One prompt, looked up once.
#[derive(Debug)]
pub struct Holders<'a> {
    indexes: Indexes<'a>,
    pub blocks: Arc<Blocks>,
    /// What was sent where, by slot.
    found: SmallVec<[(Holder, u32); 8]>,
    told: Option<Told>,
    /// Why the prompt's tokens are not known, if they were asked for.
    unknown: Option<Unknown>,
    now: Instant,
    /// Where the last worker was that is not in `found`: they are asked for in the order of slots, mostly.
    gap: Cell<Gap>,
}

/// How much of it a worker has, by what it tells and by what was sent to it. Which of them counts is seen later, and only
/// where it matters.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    told: f64,
    sent: f64,
}

impl Said {
    /// It has no more.
    #[inline]
    pub fn most(self) -> f64 {
        self.told.max(self.sent)
    }
}

/// Slots of which none was sent any of it, the last one not included.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    from: u32,
    to: u32,
}

impl Gap {
    #[inline]
    fn contains(self, slot: u32) -> bool {
        self.from <= slot && slot < self.to
    }
}

/// Do workers tell what they hold, so that a prompt's tokens are looked up?
pub fn looks_up(events: Option<&Arc<KvIndex>>) -> bool {
    events.is_some_and(|events| Told::any(events))
}

impl<'a> Holders<'a> {
    pub fn of(indexes: Indexes<'a>, fleet: &Fleet, ask: &Ask, now: Instant) -> Holders<'a> {
        indexes.sent.keep_only(fleet.version(), fleet.seats().map(|seat| holder(seat)));
        let blocks = indexes.sent.cut(&ask.prompt, indexes.block_tokens);
        let found = indexes.sent.find(&blocks, now);
        let told = indexes.events.and_then(|events| {
            events.want();
            Told::of(events, ask)
        });
        let unknown = if told.is_none() { ask.prompt.unknown() } else { None };
        Holders { indexes, blocks, found, told, unknown, now, gap: Cell::default() }
    }

    /// What was sent is known by the beginnings of prompts alone.
    pub fn by_heads(&self) -> bool {
        matches!(self.indexes.sent, Memory::Heads(_))
    }

    /// What the worker says itself.
    pub fn known(&self, seat: &Seat) -> Option<Known> {
        self.told.as_ref().and_then(|told| told.by(seat, self.now))
    }

    /// How much of it the worker has: of what it tells, its share of the prompt, and of what was sent to it, so many
    /// first blocks, each as much as the two functions say. No share is nothing, and so are no blocks.
    pub fn has(&self, seat: &Seat, share: impl Fn(f64) -> f64, sent: impl Fn(u32) -> f64) -> f64 {
        self.sure(self.said(seat.slot, seat, share, sent), seat)
    }

    /// What each of the two says of a worker whose slot is at hand. Little is read for it.
    #[inline]
    pub fn said(
        &self,
        slot: u32,
        seat: &Seat,
        share: impl Fn(f64) -> f64,
        sent: impl Fn(u32) -> f64,
    ) -> Said {
        let told = self.told.as_ref().map_or(0.0, |told| told.share(seat));
        let told = if told > 0.0 { share(told) } else { 0.0 };
        Said { told, sent: self.sent(slot, seat).map_or(0.0, sent) }
    }

    /// Which of what was said of the worker counts.
    #[inline]
    pub fn sure(&self, said: Said, seat: &Seat) -> f64 {
        if said.most() == 0.0 {
            return 0.0;
        }
        match self.told.as_ref().and_then(|told| told.trust(seat)) {
            Some(Trust::Whole) => said.told,
            Some(_) => said.most(),
            None => said.sent,
        }
    }

    /// The same in whole percent (AIBrix).
    pub fn percent(&self, seat: &Seat) -> u32 {
        let all = self.blocks.hashes.len().max(1) as u64;
        // A share of 29 % times 100 is a little less than 29.
        let told = |share: f64| (share * 100.0 + 1e-6).floor();
        let sent = |blocks: u32| (u64::from(blocks) * 100 / all) as f64;
        self.has(seat, told, sent).clamp(0.0, 100.0) as u32
    }

    /// First blocks of it that were sent to the worker before.
    #[inline]
    fn sent(&self, slot: u32, seat: &Seat) -> Option<u32> {
        if self.gap.get().contains(slot) { None } else { self.sent_near(slot, seat) }
    }

    /// The same, and between whom the worker stands if it is none of them.
    fn sent_near(&self, slot: u32, seat: &Seat) -> Option<u32> {
        let at = self.found.partition_point(|(of, _)| of.slot < slot);
        let next = self.found.get(at);
        if let Some((of, blocks)) = next.filter(|(of, _)| of.slot == slot) {
            return (*of == holder(seat)).then_some(*blocks);
        }
        let before = at.checked_sub(1).and_then(|at| self.found.get(at));
        let from = before.map_or(0, |(of, _)| of.slot + 1);
        self.gap.set(Gap { from, to: next.map_or(u32::MAX, |(of, _)| of.slot) });
        None
    }

    /// Does anybody have more of it than this share, or so many blocks that they count?
    pub fn is_hit(&self, share: f64, counts: impl Fn(u32) -> bool) -> bool {
        let told = self.told.as_ref().map_or(0.0, Told::most);
        told > share || self.found.iter().any(|(_, blocks)| counts(*blocks))
    }

    /// The prompt goes to this worker. It counts as held there from now on, by both indexes.
    pub fn goes_to(&self, taken: &mut Taken, receipt: &mut Receipt) {
        let seat = &taken.seat;
        let known = self.known(seat);
        if let Some(events) = self.indexes.events {
            events.chose(known.map_or(Trust::None, |known| known.trust));
            receipt.step("prefix index", known.is_some(), || {
                known.map_or_else(|| self.guess(), |known| known.to_string())
            });
        }
        let expected = self.told.as_ref().and_then(|told| told.expect(seat));
        let mark = self.indexes.sent.hold(&self.blocks, holder(seat), self.now);
        (taken.expected, taken.mark) = (expected, mark);
    }

    /// Why events say nothing of the chosen one.
    fn guess(&self) -> String {
        if let Some(why) = &self.unknown {
            return format!("by what was sent, a guess: the prompt's tokens are not known: {why}");
        }
        let whose = if self.told.is_some() { "this" } else { "no" };
        let how = if self.told.is_some() { "does not tell" } else { "tells" };
        format!("by what was sent, a guess: {whose} worker {how} what it holds")
    }

    /// What was found, in words.
    pub fn summary(&self) -> String {
        let (blocks, some) = (self.blocks.hashes.len(), self.found.len());
        let told = match &self.told {
            Some(told) => format!("; by events somebody has {:.0} % of it", told.most() * 100.0),
            None => String::new(),
        };
        format!("{blocks} blocks; by what was sent, which is a guess, {some} workers have some of it{told}")
    }

    /// Somebody has some of it, by either index.
    pub fn anybody(&self) -> bool {
        self.is_hit(0.0, |blocks| blocks > 0)
    }
}
