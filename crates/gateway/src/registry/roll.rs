//! The workers that a list brought in become those of its next reading, in one step.
//!
//! What to do is [`roster`]'s to say; here it is carried out under the registry's lock, so that nobody sees half of it and
//! no admin request comes in between. Workers that leave end their requests first, as if they had been removed by hand, and
//! those that nobody can stand in for yet wait for whoever is coming.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_core::fleet::FleetChange;
use baton_core::roster::{self, Relief, Twice};
use baton_core::time::Instant;

use super::book::{Book, Joined};
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

/// Longest that a worker which was taken out of its list serves on, because those who are to stand in for it are not
/// found well.
const RELIEF_MAX: Duration = Duration::from_secs(60);

/// Slots of workers that leave, each with the time that it may take.
type Leaving = Vec<(u32, Duration)>;

/// What a list changes.
#[derive(Default)]
struct Change {
    rolled: Rolled,
    leaving: Leaving,
    fleet: Vec<FleetChange>,
}

impl Change {
    fn joined(&mut self, key: &str, joined: Result<Joined, Refused>) {
        match joined {
            Ok((_, joined)) => {
                self.fleet.extend(joined);
                self.rolled.joined.push(key.to_owned());
            }
            Err(refused) => self.rolled.refused.push((key.to_owned(), refused)),
        }
    }
}

/// The workers that are there: those that a list brought in, each entry with the ids of its workers, and the addresses of
/// all others.
#[derive(Default)]
struct There {
    present: Vec<roster::Entry>,
    ids: Vec<Vec<String>>,
    /// Where the entry with this key and address is.
    places: BTreeMap<(String, String), usize>,
    others: BTreeSet<String>,
}

impl Registry {
    /// `list` is who should be there of those that this provider brings in, each under a name and at an address of its
    /// own. Workers that others brought in are not touched. So many may come at once as there may be workers; they are
    /// looked at one after another like all new ones.
    ///
    /// # Errors
    /// The gateway shuts down.
    pub fn roll(&self, provider: &'static str, list: &[Spec]) -> Result<Rolled, Refused> {
        let (rolled, leaving) = self.change(|book| {
            let Change { rolled, leaving, fleet } = book.roll(provider, list, &self.0.settings)?;
            Ok(((rolled, leaving), fleet))
        })?;
        self.see_off(leaving);
        self.watch_newcomers();
        if self.relieve().is_some() && !self.0.relieving.swap(true, Ordering::AcqRel) {
            let runtime = self.book().runtime();
            runtime.map(|runtime| runtime.spawn(self.clone().relief()));
        }
        Ok(rolled)
    }

    /// Lets those go that are to go and are not needed. Gives when the next of the others has waited long enough.
    fn relieve(&self) -> Option<Instant> {
        let going = self.book().going();
        let slots: BTreeSet<u32> = going.iter().map(|(slot, ..)| *slot).collect();
        let (fleet, now) = (self.load_full(), self.clock().now());
        let mut relief = Relief::new(&fleet, &slots);
        let goes = |(slot, _, end): &(u32, String, Instant)| {
            let seat = fleet.seat(*slot).filter(|seat| seat.pulse.in_service());
            *end <= now || seat.is_none_or(|seat| relief.is_there_for(&seat.worker))
        };
        let (gone, waits): (Vec<_>, Vec<_>) = going.into_iter().partition(goes);
        if !gone.is_empty() {
            let settle = self.0.settings.drain_settle;
            let leaving = self.change(|book| {
                let mut change = Change::default();
                for (slot, id, _) in gone {
                    // The list may name it again by now.
                    if book.entries.get(&slot).is_some_and(|own| own.going.is_some()) {
                        book.dismiss(&id, settle, &mut change);
                    }
                }
                Ok((change.leaving, change.fleet))
            });
            self.see_off(leaving.unwrap_or_default());
        }
        waits.into_iter().map(|(.., end)| end).min()
    }

