//! A worker's metrics as Prometheus text, read line by line as the bytes come.
//!
//! The page is foreign: it may be of any length, cut anywhere, or no page of metrics at all. What is kept of it is
//! bounded by a line and a few numbers for each data-parallel rank; what cannot be read is passed over, because a
//! page is full of lines that are of no use here.
//!
//! Families are known by their names, whichever engine they come from (vLLM 0.32, SGLang 0.5.23, TensorRT-LLM 1.3;
//! the ones that engines had under an older name stand beside them). A gauge that is shown by several ranks of one
//! tensor-parallel group is the same gauge: the largest counts. Ranks of data parallelism are engines of their own
//! with queues of their own: what they count is added up, and what is a share is their mean.

use smallvec::SmallVec;

use super::{Reading, Timed, usable};

/// Longest line that is looked at, in bytes. Metrics that are read here have a few short labels.
pub const LINE_MAX_BYTES: usize = 4096;

/// Most data-parallel ranks of one page that are told apart; further ones are left out.
pub const RANKS_MAX: usize = 256;

/// What a sample is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Running,
    Waiting,
    PrefillPrealloc,
    DecodePrealloc,
    Throughput,
    KvUsage,
    HostKvUsage,
    PrefillSum,
    PrefillCount,
    PromptTokens,
    AnswerTokens,
    QueueSum,
    QueueCount,
    DecodeSum,
    DecodeCount,
    FirstTokenSum,
    FirstTokenCount,
    AnsweredSum,
    AnsweredCount,
    Utilization,
    Busy,
    BusySeconds,
    Requests,
}

/// How many kinds there are.
const KINDS: usize = What::Requests as usize + 1;

/// Names without the sample's suffix, in the order of their bytes.
const FAMILIES: [(&str, What); 56] = [
    ("engine_utilization", What::Utilization),
    ("gpu_busy_time_ratio", What::Busy),
    ("sglang:e2e_request_latency_seconds_count", What::AnsweredCount),
    ("sglang:e2e_request_latency_seconds_sum", What::AnsweredSum),
    ("sglang:gen_throughput", What::Throughput),
    ("sglang:generation_tokens_total", What::AnswerTokens),
    ("sglang:gpu_execution_seconds_total", What::BusySeconds),
    ("sglang:num_decode_prealloc_queue_reqs", What::DecodePrealloc),
    ("sglang:num_prefill_bootstrap_queue_reqs", What::PrefillPrealloc),
    ("sglang:num_prefill_prealloc_queue_reqs", What::PrefillPrealloc),
    ("sglang:num_queue_reqs", What::Waiting),
    ("sglang:num_requests_total", What::Requests),
    ("sglang:num_running_reqs", What::Running),
    ("sglang:prompt_tokens_total", What::PromptTokens),
    ("sglang:queue_time_seconds_count", What::QueueCount),
    ("sglang:queue_time_seconds_sum", What::QueueSum),
    ("sglang:time_to_first_token_seconds_count", What::FirstTokenCount),
    ("sglang:time_to_first_token_seconds_sum", What::FirstTokenSum),
    ("sglang:token_usage", What::KvUsage),
    ("sglang:utilization", What::Utilization),
    ("trtllm_e2e_request_latency_seconds_count", What::AnsweredCount),
    ("trtllm_e2e_request_latency_seconds_sum", What::AnsweredSum),
    ("trtllm_generation_tokens_total", What::AnswerTokens),
    ("trtllm_kv_cache_utilization", What::KvUsage),
    ("trtllm_num_requests_running", What::Running),
    ("trtllm_num_requests_waiting", What::Waiting),
    ("trtllm_prompt_tokens_total", What::PromptTokens),
    ("trtllm_request_decode_time_seconds_count", What::DecodeCount),
    ("trtllm_request_decode_time_seconds_sum", What::DecodeSum),
    ("trtllm_request_prefill_time_seconds_count", What::PrefillCount),
    ("trtllm_request_prefill_time_seconds_sum", What::PrefillSum),
    ("trtllm_request_queue_time_seconds_count", What::QueueCount),
    ("trtllm_request_queue_time_seconds_sum", What::QueueSum),
    ("trtllm_request_success_total", What::Requests),
    ("trtllm_time_to_first_token_seconds_count", What::FirstTokenCount),
    ("trtllm_time_to_first_token_seconds_sum", What::FirstTokenSum),
    ("vllm:avg_generation_throughput_toks_per_s", What::Throughput),
    ("vllm:cpu_cache_usage_perc", What::HostKvUsage),
    ("vllm:e2e_request_latency_seconds_count", What::AnsweredCount),
    ("vllm:e2e_request_latency_seconds_sum", What::AnsweredSum),
    ("vllm:generation_tokens", What::AnswerTokens),
    ("vllm:generation_tokens_total", What::AnswerTokens),
    ("vllm:gpu_cache_usage_perc", What::KvUsage),
    ("vllm:kv_cache_usage_perc", What::KvUsage),
    ("vllm:num_requests_running", What::Running),
    ("vllm:num_requests_waiting", What::Waiting),
    ("vllm:prompt_tokens_total", What::PromptTokens),
    ("vllm:request_decode_time_seconds_count", What::DecodeCount),
    ("vllm:request_decode_time_seconds_sum", What::DecodeSum),
    ("vllm:request_prefill_time_seconds_count", What::PrefillCount),
    ("vllm:request_prefill_time_seconds_sum", What::PrefillSum),
    ("vllm:request_queue_time_seconds_count", What::QueueCount),
    ("vllm:request_queue_time_seconds_sum", What::QueueSum),
    ("vllm:request_success_total", What::Requests),
    ("vllm:time_to_first_token_seconds_count", What::FirstTokenCount),
    ("vllm:time_to_first_token_seconds_sum", What::FirstTokenSum),
];

