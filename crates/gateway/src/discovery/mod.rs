//! Where workers come from.
//!
//! Each source makes [`Spec`]s; the registry does not ask which source a worker came from. Today there is
//! one besides the admin API: the workers that the configuration names.

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
mod tests {
    use super::*;

    #[test]
    fn each_list_has_its_role() {
        let args = "--prefill http://p:1 9 --prefill http://p:2 none --prefill http://p:3 \
            --decode http://d:1 --worker-urls http://w:1";
        let loaded = Config::load(args.split_whitespace().map(Into::into), &|_| None).unwrap();
        let configured = configured(&loaded.config).into_iter();
        let found: Vec<_> = configured.map(|s| (s.url, s.role, s.bootstrap_port, s.no_bootstrap)).collect();
        let expected = [
            ("http://p:1", Role::Prefill, Some(9), false),
            ("http://p:2", Role::Prefill, None, true),
            ("http://p:3", Role::Prefill, None, false),
            ("http://d:1", Role::Decode, None, false),
            ("http://w:1", Role::Whole, None, false),
        ];
        assert_eq!(found, expected.map(|(url, role, port, none)| (url.to_owned(), role, port, none)));
    }
}
