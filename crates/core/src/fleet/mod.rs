//! All workers and who may pair with whom: an immutable snapshot, changed by named changes.
//!
//! The shell publishes a new [`Fleet`] for each batch of [`FleetChange`]s; a request works with the
//! snapshot it started with. The live parts of a worker (its load, its breaker, its health) sit behind
//! the [`Seat`], which is shared between snapshots, so a change of labels loses no count.

mod bench;
mod health;
mod index;
pub mod pairing;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

pub use bench::{Bench, Kinds, Row, Serving};
pub use health::{Health, HealthRule, Status};
pub use pairing::{Descriptor, Mismatch, PairingMode, mismatch, pairing_key};
pub use worker::{Connector, Engine, Pod, Role, Secret, Worker, base_of, host_of, mixed};

use crate::breaker::{Breaker, BreakerRule, BreakerState, Verdict};
use crate::gauges::Gauges;
use crate::kv::View;
use crate::load::Load;
use crate::place::cascade::yard::Yard;
use crate::time::Instant;
use crate::tokenize::Standing;
use index::{Partners, apart};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// In the state of a worker: it is well, and gets no requests until it is let in.
const HELD: u32 = 0x80;
/// In the state: the breaker is not simply closed and clean, look at it.
const ALARM: u32 = 0x100;
/// Of the state, the [`Status`].
const STATUS: u32 = 0x7f;
/// The state of a worker that is well, and of which there is nothing more to know.
const CALM: u32 = Status::Ready as u32;

/// The live state of one worker that outlives a change of its description. What is read of it for every request stands
/// beside the worker's load.
#[derive(Debug, Default)]
pub struct Pulse {
    load: Arc<Load>,
    /// Microseconds; when the worker was last asked what a restart of it changes. 0: never.
    told: AtomicU64,
    /// Microseconds; when a decision first asked for how long it has been there, in this life. 0: none has.
    seen: AtomicU64,
    breaker: Mutex<Breaker>,
}

/// Is all well with the worker that has this load? One load from memory. False says nothing: look at its [`Pulse`].
#[inline]
pub fn is_calm(load: &Load) -> bool {
    load.state.load(Ordering::Acquire) == CALM
}

/// The worker may get requests if its breaker agrees.
#[inline]
pub(crate) fn serves_now(load: &Load) -> bool {
    load.state.load(Ordering::Acquire) & !ALARM == CALM
}

/// Has the worker that has this load answered a request in this life?
#[inline]
pub fn has_answered(load: &Load) -> bool {
    load.answered.load(Ordering::Relaxed) == load.life.load(Ordering::Acquire).wrapping_add(1)
}

impl Pulse {
    fn beside(load: &Arc<Load>) -> Pulse {
        Pulse { load: load.clone(), ..Pulse::default() }
    }

    #[inline]
    fn state(&self) -> u32 {
        self.load.state.load(Ordering::Acquire)
    }

    fn is_alarmed(&self) -> bool {
        self.state() & ALARM != 0
    }

    pub fn status(&self) -> Status {
        Status::from_u8((self.state() & STATUS) as u8)
    }

    /// Another status, and whether it is held. The breaker's part of the state stays. Gives the state before.
    fn turn(&self, to: u32) -> u32 {
        let next = |state: u32| Some(state & ALARM | to);
        let turned = self.load.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        turned.unwrap_or_else(|state| state)
    }

    /// A worker that was well and is not any more may be another process when it comes back.
    pub fn set_status(&self, status: Status) {
        let was = Status::from_u8((self.turn(status as u32) & STATUS) as u8);
        if was == Status::Ready && !matches!(status, Status::Ready | Status::Draining) {
            self.reborn();
        }
    }

    /// The worker is well, and is held until [`Pulse::let_in`]: in one step, so that no request slips in between.
    pub fn hold(&self) {
        self.turn(CALM | HELD);
    }

    /// A held worker gets requests from now on. False: it is not held, or not well any more.
    pub fn let_in(&self) -> bool {
        let next = |state: u32| (state & !ALARM == CALM | HELD).then_some(state & !HELD);
        self.load.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
    }

