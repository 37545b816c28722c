//! Any bytes as a file of workers, or of pods: read, or refused in words; what was read joins as a whole, and a second
//! time there is nothing left to do.

#![no_main]

use baton_gateway::clock::Clock;
use baton_gateway::config::Config;
use baton_gateway::discovery::list::{Bad, PROVIDER, read};
use baton_gateway::discovery::pod::Rules;
use baton_gateway::registry::{Registry, Settings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let selector = |role: &str| vec![("role".to_owned(), role.to_owned())];
    let (plain, mut selective) = (Rules::of(&Config::default()), Rules::of(&Config::default()));
    (selective.prefill, selective.decode) = (selector("prefill"), selector("decode"));
    for rules in [plain, selective] {
        match read(text, &rules) {
            Err(Bad::Malformed(why) | Bad::Invalid(why)) => assert!(!why.is_empty()),
            Ok(listed) => {
                let registry = Registry::new(Settings::of(&Config::default(), Clock::start(), 1));
                let first = registry.roll(PROVIDER, &listed.specs).expect("it is open");
                assert_eq!((first.joined.len(), first.refused.len()), (listed.specs.len(), 0));
                let second = registry.roll(PROVIDER, &listed.specs).expect("it is open");
                assert!(second.joined.is_empty() && second.changed.is_empty() && second.left.is_empty());
            }
        }
    }
});
