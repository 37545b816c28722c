//! What is exported when somebody looks: gauges read off the fleet, then everything as text.
//!
//! Gauges are built anew from the leases, breakers and health of the workers there are. Nothing is added and taken away
//! again on the way, so that no gauge can go below zero, stay up, or outlive its worker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton_core::breaker::Breaker;
use baton_core::fleet::{Engine, Fleet, Role, Seat};
use baton_core::gauges::{Gauge, Gauges};
use baton_core::kv::{Happened, Trouble, Trust};
use baton_core::time::Instant;
use prometheus::proto::MetricFamily;
use prometheus::{Registry, TextEncoder};

use super::families::{Recorded, Scraped, table};
use super::family::{self, OTHER};
use super::labels;
use crate::ledger::{Attempt, Shown};
use crate::registry::PROVIDER;

/// Counts that only the shell knows at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub now: Instant,
    /// Requests let in and not yet at their last byte.
    pub inflight: usize,
    /// Requests that wait to be let in.
    pub queued: usize,
    /// Client connections open.
    pub connections: usize,
    /// Health checks so far by role: good ones and bad ones.
    pub checks: Vec<(Role, u64, u64)>,
    /// Looks at workers' metrics so far: those that told something, and the others.
    pub looks: (u64, u64),
    /// What the pre-flight knows of workers: their URL and its word for it.
    pub preflight: Vec<(String, &'static str)>,
    /// What engines say of their load is passed on.
    pub engine_metrics: bool,
    pub indexes: Indexes,
    /// What AIBrix's cascade charges workers with.
    pub charged: Vec<Charged>,
    /// The longest prompt of each roleset's bands.
    pub bands: BTreeMap<String, u64>,
    /// How sharing the decode ledger goes, once it has begun.
    pub shared: Option<Shown>,
}

/// What is remembered of prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes {
    /// What was sent where: the leg, bytes in use, bytes that may be, runs of blocks evicted.
    pub sent: Vec<(&'static str, usize, usize, u64)>,
    /// What workers told: bytes in use, bytes that may be, blocks.
    pub told: [usize; 3],
    /// Choices by what was known of the chosen worker, in the order of [`Trust::ALL`].
    pub choices: [u64; Trust::ALL.len()],
}

impl Indexes {
    fn show(&self, scraped: &Scraped) {
        for (leg, bytes, budget, evicted) in &self.sent {
            scraped.prefix_bytes.set([leg], *bytes as f64);
            scraped.prefix_budget.set([leg], *budget as f64);
            scraped.prefix_evictions.add([leg], *evicted);
        }
        if self.sent.is_empty() {
            return;
        }
        let [bytes, budget, blocks] = self.told;
        scraped.kv_bytes.set([], bytes as f64);
        scraped.kv_budget.set([], budget as f64);
        scraped.kv_entries.set([], blocks as f64);
        for (trust, choices) in Trust::ALL.into_iter().zip(self.choices) {
            scraped.kv_choices.add([trust.as_str()], choices);
        }
    }
}

/// Tokens that one worker of a pod is charged with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    pub namespace: String,
    pub pod: String,
    /// `None`: it is no prefill.
    pub prefill: Option<(u64, u64)>,
    /// `None`: it does not decode.
    pub decode: Option<u64>,
}

impl Live {
    pub(super) fn show(&self, scraped: &Scraped) {
        scraped.admission_inflight.set([], self.inflight as f64);
        scraped.admission_queue.set([], self.queued as f64);
        scraped.connections.set([], self.connections as f64);
        self.indexes.show(scraped);
        scraped.metric_looks.add(["success"], self.looks.0);
        scraped.metric_looks.add(["failure"], self.looks.1);
        for (role, good, bad) in &self.checks {
            scraped.health_checks.add([role.as_str(), "success"], *good);
            scraped.health_checks.add([role.as_str(), "failure"], *bad);
        }
        for (worker, state) in &self.preflight {
            scraped.preflight.set([worker, state], 1.0);
        }
        // A pod with several ports, or an engine with several ranks, is several workers.
        for pod in &self.charged {
            let labels = [pod.namespace.as_str(), pod.pod.as_str()];
            if let Some((active, kv)) = pod.prefill {
                scraped.ledger_active.add(labels, active as f64);
                scraped.ledger_kv.add(labels, kv as f64);
            }
            if let Some(tokens) = pod.decode {
                scraped.ledger_decode.add(labels, tokens as f64);
            }
        }
        for (roleset, max) in &self.bands {
            scraped.band_max.set([roleset], *max as f64);
        }
        if let Some(shared) = &self.shared {
            self.show_shared(shared, scraped);
        }
    }
}