impl What {
    fn of(name: &str) -> Option<What> {
        let at = FAMILIES.binary_search_by(|(known, _)| (*known).cmp(name)).ok()?;
        Some(FAMILIES[at].1)
    }

    /// Grows for ever: samples of one rank with different labels are parts of it.
    fn counts(self) -> bool {
        !self.is_share()
            && !matches!(
                self,
                What::Running
                    | What::Waiting
                    | What::PrefillPrealloc
                    | What::DecodePrealloc
                    | What::Throughput
            )
    }

    fn is_share(self) -> bool {
        matches!(self, What::KvUsage | What::HostKvUsage | What::Utilization | What::Busy)
    }
}

/// What one rank showed. `None`: samples that name no rank.
#[derive(Clone, Debug)]
struct Rank {
    id: Option<u32>,
    values: [Option<f64>; KINDS],
}

/// A page as far as it was read.
#[derive(Clone, Debug, Default)]
pub struct Page {
    ranks: SmallVec<[Rank; 2]>,
    /// The line that has begun.
    line: Vec<u8>,
    /// It is too long: the rest of it is passed over.
    skipping: bool,
}

impl Page {
    /// The next piece of the page.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (head, rest) = bytes.split_at(end);
            self.line_ends(head);
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.hold(bytes);
    }

    /// The page is over, whether or not its last line was.
    pub fn end(&mut self) {
        self.line_ends(&[]);
    }

    fn hold(&mut self, bytes: &[u8]) {
        if self.skipping || self.line.len() + bytes.len() > LINE_MAX_BYTES {
            self.skipping = true;
            self.line.clear();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn line_ends(&mut self, tail: &[u8]) {
        if self.line.is_empty() && !self.skipping && tail.len() <= LINE_MAX_BYTES {
            self.read(tail);
            return;
        }
        self.hold(tail);
        let line = std::mem::take(&mut self.line);
        if !std::mem::take(&mut self.skipping) {
            self.read(&line);
        }
        self.line = line;
        self.line.clear();
    }

    fn read(&mut self, line: &[u8]) {
        if let Some((what, rank, value)) = sample(line) {
            self.add(what, rank, value);
        }
    }

    fn add(&mut self, what: What, id: Option<u32>, value: f64) {
        let at = match self.ranks.iter().position(|rank| rank.id == id) {
            Some(at) => at,
            None if self.ranks.len() < RANKS_MAX => {
                self.ranks.push(Rank { id, values: [None; KINDS] });
                self.ranks.len() - 1
            }
            None => return,
        };
        let slot = &mut self.ranks[at].values[what as usize];
        let value = if what.is_share() { value.min(1.0) } else { value };
        *slot = Some(match *slot {
            Some(before) if what.counts() => (before + value).min(f64::MAX),
            Some(before) => before.max(value),
            None => value,
        });
    }

    /// What was said of one rank, or of the whole engine. What is told for the engine as a whole counts for each
    /// rank that does not tell it itself.
    pub fn reading(&self, rank: Option<u32>) -> Reading {
        let of = |what: What| match rank {
            None => self.whole(what),
            Some(_) => self.told(rank, what).or_else(|| self.told(None, what)),
        };
        Reading {
            running: of(What::Running),
            waiting: of(What::Waiting),
            prefill_prealloc: of(What::PrefillPrealloc),
            decode_prealloc: of(What::DecodePrealloc),
            throughput: of(What::Throughput),
            kv_usage: of(What::KvUsage),
            host_kv_usage: of(What::HostKvUsage),
            prefill_time_sum_s: of(What::PrefillSum),
            prefill_time_count: of(What::PrefillCount),
            prompt_tokens: of(What::PromptTokens),
            answer_tokens: of(What::AnswerTokens),
            requests: of(What::Requests),
            queue: Timed { sum_s: of(What::QueueSum), count: of(What::QueueCount) },
            decode: Timed { sum_s: of(What::DecodeSum), count: of(What::DecodeCount) },
            first_token: Timed { sum_s: of(What::FirstTokenSum), count: of(What::FirstTokenCount) },
            answered: Timed { sum_s: of(What::AnsweredSum), count: of(What::AnsweredCount) },
            utilization: of(What::Utilization),
            busy: of(What::Busy),
            busy_seconds: of(What::BusySeconds),
        }
    }

    fn told(&self, rank: Option<u32>, what: What) -> Option<f64> {
        self.ranks.iter().find(|r| r.id == rank)?.values[what as usize]
    }

    fn whole(&self, what: What) -> Option<f64> {
        let told = || self.ranks.iter().filter_map(|rank| rank.values[what as usize]);
        let n = told().count();
        let sum: f64 = told().sum();
        let whole = if what.is_share() { sum / n as f64 } else { sum };
        (n > 0 && whole.is_finite()).then_some(whole)
    }

    /// One rank's numbers from elsewhere than a page.
    pub(super) fn tell(&mut self, rank: Option<u32>, said: &super::loads::Load) {
        for (what, value) in [
            (What::Running, said.running),
            (What::Waiting, said.waiting),
            (What::PrefillPrealloc, said.prefill_prealloc),
            (What::DecodePrealloc, said.decode_prealloc),
            (What::Throughput, said.throughput),
            (What::KvUsage, said.kv_usage),
            (What::Utilization, said.utilization),
        ] {
            if let Some(value) = value.and_then(usable) {
                self.add(what, rank, value);
            }
        }
    }
}

/// A line that says something: what, of which rank, and how much.
fn sample(line: &[u8]) -> Option<(What, Option<u32>, f64)> {
    let line = std::str::from_utf8(line).ok()?.trim();
    let name_ends = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_ends);
    let what = What::of(name)?;
    let (rank, rest) = match rest.strip_prefix('{') {
        Some(labels) => labelled(labels)?,
        None => (None, rest),
    };
    // A time may follow the value.
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    usable(value).map(|value| (what, rank, value))
}

