//! Where workers are found without being named.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::DiscoveryProvider;

const DISCOVERY: &str = "discovery";

group! {
    /// Discovery of workers.
    "Discovery" discovery: Discovery {
        /// Find workers among Kubernetes pods.
        enabled: bool = false, SWITCH, "service-discovery", NOTE.refused("Kubernetes discovery");
        /// Where workers are found.
        provider: Option<DiscoveryProvider> = None, maybe_one_of("PROVIDER"), "discovery-provider",
            NOTE.refused("discovery of workers");
        /// Namespace to watch; unset: all.
        namespace: Option<String> = None, MAYBE_TEXT, "service-discovery-namespace", NOTE.later(DISCOVERY);
        /// Port of pods that name none.
        port: u16 = 80, PORT, "service-discovery-port", NOTE.later(DISCOVERY);
        /// Labels of pods that run both phases, as key=value.
        selector: Vec<(String, String)> = Vec::new(), PAIRS, "selector", NOTE.later(DISCOVERY);
        /// Labels of prefill pods, as key=value.
        prefill_selector: Vec<(String, String)> = Vec::new(), PAIRS, "prefill-selector", NOTE.later(DISCOVERY);
        /// Labels of decode pods, as key=value.
        decode_selector: Vec<(String, String)> = Vec::new(), PAIRS, "decode-selector", NOTE.later(DISCOVERY);
        /// Labels of encode pods, as key=value.
        encode_selector: Vec<(String, String)> = Vec::new(), PAIRS, "encode-selector", NOTE.later(DISCOVERY);
        /// Annotation that names a pod's KV connector.
        kv_connector_annotation: String = "smg.ai/kv-connector".to_owned(), TEXT, "kv-connector-annotation",
            NOTE.later(DISCOVERY);
        /// Annotation that names a pod's KV engine ids.
        kv_engine_id_annotation: String = "smg.ai/kv-engine-id".to_owned(), TEXT, "kv-engine-id-annotation",
            NOTE.later(DISCOVERY);
        /// Take the model id from the pod: namespace, label:KEY or annotation:KEY.
        model_id_from: Option<String> = None, MAYBE_TEXT, "model-id-from", NOTE.later(DISCOVERY);
        /// JSON file that lists the workers.
        file: Option<PathBuf> = None, MAYBE_PATH, "discovery-file", NOTE.later(DISCOVERY);
        /// Time between two readings of that file; unset: 30.
        check_interval: Option<Duration> = None, MAYBE_SECS, "discovery-check-interval-secs", NOTE.later(DISCOVERY);
    }
}
