//! Do the indexes of prompts stay within their budgets, and how long do they take?
//! `cargo run --release -p baton-core --example prefix_memory`
//!
//! 200,000 distinct prompts of 4,000 characters over four workers, two of which are replaced half-way, with a
//! budget of 64 MiB: as they are sent, in the index of what was sent; and as workers store them in blocks of 16 tokens
//! and tell so, in the index of KV events. A worker that holds more than there is room for is not heard any more. Then
//! look-ups of long prompts in fleets of any size, in both.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::kv::{Batch, Chain, Event, Feed, Form, KvIndex, Next, Removed, Stored, View};
use baton_core::prefix::{Holder, PrefixIndex};
use baton_core::prompt::Blocks;
use baton_core::time;

const BUDGET: usize = 64 << 20;
const PROMPTS: usize = 200_000;
const FLEETS: [u32; 4] = [4, 64, 512, 2048];
const BLOCK_TOKENS: u32 = 16;
/// Of four characters each.
const PROMPT_TOKENS: usize = 1000;
/// Prompts that a worker has room for: four such workers need about 50 MiB of the index.
const HELD_PROMPTS: usize = 1800;

fn main() {
    sent();
    told();
    println!("\n| index | prompt, tokens | {} |", FLEETS.map(|n| format!("{n} workers")).join(" | "));
    println!("|---|---:|{}", "---:|".repeat(FLEETS.len()));
    let table = |name: &str, look_up: fn(usize, u32) -> Duration| {
        for (prompt, characters) in [("1K", 4_000), ("32K", 128_000), ("200K", 800_000)] {
            let cells = FLEETS.map(|workers| look_up(characters, workers).as_nanos() as f64 / 1000.0);
            let cells = cells.map(|micros| format!("{micros:.2} µs")).join(" | ");
            println!("| {name} | {prompt} | {cells} |");
        }
    };
    table("what was sent", look_up);
    table("KV events", look_up_told);
}

/// The index of what was sent.
fn sent() {
    let index = Arc::new(PrefixIndex::new(BUDGET));
    let mut dice = Dice::new(1);
    let (start, mut times) = (resident(), Vec::with_capacity(PROMPTS));
    for i in 0..PROMPTS {
        if i == PROMPTS / 2 {
            index.keep_only(1, (2..6).map(|slot| Holder { slot, life: 0 }));
        }
        let blocks = blocks(&letters(&mut dice, 4000));
        let slot = (i % 4) as u32 + if i >= PROMPTS / 2 { 2 } else { 0 };
        let now = time::Instant::from_micros(i as u64);
        let began = Instant::now();
        black_box(index.find(&blocks));
        index.hold(&blocks, Holder { slot, life: 0 }, now).unwrap().keep();
        times.push(began.elapsed());
    }
    println!(
        "What was sent: budget {:.0} MiB, in use {:.1} MiB (recount {:.1}), resident memory grew by {:.1} MiB",
        mib(BUDGET),
        mib(index.bytes()),
        mib(index.recount()),
        mib(resident().saturating_sub(start)),
    );
    percentiles(&mut times);
}

/// The index of KV events. Each worker holds its latest prompts, as many as its memory takes.
fn told() {
    let index = Arc::new(KvIndex::new(BUDGET));
    let mut dice = Dice::new(1);
    let (start, mut times) = (resident(), Vec::with_capacity(PROMPTS));
    let mut workers: Vec<Worker> = (0..4).map(|_| Worker::new(&index)).collect();
    let (mut most, mut full) = (0, 0);
    for i in 0..PROMPTS {
        if i == PROMPTS / 2 {
            workers.drain(..2);
            workers.extend((0..2).map(|_| Worker::new(&index)));
        }
        let tokens: Vec<u32> = (0..PROMPT_TOKENS).map(|_| dice.u64() as u32).collect();
        let chain = Chain::of(&tokens, BLOCK_TOKENS, baton_core::kv::seed(None, None));
        let began = Instant::now();
        black_box(index.find(&chain));
        full += usize::from(workers[i % 4].stores(i as u64, &tokens) == Next::Full);
        times.push(began.elapsed());
        most = most.max(index.bytes());
    }
    println!(
        "KV events: budget {:.0} MiB, in use {:.1} MiB at most, resident memory grew by {:.1} MiB; batches that found no room: {full}",
        mib(index.budget()),
        mib(most),
        mib(resident().saturating_sub(start)),
    );
    percentiles(&mut times);
    let mut greedy = Worker { most: usize::MAX, ..Worker::new(&index) };
    let mut prompts = 0;
    let mut random = || (0..PROMPT_TOKENS).map(|_| dice.u64() as u32).collect::<Vec<u32>>();
    while greedy.stores(1 << 40 | prompts, &random()) != Next::Full {
        prompts += 1;
        most = most.max(index.bytes());
    }
    println!(
        "KV events, one more that never evicts: not heard after {prompts} prompts, {:.1} MiB",
        mib(most)
    );
    drop((workers, greedy));
    println!("KV events, all workers gone: {:.1} MiB", mib(index.bytes()));
}

