//! How is this worker, and what is it? One task for each worker, from the day it joins until it leaves.
//!
//! A new worker is *introduced*: asked until it answers, then asked what it is. It is ready at once when
//! that is known, because a first good answer is as good a sign as a second. From then on it is
//! *checked*, and core's [`Health`] says what a row of good or bad answers means. A worker that was away
//! is asked again what it is before it is trusted: another engine, version or model may have come back at
//! the same address.
//!
//! What it does not know: whether requests succeed. A worker whose breaker opened is readmitted only when
//! a check turned from bad to good, never because a worker that fails requests has a good health page.

mod detect;
mod facts;
pub(crate) mod gauges;
mod get;
mod mooncake;
mod rhythm;
mod sglang;
mod trt;
mod vllm;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_core::breaker::BreakerState;
use baton_core::dice::Dice;
use baton_core::fleet::{Health, Status};
use baton_core::handoff;
use baton_core::time::Instant;

pub use facts::{Facts, Model};
pub use gauges::GaugeRule;
pub use get::{ANSWER_MAX_BYTES, Reply, Silence, Target};
pub(crate) use mooncake::PATIENCE as ASK_AGAIN_PATIENCE;
pub use trt::{context_labels, said as context_said, tells_context};

use crate::registry::{Bell, Checks, JobStep, Registry, Watched};

/// Longest time that a context server's word is believed (AIBrix's page).
const CONTEXT_TTL: Duration = Duration::from_secs(60);

/// Looks after one worker until it leaves.
pub(crate) async fn watch(registry: Registry, slot: u32, bell: Arc<Bell>, dice: Dice) {
    let born = registry.clock().now();
    let mut watch = Watch {
        registry,
        slot,
        bell,
        dice,
        born,
        health: Health::default(),
        met: None,
        lost: false,
        last_good: true,
        failed_tries: 0,
    };
    tokio::time::sleep(watch.registry.settings().checks.startup_delay).await;
    while let Some(worker) = watch.registry.watched(slot) {
        let began = watch.registry.clock().now();
        let checks = worker.spec.checks(&watch.registry.settings().checks);
        let pause = match watch.met {
            None => Some(watch.introduce(&worker, &checks).await),
            Some(revision) => watch.check(&worker, &checks, revision).await,
        };
        watch.wait(pause, worker.revision, began).await;
    }
}

struct Watch {
    registry: Registry,
    slot: u32,
    bell: Arc<Bell>,
    dice: Dice,
    born: Instant,
    health: Health,
    /// The revision of the spec with which the worker was last described. None: never.
    met: Option<u64>,
    /// It was away, or may have been: ask what it is before trusting it.
    lost: bool,
    last_good: bool,
    failed_tries: u32,
}

impl Watch {
    /// One try at getting to know the worker. Gives the pause before the next questions.
    async fn introduce(&mut self, worker: &Watched, checks: &Checks) -> Duration {
        let answer = {
            let _turn = self.registry.turn().await;
            self.registry.note(self.slot, JobStep::Processing, String::new());
            self.look(worker, checks).await
        };
        match answer {
            Ok(()) => {
                self.met = Some(worker.revision);
                self.set(Status::Ready);
                rhythm::first_pause(checks.interval, &mut self.dice)
            }
            Err(silence) => {
                self.failed_tries = self.failed_tries.saturating_add(1);
                let late = self.registry.clock().now().since(self.born) >= checks.startup_timeout;
                let step = if late { JobStep::Failed } else { JobStep::Processing };
                self.registry.note(self.slot, step, silence.to_string());
                if late && !checks.disabled {
                    self.set(Status::Failed);
                }
                match late {
                    true => self.dice.jitter(checks.interval, 0.1),
                    false => rhythm::retry_pause(self.failed_tries, checks.startup_interval),
                }
            }
        }
    }

    /// One health check. Gives the pause before the next; none if there is nothing to wait for.
    async fn check(&mut self, worker: &Watched, checks: &Checks, met: u64) -> Option<Duration> {
        let answer = if checks.disabled { Ok(()) } else { alive(worker, checks).await };
        if let Err(silence) = &answer {
            tracing::debug!(url = worker.spec.url, %silence, "health check failed");
            self.lost |= matches!(silence, Silence::Refused(_));
        }
        let mut good = answer.is_ok();
        if good && (self.lost || met != worker.revision) {
            match self.describe(worker, checks).await {
                Ok(()) => {
                    self.met = Some(worker.revision);
                    self.lost = false;
                }
                // A ready worker is believed on its health page; one that was away has to say what it is.
                Err(_) => good = self.health.status() == Status::Ready,
            }
        } else if good {
            ask_again(&self.registry, worker).await;
        }
        if checks.disabled {
            self.set(Status::Ready);
            return None;
        }
        self.count(worker, good);
        if let Some(status) = self.health.probed(good, &checks.rule) {
            self.lost |= status != Status::Ready;
            self.set_reached(status);
        }
        self.last_good = good;
        let told = self.registry.fleet().seat(self.slot).is_some_and(|seat| trt::tells_context(&seat.worker));
        let interval = if told { checks.interval.min(CONTEXT_TTL) } else { checks.interval };
        Some(rhythm::check_pause(self.health.status(), good, interval, &mut self.dice))
    }

