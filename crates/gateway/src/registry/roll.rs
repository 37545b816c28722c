//! The workers that a list brought in become those of its next reading, in one step.
//!
//! What to do is [`roster`]'s to say; here it is carried out under the registry's lock, so that nobody sees half of it and
//! no admin request comes in between. Workers that leave end their requests first, as if they had been removed by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_core::fleet::FleetChange;
use baton_core::roster::{self, Twice};

use super::book::Book;
use super::settings::Settings;
use super::spec::Spec;
use super::{Refused, Registry};

/// What became of a list.
#[derive(Debug, Default)]
pub struct Rolled {
    /// Those that came, are described anew, and go: their names in the list.
    pub joined: Vec<String>,
    pub changed: Vec<String>,
    pub left: Vec<String>,
    /// Those that could not come, and why.
    pub refused: Vec<(String, Refused)>,
}

/// Slots of workers that leave, each with the time that it may take.
type Leaving = Vec<(u32, Duration)>;

impl Registry {
    /// `list` is who should be there of those that this provider brings in, each under a name and at an address of its
    /// own. Workers that others brought in are not touched. So many may come at once as there may be workers; they are
    /// looked at one after another like all new ones.
    ///
    /// # Errors
    /// The gateway shuts down.
    pub fn roll(&self, provider: &'static str, list: &[Spec]) -> Result<Rolled, Refused> {
        let (rolled, leaving) = self.change(|book| {
            let (rolled, leaving, changes) = book.roll(provider, list, &self.0.settings)?;
            Ok(((rolled, leaving), changes))
        })?;
        self.see_off(leaving);
        self.watch_newcomers();
        Ok(rolled)
    }
}

/// # Errors
/// Two workers of a list have one name, or one address.
pub fn distinct(list: &[Spec]) -> Result<(), Twice> {
    let entries: Vec<_> = list.iter().filter_map(|spec| entry(spec, false)).collect();
    roster::distinct(&entries)
}

/// `None`: nobody found it.
fn entry(spec: &Spec, fixed: bool) -> Option<roster::Entry> {
    let found = spec.found.as_ref()?;
    let url = spec.base_url().to_owned();
    let (role, engine) = (spec.role, spec.engine);
    Some(roster::Entry { key: found.id.clone(), url, role, engine, mark: found.mark, fixed })
}

impl Book {
    fn roll(
        &mut self,
        provider: &'static str,
        list: &[Spec],
        settings: &Settings,
    ) -> Result<(Rolled, Leaving, Vec<FleetChange>), Refused> {
        self.open()?;
        let several = |spec: &Spec| settings.dp_aware && spec.told_ranks().is_some_and(|n| n > 1);
        let wanted: Vec<roster::Entry> = list.iter().filter_map(|spec| entry(spec, several(spec))).collect();
        let mut ids = BTreeMap::<String, Vec<String>>::new();
        let mut present = Vec::new();
        let mut others = BTreeSet::new();
        for own in self.entries.values().filter(|e| !e.draining) {
            match entry(&own.spec, own.spec.dp_rank.is_some()).filter(|_| own.spec.found_by(provider)) {
                // Ranks of one engine are one entry of the list.
                Some(entry) => {
                    let ids = ids.entry(entry.key.clone()).or_default();
                    ids.push(own.id.clone());
                    if ids.len() == 1 {
                        present.push(entry);
                    }
                }
                None => {
                    others.insert(own.spec.base_url());
                    others.insert(own.spec.url.as_str());
                }
            }
        }
        let moves = roster::moves(&present, &others, &wanted);
        let (mut rolled, mut leaving, mut changes) = (Rolled::default(), Vec::new(), Vec::new());
        for key in moves.leave {
            for id in ids.get(&key).into_iter().flatten() {
                match self.retire(id, settings.drain_settle) {
                    Some(Ok(left)) => changes.push(left),
                    Some(Err(waits)) => leaving.push(waits),
                    None => {}
                }
            }
            rolled.left.push(key);
        }
        let named = |at: usize| list.get(at).zip(wanted.get(at).map(|entry| &entry.key));
        for (spec, key) in moves.change.into_iter().filter_map(named) {
            let id = ids.get(key).and_then(|ids| ids.first()).map_or("", String::as_str);
            match self.replace(id, spec.clone()) {
                Ok(described) => {
                    changes.extend(described);
                    rolled.changed.push(key.clone());
                }
                Err(refused) => rolled.refused.push((key.clone(), refused)),
            }
        }
        for (spec, key) in moves.join.into_iter().chain(moves.taken).filter_map(named) {
            match self.join(spec.clone(), settings) {
                Ok((_, joined)) => {
                    changes.extend(joined);
                    rolled.joined.push(key.clone());
                }
                // Whoever is at the address says so.
                Err(refused) => rolled.refused.push((key.clone(), refused)),
            }
        }
        Ok((rolled, leaving, changes))
    }
}

