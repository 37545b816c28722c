//! What a worker says of its load, whatever it says: numbers that are some, and the same wherever the page is cut.

use baton_core::gauges::page::Page;
use baton_core::gauges::{Reading, loads};
use proptest::prelude::*;

fn page<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Page {
    let mut page = Page::default();
    pieces.into_iter().for_each(|piece| page.feed(piece));
    page.end();
    page
}

fn numbers(said: &Reading) -> [Option<f64>; 12] {
    [
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
    ]
}

fn sane(said: &Reading) -> bool {
    let share = |share: Option<f64>| share.is_none_or(|share| share <= 1.0);
    numbers(said).iter().flatten().all(|n| n.is_finite() && *n >= 0.0)
        && share(said.kv_usage)
        && share(said.host_kv_usage)
}

/// Lines that are nearly right.
fn line() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:request_success_total",
        "vllm:generation_tokens_total",
        "sglang:token_usage",
        "sglang:num_queue_reqs",
        "trtllm_kv_cache_utilization",
        "vllm:cache_config_info",
        "# TYPE x gauge",
    ]);
    let labels = prop::sample::select(vec![
        "",
        "{}",
        "{engine=\"0\"}",
        "{dp_rank=\"1\",tp_rank=\"3\"}",
        "{engine=\"x\"}",
        "{a=\"\\\"}\",engine=\"1\"}",
        "{engine=\"0\"",
        "{,,}",
    ]);
    let value =
        prop::sample::select(vec!["1", "0.5", "1.7e308", "-1", "NaN", "+Inf", "7 1700000000", "", "x"]);
    let end = prop::sample::select(vec!["\n", "\r\n", "", "\n\n"]);
    (name, labels, value, end).prop_map(|(name, labels, value, end)| format!("{name}{labels} {value}{end}"))
}

proptest! {
    #[test]
    fn any_page_gives_numbers_and_cuts_do_not_matter(
        lines in prop::collection::vec(line(), 0..40),
        size in 1..64usize,
    ) {
        let text = lines.concat();
        let (whole, cut) = (page([text.as_bytes()]), page(text.as_bytes().chunks(size)));
        for rank in [None, Some(0), Some(1), Some(9)] {
            prop_assert!(sane(&whole.reading(rank)), "{:?}", whole.reading(rank));
            prop_assert_eq!(whole.reading(rank), cut.reading(rank));
        }
    }

    #[test]
    fn any_bytes_are_a_page_and_an_account(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(sane(&page([&bytes[..]]).reading(None)));
        prop_assert!(sane(&loads::read(&bytes).reading(None)));
    }

    #[test]
    fn an_account_gives_numbers(n in any::<f64>(), waiting in any::<f64>(), usage in any::<f64>()) {
        let json = format!(
            r#"{{"loads":[{{"dp_rank":0,"num_running_reqs":{n:e},"num_waiting_reqs":{waiting:e},"token_usage":{usage:e}}},
            {{"dp_rank":1,"num_reqs":{n:e},"num_waiting_reqs":{waiting:e}}}]}}"#
        );
        prop_assert!(sane(&loads::read(json.as_bytes()).reading(None)));
        prop_assert!(sane(&loads::read(json.as_bytes()).reading(Some(1))));
    }
}
