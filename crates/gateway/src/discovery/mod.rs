//! Where workers come from.
//!
//! Each source makes [`Spec`]s; the registry does not ask which source a worker came from. Today there is
//! one besides the admin API: the workers that the configuration names.

use baton_core::fleet::Role;

use crate::config::Config;
use crate::registry::Spec;

/// The workers of `--prefill`, `--decode` and `--worker-urls`.
pub fn configured(config: &Config) -> Vec<Spec> {
    let workers = &config.workers;
    let prefill = workers
        .prefill
        .iter()
        .map(|leg| Spec { bootstrap_port: leg.bootstrap_port, ..Spec::new(leg.url.as_str(), Role::Prefill) });
    let decode = workers.decode.iter().map(|url| Spec::new(url.as_str(), Role::Decode));
    let whole = workers.worker_urls.iter().map(|url| Spec::new(url.as_str(), Role::Whole));
    prefill.chain(decode).chain(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_has_its_role() {
        let args = ["--prefill", "http://p:1", "9", "--decode", "http://d:1", "--worker-urls", "http://w:1"];
        let loaded = Config::load(args.iter().map(Into::into), &|_| None).unwrap();
        let found: Vec<_> =
            configured(&loaded.config).into_iter().map(|s| (s.url, s.role, s.bootstrap_port)).collect();
        let expected = [
            ("http://p:1", Role::Prefill, Some(9)),
            ("http://d:1", Role::Decode, None),
            ("http://w:1", Role::Whole, None),
        ];
        assert_eq!(found, expected.map(|(url, role, port)| (url.to_owned(), role, port)));
    }
}
