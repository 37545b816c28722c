//! Exchanges told in words: events in, actions out, each line of it checked by the world as well.
//!
//! One notation for the named stories and for the scripts. Plans are not written down here but asked of the
//! hand-offs themselves, for a request of the kind that the name says.

use std::sync::atomic::AtomicU64;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::breaker::Verdict;
use baton_core::dice::Dice;
use baton_core::exchange::{Action, Course, Event, Failure, Handed, Leg, Order};
use baton_core::fault::{Fault, LegName, Refusal};
use baton_core::fleet::{Engine, Role, Worker};
use baton_core::handoff::{Mint, Pair, Rules, TrtRule, plan};
use baton_core::retry::RetryRule;
use baton_core::time::Duration;

use crate::walk::WHOLE;
use crate::world::{Bend, SHED, Subject, World, silence};

/// One exchange, told line by line.
pub struct Telling {
    subject: Subject,
    world: World,
}

impl Telling {
    pub fn new(attempts: u32) -> Telling {
        let rule = RetryRule { attempts, jitter: 0.0, ..RetryRule::default() };
        Telling { subject: Subject::new(rule, Bend::Straight), world: World::new(&[WHOLE], attempts) }
    }

    /// What the exchange asks for when it hears this.
    pub fn hear(&mut self, words: &str) -> String {
        let event = self.event(words);
        let actions = self.subject.clone().on(&event);
        if let Err(why) = self.world.step(&mut self.subject, &event) {
            panic!("{words}: {why}");
        }
        match actions.as_slice() {
            [] => "nothing".to_owned(),
            actions => actions.iter().map(say).collect::<Vec<_>>().join(", "),
        }
    }

    fn event(&self, words: &str) -> Event {
        let words: Vec<&str> = words.split_whitespace().collect();
        match words.as_slice() {
            ["begin"] => Event::Begin,
            ["placed", request] => Event::Placed(course(request)),
            ["unplaced"] => Event::Unplaced(Fault::NoWorker { leg: LegName::Decode, registered: true }),
            ["full"] => Event::Full(SHED),
            ["room"] => Event::Room,
            ["queue", "over"] => Event::QueueOver,
            ["head", leg] => Event::Head(self.leg(leg).0),
            ["answered", "over"] => Event::Answered(Handed::Over),
            ["answered", "final"] => Event::Answered(Handed::Final),
            ["answered", "nothing"] => Event::Answered(Handed::Nothing),
            ["answered", "dead"] => Event::Answered(Handed::Dead(Fault::Broken {
                leg: LegName::Prefill,
                cause: "no hand-off in the answer".into(),
            })),
            ["ended", leg] => Event::Ended(self.leg(leg).0),
            [leg, "stale"] => match self.failed(leg, &["lost"]) {
                Event::Failed(failure) => Event::Stale(failure),
                event => event,
            },
            [leg, what @ ..] if ["prefill", "decode", "whole"].contains(leg) => self.failed(leg, what),
            ["silent", leg] => Event::Silent(silence(self.leg(leg).1)),
            ["client", "gone"] => Event::ClientGone,
            ["deadline"] => Event::Deadline,
            ["drain"] => Event::Drain,
            ["resume"] => Event::Resume,
            ["spent"] => Event::Spent,
            other => panic!("no such event: {other:?}"),
        }
    }

    fn leg(&self, word: &str) -> (Leg, LegName) {
        match word {
            "prefill" => (Leg::Prefill, LegName::Prefill),
            "decode" => (Leg::Decode, LegName::Decode),
            "whole" => (Leg::Decode, LegName::Whole),
            other => panic!("no such leg: {other}"),
        }
    }