/// One that tells what it stores, and what it evicts for that.
struct Worker {
    feed: Feed,
    held: std::collections::VecDeque<Vec<u64>>,
    most: usize,
}

impl Worker {
    fn new(index: &Arc<KvIndex>) -> Worker {
        let feed = Feed::begin(index, &Arc::new(View::default()), 0).unwrap();
        Worker { feed, held: std::collections::VecDeque::new(), most: HELD_PROMPTS }
    }

    fn stores(&mut self, prompt: u64, tokens: &[u32]) -> Next {
        // Engines store whole blocks.
        let blocks = tokens.len() as u64 / u64::from(BLOCK_TOKENS);
        let tokens = tokens[..(blocks * u64::from(BLOCK_TOKENS)) as usize].to_vec();
        let hashes: Vec<u64> = (0..blocks).map(|block| prompt << 16 | block).collect();
        let mut events = Vec::new();
        if self.held.len() >= self.most {
            let hashes = self.held.pop_front().unwrap();
            events.push(Event::Removed(Removed { hashes, ..Removed::default() }));
        }
        self.held.push_back(hashes.clone());
        events.push(Event::Stored(Stored {
            hashes,
            tokens,
            block_tokens: BLOCK_TOKENS,
            ..Stored::default()
        }));
        let payload = Batch { at: 1.0, rank: None, events }.encode(Form::Map);
        self.feed.take(self.feed.expects(), &payload, false, time::Instant::from_micros(1))
    }
}

fn percentiles(times: &mut [Duration]) {
    let tenth = times.len() / 10;
    let last = times.len() - tenth;
    for (name, from) in [("first", 0), ("last", last)] {
        let part = &mut times[from..from + tenth];
        part.sort_unstable();
        println!("  {name} tenth: median {:?}, p99 {:?}", part[tenth / 2], part[tenth * 99 / 100]);
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A conversation that eight workers hold to different depths, behind an instruction that all hold.
fn look_up(characters: usize, workers: u32) -> Duration {
    let (index, mut dice) = (Arc::new(PrefixIndex::new(BUDGET)), Dice::new(2));
    let text = letters(&mut dice, characters);
    let holder = |slot| Holder { slot, life: 0 };
    index.keep_only(1, (0..workers).map(holder));
    for slot in 0..workers {
        let depth = if slot < 8 { (slot as usize + 1) * characters / 8 } else { 2000 };
        let now = time::Instant::from_micros(u64::from(slot));
        index.hold(&blocks(&text[..depth]), holder(slot), now).unwrap().keep();
    }
    let blocks = blocks(&text);
    best(|| drop(black_box(index.find(&blocks))))
}

/// The same as workers tell it.
fn look_up_told(characters: usize, workers: u32) -> Duration {
    let (index, mut dice) = (Arc::new(KvIndex::new(16 * BUDGET)), Dice::new(2));
    let count = characters / 4;
    let tokens: Vec<u32> = (0..count).map(|_| dice.u64() as u32).collect();
    let begin = |_| Worker::new(&index);
    let mut all: Vec<Worker> = (0..workers).map(begin).collect();
    for (at, worker) in all.iter_mut().enumerate() {
        let depth = if at < 8 { (at + 1) * count / 8 } else { 500 };
        worker.stores(1, &tokens[..depth]);
    }
    let chain = Chain::of(&tokens, BLOCK_TOKENS, baton_core::kv::seed(None, None));
    best(|| drop(black_box(index.find(&chain))))
}

fn blocks(text: &str) -> Arc<Blocks> {
    let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
    let body = Envelope::parse(body.into(), &BodyLimits::default()).unwrap();
    Ask::read(Api::Completions, &body).unwrap().prompt.blocks(16)
}

fn letters(dice: &mut Dice, count: usize) -> String {
    (0..count).map(|_| char::from(b'a' + dice.below(26) as u8)).collect()
}

fn best(mut run: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let began = Instant::now();
        (0..20).for_each(|_| run());
        best = best.min(began.elapsed() / 20);
    }
    best
}

/// Resident memory in bytes; 0 where the system does not say.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
