//! A worker as somebody registered it, whoever that was: the command line, the admin API, discovery.
//!
//! What was registered and what the worker says about itself are kept apart, and joined into a core
//! [`Worker`] anew whenever one of them changes. So a label that an operator takes back shows the
//! discovered one again, and a restarted engine cannot overwrite what the operator said.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_core::fleet::{Connector, Engine, HealthRule, Pod, Role, Secret, Worker, base_of, host_of};
use xxhash_rust::xxh3::xxh3_64;

use super::settings::Checks;
use crate::probe::{Facts, Model};

/// A registered worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Base URL, without a trailing slash.
    pub url: String,
    pub role: Role,
    /// None: to be found out.
    pub engine: Option<Engine>,
    /// Empty: to be found out.
    pub models: Vec<Model>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub priority: u32,
    pub cost: f64,
    pub api_key: Option<Secret>,
    pub bootstrap_port: Option<u16>,
    /// It has none, whatever it says of itself.
    pub no_bootstrap: bool,
    pub dp_base_url: Option<String>,
    pub dp_rank: Option<u32>,
    pub dp_size: Option<u32>,
    pub kv_connector: Option<String>,
    pub kv_role: Option<String>,
    pub kv_engine_id: Option<String>,
    pub kv_block_size: Option<u32>,
    pub pairing_protocol: Option<String>,
    pub health: HealthSpec,
    /// None: the operator named it, with a flag or by the admin API.
    pub found: Option<Found>,
}

/// Where a discovered worker was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As labels and metrics call it.
    pub provider: &'static str,
    /// The provider's name for it, which stays when it is described anew.
    pub id: String,
    /// Of the whole description, its key included: equal for equal ones.
    pub mark: u64,
    /// The same without its key: whoever sees it must not be able to try keys out on it.
    pub hash: u64,
}

/// Labels that say where a worker was found (SMG 1.13). Nobody else can set them.
pub const PROVIDER: &str = "smg.ai/discovery-provider";
const PROVIDERS_ID: &str = "smg.ai/discovery-id";
const SPEC_HASH: &str = "smg.ai/discovery-spec-hash";

/// What is different about one worker's health checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthSpec {
    pub timeout_secs: Option<u64>,
    pub check_interval_secs: Option<u64>,
    pub success_threshold: Option<u32>,
    pub failure_threshold: Option<u32>,
    pub disable_health_check: Option<bool>,
    pub drain_settle_secs: Option<u64>,
}

impl HealthSpec {
    /// These, and what `old` says where these say nothing.
    pub fn over(self, old: &HealthSpec) -> HealthSpec {
        HealthSpec {
            timeout_secs: self.timeout_secs.or(old.timeout_secs),
            check_interval_secs: self.check_interval_secs.or(old.check_interval_secs),
            success_threshold: self.success_threshold.or(old.success_threshold),
            failure_threshold: self.failure_threshold.or(old.failure_threshold),
            disable_health_check: self.disable_health_check.or(old.disable_health_check),
            drain_settle_secs: self.drain_settle_secs.or(old.drain_settle_secs),
        }
    }
}

/// Longest interval or timeout of a check. Whoever writes more means "never".
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Labels that AIBrix puts on its pods: a worker that has one of them is a pod of AIBrix's
/// (AIBrix's page on PD).
const AIBRIX_LABELS: [&str; 6] = [
    "model.aibrix.ai/name",
    "model.aibrix.ai/port",
    "model.aibrix.ai/engine",
    "role-name",
    "roleset-name",
    "stormservice.orchestration.aibrix.ai/role-replica-index",
];

/// The annotation that says where an SGLang prefill's bootstrap server listens.
const BOOTSTRAP_PORT: &str = "model.aibrix.ai/sglang-bootstrap-port";

impl Spec {
    /// A worker with SMG 1.13's defaults.
    pub fn new(url: impl Into<String>, role: Role) -> Spec {
        Spec {
            url: url.into(),
            role,
            engine: None,
            models: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            priority: 50,
            cost: 1.0,
            api_key: None,
            bootstrap_port: None,
            no_bootstrap: false,
            dp_base_url: None,
            dp_rank: None,
            dp_size: None,
            kv_connector: None,
            kv_role: None,
            kv_engine_id: None,
            kv_block_size: None,
            pairing_protocol: None,
            health: HealthSpec::default(),
            found: None,
        }
    }

    /// The same worker, found by `provider` under this name.
    pub fn found(mut self, provider: &'static str, id: impl Into<String>) -> Spec {
        self.lift_labels();
        self.found = None;
        // A key is not shown in it, so that it says the same in both hashes but for the key.
        let text = format!("{self:?}");
        let key = self.api_key.as_ref().map_or("", Secret::reveal);
        let (hash, mark) = (xxh3_64(text.as_bytes()), xxh3_64([&text, "\0", key].concat().as_bytes()));
        self.found = Some(Found { provider, id: id.into(), mark, hash });
        self
    }

