//! Flags that SMG has and Baton leaves out, and why.

/// One part of SMG that is no part of Baton.
pub(super) struct LeftOut {
    pub part: &'static str,
    pub reason: &'static str,
    pub flags: &'static [&'static str],
}

pub(super) const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        part: "Oracle",
        reason: "conversations are not stored",
        flags: &[
            "oracle-wallet-path",
            "oracle-tns-alias",
            "oracle-dsn",
            "oracle-connect-descriptor",
            "oracle-user",
            "oracle-password",
            "oracle-external-auth",
            "oracle-pool-min",
            "oracle-pool-max",
            "oracle-pool-timeout-secs",
        ],
    },
    LeftOut {
        part: "PostgreSQL",
        reason: "conversations are not stored",
        flags: &[
            "postgres-db-url",
            "postgres-pool-max-size",
            "postgres-pool-max",
            "postgres-op-timeout-secs",
        ],
    },
    LeftOut {
        part: "Redis",
        reason: "conversations are not stored",
        flags: &[
            "redis-url",
            "redis-pool-max-size",
            "redis-pool-max",
            "redis-retention-days",
            "redis-op-timeout-secs",
        ],
    },
    LeftOut {
        part: "History",
        reason: "conversations and background responses are not stored",
        flags: &[
            "history-backend",
            "history-memory-max-responses",
            "history-memory-max-items",
            "history-memory-retention-secs",
            "max-background-responses",
            "storage-context-headers",
            "storage-hook-wasm-path",
            "schema-config",
        ],
    },
    LeftOut { part: "MCP", reason: "tools run at the client or the engine", flags: &["mcp-config-path"] },
    LeftOut { part: "WASM", reason: "no foreign code runs in the gateway", flags: &["enable-wasm"] },
    LeftOut {
        part: "WebRTC",
        reason: "no audio is relayed",
        flags: &["webrtc-bind-addr", "webrtc-stun-server"],
    },
    LeftOut {
        part: "RL control plane",
        reason: "weights of engines are not managed",
        flags: &["enable-rl", "rl-control-timeout-secs", "rl-fanout-concurrency"],
    },
    LeftOut {
        part: "Mesh",
        reason: "gateways do not talk to each other",
        flags: &[
            "enable-mesh",
            "mesh-server-name",
            "mesh-host",
            "mesh-advertise-host",
            "mesh-port",
            "mesh-peer-urls",
            "mesh-tls-ca-cert",
            "mesh-tls-cert",
            "mesh-tls-key",
            "router-selector",
        ],
    },
    LeftOut {
        part: "JWT",
        reason: "only plain API keys are checked",
        flags: &["jwt-issuer", "jwt-audience", "jwt-jwks-uri", "jwt-role-claim", "jwt-role-mapping"],
    },
    LeftOut {
        part: "Audit log",
        reason: "there is no control plane with roles to audit; the access log names every request",
        flags: &["disable-audit-logging", "control-plane-audit-enabled"],
    },
    LeftOut {
        part: "Tenants",
        reason: "requests are not told apart by tenant",
        flags: &[
            "tenant-api-key",
            "trust-tenant-header",
            "tenant-header-name",
            "tenant-rate-limit-enabled",
            "tenant-rate-limit-config",
        ],
    },
    LeftOut {
        part: "Priority scheduler",
        reason: "requests are admitted in the order they come",
        flags: &[
            "priority-scheduler-enabled",
            "priority-scheduler-default-max-class",
            "priority-scheduler-config",
            "priority-scheduler-tenant-metric-top-n",
        ],
    },
    LeftOut {
        part: "Multimodal",
        reason: "media are left to the engine",
        flags: &[
            "multimodal-tensor-transport",
            "multimodal-shm-min-bytes",
            "multimodal-max-inflight-bytes",
            "mm-per-request-image-limit",
            "mm-processing",
            "mm-pixel-cache-mb",
            "mm-pixel-rdma",
            "mm-allowed-media-domains",
            "mm-allow-private-media-hosts",
            "rdma-listen-ip",
            "rdma-slot-ttl-s",
            "log-mm-timing",
        ],
    },
    LeftOut {
        part: "Tokenizer",
        reason: "engines over HTTP tokenize by themselves",
        flags: &[
            "model-path",
            "model",
            "chat-template",
            "disable-tokenizer-autoload",
            "tokenizer-cache-enable-l0",
            "tokenizer-cache-l0-max-entries",
            "tokenizer-cache-l0-max-memory",
            "tokenizer-cache-enable-l1",
            "tokenizer-cache-l1-max-memory",
        ],
    },
    LeftOut {
        part: "Parsers",
        reason: "engines over HTTP parse their own output",
        flags: &["reasoning-parser", "tool-call-parser", "parser"],
    },
    LeftOut {
        part: "Providers",
        reason: "hosted providers are not served, and an engine's kind is found out by asking it",
        flags: &["backend", "runtime"],
    },
    LeftOut { part: "ZMQ", reason: "a ZMQ connection cannot carry a hand-off", flags: &["zmq-engine-count"] },
    LeftOut {
        part: "Profiling",
        reason: "the allocator has no profile to write",
        flags: &["jemalloc-prof-dir"],
    },
    LeftOut {
        part: "Client certificates",
        reason: "only SMG's Python launcher has them",
        flags: &["client-cert-path", "client-key-path", "ca-cert-paths"],
    },
];

/// Why SMG's flag of this name (without dashes) is left out, if it is.
pub(super) fn reason(flag: &str) -> Option<&'static str> {
    LEFT_OUT.iter().find(|left_out| left_out.flags.contains(&flag)).map(|left_out| left_out.reason)
}
