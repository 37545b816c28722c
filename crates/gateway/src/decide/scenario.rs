//! What a scenario says: settings, workers with their load, requests in time. docs/decide.md describes it.

use baton_core::fleet::{Engine, Role};
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::cascade::shared::INSTANCES_MAX;
use baton_core::time::Instant;
use serde_json::Value;

use super::engine::{self, Word};
use super::expect::Counter;
use super::read::{self, Keys};
use super::request::{self, Incoming};
use super::spell::spell;
use crate::probe::tells_context;
use crate::registry::{Model, Spec, WORKERS_MAX};
use crate::yaml::{self, Broken, Node, Tree};

/// Containers inside each other: a body's messages and tools need some.
const MOST_DEPTH: usize = 24;
/// Most requests of one scenario.
pub const REQUESTS_MAX: usize = 100_000;
/// Most requests in flight that a worker can be said to have.
const IN_FLIGHT_MAX: u64 = 1_000_000;
/// Latest beginning by the calendar, in milliseconds since 1970: far beyond what any id has room for.
const UNIX_MS_MAX: u64 = 1 << 48;

/// A whole scenario.
pub struct Scenario {
    pub env: Vec<(String, String)>,
    pub flags: Vec<String>,
    pub seed: u64,
    pub workers: Vec<Member>,
    pub requests: Vec<Incoming>,
    /// Settings beyond what flags and variables take.
    pub beyond: Beyond,
    /// When the state is looked at, if not at the last event.
    pub until: Option<Instant>,
    /// What the outputs must contain, one for each request that is listed.
    pub expect: Option<Vec<Value>>,
    /// What the whole output must contain.
    pub expect_output: Option<Value>,
    /// What must have been counted.
    pub expect_counters: Vec<(Counter, f64)>,
    /// The outputs tell what is sent to each leg.
    pub shows_legs: bool,
    /// When it begins, in milliseconds since 1970.
    pub unix_ms: Option<u64>,
}

/// Settings that no flag and no variable can be given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beyond {
    /// Tokens that each request is charged besides its own; 0 is one of them here.
    request_cost: Option<u64>,
}

impl Beyond {
    pub fn apply(self, knobs: &mut Knobs) {
        knobs.request_cost = self.request_cost.unwrap_or(knobs.request_cost);
    }
}

/// A worker of the scenario.
pub struct Member {
    /// As the output names it.
    pub name: String,
    pub spec: Spec,
    pub ready: bool,
    pub load: Held,
    /// Prompts that it has computed.
    pub cached: Vec<String>,
    /// What it answers when it is asked where its KV is.
    pub server_info: Vec<Word>,
}

/// What a worker has in flight, and what it says of its load.
#[derive(Default)]
pub struct Held {
    pub prefill_in_flight: u64,
    /// Absent: not observed.
    pub running: Option<u64>,
    pub pending_decode: u64,
    pub waiting: Option<f64>,
    pub prefill_prealloc: Option<f64>,
    pub decode_prealloc: Option<f64>,
    pub throughput: Option<f64>,
    pub kv_usage: Option<f64>,
    pub drain_rate: Option<f64>,
    pub prefill_time_sum_s: Option<f64>,
    pub prefill_time_count: Option<f64>,
    pub host_kv_usage: Option<f64>,
    pub pace: Option<f64>,
    pub utilization: Option<f64>,
    pub busy: Option<f64>,
    pub queue_s: Option<f64>,
    pub prefill_s: Option<f64>,
    pub decode_s: Option<f64>,
    pub prompt_mean: Option<f64>,
    pub answer_mean: Option<f64>,
    pub active_tokens: u64,
    pub kv_tokens: u64,
    pub decode_tokens: u64,
    pub remote: Vec<Elsewhere>,
}

/// What another gateway has charged a worker with, as Redis holds it.
pub struct Elsewhere {
    line: usize,
    pub instance: String,
    pub value: String,
    /// When the instance gave its last sign of life.
    pub seen: Instant,
}

