//! Hand-offs by a transfer id that both halves were given: vLLM's Mooncake connector.
//!
//! The prefill side answers when the prompt is computed and keeps its KV until a decode side asks for it by the id;
//! then it sends, and the blocks are free. A decode side may ask before that and waits. Neither is told that the other
//! one is lost: the prefill side gives up after its lease, the decode side after its own patience. An id is good for one
//! transfer; who asks for it again waits in vain.
//!
//! The engine checks no more than that the id is known at that engine and rank. That the KV is the prompt's own is found
//! out by its content here, which marks the text when it is not.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::blocks::BlockId;
use crate::engine::message::{Answer, Call, NoBlocks, Output};
use crate::engine::sequence::{Finish, Give, Handoff, KvState, Part, Partner, SeqId, State, Take, TimerKey};
use crate::engine::timers::{Due, Timer};

/// How many ids that are used up are remembered, and how many decode sides may wait for ids that are not known yet.
const MOST_USED: usize = 65_536;
const MOST_EARLY: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// Prefill side: prompts that are being computed.
    coming: HashMap<String, SeqId>,
    /// Prefill side: computed, and kept.
    kept: HashMap<String, Kept>,
    /// Prefill side: decode sides that came first.
    early: HashMap<String, Early>,
    used: HashSet<String>,
    used_order: VecDeque<String>,
}

#[derive(Debug)]
struct Kept {
    blocks: Vec<BlockId>,
    content: u64,
    tokens: u32,
    rank: u32,
    timer: TimerKey,
    /// To whom it is under way.
    taker: Option<Partner>,
}

#[derive(Debug)]
struct Early {
    partner: Partner,
    rank: Option<u32>,
    timer: TimerKey,
}

/// What a decode engine asks for.
pub(crate) struct Asked {
    pub engine: Option<String>,
    pub transfer: String,
}

impl Transfers {
    pub fn kept_blocks(&self) -> impl Iterator<Item = &BlockId> {
        self.kept.values().flat_map(|kept| &kept.blocks)
    }

    fn knows(&self, transfer: &str) -> bool {
        self.coming.contains_key(transfer) || self.kept.contains_key(transfer) || self.used.contains(transfer)
    }

    /// A sequence is over.
    pub fn close(&mut self, transfer: &str, id: SeqId) {
        if self.coming.get(transfer) == Some(&id) {
            self.coming.remove(transfer);
        }
    }

    pub fn forget_taker(&mut self, transfer: &str) {
        self.early.remove(transfer);
    }

    fn use_up(&mut self, transfer: String) {
        if !self.used.insert(transfer.clone()) {
            return;
        }
        self.used_order.push_back(transfer);
        if self.used_order.len() > MOST_USED
            && let Some(oldest) = self.used_order.pop_front()
        {
            self.used.remove(&oldest);
        }
    }
}

/// The prefill side.
impl Engine {
    /// A sequence whose KV somebody will come for.
    pub(super) fn enter_transfer(&mut self, id: SeqId) {
        let Some(give) = self.seqs.get(&id).and_then(|seq| seq.gives()).cloned() else { return };
        if self.transfers_by_id.knows(&give.transfer) {
            // The second one under this id is computed and not sent.
            self.counters.handoffs.reused += 1;
            if let Some(seq) = self.seqs.get_mut(&id) {
                seq.ask.part = Part::Local;
            }
        } else {
            self.transfers_by_id.coming.insert(give.transfer, id);
        }
        self.waiting.push_back(id);
    }

    /// Keeps a finished prompt's blocks for whoever asks.
    pub(super) fn keep(&mut self, id: SeqId, now: Duration) -> Option<Handoff> {
        let until = now + self.spec.lease();
        let seq = self.seqs.get_mut(&id)?;
        let Give { transfer, rank } = seq.gives()?.clone();
        let kept = Kept {
            blocks: std::mem::take(&mut seq.blocks),
            content: seq.ask.prompt.id.0,
            tokens: seq.ask.prompt.len(),
            rank,
            timer: self.timers.set(until, Timer::Kept(transfer.clone())),
            taker: None,
        };
        let handoff = Handoff {
            engine: self.rank_id(rank),
            request: transfer.clone(),
            blocks: kept.blocks.clone(),
            tokens: kept.tokens,
            cached: None,
        };
        self.transfers_by_id.coming.remove(&transfer);
        self.transfers_by_id.kept.insert(transfer.clone(), kept);
        self.counters.handoffs.made += 1;
        if let Some(early) = self.transfers_by_id.early.remove(&transfer) {
            self.timers.cancel(Some(early.timer));
            self.send_kept(&transfer, early.partner, early.rank, now);
        }
        Some(handoff)
    }

    pub(super) fn kept_too_long(&mut self, transfer: String) {
        if let Some(kept) = self.transfers_by_id.kept.remove(&transfer) {
            self.pool.give_back(kept.blocks);
            self.counters.handoffs.expired += 1;
            self.transfers_by_id.use_up(transfer);
        }
    }

    /// The decode side does not want it any more.
    pub(super) fn drop_kept(&mut self, engine: &str, transfer: &str) {
        let untaken = self.transfers_by_id.kept.get(transfer).is_some_and(|kept| kept.taker.is_none());
        if !untaken || self.rank_of(engine).is_none() {
            return;
        }
        if let Some(kept) = self.transfers_by_id.kept.remove(transfer) {
            self.timers.cancel(Some(kept.timer));
            self.pool.give_back(kept.blocks);
            self.transfers_by_id.use_up(transfer.into());
        }
    }

