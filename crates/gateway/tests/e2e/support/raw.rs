//! A client that writes and reads bytes as they are: for halves of requests, resets, and silence.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{BOUND, Reply, within};

/// One TCP connection, and what came on it.
pub struct Raw {
    tcp: TcpStream,
    pub got: Vec<u8>,
}

impl Raw {
    pub async fn open(address: SocketAddr) -> Raw {
        let tcp = within(BOUND, "connecting", TcpStream::connect(address)).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        Raw { tcp, got: Vec::new() }
    }

    /// Opens and writes a request with a JSON body, the only one on this connection.
    pub async fn post(address: SocketAddr, path: &str, body: &str) -> Raw {
        let mut raw = Raw::open(address).await;
        raw.say(&format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        raw
    }

    pub async fn say(&mut self, text: &str) {
        self.say_bytes(text.as_bytes()).await;
    }

    pub async fn say_bytes(&mut self, bytes: &[u8]) {
        within(BOUND, "writing", self.tcp.write_all(bytes)).await.unwrap();
    }

    /// Writes, unless the other side is gone already. Whether it could.
    pub async fn try_say(&mut self, text: &str) -> bool {
        within(BOUND, "writing", self.tcp.write_all(text.as_bytes())).await.is_ok()
    }

    /// Closes the sending half; the answer can still be read.
    pub async fn half_close(&mut self) {
        within(BOUND, "closing", self.tcp.shutdown()).await.unwrap();
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        self.tcp.set_zero_linger().unwrap();
    }

    /// Reads more. False at the end, also where the end was a reset.
    pub async fn more(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        match within(BOUND, "reading", self.tcp.read(&mut buffer)).await {
            Ok(0) | Err(_) => false,
            Ok(n) => {
                self.got.extend_from_slice(&buffer[..n]);
                true
            }
        }
    }

    /// Reads until this text has come.
    pub async fn read_until(&mut self, text: &str) {
        while !self.text().contains(text) {
            assert!(self.more().await, "the end came before {text:?}: {}", self.text());
        }
    }

    /// Reads to the end.
    pub async fn read_all(&mut self) -> String {
        while self.more().await {}
        self.text()
    }

    /// The other side ends the connection within this time.
    pub async fn ends_within(&mut self, limit: Duration) -> String {
        within(limit, "the end of the connection", self.read_all()).await
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.got).into_owned()
    }

    /// What was read to the end, as the one answer that it is.
    pub fn reply(&self) -> Reply {
        let text = self.text();
        let mut rest = text.as_str();
        loop {
            let Some((head, body)) = rest.split_once("\r\n\r\n") else {
                panic!("no answer: {text:?}");
            };
            let mut lines = head.split("\r\n");
            let status: u16 = lines.next().and_then(|l| l.get(9..12)?.parse().ok()).unwrap();
            if status < 200 {
                rest = body;
                continue;
            }
            let mut headers = http::HeaderMap::new();
            for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
                headers.append(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
            }
            let chunked = headers.contains_key("transfer-encoding");
            let (body, broken) = if chunked { dechunked(body) } else { (body.to_owned(), false) };
            let announced =
                headers.get("content-length").map(|v| v.to_str().unwrap().parse::<usize>().unwrap());
            let broken = broken || announced.is_some_and(|n| n != body.len());
            return Reply { status, headers, body: body.into(), broken };
        }
    }

    /// The status of the last answer, interim ones skipped.
    pub fn status(&self) -> u16 {
        let text = self.text();
        let statuses =
            text.match_indices("HTTP/1.1 ").filter_map(|(at, _)| text.get(at + 9..at + 12)?.parse().ok());
        statuses.filter(|s: &u16| *s >= 200).last().unwrap_or(0)
    }
}

/// The body without its chunks, and whether its end is missing.
fn dechunked(mut rest: &str) -> (String, bool) {
    let mut body = String::new();
    loop {
        let Some((length, after)) = rest.split_once("\r\n") else { return (body, true) };
        let Ok(length) = usize::from_str_radix(length, 16) else { return (body, true) };
        if length == 0 {
            return (body, false);
        }
        let Some(chunk) = after.get(..length) else { return (body + after, true) };
        body += chunk;
        rest = after.get(length + 2..).unwrap_or_default();
    }
}
