//! Every route that is not a generation request: probes, models, workers, what the gateway says of itself.

use baton_core::exchange::Outcome;
use baton_core::fault::{Fault, Shape};
use baton_core::record::Record;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use super::answer::{self, Reply};
use super::http::Desk;
use super::{admin, intake};
use crate::recent;

const MODEL: &str = "/v1/models/";
const RECENT: &str = "/debug/requests";

/// Routes of APIs that a prefill/decode gateway does not serve (page, "Supported APIs"; SMG 1.13), and all
/// below them, with what to do instead.
const NOT_SERVED: [(&str, &str); 13] = [
    ("/v1/embeddings", DIRECTLY),
    ("/v1/classify", DIRECTLY),
    ("/v1/score", DIRECTLY),
    ("/v1/audio", DIRECTLY),
    ("/v1/realtime", DIRECTLY),
    ("/v1/interactions", DIRECTLY),
    ("/v1/decisions", DIRECTLY),
    ("/v1/systemone", DIRECTLY),
    ("/v1/tokenize", DIRECTLY),
    ("/v1/detokenize", DIRECTLY),
    ("/v1/responses", STORED),
    ("/v1/conversations", STORED),
    ("/v1/messages/batches", "Send each request of the batch to POST /v1/messages."),
];
const DIRECTLY: &str = "Ask a worker that serves it directly; GET /workers lists them.";
const STORED: &str = "Stored responses belong to the engine that made them: ask the worker that \
                      x-smg-routed-worker-id named in its answer.";

fn not_served(path: &str) -> Option<&'static str> {
    let is_below =
        |stem: &str| path.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    NOT_SERVED.iter().find(|(stem, _)| is_below(stem)).map(|(_, advice)| *advice)
}

pub async fn route(desk: &Desk, parts: Parts, body: Incoming) -> Reply {
    let anthropic =
        parts.headers.contains_key("anthropic-version") || parts.uri.path().starts_with("/v1/messages/");
    let shape = if anthropic { Shape::Anthropic } else { Shape::OpenAi };
    let mut record = Record {
        request_id: desk.request_id("req-", &parts.headers),
        method: method(&parts.method),
        path: parts.uri.path().to_owned().into(),
        outcome: Outcome::Served,
        ..Record::default()
    };
    record.moments.received = desk.lane.clock.now();
    let answered = match find(&parts, desk) {
        Ok(Route::Public(page)) => public(desk, page, &parts, shape).await,
        Ok(Route::Guarded(page)) => guarded(desk, page, &parts, body).await,
        Err(fault) => Err(fault),
    };
    let reply = answered.unwrap_or_else(|fault| {
        record.outcome = Outcome::Failed;
        record.blame(&fault);
        answer::fault(&fault, shape, &record.request_id)
    });
    record.status = reply.status().as_u16();
    record.moments.ended = desk.lane.clock.now();
    desk.gateway.telemetry.record(&record);
    reply
}

/// The method's name for the metrics, where an invented one must not make a series of its own.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|name| *name == method.as_str()).unwrap_or("other")
}

/// What the listener for probes answers: everything else is a page that it does not have.
pub fn probe(desk: &Desk, parts: &Parts) -> Reply {
    let (method, path) = (&parts.method, parts.uri.path());
    let fault = match path {
        "/liveness" | "/health" | "/readiness" if !(method == Method::GET || method == Method::HEAD) => {
            Fault::MethodNotAllowed { allow: "GET, HEAD" }
        }
        "/liveness" | "/health" => return answer::text(answer::OK, "OK"),
        "/readiness" => return given(admin::readiness(&desk.gateway.registry)),
        _ => Fault::UnknownUrl { method: method.to_string(), path: path.to_owned() },
    };
    answer::fault(&fault, Shape::OpenAi, &desk.request_id("req-", &parts.headers))
}

/// Open to everybody, so that probes and clients' model lists work without the key (SMG 1.13).
enum Public {
    Alive,
    Ready,
    Models,
    /// `/v1/models/` and a name.
    Model,
    WorkerPage,
}

/// Behind the key.
enum Guarded {
    Workers,
    FlushCache,
    Config,
    /// The last exchanges.
    Recent,
}

enum Route {
    Public(Public),
    Guarded(Guarded),
}

