//! Legs to the workers over HTTP/1.1.
//!
//! Each lane keeps a pool of its own for every worker, so a request takes no lock that another thread
//! wants. A connection is not a task: it is polled by whoever uses it, in the same task as the client's
//! connection, so a leg costs no wake-up between tasks, and dropping a leg closes its connection at once,
//! which is what engines take for an abort.

mod bell;
mod body;
mod dial;
mod leg;
mod link;
mod pool;
mod stream;

pub use body::LegBody;
pub use dial::Route;
pub(crate) use dial::{Address, tls_config};
pub use leg::{Head, Leg, LegEvent, LegRequest, Want};
pub use pool::{Pool, PoolRule};

use std::fmt;

use baton_core::fault::Cause;

/// Why a leg failed on the way.
#[derive(Clone, Debug)]
pub struct Lost {
    pub cause: String,
    /// The worker may have got the request.
    pub delivered: bool,
    /// It took too long.
    pub late: bool,
}

impl From<Lost> for Cause {
    fn from(lost: Lost) -> Cause {
        Cause { words: lost.cause, late: lost.late }
    }
}

impl Lost {
    fn before(cause: impl fmt::Display) -> Lost {
        Lost { cause: cause.to_string(), delivered: false, late: false }
    }

    fn after(cause: impl fmt::Display) -> Lost {
        Lost { cause: cause.to_string(), delivered: true, late: false }
    }
}
