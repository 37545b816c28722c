//! What the gateway tells about itself.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::LogLevel;

group! {
    /// The metrics listener.
    "Metrics" metrics: Metrics {
        /// Port that /metrics is served on.
        port: u16 = 29000, PORT, "prometheus-port";
        /// Address that /metrics is served on; unset: every address of --host's family.
        host: Option<IpAddr> = None, MAYBE_ADDRESS, "prometheus-host";
        /// Bucket bounds of duration histograms, rising; unset: Baton's own.
        duration_buckets_secs: Vec<f64> = Vec::new(), BUCKETS, "prometheus-duration-buckets";
    }
}

group! {
    /// What is logged, and where to.
    "Logging" log: Log {
        /// Least severity that is logged.
        level: LogLevel = LogLevel::Info, one_of("LEVEL"), "log-level";
        /// Filter in the form of RUST_LOG; wins over --log-level.
        filter: Option<String> = None, MAYBE_TEXT, "log-filter", NOTE.env("RUST_LOG");
        /// One JSON object for each line.
        json: bool = false, SWITCH, "log-json";
        /// Directory for log files; unset: standard output only.
        dir: Option<PathBuf> = None, MAYBE_PATH, "log-dir";
    }
}

group! {
    /// Spans for a collector.
    "Tracing" trace: Trace {
        /// Send spans.
        enabled: bool = false, SWITCH, "enable-trace", NOTE.later("OpenTelemetry export");
        /// Collector that they are sent to, host:port.
        otlp_endpoint: String = "localhost:4317".to_owned(), TEXT, "otlp-traces-endpoint",
            NOTE.later("OpenTelemetry export");
    }
}
