//! cache_aware where workers tell what they hold: it goes by that, and by what was sent where they do not.

use std::cell::RefCell;
use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Fleet, Role};
use baton_core::kv::{Batch, Event, Feed, Form, KvIndex, Stored, Trust};
use baton_core::place::receipt::Receipt;
use baton_core::place::{Legwise, Look, Placement, Policy, PolicyName, Strategy};
use baton_core::time::Instant;

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
    secs: u64,
}

impl Desk {
    fn new(workers: u32) -> Desk {
        let index = Arc::new(KvIndex::new(1 << 20));
        let policy = || Policy::new(PolicyName::CacheAware).hearing(&index);
        let strategy = Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() });
        let fleet = fleet((0..workers).map(|i| seat(i, &format!("w{i}"), Role::Whole)));
        Desk { fleet, index, strategy, secs: 100 }
    }

    fn feed(&self, worker: u32) -> Feed {
        let seat = self.fleet.seat(worker).unwrap();
        Feed::begin(&self.index, &seat.view, seat.pulse.life()).unwrap()
    }

    fn place(&mut self, ask: &Ask) -> Placement {
        self.secs += 1;
        let now = Instant::from_micros(self.secs * 1_000_000);
        let look = Look::new(&self.fleet, ask, now);
        self.strategy.place(&look, &mut Dice::new(self.secs)).unwrap()
    }

    fn serve(&mut self, ask: &Ask) -> String {
        let mut placement = self.place(ask);
        if let Placement::Whole { worker } = &mut placement {
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
    let mut desk = Desk::new(4);
    let mut feeds: Vec<Feed> = (0..4).map(|worker| desk.feed(worker)).collect();
    for (worker, feed) in feeds.iter_mut().enumerate() {
        let from = worker as u32 * 100_000;
        stores(feed, from..from + 1600);
    }
    for worker in [2, 0, 3, 1, 1, 2] {
        let from = worker * 100_000;
        assert_eq!(desk.serve(&ask(from..from + 2000)), format!("w{worker}"));
    }
    assert_eq!((desk.index.choices(Trust::Whole), desk.index.choices(Trust::None)), (6, 0));
}

#[test]
fn a_receipt_says_which_index_it_went_by_and_how_fresh_that_was() {
    let desk = Desk::new(1);
    let told = |desk: &Desk| {
        let ask = ask(0..2000);
        let now = Instant::from_micros(2_500_001);
        let look = Look { receipt: RefCell::new(Receipt::on()), ..Look::new(&desk.fleet, &ask, now) };
        drop(desk.strategy.place(&look, &mut Dice::new(1)));
        let receipt = look.into_receipt();
        assert_eq!(receipt.prompt.unwrap().to_string(), "2000 tokens (token ids)");
        let step = receipt.steps.into_iter().find(|step| step.name == "prefix index").unwrap();
        (step.fired, step.detail)
    };
    assert_eq!(told(&desk), (false, "by what was sent".to_owned()));
    let mut feed = desk.feed(0);
    stores(&mut feed, 0..1600);
    assert_eq!(told(&desk), (true, "80 % by events (whole, last 2.5 s ago)".to_owned()));
}

#[test]
fn what_was_evicted_is_not_counted_on_though_it_was_sent_there() {
    let mut desk = Desk::new(2);
    let mut feeds: Vec<Feed> = (0..2).map(|worker| desk.feed(worker)).collect();
    let first = desk.serve(&ask(0..1600));
    let (own, other) = if first == "w0" { (0, 1) } else { (1, 0) };
    stores(&mut feeds[own], 0..1600);
    assert_eq!(desk.serve(&ask(0..1700)), first);
    tell(&mut feeds[own], Event::Cleared);
    stores(&mut feeds[other], 0..1600);
    assert_eq!(desk.serve(&ask(0..1700)), format!("w{other}"));
}

#[test]
fn who_does_not_tell_or_tells_a_part_is_judged_by_what_was_sent() {
    let mut desk = Desk::new(2);
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