    pub fn found_by(&self, provider: &str) -> bool {
        self.found.as_ref().is_some_and(|found| found.provider == provider)
    }

    /// Where the worker is reached.
    pub fn base_url(&self) -> &str {
        base_of(&self.url, self.dp_rank)
    }

    /// How many data-parallel ranks the operator says it has.
    pub fn told_ranks(&self) -> Option<u32> {
        self.dp_size.or_else(|| self.labels.get("dp_size")?.trim().parse().ok())
    }

    /// One rank of the engine at this address.
    pub fn rank(&self, rank: u32, size: u32) -> Spec {
        let base = self.base_url().to_owned();
        Spec {
            url: format!("{base}@{rank}"),
            dp_base_url: Some(base),
            dp_rank: Some(rank),
            dp_size: Some(size),
            ..self.clone()
        }
    }

    /// Labels that name a field become the field, unless that was given too (SMG 1.13).
    pub fn lift_labels(&mut self) {
        self.lift_pod();
        for (label, field) in [
            ("kv_connector", &mut self.kv_connector),
            ("kv_role", &mut self.kv_role),
            ("kv_engine_id", &mut self.kv_engine_id),
        ] {
            if let Some(value) = self.labels.remove(label) {
                let value = Some(value.trim().to_owned()).filter(|v| !v.is_empty());
                *field = field.take().or(value);
            }
        }
    }

    /// What AIBrix's labels and annotations say of the worker, where nothing else was registered (its page on PD).
    fn lift_pod(&mut self) {
        let label = |name: &str| self.labels.get(name).map(|v| v.trim()).filter(|v| !v.is_empty());
        let engine = label("model.aibrix.ai/engine").and_then(Engine::parse);
        let model = label("model.aibrix.ai/name").map(|id| Model { id: id.to_owned(), context_length: None });
        let port = self.annotations.get(BOOTSTRAP_PORT).or_else(|| self.labels.get(BOOTSTRAP_PORT));
        let port = port.and_then(|text| text.trim().parse().ok()).filter(|port| *port > 0);
        self.engine = self.engine.or(engine);
        self.bootstrap_port = self.bootstrap_port.or(port);
        if self.models.is_empty() {
            self.models.extend(model);
        }
    }

    /// The role that AIBrix's label says. `None`: it says none.
    pub fn role_of_pod(labels: &BTreeMap<String, String>) -> Option<Role> {
        Role::of_pod(labels.get("role-name")?)
    }

    /// The worker that routing sees: what was registered, and where that says nothing, what was found out.
    pub fn worker(&self, id: &str, facts: Option<&Facts>) -> Worker {
        let mut w = Worker::new(id, self.url.clone(), self.role);
        w.labels = facts.map(|f| f.labels.clone()).unwrap_or_default();
        w.labels.extend(self.labels.clone());
        self.show_provenance(&mut w.labels);
        w.annotations.clone_from(&self.annotations);
        let told = facts.map(|f| f.engine).filter(|told| *told != Engine::default());
        let named = self.kv_connector.as_deref().and_then(Connector::engine_of);
        let of_pod = self.labels.contains_key("model.aibrix.ai/name").then_some(Engine::OF_POD);
        w.engine = self.engine.or(told).or(named).or(of_pod).unwrap_or_default();
        w.models = self.models(facts).iter().map(|m| m.id.clone()).collect();
        w.kv_connector.clone_from(&self.kv_connector);
        w.kv_engine_id.clone_from(&self.kv_engine_id);
        w.kv_engine_ids = facts.and_then(|f| f.kv_engine_ids.clone());
        w.kv_role.clone_from(&self.kv_role);
        let found = facts.filter(|_| !self.no_bootstrap).and_then(|f| f.bootstrap_port);
        w.bootstrap_port = self.bootstrap_port.or(found);
        w.dp_rank = self.dp_rank;
        w.dp_size = self.dp_size.or(facts.and_then(|f| f.dp_size));
        w.pairing_protocol.clone_from(&self.pairing_protocol);
        w.api_key.clone_from(&self.api_key);
        w.priority = self.priority;
        w.cost = self.cost;
        w.pod = self.pod();
        if !self.no_bootstrap {
            w.bootstrap_port = w.bootstrap_port.or(w.default_bootstrap());
        }
        w
    }

