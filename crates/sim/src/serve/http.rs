//! The HTTP front of one engine: routes, refusals, faults.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Map, Value};

use crate::clock;
use crate::engine::sequence::{Ask, Finish, Part};
use crate::engine::spec::{Dialect, Role};
use crate::serve::answer::Teller;
use crate::serve::body::{Body, BreakOff};
use crate::serve::fault::{Fault, HEADER, Kind};
use crate::serve::json::Members;
use crate::serve::node::{Node, Work};
use crate::serve::refusal::{Problem, Refusal, Shape};
use crate::serve::server::Server;
use crate::serve::stream::{self, Break, Open};
use crate::serve::wire::WireState;
use crate::serve::wish::Api;
use crate::serve::{answer, info, metrics, sglang, trtllm, vllm};

/// Largest request body, in bytes.
const MOST_BODY: usize = 64 << 20;
/// Tokenizes a messages request. The engine core has no part in it, so there is no room and no hand-off.
const COUNT_TOKENS: &str = "/v1/messages/count_tokens";

/// What a connection answers with.
#[derive(Clone)]
pub(crate) struct Front {
    pub server: Weak<Server>,
    pub node: Arc<Node>,
}

type Answered = Result<Response<Body>, BreakOff>;

impl Front {
    pub fn new(server: &Arc<Server>, node: &Arc<Node>) -> Self {
        Self { server: Arc::downgrade(server), node: node.clone() }
    }

    pub async fn answer(self, request: Request<Incoming>, wire: Arc<WireState>) -> Answered {
        let Some(server) = self.server.upgrade() else { return Err(BreakOff) };
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        if path.starts_with("/sim/") {
            return Ok(info::admin(&server, &head.method, path, body).await);
        }
        if path == COUNT_TOKENS && head.method == Method::POST {
            let api = Api::Messages;
            let call = Call { server: &server, node: &self.node, wire: &wire, api, head: &head.headers };
            return call.count(body).await;
        }
        if let Some(api) = Api::of_path(path).filter(|_| head.method == Method::POST) {
            let known = server.seat.spec.dialect == Dialect::Sglang || api != Api::Generate;
            if known {
                let call = Call { server: &server, node: &self.node, wire: &wire, api, head: &head.headers };
                return call.generate(body).await;
            }
        }
        if path == "/health" || path == "/health_generate" || path == "/ping" {
            return health(&server).await;
        }
        if path == metrics::path(server.seat.spec.dialect) {
            if let Some(fault) = server.faults.for_metrics() {
                server.strikes(&fault);
                return Ok(respond(404, "application/json", r#"{"detail":"Not Found"}"#.into()));
            }
            return Ok(respond(
                200,
                "text/plain; version=0.0.4; charset=utf-8",
                metrics::write(&server, &self.node),
            ));
        }
        Ok(info::answer(&server, &self.node, (&head.method, path, head.uri.query()), body).await)
    }
}

async fn health(server: &Server) -> Answered {
    let fault = server.faults.for_health();
    if let Some(fault) = &fault {
        server.strikes(fault);
        if fault.kind == Kind::UnwellHealth {
            return Ok(respond(503, "text/plain", String::new()));
        }
        tokio::time::sleep(Duration::from_millis(fault.ms.unwrap_or(10_000))).await;
    }
    Ok(respond(200, "text/plain", String::new()))
}

/// One request that the engine works for.
struct Call<'a> {
    server: &'a Arc<Server>,
    node: &'a Arc<Node>,
    wire: &'a Arc<WireState>,
    api: Api,
    head: &'a HeaderMap,
}

impl Call<'_> {
    async fn generate(&self, body: Incoming) -> Answered {
        let open = Open::new(self.server);
        let fault = match self.meet_fault().await {
            Ok(fault) => fault,
            Err(answered) => return answered,
        };
        let Some(body) = read_body(body).await? else {
            return Ok(respond(413, "text/plain", "Request Entity Too Large".into()));
        };
        let (teller, work) = match self.start(&body, fault.as_ref()) {
            Ok(started) => started,
            Err(refusal) => {
                self.server.refused.fetch_add(1, Ordering::Relaxed);
                return Ok(self.refuse(&refusal));
            }
        };
        let breaks =
            fault.map(|fault| Break { fault, wire: self.wire.clone(), server: Arc::downgrade(self.server) });
        if teller.wish.stream {
            Ok(stream::answer(teller, work, breaks, open).await)
        } else {
            Ok(self.plain(teller, work, breaks, open).await)
        }
    }

    async fn count(&self, body: Incoming) -> Answered {
        let _open = Open::new(self.server);
        if let Err(answered) = self.meet_fault().await {
            return answered;
        }
        let Some(body) = read_body(body).await? else {
            return Ok(respond(413, "text/plain", "Request Entity Too Large".into()));
        };
        match self.prompt_tokens(&body) {
            Ok(answer) => Ok(respond(200, "application/json", answer)),
            Err(refusal) => {
                self.server.refused.fetch_add(1, Ordering::Relaxed);
                Ok(self.refuse(&refusal))
            }
        }
    }

