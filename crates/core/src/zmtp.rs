//! ZMTP 3.0, the protocol of ZeroMQ's sockets: bytes to messages and back.
//!
//! As much of it as hearing an engine's events takes, over one TCP connection, without authentication (the mechanism
//! `NULL`). Bytes come in as they come ([`Wire`]); no length is believed before it is compared with the limit, so a peer
//! that announces more than that is refused and costs nothing.
//!
//! It knows nothing of sockets' patterns but two names that a peer must hear ([`ready`]) and how to subscribe.

use bytes::{Buf, Bytes, BytesMut};

/// Parts of one message.
pub const PARTS_MAX: usize = 16;

const GREETING_BYTES: usize = 64;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The peer does not speak this protocol, or says more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub &'static str);

/// What a peer said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is there.
    Greeting,
    Command {
        name: Bytes,
        body: Bytes,
    },
    Message(Vec<Bytes>),
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Wire {
    /// Bytes that were read and not understood yet.
    pub buffer: BytesMut,
    greeted: bool,
    parts: Vec<Bytes>,
    bytes: usize,
    max_bytes: usize,
}

impl Wire {
    /// Messages have at most so many bytes.
    pub fn new(max_bytes: usize) -> Wire {
        Wire { buffer: BytesMut::new(), greeted: false, parts: Vec::new(), bytes: 0, max_bytes }
    }

    /// What was said next, if all of it is there.
    ///
    /// # Errors
    /// [`Refused`]; nothing that follows can be understood.
    pub fn said(&mut self) -> Result<Option<Said>, Refused> {
        if !self.greeted {
            return self.greeting();
        }
        while let Some((flags, body)) = self.frame()? {
            if flags & COMMAND != 0 {
                return command_of(body).map(Some);
            }
            self.bytes += body.len();
            if self.parts.len() == PARTS_MAX || self.bytes > self.max_bytes {
                return Err(Refused("a message is too large"));
            }
            self.parts.push(body);
            if flags & MORE == 0 {
                self.bytes = 0;
                return Ok(Some(Said::Message(std::mem::take(&mut self.parts))));
            }
        }
        Ok(None)
    }

    fn greeting(&mut self) -> Result<Option<Said>, Refused> {
        let wrong = |at: usize, byte: u8| self.buffer.get(at).is_some_and(|own| *own != byte);
        if wrong(0, 0xff) || wrong(9, 0x7f) {
            return Err(Refused("the peer does not speak ZMTP"));
        }
        if self.buffer.len() < GREETING_BYTES {
            return Ok(None);
        }
        let greeting = self.buffer.split_to(GREETING_BYTES);
        if greeting[10] < 3 {
            return Err(Refused("the peer speaks an older ZMTP than 3"));
        }
        if &greeting[12..17] != b"NULL\0" {
            return Err(Refused("the peer wants to authenticate"));
        }
        self.greeted = true;
        Ok(Some(Said::Greeting))
    }

    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, Refused> {
        let Some(flags) = self.buffer.first().copied() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(Refused("a frame has flags that there are not"));
        }
        let head = if flags & LONG == 0 { 2 } else { 9 };
        let Some(size) = self.buffer.get(1..head) else { return Ok(None) };
        let size = size.iter().fold(0_u64, |size, byte| size << 8 | u64::from(*byte));
        let Some(size) = usize::try_from(size).ok().filter(|size| *size <= self.max_bytes) else {
            return Err(Refused("a message is too large"));
        };
        if self.buffer.len() - head < size {
            self.buffer.reserve(head + size - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(head);
        Ok(Some((flags, self.buffer.split_to(size).freeze())))
    }
}

fn command_of(mut body: Bytes) -> Result<Said, Refused> {
    let size = body.first().map_or(usize::MAX, |size| usize::from(*size));
    if body.len() <= size {
        return Err(Refused("a command has no name"));
    }
    body.advance(1);
    let name = body.split_to(size);
    Ok(Said::Command { name, body })
}

/// The first bytes of either side.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[8], bytes[9], bytes[10]) = (0xff, 1, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// The command that follows a greeting. `socket`: `SUB`, `PUB`, `DEALER` or `ROUTER`.
pub fn ready(socket: &str) -> Vec<u8> {
    let mut body = b"\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(socket.len() as u32).to_be_bytes());
    body.extend_from_slice(socket.as_bytes());
    command("READY", &body)
}

pub fn command(name: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + body.len() + 10);
    put(&mut out, COMMAND, name.len() + 1 + body.len());
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(body);
    out
}

