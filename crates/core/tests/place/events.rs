//! Strategies that look prompts up, where workers tell what they hold: they go by that, and by what was sent where
//! workers do not tell.

use std::cell::RefCell;
use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, Role};
use baton_core::kv::{Batch, Event, Feed, Form, KvIndex, Stored, Trust};
use baton_core::place::cascade::knobs::{Knobs, PrefillScore};
use baton_core::place::cascade::resolve::Routing;
use baton_core::place::cascade::words::Ways;
use baton_core::place::receipt::Receipt;
use baton_core::place::{Cascade, Legwise, Look, Placement, Policy, PolicyName, Strategy, Tuning, Whole};
use baton_core::prefix::{Memory, PrefixIndex};
use baton_core::time::Instant;
use proptest::prelude::*;

use crate::yard::{fleet, ids, seat};

fn ask(tokens: std::ops::Range<u32>) -> Ask {
    let ids: Vec<String> = tokens.map(|id| id.to_string()).collect();
    let body = format!(r#"{{"prompt":[{}]}}"#, ids.join(","));
    Ask::read(Api::Completions, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap()).unwrap()
}

struct Desk {
    fleet: Fleet,
    index: Arc<KvIndex>,
    strategy: Strategy,
    routing: Option<Routing>,
    secs: u64,
}

/// AIBrix's scores of prefills that look prompts up.
const SCORES: [PrefillScore; 3] =
    [PrefillScore::PrefixCache, PrefillScore::Conductor, PrefillScore::HybridCacheLoad];

impl Desk {
    fn new(workers: u32) -> Desk {
        let index = Arc::new(KvIndex::new(1 << 20));
        let policy = || Policy::new(PolicyName::CacheAware).hearing(&index);
        let strategy = Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() });
        let fleet = fleet((0..workers).map(|i| seat(i, &format!("w{i}"), Role::Whole)));
        Desk { fleet, index, strategy, routing: None, secs: 100 }
    }

    /// AIBrix's `pd`, with so many prefills and one decode.
    fn pd(prefills: u32, prefill_score: PrefillScore) -> Desk {
        let index = Arc::new(KvIndex::new(1 << 20));
        let knobs = Arc::new(Knobs { prefill_score, ..Knobs::default() });
        let cascade = Strategy::Cascade(Cascade::new(&knobs, &Tuning::default()));
        let prefill = |i| seat(i, &format!("w{i}"), Role::Prefill);
        let fleet = fleet((0..prefills).map(prefill).chain([seat(prefills, "d", Role::Decode)]));
        Desk { fleet, strategy: cascade.hearing(&index), index, routing: None, secs: 100 }
    }

    /// AIBrix's `prefix-cache`.
    fn prefix_cache(workers: u32) -> Desk {
        let (knobs, tuning) = (Arc::default(), Tuning::default());
        let sent = Memory::Tree(Arc::new(PrefixIndex::new(tuning.index_bytes)));
        let desk = Desk::new(workers);
        let strategy = Strategy::Whole(Whole::new(&knobs, &tuning, sent)).hearing(&desk.index);
        let ways = Some(Ways::parse("prefix-cache").unwrap());
        Desk { strategy, routing: Some(Routing { ways, ..Routing::plain(&knobs) }), ..desk }
    }

    /// Each strategy that looks prompts up.
    fn all(workers: u32) -> Vec<Desk> {
        let own = [Desk::new(workers), Desk::prefix_cache(workers)];
        own.into_iter().chain(SCORES.map(|score| Desk::pd(workers, score))).collect()
    }

    fn feed(&self, worker: u32) -> Feed {
        let seat = self.fleet.seat(worker).unwrap();
        Feed::begin(&self.index, &seat.view, seat.pulse.life()).unwrap()
    }

    fn place(&mut self, ask: &Ask) -> Placement {
        self.secs += 1;
        let now = Instant::from_micros(self.secs * 1_000_000);
        let look = Look { routing: self.routing.as_ref(), ..Look::new(&self.fleet, ask, now) };
        self.strategy.place(&look, &mut Dice::new(self.secs)).unwrap()
    }

    fn serve(&mut self, ask: &Ask) -> String {
        let mut placement = self.place(ask);
        if let Placement::Whole { worker } | Placement::Pair { prefill: worker, .. } = &mut placement {
            worker.computed();
        }
        ids(&placement)[0].to_owned()
    }
}

/// Stores the first tokens of all prompts here.
fn stores(feed: &mut Feed, tokens: std::ops::Range<u32>) {
    let blocks = u64::from((tokens.end - tokens.start) / 16);
    let hashes = (0..blocks).map(|block| u64::from(tokens.start) << 32 | block).collect();
    let stored = Stored { hashes, tokens: tokens.collect(), block_tokens: 16, ..Stored::default() };
    tell(feed, Event::Stored(stored));
}

