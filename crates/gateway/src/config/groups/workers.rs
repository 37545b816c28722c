//! The workers that are known at start, and how workers are admitted and paired.

use std::time::Duration;

use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::{EncodePolicy, Leg, PairingMode, WorkerUrl};

const EPD: &str = "a separate encode leg";

group! {
    /// Workers. The lists may be empty: workers can be added with POST /workers.
    "Workers" workers: Workers {
        /// Serve each request from a prefill worker and a decode worker.
        pd_disaggregation: bool = false, SWITCH, "pd-disaggregation";
        /// Prefill worker, and the port of its bootstrap server or `none`. Repeat for each.
        prefill: Vec<Leg> = Vec::new(), LEGS, "prefill";
        /// Decode worker. Repeat for each.
        decode: Vec<WorkerUrl> = Vec::new(), URLS, "decode";
        /// Workers that run both phases.
        worker_urls: Vec<WorkerUrl> = Vec::new(), URLS, "worker-urls";
        /// Take workers of every role and model (always so in Baton; accepted for SMG's sake).
        enable_igw: bool = false, SWITCH, "enable-igw";
        /// How strictly two legs must share a KV transfer protocol.
        pairing_mode: PairingMode = PairingMode::Lenient, one_of("MODE"), "pd-pairing-mode";
        /// Send one tiny request through a pair before it serves, to see that KV moves.
        preflight: bool = true, SWITCH, "pd-preflight";
        /// Longest time a worker waits for that before it serves all the same; 0 holds nobody back.
        preflight_hold: Duration = Duration::from_secs(30), SECS_OR_ZERO, "pd-preflight-hold-secs";
        /// Extra name for a served model, as alias=model. Repeat for each.
        model_alias: Vec<(String, String)> = Vec::new(), PAIRS, "model-alias",
            NOTE.later("model aliases");
        /// One worker for each data-parallel rank.
        dp_aware: bool = false, SWITCH, "dp-aware";
        /// Of the ranks of the chosen engine take the one with the fewest tokens in flight (with --dp-aware).
        dp_minimum_tokens_scheduler: bool = false, SWITCH, "dp-minimum-tokens-scheduler";
        /// Speak HTTP/2 to workers that can.
        upstream_http2: bool = false, SWITCH, "upstream-http2",
            NOTE.later("HTTP/2 to workers: until then HTTP/1.1 is spoken");
        /// Longest time a new worker may take to answer its first probe.
        startup_timeout: Duration = Duration::from_secs(1800), SECS, "worker-startup-timeout-secs";
        /// Time before a new worker's first probe.
        startup_delay: Duration = Duration::ZERO, SECS_OR_ZERO, "worker-startup-delay";
        /// Time between two probes of a new worker.
        startup_check_interval: Duration = Duration::from_secs(30), SECS, "worker-startup-check-interval";
        /// Time a worker that is being removed may finish its requests; 0 removes it at once.
        drain_settle: Duration = Duration::from_secs(5), SECS_OR_ZERO, "drain-settle-secs";
        /// Serve each request from an encode, a prefill and a decode worker.
        epd_disaggregation: bool = false, SWITCH, "epd-disaggregation", NOTE.refused(EPD);
        /// Encode worker, and the port of its bootstrap server or `none`.
        encode: Vec<Leg> = Vec::new(), LEGS, "encode", NOTE.refused(EPD);
        /// Policy of the encode leg.
        encode_policy: Option<EncodePolicy> = None, maybe_one_of("POLICY"), "encode-policy", NOTE.refused(EPD);
    }
}
