//! Counts that outlive the workers they are about. Telemetry reads them; nothing else does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use baton_core::fleet::Role;

#[derive(Debug, Default)]
pub struct Tally {
    /// Health checks by role and result. There are a few in a minute, so a lock is no loss.
    checks: Mutex<BTreeMap<Role, (u64, u64)>>,
    /// Looks at workers' metrics: those that told something, and the others.
    told: AtomicU64,
    untold: AtomicU64,
}

impl Tally {
    pub(crate) fn looked(&self, told: bool) {
        if told { &self.told } else { &self.untold }.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks at workers' metrics so far: those that told something, and the others.
    pub fn looks(&self) -> (u64, u64) {
        (self.told.load(Ordering::Relaxed), self.untold.load(Ordering::Relaxed))
    }

    pub(crate) fn checked(&self, role: Role, good: bool) {
        let mut counts = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let (well, unwell) = counts.entry(role).or_default();
        *(if good { well } else { unwell }) += 1;
    }

    /// Checks of workers of this role so far: good ones and bad ones.
    pub fn checks(&self, role: Role) -> (u64, u64) {
        let counts = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&role).copied().unwrap_or_default()
    }

    /// Checks of each role so far: good ones and bad ones.
    pub fn all(&self) -> [(Role, u64, u64); Role::ALL.len()] {
        Role::ALL.map(|role| {
            let (good, bad) = self.checks(role);
            (role, good, bad)
        })
    }
}
