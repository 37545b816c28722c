//! Many simulated engines in one process: what tests and the demo use.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use baton_sim::{Dialect, Fleet, FleetSpec};
//!
//! let fleet = Fleet::start(FleetSpec::pairs(Dialect::Vllm, 2, 2)).await?;
//! println!("prefill at {}, decode at {}", fleet.prefill()[0].url(), fleet.decode()[0].url());
//! let stats = fleet.settle().await;
//! assert!(stats.idle() && stats.all_free());
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock;
use crate::engine::spec::{EngineSpec, Kind, Role};
use crate::engine::stats::Stats;
use crate::serve::{EngineHandle, Fabric, Seat};

/// How long [`Fleet::settle`] waits.
const SETTLE: Duration = Duration::from_secs(10);
/// How often it looks again when nothing says that something ended.
const LOOK: Duration = Duration::from_millis(20);

/// The engines to start.
#[derive(Clone, Debug, Default)]
pub struct FleetSpec {
    pub seats: Vec<Seat>,
}

impl FleetSpec {
    /// `prefill` and `decode` engines of one kind, on any ports of 127.0.0.1, as fast as possible.
    #[must_use]
    pub fn pairs(kind: impl Into<Kind>, prefill: usize, decode: usize) -> Self {
        let kind = kind.into();
        let roles =
            std::iter::repeat_n(Role::Prefill, prefill).chain(std::iter::repeat_n(Role::Decode, decode));
        let seats = roles.map(|role| Seat::new(EngineSpec::new(kind, role))).collect();
        Self { seats }
    }

    /// Engines that do both phases.
    #[must_use]
    pub fn whole(kind: impl Into<Kind>, count: usize) -> Self {
        let kind = kind.into();
        let seats = (0..count).map(|_| Seat::new(EngineSpec::new(kind, Role::Whole))).collect();
        Self { seats }
    }

    /// Changes every engine's spec.
    #[must_use]
    pub fn with(mut self, mut change: impl FnMut(&mut EngineSpec)) -> Self {
        for seat in &mut self.seats {
            change(&mut seat.spec);
        }
        self
    }

    /// Adds another fleet's engines.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.seats.extend(other.seats);
        self
    }
}

/// Running engines that can reach each other. Dropping it kills them.
pub struct Fleet {
    engines: Vec<EngineHandle>,
    ended: Arc<Notify>,
}

impl Fleet {
    /// Starts all engines.
    ///
    /// # Errors
    /// When a port cannot be had.
    pub async fn start(spec: FleetSpec) -> std::io::Result<Self> {
        let (fabric, ended) = (Fabric::new(), Arc::new(Notify::new()));
        let mut fleet = Self { engines: Vec::new(), ended: ended.clone() };
        for (number, mut seat) in spec.seats.into_iter().enumerate() {
            // One seed makes a fleet, and still no two engines have one run of luck.
            seat.spec.seed = seat.spec.seed.wrapping_add(number as u64);
            fleet.engines.push(EngineHandle::start(seat, fabric.clone(), ended.clone()).await?);
        }
        Ok(fleet)
    }

    /// All engines, in the order of the spec.
    #[must_use]
    pub fn engines(&self) -> &[EngineHandle] {
        &self.engines
    }

    /// The prefill engines.
    #[must_use]
    pub fn prefill(&self) -> Vec<EngineHandle> {
        self.of(Role::Prefill)
    }

    /// The decode engines.
    #[must_use]
    pub fn decode(&self) -> Vec<EngineHandle> {
        self.of(Role::Decode)
    }

    /// The engines that do both phases.
    #[must_use]
    pub fn whole(&self) -> Vec<EngineHandle> {
        self.of(Role::Whole)
    }

    fn of(&self, role: Role) -> Vec<EngineHandle> {
        self.engines.iter().filter(|engine| engine.role() == role).cloned().collect()
    }

    /// The numbers of all engines together.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for engine in &self.engines {
            all.merge(&engine.stats());
        }
        all
    }

    /// Waits until no engine has anything to do, at most ten seconds, and returns the numbers. [`Stats::idle`] says
    /// whether that came about. Blocks that are pinned under a lease are not waited for.
    pub async fn settle(&self) -> Stats {
        self.settle_when(SETTLE, Stats::idle).await
    }

    /// Waits until `done` says so or the time is up, and returns the numbers.
    pub async fn settle_when(&self, limit: Duration, done: impl Fn(&Stats) -> bool) -> Stats {
        let deadline = clock::now() + limit;
        loop {
            let changed = self.ended.notified();
            let stats = self.stats();
            if done(&stats) || clock::now() >= deadline {
                return stats;
            }
            // Somebody ending wakes us; what moves without that (a release under way) is looked at again soon.
            let _ = tokio::time::timeout(LOOK, changed).await;
        }
    }

    /// Kills all engines and waits until their ports are free.
    pub async fn stop(self) {
        for engine in &self.engines {
            engine.kill().await;
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for engine in &self.engines {
            engine.server.drop_life();
        }
    }
}
