//! vLLM's NIXL connector: pinned hand-offs with leases on the prefill side, reads on the decode side.
//!
//! The prefill side keeps a finished prompt's blocks until the decode side says that it has read them, or until the
//! lease (30 s) ends; the decode side renews leases while its requests wait, every sixth of a lease by two thirds. A read is not checked by the engine: it
//! gets what is in the blocks. Here the blocks' content is compared with the decode side's own prompt, so a wrong or
//! a late hand-off can be told from a right one: it marks the text instead of corrupting it.
//!
//! What kills a real decode engine core kills this one (measured on vLLM 0.32.0; see docs/simulated-engines.md).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::blocks::BlockId;
use crate::engine::message::{Answer, Call, Lease, NoBlocks, Output, PeerAddr};
use crate::engine::sequence::{
    Finish, Handoff, KvState, Part, RemoteBlocks, RemoteKv, SeqId, State, TimerKey,
};
use crate::engine::spec::{Kind, LoadFailure};
use crate::engine::timers::{Due, Timer};

/// How long a handshake with a silent side channel takes, in seconds.
const HANDSHAKE: f64 = 5.0;
/// When an engine that was given no `remote_engine_id` was found dead, in seconds (a measured upper bound).
const LATE_DEATH: f64 = 45.0;
/// How many ended hand-offs are remembered, to tell an expired one from one that never was.
const MOST_ENDED: usize = 8192;
/// This engine's tensor-parallel size.
const TP_SIZE: u32 = 1;

/// The connector's state.
#[derive(Debug, Default)]
pub(crate) struct Nixl {
    pins: HashMap<String, Pin>,
    ended: HashMap<String, Ended>,
    ended_order: VecDeque<String>,
    beating: bool,
    /// Engines that were reached before.
    known: HashSet<String>,
    /// Engines whose layout was once given wrongly: nothing from them loads any more.
    spoilt: HashSet<String>,
}

/// Blocks kept for a decode engine.
#[derive(Debug)]
struct Pin {
    blocks: Vec<BlockId>,
    until: Duration,
    timer: TimerKey,
}

/// How a hand-off ended.
#[derive(Debug)]
enum Ended {
    ReadBy(String),
    Expired,
}

/// What a decode engine asks to read.
pub(crate) struct Wanted {
    pub engine: String,
    pub request: String,
    pub reader: String,
    pub blocks: Vec<u32>,
    pub tp_size: u32,
}

impl Nixl {
    pub fn pinned_blocks(&self) -> impl Iterator<Item = &BlockId> {
        self.pins.values().flat_map(|pin| &pin.blocks)
    }

    fn remember(&mut self, name: String, ended: Ended) {
        if self.ended_order.len() >= MOST_ENDED
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        self.ended_order.push_back(name.clone());
        self.ended.insert(name, ended);
    }
}

/// The prefill side.
impl Engine {
    /// Moves a finished sequence's blocks under a lease and says what its decode leg needs.
    pub(super) fn pin(&mut self, id: SeqId, now: Duration) -> Option<Handoff> {
        let until = now + self.spec.lease();
        let seq = self.seqs.get_mut(&id)?;
        let Part::Hold(request) = seq.ask.part.clone() else { return None };
        let blocks = std::mem::take(&mut seq.blocks);
        let handoff = Handoff {
            engine: self.id.clone(),
            request: request.clone(),
            blocks: blocks.clone(),
            tokens: seq.context().saturating_sub(1),
            cached: (seq.made == 1).then_some(seq.cached),
        };
        let timer = self.timers.set(until, Timer::Lease(request.clone()));
        self.nixl.pins.insert(request, Pin { blocks, until, timer });
        self.counters.handoffs.made += 1;
        Some(handoff)
    }

    pub(super) fn lease_due(&mut self, name: String, now: Duration) {
        let Some(pin) = self.nixl.pins.get_mut(&name) else { return };
        if pin.until > now {
            pin.timer = self.timers.set(pin.until, Timer::Lease(name));
            return;
        }
        if let Some(pin) = self.nixl.pins.remove(&name) {
            self.pool.give_back(pin.blocks);
            self.counters.handoffs.expired += 1;
            self.nixl.remember(name, Ended::Expired);
        }
    }

    pub(super) fn extend_leases(&mut self, engine: &str, requests: &[String], now: Duration) {
        if engine != self.id {
            return;
        }
        let until = now + self.spec.lease() * 2 / 3;
        for request in requests {
            if let Some(pin) = self.nixl.pins.get_mut(request) {
                pin.until = pin.until.max(until);
            }
        }
    }

    pub(super) fn release_pin(&mut self, engine: &str, request: &str, reader: String) {
        if engine != self.id {
            return;
        }
        if let Some(pin) = self.nixl.pins.remove(request) {
            self.timers.cancel(Some(pin.timer));
            self.pool.give_back(pin.blocks);
            self.nixl.remember(request.into(), Ended::ReadBy(reader));
        } else if matches!(self.nixl.ended.get(request), Some(Ended::Expired)) {
            self.counters.late_notices += 1;
        }
    }

