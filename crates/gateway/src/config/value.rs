//! The types of values that are more than a number or a text.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroUsize;

use http::Uri;

use super::kind::Word;

/// A text that no log, debug output or printed configuration shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// What is shown instead.
    pub const MASK: &'static str = "********";

    /// # Errors
    /// The text is empty (it would ask for a key that nobody can present), or is the mask of a printed configuration.
    pub fn new(text: &str) -> Result<Secret, String> {
        match text.trim() {
            "" => Err("must not be empty: it would ask clients for a key that none can present".into()),
            Secret::MASK => Err("is the mask that `baton check` prints, not a key".into()),
            key => Ok(Secret(key.into())),
        }
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Secret::MASK)
    }
}

/// Where a tokenizer is, and of which model it is. `None`: of every model that has none of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerPath {
    pub model: Option<String>,
    pub path: String,
}

impl TokenizerPath {
    /// # Errors
    /// The model or the path is empty.
    pub fn new(text: &str) -> Result<TokenizerPath, String> {
        let (model, path) = match text.split_once('=') {
            Some((model, path)) => (Some(model.trim().to_owned()), path.trim()),
            None => (None, text),
        };
        if path.is_empty() || model.as_deref() == Some("") {
            return Err(format!("{text:?} must be a path, or a model and a path as MODEL=PATH"));
        }
        Ok(TokenizerPath { model, path: path.to_owned() })
    }
}

impl fmt::Display for TokenizerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.model {
            Some(model) => write!(f, "{model}={}", self.path),
            None => f.write_str(&self.path),
        }
    }
}

/// The base URL of a worker: `http://` or `https://`, with a host, without a trailing slash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerUrl(String);