#[cfg(test)]
mod tests {
    use baton_core::fleet::{Role, Status};

    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;

    /// A registry whose workers nobody probes.
    fn registry(args: &str) -> Registry {
        let config = Config::load(args.split_whitespace().map(Into::into), &|_| None).unwrap().config;
        Registry::new(Settings::of(&config, Clock::start(), 1))
    }

    fn spec(id: &str, url: &str) -> Spec {
        Spec::new(url, Role::Decode).found("file", id)
    }

    fn labelled(id: &str, url: &str, text: &str) -> Spec {
        let labels = [("tier".to_owned(), text.to_owned())].into();
        Spec { labels, ..Spec::new(url, Role::Decode) }.found("file", id)
    }

    /// Who is there, by address and id.
    fn there(registry: &Registry) -> Vec<(String, String)> {
        registry.list().into_iter().map(|w| (w.seat.worker.url.clone(), w.id)).collect()
    }

    fn urls(registry: &Registry) -> Vec<String> {
        there(registry).into_iter().map(|(url, _)| url).collect()
    }

    #[test]
    fn a_list_is_followed_and_ids_stay_where_workers_do() {
        let r = registry("");
        let first = r.roll("file", &[spec("a", "http://h:1"), spec("b", "http://h:2")]).unwrap();
        assert_eq!(first.joined, ["a", "b"]);
        let before = there(&r);
        let same = r.roll("file", &[spec("b", "http://h:2"), spec("a", "http://h:1")]).unwrap();
        assert!(same.joined.is_empty() && same.changed.is_empty() && same.left.is_empty(), "{same:?}");
        let other = r.roll("file", &[labelled("b", "http://h:2", "x"), spec("c", "http://h:1")]).unwrap();
        assert_eq!(
            (other.joined, other.changed, other.left),
            (vec!["c".into()], vec!["b".into()], vec!["a".into()])
        );
        let after = there(&r);
        assert!(after.contains(&before[1]), "b is who it was: {after:?}");
        assert!(after[1].0 == "http://h:1" && after[1].1 != before[0].1, "c is somebody else: {after:?}");
        let b = r.list().into_iter().find(|w| w.id == before[1].1).unwrap();
        assert_eq!(b.seat.worker.label("tier"), Some("x"));
        assert_eq!(r.roll("file", &[]).unwrap().left, ["b", "c"]);
        assert!(there(&r).is_empty());
    }

    #[test]
    fn workers_of_others_are_not_touched() {
        let r = registry("");
        let by_hand = r.add(Spec::new("http://h:1", Role::Decode)).unwrap();
        r.roll("other", &[Spec::new("http://h:3", Role::Decode).found("other", "a")]).unwrap();
        let rolled = r.roll("file", &[spec("a", "http://h:1"), spec("b", "http://h:2")]).unwrap();
        assert_eq!(rolled.joined, ["b"]);
        let [(id, Refused::Exists { .. } | Refused::Joining { .. })] = rolled.refused.as_slice() else {
            panic!("{rolled:?}")
        };
        assert_eq!(id, "a");
        assert_eq!(r.roll("file", &[]).unwrap().left, ["b"]);
        assert_eq!(urls(&r), ["http://h:1", "http://h:3"]);
        // The address is free once its worker was removed.
        r.remove(&by_hand).unwrap();
        assert_eq!(r.roll("file", &[spec("a", "http://h:1")]).unwrap().joined, ["a"]);
    }