impl Live {
    fn show_shared(&self, shared: &Shown, scraped: &Scraped) {
        scraped.shared_up.set([], f64::from(u8::from(shared.up)));
        scraped.shared_instances.set([], shared.instances as f64);
        if let Some(heard) = shared.heard {
            scraped.shared_age.set([], self.now.since(heard).as_secs_f64());
        }
        for (what, failures) in Attempt::ALL.into_iter().zip(shared.failures) {
            scraped.shared_failures.add([what.as_str()], failures);
        }
    }
}

/// Gauges of the fleet as it is now.
pub fn read(fleet: &Fleet, scraped: &Scraped) {
    let mut engines = BTreeMap::<&str, Vec<&Seat>>::new();
    let mut pools = BTreeMap::<[&str; 3], u32>::new();
    for seat in fleet.seats() {
        let worker = &seat.worker;
        engines.entry(&worker.url).or_default().push(seat);
        let model = worker.models.first().map_or(OTHER, String::as_str);
        *pools.entry([worker.role.as_str(), labels::connection_mode(worker), model]).or_default() += 1;
    }
    for (url, ranks) in engines {
        read_engine(url, &ranks, scraped);
    }
    for (pool, size) in pools {
        scraped.pool_size.set(pool, f64::from(size));
    }
    scraped.ready.set([], f64::from(u8::from(fleet.ready())));
    scraped.held.set([], fleet.seats().filter(|seat| seat.pulse.is_held()).count() as f64);
    scraped.pairs.set([], fleet.prefill().iter().map(|p| p.partners.len()).sum::<usize>() as f64);
    scraped.build.set([env!("CARGO_PKG_VERSION")], 1.0);
}

