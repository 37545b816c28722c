//! A simulated engine, as a pure model: queue, step-loop batching, timing, KV blocks, hand-offs with their leases.
//!
//! Decides what an engine does with a request and when. It has no clock, socket or runtime: whoever drives it passes
//! the time since the engine's start (`now`, never going back), calls [`Engine::poll`] when [`Engine::next_wake`] has
//! come, and carries out the [`Output`]s. The same seed and the same calls give the same run.
//!
//! How an engine behaves was measured on real ones where that was possible (vLLM 0.32.0 with NIXL and SGLang 0.5.23
//! with Mooncake, both on CPU); docs/simulated-engines.md lists what is measured, read in the source, or assumed.
//!
//! It does not know HTTP: the text of refusals, the shape of answers and the JSON of a hand-off live in `serve`.

pub mod blocks;
pub mod message;
mod news;
mod nixl;
pub mod profile;
mod rooms;
pub mod sequence;
pub mod spec;
pub mod stats;
mod step;
mod timers;
mod transfers;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use blocks::BlockPool;
use message::{Answer, Call, LinkId, Output, PeerAddr};
use sequence::{Ask, Finish, Part, SeqId, Sequence, State};
use spec::{EngineSpec, Role};
use stats::{Counters, Stats};
use timers::Timers;

/// One simulated engine.
#[derive(Debug)]
pub struct Engine {
    spec: EngineSpec,
    /// Fresh for every start, as vLLM's `engine_id` is.
    id: String,
    dice: fastrand::Rng,
    pool: BlockPool,
    seqs: HashMap<SeqId, Sequence>,
    last_seq: SeqId,
    waiting: VecDeque<SeqId>,
    running: Vec<SeqId>,
    /// Sequences in [`State::Receiving`].
    receiving: usize,
    /// Transfers that share this engine's link now.
    transfers: u32,
    step: Option<step::Step>,
    timers: Timers,
    nixl: nixl::Nixl,
    rooms: rooms::Rooms,
    transfers_by_id: transfers::Transfers,
    counters: Counters,
    out: Vec<Output>,
    news: news::News,
    dead: bool,
}

impl Engine {
    /// A fresh engine with an empty cache. `id` must differ from every other engine's and from its own earlier starts.
    #[must_use]
    pub fn new(mut spec: EngineSpec, id: String) -> Self {
        spec.kv_blocks = spec.kv_blocks.max(1);
        spec.block_size = spec.block_size.max(1);
        // As at a real start: the context must fit the cache.
        spec.max_model_len = spec.max_model_len.min(spec.kv_blocks.saturating_mul(spec.block_size));
        let mut pool = BlockPool::new(spec.kv_blocks, spec.caches_prompts());
        if spec.kv_events.is_some() {
            pool.record();
        }
        Self {
            id,
            dice: fastrand::Rng::with_seed(spec.seed),
            pool,
            seqs: HashMap::new(),
            last_seq: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            receiving: 0,
            transfers: 0,
            step: None,
            timers: Timers::default(),
            nixl: nixl::Nixl::default(),
            rooms: rooms::Rooms::default(),
            transfers_by_id: transfers::Transfers::default(),
            counters: Counters::default(),
            out: Vec::new(),
            news: news::News::new(spec.block_size),
            dead: false,
            spec,
        }
    }

    #[must_use]
    pub fn spec(&self) -> &EngineSpec {
        &self.spec
    }

    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether the engine core died of what a request said.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Takes in a sequence. What becomes of it comes as outputs.
    pub fn submit(&mut self, ask: Ask, now: Duration) -> SeqId {
        self.last_seq += 1;
        let id = self.last_seq;
        if self.dead {
            self.out.push(Output::Done { seq: id, finish: Finish::Dead });
            return id;
        }
        self.counters.accepted += 1;
        let chain = ask.prompt.chain(self.spec.block_size);
        let seq = Sequence::new(ask, chain, now);
        let meets = matches!(seq.ask.part, Part::Room { .. }) && self.spec.role == Role::Prefill;
        let gives = seq.gives().is_some();
        let pulls = matches!(seq.ask.part, Part::Pull(_)) && self.spec.kind() == spec::Kind::Vllm;
        self.seqs.insert(id, seq);
        if meets {
            self.enter_room(id, now);
        } else if gives {
            self.enter_transfer(id);
        } else {
            self.waiting.push_back(id);
            if pulls {
                self.start_beating(now);
            }
        }
        id
    }

