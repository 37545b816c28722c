//! The demo's request, sent as any client sends it, and its answer as it comes in.

use std::net::SocketAddr;
use std::time::Duration;

use baton_core::time::Instant;
use baton_gateway::clock::Clock;
use baton_sim::{PromptId, expected_text};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::say;

const PATH: &str = "/v1/chat/completions";
/// Length of the answer.
const TOKENS: u32 = 32;
/// Most of an answer that is read.
const ANSWER_MAX_BYTES: usize = 1 << 20;
/// Long enough for a few KV blocks.
const QUESTION: &str = "\
    A kitchen has one cook who chops for every dish and another who stands at the stove. As long as both share one \
    table, a banquet's worth of onions makes every pan wait, and the guests see their plates come in fits and starts. \
    Give each a table of their own and the pans never wait for the onions again, but now somebody has to carry the \
    bowls from one table to the other, whole, in time, and to the right pan, and has to clear them away when a guest \
    leaves early. What is the name of the one who carries the bowls, and what would you pay them for it?";

/// A streamed chat.
pub struct Chat {
    model: String,
    messages: Value,
}

/// What came back.
pub struct Told {
    /// Id of the prefill worker, as the answer's head names it.
    pub prefill: Option<String>,
    /// Id of the decode worker, likewise.
    pub decode: Option<String>,
    pub text: String,
    /// Chunks with text; a simulated engine sends each token in one.
    pub pieces: u32,
    pub to_first_piece: Duration,
    pub total: Duration,
}

impl Chat {
    pub fn example(model: &str) -> Chat {
        let messages = json!([
            {"role": "system", "content": "You answer in the words of a child's first reader."},
            {"role": "user", "content": QUESTION},
        ]);
        Chat { model: model.into(), messages }
    }

    /// The words of the prompt; a simulated engine counts about a token for each.
    pub fn words(&self) -> usize {
        let contents = self.messages.as_array().into_iter().flatten().filter_map(|m| m["content"].as_str());
        contents.map(|text| text.split_whitespace().count()).sum()
    }

    /// The only right text of so many tokens: a simulated engine's words follow from its prompt, and are others if it
    /// was handed another prompt's KV.
    pub fn expected(&self, tokens: u32) -> String {
        expected_text(PromptId::of_chat(&self.messages), tokens)
    }

    /// Sends it and shows the text as it comes.
    ///
    /// # Errors
    /// No connection, an answer that is an error, a stream that ends before its time.
    pub async fn send(&self, gateway: SocketAddr, clock: Clock) -> Result<Told, String> {
        let begun = clock.now();
        let response = self.open(gateway).await.map_err(|error| format!("the request failed: {error}"))?;
        let (head, body) = response.into_parts();
        let mut body = Limited::new(body, ANSWER_MAX_BYTES);
        let mut stream = Stream::new(begun);
        let mut rest = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("the answer broke off: {error}"))?;
            rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            if head.status.is_success() {
                stream.take(&mut rest, clock);
            }
        }
        if !head.status.is_success() {
            return Err(format!("the gateway answered {}: {}", head.status, String::from_utf8_lossy(&rest)));
        }
        stream.end(&head.headers, clock.now())
    }

    async fn open(&self, gateway: SocketAddr) -> Result<Response<Incoming>, Box<dyn std::error::Error>> {
        let body =
            json!({"model": self.model, "messages": self.messages, "max_tokens": TOKENS, "stream": true});
        let request = Request::post(PATH)
            .header(HOST, gateway.to_string())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let tcp = TcpStream::connect(gateway).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await?;
        tokio::spawn(connection);
        Ok(sender.send_request(request).await?)
    }
}

/// The answer so far.
struct Stream {
    begun: Instant,
    first: Option<Instant>,
    text: String,
    pieces: u32,
    error: Option<String>,
    done: bool,
}

impl Stream {
    fn new(begun: Instant) -> Stream {
        Stream { begun, first: None, text: String::new(), pieces: 0, error: None, done: false }
    }

    /// Takes the whole lines out of `bytes`.
    fn take(&mut self, bytes: &mut Vec<u8>, clock: Clock) {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = bytes.drain(..whole).collect();
        for line in String::from_utf8_lossy(&lines).lines() {
            let Some(data) = line.strip_prefix("data: ") else { continue };
            match serde_json::from_str::<Value>(data) {
                Ok(event) => self.event(&event, clock),
                Err(_) => self.done |= data == "[DONE]",
            }
        }
    }

    fn event(&mut self, event: &Value, clock: Clock) {
        if let Some(error) = event.get("error") {
            self.error = Some(error.to_string());
        }
        let piece = event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if !piece.is_empty() {
            if self.first.is_none() {
                self.first = Some(clock.now());
                say::begin_of_pieces();
            }
            self.pieces += 1;
            self.text.push_str(piece);
            say::piece(piece);
        }
    }

    fn end(self, head: &HeaderMap, now: Instant) -> Result<Told, String> {
        if self.first.is_some() {
            say::end_of_pieces();
        }
        match (self.error, self.first) {
            (Some(error), _) => Err(format!("the stream ended with an error: {error}")),
            (None, Some(first)) if self.done => Ok(Told {
                prefill: named(head, "x-baton-prefill"),
                decode: named(head, "x-baton-decode"),
                text: self.text,
                pieces: self.pieces,
                to_first_piece: first.since(self.begun),
                total: now.since(self.begun),
            }),
            _ => Err(format!("the stream ended after {} tokens, without its end mark", self.pieces)),
        }
    }
}

fn named(head: &HeaderMap, header: &str) -> Option<String> {
    head.get(header)?.to_str().ok().map(str::to_owned)
}
