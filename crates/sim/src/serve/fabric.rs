//! How simulated engines reach each other: through this registry when they live in one process, over a side channel
//! when they do not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::oneshot;

use crate::engine::message::{Answer, Call, LinkId, PeerAddr};
use crate::serve::fault::OnceKeys;
use crate::serve::node::{Node, lock};
use crate::serve::remote::{self, Joins};

/// The engines of one process, by where they can be called.
#[derive(Default)]
pub struct Fabric {
    listening: Mutex<HashMap<PeerAddr, Weak<Node>>>,
    links: Mutex<HashMap<LinkId, Link>>,
    last_link: AtomicU64,
    joins: Arc<Joins>,
    once: OnceKeys,
}

/// Who an answer goes to.
enum Link {
    /// An engine of this process.
    Node(Weak<Node>),
    /// A call that came in from another process.
    Call(oneshot::Sender<Answer>),
}

impl Link {
    fn node(&self) -> Option<Arc<Node>> {
        match self {
            Self::Node(node) => node.upgrade(),
            Self::Call(_) => None,
        }
    }
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
        lock(&self.links).insert(link, Link::Node(Arc::downgrade(node)));
    }

    /// The answer to a call from another process goes to `sender`.
    pub(crate) fn expect_answer(&self, link: LinkId, sender: oneshot::Sender<Answer>) {
        lock(&self.links).insert(link, Link::Call(sender));
    }

    pub(crate) fn forget_link(&self, link: LinkId) {
        lock(&self.links).remove(&link);
    }

    /// From now on `node` answers calls to `at`.
    pub(crate) fn listen(&self, at: PeerAddr, node: &Arc<Node>) {
        lock(&self.listening).insert(at, Arc::downgrade(node));
    }

    /// Takes a node out, as its death does: nobody reaches it any more, it reaches nobody, and its peers notice.
    pub(crate) fn detach(&self, node: &Arc<Node>) {
        node.cut_off();
        self.forget_link(node.link);
        self.joins.drop_all(node.link);
        lock(&self.listening).retain(|_, other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(node)));
        let peers: Vec<Arc<Node>> = lock(&self.links).values().filter_map(Link::node).collect();
        for peer in peers {
            peer.with(|engine, now| engine.link_gone(node.link, now));
        }
    }

    pub(crate) fn send(&self, from: &Arc<Node>, to: PeerAddr, call: Call) {
        let peer = lock(&self.listening).get(&to).and_then(Weak::upgrade);
        match (peer.filter(|peer| !peer.is_dead()), &call) {
            (Some(_), Call::Ping) => from.with(|engine, _| engine.pinged(&to)),
            (Some(peer), _) => peer.receive(from.link, call),
            (None, _) => remote::call(&self.joins, from, to, call),
        }
    }

    pub(crate) fn reply(&self, link: LinkId, answer: Answer) {
        let node = {
            let mut links = lock(&self.links);
            match links.get(&link) {
                Some(Link::Node(node)) => node.upgrade(),
                Some(Link::Call(_)) => {
                    if let Some(Link::Call(sender)) = links.remove(&link) {
                        // The caller may have gone away in the meantime.
                        let _ = sender.send(answer.clone());
                    }
                    None
                }
                None => None,
            }
        };
        if let Some(node) = node {
            node.answered(answer);
        }
    }
}