    /// The client of a sequence left.
    pub fn abort(&mut self, id: SeqId, now: Duration) {
        let ends_now = self.ends_prompt_now(id);
        let Some(seq) = self.seqs.get(&id).filter(|seq| !seq.left) else { return };
        match (&seq.ask.part, seq.state) {
            // Too late to stop: the step that ends the prompt runs, and its end pins the blocks.
            (Part::Hold(_) | Part::Give(_), State::Running) if ends_now => self.set_left(id),
            // The blocks must stay until the transfer has ended.
            (Part::Pull(_) | Part::Take(_), State::Receiving) => self.set_left(id),
            (Part::Take(_), State::Waiting) => {
                self.release_untaken(id);
                self.end(id, Finish::Aborted, now);
            }
            (Part::Room { .. }, State::Receiving) => self.leave_room(id),
            (Part::Pull(_), State::Waiting) => {
                self.release_remote(id);
                self.end(id, Finish::Aborted, now);
            }
            (Part::Room { .. }, State::Sending) => self.break_off_sending(id),
            (Part::Room { .. }, _) => {
                self.fail_partner(id, "Aborted by AbortReq.");
                self.end(id, Finish::Aborted, now);
            }
            _ => self.end(id, Finish::Aborted, now),
        }
    }

    fn in_room(&self, id: SeqId) -> bool {
        self.seqs.get(&id).is_some_and(|seq| seq.room().is_some())
    }

