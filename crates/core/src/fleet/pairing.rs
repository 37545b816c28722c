//! Who may pair with whom: worked out when workers join or leave, never per request.
//!
//! Rules and their order are SMG's (its page, "Prefill/Decode Pairing", and 1.13's source), after one of
//! AIBrix's that comes first: legs pair only inside their roleset (its page, the label `roleset-name`), and legs
//! without one only with each other. A roleset says where workers stand, not what they speak, so neither
//! [`PairingMode::Off`] nor a shared explicit protocol reaches over its wall. AIBrix ignores a leg without a
//! roleset; SMG knows no rolesets, and pairs all of them: kept apart, both get what they are used to.

use std::fmt;

use super::worker::{Engine, Worker};

/// `--pd-pairing-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PairingMode {
    Off,
    #[default]
    Lenient,
    Strict,
}

/// What is compared of one leg.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Descriptor {
    roleset: Option<String>,
    runtime: Option<Engine>,
    explicit: Option<String>,
    transport: Option<String>,
    layout: [Option<String>; 4],
    version: Option<String>,
}

/// Label of each KV layout fact and its short name in the key.
const LAYOUT: [(&str, &str); 4] = [
    ("kv_cache_dtype", "dtype"),
    ("page_size", "page"),
    ("attention_backend", "attn"),
    ("model_dtype", "model"),
];

/// AIBrix's label of the group inside which legs pair.
const ROLESET: &str = "roleset-name";

impl Descriptor {
    pub fn of(w: &Worker) -> Descriptor {
        let lower = |s: &str| s.to_ascii_lowercase();
        let explicit = w.pairing_protocol.as_deref().map(str::trim).filter(|s| !s.is_empty());
        let explicit = explicit.or_else(|| w.label("pairing_protocol")).map(str::to_owned);
        let layout = LAYOUT.map(|(label, _)| {
            let value =
                w.label(label).or_else(|| if label == "page_size" { w.label("block_size") } else { None });
            value.map(lower)
        });
        Descriptor {
            roleset: w.label(ROLESET).map(str::to_owned),
            runtime: (w.engine != Engine::Unspecified).then_some(w.engine),
            explicit,
            transport: transport(w),
            layout,
            version: w.label("version").map(lower),
        }
    }

    /// The group inside which it pairs.
    pub fn roleset(&self) -> Option<&str> {
        self.roleset.as_deref()
    }

    /// As `GET /workers` shows it in `pd_pairing`: SMG's key, and behind it the roleset.
    pub fn key(&self) -> String {
        match &self.roleset {
            Some(roleset) => format!("{}@{roleset}", self.protocol()),
            None => self.protocol(),
        }
    }

    fn protocol(&self) -> String {
        if let Some(e) = &self.explicit {
            return e.clone();
        }
        let facts: Vec<String> = LAYOUT
            .iter()
            .zip(&self.layout)
            .filter_map(|((_, short), v)| v.as_ref().map(|v| format!("{short}={v}")))
            .collect();
        let layout = if facts.is_empty() { "?".to_owned() } else { facts.join(",") };
        let runtime = self.runtime.unwrap_or_default().as_str();
        format!("{runtime}/{}/{layout}", self.transport.as_deref().unwrap_or("?"))
    }
}

fn transport(w: &Worker) -> Option<String> {
    match w.engine {
        Engine::Vllm => {
            let name = w.kv_connector.as_deref().or_else(|| w.label("kv_connector"))?.to_ascii_lowercase();
            let folded = ["nixl", "mooncake", "moriio"].into_iter().find(|t| name.contains(t));
            Some(match (folded, w.label("moriio_mode")) {
                (Some("moriio"), Some(mode)) => format!("moriio-{}", mode.to_ascii_lowercase()),
                (Some(t), _) if name.contains("store") => format!("{t}-store"),
                (Some(t), _) => t.to_owned(),
                (None, _) => name,
            })
        }
        Engine::Sglang => w.label("disaggregation_transfer_backend").map(str::to_ascii_lowercase),
        Engine::Tokenspeed => {
            Some(w.label("disaggregation_transfer_backend").unwrap_or("mooncake").to_ascii_lowercase())
        }
        _ => None,
    }
}

/// Why two legs do not pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mismatch {
    component: &'static str,
    /// A leg does not say, where it has to.
    unknown: bool,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.unknown { "unknown " } else { "" })?;
        f.write_str(self.component)
    }
}

/// Why two legs do not pair: the first component that differs. `None`: they pair.
pub fn mismatch(mode: PairingMode, a: &Descriptor, b: &Descriptor) -> Option<Mismatch> {
    let differs = |component| Some(Mismatch { component, unknown: false });
    if a.roleset != b.roleset {
        return differs(ROLESET);
    }
    if mode == PairingMode::Off {
        return None;
    }
    let strict = mode == PairingMode::Strict;
    let missing = |component| strict.then_some(Mismatch { component, unknown: true });
    let known = |component, x: Option<&str>, y: Option<&str>, need: bool| match (x, y) {
        (Some(x), Some(y)) if x != y => differs(component),
        (Some(_), Some(_)) => None,
        (None, None) if !need => None,
        _ => missing(component),
    };
    let runtime = |d: &Descriptor| d.runtime.map(Engine::as_str);
    if let m @ Some(_) = known("runtime", runtime(a), runtime(b), true) {
        return m;
    }
    match (&a.explicit, &b.explicit) {
        (Some(x), Some(y)) if x == y => return None,
        (Some(_), Some(_)) => return differs("pairing_protocol"),
        (None, None) => {}
        _ if strict => return missing("pairing_protocol"),
        _ => {}
    }
    if let m @ Some(_) = known("transport", a.transport.as_deref(), b.transport.as_deref(), true) {
        return m;
    }
    for ((label, _), (x, y)) in LAYOUT.iter().zip(a.layout.iter().zip(&b.layout)) {
        if let m @ Some(_) = known(label, x.as_deref(), y.as_deref(), false) {
            return m;
        }
    }
    match (&a.version, &b.version) {
        (Some(x), Some(y)) if strict && x != y => differs("version"),
        _ => None,
    }
}

/// `pd_pairing` of a worker: only prefill and decode workers have one.
pub fn pairing_key(w: &Worker) -> Option<String> {
    w.is_leg().then(|| Descriptor::of(w).key())
}
