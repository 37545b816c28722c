//! Does the index of prompts stay within its budget, and how long does it take?
//! `cargo run --release -p baton-core --example prefix_memory`
//!
//! 200,000 distinct prompts of 4,000 characters over four workers, two of which are replaced half-way, with a
//! budget of 64 MiB. Then look-ups of long prompts in fleets of any size.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::prefix::{Holder, PrefixIndex};
use baton_core::prompt::Blocks;
use baton_core::time;

const BUDGET: usize = 64 << 20;
const PROMPTS: usize = 200_000;

fn main() {
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
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    println!(
        "budget {:.0} MiB, in use {:.1} MiB (recount {:.1}), resident memory grew by {:.1} MiB",
        mib(BUDGET),
        mib(index.bytes()),
        mib(index.recount()),
        mib(resident().saturating_sub(start)),
    );
    let tenth = PROMPTS / 10;
    for (name, part) in [("first", &mut times[..tenth].to_vec()), ("last", &mut times[9 * tenth..].to_vec())]
    {
        part.sort_unstable();
        println!("{name} tenth: median {:?}, p99 {:?}", part[tenth / 2], part[tenth * 99 / 100]);
    }
    drop(index);
    for characters in [4_000, 128_000, 800_000] {
        for workers in [4, 64, 512, 2048] {
            look_up(characters, workers);
        }
    }
}

/// A conversation that eight workers hold to different depths, behind an instruction that all hold.
fn look_up(characters: usize, workers: u32) {
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
    let hash = best(|| drop(black_box(self::blocks(&text))));
    let find = best(|| drop(black_box(index.find(&blocks))));
    println!(
        "{characters:>7} characters, {workers:>4} workers: look-up {find:>9.2?}, parsing and hashing {hash:>9.2?}"
    );
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
