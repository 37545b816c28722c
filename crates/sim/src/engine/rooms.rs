//! SGLang's rendezvous: both halves of a request meet in a room of the prefill side's bootstrap server.
//!
//! The order is the engine's: the decode side takes blocks and joins the room; only then does the prefill side
//! compute; then the KV moves; then both answer, the decode side with the prefill side's token as its first. A half
//! whose partner does not come waits for 300 s. A room is used once: whoever enters it a second time waits in vain.
//!
//! Failures carry the engine's own texts (SGLang 0.5.23).

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::message::{Answer, Call, Output, PeerAddr};
use crate::engine::sequence::{Ending, Finish, KvState, Part, Partner, SeqId, State, TimerKey};
use crate::engine::timers::{Due, Timer};

/// How long a half waits for the other one, in seconds.
const MEET: f64 = 300.0;
/// How long a decode side tries to reach a bootstrap server, in seconds (measured).
const HANDSHAKE: f64 = 14.0;
/// When a prefill side that was known and is gone is given up, in seconds (measured).
const LOST: f64 = 12.0;
/// A bootstrap server is asked this often whether it lives, in seconds; so many misses are a loss.
const PING: f64 = 5.0;
const MOST_MISSES: u32 = 2;
/// Tokens that a decode side keeps free for each request's answer.
const RESERVED_TOKENS: u32 = 512;
/// How many used rooms are remembered, and how many decode sides may wait in rooms with no prefill side.
const MOST_USED: usize = 65_536;
const MOST_EARLY: usize = 65_536;
/// The host that marks a warm-up request, which takes part in no transfer.
pub const FAKE_HOST: &str = "2.2.2.2";

#[derive(Debug, Default)]
pub(crate) struct Rooms {
    /// Prefill side: who is in which room.
    open: HashMap<u64, Room>,
    /// Prefill side: decode sides that came first.
    early: HashMap<u64, Early>,
    used: HashSet<u64>,
    /// Used rooms that the prefill side left before anybody came: one decode side may still be on its way.
    left: HashSet<u64>,
    used_order: VecDeque<u64>,
    /// Decode side: bootstrap servers that are watched.
    watched: HashMap<PeerAddr, Watch>,
    /// Decode side: bootstrap servers that were reached before.
    known: HashSet<PeerAddr>,
}

/// One room on the prefill side. Siblings of one request share it.
#[derive(Debug)]
struct Room {
    parent: String,
    seqs: Vec<SeqId>,
    joined: bool,
}

#[derive(Debug)]
struct Early {
    partner: Partner,
    timer: TimerKey,
}

#[derive(Debug, Default)]
struct Watch {
    misses: u32,
}

impl Rooms {
    /// A sequence left its room.
    pub fn close(&mut self, room: u64, id: SeqId) {
        if let Some(entry) = self.open.get_mut(&room) {
            entry.seqs.retain(|other| *other != id);
            if entry.seqs.is_empty() {
                if !entry.joined {
                    self.left.insert(room);
                }
                self.open.remove(&room);
            }
        }
    }

    pub fn forget_join(&mut self, room: u64) {
        self.early.remove(&room);
    }

    pub fn heard_from(&mut self, at: &PeerAddr) {
        if !self.known.contains(at) {
            self.known.insert(at.clone());
        }
        if let Some(watch) = self.watched.get_mut(at) {
            watch.misses = 0;
        }
    }

    /// Marks a room as used; `false` when it was before.
    fn use_up(&mut self, room: u64) -> bool {
        if !self.used.insert(room) {
            return false;
        }
        self.used_order.push_back(room);
        if self.used_order.len() > MOST_USED
            && let Some(oldest) = self.used_order.pop_front()
        {
            self.used.remove(&oldest);
            self.left.remove(&oldest);
        }
        true
    }
}

