//! Which strategy does a request get? AIBrix's names, lists of them with weights, and who has the last word.

use std::fmt;

/// AIBrix's strategies that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Prefill and decode, by the cascade.
    Pd,
    Random,
    LeastRequest,
    PowerOfTwo,
    LeastKvCache,
    Throughput,
    PrefixCache,
    SessionAffinity,
}

impl Way {
    pub const ALL: [Way; 8] = [
        Way::Pd,
        Way::Random,
        Way::LeastRequest,
        Way::PowerOfTwo,
        Way::LeastKvCache,
        Way::Throughput,
        Way::PrefixCache,
        Way::SessionAffinity,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Way::Pd => "pd",
            Way::Random => "random",
            Way::LeastRequest => "least-request",
            Way::PowerOfTwo => "power-of-two",
            Way::LeastKvCache => "least-kv-cache",
            Way::Throughput => "throughput",
            Way::PrefixCache => "prefix-cache",
            Way::SessionAffinity => "session-affinity",
        }
    }

    pub fn parse(name: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|w| w.as_str() == name)
    }
}

/// Heaviest weight of a list.
const WEIGHT_MAX: u32 = 1_000_000;

/// A strategy's name that nobody knows, or a list that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStrategy(pub String);

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "incorrect routing strategy {}", self.0)
    }
}

/// One way, or several with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways(Vec<(Way, u32)>);

impl Ways {
    /// A name, or a list like `prefix-cache:2,least-request`. A weight of 0 drops its entry, and `pd` tolerates no
    /// other beside it.
    ///
    /// # Errors
    /// An unknown name, an empty element, a weight that is none, or a list of which nothing is left.
    pub fn parse(text: &str) -> Result<Ways, UnknownStrategy> {
        let unknown = || UnknownStrategy(text.to_owned());
        let mut ways = Vec::new();
        for element in text.split(',') {
            let (name, weight) = match element.trim().split_once(':') {
                Some((name, weight)) => (name.trim(), weight.trim().parse().map_err(|_| unknown())?),
                None => (element.trim(), 1),
            };
            let way = Way::parse(name).ok_or_else(unknown)?;
            if weight > WEIGHT_MAX {
                return Err(unknown());
            }
            if weight > 0 {
                ways.push((way, weight));
            }
        }
        if let Some(pd) = ways.iter().copied().find(|(way, _)| *way == Way::Pd) {
            ways = vec![pd];
        }
        if ways.is_empty() { Err(unknown()) } else { Ok(Ways(ways)) }
    }

    pub fn is_pd(&self) -> bool {
        matches!(self.0.as_slice(), [(Way::Pd, _)])
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
