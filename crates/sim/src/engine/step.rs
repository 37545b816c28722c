//! The step loop: which sequences go into the next step, how long it takes, what it brings.
//!
//! vLLM's order: first what runs (one token each, or the next chunk of its prompt), then new sequences from the queue
//! while there are slots, blocks and tokens left. When a running sequence finds no block the newest one is preempted
//! and computed again later. SGLang's scheduler differs in detail and not in what can be seen from outside.

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::profile::{StepWork, jitter, scaled};
use crate::engine::sequence::{Ending, Finish, KvState, Part, SeqId, Sequence, State};
use crate::engine::spec::{Dialect, Kind, Role};
use crate::engine::timers::{Due, Timer};

/// A step that began late by more than this does not catch up.
const MOST_LAG: Duration = Duration::from_millis(50);

/// A step that runs.
#[derive(Debug)]
pub(crate) struct Step {
    pub end: Duration,
    work: Vec<Work>,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    seq: SeqId,
    /// Prompt tokens computed by the step; zero for a decoding sequence.
    tokens: u32,
}

/// A step in the making.
struct Plan {
    work: Vec<Work>,
    cost: StepWork,
    /// Tokens that still fit.
    budget: u32,
}

/// Whether the head of the queue could go.
enum Admission {
    Gone,
    Full,
}

impl Engine {
    /// Ends the step that is due and starts the next one where the last one ended, so that late wake-ups add up to
    /// the right rate.
    pub(super) fn run_steps(&mut self, now: Duration) {
        let mut from = now;
        if let Some(step) = self.step.take_if(|step| step.end <= now) {
            if now - step.end < MOST_LAG {
                from = step.end;
            }
            for work in step.work {
                self.apply(work, now);
            }
        }
        if self.step.is_none() && !self.dead {
            self.step = self.plan_step(from, now).filter(|_| !self.dead);
        }
    }

    /// Whether the running step is the one after which this sequence's prompt is computed.
    pub(super) fn ends_prompt_now(&self, id: SeqId) -> bool {
        let Some(seq) = self.seqs.get(&id) else { return false };
        let work = self.step.iter().flat_map(|step| &step.work).find(|work| work.seq == id);
        work.is_some_and(|work| work.tokens > 0 && seq.computed + work.tokens == seq.target)
    }

    fn plan_step(&mut self, from: Duration, now: Duration) -> Option<Step> {
        if self.running.is_empty() && self.waiting.is_empty() {
            return None;
        }
        let mut plan =
            Plan { work: Vec::new(), cost: StepWork::default(), budget: self.spec.max_batched_tokens.max(1) };
        self.plan_running(&mut plan);
        self.admit(&mut plan, now);
        if plan.work.is_empty() {
            // Whoever was let in with its KV there decodes.
            self.plan_running(&mut plan);
        }
        if plan.work.is_empty() {
            return None;
        }
        let scale = self.spec.time_scale;
        let time = if scale > 0.0 {
            scaled(self.spec.profile.step_ms(&plan.cost) * jitter(&mut self.dice), scale)
        } else {
            Duration::ZERO
        };
        Some(Step { end: from + time, work: plan.work })
    }

    fn plan_running(&mut self, plan: &mut Plan) {
        let mut at = 0;
        while let Some(&id) = self.running.get(at) {
            at += 1;
            let Some(seq) = self.seqs.get(&id) else { continue };
            if seq.in_prefill() {
                plan.add_prompt(id, seq);
            } else if self.make_room(id) {
                plan.add_decode(id, self.seqs.get(&id));
            } else {
                // It was preempted itself, and was the last one.
                break;
            }
        }
    }

    /// Makes sure that the next token's KV has a block, preempting the newest sequences where it must.
    fn make_room(&mut self, id: SeqId) -> bool {
        loop {
            let Some(seq) = self.seqs.get_mut(&id) else { return false };
            if seq.blocks.len() >= self.spec.blocks_for(seq.context()) {
                return true;
            }
            if let Some(block) = self.pool.grow() {
                seq.blocks.push(block);
                continue;
            }
            let Some(victim) = self.running.pop() else { return false };
            self.preempt(victim);
            if victim == id {
                return false;
            }
        }
    }

