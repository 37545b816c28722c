//! The series that one record adds to, looked up once and kept.
//!
//! All that chooses a series (route, status, model, worker and so on) is the [`RequestKey`] or a worker; the values that
//! are added come from the record. So a record costs a few lookups by small keys and then atomic additions alone.

use std::sync::Arc;

use baton_core::ask::Api;
use baton_core::exchange::Outcome;
use baton_core::fault::LegName;
use baton_core::fleet::{Engine, Worker};
use baton_core::place::cascade::words::Way;
use baton_core::record::{HandoffResult, Record};

use super::families::Recorded;
use super::family::{Count, Timing};
use super::labels::{self, Route};

/// What chooses the series of a request, but for its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    route: Route,
    method: &'static str,
    status: u16,
    code: Option<&'static str>,
    fault_status: Option<u16>,
    leg: Option<LegName>,
    api: Option<Api>,
    stream: bool,
    pd: bool,
    engine: Engine,
    mode: Option<&'static str>,
    handoff: HandoffResult,
    outcome: Outcome,
}

impl RequestKey {
    pub fn of(record: &Record) -> RequestKey {
        RequestKey {
            route: Route::of(record),
            method: labels::method(record.method),
            status: record.status,
            code: record.code,
            fault_status: record.fault_status,
            leg: record.leg,
            api: record.api,
            stream: record.stream,
            pd: record.pd,
            engine: record.engine,
            mode: record.mode,
            handoff: record.handoff,
            outcome: record.outcome,
        }
    }
}

/// Series of a request.
pub struct RequestSeries {
    requests: Count,
    responses: Count,
    seconds: Timing,
    exchange: Option<ExchangeSeries>,
}

/// Series of an inference request.
struct ExchangeSeries {
    outcome: Count,
    requests: Count,
    seconds: Timing,
    error: Option<[Count; 2]>,
    input_tokens: Count,
    output_tokens: Count,
    cached_tokens: Count,
    streamed: Option<[Timing; 2]>,
    rejected: Option<Count>,
    pair: Option<PairSeries>,
}

/// Series of a request that was placed on a pair.
struct PairSeries {
    ttft: Timing,
    decode_ttft: Timing,
    prefill: Timing,
    kv_transfer: Timing,
    handoff: Count,
    mode: Option<Count>,
    lost: Option<Count>,
}

impl RequestSeries {
    pub fn new(all: &Recorded, model: &str, key: &RequestKey) -> RequestSeries {
        let path = key.route.as_str();
        let status = key.status.to_string();
        RequestSeries {
            requests: all.http_requests.of([key.method, path]),
            responses: all.http_responses.of([path, &status, labels::error_code(key.code, key.outcome)]),
            seconds: all.http_seconds.of([key.method, path]),
            exchange: key.api.map(|api| ExchangeSeries::new(all, model, api, key)),
        }
    }

    pub fn add(&self, record: &Record) {
        let at = &record.moments;
        self.requests.one();
        self.responses.one();
        self.seconds.took(at.ended.since(at.received));
        if let Some(exchange) = &self.exchange {
            exchange.add(record);
        }
    }
}

impl ExchangeSeries {
    fn new(all: &Recorded, model: &str, api: Api, key: &RequestKey) -> ExchangeSeries {
        let (backend, endpoint) = (labels::backend_type(key.pd), labels::endpoint(api));
        let router = labels::router(key.pd, model, api, key.stream);
        let error = |code| {
            let [a, b, c, d, e, f] = router;
            let status = key.fault_status.unwrap_or(key.status).to_string();
            [
                all.router_errors.of([a, b, c, d, e, f, labels::error_type(code, key.leg)]),
                all.model_failures.of([model, labels::failure(code, key.leg), &status]),
            ]
        };
        let tokens = |kind| all.router_tokens.of(["http", backend, model, endpoint, kind]);
        let short = ["http", backend, model, endpoint];
        let failed = matches!(key.outcome, Outcome::Failed | Outcome::Cut);
        let reason = key.code.and_then(labels::queue_reason);
        ExchangeSeries {
            outcome: all.exchanges.of([key.outcome.as_str()]),
            requests: all.router_requests.of(router),
            seconds: all.router_seconds.of(router),
            error: key.code.filter(|_| failed).map(error),
            input_tokens: tokens("input"),
            output_tokens: tokens("output"),
            cached_tokens: all.cached_tokens.of([model]),
            streamed: key.stream.then(|| [all.router_ttft.of(short), all.router_tpot.of(short)]),
            rejected: reason.map(|reason| all.queue_rejected.of([reason])),
            pair: (key.pd && api != Api::CountTokens).then(|| PairSeries::new(all, model, key)),
        }
    }

