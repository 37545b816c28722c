//! `/metrics`, under each engine's own names.

use std::sync::Arc;

use crate::serve::node::Node;
use crate::serve::server::Server;

/// The exposition of one engine.
pub(crate) fn write(_server: &Arc<Server>, _node: &Arc<Node>) -> String {
    String::new()
}