    /// It is well and waits to be let in ([`crate::preflight`]).
    pub fn is_held(&self) -> bool {
        self.state() & HELD != 0
    }

    /// It is well and not held. Its breaker may be open all the same.
    pub fn in_service(&self) -> bool {
        serves_now(&self.load)
    }

    /// What the worker remembered of prompts is gone, as far as anybody knows.
    pub fn reborn(&self) {
        self.load.life.fetch_add(1, Ordering::AcqRel);
        self.seen.store(0, Ordering::Release);
    }

    /// Since when decisions have had it among their candidates, in this life; from now on if none had.
    pub fn seen_since(&self, now: Instant) -> Instant {
        let first = now.as_micros().max(1);
        let seen = self.seen.compare_exchange(0, first, Ordering::AcqRel, Ordering::Acquire);
        Instant::from_micros(seen.map_or_else(|seen| seen, |_| first))
    }

    /// Changes whenever the worker may have lost its memory.
    #[inline]
    pub fn life(&self) -> u32 {
        self.load.life.load(Ordering::Acquire)
    }

    /// It has answered a request.
    pub fn answers(&self) {
        let life = self.life().wrapping_add(1);
        if self.load.answered.load(Ordering::Relaxed) != life {
            self.load.answered.store(life, Ordering::Relaxed);
        }
    }

    /// Has it answered a request in this life?
    #[inline]
    pub fn has_answered(&self) -> bool {
        has_answered(&self.load)
    }

    /// May a request go to this worker now? One load when all is well.
    pub fn available(&self, now: Instant) -> bool {
        let state = self.state();
        state == CALM || state & !ALARM == CALM && self.with(|b| b.lets_through(now))
    }

    /// A request goes to the worker. False: another one took the half-open probe's place first.
    pub fn enter(&self, now: Instant) -> bool {
        !self.is_alarmed() || self.with(|b| b.enter(now))
    }

    /// The leg is over and says this. Touches no lock while all goes well.
    pub fn record(&self, verdict: Verdict, rule: &BreakerRule, now: Instant) {
        if verdict != Verdict::Bad && !self.is_alarmed() {
            return;
        }
        self.with(|b| b.record(verdict, rule, now));
    }

    /// The request that entered goes elsewhere after all: its probe's place is free again.
    pub fn step_back(&self, now: Instant) {
        self.record(Verdict::Mute, &BreakerRule::default(), now);
    }

    /// When the worker was asked for what is known of it that a restart changes.
    pub fn told_at(&self) -> Instant {
        Instant::from_micros(self.told.load(Ordering::Acquire))
    }

    /// The worker was asked at `asked`, and what came of it is in the fleet.
    pub fn told(&self, asked: Instant) {
        self.told.fetch_max(asked.as_micros(), Ordering::AcqRel);
    }

    pub fn readmit(&self) {
        self.with(Breaker::readmit);
    }

    pub fn breaker(&self) -> Breaker {
        self.breaker.lock().map_or_else(|e| e.into_inner().clone(), |b| b.clone())
    }

    fn with<T>(&self, f: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut b = self.breaker.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let out = f(&mut b);
        let clean = b.state() == BreakerState::Closed && b.bad_in_a_row() == 0;
        // Under the breaker's lock, so that what is said of it last is what it is.
        match clean {
            true => self.load.state.fetch_and(!ALARM, Ordering::AcqRel),
            false => self.load.state.fetch_or(ALARM, Ordering::AcqRel),
        };
        out
    }
}

/// A worker with its live state. `slot` is unique for the life of the process and never used again.
#[derive(Clone, Debug)]
pub struct Seat {
    pub slot: u32,
    pub worker: Arc<Worker>,
    /// How many sequences the worker runs at once; more are not sent to it. Read from the description.
    pub window: Option<u32>,
    /// Where the worker stands for policies that hash: the same for every gateway.
    pub point: u64,
    pub load: Arc<Load>,
    pub pulse: Arc<Pulse>,
    /// What the worker says of its own load.
    pub gauges: Arc<Gauges>,
    /// What is known of its cache from its events.
    pub view: Arc<View>,
    /// Whether it is worth asking what it makes of a prompt.
    pub standing: Arc<Standing>,
}