    /// `refuses 503`, `refuses 503 later`, `unreachable` (nothing was sent), `lost` (it was), `breaks off`.
    fn failed(&self, leg: &str, what: &[&str]) -> Event {
        let (leg, name) = self.leg(leg);
        let lost = |cause: &str| Fault::Unreachable { leg: name, cause: cause.into() };
        let (fault, delivered) = match what {
            ["refuses", status, later @ ..] => {
                let refusal = Refusal {
                    status: status.parse().unwrap(),
                    message: "no".into(),
                    retry_after: later.first().map(|_| "1".to_owned()),
                    alone: self.world.is(Order::InTurn),
                    ..Refusal::default()
                };
                (Fault::Refused { leg: name, refusal }, true)
            }
            ["unreachable"] => (lost("connection refused"), false),
            ["lost"] => (lost("connection reset"), true),
            ["breaks", "off"] => (Fault::Broken { leg: name, cause: "connection reset".into() }, true),
            other => panic!("no such failure: {other:?}"),
        };
        Event::Failed(Failure { leg, fault, delivered })
    }
}

/// All of a story: from its beginning, through these events, one a line.
pub fn tell(attempts: u32, events: &[&str]) -> String {
    let mut telling = Telling::new(attempts);
    assert_eq!(telling.hear("begin"), "place");
    let lines = events.iter().map(|event| format!("{event:24} -> {}\n", telling.hear(event)));
    lines.collect()
}

fn say(action: &Action) -> String {
    let name = |leg: &Leg| match leg {
        Leg::Prefill => "prefill",
        Leg::Decode => "decode",
    };
    match action {
        Action::Place => "place".to_owned(),
        Action::Replace => "replace".to_owned(),
        Action::Renew => "renew".to_owned(),
        Action::Queue => "queue".to_owned(),
        Action::Send(leg) => format!("send {}", name(leg)),
        Action::Cancel(leg) => format!("cancel {}", name(leg)),
        Action::Detach(leg) => format!("detach {}", name(leg)),
        Action::Linger => "linger prefill".to_owned(),
        Action::Release => "release".to_owned(),
        Action::AskAbort(why) => format!("abort by name ({})", why.as_str()),
        Action::Judge(leg, verdict) => {
            let verdict = match verdict {
                Verdict::Good => "good",
                Verdict::Bad => "bad",
                Verdict::Mute => "mute",
            };
            format!("judge {} {verdict}", name(leg))
        }
        Action::Free(leg) => format!("free {}", name(leg)),
        Action::Start => "start".to_owned(),
        Action::Tell => "tell".to_owned(),
        Action::Fail(fault) => format!("fail {} {}", fault.status(), fault.code()),
        Action::Cut(fault) => format!("cut {}", fault.code()),
        Action::Wait(wait) => format!("wait {wait:?}"),
        Action::Settle(outcome) => format!("settle {}", outcome.as_str()),
    }
}

