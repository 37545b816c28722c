//! How long a stream's side reader takes per event, for events that come one, or many, in a chunk.
//! `cargo run --release -p baton-core --example sse_speed`

use std::hint::black_box;
use std::time::{Duration, Instant};

use baton_core::sse::{Flavour, SseWatch, usage_of_answer};

const CHAT: &str = "data: {\"id\":\"chatcmpl-7f3a\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
    \"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\
    \"logprobs\":null,\"finish_reason\":null}]}\n\n";
const WITH_USAGE: &str = "data: {\"id\":\"chatcmpl-7f3a\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
    \"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\
    \"finish_reason\":null}],\"usage\":{\"prompt_tokens\":100,\"total_tokens\":120,\"completion_tokens\":20}}\n\n";
const GENERATE: &str = "data: {\"text\":\" word\",\"output_ids\":[345],\"meta_info\":{\"id\":\"r-1\",\
    \"finish_reason\":null,\"prompt_tokens\":100,\"weight_version\":\"default\",\"completion_tokens\":20,\
    \"cached_tokens\":0}}\n\n";

fn main() {
    measure("chat", Flavour::OpenAi, CHAT, usize::MAX);
    measure("chat, cut every 100 bytes", Flavour::OpenAi, CHAT, 100);
    measure("chat, each with usage", Flavour::OpenAi, WITH_USAGE, usize::MAX);
    measure("/generate", Flavour::Generate, GENERATE, usize::MAX);
    let answer = format!(
        "{{\"choices\":[{{\"message\":{{\"content\":\"{}\"}}}}],\"usage\":{{\"prompt_tokens\":1}}}}",
        "long ".repeat(13_000)
    );
    let took = best(1000, || {
        black_box(usage_of_answer(black_box(answer.as_bytes())));
    });
    println!("usage of a plain answer of {} bytes: {took:.2?}", answer.len());
}

fn measure(name: &str, flavour: Flavour, event: &str, cut: usize) {
    for events in [1, 1000] {
        let chunk = event.repeat(events);
        let mut watch = SseWatch::new(flavour);
        let took = best(10_000 / events as u32, || {
            for part in chunk.as_bytes().chunks(cut) {
                watch.feed(black_box(part));
            }
        });
        black_box(watch.usage());
        println!("{name:28} {events:>5} in a chunk: {:>9.2?} an event", took / events as u32);
    }
}

/// The best of several rounds: the least disturbed by whatever else the machine does.
fn best(runs: u32, mut run: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..50 {
        let start = Instant::now();
        (0..runs).for_each(|_| run());
        best = best.min(start.elapsed() / runs);
    }
    best
}