impl Seat {
    pub fn new(slot: u32, worker: Worker) -> Seat {
        let window = worker.window();
        let (point, worker) = (point(&worker), Arc::new(worker));
        let load = Arc::default();
        let pulse = Arc::new(Pulse::beside(&load));
        let (gauges, view, standing) = (Arc::default(), Arc::default(), Arc::default());
        Seat { slot, worker, window, point, load, pulse, gauges, view, standing }
    }

    /// Has the window room for so many more sequences?
    pub fn has_room(&self, rooms: u32) -> bool {
        self.fits_in(self.load.in_flight(), rooms)
    }

    /// Would it, at this load? Without a window, up to what can be counted: nothing could be taken past that.
    pub fn fits_in(&self, load: u32, rooms: u32) -> bool {
        load.checked_add(rooms).is_some_and(|after| self.window.is_none_or(|window| after <= window))
    }

    fn described(&self, worker: Arc<Worker>) -> Seat {
        Seat { window: worker.window(), point: point(&worker), worker, ..self.clone() }
    }
}

fn point(worker: &Worker) -> u64 {
    xxh3_64_with_seed(worker.url.as_bytes(), worker.dp_rank.map_or(0, |rank| u64::from(rank) + 1))
}

/// A named change of the fleet.
#[derive(Debug)]
pub enum FleetChange {
    Join(Seat),
    /// The worker with this slot has a new description.
    Describe {
        slot: u32,
        worker: Box<Worker>,
    },
    Leave {
        slot: u32,
    },
}

/// An immutable picture of all workers.
#[derive(Debug, Default)]
pub struct Fleet {
    mode: PairingMode,
    version: u64,
    seats: BTreeMap<u32, Arc<Seat>>,
    prefill: Vec<Prefill>,
    decode: Vec<Arc<Seat>>,
    whole: Vec<Arc<Seat>>,
    /// The same as choices read them.
    kinds: Kinds,
    prefills: Bench,
    wholes: Bench,
    teams: Vec<Bench>,
    no_pair: Option<Arc<str>>,
    /// One for all pictures: see [`Fleet::want_gauges`].
    wanted: Arc<AtomicBool>,
    yard: OnceLock<Yard>,
}

/// A prefill worker and the decode workers it may pair with.
#[derive(Debug)]
pub struct Prefill {
    pub seat: Arc<Seat>,
    /// One list for all prefill workers that describe themselves alike.
    pub partners: Arc<[Arc<Seat>]>,
    /// Which list that is.
    pub team: u32,
}

impl Fleet {
    pub fn new(mode: PairingMode) -> Fleet {
        Fleet { mode, ..Fleet::default() }
    }

    /// The picture after `changes`. Changes of unknown slots are ignored.
    pub fn with(&self, changes: impl IntoIterator<Item = FleetChange>) -> Fleet {
        let mut seats = self.seats.clone();
        for change in changes {
            match change {
                FleetChange::Join(seat) => {
                    let seat = seat.described(seat.worker.clone());
                    seats.insert(seat.slot, Arc::new(seat));
                }
                FleetChange::Describe { slot, worker } => {
                    if let Some(old) = seats.get(&slot) {
                        let seat = old.described(Arc::from(worker));
                        seats.insert(slot, Arc::new(seat));
                    }
                }
                FleetChange::Leave { slot } => drop(seats.remove(&slot)),
            }
        }
        Fleet { version: self.version + 1, wanted: self.wanted.clone(), ..Fleet::of(self.mode, seats) }
    }