    fn show_provenance(&self, labels: &mut BTreeMap<String, String>) {
        for name in [PROVIDER, PROVIDERS_ID, SPEC_HASH] {
            labels.remove(name);
        }
        if let Some(found) = &self.found {
            labels.insert(PROVIDER.to_owned(), found.provider.to_owned());
            labels.insert(PROVIDERS_ID.to_owned(), found.id.clone());
            labels.insert(SPEC_HASH.to_owned(), format!("{:016x}", found.hash));
        }
    }

    pub fn models<'a>(&'a self, facts: Option<&'a Facts>) -> &'a [Model] {
        match facts {
            Some(f) if self.models.is_empty() => &f.models,
            _ => &self.models,
        }
    }

    /// Labels carry no pod name of their own in AIBrix; a discovery that knows it sets `pod_name` and `pod_ip`.
    fn pod(&self) -> Option<Pod> {
        AIBRIX_LABELS.iter().any(|label| self.labels.contains_key(*label)).then(|| {
            let host = host_of(&self.url);
            let label = |name: &str| self.labels.get(name).map_or(host, String::as_str).to_owned();
            Pod { name: label("pod_name"), ip: label("pod_ip") }
        })
    }

    /// The checks of this worker: the gateway's, with what is different here.
    pub fn checks(&self, all: &Checks) -> Checks {
        let h = &self.health;
        let secs = |s: Option<u64>, or: Duration| {
            s.map_or(or, Duration::from_secs).clamp(Duration::from_millis(1), LONGEST)
        };
        Checks {
            interval: secs(h.check_interval_secs, all.interval),
            timeout: secs(h.timeout_secs, all.timeout),
            rule: HealthRule {
                success_threshold: h.success_threshold.unwrap_or(all.rule.success_threshold),
                failure_threshold: h.failure_threshold.unwrap_or(all.rule.failure_threshold),
            },
            disabled: h.disable_health_check.unwrap_or(all.disabled),
            ..all.clone()
        }
    }