/// The lists that workers are discovered in: how many of them are there, and when the list was last good.
pub fn lists(fleet: &Fleet, lists: &[(&'static str, u64)], scraped: &Scraped) {
    for (source, good) in lists {
        let found = fleet.seats().filter(|seat| seat.worker.label(PROVIDER) == Some(source));
        scraped.discovered_now.set([source], found.count() as f64);
        scraped.discovery_good.set([source], *good as f64);
    }
}

/// What is known of workers' caches, of those that tell.
pub fn views(fleet: &Fleet, now: Instant, scraped: &Scraped) {
    for seat in fleet.seats().filter(|seat| seat.view.is_used()) {
        let (url, view) = (seat.worker.url.as_str(), &seat.view);
        scraped.kv_blocks.set([url], view.blocks() as f64);
        scraped.kv_trust.set([url], f64::from(view.trust(seat.pulse.life()) as u8));
        if let Some(age) = view.age(now) {
            scraped.kv_age.set([url], age.as_secs_f64());
        }
        for what in Happened::ALL {
            scraped.kv_events.add([url, what.as_str()], view.happened(what));
        }
        for what in Trouble::ALL {
            scraped.kv_troubles.add([url, what.as_str()], view.troubles(what));
        }
    }
}

type OfEngine = fn(&Gauges) -> &Gauge;

/// What engines say of their load, of those that do. Ranks of one engine add up, but for the share of memory.
pub fn engines(fleet: &Fleet, scraped: &Scraped) {
    let mut engines = BTreeMap::<&str, Vec<&Gauges>>::new();
    for seat in fleet.seats() {
        engines.entry(&seat.worker.url).or_default().push(&seat.gauges);
    }
    for (url, ranks) in engines {
        let all = |of: OfEngine| ranks.iter().filter_map(move |rank| of(rank).get());
        let sums: [(&family::Gauges<1>, OfEngine); 5] = [
            (&scraped.engine_running, |g| &g.running),
            (&scraped.engine_waiting, |g| &g.waiting),
            (&scraped.engine_throughput, |g| &g.throughput),
            (&scraped.engine_prefill_queue, |g| &g.prefill_prealloc),
            (&scraped.engine_decode_queue, |g| &g.decode_prealloc),
        ];
        for (family, of) in sums {
            if all(of).next().is_some() {
                family.set([url], all(of).sum());
            }
        }
        let used = |g: &Gauges| g.kv_usage.get();
        let known: Vec<f64> = ranks.iter().filter_map(|rank| used(rank)).collect();
        if !known.is_empty() {
            scraped.engine_usage.set([url], known.iter().sum::<f64>() / known.len() as f64);
        }
    }
}

/// Ranks of one engine share its URL, and so its series: loads add up, of the rest the worst is shown.
fn read_engine(url: &str, ranks: &[&Seat], scraped: &Scraped) {
    let breakers: Vec<Breaker> = ranks.iter().map(|seat| seat.pulse.breaker()).collect();
    let worst = |of: fn(&Breaker) -> u32| f64::from(breakers.iter().map(of).max().unwrap_or(0));
    let active: f64 = ranks.iter().map(|seat| f64::from(seat.load.in_flight())).sum();
    let well = ranks.iter().all(|seat| seat.pulse.in_service());
    scraped.requests_active.set([url], active);
    if ranks.iter().any(|seat| seat.worker.role == Role::Decode) {
        let window: u32 = ranks.iter().filter_map(|seat| seat.window).sum();
        scraped.admission_window.set([url], f64::from(window));
    }
    scraped.health.set([url], f64::from(u8::from(well)));
    scraped.cb_state.set([url], breakers.iter().map(|b| b.state().gauge()).max().unwrap_or(0) as f64);
    scraped.cb_failures.set([url], worst(Breaker::bad_in_a_row));
    scraped.cb_successes.set([url], worst(Breaker::good_in_a_row));
    scraped.cb_transitions.add([url], breakers.iter().map(|b| u64::from(b.transitions())).sum());
}

/// Series of models and workers that are there but have not been asked for yet appear at zero.
pub fn seed(fleet: &Fleet, all: &Recorded) {
    for seat in fleet.seats() {
        for model in &seat.worker.models {
            all.worker_requests.of([&seat.worker.url, model]);
        }
    }
    for model in fleet.models() {
        let serves = |seat: &&Arc<Seat>| seat.worker.serves(Some(model));
        // One whose engine is not known yet would leave a series behind under that name.
        let engines = fleet.decode().iter().filter(serves).map(|seat| seat.worker.engine);
        let engines: BTreeSet<_> = engines.filter(|e| *e != Engine::default()).map(Engine::as_str).collect();
        for engine in &engines {
            for family in [&all.pd_ttft, &all.pd_decode_ttft, &all.pd_prefill] {
                family.of([labels::backend_type(true), model, engine]);
            }
        }
        for (pd, served) in [(true, !engines.is_empty()), (false, fleet.whole().iter().any(|s| serves(&s)))] {
            for api in labels::USUAL.into_iter().filter(|_| served) {
                for stream in [true, false] {
                    all.router_requests.of(labels::router(pd, model, api, stream));
                }
            }
        }
    }
}

/// The exposition: each family of the table with its series, in the table's order.
pub fn text(registry: &Registry, scraped: &Scraped) -> String {
    let mut found: BTreeMap<String, MetricFamily> = registry
        .gather()
        .into_iter()
        .chain(scraped.collect())
        .map(|family| (family.name().to_owned(), family))
        .collect();
    let mut out = String::with_capacity(64 * 1024);
    for row in table() {
        match found.remove(row.name).filter(|family| !family.get_metric().is_empty()) {
            // Cannot fail: writing to memory, and the family has series.
            Some(family) => drop(TextEncoder::new().encode_utf8(&[family], &mut out)),
            None => {
                let lines = ["# HELP ", row.name, " ", row.help, "\n# TYPE ", row.name, " ", row.kind, "\n"];
                out.extend(lines);
            }
        }
    }
    out
}
