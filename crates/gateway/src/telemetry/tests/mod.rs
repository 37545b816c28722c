//! Records in, exposition out.

mod access;
mod exposition;
mod fleet;
mod page;
mod records;
mod serve;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::time::Instant;

use super::*;
use crate::ledger::Shown;

pub const POLICIES: Policies = Policies { prefill: "round_robin", decode: "least_load", whole: "random" };

/// A telemetry whose fleet a test can change.
pub struct Stand {
    pub telemetry: Telemetry,
    fleet: Arc<Mutex<Arc<Fleet>>>,
}

impl Stand {
    pub fn new() -> Stand {
        let fleet = Arc::new(Mutex::new(Arc::new(Fleet::new(PairingMode::Lenient))));
        let seen = Arc::clone(&fleet);
        let telemetry = Telemetry::new(Setup {
            // Few, so that expectations are short.
            duration_buckets: vec![0.1, 1.0],
            policies: POLICIES,
            fleet: Box::new(move || Arc::clone(&seen.lock().unwrap())),
            live: Box::new(|| Live {
                engine_metrics: true,
                now: Instant::from_micros(9_000_000),
                indexes: Indexes {
                    sent: vec![("prefill", 640, 1024, 3)],
                    told: [64, 4096, 2],
                    choices: [5, 0, 7],
                },
                inflight: 3,
                queued: 2,
                connections: 7,
                checks: vec![(Role::Decode, 9, 1)],
                looks: (7, 2),
                preflight: vec![("http://d1".to_owned(), "proved")],
                charged: vec![
                    Charged {
                        namespace: "ns".into(),
                        pod: "p-0".into(),
                        prefill: Some((5, 6)),
                        ..Charged::default()
                    },
                    Charged { pod: "d-0".into(), decode: Some(7), ..Charged::default() },
                    // Its other port.
                    Charged {
                        namespace: "ns".into(),
                        pod: "p-0".into(),
                        prefill: Some((30, 40)),
                        ..Charged::default()
                    },
                ],
                bands: [("short".to_owned(), 2048)].into(),
                shared: Some(Shown {
                    up: true,
                    heard: Some(Instant::from_micros(8_500_000)),
                    instances: 2,
                    failures: [1, 0, 3],
                }),
            }),
            log_drops: log::Drops::idle("stdout"),
        });
        Stand { telemetry: telemetry.unwrap(), fleet }
    }

    /// With one vLLM pair that serves `llama`, on ports 1 and 2.
    pub fn with_pair() -> Stand {
        let stand = Stand::new();
        stand.change([join(1, Role::Prefill), join(2, Role::Decode)]);
        stand
    }

    pub fn fleet(&self) -> Arc<Fleet> {
        Arc::clone(&self.fleet.lock().unwrap())
    }

    pub fn change(&self, changes: impl IntoIterator<Item = FleetChange>) {
        let mut fleet = self.fleet.lock().unwrap();
        *fleet = Arc::new(fleet.with(changes));
    }

    pub fn worker(&self, slot: u32) -> Arc<Worker> {
        Arc::clone(&self.fleet().seat(slot).unwrap().worker)
    }

    /// Sample lines of the exposition.
    pub fn samples(&self) -> BTreeSet<String> {
        self.telemetry.render().lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect()
    }

    /// Lines that `what` changed: what stands there now, sorted.
    pub fn diff(&self, what: impl FnOnce(&Telemetry)) -> String {
        let before = self.samples();
        what(&self.telemetry);
        let mut out = String::new();
        for line in self.samples().difference(&before) {
            out += line;
            out.push('\n');
        }
        out
    }
}

pub fn worker(slot: u32, role: Role) -> Worker {
    let mut worker = Worker::new(format!("w{slot}"), format!("http://h:{slot}"), role);
    worker.engine = Engine::Vllm;
    worker.models = vec!["llama".to_owned()];
    worker
}

pub fn join(slot: u32, role: Role) -> FleetChange {
    let seat = Seat::new(slot, worker(slot, role));
    seat.pulse.set_status(Status::Ready);
    FleetChange::Join(seat)
}
