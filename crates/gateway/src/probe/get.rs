//! One small question to a worker over HTTP, bounded in time and size.
//!
//! Each question has a connection of its own: what a probe is to find out is whether the worker takes
//! connections now, which a pooled one cannot say. There are a few in a minute for each worker.

use std::time::Duration;

use baton_core::fleet::Secret;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::upstream::tls_config;

/// Most of an answer that is read. SGLang's `/server_info` has some tens of KiB.
pub const ANSWER_MAX_BYTES: usize = 1 << 20;

/// Whom to ask, and how long to wait for the whole answer.
#[derive(Clone, Debug)]
pub struct Target {
    /// The worker's base URL, without a trailing slash.
    pub url: String,
    pub api_key: Option<Secret>,
    pub timeout: Duration,
}

/// What came back, whatever its status.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: http::StatusCode,
    pub content_type: Option<String>,
    pub body: Bytes,
}

/// Why nothing came back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// Nothing listens there, or it hung up at once.
    #[error("connection refused or lost: {0}")]
    Refused(String),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("unusable answer: {0}")]
    Unusable(String),
}

impl Target {
    /// # Errors
    /// The worker could not be reached, was late, or its answer is not HTTP or too large.
    pub async fn get(&self, path: &str) -> Result<Reply, Silence> {
        self.send(Method::GET, path).await
    }

    /// # Errors
    /// As [`Target::get`].
    pub async fn send(&self, method: Method, path: &str) -> Result<Reply, Silence> {
        self.within(method, path, String::new()).await
    }

    /// # Errors
    /// As [`Target::get`].
    pub async fn post(&self, path: &str, json: String) -> Result<Reply, Silence> {
        self.within(Method::POST, path, json).await
    }

    async fn within(&self, method: Method, path: &str, json: String) -> Result<Reply, Silence> {
        let all = Box::pin(self.exchange(method, path, json));
        tokio::time::timeout(self.timeout, all).await.unwrap_or(Err(Silence::Late(self.timeout)))
    }

    async fn exchange(&self, method: Method, path: &str, json: String) -> Result<Reply, Silence> {
        let unusable = |e: &dyn std::fmt::Display| Silence::Unusable(e.to_string());
        let uri: Uri = format!("{}{path}", self.url).parse().map_err(|e| unusable(&e))?;
        let stream = dial(&uri).await?;
        let request = self.request(method, &uri, json).map_err(|e| unusable(&e))?;
        converse(stream, request).await
    }

    fn request(&self, method: Method, uri: &Uri, json: String) -> Result<Request<Full<Bytes>>, http::Error> {
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        let host = uri.authority().map_or("", |a| a.as_str());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close");
        if let Some(key) = &self.api_key {
            request = request.header(header::AUTHORIZATION, bearer(key)?);
        }
        if !json.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(Bytes::from(json)))
    }
}

/// A connection of either kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects to the worker that a URL names.
pub(super) async fn dial(uri: &Uri) -> Result<Box<dyn Stream>, Silence> {
    let unusable = |e: &dyn std::fmt::Display| Silence::Unusable(e.to_string());
    let host = uri.host().ok_or_else(|| unusable(&"the URL has no host"))?;
    let tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let tcp = TcpStream::connect((bare, port)).await.map_err(|e| Silence::Refused(e.to_string()))?;
    if !tls {
        return Ok(Box::new(tcp));
    }
    let name = ServerName::try_from(bare.to_owned()).map_err(|e| unusable(&e))?;
    let stream = TlsConnector::from(tls_config()).connect(name, tcp).await.map_err(|e| unusable(&e))?;
    Ok(Box::new(stream))
}

/// A worker's own key as a header.
pub(super) fn bearer(key: &Secret) -> Result<HeaderValue, http::Error> {
    let mut bearer = HeaderValue::try_from(format!("Bearer {}", key.reveal()))?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

async fn converse(stream: Box<dyn Stream>, request: Request<Full<Bytes>>) -> Result<Reply, Silence> {
    let lost = |e: hyper::Error| Silence::Refused(e.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(lost)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await;
        let body = body.map_err(|e| Silence::Unusable(e.to_string()))?.to_bytes();
        let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        Ok(Reply { status: head.status, content_type: content_type.map(str::to_owned), body })
    };
    // The connection is driven here and not in a task of its own: it ends with the question.
    tokio::pin!(answer);
    tokio::select! {
        biased;
        done = &mut answer => return done,
        _ = connection => {}
    }
    answer.await
}
