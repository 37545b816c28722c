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
        let wanted: Vec<roster::Entry> =
            list.iter().filter_map(|spec| entry(spec, several(spec))).collect();
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
