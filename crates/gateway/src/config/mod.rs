//! The configuration: one type, one road to it.
//!
//! Flags, environment and file all become text items for rows of one table (see [`setting`]); each row reads its items
//! into a field of [`Config`]. A flag wins over the environment, that over the file, that over the default, and the
//! source of each value is remembered. What contradicts itself is refused here, before anything is started.
//!
//! Nothing here reads the process: arguments and environment are arguments, and the only thing touched is the file
//! that `--config` names. Whether an address can be listened on or a worker answers is found out later.

mod check;
mod error;
mod file;
pub mod flags;
mod groups;
mod kind;
mod left_out;
pub mod page;
mod print;
pub mod setting;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use baton_core::place::cascade::knobs::Knobs;
use serde_json::Value;

pub use error::ConfigError;
pub(crate) use error::nearest;
pub use groups::{
    Admission, Affinity, Auth, Breaker, Cors, Discovery, Handoff, Health, Limits, Load, Log, Metrics, Policy,
    Redis, Retry, Server, Timeouts, Tls, Trace, Workers,
};
pub use value::{
    AssignmentMode, CacheIndex, Concurrency, CorsOrigins, DiscoveryProvider, EncodePolicy, KvConnectorType,
    KvIndex, Leg, LoadMetric, LogLevel, ModelIdFrom, PairingMode, PolicyName, Secret, TokenizerPath,
    TrtScheduleStyle, WorkerMetrics, WorkerUrl,
};

use setting::{Setting, Shape};

/// All settings of a gateway. The default is what `baton launch` without flags runs with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    pub server: Server,
    pub workers: Workers,
    pub policy: Policy,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub admission: Admission,
    pub retry: Retry,
    pub breaker: Breaker,
    pub health: Health,
    pub auth: Auth,
    pub tls: Tls,
    pub cors: Cors,
    pub metrics: Metrics,
    pub log: Log,
    pub trace: Trace,
    pub handoff: Handoff,
    pub discovery: Discovery,
    pub load: Load,
    pub affinity: Affinity,
    pub redis: Redis,
    /// AIBrix's variables of routing, which have no flags.
    pub aibrix: Knobs,
}

/// The table: every setting, in the order of help, docs and printed configurations.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    [
        Server::SETTINGS,
        Workers::SETTINGS,
        Policy::SETTINGS,
        Limits::SETTINGS,
        Timeouts::SETTINGS,
        Admission::SETTINGS,
        Retry::SETTINGS,
        Breaker::SETTINGS,
        Health::SETTINGS,
        Auth::SETTINGS,
        Tls::SETTINGS,
        Cors::SETTINGS,
        Metrics::SETTINGS,
        Log::SETTINGS,
        Trace::SETTINGS,
        Handoff::SETTINGS,
        Discovery::SETTINGS,
        Load::SETTINGS,
        Affinity::SETTINGS,
        Redis::SETTINGS,
    ]
    .into_iter()
    .flatten()
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    Flag(&'static str),
    Environment(String),
    File { path: String, line: usize },
}

impl Source {
    /// How a message names the setting of this flag as it was written: `--port`, `BATON_PORT`, `baton.yaml:3: port`.
    fn name(&self, flag: &str) -> String {
        match self {
            Source::Default | Source::Flag(_) => format!("--{flag}"),
            Source::Environment(name) => name.clone(),
            Source::File { path, line } => format!("{path}:{line}: {}", flag.replace('-', "_")),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::Flag(flag) => write!(f, "flag --{flag}"),
            Source::Environment(name) => write!(f, "environment {name}"),
            Source::File { path, line } => write!(f, "{path}:{line}"),
        }
    }
}

/// What was written for one setting, and where.
struct Given {
    items: Vec<String>,
    source: Source,
}

/// The source of every value that is not a default, by flag.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    by_flag: BTreeMap<&'static str, Source>,
    /// What was given and could not be used, one sentence each.
    unused: Vec<String>,
}

impl Sources {
    /// Where the value of this flag (without dashes) comes from.
    pub fn of(&self, flag: &str) -> Source {
        self.by_flag.get(flag).cloned().unwrap_or(Source::Default)
    }

    fn name(&self, flag: &str) -> String {
        self.of(flag).name(flag)
    }

    fn given(&self, flag: &str) -> bool {
        self.by_flag.contains_key(flag)
    }
}

/// A configuration, and where each of its values comes from.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    pub sources: Sources,
}

