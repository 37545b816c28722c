//! AIBrix's strategies outside `pd`: whom each takes of the workers that run both phases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use baton_core::ask::Ask;
use baton_core::dice::Dice;
use baton_core::fault::Fault;
use baton_core::fleet::{Fleet, Role, Seat, Status};
use baton_core::gauges::{Reading, Timed};
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::cascade::resolve::Routing;
use baton_core::place::cascade::words::Ways;
use baton_core::place::receipt::Receipt;
use baton_core::place::whole::session;
use baton_core::place::{Look, Miss, Placement, Tuning, Whole};
use baton_core::prefix::{Memory, PrefixIndex};
use baton_core::wishes::{Wish, Wishes};
use proptest::prelude::*;

use crate::yard::{RESTED, ask, chosen, fleet, pairs, seat, wide};

/// Names and lists under test.
const ALL: [&str; 19] = [
    "random",
    "least-request-top-k",
    "load-balance",
    "least-latency",
    "least-gpu-cache",
    "least-utilization",
    "least-busy-time",
    "vtc-basic",
    "load-balance:2,least-latency,least-busy-time:3",
    "vtc-basic,least-request-top-k:2,least-gpu-cache",
    "least-request",
    "power-of-two",
    "least-kv-cache",
    "throughput",
    "prefix-cache",
    "session-affinity",
    "least-request:2,least-kv-cache:1",
    "prefix-cache:2,throughput,session-affinity:3",
    "random,power-of-two",
];

fn whole(n: u32) -> Fleet {
    fleet((0..n).map(|i| seat(i, &format!("w{i}"), Role::Whole)))
}

fn strategy() -> baton_core::place::Strategy {
    let tuning = Tuning::default();
    let index = Memory::Tree(Arc::new(PrefixIndex::new(tuning.index_bytes)));
    baton_core::place::Strategy::Whole(Whole::new(&Arc::new(Knobs::default()), &tuning, index))
}

fn routing(ways: &str) -> Routing {
    Routing { ways: Some(Ways::parse(ways).unwrap()), ..Routing::plain(&Arc::default()) }
}

/// One decision, with what it looked at.
fn decide(
    fleet: &Fleet,
    strategy: &baton_core::place::Strategy,
    (ways, ask): (&str, &Ask),
    dice: &mut Dice,
) -> (Result<Placement, Miss>, Receipt) {
    let routing = routing(ways);
    let look = Look { routing: Some(&routing), ..Look::new(fleet, ask, RESTED) };
    let look = Look { receipt: Receipt::on().into(), ..look };
    let placed = strategy.place(&look, dice);
    (placed, look.into_receipt())
}

/// The id of the worker that one request gets; its place is given back.
fn one(fleet: &Fleet, ways: &str, seed: u64) -> String {
    one_with(fleet, &strategy(), (ways, &ask(None)), seed)
}

fn one_with(fleet: &Fleet, strategy: &baton_core::place::Strategy, what: (&str, &Ask), seed: u64) -> String {
    let placed = decide(fleet, strategy, what, &mut Dice::new(seed)).0.unwrap();
    chosen(&placed)[0].worker.id.clone()
}

fn kv(fleet: &Fleet, told: &[(f64, f64)]) {
    for (seat, (share, running)) in fleet.whole().iter().zip(told) {
        let said = Reading { kv_usage: Some(*share), running: Some(*running), ..Reading::default() };
        seat.gauges.show(&said);
        seat.gauges.asked_after(seat.load.taken());
    }
}

fn timed(mean: f64) -> Timed {
    Timed { sum_s: Some(3.0 * mean), count: Some(3.0) }
}

fn loads(fleet: &Fleet) -> Vec<u32> {
    fleet.whole().iter().map(|s| s.load.in_flight()).collect()
}

