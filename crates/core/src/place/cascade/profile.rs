//! The annotation `model.aibrix.ai/config`: what an operator says about routing to a model, by profile.
//!
//! Read once for each description of a worker, never for a request. What cannot be used is left out with a sentence
//! that says so, and the environment's value stands; only an annotation without any profile is none at all.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::knobs::{DecodeScore, Knobs, PrefillScore, ServeMode, UnknownScore};
use crate::time::Duration;

/// No upper bound of a prompt's length.
pub const OPEN: u64 = i64::MAX as u64;

/// Prompt lengths that a worker takes, both bounds included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    pub min: u64,
    pub max: u64,
}

impl Bounds {
    pub const ALL: Bounds = Bounds { min: 0, max: OPEN };

    /// As the annotation gives them: nothing above 0 is no bound.
    pub fn of(min: Option<i64>, max: Option<i64>) -> Bounds {
        let above_zero = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        Bounds { min: above_zero(min).unwrap_or(0), max: above_zero(max).unwrap_or(OPEN) }
    }

    /// Bounds that are the wrong way round take nothing.
    pub fn suit(self, tokens: u64) -> bool {
        self.min <= tokens && tokens <= self.max
    }
}

/// What a profile says of the requests it is meant for, so that `config-profile: auto` can find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    pub prompt_gte: Option<i64>,
    pub prompt_lt: Option<i64>,
    pub max_gte: Option<i64>,
    pub max_lt: Option<i64>,
}

/// What is known of a request that hints speak of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Features {
    pub prompt_tokens: Option<u64>,
    pub max_tokens: Option<u64>,
}

impl Hints {
    fn count(self) -> usize {
        [self.prompt_gte, self.prompt_lt, self.max_gte, self.max_lt].iter().flatten().count()
    }

    /// All of them hold, and there is at least one. What is not known of the request holds nothing.
    fn hold(self, features: Features) -> bool {
        let known = |n: Option<u64>| n.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        let (prompt, max) = (known(features.prompt_tokens), known(features.max_tokens));
        let gte = |hint: Option<i64>, n: Option<i64>| hint.is_none_or(|least| n.is_some_and(|n| n >= least));
        let lt = |hint: Option<i64>, n: Option<i64>| hint.is_none_or(|bound| n.is_some_and(|n| n < bound));
        self.count() > 0
            && gte(self.prompt_gte, prompt)
            && lt(self.prompt_lt, prompt)
            && gte(self.max_gte, max)
            && lt(self.max_lt, max)
    }

    /// The narrower, the smaller: more hints, then tighter ones.
    fn rank(self) -> impl Ord {
        (
            std::cmp::Reverse(self.count()),
            std::cmp::Reverse(self.prompt_gte.unwrap_or(i64::MIN)),
            self.prompt_lt.unwrap_or(i64::MAX),
            std::cmp::Reverse(self.max_gte.unwrap_or(i64::MIN)),
            self.max_lt.unwrap_or(i64::MAX),
        )
    }
}

/// One change that a profile makes to the knobs.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Bucketing(bool),
    BucketServe(bool),
    ServeMode(ServeMode),
    PrefillScore(PrefillScore),
    /// Looked at when a request is routed, because an unknown name fails that.
    DecodeScore(String),
    Deviations(u64),
    Number(Slot<f64>, f64),
    Count(Slot<u64>, u64),
    Time(Slot<Duration>, Duration),
}

/// A knob of this type. Compared by name: two functions have no identity to compare.
#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    name: &'static str,
    of: fn(&mut Knobs) -> &mut T,
}

impl<T> PartialEq for Slot<T> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// What a number must be to be taken.
#[derive(Clone, Copy)]
enum Fit {
    AboveZero,
    UpTo(f64),
}

const NUMBERS: &[(Slot<f64>, Fit)] = &[
    (Slot { name: "decodeLoadImbalanceMinSpread", of: |k| &mut k.decode_spread }, Fit::AboveZero),
    (Slot { name: "decodeThroughputImbalanceMinSpread", of: |k| &mut k.throughput_spread }, Fit::AboveZero),
    (Slot { name: "decodeScoreRatioThreshold", of: |k| &mut k.score_ratio }, Fit::AboveZero),
    (Slot { name: "decodeLBWeightRunning", of: |k| &mut k.weight_running }, Fit::AboveZero),
    (Slot { name: "decodeLBWeightThroughput", of: |k| &mut k.weight_throughput }, Fit::AboveZero),
    (Slot { name: "tokenLoadKVWeight", of: |k| &mut k.kv_weight }, Fit::AboveZero),
    (Slot { name: "hybridCacheLoadFactor", of: |k| &mut k.hybrid_factor }, Fit::UpTo(1.0)),
    (Slot { name: "minMatchPct", of: |k| &mut k.min_match_pct }, Fit::UpTo(100.0)),
];

