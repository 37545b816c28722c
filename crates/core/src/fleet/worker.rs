//! A worker: one engine endpoint, as it was registered and as it described itself.
//!
//! Immutable: a change of labels or of the engine's own report makes a new `Worker`, and the live load
//! and health that belong to the seat go over to it ([`crate::fleet::Seat`]).

use std::collections::BTreeMap;
use std::fmt;

/// What a worker does for a request. `Whole` runs both phases (AIBrix's combined, SMG's regular).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Prefill,
    Decode,
    Encode,
    Whole,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Prefill, Role::Decode, Role::Encode, Role::Whole];

    /// SMG's `worker_type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Encode => "encode",
            Role::Whole => "regular",
        }
    }

    pub fn parse(s: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|r| r.as_str() == s)
    }

    /// By AIBrix's label `role-name`. `None`: it says none that Baton knows, so the pod runs both phases.
    pub fn of_pod(name: &str) -> Option<Role> {
        [Role::Prefill, Role::Decode].into_iter().find(|r| r.as_str() == name)
    }
}

/// SMG's `runtime_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Engine {
    /// Not known yet.
    #[default]
    Unspecified,
    Sglang,
    Vllm,
    Trtllm,
    Tokenspeed,
    /// It is alive but none of the engines with a hand-off of their own.
    Generic,
}

impl Engine {
    /// What a pod of AIBrix's runs of which nobody says it (its page).
    pub const OF_POD: Engine = Engine::Vllm;

    pub const ALL: [Engine; 6] = [
        Engine::Unspecified,
        Engine::Sglang,
        Engine::Vllm,
        Engine::Trtllm,
        Engine::Tokenspeed,
        Engine::Generic,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Engine::Unspecified => "unspecified",
            Engine::Sglang => "sglang",
            Engine::Vllm => "vllm",
            Engine::Trtllm => "trtllm",
            Engine::Tokenspeed => "tokenspeed",
            Engine::Generic => "generic",
        }
    }

    pub fn parse(s: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|e| e.as_str() == s)
    }

    /// Whether its legs meet in a bootstrap room, which serves one sample. What is not known yet is taken for SGLang.
    pub fn meets_in_rooms(self) -> bool {
        matches!(self, Engine::Sglang | Engine::Tokenspeed | Engine::Unspecified)
    }
}

/// How a vLLM prefill hands its KV over, by the name of its connector (SMG 1.13).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Connector {
    /// None registered, or one whose protocol is not known: nothing is tagged.
    #[default]
    Passthrough,
    Nixl,
    Mooncake,
    Moriio,
    /// KV goes through a store; nothing is tagged, what comes back is relayed.
    Store,
    /// AIBrix's `shfs`: NIXL's protocol, with the prefill's address as the pod's.
    Shfs,
    /// AIBrix's `nixl`, which is Neuron's: the prefill's whole answer goes to the decode.
    Neuron,
}

impl Connector {
    /// By the connector's registered name, case-sensitive as SMG reads it.
    pub fn from_name(name: &str) -> Connector {
        match name {
            "NixlConnector" | "NixlPullConnector" | "NixlPushConnector" => Connector::Nixl,
            "MooncakeConnector" => Connector::Mooncake,
            "MoRIIOConnector" => Connector::Moriio,
            "MooncakeStoreConnector" | "SharedStorageConnector" | "ExampleConnector" => Connector::Store,
            n if n.starts_with("FlexKV") || n.starts_with("HF3FS") => Connector::Store,
            _ => Connector::Passthrough,
        }
    }

    /// The engine that a registered connector's name gives away, for the time until the worker has told it: only
    /// vLLM has connectors by these names. Without it the first requests to a pair would go without a hand-off.
    pub fn engine_of(name: &str) -> Option<Engine> {
        (Connector::from_name(name) != Connector::Passthrough).then_some(Engine::Vllm)
    }

    /// By AIBrix's name for it, in whatever case.
    pub fn from_aibrix(name: &str) -> Option<Connector> {
        let known =
            [("shfs", Connector::Shfs), ("nixl", Connector::Neuron), ("mooncake", Connector::Mooncake)];
        let found = known.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        found.map(|(_, connector)| connector)
    }