/// 256 requests of four threads, all held.
fn burst(fleet: &Fleet, ways: &str) -> Vec<u32> {
    let (strategy, held) = (strategy(), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (strategy, held) = (&strategy, &held);
            scope.spawn(move || {
                let mut dice = Dice::new(thread);
                for at in 0..64 {
                    let own = ask(Some(&format!("m{thread}-{at}")));
                    let (placed, _) = decide(fleet, strategy, (ways, &own), &mut dice);
                    held.lock().unwrap().push(placed.unwrap());
                }
            });
        }
    });
    let seen = loads(fleet);
    drop(held);
    assert_eq!(loads(fleet), vec![0; fleet.whole().len()]);
    seen
}

#[test]
fn a_burst_on_idle_workers_spreads_evenly() {
    for ways in [
        "least-request",
        "least-kv-cache",
        "throughput",
        "load-balance",
        "least-latency",
        "least-gpu-cache",
        "least-utilization",
        "least-busy-time",
        "least-request,least-kv-cache:3",
        "throughput:5,least-kv-cache:5",
        "load-balance:3,least-latency:2,least-utilization",
    ] {
        assert_eq!(burst(&whole(4), ways), [64; 4], "{ways}: nothing is known");
        let idle = whole(4);
        kv(&idle, &[(0.0, 0.0); 4]);
        assert_eq!(burst(&idle, ways), [64; 4], "{ways}: all are idle");
    }
    assert_eq!(burst(&whole(4), "vtc-basic"), [64; 4], "no users");
    assert!(burst(&whole(4), "least-request-top-k").iter().all(|n| (58..=70).contains(n)));
    assert!(burst(&whole(4), "power-of-two").iter().all(|n| (61..=67).contains(n)));
    assert!(burst(&whole(4), "random").iter().all(|n| (35..=95).contains(n)));
    assert_eq!(burst(&whole(4), "session-affinity"), [64; 4], "no sessions");
}

/// Baton's own policies would send everything to the other one.
#[test]
fn strategies_that_count_requests_heed_nothing_else() {
    let fleet = whole(2);
    fleet.want_gauges();
    let swamped =
        Reading { waiting: Some(500.0), running: Some(50.0), kv_usage: Some(0.99), ..Reading::default() };
    fleet.whole()[0].gauges.show(&swamped);
    fleet.whole()[1].gauges.show(&Reading { waiting: Some(0.0), running: Some(0.0), ..swamped });
    let _held = fleet.whole()[1].load.take();
    for seed in 0..20 {
        assert_eq!(one(&fleet, "least-request", seed), "w0");
        assert_eq!(one(&fleet, "power-of-two", seed), "w0");
    }
    let any: std::collections::BTreeSet<String> = (0..40).map(|seed| one(&fleet, "random", seed)).collect();
    assert_eq!(any.len(), 2);
}

#[test]
fn least_kv_cache_takes_the_one_with_the_most_memory_left() {
    let fleet = whole(3);
    assert!(!fleet.gauges_wanted());
    kv(&fleet, &[(0.5, 1.0), (0.2, 1.0), (0.3, 1.0)]);
    assert_eq!(one(&fleet, "least-kv-cache", 1), "w1");
    assert!(fleet.gauges_wanted());
    let said = Reading { kv_usage: Some(0.2), host_kv_usage: Some(0.4), ..Reading::default() };
    fleet.whole()[1].gauges.show(&said);
    assert_eq!(one(&fleet, "least-kv-cache", 1), "w2", "what lies in the host's memory counts");
    fleet.whole()[2].gauges.forget();
    assert_eq!(one(&fleet, "least-kv-cache", 1), "w0", "of one nothing is known");
}

