//! The ledger as requests share it: a charge goes back when what was charged for is dropped.
//!
//! The lock is also what makes choosing and charging one step: under the policies that score by tokens, a request
//! holds it from its first look at the ledger to its own charge, so that a burst sees itself. Requests under other
//! policies never take it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use super::ledger::{Charge, Ledger, Part, Stale, Tokens};
use super::sessions::Sessions;
use super::shared::{Decodes, Others};
use crate::time::{Duration, Instant};

/// How often what was lost is looked for.
pub const SWEEP: Duration = Duration::from_secs(60);

/// What is behind the lock.
#[derive(Debug, Default)]
pub struct Open {
    pub ledger: Ledger,
    pub sessions: Sessions,
    /// What other gateways have charged workers with, where they share.
    pub others: Arc<Others>,
    next: u64,
    /// What decodes are charged with has changed since it was last asked for.
    changed: bool,
}

/// All charges and sessions of a gateway.
#[derive(Debug, Default)]
pub struct Books {
    open: Mutex<Open>,
    /// Woken at the first change after each look at [`Books::decodes`].
    watcher: OnceLock<Waker>,
    /// Somebody scored decodes by tokens.
    wanted: AtomicBool,
}

/// A part of a charge. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a charge that is dropped at once counts for nothing"]
pub struct Held {
    books: Arc<Books>,
    id: u64,
    part: Part,
    /// Of the rest: the tokens that the prefill keeps.
    kv: Option<u64>,
}

impl Held {
    pub fn kv(&self) -> Option<u64> {
        self.kv
    }

    /// No prefill computes the prompt after all.
    pub fn forgo_prefill(&mut self) {
        self.kv = None;
        self.books.open().ledger.forgo_prefill(self.id);
    }
}

impl Open {
    /// Charges under an id that was never used.
    fn enter(&mut self, charge: Charge) -> u64 {
        let id = self.next;
        self.next += 1;
        self.ledger.charge(id, charge);
        id
    }
}

/// The tokens that the prefill keeps until the end of the request.
fn kv(charge: Charge) -> Option<u64> {
    charge.prefill.map(|(_, tokens)| tokens)
}

impl Books {
    /// Nothing that is [`Held`] may be dropped while this is held.
    pub fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges, and gives what goes back with the prefill's answer and what with the end of the request.
    pub fn charge(self: &Arc<Books>, open: &mut Open, charge: Charge) -> (Held, Held) {
        let id = self.enter(open, charge);
        (self.held(id, Part::Active, None), self.held(id, Part::Rest, kv(charge)))
    }

    /// Charges for a prompt that is computed already.
    pub fn charge_rest(self: &Arc<Books>, open: &mut Open, charge: Charge) -> Held {
        let id = self.enter(open, charge);
        open.ledger.release(id, Part::Active);
        self.held(id, Part::Rest, kv(charge))
    }

    fn held(self: &Arc<Books>, id: u64, part: Part, kv: Option<u64>) -> Held {
        Held { books: self.clone(), id, part, kv }
    }

    fn enter(&self, open: &mut Open, charge: Charge) -> u64 {
        let id = open.enter(charge);
        if charge.decode.is_some() {
            self.note(open);
        }
        id
    }

    /// What decodes are charged with has changed.
    fn note(&self, open: &mut Open) {
        if !std::mem::replace(&mut open.changed, true)
            && let Some(watcher) = self.watcher.get()
        {
            watcher.wake_by_ref();
        }
    }

    /// Has this woken when what decodes are charged with has changed. The first one that asks is heeded.
    pub fn watch(&self, watcher: Waker) {
        let _ = self.watcher.set(watcher);
    }

    /// Workers that decode something of this gateway's, by slot. The next change wakes who watches.
    pub fn decodes(&self) -> Vec<(u32, Decodes)> {
        let mut open = self.open();
        open.changed = false;
        let rows = open.ledger.rows().map(|(slot, tokens)| (slot, tokens.decodes()));
        rows.filter(|(_, decodes)| decodes.charges > 0).collect()
    }

    /// What other gateways have charged workers with, from now on.
    pub fn hear(&self, others: Arc<Others>) {
        let old = std::mem::replace(&mut self.open().others, others);
        // Taken apart only now, without the lock.
        drop(old);
    }

    /// Decodes are scored by tokens: what other gateways have there counts.
    pub fn want_others(&self) {
        if !self.wanted.load(Ordering::Relaxed) {
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Did anybody want to know since the last time this was asked?
    pub fn was_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }

    /// What each worker is charged with, by slot.
    pub fn rows(&self) -> Vec<(u32, Tokens)> {
        self.open().ledger.rows().collect()
    }

    /// Takes back what is too old and forgets what was long not asked for. Gives what was taken back.
    pub fn sweep(&self, now: Instant) -> Vec<Stale> {
        let mut open = self.open();
        open.sessions.sweep(now);
        let stale = open.ledger.sweep(now);
        if stale.iter().any(|stale| stale.charge.decode.is_some()) {
            self.note(&mut open);
        }
        stale
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut open = self.books.open();
        open.ledger.release(self.id, self.part);
        if self.part == Part::Rest {
            self.books.note(&mut open);
        }
    }
}
