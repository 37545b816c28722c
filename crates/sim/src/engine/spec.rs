//! What a simulated engine is: whose dialect it speaks, which role it has, and its sizes.

use std::time::Duration;

use baton_core::kv::Form;

use crate::engine::profile::Profile;

/// Whose engine is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// vLLM; halves of a pair are introduced by its [`Connector`].
    Vllm,
    /// SGLang; halves of a pair meet in a bootstrap room.
    Sglang,
    /// TensorRT-LLM; a context server's answer introduces the halves, or the id that both were given.
    Trtllm,
}

/// What moves the KV between the halves of a vLLM pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Connector {
    /// The decode side reads what the prefill side's answer names.
    Nixl,
    /// The prefill side sends to whoever asks for the transfer id that both were given.
    Mooncake,
    /// MoRI-IO's READ: the decode side reads what the prefill side's answer names.
    MoriioRead,
    /// MoRI-IO's WRITE: the prefill side writes into the blocks that the decode side tells it of.
    MoriioWrite,
}

/// Every kind of engine that there is: a dialect, and the connector where there is a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Vllm,
    Mooncake,
    MoriioRead,
    MoriioWrite,
    Sglang,
    Trtllm,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Vllm, Self::Mooncake, Self::MoriioRead, Self::MoriioWrite, Self::Sglang, Self::Trtllm];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Mooncake => "mooncake",
            Self::MoriioRead => "moriio-read",
            Self::MoriioWrite => "moriio-write",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
        }
    }

    #[must_use]
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Vllm | Self::Mooncake | Self::MoriioRead | Self::MoriioWrite => Dialect::Vllm,
            Self::Sglang => Dialect::Sglang,
            Self::Trtllm => Dialect::Trtllm,
        }
    }

    fn connector(self) -> Connector {
        match self {
            Self::Mooncake => Connector::Mooncake,
            Self::MoriioRead => Connector::MoriioRead,
            Self::MoriioWrite => Connector::MoriioWrite,
            Self::Vllm | Self::Sglang | Self::Trtllm => Connector::Nixl,
        }
    }
}

impl From<Dialect> for Kind {
    fn from(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Vllm => Self::Vllm,
            Dialect::Sglang => Self::Sglang,
            Dialect::Trtllm => Self::Trtllm,
        }
    }
}

impl Dialect {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "tensorrt_llm",
        }
    }
}

/// Which half of the work an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Prefill,
    Decode,
    /// Both phases, no connector.
    Whole,
}

impl Role {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Whole => "whole",
        }
    }
}

/// What vLLM does when KV cannot be loaded (`kv_load_failure_policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFailure {
    Fail,
    Recompute,
}

/// Everything that makes one simulated engine. [`EngineSpec::new`] gives useful defaults.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    pub dialect: Dialect,
    /// Means nothing where the dialect is not vLLM's.
    pub connector: Connector,
    pub role: Role,
    /// Data-parallel ranks (SGLang, Mooncake). They share the blocks; with Mooncake they have engine ids of their own.
    pub dp_size: u32,
    /// Served model name.
    pub model: String,
    pub profile: &'static Profile,
    /// Factor on every computing and transfer time; 0 is as fast as possible.
    pub time_scale: f64,
    /// Factor on every protocol timeout (lease 30 s, bootstrap 300 s, handshake 5 s and so on).
    pub timeout_scale: f64,
    /// How long a prefill engine keeps KV that nobody comes for, in seconds before scaling; `None` is the connector's
    /// own default.
    pub lease_secs: Option<f64>,
    /// KV blocks of this engine.
    pub kv_blocks: u32,
    /// Tokens in a block (SGLang: page size).
    pub block_size: u32,
    /// Most sequences in a step.
    pub max_running: usize,
    /// Most tokens in a step (chunked prefill).
    pub max_batched_tokens: u32,
    /// Context length in tokens.
    pub max_model_len: u32,
    /// Most sequences that may wait; vLLM refuses above it with 503 (`--max-num-queued-reqs`).
    pub max_waiting: usize,
    pub load_failure: LoadFailure,
    /// It publishes its KV events, written so.
    pub kv_events: Option<Form>,
    /// Whether the prefill answer has hand-off parameters when the model stopped by itself on the first token
    /// (vLLM 0.28 and later; earlier only when the length ran out).
    pub params_on_stop: bool,
    /// The model ends by itself after this many tokens; `None` is never.
    pub natural_tokens: Option<u32>,
    pub seed: u64,
}

impl EngineSpec {
    #[must_use]
    pub fn new(kind: impl Into<Kind>, role: Role) -> Self {
        let kind = kind.into();
        Self {
            dialect: kind.dialect(),
            connector: kind.connector(),
            role,
            dp_size: 1,
            model: "sim".into(),
            profile: Profile::default_one(),
            time_scale: 0.0,
            timeout_scale: 1.0,
            lease_secs: None,
            kv_blocks: 8192,
            block_size: 16,
            max_running: 256,
            max_batched_tokens: 8192,
            max_model_len: 32_768,
            max_waiting: 65_536,
            load_failure: LoadFailure::Fail,
            kv_events: None,
            params_on_stop: true,
            natural_tokens: Some(crate::text::NATURAL_TOKENS),
            seed: 0,
        }
    }

    /// A protocol timeout of `seconds`, scaled.
    #[must_use]
    pub fn timeout(&self, seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds * self.timeout_scale).unwrap_or(Duration::MAX / 4)
    }

    /// How long KV is kept for a decode engine that does not come.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.timeout(self.lease_secs.unwrap_or(match self.kind() {
            Kind::Vllm | Kind::Sglang => 30.0,
            Kind::Mooncake => 480.0,
            Kind::MoriioRead => 3600.0,
            Kind::MoriioWrite | Kind::Trtllm => 60.0,
        }))
    }

    /// How long a decode engine waits for KV that it has asked for by a transfer id.
    #[must_use]
    pub fn patience(&self) -> Duration {
        match self.kind() {
            Kind::Vllm | Kind::Sglang | Kind::MoriioRead => Duration::MAX / 4,
            Kind::Mooncake => self.lease() + self.timeout(60.0),
            Kind::MoriioWrite => self.timeout(120.0),
            Kind::Trtllm => self.timeout(60.0),
        }
    }

    /// Which of the kinds it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match (self.dialect, self.connector) {
            (Dialect::Sglang, _) => Kind::Sglang,
            (Dialect::Trtllm, _) => Kind::Trtllm,
            (Dialect::Vllm, Connector::MoriioRead) => Kind::MoriioRead,
            (Dialect::Vllm, Connector::MoriioWrite) => Kind::MoriioWrite,
            (Dialect::Vllm, Connector::Nixl) => Kind::Vllm,
            (Dialect::Vllm, Connector::Mooncake) => Kind::Mooncake,
        }
    }

    /// Whether prompts are found again: everywhere but on an SGLang decode engine, whose radix cache is off.
    #[must_use]
    pub fn caches_prompts(&self) -> bool {
        !(self.dialect == Dialect::Sglang && self.role == Role::Decode)
    }

    /// How many blocks `tokens` tokens need.
    #[must_use]
    pub fn blocks_for(&self, tokens: u32) -> usize {
        usize::try_from(tokens.div_ceil(self.block_size.max(1))).unwrap_or(usize::MAX)
    }
}
