//! Ordinary clients: one request a connection, several on one, and streams read piece by piece.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::{BOUND, within};

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The body broke off.
    pub broken: bool,
}

impl Reply {
    pub async fn get(address: SocketAddr, path: &str) -> Reply {
        Line::open(address).await.send(request(Method::GET, path, &[], Bytes::new())).await
    }

    pub async fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
        Reply::post_with(address, path, &[], body).await
    }

    pub async fn post_with(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let body = Bytes::from(body.to_string());
        Line::open(address).await.send(request(Method::POST, path, headers, body)).await
    }

    pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
        Line::open(address).await.send(request).await
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }

    /// Status and code of an error answer, which must agree in body and header.
    pub fn error(&self) -> (u16, String) {
        let code = self.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
        assert_eq!(self.header("x-smg-error-code"), code, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/json");
        (self.status, code)
    }

    /// The data of all events, the end mark left out.
    pub fn events(&self) -> Vec<Value> {
        events(&self.text())
    }

    /// The code of the error event that a cut stream ends with.
    pub fn cut_code(&self) -> String {
        let text = self.text();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        self.events().last().map_or("", |e| e["error"]["code"].as_str().unwrap_or("")).to_owned()
    }
}

/// The data of all events in this text, the end mark left out.
pub fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"))).collect()
}

pub fn request(method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "gateway");
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body)).unwrap()
}

/// One connection for several requests.
pub struct Line {
    send: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Line {
    pub async fn open(address: SocketAddr) -> Line {
        let tcp = within(BOUND, "connecting", TcpStream::connect(address)).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        Line::over(tcp).await
    }

    pub async fn over(wire: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Line {
        let (send, connection) = http1::handshake(TokioIo::new(wire)).await.unwrap();
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Line { send, task }
    }

    /// The whole answer. Panics if none came.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Reply {
        self.try_send(request).await.unwrap()
    }

    pub async fn try_send(&mut self, request: Request<Full<Bytes>>) -> Result<Reply, hyper::Error> {
        let answered = within(BOUND, "the answer's head", self.send.send_request(request)).await?;
        let (head, body) = answered.into_parts();
        let (body, broken) = within(BOUND, "the answer's body", whole(body)).await;
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body, broken })
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.send(request(Method::POST, path, &[], Bytes::from(body.to_string()))).await
    }

    /// The answer's head, and its body piece by piece. Dropping the stream closes the connection.
    pub async fn stream(mut self, request: Request<Full<Bytes>>) -> Streamed {
        let answered = within(BOUND, "the answer's head", self.send.send_request(request)).await.unwrap();
        let (head, body) = answered.into_parts();
        Streamed {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            got: BytesMut::new(),
            line: self,
        }
    }

    /// Waits until the other side has closed the connection.
    pub async fn closed(&self) {
        super::until_within(super::SOON, "the connection is closed", || self.send.is_closed()).await;
    }
}

async fn whole(mut body: Incoming) -> (Bytes, bool) {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => all.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(_) => return (all.freeze(), true),
        }
    }
    (all.freeze(), false)
}

/// An answer that is being read.
pub struct Streamed {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    got: BytesMut,
    line: Line,
}

impl Streamed {
    pub async fn post(address: SocketAddr, path: &str, body: &Value) -> Streamed {
        let body = Bytes::from(body.to_string());
        Line::open(address).await.stream(request(Method::POST, path, &[], body)).await
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.got).into_owned()
    }

    /// Reads until this text has come.
    pub async fn read_until(&mut self, text: &str) {
        while !self.text().contains(text) {
            let frame = within(BOUND, text, self.body.frame()).await;
            let Some(Ok(frame)) = frame else { panic!("the end came before {text:?}: {}", self.text()) };
            self.got.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }

    /// Reads until this many events have come, comments not counted.
    pub async fn read_events(&mut self, count: usize) {
        while self.text().matches("data: ").count() < count {
            let frame = within(BOUND, "another event", self.body.frame()).await;
            let Some(Ok(frame)) = frame else { panic!("the end came early: {}", self.text()) };
            self.got.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }

    /// Reads to the end.
    pub async fn rest(mut self) -> Reply {
        let (rest, broken) = within(BOUND, "the rest of the answer", whole(self.body)).await;
        self.got.extend_from_slice(&rest);
        Reply { status: self.status, headers: self.headers, body: self.got.freeze(), broken }
    }

    /// Closes the connection in the middle.
    pub fn leave(self) {}
}
