//! One engine model with a clock: runs its step loop and carries out its outputs.
//!
//! Decides nothing about engines. All calls into the model go through [`Node::with`]: it locks the model, lets the
//! caller act, and afterwards, with the lock given back, passes on what the model wants to tell its peers. Two engines
//! therefore never wait for each other's lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::engine::Engine;
use crate::engine::message::{Answer, Call, LinkId, Output, PeerAddr};
use crate::engine::sequence::{Ask, Finish, KvState, RemoteKv, SeqId};
use crate::serve::fabric::Fabric;
use crate::serve::publish::Publisher;
use crate::serve::remote;

/// A running engine.
pub struct Node {
    core: Mutex<Core>,
    wake: Notify,
    started: Instant,
    pub link: LinkId,
    fabric: Arc<Fabric>,
    died: AtomicBool,
    /// It was killed: it tells nobody anything any more.
    cut_off: AtomicBool,
    /// Told when the engine core dies.
    pub death: Notify,
    /// Told whenever a sequence ends.
    pub ended: Arc<Notify>,
    /// It listens on loopback only, and calls nobody else.
    loopback: bool,
    publisher: Option<Arc<Publisher>>,
}

struct Core {
    engine: Engine,
    jobs: HashMap<SeqId, (Arc<Job>, usize)>,
    outputs: Vec<Output>,
}

/// The sequences of one HTTP request.
pub struct Job {
    parts: Mutex<Vec<JobPart>>,
    changed: Notify,
}

/// How far one sequence has come.
#[derive(Clone, Debug, Default)]
pub struct JobPart {
    pub tokens: u32,
    pub kv: KvState,
    pub finish: Option<Finish>,
}

impl Job {
    /// Waits until something changed since the last look.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// How far all sequences have come.
    pub fn look(&self) -> Vec<JobPart> {
        lock(&self.parts).clone()
    }

    /// Waits until a sequence has its first token or has ended.
    pub async fn any_token(&self) {
        loop {
            if lock(&self.parts).iter().any(|part| part.tokens > 0 || part.finish.is_some()) {
                // Whoever looks next must not wait for a change that has come already.
                self.changed.notify_one();
                return;
            }
            self.changed.notified().await;
        }
    }

    /// Waits for all sequences to end.
    pub async fn finished(&self) -> Vec<JobPart> {
        loop {
            let parts = self.look();
            if parts.iter().all(|part| part.finish.is_some()) {
                return parts;
            }
            self.changed.notified().await;
        }
    }
}

/// A request that the engine works on. Dropping it before the end aborts it, as a closed connection does.
pub struct Work {
    pub job: Arc<Job>,
    node: Arc<Node>,
    seqs: Vec<SeqId>,
}

impl Drop for Work {
    fn drop(&mut self) {
        let open = lock(&self.job.parts).iter().any(|part| part.finish.is_none());
        if open {
            self.node.with(|engine, now| {
                for seq in &self.seqs {
                    engine.abort(*seq, now);
                }
            });
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere does not make the numbers wrong.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Puts an engine on the clock and into the fabric. Its step loop is [`Node::run`].
    pub fn new(engine: Engine, fabric: Arc<Fabric>, ended: Arc<Notify>, loopback: bool) -> Arc<Self> {
        let publisher = engine.spec().kv_events.map(Publisher::new);
        let link = fabric.new_link();
        let core = Core { engine, jobs: HashMap::new(), outputs: Vec::new() };
        let node = Arc::new(Self {
            core: Mutex::new(core),
            wake: Notify::new(),
            started: clock::now(),
            link,
            fabric: fabric.clone(),
            died: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            death: Notify::new(),
            ended,
            loopback,
            publisher,
        });
        fabric.attach(link, &node);
        node
    }

    /// Whether this engine may call there. One that listens on loopback stays there, whatever a request names.
    pub fn may_reach(&self, to: &PeerAddr) -> bool {
        !self.loopback || remote::is_loopback(&to.host)
    }

    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.started)
    }

    /// Whether the engine core died of what a request said.
    pub fn is_dead(&self) -> bool {
        self.died.load(Ordering::Acquire)
    }

    /// Lets `act` use the model, then carries out what the model wants.
    pub fn with<R>(self: &Arc<Self>, act: impl FnOnce(&mut Engine, Duration) -> R) -> R {
        let mut core = lock(&self.core);
        let result = act(&mut core.engine, self.now());
        let messages = self.settle(&mut core);
        drop(core);
        self.wake.notify_one();
        for message in messages {
            self.pass_on(message);
        }
        result
    }