/// The same of the strategies for one worker, by the object that they stand in.
const OF_ONE: &[(&str, Slot<f64>, Fit)] = &[
    ("loadBalance", Slot { name: "imbalanceFactor", of: |k| &mut k.whole.uneven_factor }, Fit::AboveZero),
    ("loadBalance", Slot { name: "queuedWeight", of: |k| &mut k.whole.queued_weight }, Fit::UpTo(f64::MAX)),
    ("loadBalance", Slot { name: "kvPressureAlpha", of: |k| &mut k.whole.kv_alpha }, Fit::UpTo(f64::MAX)),
    ("loadBalance", Slot { name: "kvCriticalFree", of: |k| &mut k.whole.kv_critical_free }, Fit::UpTo(1.0)),
    ("vtc", Slot { name: "maxPodLoad", of: |k| &mut k.whole.vtc.max_load }, Fit::AboveZero),
    ("vtc", Slot { name: "fairnessWeight", of: |k| &mut k.whole.vtc.fairness_weight }, Fit::UpTo(f64::MAX)),
    (
        "vtc",
        Slot { name: "utilizationWeight", of: |k| &mut k.whole.vtc.utilization_weight },
        Fit::UpTo(f64::MAX),
    ),
    ("vtc", Slot { name: "inputTokenWeight", of: |k| &mut k.whole.vtc.input_weight }, Fit::UpTo(f64::MAX)),
    ("vtc", Slot { name: "outputTokenWeight", of: |k| &mut k.whole.vtc.output_weight }, Fit::UpTo(f64::MAX)),
];

/// What users have used is remembered once, whatever a profile says.
const OF_ALL: [&str; 4] =
    ["tokenTrackerWindowSize", "tokenTrackerTimeUnit", "tokenTrackerMinTokens", "tokenTrackerMaxTokens"];

/// What AIBrix takes beside `routingConfig` and is not done here, and why.
const OF_NOBODY: [(&str, &str); 4] = [
    ("requestsPerSecond", NO_CAPS),
    ("requestsPerSecondPerReplica", NO_CAPS),
    ("requestsInflight", NO_CAPS),
    ("ttftThresholdS", "smg_pd_ttft_seconds tells how long clients waited"),
];
const NO_CAPS: &str =
    "requests are bounded by --max-concurrent-requests and by windows of workers, not by model";

/// Whole numbers above 0.
const COUNTS: &[Slot<u64>] = &[
    Slot { name: "prefillLoadImbalanceMinSpread", of: |k| &mut k.prefill_spread },
    Slot { name: "tokenLoadRequestCost", of: |k| &mut k.request_cost },
];

/// Whole seconds, and the least that is taken.
const TIMES: &[(Slot<Duration>, u64)] = &[
    (Slot { name: "prefillRequestTimeout", of: |k| &mut k.prefill_timeout }, 1),
    (Slot { name: "tokenLoadTTLSeconds", of: |k| &mut k.charge_ttl }, 0),
    (Slot { name: "tokenLoadSessionTTLSeconds", of: |k| &mut k.session_ttl }, 0),
    (Slot { name: "decodeAbortTimeout", of: |k| &mut k.abort_timeout }, 0),
    (Slot { name: "decodeAbortRetryDelay", of: |k| &mut k.abort_retry_delay }, 0),
    (Slot { name: "decodeFirstResponseTimeout", of: |k| &mut k.first_response_timeout }, 0),
    (Slot { name: "decodeResponseTimeout", of: |k| &mut k.response_timeout }, 0),
    (Slot { name: "decodeStreamIdleTimeout", of: |k| &mut k.stream_idle_timeout }, 0),
];

/// What one profile says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    pub strategy: Option<String>,
    pub hints: Hints,
    pub min_length: Option<i64>,
    pub max_length: Option<i64>,
    /// The worker runs both phases and takes part in the cascade.
    pub combined: bool,
    changes: Vec<Change>,
}

impl Profile {
    pub fn bounds(&self) -> Bounds {
        Bounds::of(self.min_length, self.max_length)
    }

    /// Does it say anything about the knobs?
    pub(super) fn changes(&self) -> bool {
        !self.changes.is_empty()
    }

    pub(super) fn apply(&self, knobs: &mut Knobs) -> Result<(), UnknownScore> {
        for change in &self.changes {
            match change {
                Change::Bucketing(on) => knobs.bucketing = *on,
                Change::BucketServe(on) => knobs.bucket_serve = *on,
                Change::ServeMode(mode) => knobs.serve_mode = *mode,
                Change::PrefillScore(score) => knobs.prefill_score = *score,
                Change::DecodeScore(name) => {
                    knobs.decode_score =
                        DecodeScore::parse(name).ok_or_else(|| UnknownScore(name.clone()))?;
                }
                Change::Deviations(n) => knobs.deviations = *n,
                Change::Number(slot, x) => *(slot.of)(knobs) = *x,
                Change::Count(slot, n) => *(slot.of)(knobs) = *n,
                Change::Time(slot, d) => *(slot.of)(knobs) = *d,
            }
        }
        Ok(())
    }

