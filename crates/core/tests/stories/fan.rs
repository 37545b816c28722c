//! A request for several samples: its parts are exchanges of their own, and every order in which they may go on is
//! walked together with what becomes of the whole.
//!
//! Checked is what the client and the operator see: the answer begins when every part's has and not before, the first
//! part that fails ends all of them, nothing of a part outlives the whole, and something can always happen next.

use std::collections::HashSet;

use baton_core::exchange::{Course, Event, Outcome};
use baton_core::fan::gather::{Gather, Next, Said};
use expect_test::expect;

use crate::walk::{DECODE_ONLY, IN_TURN, TOGETHER, TOGETHER_READ, TOGETHER_TO_END, rule};
use crate::world::{Bend, Subject, World};

/// A mistake for the walk to find.
#[derive(Clone, Copy)]
struct Bent {
    /// What is made of what the whole was told to do.
    next: fn(Said, Next) -> Next,
    /// Whether the other parts are dropped when one has failed.
    drops: bool,
}

const STRAIGHT: Bent = Bent { next: |_, next| next, drops: true };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Waits,
    Reads,
    Served,
    Failed,
    Cut,
    Gone,
}

#[derive(Clone)]
struct Whole {
    parts: Vec<(Subject, World)>,
    gather: Gather,
    client: Client,
}

struct Walk {
    bent: Bent,
    seen: HashSet<String>,
    trail: Vec<String>,
}

impl Whole {
    fn new(courses: &'static [Course], parts: usize, attempts: u32) -> Whole {
        // Each part has begun.
        let part = || {
            let mut subject = Subject::new(rule(attempts), Bend::Straight);
            let mut world = World::new(courses, attempts).calm();
            world.step(&mut subject, &Event::Begin).unwrap();
            (subject, world)
        };
        Whole {
            parts: (0..parts).map(|_| part()).collect(),
            gather: Gather::new(parts),
            client: Client::Waits,
        }
    }

    fn key(&self) -> String {
        let parts = self.parts.iter().map(|(s, w)| format!("{:?} {}\n", s.exchange, w.key()));
        format!("{}{:?} {:?}", parts.collect::<String>(), self.gather, self.client)
    }

    fn is_over(&self) -> bool {
        !matches!(self.client, Client::Waits | Client::Reads)
    }

    /// What may happen to a part: one that has begun is looked at again once the whole has.
    fn events(&self, part: usize) -> Vec<Event> {
        let (_, world) = &self.parts[part];
        let held = self.client == Client::Waits && world.has_begun();
        if self.is_over() || held || world.is_settled() {
            return vec![];
        }
        let outside = world.exogenous().into_iter().filter(|event| !matches!(event, Event::ClientGone));
        world.natural().into_iter().chain(outside).collect()
    }

    fn step(&mut self, part: usize, event: &Event, bent: Bent) -> Result<(), String> {
        let (subject, world) = &mut self.parts[part];
        let begun = world.has_begun();
        world.step(subject, event)?;
        let now = world.has_begun();
        match world.outcome() {
            None if now && !begun => self.said(part, Said::Begun, bent),
            // The prefill had the last word: what it said is there at once.
            Some(Outcome::Served) if !begun => self.said(part, Said::Begun, bent),
            Some(Outcome::Served) => self.said(part, Said::Ended, bent),
            Some(_) => self.said(part, Said::Failed, bent),
            None => Ok(()),
        }
    }

    fn said(&mut self, part: usize, said: Said, bent: Bent) -> Result<(), String> {
        let next = (bent.next)(said, self.gather.on(part, said));
        match (self.client, next) {
            (_, Next::Wait) => Ok(()),
            (Client::Waits, Next::Begin) => {
                self.client = Client::Reads;
                if !self.parts.iter().all(|(_, world)| world.has_begun()) {
                    return Err("the answer begins before every part's has".into());
                }
                let told = |at: &usize| self.parts[*at].1.outcome() == Some(Outcome::Served);
                let done: Vec<usize> = (0..self.parts.len()).filter(told).collect();
                done.into_iter().try_for_each(|at| self.said(at, Said::Ended, bent))
            }
            (Client::Reads, Next::Finish) => {
                self.client = Client::Served;
                Ok(())
            }
            (Client::Waits, Next::Fail) => self.end(Client::Failed, bent),
            (Client::Reads, Next::Cut) => self.end(Client::Cut, bent),
            (client, next) => Err(format!("{next:?} for a client that is {client:?}")),
        }
    }

