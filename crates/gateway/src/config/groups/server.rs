//! What faces the clients: listeners, sizes, times, browsers, keys.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

use super::at_least_one;
use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::{CorsOrigins, Secret};

group! {
    /// Where clients are served.
    "Server" server: Server {
        /// Address to listen on: an IP, IPv6 with or without brackets.
        host: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED), ADDRESS, "host";
        /// Port to listen on.
        port: u16 = 30000, PORT, "port";
        /// Extra plain listener with /liveness, /readiness and /health only.
        health_check_port: Option<u16> = None, MAYBE_PORT, "health-check-port";
        /// Threads that serve requests; unset: one for each core.
        worker_threads: Option<NonZeroUsize> = None, MAYBE_POSITIVE, "runtime-worker-threads";
        /// Headers searched for a request id, the first present wins.
        request_id_headers: Vec<HeaderName> = vec![
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("x-correlation-id"),
            HeaderName::from_static("x-trace-id"),
            HeaderName::from_static("request-id"),
        ], HEADERS, "request-id-headers";
        /// Serve the debug endpoints.
        debug_endpoints: bool = false, SWITCH, "debug-endpoints";
        /// Last requests of each serving thread that are kept, with why their workers were chosen, for GET /debug/requests; 0 keeps none.
        debug_requests: usize = 0, at_most::<10_000>(), "debug-requests";
        /// Answer the header `x-baton-explain: 1` with why these workers were chosen.
        explain_header: bool = false, SWITCH, "explain-header";
    }
}

group! {
    /// Most of everything that can be counted. Times are in `timeouts`, requests at once in `admission`.
    "Limits" limits: Limits {
        /// Client connections open at once.
        max_connections: NonZeroUsize = at_least_one(65_536), POSITIVE, "max-connections";
        /// Largest request body; beyond it 413.
        max_payload_bytes: NonZeroUsize = at_least_one(512 << 20), BYTES, "max-payload-size";
        /// Largest request body kept for a retry where the body need not be read.
        max_buffered_request_bytes: usize = 1 << 20, BYTES_OR_ZERO, "max-buffered-request-bytes",
            NOTE.later("streaming request bodies: today every body is buffered, up to --max-payload-size");
        /// Largest prefill answer that is held to derive the decode leg from it.
        max_buffered_prefill_answer_bytes: NonZeroUsize = at_least_one(64 << 20), BYTES, "max-buffered-prefill-answer-bytes";
        /// Legs that may live on without their request (drained or released in the background).
        max_detached_legs: NonZeroUsize = at_least_one(4096), POSITIVE, "max-detached-legs";
        /// Idle connections kept to each worker.
        upstream_max_idle_per_worker: usize = 500, COUNT, "upstream-max-idle-per-worker";
        /// Worker changes waiting to be carried out.
        job_queue_capacity: NonZeroUsize = at_least_one(1000), bounded::<1_000_000>(), "job-queue-capacity";
        /// Worker changes carried out at once.
        job_queue_concurrency: NonZeroUsize = at_least_one(200), bounded::<100_000>(), "job-queue-concurrency";
    }
}

