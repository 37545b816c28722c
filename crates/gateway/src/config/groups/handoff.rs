//! How prefill and decode are introduced, where neither the worker nor its engine says.

use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::KvConnectorType;

group! {
    /// How prefill and decode are introduced, where neither the worker nor its engine says.
    "Hand-offs" handoff: Handoff {
        /// Connector, in AIBrix's words, of vLLM workers that name none; unset: shfs for AIBrix's pods, none for others.
        kv_connector_type: Option<KvConnectorType> = None, maybe_one_of("TYPE"), "kv-connector-type",
            NOTE.env("AIBRIX_KV_CONNECTOR_TYPE").lenient();
    }
}
