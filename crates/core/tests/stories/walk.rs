//! Every order of events of every kind of plan, against the rules that the world states.
//!
//! The walk goes depth first from the first event to all ends, with no bound on the depth: states that look
//! the same to the exchange and to the world are walked once, and there are finitely many. A state met again
//! on its own path would be an exchange that can go on for ever, and is refused. In each state the events
//! that cannot happen there are tried as well, and must change nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;

use baton_core::exchange::{Abort, Course, Order, Start};
use baton_core::fault::LegName;
use baton_core::retry::RetryRule;
use baton_core::time::Duration;
use expect_test::expect;

use crate::world::{Bend, Subject, World};

/// What a walk found out about all that can follow a state.
#[derive(Clone, Copy)]
pub struct Tally {
    /// Orders of events from here to an end.
    orders: u128,
    /// Events in the longest of them.
    longest: u32,
}

#[derive(Default)]
pub struct Walk {
    /// Walk every order to its end, also through states that were met before.
    blindly: bool,
    seen: HashMap<String, Tally>,
    open: HashSet<String>,
    trail: Vec<String>,
    steps: u64,
}

/// A rule was broken, and the events that led there.
#[derive(Debug)]
pub struct Broken {
    pub why: String,
    pub trail: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.why)?;
        self.trail.iter().try_for_each(|event| writeln!(f, "  {event}"))
    }
}

pub fn rule(attempts: u32) -> RetryRule {
    RetryRule { attempts, jitter: 0.0, initial_backoff: Duration::from_millis(1), ..RetryRule::default() }
}

/// Walks all orders of events where each attempt may be placed on any of `courses`.
pub fn walk(courses: &'static [Course], attempts: u32, bend: Bend) -> Result<(Walk, Tally), Broken> {
    let mut walk = Walk::default();
    let tally = walk.visit(&Subject::new(rule(attempts), bend), &World::new(courses, attempts))?;
    Ok((walk, tally))
}

impl Walk {
    fn visit(&mut self, subject: &Subject, world: &World) -> Result<Tally, Broken> {
        let key = format!("{:?} {}", subject.exchange, world.key());
        if let Some(tally) = self.seen.get(&key).filter(|_| !self.blindly) {
            return Ok(*tally);
        }
        if !self.open.insert(key.clone()) {
            return Err(self.broken("the same state again: it may never end".into()));
        }
        self.stray(subject, world)?;
        let mut tally = Tally { orders: 0, longest: 0 };
        for event in world.natural().into_iter().chain(world.exogenous()) {
            let (mut subject, mut world) = (subject.clone(), world.clone());
            self.trail.push(format!("{event:?}"));
            self.steps += 1;
            world.step(&mut subject, &event).map_err(|why| self.broken(why))?;
            let after = self.visit(&subject, &world)?;
            self.trail.pop();
            tally.orders += after.orders;
            tally.longest = tally.longest.max(after.longest + 1);
        }
        if world.is_settled() {
            tally.orders = 1;
        }
        self.open.remove(&key);
        self.seen.insert(key, tally);
        Ok(tally)
    }

    fn stray(&self, subject: &Subject, world: &World) -> Result<(), Broken> {
        let before = format!("{:?}", subject.exchange);
        for event in world.stray() {
            let mut subject = subject.clone();
            let actions = subject.on(&event);
            if !actions.is_empty() || format!("{:?}", subject.exchange) != before {
                return Err(self.broken(format!("{event:?} does not fit and still led to {actions:?}")));
            }
        }
        Ok(())
    }

    fn broken(&self, why: String) -> Broken {
        Broken { why, trail: self.trail.clone() }
    }
}

const fn course(order: Order, start: Start, prefill_abort: Abort, release: bool) -> Course {
    Course {
        order,
        start,
        prefill_abort,
        release,
        reads_prefill: false,
        by_name: false,
        answers: LegName::Decode,
    }
}