    pub(super) fn read_blocks(&mut self, ticket: SeqId, wanted: &Wanted) -> Answer {
        if wanted.engine != self.id {
            return Answer::NoBlocks { ticket, why: NoBlocks::OtherEngine };
        }
        if wanted.tp_size != TP_SIZE {
            return Answer::NoBlocks { ticket, why: NoBlocks::OtherLayout };
        }
        let contents: Option<Vec<u64>> = wanted.blocks.iter().map(|id| self.pool.content(*id)).collect();
        let Some(contents) = contents else { return Answer::NoBlocks { ticket, why: NoBlocks::OutOfRange } };
        let lease = match self.nixl.ended.get(&wanted.request) {
            _ if self.nixl.pins.contains_key(&wanted.request) => Lease::Live,
            // Siblings of one request read the same hand-off; the first one's notice frees it.
            Some(Ended::ReadBy(reader)) if *reader == wanted.reader => Lease::Live,
            Some(Ended::ReadBy(_)) => Lease::Reused,
            Some(Ended::Expired) => Lease::Expired,
            // MoRI-IO's engine ids outlive a restart, the memory that was to be read does not.
            None if self.spec.kind() == Kind::MoriioRead => {
                return Answer::NoBlocks { ticket, why: NoBlocks::OtherEngine };
            }
            None => Lease::Unknown,
        };
        Answer::Blocks { ticket, contents, lease }
    }
}

/// The decode side.
impl Engine {
    /// Starts to fetch the KV of the sequence at the head of the queue. Returns `false` when there are no blocks.
    pub(super) fn start_pull(&mut self, id: SeqId, now: Duration) -> bool {
        let Some(cached) = self.take_blocks(id, now) else { return false };
        self.waiting.pop_front();
        let Some(seq) = self.seqs.get_mut(&id) else { return true };
        let Part::Pull(remote) = seq.ask.part.clone() else { return true };
        seq.state = State::Receiving;
        seq.pulled = seq.target - cached;
        self.receiving += 1;
        let needed = seq.blocks.len() - usize::try_from(cached / self.spec.block_size).unwrap_or(0);
        if remote.blocks.is_empty() {
            self.die("assert num_external_tokens == 0");
        } else if remote.blocks.len() < needed {
            self.die("assert num_decode_blocks <= len(prefill_group)");
        } else if matches!(remote.blocks, RemoteBlocks::NotNumbers(_)) {
            self.die("ValueError: invalid literal for int() with base 10");
        } else if remote.engine.is_none() {
            self.receiving -= 1;
            seq.state = State::Stuck;
            let at = now + self.spec.timeout(LATE_DEATH);
            self.timers.set(at, Timer::Death);
        } else {
            self.send_read(id, remote, needed, now);
        }
        true
    }

