//! A file of workers: what is in it, and whether it can be meant.
//!
//! It is read as a whole or not at all. A list that was taken in part would remove the workers of the other part, and
//! nobody would know whether that was meant.

use baton_core::fleet::Role;
use serde_json::{Map, Value};

use super::pod::{self, Pod, Rules};
use super::{json, written};
use crate::config::nearest;
use crate::registry::{self, Spec, Twice, WORKERS_MAX};
use crate::yaml;

/// As workers found in a file say in labels and metrics.
pub const PROVIDER: &str = "file";

/// Containers inside each other. A pod's spec has about a dozen.
const MOST_DEPTH: usize = 48;
/// Values of all kinds in a file: what a cluster says of a pod is some hundreds of them.
const VALUES_MAX: usize = 2 << 20;
/// Longest id of a worker.
const ID_MAX_BYTES: usize = 512;

/// Beside those of `POST /workers`, for hints.
const FIELDS: [&str; 10] = [
    "id",
    "url",
    "worker_type",
    "model_id",
    "labels",
    "annotations",
    "bootstrap_port",
    "kv_connector",
    "kv_role",
    "kv_engine_id",
];

/// The workers of a file.
#[derive(Debug, Default)]
pub struct Listed {
    pub specs: Vec<Spec>,
    /// Pods that are no workers, and why.
    pub passed_over: Vec<(String, &'static str)>,
    /// What was said and cannot be meant, or has no effect; the workers serve without.
    pub odd: Vec<String>,
}

/// Why a file is no list of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It cannot be read as JSON or YAML: it may be half written.
    Malformed(String),
    /// It can, and says what cannot be.
    Invalid(String),
}

impl From<String> for Bad {
    fn from(why: String) -> Bad {
        Bad::Invalid(why)
    }
}

/// A text that begins with a brace is JSON, any other is YAML.
///
/// # Errors
/// What is wrong, and where.
pub fn read(text: &str, rules: &Rules) -> Result<Listed, Bad> {
    let documents = documents(text)?;
    if documents.iter().all(Value::is_null) {
        return Err(Bad::Malformed("it is empty".to_owned()));
    }
    let listed = match documents.as_slice() {
        [Value::Object(one)] if one.contains_key("workers") => workers(one.clone(), rules)?,
        _ => pods(documents, rules)?,
    };
    if listed.specs.len() > WORKERS_MAX {
        return Err(Bad::Invalid(format!("it has more than {WORKERS_MAX} workers")));
    }
    distinct(&listed.specs)?;
    Ok(listed)
}

fn documents(text: &str) -> Result<Vec<Value>, Bad> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with('{') {
        let json = json::read(text, VALUES_MAX).map_err(|e| Bad::Malformed(format!("it is no JSON: {e}")))?;
        return Ok(vec![json]);
    }
    match yaml::documents(text, yaml::Bounds { depth: MOST_DEPTH, values: VALUES_MAX }) {
        Ok(roots) => Ok(roots.iter().map(yaml::value).collect()),
        Err((line, why)) => Err(Bad::Malformed(format!("line {line}: {why}"))),
    }
}

fn distinct(specs: &[Spec]) -> Result<(), String> {
    let id = |at: usize| specs.get(at).and_then(|s| s.found.as_ref()).map_or("", |found| found.id.as_str());
    match registry::distinct(specs) {
        Ok(()) => Ok(()),
        Err(Twice::Key(_, at)) => Err(format!("two workers have the id {:?}", id(at))),
        Err(Twice::Url(first, at)) => {
            let url = specs.get(at).map_or("", |spec| spec.url.as_str());
            Err(format!("workers {:?} and {:?} have one url: {url}", id(first), id(at)))
        }
    }
}

/// SMG's list (1.13): `{"version": 1, "workers": [...]}`.
fn workers(mut list: Map<String, Value>, rules: &Rules) -> Result<Listed, String> {
    let (version, all) = (list.remove("version"), list.remove("workers"));
    if let Some(key) = list.keys().next() {
        return Err(format!("unknown field {key:?}: known are version and workers"));
    }
    match version.as_ref().map(Value::as_u64) {
        Some(Some(1)) => {}
        None => return Err("version is missing: it must be 1".to_owned()),
        Some(_) => return Err("version must be 1".to_owned()),
    }
    let Some(Value::Array(all)) = all else { return Err("workers must be a list".to_owned()) };
    let mut listed = Listed::default();
    for (at, one) in all.into_iter().enumerate() {
        let name = one.get("id").and_then(Value::as_str).map_or_else(
            || format!("workers[{at}]"),
            |id| format!("worker {:?}", id.chars().take(ID_MAX_BYTES).collect::<String>()),
        );
        let spec = worker(one, rules, |odd| listed.odd.push(format!("{name}: {odd}")));
        listed.specs.push(spec.map_err(|why| format!("{name}: {why}"))?);
    }
    Ok(listed)
}

