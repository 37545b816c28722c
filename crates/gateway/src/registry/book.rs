//! The entries of the registry: plain data that changes under the registry's lock.
//!
//! A slot is given once and never again, so that whatever was remembered about a worker that left (a
//! connection pool, a ledger row) cannot be taken for one that joined later at the same address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_core::fleet::{Fleet, FleetChange, Seat, Secret, Status, Worker};
use baton_core::preflight::Standing;
use baton_core::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::ranks;
use super::settings::{Settings, WORKERS_MAX};
use super::spec::{HealthSpec, Spec};
use crate::probe::Facts;

/// Why a change of the list was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("Worker {url} already exists with id {id}")]
    Exists { url: String, id: String },
    #[error("Worker {url} is being registered already, with id {id}")]
    Joining { url: String, id: String },
    #[error("There are {limit} workers already, the most that one gateway takes")]
    TooMany { limit: usize },
    #[error("Too many workers are waiting to be registered (--job-queue-capacity). Try again later")]
    Busy,
    #[error("No such worker")]
    Unknown,
    #[error("The URL of a worker cannot be changed: it is {url}. Add another worker instead")]
    OtherUrl { url: String },
    #[error("The gateway is shutting down")]
    Closing,
}

/// How far the registration of a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStep {
    Pending,
    Processing,
    Failed,
}

/// The registration of a worker, while it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub step: JobStep,
    /// What went wrong last; empty at first.
    pub message: String,
    /// Seconds since 1970.
    pub at: u64,
}

/// What `PATCH` can change. None: as it was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patch {
    pub priority: Option<u32>,
    pub cost: Option<f64>,
    /// Added to the labels there are.
    pub labels: BTreeMap<String, String>,
    pub api_key: Option<Secret>,
    pub health: Option<HealthSpec>,
}

/// A worker as it is shown.
#[derive(Clone, Debug)]
pub struct Listed {
    pub id: String,
    pub spec: Arc<Spec>,
    pub facts: Option<Arc<Facts>>,
    pub seat: Arc<Seat>,
    pub job: Option<Job>,
    /// Times that a health check closed the worker's breaker.
    pub readmissions: u64,
    /// What the pre-flight knows of it.
    pub standing: Option<Standing>,
}

/// A worker as its probe sees it.
pub(crate) struct Watched {
    pub spec: Arc<Spec>,
    /// Grows with each change of the spec.
    pub revision: u64,
    pub seat: Seat,
    pub readmissions: Arc<AtomicU64>,
    /// Held by whoever asks the worker again, so that others wait for the answer instead of asking too.
    pub asking: Arc<tokio::sync::Mutex<()>>,
}

/// Rung to make a worker's probe look now.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    pub rung: Notify,
    /// Rung by the data path, which had trouble.
    pub suspected: AtomicBool,
}

pub(super) struct Entry {
    pub(super) id: String,
    pub(super) spec: Arc<Spec>,
    revision: u64,
    pub(super) facts: Option<Arc<Facts>>,
    /// The number of its ranks was found out, and not told by the operator.
    pub(super) found_ranks: bool,
    seat: Seat,
    job: Option<Job>,
    pub(super) draining: bool,
    /// Its list does not name it any more; it serves until it is relieved, at the latest until then.
    pub(super) going: Option<Instant>,
    bell: Arc<Bell>,
    task: Option<AbortHandle>,
    readmissions: Arc<AtomicU64>,
    asking: Arc<tokio::sync::Mutex<()>>,
}

/// The id of a worker that joined, the first if it is several, and what that changes in the fleet.
pub(super) type Joined = (String, Vec<FleetChange>);

#[derive(Default)]
pub(super) struct Book {
    pub(super) entries: BTreeMap<u32, Entry>,
    next_slot: u32,
    runtime: Option<Handle>,
    closed: bool,
}

impl Book {
    pub fn start(&mut self, runtime: Handle) {
        self.runtime = Some(runtime);
    }

    pub fn runtime(&self) -> Option<Handle> {
        self.runtime.clone()
    }

    pub fn close(&mut self) {
        self.closed = true;
        for entry in self.entries.values_mut() {
            entry.stop();
        }
    }

    pub(super) fn open(&self) -> Result<(), Refused> {
        if self.closed { Err(Refused::Closing) } else { Ok(()) }
    }

    pub fn join(&mut self, spec: Spec, settings: &Settings) -> Result<Joined, Refused> {
        self.open()?;
        let there = |e: &&Entry| !e.draining && (e.spec.url == spec.url || e.spec.base_url() == spec.url);
        if let Some(e) = self.entries.values().find(there) {
            let (url, id) = (spec.url, e.id.clone());
            return Err(match &e.job {
                Some(job) if job.step != JobStep::Failed => Refused::Joining { url, id },
                _ => Refused::Exists { url, id },
            });
        }
        self.admit(spec, settings)
    }

