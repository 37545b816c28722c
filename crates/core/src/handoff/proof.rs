//! How does a pair show that KV moved?
//!
//! A decode that was handed no KV answers all the same, on most engines: it computes the prompt itself, and the answer
//! is right. What tells the two apart is the engine's, and stands here:
//! - vLLM counts prompt tokens by where their KV came from, whatever the connector (0.32; seen on a real pair), and
//!   NIXL counts the bytes it moved. `external_prefix_cache_hits_total` is no proof: it counts loads that failed too.
//! - An SGLang decode has no way to compute a prompt, so its answer is proof enough, if it says of itself that it is
//!   one: registered as a decode, a plain SGLang server answers too.
//! - TensorRT-LLM shows nothing that could be counted on.

use super::Rules;
use crate::fleet::{Connector, Engine, Worker};

/// How a pair shows that KV moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The decode counts what it was handed.
    Counted {
        /// The connector moves the KV of every prompt, and at once. One that keeps a store may do so later, or for
        /// longer prompts only.
        promised: bool,
    },
    /// The decode cannot answer without.
    Answer,
    /// Nothing shows it: an answer says that the pair answers.
    Unseen,
}

/// How these two show it. `None`: nobody knows how they hand over, or that they do.
pub fn proof(prefill: &Worker, decode: &Worker, rules: &Rules) -> Option<Proof> {
    match (prefill.engine, decode.engine) {
        (Engine::Vllm, Engine::Vllm) => {
            let promised = match rules.connector(prefill) {
                Connector::Store => false,
                Connector::Passthrough => prefill.kv_connector.is_none(),
                _ => true,
            };
            Some(Proof::Counted { promised })
        }
        (Engine::Sglang, Engine::Sglang) => {
            let mode = |worker: &Worker, mode| worker.label("disaggregation_mode") == Some(mode);
            let said = mode(prefill, "prefill") && mode(decode, "decode");
            Some(if said { Proof::Answer } else { Proof::Unseen })
        }
        (Engine::Trtllm, Engine::Trtllm) => Some(Proof::Unseen),
        _ => None,
    }
}

/// What a decode has counted of the KV it was handed, as its `/metrics` tells; what is not told is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvCount {
    /// Prompt tokens, over all ranks.
    tokens: Option<f64>,
    bytes: Option<f64>,
}

/// What two counts, before and after a request, say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Moved,
    Still,
    /// The counters fell: the engine began anew in between.
    Restarted,
}

/// Its samples have a label `source` for where the KV came from.
const TOKENS: &str = "vllm:prompt_tokens_by_source_total";
const TRANSFERRED: &str = "source=\"external_kv_transfer\"";
const BYTES: &str = "vllm:nixl_bytes_transferred_sum";

impl KvCount {
    /// Reads Prometheus' text format. `None`: the engine does not count such a thing.
    pub fn read(page: &str) -> Option<KvCount> {
        let mut count = KvCount::default();
        for line in page.lines() {
            if line.starts_with(TOKENS) && line.contains(TRANSFERRED) {
                add(&mut count.tokens, line);
            } else if line.starts_with(BYTES) {
                add(&mut count.bytes, line);
            }
        }
        (count != KvCount::default()).then_some(count)
    }

    /// What happened from `before` to this. Bytes count only where tokens are not told: they are written down later,
    /// and may be those of an earlier request.
    pub fn since(&self, before: &KvCount) -> Seen {
        let bytes = || before.bytes.zip(self.bytes);
        match before.tokens.zip(self.tokens).or_else(bytes) {
            Some((before, after)) if after < before => Seen::Restarted,
            Some((before, after)) if after > before => Seen::Moved,
            _ => Seen::Still,
        }
    }
}

