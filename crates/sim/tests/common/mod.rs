//! A small HTTP client for the tests, and the two ways in which a pair is used.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::SocketAddr;

use baton_sim::EngineHandle;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

pub struct Reply {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The message of an error in any of the engines' shapes.
    pub fn message(&self) -> String {
        let json = self.json();
        let nested = json["error"]["message"].as_str();
        let message = nested.or_else(|| json["message"].as_str()).or_else(|| json["detail"].as_str());
        message.unwrap_or_default().to_owned()
    }

    /// The text of the first choice.
    pub fn text(&self) -> String {
        let json = self.json();
        let choice = &json["choices"][0];
        let text = choice["text"].as_str().or_else(|| choice["message"]["content"].as_str());
        text.or_else(|| json["text"].as_str()).unwrap_or_default().to_owned()
    }

    /// The data of all events, without the end mark.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// The text of a streamed answer, all choices in one.
    pub fn streamed(&self) -> String {
        let mut text = String::new();
        for event in self.events() {
            for choice in event["choices"].as_array().into_iter().flatten() {
                let piece = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
                text.push_str(piece.unwrap_or_default());
            }
        }
        text
    }
}

/// Sends a request on a connection of its own and returns the answer's head.
pub async fn open(addr: SocketAddr, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
    let stream = TcpStream::connect(addr).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(|error| error.to_string())
}

pub async fn send(addr: SocketAddr, request: Request<Full<Bytes>>) -> Result<Reply, String> {
    let response = open(addr, request).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
}

pub fn request(path: &str, body: &Value) -> Request<Full<Bytes>> {
    request_with(path, body, &[])
}

pub fn request_with(path: &str, body: &Value, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut builder = Request::post(path).header("host", "sim").header("content-type", "application/json");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(Bytes::from(body.to_string()))).unwrap()
}

pub async fn post(engine: &EngineHandle, path: &str, body: &Value) -> Reply {
    send(engine.addr(), request(path, body)).await.unwrap()
}

pub async fn post_with(engine: &EngineHandle, path: &str, body: &Value, headers: &[(&str, &str)]) -> Reply {
    send(engine.addr(), request_with(path, body, headers)).await.unwrap()
}

pub async fn get(engine: &EngineHandle, path: &str) -> Reply {
    let request = Request::get(path).header("host", "sim").body(Full::new(Bytes::new())).unwrap();
    send(engine.addr(), request).await.unwrap()
}

/// `body` with more members.
pub fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The prefill leg of a vLLM request.
pub async fn vllm_prefill(prefill: &EngineHandle, path: &str, body: &Value) -> Value {
    let leg = with(
        body,
        json!({"stream": false, "max_tokens": 1,
               "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false}}),
    );
    let reply = post(prefill, path, &leg).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["kv_transfer_params"].clone()
}

/// Both legs of a vLLM request, one after the other.
pub async fn vllm_pair(prefill: &EngineHandle, decode: &EngineHandle, path: &str, body: &Value) -> Reply {
    let params = vllm_prefill(prefill, path, body).await;
    post(decode, path, &with(body, json!({"kv_transfer_params": params}))).await
}

/// `body` with a room on `prefill`.
pub fn in_room(prefill: &EngineHandle, body: &Value, room: u64) -> Value {
    with(
        body,
        json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.bootstrap_port(), "bootstrap_room": room}),
    )
}

/// Both legs of an SGLang request at once: the prefill engine's answer, then the decode engine's.
pub async fn sglang_pair(
    prefill: &EngineHandle,
    decode: &EngineHandle,
    path: &str,
    body: &Value,
) -> (Reply, Reply) {
    tokio::join!(post(prefill, path, body), post(decode, path, body))
}

/// The members that make a Mooncake prefill leg.
pub fn give(transfer: &str) -> Value {
    json!({"stream": false, "max_tokens": 1,
           "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer}})
}

/// The members that make a Mooncake decode leg.
pub fn take(prefill: &EngineHandle, engine_id: &str, transfer: &str) -> Value {
    let at = format!("http://127.0.0.1:{}", prefill.bootstrap_port().unwrap());
    json!({"kv_transfer_params": {"do_remote_decode": false, "do_remote_prefill": true, "transfer_id": transfer,
           "remote_engine_id": engine_id, "remote_bootstrap_addr": at}})
}