    /// As [`Book::join`], of a worker whose address is known to be free.
    pub(super) fn admit(&mut self, mut spec: Spec, settings: &Settings) -> Result<Joined, Refused> {
        spec.lift_labels();
        let specs = ranks::specs(spec, settings.dp_aware);
        if !self.has_room(specs.len()) {
            return Err(Refused::TooMany { limit: WORKERS_MAX });
        }
        let (ids, changes): (Vec<String>, _) =
            specs.into_iter().map(|spec| self.enter(spec, None, settings)).unzip();
        Ok((ids.into_iter().next().unwrap_or_default(), changes))
    }

    pub(super) fn has_room(&self, more: usize) -> bool {
        let slots = u32::try_from(more).ok().and_then(|more| self.next_slot.checked_add(more));
        self.entries.len().saturating_add(more) <= WORKERS_MAX && slots.is_some()
    }

    /// A new entry, of which this much is known: a rank is what the engine's other ranks are. Whoever calls has seen
    /// that there is room.
    pub(super) fn enter(
        &mut self,
        spec: Spec,
        facts: Option<Arc<Facts>>,
        settings: &Settings,
    ) -> (String, FleetChange) {
        let (slot, id) = (self.next_slot, uuid::Uuid::now_v7().to_string());
        self.next_slot += 1;
        let seat = Seat::new(slot, spec.worker(&id, facts.as_deref()));
        if spec.checks(&settings.checks).disabled {
            seat.pulse.set_status(Status::Ready);
        }
        let at = settings.clock.unix_seconds();
        self.entries.insert(
            slot,
            Entry {
                id: id.clone(),
                spec: Arc::new(spec),
                revision: 0,
                found_ranks: facts.is_some(),
                facts,
                seat: seat.clone(),
                job: Some(Job { step: JobStep::Pending, message: String::new(), at }),
                draining: false,
                going: None,
                bell: Arc::default(),
                task: None,
                readmissions: Arc::default(),
                asking: Arc::default(),
            },
        );
        (id, FleetChange::Join(seat))
    }

    /// Workers that wait for the first look at them.
    pub fn waiting(&self) -> usize {
        let waits = |e: &&Entry| e.job.as_ref().is_some_and(|job| job.step == JobStep::Pending);
        self.entries.values().filter(waits).count()
    }

    /// The workers that have no task yet, and where to put it.
    pub fn unwatched(&mut self) -> impl Iterator<Item = (u32, Arc<Bell>, &mut Option<AbortHandle>)> {
        let closed = self.closed;
        let news = self.entries.iter_mut().filter(move |(_, e)| !closed && !e.draining && e.task.is_none());
        news.map(|(slot, e)| (*slot, e.bell.clone(), &mut e.task))
    }

    pub fn replace(&mut self, id: &str, mut spec: Spec) -> Result<Vec<FleetChange>, Refused> {
        let entry = self.staying(id)?;
        if entry.spec.url != spec.url {
            return Err(Refused::OtherUrl { url: entry.spec.url.clone() });
        }
        spec.lift_labels();
        // An operator's description does not make it the operator's worker.
        spec.found = spec.found.take().or_else(|| entry.spec.found.clone());
        if entry.spec.role != spec.role || entry.spec.engine != spec.engine {
            entry.facts = None;
        }
        Ok(vec![entry.respecify(spec)])
    }

    pub fn patch(&mut self, id: &str, patch: Patch) -> Result<Vec<FleetChange>, Refused> {
        let entry = self.staying(id)?;
        let mut spec = Spec::clone(&entry.spec);
        spec.priority = patch.priority.unwrap_or(spec.priority);
        spec.cost = patch.cost.unwrap_or(spec.cost);
        spec.api_key = patch.api_key.or(spec.api_key);
        spec.health = patch.health.map_or(spec.health.clone(), |given| given.over(&spec.health));
        spec.labels.extend(patch.labels);
        spec.lift_labels();
        Ok(vec![entry.respecify(spec)])
    }

    /// Marks a worker as leaving. Gives its slot, unless it was leaving already, and its time to settle.
    pub fn drain(&mut self, id: &str, settle: Duration) -> Result<(Option<u32>, Duration), Refused> {
        let Some((slot, entry)) = self.entries.iter_mut().find(|(_, e)| e.id == id) else {
            return Err(Refused::Unknown);
        };
        let settle = entry.spec.drain_settle(settle);
        if entry.draining {
            return Ok((None, settle));
        }
        entry.draining = true;
        entry.seat.pulse.set_status(Status::Draining);
        entry.stop();
        Ok((Some(*slot), settle))
    }

    /// As [`Book::drain`], and a worker that need not wait for anything leaves at once: then there is a change of the
    /// fleet in place of its time to settle.
    pub fn retire(&mut self, id: &str, settle: Duration) -> Option<Result<FleetChange, (u32, Duration)>> {
        let (slot, settle) = self.drain(id, settle).ok()?;
        let slot = slot?;
        let busy = self.entries.get(&slot).is_some_and(|e| e.seat.load.in_flight() > 0);
        if busy && !settle.is_zero() && self.runtime.is_some() {
            return Some(Err((slot, settle)));
        }
        self.leave(slot);
        Some(Ok(FleetChange::Leave { slot }))
    }

    pub fn leave(&mut self, slot: u32) -> Option<String> {
        let mut entry = self.entries.remove(&slot)?;
        entry.stop();
        Some(entry.id)
    }