    fn send_read(&mut self, id: SeqId, remote: RemoteKv, needed: usize, now: Duration) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        let RemoteKv { engine: Some(engine), request: Some(request), at: Some(to), blocks, tp_size, .. } =
            remote
        else {
            // The connector warns and goes on as if the KV had come.
            seq.kv = KvState::Wrong;
            self.counters.handoffs.wrong += 1;
            self.start_decoding(id);
            return;
        };
        if self.nixl.spoilt.contains(&engine) {
            self.load_failed(id, now);
            return;
        }
        let tp_size = if self.nixl.known.contains(&engine) { TP_SIZE } else { tp_size };
        let RemoteBlocks::Ids(ids) = blocks else { return };
        // With a local prefix hit, or with too many ids, only the last ones are read.
        let blocks = ids[ids.len() - needed..].to_vec();
        let reader = self.reader(id);
        self.out.push(Output::Send {
            to,
            call: Call::Read { ticket: id, engine, request, reader, blocks, tp_size },
        });
    }

    /// Names the request that a sequence belongs to, over all engines.
    fn reader(&self, id: SeqId) -> String {
        let parent = self.seqs.get(&id).map_or("", |seq| seq.ask.parent.as_str());
        format!("{}/{parent}", self.id)
    }

    pub(super) fn blocks_read(&mut self, id: SeqId, contents: &[u64], lease: Lease, now: Duration) {
        let Some(seq) = self.seqs.get_mut(&id).filter(|seq| seq.state == State::Receiving) else { return };
        let own = &seq.chain[seq.chain.len().saturating_sub(contents.len())..];
        let same = own == contents;
        seq.kv = match lease {
            Lease::Reused | Lease::Expired => KvState::Stale,
            Lease::Live | Lease::Unknown if same => KvState::Right,
            Lease::Live | Lease::Unknown => KvState::Wrong,
        };
        let handoffs = &mut self.counters.handoffs;
        match (lease, same) {
            (Lease::Reused | Lease::Expired, _) => handoffs.reused += 1,
            (Lease::Live, true) => handoffs.right += 1,
            (Lease::Live, false) | (Lease::Unknown, _) => handoffs.wrong += 1,
        }
        let tokens = seq.pulled;
        self.counters.external_hits += u64::from(tokens);
        self.counters.descriptors.add(f64::from(u32::try_from(contents.len() * 2).unwrap_or(u32::MAX)));
        if let Part::Pull(RemoteKv { engine: Some(engine), .. }) = &seq.ask.part {
            self.nixl.known.insert(engine.clone());
        }
        // Whole blocks move, also a last one that is partly filled.
        let blocks = u32::try_from(contents.len()).unwrap_or(u32::MAX);
        let at = self.transfer_end(blocks.saturating_mul(self.spec.block_size), now);
        if at <= now {
            self.transfer_arrived(id, now);
        } else {
            self.set_timer(id, at, Due::Arrived);
        }
    }

    pub(super) fn transfer_arrived(&mut self, id: SeqId, now: Duration) {
        self.transfers = self.transfers.saturating_sub(1);
        self.release_remote(id);
        if self.seqs.get(&id).is_some_and(|seq| seq.left) {
            self.end(id, Finish::Aborted, now);
        } else {
            self.start_decoding(id);
        }
    }

    pub(super) fn read_refused(&mut self, id: SeqId, why: NoBlocks, now: Duration) {
        if why == NoBlocks::OtherLayout
            && let Some(engine) = self.remote_engine(id)
        {
            self.nixl.spoilt.insert(engine);
        }
        self.load_failed(id, now);
    }

    fn remote_engine(&self, id: SeqId) -> Option<String> {
        match &self.seqs.get(&id)?.ask.part {
            Part::Pull(remote) => remote.engine.clone(),
            _ => None,
        }
    }

    pub(super) fn read_unreachable(&mut self, id: SeqId, engine: &str, now: Duration) {
        if self.nixl.known.contains(engine) {
            self.load_failed(id, now);
        } else {
            let at = now + self.spec.timeout(HANDSHAKE);
            self.set_timer(id, at, Due::Unreachable);
        }
    }

    /// KV could not be loaded: the request fails, or the prompt is computed here.
    pub(super) fn load_failed(&mut self, id: SeqId, now: Duration) {
        let Some(seq) = self.seqs.get_mut(&id).filter(|seq| seq.state == State::Receiving) else { return };
        self.counters.handoffs.failed += 1;
        self.counters.failed_transfers += 1;
        if self.spec.load_failure == LoadFailure::Recompute && !seq.left {
            seq.computed = seq.cached;
            seq.pulled = 0;
            seq.state = State::Running;
            self.receiving -= 1;
            self.running.push(id);
        } else {
            self.end(id, Finish::Failed { message: None, status: 500 }, now);
        }
    }

    /// Tells the prefill side that a hand-off was read, or is not wanted any more.
    pub(super) fn release_remote(&mut self, id: SeqId) {
        let Some(seq) = self.seqs.get(&id) else { return };
        let Part::Pull(remote) = &seq.ask.part else { return };
        let remote = remote.clone();
        let reader = self.reader(id);
        self.release_params(&remote, reader);
    }

    /// Tells the prefill side that a hand-off is not wanted: its request was refused before it became a sequence.
    pub fn release_params(&mut self, remote: &RemoteKv, reader: String) {
        let RemoteKv { engine: Some(engine), request: Some(request), at: Some(at), notify, .. } =
            remote.clone()
        else {
            return;
        };
        let to = notify.unwrap_or(at);
        self.out.push(Output::Send { to, call: Call::Release { engine, request, reader } });
    }

    /// Makes sure that heartbeats go out while hand-offs wait here.
    pub(super) fn start_beating(&mut self, now: Duration) {
        if !self.nixl.beating {
            self.nixl.beating = true;
            self.timers.set(now + self.spec.lease() / 6, Timer::Beat);
        }
    }

    pub(super) fn beat(&mut self, now: Duration) {
        let mut due: BTreeMap<(String, u16, String), Vec<String>> = BTreeMap::new();
        let waiting = self.seqs.values().filter(|seq| matches!(seq.state, State::Waiting | State::Receiving));
        for seq in waiting {
            if let Part::Pull(RemoteKv {
                engine: Some(engine), request: Some(request), at: Some(at), ..
            }) = &seq.ask.part
            {
                let key = (at.host.clone(), at.port, engine.clone());
                due.entry(key).or_default().push(request.clone());
            }
        }
        self.nixl.beating = !due.is_empty();
        if self.nixl.beating {
            self.timers.set(now + self.spec.lease() / 6, Timer::Beat);
        }
        for ((host, port, engine), requests) in due {
            let to = PeerAddr { host, port };
            self.out.push(Output::Send { to, call: Call::Beat { engine, requests } });
        }
    }
}