fn worker(one: Value, rules: &Rules, odd: impl FnOnce(String)) -> Result<Spec, String> {
    let Value::Object(mut fields) = one else { return Err("must be a mapping of fields".to_owned()) };
    let id = match fields.remove("id") {
        Some(Value::String(id)) if is_id(&id) => id,
        Some(_) => {
            return Err(format!("id must be a text of 1 to {ID_MAX_BYTES} bytes without control characters"));
        }
        None => return Err("id is missing: by it a worker is known again when it changes".to_owned()),
    };
    if let Some(model) = fields.remove("model_id").filter(|model| !model.is_null()) {
        if fields.get("models").is_some_and(|models| !models.is_null()) {
            return Err("give model_id or models, not both".to_owned());
        }
        if !model.is_string() {
            return Err("model_id must be a text".to_owned());
        }
        fields.insert("models".to_owned(), vec![model].into());
    }
    for what in ["labels", "annotations"] {
        texts(fields.get(what), what)?;
    }
    let written = written::worker_of(Value::Object(fields))?;
    if let Some(field) = written.unknown.first() {
        let hint = nearest(field, FIELDS.into_iter()).map(|near| format!(": did you mean {near}?"));
        return Err(format!("unknown field {field:?}{}", hint.unwrap_or_default()));
    }
    if rules.pd && !(written.told_role && is_leg(&written.spec)) {
        return Err("worker_type must be prefill or decode, with --pd-disaggregation".to_owned());
    }
    if !written.idle.is_empty() {
        odd(format!("these fields have no effect: {}", written.idle.join(", ")));
    }
    Ok(written.spec.found(PROVIDER, id))
}

/// YAML takes `8000` for a number, and Kubernetes wants it in quotes too.
fn texts(all: Option<&Value>, what: &str) -> Result<(), String> {
    match all.and_then(Value::as_object).and_then(|all| all.iter().find(|(_, value)| !value.is_string())) {
        Some((name, value)) => Err(format!("{what}: {name:?} must be a text, in quotes, and is {value:.40}")),
        None => Ok(()),
    }
}

fn is_id(id: &str) -> bool {
    (1..=ID_MAX_BYTES).contains(&id.len()) && !id.contains(char::is_control)
}

fn is_leg(spec: &Spec) -> bool {
    matches!(spec.role, Role::Prefill | Role::Decode)
}

/// Pods one by one, a list of them, or any number of either; what else stands between them is passed over.
fn pods(documents: Vec<Value>, rules: &Rules) -> Result<Listed, String> {
    let mut listed = Listed::default();
    let mut found = false;
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        let Value::Object(mut document) = document else { return Err(WHAT.to_owned()) };
        match document.get("kind").map(Value::as_str) {
            Some(Some("List" | "PodList")) => {
                let Some(Value::Array(items)) = document.remove("items") else {
                    return Err("items of a List must be a list".to_owned());
                };
                found = true;
                let is_pod = |item: &Value| item.get("kind").is_none_or(|kind| kind == "Pod");
                for item in items.into_iter().filter(is_pod) {
                    pod(item, rules, &mut listed)?;
                }
            }
            Some(Some("Pod")) => {
                found = true;
                pod(Value::Object(document), rules, &mut listed)?;
            }
            None if document.contains_key("metadata") => {
                found = true;
                pod(Value::Object(document), rules, &mut listed)?;
            }
            Some(Some(_)) => {}
            _ => return Err(WHAT.to_owned()),
        }
    }
    if found { Ok(listed) } else { Err(WHAT.to_owned()) }
}

const WHAT: &str =
    "it is neither a list of workers ({\"version\": 1, \"workers\": [...]}) nor Kubernetes pods";

fn pod(one: Value, rules: &Rules, listed: &mut Listed) -> Result<(), String> {
    let name = one.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("without a name").to_owned();
    for what in ["labels", "annotations"] {
        let all = one.get("metadata").and_then(|metadata| metadata.get(what));
        texts(all, what).map_err(|why| format!("pod {name}: {why}"))?;
    }
    let pod: Pod = serde_json::from_value(one).map_err(|e| format!("pod {name}: {e}"))?;
    let seen = pod::workers(&pod, PROVIDER, rules).map_err(|why| format!("pod {}: {why}", pod.name()))?;
    listed.specs.extend(seen.workers);
    listed.passed_over.extend(seen.passed_over.map(|why| (pod.name(), why)));
    listed.odd.extend(seen.odd.into_iter().map(|odd| format!("pod {}: {odd}", pod.name())));
    Ok(())
}
