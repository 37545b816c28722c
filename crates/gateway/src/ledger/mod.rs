//! Carries out [`baton_core::place::cascade::shared`]: tells Redis what decodes are charged with here, and the books what
//! other gateways have charged them with.
//!
//! One task on the control thread and one connection; nothing here is on a request's path. Requests score by what was
//! last heard ([`Others`]), and if Redis is away for longer than that counts, by this gateway's own charges. Many changes
//! become one write: each takes what is charged at that moment, and only one is under way.

mod link;
mod words;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use baton_core::dice::Dice;
use baton_core::place::cascade::books::Books;
use baton_core::place::cascade::knobs::{DecodeScore, Knobs};
use baton_core::place::cascade::shared::{self, BEAT, Orphans, Others, PRUNE_EVERY, Posted, RedisClock};
use baton_core::time::Instant;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};
use uuid::Uuid;

pub use link::{ANSWER_MAX_BYTES, TIMEOUT, Target};

use crate::config::{Config, Redis};
use crate::gateway::Gateway;
use link::Link;

/// Time between two looks at what others have charged, while decodes are scored by it.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So long after the last such request others are still looked at that often; then once in each [`BEAT`].
const WANTED_FOR: Duration = Duration::from_secs(10);
/// Least time between two writes.
pub const WRITE_EVERY: Duration = Duration::from_millis(10);
/// Shortest and longest pause before the next attempt to connect; each is twice as long as the last one.
pub const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Longest time for taking back what Redis has of this gateway when it ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Connect,
    Write,
    Look,
}

impl Attempt {
    pub const ALL: [Attempt; 3] = [Attempt::Connect, Attempt::Write, Attempt::Look];

    pub fn as_str(self) -> &'static str {
        match self {
            Attempt::Connect => "connect",
            Attempt::Write => "write",
            Attempt::Look => "look",
        }
    }
}

/// How sharing goes, for the metrics.
#[derive(Debug, Default)]
pub struct Standing {
    began: AtomicBool,
    up: AtomicBool,
    /// When others were last heard of, in microseconds of the gateway's clock; 0: never.
    heard_us: AtomicU64,
    instances: AtomicU64,
    failures: [AtomicU64; Attempt::ALL.len()],
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub up: bool,
    /// When others were last heard of.
    pub heard: Option<Instant>,
    /// Other gateways that are alive.
    pub instances: u64,
    /// In the order of [`Attempt::ALL`].
    pub failures: [u64; Attempt::ALL.len()],
}

/// Is the decode ledger shared under these settings?
pub fn shares(config: &Config, knobs: &Knobs) -> bool {
    config.redis.host.is_some() && knobs.shared_ledger
}

impl Standing {
    /// Of a gateway that shares its decode ledger.
    pub fn of(config: &Config, knobs: &Knobs) -> Option<Arc<Standing>> {
        shares(config, knobs).then(Arc::default)
    }

    /// `None`: nobody has scored decodes by tokens yet, and Redis was not spoken to.
    pub fn show(&self) -> Option<Shown> {
        let heard = self.heard_us.load(Ordering::Relaxed);
        self.began.load(Ordering::Relaxed).then(|| Shown {
            up: self.up.load(Ordering::Relaxed),
            heard: (heard > 0).then(|| Instant::from_micros(heard)),
            instances: self.instances.load(Ordering::Relaxed),
            failures: Attempt::ALL.map(|what| self.failures[what as usize].load(Ordering::Relaxed)),
        })
    }
}

