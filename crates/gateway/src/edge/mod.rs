//! The edge: client connections, routes, answers.

pub mod admin;
pub mod answer;
pub mod client;
pub mod hints;
pub mod http;
mod intake;
pub mod named;
mod plain;
pub mod tls;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use baton_core::time::Duration;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use self::client::{ClientIo, ClientWire, Line};
use self::http::Desk;
use crate::gateway::Gateway;
use crate::lane::Lane;

/// Which listener a connection came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Clients,
    /// `--health-check-port`: probes, and nothing else.
    Probes,
}

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves one client connection to its end.
pub async fn connection(
    gateway: Arc<Gateway>,
    lane: Arc<Lane>,
    tcp: TcpStream,
    tls: Option<tls::Acceptor>,
    door: Door,
) {
    let line = Arc::new(Line::default());
    line.turn(client::Phase::Idle, lane.clock.now());
    let id = lane.join(&line);
    if let Some(wire) = greet(tcp, tls).await {
        let desk = Desk { gateway, lane: lane.clone(), line: line.clone(), door };
        serve(desk, wire).await;
    }
    lane.leave(id);
}

async fn greet(tcp: TcpStream, tls: Option<tls::Acceptor>) -> Option<ClientWire> {
    tcp.set_nodelay(true).ok()?;
    match tls {
        None => Some(ClientWire::Plain(tcp)),
        Some(acceptor) => match tokio::time::timeout(HANDSHAKE, acceptor.accept(tcp)).await {
            Ok(Ok(stream)) => Some(ClientWire::Tls(Box::new(stream))),
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake failed");
                None
            }
            Err(_) => None,
        },
    }
}

async fn serve(desk: Desk, wire: ClientWire) {
    let line = desk.line.clone();
    let io = TokioIo::new(ClientIo::new(wire, line.clone(), desk.lane.clock));
    let service = service_fn(move |request| {
        let desk = desk.clone();
        // Before the connection is looked at again: what comes on it from now on is read as of a busy one.
        desk.begin(&request);
        async move { Ok::<_, Infallible>(desk.serve(request).await) }
    });
    // No `pipeline_flush`: with it hyper takes all that the worker sends, however slow the client reads.
    let conn = http1::Builder::new().half_close(false).serve_connection(io, service);
    let mut conn = pin!(conn);
    let mut closing = false;
    let ended = poll_fn(|cx| {
        line.remember(cx);
        if line.is_cut() {
            return Poll::Ready(Ok(()));
        }
        if line.is_doomed() && !closing {
            closing = true;
            if line.phase() == client::Phase::Head {
                return Poll::Ready(Ok(()));
            }
            conn.as_mut().graceful_shutdown();
        }
        conn.as_mut().poll(cx)
    })
    .await;
    if let Err(error) = ended {
        tracing::debug!(%error, "client connection ended");
    }
}