    fn read(name: &str, value: &Value, unused: &mut Vec<String>) -> Profile {
        let mut profile = Profile::default();
        let mut found = Found { profile: name, changes: Vec::new(), unused };
        let Some(value) = value.as_object() else {
            found.drop("all", "it is no object");
            return profile;
        };
        let strategy = found.typed(value, "routingStrategy", |v| v.as_str().map(str::to_owned));
        profile.strategy = strategy.filter(|s| !s.is_empty());
        // 0 is AIBrix's word for no bound.
        let asks = |key: &str| value.get(key).is_some_and(|v| !v.is_null() && v.as_f64() != Some(0.0));
        for (key, why) in OF_NOBODY.into_iter().filter(|(key, _)| asks(key)) {
            found.drop(key, why);
        }
        let Some(config) = found.object(value, "routingConfig") else { return profile };
        let mut int = |key| found.typed(config, key, Value::as_i64);
        profile.hints = Hints {
            prompt_gte: int("promptTokensGte"),
            prompt_lt: int("promptTokensLt"),
            max_gte: int("maxTokensGte"),
            max_lt: int("maxTokensLt"),
        };
        profile.min_length = int("promptLenBucketMinLength");
        profile.max_length = int("promptLenBucketMaxLength");
        profile.combined = found.typed(config, "combined", Value::as_bool).unwrap_or_default();
        found.words(config);
        found.of_one(config);
        if let Some(pd) = found.object(config, "pd") {
            found.numbers(pd);
        }
        profile.changes = found.changes;
        profile
    }
}

/// Where what is read of one profile goes.
struct Found<'a> {
    profile: &'a str,
    changes: Vec<Change>,
    unused: &'a mut Vec<String>,
}

impl Found<'_> {
    fn drop(&mut self, key: &str, why: &str) {
        complain(self.unused, format!("{key} of profile {:?} is left out: {why}", self.profile));
    }

    /// A value of the type that this member has. `None`: it is not there, or of another.
    fn typed<T>(
        &mut self,
        config: &Map<String, Value>,
        key: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = config.get(key).filter(|v| !v.is_null())?;
        let found = read(value);
        if found.is_none() {
            self.drop(key, &cannot_be_used(value));
        }
        found
    }

    fn object<'v>(&mut self, config: &'v Map<String, Value>, key: &str) -> Option<&'v Map<String, Value>> {
        let value = config.get(key).filter(|v| !v.is_null())?;
        if !value.is_object() {
            self.drop(key, "it is no object");
        }
        value.as_object()
    }

    fn one(&mut self, config: &Map<String, Value>, key: &str, read: impl Fn(&Value) -> Option<Change>) {
        let change = self.typed(config, key, read);
        self.changes.extend(change);
    }

    fn words(&mut self, config: &Map<String, Value>) {
        self.one(config, "promptLengthBucketing", |v| v.as_bool().map(Change::Bucketing));
        self.one(config, "bucketServe", |v| v.as_bool().map(Change::BucketServe));
        self.one(config, "bucketServeMode", |v| ServeMode::parse(v.as_str()?).map(Change::ServeMode));
        if config.get("prefillScorePolicy").is_none_or(|v| v != "") {
            self.one(config, "prefillScorePolicy", |v| {
                PrefillScore::parse(v.as_str()?).map(Change::PrefillScore)
            });
        }
        if config.get("decodeScorePolicy").is_none_or(|v| v != "") {
            self.one(config, "decodeScorePolicy", |v| Some(Change::DecodeScore(v.as_str()?.to_owned())));
        }
        if let Some(cache) = self.object(config, "prefixCache") {
            self.one(cache, "standardDeviationFactor", |v| {
                v.as_u64().filter(|n| *n > 0).map(Change::Deviations)
            });
        }
    }

    fn of_one(&mut self, config: &Map<String, Value>) {
        let balance = self.object(config, "loadBalance");
        let vtc = self.object(config, "vtc");
        for (object, slot, fit) in OF_ONE {
            let object = if *object == "vtc" { vtc } else { balance };
            if let Some(object) = object {
                self.number(object, *slot, *fit);
            }
        }
        if let Some(balance) = balance {
            let gap = Slot { name: "imbalanceMinGap", of: |k| &mut k.whole.uneven_gap };
            self.one(balance, gap.name, |v| v.as_u64().filter(|n| *n > 0).map(|n| Change::Count(gap, n)));
        }
        for key in OF_ALL {
            if vtc.is_some_and(|vtc| vtc.contains_key(key)) {
                self.drop(key, "what users have used is remembered once for all profiles");
            }
        }
    }

    fn number(&mut self, object: &Map<String, Value>, slot: Slot<f64>, fit: Fit) {
        let fits = |x: &f64| match fit {
            Fit::AboveZero => x.is_finite() && *x > 0.0,
            Fit::UpTo(most) => (0.0..=most).contains(x),
        };
        self.one(object, slot.name, |v| v.as_f64().filter(fits).map(|x| Change::Number(slot, x)));
    }

    fn numbers(&mut self, pd: &Map<String, Value>) {
        for (slot, fit) in NUMBERS {
            self.number(pd, *slot, *fit);
        }
        for slot in COUNTS {
            self.one(pd, slot.name, |v| v.as_u64().filter(|n| *n > 0).map(|n| Change::Count(*slot, n)));
        }
        for (slot, least) in TIMES {
            self.one(pd, slot.name, |v| {
                let seconds = v.as_u64().filter(|n| n >= least)?;
                Some(Change::Time(*slot, Duration::from_secs(seconds)))
            });
        }
    }
}