    fn add(&self, record: &Record) {
        let at = &record.moments;
        self.outcome.one();
        self.requests.one();
        self.seconds.took(at.ended.since(at.received));
        for count in self.error.iter().flatten().chain(&self.rejected) {
            count.one();
        }
        if let Some(usage) = &record.usage {
            self.input_tokens.add(usage.prompt_tokens);
            self.output_tokens.add(usage.completion_tokens);
            self.cached_tokens.add(usage.cached_tokens.unwrap_or(0));
        }
        if let Some([ttft, tpot]) = &self.streamed {
            ttft.between(at.decode_sent, at.first_byte);
            let after_first = record.usage.map_or(0, |usage| usage.completion_tokens.saturating_sub(1));
            if let (Ok(tokens @ 1..), Some(first), Outcome::Served) =
                (u32::try_from(after_first), at.first_byte, record.outcome)
            {
                tpot.took(at.ended.since(first) / tokens);
            }
        }
        if let Some(pair) = &self.pair {
            pair.add(record);
        }
    }
}

impl PairSeries {
    fn new(all: &Recorded, model: &str, key: &RequestKey) -> PairSeries {
        let runtime = key.engine.as_str();
        let short = [labels::backend_type(true), model, runtime];
        let lost = matches!(key.handoff, HandoffResult::Missing | HandoffResult::Invalid);
        PairSeries {
            ttft: all.pd_ttft.of(short),
            decode_ttft: all.pd_decode_ttft.of(short),
            prefill: all.pd_prefill.of(short),
            kv_transfer: all.pd_kv_transfer.of(short),
            handoff: all.handoffs.of([runtime, key.mode.unwrap_or(""), key.handoff.as_str()]),
            mode: key.mode.map(|mode| all.pd_connector_mode.of([mode])),
            lost: lost.then(|| all.pd_kv_failures.of([])),
        }
    }

    fn add(&self, record: &Record) {
        let at = &record.moments;
        self.ttft.between(at.prefill_sent, at.first_byte);
        self.decode_ttft.between(at.decode_sent, at.first_byte);
        self.prefill.between(at.prefill_sent, at.prefill_done);
        // Legs that run at once have no such moment: the decode left before the prefill answered.
        self.kv_transfer.between(at.prefill_done, at.decode_sent);
        self.handoff.one();
        for count in [&self.mode, &self.lost].into_iter().flatten() {
            count.one();
        }
    }
}

/// Series of one worker under one model.
pub struct LegSeries {
    /// Held so that no other worker can come to lie at its address, which is its key.
    _worker: Arc<Worker>,
    requests: Count,
    selections: Count,
    /// AIBrix's count of what its `pd` picked.
    selected: Option<Count>,
}

impl LegSeries {
    pub fn new(all: &Recorded, model: &str, policy: &str, worker: &Arc<Worker>, leg: LegName) -> LegSeries {
        let mode = labels::connection_mode(worker);
        let family = match leg {
            LegName::Prefill => &all.selected_prefill,
            LegName::Decode | LegName::Whole => &all.selected_decode,
        };
        let pd = policy == Way::Pd.as_str();
        LegSeries {
            selected: pd.then(|| family.of(labels::pod(worker, model))),
            _worker: Arc::clone(worker),
            requests: all.worker_requests.of([&worker.url, model]),
            selections: all.worker_selections.of([worker.role.as_str(), mode, model, policy]),
        }
    }

    pub fn add(&self) {
        self.requests.one();
        self.selections.one();
        if let Some(selected) = &self.selected {
            selected.one();
        }
    }
}