    fn of(mode: PairingMode, seats: BTreeMap<u32, Arc<Seat>>) -> Fleet {
        let by = |role| seats.values().filter(move |s| s.worker.role == role).cloned();
        let decode: Vec<_> = by(Role::Decode).collect();
        let mut partners = Partners::of(mode, &decode);
        let prefill: Vec<Prefill> = by(Role::Prefill)
            .map(|seat| {
                let (team, partners) = partners.list(Descriptor::of(&seat.worker));
                Prefill { seat, partners, team }
            })
            .collect();
        let mut kinds = Kinds::default();
        let teams = partners.into_lists();
        let teams = teams.iter().map(|list| Bench::of(list.iter().map(|s| (s, None)), &mut kinds)).collect();
        let prefills = Bench::of(prefill.iter().map(|p| (&p.seat, Some(p.team))), &mut kinds);
        let no_pair = apart(mode, &prefill, &decode).map(Arc::from);
        let whole: Vec<_> = by(Role::Whole).collect();
        let wholes = Bench::of(whole.iter().map(|s| (s, None)), &mut kinds);
        // Those that nobody chooses count where it is asked who serves a model.
        for seat in seats.values() {
            kinds.of(&seat.worker.models);
        }
        Fleet {
            mode,
            prefill,
            decode,
            whole,
            kinds,
            prefills,
            wholes,
            teams,
            no_pair,
            seats,
            ..Fleet::default()
        }
    }

    /// Whoever decides by what workers say of their load says so here: until somebody does, they are not asked for it.
    pub fn want_gauges(&self) {
        if !self.gauges_wanted() {
            self.wanted.store(true, Ordering::Release);
        }
    }

    pub fn gauges_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Grows with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn seats(&self) -> impl Iterator<Item = &Arc<Seat>> {
        self.seats.values()
    }

    pub fn seat(&self, slot: u32) -> Option<&Arc<Seat>> {
        self.seats.get(&slot)
    }

    pub fn len(&self) -> usize {
        self.seats.len()
    }

    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    pub fn prefill(&self) -> &[Prefill] {
        &self.prefill
    }

    pub fn decode(&self) -> &[Arc<Seat>] {
        &self.decode
    }

    pub fn whole(&self) -> &[Arc<Seat>] {
        &self.whole
    }

    /// The prefill workers, as [`Fleet::prefill`] lists them.
    pub fn prefills(&self) -> &Bench {
        &self.prefills
    }

    /// The workers that run both phases, as [`Fleet::whole`] lists them.
    pub fn wholes(&self) -> &Bench {
        &self.wholes
    }

    /// The partners of the prefill workers of this team.
    pub fn team(&self, number: u32) -> Option<&Bench> {
        self.teams.get(number as usize)
    }

    /// How many teams there are.
    pub fn teams(&self) -> usize {
        self.teams.len()
    }

    /// Who takes requests for this model.
    pub fn serving(&self, model: Option<&str>) -> Serving {
        self.kinds.serving(model)
    }

    /// The same fleet as AIBrix's labels and annotations describe it. Read when it is first asked for.
    pub fn yard(&self) -> &Yard {
        self.yard.get_or_init(|| Yard::of(self))
    }

    /// Does any worker say that it serves this model, or that it would take any?
    pub fn knows(&self, model: &str) -> bool {
        !self.is_empty() && self.serving(Some(model)).any()
    }