/// # Errors
/// The line, and what is wrong there.
pub fn parse(text: &str) -> Result<Scenario, Broken> {
    let mut root = yaml::document(text, yaml::Bounds::depth(MOST_DEPTH))?;
    spell(&mut root)?;
    let mut keys = Keys::of(root, "the scenario")?;
    let env = keys.texts("env")?;
    let flags = keys.list("flags", read::text)?;
    let seed = keys.read("seed", read::whole)?.unwrap_or(0);
    let workers: Vec<(usize, Plain)> = keys.list("workers", |node, _| Ok((node.line, worker(node)?)))?;
    let (requests, listed) = requests(&mut keys)?;
    let beyond = keys.read("knobs", beyond)?.unwrap_or_default();
    let until = keys.read("until_ms", request::moment)?;
    let expect = expectations(keys.take("expect"), listed)?;
    let expect_output = keys.take("expect_output").map(|node| read::value(&node));
    let expect_counters = keys.read("expect_counters", counters)?.unwrap_or_default();
    let shows_legs = !keys.list("show", shown)?.is_empty();
    let unix_ms = keys.read("unix_ms", read::up_to(UNIX_MS_MAX))?;
    keys.end()?;
    if let Some((line, _)) = workers.get(WORKERS_MAX) {
        return Err((*line, format!("there are more than {WORKERS_MAX} workers")));
    }
    agree(workers.iter().flat_map(|(_, worker)| &worker.member.load.remote))?;
    let workers = named(workers)?;
    Ok(Scenario {
        env,
        flags,
        seed,
        workers,
        requests,
        beyond,
        until,
        expect,
        expect_output,
        expect_counters,
        shows_legs,
        unix_ms,
    })
}

/// All requests, and how many are listed.
fn requests(keys: &mut Keys) -> Result<(Vec<Incoming>, usize), Broken> {
    let mut all: Vec<Incoming> = Vec::new();
    let entries = keys.list("requests", |node, _| Ok(node))?;
    let listed = entries.len();
    for (at, node) in entries.into_iter().enumerate() {
        let line = node.line;
        all.extend(request::requests(node, at)?);
        if all.len() > REQUESTS_MAX {
            return Err((line, format!("there are more than {REQUESTS_MAX} requests")));
        }
    }
    Ok((all, listed))
}

fn beyond(node: Node, what: &str) -> Result<Beyond, Broken> {
    let mut keys = Keys::of(node, what)?;
    let request_cost = keys.read("request_cost", read::whole)?;
    keys.end()?;
    Ok(Beyond { request_cost })
}

/// An instance gives its signs of life to all alike.
fn agree<'a>(all: impl Iterator<Item = &'a Elsewhere>) -> Result<(), Broken> {
    let mut seen = std::collections::HashMap::new();
    for own in all {
        if *seen.entry(own.instance.as_str()).or_insert(own.seen) != own.seen {
            return Err((own.line, format!("instance {} has another seen_ms before", own.instance)));
        }
    }
    Ok(())
}

/// A worker before it has its name.
struct Plain {
    id: String,
    namespace: Option<String>,
    member: Member,
}

/// Names workers by their ids, and by their namespaces where an id is in two of them.
fn named(workers: Vec<(usize, Plain)>) -> Result<Vec<Member>, Broken> {
    let ids: Vec<String> = workers.iter().map(|(_, w)| w.id.clone()).collect();
    let (mut names, mut urls) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    let name = |(line, worker): (usize, Plain)| {
        let twice = ids.iter().filter(|id| **id == worker.id).count() > 1;
        let Plain { id, namespace, mut member } = worker;
        member.name = match namespace.filter(|_| twice) {
            Some(namespace) => format!("{namespace}/{id}"),
            None => id,
        };
        if !names.insert(member.name.clone()) {
            return Err((line, format!("there is a worker {} already", member.name)));
        }
        if member.spec.url.is_empty() {
            member.spec.url = format!("http://{}:8000", member.name.replace('/', "."));
        }
        if !urls.insert(member.spec.url.clone()) {
            return Err((line, format!("{} is another worker's url", member.spec.url)));
        }
        Ok(member)
    };
    workers.into_iter().map(name).collect()
}

