//! The admin API: workers, models, readiness.
//!
//! Paths, JSON and codes are SMG's (1.13), so that its tools work here. Its errors have a shape of
//! their own, `{"error": text, "code": CODE}`; what is no matter of workers (no such path, wrong method) is a
//! [`Fault`] as everywhere. Nothing here waits for a worker, but for the pages in [`about`] that workers
//! write: a change is answered with 202 as soon as it is in the list, and carried out by the registry.
//!
//! It does not know who may call it: whoever mounts it checks the key first.

mod about;
mod models;
mod ready;
mod show;

use baton_core::fault::Fault;
use bytes::Bytes;
use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::json;

pub use about::{flush_cache, worker_page};
pub use models::{model, models};
pub use ready::readiness;

use crate::discovery::written;
use crate::registry::{Patch, Refused, Registry, Spec};

/// Most of a request's body. A worker with all its labels at their longest fits.
pub const BODY_MAX_BYTES: usize = 1 << 20;

/// An answer with a JSON body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl Reply {
    fn json(status: u16, body: &serde_json::Value) -> Reply {
        Reply { status, headers: Vec::new(), body: body.to_string() }
    }

    fn error(status: u16, code: &str, text: impl Into<String>) -> Reply {
        Reply::json(status, &json!({"error": text.into(), "code": code}))
    }

    fn bad(text: impl Into<String>) -> Reply {
        Reply::error(400, "BAD_REQUEST", text)
    }
}

/// Answers `/workers` and what is below it.
///
/// # Errors
/// The path or the method is none of this API's.
pub fn handle(
    registry: &Registry,
    method: &Method,
    path: &str,
    query: Option<&str>,
    body: &Bytes,
) -> Result<Reply, Fault> {
    let unknown = || Fault::UnknownUrl { method: method.to_string(), path: path.to_owned() };
    let below = path.strip_prefix("/workers").ok_or_else(unknown)?;
    if body.len() > BODY_MAX_BYTES {
        let text = format!("The body is larger than {BODY_MAX_BYTES} bytes");
        return Ok(Reply::error(413, "PAYLOAD_TOO_LARGE", text));
    }
    match below.strip_prefix('/') {
        None if !below.is_empty() => Err(unknown()),
        None | Some("") => match *method {
            Method::GET | Method::HEAD => Ok(list(registry, query)),
            Method::POST => Ok(create(registry, body).unwrap_or_else(|refused| refused)),
            _ => Err(Fault::MethodNotAllowed { allow: "GET, POST" }),
        },
        // A worker's URL has slashes, and some clients leave them as they are.
        Some(key) => one(registry, method, key, body),
    }
}

fn one(registry: &Registry, method: &Method, key: &str, body: &Bytes) -> Result<Reply, Fault> {
    let allowed = [Method::GET, Method::HEAD, Method::PUT, Method::PATCH, Method::DELETE];
    if !allowed.contains(method) {
        return Err(Fault::MethodNotAllowed { allow: "GET, PUT, PATCH, DELETE" });
    }
    let ids = match find(registry, key) {
        Ok(ids) => ids,
        Err(reply) => return Ok(reply),
    };
    let first = ids.first().map_or("", String::as_str);
    let each = |f: &dyn Fn(&str) -> Result<(), Refused>| ids.iter().try_for_each(|id| f(id)).map_err(refused);
    let done = match *method {
        Method::PUT if registry.settings().dp_aware => Err(Reply::bad(
            "With --dp-aware a worker cannot be described anew: PATCH it, or remove it and add it again",
        )),
        Method::PUT => read_spec(body).and_then(|spec| registry.replace(first, spec).map_err(refused)),
        Method::PATCH => read_patch(body).and_then(|patch| each(&|id| registry.patch(id, patch.clone()))),
        Method::DELETE => each(&|id| registry.remove(id)),
        _ => return Ok(get(registry, first)),
    };
    let word = if *method == Method::DELETE { "removal" } else { "update" };
    Ok(done.map_or_else(|refused| refused, |()| accepted(first, word)))
}

fn list(registry: &Registry, query: Option<&str>) -> Reply {
    let model = query.and_then(|q| parameter(q, "model"));
    let workers = registry.list();
    let shown = workers.iter().filter(|w| {
        let served = &w.seat.worker.models;
        model.as_ref().is_none_or(|model| served.contains(model))
    });
    show::list(shown)
}

fn get(registry: &Registry, id: &str) -> Reply {
    match registry.list().iter().find(|w| w.id == id) {
        Some(worker) => show::worker(worker),
        None => refused(Refused::Unknown),
    }
}

fn create(registry: &Registry, body: &Bytes) -> Result<Reply, Reply> {
    let spec = read_spec(body)?;
    let url = spec.url.clone();
    let id = registry.add(spec).map_err(refused)?;
    let location = format!("/workers/{id}");
    let body = json!({
        "status": "accepted",
        "worker_id": id,
        "url": url,
        "location": location,
        "message": "Worker addition queued for background processing",
    });
    Ok(Reply { headers: vec![("location", location)], ..Reply::json(202, &body) })
}

/// A worker of a request's body. Fields that nobody knows are ignored, as SMG does; those of SMG's that have no effect
/// here are named in the log, so that nobody relies on them.
fn read_spec(body: &Bytes) -> Result<Spec, Reply> {
    let written = written::worker(body).map_err(Reply::bad)?;
    if !written.idle.is_empty() {
        let (url, fields) = (&written.spec.url, &written.idle);
        tracing::warn!(url, ?fields, "a worker is registered with fields that have no effect");
    }
    Ok(written.spec)
}

fn read_patch(body: &Bytes) -> Result<Patch, Reply> {
    written::patch(body).map_err(Reply::bad)
}

fn accepted(id: &str, word: &str) -> Reply {
    let message = format!("Worker {word} queued for background processing");
    Reply::json(202, &json!({"status": "accepted", "worker_id": id, "message": message}))
}

/// The worker with this id or at this URL, or all ranks of the engine at this URL: never nobody.
fn find(registry: &Registry, key: &str) -> Result<Vec<String>, Reply> {
    let key = percent_decode_str(key).decode_utf8_lossy();
    let found = registry.find(&key);
    if !found.is_empty() {
        return Ok(found);
    }
    match uuid::Uuid::parse_str(&key).is_ok() || key.contains("://") {
        true => Err(refused(Refused::Unknown)),
        false => Err(Reply::bad(format!("{key:?} is neither a worker's id (a UUID) nor its URL"))),
    }
}

fn refused(refused: Refused) -> Reply {
    let (status, code) = match &refused {
        Refused::Exists { .. } => (409, "WORKER_ALREADY_EXISTS"),
        Refused::Joining { .. } => (409, "WORKER_CREATE_IN_PROGRESS"),
        Refused::OtherUrl { .. } => (400, "BAD_REQUEST"),
        Refused::Unknown => (404, "WORKER_NOT_FOUND"),
        Refused::TooMany { .. } => (503, "TOO_MANY_WORKERS"),
        Refused::Busy => (503, "JOB_QUEUE_FULL"),
        Refused::Closing => (503, "SHUTTING_DOWN"),
    };
    Reply::error(status, code, refused.to_string())
}

/// The decoded value of a query's parameter.
fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1;
    let value = value.replace('+', " ");
    Some(percent_decode_str(&value).decode_utf8_lossy().into_owned()).filter(|v| !v.is_empty())
}

#[cfg(test)]
mod tests;
