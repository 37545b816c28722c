//! The doors through which other engines come in: SGLang's bootstrap server, and the side channel of a vLLM engine.
//!
//! The bootstrap server's own calls (`/route`, `/register_dp_rank`, `/query_dp_ranks`, `/health`) are SGLang's. What
//! moves KV is private to simulated engines (`/sim/nixl/...`, `/sim/rooms/...`), because the real ones move it by
//! RDMA; docs/simulated-engines.md describes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::engine::message::{Answer, Call, LinkId};
use crate::engine::spec::Dialect;
use crate::serve::body::{Body, BreakOff};
use crate::serve::fabric::Fabric;
use crate::serve::http::{read_body, respond};
use crate::serve::node::{Node, lock};
use crate::serve::remote::{
    BeatCall, JoinAnswer, JoinCall, ReadAnswer, ReadCall, ReleaseCall, TakeAnswer, TakeCall,
};
use crate::serve::server::Seat;

/// How many rooms' ranks are kept; the lowest room goes first.
const MOST_RANKS: usize = 65_536;
/// The sequence number under which a remote caller is known here; the link tells callers apart.
const CALLER: u64 = 0;

/// What a side port answers with.
#[derive(Clone)]
pub(crate) struct Front {
    shared: Arc<Shared>,
}

struct Shared {
    seat: Seat,
    node: Arc<Node>,
    fabric: Arc<Fabric>,
    /// `POST /register_dp_rank`.
    ranks: Mutex<BTreeMap<String, i64>>,
}

