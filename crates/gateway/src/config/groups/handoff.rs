//! How prefill and decode are introduced, where neither the worker nor its engine says.

use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::{KvConnectorType, TrtScheduleStyle};

group! {
    /// How prefill and decode are introduced, where neither the worker nor its engine says.
    "Hand-offs" handoff: Handoff {
        /// Connector, in AIBrix's words, of vLLM workers that name none; unset: shfs for AIBrix's pods, none for others.
        kv_connector_type: Option<KvConnectorType> = None, maybe_one_of("TYPE"), "kv-connector-type",
            NOTE.env("AIBRIX_KV_CONNECTOR_TYPE").lenient();
        /// How TensorRT-LLM pairs run: the context leg first, or both at once.
        trt_schedule_style: TrtScheduleStyle = TrtScheduleStyle::ContextFirst, one_of("STYLE"), "trt-schedule-style",
            NOTE.env("AIBRIX_TRT_SCHEDULE_STYLE").lenient();
        /// Tells this gateway's hand-off ids from those of other gateways that share its TensorRT-LLM workers, 0 to 1023.
        trt_machine_id: u16 = 0, MACHINE_ID, "trt-machine-id", NOTE.env("AIBRIX_TRT_MACHINE_ID");
    }
}