fn tell(feed: &mut Feed, event: Event) {
    let payload = Batch { at: 1.0, rank: None, events: vec![event] }.encode(Form::Map);
    feed.take(feed.expects(), &payload, false, Instant::from_micros(1));
}

#[test]
fn a_prompt_goes_to_who_says_that_it_holds_it() {
    for mut desk in Desk::all(4) {
        let mut feeds: Vec<Feed> = (0..4).map(|worker| desk.feed(worker)).collect();
        for (worker, feed) in feeds.iter_mut().enumerate() {
            let from = worker as u32 * 100_000;
            stores(feed, from..from + 1600);
        }
        for worker in [2, 0, 3, 1, 1, 2] {
            let from = worker * 100_000;
            assert_eq!(desk.serve(&ask(from..from + 2000)), format!("w{worker}"), "{:?}", desk.strategy);
        }
        assert_eq!((desk.index.choices(Trust::Whole), desk.index.choices(Trust::None)), (6, 0));
    }
}

#[test]
fn tokens_are_worth_asking_for_where_a_choice_goes_by_them() {
    for desk in Desk::all(2) {
        let knobs = Arc::new(Knobs { prefill_score: PrefillScore::PrefixCache, ..Knobs::default() });
        let own = desk.routing.clone().unwrap_or_else(|| Routing::plain(&knobs));
        assert!(!desk.strategy.counts(&own), "nobody tells what it holds");
        let mut feed = desk.feed(0);
        stores(&mut feed, 0..160);
        assert!(desk.strategy.counts(&own), "{:?}", desk.strategy);
    }
    let legwise = |name, tuning: &Tuning| {
        let policy = || Policy::tuned(name, tuning.clone());
        Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
    };
    let (plain, by_rank) = (Tuning::default(), Tuning { by_rank: true, ..Tuning::default() });
    let routing = Routing::plain(&Arc::default());
    for (name, tuning, counts) in [
        (PolicyName::LeastLoad, &plain, false),
        (PolicyName::LeastLoad, &by_rank, true),
        (PolicyName::Bucket, &plain, false),
        (PolicyName::CacheAware, &by_rank, false),
    ] {
        assert_eq!(legwise(name, tuning).counts(&routing), counts, "{name:?}");
    }
    let cascade = |bucketing| {
        let knobs = Arc::new(Knobs { bucketing, ..Knobs::default() });
        Strategy::Cascade(Cascade::new(&knobs, &plain)).counts(&Routing::plain(&knobs))
    };
    assert_eq!((cascade(true), cascade(false)), (true, false));
}