    fn prompt_tokens(&self, body: &Bytes) -> Result<String, Refusal> {
        let dialect = self.server.seat.spec.dialect;
        let body = parse_object(body, dialect)?;
        let tokens = vllm::messages_prompt(&Members { dialect, body: &body })?.len();
        let more = match dialect {
            Dialect::Vllm => {
                format!(r#","context_management":{{"original_input_tokens":{tokens}}}"#)
            }
            Dialect::Sglang | Dialect::Trtllm => String::new(),
        };
        Ok(format!(r#"{{"input_tokens":{tokens}{more}}}"#))
    }

    /// The fault that strikes this request, unless it has struck already.
    async fn meet_fault(&self) -> Result<Option<Fault>, Answered> {
        let fault = match self.pick_fault() {
            Ok(fault) => fault,
            Err(problem) => return Err(Ok(respond(400, "text/plain", problem))),
        };
        if let Some(fault) = &fault {
            self.server.strikes(fault);
        }
        if let Some(fault) = fault.as_ref().filter(|fault| fault.chunks.is_none())
            && let Some(answered) = self.fail_early(fault).await
        {
            return Err(answered);
        }
        Ok(fault)
    }

    fn pick_fault(&self) -> Result<Option<Fault>, String> {
        let own = match self.head.get(HEADER).map(http::HeaderValue::to_str) {
            Some(Ok(header)) => Fault::parse_all(header)?,
            _ => Vec::new(),
        };
        Ok(self.server.faults.for_request(self.server.seat.spec.role, &own, self.server.fabric.once_keys()))
    }

    /// Faults that come before the engine sees the request.
    async fn fail_early(&self, fault: &Fault) -> Option<Answered> {
        match fault.kind {
            Kind::Status => {
                let status = fault.status.unwrap_or(503);
                let message = fault.text.clone().unwrap_or_else(|| "simulated fault".into());
                let refusal = Refusal { status, message, kind: "SimulatedFault", param: None, schema: false };
                let mut response = self.refuse(&refusal);
                if let Some(seconds) = fault.retry_after {
                    response.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
                }
                Some(Ok(response))
            }
            Kind::Reset => {
                self.wire.reset();
                Some(Err(BreakOff))
            }
            Kind::Stall => std::future::pending().await,
            Kind::Kill | Kind::Restart => {
                self.server.kill_later(fault.kind == Kind::Restart);
                std::future::pending().await
            }
            Kind::CloseIdle => {
                self.server.close_idle();
                None
            }
            _ => None,
        }
    }

    /// Reads the request and hands it to the engine.
    fn start(&self, body: &Bytes, fault: Option<&Fault>) -> Result<(Teller, Work), Refusal> {
        let spec = &self.server.seat.spec;
        let body = parse_object(body, spec.dialect)?;
        let seat = &self.server.seat;
        let (parsed, mut asks) = match spec.dialect {
            Dialect::Vllm => {
                let mut parsed = vllm::parse(self.api, &body, self.head, seat).map_err(|refused| {
                    if let Some(remote) = refused.remote.filter(|_| spec.role != Role::Whole) {
                        self.node.release(&remote);
                    }
                    refused.refusal
                })?;
                let asks = std::mem::take(&mut parsed.asks);
                (parsed, asks)
            }
            Dialect::Trtllm => {
                let mut parsed = trtllm::parse(self.api, &body, self.head, seat)?;
                let asks = std::mem::take(&mut parsed.asks);
                self.refuse_known(&asks)?;
                (parsed, asks)
            }
            Dialect::Sglang => {
                let parsed = sglang::parse(self.api, &body, self.head, spec)?;
                let none = Vec::new();
                (
                    vllm::Parsed {
                        wish: parsed.wish,
                        asks: none,
                        return_token_ids: false,
                        unfinished: false,
                    },
                    parsed.asks,
                )
            }
        };
        if fault.is_some_and(|fault| matches!(fault.kind, Kind::NullParams | Kind::Recompute)) {
            // A room is no parameter that an answer could lack.
            for ask in asks.iter_mut().filter(|ask| !matches!(ask.part, Part::Room { .. })) {
                let part = std::mem::replace(&mut ask.part, Part::Local);
                if let (Part::Pull(remote), Some(Kind::Recompute)) = (part, fault.map(|fault| fault.kind)) {
                    self.node.release(&remote);
                }
            }
        }
        if self.node.look(|engine| engine.queued() + asks.len() > spec.max_waiting) {
            let message = "The server is overloaded: too many queued requests.".into();
            return Err(Refusal {
                status: 503,
                message,
                kind: "ServiceUnavailableError",
                param: None,
                schema: false,
            });
        }
        let teller = Teller {
            dialect: spec.dialect,
            connector: spec.connector,
            wish: parsed.wish,
            created: clock::unix_seconds(),
            fingerprint: self.node.look(|engine| engine.id().chars().take(8).collect()),
            host: seat.host.to_string(),
            port: seat.side_port,
            handshake: seat.handshake_port,
            unfinished: parsed.unfinished,
            return_token_ids: parsed.return_token_ids,
            knows_prompt: !(spec.dialect == Dialect::Sglang && spec.role == Role::Decode),
        };
        Ok((teller, self.node.submit(asks)))
    }

    /// An id of TensorRT-LLM's is good for one request.
    fn refuse_known(&self, asks: &[Ask]) -> Result<(), Refusal> {
        for ask in asks {
            if let Part::Give(give) = &ask.part
                && self.node.look(|engine| engine.knows_transfer(&give.transfer))
            {
                let message = format!("disagg_request_id {} is in use, or was", give.transfer);
                return Err(Refusal::bad(message, None));
            }
        }
        Ok(())
    }

    async fn plain(&self, teller: Teller, work: Work, breaks: Option<Break>, open: Open) -> Response<Body> {
        let parts = work.job.finished().await;
        let died = parts.iter().any(|part| part.finish == Some(Finish::Dead));
        if died && teller.dialect == Dialect::Trtllm {
            // The process ends itself, and its connections with it.
            std::future::pending::<()>().await;
        }
        let ended: Result<Vec<answer::Ended>, Refusal> = parts
            .iter()
            .zip(&teller.wish.choices)
            .filter_map(|(part, choice)| answer::ended(teller.dialect, part, choice.tokens))
            .collect();
        drop(open);
        let ended = match ended {
            Ok(ended) => ended,
            Err(refusal) => return self.refuse(&refusal),
        };
        let body = teller.plain(&ended);
        let Some(breaks) = breaks else { return respond(200, "application/json", body) };
        match breaks.fault.kind {
            Kind::GarbageBody => respond(200, "application/json", "<<<this is not JSON".into()),
            Kind::WrongContentType => respond(200, "text/html; charset=utf-8", body),
            Kind::GarbageParams => {
                let default = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[],"remote_engine_id":null,"remote_host":null,"remote_port":null}"#;
                let garbage = breaks.fault.text.as_deref().unwrap_or(default);
                respond(200, "application/json", replace_params(&body, garbage))
            }
            Kind::Reset | Kind::Stall | Kind::Kill if breaks.fault.chunks.is_some() => {
                stream::half(body, breaks)
            }
            _ => respond(200, "application/json", body),
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Response<Body> {
        let shape = match (self.server.seat.spec.dialect, self.api) {
            // What the schema refuses never comes to the endpoint, which would shape it.
            (Dialect::Vllm, Api::Messages) if !refusal.schema => Shape::VllmMessages,
            (Dialect::Sglang, Api::Messages) if !refusal.schema => Shape::SglangMessages,
            (Dialect::Vllm, _) => Shape::Vllm,
            (Dialect::Sglang, Api::Generate) => Shape::SglangNative,
            (Dialect::Trtllm, _) if refusal.schema => Shape::TrtSchema,
            (Dialect::Sglang | Dialect::Trtllm, _) => Shape::SglangFlat,
        };
        respond(refusal.status, "application/json", refusal.body(shape))
    }
}

/// Puts something else where the hand-off's parameters are.
fn replace_params(body: &str, garbage: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(body) else { return body.into() };
    for place in ["/kv_transfer_params", "/choices/0/disaggregated_params"] {
        if let Some(params) = value.pointer_mut(place) {
            *params = serde_json::from_str(garbage).unwrap_or_else(|_| garbage.into());
        }
    }
    value.to_string()
}

/// The request's body, or `None` when it is too large.
pub(crate) async fn read_body(mut body: Incoming) -> Result<Option<Bytes>, BreakOff> {
    let mut all = BytesMut::new();
    let mut only: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        // The client is gone; there is nobody to answer.
        let Ok(data) = frame.map_err(|_| BreakOff)?.into_data() else { continue };
        if all.len() + data.len() > MOST_BODY {
            return Ok(None);
        }
        match only.take() {
            None if all.is_empty() => only = Some(data),
            first => {
                all.extend_from_slice(&first.unwrap_or_default());
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(Some(only.unwrap_or_else(|| all.freeze())))
}

fn parse_object(body: &[u8], dialect: Dialect) -> Result<Map<String, Value>, Refusal> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(other) => {
            let input = crate::serve::json::python(&other);
            let problem = Problem {
                kind: "model_attributes_type",
                text: "Input should be a valid dictionary",
                input: &input,
            };
            Err(Refusal::schema(dialect, "", &problem))
        }
        Err(error) => {
            let input = format!("{{}}, 'ctx': {{'error': '{error}'}}");
            let problem = Problem { kind: "json_invalid", text: "JSON decode error", input: &input };
            Err(Refusal::schema(dialect, &error.column().to_string(), &problem))
        }
    }
}

/// A whole answer, with the headers that uvicorn puts on it.
pub(crate) fn respond(status: u16, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::Full(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(http::header::SERVER, http::HeaderValue::from_static("uvicorn"));
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