    /// How long this worker may finish its requests once it is removed.
    pub fn drain_settle(&self, all: Duration) -> Duration {
        self.health.drain_settle_secs.map_or(all, Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_wins_and_takes_back() {
        let mut spec = Spec::new("http://h:1", Role::Prefill);
        spec.labels = [("page_size".to_owned(), "1".to_owned())].into();
        let facts = Facts {
            engine: Engine::Sglang,
            models: vec![Model { id: "m".into(), context_length: None }],
            labels: [("page_size", "64"), ("version", "1")].map(|(k, v)| (k.into(), v.into())).into(),
            bootstrap_port: Some(9000),
            dp_size: Some(2),
            kv_engine_ids: None,
        };
        let w = spec.worker("i", Some(&facts));
        assert_eq!((w.label("page_size"), w.label("version")), (Some("1"), Some("1")));
        assert_eq!((w.bootstrap_port, w.dp_size, w.engine), (Some(9000), Some(2), Engine::Sglang));
        assert_eq!(w.models, ["m"]);
        spec.labels.clear();
        spec.no_bootstrap = true;
        assert_eq!(spec.worker("i", Some(&facts)).bootstrap_port, None);
        spec.bootstrap_port = Some(8998);
        spec.engine = Some(Engine::Vllm);
        let w = spec.worker("i", Some(&facts));
        assert_eq!(
            (w.label("page_size"), w.bootstrap_port, w.engine),
            (Some("64"), Some(8998), Engine::Vllm)
        );
    }

    #[test]
    fn a_pod_of_aibrix_runs_vllm_until_it_tells_otherwise() {
        let mut spec = Spec::new("http://h:1", Role::Decode);
        spec.labels.insert("model.aibrix.ai/name".into(), "m".into());
        assert_eq!(spec.worker("i", None).engine, Engine::Vllm);
        let facts = Facts { engine: Engine::Sglang, ..Facts::default() };
        assert_eq!(spec.worker("i", Some(&facts)).engine, Engine::Sglang);
        spec.labels.insert("model.aibrix.ai/engine".into(), "trtllm".into());
        spec.lift_labels();
        assert_eq!(spec.worker("i", None).engine, Engine::Trtllm);
    }

    #[test]
    fn a_connector_tells_the_engine_until_the_worker_does() {
        let facts = |engine| Facts { engine, ..Facts::default() };
        let mut spec = Spec::new("http://h:1", Role::Decode);
        assert_eq!(spec.worker("i", None).engine, Engine::Unspecified);
        spec.kv_connector = Some("MoRIIOConnector".into());
        assert_eq!(spec.worker("i", None).engine, Engine::Vllm);
        assert_eq!(spec.worker("i", Some(&facts(Engine::Unspecified))).engine, Engine::Vllm);
        assert_eq!(spec.worker("i", Some(&facts(Engine::Sglang))).engine, Engine::Sglang);
    }

    #[test]
    fn labels_become_fields_unless_the_field_was_given() {
        let mut spec = Spec::new("http://h:1", Role::Decode);
        spec.kv_role = Some("kv_both".into());
        spec.labels = [("kv_connector", "NixlConnector"), ("kv_role", "kv_consumer"), ("kv_engine_id", " ")]
            .map(|(k, v)| (k.into(), v.into()))
            .into();
        spec.lift_labels();
        assert_eq!(spec.kv_connector.as_deref(), Some("NixlConnector"));
        assert_eq!(spec.kv_role.as_deref(), Some("kv_both"));
        assert_eq!(spec.kv_engine_id, None);
        assert!(spec.labels.is_empty());
    }

    #[test]
    fn a_worker_with_aibrix_labels_is_a_pod() {
        let mut spec = Spec::new("http://10.0.0.1:8000", Role::Decode);
        assert!(spec.worker("i", None).pod.is_none());
        spec.labels.insert("roleset-name".into(), "r0".into());
        let pod = spec.worker("i", None).pod.unwrap();
        assert_eq!((pod.name.as_str(), pod.ip.as_str()), ("10.0.0.1", "10.0.0.1"));
        spec.labels.insert("pod_name".into(), "p-0".into());
        assert_eq!(spec.worker("i", None).pod.unwrap().name, "p-0");
    }

    #[test]
    fn a_pods_labels_say_what_it_is() {
        let labels = |engine: &str, role: &str| -> BTreeMap<String, String> {
            let all =
                [("model.aibrix.ai/engine", engine), ("model.aibrix.ai/name", "m"), ("role-name", role)];
            all.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        };
        let mut spec = Spec::new("http://10.0.0.1:8000", Role::Prefill);
        spec.labels = labels("sglang", "prefill");
        assert_eq!(Spec::role_of_pod(&spec.labels), Some(Role::Prefill));
        assert_eq!(Spec::role_of_pod(&labels("vllm", "all")), None);
        spec.lift_labels();
        let w = spec.worker("i", None);
        assert_eq!((w.engine, w.models.as_slice()), (Engine::Sglang, ["m".to_owned()].as_slice()));
        assert_eq!(w.bootstrap_port, Some(8998), "AIBrix's default");
        for (text, port) in [("9001", 9001), ("x", 8998), ("0", 8998)] {
            let mut spec = Spec { bootstrap_port: None, ..spec.clone() };
            spec.annotations = [(BOOTSTRAP_PORT.to_owned(), text.to_owned())].into();
            spec.lift_labels();
            assert_eq!(spec.worker("i", None).bootstrap_port, Some(port), "{text}");
        }
        spec.engine = Some(Engine::Vllm);
        spec.lift_labels();
        assert_eq!(spec.worker("i", None).engine, Engine::Vllm, "what was registered wins");
    }

    #[test]
    fn where_it_was_found_is_a_label_that_nobody_else_can_set() {
        let forged = [(PROVIDER, "file"), (PROVIDERS_ID, "x"), ("tier", "a")];
        let mut spec = Spec::new("http://h:1", Role::Decode);
        spec.labels = forged.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(spec.worker("i", None).labels.keys().collect::<Vec<_>>(), ["tier"]);
        let found = spec.clone().found("file", "d-0");
        let shown = found.worker("i", None);
        assert_eq!((shown.label(PROVIDER), shown.label(PROVIDERS_ID)), (Some("file"), Some("d-0")));
        let keyed = |key: &str| Spec { api_key: Some(Secret::new(key)), ..spec.clone() }.found("file", "d-0");
        let (a, b) = (keyed("a").found.unwrap(), keyed("b").found.unwrap());
        assert_eq!(a.hash, b.hash, "shown to anybody");
        assert_ne!(a.mark, b.mark, "and yet another description");
        assert_eq!(keyed("a").found("file", "d-0").found, Some(a), "found again");
        spec.priority += 1;
        assert_ne!(spec.found("file", "d-0").found.unwrap().hash, found.found.unwrap().hash);
    }

    #[test]
    fn one_workers_checks_may_differ() {
        let all = Checks::default();
        let mut spec = Spec::new("http://h:1", Role::Decode);
        spec.health = HealthSpec {
            check_interval_secs: Some(u64::MAX),
            failure_threshold: Some(1),
            ..HealthSpec::default()
        };
        let own = spec.checks(&all);
        assert_eq!((own.interval, own.timeout), (LONGEST, all.timeout));
        assert_eq!((own.rule.failure_threshold, own.rule.success_threshold), (1, 2));
        assert_eq!(spec.drain_settle(Duration::from_secs(5)), Duration::from_secs(5));
    }
}
