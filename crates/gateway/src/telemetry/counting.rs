//! From a record to counters: the one place where an exchange is counted.
//!
//! Series once looked up are kept in an immutable map behind an arc-swap, so that recording takes no lock and allocates
//! nothing; a new series copies the part of the map that it joins. The map has a bound ([`MAX_KEPT`]): when it is reached
//! the map starts anew, which costs lookups and loses no count.

use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use baton_core::abort::Class;
use baton_core::exchange::Outcome;
use baton_core::fault::LegName;
use baton_core::fleet::{Fleet, Worker};
use baton_core::place::cascade::words::Ways;
use baton_core::record::{Record, Retried};
use baton_core::tokenize;
use baton_core::watchdog::Silence;
use rustc_hash::FxHashMap;

use super::families::Recorded;
use super::family::{Count, OTHER};
use super::labels;
use super::series::{LegSeries, RequestKey, RequestSeries};

/// Series groups kept at hand over all models.
pub const MAX_KEPT: usize = 16_384;

/// Names of the policies by which each leg's worker is picked.
#[derive(Clone, Copy, Debug)]
pub struct Policies {
    pub prefill: &'static str,
    pub decode: &'static str,
    pub whole: &'static str,
}

/// A leg's worker, by its address, its place in the plan, and AIBrix's strategy if one picked it.
type LegKey = (usize, LegName, Option<&'static str>);

/// Who picked the workers of an attempt, and as what.
#[derive(Clone, Copy)]
struct Picked {
    pd: bool,
    strategy: Option<&'static str>,
}

#[derive(Clone, Default)]
struct ModelSeries {
    requests: FxHashMap<RequestKey, Arc<RequestSeries>>,
    legs: FxHashMap<LegKey, Arc<LegSeries>>,
}

#[derive(Clone, Default)]
struct Kept {
    models: FxHashMap<Arc<str>, Arc<ModelSeries>>,
    size: usize,
}

/// Counts records.
pub struct Counting {
    all: Arc<Recorded>,
    policies: Policies,
    kept: ArcSwap<Kept>,
    /// Held while the map is replaced, and while a series is looked up that goes into it.
    growing: Mutex<()>,
    /// [`MAX_KEPT`].
    most: usize,
    request_bytes: Count,
    answer_bytes: Count,
}

impl Counting {
    pub fn new(all: Arc<Recorded>, policies: Policies) -> Counting {
        let request_bytes = all.request_bytes.of([]);
        let answer_bytes = all.answer_bytes.of([]);
        let counting = Counting {
            all,
            policies,
            kept: ArcSwap::default(),
            growing: Mutex::new(()),
            most: MAX_KEPT,
            request_bytes,
            answer_bytes,
        };
        counting.begin_at_zero();
        counting
    }

    /// Families whose label values are all known beforehand are exported from the start.
    fn begin_at_zero(&self) {
        let all = &self.all;
        for outcome in Outcome::ALL {
            all.exchanges.of([outcome.as_str()]);
        }
        for mode in labels::MODES {
            all.pd_connector_mode.of([mode]);
        }
        for reason in labels::QUEUE_REASONS {
            all.queue_rejected.of([reason]);
        }
        for api in labels::USUAL {
            all.http_requests.of(["POST", api.path()]);
            all.http_seconds.of(["POST", api.path()]);
            for leg in labels::LEGS {
                all.retries.of([labels::worker_type(Some(leg)), labels::endpoint(api)]);
                all.retries_exhausted.of([labels::worker_type(Some(leg)), labels::endpoint(api)]);
                all.retries_refused.of([labels::worker_type(Some(leg)), labels::endpoint(api)]);
            }
        }
        for leg in labels::LEGS {
            for kind in ["backend_error", "timeout"] {
                all.worker_errors.of([labels::worker_type(Some(leg)), "http", kind]);
            }
        }
        for phase in Silence::ALL {
            all.decode_watchdog.of([phase.as_str()]);
        }
        for outcome in tokenize::Outcome::ALL {
            all.tokenize_questions.of([outcome.as_str()]);
        }
        all.tokenize_seconds.of([]);
        all.pd_kv_failures.of([]);
        all.pd_bootstrap_failures.of([]);
        all.admission_waits.of([]);
        all.admission_sheds.of([]);
    }

    pub fn families(&self) -> &Recorded {
        &self.all
    }

    /// `fleet` is asked only about a model that was not seen before.
    pub fn record(&self, record: &Record, fleet: impl Fn() -> Arc<Fleet>) {
        let kept = self.kept.load();
        let said = labels::said_model(record);
        let (mut model, mut series) = (said, kept.models.get(said));
        if series.is_none() {
            model = labels::known_model(said, &fleet());
            series = kept.models.get(model);
        }
        if !record.part {
            let key = RequestKey::of(record);
            match series.and_then(|s| s.requests.get(&key)) {
                Some(found) => found.add(record),
                None => self.request_series(model, key).add(record),
            }
        }
        let series = series.map(Arc::as_ref);
        if is_last_apart(record) {
            let picked = Picked { pd: record.pd, strategy: strategy(record) };
            self.legs(series, model, picked, [&record.prefill, &record.decode]);
        }
        if !record.part {
            self.request_bytes.add(record.request_bytes);
            self.answer_bytes.add(record.answer_bytes);
        }
        if let Some(asked) = record.asked.filter(|_| !record.part) {
            self.all.tokenize_questions.of([asked.outcome.as_str()]).one();
            if let Some(took) = asked.took {
                self.all.tokenize_seconds.of([]).took(took);
            }
        }
        if let Some((roleset, tokens)) = &record.band {
            self.all.band_requests.of([roleset]).add(1);
            self.all.band_tokens.of([roleset]).add(*tokens);
        }
        let trouble = record.retries_exhausted
            || record.odd.is_some()
            || record.renewed > 0
            || record.leg.is_some()
            || record.moments.queued.is_some();
        if trouble || !record.retried.is_empty() {
            self.troubles(series, model, record);
        }
    }

    fn legs(
        &self,
        series: Option<&ModelSeries>,
        model: &str,
        picked: Picked,
        placed: [&Option<Arc<Worker>>; 2],
    ) {
        let answering = if picked.pd { LegName::Decode } else { LegName::Whole };
        for (worker, leg) in placed.into_iter().zip([LegName::Prefill, answering]) {
            let Some(worker) = worker else { continue };
            let key = (Arc::as_ptr(worker).addr(), leg, picked.strategy);
            match series.and_then(|s| s.legs.get(&key)) {
                Some(found) => found.add(),
                None => self.leg_series(model, worker, key).add(),
            }
        }
    }

    /// Failed legs and further attempts. Rare enough to look their series up each time.
    fn troubles(&self, series: Option<&ModelSeries>, model: &str, record: &Record) {
        let endpoint = record.api.map_or(OTHER, labels::endpoint);
        for (n, attempt) in record.retried.iter().enumerate() {
            let Retried { code, wait, leg, class, prefill, decode } = attempt;
            let picked = Picked { pd: prefill.is_some(), strategy: strategy(record) };
            self.legs(series, model, picked, [prefill, decode]);
            self.failed_leg(*leg, code, [prefill, decode]);
            self.failed_prefill(*leg, *class);
            self.all.retries.of([labels::worker_type(*leg), endpoint]).one();
            self.all.retry_backoff.of([labels::attempt(n)]).took(*wait);
        }
        if let Some(code) = record.code.filter(|_| is_last_apart(record)) {
            self.failed_leg(record.leg, code, [&record.prefill, &record.decode]);
            self.failed_prefill(record.leg, record.class);
            if let Some(phase) = record.silence {
                self.all.decode_watchdog.of([phase.as_str()]).one();
            }
        }
        if matches!(record.code, Some("worker_overload_protection_shed")) {
            self.all.admission_sheds.of([]).one();
        } else if record.moments.queued.is_some() && record.decode.is_some() {
            self.all.admission_waits.of([]).one();
        }
        self.failed_prefill(record.odd.and(Some(LegName::Prefill)), record.odd);
        if record.renewed > 0 {
            self.all.resends.of(["http"]).add(record.renewed.into());
        }
        if record.over_budget {
            self.all.retries_refused.of([labels::worker_type(record.leg), endpoint]).one();
        }
        if record.retries_exhausted {
            self.all.retries_exhausted.of([labels::worker_type(record.leg), endpoint]).one();
        }
    }

    /// Not a leg for which no worker was found.
    fn failed_leg(&self, leg: Option<LegName>, code: &str, placed: [&Option<Arc<Worker>>; 2]) {
        let [prefill, decode] = placed;
        let worker = if leg == Some(LegName::Prefill) { prefill } else { decode };
        if let (Some(_), Some(worker)) = (leg, worker) {
            let mode = labels::connection_mode(worker);
            self.all.worker_errors.of([labels::worker_type(leg), mode, labels::error_type(code, leg)]).one();
        }
    }

    fn failed_prefill(&self, leg: Option<LegName>, class: Option<Class>) {
        if let (Some(LegName::Prefill), Some(class)) = (leg, class) {
            self.all.prefill_failures.of([class.as_str(), "before_response"]).one();
        }
    }

    #[cold]
    fn request_series(&self, model: &str, key: RequestKey) -> Arc<RequestSeries> {
        self.keep(model, key, |m| &mut m.requests, || RequestSeries::new(&self.all, model, &key))
    }

    #[cold]
    fn leg_series(&self, model: &str, worker: &Arc<Worker>, key: LegKey) -> Arc<LegSeries> {
        let (_, leg, strategy) = key;
        let policy = strategy.unwrap_or(match leg {
            LegName::Prefill => self.policies.prefill,
            LegName::Decode => self.policies.decode,
            LegName::Whole => self.policies.whole,
        });
        let make = || LegSeries::new(&self.all, model, policy, worker, leg);
        self.keep(model, key, |m| &mut m.legs, make)
    }

    fn keep<K: Copy + Eq + Hash, S>(
        &self,
        model: &str,
        key: K,
        part: impl Fn(&mut ModelSeries) -> &mut FxHashMap<K, Arc<S>>,
        make: impl FnOnce() -> S,
    ) -> Arc<S> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = Kept::clone(&self.kept.load());
        if kept.size >= self.most {
            kept = Kept::default();
        }
        let mut series = kept.models.get(model).map(|m| ModelSeries::clone(m)).unwrap_or_default();
        let mut added = false;
        let made = part(&mut series)
            .entry(key)
            .or_insert_with(|| {
                added = true;
                Arc::new(make())
            })
            .clone();
        kept.size += usize::from(added);
        kept.models.insert(Arc::from(model), Arc::new(series));
        self.kept.store(Arc::new(kept));
        made
    }

    /// Ends the series of workers that left: with them goes the map that could still lead to one.
    pub fn retire(&self, is_here: impl Fn(&str) -> bool, is_pod: impl Fn(&str) -> bool) {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let selected = [&self.all.selected_prefill, &self.all.selected_decode];
        let pods = selected.map(|family| family.retire(|[_, pod, ..]| is_pod(pod)));
        if self.all.worker_requests.retire(|[worker, _]| is_here(worker)) || pods.contains(&true) {
            self.kept.store(Arc::default());
        }
    }
}