/// A look-up of environment variables.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Config {
    /// Reads the arguments that follow `baton launch`, the environment, and the file that either of them names.
    ///
    /// # Errors
    /// The first thing that is unknown, unreadable or contradictory.
    pub fn load(args: impl Iterator<Item = OsString>, env: Environment<'_>) -> Result<Loaded, ConfigError> {
        Self::from_matches(&flags::parse(args)?, env)
    }

    /// As [`Config::load`], from arguments that were parsed with [`flags::augment`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_matches(matches: &clap::ArgMatches, env: Environment<'_>) -> Result<Loaded, ConfigError> {
        let path = flags::file(matches).or_else(|| env("BATON_CONFIG").filter(|path| !path.is_empty()));
        let mut in_file = match path {
            Some(path) => file::read(&path)?,
            None => BTreeMap::new(),
        };
        let mut config = Config::default();
        let mut sources = Sources::default();
        for setting in settings() {
            let given = flags::given(setting, matches)
                .or_else(|| from_environment(setting, env))
                .or_else(|| in_file.remove(setting.flag));
            if let Some(given) = given {
                match (setting.store)(&mut config, &given.items) {
                    Ok(()) => drop(sources.by_flag.insert(setting.flag, given.source)),
                    Err(reason) if setting.forgives(&given.source) => sources.unused.push(format!(
                        "{} {}: {reason}; the default is used",
                        given.source.name(setting.flag),
                        given.items.join(" ")
                    )),
                    Err(reason) => return Err(ConfigError::bad_value(setting, &given, reason)),
                }
            }
        }
        let (knobs, unused) = Knobs::read(env);
        config.aibrix = knobs;
        sources.unused.extend(unused.into_iter().filter(|line| !settings().any(|s| s.note.speaks_of(line))));
        check::check(&config, &sources)?;
        Ok(Loaded { config, sources })
    }

    /// The address that clients are served on.
    pub fn server_address(&self) -> SocketAddr {
        SocketAddr::new(self.server.host, self.server.port)
    }

    /// The address of the listener that answers probes only.
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.server.health_check_port.map(|port| SocketAddr::new(self.server.host, port))
    }

    /// The address that metrics are served on.
    pub fn metrics_address(&self) -> SocketAddr {
        let every = match self.server.host {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        SocketAddr::new(self.metrics.host.unwrap_or(every), self.metrics.port)
    }

    /// The policy of the prefill leg.
    pub fn prefill_policy(&self) -> PolicyName {
        self.policy.prefill.unwrap_or(self.policy.default)
    }

    /// The policy of the decode leg. Where `bucket` is everybody's, decodes that come later have the default one: they
    /// have no prompt to sort. At the start it is refused for pairs.
    pub fn decode_policy(&self) -> PolicyName {
        let own = self.policy.decode.unwrap_or(self.policy.default);
        if own == PolicyName::Bucket { PolicyName::LeastLoad } else { own }
    }

    /// All values as JSON, by section and key; secrets are masked.
    pub fn describe(&self) -> Value {
        print::describe(self)
    }
}

impl Loaded {
    /// What keeps this version from serving the configuration as it was meant, one sentence each.
    pub fn refusals(&self) -> Vec<String> {
        check::refusals(&self.config, &self.sources)
    }

    /// Settings that were given and have no effect yet, or not without another, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        check::warnings(&self.config, &self.sources)
    }

    /// The configuration as a YAML file that `--config` reads again, each value with its source in a comment.
    pub fn to_yaml(&self) -> String {
        print::yaml(&self.config, &self.sources)
    }
}

/// Does any setting come from this variable?
pub fn is_read(name: &str) -> bool {
    name == "BATON_CONFIG"
        || Knobs::variables().any(|own| own == name)
        || settings().any(|setting| setting.environment().iter().any(|own| own == name))
}

/// AIBrix's variables that nothing reads, one sentence each. Those that Kubernetes sets for a service of such a name
/// mean nothing.
pub fn unread(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let ours = |name: &str| name.starts_with("AIBRIX_");
    let links = |name: &str, value: &str| {
        ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"].iter().any(|part| name.contains(part))
            || is_service_link(value)
    };
    let lost = variables.filter(|(name, value)| ours(name) && !is_read(name) && !links(name, value));
    let mut lost: Vec<String> = lost.map(|(name, _)| format!("{name} is read by nothing here")).collect();
    lost.sort_unstable();
    lost
}

/// Kubernetes sets BATON_PORT=tcp://… in every pod beside a service called `baton`.
fn is_service_link(text: &str) -> bool {
    text.starts_with("tcp://") || text.starts_with("udp://")
}

/// A variable without text counts as not given, so that a template may leave it empty; a key does not, because a
/// gateway that was meant to ask for one must not start without.
fn from_environment(setting: &Setting, env: Environment<'_>) -> Option<Given> {
    setting.environment().into_iter().find_map(|name| {
        let text = env(&name)?;
        if is_service_link(&text) || (text.trim().is_empty() && !setting.secret) {
            return None;
        }
        Some(Given { items: environment_items(setting, &text), source: Source::Environment(name) })
    })
}

fn environment_items(setting: &Setting, text: &str) -> Vec<String> {
    let split = |by: fn(char) -> bool| -> Vec<String> {
        text.split(by).map(str::trim).filter(|item| !item.is_empty()).map(String::from).collect()
    };
    match setting.shape {
        Shape::Switch | Shape::One | Shape::Word(_) => vec![text.to_owned()],
        Shape::Leg => split(|c| c == ','),
        Shape::List | Shape::Pairs => split(|c| c == ',' || c.is_whitespace()),
    }
}