    /// The other parts are dropped, as if their client had left.
    fn end(&mut self, client: Client, bent: Bent) -> Result<(), String> {
        self.client = client;
        let open = self.parts.iter_mut().filter(|(_, world)| !world.is_settled());
        if bent.drops {
            for (subject, world) in open {
                world.step(subject, &Event::ClientGone)?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let outcomes: Vec<_> = self.parts.iter().map(|(_, world)| world.outcome()).collect();
        if !self.is_over() {
            let failed = outcomes.iter().flatten().any(|outcome| *outcome != Outcome::Served);
            let stuck = (0..self.parts.len()).all(|part| self.events(part).is_empty());
            return match (failed, stuck) {
                (true, _) => Err("a part has failed, and the client is not told".into()),
                (_, true) => Err("nothing can happen any more, and the client waits".into()),
                _ => Ok(()),
            };
        }
        if outcomes.iter().any(Option::is_none) {
            return Err("a part outlives the whole".into());
        }
        let served = outcomes.iter().all(|outcome| *outcome == Some(Outcome::Served));
        if served == (self.client == Client::Served) || self.client == Client::Gone {
            return Ok(());
        }
        Err(format!("the client is {:?}, the parts ended as {outcomes:?}", self.client))
    }
}

impl Walk {
    fn visit(&mut self, whole: &Whole) -> Result<(), String> {
        whole.check().map_err(|why| format!("{why}\n  {}", self.trail.join("\n  ")))?;
        if whole.is_over() || !self.seen.insert(whole.key()) {
            return Ok(());
        }
        for part in 0..whole.parts.len() {
            for event in whole.events(part) {
                let mut next = whole.clone();
                self.trail.push(format!("{part}: {event:?}"));
                let stepped = next.step(part, &event, self.bent);
                stepped.map_err(|why| format!("{why}\n  {}", self.trail.join("\n  ")))?;
                self.visit(&next)?;
                self.trail.pop();
            }
        }
        let mut left = whole.clone();
        self.trail.push("the client leaves".into());
        left.end(Client::Gone, STRAIGHT)?;
        self.visit(&left)?;
        self.trail.pop();
        Ok(())
    }
}

fn walk(courses: &'static [Course], (parts, attempts): (usize, u32), bent: Bent) -> Result<usize, String> {
    let mut walk = Walk { bent, seen: HashSet::new(), trail: Vec::new() };
    walk.visit(&Whole::new(courses, parts, attempts))?;
    Ok(walk.seen.len())
}

const ROOMS: &[Course] = &[TOGETHER];
/// A fleet of several engines: one part may fall to a pair whose prefill may have the last word.
const MIXED: &[Course] = &[TOGETHER, IN_TURN];
const READ: &[Course] = &[TOGETHER_READ];
const SLOW: &[Course] = &[TOGETHER_TO_END, DECODE_ONLY];

#[test]
fn every_order_of_several_parts_keeps_the_rules() {
    let mut table = String::new();
    for (name, courses) in [("rooms", ROOMS), ("mixed", MIXED), ("read", READ), ("prefill end", SLOW)] {
        for (parts, attempts) in [(2, 1), (3, 1), (2, 2)] {
            match walk(courses, (parts, attempts), STRAIGHT) {
                Ok(states) => {
                    table += &format!("{name}, {parts} parts, {attempts} attempts: {states} states\n")
                }
                Err(broken) => panic!("{name}, {parts} parts: {broken}"),
            }
        }
    }
    expect![[r#"
        rooms, 2 parts, 1 attempts: 72 states
        rooms, 3 parts, 1 attempts: 560 states
        rooms, 2 parts, 2 attempts: 13068 states
        mixed, 2 parts, 1 attempts: 256 states
        mixed, 3 parts, 1 attempts: 3854 states
        mixed, 2 parts, 2 attempts: 64980 states
        read, 2 parts, 1 attempts: 82 states
        read, 3 parts, 1 attempts: 740 states
        read, 2 parts, 2 attempts: 17305 states
        prefill end, 2 parts, 1 attempts: 108 states
        prefill end, 3 parts, 1 attempts: 1048 states
        prefill end, 2 parts, 2 attempts: 21704 states
    "#]]
    .assert_eq(&table);
}

#[test]
fn the_walk_finds_every_bug_of_the_whole() {
    let bent = |next| Bent { next, ..STRAIGHT };
    for (name, bent, why) in [
        (
            "begins with the first part",
            bent(|said, next| if said == Said::Begun { Next::Begin } else { next }),
            "before every part's has",
        ),
        (
            "never begins",
            bent(|_, next| if next == Next::Begin { Next::Wait } else { next }),
            "nothing can happen any more",
        ),
        (
            "ends with the first part that ends",
            bent(|said, next| if said == Said::Ended { Next::Finish } else { next }),
            "a part outlives the whole",
        ),
        (
            "never ends",
            bent(|_, next| if next == Next::Finish { Next::Wait } else { next }),
            "nothing can happen any more",
        ),
        (
            "goes on without a part",
            bent(|said, next| if said == Said::Failed { Next::Wait } else { next }),
            "a part has failed, and the client is not told",
        ),
        (
            "fails an answer that has begun",
            bent(|_, next| if next == Next::Cut { Next::Fail } else { next }),
            "Fail for a client that is Reads",
        ),
        (
            "cuts an answer that has not begun",
            bent(|_, next| if next == Next::Fail { Next::Cut } else { next }),
            "Cut for a client that is Waits",
        ),
        ("leaves the other parts running", Bent { drops: false, ..STRAIGHT }, "a part outlives the whole"),
    ] {
        match walk(MIXED, (2, 1), bent) {
            Ok(_) => panic!("a whole that {name} passed"),
            Err(broken) => {
                assert!(broken.contains(why), "a whole that {name}, not for {why:?} but: {broken}")
            }
        }
    }
}
