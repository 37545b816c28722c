//! Scripts of a fleet: workers join, fall ill, recover and leave; requests are placed on them.

use std::collections::BTreeMap;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::breaker::{BreakerRule, Verdict};
use baton_core::dice::Dice;
use baton_core::fault::Fault;
use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::load::Lease;
use baton_core::place::{Legwise, Look, Miss, Placement, Policy, PolicyName, Strategy, Taken};
use baton_core::time::{Duration, Instant};

use super::Machine;
use super::simple::say;

/// Workers go by their ids; a placement holds its leases until it is given back by its number.
pub struct FleetScript {
    fleet: Fleet,
    strategy: Strategy,
    dice: Dice,
    now: Instant,
    held: BTreeMap<u32, Vec<Lease>>,
    placed: u32,
    joined: u32,
}

const RULE: BreakerRule =
    BreakerRule { enabled: true, failure_threshold: 1, success_threshold: 1, rest: Duration::from_secs(10) };

impl Default for FleetScript {
    fn default() -> Self {
        FleetScript {
            fleet: Fleet::new(PairingMode::Lenient),
            strategy: strategy(PolicyName::LeastLoad),
            dice: Dice::new(1),
            now: Instant::ZERO,
            held: BTreeMap::new(),
            placed: 0,
            joined: 0,
        }
    }
}

fn strategy(name: PolicyName) -> Strategy {
    let policy = || Policy::new(name);
    Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
}

impl FleetScript {
    fn seat(&self, id: &str) -> &Seat {
        self.fleet.seats().find(|seat| seat.worker.id == id).expect("a worker of that name")
    }

    /// `worker p1 prefill vllm models=a,b connector=NixlConnector`
    fn join(&mut self, id: &str, role: &str, facts: &[&str]) -> String {
        let mut worker = Worker::new(id, format!("http://{id}:8000"), Role::parse(role).unwrap());
        for fact in facts {
            match fact.split_once('=') {
                None => worker.engine = Engine::parse(fact).unwrap(),
                Some(("models", list)) => worker.models = list.split(',').map(str::to_owned).collect(),
                Some(("connector", name)) => worker.kv_connector = Some(name.to_owned()),
                Some((label, value)) => drop(worker.labels.insert(label.to_owned(), value.to_owned())),
            }
        }
        self.joined += 1;
        self.fleet = self.fleet.with([FleetChange::Join(Seat::new(self.joined, worker))]);
        self.seat(id).pulse.set_status(Status::Ready);
        self.state()
    }

    fn state(&self) -> String {
        let ready = if self.fleet.ready() { "ready" } else { "not ready" };
        format!("{} workers, {ready}", self.fleet.len())
    }

    /// `place model=a n=3 tried=p1,d1`; `place count` for a count of tokens
    fn place(&mut self, with: &[&str]) -> String {
        let (mut members, mut tried, mut api) = (vec![], vec![], Api::Chat);
        for word in with {
            match word.split_once('=') {
                Some(("model", model)) => members.push(format!(r#""model":"{model}""#)),
                None if *word == "count" => api = Api::CountTokens,
                Some(("n", n)) => members.push(format!(r#""n":{n}"#)),
                Some(("tried", ids)) => tried = ids.split(',').map(|id| self.seat(id).slot).collect(),
                other => panic!("place with {other:?}?"),
            }
        }
        let body = format!("{{{}}}", members.join(","));
        let body = Envelope::parse(body.into(), &BodyLimits::default()).unwrap();
        let ask = Ask::read(api, &body).unwrap();
        let look = Look::new(&self.fleet, &ask, self.now).after(&tried);
        match self.strategy.place(&look, &mut self.dice) {
            Ok(Placement::Whole { worker } | Placement::Prefill { worker }) => {
                let said = worker.seat.worker.id.clone();
                self.hold(said, vec![worker])
            }
            Ok(Placement::Pair { prefill, decode }) => {
                let said = format!("{} -> {}", prefill.seat.worker.id, decode.seat.worker.id);
                self.hold(said, vec![prefill, decode])
            }
            Err(Miss::Nobody(fault)) => told(&fault),
            Err(Miss::Full(fault)) => format!("full, later perhaps {}", told(&fault)),
        }
    }

    fn hold(&mut self, said: String, taken: Vec<Taken>) -> String {
        self.placed += 1;
        self.held.insert(self.placed, taken.into_iter().map(|t| t.lease).collect());
        format!("{}: {said}", self.placed)
    }

    fn loads(&self) -> String {
        let loads = self.fleet.seats().map(|s| format!("{} {}", s.worker.id, s.load.in_flight()));
        loads.collect::<Vec<_>>().join(", ")
    }
}

impl Machine for FleetScript {
    fn hear(&mut self, words: &[&str]) -> String {
        match words {
            ["worker", id, role, facts @ ..] => self.join(id, role, facts),
            ["leaves", id] => {
                let slot = self.seat(id).slot;
                self.fleet = self.fleet.with([FleetChange::Leave { slot }]);
                self.state()
            }
            ["policy", name] => {
                let all = [
                    PolicyName::RoundRobin,
                    PolicyName::Random,
                    PolicyName::PowerOfTwo,
                    PolicyName::LeastLoad,
                ];
                self.strategy = strategy(all.into_iter().find(|n| n.as_str() == *name).unwrap());
                (*name).to_owned()
            }
            ["at", second] => {
                self.now = Instant::from_micros(second.parse::<u64>().unwrap() * 1_000_000);
                format!("{second} s")
            }
            ["sick", id] => {
                self.seat(id).pulse.set_status(Status::NotReady);
                self.state()
            }
            ["well", id] => {
                self.seat(id).pulse.set_status(Status::Ready);
                self.state()
            }
            [id, verdict @ ("good" | "bad" | "mute")] => {
                let verdict = match *verdict {
                    "good" => Verdict::Good,
                    "bad" => Verdict::Bad,
                    _ => Verdict::Mute,
                };
                self.seat(id).pulse.record(verdict, &RULE, self.now);
                say(self.seat(id).pulse.breaker().state())
            }
            ["place", with @ ..] => self.place(with),
            ["give", "back", number] => {
                self.held.remove(&number.parse().unwrap()).expect("a placement of that number");
                self.loads()
            }
            ["loads"] => self.loads(),
            other => panic!("no such line: {other:?}"),
        }
    }
}

fn told(fault: &Fault) -> String {
    let answer = fault.answer();
    format!("{} {}: {}", answer.status, answer.code, answer.message)
}
