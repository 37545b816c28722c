//! What gateways share, and where.

use std::path::PathBuf;

use crate::config::kind::*;
use crate::config::setting::{NOTE, group};
use crate::config::value::Secret;

group! {
    /// The Redis through which gateways share the decode ledger of token_load.
    "Redis" redis: Redis {
        /// Host of the Redis through which gateways share what they charge decodes with (token_load); unset: nothing is
        /// shared.
        host: Option<String> = None, MAYBE_HOST, "redis-host", NOTE.env("REDIS_HOST");
        /// Its port.
        port: u16 = 6379, PORT, "redis-port", NOTE.env("REDIS_PORT").lenient();
        /// Its password; better in the environment or the file, where no list of processes shows it.
        password: Option<Secret> = None, MAYBE_PASSWORD, "redis-password", NOTE.env("REDIS_PASSWORD");
        /// Speak TLS to it.
        tls: bool = false, SWITCH, "redis-tls";
        /// PEM certificates that sign its own; unset: those that browsers trust.
        ca_path: Option<PathBuf> = None, MAYBE_PATH, "redis-ca-path";
        /// Name of this gateway among those that share, to which the moment of its start is added; unset: one by chance.
        instance: Option<String> = None, MAYBE_TEXT, "redis-instance", NOTE.env("POD_NAME");
    }
}