/// All workers hold the same for each request, so between two looks they fill up to the same level.
#[test]
fn what_was_placed_since_the_last_look_counts() {
    let fleet = whole(2);
    let _held: Vec<_> = (0..5).map(|_| fleet.whole()[0].load.take()).collect();
    let _few: Vec<_> = (0..3).map(|_| fleet.whole()[1].load.take()).collect();
    kv(&fleet, &[(0.5, 5.0), (0.3, 3.0)]);
    let (strategy, mut dice) = (strategy(), Dice::new(1));
    let held: Vec<_> = (0..6)
        .map(|_| decide(&fleet, &strategy, ("least-kv-cache", &ask(None)), &mut dice).0.unwrap())
        .collect();
    assert_eq!(loads(&fleet), [7, 7]);
    drop(held);
    assert_eq!(loads(&fleet), [5, 3]);
}

#[test]
fn throughput_takes_the_one_with_the_lightest_requests_until_it_has_its_share() {
    let fleet = whole(2);
    for (seat, (prompt, answer)) in fleet.whole().iter().zip([(100.0, 900.0), (400.0, 200.0)]) {
        let said = Reading {
            prompt_tokens: Some(10.0 * prompt),
            answer_tokens: Some(10.0 * answer),
            requests: Some(10.0),
            ..Reading::default()
        };
        seat.gauges.show(&said);
    }
    assert_eq!(one(&fleet, "throughput", 1), "w1", "1000 against 1100");
    let _held: Vec<_> = (0..20).map(|_| fleet.whole()[1].load.take()).collect();
    assert_eq!(one(&fleet, "throughput", 1), "w0", "it has far more than its share");
}

