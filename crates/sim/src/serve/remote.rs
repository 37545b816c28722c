//! Calls between engines of different processes: the client's side of the side channels.
//!
//! A call is one HTTP request on a connection of its own. `Join` is answered when the room's KV has moved, and closing
//! its connection is how a decode side leaves a room. The private protocol is in docs/simulated-engines.md; the route
//! that comes before the first `Join` is SGLang's own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::engine::message::{Answer, Call, Lease, NoBlocks, PeerAddr};
use crate::engine::sequence::SeqId;
use crate::serve::node::{Node, lock};

/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(5);

/// `POST /sim/nixl/read`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReadCall {
    pub engine: String,
    pub request: String,
    pub reader: String,
    pub blocks: Vec<u32>,
    pub tp_size: u32,
}

/// Its answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReadAnswer {
    Blocks { contents: Vec<u64>, lease: Lease },
    NoBlocks(NoBlocks),
}

/// `POST /sim/nixl/release`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReleaseCall {
    pub engine: String,
    pub request: String,
    pub reader: String,
}

/// `POST /sim/nixl/beat`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BeatCall {
    pub engine: String,
    pub requests: Vec<String>,
}

/// `POST /sim/rooms/join`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JoinCall {
    pub room: u64,
}

/// Its answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JoinAnswer {
    Kv { content: u64 },
    Failed { why: String },
}

/// `POST /sim/transfers/take`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TakeCall {
    pub engine: Option<String>,
    pub transfer: String,
    pub from: Option<PeerAddr>,
}

/// Its answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TakeAnswer {
    Kv { content: u64 },
    NoBlocks(NoBlocks),
}

/// Calls under way that can be taken back.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    open: Mutex<HashMap<(u64, SeqId), AbortHandle>>,
}

impl Joins {
    /// The engine behind a link is gone, and with it its connections.
    pub fn drop_all(&self, link: u64) {
        lock(&self.open).retain(|(from, _), join| {
            if *from == link {
                join.abort();
            }
            *from != link
        });
    }
}

/// Why a call came to nothing. The engine is told that the peer is unreachable; the reason is for nobody.
struct Unreachable;

impl<E: std::error::Error> From<E> for Unreachable {
    fn from(_: E) -> Self {
        Self
    }
}

/// Calls a peer in another process.
pub(crate) fn call(joins: &Arc<Joins>, from: &Arc<Node>, to: PeerAddr, call: Call) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if let Call::Leave { ticket, .. } = call {
        if let Some(join) = lock(&joins.open).remove(&(from.link, ticket)) {
            join.abort();
        }
        from.answered(Answer::RoomFailed { ticket, why: "Aborted by AbortReq.".into() });
        return;
    }
    let ticket = if let Call::Join { ticket, .. } = call { Some(ticket) } else { None };
    let (joins_then, node) = (joins.clone(), from.clone());
    // Held until the task is known, so that the task cannot end before.
    let mut open = lock(&joins.open);
    let task = runtime.spawn(async move {
        let answer = if node.may_reach(&to) { exchange(&node, &to, &call).await } else { Err(Unreachable) };
        if let Some(ticket) = ticket {
            lock(&joins_then.open).remove(&(node.link, ticket));
        }
        match answer {
            Ok(Some(answer)) => node.answered(answer),
            Ok(None) => {}
            Err(Unreachable) => node.unreachable(&to, &call),
        }
    });
    if let Some(ticket) = ticket {
        open.insert((from.link, ticket), task.abort_handle());
    }
}

async fn exchange(node: &Arc<Node>, to: &PeerAddr, call: &Call) -> Result<Option<Answer>, Unreachable> {
    match call.clone() {
        Call::Read { ticket, engine, request, reader, blocks, tp_size } => {
            let body = ReadCall { engine, request, reader, blocks, tp_size };
            Ok(Some(match post(to, "/sim/nixl/read", &body).await? {
                ReadAnswer::Blocks { contents, lease } => Answer::Blocks { ticket, contents, lease },
                ReadAnswer::NoBlocks(why) => Answer::NoBlocks { ticket, why },
            }))
        }
        Call::Release { engine, request, reader } => {
            let body = ReleaseCall { engine, request, reader };
            post::<_, serde_json::Value>(to, "/sim/nixl/release", &body).await.map(|_| None)
        }
        Call::Beat { engine, requests } => {
            let body = BeatCall { engine, requests };
            post::<_, serde_json::Value>(to, "/sim/nixl/beat", &body).await.map(|_| None)
        }
        Call::Join { ticket, room } => {
            let route = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";
            send(to, Request::get(route).body(Full::default())?).await?;
            node.with(|engine, _| engine.pinged(to));
            Ok(Some(match post(to, "/sim/rooms/join", &JoinCall { room }).await? {
                JoinAnswer::Kv { content } => Answer::Kv { ticket, content },
                JoinAnswer::Failed { why } => Answer::RoomFailed { ticket, why },
            }))
        }
        Call::Take { ticket, engine, transfer, from } => {
            Ok(Some(match post(to, "/sim/transfers/take", &TakeCall { engine, transfer, from }).await? {
                TakeAnswer::Kv { content } => Answer::Kv { ticket, content },
                TakeAnswer::NoBlocks(why) => Answer::NoBlocks { ticket, why },
            }))
        }
        Call::Leave { .. } => Ok(None),
        Call::Ping => {
            send(to, Request::get("/health").body(Full::default())?).await?;
            node.with(|engine, _| engine.pinged(to));
            Ok(None)
        }
    }
}

async fn post<B: Serialize, A: for<'a> Deserialize<'a>>(
    to: &PeerAddr,
    path: &str,
    body: &B,
) -> Result<A, Unreachable> {
    let body = Full::new(Bytes::from(serde_json::to_vec(body)?));
    let answer = send(to, Request::post(path).body(body)?).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Sends one request; anything but 200 is as good as no answer.
async fn send(to: &PeerAddr, mut request: Request<Full<Bytes>>) -> Result<Bytes, Unreachable> {
    let stream = tokio::time::timeout(CONNECT, TcpStream::connect((to.host.as_str(), to.port))).await??;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static("engine"));
    request.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    let answer = async move {
        let response = sender.send_request(request).await?;
        let whole = response.status() == http::StatusCode::OK;
        let body = response.into_body().collect().await?.to_bytes();
        if whole { Ok(body) } else { Err(Unreachable) }
    };
    // Dropping this call drops the connection, which the other side sees.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

/// Whether a host is this machine's own loopback.
pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
