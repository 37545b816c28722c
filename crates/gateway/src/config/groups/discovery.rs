//! Where workers are found without being named.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::{DiscoveryProvider, ModelIdFrom};

group! {
    /// Discovery of workers. Selectors and annotations are about pods, in a file or in a cluster.
    "Discovery" discovery: Discovery {
        /// Find workers among Kubernetes pods.
        enabled: bool = false, SWITCH, "service-discovery", NOTE.refused("Kubernetes discovery");
        /// Where workers are found; unset: in --discovery-file, if that is given.
        provider: Option<DiscoveryProvider> = None, maybe_one_of("PROVIDER"), "discovery-provider";
        /// Only pods of this namespace; unset: of all.
        namespace: Option<String> = None, MAYBE_TEXT, "service-discovery-namespace";
        /// Port of pods that name none and are none of AIBrix's, whose port is 8000.
        port: u16 = 80, PORT, "service-discovery-port";
        /// Labels of pods that run both phases, as key=value.
        selector: Vec<(String, String)> = Vec::new(), PAIRS, "selector";
        /// Labels of prefill pods, as key=value.
        prefill_selector: Vec<(String, String)> = Vec::new(), PAIRS, "prefill-selector";
        /// Labels of decode pods, as key=value.
        decode_selector: Vec<(String, String)> = Vec::new(), PAIRS, "decode-selector";
        /// Labels of encode pods, as key=value. Such pods are passed over.
        encode_selector: Vec<(String, String)> = Vec::new(), PAIRS, "encode-selector";
        /// Annotation that names a pod's KV connector.
        kv_connector_annotation: String = "smg.ai/kv-connector".to_owned(), TEXT, "kv-connector-annotation";
        /// Annotation that names a pod's KV engine ids.
        kv_engine_id_annotation: String = "smg.ai/kv-engine-id".to_owned(), TEXT, "kv-engine-id-annotation";
        /// Take the model id from the pod: namespace, label:KEY or annotation:KEY.
        model_id_from: Option<ModelIdFrom> = None, MAYBE_MODEL_ID_FROM, "model-id-from";
        /// File that lists the workers, in JSON or YAML (docs/discovery.md).
        file: Option<PathBuf> = None, MAYBE_PATH, "discovery-file";
        /// Longest time between two readings of that file, which is read at once when it changes; unset: 30.
        check_interval: Option<Duration> = None, MAYBE_SECS, "discovery-check-interval-secs";
    }
}

impl Discovery {
    /// Where workers are found, if anywhere.
    pub fn from(&self) -> Option<DiscoveryProvider> {
        let kubernetes = self.enabled.then_some(DiscoveryProvider::Kubernetes);
        let file = self.file.as_ref().map(|_| DiscoveryProvider::File);
        self.provider.or(kubernetes).or(file)
    }
}