    #[test]
    fn what_an_operator_changes_stays_until_the_list_says_otherwise() {
        let r = registry("");
        r.roll("file", &[spec("a", "http://h:1")]).unwrap();
        let id = there(&r)[0].1.clone();
        r.replace(&id, Spec { priority: 7, ..Spec::new("http://h:1", Role::Decode) }).unwrap();
        assert!(r.roll("file", &[spec("a", "http://h:1")]).unwrap().changed.is_empty());
        assert_eq!(r.list()[0].seat.worker.priority, 7);
        assert_eq!(r.list()[0].seat.worker.label("smg.ai/discovery-id"), Some("a"));
        assert_eq!(r.roll("file", &[labelled("a", "http://h:1", "x")]).unwrap().changed, ["a"]);
        assert_eq!(r.list()[0].seat.worker.priority, 50);
        // One that was removed by hand comes back: the list still wants it.
        r.remove(&id).unwrap();
        assert_eq!(r.roll("file", &[labelled("a", "http://h:1", "x")]).unwrap().joined, ["a"]);
    }

    #[test]
    fn ranks_of_one_engine_come_and_go_together() {
        let r = registry("--dp-aware");
        let ranks =
            |n: u32| Spec { dp_size: Some(n), ..Spec::new("http://h:1", Role::Decode) }.found("file", "a");
        assert_eq!(r.roll("file", &[ranks(2)]).unwrap().joined, ["a"]);
        assert_eq!(urls(&r), ["http://h:1@0", "http://h:1@1"]);
        let same = r.roll("file", &[ranks(2)]).unwrap();
        assert!(same.joined.is_empty() && same.left.is_empty() && same.refused.is_empty(), "{same:?}");
        let more = r.roll("file", &[ranks(3)]).unwrap();
        assert_eq!((more.joined, more.left), (vec!["a".to_owned()], vec!["a".to_owned()]));
        assert_eq!(urls(&r), ["http://h:1@0", "http://h:1@1", "http://h:1@2"]);
        assert_eq!(r.roll("file", &[]).unwrap().left, ["a"]);
        assert!(urls(&r).is_empty());
    }

    #[test]
    fn a_full_list_takes_whom_it_can() {
        let r = registry("");
        r.add(Spec::new("http://by-hand:1", Role::Decode)).unwrap();
        let all: Vec<Spec> = (0..super::super::WORKERS_MAX)
            .map(|n| spec(&n.to_string(), &format!("http://h:1/{n}")))
            .collect();
        let rolled = r.roll("file", &all).unwrap();
        assert_eq!((rolled.joined.len(), rolled.refused.len()), (all.len() - 1, 1));
        assert!(matches!(rolled.refused[0].1, Refused::TooMany { .. }));
        r.shutdown();
        assert_eq!(r.roll("file", &all).unwrap_err(), Refused::Closing);
    }

    #[test]
    fn a_discovered_worker_that_failed_is_removed_unless_that_is_not_wanted() {
        for (args, left) in [
            ("", vec!["http://h:1"]),
            ("--remove-unhealthy-workers", vec![]),
            ("--remove-unhealthy-workers=false", vec!["http://h:1", "http://h:2"]),
        ] {
            let r = registry(args);
            r.add(Spec::new("http://h:1", Role::Decode)).unwrap();
            r.roll("file", &[spec("a", "http://h:2")]).unwrap();
            for seat in r.load_full().seats() {
                r.mark(seat.slot, Status::Failed);
                r.failed(seat.slot);
            }
            assert_eq!(urls(&r), left, "{args}");
        }
    }
}