fn worker(node: Node) -> Result<Plain, Broken> {
    let mut keys = Keys::of(node, "a worker")?;
    let line = keys.line;
    let id = keys.read("id", read::text)?.filter(|id| !id.is_empty());
    let id = id.ok_or_else(|| (line, "a worker has no id".to_owned()))?;
    let namespace = keys.read("namespace", read::text)?;
    let url = keys.read("url", url)?.unwrap_or_default();
    let (role, engine) = (keys.read("role", role)?, keys.read("engine", engine)?);
    let model = keys.read("model", read::text)?;
    let roleset = keys.read("roleset", read::text)?;
    let ready = keys.read("ready", read::switch)?.unwrap_or(true);
    let labels = keys.texts("labels")?;
    let annotations = keys.texts("annotations")?;
    let load = keys.read("load", load)?.unwrap_or_default();
    let cached = keys.list("cached", read::text)?;
    let server_info = keys.read("server_info", engine::words)?.unwrap_or_default();
    keys.end()?;
    let label = |name: &str| labels.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
    let role = role.unwrap_or_else(|| match label("role-name") {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => Role::Whole,
    });
    let mut spec = Spec::new(url, role);
    spec.engine = engine.or_else(|| label("model.aibrix.ai/engine").and_then(Engine::parse));
    let model = model.as_deref().or_else(|| label("model.aibrix.ai/name"));
    spec.models.extend(model.map(|id| Model { id: id.to_owned(), context_length: None }));
    spec.labels = labels.iter().cloned().collect();
    spec.annotations = annotations.into_iter().collect();
    if let Some(roleset) = roleset {
        spec.labels.insert("roleset-name".to_owned(), roleset);
    }
    spec.lift_labels();
    if !server_info.is_empty() && !tells_context(&spec.worker(&id, None)) {
        let why = "server_info is for prefill workers of trtllm: no other is asked where its KV is";
        return Err((line, why.to_owned()));
    }
    let member = Member { name: String::new(), spec, ready, load, cached, server_info };
    Ok(Plain { id, namespace, member })
}

fn url(node: Node, what: &str) -> Result<String, Broken> {
    let line = node.line;
    let url = read::text(node, what)?;
    crate::config::WorkerUrl::new(&url)
        .map(|url| url.as_str().to_owned())
        .map_err(|reason| (line, format!("{what}: {reason}")))
}

fn role(node: Node, what: &str) -> Result<Role, Broken> {
    let line = node.line;
    let word = read::text(node, what)?;
    let found =
        if ["whole", "combined"].contains(&word.as_str()) { Some(Role::Whole) } else { Role::parse(&word) };
    found.ok_or_else(|| (line, format!("{what} must be prefill, decode, encode or whole, not {word:?}")))
}

fn engine(node: Node, what: &str) -> Result<Engine, Broken> {
    let line = node.line;
    let word = read::text(node, what)?;
    let all = Engine::ALL.map(Engine::as_str).join(", ");
    Engine::parse(&word).ok_or_else(|| (line, format!("{what} must be one of {all}, not {word:?}")))
}

