//! What does a placement cost, by policy, fleet and prompt?
//! `cargo run --release -p baton-core --example decision_cost [POLICY]`
//!
//! A fleet of so many workers, half of them prefills, half decodes, all well, each with a few requests in flight. One
//! decision places both legs, takes the leases, marks the prompt as computed and gives all back. Prompts are turns of
//! conversations that some worker has, so what is kept of them is looked up and found, the common case. A prompt is
//! hashed once a request, however many workers there are: that is measured apart, with the reading of the body. Times
//! are of the processor, as far as the system tells.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::load::Lease;
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore};
use baton_core::place::{Cascade, Legwise, Look, Placement, Policy, PolicyName, Strategy, Tuning};
use baton_core::time;

const FLEETS: [u32; 4] = [4, 64, 512, 2048];
/// Characters of a prompt: four count as one token.
const PROMPTS: [(&str, usize); 3] = [("1K", 4_000), ("32K", 128_000), ("200K", 800_000)];
const CONVERSATIONS: usize = 16;
const LOOKS: usize = 5;
const LOOK: Duration = Duration::from_millis(60);

fn main() {
    let only = std::env::args().nth(1);
    println!("| policy | prompt | {} | 64 to 2,048 |", FLEETS.map(|n| format!("{n} workers")).join(" | "));
    println!("|---|---:|{}---:|", "---:|".repeat(FLEETS.len()));
    for name in names().filter(|name| only.as_ref().is_none_or(|only| name.to_string().contains(only))) {
        for (prompt, characters) in PROMPTS {
            let asks: Vec<Ask> = (0..CONVERSATIONS).map(|i| ask(i as u64, characters)).collect();
            let times = FLEETS.map(|workers| decision(name.strategy(), workers, &asks));
            let growth = times[3].as_nanos() as f64 / times[1].as_nanos().max(1) as f64;
            let shown = times.map(|time| format!("{:.2} µs", time.as_nanos() as f64 / 1000.0)).join(" | ");
            println!("| {name} | {prompt} | {shown} | {growth:.1} x |");
        }
    }
    println!("\n| prompt | reading the body | hashing its blocks |\n|---|---:|---:|");
    for (prompt, characters) in PROMPTS {
        let body = body(1, characters);
        let read = best(|| drop(black_box(read(&body))));
        let both = best(|| drop(black_box(self::read(&body).prompt.blocks(16))));
        println!("| {prompt} | {read:.1?} | {:.1?} |", both.saturating_sub(read));
    }
}

/// What is measured: a policy on both legs, or AIBrix's `pd` with these scores.
#[derive(Clone, Copy)]
enum Name {
    Policy(PolicyName),
    Pd(PrefillScore, DecodeScore),
}

fn names() -> impl Iterator<Item = Name> {
    let prefill = PrefillScore::ALL.into_iter().map(|p| Name::Pd(p, DecodeScore::ALL[0]));
    let decode = DecodeScore::ALL.into_iter().skip(1).map(|d| Name::Pd(PrefillScore::LeastRequest, d));
    PolicyName::ALL.into_iter().map(Name::Policy).chain(prefill).chain(decode)
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Policy(name) => write!(f, "`{}`", name.as_str()),
            Name::Pd(prefill, decode) => write!(f, "`pd`: `{}`, `{}`", prefill.as_str(), decode.as_str()),
        }
    }
}

impl Name {
    fn strategy(self) -> Strategy {
        match self {
            Name::Policy(name) => {
                // The bucket policy is for prefills.
                let decode = if name == PolicyName::Bucket { PolicyName::LeastLoad } else { name };
                let policy = Policy::new;
                Strategy::Legwise(Legwise {
                    prefill: policy(name),
                    decode: policy(decode),
                    whole: policy(decode),
                })
            }
            Name::Pd(prefill_score, decode_score) => {
                let knobs = Knobs { prefill_score, decode_score, ..Knobs::default() };
                Strategy::Cascade(Cascade::new(&Arc::new(knobs), &Tuning::default()))
            }
        }
    }
}

/// Time of one decision.
fn decision(strategy: Strategy, workers: u32, asks: &[Ask]) -> Duration {
    let (fleet, _load) = fleet(workers);
    let (mut dice, mut micros, mut at) = (Dice::new(1), 1_000_000, 0);
    let mut one = || {
        micros += 50;
        at = (at + 1) % asks.len();
        let now = time::Instant::from_micros(micros);
        let look = Look::new(&fleet, &asks[at], now);
        let mut placement = strategy.place(&look, &mut dice).unwrap();
        if let Placement::Pair { prefill, decode } = &mut placement {
            prefill.computed();
            decode.computed();
        }
        drop(black_box(placement));
    };
    (0..asks.len() * 4).for_each(|_| one());
    best(one)
}

fn fleet(workers: u32) -> (Fleet, Vec<Lease>) {
    let seat = |slot: u32| {
        let role = if slot < workers / 2 { Role::Prefill } else { Role::Decode };
        let mut worker = Worker::new(format!("w{slot}"), format!("http://10.0.0.{slot}:8000"), role);
        worker.engine = Engine::Sglang;
        let seat = Seat::new(slot, worker);
        seat.pulse.set_status(Status::Ready);
        FleetChange::Join(seat)
    };
    let fleet = Fleet::new(PairingMode::Lenient).with((0..workers).map(seat));
    let mut dice = Dice::new(7);
    let load =
        fleet.seats().flat_map(|seat| (0..dice.below(4)).map(|_| seat.load.take()).collect::<Vec<_>>());
    let load = load.collect();
    (fleet, load)
}

fn body(seed: u64, characters: usize) -> String {
    let mut dice = Dice::new(seed);
    let text: String = (0..characters).map(|_| char::from(b'a' + dice.below(26) as u8)).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

fn read(body: &str) -> Ask {
    let body = Envelope::parse(body.to_owned().into(), &BodyLimits::default()).unwrap();
    Ask::read(Api::Chat, &body).unwrap()
}

/// A request that has been looked at before: its blocks are hashed.
fn ask(seed: u64, characters: usize) -> Ask {
    let ask = read(&body(seed, characters));
    let _hashed = ask.prompt.blocks(16);
    ask
}

/// The least of several means: other work on the machine can only add to it.
fn best(mut run: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..LOOKS {
        let (until, began, mut runs) = (Instant::now() + LOOK, Clock::now(), 0);
        while Instant::now() < until {
            (0..8).for_each(|_| run());
            runs += 8;
        }
        best = best.min(began.elapsed() / runs);
    }
    best
}

/// Time that this thread had a processor, where the system tells; else the time of day.
struct Clock {
    thread: Option<u64>,
    day: Instant,
}

impl Clock {
    fn now() -> Clock {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let thread = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
        Clock { thread, day: Instant::now() }
    }

    fn elapsed(&self) -> Duration {
        match (self.thread, Clock::now().thread) {
            (Some(then), Some(now)) => Duration::from_nanos(now - then),
            _ => self.day.elapsed(),
        }
    }
}
