//! Hears what engines publish of their KV blocks, and puts it into core's index.
//!
//! One task for each worker that is ready and says where it publishes ([`Source`]); it lives on the control thread, and
//! nothing here is on a request's path. A worker that is not ready, has begun a new life or publishes elsewhere now is
//! forgotten and heard anew.
//!
//! What events mean, and when they are worth nothing, is decided in `core::kv`.

mod follow;
mod link;
mod source;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_core::dice::Dice;
use baton_core::fleet::{Seat, Status};
use baton_core::kv::KvIndex;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

pub use follow::{AGAIN, REPLAYS_AT_ONCE};
pub use link::MESSAGE_MAX_BYTES;
pub use source::{Ports, Source};

use crate::registry::Registry;
use follow::Follow;

/// Time between two looks whether anybody wants to know.
const WANTED_EVERY: Duration = Duration::from_secs(1);

/// Hears every worker of the registry that publishes, for ever. Dropping the future ends all of it.
///
/// Nobody is heard before somebody looks prompts up ([`KvIndex::want`]): it would cost memory for nothing.
pub async fn hear(registry: Registry, index: Arc<KvIndex>, ports: Ports) {
    while !index.is_wanted() {
        tokio::time::sleep(WANTED_EVERY).await;
    }
    let mut changes = registry.changes();
    let mut heard: BTreeMap<u32, Heard> = BTreeMap::new();
    let replays = Arc::new(Semaphore::new(REPLAYS_AT_ONCE));
    loop {
        let fleet = registry.load_full();
        heard.retain(|slot, own| fleet.seat(*slot).is_some_and(|seat| own.is_of(seat, ports)));
        for seat in fleet.seats() {
            if let Some(source) = wanted(seat, ports).filter(|_| !heard.contains_key(&seat.slot)) {
                let follow = Follow {
                    life: seat.pulse.life(),
                    seat: seat.clone(),
                    source: source.clone(),
                    index: index.clone(),
                    clock: registry.clock(),
                    replays: replays.clone(),
                    dice: Dice::new(registry.settings().seed ^ u64::from(seat.slot)),
                };
                let task = tokio::spawn(follow.run()).abort_handle();
                heard.insert(seat.slot, Heard { life: seat.pulse.life(), source, task });
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn wanted(seat: &Seat, ports: Ports) -> Option<Source> {
    if seat.pulse.status() != Status::Ready {
        return None;
    }
    Source::of(&seat.worker, ports)
}

/// A worker that is being heard, until this is dropped.
struct Heard {
    life: u32,
    source: Source,
    task: AbortHandle,
}

impl Heard {
    fn is_of(&self, seat: &Seat, ports: Ports) -> bool {
        seat.pulse.life() == self.life && wanted(seat, ports).as_ref() == Some(&self.source)
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.task.abort();
    }
}
