//! KV events from bytes to who holds how much of a prompt.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::kv::{
    BLOCKS_PER_WORKER_MAX, Batch, Chain, Event, Feed, Form, Happened, KvIndex, Next, Removed, Stored,
    Trouble, Trust, View, seed,
};
use baton_core::time::Instant;
use proptest::prelude::*;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// What vLLM 0.24 and 0.20 write for the same block (made with msgspec 0.20).
const MAP: &str = "93cb3ff80000000000009188a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf1122334455667788b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c000";
const LIST: &str =
    "93cb3ff80000000000009197ab426c6f636b53746f72656491cf1122334455667788c0940102030404c0a347505500";
const GONE: &str = "92cb40000000000000009283a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf1122334455667788a66d656469756da347505581a474797065b0416c6c426c6f636b73436c6561726564";

#[test]
fn both_encodings_say_the_same() {
    let stored = Stored {
        hashes: vec![0x1122_3344_5566_7788],
        tokens: vec![1, 2, 3, 4],
        block_tokens: 4,
        ..Stored::default()
    };
    let batch = Batch { at: 1.5, rank: Some(0), events: vec![Event::Stored(stored)] };
    assert_eq!(Batch::decode(&bytes(MAP)), Ok(batch.clone()));
    assert_eq!(Batch::decode(&bytes(LIST)), Ok(batch));
    let removed = Removed { hashes: vec![0x1122_3344_5566_7788], group: None };
    let events = vec![Event::Removed(removed), Event::Cleared];
    assert_eq!(Batch::decode(&bytes(GONE)), Ok(Batch { at: 2.0, rank: None, events }));
}

#[test]
fn what_is_written_is_what_engines_write() {
    let gone = Batch::decode(&bytes(GONE)).unwrap();
    assert_eq!(gone.encode(Form::Map), bytes(GONE));
    assert_eq!(Batch::decode(&bytes(MAP)).unwrap().encode(Form::Map), bytes(MAP));
}

/// A map event with these members besides its name, of one byte or one short text each.
fn stored_with(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = vec![0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x80 | (members.len() + 1) as u8];
    let text = |out: &mut Vec<u8>, text: &str| {
        out.push(0xa0 | text.len() as u8);
        out.extend_from_slice(text.as_bytes());
    };
    text(&mut out, "type");
    text(&mut out, "BlockStored");
    for (name, value) in members {
        text(&mut out, name);
        out.extend_from_slice(value);
    }
    out
}

#[test]
fn members_mean_what_they_say() {
    let base: [(&str, &[u8]); 3] =
        [("block_hashes", &[0x91, 0xff]), ("token_ids", &[0x92, 5, 6]), ("block_size", &[2])];
    let with = |more: &[(&'static str, &'static [u8])]| {
        let members: Vec<(&str, &[u8])> = base.iter().copied().chain(more.iter().copied()).collect();
        Batch::decode(&stored_with(&members)).map(|batch| batch.events[0].clone())
    };
    let Ok(Event::Stored(plain)) = with(&[]) else { panic!("a block is stored") };
    assert_eq!((plain.hashes[0], plain.tokens), (u64::MAX, vec![5, 6]), "SGLang's hashes have a sign");
    for elsewhere in [("medium", b"\xa3CPU".as_slice()), ("locality", b"\xa6REMOTE"), ("medium", b"\xa4DISK")]
    {
        assert_eq!(with(&[elsewhere]), Ok(Event::Elsewhere), "{elsewhere:?}");
    }
    assert_eq!(with(&[("kv_cache_spec_kind", b"\xb0sliding_window_x")]), Ok(Event::Elsewhere));
    let kept = |more: &[(&'static str, &'static [u8])]| match with(more) {
        Ok(Event::Stored(stored)) => stored,
        other => panic!("{other:?}"),
    };
    assert_eq!(kept(&[("kv_cache_spec_kind", b"\xaefull_attention"), ("group_idx", &[1])]).group, Some(1));
    assert_eq!(kept(&[("lora_name", b"\xa1a")]).lora.as_deref(), Some("a"));
    let salted = kept(&[("lora_name", b"\xa1a"), ("extra_keys", b"\x91\x92\xa1a\xa1s")]);
    assert_eq!((salted.salt.as_deref(), salted.extras.as_slice()), (Some("s"), [None].as_slice()));
    let picture = kept(&[("extra_keys", b"\x91\x91\x92\xa1p\x05")]);
    assert!(picture.salt.is_none() && picture.extras[0].is_some());
    assert_eq!(kept(&[("block_hashes", b"\x91\xc4\x02ab")]).hashes, [xxhash(b"ab")], "the last one counts");
    for wrong in
        [("medium", &[5_u8][..]), ("token_ids", &[0x91, 5]), ("block_size", &[0xc0]), ("group_idx", &[0xff])]
    {
        assert!(with(&[wrong]).is_err(), "{wrong:?}");
    }
    let unknown = [0x92, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x91, 0xa1, b'X'];
    assert_eq!(Batch::decode(&unknown).unwrap().events, [Event::Unknown]);
}

