//! A burst on idle workers: whoever goes by load gives each as many, whatever the seed.

use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, Role};
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore};
use baton_core::place::cascade::resolve::Routing;
use baton_core::place::cascade::words::Ways;
use baton_core::place::{
    Assignment, Cascade, Legwise, LoadMetric, Look, Placement, Policy, PolicyName, Reports, Strategy, Tuning,
    Whole,
};
use baton_core::prefix::{Memory, PrefixIndex};

use crate::yard::{RESTED, fleet, pairs, seat};

const REQUESTS: u64 = 256;
const SEEDS: u64 = 60;

/// Prompts of one length that have nothing in common.
fn ask(number: u64) -> Ask {
    let mut dice = Dice::new(number);
    let text: String = (0..300).map(|_| char::from(b'a' + dice.below(26) as u8)).collect();
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    Ask::read(Api::Chat, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap()).unwrap()
}

fn legwise(name: PolicyName, tuning: &Tuning) -> Strategy {
    let decode = || Policy::new(PolicyName::LeastLoad);
    Strategy::Legwise(Legwise {
        prefill: Policy::tuned(name, tuning.clone()),
        decode: decode(),
        whole: decode(),
    })
}

fn pd(prefill_score: PrefillScore, decode_score: DecodeScore) -> Strategy {
    let knobs = Knobs { prefill_score, decode_score, ..Knobs::default() };
    Strategy::Cascade(Cascade::new(&Arc::new(knobs), &Tuning::default()))
}

fn whole() -> Strategy {
    let tuning = Tuning::default();
    let index = Memory::Tree(Arc::new(PrefixIndex::new(tuning.index_bytes)));
    Strategy::Whole(Whole::new(&Arc::new(Knobs::default()), &tuning, index))
}

/// How many each of the four idle workers gets that the requests are spread over.
fn spread(
    fleet: &Fleet,
    strategy: &Strategy,
    (routing, asks): (Option<&Routing>, &[Ask]),
    seed: u64,
) -> Vec<u32> {
    let mut dice = Dice::new(seed);
    let place = |ask| {
        let look = Look { routing, ..Look::new(fleet, ask, RESTED) };
        strategy.place(&look, &mut dice).unwrap()
    };
    let held: Vec<Placement> = asks.iter().map(place).collect();
    let own = fleet.seats().filter(|s| s.worker.role != Role::Decode);
    let loads = own.map(|s| s.load.in_flight()).collect();
    drop(held);
    assert!(fleet.seats().all(|s| s.load.in_flight() == 0 && s.load.work() == 0));
    loads
}

#[test]
fn every_policy_that_goes_by_load_spreads_a_burst_exactly() {
    let asks: Vec<Ask> = (0..REQUESTS).map(ask).collect();
    let plain = Tuning::default();
    let metric = |metric| Tuning { reports: Reports { metric, ..Reports::default() }, ..Tuning::default() };
    let metrics = [LoadMetric::ExpectedWait, LoadMetric::Requests, LoadMetric::LeastRequests];
    let least = Tuning { assignment: Some(Assignment::MinLoad), ..Tuning::default() };
    let mut rows: Vec<(PolicyName, Tuning)> =
        metrics.into_iter().map(|m| (PolicyName::PowerOfTwo, metric(m))).collect();
    rows.extend(
        [PolicyName::LeastLoad, PolicyName::CacheAware, PolicyName::Bucket].map(|n| (n, plain.clone())),
    );
    rows.push((PolicyName::Manual, least));
    for (name, tuning) in rows {
        for heard in [false, true] {
            for seed in 0..SEEDS {
                let (fleet, strategy) = (pairs(4, 1), legwise(name, &tuning));
                if heard {
                    fleet.want_gauges();
                    fleet.seats().for_each(|seat| seat.gauges.running.set(Some(0.0)));
                }
                let loads = spread(&fleet, &strategy, (None, &asks), seed);
                let metric = tuning.reports.metric;
                assert_eq!(loads, [64; 4], "{name:?}, {metric:?}, heard: {heard}, seed {seed}");
            }
        }
    }
}

#[test]
fn every_score_of_pd_spreads_a_burst_exactly() {
    let asks: Vec<Ask> = (0..REQUESTS).map(ask).collect();
    for prefill in PrefillScore::ALL {
        for decode in DecodeScore::ALL {
            for seed in 0..SEEDS / 4 {
                let loads = spread(&pairs(4, 1), &pd(prefill, decode), (None, &asks), seed);
                assert_eq!(loads, [64; 4], "{prefill:?}, {decode:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn every_strategy_for_whole_workers_that_goes_by_load_spreads_a_burst_exactly() {
    let asks: Vec<Ask> = (0..REQUESTS).map(ask).collect();
    for ways in [
        "least-request",
        "power-of-two",
        "least-kv-cache",
        "throughput",
        "prefix-cache",
        "session-affinity",
        "least-request:2,least-kv-cache:1",
        "prefix-cache:2,throughput,least-request",
        "power-of-two,least-kv-cache",
    ] {
        let routing = Routing { ways: Some(Ways::parse(ways).unwrap()), ..Routing::plain(&Arc::default()) };
        for seed in 0..SEEDS / 2 {
            let four = fleet((0..4).map(|i| seat(i, &format!("w{i}"), Role::Whole)));
            let loads = spread(&four, &whole(), (Some(&routing), &asks), seed);
            assert_eq!(loads, [64; 4], "{ways}, seed {seed}");
        }
    }
}

/// Taking turns at being the first of two changes nobody's share where loads differ.
#[test]
fn the_better_of_two_gets_what_it_would_get_by_chance() {
    let fleet = fleet((0..4).map(|i| seat(i, &format!("w{i}"), Role::Whole)));
    let _load: Vec<_> = fleet.whole().iter().flat_map(|s| (0..s.slot).map(|_| s.load.take())).collect();
    let (strategy, mut dice, ask) = (legwise_of_two(), Dice::new(5), ask(1));
    let mut counts = [0u32; 4];
    for _ in 0..1200 {
        let look = Look::new(&fleet, &ask, RESTED);
        match strategy.place(&look, &mut dice).unwrap() {
            Placement::Whole { worker } => counts[worker.seat.slot as usize] += 1,
            other => panic!("{other:?}"),
        }
    }
    // One half for the idlest, a third, a sixth, and nothing for the busiest.
    for (count, due) in counts.into_iter().zip([600u32, 400, 200, 0]) {
        assert!(count.abs_diff(due) <= 60, "{counts:?}");
    }
}

fn legwise_of_two() -> Strategy {
    let policy = || Policy::new(PolicyName::PowerOfTwo);
    Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
}
