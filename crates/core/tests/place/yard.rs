//! Fleets to place on.

use std::sync::atomic::{AtomicUsize, Ordering};

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::breaker::{BreakerRule, Verdict};
use baton_core::dice::Dice;
use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::place::{Legwise, Look, Miss, Placement, Policy, PolicyName, Strategy};
use baton_core::time::{Duration, Instant};

pub const POLICIES: [PolicyName; 9] = PolicyName::ALL;

/// One bad leg opens; ten seconds later it is half-open; one good probe closes.
pub const RULE: BreakerRule =
    BreakerRule { enabled: true, failure_threshold: 1, success_threshold: 1, rest: Duration::from_secs(10) };

/// When breakers tripped at zero have had their rest.
pub const RESTED: Instant = Instant::from_micros(10_000_000);

pub fn seat(slot: u32, id: &str, role: Role) -> Seat {
    let mut worker = Worker::new(id, format!("http://{id}:8000"), role);
    worker.engine = Engine::Sglang;
    let seat = Seat::new(slot, worker);
    seat.pulse.set_status(Status::Ready);
    seat
}

pub fn fleet(seats: impl IntoIterator<Item = Seat>) -> Fleet {
    Fleet::new(PairingMode::Lenient).with(seats.into_iter().map(FleetChange::Join))
}

/// Prefills `p0..`, decodes `d0..`, in this order of slots.
pub fn pairs(prefills: u32, decodes: u32) -> Fleet {
    let p = (0..prefills).map(|i| seat(i, &format!("p{i}"), Role::Prefill));
    let d = (0..decodes).map(|i| seat(prefills + i, &format!("d{i}"), Role::Decode));
    fleet(p.chain(d))
}

pub fn strategy(name: PolicyName) -> Strategy {
    let policy = || Policy::new(name);
    Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
}

pub fn ask(model: Option<&str>) -> Ask {
    wide(model, 1)
}

/// A request for so many samples.
pub fn wide(model: Option<&str>, n: u32) -> Ask {
    let model = model.map(|m| format!(r#""model":"{m}","#)).unwrap_or_default();
    let body = format!(r#"{{{model}"n":{n}}}"#);
    Ask::read(Api::Chat, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap()).unwrap()
}

pub fn place(fleet: &Fleet, strategy: &Strategy, dice: &mut Dice) -> Result<Placement, Miss> {
    let ask = ask(None);
    let look = Look::new(fleet, &ask, RESTED);
    strategy.place(&look, dice)
}

/// The chosen workers, the prefill first.
pub fn chosen(placement: &Placement) -> Vec<&Seat> {
    match placement {
        Placement::Whole { worker } | Placement::Prefill { worker } => vec![&worker.seat],
        Placement::Pair { prefill, decode } => vec![&prefill.seat, &decode.seat],
    }
}

pub fn ids(placement: &Placement) -> Vec<&str> {
    chosen(placement).into_iter().map(|seat| seat.worker.id.as_str()).collect()
}

/// Opens the worker's breaker at the beginning of time.
pub fn trip(seat: &Seat) {
    seat.pulse.record(Verdict::Bad, &RULE, Instant::ZERO);
}

/// Gives a placement back as a driver does: each leg judged, then freed.
pub fn settle(placement: Placement, verdict: Verdict) {
    for seat in chosen(&placement) {
        seat.pulse.record(verdict, &RULE, RESTED);
    }
    drop(placement);
}

/// Lets threads go through the same rounds at the same moments: a barrier that spins, so that they leave it
/// together and really race.
pub struct Laps {
    threads: usize,
    arrived: AtomicUsize,
}

impl Laps {
    pub fn new(threads: usize) -> Laps {
        Laps { threads, arrived: AtomicUsize::new(0) }
    }

    /// Waits until all threads have come here as often as this one.
    pub fn wait(&self) {
        let lap = self.arrived.fetch_add(1, Ordering::SeqCst) / self.threads;
        for spins in 0u64.. {
            if self.arrived.load(Ordering::SeqCst) >= (lap + 1) * self.threads {
                return;
            }
            // Spinning keeps this thread on its core, ready to race; yielding keeps a busy machine going.
            if spins < 20_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}