impl Front {
    pub fn new(seat: &Seat, node: &Arc<Node>, fabric: &Arc<Fabric>) -> Self {
        let shared = Shared {
            seat: seat.clone(),
            node: node.clone(),
            fabric: fabric.clone(),
            ranks: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The bootstrap server of whichever engine has one.
    pub async fn any_bootstrap(self, request: Request<Incoming>) -> Result<Response<Body>, BreakOff> {
        match self.shared.seat.spec.dialect {
            Dialect::Vllm => self.mooncake(request).await,
            Dialect::Sglang | Dialect::Trtllm => self.bootstrap(request).await,
        }
    }

    /// SGLang's bootstrap server.
    async fn bootstrap(self, request: Request<Incoming>) -> Result<Response<Body>, BreakOff> {
        let (head, body) = request.into_parts();
        Ok(match (&head.method, head.uri.path()) {
            (&Method::GET, "/health") => text(200, "OK"),
            (&Method::GET, "/route") => self.route(head.uri.query().unwrap_or("")),
            (&Method::PUT, "/route") => text(200, "OK"),
            (&Method::POST, "/register_dp_rank") => self.register(read(body).await?),
            (&Method::POST, "/query_dp_ranks") => self.query(read(body).await?),
            (&Method::POST, "/sim/rooms/join") => self.join(read(body).await?).await,
            _ => text(404, "404: Not Found"),
        })
    }

    /// The bootstrap server of a vLLM engine with Mooncake.
    async fn mooncake(self, request: Request<Incoming>) -> Result<Response<Body>, BreakOff> {
        let (head, body) = request.into_parts();
        Ok(match (&head.method, head.uri.path()) {
            (&Method::GET, "/query") => self.engine_ids(),
            (&Method::POST, "/register") => registered(read(body).await?.as_ref()),
            (&Method::POST, path) => self.transfer(path, body).await?,
            _ => answer(&json!({"detail": "Not Found"}), 404),
        })
    }

    /// The engine id of each rank, under the rank's number.
    fn engine_ids(&self) -> Response<Body> {
        let seat = &self.shared.seat;
        let entries = (0..seat.spec.dp_size.max(1)).map(|rank| {
            let worker = format!("tcp://{}:{}", seat.host, seat.bootstrap_port);
            let id = self.shared.node.look(|engine| engine.rank_id(rank));
            (rank.to_string(), json!({"engine_id": id, "worker_addr": {"0": {"0": worker}}}))
        });
        answer(&Value::Object(entries.collect()), 200)
    }

    /// Private calls between engines whose halves meet by a transfer id.
    async fn transfer(&self, path: &str, body: Incoming) -> Result<Response<Body>, BreakOff> {
        Ok(match path {
            "/sim/transfers/take" => self.take(read(body).await?).await,
            "/sim/nixl/release" => self.release(read(body).await?),
            _ => text(404, "no such call"),
        })
    }

    async fn take(&self, call: Option<TakeCall>) -> Response<Body> {
        let Some(TakeCall { engine, transfer, from }) = call else { return text(400, "not a take") };
        let caller = Caller::new(&self.shared, None);
        match caller.ask(Call::Take { ticket: CALLER, engine, transfer, from }).await {
            Some(Answer::Kv { content, .. }) => answer(&TakeAnswer::Kv { content }, 200),
            Some(Answer::NoBlocks { why, .. }) => answer(&TakeAnswer::NoBlocks(why), 200),
            _ => text(503, "no answer"),
        }
    }

    fn release(&self, call: Option<ReleaseCall>) -> Response<Body> {
        self.tell(call, |call: ReleaseCall| Call::Release {
            engine: call.engine,
            request: call.request,
            reader: call.reader,
        })
    }

    /// A side channel: vLLM's with NIXL or MoRI-IO, or a context server's of TensorRT-LLM.
    pub async fn side_channel(self, request: Request<Incoming>) -> Result<Response<Body>, BreakOff> {
        let (head, body) = request.into_parts();
        Ok(match head.uri.path() {
            "/sim/nixl/read" => self.read(read(body).await?).await,
            "/sim/nixl/release" => self.release(read(body).await?),
            "/sim/nixl/beat" => self.tell(read(body).await?, |call: BeatCall| Call::Beat {
                engine: call.engine,
                requests: call.requests,
            }),
            "/sim/transfers/take" => self.take(read(body).await?).await,
            _ => text(404, "no such call"),
        })
    }

    fn route(&self, query: &str) -> Response<Body> {
        let get = |name: &str| -> Option<i64> {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
            pair.parse().ok()
        };
        let names = ["prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"];
        let [Some(dp), Some(cp), Some(tp), Some(pp)] = names.map(get) else {
            return text(400, "Missing inputs for bootstrap server.");
        };
        let seat = &self.shared.seat;
        match [dp, cp, tp, pp] {
            [-1, -1, -1, -1] => answer(
                &json!({
                    "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": seat.spec.block_size,
                    "kv_cache_dtype": "auto", "follow_bootstrap_room": true, "prefill_http_port": seat.port,
                    "decode_allocation_policy": "early",
                }),
                200,
            ),
            [0, 0, 0, 0] => {
                answer(&json!({"rank_ip": seat.host.to_string(), "rank_port": seat.bootstrap_port}), 200)
            }
            _ => text(
                404,
                &format!("Bootstrap info not found for dp_rank={dp} cp_rank={cp} tp_rank={tp} pp_rank={pp}"),
            ),
        }
    }

    fn register(&self, body: Option<Value>) -> Response<Body> {
        let room = body.as_ref().and_then(|body| body.get("bootstrap_room")).and_then(Value::as_u64);
        let rank = body.as_ref().and_then(|body| body.get("dp_rank")).and_then(Value::as_i64);
        let Some((room, rank)) = room.zip(rank) else {
            return text(400, "Missing inputs for bootstrap server.");
        };
        let mut ranks = lock(&self.shared.ranks);
        if ranks.len() >= MOST_RANKS {
            ranks.pop_first();
        }
        ranks.insert(room.to_string(), rank);
        text(200, "OK")
    }

    fn query(&self, body: Option<Value>) -> Response<Body> {
        let rooms = body.as_ref().and_then(|body| body.get("bootstrap_rooms")).and_then(Value::as_array);
        let ranks = lock(&self.shared.ranks);
        let known = rooms.into_iter().flatten().filter_map(|room| {
            let room = room.to_string();
            ranks.get(&room).map(|rank| (room, Value::from(*rank)))
        });
        answer(&Value::Object(known.collect()), 200)
    }

    async fn read(&self, call: Option<ReadCall>) -> Response<Body> {
        let Some(call) = call else { return text(400, "not a read") };
        let ReadCall { engine, request, reader, blocks, tp_size } = call;
        let caller = Caller::new(&self.shared, None);
        let call = Call::Read { ticket: CALLER, engine, request, reader, blocks, tp_size };
        match caller.ask(call).await {
            Some(Answer::Blocks { contents, lease, .. }) => {
                answer(&ReadAnswer::Blocks { contents, lease }, 200)
            }
            Some(Answer::NoBlocks { why, .. }) => answer(&ReadAnswer::NoBlocks(why), 200),
            _ => text(503, "no answer"),
        }
    }

    fn tell<C>(&self, call: Option<C>, make: impl Fn(C) -> Call) -> Response<Body> {
        let Some(call) = call else { return text(400, "not a notice") };
        // A notice has no answer, so nobody has to be known by this link.
        self.shared.node.receive(0, make(call));
        answer(&json!({}), 200)
    }

    async fn join(&self, call: Option<JoinCall>) -> Response<Body> {
        let Some(JoinCall { room }) = call else { return text(400, "not a join") };
        let caller = Caller::new(&self.shared, Some(room));
        match caller.ask(Call::Join { ticket: CALLER, room }).await {
            Some(Answer::Kv { content, .. }) => answer(&JoinAnswer::Kv { content }, 200),
            Some(Answer::RoomFailed { why, .. }) => answer(&JoinAnswer::Failed { why }, 200),
            _ => text(503, "no answer"),
        }
    }
}

/// A peer in another process that waits for an answer. When it goes away it has left its room.
struct Caller<'a> {
    shared: &'a Shared,
    link: LinkId,
    room: Option<u64>,
}

impl<'a> Caller<'a> {
    fn new(shared: &'a Shared, room: Option<u64>) -> Self {
        Self { shared, link: shared.fabric.new_link(), room }
    }

    async fn ask(mut self, call: Call) -> Option<Answer> {
        let (sender, receiver) = oneshot::channel();
        self.shared.fabric.expect_answer(self.link, sender);
        self.shared.node.receive(self.link, call);
        let answer = receiver.await.ok();
        self.room = None;
        answer
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.shared.fabric.forget_link(self.link);
        if let Some(room) = self.room {
            self.shared.node.receive(self.link, Call::Leave { ticket: CALLER, room });
        }
    }
}

/// The body as what it should be; `None` when it is something else.
async fn read<T: for<'a> Deserialize<'a>>(body: Incoming) -> Result<Option<T>, BreakOff> {
    let bytes: Option<Bytes> = read_body(body).await?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

fn text(status: u16, body: &str) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", body.into())
}

/// `POST /register` of one of the engine's workers.
fn registered(body: Option<&Value>) -> Response<Body> {
    let has = |key: &str| body.is_some_and(|body| body.get(key).is_some());
    if ["engine_id", "dp_rank", "tp_rank", "pp_rank", "addr"].into_iter().all(has) {
        answer(&json!({"status": "ok"}), 200)
    } else {
        answer(&json!({"detail": "not a registration"}), 400)
    }
}

fn answer(value: &impl Serialize, status: u16) -> Response<Body> {
    respond(status, "application/json; charset=utf-8", serde_json::to_string(value).unwrap_or_default())
}
