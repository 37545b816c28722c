//! What an engine publishes of its KV blocks: a PUB socket, and a ROUTER that sends again what was missed.
//!
//! As vLLM and SGLang do: each batch is `[topic, number, payload]`; whoever comes late or missed something asks the
//! other socket for everything from a number on. A life begins with number 0 and no batch to send again.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use baton_core::kv::{Batch, Event, Form};
use baton_core::zmtp::{self, Said, Wire};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::broadcast;

use crate::clock;
use crate::serve::node::lock;

/// Batches that can be sent again (vLLM's `buffer_steps`).
const KEPT: usize = 10_000;

/// Batches that may wait for a subscriber; a slower one loses some, as with ZeroMQ.
const WAITING: usize = 1024;

/// Longest message that a subscriber may send.
const ASKED_MAX_BYTES: usize = 4096;

/// The number that ends what is sent again.
const END: u64 = u64::MAX;

type Numbered = (u64, Bytes);

/// One life's events.
pub struct Publisher {
    form: Form,
    state: Mutex<State>,
    live: broadcast::Sender<Numbered>,
}

#[derive(Default)]
struct State {
    next: u64,
    kept: VecDeque<Numbered>,
    /// So many batches are not sent to subscribers.
    lost: u64,
    /// Those before this number are not kept.
    first: u64,
}

impl Publisher {
    pub fn new(form: Form) -> Arc<Self> {
        Arc::new(Self { form, state: Mutex::default(), live: broadcast::Sender::new(WAITING) })
    }

    pub fn publish(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let batch = Batch { at: clock::unix_seconds() as f64, rank: None, events };
        let payload = Bytes::from(batch.encode(self.form));
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        if state.kept.len() == KEPT {
            state.kept.pop_front();
        }
        if number >= state.first {
            state.kept.push_back((number, payload.clone()));
        }
        match state.lost.checked_sub(1) {
            Some(left) => state.lost = left,
            // Nobody listens: that is no error.
            None => drop(self.live.send((number, payload))),
        }
    }

    /// The next batches do not reach any subscriber. `for_good`: nothing before what comes after them can be had again.
    pub fn lose(&self, batches: u64, for_good: bool) {
        let mut state = lock(&self.state);
        state.lost = batches;
        if for_good {
            state.kept.clear();
            state.first = state.next + batches;
        }
    }

    /// How many batches there were.
    pub fn published(&self) -> u64 {
        lock(&self.state).next
    }

    /// Serves one subscriber, or one who asks for what it missed.
    pub async fn serve(&self, stream: TcpStream, again: bool) -> io::Result<()> {
        if again { self.resend(stream).await } else { self.send(stream).await }
    }

    async fn send(&self, stream: TcpStream) -> io::Result<()> {
        let mut peer = Peer::greet(stream, "PUB").await?;
        // Whoever is here has greeted: what is published from now on is for it, subscribed or not.
        let mut live = self.live.subscribe();
        loop {
            tokio::select! {
                next = live.recv() => match next {
                    Ok((number, payload)) => {
                        let message = zmtp::message(&[b"", &number.to_be_bytes(), &payload]);
                        peer.stream.write_all(&message).await?;
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Ok(()),
                },
                said = peer.said() => drop(said?),
            }
        }
    }

    async fn resend(&self, stream: TcpStream) -> io::Result<()> {
        let mut peer = Peer::greet(stream, "ROUTER").await?;
        loop {
            let Said::Message(parts) = peer.said().await? else { continue };
            let from = parts.last().and_then(|last| last.as_ref().try_into().ok()).map(u64::from_be_bytes);
            let Some(from) = from else { continue };
            let kept: Vec<Numbered> =
                lock(&self.state).kept.iter().filter(|(n, _)| *n >= from).cloned().collect();
            for (number, payload) in kept {
                let message = zmtp::message(&[b"", b"", &number.to_be_bytes(), &payload]);
                peer.stream.write_all(&message).await?;
            }
            peer.stream.write_all(&zmtp::message(&[b"", b"", &END.to_be_bytes(), b""])).await?;
        }
    }
}

struct Peer {
    stream: TcpStream,
    wire: Wire,
}

impl Peer {
    async fn greet(stream: TcpStream, socket: &str) -> io::Result<Self> {
        let mut peer = Self { stream, wire: Wire::new(ASKED_MAX_BYTES) };
        peer.stream.write_all(&zmtp::greeting()).await?;
        peer.stream.write_all(&zmtp::ready(socket)).await?;
        loop {
            if let Said::Command { name, .. } = peer.said().await?
                && name == "READY"
            {
                return Ok(peer);
            }
        }
    }

    async fn said(&mut self) -> io::Result<Said> {
        loop {
            let next = self.wire.said().map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
            if let Some(said) = next {
                return Ok(said);
            }
            if self.stream.read_buf(&mut self.wire.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