/// The prefill side.
impl Engine {
    /// A sequence enters its room; it is computed once a decode side is there.
    pub(super) fn enter_room(&mut self, id: SeqId, now: Duration) {
        let deadline = now + self.spec.timeout(MEET);
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        let Part::Room { room, ref at } = seq.ask.part else { return };
        if seq.ask.tokens > 1 {
            seq.ask.tokens = 1;
            seq.ask.ending = Ending::Length;
        }
        if at.host == FAKE_HOST {
            seq.ask.part = Part::Local;
            self.waiting.push_back(id);
            return;
        }
        seq.state = State::Meeting;
        let parent = seq.ask.parent.clone();
        self.set_timer(id, deadline, Due::MeetTimeout);
        if let Some(entry) = self.rooms.open.get_mut(&room).filter(|entry| entry.parent == parent) {
            entry.seqs.push(id);
            if entry.joined {
                self.begin(id, None);
            }
            return;
        }
        if !self.rooms.use_up(room) {
            // Nobody will be sent here again.
            self.counters.handoffs.reused += 1;
            return;
        }
        let early = self.rooms.early.remove(&room);
        self.rooms.open.insert(room, Room { parent, seqs: vec![id], joined: early.is_some() });
        if let Some(early) = early {
            self.timers.cancel(Some(early.timer));
            self.counters.handoffs.made += 1;
            self.begin(id, Some(early.partner));
        }
    }

    /// A decode side joins a room.
    pub(super) fn join_room(&mut self, partner: Partner, room: u64, now: Duration) {
        if let Some(entry) = self.rooms.open.get_mut(&room) {
            if entry.joined {
                self.counters.handoffs.reused += 1;
                return;
            }
            entry.joined = true;
            let seqs = entry.seqs.clone();
            self.counters.handoffs.made += 1;
            for (at, id) in seqs.into_iter().enumerate() {
                self.begin(id, (at == 0).then_some(partner));
            }
        } else if self.rooms.left.remove(&room) {
            // Too late, and not twice: nobody will come.
        } else if self.rooms.used.contains(&room) {
            self.counters.handoffs.reused += 1;
        } else if self.rooms.early.len() < MOST_EARLY {
            let timer = self.timers.set(now + self.spec.timeout(MEET), Timer::ForgetJoin(room));
            if let Some(before) = self.rooms.early.insert(room, Early { partner, timer }) {
                // The first one keeps the room.
                self.timers.cancel(Some(timer));
                self.rooms.early.insert(room, before);
                self.counters.handoffs.reused += 1;
            }
        }
    }

    /// The other half is there: into the queue.
    fn begin(&mut self, id: SeqId, partner: Option<Partner>) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        self.timers.cancel(seq.timer.take());
        seq.state = State::Waiting;
        seq.partner = partner;
        self.waiting.push_back(id);
    }

    /// A decode side left its room.
    pub(super) fn partner_left(&mut self, partner: Partner, room: u64, now: Duration) {
        let answer = Answer::RoomFailed { ticket: partner.ticket, why: "Aborted by AbortReq.".into() };
        self.out.push(Output::Reply { link: partner.link, answer });
        if self.rooms.early.get(&room).is_some_and(|early| early.partner == partner)
            && let Some(early) = self.rooms.early.remove(&room)
        {
            self.timers.cancel(Some(early.timer));
        }
        let Some(entry) = self.rooms.open.get(&room) else { return };
        for id in entry.seqs.clone() {
            if let Some(seq) = self.seqs.get_mut(&id).filter(|seq| seq.partner == Some(partner)) {
                seq.partner = None;
                self.counters.handoffs.failed += 1;
                let message = self.prefill_failure(id, "Prefill transfer failed", "Aborted by AbortReq.");
                self.end(id, Finish::Failed { message, status: 500 }, now);
            }
        }
    }

    /// A decode engine is gone: what was computed for it, or is under way to it, fails.
    pub(super) fn lose_partners(&mut self, link: u64, now: Duration) {
        let rooms = self.rooms.early.iter().filter(|(_, early)| early.partner.link == link);
        for room in rooms.map(|(room, _)| *room).collect::<Vec<_>>() {
            if let Some(early) = self.rooms.early.remove(&room) {
                self.timers.cancel(Some(early.timer));
            }
        }
        let sending =
            self.seqs.iter().filter(|(_, seq)| seq.partner.is_some_and(|partner| partner.link == link));
        for id in sending.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.counters.handoffs.failed += 1;
            self.counters.failed_transfers += 1;
            let why = format!("Failed to send kv chunk of {}", self.room_of(id));
            let message = self.prefill_failure(id, "Prefill transfer failed", &why);
            self.end(id, Finish::Failed { message, status: 500 }, now);
        }
    }

    /// Tells the decode side that this half is lost.
    pub(super) fn fail_partner(&mut self, id: SeqId, why: &str) {
        let Some(partner) = self.seqs.get_mut(&id).and_then(|seq| seq.partner.take()) else { return };
        let answer = Answer::RoomFailed { ticket: partner.ticket, why: why.into() };
        self.out.push(Output::Reply { link: partner.link, answer });
    }

    /// The prompt is computed: the KV moves.
    pub(super) fn start_sending(&mut self, id: SeqId, now: Duration) {
        self.running.retain(|other| *other != id);
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.state = State::Sending;
        let tokens = seq.ask.prompt.len();
        let at = self.transfer_end(tokens, now);
        if at <= now {
            self.sent(id, now);
        } else {
            self.set_timer(id, at, Due::Sent);
        }
    }

    /// The client left while the KV moves: the decode side fails, the blocks stay until the transfer has ended.
    pub(super) fn break_off_sending(&mut self, id: SeqId) {
        self.fail_partner(id, "Aborted by AbortReq.");
        self.set_left(id);
    }

    pub(super) fn sent(&mut self, id: SeqId, now: Duration) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        if let Some(partner) = seq.partner.take() {
            let answer = Answer::Kv { ticket: partner.ticket, content: seq.ask.prompt.id.0 };
            self.out.push(Output::Reply { link: partner.link, answer });
        }
        self.complete(id, now);
    }

    pub(super) fn meeting_timed_out(&mut self, id: SeqId, now: Duration) {
        self.counters.handoffs.expired += 1;
        self.counters.bootstrap_failed += 1;
        let why = self.timeout_text(id, "KVPoll.Bootstrapping");
        let message = self.prefill_failure(id, "Prefill bootstrap failed", &why);
        self.end(id, Finish::Failed { message, status: 500 }, now);
    }

    fn timeout_text(&self, id: SeqId, phase: &str) -> String {
        let room = self.room_of(id);
        let seconds = self.spec.timeout(MEET).as_secs_f64();
        format!("Request {room} timed out after {seconds:.1}s in {phase}")
    }

    fn room_of(&self, id: SeqId) -> u64 {
        self.seqs.get(&id).and_then(|seq| seq.room()).map_or(0, |(room, _)| room)
    }

    fn prefill_failure(&self, id: SeqId, what: &str, why: &str) -> Option<String> {
        let rid = &self.seqs.get(&id)?.ask.name;
        let room = self.room_of(id);
        Some(format!(
            "{what} for request rank=0 req.rid='{rid}' req.bootstrap_room={room} with exception \
             KVTransferError(bootstrap_room={room}): {why}"
        ))
    }
}

