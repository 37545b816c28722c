//! The list of workers: who is in it, and the picture of it that requests are placed on.
//!
//! Writers change the [`Book`](book) under a lock and publish a new [`Fleet`] before they let go of it, so
//! whoever was answered sees the change in the next picture. Readers load a pointer. A change costs a walk
//! over all workers, a request costs nothing.
//!
//! Each worker has a task that asks it how it is ([`crate::probe`]), and the registry is the only one that
//! writes what the task found: a worker that is being removed stays `draining` whatever a probe says.
//!
//! It does not know where workers come from ([`crate::discovery`], the admin API), nor what a worker's
//! answers mean.

mod book;
mod ranks;
mod roll;
mod settings;
mod spec;
mod tally;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::{ArcSwap, Guard};
use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, FleetChange, Seat, Status, Worker};
use baton_core::place::cascade::yard;
use baton_core::preflight::Standing;
pub use baton_core::roster::Twice;
use baton_core::time::Instant;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

pub(crate) use book::{Bell, Watched};
pub use book::{Job, JobStep, Listed, Patch, Refused};
pub use roll::{Rolled, distinct};
pub use settings::{Checks, Settings, WORKERS_MAX};
pub use spec::{Found, HealthSpec, PROVIDER, Spec};
pub use tally::Tally;

pub use crate::probe::Model;

use crate::clock::Clock;
use crate::preflight::Desk;
use crate::probe::{self, Facts};
use book::Book;

/// How often a worker that is being removed is looked at for its last request.
const DRAIN_LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// The list of workers. Copies are the same list.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    fleet: ArcSwap<Fleet>,
    book: Mutex<Book>,
    changes: watch::Sender<u64>,
    settings: Settings,
    jobs: Semaphore,
    tally: Tally,
    /// Who may be held before it serves. Unset: nobody.
    preflight: OnceLock<Arc<Desk>>,
    draining: AtomicBool,
    /// A task waits for those who relieve workers that are to go.
    relieving: AtomicBool,
}

impl Registry {
    /// A list with nobody in it. The configured workers join at [`Registry::start`].
    pub fn new(settings: Settings) -> Registry {
        Registry(Arc::new(Inner {
            fleet: ArcSwap::from_pointee(Fleet::new(settings.pairing)),
            book: Mutex::default(),
            changes: watch::Sender::new(0),
            jobs: Semaphore::new(settings.jobs_at_once.clamp(1, Semaphore::MAX_PERMITS)),
            tally: Tally::default(),
            preflight: OnceLock::new(),
            draining: AtomicBool::new(false),
            relieving: AtomicBool::new(false),
            settings,
        }))
    }

    /// From now on workers that become ready are held where this desk wants it. Whoever calls works at it.
    pub(crate) fn attend(&self, desk: Arc<Desk>) {
        let _ = self.0.preflight.set(desk);
    }

    /// Lets the configured workers join, and probes them and all later ones from tasks on this runtime.
    /// Must be called inside one.
    pub fn start(&self) {
        let runtime = tokio::runtime::Handle::current();
        self.book().start(runtime);
        self.change(|book| {
            let mut joined = Vec::new();
            for spec in &self.0.settings.workers {
                match book.join(spec.clone(), &self.0.settings) {
                    Ok((_, changes)) => joined.extend(changes),
                    Err(refused) => {
                        tracing::warn!(url = spec.url, %refused, "a configured worker is left out")
                    }
                }
            }
            Ok(((), joined))
        })
        .unwrap_or_default();
        self.watch_newcomers();
    }

    /// The current picture. Hold it briefly; for longer take [`Registry::load_full`].
    pub fn fleet(&self) -> Guard<Arc<Fleet>> {
        self.0.fleet.load()
    }

    pub fn load_full(&self) -> Arc<Fleet> {
        self.0.fleet.load_full()
    }

    /// A number that grows with each change of the fleet or of a worker's status.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// A worker joins: pending until it was probed. Gives its id.
    ///
    /// # Errors
    /// Its address is taken, the list or the queue is full, or the gateway shuts down.
    pub fn add(&self, spec: Spec) -> Result<String, Refused> {
        let url = spec.url.clone();
        let id = self.change(|book| {
            if book.waiting() >= self.0.settings.jobs_waiting {
                return Err(Refused::Busy);
            }
            book.join(spec, &self.0.settings)
        })?;
        tracing::info!(worker = id, url, "worker joined");
        self.watch_newcomers();
        Ok(id)
    }

