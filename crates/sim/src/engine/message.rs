//! What engines say to each other and to whoever drives them.
//!
//! The model does no I/O: it hands out [`Output`]s and takes what came back. In one process the driver passes
//! messages from engine to engine; between processes they travel over the side channels. A message to a peer is a
//! call: it has an answer, or the driver reports the peer as unreachable.

use serde::{Deserialize, Serialize};

use crate::engine::sequence::{Finish, KvState, SeqId};

/// Where a peer listens: a side channel or a bootstrap server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PeerAddr {
    pub host: String,
    pub port: u16,
}

impl PeerAddr {
    /// An address as given in a request; `localhost` and `127.0.0.1` are one host.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host == "localhost" { "127.0.0.1" } else { host };
        Self { host: host.into(), port }
    }
}

/// Who sent a message, as the driver numbers its links. Answers go back to it.
pub type LinkId = u64;

/// A question to a peer. `ticket` is the asking sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// NIXL: read these blocks of the hand-off `request` on the engine `engine`.
    Read { ticket: SeqId, engine: String, request: String, reader: String, blocks: Vec<u32>, tp_size: u32 },
    /// The hand-off was read or is not wanted; free it.
    Release { engine: String, request: String, reader: String },
    /// NIXL: these hand-offs are still wanted.
    Beat { engine: String, requests: Vec<String> },
    /// SGLang: the decode side has room for the KV of `room` and waits for it.
    Join { ticket: SeqId, room: u64 },
    /// SGLang: the decode side left the room.
    Leave { ticket: SeqId, room: u64 },
    /// By transfer id: the decode side has room for this KV and waits for it.
    Take { ticket: SeqId, engine: Option<String>, transfer: String, from: Option<PeerAddr> },
    /// SGLang: are you there? (`GET /health` of the bootstrap server.) The driver answers for the peer.
    Ping,
}

/// What a peer answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// NIXL: the content of the blocks asked for, in order.
    Blocks { ticket: SeqId, contents: Vec<u64>, lease: Lease },
    /// It cannot be had: another engine listens here, no such blocks, or another layout.
    NoBlocks { ticket: SeqId, why: NoBlocks },
    /// The KV of a room or a transfer has arrived; `content` names the prompt it was made from.
    Kv { ticket: SeqId, content: u64 },
    /// SGLang: the prefill side of a room is lost.
    RoomFailed { ticket: SeqId, why: String },
}

/// What the prefill engine knows of the hand-off that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    /// Pinned: the content is what was prefilled.
    Live,
    /// Read and freed before by another request: nobody protects the content any more.
    Reused,
    /// The lease ended before.
    Expired,
    /// No hand-off of that name was ever made here.
    Unknown,
}

/// Why a read is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoBlocks {
    OtherEngine,
    OutOfRange,
    OtherLayout,
}

/// What the model wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A sequence has more tokens now; `kv` says what they were made from.
    Progress { seq: SeqId, tokens: u32, kv: KvState },
    /// A sequence is over.
    Done { seq: SeqId, finish: Finish },
    /// Call a peer.
    Send { to: PeerAddr, call: Call },
    /// Answer a peer's call.
    Reply { link: LinkId, answer: Answer },
    /// The engine core died; the process ends once its clients were told.
    Died { why: &'static str },
}
