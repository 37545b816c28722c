//! Which strategy does a request get? AIBrix's names, lists of them with weights, and who has the last word.

use std::fmt;

/// AIBrix's strategies that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Prefill and decode, by the cascade.
    Pd,
    Random,
    LeastRequest,
    LeastRequestTopK,
    PowerOfTwo,
    LoadBalance,
    LeastLatency,
    LeastKvCache,
    LeastGpuCache,
    LeastUtilization,
    LeastBusyTime,
    Throughput,
    PrefixCache,
    SessionAffinity,
    VtcBasic,
}

impl Way {
    pub const ALL: [Way; 15] = [
        Way::Pd,
        Way::Random,
        Way::LeastRequest,
        Way::LeastRequestTopK,
        Way::PowerOfTwo,
        Way::LoadBalance,
        Way::LeastLatency,
        Way::LeastKvCache,
        Way::LeastGpuCache,
        Way::LeastUtilization,
        Way::LeastBusyTime,
        Way::Throughput,
        Way::PrefixCache,
        Way::SessionAffinity,
        Way::VtcBasic,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Way::Pd => "pd",
            Way::Random => "random",
            Way::LeastRequest => "least-request",
            Way::LeastRequestTopK => "least-request-top-k",
            Way::PowerOfTwo => "power-of-two",
            Way::LoadBalance => "load-balance",
            Way::LeastLatency => "least-latency",
            Way::LeastKvCache => "least-kv-cache",
            Way::LeastGpuCache => "least-gpu-cache",
            Way::LeastUtilization => "least-utilization",
            Way::LeastBusyTime => "least-busy-time",
            Way::Throughput => "throughput",
            Way::PrefixCache => "prefix-cache",
            Way::SessionAffinity => "session-affinity",
            Way::VtcBasic => "vtc-basic",
        }
    }

    pub fn parse(name: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|w| w.as_str() == name)
    }

    /// Goes by what workers say of their load.
    pub fn heeds_reports(self) -> bool {
        self == Way::LoadBalance || self.looks_past_requests()
    }

    /// Goes by what workers say, and does not count the requests that the gateway has there.
    pub fn looks_past_requests(self) -> bool {
        matches!(
            self,
            Way::LeastLatency
                | Way::LeastKvCache
                | Way::LeastGpuCache
                | Way::LeastUtilization
                | Way::LeastBusyTime
                | Way::Throughput
        )
    }
}

/// Names that AIBrix serves and Baton does not, and why not.
const NOT_SERVED: [(&str, &str); 5] = [
    ("prefix-cache-preble", "its costs are those of two kinds of GPU, measured with one model"),
    ("slo", NO_GPU_PROFILES),
    ("slo-pack-load", NO_GPU_PROFILES),
    ("slo-least-load", NO_GPU_PROFILES),
    ("slo-least-load-pulling", NO_GPU_PROFILES),
];
const NO_GPU_PROFILES: &str =
    "it goes by profiles of GPUs that AIBrix's optimizer writes, and there are none here";

/// Heaviest weight of a list.
const WEIGHT_MAX: u32 = 1_000_000;

/// A name that is as near as this to one that is served may be meant by it (Jaro-Winkler).
const NEAR: f64 = 0.85;

/// A strategy's name that nobody knows, or a list that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStrategy {
    pub name: String,
    /// What of it is wrong.
    pub why: String,
}

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "incorrect routing strategy {}: {}", self.name, self.why)
    }
}

/// One way, or several with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways(Vec<(Way, u32)>);

/// A name of AIBrix's: a way, or why it is not served.
type Known = Result<Way, (&'static str, &'static str)>;

fn known(name: &str) -> Result<Known, String> {
    if let Some(way) = Way::parse(name) {
        return Ok(Ok(way));
    }
    if let Some(row) = NOT_SERVED.into_iter().find(|(own, _)| *own == name) {
        return Ok(Err(row));
    }
    if name.is_empty() {
        return Err("a name is missing".to_owned());
    }
    let near = Way::ALL.map(|way| (strsim::jaro_winkler(name, way.as_str()), way.as_str()));
    let near = near.into_iter().filter(|(score, _)| *score >= NEAR).max_by(|a, b| a.0.total_cmp(&b.0));
    let meant = near.map(|(_, near)| format!("; did you mean {near}?"));
    Err(format!("nobody knows {name:?}{}", meant.unwrap_or_default()))
}