    /// A worker is described anew, all of it.
    ///
    /// # Errors
    /// There is no such worker, or it has another address.
    pub fn replace(&self, id: &str, spec: Spec) -> Result<(), Refused> {
        self.change(|book| Ok(((), book.replace(id, spec)?)))
    }

    /// A part of a worker's description changes.
    ///
    /// # Errors
    /// There is no such worker.
    pub fn patch(&self, id: &str, patch: Patch) -> Result<(), Refused> {
        self.change(|book| Ok(((), book.patch(id, patch)?)))
    }

    /// A worker gets no more requests from now on, and leaves when its last one has ended, or after its
    /// time to settle, whichever is first.
    ///
    /// # Errors
    /// There is no such worker.
    pub fn remove(&self, id: &str) -> Result<(), Refused> {
        let settle = self.0.settings.drain_settle;
        let waits = self.change(|book| match book.retire(id, settle) {
            Some(Ok(left)) => Ok((None, vec![left])),
            Some(Err(waits)) => Ok((Some(waits), Vec::new())),
            None if book.knows(id) => Ok((None, Vec::new())),
            None => Err(Refused::Unknown),
        })?;
        match waits {
            Some(_) => tracing::info!(worker = id, "worker is draining"),
            None => tracing::info!(worker = id, "worker left"),
        }
        self.see_off(waits);
        Ok(())
    }

    /// Lets workers leave that are draining: each when its last request has ended, or after its time.
    fn see_off(&self, waiting: impl IntoIterator<Item = (u32, std::time::Duration)>) {
        let Some(runtime) = self.book().runtime() else { return };
        for (slot, settle) in waiting {
            runtime.spawn(self.clone().settle(slot, settle));
        }
    }

    async fn settle(self, slot: u32, settle: std::time::Duration) {
        let end = self.clock().now().after(settle);
        let busy = || self.fleet().seat(slot).is_some_and(|s| s.load.in_flight() > 0);
        while busy() && self.clock().now() < end {
            let next = self.clock().now().after(DRAIN_LOOK).min(end);
            tokio::time::sleep_until(self.clock().timer(next)).await;
        }
        self.leave(slot);
    }

    fn leave(&self, slot: u32) {
        let left = self.change(|book| match book.leave(slot) {
            Some(id) => Ok((id, vec![FleetChange::Leave { slot }])),
            None => Err(Refused::Unknown),
        });
        if let Ok(worker) = left {
            tracing::info!(worker, "worker left");
        }
    }

    /// The id of the worker with this id or this URL, or those of all ranks of the engine with this URL; those that are
    /// not draining come first.
    pub fn find(&self, id_or_url: &str) -> Vec<String> {
        self.book().find(id_or_url)
    }

    /// All workers, in the order in which they joined.
    pub fn list(&self) -> Vec<Listed> {
        let book = self.book();
        let fleet = self.load_full();
        let mut list = book.list(&fleet);
        drop(book);
        if let Some(desk) = self.0.preflight.get() {
            list.iter_mut().for_each(|listed| listed.standing = desk.standing(listed.seat.slot));
        }
        list
    }

    /// What the pre-flight knows of each worker that is ready.
    pub fn standings(&self) -> Vec<(Arc<Seat>, Standing)> {
        let Some(desk) = self.0.preflight.get() else { return Vec::new() };
        let fleet = self.load_full();
        fleet.seats().filter_map(|seat| Some((seat.clone(), desk.standing(seat.slot)?))).collect()
    }

    /// The data path could not connect to this worker, or lost it: look at it soon. Cheap, and heeded at
    /// most once a second for each worker.
    pub fn suspect(&self, slot: u32) {
        self.book().suspect(slot);
    }

    /// Asks the worker for what a restart changes, unless it was asked at `since` or later. For the data path,
    /// which waits for it: one question at a time for each worker, and not longer than two of them take.
    pub async fn ask_again(self, slot: u32, since: Instant) {
        let Some(worker) = self.watched(slot) else { return };
        let ask = async {
            let _asking = worker.asking.lock().await;
            if worker.seat.pulse.told_at() < since {
                probe::ask_again(&self, &worker).await;
            }
        };
        let _ = tokio::time::timeout(2 * probe::ASK_AGAIN_PATIENCE, ask).await;
    }

    /// Counts of health checks and readmissions.
    pub fn tally(&self) -> &Tally {
        &self.0.tally
    }

