//! What is each worker's load, as it says itself? One task for each engine, beside those that ask how workers are.
//!
//! Nobody is asked before a request was placed by what workers say ([`Fleet::want_gauges`](baton_core::fleet::Fleet)),
//! unless the settings say otherwise. No request ever waits for an answer: it takes the last values there are.
//! A value is believed for a while only; of a worker that is not well, or refuses connections, nothing is known at
//! once. The ranks of one engine share its page.

mod engine;
mod line;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, Seat};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::config::{Config, WorkerMetrics};
use crate::registry::Registry;

/// When and how workers are asked for their load.
#[derive(Clone, Debug)]
pub struct GaugeRule {
    pub when: WorkerMetrics,
    pub interval: Duration,
    /// For one answer, from connecting to its last byte.
    pub timeout: Duration,
    /// Values of a worker that does not answer any more are believed for so long.
    pub stale: Duration,
    pub page_max_bytes: usize,
    pub at_once: usize,
}

impl GaugeRule {
    pub fn of(config: &Config) -> GaugeRule {
        let load = &config.load;
        GaugeRule {
            when: if load.engine_metrics { WorkerMetrics::Always } else { load.worker_metrics },
            interval: load.monitor_interval.unwrap_or(load.worker_metrics_interval),
            timeout: load.worker_metrics_timeout,
            stale: load.worker_metrics_stale,
            page_max_bytes: load.worker_metrics_max_bytes.get(),
            at_once: load.worker_metrics_at_once.get(),
        }
    }
}

/// All ranks of one engine.
type Seats = Arc<[Arc<Seat>]>;

/// One engine that is asked.
struct Asked {
    ranks: watch::Sender<Seats>,
    task: AbortHandle,
}

/// Looks after the gauges of all workers, for ever.
pub(crate) async fn run(registry: Registry, rule: GaugeRule, seed: u64) {
    let rule = Arc::new(rule);
    while rule.when == WorkerMetrics::Auto && !registry.fleet().gauges_wanted() {
        tokio::time::sleep(rule.interval).await;
    }
    let turns = Arc::new(Semaphore::new(rule.at_once.min(Semaphore::MAX_PERMITS)));
    let (mut dice, mut tasks) = (Dice::new(seed), JoinSet::new());
    let mut engines: HashMap<String, Asked> = HashMap::new();
    let mut changes = registry.changes();
    let mut seen = None;
    loop {
        let fleet = registry.load_full();
        if seen.replace(fleet.version()) != Some(fleet.version()) {
            let found = by_engine(&fleet);
            engines.retain(|url, asked| {
                let stays = found.contains_key(url.as_str());
                if !stays {
                    asked.task.abort();
                }
                stays
            });
            for (url, seats) in found {
                let seats: Seats = seats.into();
                if let Some(asked) = engines.get(url) {
                    asked.ranks.send_replace(seats);
                    continue;
                }
                let (ranks, told) = watch::channel(seats);
                let engine = engine::Engine::new(url.to_owned(), told, rule.clone(), registry.clone());
                let task = tasks.spawn(engine.run(turns.clone(), dice.split()));
                engines.insert(url.to_owned(), Asked { ranks, task });
            }
        }
        while tasks.try_join_next().is_some() {}
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn by_engine(fleet: &Fleet) -> HashMap<&str, Vec<Arc<Seat>>> {
    let mut engines: HashMap<&str, Vec<Arc<Seat>>> = HashMap::new();
    for seat in fleet.seats() {
        engines.entry(seat.worker.base_url()).or_default().push(seat.clone());
    }
    engines
}