fn prompt(text: &str) -> Ask {
    use baton_core::ask::Api;
    use baton_core::body::{BodyLimits, Envelope};
    let body = format!(r#"{{"prompt":"{text}"}}"#);
    Ask::read(Api::Completions, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap()).unwrap()
}

#[test]
fn prefix_cache_goes_where_the_beginning_is_unless_that_is_far_busier() {
    let (fleet, strategy) = (whole(3), strategy());
    let text = "one two three four ".repeat(100);
    let first = {
        let mut placed =
            decide(&fleet, &strategy, ("prefix-cache", &prompt(&text)), &mut Dice::new(3)).0.unwrap();
        let Placement::Whole { worker } = &mut placed else { panic!("not whole") };
        worker.computed();
        worker.seat.slot
    };
    let longer = prompt(&format!("{text} and so on"));
    for seed in 0..20 {
        assert_eq!(one_with(&fleet, &strategy, ("prefix-cache", &longer), seed), format!("w{first}"));
    }
    let busy = &fleet.seat(first).unwrap().load;
    let _some: Vec<_> = (0..3).map(|_| busy.take()).collect();
    assert_ne!(one_with(&fleet, &strategy, ("prefix-cache", &longer), 1), format!("w{first}"));
    let _all: Vec<_> =
        fleet.whole().iter().flat_map(|s| [s.load.take(), s.load.take(), s.load.take()]).collect();
    assert_ne!(one_with(&fleet, &strategy, ("prefix-cache", &longer), 1), format!("w{first}"), "6, 3, 3");
    drop(_some);
    assert_eq!(one_with(&fleet, &strategy, ("prefix-cache", &longer), 1), format!("w{first}"), "3, 3, 3");
}

fn wishing(wish: Wish, value: &str) -> Ask {
    let mut asked = ask(None);
    let mut wishes = Wishes::default();
    wishes.hear(wish, value.as_bytes());
    asked.wishes = Some(Box::new(wishes));
    asked
}

#[test]
fn a_session_stays_where_the_gateway_said_or_where_its_key_belongs() {
    let (fleet, strategy) = (whole(5), strategy());
    for seat in fleet.whole() {
        let asked = wishing(Wish::SessionId, &session::id(&seat.worker));
        for seed in 0..5 {
            assert_eq!(one_with(&fleet, &strategy, ("session-affinity", &asked), seed), seat.worker.id);
        }
    }
    let mut homes = BTreeMap::new();
    for key in 0..50 {
        let asked = wishing(Wish::SessionKey, &format!("key{key}"));
        let home = one_with(&fleet, &strategy, ("session-affinity", &asked), 1);
        assert_eq!(one_with(&fleet, &strategy, ("session-affinity", &asked), 2), home);
        homes.insert(key, home);
    }
    let away = fleet.whole()[2].clone();
    away.pulse.set_status(Status::NotReady);
    for (key, home) in &homes {
        let asked = wishing(Wish::SessionKey, &format!("key{key}"));
        let now = one_with(&fleet, &strategy, ("session-affinity", &asked), 1);
        assert_eq!(now == *home, home != "w2", "key{key}: only sessions of the one that is away move");
    }
    let gone = wishing(Wish::SessionId, &session::id(&away.worker));
    assert_ne!(one_with(&fleet, &strategy, ("session-affinity", &gone), 1), "w2");
}

#[test]
fn legs_do_not_serve_whole_requests() {
    for ways in ALL {
        let (placed, _) = decide(&pairs(1, 1), &strategy(), (ways, &ask(None)), &mut Dice::new(1));
        assert!(matches!(placed, Err(Miss::Nobody(Fault::Unroutable { .. }))), "{ways}: {placed:?}");
        let down = whole(1);
        down.whole()[0].pulse.set_status(Status::NotReady);
        let (placed, _) = decide(&down, &strategy(), (ways, &ask(None)), &mut Dice::new(1));
        assert!(
            matches!(placed, Err(Miss::Nobody(Fault::NoWorker { registered: true, .. }))),
            "{ways}: {placed:?}"
        );
    }
}

/// One worker in one condition.
#[derive(Clone, Debug)]
struct One {
    serves: bool,
    ready: bool,
    load: usize,
    window: Option<u32>,
    told: Option<(f64, f64, f64)>,
}

fn any_one() -> impl Strategy<Value = One> {
    let told = prop::option::of((0.0..1.0f64, 0.0..20.0f64, 0.0..5000.0f64));
    let window = prop::option::of(1..6u32);
    (any::<bool>(), prop::bool::weighted(0.8), 0..4usize, window, told)
        .prop_map(|(serves, ready, load, window, told)| One { serves, ready, load, window, told })
}

/// The same workers, joined in this order.
fn build(ones: &[One], order: &[usize]) -> (Fleet, Vec<baton_core::load::Lease>) {
    let seats = order.iter().zip(0..).map(|(at, slot)| {
        let one = &ones[*at];
        let mut seat: Seat = seat(slot, &format!("w{at}"), Role::Whole);
        let mut worker = (*seat.worker).clone();
        worker.models = vec![if one.serves { "m" } else { "x" }.to_owned()];
        worker.labels.extend(one.window.map(|w| ("max_num_seqs".to_owned(), w.to_string())));
        seat.worker = Arc::new(worker);
        seat.pulse.set_status(if one.ready { Status::Ready } else { Status::NotReady });
        if let Some((share, running, tokens)) = one.told {
            seat.gauges.show(&Reading {
                kv_usage: Some(share),
                running: Some(running),
                prompt_tokens: Some(tokens),
                answer_tokens: Some(tokens / 2.0),
                requests: Some(3.0),
                queue: timed(share),
                first_token: timed(running),
                answered: timed(2.0 * running),
                utilization: Some(share),
                busy: Some(1.0 - share),
                ..Reading::default()
            });
            seat.gauges.pace.set(Some(tokens));
        }
        seat
    });
    let fleet = fleet(seats.collect::<Vec<_>>());
    let leases = fleet.whole().iter().flat_map(|seat| {
        let at: usize = seat.worker.id[1..].parse().unwrap();
        (0..ones[at].load).map(|_| seat.load.take()).collect::<Vec<_>>()
    });
    let leases = leases.collect();
    (fleet, leases)
}

proptest! {
    #[test]
    fn the_chosen_one_may_be_chosen_and_the_order_of_workers_does_not_matter(
        ones in prop::collection::vec(any_one(), 1..9),
        shuffle in any::<u64>(),
        seed in any::<u64>(),
        rooms in 1..3u32,
        ways in prop::sample::select(ALL.to_vec()),
    ) {
        let straight: Vec<usize> = (0..ones.len()).collect();
        let mut turned = straight.clone();
        let mut dice = Dice::new(shuffle);
        (1..turned.len()).for_each(|at| turned.swap(at, dice.below(at + 1)));
        let mut asked = wide(Some("m"), rooms);
        asked.wishes = wishing(Wish::User, "somebody").wishes;
        let may = |one: &One| {
            one.serves && one.ready && one.window.is_none_or(|w| one.load as u32 + rooms <= w)
        };
        let decided = |order: &[usize]| {
            let (fleet, leases) = build(&ones, order);
            let (placed, receipt) = decide(&fleet, &strategy(), (ways, &asked), &mut Dice::new(seed));
            let id = placed.as_ref().ok().map(|p| chosen(p)[0].worker.id.clone());
            drop(placed);
            let after: u32 = loads(&fleet).iter().sum();
            assert_eq!(after as usize, leases.len());
            (id, receipt)
        };
        let (id, receipt) = decided(&straight);
        prop_assert_eq!(&id, &decided(&straight).0, "same seed, same answer");
        prop_assert_eq!(id.is_some(), ones.iter().any(may));
        if let Some(id) = &id {
            let at: usize = id[1..].parse().unwrap();
            prop_assert!(may(&ones[at]), "{} of {:?}", id, ones);
        }
        for score in &receipt.decode.scores {
            prop_assert!(score.score.is_finite() && score.terms.iter().all(|(_, term)| term.is_finite()));
            let skipped = score.skipped.is_some();
            prop_assert!(!skipped || !receipt.decode.tied.contains(&score.worker));
        }
        let by_chance = ["random", "power-of-two", "vtc-basic", "top-k"].iter().any(|way| ways.contains(way));
        if !by_chance {
            let set = |receipt: &Receipt| {
                let mut tied = receipt.decode.tied.clone();
                tied.sort();
                tied
            };
            prop_assert_eq!(set(&receipt), set(&decided(&turned).1));
        }
    }
}

/// Chance alone: as often each, whatever the order of the workers.
#[test]
fn by_chance_each_is_as_likely_wherever_it_stands() {
    for ways in ["random", "power-of-two", "random,power-of-two", "least-request-top-k"] {
        let (fleet, strategy, mut dice) = (whole(4), strategy(), Dice::new(5));
        let mut seen = BTreeMap::<String, u32>::new();
        for _ in 0..4000 {
            let placed = decide(&fleet, &strategy, (ways, &ask(None)), &mut dice).0.unwrap();
            *seen.entry(chosen(&placed)[0].worker.id.clone()).or_default() += 1;
        }
        assert!(seen.values().all(|n| (880..=1120).contains(n)), "{ways}: {seen:?}");
    }
}

/// One says that it has no memory left: it is taken only if all say so, and then the one with the most of it.
#[test]
fn load_balance_passes_over_those_that_are_full_unless_all_are() {
    let fleet = whole(3);
    kv(&fleet, &[(0.95, 1.0), (0.2, 9.0), (0.3, 9.0)]);
    let _held: Vec<_> =
        fleet.whole()[1..].iter().flat_map(|s| (0..9).map(|_| s.load.take()).collect::<Vec<_>>()).collect();
    let (placed, receipt) = decide(&fleet, &strategy(), ("load-balance", &ask(None)), &mut Dice::new(1));
    assert_eq!(chosen(&placed.unwrap())[0].worker.id, "w1", "9 requests, and the least memory in use");
    let full = receipt.decode.scores.iter().find(|s| s.worker == "w0").unwrap();
    assert_eq!(full.skipped.as_deref(), Some("too little KV memory is left"));
    kv(&fleet, &[(0.99, 1.0), (0.97, 9.0), (0.98, 9.0)]);
    assert_eq!(one(&fleet, "load-balance", 1), "w1");
    assert_eq!(
        one(&fleet, "load-balance,least-request:9", 1),
        "w0",
        "in a list it gets nothing from this one"
    );
}

/// Twice as fast, twice the requests.
#[test]
fn load_balance_gives_each_what_it_can_work_off() {
    let fleet = whole(3);
    for (seat, pace) in fleet.whole().iter().zip([4000.0, 2000.0, 2000.0]) {
        seat.gauges.pace.set(Some(pace));
    }
    assert_eq!(burst(&fleet, "load-balance"), [128, 64, 64]);
}

/// A user who has used much goes to the end of the row, one who has used little to its beginning, as long as the
/// workers have as many requests.
#[test]
fn vtc_basic_keeps_users_who_take_much_apart_from_those_who_take_little() {
    let (fleet, strategy) = (whole(3), strategy());
    let by = |user: &str, text: &str, seed: u64| {
        let mut asked = prompt(text);
        asked.wishes = wishing(Wish::User, user).wishes;
        one_with(&fleet, &strategy, ("vtc-basic", &asked), seed)
    };
    assert_eq!(by("heavy", &"long ".repeat(4000), 1), "w0", "nobody has used anything yet");
    assert_eq!(by("light", "hi", 2), "w0");
    for seed in 0..10 {
        assert_eq!(by("heavy", "hi", seed), "w2");
        assert_eq!(by("light", "hi", seed), "w0");
    }
}

/// A try that follows another one is the same request.
#[test]
fn a_user_pays_once_for_all_tries() {
    let (fleet, strategy) = (whole(2), strategy());
    let mut asked = prompt(&"long ".repeat(400));
    asked.wishes = wishing(Wish::User, "a").wishes;
    let tokens = |tried: &[u32]| {
        let routing = routing("vtc-basic");
        let look = Look { routing: Some(&routing), ..Look::new(&fleet, &asked, RESTED) };
        let look = Look { receipt: Receipt::on().into(), ..look.after(tried) };
        drop(strategy.place(&look, &mut Dice::new(1)).unwrap());
        let score = look.into_receipt().decode.scores.remove(0);
        score.terms.iter().find(|(name, _)| *name == "user_tokens").unwrap().1
    };
    assert_eq!(tokens(&[]), 0.0);
    let once = tokens(&[0]);
    assert!(once > 1000.0);
    assert_eq!(tokens(&[0]), once);
    assert_eq!(tokens(&[]), once, "only a first try pays");
    assert_eq!(tokens(&[]), 2.0 * once);
}

#[test]
fn names_that_are_not_served_and_slips_are_told_apart() {
    for (text, said) in [
        ("prefix-cache-preble", "prefix-cache-preble is not served: its costs are"),
        ("slo-pack-load", "slo-pack-load is not served: it goes by profiles of GPUs"),
        ("slo,pd", "slo is not served"),
        ("least-requests", "nobody knows \"least-requests\"; did you mean least-request?"),
        ("prefix-cashe:2,random", "nobody knows \"prefix-cashe\"; did you mean prefix-cache?"),
        ("xyz", "nobody knows \"xyz\""),
        ("random,", "a name is missing"),
        ("random:x", "the weight of random is no whole number"),
        ("random:0", "all its weights are 0"),
    ] {
        let told = Ways::parse(text).unwrap_err().to_string();
        assert!(told.starts_with(&format!("incorrect routing strategy {text}: {said}")), "{told}");
    }
    for (text, ways) in [("pd,slo", "pd"), ("slo:0,random", "random"), ("pd,prefix-cache-preble", "pd")] {
        assert_eq!(Ways::parse(text).unwrap().to_string(), ways, "{text}");
    }
}