    /// All model names, in order, each once.
    pub fn models(&self) -> Vec<&str> {
        let mut all: Vec<&str> =
            self.seats.values().flat_map(|s| s.worker.models.iter().map(String::as_str)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Can a request be served now: a pair whose two workers are in service, or a whole worker?
    pub fn ready(&self) -> bool {
        let well = |s: &Arc<Seat>| s.pulse.in_service();
        self.whole.iter().any(well)
            || self.prefill.iter().any(|p| well(&p.seat) && p.partners.iter().any(well))
    }

    /// Why no prefill pairs with any decode: differing components and both legs' keys.
    /// `None` if some pair exists or one of the legs has no worker at all.
    pub fn no_pair(&self) -> Option<&str> {
        self.no_pair.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(slot: u32, role: Role, engine: Engine) -> Seat {
        let mut w = Worker::new(format!("w{slot}"), format!("http://h:{slot}"), role);
        w.engine = engine;
        Seat::new(slot, w)
    }

    #[test]
    fn a_change_of_description_keeps_load_and_health() {
        let f =
            Fleet::new(PairingMode::Lenient).with([FleetChange::Join(seat(1, Role::Decode, Engine::Vllm))]);
        let lease = f.decode()[0].load.take();
        f.decode()[0].pulse.set_status(Status::Ready);
        let mut w = Worker::clone(&f.decode()[0].worker);
        w.labels.insert("a".into(), "b".into());
        let g = f.with([FleetChange::Describe { slot: 1, worker: Box::new(w) }]);
        assert_eq!(g.decode()[0].load.in_flight(), 1);
        assert_eq!(g.decode()[0].pulse.status(), Status::Ready);
        drop(lease);
        assert_eq!(g.decode()[0].load.in_flight(), 0);
        assert!(g.with([FleetChange::Leave { slot: 1 }]).is_empty());
    }

    #[test]
    fn ready_needs_a_pair_not_just_both_legs() {
        let join = |s: Seat| {
            s.pulse.set_status(Status::Ready);
            FleetChange::Join(s)
        };
        let f = Fleet::new(PairingMode::Lenient)
            .with([join(seat(1, Role::Prefill, Engine::Vllm)), join(seat(2, Role::Decode, Engine::Sglang))]);
        assert!(!f.ready());
        assert_eq!(f.no_pair().unwrap(), "mismatch in runtime; prefill [vllm/?/?], decode [sglang/?/?]");
        let f = f.with([join(seat(3, Role::Decode, Engine::Vllm))]);
        assert!(f.ready() && f.no_pair().is_none());
        assert_eq!(f.prefill()[0].partners.len(), 1);
    }

    #[test]
    fn partners_are_those_that_fit_one_by_one() {
        let describe = |slot: u32| {
            let (p, d) = (slot.is_multiple_of(2), slot / 2);
            let engine = [Engine::Vllm, Engine::Sglang, Engine::Unspecified][(d % 3) as usize];
            let mut s = seat(slot, if p { Role::Prefill } else { Role::Decode }, engine);
            let mut w = Worker::clone(&s.worker);
            if d % 4 != 0 {
                w.labels.insert("page_size".into(), (d % 2).to_string());
            }
            s.worker = Arc::new(w);
            s
        };
        for mode in [PairingMode::Off, PairingMode::Lenient, PairingMode::Strict] {
            let f = Fleet::new(mode).with((0..48).map(|slot| FleetChange::Join(describe(slot))));
            for p in f.prefill() {
                let own = Descriptor::of(&p.seat.worker);
                let fits = |d: &&Arc<Seat>| mismatch(mode, &own, &Descriptor::of(&d.worker)).is_none();
                let expected: Vec<u32> = f.decode().iter().filter(fits).map(|s| s.slot).collect();
                let slots: Vec<u32> = p.partners.iter().map(|s| s.slot).collect();
                assert_eq!(slots, expected, "{mode:?}, prefill {}", p.seat.slot);
            }
        }
    }

    #[test]
    fn a_pulse_without_trouble_is_available_and_one_in_trouble_is_not() {
        let p = Pulse::default();
        let rule = BreakerRule { failure_threshold: 1, ..BreakerRule::default() };
        assert!(!p.available(Instant::ZERO), "pending");
        p.set_status(Status::Ready);
        p.record(Verdict::Good, &rule, Instant::ZERO);
        assert!(p.available(Instant::ZERO));
        p.record(Verdict::Bad, &rule, Instant::ZERO);
        assert!(!p.available(Instant::ZERO));
        p.readmit();
        assert!(p.available(Instant::ZERO) && p.enter(Instant::ZERO));
    }

    #[test]
    fn a_held_worker_is_well_and_not_available_until_it_is_let_in() {
        let p = Pulse::default();
        assert!(!p.let_in(), "it is not well");
        p.hold();
        assert_eq!((p.status(), p.is_held(), p.in_service()), (Status::Ready, true, false));
        assert!(!p.available(Instant::ZERO));
        assert!(p.let_in() && !p.let_in());
        assert!(p.available(Instant::ZERO) && !p.is_held());
        p.hold();
        let life = p.life();
        p.set_status(Status::NotReady);
        assert_eq!((p.status(), p.is_held(), p.let_in()), (Status::NotReady, false, false));
        assert_eq!(p.life(), life + 1, "it may come back as another process");
        p.hold();
        p.set_status(Status::Draining);
        assert!(!p.let_in() && p.status() == Status::Draining);
    }
}