    /// The worker with this id or URL, or all ranks of the engine with this URL; those that stay come first.
    pub fn find(&self, id_or_url: &str) -> Vec<String> {
        let url = id_or_url.trim_end_matches('/');
        let hit = |e: &&Entry| e.id == id_or_url || e.spec.url == url;
        if let Some(one) = self.entries.values().filter(hit).min_by_key(|e| e.draining) {
            return vec![one.id.clone()];
        }
        let mut ranks: Vec<&Entry> = self.entries.values().filter(|e| e.spec.base_url() == url).collect();
        ranks.sort_by_key(|e| (e.draining, e.spec.dp_rank));
        ranks.iter().map(|e| e.id.clone()).collect()
    }

    pub fn list(&self, fleet: &Fleet) -> Vec<Listed> {
        let show = |(slot, e): (&u32, &Entry)| {
            Some(Listed {
                id: e.id.clone(),
                spec: e.spec.clone(),
                facts: e.facts.clone(),
                seat: fleet.seat(*slot)?.clone(),
                job: e.job.clone(),
                readmissions: e.readmissions.load(Ordering::Relaxed),
                standing: None,
            })
        };
        self.entries.iter().filter_map(show).collect()
    }

    pub fn knows(&self, id: &str) -> bool {
        self.entries.values().any(|e| e.id == id)
    }

    /// The worker's id, and whether it was discovered.
    pub fn found(&self, slot: u32) -> Option<(String, bool)> {
        self.entries.get(&slot).map(|e| (e.id.clone(), e.spec.found.is_some()))
    }

    pub fn suspect(&self, slot: u32) {
        if let Some(e) = self.entries.get(&slot).filter(|e| !e.draining) {
            e.bell.suspected.store(true, Ordering::Release);
            e.bell.rung.notify_one();
        }
    }

    pub fn watched(&self, slot: u32) -> Option<Watched> {
        self.entries.get(&slot).filter(|e| !e.draining).map(|e| Watched {
            spec: e.spec.clone(),
            revision: e.revision,
            seat: e.seat.clone(),
            readmissions: e.readmissions.clone(),
            asking: e.asking.clone(),
        })
    }

    /// The worker is registered and known. A report on an older registration is let fall: the next look
    /// is on its way.
    pub fn described(&mut self, slot: u32, revision: u64, mut facts: Facts) -> Vec<FleetChange> {
        let Some(entry) = self.entries.get_mut(&slot).filter(|e| e.revision == revision) else {
            return Vec::new();
        };
        entry.job = None;
        // One that told its ids once and does not now is remembered as such: what was registered is older still.
        let told = entry.facts.as_ref().is_some_and(|f| f.kv_engine_ids.is_some());
        facts.kv_engine_ids = facts.kv_engine_ids.or(told.then(BTreeMap::new));
        if entry.facts.as_deref() == Some(&facts) {
            return Vec::new();
        }
        entry.facts = Some(Arc::new(facts));
        vec![entry.describe()]
    }

    /// What a worker says now of what a restart changes.
    pub fn retold(&mut self, slot: u32, revision: u64, change: impl FnOnce(&mut Facts)) -> Vec<FleetChange> {
        let Some(facts) = self.entries.get(&slot).and_then(|entry| entry.facts.as_deref()) else {
            return Vec::new();
        };
        let mut facts = facts.clone();
        change(&mut facts);
        self.described(slot, revision, facts)
    }

    /// Gives the worker's id and its status before, if that changes. One that `holds` wants is held when it becomes
    /// ready, unless nobody asks it how it is.
    pub fn mark(
        &mut self,
        slot: u32,
        status: Status,
        holds: impl FnOnce(&Worker) -> bool,
    ) -> Option<(String, Status)> {
        let entry = self.entries.get(&slot).filter(|e| !e.draining)?;
        let (pulse, was) = (&entry.seat.pulse, entry.seat.pulse.status());
        (was != status).then(|| {
            match status == Status::Ready && holds(&entry.seat.worker) {
                true => pulse.hold(),
                false => pulse.set_status(status),
            }
            (entry.id.clone(), was)
        })
    }

    pub fn note(&mut self, slot: u32, job: Job) {
        if let Some(entry) = self.entries.get_mut(&slot) {
            entry.job = Some(job);
        }
    }

    fn staying(&mut self, id: &str) -> Result<&mut Entry, Refused> {
        self.entries.values_mut().find(|e| e.id == id && !e.draining).ok_or(Refused::Unknown)
    }
}

impl Entry {
    pub(super) fn serves(&self) -> bool {
        !self.draining && self.seat.pulse.in_service()
    }

    fn respecify(&mut self, spec: Spec) -> FleetChange {
        self.spec = Arc::new(spec);
        self.revision += 1;
        self.bell.rung.notify_one();
        self.describe()
    }

    pub(super) fn describe(&self) -> FleetChange {
        let worker = self.spec.worker(&self.id, self.facts.as_deref());
        FleetChange::Describe { slot: self.seat.slot, worker: Box::new(worker) }
    }

    fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}