/// Wants to hear everything that begins with `topic`.
pub fn subscribe(topic: &str) -> Vec<u8> {
    let mut body = vec![1];
    body.extend_from_slice(topic.as_bytes());
    message(&[&body])
}

pub fn message(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(parts.iter().map(|part| part.len() + 9).sum());
    for (at, part) in parts.iter().enumerate() {
        put(&mut out, if at + 1 < parts.len() { MORE } else { 0 }, part.len());
        out.extend_from_slice(part);
    }
    out
}

fn put(out: &mut Vec<u8>, flags: u8, size: usize) {
    match u8::try_from(size) {
        Ok(size) => out.extend_from_slice(&[flags, size]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(size as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hear(bytes: &[u8], piece: usize, max: usize) -> Result<Vec<Said>, Refused> {
        let (mut wire, mut said) = (Wire::new(max), Vec::new());
        for piece in bytes.chunks(piece.max(1)) {
            wire.buffer.extend_from_slice(piece);
            while let Some(next) = wire.said()? {
                said.push(next);
            }
        }
        Ok(said)
    }

    fn all(parts: &[&[u8]]) -> Said {
        Said::Message(parts.iter().map(|part| Bytes::copy_from_slice(part)).collect())
    }

    #[test]
    fn a_conversation_in_any_pieces() {
        let long = vec![7; 300];
        let bytes = [
            greeting().to_vec(),
            ready("PUB"),
            subscribe("kv"),
            message(&[b"kv", &[0; 8], &long]),
            command("PING", b"\0\0ctx"),
        ]
        .concat();
        let body = Bytes::from_static(b"\x0bSocket-Type\0\0\0\x03PUB");
        let said = vec![
            Said::Greeting,
            Said::Command { name: Bytes::from_static(b"READY"), body },
            all(&[b"\x01kv"]),
            all(&[b"kv", &[0; 8], &long]),
            Said::Command { name: Bytes::from_static(b"PING"), body: Bytes::from_static(b"\0\0ctx") },
        ];
        for piece in [1, 2, 7, 64, 1000] {
            assert_eq!(hear(&bytes, piece, 4096), Ok(said.clone()), "in pieces of {piece}");
        }
    }

    #[test]
    fn a_peer_that_is_none_is_refused_at_once() {
        assert!(hear(b"HTTP/1.1 400", 1, 64).is_err());
        assert_eq!(hear(&[0xff, 0, 0, 0, 0], 1, 64), Ok(vec![]));
        let mut old = greeting();
        old[10] = 1;
        assert_eq!(hear(&old, 64, 64), Err(Refused("the peer speaks an older ZMTP than 3")));
        let mut curve = greeting();
        curve[12..17].copy_from_slice(b"CURVE");
        assert_eq!(hear(&curve, 64, 64), Err(Refused("the peer wants to authenticate")));
    }

    #[test]
    fn what_is_announced_costs_nothing() {
        let huge = [&greeting()[..], &[LONG], &u64::MAX.to_be_bytes()].concat();
        assert_eq!(hear(&huge, 999, 1 << 20), Err(Refused("a message is too large")));
        let parts: Vec<&[u8]> = vec![b"x"; PARTS_MAX + 1];
        let many = [&greeting()[..], &message(&parts)].concat();
        assert_eq!(hear(&many, 999, 1 << 20), Err(Refused("a message is too large")));
        let sum = [&greeting()[..], &message(&[&[0; 60], &[0; 60]])].concat();
        assert_eq!(hear(&sum, 999, 100), Err(Refused("a message is too large")));
        assert!(hear(&[&greeting()[..], &[COMMAND, 0]].concat(), 99, 100).is_err());
        assert!(hear(&[&greeting()[..], &[0xf0, 0]].concat(), 99, 100).is_err());
    }

    proptest! {
        /// Any bytes after a greeting are understood or refused, in pieces as at once.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..40) {
            let bytes = [&greeting()[..], &bytes].concat();
            prop_assert_eq!(hear(&bytes, piece, 200).is_ok(), hear(&bytes, 1000, 200).is_ok());
        }

        #[test]
        fn messages_go_round(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 1..PARTS_MAX), piece in 1usize..500) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let bytes = [&greeting()[..], &message(&parts)].concat();
            prop_assert_eq!(hear(&bytes, piece, 1 << 20), Ok(vec![Said::Greeting, all(&parts)]));
        }
    }
}