fn element(text: &str) -> Result<(Known, u32), String> {
    let (name, weight) = match text.trim().split_once(':') {
        Some((name, weight)) => (name.trim(), Some(weight.trim())),
        None => (text.trim(), None),
    };
    let own = known(name)?;
    let weight = weight.map_or(Some(1), |weight| weight.parse().ok().filter(|n| *n <= WEIGHT_MAX));
    let wrong = || format!("the weight of {name} is no whole number up to {WEIGHT_MAX}");
    Ok((own, weight.ok_or_else(wrong)?))
}

impl Ways {
    /// A name, or a list like `prefix-cache:2,least-request`. A weight of 0 drops its entry, and `pd` tolerates no
    /// other beside it (nor do AIBrix's `slo` strategies: the first such name counts).
    ///
    /// # Errors
    /// An unknown name or one that is not served, an empty element, a weight that is none, or a list of which nothing is
    /// left.
    pub fn parse(text: &str) -> Result<Ways, UnknownStrategy> {
        let wrong = |why: String| UnknownStrategy { name: text.to_owned(), why };
        let mut all = Vec::new();
        for part in text.split(',') {
            all.push(element(part).map_err(wrong)?);
        }
        all.retain(|(_, weight)| *weight > 0);
        let alone = |own: &Known| match own {
            Ok(way) => *way == Way::Pd,
            Err((name, _)) => name.starts_with("slo"),
        };
        if let Some(first) = all.iter().copied().find(|(own, _)| alone(own)) {
            all = vec![first];
        }
        if all.is_empty() {
            return Err(wrong("all its weights are 0".to_owned()));
        }
        let served = |(own, weight): (Known, u32)| own.map(|way| (way, weight));
        let ways = all.into_iter().map(served).collect::<Result<Vec<_>, _>>();
        let not = |(name, why): (&str, &str)| wrong(format!("{name} is not served: {why}"));
        ways.map(Ways).map_err(not)
    }

    pub fn is_pd(&self) -> bool {
        matches!(self.0.as_slice(), [(Way::Pd, _)])
    }

    /// Does any of them go by what workers say of their load?
    pub fn heed_reports(&self) -> bool {
        self.iter().any(|(way, _)| way.heeds_reports())
    }

    /// Is this way among them?
    pub fn has(&self, way: Way) -> bool {
        self.iter().any(|(other, _)| other == way)
    }

    /// Is it this way, and no other beside it?
    pub fn is_only(&self, way: Way) -> bool {
        matches!(self.0.as_slice(), [(only, _)] if *only == way)
    }

    /// The way's name if it is one alone, else `list`: a name from a closed set.
    pub fn label(&self) -> &'static str {
        match self.0.as_slice() {
            [(way, _)] => way.as_str(),
            _ => "list",
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Way, u32)> {
        self.0.iter().copied()
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [(way, _)] = self.0.as_slice() {
            return f.write_str(way.as_str());
        }
        for (i, (way, weight)) in self.0.iter().enumerate() {
            write!(f, "{}{}:{weight}", if i > 0 { "," } else { "" }, way.as_str())?;
        }
        Ok(())
    }
}

/// All who may name a strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Named<'a> {
    /// `lockedRoutingStrategy`.
    pub locked: Option<&'a str>,
    /// The client's `routing-strategy`.
    pub header: Option<&'a str>,
    /// The client's does not count.
    pub authoritative: bool,
    pub profile: Option<&'a str>,
    /// `ROUTING_ALGORITHM`.
    pub everywhere: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// The name that counts. `None`: AIBrix's strategies have no say in this request.
    pub fn word(self) -> Option<&'a str> {
        let header = self.header.filter(|_| !self.authoritative);
        self.locked.or(header).or(self.profile).or(self.everywhere)
    }
}
