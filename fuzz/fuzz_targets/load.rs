//! Any bytes as what a worker says of its load, as a page of metrics and as a list of loads: it does not matter where a
//! page is cut, every number that is kept is one, and shares are shares.
//!
//! Input: one byte for the length of the pieces, then the page.

#![no_main]

use baton_core::gauges::page::Page;
use baton_core::gauges::{Gauges, Reading, loads};
use libfuzzer_sys::fuzz_target;

fn page<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Page {
    let mut page = Page::default();
    pieces.into_iter().for_each(|piece| page.feed(piece));
    page.end();
    page
}

fn check(said: &Reading) {
    let numbers = [
        said.running,
        said.waiting,
        said.prefill_prealloc,
        said.decode_prealloc,
        said.throughput,
        said.kv_usage,
        said.host_kv_usage,
        said.prefill_time_sum_s,
        said.prefill_time_count,
        said.prompt_tokens,
        said.answer_tokens,
        said.requests,
        said.queue.mean_s(),
        said.prefill_s(),
        said.decode_s(),
        said.utilization,
        said.busy,
        said.busy_seconds,
    ];
    assert!(numbers.iter().flatten().all(|n| n.is_finite() && *n >= 0.0), "{said:?}");
    let shares = [said.kv_usage, said.host_kv_usage, said.utilization, said.busy];
    assert!(shares.iter().flatten().all(|share| *share <= 1.0), "{said:?}");
    let gauges = Gauges::default();
    gauges.show(said);
    assert_eq!(gauges.kv_usage.get(), said.kv_usage);
}

fuzz_target!(|input: &[u8]| {
    let [size, text @ ..] = input else { return };
    let (whole, cut) = (page([text]), page(text.chunks(usize::from(*size).max(1))));
    let told = loads::read(text);
    for rank in [None, Some(0), Some(1), Some(u32::MAX)] {
        assert_eq!(cut.reading(rank), whole.reading(rank));
        check(&whole.reading(rank));
        check(&told.reading(rank));
    }
});