    /// Takes a sequence out of the batch (it is no longer in `running`) and puts it back at the head of the queue.
    fn preempt(&mut self, id: SeqId) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.state = State::Waiting;
        seq.computed = 0;
        seq.target = seq.context();
        if matches!(seq.ask.part, Part::Pull(_) | Part::Room { .. } | Part::Take(_)) {
            // Its KV came from outside and is not asked for twice.
            seq.ask.part = Part::Local;
        }
        let blocks = std::mem::take(&mut seq.blocks);
        self.pool.give_back(blocks);
        self.waiting.push_front(id);
        self.counters.preempted += 1;
    }

    fn admit(&mut self, plan: &mut Plan, now: Duration) {
        while plan.budget > 0 && self.running.len() + self.receiving < self.spec.max_running {
            let Some(&id) = self.waiting.front() else { return };
            match self.admit_one(id, plan, now) {
                Admission::Gone if self.dead => return,
                Admission::Gone => {}
                Admission::Full => return,
            }
        }
    }

    fn admit_one(&mut self, id: SeqId, plan: &mut Plan, now: Duration) -> Admission {
        let Some(seq) = self.seqs.get(&id) else {
            self.waiting.pop_front();
            return Admission::Gone;
        };
        let whole_prompt = seq.ask.whole_prompt;
        let gone = match &seq.ask.part {
            Part::Pull(_) if whole_prompt => {
                self.release_remote(id);
                self.start_local(id, plan, now)
            }
            Part::Pull(_) => self.start_pull(id, now),
            Part::Take(_) if whole_prompt => {
                self.release_untaken(id);
                self.start_local(id, plan, now)
            }
            Part::Take(_) => self.start_taking(id, now),
            Part::Hollow => self.start_hollow(id, now),
            Part::Fatal(why) => {
                self.die(why);
                true
            }
            Part::Room { .. } if self.spec.role == Role::Decode => self.start_receiving(id, now),
            _ => self.start_local(id, plan, now),
        };
        if gone { Admission::Gone } else { Admission::Full }
    }

    fn start_local(&mut self, id: SeqId, plan: &mut Plan, now: Duration) -> bool {
        let Some(cached) = self.take_blocks(id, now) else { return false };
        self.waiting.pop_front();
        self.running.push(id);
        let Some(seq) = self.seqs.get_mut(&id) else { return true };
        seq.state = State::Running;
        seq.computed = cached;
        plan.cost.prompts += 1;
        plan.add_prompt(id, seq);
        true
    }

    /// Takes the blocks of a waiting sequence's prompt. Returns how many tokens were found in the prefix cache, or
    /// `None` when there are not enough blocks.
    pub(super) fn take_blocks(&mut self, id: SeqId, now: Duration) -> Option<u32> {
        let size = self.spec.block_size;
        let seq = self.seqs.get_mut(&id)?;
        // The last token is always computed, because its output is the first new token.
        let most = usize::try_from(seq.target.saturating_sub(1) / size).unwrap_or(0).min(seq.chain.len());
        let hits = if seq.ask.whole_prompt { 0 } else { self.pool.hits(&seq.chain[..most]) };
        seq.blocks = self.pool.take(&seq.chain, hits, self.spec.blocks_for(seq.target))?;
        seq.cached = u32::try_from(hits).unwrap_or(0) * size;
        seq.times.started = now;
        self.counters.prefix_queries += u64::from(seq.ask.prompt.len());
        self.counters.external_queries += u64::from(seq.target - seq.cached);
        Some(seq.cached)
    }

    /// Puts a sequence whose KV has arrived into the batch: only its last prompt token is left to compute.
    pub(super) fn start_decoding(&mut self, id: SeqId) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.state = State::Running;
        seq.computed = seq.target.saturating_sub(1);
        self.receiving -= 1;
        self.running.push(id);
    }

    fn apply(&mut self, work: Work, now: Duration) {
        let Some(seq) = self.seqs.get_mut(&work.seq) else { return };
        if seq.state != State::Running {
            return;
        }
        if work.tokens > 0 {
            seq.computed += work.tokens;
            if seq.computed < seq.target {
                return;
            }
            if seq.made == 0 {
                self.prompt_computed(work.seq);
            }
        }
        self.add_token(work.seq, now);
    }

    /// Counts a prompt whose KV is complete here and lets others find it.
    pub(super) fn prompt_computed(&mut self, id: SeqId) {
        let Some(seq) = self.seqs.get(&id) else { return };
        let len = seq.ask.prompt.len();
        if seq.kv == KvState::Right {
            let full = usize::try_from(len / self.spec.block_size).unwrap_or(0);
            self.pool.seal(&seq.blocks, &seq.chain, full);
            self.news.tell(&mut self.pool, &seq.chain, &seq.ask.prompt.tokens);
        }
        let tokens = &mut self.counters.tokens;
        tokens.cached += u64::from(seq.cached);
        tokens.transferred += u64::from(seq.pulled);
        tokens.computed += u64::from(len.saturating_sub(seq.cached + seq.pulled));
    }

    /// A sequence has its next token.
    pub(super) fn add_token(&mut self, id: SeqId, now: Duration) {
        let role = self.spec.role;
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.made += 1;
        self.counters.tokens.generated += 1;
        self.counters.pace.count(now);
        if seq.made == 1 {
            seq.times.first_token = now;
            self.counters.ttft.add_time(seq.times.arrived, now);
        } else {
            self.counters.itl.add_time(seq.times.last_token, now);
        }
        seq.times.last_token = now;
        if role == Role::Prefill && seq.room().is_some() {
            self.start_sending(id, now);
        } else if seq.made >= seq.ask.tokens {
            self.complete(id, now);
        } else {
            self.report(id);
        }
    }

    /// Tells whoever reads token by token.
    pub(super) fn report(&mut self, id: SeqId) {
        if let Some(seq) = self.seqs.get(&id).filter(|seq| seq.ask.watched) {
            self.out.push(super::Output::Progress { seq: id, tokens: seq.made, kv: seq.kv });
        }
    }

    /// A sequence has all its tokens.
    pub(super) fn complete(&mut self, id: SeqId, now: Duration) {
        self.report(id);
        let Some(seq) = self.seqs.get(&id) else { return };
        let ending = seq.ask.ending.clone();
        let capped = ending == Ending::Length;
        let handoff = match seq.ask.part {
            Part::Hold(_) if capped || (self.spec.params_on_stop && self.spec.kind() == Kind::Vllm) => {
                self.pin(id, now)
            }
            Part::Give(_) if capped => self.keep(id, now),
            _ => None,
        };
        let Some(seq) = self.seqs.get(&id) else { return };
        let finish = Finish::Ok { ending, kv: seq.kv, cached: seq.cached, handoff };
        self.end(id, finish, now);
    }

    pub(super) fn count_end(&mut self, seq: &Sequence, finish: &Finish, now: Duration) {
        let ended = &mut self.counters.ended;
        match finish {
            Finish::Ok { ending: Ending::Length, .. } => ended.length += 1,
            Finish::Ok { .. } => ended.stop += 1,
            Finish::Aborted => ended.abort += 1,
            Finish::Failed { .. } | Finish::Dead => ended.error += 1,
        }
        if !matches!(finish, Finish::Ok { .. }) {
            return;
        }
        let times = seq.times;
        self.counters.e2e.add_time(times.arrived, now);
        self.counters.queue.add_time(times.arrived, times.started);
        self.counters.prefill.add_time(times.started, times.first_token);
        self.counters.decode.add_time(times.first_token, times.last_token);
        if seq.made > 1 {
            let span = times.last_token.saturating_sub(times.first_token).as_secs_f64();
            self.counters.tpot.add(span / f64::from(seq.made - 1));
        }
    }

    pub(super) fn fire(&mut self, timer: Timer, now: Duration) {
        match timer {
            Timer::Lease(name) => self.lease_due(name, now),
            Timer::Beat => self.beat(now),
            Timer::Ping(at) => self.ping(&at, now),
            Timer::ForgetJoin(room) => self.rooms.forget_join(room),
            Timer::Kept(transfer) => self.kept_too_long(transfer),
            Timer::Pushed(transfer) => self.pushed(&transfer),
            Timer::ForgetTaker(transfer) => self.transfers_by_id.forget_taker(&transfer),
            Timer::Death => self.die("KeyError: 'remote_engine_id'"),
            Timer::Seq(id, due) => {
                if let Some(seq) = self.seqs.get_mut(&id) {
                    seq.timer = None;
                }
                self.fire_for(id, due, now);
            }
        }
    }

    fn fire_for(&mut self, id: SeqId, due: Due, now: Duration) {
        match (due, self.spec.dialect) {
            (Due::MeetTimeout, _) => self.meeting_timed_out(id, now),
            (Due::ReceiveTimeout, _) => self.receiving_timed_out(id, now),
            (Due::TakeTimeout, _) => self.take_timed_out(id, now),
            (Due::Arrived, _) => self.transfer_arrived(id, now),
            (Due::Unreachable, Dialect::Vllm | Dialect::Trtllm) => self.load_failed(id, now),
            (Due::Unreachable, Dialect::Sglang) => self.handshake_failed(id, now),
            (Due::Lost, _) => self.partner_lost(id, now),
            (Due::Sent, _) => self.sent(id, now),
        }
    }

    /// Sets the one timer of a sequence.
    pub(super) fn set_timer(&mut self, id: SeqId, at: Duration, due: Due) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        self.timers.cancel(seq.timer.take());
        seq.timer = Some(self.timers.set(at, Timer::Seq(id, due)));
    }

    /// When a transfer of that many tokens that starts now ends.
    pub(super) fn transfer_end(&mut self, tokens: u32, now: Duration) -> Duration {
        self.transfers += 1;
        let time = scaled(self.spec.profile.transfer_ms(tokens, self.transfers), self.spec.time_scale);
        self.counters.transfer.add(time.as_secs_f64());
        self.counters.bytes.add(f64::from(tokens) * self.spec.profile.bytes_per_token);
        now + time
    }
}

impl Plan {
    /// Adds the next chunk of a prompt, as far as the budget goes.
    fn add_prompt(&mut self, id: SeqId, seq: &Sequence) {
        let tokens = self.budget.min(seq.target - seq.computed);
        if tokens == 0 {
            return;
        }
        self.budget -= tokens;
        self.cost.add_prompt(seq.computed, seq.computed + tokens);
        self.work.push(Work { seq: id, tokens });
    }

    fn add_decode(&mut self, id: SeqId, seq: Option<&Sequence>) {
        let Some(seq) = seq else { return };
        self.budget = self.budget.saturating_sub(1);
        self.cost.decoding += 1;
        self.cost.context += u64::from(seq.context());
        self.work.push(Work { seq: id, tokens: 0 });
    }
}
