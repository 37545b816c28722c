//! How simulated engines reach each other: through this registry when they live in one process, over a side channel
//! on loopback when they do not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::engine::message::{Answer, Call, LinkId, PeerAddr};
use crate::serve::fault::OnceKeys;
use crate::serve::node::{Node, lock};

/// The engines of this process, by where they can be called.
#[derive(Default)]
pub struct Fabric {
    listening: Mutex<HashMap<PeerAddr, Weak<Node>>>,
    links: Mutex<HashMap<LinkId, Weak<Node>>>,
    last_link: AtomicU64,
    once: OnceKeys,
}

impl Fabric {
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn once_keys(&self) -> &OnceKeys {
        &self.once
    }

    pub(crate) fn new_link(&self) -> LinkId {
        self.last_link.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn attach(&self, link: LinkId, node: &Arc<Node>) {
        lock(&self.links).insert(link, Arc::downgrade(node));
    }

    /// From now on `node` answers calls to `at`.
    pub(crate) fn listen(&self, at: PeerAddr, node: &Arc<Node>) {
        lock(&self.listening).insert(at, Arc::downgrade(node));
    }

    /// Takes a node out: nobody reaches it any more.
    pub(crate) fn detach(&self, node: &Arc<Node>) {
        lock(&self.links).remove(&node.link);
        lock(&self.listening).retain(|_, other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(node)));
    }

    pub(crate) fn send(&self, from: &Arc<Node>, to: PeerAddr, call: Call) {
        let peer = lock(&self.listening).get(&to).and_then(Weak::upgrade);
        match (peer.filter(|peer| !peer.is_dead()), &call) {
            (Some(_), Call::Ping) => from.with(|engine, _| engine.pinged(&to)),
            (Some(peer), _) => peer.receive(from.link, call),
            (None, _) => from.unreachable(&to, &call),
        }
    }

    pub(crate) fn reply(&self, link: LinkId, answer: Answer) {
        let peer = lock(&self.links).get(&link).and_then(Weak::upgrade);
        if let Some(peer) = peer {
            peer.answered(answer);
        }
    }
}