#[test]
fn a_receipt_says_which_index_it_went_by_and_how_fresh_that_was() {
    for desk in Desk::all(1) {
        let told = |desk: &Desk, ask: &Ask| {
            let now = Instant::from_micros(2_500_001);
            let look = Look { routing: desk.routing.as_ref(), ..Look::new(&desk.fleet, ask, now) };
            let look = Look { receipt: RefCell::new(Receipt::on()), ..look };
            drop(desk.strategy.place(&look, &mut Dice::new(1)));
            let receipt = look.into_receipt();
            let size = receipt.prompt.unwrap().to_string();
            let step = receipt.steps.into_iter().find(|step| step.name == "prefix index").unwrap();
            (size, step.fired, step.detail)
        };
        let guess = |why: &str| format!("by what was sent, a guess: {why}");
        let size = || "2000 tokens (token ids)".to_owned();
        let nobody = guess("no worker tells what it holds");
        assert_eq!(told(&desk, &ask(0..2000)), (size(), false, nobody));
        let mut feed = desk.feed(0);
        stores(&mut feed, 0..1600);
        let by_events = "80 % by events (whole, last 2.5 s ago)".to_owned();
        assert_eq!(told(&desk, &ask(0..2000)), (size(), true, by_events));
        let body = Envelope::parse(r#"{"prompt":"text"}"#.into(), &BodyLimits::default()).unwrap();
        let text = Ask::read(Api::Completions, &body).unwrap();
        let unknown = guess("the prompt's tokens are not known: the model's tokenizer is not at hand");
        assert_eq!(told(&desk, &text), ("1 tokens (assumed ratio)".to_owned(), false, unknown));
    }
}

#[test]
fn what_was_evicted_is_not_counted_on_though_it_was_sent_there() {
    for mut desk in Desk::all(2) {
        let mut feeds: Vec<Feed> = (0..2).map(|worker| desk.feed(worker)).collect();
        let first = desk.serve(&ask(0..1600));
        let (own, other) = if first == "w0" { (0, 1) } else { (1, 0) };
        stores(&mut feeds[own], 0..1600);
        assert_eq!(desk.serve(&ask(0..1700)), first);
        tell(&mut feeds[own], Event::Cleared);
        stores(&mut feeds[other], 0..1600);
        assert_eq!(desk.serve(&ask(0..1700)), format!("w{other}"), "{:?}", desk.strategy);
    }
}

#[test]
fn who_does_not_tell_or_tells_a_part_is_judged_by_what_was_sent() {
    Desk::all(2).into_iter().for_each(judged_by_what_was_sent);
}

fn judged_by_what_was_sent(mut desk: Desk) {
    let home = desk.serve(&ask(0..1600));
    let slot = u32::from(home == "w1");
    assert_eq!(desk.serve(&ask(0..1700)), home);
    // It is heard from the middle of its life on.
    let mut feed = desk.feed(slot);
    let empty = Batch { at: 1.0, rank: None, events: vec![] }.encode(Form::List);
    feed.take(500, &empty, false, Instant::ZERO);
    stores(&mut feed, 50_000..51_600);
    assert_eq!((desk.serve(&ask(0..1700)), desk.serve(&ask(50_000..52_000))), (home.clone(), home.clone()));
    assert_eq!(desk.index.choices(Trust::Partial), 2);
    // A restart forgets both at once.
    desk.fleet.seat(slot).unwrap().pulse.reborn();
    assert_eq!(desk.fleet.seat(slot).unwrap().view.trust(1), Trust::None);
    desk.serve(&ask(0..1700));
    assert_eq!(desk.index.choices(Trust::None), 3);
}

#[test]
fn a_burst_of_one_prompt_goes_where_its_first_went() {
    let mut desk = Desk::new(4);
    let _feeds: Vec<Feed> = (0..4)
        .map(|worker| {
            let mut feed = desk.feed(worker);
            stores(&mut feed, 900_000..900_016);
            feed
        })
        .collect();
    let held: Vec<Placement> = (0..3).map(|_| desk.place(&ask(0..16_000))).collect();
    let names: Vec<_> = held.iter().map(|placement| ids(placement)[0].to_owned()).collect();
    assert_eq!((names[0] == names[1], names[1] == names[2]), (true, true), "{names:?}");
    drop(held);
    assert!(desk.fleet.seats().all(|seat| seat.load.in_flight() == 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 100, ..ProptestConfig::default() })]

    /// Whatever a choice leaves out of what it could work out, it is the one whose cost on the receipt is least. There every
    /// candidate's is worked out by itself: with loads far apart, and prompts held, sent or on their way.
    #[test]
    fn cache_aware_takes_whose_cost_is_least(
        loads in prop::collection::vec(prop_oneof![Just(0), 0..4usize, 0..30usize], 1..24),
        tells in prop::collection::vec((any::<prop::sample::Index>(), 0..4u32, prop_oneof![1..80u32, Just(560)], 0..3u8), 0..8),
        sends in prop::collection::vec((0..4u32, prop_oneof![1..1200u32, Just(9000)], any::<bool>()), 0..8),
        balance_abs in prop_oneof![Just(64.0), Just(1.0)],
    ) {
        let mut desk = Desk::new(loads.len() as u32);
        let tuning = Tuning { balance_abs, ..Tuning::default() };
        let policy = || Policy::tuned(PolicyName::CacheAware, tuning.clone()).hearing(&desk.index);
        desk.strategy = Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() });
        let text = |family: u32| family * 100_000 + 1;
        let mut feeds: Vec<Feed> = vec![];
        for (who, family, blocks, trust) in tells {
            let mut feed = desk.feed(who.index(loads.len()) as u32);
            if trust == 1 {
                // What was before is not known.
                let nothing = Batch { at: 1.0, rank: None, events: vec![] }.encode(Form::Map);
                feed.take(7, &nothing, false, Instant::from_micros(1));
            }
            stores(&mut feed, text(family)..text(family) + 16 * blocks);
            // Of the rest the connection is lost.
            feeds.extend((trust < 2).then_some(feed));
        }
        let mut held: Vec<_> = vec![];
        for (seat, load) in desk.fleet.seats().zip(&loads) {
            held.extend((0..*load).map(|_| seat.load.take()));
        }
        let mut placed = vec![];
        for (family, tokens, keeps) in sends {
            let ask = ask(text(family)..text(family) + tokens);
            desk.secs += 1;
            let now = Instant::from_micros(desk.secs * 1_000_000);
            let look = Look { receipt: Receipt::on().into(), ..Look::new(&desk.fleet, &ask, now) };
            let mut placement = desk.strategy.place(&look, &mut Dice::new(desk.secs)).unwrap();
            let receipt = look.into_receipt();
            let scores = &receipt.decode.scores;
            prop_assert_eq!(scores.len(), loads.len());
            let least = scores.iter().map(|score| score.score).fold(f64::INFINITY, f64::min);
            let own = scores.iter().find(|score| score.worker == ids(&placement)[0]).unwrap();
            prop_assert_eq!(own.score, least, "{:?}", scores);
            if let Placement::Whole { worker } = &mut placement {
                worker.computed();
            }
            placed.extend(keeps.then_some(placement));
        }
    }
}