pub const DECODE_ONLY: Course = course(Order::Single, Start::DecodeHead, Abort::Cancel, false);
pub const WHOLE: Course = Course { answers: LegName::Whole, ..DECODE_ONLY };
pub const PREFILL_ONLY: Course = Course { answers: LegName::Prefill, ..DECODE_ONLY };
pub const IN_TURN: Course = course(Order::InTurn, Start::DecodeHead, Abort::Cancel, true);
pub const IN_TURN_FREE: Course = course(Order::InTurn, Start::DecodeHead, Abort::Cancel, false);
pub const TOGETHER: Course =
    Course { by_name: true, ..course(Order::Together, Start::BothHeads, Abort::Cancel, false) };
pub const TOGETHER_TO_END: Course =
    Course { by_name: true, ..course(Order::Together, Start::PrefillEnd, Abort::Cancel, false) };
pub const TOGETHER_READ: Course = Course { reads_prefill: true, by_name: false, ..TOGETHER_TO_END };
/// As above, with an engine that is asked by the request's name.
const TOGETHER_READ_NAMED: Course = Course { reads_prefill: true, ..TOGETHER_TO_END };

const ANY: [Course; 8] = [
    DECODE_ONLY,
    WHOLE,
    IN_TURN,
    IN_TURN_FREE,
    TOGETHER,
    TOGETHER_TO_END,
    TOGETHER_READ,
    TOGETHER_READ_NAMED,
];

/// Every kind of plan that the types allow, by name.
const KINDS: [(&str, &[Course]); 19] = [
    ("decode only", &[DECODE_ONLY]),
    ("whole", &[WHOLE]),
    ("prefill only", &[PREFILL_ONLY]),
    ("in turn, release", &[IN_TURN]),
    ("in turn, release, detach", &[course(Order::InTurn, Start::DecodeHead, Abort::Detach, true)]),
    ("in turn", &[IN_TURN_FREE]),
    ("in turn, detach", &[course(Order::InTurn, Start::DecodeHead, Abort::Detach, false)]),
    ("together, decode head", &[course(Order::Together, Start::DecodeHead, Abort::Cancel, false)]),
    ("together, decode head, detach", &[course(Order::Together, Start::DecodeHead, Abort::Detach, false)]),
    ("together, both heads", &[TOGETHER]),
    ("together, both heads, detach", &[course(Order::Together, Start::BothHeads, Abort::Detach, false)]),
    ("together, prefill end", &[TOGETHER_TO_END]),
    ("together, prefill end, detach", &[course(Order::Together, Start::PrefillEnd, Abort::Detach, false)]),
    ("together, read", &[TOGETHER_READ]),
    ("together, read, detach", &[Course { prefill_abort: Abort::Detach, ..TOGETHER_READ }]),
    ("together, read, decode head", &[Course { start: Start::DecodeHead, ..TOGETHER_READ }]),
    ("together, read, both heads", &[Course { start: Start::BothHeads, ..TOGETHER_READ }]),
    ("as planned today, any", &ANY),
    ("in turn, then together", &[IN_TURN, TOGETHER]),
];