/// Adds a sample's value: the last word of its line, as the engines write no time stamps.
fn add(sum: &mut Option<f64>, line: &str) {
    let value = line.rsplit(' ').next().and_then(|word| word.parse::<f64>().ok()).filter(|x| x.is_finite());
    if let Some(value) = value {
        *sum = Some(sum.unwrap_or(0.0) + value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Role;

    /// From a real vLLM 0.32.0's page, two ranks.
    const PAGE: &str = "# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"tiny\",source=\"local_compute\"} 1134.0
vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"tiny\",source=\"external_kv_transfer\"} 1113.0
vllm:prompt_tokens_by_source_total{engine=\"1\",model_name=\"tiny\",source=\"external_kv_transfer\"} 7.0
vllm:prompt_tokens_by_source_created{engine=\"0\",source=\"external_kv_transfer\"} 1.79e+09
vllm:external_prefix_cache_hits_total{engine=\"0\",model_name=\"tiny\"} 5000.0
vllm:nixl_bytes_transferred_sum{engine=\"0\",model_name=\"tiny\"} 1.179648e+06
";

    #[test]
    fn counts_what_came_from_outside_over_all_ranks() {
        let count = KvCount::read(PAGE).unwrap();
        assert_eq!(count, KvCount { tokens: Some(1120.0), bytes: Some(1_179_648.0) });
        for page in ["", "vllm:num_requests_running{} 1.0\n", "vllm:nixl_bytes_transferred_sum{} NaN\n"] {
            assert_eq!(KvCount::read(page), None, "{page}");
        }
    }

    #[test]
    fn tokens_show_it_and_bytes_where_there_are_none() {
        let count = |tokens, bytes| KvCount { tokens, bytes };
        let before = count(Some(5.0), Some(100.0));
        for (after, seen) in [
            (count(Some(5.0), Some(100.0)), Seen::Still),
            (count(Some(9.0), Some(100.0)), Seen::Moved),
            (count(Some(5.0), Some(101.0)), Seen::Still),
            (count(None, Some(101.0)), Seen::Moved),
            (count(None, Some(1.0)), Seen::Restarted),
            (count(Some(9.0), None), Seen::Moved),
            (count(Some(0.0), Some(200.0)), Seen::Restarted),
            (count(None, None), Seen::Still),
        ] {
            assert_eq!(after.since(&before), seen, "{after:?}");
        }
    }

    #[test]
    fn what_shows_it_is_the_engines() {
        let worker = |role, engine, connector: Option<&str>, mode: Option<&str>| {
            let mut w = Worker::new("w", "http://h:1", role);
            (w.engine, w.kv_connector) = (engine, connector.map(str::to_owned));
            if let Some(mode) = mode {
                w.labels.insert("disaggregation_mode".into(), mode.into());
            }
            w
        };
        let of = |engine, connector, modes: [Option<&str>; 2]| {
            let prefill = worker(Role::Prefill, engine, connector, modes[0]);
            let decode = worker(Role::Decode, engine, connector, modes[1]);
            proof(&prefill, &decode, &Rules::default())
        };
        let counted = |promised| Some(Proof::Counted { promised });
        let none = [None, None];
        for (connector, promised) in [
            (Some("NixlConnector"), true),
            (Some("MooncakeConnector"), true),
            (Some("MoRIIOConnector"), true),
            (Some("MooncakeStoreConnector"), false),
            (Some("LMCacheConnectorV1"), false),
            // Nobody said how the KV is to move: that it does not is worth knowing.
            (None, true),
        ] {
            assert_eq!(of(Engine::Vllm, connector, none), counted(promised), "{connector:?}");
        }
        assert_eq!(of(Engine::Sglang, None, [Some("prefill"), Some("decode")]), Some(Proof::Answer));
        assert_eq!(of(Engine::Sglang, None, [Some("prefill"), None]), Some(Proof::Unseen));
        assert_eq!(of(Engine::Sglang, None, none), Some(Proof::Unseen));
        assert_eq!(of(Engine::Trtllm, None, none), Some(Proof::Unseen));
        for engine in [Engine::Generic, Engine::Unspecified, Engine::Tokenspeed] {
            assert_eq!(of(engine, None, none), None, "{engine:?}");
        }
        let (vllm, sglang) = (
            worker(Role::Prefill, Engine::Vllm, None, None),
            worker(Role::Decode, Engine::Sglang, None, None),
        );
        assert_eq!(proof(&vllm, &sglang, &Rules::default()), None);
    }
}
