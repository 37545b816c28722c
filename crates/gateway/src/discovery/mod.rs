//! Where workers come from.
//!
//! Each source makes [`Spec`]s; the registry does not ask which source a worker came from. Beside the admin API there are
//! the workers that the configuration names, and those of a file ([`mod@file`]), which is read again when it changes. What a
//! worker is, is read in one place whoever writes it ([`written`]), and so is what a Kubernetes pod says of itself
//! ([`pod`]).

pub mod file;
mod json;
mod links;
pub mod list;
pub mod pod;
pub mod written;

use baton_core::fleet::Role;

use crate::config::Config;
use crate::registry::Spec;

/// The workers of `--prefill`, `--decode` and `--worker-urls`.
pub fn configured(config: &Config) -> Vec<Spec> {
    let workers = &config.workers;
    let prefill = workers.prefill.iter().map(|leg| Spec {
        bootstrap_port: leg.bootstrap_port,
        no_bootstrap: leg.no_bootstrap,
        ..Spec::new(leg.url.as_str(), Role::Prefill)
    });
    let decode = workers.decode.iter().map(|url| Spec::new(url.as_str(), Role::Decode));
    let whole = workers.worker_urls.iter().map(|url| Spec::new(url.as_str(), Role::Whole));
    prefill.chain(decode).chain(whole).collect()
}

#[cfg(test)]
mod tests;