    /// The `mode` of `smg_pd_kv_connector_mode_total`.
    pub fn mode(&self) -> &'static str {
        match self {
            Connector::Passthrough => "passthrough",
            Connector::Nixl => "nixl",
            Connector::Mooncake => "mooncake",
            Connector::Moriio => "moriio",
            Connector::Store => "store",
            Connector::Shfs => "shfs",
            Connector::Neuron => "neuron",
        }
    }
}

/// A credential; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(s: impl Into<String>) -> Secret {
        Secret(s.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A pod's name and address, for AIBrix's `target-pod` headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub ip: String,
}

/// One engine endpoint. With data parallelism, one rank.
#[derive(Clone, Debug)]
pub struct Worker {
    /// A UUID: the id in the worker API and in `x-baton-*` headers.
    pub id: String,
    /// As registered, without a trailing slash; of one rank of several, with `@` and its number.
    pub url: String,
    pub role: Role,
    pub engine: Engine,
    /// Names the worker serves; the first is its own. Empty: not known, takes any model.
    pub models: Vec<String>,
    /// The connector's name as registered or reported.
    pub kv_connector: Option<String>,
    pub kv_engine_id: Option<String>,
    /// Engine ids by data-parallel rank as the running engine itself tells them. They go before
    /// `kv_engine_id`, which a restart may have made stale. Empty: it told them once and does not now.
    pub kv_engine_ids: Option<BTreeMap<u32, String>>,
    pub kv_role: Option<String>,
    /// The host of `url`, as the peer engine is told to reach the bootstrap server.
    pub bootstrap_host: String,
    /// As registered: over HTTP an absent port is sent as null (SMG 1.13).
    pub bootstrap_port: Option<u16>,
    pub dp_rank: Option<u32>,
    pub dp_size: Option<u32>,
    pub pairing_protocol: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// What AIBrix and Kubernetes keep beside labels: longer texts, which nobody selects by.
    pub annotations: BTreeMap<String, String>,
    pub api_key: Option<Secret>,
    pub priority: u32,
    pub cost: f64,
    /// Set when the worker came from AIBrix labels.
    pub pod: Option<Pod>,
}

const BOOTSTRAP_PORT_OF_PODS: u16 = 8998;

impl Worker {
    /// A worker of which only this much is known.
    pub fn new(id: impl Into<String>, url: impl Into<String>, role: Role) -> Worker {
        let url = url.into();
        let bootstrap_host = host_of(&url).to_owned();
        Worker {
            id: id.into(),
            url,
            role,
            engine: Engine::Unspecified,
            models: Vec::new(),
            kv_connector: None,
            kv_engine_id: None,
            kv_engine_ids: None,
            kv_role: None,
            bootstrap_host,
            bootstrap_port: None,
            dp_rank: None,
            dp_size: None,
            pairing_protocol: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            api_key: None,
            priority: 50,
            cost: 1.0,
            pod: None,
        }
    }

    /// Where it is reached: the URL of its engine, whichever rank of it the worker is.
    pub fn base_url(&self) -> &str {
        base_of(&self.url, self.dp_rank)
    }

    /// The connector that the worker was registered with, by its name or by AIBrix's label. `None`: with none.
    pub fn connector(&self) -> Option<Connector> {
        let named = self.kv_connector.as_deref().map(Connector::from_name);
        named.or_else(|| self.label("model.aibrix.ai/kv-connector-type").and_then(Connector::from_aibrix))
    }

    /// A label, trimmed; an empty one counts as absent.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }

    /// The namespace of its pod, where a discovery or whoever registered it said it.
    pub fn namespace(&self) -> Option<&str> {
        self.label("pod_namespace").or_else(|| self.label("namespace"))
    }

    /// Its pod's name, or its address where it is no pod.
    pub fn pod_name(&self) -> &str {
        self.pod.as_ref().map_or(&self.url, |pod| &pod.name)
    }

    /// Where the bootstrap server of an AIBrix pod listens that says nothing of it: an SGLang prefill's has a default
    /// there (AIBrix's page on PD).
    pub fn default_bootstrap(&self) -> Option<u16> {
        let has_one = self.pod.is_some() && self.engine == Engine::Sglang && self.role == Role::Prefill;
        has_one.then_some(BOOTSTRAP_PORT_OF_PODS)
    }