/// Sentences about one annotation that are kept.
const COMPLAINTS_MAX: usize = 16;

/// Of a value that cannot be used, so much is quoted.
const QUOTED_CHARS: usize = 64;

fn complain(unused: &mut Vec<String>, sentence: String) {
    if unused.len() < COMPLAINTS_MAX {
        unused.push(sentence);
    }
}

fn cannot_be_used(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{}… cannot be used", &text[..end]),
        None => format!("{text} cannot be used"),
    }
}

/// What of the annotation in this text is left out and why, one sentence each.
pub fn complaints(text: &str) -> Vec<String> {
    match ModelConfig::parse(text) {
        Some(config) => config.unused,
        None => vec!["it is no JSON object with a profile, and all of it is left out".to_owned()],
    }
}

/// The whole annotation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelConfig {
    /// No request gets another strategy than this.
    pub locked: Option<String>,
    /// What clients say about routing does not count.
    pub authoritative: bool,
    default: String,
    profiles: BTreeMap<String, Profile>,
    /// What was left out and why, one sentence each.
    pub unused: Vec<String>,
}

/// A member of the annotation itself.
fn member<'v, T>(
    root: &'v Map<String, Value>,
    key: &str,
    read: impl Fn(&'v Value) -> Option<T>,
    unused: &mut Vec<String>,
) -> Option<T> {
    let value = root.get(key).filter(|v| !v.is_null())?;
    let found = read(value);
    if found.is_none() {
        complain(unused, format!("{key} is left out: {}", cannot_be_used(value)));
    }
    found
}

impl ModelConfig {
    /// `None` if it is no JSON object with at least one profile.
    pub fn parse(text: &str) -> Option<ModelConfig> {
        let root: Map<String, Value> = serde_json::from_str(text).ok()?;
        let profiles = root.get("profiles")?.as_object().filter(|p| !p.is_empty())?;
        let mut unused = Vec::new();
        let locked = member(&root, "lockedRoutingStrategy", Value::as_str, &mut unused);
        let default = member(&root, "defaultProfile", Value::as_str, &mut unused);
        let authoritative = member(&root, "authoritativeRoutingPolicy", Value::as_bool, &mut unused);
        let profiles = profiles.iter().map(|(name, value)| {
            let profile = Profile::read(name, value, &mut unused);
            (name.clone(), profile)
        });
        let profiles = profiles.collect();
        Some(ModelConfig {
            locked: locked.filter(|s| !s.is_empty()).map(str::to_owned),
            authoritative: authoritative.unwrap_or_default(),
            default: default.filter(|s| !s.is_empty()).unwrap_or("default").to_owned(),
            profiles,
            unused,
        })
    }

    /// The profile of this name, else the default one, with its name. `None`: there is neither.
    pub fn profile(&self, wanted: Option<&str>) -> Option<(&str, &Profile)> {
        let named = |name: &str| self.profiles.get_key_value(name).map(|(n, p)| (n.as_str(), p));
        wanted.and_then(named).or_else(|| named(&self.default))
    }

    /// The name of the profile that `config-profile: auto` means for this request; `None`: the default one.
    pub fn auto(&self, features: Features) -> Option<&str> {
        let fit = self.profiles.iter().filter(|(_, p)| p.hints.hold(features));
        fit.min_by(|(a, p), (b, q)| p.hints.rank().cmp(&q.hints.rank()).then_with(|| a.cmp(b)))
            .map(|(name, _)| name.as_str())
    }
}

/// Does the header ask for the profile that fits?
pub fn is_auto(header: &str) -> bool {
    header.trim().eq_ignore_ascii_case("auto")
}