    /// The same, for as long as somebody waits.
    async fn relief(self) {
        let mut changes = self.changes();
        loop {
            while let Some(end) = self.relieve() {
                tokio::select! {
                    _ = changes.changed() => {}
                    () = tokio::time::sleep_until(self.clock().timer(end)) => {}
                }
            }
            self.0.relieving.store(false, Ordering::Release);
            // Somebody may have begun to wait since the last look, and have left it to this task.
            if self.relieve().is_none() || self.0.relieving.swap(true, Ordering::AcqRel) {
                return;
            }
        }
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
    ) -> Result<Change, Refused> {
        self.open()?;
        let several = |spec: &Spec| settings.dp_aware && spec.told_ranks().is_some_and(|n| n > 1);
        let wanted: Vec<roster::Entry> = list.iter().filter_map(|spec| entry(spec, several(spec))).collect();
        self.recall(provider, &wanted);
        let there = self.there(provider);
        let others = there.others.iter().map(String::as_str).collect();
        let moves = roster::moves(&there.present, &others, &wanted);
        let (mut change, until) = (Change::default(), settings.clock.now().after(RELIEF_MAX));
        for (entry, ids) in moves.leave.iter().filter_map(|at| there.present.get(*at).zip(there.ids.get(*at)))
        {
            for id in ids {
                if !self.keep(id, until) {
                    self.dismiss(id, settings.drain_settle, &mut change);
                }
            }
            change.rolled.left.push(entry.key.clone());
        }
        let named = |at: usize| list.get(at).zip(wanted.get(at).map(|entry| &entry.key));
        for (spec, key) in moves.change.into_iter().filter_map(named) {
            let place = there.places.get(&(key.clone(), spec.base_url().to_owned()));
            let id = place.and_then(|at| there.ids.get(*at)?.first()).map_or("", String::as_str);
            match self.replace(id, spec.clone()) {
                Ok(described) => {
                    change.fleet.extend(described);
                    change.rolled.changed.push(key.clone());
                }
                Err(refused) => change.rolled.refused.push((key.clone(), refused)),
            }
        }
        let going = self.going_by_address();
        for (spec, key) in moves.join.into_iter().filter_map(named) {
            // Nobody waits for relief by one that is to have its address.
            for id in going.get(spec.base_url()).into_iter().flatten() {
                self.dismiss(id, settings.drain_settle, &mut change);
            }
            let joined = self.admit(spec.clone(), settings);
            change.joined(key, joined);
        }
        for (spec, key) in moves.taken.into_iter().filter_map(named) {
            // Whoever is at the address says so.
            let refused = self.join(spec.clone(), settings);
            change.joined(key, refused);
        }
        Ok(change)
    }

    /// Those that are to go and are named again, as they were, stay.
    fn recall(&mut self, provider: &str, wanted: &[roster::Entry]) {
        let marks: BTreeSet<(&str, u64)> = wanted.iter().map(|e| (e.key.as_str(), e.mark)).collect();
        let named = |spec: &Spec| {
            let found = spec.found.as_ref().filter(|found| found.provider == provider);
            found.is_some_and(|found| marks.contains(&(found.id.as_str(), found.mark)))
        };
        for own in self.entries.values_mut().filter(|own| named(&own.spec)) {
            own.going = None;
        }
    }

    fn there(&self, provider: &str) -> There {
        let mut there = There::default();
        for own in self.entries.values().filter(|own| !own.draining) {
            match entry(&own.spec, own.spec.dp_rank.is_some()).filter(|_| own.spec.found_by(provider)) {
                Some(_) if own.going.is_some() => {}
                // Ranks of one engine are one entry of the list.
                Some(entry) => {
                    let next = there.present.len();
                    let place = *there.places.entry((entry.key.clone(), entry.url.clone())).or_insert(next);
                    if place == next {
                        there.present.push(entry);
                        there.ids.push(Vec::new());
                    }
                    there.ids.get_mut(place).into_iter().for_each(|ids| ids.push(own.id.clone()));
                }
                None => there.others.extend([own.spec.base_url().to_owned(), own.spec.url.clone()]),
            }
        }
        there
    }

