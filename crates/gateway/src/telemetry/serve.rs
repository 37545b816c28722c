//! The metrics listener: `/metrics` and `/health` on a port of their own.
//!
//! Apart from the port that clients use, so that it can be closed to them, and so that it answers when that one is full.
//! At most [`MAX_SCRAPES`] connections are served at once, each for one request and at most [`SCRAPE_TIME`]; further ones
//! wait in the listen queue.

use std::convert::Infallible;
use std::sync::Arc;

use baton_core::fault::Fault;
use baton_core::time::Duration;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::Telemetry;

/// Connections of the metrics listener served at once.
pub const MAX_SCRAPES: usize = 16;

/// For one connection of the metrics listener.
const SCRAPE_TIME: Duration = Duration::from_secs(30);

/// Rest after a connection could not be accepted, so that a full file table is not asked in a loop.
const REST: Duration = Duration::from_millis(100);

/// Serves until it is dropped, and its connections with it.
pub async fn serve(listener: TcpListener, telemetry: Arc<Telemetry>) {
    let mut scrapes = JoinSet::new();
    loop {
        while scrapes.try_join_next().is_some() {}
        if scrapes.len() >= MAX_SCRAPES {
            scrapes.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let scrape = connection(stream, Arc::clone(&telemetry));
                scrapes.spawn(tokio::time::timeout(SCRAPE_TIME, scrape));
            }
            Err(error) => {
                tracing::warn!(%error, "the metrics listener could not accept a connection");
                tokio::time::sleep(REST).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, telemetry: Arc<Telemetry>) {
    let service = service_fn(move |request| {
        let telemetry = Arc::clone(&telemetry);
        async move { Ok::<_, Infallible>(respond(&request, telemetry).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(SCRAPE_TIME)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a scrape broke off");
    }
}

async fn respond<B>(request: &Request<B>, telemetry: Arc<Telemetry>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    match path {
        "/metrics" if reading => {
            // Milliseconds on a large fleet: off the threads that carry streams.
            let text = tokio::task::spawn_blocking(move || telemetry.render()).await;
            good(super::CONTENT_TYPE, text.unwrap_or_default())
        }
        "/health" if reading => good("text/plain", "OK\n".to_owned()),
        "/metrics" | "/health" => refuse(&Fault::MethodNotAllowed { allow: "GET" }),
        _ => refuse(&Fault::UnknownUrl { method: request.method().to_string(), path: path.to_owned() }),
    }
}

fn good(content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn refuse(fault: &Fault) -> Response<Full<Bytes>> {
    let answer = fault.answer();
    let mut response = good("text/plain", answer.message + "\n");
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or_default();
    if let Some(allow) = answer.allow {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}
