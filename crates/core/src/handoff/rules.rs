//! What plans are made by, the same for every request: settings, and what follows from them.

use super::TrtRule;
use crate::fleet::{Connector, Worker};

/// The settings of hand-offs.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// `AIBRIX_KV_CONNECTOR_TYPE`: the connector of vLLM workers that name none. `None`: AIBrix's default for its
    /// pods, none for others.
    pub kv_connector: Option<Connector>,
    pub trt: TrtRule,
}

impl Rules {
    /// The connector of a vLLM worker. What was registered goes before AIBrix's label, that before the setting.
    pub fn connector(&self, worker: &Worker) -> Connector {
        let unnamed = || self.kv_connector.clone().or(worker.pod.as_ref().map(|_| Connector::Shfs));
        worker.connector().or_else(unnamed).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Pod, Role};

    #[test]
    fn j7_a_workers_own_word_comes_first() {
        let worker = |name: Option<&str>, label: Option<&str>, pod: bool| {
            let mut w = Worker::new("w", "http://10.0.0.4:8000", Role::Prefill);
            w.kv_connector = name.map(str::to_owned);
            w.pod = pod.then(|| Pod { name: "p".into(), ip: "10.0.0.4".into() });
            if let Some(label) = label {
                w.labels.insert("model.aibrix.ai/kv-connector-type".into(), label.into());
            }
            w
        };
        let set = Rules { kv_connector: Some(Connector::Neuron), ..Rules::default() };
        let unset = Rules::default();
        for (name, label, pod, by_default, by_setting) in [
            (Some("NixlConnector"), Some("shfs"), true, Connector::Nixl, Connector::Nixl),
            (Some("MultiConnector"), None, true, Connector::Passthrough, Connector::Passthrough),
            (Some("MooncakeStoreConnector"), None, false, Connector::Store, Connector::Store),
            (None, None, false, Connector::Passthrough, Connector::Neuron),
            (None, None, true, Connector::Shfs, Connector::Neuron),
            // J7: empty, nixl, ShFs, one that is none.
            (None, Some(" "), true, Connector::Shfs, Connector::Neuron),
            (None, Some("nixl"), true, Connector::Neuron, Connector::Neuron),
            (None, Some("ShFs"), false, Connector::Shfs, Connector::Shfs),
            (None, Some("MOONCAKE"), true, Connector::Mooncake, Connector::Mooncake),
            (None, Some("invalid"), true, Connector::Shfs, Connector::Neuron),
        ] {
            let w = worker(name, label, pod);
            assert_eq!(
                (unset.connector(&w), set.connector(&w)),
                (by_default, by_setting),
                "{name:?} {label:?}"
            );
        }
    }
}