    /// Is the worker there, and what is it?
    async fn look(&self, worker: &Watched, checks: &Checks) -> Result<(), Silence> {
        if !checks.disabled {
            alive(worker, checks).await?;
        }
        self.describe(worker, checks).await
    }

    /// Asks the worker what it is, and publishes what it says.
    async fn describe(&self, worker: &Watched, checks: &Checks) -> Result<(), Silence> {
        let asked = self.registry.clock().now();
        let spec = &worker.spec;
        let mut facts = detect::describe(&target(worker, checks), spec.engine, spec.role).await?;
        let known = spec.worker("", Some(&facts));
        if let Some(url) = handoff::engine_ids_url(&known, &self.registry.settings().handoff) {
            facts.kv_engine_ids = engine_ids(worker, &url).await;
        }
        if trt::tells_context(&known) {
            facts.labels.extend(trt::ask(&target(worker, checks)).await);
        }
        self.registry.described(self.slot, worker.revision, facts);
        worker.seat.pulse.told(asked);
        Ok(())
    }

    fn count(&self, worker: &Watched, good: bool) {
        self.registry.tally().checked(worker.spec.role, good);
        let pulse = &worker.seat.pulse;
        if good && !self.last_good && pulse.breaker().state() != BreakerState::Closed {
            pulse.readmit();
            worker.readmissions.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn set(&mut self, status: Status) {
        if self.health.status() != status {
            self.health.set(status);
            self.set_reached(status);
        }
    }

    fn set_reached(&self, status: Status) {
        self.registry.mark(self.slot, status);
        if status == Status::Failed {
            self.registry.failed(self.slot);
        }
    }

    /// Until the pause is over, or something asks for a look: a new registration at once, a suspicion of
    /// the data path not sooner than a second after the last look.
    async fn wait(&mut self, pause: Option<Duration>, revision: u64, began: Instant) {
        let clock = self.registry.clock();
        let over = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return,
                () = self.bell.rung.notified() => {}
            }
            if self.registry.watched(self.slot).is_none_or(|w| w.revision != revision) {
                return;
            }
            // One that was rung for twice may find its reason gone.
            if self.bell.suspected.swap(false, Ordering::AcqRel) {
                self.lost = true;
                let gap = pause.unwrap_or(rhythm::EARLY_PROBE_GAP).min(rhythm::EARLY_PROBE_GAP);
                return tokio::time::sleep_until(clock.timer(began.after(gap))).await;
            }
        }
    }
}

/// Asks a worker again for what a restart changes.
pub(crate) async fn ask_again(registry: &Registry, worker: &Watched) {
    let slot = worker.seat.slot;
    let Some(known) = registry.fleet().seat(slot).map(|seat| seat.worker.clone()) else { return };
    let asked = registry.clock().now();
    let settings = registry.settings();
    if let Some(url) = handoff::engine_ids_url(&known, &settings.handoff) {
        let ids = engine_ids(worker, &url).await;
        registry.retold(slot, worker.revision, |facts| facts.kv_engine_ids = ids);
    }
    if trt::tells_context(&known) {
        let said = trt::ask(&target(worker, &worker.spec.checks(&settings.checks))).await;
        registry.retold(slot, worker.revision, |facts| {
            facts.labels.retain(|label, _| !trt::LABELS.contains(&label.as_str()));
            facts.labels.extend(said);
        });
    }
    worker.seat.pulse.told(asked);
}

async fn engine_ids(worker: &Watched, url: &str) -> Option<BTreeMap<u32, String>> {
    let ids = mooncake::ids(url).await;
    if let Err(silence) = &ids {
        tracing::warn!(url = worker.spec.url, %silence, "the engine did not tell its KV engine id");
    }
    ids.ok()
}

async fn alive(worker: &Watched, checks: &Checks) -> Result<(), Silence> {
    let reply = target(worker, checks).get(&checks.endpoint).await?;
    match reply.status.is_success() {
        true => Ok(()),
        false => Err(Silence::Unusable(format!("{} answered {}", checks.endpoint, reply.status))),
    }
}

fn target(worker: &Watched, checks: &Checks) -> Target {
    Target {
        url: worker.spec.base_url().to_owned(),
        api_key: worker.spec.api_key.clone(),
        timeout: checks.timeout,
    }
}
