//! A worker as somebody wrote it down, in a request to the admin API or in a file: SMG 1.13's WorkerSpec, within its
//! bounds.
//!
//! Which fields nobody knows, and which of SMG's have no effect here, is told beside the worker: whether that is a mistake
//! is for whoever asked to say.

use std::collections::BTreeMap;

use baton_core::fleet::{Engine, Role, Secret};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::config::WorkerUrl;
use crate::probe::Model;
use crate::registry::{HealthSpec, Patch, Spec};

const URL_MAX_BYTES: usize = 2048;
pub const LABELS_MAX: usize = 128;
const LABEL_KEY_MAX_BYTES: usize = 128;
const LABEL_VALUE_MAX_BYTES: usize = 4096;
pub const ANNOTATION_MAX_BYTES: usize = 64 << 10;
/// Longest text of any other field, and most names of models.
const TEXT_MAX_BYTES: usize = 4096;
const MODELS_MAX: usize = 1024;

/// Labels that are numbers from 1, and labels that are truth values.
const NUMBER_LABELS: [&str; 3] = ["max_running_requests", "max_num_seqs", "dp_size"];
const TRUTH_LABELS: [&str; 2] = ["supports_vision", "supports_realtime"];

/// Fields of SMG's that Baton takes and does nothing with.
const IDLE: [&str; 10] = [
    "provider",
    "constrained_decoding",
    "http_pool",
    "resilience",
    "overload",
    "load_monitor_interval_secs",
    "multimodal_tensor_transport",
    "multimodal_shm_min_bytes",
    "zmq_handshake_address",
    "max_connection_attempts",
];

#[derive(Deserialize)]
struct WorkerSpec {
    url: String,
    models: Option<Vec<ModelJson>>,
    worker_type: Option<WorkerType>,
    connection_mode: Option<ConnectionMode>,
    #[serde(alias = "runtime")]
    runtime_type: Option<RuntimeType>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    priority: Option<u32>,
    cost: Option<f64>,
    api_key: Option<String>,
    bootstrap_port: Option<u16>,
    dp_base_url: Option<String>,
    dp_rank: Option<u32>,
    dp_size: Option<u32>,
    kv_connector: Option<String>,
    kv_role: Option<String>,
    kv_engine_id: Option<String>,
    kv_block_size: Option<u32>,
    pairing_protocol: Option<String>,
    health: Option<HealthJson>,
    #[serde(flatten)]
    rest: BTreeMap<String, IgnoredAny>,
}