    /// Marks a sequence that nobody waits for; its end is reported as an abort.
    fn set_left(&mut self, id: SeqId) {
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.left = true;
        }
    }

    /// SGLang `/abort_request`: aborts every sequence whose name starts with `prefix`. Returns how many.
    pub fn abort_named(&mut self, prefix: &str, now: Duration) -> usize {
        let ids: Vec<SeqId> =
            self.seqs.iter().filter(|(_, seq)| seq.ask.name.starts_with(prefix)).map(|(id, _)| *id).collect();
        for id in &ids {
            self.abort(*id, now);
        }
        ids.len()
    }

    /// A peer calls.
    pub fn receive(&mut self, link: LinkId, call: Call, now: Duration) {
        if self.dead {
            return;
        }
        match call {
            Call::Read { ticket, engine, request, reader, blocks, tp_size } => {
                let wanted = nixl::Wanted { engine, request, reader, blocks, tp_size };
                let answer = self.read_blocks(ticket, &wanted);
                self.out.push(Output::Reply { link, answer });
            }
            Call::Release { engine, request, reader } => {
                self.drop_kept(&engine, &request);
                self.release_pin(&engine, &request, reader);
            }
            Call::Take { ticket, engine, transfer, from } => {
                let partner = sequence::Partner { link, ticket };
                self.asked_for(partner, transfers::Asked { engine, transfer, from }, now);
            }
            Call::Beat { engine, requests } => self.extend_leases(&engine, &requests, now),
            Call::Join { ticket, room } => self.join_room(sequence::Partner { link, ticket }, room, now),
            Call::Leave { ticket, room } => self.partner_left(sequence::Partner { link, ticket }, room, now),
            Call::Ping => {}
        }
    }

    /// A peer answers an earlier call.
    pub fn answered(&mut self, answer: Answer, now: Duration) {
        match answer {
            Answer::Blocks { ticket, contents, lease } => self.blocks_read(ticket, &contents, lease, now),
            Answer::NoBlocks { ticket, why } => self.read_refused(ticket, why, now),
            Answer::Kv { ticket, content } if self.in_room(ticket) => self.kv_arrived(ticket, content, now),
            Answer::Kv { ticket, content } => self.taken(ticket, content, now),
            Answer::RoomFailed { ticket, why } => self.room_failed(ticket, &why, now),
        }
    }

    /// A pinged bootstrap server is there.
    pub fn pinged(&mut self, at: &PeerAddr) {
        self.rooms.heard_from(at);
    }

    /// The peer behind a link is gone: whoever sends it KV fails.
    pub fn link_gone(&mut self, link: LinkId, now: Duration) {
        self.lose_partners(link, now);
        self.lose_takers(link);
    }

    /// A call could not be delivered, or the peer went away before it answered.
    pub fn unreachable(&mut self, to: &PeerAddr, call: &Call, now: Duration) {
        match call {
            Call::Read { ticket, engine, .. } => self.read_unreachable(*ticket, engine, now),
            Call::Release { .. } | Call::Beat { .. } => self.counters.failed_notifications += 1,
            Call::Join { ticket, .. } => self.join_unreachable(*ticket, to, now),
            Call::Take { ticket, .. } => self.take_unreachable(*ticket, now),
            Call::Leave { ticket, .. } => self.room_failed(*ticket, "Aborted by AbortReq.", now),
            Call::Ping => self.missed_ping(to, now),
        }
    }

    /// Moves on to `now`: leases and timeouts, the end of a step, the start of the next one.
    pub fn poll(&mut self, now: Duration) {
        while let Some(timer) = self.timers.due(now) {
            self.fire(timer, now);
        }
        if !self.dead {
            self.run_steps(now);
        }
    }

    /// When [`Engine::poll`] has something to do next, if nothing is asked before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Duration> {
        let step = self.step.as_ref().map(|step| step.end);
        match (step, self.timers.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Takes the outputs since the last call.
    pub fn take_outputs(&mut self, into: &mut Vec<Output>) {
        into.append(&mut self.out);
    }

    /// What happened to its cached blocks since this was last asked. Nothing where it does not publish.
    pub fn take_events(&mut self) -> Vec<baton_core::kv::Event> {
        self.news.take(&mut self.pool)
    }

    /// Forgets all cached prompts.
    pub fn flush_cache(&mut self) {
        self.pool.forget();
    }

    /// Sequences that are live.
    #[must_use]
    pub fn live(&self) -> usize {
        self.seqs.len()
    }

    /// Sequences in the queue (SGLang: also those that wait for their other half).
    #[must_use]
    pub fn queued(&self) -> usize {
        self.waiting.len() + self.in_state(State::Meeting)
    }

    /// Sequences in the batch.
    #[must_use]
    pub fn batched(&self) -> usize {
        self.running.len()
    }

    /// Sequences in a state; walks all of them, for metrics only.
    #[must_use]
    pub(crate) fn in_state(&self, state: State) -> usize {
        self.seqs.values().filter(|seq| seq.state == state).count()
    }

    /// Where sequences stand on their way through a room; walks all of them, for metrics only.
    #[must_use]
    pub fn room_queues(&self) -> RoomQueues {
        RoomQueues {
            meeting: self.in_state(State::Meeting),
            waiting: self.waiting.len(),
            receiving: self.receiving,
            sending: self.in_state(State::Sending),
        }
    }

    /// Sets all counters to zero; what runs goes on.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }

    /// Fraction of the KV blocks that is held or pinned.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        let total = self.pool.total();
        f64::from(total - self.pool.free()) / f64::from(total.max(1))
    }

    /// Blocks that nobody holds.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.pool.free()
    }

    /// The numbers of this engine now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut blocks = stats::BlockStats {
            total: self.pool.total().into(),
            free: self.pool.free().into(),
            ..stats::BlockStats::default()
        };
        // Shared prompt blocks have several holders and count once.
        let mut seen = std::collections::HashSet::new();
        blocks.held = count_new(&mut seen, self.seqs.values().flat_map(|seq| &seq.blocks));
        let kept = self.nixl.pinned_blocks().chain(self.transfers_by_id.kept_blocks());
        blocks.pinned = count_new(&mut seen, kept);
        blocks.leaked = blocks.total.saturating_sub(blocks.free + blocks.held + blocks.pinned);
        let waiting = self.queued() as u64;
        Stats {
            engines: 1,
            handoffs: self.counters.handoffs,
            blocks,
            requests: stats::RequestStats {
                accepted: self.counters.accepted,
                finished: self.counters.ended.length + self.counters.ended.stop,
                aborted: self.counters.ended.abort,
                failed: self.counters.ended.error,
                running: self.seqs.len() as u64 - waiting,
                waiting,
                ..stats::RequestStats::default()
            },
            tokens: self.counters.tokens,
            ..Stats::default()
        }
    }

    /// The engine core dies: every sequence ends, and nothing is accepted any more.
    fn die(&mut self, why: &'static str) {
        self.dead = true;
        let ids: Vec<SeqId> = self.seqs.keys().copied().collect();
        for seq in ids {
            self.counters.ended.error += 1;
            self.out.push(Output::Done { seq, finish: Finish::Dead });
        }
        self.seqs.clear();
        self.waiting.clear();
        self.running.clear();
        self.step = None;
        self.timers = Timers::default();
        self.receiving = 0;
        self.nixl = nixl::Nixl::default();
        self.rooms = rooms::Rooms::default();
        self.transfers_by_id = transfers::Transfers::default();
        self.pool = BlockPool::new(self.spec.kv_blocks, self.spec.caches_prompts());
        self.out.push(Output::Died { why });
    }

    /// Ends a sequence: gives its blocks back and reports.
    fn end(&mut self, id: SeqId, finish: Finish, now: Duration) {
        let Some(mut seq) = self.seqs.remove(&id) else { return };
        self.timers.cancel(seq.timer.take());
        match seq.state {
            State::Waiting => self.waiting.retain(|other| *other != id),
            State::Running => self.running.retain(|other| *other != id),
            State::Receiving => self.receiving -= 1,
            State::Sending => self.transfers = self.transfers.saturating_sub(1),
            State::Meeting | State::Stuck => {}
        }
        if let Some((room, _)) = seq.room() {
            self.rooms.close(room, id);
        }
        if let Some(give) = seq.gives() {
            self.transfers_by_id.close(&give.transfer, id);
        }
        self.pool.give_back(std::mem::take(&mut seq.blocks));
        // Whoever left is not told how it went on.
        let finish = if seq.left { Finish::Aborted } else { finish };
        self.count_end(&seq, &finish, now);
        self.out.push(Output::Done { seq: id, finish });
    }
}

/// How many sequences are at each point of a rendezvous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomQueues {
    /// Prefill side: no decode side yet.
    pub meeting: usize,
    /// In the queue.
    pub waiting: usize,
    /// Decode side: KV is under way.
    pub receiving: usize,
    /// Prefill side: KV is under way.
    pub sending: usize,
}

fn count_new<'a>(seen: &mut std::collections::HashSet<u32>, ids: impl Iterator<Item = &'a u32>) -> u64 {
    ids.filter(|id| seen.insert(**id)).count() as u64
}