group! {
    /// Longest time of everything that can wait.
    "Timeouts" timeouts: Timeouts {
        /// Longest time of one request's upstream work, from dispatch to the last byte.
        request: Duration = Duration::from_secs(1800), SECS, "request-timeout-secs";
        /// Longest time to connect to a worker.
        connect: Duration = Duration::from_secs(10), SECS, "connect-timeout-secs";
        /// Longest time a client may take for a request head; 0 waits forever.
        header_read: Option<Duration> = Some(Duration::from_secs(30)), SECS_OR_OFF, "header-read-timeout-secs";
        /// Longest silence within a request body, then 408; 0 waits forever.
        body_stall: Option<Duration> = Some(Duration::from_secs(300)), SECS_OR_OFF, "stream-body-stall-timeout-secs";
        /// Longest time a client connection may be idle; 0 keeps it.
        idle_connection: Option<Duration> = Some(Duration::from_secs(90)), SECS_OR_OFF, "idle-connection-timeout-secs";
        /// Longest time a connection to a worker may be idle (engines close at 5); 0 keeps it.
        upstream_pool_idle: Option<Duration> = Some(Duration::from_secs(3)), SECS_OR_OFF, "upstream-pool-idle-timeout-secs";
        /// Silence of a stream after which a comment keeps it alive; 0 sends none.
        sse_keepalive: Option<Duration> = Some(Duration::from_secs(15)), SECS_OR_OFF, "sse-keepalive-secs";
        /// Longest time a prefill answer is read on in the background.
        prefill_drain: Duration = Duration::from_secs(330), SECS, "prefill-drain-timeout-secs";
        /// Longest time to make a prefill worker give back KV that nobody will fetch.
        release: Duration = Duration::from_secs(10), SECS, "release-timeout-secs";
        /// Longest wait for a stream's first piece once the prefill is done; 0 waits forever.
        decode_first_response: Option<Duration> = Some(Duration::from_secs(60)), SECS_OR_OFF,
            "decode-first-response-timeout-secs", NOTE.env("AIBRIX_DECODE_FIRST_RESPONSE_TIMEOUT").lenient();
        /// The same for an answer that is not streamed, which comes when all of it is computed; 0 waits forever.
        decode_response: Option<Duration> = None, SECS_OR_OFF,
            "decode-response-timeout-secs", NOTE.env("AIBRIX_DECODE_RESPONSE_TIMEOUT").lenient();
        /// Longest silence of a worker in the middle of a stream; 0 waits forever.
        decode_stream_idle: Option<Duration> = Some(Duration::from_secs(120)), SECS_OR_OFF,
            "decode-stream-idle-timeout-secs", NOTE.env("AIBRIX_DECODE_STREAM_IDLE_TIMEOUT").lenient();
        /// Longest time an SGLang decode may take to answer that it has dropped a request; 0: it is not asked to.
        decode_abort: Option<Duration> = Some(Duration::from_secs(3)), SECS_OR_OFF,
            "decode-abort-timeout-secs", NOTE.env("AIBRIX_DECODE_ABORT_TIMEOUT").lenient();
        /// Pause after which it is asked once more, if a prefill failed; 0: once only.
        decode_abort_retry_delay: Option<Duration> = Some(Duration::from_secs(2)), SECS_OR_OFF,
            "decode-abort-retry-delay-secs", NOTE.env("AIBRIX_DECODE_ABORT_RETRY_DELAY").lenient();
        /// Longest time open requests may take to finish at shutdown.
        shutdown_grace: Duration = Duration::from_secs(180), SECS_OR_ZERO, "shutdown-grace-period-secs";
    }
}

group! {
    /// Which web pages may call.
    "CORS" cors: Cors {
        /// Origins that browsers may call from, or `*`; unset: none.
        allowed_origins: CorsOrigins = CorsOrigins::None, ORIGINS, "cors-allowed-origins";
    }
}

group! {
    /// Who may call.
    "Authentication" auth: Auth {
        /// Key that clients present as a bearer token; never sent to a worker as the client's.
        api_key: Option<Secret> = None, MAYBE_SECRET, "api-key";
        /// Keys of the admin routes (id:name:role:key).
        control_plane_api_keys: Vec<Secret> = Vec::new(), SECRETS, "control-plane-api-keys",
            NOTE.env("CONTROL_PLANE_API_KEYS").refused("separate keys for the admin routes");
    }
}

group! {
    /// HTTPS towards the clients.
    "TLS" tls: Tls {
        /// Certificate chain, PEM; needs --tls-key-path.
        cert_path: Option<PathBuf> = None, MAYBE_PATH, "tls-cert-path";
        /// Private key, PEM; needs --tls-cert-path.
        key_path: Option<PathBuf> = None, MAYBE_PATH, "tls-key-path";
    }
}