    /// An annotation, or a label of that name where somebody knows labels only.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).or_else(|| self.labels.get(name)).map(String::as_str)
    }

    /// How many sequences it runs at once, as its engine or the operator says: `max_num_seqs`, else
    /// `max_running_requests`; at most 65535 (SMG 1.13). A prefill has none: what waits there holds no room
    /// on a decode.
    pub fn window(&self) -> Option<u32> {
        if !matches!(self.role, Role::Decode | Role::Whole) {
            return None;
        }
        let read = |label: &str| self.label(label).map(str::parse::<u64>).and_then(Result::ok);
        let positive = |label: &str| read(label).filter(|n| *n > 0);
        let window = positive("max_num_seqs").or_else(|| positive("max_running_requests"))?;
        Some(u32::from(u16::try_from(window).unwrap_or(u16::MAX)))
    }

    /// It is one leg of a pair, and serves no request alone.
    pub fn is_leg(&self) -> bool {
        matches!(self.role, Role::Prefill | Role::Decode)
    }

    pub fn serves(&self, model: Option<&str>) -> bool {
        match model {
            None => true,
            Some(m) => self.models.is_empty() || self.models.iter().any(|x| x == m),
        }
    }
}

/// Do these workers run different engines? One whose engine is not known yet differs from none.
pub fn mixed<'a>(workers: impl Iterator<Item = &'a Worker>) -> bool {
    let mut known = workers.map(|w| w.engine).filter(|engine| *engine != Engine::Unspecified);
    known.next().is_some_and(|first| known.any(|other| other != first))
}

/// Where a worker is reached: its URL without the `@rank` that tells the ranks of one engine apart (SMG 1.13).
pub fn base_of(url: &str, rank: Option<u32>) -> &str {
    match (url.rsplit_once('@'), rank) {
        (Some((base, tail)), Some(rank)) if tail.parse() == Ok(rank) => base,
        _ => url,
    }
}

/// The host part of a URL, brackets of an IPv6 address included.
pub fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, r)| r);
    let authority = rest.split(['/', '?', '#', '@']).next().unwrap_or(rest);
    if let Some(end) = authority.strip_prefix('[').and_then(|a| a.find(']')) {
        return &authority[..end + 2];
    }
    authority.rsplit_once(':').map_or(authority, |(h, _)| h)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_what_the_url_says() {
        for (url, host) in [
            ("http://10.0.0.4:8000", "10.0.0.4"),
            ("http://prefill-0", "prefill-0"),
            ("http://[::1]:80/x", "[::1]"),
            ("http://h:1@3", "h"),
            ("prefill:8000", "prefill"),
        ] {
            assert_eq!(host_of(url), host, "{url}");
        }
    }

    #[test]
    fn a_rank_is_reached_at_its_engine() {
        for (url, rank, base) in [
            ("http://h:1@3", Some(3), "http://h:1"),
            ("http://h:1/v@0", Some(0), "http://h:1/v"),
            ("http://h:1", Some(0), "http://h:1"),
            ("http://h:1/a@2", None, "http://h:1/a@2"),
            ("http://h:1/a@2", Some(1), "http://h:1/a@2"),
        ] {
            assert_eq!(base_of(url, rank), base, "{url} {rank:?}");
        }
    }

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret::new("k")), "Secret(..)");
    }

    #[test]
    fn the_window_is_what_the_labels_say() {
        for (role, seqs, running, window) in [
            (Role::Decode, "4", "", Some(4)),
            (Role::Whole, "4", "9", Some(4)),
            (Role::Decode, "", "9", Some(9)),
            (Role::Decode, "0", "9", Some(9)),
            (Role::Decode, "many", "-1", None),
            (Role::Decode, "", "", None),
            (Role::Decode, "70000", "", Some(65_535)),
            (Role::Decode, "18446744073709551615", "", Some(65_535)),
            (Role::Prefill, "4", "9", None),
            (Role::Encode, "4", "9", None),
        ] {
            let mut w = Worker::new("1", "http://a:1", role);
            w.labels.insert("max_num_seqs".into(), seqs.into());
            w.labels.insert("max_running_requests".into(), running.into());
            assert_eq!(w.window(), window, "{role:?} {seqs} {running}");
        }
    }

    #[test]
    fn an_unknown_model_list_serves_anything() {
        let mut w = Worker::new("1", "http://a:1", Role::Decode);
        assert!(w.serves(Some("m")) && w.serves(None));
        w.models = vec!["m".into()];
        assert!(w.serves(Some("m")) && !w.serves(Some("x")) && w.serves(None));
    }
}
