//! Hand-offs by an id that both halves were given: vLLM's Mooncake connector, MoRI-IO's WRITE, TensorRT-LLM.
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
use crate::engine::message::{Answer, Call, NoBlocks, Output, PeerAddr};
use crate::engine::sequence::{Finish, Give, Handoff, KvState, Part, Partner, SeqId, State, Take, TimerKey};
use crate::engine::spec::Kind;
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
    to: Option<PeerAddr>,
    timer: TimerKey,
    /// To whom it is under way.
    taker: Option<Partner>,
}

#[derive(Debug)]
struct Early {
    partner: Partner,
    who: Who,
    timer: TimerKey,
}

/// What a decode engine asks for.
pub(crate) struct Asked {
    pub engine: Option<String>,
    pub transfer: String,
    pub from: Option<PeerAddr>,
}

/// Who asks whom.
#[derive(Debug)]
struct Who {
    rank: Option<u32>,
    from: Option<PeerAddr>,
}

impl Transfers {
    pub fn kept_blocks(&self) -> impl Iterator<Item = &BlockId> {
        self.kept.values().flat_map(|kept| &kept.blocks)
    }

    /// Whether an id is in use, or was.
    pub fn knows(&self, transfer: &str) -> bool {
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
            self.waiting.push_back(id);
            return;
        }
        let waits = give.waits && !self.transfers_by_id.early.contains_key(&give.transfer);
        self.transfers_by_id.coming.insert(give.transfer, id);
        if let Some(seq) = self.seqs.get_mut(&id).filter(|_| waits) {
            seq.state = State::Meeting;
        } else {
            self.waiting.push_back(id);
        }
    }

    /// Keeps a finished prompt's blocks for whoever asks.
    pub(super) fn keep(&mut self, id: SeqId, now: Duration) -> Option<Handoff> {
        let until = now + self.spec.lease();
        let seq = self.seqs.get_mut(&id)?;
        let Give { transfer, rank, to, .. } = seq.gives()?.clone();
        let kept = Kept {
            blocks: std::mem::take(&mut seq.blocks),
            content: seq.ask.prompt.id.0,
            tokens: seq.ask.prompt.len(),
            rank,
            to,
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
            self.send_kept(&transfer, early.partner, &early.who, now);
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
        let Asked { engine, transfer, from } = asked;
        let rank = engine.as_deref().map(|engine| self.rank_of(engine));
        if rank == Some(None) {
            let answer = Answer::NoBlocks { ticket: partner.ticket, why: NoBlocks::OtherEngine };
            self.out.push(Output::Reply { link: partner.link, answer });
            return;
        }
        let who = Who { rank: rank.flatten(), from };
        if self.transfers_by_id.kept.contains_key(&transfer) {
            self.send_kept(&transfer, partner, &who, now);
        } else if self.transfers_by_id.used.contains(&transfer)
            || self.transfers_by_id.early.contains_key(&transfer)
        {
            self.counters.handoffs.reused += 1;
        } else if self.transfers_by_id.early.len() < MOST_EARLY {
            let at = now + self.spec.patience();
            let timer = self.timers.set(at, Timer::ForgetTaker(transfer.clone()));
            self.meet(&transfer);
            self.transfers_by_id.early.insert(transfer, Early { partner, who, timer });
        }
    }

    /// Somebody has come for a prompt that was not to be computed before.
    fn meet(&mut self, transfer: &str) {
        let Some(id) = self.transfers_by_id.coming.get(transfer).copied() else { return };
        if let Some(seq) = self.seqs.get_mut(&id).filter(|seq| seq.state == State::Meeting) {
            seq.state = State::Waiting;
            self.waiting.push_back(id);
        }
    }

    /// Somebody has come for KV that is there.
    fn send_kept(&mut self, transfer: &str, partner: Partner, who: &Who, now: Duration) {
        let Some(kept) = self.transfers_by_id.kept.get_mut(transfer) else { return };
        if kept.taker.is_some() {
            self.counters.handoffs.reused += 1;
            return;
        }
        let other_rank = who.rank.is_some_and(|rank| rank != kept.rank);
        if other_rank || kept.to.as_ref().is_some_and(|to| who.from.as_ref() != Some(to)) {
            // Another rank was asked, which knows nothing of it; or another engine asks than the one that was named.
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

    /// Whether a transfer id is in use, or was.
    #[must_use]
    pub fn knows_transfer(&self, transfer: &str) -> bool {
        self.transfers_by_id.knows(transfer)
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
        let Part::Take(Take { transfer, engine, at, from, .. }) = seq.ask.part.clone() else { return true };
        seq.state = State::Receiving;
        seq.pulled = seq.target - cached;
        self.receiving += 1;
        self.set_timer(id, deadline, Due::TakeTimeout);
        if let Some(to) = at {
            self.out.push(Output::Send { to, call: Call::Take { ticket: id, engine, transfer, from } });
        }
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
        let first = matches!(&seq.ask.part, Part::Take(take) if take.first);
        if seq.left {
            self.end(id, Finish::Aborted, now);
        } else if first {
            seq.computed = seq.target;
            seq.state = State::Running;
            self.receiving -= 1;
            self.running.push(id);
            self.prompt_computed(id);
            self.add_token(id, now);
        } else {
            self.start_decoding(id);
        }
    }

    /// The answer is made as if KV had come.
    pub(super) fn start_hollow(&mut self, id: SeqId, now: Duration) -> bool {
        if self.take_blocks(id, now).is_none() {
            return false;
        }
        self.waiting.pop_front();
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.state = State::Receiving;
            seq.kv = KvState::Wrong;
            self.receiving += 1;
            self.counters.handoffs.wrong += 1;
        }
        self.start_decoding(id);
        true
    }

    /// The one that was to be asked is not there. MoRI-IO's notice has no answer, so nothing is noticed.
    pub(super) fn take_unreachable(&mut self, id: SeqId, now: Duration) {
        if self.spec.kind() != Kind::MoriioWrite {
            self.load_failed(id, now);
        }
    }

    pub(super) fn take_timed_out(&mut self, id: SeqId, now: Duration) {
        self.counters.handoffs.expired += 1;
        self.load_failed(id, now);
    }

    /// The client left before the KV was asked for: the prefill side is told that nobody will.
    pub(super) fn release_untaken(&mut self, id: SeqId) {
        let Some(Part::Take(take)) = self.seqs.get(&id).map(|seq| &seq.ask.part) else { return };
        let Take { transfer, engine, at, .. } = take.clone();
        let Some((engine, at)) = engine.zip(at).filter(|_| self.spec.kind() == Kind::Mooncake) else {
            return;
        };
        let call = Call::Release { engine, request: transfer, reader: String::new() };
        self.out.push(Output::Send { to: at, call });
    }
}
