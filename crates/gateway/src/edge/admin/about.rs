//! Pages that workers write: what a worker says about itself, and what is asked of all of them.

use std::collections::BTreeMap;

use baton_core::fault::{Fault, LegName, Refusal, read_refusal};
use baton_core::fleet::{Fleet, Seat, Status, Worker};
use http::Method;
use serde_json::{Value, json};

use super::Reply;
use crate::probe::{Silence, Target};
use crate::registry::{Checks, Registry};

/// The pages that are passed on, each with the name that other versions have for it.
const PAGES: [(&str, &str); 4] = [
    ("/get_server_info", "/server_info"),
    ("/server_info", "/get_server_info"),
    ("/get_model_info", "/model_info"),
    ("/model_info", "/get_model_info"),
];

/// `GET /get_server_info` and its like: the page of the first worker that is well and takes prompts in
/// (SMG 1.13).
///
/// # Errors
/// There is no such worker, it could not be asked, or it refused.
pub async fn worker_page(registry: &Registry, path: &str) -> Result<Reply, Fault> {
    let Some((name, other)) = PAGES.into_iter().find(|(name, _)| *name == path) else {
        return Err(Fault::UnknownUrl { method: "GET".to_owned(), path: path.to_owned() });
    };
    let worker = asked(&registry.fleet())?;
    let target = target(&worker, &registry.settings().checks);
    let unreachable =
        |e: Silence| Fault::Unreachable { leg: LegName::Prefill, cause: e.to_string().as_str().into() };
    let mut page = target.get(name).await.map_err(unreachable)?;
    if page.status == http::StatusCode::NOT_FOUND {
        page = target.get(other).await.map_err(unreachable)?;
    }
    if !page.status.is_success() {
        let refusal = read_refusal(page.status.as_u16(), &page.body, None, false);
        return Err(Fault::Proxied { refusal });
    }
    match String::from_utf8(page.body.to_vec()) {
        Ok(body) => Ok(Reply { status: page.status.as_u16(), headers: Vec::new(), body }),
        Err(_) => Err(Fault::Proxied { refusal: not_text() }),
    }
}

fn asked(fleet: &Fleet) -> Result<std::sync::Arc<Worker>, Fault> {
    let first = fleet.prefill().iter().map(|p| &p.seat).chain(fleet.whole());
    let well = first.filter(|s| s.pulse.status() == Status::Ready).map(|s| s.worker.clone()).next();
    let registered = !fleet.prefill().is_empty() || !fleet.whole().is_empty();
    well.ok_or(Fault::NoWorker { leg: LegName::Prefill, registered })
}

fn not_text() -> Refusal {
    Refusal { status: 502, message: "The worker's page is not UTF-8.".to_owned(), ..Refusal::default() }
}

/// Workers asked at once to flush.
const FLUSH_AT_ONCE: usize = 64;

/// `POST /flush_cache`: every worker that is well is told to forget its prefix cache. `timeout` is passed on:
/// SGLang without one flushes at once, transfers or not.
pub async fn flush_cache(registry: &Registry, query: Option<&str>) -> Reply {
    let path = query.map_or_else(|| "/flush_cache".to_owned(), |q| format!("/flush_cache?{q}"));
    let fleet = registry.load_full();
    let well = |s: &&std::sync::Arc<Seat>| s.pulse.status() == Status::Ready;
    // Ranks of one engine have one cache page.
    let engines: BTreeMap<&str, _> =
        fleet.seats().filter(well).map(|s| (s.worker.base_url(), s.worker.clone())).collect();
    let workers: Vec<_> = engines.into_values().collect();
    let checks = &registry.settings().checks;
    let (mut flushed, mut failed) = (Vec::new(), Vec::new());
    let mut left = workers.iter();
    loop {
        let batch: Vec<_> = left.by_ref().take(FLUSH_AT_ONCE).collect();
        if batch.is_empty() {
            break;
        }
        let mut asked = tokio::task::JoinSet::new();
        for worker in batch {
            let (target, path, url) = (target(worker, checks), path.clone(), worker.base_url().to_owned());
            asked.spawn(async move { (url, target.send(Method::POST, &path).await) });
        }
        while let Some(done) = asked.join_next().await {
            match done {
                Ok((url, Ok(reply))) if reply.status.is_success() => flushed.push(url),
                Ok((url, Ok(reply))) => {
                    failed.push(json!({"worker": url, "error": format!("answered {}", reply.status)}));
                }
                Ok((url, Err(e))) => failed.push(json!({"worker": url, "error": e.to_string()})),
                Err(_) => {}
            }
        }
    }
    flush_reply(flushed, failed, workers.len())
}

fn flush_reply(flushed: Vec<String>, failed: Vec<Value>, asked: usize) -> Reply {
    let all = failed.is_empty();
    let message = match all {
        true => format!("Successfully flushed cache on {asked} HTTP workers"),
        false => format!("Flushed cache on {} of {asked} HTTP workers", flushed.len()),
    };
    let mut body = json!({
        "status": if all { "success" } else { "partial_success" },
        "message": message,
        "workers_flushed": flushed.len(),
        "total_http_workers": asked,
        "total_grpc_workers": 0,
        "total_zmq_workers_skipped": 0,
        "total_workers": asked,
    });
    if let (false, Some(body)) = (all, body.as_object_mut()) {
        body.insert("successful".to_owned(), flushed.into());
        body.insert("failed".to_owned(), failed.into());
    }
    Reply::json(if all { 200 } else { 206 }, &body)
}

fn target(worker: &Worker, checks: &Checks) -> Target {
    Target { url: worker.base_url().to_owned(), api_key: worker.api_key.clone(), timeout: checks.timeout }
}