/// The decode side.
impl Engine {
    /// Takes blocks for the sequence at the head of the queue and joins its room. Returns `false` when there are no
    /// blocks.
    pub(super) fn start_receiving(&mut self, id: SeqId, now: Duration) -> bool {
        let Some(seq) = self.seqs.get(&id) else { return true };
        let Some((room, at)) = seq.room().map(|(room, at)| (room, at.clone())) else { return true };
        if at.host == FAKE_HOST {
            if let Some(seq) = self.seqs.get_mut(&id) {
                seq.ask.part = Part::Local;
            }
            return true;
        }
        let reserve = seq.ask.tokens.min(RESERVED_TOKENS);
        let need = self.spec.blocks_for(seq.target.saturating_add(reserve));
        let free = usize::try_from(self.pool.free()).unwrap_or(0);
        if free < need.min(usize::try_from(self.pool.total()).unwrap_or(0))
            || self.take_blocks(id, now).is_none()
        {
            return false;
        }
        self.waiting.pop_front();
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.state = State::Receiving;
            seq.pulled = seq.target;
            self.receiving += 1;
        }
        let deadline = now + self.spec.timeout(MEET);
        self.set_timer(id, deadline, Due::ReceiveTimeout);
        self.watch(&at, now);
        self.out.push(Output::Send { to: at, call: Call::Join { ticket: id, room } });
        true
    }

    pub(super) fn kv_arrived(&mut self, id: SeqId, content: u64, now: Duration) {
        let Some(seq) = self.seqs.get_mut(&id).filter(|seq| seq.state == State::Receiving) else { return };
        self.timers.cancel(seq.timer.take());
        if let Part::Room { at, .. } = &seq.ask.part {
            self.rooms.known.insert(at.clone());
        }
        if seq.left {
            self.end(id, Finish::Aborted, now);
            return;
        }
        if content == seq.ask.prompt.id.0 {
            self.counters.handoffs.right += 1;
        } else {
            seq.kv = KvState::Wrong;
            self.counters.handoffs.wrong += 1;
        }
        self.counters.external_hits += u64::from(seq.pulled);
        seq.computed = seq.target;
        seq.state = State::Running;
        self.receiving -= 1;
        self.running.push(id);
        // The prefill side's token is the first one here.
        self.prompt_computed(id);
        self.add_token(id, now);
    }

    pub(super) fn room_failed(&mut self, id: SeqId, why: &str, now: Duration) {
        self.fail_receiving(id, "Decode transfer failed", why, now);
    }

    fn fail_receiving(&mut self, id: SeqId, what: &str, why: &str, now: Duration) {
        let Some(seq) = self.seqs.get(&id).filter(|seq| seq.state == State::Receiving) else { return };
        if !seq.left {
            self.counters.handoffs.failed += 1;
            self.counters.failed_transfers += 1;
        }
        let (rid, room) = (&seq.ask.name, self.room_of(id));
        let message = format!(
            "{what} for request rank=0 decode_req.req.rid='{rid}' decode_req.req.bootstrap_room={room} with exception \
             KVTransferError(bootstrap_room={room}): {why}"
        );
        self.end(id, Finish::Failed { message: Some(message), status: 500 }, now);
    }

    pub(super) fn receiving_timed_out(&mut self, id: SeqId, now: Duration) {
        self.counters.handoffs.expired += 1;
        self.send_leave(id);
        let why = self.timeout_text(id, "KVPoll.WaitingForInput");
        self.fail_receiving(id, "Decode transfer failed", &why, now);
    }

    /// The client left: the prefill side is told, and the blocks stay until it has answered.
    pub(super) fn leave_room(&mut self, id: SeqId) {
        self.set_left(id);
        self.send_leave(id);
    }

    fn send_leave(&mut self, id: SeqId) {
        let Some((room, at)) =
            self.seqs.get(&id).and_then(|seq| seq.room()).map(|(room, at)| (room, at.clone()))
        else {
            return;
        };
        self.out.push(Output::Send { to: at, call: Call::Leave { ticket: id, room } });
    }

    pub(super) fn join_unreachable(&mut self, id: SeqId, to: &PeerAddr, now: Duration) {
        if self.seqs.get(&id).is_some_and(|seq| seq.left) {
            self.end(id, Finish::Aborted, now);
            return;
        }
        let known = self.rooms.known.contains(to);
        let (seconds, due) = if known { (LOST, Due::Lost) } else { (HANDSHAKE, Due::Unreachable) };
        let at = now + self.spec.timeout(seconds);
        self.set_timer(id, at, due);
    }

    pub(super) fn handshake_failed(&mut self, id: SeqId, now: Duration) {
        self.counters.bootstrap_failed += 1;
        self.fail_receiving(id, "Decode handshake failed", "Aborted by AbortReq.", now);
    }

    pub(super) fn partner_lost(&mut self, id: SeqId, now: Duration) {
        let Some((_, at)) = self.seqs.get(&id).and_then(|seq| seq.room()) else { return };
        let why = lost_text(at);
        self.fail_receiving(id, "Decode transfer failed", &why, now);
    }

    fn watch(&mut self, at: &PeerAddr, now: Duration) {
        if !self.rooms.watched.contains_key(at) {
            self.rooms.watched.insert(at.clone(), Watch::default());
            self.timers.set(now + self.spec.timeout(PING), Timer::Ping(at.clone()));
        }
    }

    fn receiving_from(&self, at: &PeerAddr) -> Vec<SeqId> {
        let here = |seq: &crate::engine::sequence::Sequence| {
            seq.state == State::Receiving && seq.room().is_some_and(|(_, from)| from == at)
        };
        self.seqs.iter().filter(|(_, seq)| here(seq)).map(|(id, _)| *id).collect()
    }

    pub(super) fn ping(&mut self, at: &PeerAddr, now: Duration) {
        if self.receiving_from(at).is_empty() {
            self.rooms.watched.remove(at);
            return;
        }
        self.out.push(Output::Send { to: at.clone(), call: Call::Ping });
        self.timers.set(now + self.spec.timeout(PING), Timer::Ping(at.clone()));
    }

    pub(super) fn missed_ping(&mut self, at: &PeerAddr, now: Duration) {
        let known = self.rooms.known.contains(at);
        let Some(watch) = self.rooms.watched.get_mut(at) else { return };
        watch.misses += 1;
        if !known || watch.misses < MOST_MISSES {
            return;
        }
        let why = lost_text(at);
        for id in self.receiving_from(at) {
            self.fail_receiving(id, "Decode transfer failed", &why, now);
        }
    }
}

fn lost_text(at: &PeerAddr) -> String {
    format!("Lost connection with prefill instance (bootstrap_addr: {}:{})", at.host, at.port)
}
