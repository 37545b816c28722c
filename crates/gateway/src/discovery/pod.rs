//! What a Kubernetes pod says that it is: no worker, one, or one for each of its ports.
//!
//! Two dialects are read, of one pod both if it speaks both: AIBrix's, where labels say model, role, roleset, port and
//! engine (its page on PD), and SMG's, where the gateway is told by which labels it knows a prefill from a decode, and
//! annotations say ports and connector (SMG 1.13). All labels and annotations of the pod become the worker's, so that
//! whatever can be registered by a label can be said of a pod.
//!
//! It is a function of the pod and the settings alone. Where pods come from, and what to do with one that cannot be
//! understood, is for whoever has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use baton_core::fleet::{Role, host_of};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::written::{ANNOTATION_MAX_BYTES, LABELS_MAX, check_annotations, check_labels};
use crate::config::{Config, ModelIdFrom, WorkerUrl};
use crate::probe::Model;
use crate::registry::Spec;

type Texts = BTreeMap<String, String>;

const MODEL: &str = "model.aibrix.ai/name";
const PORT: &str = "model.aibrix.ai/port";
/// The port of an AIBrix pod that names none.
const AIBRIX_PORT: u16 = 8000;
/// Of the pods of one multi-node engine only the first serves.
const GROUP_INDEX: &str = "stormservice.orchestration.aibrix.ai/pod-group-index";
const WORKER_PORTS: &str = "smg.ai/worker-ports";
const BOOTSTRAP_PORTS: &str = "sglang.ai/bootstrap-port";
/// Baton's own: where a pod is reached that has no address, because it is a manifest and not a pod yet.
const ADDRESS: &str = "baton/address";
/// Annotations by tools about the manifest, which say nothing of the worker and may be larger than all the rest.
const TOOLS: &str = "kubectl.kubernetes.io/";
/// Most ports of one pod.
const PORTS_MAX: usize = 64;

/// A pod, or a manifest of one: what there is to know of it here.
#[derive(Debug, Deserialize)]
pub struct Pod {
    metadata: Metadata,
    status: Option<State>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<Texts>,
    annotations: Option<Texts>,
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    ip: Option<String>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// By what pods are known, and what those say that say nothing.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// None: all.
    pub namespace: Option<String>,
    /// The port of a pod that is none of AIBrix's and names none.
    pub port: u16,
    pub selector: Vec<(String, String)>,
    pub prefill: Vec<(String, String)>,
    pub decode: Vec<(String, String)>,
    pub encode: Vec<(String, String)>,
    /// Names of annotations.
    pub kv_connector: String,
    pub kv_engine_id: String,
    pub model_id_from: Option<ModelIdFrom>,
    /// Requests are served by pairs alone. SMG `--pd-disaggregation`.
    pub pd: bool,
}

impl Rules {
    pub fn of(config: &Config) -> Rules {
        let own = config.discovery.clone();
        Rules {
            namespace: own.namespace,
            port: own.port,
            selector: own.selector,
            prefill: own.prefill_selector,
            decode: own.decode_selector,
            encode: own.encode_selector,
            kv_connector: own.kv_connector_annotation,
            kv_engine_id: own.kv_engine_id_annotation,
            model_id_from: own.model_id_from,
            pd: config.workers.pd_disaggregation,
        }
    }
}

/// What became of a pod.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub workers: Vec<Spec>,
    /// Why it is no worker, or none now.
    pub passed_over: Option<&'static str>,
    /// What it says and cannot mean; it serves without.
    pub odd: Vec<String>,
}

/// Why a pod stops being looked at: it is none of ours, or not understood.
enum Stop {
    Pass(&'static str),
    Wrong(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Stop {
        Stop::Wrong(why)
    }
}

/// The workers of a pod, found by `provider`.
///
/// # Errors
/// What it says that makes it no worker of any kind; the pod's name is not in it.
pub fn workers(pod: &Pod, provider: &'static str, rules: &Rules) -> Result<Seen, String> {
    let mut odd = Vec::new();
    let specs = Reader { pod, rules, odd: &mut odd }.specs(provider);
    match specs {
        Ok(workers) => Ok(Seen { workers, passed_over: None, odd }),
        Err(Stop::Pass(why)) => Ok(Seen { passed_over: Some(why), ..Seen::default() }),
        Err(Stop::Wrong(why)) => Err(why),
    }
}

impl Pod {
    /// `namespace/name`, as AIBrix calls it.
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace(), self.metadata.name.as_deref().unwrap_or("?"))
    }

    fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or("default")
    }

    fn label(&self, name: &str) -> Option<&str> {
        text(self.metadata.labels.as_ref(), name)
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        text(self.metadata.annotations.as_ref(), name)
    }

    fn ip(&self) -> Option<&str> {
        self.status.as_ref()?.ip.as_deref().filter(|ip| !ip.is_empty())
    }

    /// It runs somewhere, or did: a manifest says nothing of the kind.
    fn is_live(&self) -> bool {
        self.status.as_ref().is_some_and(|s| s.phase.is_some() || s.conditions.is_some())
    }

    /// All of these labels; no labels match nothing (SMG 1.13).
    fn matches(&self, selector: &[(String, String)]) -> bool {
        let own = self.metadata.labels.as_ref();
        !selector.is_empty() && selector.iter().all(|(k, v)| own.and_then(|l| l.get(k)) == Some(v))
    }

    fn model(&self) -> Option<&str> {
        self.label(MODEL).or_else(|| self.annotation(MODEL))
    }
}

/// Trimmed; an empty one counts as absent.
fn text<'a>(all: Option<&'a Texts>, name: &str) -> Option<&'a str> {
    all?.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
}

struct Reader<'a> {
    pod: &'a Pod,
    rules: &'a Rules,
    odd: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn specs(&mut self, provider: &'static str) -> Result<Vec<Spec>, Stop> {
        let (pod, rules) = (self.pod, self.rules);
        let role = self.role()?;
        self.liveness()?;
        let Some(name) = pod.metadata.name.as_deref().filter(|name| !name.is_empty()) else {
            return Err(Stop::Wrong("metadata.name is missing".to_owned()));
        };
        let host = self.host()?;
        let labels = self.labels(name);
        check_labels(Some(&labels))?;
        let annotations = self.annotations();
        check_annotations(Some(&annotations))?;
        let ports = self.ports();
        let bootstrap = if role == Role::Prefill { self.bootstrap_ports(ports.len()) } else { Vec::new() };
        let engine_ids = self.engine_ids(ports.len());
        let uid = pod.metadata.uid.clone().unwrap_or_else(|| pod.name());
        let mut specs = Vec::new();
        for (at, port) in ports.iter().enumerate() {
            let url = WorkerUrl::new(&format!("http://{host}:{port}"));
            let Some(url) = url.ok().filter(|url| host_of(url.as_str()) == host) else {
                return Err(Stop::Wrong(format!("{ADDRESS}: {host:?} is no host name and no IP address")));
            };
            let spec = Spec {
                labels: labels.clone(),
                annotations: annotations.clone(),
                models: self.models(),
                bootstrap_port: bootstrap.get(at).copied(),
                kv_connector: pod.annotation(&rules.kv_connector).map(str::to_owned),
                kv_engine_id: engine_ids.get(at).cloned(),
                ..Spec::new(url.as_str(), role)
            };
            specs.push(spec.found(provider, format!("{uid}:{port}")));
        }
        Ok(specs)
    }

    fn role(&self) -> Result<Role, Stop> {
        let (pod, rules) = (self.pod, self.rules);
        let selectors = [&rules.encode, &rules.prefill, &rules.decode, &rules.selector];
        if rules.namespace.as_deref().is_some_and(|own| own != pod.namespace()) {
            return Err(Stop::Pass("it is in another namespace"));
        }
        if pod.metadata.labels.as_ref().and_then(|l| l.get(GROUP_INDEX)).is_some_and(|index| index != "0") {
            return Err(Stop::Pass("it is not the first pod of its group"));
        }
        let told = pod.metadata.labels.as_ref().and_then(Spec::role_of_pod).unwrap_or(Role::Whole);
        if selectors.iter().all(|selector| selector.is_empty()) {
            let why = "it has no label model.aibrix.ai/name, and no selector is given";
            return pod.model().map(|_| told).ok_or(Stop::Pass(why));
        }
        match selectors.map(|selector| pod.matches(selector)) {
            [true, ..] => Err(Stop::Pass("encode workers are not served yet")),
            [_, true, ..] => Ok(Role::Prefill),
            [_, _, true, _] => Ok(Role::Decode),
            [.., true] if !rules.pd => Ok(told),
            _ => Err(Stop::Pass("no selector matches its labels")),
        }
    }

    /// SMG takes pods in that are `Running` and `Ready`, and lets those go that are about to end.
    fn liveness(&self) -> Result<(), Stop> {
        if self.pod.metadata.deletion_timestamp.is_some() {
            return Err(Stop::Pass("it is terminating"));
        }
        let Some(state) = &self.pod.status else { return Ok(()) };
        if state.phase.as_deref().is_some_and(|phase| phase != "Running") {
            return Err(Stop::Pass("it is not running"));
        }
        let ready = |all: &Vec<Condition>| all.iter().any(|c| c.kind == "Ready" && c.status == "True");
        match state.conditions.as_ref().is_none_or(ready) {
            true => Ok(()),
            false => Err(Stop::Pass("it is not ready")),
        }
    }

    fn host(&self) -> Result<String, Stop> {
        if let Some(ip) = self.pod.ip() {
            let ip: IpAddr = ip.parse().map_err(|_| format!("status.podIP: {ip:?} is no IP address"))?;
            return Ok(if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() });
        }
        match self.pod.annotation(ADDRESS) {
            Some(host) if host.parse::<Ipv6Addr>().is_ok() => Ok(format!("[{host}]")),
            Some(host) => Ok(host.to_owned()),
            None if self.pod.is_live() => Err(Stop::Pass("it has no IP address yet")),
            None => Err(Stop::Wrong(format!(
                "nothing says where it is: give status.podIP, or a host in the annotation {ADDRESS}"
            ))),
        }
    }

    fn labels(&self, name: &str) -> Texts {
        let pod = self.pod;
        let mut labels = pod.metadata.labels.clone().unwrap_or_default();
        let ip = pod.ip().or_else(|| pod.annotation(ADDRESS)).unwrap_or_default();
        let own = [("pod_name", name), ("pod_namespace", pod.namespace()), ("pod_ip", ip)];
        labels.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let uid = pod.metadata.uid.as_deref();
        let smg = [("smg.ai/pod-name", Some(name)), ("smg.ai/pod-uid", uid)];
        labels.extend(smg.into_iter().filter_map(|(name, v)| Some((name.to_owned(), v?.to_owned()))));
        labels
    }

    fn annotations(&mut self) -> Texts {
        let mut kept = Texts::new();
        for (name, value) in self.pod.metadata.annotations.iter().flatten() {
            if name.starts_with(TOOLS) {
                continue;
            }
            if kept.len() >= LABELS_MAX || value.len() > ANNOTATION_MAX_BYTES {
                self.odd.push(format!("annotation {name} is left out: too many, or too long"));
                continue;
            }
            kept.insert(name.clone(), value.clone());
        }
        kept
    }

    fn models(&self) -> Vec<Model> {
        let pod = self.pod;
        let told = match &self.rules.model_id_from {
            None => None,
            Some(ModelIdFrom::Namespace) => Some(pod.namespace()),
            Some(ModelIdFrom::Label(name)) => pod.label(name),
            Some(ModelIdFrom::Annotation(name)) => pod.annotation(name),
        };
        let id = told.or_else(|| pod.model());
        id.map(|id| Model { id: id.to_owned(), context_length: None }).into_iter().collect()
    }

    fn ports(&mut self) -> Vec<u16> {
        let pod = self.pod;
        let named = pod.label(PORT).and_then(|port| port.parse().ok()).filter(|port| *port > 0);
        let default = if pod.model().is_some() { AIBRIX_PORT } else { self.rules.port };
        let one = named.unwrap_or(default);
        let Some(list) = pod.annotation(WORKER_PORTS) else { return vec![one] };
        let mut seen = BTreeSet::new();
        match numbers(list) {
            Some(ports) => ports.into_iter().filter(|port| seen.insert(*port)).collect(),
            None => {
                self.odd.push(format!("{WORKER_PORTS}: {list:?} is no list of ports; {one} is taken"));
                vec![one]
            }
        }
    }

    /// One for each port of the pod, or none.
    fn bootstrap_ports(&mut self, ports: usize) -> Vec<u16> {
        let Some(list) = self.pod.annotation(BOOTSTRAP_PORTS) else { return Vec::new() };
        match numbers(list) {
            Some(all) if all.len() == ports => all,
            Some(all) if all.len() == 1 => all.repeat(ports),
            _ => {
                let why =
                    format!("{BOOTSTRAP_PORTS}: {list:?} is neither a port nor one for each of {ports}");
                self.odd.push(format!("{why}; it is left out"));
                Vec::new()
            }
        }
    }

    /// One for each port of the pod, all of them different, or none.
    fn engine_ids(&mut self, ports: usize) -> Vec<String> {
        let name = &self.rules.kv_engine_id;
        let Some(list) = self.pod.annotation(name) else { return Vec::new() };
        let ids: Vec<String> = list.split(',').map(|id| id.trim().to_owned()).collect();
        let distinct = ids.iter().collect::<BTreeSet<_>>().len() == ids.len();
        if ids.len() == ports && distinct && ids.iter().all(|id| !id.is_empty()) {
            return ids;
        }
        self.odd.push(format!("{name}: {list:?} is not one id for each of {ports} ports; it is left out"));
        Vec::new()
    }
}

/// Ports, separated by commas. None: some are not.
fn numbers(list: &str) -> Option<Vec<u16>> {
    let port = |text: &str| text.trim().parse().ok().filter(|port| *port > 0);
    let all: Vec<u16> = list.split(',').map(port).collect::<Option<_>>()?;
    (all.len() <= PORTS_MAX).then_some(all)
}