    /// A worker that serves goes when it is relieved. False: it need not wait for that.
    fn keep(&mut self, id: &str, until: Instant) -> bool {
        let watched = self.runtime().is_some();
        let own = self.entries.values_mut().find(|own| own.id == id && own.serves());
        own.filter(|_| watched).map(|own| own.going = Some(until)).is_some()
    }

    /// Slot and id of each worker that is to go, and when it goes in any case.
    fn going(&self) -> Vec<(u32, String, Instant)> {
        let open = self.open().is_ok();
        let waits = self.entries.iter().filter(|(_, own)| open && !own.draining);
        waits.filter_map(|(slot, own)| Some((*slot, own.id.clone(), own.going?))).collect()
    }

    fn going_by_address(&self) -> BTreeMap<String, Vec<String>> {
        let mut all = BTreeMap::<String, Vec<String>>::new();
        for (slot, id, _) in self.going() {
            let address = self.entries.get(&slot).map(|own| own.spec.base_url().to_owned());
            all.entry(address.unwrap_or_default()).or_default().push(id);
        }
        all
    }

    fn dismiss(&mut self, id: &str, settle: Duration, change: &mut Change) {
        match self.retire(id, settle) {
            Some(Ok(left)) => change.fleet.push(left),
            Some(Err(waits)) => change.leaving.push(waits),
            None => {}
        }
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

    fn well(id: &str, url: &str) -> Spec {
        let mut spec = Spec::new(url, Role::Whole);
        spec.health.disable_health_check = Some(true);
        spec.health.drain_settle_secs = Some(0);
        spec.found("file", id)
    }

    /// Nobody answers there.
    fn coming(id: &str) -> Spec {
        Spec::new("http://127.0.0.1:9", Role::Whole).found("file", id)
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_that_serve_wait_for_those_that_come_and_not_for_ever() {
        let r = registry("");
        r.start();
        r.roll("file", &[well("a", "http://h:1"), well("b", "http://h:2")]).unwrap();
        assert_eq!(r.roll("file", &[well("a", "http://h:1"), coming("c")]).unwrap().left, ["b"]);
        assert_eq!(urls(&r), ["http://h:1", "http://127.0.0.1:9"], "a can serve: b is not needed");
        let began = r.clock().now();
        assert_eq!(r.roll("file", &[coming("c")]).unwrap().left, ["a"]);
        let again = r.roll("file", &[coming("c")]).unwrap();
        assert!(again.left.is_empty() && again.joined.is_empty() && again.refused.is_empty(), "{again:?}");
        assert_eq!(urls(&r), ["http://h:1", "http://127.0.0.1:9"]);
        let mut changes = r.changes();
        while urls(&r).len() > 1 {
            changes.changed().await.unwrap();
        }
        let waited = r.clock().now().since(began);
        assert!((RELIEF_MAX..RELIEF_MAX * 2).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_for_relief_goes_with_it_or_stays_if_it_is_named_again() {
        let r = registry("");
        r.start();
        let a = well("a", "http://h:1");
        r.roll("file", std::slice::from_ref(&a)).unwrap();
        let id = there(&r)[0].1.clone();
        r.roll("file", &[coming("b")]).unwrap();
        // Named again, it is who it was.
        assert_eq!(r.roll("file", std::slice::from_ref(&a)).unwrap().left, ["b"]);
        assert_eq!(there(&r), [("http://h:1".to_owned(), id.clone())]);
        // Its address is wanted by another: there can be no waiting.
        let rolled = r.roll("file", &[well("c", "http://h:1"), coming("b")]).unwrap();
        assert_eq!((rolled.joined, rolled.left), (vec!["c".into(), "b".into()], vec!["a".into()]));
        assert!(there(&r).iter().all(|(_, other)| *other != id));
        // Relief comes.
        r.roll("file", &[coming("b")]).unwrap();
        assert_eq!(urls(&r).len(), 2);
        let slot = r.list().iter().find(|w| w.seat.worker.url.ends_with(":9")).unwrap().seat.slot;
        let mut changes = r.changes();
        r.mark(slot, Status::Ready);
        while urls(&r).len() > 1 {
            changes.changed().await.unwrap();
        }
        assert_eq!(urls(&r), ["http://127.0.0.1:9"]);
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
