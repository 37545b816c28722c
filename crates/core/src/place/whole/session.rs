//! `session-affinity`: which worker does a session belong to?
//!
//! The gateway names the worker to the client in `x-session-id`: its address, in base64. A client that sends that back
//! gets the same worker while it can serve. One that names its session itself (`x-aibrix-session-key`) gets the worker
//! that the key belongs to, by rendezvous: nothing is remembered, so gateways side by side agree.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::super::affinity::owner;
use crate::ask::Ask;
use crate::fleet::{Seat, Worker};

/// Where the session of the request is at home among these. `None`: it has none.
pub(super) fn home<'a>(ask: &Ask, seats: &[&'a Arc<Seat>]) -> Option<&'a Arc<Seat>> {
    let wishes = ask.wishes.as_deref()?;
    let told = wishes.session_id.as_deref().and_then(unbase64);
    let named = |seat: &&&Arc<Seat>| {
        told.as_ref().is_some_and(|told| {
            let (authority, port) = address(&seat.worker);
            let rest = told.strip_prefix(authority.as_bytes());
            rest.is_some_and(|rest| rest == port.as_bytes())
        })
    };
    let key = || wishes.session_key.as_deref().map(|key| xxh3_64(key.as_bytes()));
    seats.iter().find(named).copied().or_else(|| owner(key()?, seats.iter().copied()))
}

/// What a client is told of the worker that served it: `host:port` in base64.
pub fn id(worker: &Worker) -> String {
    let (authority, port) = address(worker);
    base64(format!("{authority}{port}").as_bytes())
}

/// Where the worker is reached, and what of its port the URL leaves out.
fn address(worker: &Worker) -> (&str, &'static str) {
    let url = worker.base_url();
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let authority = rest.split('/').next().unwrap_or_default();
    let given = authority.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let port = match (given, scheme) {
        (true, _) => "",
        (false, "https") => ":443",
        (false, _) => ":80",
    };
    (authority, port)
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// What a text in base64 stands for, with or without its padding.
fn unbase64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4 + 1);
    for four in text.chunks(4) {
        let mut bits = 0u32;
        for letter in four {
            bits = bits << 6 | LETTERS.iter().position(|l| l == letter)? as u32;
        }
        // Six bits are no byte.
        let whole = (four.len() * 6 / 8).checked_sub(1)? + 1;
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend(bits.to_be_bytes().get(1..=whole)?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Role;

    #[test]
    fn the_id_is_the_address_in_base64() {
        let id = |url: &str| id(&Worker::new("w", url, Role::Whole));
        assert_eq!(id("http://10.0.0.1:8000"), "MTAuMC4wLjE6ODAwMA==");
        assert_eq!(id("http://10.0.0.11:8000/engine"), "MTAuMC4wLjExOjgwMDA=");
        assert_eq!(id("https://pod"), base64(b"pod:443"));
        assert_eq!(id("http://[::1]"), base64(b"[::1]:80"));
        assert_eq!(base64(b"abc"), "YWJj");
        assert_eq!(base64(b""), "");
        for text in ["", "a", "ab", "abc", "10.0.0.1:8000", "[::1]:80"] {
            assert_eq!(unbase64(&base64(text.as_bytes())).unwrap(), text.as_bytes());
            assert_eq!(unbase64(base64(text.as_bytes()).trim_end_matches('=')).unwrap(), text.as_bytes());
        }
        assert_eq!([unbase64("a"), unbase64("a-b="), unbase64("ä")], [None, None, None]);
    }
}