/// The steering part of the plan that a hand-off makes for such a request.
pub fn course(request: &str) -> Course {
    let (engine, connector, body) = match request {
        "nixl" => (Engine::Vllm, "NixlConnector", r#"{"max_tokens":16}"#),
        "decode-only" => (Engine::Vllm, "NixlConnector", r#"{"n":2}"#),
        "store" => (Engine::Vllm, "MooncakeStoreConnector", "{}"),
        "moriio-write" => (Engine::Vllm, "MoRIIOConnector", "{}"),
        "sglang" => (Engine::Sglang, "", r#"{"stream":true}"#),
        "sglang-plain" => (Engine::Sglang, "", "{}"),
        "sglang-logprobs" => (Engine::Sglang, "", r#"{"stream":true,"logprobs":true}"#),
        "context-first" | "generation-first" => (Engine::Trtllm, "", "{}"),
        "whole" => return planned(Engine::Vllm, "", Api::Chat, "{}", Legs::Whole).unwrap(),
        other => panic!("no such request: {other}"),
    };
    let at_once = ["moriio-write", "generation-first"].contains(&request);
    planned(engine, connector, Api::Chat, body, Legs::Pair { at_once }).unwrap()
}

/// Which workers a plan is made for.
#[derive(Clone, Copy, Debug)]
enum Legs {
    Whole,
    Prefill,
    /// `at_once`: where the connector or the setting leaves that open.
    Pair {
        at_once: bool,
    },
}

fn planned(engine: Engine, connector: &str, api: Api, body: &'static str, legs: Legs) -> Option<Course> {
    let body = Envelope::parse(body.into(), &BodyLimits::default()).unwrap();
    let ask = Ask::read(api, &body).unwrap();
    let at_once = matches!(legs, Legs::Pair { at_once: true });
    let mut prefill = Worker::new("p", "http://p:1", Role::Prefill);
    prefill.engine = engine;
    prefill.kv_connector = Some(connector.to_owned()).filter(|name| !name.is_empty());
    prefill.kv_engine_id = Some("e".to_owned());
    let dispatch = if at_once { "concurrent" } else { "sequential" };
    let labels = [("moriio_mode", "write"), ("moriio_write_dispatch", dispatch)];
    let told = [("ctx_info_endpoint", "tcp://p:2"), ("ctx_dp_rank", "0")];
    prefill
        .labels
        .extend(labels.into_iter().chain(told).map(|(label, value)| (label.to_owned(), value.to_owned())));
    let decode = Worker { role: Role::Decode, url: "http://d:1".to_owned(), ..prefill.clone() };
    let pair = match legs {
        Legs::Whole => Pair::Whole(&decode),
        Legs::Prefill => Pair::Prefill(&prefill),
        Legs::Pair { .. } => Pair::Legs { prefill: &prefill, decode: &decode },
    };
    let rules = Rules { trt: TrtRule { generation_first: at_once, machine: 0 }, ..Rules::default() };
    let (mut dice, serial) = (Dice::new(1), AtomicU64::new(0));
    let mut mint = Mint { dice: &mut dice, unix_ms: 0, serial: &serial };
    plan(pair, &ask, &rules, &mut mint).ok().map(|plan| plan.course)
}

/// The course of every plan that can be made: each engine, connector and route, and requests of every kind.
pub fn every_course() -> Vec<(String, Course)> {
    let engines = [
        (Engine::Vllm, "NixlConnector"),
        (Engine::Vllm, "MooncakeConnector"),
        (Engine::Vllm, "MoRIIOConnector"),
        (Engine::Vllm, "MooncakeStoreConnector"),
        (Engine::Vllm, ""),
        (Engine::Sglang, ""),
        (Engine::Tokenspeed, ""),
        (Engine::Trtllm, ""),
        (Engine::Generic, ""),
        (Engine::Unspecified, ""),
    ];
    let bodies = [
        r#"{"max_tokens":16}"#,
        r#"{"stream":true,"max_tokens":16}"#,
        r#"{"n":2,"max_tokens":16}"#,
        r#"{"max_tokens":1}"#,
        r#"{"logprobs":true,"return_logprob":true,"max_tokens":16}"#,
        r#"{"prompt":["a","b"],"max_tokens":16}"#,
    ];
    let legs = [Legs::Whole, Legs::Prefill, Legs::Pair { at_once: false }, Legs::Pair { at_once: true }];
    let mut all = Vec::new();
    for (engine, connector) in engines {
        for (api, body) in Api::ALL.into_iter().flat_map(|api| bodies.map(|body| (api, body))) {
            for legs in legs {
                let course = planned(engine, connector, api, body, legs);
                let what = format!("{engine:?} {connector} {api:?} {body} {legs:?}");
                all.extend(course.map(|course| (what, course)));
            }
        }
    }
    all
}

/// The first wait before another attempt, as the stories show it.
#[test]
fn the_first_wait_is_the_rules() {
    assert_eq!(RetryRule::default().initial_backoff, Duration::from_millis(50));
    assert!(tell(2, &["placed nixl", "prefill lost"]).ends_with("wait 50ms\n"));
}