/// Whether the record's own workers are those of an attempt that is not among the retried ones. They are not if the wait
/// before another attempt was the last that happened, or if no worker was found for it.
fn is_last_apart(record: &Record) -> bool {
    usize::try_from(record.attempts).is_ok_and(|attempts| attempts > record.retried.len())
}

fn strategy(record: &Record) -> Option<&'static str> {
    record.ways().map(Ways::label)
}

#[cfg(test)]
mod tests {
    use baton_core::fleet::PairingMode;
    use prometheus::Registry;

    use super::*;
    use crate::telemetry::family::Buckets;

    #[test]
    fn a_map_that_starts_anew_loses_no_count() {
        let registry = Registry::new();
        let all = Recorded::new(&Buckets { durations: vec![1.0], waits: vec![1.0] }, &registry).unwrap();
        let policies = Policies { prefill: "p", decode: "d", whole: "w" };
        let counting = Counting { most: 3, ..Counting::new(Arc::new(all), policies) };
        for n in 0..40 {
            let record = Record { status: 200 + n % 8, ..Record::default() };
            counting.record(&record, || Arc::new(Fleet::new(PairingMode::Lenient)));
            assert!(counting.kept.load().size <= 3);
        }
        let families = registry.gather();
        let responses = families.iter().find(|f| f.name() == "smg_http_responses_total").unwrap();
        let counts: Vec<f64> = responses.get_metric().iter().map(|m| m.get_counter().get_value()).collect();
        assert_eq!(counts, [5.0; 8]);
    }
}