/// The data-parallel rank that labels name, and what follows them. `None`: they do not end.
fn labelled(mut text: &str) -> Option<(Option<u32>, &str)> {
    let mut rank = None;
    loop {
        text = text.trim_start_matches([' ', ',', '\t']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((rank, rest));
        }
        let (key, rest) = text.split_once('=')?;
        let rest = rest.trim_start().strip_prefix('"')?;
        let end = quoted(rest)?;
        let (value, rest) = rest.split_at(end);
        // vLLM calls it the engine's index.
        if matches!(key.trim(), "dp_rank" | "engine") {
            rank = value.parse().ok().or(rank);
        }
        text = rest.strip_prefix('"')?;
    }
}

/// Where a quoted text ends; a backslash takes the meaning from what follows it.
fn quoted(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        let mut page = Page::default();
        page.feed(text.as_bytes());
        page.end();
        page
    }

    #[test]
    fn families_are_in_order_so_that_they_are_found() {
        assert!(FAMILIES.windows(2).all(|two| two[0].0 < two[1].0));
        assert!(FAMILIES.iter().all(|(name, what)| What::of(name) == Some(*what)));
    }

    #[test]
    fn the_families_of_each_engine() {
        let vllm = page(
            "# HELP vllm:num_requests_running Number of requests.\n# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
             vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
             vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n\
             vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 1.2e+03\n\
             vllm:prompt_tokens_total{engine=\"0\"} 9000\n\
             vllm:request_success_total{engine=\"0\",finished_reason=\"stop\"} 4\n\
             vllm:request_success_total{engine=\"0\",finished_reason=\"length\"} 2\n\
             vllm:request_prefill_time_seconds_bucket{le=\"0.3\",engine=\"0\"} 6\n\
             vllm:request_prefill_time_seconds_count{engine=\"0\"} 6\n\
             vllm:request_prefill_time_seconds_sum{engine=\"0\"} 0.6 1712345678\n",
        );
        let whole = Reading {
            running: Some(3.0),
            waiting: Some(2.0),
            kv_usage: Some(0.25),
            answer_tokens: Some(1200.0),
            prompt_tokens: Some(9000.0),
            requests: Some(6.0),
            prefill_time_count: Some(6.0),
            prefill_time_sum_s: Some(0.6),
            ..Reading::default()
        };
        assert_eq!(vllm.reading(None), whole);
        assert_eq!(vllm.reading(Some(0)), whole);
        assert!(vllm.reading(Some(1)).is_empty());
        let sglang = page(
            "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\"} 1\nsglang:num_queue_reqs 4\n\
             sglang:num_prefill_prealloc_queue_reqs 5\nsglang:num_decode_prealloc_queue_reqs 6\n\
             sglang:token_usage 0.5\nsglang:gen_throughput 70.5",
        );
        let said = sglang.reading(None);
        assert_eq!((said.running, said.waiting, said.throughput), (Some(1.0), Some(4.0), Some(70.5)));
        assert_eq!((said.prefill_prealloc, said.decode_prealloc), (Some(5.0), Some(6.0)));
        let trt = page("trtllm_kv_cache_utilization 0.75\ntrtllm_num_requests_waiting{a=\"b\"} 7\n");
        assert_eq!((trt.reading(None).kv_usage, trt.reading(None).waiting), (Some(0.75), Some(7.0)));
    }

    #[test]
    fn times_of_requests_and_how_busy_an_engine_is() {
        let vllm = page(
            "vllm:request_queue_time_seconds_sum{engine=\"0\"} 2\nvllm:request_queue_time_seconds_count 4\n\
             vllm:request_prefill_time_seconds_sum 8\nvllm:request_prefill_time_seconds_count 4\n\
             vllm:request_decode_time_seconds_sum 12\nvllm:request_decode_time_seconds_count 4\n\
             vllm:time_to_first_token_seconds_sum 99\nvllm:time_to_first_token_seconds_count 1\n\
             gpu_busy_time_ratio 0.25\nengine_utilization 1.5",
        );
        let said = vllm.reading(None);
        assert_eq!(
            (said.queue.mean_s(), said.prefill_s(), said.decode_s()),
            (Some(0.5), Some(2.0), Some(3.0))
        );
        assert_eq!((said.busy, said.utilization), (Some(0.25), Some(1.0)));
        // What it does not say follows from the times that it says.
        let sglang = page(
            "sglang:queue_time_seconds_sum 2\nsglang:queue_time_seconds_count 4\n\
             sglang:time_to_first_token_seconds_sum 6\nsglang:time_to_first_token_seconds_count 4\n\
             sglang:e2e_request_latency_seconds_sum{tp_rank=\"0\"} 20\n\
             sglang:e2e_request_latency_seconds_count{tp_rank=\"0\"} 4\n\
             sglang:gpu_execution_seconds_total{category=\"forward_decode\"} 7\n\
             sglang:gpu_execution_seconds_total{category=\"forward_extend\"} 2",
        );
        let said = sglang.reading(None);
        assert_eq!(
            (said.queue.mean_s(), said.prefill_s(), said.decode_s()),
            (Some(0.5), Some(1.0), Some(3.5))
        );
        assert_eq!((said.busy_seconds, said.busy), (Some(9.0), None));
        let trt =
            page("trtllm_time_to_first_token_seconds_sum 1\ntrtllm_time_to_first_token_seconds_count 0");
        assert_eq!((trt.reading(None).prefill_s(), trt.reading(None).decode_s()), (None, None));
    }

    #[test]
    fn ranks_of_one_group_say_the_same_and_ranks_beside_each_other_do_not() {
        let ranks = page(
            "sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"0\"} 3\n\
             sglang:num_running_reqs{tp_rank=\"1\",dp_rank=\"0\"} 3\n\
             sglang:num_running_reqs{tp_rank=\"2\",dp_rank=\"1\"} 1\n\
             sglang:token_usage{tp_rank=\"0\",dp_rank=\"0\"} 0.5\n\
             sglang:token_usage{tp_rank=\"2\",dp_rank=\"1\"} 0.1\n\
             sglang:num_requests_total 8\n",
        );
        let whole = ranks.reading(None);
        assert_eq!((whole.running, whole.kv_usage, whole.requests), (Some(4.0), Some(0.3), Some(8.0)));
        let second = ranks.reading(Some(1));
        assert_eq!((second.running, second.kv_usage, second.requests), (Some(1.0), Some(0.1), Some(8.0)));
    }

    #[test]
    fn what_cannot_be_read_is_passed_over() {
        for line in [
            "vllm:num_requests_running NaN",
            "vllm:num_requests_running +Inf",
            "vllm:num_requests_running -1",
            "vllm:num_requests_running",
            "vllm:num_requests_running{engine=\"0} 1",
            "vllm:num_requests_running{engine} 1",
            "vllm:num_requests_running{engine=\"0\" 1",
            "vllm:num_requests_runningx 1",
            "[{\"a\": 1}]",
            "\u{0}\u{1}",
        ] {
            assert!(page(line).reading(None).is_empty(), "{line:?}");
        }
        let long = format!("vllm:num_requests_running{{a=\"{}\"}} 1\n", "x".repeat(LINE_MAX_BYTES));
        let after = page(&format!("{long}vllm:num_requests_waiting{{a=\"\\\"}}\"}} 2\n"));
        assert_eq!((after.reading(None).running, after.reading(None).waiting), (None, Some(2.0)));
        assert_eq!(page("vllm:kv_cache_usage_perc 55").reading(None).kv_usage, Some(1.0));
    }

    #[test]
    fn it_does_not_matter_where_the_pieces_are_cut() {
        let text =
            "vllm:num_requests_running{engine=\"1\"} 3\r\n# x\n\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5";
        let whole = page(text).reading(None);
        assert_eq!((whole.running, whole.kv_usage), (Some(3.0), Some(0.5)));
        for size in 1..text.len() {
            let mut pieces = Page::default();
            text.as_bytes().chunks(size).for_each(|piece| pieces.feed(piece));
            pieces.end();
            assert_eq!(pieces.reading(None), whole, "pieces of {size}");
        }
    }

    #[test]
    fn ranks_are_bounded() {
        let mut all = Page::default();
        for rank in 0..RANKS_MAX + 10 {
            all.feed(format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n").as_bytes());
        }
        assert_eq!(all.reading(None).running, Some(RANKS_MAX as f64));
    }
}