fn find(parts: &Parts, desk: &Desk) -> Result<Route, Fault> {
    let (method, path) = (&parts.method, parts.uri.path());
    let page = match path {
        "/liveness" | "/health" => Public::Alive,
        "/readiness" => Public::Ready,
        "/v1/models" => Public::Models,
        "/get_server_info" | "/server_info" | "/get_model_info" | "/model_info" => Public::WorkerPage,
        _ if path.starts_with(MODEL) => Public::Model,
        "/workers" => return Ok(Route::Guarded(Guarded::Workers)),
        _ if path.starts_with("/workers/") => return Ok(Route::Guarded(Guarded::Workers)),
        "/flush_cache" if method == Method::POST => return Ok(Route::Guarded(Guarded::FlushCache)),
        "/flush_cache" => return Err(Fault::MethodNotAllowed { allow: "POST" }),
        "/debug/config" if desk.gateway.debug_endpoints => return Ok(Route::Guarded(Guarded::Config)),
        _ if is_recent(path) && desk.gateway.debug_requests > 0 => {
            return match method {
                &Method::GET | &Method::HEAD => Ok(Route::Guarded(Guarded::Recent)),
                _ => Err(Fault::MethodNotAllowed { allow: "GET, HEAD" }),
            };
        }
        _ => {
            let (method, route) = (method.to_string(), path.to_owned());
            return Err(match not_served(path) {
                Some(advice) => Fault::NotServed { route, advice },
                None => Fault::UnknownUrl { method, path: route },
            });
        }
    };
    if method == Method::GET || method == Method::HEAD {
        return Ok(Route::Public(page));
    }
    Err(Fault::MethodNotAllowed { allow: "GET, HEAD" })
}

fn is_recent(path: &str) -> bool {
    path.strip_prefix(RECENT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn public(desk: &Desk, page: Public, parts: &Parts, shape: Shape) -> Result<Reply, Fault> {
    let (registry, path) = (&desk.gateway.registry, parts.uri.path());
    match page {
        Public::Alive => Ok(answer::text(answer::OK, "OK")),
        Public::Ready => Ok(given(admin::readiness(registry))),
        Public::Models => admin::models(&registry.fleet(), shape).map(given),
        Public::Model => admin::model(&registry.fleet(), &path[MODEL.len()..], shape).map(given),
        Public::WorkerPage => admin::worker_page(registry, path).await.map(given),
    }
}

async fn guarded(desk: &Desk, page: Guarded, parts: &Parts, body: Incoming) -> Result<Reply, Fault> {
    desk.authorize(&parts.headers)?;
    let registry = &desk.gateway.registry;
    match page {
        Guarded::Config => Ok(answer::json(answer::OK, desk.gateway.description.to_string())),
        Guarded::Recent => recent_page(desk, parts),
        Guarded::FlushCache => Ok(given(admin::flush_cache(registry, parts.uri.query()).await)),
        Guarded::Workers => {
            let stall = desk.gateway.timeouts.body_stall;
            let body = intake::collect(body, admin::BODY_MAX_BYTES as u64 + 1, stall, &desk.line);
            let bytes = desk.unless_stopping(body).await?;
            admin::handle(registry, &parts.method, parts.uri.path(), parts.uri.query(), &bytes).map(given)
        }
    }
}

/// What the lanes keep: all of it in brief, or one exchange by its id.
fn recent_page(desk: &Desk, parts: &Parts) -> Result<Reply, Fault> {
    let lanes = desk.gateway.lanes.get().map_or(&[][..], Vec::as_slice);
    let (rings, now) = (lanes.iter().map(|lane| &lane.recent), desk.lane.clock.now());
    let path = parts.uri.path();
    let body = match path[RECENT.len()..].trim_start_matches('/') {
        "" => Some(recent::list(rings, now)),
        id => recent::one(rings, &percent_decode_str(id).decode_utf8_lossy(), now),
    };
    let unknown = || Fault::UnknownUrl { method: parts.method.to_string(), path: path.to_owned() };
    body.map(|body| answer::json(answer::OK, body.to_string())).ok_or_else(unknown)
}

/// An answer that the admin functions made.
fn given(made: admin::Reply) -> Reply {
    let mut reply = answer::json(made.status, made.body);
    for (name, value) in made.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            reply.headers_mut().insert(name, value);
        }
    }
    reply
}
