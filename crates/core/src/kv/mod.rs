//! What workers hold, as their engines say themselves: KV events.
//!
//! Engines can publish which blocks of KV they store and which they give to something else. From that an index is kept
//! that is exact where [`crate::prefix`] can only guess from what was sent. It needs the prompt's tokens, which are
//! known when the client sends them or when the model's tokenizer is at hand ([`crate::prompt::Prompt::ids`]); a prompt whose
//! tokens are not known for certain is looked up in the other index, and never in this one.
//!
//! [`Batch`] is what an engine says, [`Feed`] puts it into the [`KvIndex`] in its order, [`View`] says how much of one
//! worker is known and how well, [`Told`] is what is known of one prompt.
//!
//! What it does not know: which blocks an engine holds for a request that runs, which are no one's to hit yet; and what a
//! lower tier holds, which is counted and not looked up.

mod batch;
mod chain;
mod feed;
mod held;
mod index;
mod msgpack;
mod told;
mod view;
mod write;

pub use batch::{Batch, Event, Removed, Stored};
pub use chain::{Chain, Chains, TOKENS_MAX, seed};
pub use feed::{BLOCKS_PER_WORKER_MAX, Feed, Next};
pub use held::Held;
pub use index::{ADAPTERS_MAX, KvIndex, STEP_TOKENS};
pub use msgpack::{Malformed, Reader, Value};
pub use told::{Known, Told};
pub use view::{EXPECTED_MAX, Expected, Happened, Trouble, Trust, View};
pub use write::Form;
