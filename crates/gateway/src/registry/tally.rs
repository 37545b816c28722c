//! Counts that outlive the workers they are about. Telemetry reads them; nothing else does.

use std::sync::atomic::{AtomicU64, Ordering};

use baton_core::fleet::Role;

/// Health checks by role and result.
#[derive(Debug, Default)]
pub struct Tally {
    good: [AtomicU64; Role::ALL.len()],
    bad: [AtomicU64; Role::ALL.len()],
}

impl Tally {
    pub(crate) fn checked(&self, role: Role, good: bool) {
        let row = if good { &self.good } else { &self.bad };
        if let Some(count) = row.get(index(role)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Checks of workers of this role so far: good ones and bad ones.
    pub fn checks(&self, role: Role) -> (u64, u64) {
        let of = |row: &[AtomicU64]| row.get(index(role)).map_or(0, |c| c.load(Ordering::Relaxed));
        (of(&self.good), of(&self.bad))
    }

    /// Checks of each role so far: good ones and bad ones.
    pub fn all(&self) -> [(Role, u64, u64); Role::ALL.len()] {
        Role::ALL.map(|role| {
            let (good, bad) = self.checks(role);
            (role, good, bad)
        })
    }
}

fn index(role: Role) -> usize {
    Role::ALL.iter().position(|r| *r == role).unwrap_or_default()
}