fn xxhash(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

fn stored() -> impl Strategy<Value = Event> {
    let texts = || prop::option::of("[a-z]{1,40}".prop_map(|text| text.into_boxed_str()));
    let hashes = prop::collection::vec(any::<u64>(), 1..20);
    (hashes, prop::option::of(any::<u64>()), 1u32..20, texts(), texts(), prop::option::of(0u32..3)).prop_map(
        |(hashes, parent, block_tokens, lora, salt, group)| {
            let tokens =
                (0..hashes.len() as u32 * block_tokens).map(|n| n.wrapping_mul(2_654_435_761)).collect();
            let salt = salt.filter(|salt| parent.is_none() && lora.as_ref() != Some(salt));
            let extras = if salt.is_some() { vec![None; hashes.len()] } else { Vec::new() };
            Event::Stored(Stored { hashes, parent, tokens, block_tokens, lora, salt, extras, group })
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let hashes = prop::collection::vec(any::<u64>(), 0..20);
    let removed = (hashes, prop::option::of(0u32..3))
        .prop_map(|(hashes, group)| Event::Removed(Removed { hashes, group }));
    prop_oneof![stored(), removed, Just(Event::Cleared), Just(Event::Elsewhere), Just(Event::Unknown)]
}

proptest! {
    /// What is written in either form is read back.
    #[test]
    fn batches_go_round(at in 0.0..1e10, rank in prop::option::of(0u32..8), events in prop::collection::vec(event(), 0..20)) {
        let batch = Batch { at, rank, events };
        prop_assert_eq!(Batch::decode(&batch.encode(Form::Map)), Ok(batch.clone()));
        prop_assert_eq!(Batch::decode(&batch.encode(Form::List)), Ok(batch));
    }

    /// Bytes that were cut or changed are read or refused, and nothing worse.
    #[test]
    fn spoilt_batches_are_read_or_refused(events in prop::collection::vec(event(), 1..5), cut in any::<prop::sample::Index>(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8), form in any::<bool>()) {
        let batch = Batch { at: 1.0, rank: None, events };
        let mut bytes = batch.encode(if form { Form::Map } else { Form::List });
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        let _read_or_refused = Batch::decode(&bytes);
    }
}

/// An engine whose hashes are a prompt's family and place.
struct Stand {
    index: Arc<KvIndex>,
    views: Vec<Arc<View>>,
    feeds: Vec<Option<Feed>>,
    next: Vec<u64>,
}

const BLOCK: u32 = 16;

/// Tokens of a prompt of this family; families part at their fifth block.
fn tokens(family: u64, blocks: usize) -> Vec<u32> {
    let of = |block: usize| if block < 5 { 0 } else { family as u32 };
    (0..blocks).flat_map(|block| (0..BLOCK).map(move |n| of(block) * 1000 + block as u32 * 16 + n)).collect()
}

fn hashes(family: u64, range: std::ops::Range<usize>) -> Vec<u64> {
    range.map(|block| if block < 5 { block as u64 } else { family << 32 | block as u64 }).collect()
}

fn store(family: u64, range: std::ops::Range<usize>) -> Event {
    let parent = range.start.checked_sub(1).map(|before| hashes(family, before..before + 1)[0]);
    let all = tokens(family, range.end);
    Event::Stored(Stored {
        hashes: hashes(family, range.clone()),
        parent,
        tokens: all[range.start * BLOCK as usize..].to_vec(),
        block_tokens: BLOCK,
        ..Stored::default()
    })
}

fn remove(family: u64, range: std::ops::Range<usize>) -> Event {
    Event::Removed(Removed { hashes: hashes(family, range), group: None })
}

impl Stand {
    fn new(workers: usize, budget: usize) -> Stand {
        let index = Arc::new(KvIndex::new(budget));
        let views: Vec<Arc<View>> = (0..workers).map(|_| Arc::default()).collect();
        let feeds = views.iter().map(|view| Feed::begin(&index, view, 0)).collect();
        Stand { index, views, feeds, next: vec![0; workers] }
    }

    fn payload(events: Vec<Event>) -> Vec<u8> {
        Batch { at: 1.0, rank: None, events }.encode(Form::Map)
    }

    fn say(&mut self, worker: usize, events: Vec<Event>) -> Next {
        let number = self.next[worker];
        self.next[worker] += 1;
        self.say_as(worker, number, events)
    }

    fn say_as(&mut self, worker: usize, number: u64, events: Vec<Event>) -> Next {
        let feed = self.feeds[worker].as_mut().unwrap();
        feed.take(number, &Stand::payload(events), false, Instant::from_micros(number + 1))
    }

    /// Blocks of a prompt that each worker holds.
    fn held(&self, family: u64, blocks: usize) -> Vec<u32> {
        let chain = Chain::of(&tokens(family, blocks), BLOCK, seed(None, None));
        let held = self.index.find(&chain);
        self.views.iter().map(|view| view.number().map_or(0, |number| held.blocks_of(number))).collect()
    }
}

#[test]
fn a_prompt_is_found_where_it_is_until_it_is_not() {
    let mut stand = Stand::new(3, 1 << 20);
    assert_eq!(stand.views[0].trust(0), Trust::None);
    stand.say(0, vec![store(1, 0..40)]);
    stand.say(1, vec![store(1, 0..7), store(2, 7..7)]);
    stand.say(1, vec![store(1, 7..10)]);
    assert_eq!(stand.held(1, 40), [40, 10, 0]);
    assert_eq!(stand.held(1, 200), [40, 10, 0]);
    assert_eq!(stand.held(2, 40), [5, 5, 0], "families share their beginning");
    stand.say(0, vec![remove(1, 30..40)]);
    assert_eq!(stand.held(1, 40), [30, 10, 0]);
    stand.say(0, vec![Event::Cleared]);
    assert_eq!(stand.held(1, 40), [0, 10, 0]);
    assert_eq!((stand.views[0].trust(0), stand.views[1].trust(0)), (Trust::Whole, Trust::Whole));
    assert_eq!(stand.views[1].trust(1), Trust::None, "the worker has begun a new life");
    assert_eq!((stand.views[1].blocks(), stand.views[1].block_tokens()), (10, Some(16)));
    assert!(
        stand.views[1].age(Instant::from_micros(5)).is_some() && stand.views[2].age(Instant::ZERO).is_none()
    );
    stand.feeds.clear();
    assert_eq!((stand.index.bytes(), stand.index.entries(), stand.index.feeds()), (0, 0, 0));
    assert_eq!(stand.views[1].trust(0), Trust::None);
}

#[test]
fn blocks_after_one_that_is_not_known_are_not_known() {
    let mut stand = Stand::new(1, 1 << 20);
    stand.say(0, vec![store(1, 3..9)]);
    assert_eq!((stand.held(1, 9), stand.views[0].happened(Happened::Orphan)), (vec![0], 6));
    stand.say(0, vec![store(1, 0..3), store(1, 3..9)]);
    assert_eq!(stand.held(1, 9), [9]);
}

#[test]
fn numbers_that_are_missing_or_go_back() {
    let mut stand = Stand::new(1, 1 << 20);
    stand.say(0, vec![store(1, 0..8)]);
    let later = Stand::payload(vec![store(2, 0..8)]);
    let now = Instant::from_micros(9);
    let feed = stand.feeds[0].as_mut().unwrap();
    assert_eq!(feed.take(3, &later, true, now), Next::Missing { from: 1 });
    // The engine sends what was missing, and what comes after it too.
    assert!(feed.replay(1, &Stand::payload(vec![store(1, 8..12)]), now));
    assert!(feed.replay(2, &Stand::payload(vec![]), now) && feed.replay(3, &later, now));
    assert_eq!(feed.take(3, &later, true, now), Next::Done);
    assert_eq!(feed.expects(), 4);
    assert_eq!((stand.held(1, 20), stand.held(2, 8)), (vec![12], vec![8]));
    assert_eq!(stand.views[0].trust(0), Trust::Whole);
    // It has forgotten what was missing: all that was known is worthless.
    let feed = stand.feeds[0].as_mut().unwrap();
    assert!(!feed.replay(6, &later, now));
    assert_eq!(feed.take(6, &Stand::payload(vec![store(3, 0..6)]), false, now), Next::Done);
    assert_eq!((stand.held(1, 20), stand.held(3, 6)), (vec![5], vec![6]));
    assert_eq!((stand.views[0].trust(0), stand.views[0].troubles(Trouble::Gap)), (Trust::Partial, 1));
    // The engine began anew.
    stand.say_as(0, 0, vec![store(4, 0..7)]);
    assert_eq!((stand.held(3, 6), stand.held(4, 9)), (vec![5], vec![7]));
    assert_eq!((stand.views[0].trust(0), stand.views[0].troubles(Trouble::Restart)), (Trust::Whole, 1));
}

#[test]
fn an_engine_that_never_told_anything_holds_nothing() {
    let mut stand = Stand::new(1, 1 << 20);
    let feed = stand.feeds[0].as_mut().unwrap();
    feed.listening();
    assert_eq!(stand.views[0].trust(0), Trust::Partial);
    feed.replayed_all();
    assert_eq!(stand.views[0].trust(0), Trust::Whole);
}

#[test]
fn a_spoilt_batch_costs_what_was_known_and_no_more() {
    let mut stand = Stand::new(2, 1 << 20);
    for worker in 0..2 {
        stand.say(worker, vec![store(1, 0..8)]);
    }
    let feed = stand.feeds[0].as_mut().unwrap();
    assert_eq!(feed.take(1, b"\x93spoilt", false, Instant::ZERO), Next::Done);
    assert_eq!(stand.held(1, 8), [0, 8]);
    assert_eq!((stand.views[0].trust(0), stand.views[0].troubles(Trouble::Malformed)), (Trust::Partial, 1));
    stand.say_as(0, 2, vec![store(1, 0..8)]);
    assert_eq!(stand.held(1, 8), [8, 8]);
}

#[test]
fn who_tells_more_than_there_is_memory_for_is_not_heard() {
    let mut stand = Stand::new(2, 256 << 10);
    stand.say(1, vec![store(9, 0..100)]);
    let mut next = Next::Done;
    for family in 10..100 {
        next = stand.say(0, vec![store(family, 0..100)]);
        if next == Next::Full {
            break;
        }
    }
    assert_eq!(
        (next, stand.views[0].trust(0), stand.views[0].troubles(Trouble::Full)),
        (Next::Full, Trust::None, 1)
    );
    assert_eq!(stand.say(0, vec![store(10, 0..10)]), Next::Full);
    assert_eq!(stand.held(9, 100), [0, 100]);
    assert!(stand.index.bytes() <= stand.index.budget());
    const { assert!(BLOCKS_PER_WORKER_MAX > 1 << 18) };
}

#[test]
fn adapters_and_salts_keep_prompts_apart() {
    let mut stand = Stand::new(1, 1 << 20);
    let Event::Stored(plain) = store(1, 0..8) else { panic!("stored") };
    let lora = Stored { lora: Some("a".into()), salt: Some("s".into()), extras: vec![None; 8], ..plain };
    stand.say(0, vec![Event::Stored(lora)]);
    assert_eq!(stand.held(1, 8), [0]);
    let number = stand.views[0].number().unwrap();
    let held = |seed| stand.index.find(&Chain::of(&tokens(1, 8), BLOCK, seed)).blocks_of(number);
    assert_eq!(held(seed(Some("a"), Some("s"))), 8);
    assert_eq!((held(seed(Some("a"), None)), held(seed(None, Some("s")))), (0, 0));
    assert!(stand.index.is_adapter("a") && !stand.index.is_adapter("b"));
}

#[test]
fn prompts_on_their_way_count_until_they_arrive() {
    let view = Arc::new(View::default());
    let chain = |family, blocks| Arc::new(Chain::of(&tokens(family, blocks), BLOCK, seed(None, None)));
    let expected = view.expect(&chain(1, 30)).unwrap();
    assert_eq!((view.awaits(&chain(1, 40)), view.awaits(&chain(2, 40))), (30, 5));
    let more: Vec<_> = (0..100).map_while(|_| view.expect(&chain(3, 8))).collect();
    assert_eq!(more.len(), baton_core::kv::EXPECTED_MAX - 1);
    drop((expected, more));
    assert_eq!(view.awaits(&chain(1, 40)), 0);
}

#[test]
fn blocks_of_one_token_are_looked_up_every_sixteen() {
    let index = Arc::new(KvIndex::new(1 << 20));
    let view = Arc::new(View::default());
    let mut feed = Feed::begin(&index, &view, 0).unwrap();
    let all = tokens(1, 10);
    let stored = Stored {
        hashes: (0..100).collect(),
        tokens: all[..100].to_vec(),
        block_tokens: 1,
        ..Stored::default()
    };
    feed.take(0, &Stand::payload(vec![Event::Stored(stored)]), false, Instant::ZERO);
    let held = index.find(&Chain::of(&all, 1, seed(None, None)));
    assert_eq!((held.blocks_of(view.number().unwrap()), index.entries()), (96, 6));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Against a plain list of who holds what: engines that evict from the end of prompts.
    #[test]
    fn the_index_says_what_workers_hold(ops in prop::collection::vec((0u8..6, 0usize..3, 1u64..5, 1usize..60), 1..120)) {
        let mut stand = Stand::new(3, 16 << 20);
        // By worker and family, blocks held; the first five belong to all families.
        let mut model: Vec<BTreeMap<u64, usize>> = vec![BTreeMap::new(); 3];
        for (op, worker, family, blocks) in ops {
            let own = &mut model[worker];
            match op {
                0..=2 => {
                    let from = own.get(&family).copied().unwrap_or(0).max(own.values().copied().max().unwrap_or(0).min(5));
                    if from < blocks {
                        stand.say(worker, vec![store(family, from..blocks)]);
                        own.insert(family, blocks);
                    }
                }
                3 | 4 => {
                    let held = own.get(&family).copied().unwrap_or(0);
                    let keep = blocks.max(5);
                    if held > keep {
                        stand.say(worker, vec![remove(family, keep..held)]);
                        own.insert(family, keep);
                    }
                }
                _ => {
                    stand.say(worker, vec![Event::Cleared]);
                    own.clear();
                }
            }
            for family in 1..5 {
                let shared = |own: &BTreeMap<u64, usize>| own.values().copied().max().unwrap_or(0).min(5);
                let holds = |own: &BTreeMap<u64, usize>| own.get(&family).copied().unwrap_or(0).max(shared(own)) as u32;
                prop_assert_eq!(stand.held(family, 64), model.iter().map(holds).collect::<Vec<_>>());
            }
        }
        stand.feeds.clear();
        prop_assert_eq!((stand.index.bytes(), stand.index.entries()), (0, 0));
    }
}