fn load(node: Node, what: &str) -> Result<Held, Broken> {
    let mut keys = Keys::of(node, what)?;
    let count = read::up_to(IN_FLIGHT_MAX);
    let held = Held {
        prefill_in_flight: keys.read("prefill_in_flight", &count)?.unwrap_or(0),
        running: keys.read("running", &count)?,
        pending_decode: keys.read("pending_decode", &count)?.unwrap_or(0),
        waiting: keys.read("waiting", read::said)?.flatten(),
        prefill_prealloc: keys.read("prefill_prealloc_queue", read::said)?.flatten(),
        decode_prealloc: keys.read("decode_prealloc_queue", read::said)?.flatten(),
        throughput: keys.read("throughput", read::said)?.flatten(),
        kv_usage: keys.read("kv_usage", read::share)?.flatten(),
        drain_rate: keys.read("drain_rate", read::number)?,
        prefill_time_sum_s: keys.read("prefill_time_sum_s", read::said)?.flatten(),
        prefill_time_count: keys.read("prefill_time_count", read::said)?.flatten(),
        host_kv_usage: keys.read("host_kv_usage", read::share)?.flatten(),
        pace: keys.read("pace", read::said)?.flatten(),
        utilization: keys.read("utilization", read::share)?.flatten(),
        busy: keys.read("busy", read::share)?.flatten(),
        queue_s: keys.read("queue_s", read::said)?.flatten(),
        prefill_s: keys.read("prefill_s", read::said)?.flatten(),
        decode_s: keys.read("decode_s", read::said)?.flatten(),
        prompt_mean: keys.read("prompt_mean", read::said)?.flatten(),
        answer_mean: keys.read("answer_mean", read::said)?.flatten(),
        active_tokens: keys.read("active_tokens", read::whole)?.unwrap_or(0),
        kv_tokens: keys.read("kv_tokens", read::whole)?.unwrap_or(0),
        decode_tokens: keys.read("decode_tokens", read::whole)?.unwrap_or(0),
        remote: keys.list("remote", |node, _| elsewhere(node))?,
    };
    keys.end()?;
    if let Some(over) = held.remote.get(INSTANCES_MAX) {
        return Err((over.line, format!("there are more than {INSTANCES_MAX} other gateways")));
    }
    for (at, own) in held.remote.iter().enumerate() {
        if held.remote[..at].iter().any(|other| other.instance == own.instance) {
            return Err((own.line, format!("instance {} is there already", own.instance)));
        }
    }
    Ok(held)
}

/// What the outputs tell besides decisions.
fn shown(node: Node, what: &str) -> Result<(), Broken> {
    let line = node.line;
    match read::text(node, what)?.as_str() {
        "legs" => Ok(()),
        other => Err((line, format!("{what} must be legs, not {other:?}"))),
    }
}

fn counters(node: Node, what: &str) -> Result<Vec<(Counter, f64)>, Broken> {
    let Tree::Map(entries) = node.value else {
        return Err((node.line, format!("{what} must be a mapping of counters to values")));
    };
    let read = |(key, node): (String, Node)| {
        let line = node.line;
        let counter = Counter::parse(&key).ok_or_else(|| {
            (line, format!("{key:?} is no counter: write its name, and labels as name{{label=\"value\"}}"))
        })?;
        Ok((counter, read::number(node, &format!("{key} of {what}"))?))
    };
    entries.into_iter().map(read).collect()
}

fn elsewhere(node: Node) -> Result<Elsewhere, Broken> {
    let mut keys = Keys::of(node, "what another gateway has charged")?;
    let line = keys.line;
    let instance = keys.read("instance", read::text)?.filter(|name| !name.is_empty());
    let value = keys.read("value", read::text)?;
    let seen = keys.read("seen_ms", request::moment)?.unwrap_or(Instant::ZERO);
    keys.end()?;
    let Some((instance, value)) = instance.zip(value) else {
        return Err((line, "what another gateway has charged needs an instance and a value".to_owned()));
    };
    Ok(Elsewhere { line, instance, value, seen })
}

/// One mapping for each request, or one for all of them.
fn expectations(node: Option<Node>, requests: usize) -> Result<Option<Vec<Value>>, Broken> {
    let Some(node) = node else { return Ok(None) };
    match &node.value {
        Tree::List(items) if items.len() == requests => Ok(Some(items.iter().map(read::value).collect())),
        Tree::List(items) => {
            let why = format!("expect has {} outputs for {requests} requests", items.len());
            Err((node.line, why))
        }
        _ => Err((node.line, "expect must be a list of outputs, one for each request".to_owned())),
    }
}