/// The task that shares, until it is told to leave.
pub struct Sharing {
    leave: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Sharing {
    /// Begins, if the gateway shares.
    pub fn begin(
        target: Option<Target>,
        config: &Redis,
        gateway: &Arc<Gateway>,
        seed: u64,
    ) -> Option<Sharing> {
        let (target, standing) = target.zip(gateway.ledger.clone())?;
        let books = gateway.strategies.cascade()?.books().clone();
        let changed = Arc::new(Bell(Notify::new()));
        books.watch(Waker::from(changed.clone()));
        let desk = Desk {
            own: instance(config, gateway),
            gateway: gateway.clone(),
            books,
            standing,
            changed,
            target,
            dice: Dice::new(seed ^ 0x001e_d6e4),
            clock: RedisClock::default(),
            posted: Posted::default(),
            orphans: Orphans::default(),
            pruned: gateway.clock.now(),
            to_prune: Vec::new(),
            foreign: BTreeSet::new(),
            wanted: gateway.clock.now(),
            link: None,
        };
        let (leave, left) = oneshot::channel();
        Some(Sharing { leave, task: tokio::spawn(desk.run(left)) })
    }

    /// Takes back what Redis has of this gateway, and ends.
    pub async fn leave(self) {
        let Sharing { leave, mut task } = self;
        let _ = leave.send(());
        if tokio::time::timeout(LAST_WORDS, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// A gateway that was started anew is another instance: what the old one left behind is not its own.
fn instance(config: &Redis, gateway: &Gateway) -> Vec<u8> {
    let by_chance = || format!("baton-{}", Uuid::new_v4().simple());
    let name = config.instance.clone().unwrap_or_else(by_chance);
    format!("{name}:{}", gateway.clock.unix_nanos()).into_bytes()
}

struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

struct Desk {
    own: Vec<u8>,
    gateway: Arc<Gateway>,
    books: Arc<Books>,
    standing: Arc<Standing>,
    changed: Arc<Bell>,
    target: Target,
    dice: Dice,
    clock: RedisClock,
    posted: Posted,
    orphans: Orphans,
    /// When orphans were last looked for, and those that are to go.
    pruned: Instant,
    to_prune: Vec<(String, Vec<u8>)>,
    /// Keys of workers that hold something else.
    foreign: BTreeSet<String>,
    /// When decodes were last scored by tokens.
    wanted: Instant,
    link: Option<Link>,
}

impl Desk {
    async fn run(mut self, left: oneshot::Receiver<()>) {
        tokio::select! {
            () = self.share() => {}
            _ = left => {}
        }
        let Some(link) = &mut self.link else { return };
        // Those that were just being written may be there too, and one that is not does no harm.
        if let Err(why) = link.ask(&words::farewell(&self.own, self.posted.hashes())).await {
            tracing::debug!(
                why,
                "shared decode ledger: what Redis has of this gateway stays until it is dead to the others"
            );
        }
    }

    /// For ever.
    async fn share(&mut self) {
        // Nobody is told and nobody is asked before decodes are scored by tokens.
        while self.gateway.knobs.decode_score != DecodeScore::TokenLoad && !self.books.was_wanted() {
            sleep(BEAT).await;
        }
        self.standing.began.store(true, Ordering::Relaxed);
        let mut pause = AGAIN.0;
        // So that an outage is one line, however it goes on.
        let mut told = false;
        loop {
            let (what, why) = self.connection(&mut told).await;
            self.link = None;
            self.standing.failures[what as usize].fetch_add(1, Ordering::Relaxed);
            if self.standing.up.swap(false, Ordering::Relaxed) {
                pause = AGAIN.0;
            }
            if !std::mem::replace(&mut told, true) {
                let (redis, what) = (self.target.to_string(), what.as_str());
                tracing::warn!(
                    redis,
                    what,
                    why,
                    "shared decode ledger: Redis is away, only own charges count"
                );
            }
            sleep(self.dice.jitter(pause, 0.2)).await;
            pause = (pause * 2).min(AGAIN.1);
        }
    }

    /// The life of one connection; gives what it died of.
    async fn connection(&mut self, told: &mut bool) -> (Attempt, String) {
        match self.connect().await {
            Ok(link) => self.link = Some(link),
            Err(why) => return (Attempt::Connect, why),
        }
        self.posted.uncertain();
        let (clock, changed) = (self.gateway.clock, self.changed.clone());
        let (mut beat, mut look, mut write) = (clock.now(), clock.now(), clock.now());
        let mut first = true;
        loop {
            let change = async {
                sleep_until(clock.timer(write)).await;
                changed.0.notified().await;
            };
            tokio::select! {
                biased;
                () = sleep_until(clock.timer(beat)) => {
                    if let Err(why) = self.write(true).await {
                        return (Attempt::Write, why);
                    }
                    beat = clock.now().after(BEAT);
                }
                () = sleep_until(clock.timer(look)) => {
                    if let Err(why) = self.look().await {
                        return (Attempt::Look, why);
                    }
                    look = clock.now().after(self.until_next_look());
                }
                () = change => {
                    if let Err(why) = self.write(false).await {
                        return (Attempt::Write, why);
                    }
                    write = clock.now().after(WRITE_EVERY);
                    continue;
                }
            }
            if std::mem::take(&mut first) {
                // Heard of others comes next, at once.
                continue;
            }
            if !self.standing.up.swap(true, Ordering::Relaxed) {
                *told = false;
                tracing::info!(redis = %self.target, "shared decode ledger: charges are shared");
            }
        }
    }

    async fn connect(&mut self) -> Result<Link, String> {
        let mut link = Link::open(&self.target).await?;
        let asked = self.gateway.clock.now();
        let micros = words::micros(&link.ask(&words::time()).await?)?;
        self.clock = RedisClock::measured(micros, asked, self.gateway.clock.now());
        Ok(link)
    }

    /// Tells what has changed; with `beat` all of it, and that this gateway is alive.
    async fn write(&mut self, beat: bool) -> Result<(), String> {
        let held = self.books.decodes();
        let fleet = self.gateway.registry.load_full();
        let asked = self.gateway.clock.now();
        let due = self.posted.due(&held, &fleet, self.clock, beat);
        let pruned = std::mem::take(&mut self.to_prune);
        let now_ms = beat.then(|| self.clock.millis(asked));
        let commands = words::writes(&self.own, &due.writes, &pruned, now_ms);
        if commands.is_empty() {
            return Ok(());
        }
        let answers = self.ask(&commands).await?;
        self.posted.written(due);
        if beat {
            let answered = self.gateway.clock.now();
            self.clock = RedisClock::measured(words::micros(&answers)?, asked, answered);
        }
        Ok(())
    }

    /// Hears what others have charged.
    async fn look(&mut self) -> Result<(), String> {
        let keys = shared::keys(&self.gateway.registry.load_full());
        let now_ms = self.clock.millis(self.gateway.clock.now());
        let answers = self.ask(&words::look(keys.keys(), now_ms)).await?;
        let reading = words::reading(keys.keys().cloned(), &answers)?;
        self.tell(words::foreign(keys.keys(), &answers));
        let now = self.gateway.clock.now();
        let alive = reading.alive(&self.own, self.clock, now);
        self.standing.instances.store(alive as u64, Ordering::Relaxed);
        self.books.hear(Arc::new(Others::of(&reading, &self.own, &keys, self.clock)));
        self.standing.heard_us.store(now.as_micros().max(1), Ordering::Relaxed);
        if now.since(self.pruned) >= PRUNE_EVERY {
            self.pruned = now;
            self.to_prune = self.orphans.look(&reading, &self.own);
        }
        Ok(())
    }

    /// Says once of each key that others keep something else there.
    fn tell(&mut self, foreign: BTreeSet<String>) {
        for key in foreign.difference(&self.foreign) {
            tracing::warn!(
                key,
                "shared decode ledger: there is no hash in Redis, nothing is shared of this worker"
            );
        }
        self.foreign = foreign;
    }

    async fn ask(&mut self, commands: &redis::Pipeline) -> Result<Vec<redis::Value>, String> {
        match &mut self.link {
            Some(link) => link.ask(commands).await,
            None => Err("there is no connection".to_owned()),
        }
    }

    fn until_next_look(&mut self) -> Duration {
        let now = self.gateway.clock.now();
        if self.books.was_wanted() {
            self.wanted = now;
        }
        if now.since(self.wanted) < WANTED_FOR { LOOK_EVERY } else { BEAT }
    }
}