    /// Looks at the model without touching it.
    pub fn look<R>(&self, look: impl FnOnce(&Engine) -> R) -> R {
        look(&lock(&self.core).engine)
    }

    /// The same, with the time.
    pub fn look_now<R>(&self, look: impl FnOnce(&Engine, Duration) -> R) -> R {
        look(&lock(&self.core).engine, self.now())
    }

    /// Hands the sequences of one request to the engine.
    pub fn submit(self: &Arc<Self>, asks: Vec<Ask>) -> Work {
        let job =
            Arc::new(Job { parts: Mutex::new(vec![JobPart::default(); asks.len()]), changed: Notify::new() });
        let mut seqs = Vec::with_capacity(asks.len());
        let mut core = lock(&self.core);
        for (index, ask) in asks.into_iter().enumerate() {
            let seq = core.engine.submit(ask, self.now());
            core.jobs.insert(seq, (job.clone(), index));
            seqs.push(seq);
        }
        let messages = self.settle(&mut core);
        drop(core);
        self.wake.notify_one();
        for message in messages {
            self.pass_on(message);
        }
        Work { job, node: self.clone(), seqs }
    }

    /// Tells the prefill side that its hand-off is not wanted.
    pub fn release(self: &Arc<Self>, remote: &RemoteKv) {
        self.with(|engine, _| engine.release_params(remote, "refused".into()));
    }

    /// The step loop. Ends only when its task is aborted.
    pub async fn run(self: Arc<Self>) {
        loop {
            let next = self.step();
            let Some(at) = next else {
                self.wake.notified().await;
                continue;
            };
            if at <= self.now() {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep_until(self.started + at) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    fn step(self: &Arc<Self>) -> Option<Duration> {
        let mut core = lock(&self.core);
        core.engine.poll(self.now());
        let next = core.engine.next_wake();
        let messages = self.settle(&mut core);
        drop(core);
        for message in messages {
            self.pass_on(message);
        }
        next
    }

    /// Tells the jobs what became of their sequences; returns what must go to peers.
    fn settle(&self, core: &mut Core) -> Vec<Output> {
        let mut messages = Vec::new();
        let mut outputs = std::mem::take(&mut core.outputs);
        core.engine.take_outputs(&mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Progress { seq, tokens, kv } => {
                    if let Some((job, index)) = core.jobs.get(&seq) {
                        let part = JobPart { tokens, kv, finish: None };
                        job.update(*index, part);
                    }
                }
                Output::Done { seq, finish } => {
                    if let Some((job, index)) = core.jobs.remove(&seq) {
                        job.finish(index, finish);
                    }
                    self.ended.notify_waiters();
                }
                Output::Died { .. } => {
                    self.died.store(true, Ordering::Release);
                    self.death.notify_one();
                }
                message => messages.push(message),
            }
        }
        core.outputs = outputs;
        if let Some(publisher) = &self.publisher {
            publisher.publish(core.engine.take_events());
        }
        messages
    }

    /// Where its KV events go.
    pub fn publisher(&self) -> Option<&Arc<Publisher>> {
        self.publisher.as_ref()
    }

    /// From now on nothing goes out, as from a process that was killed.
    pub fn cut_off(&self) {
        self.cut_off.store(true, Ordering::Release);
    }

    fn pass_on(self: &Arc<Self>, message: Output) {
        if self.cut_off.load(Ordering::Acquire) {
            return;
        }
        match message {
            Output::Send { to, call } => self.fabric.send(self, to, call),
            Output::Reply { link, answer } => self.fabric.reply(link, answer),
            _ => {}
        }
    }

    /// A peer calls.
    pub fn receive(self: &Arc<Self>, link: LinkId, call: Call) {
        self.with(|engine, now| engine.receive(link, call, now));
    }

    /// A peer answers.
    pub fn answered(self: &Arc<Self>, answer: Answer) {
        self.with(|engine, now| engine.answered(answer, now));
    }

    /// A peer cannot be reached.
    pub fn unreachable(self: &Arc<Self>, to: &PeerAddr, call: &Call) {
        self.with(|engine, now| engine.unreachable(to, call, now));
    }
}

impl Job {
    fn update(&self, index: usize, part: JobPart) {
        if let Some(slot) = lock(&self.parts).get_mut(index) {
            *slot = part;
        }
        self.changed.notify_one();
    }

    fn finish(&self, index: usize, finish: Finish) {
        if let Some(slot) = lock(&self.parts).get_mut(index) {
            if let Finish::Ok { kv, .. } = &finish {
                slot.kv = *kv;
            }
            slot.finish = Some(finish);
        }
        self.changed.notify_one();
    }
}
