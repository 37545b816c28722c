//! Whom does the client leave to choose from? Its header `external-filter`, a label selector, on the workers of one
//! picture of the fleet.
//!
//! Read and looked up once for each request and picture: decisions ask for a worker again and again, and another try goes
//! by what the first one found. Requests without the header have no sieve.

use std::sync::{Arc, Mutex, PoisonError};

use crate::fleet::Fleet;
use crate::selector::{BadSelector, Selector};

/// Slots, rising.
pub type Slots = Arc<[u32]>;

/// One request's selector, and whom it selected last.
#[derive(Debug)]
pub struct Sieve {
    /// As the client wrote it.
    pub text: String,
    selector: Selector,
    /// By the fleet's version. One request asks, so nobody waits for this.
    last: Mutex<Option<(u64, Slots)>>,
}

impl Sieve {
    /// `None`: it selects everything.
    ///
    /// # Errors
    /// The text is no selector.
    pub fn of(text: &str) -> Result<Option<Arc<Sieve>>, BadSelector> {
        let selector = Selector::parse(text)?;
        let sieve = || Sieve { text: text.trim().to_owned(), selector, last: Mutex::new(None) };
        Ok(if text.trim().is_empty() { None } else { Some(Arc::new(sieve())) })
    }

    /// Those of the fleet that it selects.
    pub fn passing(&self, fleet: &Fleet) -> Slots {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((version, slots)) if *version == fleet.version() => slots.clone(),
            _ => {
                let passes = fleet.seats().filter(|seat| self.selector.selects(&seat.worker.labels));
                let slots: Slots = passes.map(|seat| seat.slot).collect();
                *last = Some((fleet.version(), slots.clone()));
                slots
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{FleetChange, PairingMode, Role, Seat, Worker};

    fn seat(slot: u32, tier: &str) -> Seat {
        let mut worker = Worker::new(format!("w{slot}"), format!("http://h:{slot}"), Role::Whole);
        worker.labels.insert("tier".to_owned(), tier.to_owned());
        Seat::new(slot, worker)
    }

    #[test]
    fn a_picture_is_looked_at_once_and_another_one_anew() {
        let fleet = Fleet::new(PairingMode::Lenient)
            .with([(1, "a"), (2, "b"), (3, "a")].map(|(slot, tier)| FleetChange::Join(seat(slot, tier))));
        let sieve = Sieve::of(" tier=a ").unwrap().unwrap();
        let first = sieve.passing(&fleet);
        assert_eq!((&*first, sieve.text.as_str()), ([1, 3].as_slice(), "tier=a"));
        assert!(Arc::ptr_eq(&first, &sieve.passing(&fleet)));
        let worker = Worker::clone(&seat(1, "b").worker);
        let next = fleet.with([
            FleetChange::Describe { slot: 1, worker: Box::new(worker) },
            FleetChange::Join(seat(4, "a")),
        ]);
        assert_eq!(&*sieve.passing(&next), [3, 4]);
        assert!(Sieve::of(" ").unwrap().is_none() && Sieve::of("a b").is_err());
    }
}