    /// The gateway takes its leave: readiness says so from now on. Probing goes on.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
        self.bump();
    }

    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    /// Ends all tasks. Nobody joins any more.
    pub fn shutdown(&self) {
        self.drain();
        self.book().close();
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub fn clock(&self) -> Clock {
        self.0.settings.clock
    }
}

/// What the probe of a worker asks for and reports.
impl Registry {
    pub(crate) fn watched(&self, slot: u32) -> Option<Watched> {
        self.book().watched(slot)
    }

    /// A turn at looking at a new worker.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.0.jobs.acquire().await.ok()
    }

    /// What a worker said about itself, when it was registered as of `revision`.
    pub(crate) fn described(&self, slot: u32, revision: u64, facts: Facts) {
        self.learn(slot, |book| book.described(slot, revision, facts));
    }

    /// What a worker says now of what a restart changes, when it was registered as of `revision`.
    pub(crate) fn retold(&self, slot: u32, revision: u64, change: impl FnOnce(&mut Facts)) {
        self.learn(slot, |book| book.retold(slot, revision, change));
    }

    /// A worker said something: the fleet changes, and with `--dp-aware` perhaps the workers of its engine.
    fn learn(&self, slot: u32, said: impl FnOnce(&mut Book) -> Vec<FleetChange>) {
        let arranged = self.change(|book| {
            let mut changes = said(book);
            let (arranged, gone) = book.arrange(slot, &self.0.settings);
            let split = !arranged.is_empty();
            changes.extend(arranged);
            Ok(((split, gone), changes))
        });
        let (split, gone) = arranged.unwrap_or_default();
        if split {
            self.watch_newcomers();
        }
        for id in gone {
            self.remove(&id).unwrap_or_default();
        }
    }

    /// A worker's new status. One that is draining stays so, one that becomes ready may be held.
    pub(crate) fn mark(&self, slot: u32, status: Status) {
        let desk = self.0.preflight.get().filter(|_| !self.is_draining());
        let holds = |worker: &Worker| desk.is_some_and(|desk| desk.holds(worker));
        let changed = self.book().mark(slot, status, holds);
        if let Some((id, was)) = changed {
            tracing::info!(worker = id, from = was.as_str(), to = status.as_str(), "worker status");
            self.bump();
        }
    }

    /// How the first look at a worker goes.
    pub(crate) fn note(&self, slot: u32, step: JobStep, message: String) {
        let at = self.clock().unix_seconds();
        self.book().note(slot, Job { step, message, at });
    }

    /// A worker that failed is removed, where that is wanted: a list that still names it brings it in anew.
    pub(crate) fn failed(&self, slot: u32) {
        // The lock must be gone before the removal takes it.
        let found = self.book().found(slot);
        let wanted = self.0.settings.remove_failed;
        if let Some((id, _)) = found.filter(|(_, discovered)| wanted.unwrap_or(*discovered)) {
            tracing::warn!(worker = id, "worker failed and is removed");
            self.remove(&id).unwrap_or_default();
        }
    }
}

impl Registry {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something changed that others than the registry decide.
    pub(crate) fn changed(&self) {
        self.bump();
    }

    fn bump(&self) {
        self.0.changes.send_modify(|n| *n += 1);
    }

    /// Changes the book and publishes what that changes in the fleet, before anybody else can.
    fn change<T>(
        &self,
        f: impl FnOnce(&mut Book) -> Result<(T, Vec<FleetChange>), Refused>,
    ) -> Result<T, Refused> {
        let mut book = self.book();
        let (out, changes) = f(&mut book)?;
        if !changes.is_empty() {
            let last = self.0.fleet.load();
            let next = last.with(changes);
            let why = next.no_pair().filter(|why| last.no_pair() != Some(why));
            if let Some(why) = why {
                tracing::warn!(why, "no prefill and decode worker may pair");
            }
            for (worker, why) in yard::complaints(&last, &next) {
                tracing::warn!(worker, why, "the annotation model.aibrix.ai/config cannot be used as it is");
            }
            self.0.fleet.store(Arc::new(next));
        }
        drop(book);
        self.bump();
        Ok(out)
    }

    /// Gives each worker that has none its task.
    fn watch_newcomers(&self) {
        let mut book = self.book();
        let Some(runtime) = book.runtime() else { return };
        for (slot, bell, task) in book.unwatched() {
            let dice = Dice::new(self.0.settings.seed ^ u64::from(slot));
            let watch = probe::watch(self.clone(), slot, bell, dice);
            *task = Some(runtime.spawn(watch).abort_handle());
        }
    }
}