    /// A decode side asks.
    pub(super) fn asked_for(&mut self, partner: Partner, asked: Asked, now: Duration) {
        let Asked { engine, transfer } = asked;
        let rank = engine.as_deref().map(|engine| self.rank_of(engine));
        if rank == Some(None) {
            let answer = Answer::NoBlocks { ticket: partner.ticket, why: NoBlocks::OtherEngine };
            self.out.push(Output::Reply { link: partner.link, answer });
            return;
        }
        let rank = rank.flatten();
        if self.transfers_by_id.kept.contains_key(&transfer) {
            self.send_kept(&transfer, partner, rank, now);
        } else if self.transfers_by_id.used.contains(&transfer)
            || self.transfers_by_id.early.contains_key(&transfer)
        {
            self.counters.handoffs.reused += 1;
        } else if self.transfers_by_id.early.len() < MOST_EARLY {
            let at = now + self.spec.patience();
            let timer = self.timers.set(at, Timer::ForgetTaker(transfer.clone()));
            self.transfers_by_id.early.insert(transfer, Early { partner, rank, timer });
        }
    }

    /// Somebody has come for KV that is there.
    fn send_kept(&mut self, transfer: &str, partner: Partner, rank: Option<u32>, now: Duration) {
        let Some(kept) = self.transfers_by_id.kept.get_mut(transfer) else { return };
        if kept.taker.is_some() {
            self.counters.handoffs.reused += 1;
            return;
        }
        if rank.is_some_and(|rank| rank != kept.rank) {
            // Another rank was asked, which knows nothing of it.
            self.counters.handoffs.wrong += 1;
            return;
        }
        kept.taker = Some(partner);
        let (tokens, timer) = (kept.tokens, kept.timer);
        self.timers.cancel(Some(timer));
        let at = self.transfer_end(tokens, now);
        if at <= now {
            self.pushed(transfer);
        } else {
            self.timers.set(at, Timer::Pushed(transfer.into()));
        }
    }

    pub(super) fn pushed(&mut self, transfer: &str) {
        self.transfers = self.transfers.saturating_sub(1);
        let Some(kept) = self.transfers_by_id.kept.remove(transfer) else { return };
        self.pool.give_back(kept.blocks);
        self.transfers_by_id.use_up(transfer.into());
        if let Some(partner) = kept.taker {
            let answer = Answer::Kv { ticket: partner.ticket, content: kept.content };
            self.out.push(Output::Reply { link: partner.link, answer });
        }
    }

    /// A decode engine is gone: nobody waits there any more.
    pub(super) fn lose_takers(&mut self, link: u64) {
        let early = self.transfers_by_id.early.iter().filter(|(_, early)| early.partner.link == link);
        for transfer in early.map(|(transfer, _)| transfer.clone()).collect::<Vec<_>>() {
            if let Some(early) = self.transfers_by_id.early.remove(&transfer) {
                self.timers.cancel(Some(early.timer));
            }
        }
    }

    /// The id of one of this engine's ranks.
    #[must_use]
    pub fn rank_id(&self, rank: u32) -> String {
        if self.spec.dp_size > 1 { format!("{}_dp{rank}", self.id) } else { self.id.clone() }
    }

    fn rank_of(&self, engine: &str) -> Option<u32> {
        (0..self.spec.dp_size.max(1)).find(|rank| self.rank_id(*rank) == engine)
    }
}

/// The decode side.
impl Engine {
    /// Takes blocks for the sequence at the head of the queue and asks for its KV. Returns `false` when there are no
    /// blocks.
    pub(super) fn start_taking(&mut self, id: SeqId, now: Duration) -> bool {
        let Some(cached) = self.take_blocks(id, now) else { return false };
        self.waiting.pop_front();
        let deadline = now + self.spec.patience();
        let Some(seq) = self.seqs.get_mut(&id) else { return true };
        let Part::Take(Take { transfer, engine, at }) = seq.ask.part.clone() else { return true };
        seq.state = State::Receiving;
        seq.pulled = seq.target - cached;
        self.receiving += 1;
        self.set_timer(id, deadline, Due::TakeTimeout);
        self.out.push(Output::Send { to: at, call: Call::Take { ticket: id, engine, transfer } });
        true
    }

    /// KV that was asked for by its transfer id is there.
    pub(super) fn taken(&mut self, id: SeqId, content: u64, now: Duration) {
        let Some(seq) = self.seqs.get_mut(&id).filter(|seq| seq.state == State::Receiving) else { return };
        self.timers.cancel(seq.timer.take());
        if content == seq.ask.prompt.id.0 {
            self.counters.handoffs.right += 1;
        } else {
            seq.kv = KvState::Wrong;
            self.counters.handoffs.wrong += 1;
        }
        self.counters.external_hits += u64::from(seq.pulled);
        if seq.left {
            self.end(id, Finish::Aborted, now);
        } else {
            self.start_decoding(id);
        }
    }

    pub(super) fn take_timed_out(&mut self, id: SeqId, now: Duration) {
        self.counters.handoffs.expired += 1;
        self.load_failed(id, now);
    }

    /// The client left before the KV was asked for: the prefill side is told that nobody will.
    pub(super) fn release_untaken(&mut self, id: SeqId) {
        let Some(Part::Take(take)) = self.seqs.get(&id).map(|seq| &seq.ask.part) else { return };
        let Take { transfer, engine, at } = take.clone();
        let Some(engine) = engine else { return };
        let call = Call::Release { engine, request: transfer, reader: String::new() };
        self.out.push(Output::Send { to: at, call });
    }
}
