//! Showing workers: SMG 1.13's WorkerInfo. Keys are never shown; what is not known is left out.

use std::collections::BTreeMap;

use baton_core::fleet::{Role, Status, pairing_key};
use baton_core::preflight::Standing;
use serde::Serialize;

use super::Reply;
use crate::registry::{HealthSpec, Job, JobStep, Listed};

/// What the gateway serves of any model.
const MODEL_TYPE: [&str; 3] = ["chat", "completions", "tools"];

#[derive(Serialize)]
struct Shown<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_id: Option<&'a str>,
    url: &'a str,
    models: Vec<Card<'a>>,
    worker_type: &'static str,
    connection_mode: &'static str,
    runtime_type: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    priority: u32,
    cost: f64,
    #[serde(flatten)]
    optional: Optional<'a>,
    is_healthy: bool,
    status: &'static str,
    load: u32,
    http2: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pd_pairing: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pd_preflight: Option<Preflight<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_status: Option<JobStatus<'a>>,
}

#[derive(Serialize)]
struct Preflight<'a> {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    partner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded_with: Option<&'a str>,
}

#[derive(Serialize)]
struct Card<'a> {
    id: &'a str,
    model_type: [&'static str; MODEL_TYPE.len()],
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_path: Option<&'a str>,
}

#[derive(Serialize)]
struct Optional<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_base_url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_rank: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_connector: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_engine_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_block_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pairing_protocol: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<Health>,
}

#[derive(Serialize)]
struct Health {
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_secs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check_interval_secs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    success_threshold: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_threshold: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disable_health_check: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_settle_secs: Option<u64>,
}

#[derive(Serialize)]
struct JobStatus<'a> {
    job_type: &'static str,
    worker_url: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    timestamp: u64,
}

/// `GET /workers`.
#[derive(Serialize)]
struct List<'a> {
    workers: Vec<Shown<'a>>,
    total: usize,
    stats: Stats,
}

#[derive(Serialize)]
struct Stats {
    prefill_count: usize,
    decode_count: usize,
    regular_count: usize,
}

/// `GET /workers/{id}`.
pub(super) fn worker(w: &Listed) -> Reply {
    reply(&shown(w))
}

/// `GET /workers`.
pub(super) fn list<'a>(workers: impl Iterator<Item = &'a Listed> + Clone) -> Reply {
    let count = |role: Role| workers.clone().filter(|w| w.seat.worker.role == role).count();
    let stats = Stats {
        prefill_count: count(Role::Prefill),
        decode_count: count(Role::Decode),
        regular_count: count(Role::Whole),
    };
    let workers: Vec<Shown<'_>> = workers.map(shown).collect();
    reply(&List { total: workers.len(), workers, stats })
}

fn reply(shown: &impl Serialize) -> Reply {
    let body = serde_json::to_string(shown).unwrap_or_default();
    Reply { status: 200, headers: Vec::new(), body }
}

fn shown(w: &Listed) -> Shown<'_> {
    let worker = &w.seat.worker;
    let pulse = &w.seat.pulse;
    // One that is held takes no requests yet, which is what SMG's tools want to know.
    let status = if pulse.is_held() { Status::Pending } else { pulse.status() };
    let models = w.spec.models(w.facts.as_deref());
    let tokenizer_path = worker.label("tokenizer_path");
    Shown {
        id: &w.id,
        model_id: models.first().map(|m| m.id.as_str()),
        url: &worker.url,
        models: models
            .iter()
            .map(|m| Card {
                id: &m.id,
                model_type: MODEL_TYPE,
                context_length: m.context_length,
                tokenizer_path,
            })
            .collect(),
        worker_type: worker.role.as_str(),
        connection_mode: "http",
        runtime_type: worker.engine.as_str(),
        labels: &worker.labels,
        priority: worker.priority,
        cost: worker.cost,
        optional: optional(w),
        is_healthy: status == Status::Ready,
        status: status.as_str(),
        load: w.seat.load.in_flight(),
        http2: false,
        pd_pairing: pairing_key(worker),
        pd_preflight: w.standing.as_ref().map(preflight),
        job_status: w.job.as_ref().map(|job| job_status(job, &worker.url)),
    }
}

fn preflight(standing: &Standing) -> Preflight<'_> {
    Preflight {
        state: standing.state.as_str(),
        partner: standing.partner.as_deref(),
        why: standing.why.as_deref(),
        degraded_with: standing.degraded_with.as_deref(),
    }
}

fn optional(w: &Listed) -> Optional<'_> {
    let worker = &w.seat.worker;
    Optional {
        bootstrap_port: worker.bootstrap_port,
        dp_base_url: w.spec.dp_base_url.as_deref(),
        dp_rank: w.spec.dp_rank,
        dp_size: w.spec.dp_size,
        kv_connector: worker.kv_connector.as_deref(),
        kv_role: worker.kv_role.as_deref(),
        kv_engine_id: worker.kv_engine_id.as_deref(),
        kv_block_size: w.spec.kv_block_size,
        pairing_protocol: worker.pairing_protocol.as_deref(),
        health: health(&w.spec.health),
    }
}

fn health(spec: &HealthSpec) -> Option<Health> {
    (*spec != HealthSpec::default()).then_some(Health {
        timeout_secs: spec.timeout_secs,
        check_interval_secs: spec.check_interval_secs,
        success_threshold: spec.success_threshold,
        failure_threshold: spec.failure_threshold,
        disable_health_check: spec.disable_health_check,
        drain_settle_secs: spec.drain_settle_secs,
    })
}

fn job_status<'a>(job: &'a Job, worker_url: &'a str) -> JobStatus<'a> {
    let status = match job.step {
        JobStep::Pending => "pending",
        JobStep::Processing => "processing",
        JobStep::Failed => "failed",
    };
    JobStatus { job_type: "AddWorker", worker_url, status, message: &job.message, timestamp: job.at }
}
