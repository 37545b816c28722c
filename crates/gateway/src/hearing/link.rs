//! One ZMTP connection: dialled, greeted, read.

use std::io;
use std::time::Duration;

use baton_core::zmtp::{self, Said, Wire};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest message, all of its parts. A batch of an engine's step is some kilobytes; a cleared cache, less.
pub const MESSAGE_MAX_BYTES: usize = 16 << 20;

/// Longest time to connect and greet.
const PATIENCE: Duration = Duration::from_secs(5);

/// Silence after which the kernel asks whether the engine's host is still there: engines publish only when something
/// happens, so that silence alone means nothing.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Read at once.
const READ_BYTES: usize = 16 << 10;

pub struct Link {
    tcp: TcpStream,
    wire: Wire,
}

impl Link {
    /// Dials, and waits until the other side is ready.
    ///
    /// # Errors
    /// It is not there, is no ZMTP socket, or takes too long.
    pub async fn open(address: &str, socket: &str) -> io::Result<Link> {
        tokio::time::timeout(PATIENCE, Link::greet(address, socket)).await?
    }

    async fn greet(address: &str, socket: &str) -> io::Result<Link> {
        let tcp = TcpStream::connect(address).await?;
        let _ = tcp.set_nodelay(true);
        let keepalive =
            socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
        let _ = socket2::SockRef::from(&tcp).set_tcp_keepalive(&keepalive);
        let mut link = Link { tcp, wire: Wire::new(MESSAGE_MAX_BYTES) };
        link.send(&zmtp::greeting()).await?;
        link.send(&zmtp::ready(socket)).await?;
        loop {
            match link.said().await? {
                Said::Command { name, .. } if name == "READY" => return Ok(link),
                Said::Command { name, .. } if name == "ERROR" => {
                    return Err(refused("the peer refused the socket"));
                }
                _ => {}
            }
        }
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tcp.write_all(bytes).await
    }

    /// The next message.
    ///
    /// # Errors
    /// The connection ended, or what came is not ZMTP.
    pub async fn message(&mut self) -> io::Result<Vec<Bytes>> {
        loop {
            match self.said().await? {
                Said::Message(parts) => return Ok(parts),
                Said::Command { name, body } if name == "PING" => {
                    let context = body.get(2..).unwrap_or_default().to_vec();
                    self.send(&zmtp::command("PONG", &context)).await?;
                }
                Said::Command { .. } | Said::Greeting => {}
            }
        }
    }

    async fn said(&mut self) -> io::Result<Said> {
        loop {
            if let Some(said) = self.wire.said().map_err(refused)? {
                return Ok(said);
            }
            self.wire.buffer.reserve(READ_BYTES);
            if self.tcp.read_buf(&mut self.wire.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

pub fn refused(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