/// A model as a name or as a card.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a model is a name or an object with an \"id\"")]
enum ModelJson {
    Name(String),
    Card { id: String, context_length: Option<u64> },
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkerType {
    Regular,
    Prefill,
    Decode,
    Encode,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ConnectionMode {
    Http,
    Grpc,
    Zmq,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RuntimeType {
    Unspecified,
    Sglang,
    Vllm,
    Trtllm,
    Mlx,
    Tokenspeed,
    Generic,
    External,
}

#[derive(Deserialize)]
struct HealthJson {
    timeout_secs: Option<u64>,
    check_interval_secs: Option<u64>,
    success_threshold: Option<u32>,
    failure_threshold: Option<u32>,
    disable_health_check: Option<bool>,
    drain_settle_secs: Option<u64>,
    #[serde(flatten)]
    rest: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
struct WorkerPatch {
    priority: Option<u32>,
    cost: Option<f64>,
    labels: Option<BTreeMap<String, String>>,
    api_key: Option<String>,
    health: Option<HealthJson>,
}

/// A worker that was read, and what was left of its text.
pub struct Written {
    pub spec: Spec,
    /// It says itself which phases it runs.
    pub told_role: bool,
    /// Fields of SMG's that are taken and have no effect.
    pub idle: Vec<&'static str>,
    /// Fields that nobody knows.
    pub unknown: Vec<String>,
}

/// Reads a worker.
///
/// # Errors
/// What is wrong, and with which field.
pub fn worker(text: &[u8]) -> Result<Written, String> {
    read(serde_json::from_slice(text).map_err(invalid)?)
}

/// As [`worker`], of a tree that was read already.
///
/// # Errors
/// What is wrong, and with which field.
pub fn worker_of(tree: Value) -> Result<Written, String> {
    read(serde_json::from_value(tree).map_err(|e| e.to_string())?)
}

fn read(json: WorkerSpec) -> Result<Written, String> {
    let url = address(&json.url)?;
    check_labels(json.labels.as_ref())?;
    check_annotations(json.annotations.as_ref())?;
    check_numbers(&json)?;
    if let Some(mode) = json.connection_mode.filter(|mode| *mode != ConnectionMode::Http) {
        let name = if mode == ConnectionMode::Grpc { "gRPC" } else { "ZMQ" };
        return Err(format!("connection_mode: {name} workers are not served yet, only http"));
    }
    let idle = IDLE.into_iter().filter(|name| json.rest.contains_key(*name)).collect();
    let mut unknown: Vec<String> =
        json.rest.into_keys().filter(|name| !IDLE.contains(&name.as_str())).collect();
    unknown.extend(json.health.iter().flat_map(|h| h.rest.keys()).map(|name| format!("health.{name}")));
    let of_pod = json.labels.as_ref().and_then(Spec::role_of_pod);
    let told_role = json.worker_type.is_some() || of_pod.is_some();
    let role = match json.worker_type {
        None => of_pod.unwrap_or(Role::Whole),
        Some(WorkerType::Regular) => Role::Whole,
        Some(WorkerType::Prefill) => Role::Prefill,
        Some(WorkerType::Decode) => Role::Decode,
        Some(WorkerType::Encode) => return Err("worker_type: encode workers are not served yet".to_owned()),
    };
    let spec = Spec {
        engine: json.runtime_type.and_then(engine),
        models: read_models(json.models.unwrap_or_default())?,
        labels: json.labels.unwrap_or_default(),
        annotations: json.annotations.unwrap_or_default(),
        priority: json.priority.unwrap_or(50),
        cost: json.cost.unwrap_or(1.0),
        api_key: secret(json.api_key)?,
        bootstrap_port: json.bootstrap_port,
        dp_base_url: text("dp_base_url", json.dp_base_url)?,
        dp_rank: json.dp_rank,
        dp_size: json.dp_size,
        kv_connector: text("kv_connector", json.kv_connector)?,
        kv_role: text("kv_role", json.kv_role)?,
        kv_engine_id: text("kv_engine_id", json.kv_engine_id)?,
        kv_block_size: json.kv_block_size,
        pairing_protocol: text("pairing_protocol", json.pairing_protocol)?,
        health: read_health(json.health)?.unwrap_or_default(),
        ..Spec::new(url, role)
    };
    Ok(Written { spec, told_role, idle, unknown })
}

/// Reads the body of `PATCH /workers/{id}`.
///
/// # Errors
/// What is wrong, and with which field.
pub fn patch(text: &[u8]) -> Result<Patch, String> {
    let json: WorkerPatch = serde_json::from_slice(text).map_err(invalid)?;
    check_labels(json.labels.as_ref())?;
    check_cost(json.cost)?;
    Ok(Patch {
        priority: json.priority,
        cost: json.cost,
        labels: json.labels.unwrap_or_default(),
        api_key: secret(json.api_key)?,
        health: read_health(json.health)?,
    })
}

fn invalid(error: serde_json::Error) -> String {
    format!("Invalid worker: {error}")
}

fn address(url: &str) -> Result<String, String> {
    if url.len() > URL_MAX_BYTES {
        return Err(format!("url: longer than {URL_MAX_BYTES} bytes"));
    }
    WorkerUrl::new(url).map(|url| url.as_str().to_owned()).map_err(|e| format!("url: {e}"))
}

fn engine(name: RuntimeType) -> Option<Engine> {
    Some(match name {
        RuntimeType::Unspecified => return None,
        RuntimeType::Sglang => Engine::Sglang,
        RuntimeType::Vllm => Engine::Vllm,
        RuntimeType::Trtllm => Engine::Trtllm,
        RuntimeType::Tokenspeed => Engine::Tokenspeed,
        RuntimeType::Mlx | RuntimeType::Generic | RuntimeType::External => Engine::Generic,
    })
}

fn read_models(models: Vec<ModelJson>) -> Result<Vec<Model>, String> {
    if models.len() > MODELS_MAX {
        return Err(format!("models: more than {MODELS_MAX}"));
    }
    let read = |m| match m {
        ModelJson::Name(id) => Model { id, context_length: None },
        ModelJson::Card { id, context_length } => Model { id, context_length },
    };
    let models: Vec<Model> = models.into_iter().map(read).collect();
    match models.iter().any(|m| m.id.is_empty() || m.id.len() > TEXT_MAX_BYTES) {
        true => Err(format!("models: a name has 1 to {TEXT_MAX_BYTES} bytes")),
        false => Ok(models),
    }
}

fn text(name: &str, value: Option<String>) -> Result<Option<String>, String> {
    match value.filter(|v| !v.trim().is_empty()) {
        Some(v) if v.len() > TEXT_MAX_BYTES || v.contains(char::is_control) => {
            Err(format!("{name}: at most {TEXT_MAX_BYTES} bytes without control characters"))
        }
        value => Ok(value),
    }
}

fn secret(key: Option<String>) -> Result<Option<Secret>, String> {
    Ok(text("api_key", key)?.map(Secret::new))
}

fn check_numbers(json: &WorkerSpec) -> Result<(), String> {
    check_cost(json.cost)?;
    if json.bootstrap_port == Some(0) {
        return Err("bootstrap_port: must be at least 1".to_owned());
    }
    if json.kv_block_size == Some(0) {
        return Err("kv_block_size: must be at least 1".to_owned());
    }
    match (json.dp_rank, json.dp_size) {
        (_, Some(0)) => Err("dp_size: must be at least 1".to_owned()),
        (Some(_), None) => Err("dp_rank: needs dp_size".to_owned()),
        (Some(rank), Some(size)) if rank >= size => Err("dp_rank: must be less than dp_size".to_owned()),
        _ => Ok(()),
    }
}

fn check_cost(cost: Option<f64>) -> Result<(), String> {
    match cost {
        Some(cost) if !(cost.is_finite() && cost > 0.0) => Err("cost: must be a number above 0".to_owned()),
        _ => Ok(()),
    }
}

pub fn check_labels(labels: Option<&BTreeMap<String, String>>) -> Result<(), String> {
    let Some(labels) = labels else { return Ok(()) };
    if labels.len() > LABELS_MAX {
        return Err(format!("labels: more than {LABELS_MAX}"));
    }
    for (key, value) in labels {
        let shown: String = key.chars().take(LABEL_KEY_MAX_BYTES).collect();
        let wrong = |what: &str| Err(format!("label {shown:?}: {what}"));
        if !(1..=LABEL_KEY_MAX_BYTES).contains(&key.len()) || !key.bytes().all(|b| b.is_ascii_graphic()) {
            return wrong(&format!(
                "a key has 1 to {LABEL_KEY_MAX_BYTES} printable ASCII characters, no space"
            ));
        }
        if value.len() > LABEL_VALUE_MAX_BYTES || value.contains(char::is_control) {
            return wrong(&format!(
                "a value has at most {LABEL_VALUE_MAX_BYTES} bytes and no control characters"
            ));
        }
        if NUMBER_LABELS.contains(&key.as_str()) && value.parse::<u32>().unwrap_or(0) == 0 {
            return wrong("must be a whole number from 1");
        }
        if TRUTH_LABELS.contains(&key.as_str()) && value != "true" && value != "false" {
            return wrong("must be \"true\" or \"false\"");
        }
    }
    Ok(())
}

/// Nobody selects by annotations: their texts may be long, and of several lines.
pub fn check_annotations(annotations: Option<&BTreeMap<String, String>>) -> Result<(), String> {
    let Some(all) = annotations else { return Ok(()) };
    if all.len() > LABELS_MAX {
        return Err(format!("annotations: more than {LABELS_MAX}"));
    }
    for (key, value) in all {
        let fits =
            (1..=LABEL_KEY_MAX_BYTES).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
        if !fits || value.len() > ANNOTATION_MAX_BYTES {
            let shown: String = key.chars().take(LABEL_KEY_MAX_BYTES).collect();
            return Err(format!(
                "annotation {shown:?}: a key has 1 to {LABEL_KEY_MAX_BYTES} printable ASCII characters, no space; \
                 a value at most {ANNOTATION_MAX_BYTES} bytes"
            ));
        }
    }
    Ok(())
}

fn read_health(json: Option<HealthJson>) -> Result<Option<HealthSpec>, String> {
    let Some(h) = json else { return Ok(None) };
    let zero = [
        ("timeout_secs", h.timeout_secs == Some(0)),
        ("check_interval_secs", h.check_interval_secs == Some(0)),
        ("success_threshold", h.success_threshold == Some(0)),
        ("failure_threshold", h.failure_threshold == Some(0)),
    ];
    if let Some((name, _)) = zero.into_iter().find(|(_, zero)| *zero) {
        return Err(format!("health.{name}: must be at least 1"));
    }
    Ok(Some(HealthSpec {
        timeout_secs: h.timeout_secs,
        check_interval_secs: h.check_interval_secs,
        success_threshold: h.success_threshold,
        failure_threshold: h.failure_threshold,
        disable_health_check: h.disable_health_check,
        drain_settle_secs: h.drain_settle_secs,
    }))
}
