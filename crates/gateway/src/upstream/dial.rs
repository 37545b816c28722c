//! Where a worker is, and a new connection to it.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_core::ask::Api;
use baton_core::fleet::Worker;
use baton_core::tokenize;
use http::{HeaderValue, Uri};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::bell::Bell;
use super::link::Link;
use super::stream::{Stream, Wire};
use super::{LegBody, Lost};

/// Silence after which the kernel asks whether the worker's host is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// What a worker is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To serve a request.
    Api(Api),
    /// What it makes of a prompt.
    Tokenize,
}

/// A worker's address, worked out once.
#[derive(Debug)]
pub struct Address {
    /// `host:port`, as it is dialled.
    dial: String,
    /// For TLS: the name to verify.
    tls: Option<String>,
    pub host: HeaderValue,
    /// Each API's route, behind the path that the worker's URL adds before every route.
    routes: [Uri; Api::ALL.len()],
    tokenize: Uri,
    /// The worker's own key.
    pub authorization: Option<HeaderValue>,
}

impl Address {
    /// # Errors
    /// What is wrong with the worker's URL or key.
    pub fn of(worker: &Worker) -> Result<Address, Lost> {
        let uri: http::Uri = worker.base_url().parse().map_err(Lost::before)?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(Lost::before("the worker's URL is neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| Lost::before("the worker's URL has no host"))?;
        let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
        let host = authority.host();
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let key = worker.api_key.as_ref().map(|k| HeaderValue::try_from(format!("Bearer {}", k.reveal())));
        let authorization = key.transpose().map_err(Lost::before)?.map(|mut v| {
            v.set_sensitive(true);
            v
        });
        let prefix = uri.path().trim_end_matches('/');
        let mut routes = <[Uri; Api::ALL.len()]>::default();
        for api in Api::ALL {
            routes[api as usize] = format!("{prefix}{}", api.path()).parse().map_err(Lost::before)?;
        }
        let tokenize = format!("{prefix}{}", tokenize::PATH).parse().map_err(Lost::before)?;
        Ok(Address {
            dial: format!("{host}:{port}"),
            tls: https.then_some(name),
            host: HeaderValue::try_from(authority.as_str()).map_err(Lost::before)?,
            routes,
            tokenize,
            authorization,
        })
    }

    pub fn route(&self, route: Route) -> &Uri {
        match route {
            Route::Api(api) => &self.routes[api as usize],
            Route::Tokenize => &self.tokenize,
        }
    }

    /// A fresh connection, within `timeout`.
    pub async fn connect(&self, timeout: Duration) -> Result<Link, Lost> {
        match tokio::time::timeout(timeout, self.open()).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(e)) => Err(Lost::before(e)),
            Err(_) => {
                let cause = format!("no connection within {} s", timeout.as_secs_f64());
                Err(Lost { late: true, ..Lost::before(cause) })
            }
        }
    }

    async fn open(&self) -> io::Result<Link> {
        let tcp = TcpStream::connect(&self.dial).await?;
        tcp.set_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket2::SockRef::from(&tcp).set_tcp_keepalive(&keepalive)?;
        let wire = match &self.tls {
            None => Wire::Plain(tcp),
            Some(name) => {
                let name = ServerName::try_from(name.clone()).map_err(io::Error::other)?;
                let connector = TlsConnector::from(tls_config());
                Wire::Tls(Box::new(connector.connect(name, tcp).await?))
            }
        };
        let bell = Bell::new();
        let io = TokioIo::new(Stream::new(wire, bell.clone()));
        let (send, conn) = http1::Builder::new()
            .max_buf_size(1 << 20)
            .handshake::<_, LegBody>(io)
            .await
            .map_err(io::Error::other)?;
        Ok(Link::new(send, conn, bell))
    }
}

/// Trusts the roots that browsers trust.
pub(crate) fn tls_config() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let make = || {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
    };
    CONFIG.get_or_init(make).clone()
}