impl WorkerUrl {
    /// # Errors
    /// The scheme is not lower-case `http` or `https`, the host is missing, or there is a user, a query or a fragment.
    pub fn new(text: &str) -> Result<WorkerUrl, String> {
        let shown = without_user(text);
        let Some((scheme, _)) = text.split_once("://") else {
            return Err(format!("{shown:?} must start with http:// or https://"));
        };
        match scheme {
            "http" | "https" => {}
            "grpc" | "grpcs" => {
                return Err(format!("{shown:?}: gRPC workers are not served yet, give an http:// URL"));
            }
            "ipc" => return Err(format!("{shown:?}: ZMQ workers are not served")),
            other
                if matches!(
                    other.to_ascii_lowercase().as_str(),
                    "http" | "https" | "grpc" | "grpcs" | "ipc"
                ) =>
            {
                return Err(format!("{shown:?}: write the scheme in lower case"));
            }
            _ => return Err(format!("{shown:?} must start with http:// or https://")),
        }
        let uri: Uri = text.parse().map_err(|error| format!("{shown:?} is not a URL: {error}"))?;
        match uri.authority() {
            Some(authority) if authority.as_str().contains('@') => {
                Err(format!("{shown:?} must not name a user"))
            }
            Some(authority) if authority.host().is_empty() => Err(format!("{shown:?} has no host")),
            Some(authority) if !port_fits(authority.as_str(), authority.port_u16()) => {
                Err(format!("{shown:?}: the port must be between 1 and 65535"))
            }
            Some(_) if text.contains(['?', '#']) => Err(format!("{shown:?} must end with the path")),
            Some(_) => Ok(WorkerUrl(text.trim_end_matches('/').into())),
            None => Err(format!("{shown:?} has no host")),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text for messages: a URL does not show whose it is, nor the password.
pub fn without_user(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return Cow::Borrowed(text) };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match authority.rfind('@').and_then(|at| rest.get(at..)) {
        Some(rest) => Cow::Owned(format!("{scheme}://***{rest}")),
        None => Cow::Borrowed(text),
    }
}

/// A colon after the host must be followed by a port; `Authority` itself lets some others pass.
fn port_fits(authority: &str, port: Option<u16>) -> bool {
    let after_host = authority.rsplit_once(']').map_or(authority, |(_, rest)| rest);
    !after_host.contains(':') || port.is_some_and(|port| port != 0)
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A worker of the command line that may have a bootstrap port: `URL`, `URL PORT` or `URL none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    pub url: WorkerUrl,
    /// The port of the worker's bootstrap server.
    pub bootstrap_port: Option<u16>,
    /// `none` was given: it has no bootstrap server, whatever it says of itself.
    pub no_bootstrap: bool,
}

impl Leg {
    /// # Errors
    /// The URL is wrong, or what follows it is neither a port nor `none`.
    pub fn new(text: &str) -> Result<Leg, String> {
        let mut words = text.split_whitespace();
        let url = WorkerUrl::new(words.next().unwrap_or_default())?;
        let (bootstrap_port, no_bootstrap) = match words.next() {
            None => (None, false),
            Some(word) if word.eq_ignore_ascii_case("none") => (None, true),
            Some(word) => match word.parse::<u16>() {
                Ok(port) if port != 0 => (Some(port), false),
                _ => {
                    return Err(format!(
                        "bootstrap port {word:?} must be a port between 1 and 65535, or none"
                    ));
                }
            },
        };
        match words.next() {
            Some(word) => Err(format!("{word:?} is one word too many after {url}")),
            None => Ok(Leg { url, bootstrap_port, no_bootstrap }),
        }
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bootstrap_port {
            Some(port) => write!(f, "{} {port}", self.url),
            None if self.no_bootstrap => write!(f, "{} none", self.url),
            None => write!(f, "{}", self.url),
        }
    }
}

/// What of a pod names its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelIdFrom {
    Namespace,
    Label(String),
    Annotation(String),
}

impl ModelIdFrom {
    /// # Errors
    /// It is none of the three.
    pub fn new(text: &str) -> Result<ModelIdFrom, String> {
        match text.split_once(':') {
            None if text == "namespace" => Ok(ModelIdFrom::Namespace),
            Some(("label", key)) if !key.is_empty() => Ok(ModelIdFrom::Label(key.to_owned())),
            Some(("annotation", key)) if !key.is_empty() => Ok(ModelIdFrom::Annotation(key.to_owned())),
            _ => Err("must be namespace, label:KEY or annotation:KEY".to_owned()),
        }
    }
}

impl fmt::Display for ModelIdFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelIdFrom::Namespace => f.write_str("namespace"),
            ModelIdFrom::Label(key) => write!(f, "label:{key}"),
            ModelIdFrom::Annotation(key) => write!(f, "annotation:{key}"),
        }
    }
}

/// Which web pages may call the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigins {
    /// No cross-origin allowance.
    None,
    /// Every origin: `*`.
    Any,
    /// These, compared exactly.
    Only(Vec<String>),
}

impl CorsOrigins {
    pub(super) fn read(items: &[String]) -> Result<CorsOrigins, String> {
        match items {
            [] => Ok(CorsOrigins::None),
            [star] if star == "*" => Ok(CorsOrigins::Any),
            _ if items.iter().any(|item| item == "*") => {
                Err("'*' stands alone: give either '*' or a list of origins".into())
            }
            _ => {
                items.iter().try_for_each(|item| exact_origin(item))?;
                Ok(CorsOrigins::Only(items.to_vec()))
            }
        }
    }

    pub(super) fn as_list(&self) -> Vec<&str> {
        match self {
            CorsOrigins::None => Vec::new(),
            CorsOrigins::Any => vec!["*"],
            CorsOrigins::Only(origins) => origins.iter().map(String::as_str).collect(),
        }
    }
}

/// A browser sends scheme and host in lower case, no default port and nothing after; any other spelling never matches.
fn exact_origin(origin: &str) -> Result<(), String> {
    let wrong = || {
        format!(
            "{origin:?} is not an origin as browsers send it: lower-case scheme://host[:port], no default port, nothing after"
        )
    };
    let uri: Uri = origin.parse().map_err(|_| wrong())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(wrong()) };
    let default_port = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    let exact = origin == format!("{scheme}://{authority}")
        && origin == origin.to_ascii_lowercase()
        && !authority.as_str().contains('@')
        && (authority.port_u16().is_none() || authority.port_u16() != default_port);
    if exact { Ok(()) } else { Err(wrong()) }
}

/// How many requests may be in the gateway at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// From the number of cores.
    Auto,
    Unbounded,
    AtMost(NonZeroUsize),
}

impl Concurrency {
    pub(super) fn new(number: i64) -> Result<Concurrency, String> {
        match number {
            -1 => Ok(Concurrency::Auto),
            0 => Ok(Concurrency::Unbounded),
            n => usize::try_from(n).ok().and_then(NonZeroUsize::new).map(Concurrency::AtMost).ok_or_else(
                || "must be -1 (from the number of cores), 0 (no bound) or a whole number".into(),
            ),
        }
    }

    pub(super) fn as_number(self) -> i64 {
        match self {
            Concurrency::Auto => -1,
            Concurrency::Unbounded => 0,
            Concurrency::AtMost(n) => i64::try_from(n.get()).unwrap_or(i64::MAX),
        }
    }

    /// Requests at once on a machine with this many cores: SMG's rule is 1024 for each core and 4096 at least. None is
    /// no bound.
    pub fn resolve(self, cores: usize) -> Option<usize> {
        match self {
            Concurrency::Auto => Some(cores.saturating_mul(1024).max(4096)),
            Concurrency::Unbounded => None,
            Concurrency::AtMost(n) => Some(n.get()),
        }
    }
}

/// Writes an enum whose values are words.
macro_rules! words {
    ($( $(#[$about:meta])+ $Name:ident { $( $(#[$value_about:meta])* $Value:ident = $word:literal, )+ } )+) => { $(
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Name { $( $(#[$value_about])* $Value, )+ }

        impl Word for $Name {
            const WORDS: &'static [&'static str] = &[$($word),+];
            const VALUES: &'static [Self] = &[$(Self::$Value),+];

            fn word(self) -> &'static str {
                match self { $( Self::$Value => $word, )+ }
            }
        }

        impl $Name {
            /// As flags, files and documentation write it.
            pub fn as_str(self) -> &'static str {
                self.word()
            }
        }
    )+ };
}

words! {
    /// How a worker is chosen for a leg.
    PolicyName {
        LeastLoad = "least_load",
        PowerOfTwo = "power_of_two",
        RoundRobin = "round_robin",
        Random = "random",
        CacheAware = "cache_aware",
        PrefixHash = "prefix_hash",
        ConsistentHashing = "consistent_hashing",
        Manual = "manual",
        Bucket = "bucket",
        Passthrough = "passthrough",
    }

    /// How an encode worker is chosen.
    EncodePolicy {
        ConsistentHashing = "consistent_hashing",
        RoundRobin = "round_robin",
        Random = "random",
    }

    /// How strictly two legs must share a KV transfer protocol.
    PairingMode {
        /// Every prefill may pair with every decode.
        Off = "off",
        /// A known difference keeps two legs apart.
        Lenient = "lenient",
        /// So does what is not known.
        Strict = "strict",
    }

    /// AIBrix's names for how a vLLM prefill hands over.
    KvConnectorType {
        Shfs = "shfs",
        /// Neuron's.
        Nixl = "nixl",
        Mooncake = "mooncake",
    }

    /// AIBrix's names for how TensorRT-LLM pairs run.
    TrtScheduleStyle {
        ContextFirst = "context_first",
        GenerationFirst = "generation_first",
    }

    /// When workers are asked for their metrics.
    WorkerMetrics {
        /// From the first request that is placed by what they say.
        Auto = "auto",
        Always = "always",
        Never = "never",
    }

    /// What `power_of_two` compares.
    LoadMetric {
        ExpectedWait = "expected_wait",
        Requests = "requests",
        LeastRequests = "least_requests",
    }

    /// How a first-seen routing key gets its worker.
    AssignmentMode {
        Random = "random",
        MinLoad = "min_load",
        MinGroup = "min_group",
        Delegate = "delegate",
    }

    /// What `cache_aware` remembers prompts in.
    CacheIndex {
        Tree = "tree",
        Hash = "hash",
    }

    /// What KV events are kept in.
    KvIndex {
        Positional = "positional",
        Chain = "chain",
    }

    /// Where workers are discovered.
    DiscoveryProvider {
        Kubernetes = "kubernetes",
        File = "file",
    }

    /// Least severity that is logged.
    LogLevel {
        Trace = "trace",
        Debug = "debug",
        Info = "info",
        Warn = "warn",
        Error = "error",
    }
}