#[test]
fn every_order_of_events_keeps_the_rules() {
    let mut table = String::new();
    for (name, courses) in KINDS {
        for attempts in [1, 2, 3] {
            let (walk, tally) = match walk(courses, attempts, Bend::Straight) {
                Ok(done) => done,
                Err(broken) => panic!("{name}, {attempts} attempts: {broken}"),
            };
            let (states, steps, Tally { orders, longest }) = (walk.seen.len(), walk.steps, tally);
            table += &format!("{name:30} {attempts} {states:6} {steps:7} {longest:3} {orders:18}\n");
        }
    }
    let head = "plans, attempts, states, steps, longest order, orders";
    println!("{head}\n{table}");
    expect![[r#"
        decode only                    1     74     174  10                223
        decode only                    2    458     982  15               6036
        decode only                    3    770    1790  20             121725
        whole                          1     74     174  10                223
        whole                          2    458     982  15               6036
        whole                          3    770    1790  20             121725
        prefill only                   1     74     174  10                223
        prefill only                   2    458     982  15               6036
        prefill only                   3    770    1790  20             121725
        in turn, release               1    185     484  14               3088
        in turn, release               2   2522    5932  24            1564612
        in turn, release               3   4505   11380  34          598369556
        in turn, release, detach       1    191     484  14               3088
        in turn, release, detach       2   2588    5932  24            1564612
        in turn, release, detach       3   4631   11380  34          598369556
        in turn                        1    182     484  14               3088
        in turn                        2   2471    5914  23            1462962
        in turn                        3   4406   11344  32          521903084
        in turn, detach                1    191     484  14               3088
        in turn, detach                2   2585    5914  23            1462962
        in turn, detach                3   4625   11344  32          521903084
        together, decode head          1    134     446  14               1798
        together, decode head          2   1721    4960  23             533005
        together, decode head          3   3074    9474  32          119044193
        together, decode head, detach  1    155     478  14               1798
        together, decode head, detach  2   1973    5280  23             533005
        together, decode head, detach  3   3557   10082  32          119044193
        together, both heads           1    140     524  14               2593
        together, both heads           2   1946    6292  23            1190754
        together, both heads           3   3500   12060  32          411651461
        together, both heads, detach   1    161     556  14               2593
        together, both heads, detach   2   2222    6644  23            1190754
        together, both heads, detach   3   4031   12732  32          411651461
        together, prefill end          1    122     530  14               2989
        together, prefill end          2   1748    6358  23            1546854
        together, prefill end          3   3122   12186  32          603062837
        together, prefill end, detach  1    143     562  14               2989
        together, prefill end, detach  2   2024    6710  23            1546854
        together, prefill end, detach  3   3653   12858  32          603062837
        together, read                 1    134     614  14               8953
        together, read                 2   2036    7924  23           11548996
        together, read                 3   3620   15234  32        11196231254
        together, read, detach         1    155     646  14               8953
        together, read, detach         2   2336    8308  23           11548996
        together, read, detach         3   4199   15970  32        11196231254
        together, read, decode head    1    134     614  14               8953
        together, read, decode head    2   2036    7924  23           11548996
        together, read, decode head    3   3620   15234  32        11196231254
        together, read, both heads     1    134     614  14               8953
        together, read, both heads     2   2036    7924  23           11548996
        together, read, both heads     3   3620   15234  32        11196231254
        as planned today, any          1    905    3717  14             162511
        as planned today, any          2  18644   66633  24         4186260555
        as planned today, any          3  34223  129549  34     80650800997119
        in turn, then together         1    305     992  14              10366
        in turn, then together         2   4748   13400  24           18674445
        in turn, then together         3   8573   25808  34        25264184491
    "#]]
    .assert_eq(&table);
}

#[test]
fn states_that_look_the_same_have_the_same_future() {
    for (name, courses) in &KINDS[..17] {
        let start = (Subject::new(rule(2), Bend::Straight), World::new(courses, 2).calm());
        let count = |mut walk: Walk| {
            walk.visit(&start.0, &start.1).map(|tally| (tally.orders, tally.longest)).unwrap()
        };
        let blind = Walk { blindly: true, ..Walk::default() };
        assert_eq!(count(blind), count(Walk::default()), "{name}");
    }
}

/// Whatever the hand-offs plan, for whichever engine, connector, route and request, is of a kind that is walked.
#[test]
fn every_plan_is_of_a_kind_that_is_walked() {
    let walked: HashSet<Course> = KINDS.iter().flat_map(|(_, courses)| courses.iter().copied()).collect();
    let mut met = HashSet::new();
    for (what, course) in crate::telling::every_course() {
        assert!(walked.contains(&course), "{what}: {course:?}");
        met.insert(course);
    }
    let today: HashSet<Course> = ANY.into_iter().chain([PREFILL_ONLY]).collect();
    assert_eq!(met, today, "what is planned today");
}
