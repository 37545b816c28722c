//! `/metrics`, under each engine's own names and labels.
//!
//! What a gateway or a test reads is there: queue, batch, KV use, prompt tokens by source, transfers, latencies. Names
//! that only the real engines' insides give a meaning to are left out.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::spec::{Connector, Dialect, Role};
use crate::engine::stats::Histogram;
use crate::serve::node::Node;
use crate::serve::server::Server;

/// Where the exposition of an engine is.
pub(crate) fn path(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Vllm | Dialect::Sglang => "/metrics",
        // Its `/metrics` is a list of iterations.
        Dialect::Trtllm => "/prometheus/metrics",
    }
}

/// The exposition of one engine.
pub(crate) fn write(server: &Arc<Server>, node: &Arc<Node>) -> String {
    let spec = &server.seat.spec;
    let refused = server.refused.load(Ordering::Relaxed);
    node.look_now(|engine, now| match spec.dialect {
        Dialect::Vllm => vllm(engine),
        Dialect::Sglang => sglang(engine, refused, now),
        Dialect::Trtllm => trtllm(engine),
    })
}

/// Writes samples that share their labels.
struct Page {
    out: String,
    labels: String,
}

impl Page {
    fn new(labels: String) -> Self {
        Self { out: String::with_capacity(16 * 1024), labels }
    }

    fn about(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let comma = if more.is_empty() { "" } else { "," };
        let _ = writeln!(self.out, "{name}{{{}{comma}{more}}} {value:?}", self.labels);
    }

    fn gauge(&mut self, name: &str, value: f64) {
        self.about(name, "gauge");
        self.sample(name, "", value);
    }

    /// One gauge or counter with a label that takes several values.
    fn each(&mut self, name: &str, kind: &str, label: &str, values: &[(&str, u64)]) {
        self.about(name, kind);
        for (value, count) in values {
            self.sample(name, &format!("{label}=\"{value}\""), float(*count));
        }
    }

    fn counter(&mut self, name: &str, value: u64) {
        self.about(name, "counter");
        self.sample(name, "", float(value));
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        self.about(name, "histogram");
        for (bound, count) in histogram.cumulative() {
            self.sample(&format!("{name}_bucket"), &format!("le=\"{bound:?}\""), float(count));
        }
        self.sample(&format!("{name}_bucket"), "le=\"+Inf\"", float(histogram.count()));
        self.sample(&format!("{name}_count"), "", float(histogram.count()));
        self.sample(&format!("{name}_sum"), "", histogram.sum());
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}

fn size(count: usize) -> u64 {
    count as u64
}

fn vllm(engine: &Engine) -> String {
    let spec = engine.spec();
    let mut page = Page::new(format!("engine=\"0\",model_name=\"{}\"", spec.model));
    vllm_gauges(&mut page, engine);
    vllm_tokens(&mut page, engine);
    let counters = engine.counters();
    let ended = counters.ended;
    page.each(
        "vllm:request_success_total",
        "counter",
        "finished_reason",
        &[
            ("stop", ended.stop),
            ("length", ended.length),
            // The engine does not count a client that left here.
            ("abort", 0),
            ("error", ended.error),
            ("repetition", 0),
        ],
    );
    page.counter("vllm:num_preemptions_total", counters.preempted);
    page.histogram("vllm:time_to_first_token_seconds", &counters.ttft);
    page.histogram("vllm:inter_token_latency_seconds", &counters.itl);
    page.histogram("vllm:request_time_per_output_token_seconds", &counters.tpot);
    page.histogram("vllm:e2e_request_latency_seconds", &counters.e2e);
    page.histogram("vllm:request_queue_time_seconds", &counters.queue);
    page.histogram("vllm:request_prefill_time_seconds", &counters.prefill);
    page.histogram("vllm:request_decode_time_seconds", &counters.decode);
    if spec.role != Role::Whole && spec.connector == Connector::Nixl {
        page.histogram("vllm:nixl_xfer_time_seconds", &counters.transfer);
        page.histogram("vllm:nixl_post_time_seconds", &counters.transfer);
        page.histogram("vllm:nixl_bytes_transferred", &counters.bytes);
        page.histogram("vllm:nixl_num_descriptors", &counters.descriptors);
        page.counter("vllm:nixl_num_failed_transfers_total", counters.failed_transfers);
        page.counter("vllm:nixl_num_failed_notifications_total", counters.failed_notifications);
        page.counter("vllm:nixl_num_kv_expired_reqs_total", counters.handoffs.expired);
        page.counter("vllm:nixl_num_notifications_after_expiry_total", counters.late_notices);
    }
    page.out
}

fn vllm_gauges(page: &mut Page, engine: &Engine) {
    let spec = engine.spec();
    let queues = engine.room_queues();
    let waiting = size(queues.waiting + queues.receiving);
    page.gauge("vllm:num_requests_running", float(size(engine.batched())));
    page.gauge("vllm:num_requests_waiting", float(waiting));
    page.each(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "reason",
        &[("capacity", size(queues.waiting)), ("deferred", size(queues.receiving))],
    );
    page.each(
        "vllm:num_requests_kv_fetch_by_stage",
        "gauge",
        "stage",
        &[("waiting_to_start", 0), ("in_progress", size(queues.receiving)), ("completed_waiting", 0)],
    );
    page.each(
        "vllm:engine_sleep_state",
        "gauge",
        "sleep_state",
        &[("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)],
    );
    page.gauge("vllm:kv_cache_usage_perc", engine.kv_usage());
    let config = format!(
        "block_size=\"{}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",kv_cache_size_tokens=\"{}\",\
         num_gpu_blocks=\"{}\"",
        spec.block_size,
        u64::from(spec.kv_blocks) * u64::from(spec.block_size),
        spec.kv_blocks
    );
    page.about("vllm:cache_config_info", "gauge");
    page.sample("vllm:cache_config_info", &config, 1.0);
    page.about("vllm:lora_requests_info", "gauge");
}

fn vllm_tokens(page: &mut Page, engine: &Engine) {
    let counters = engine.counters();
    let tokens = counters.tokens;
    page.counter("vllm:prefix_cache_queries_total", counters.prefix_queries);
    page.counter("vllm:prefix_cache_hits_total", tokens.cached);
    page.counter("vllm:external_prefix_cache_queries_total", counters.external_queries);
    page.counter("vllm:external_prefix_cache_hits_total", counters.external_hits);
    page.counter("vllm:prompt_tokens_total", tokens.computed + tokens.cached + tokens.transferred);
    page.each(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        "source",
        &[
            ("local_compute", tokens.computed),
            ("local_cache_hit", tokens.cached),
            ("external_kv_transfer", tokens.transferred),
        ],
    );
    page.each(
        "vllm:prompt_tokens_cached_by_source_total",
        "counter",
        "source",
        &[
            ("device", tokens.cached),
            ("host", 0),
            ("p2p", tokens.transferred),
            ("disk", 0),
            ("external_unspecified", 0),
        ],
    );
    page.counter("vllm:generation_tokens_total", tokens.generated);
}

fn sglang(engine: &Engine, refused: u64, now: Duration) -> String {
    let spec = engine.spec();
    let kind = match spec.role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Whole => "unified",
    };
    let own = format!("engine_type=\"{kind}\",model_name=\"{}\"", spec.model);
    let mut page = Page::new(format!("{own},pp_rank=\"0\",tp_rank=\"0\""));
    sglang_gauges(&mut page, engine, now);
    page.labels = own;
    let counters = engine.counters();
    let tokens = counters.tokens;
    page.counter("sglang:prompt_tokens_total", tokens.computed + tokens.cached + tokens.transferred);
    page.counter("sglang:generation_tokens_total", tokens.generated);
    page.counter("sglang:cached_tokens_total", tokens.cached);
    page.counter("sglang:num_requests_total", counters.accepted + refused);
    page.counter("sglang:num_aborted_requests_total", counters.ended.abort);
    page.counter("sglang:num_bootstrap_failed_reqs_total", counters.bootstrap_failed);
    page.counter("sglang:num_transfer_failed_reqs_total", counters.failed_transfers);
    page.histogram("sglang:time_to_first_token_seconds", &counters.ttft);
    page.histogram("sglang:inter_token_latency_seconds", &counters.itl);
    page.histogram("sglang:e2e_request_latency_seconds", &counters.e2e);
    page.histogram("sglang:queue_time_seconds", &counters.queue);
    if spec.role == Role::Prefill {
        page.histogram("sglang:kv_transfer_latency_ms", &counters.transfer.scaled(1000.0));
        page.histogram("sglang:kv_transfer_total_mb", &counters.bytes.scaled(1.0 / 1_048_576.0));
        page.histogram("sglang:kv_transfer_bootstrap_ms", &counters.queue.scaled(1000.0));
    }
    page.out
}

fn sglang_gauges(page: &mut Page, engine: &Engine, now: Duration) {
    let spec = engine.spec();
    let queues = engine.room_queues();
    let total = float(u64::from(spec.kv_blocks) * u64::from(spec.block_size));
    let prefill = spec.role == Role::Prefill;
    page.gauge("sglang:num_running_reqs", float(size(engine.batched())));
    page.gauge("sglang:num_queue_reqs", float(size(queues.waiting)));
    page.gauge("sglang:token_usage", engine.kv_usage());
    page.gauge("sglang:full_token_usage", engine.kv_usage());
    page.gauge("sglang:num_used_tokens", engine.kv_usage() * total);
    page.gauge("sglang:max_total_num_tokens", total);
    page.gauge("sglang:page_size", f64::from(spec.block_size));
    page.gauge("sglang:num_pages", f64::from(spec.kv_blocks));
    page.gauge("sglang:context_len", f64::from(spec.max_model_len));
    page.gauge("sglang:gen_throughput", engine.counters().pace.rate(now));
    let tokens = engine.counters().tokens;
    let prompt = tokens.computed + tokens.cached + tokens.transferred;
    page.gauge("sglang:cache_hit_rate", float(tokens.cached) / float(prompt.max(1)));
    page.gauge("sglang:utilization", 0.0);
    page.gauge("sglang:num_prefill_bootstrap_queue_reqs", float(size(queues.meeting)));
    page.gauge("sglang:num_prefill_inflight_queue_reqs", float(size(queues.sending)));
    let prealloc = if prefill { 0 } else { queues.waiting };
    page.gauge("sglang:num_decode_prealloc_queue_reqs", float(size(prealloc)));
    page.gauge("sglang:num_decode_transfer_queue_reqs", float(size(queues.receiving)));
    let config = format!("page_size=\"{}\",num_pages=\"{}\"", spec.block_size, spec.kv_blocks);
    page.about("sglang:cache_config_info", "gauge");
    page.sample("sglang:cache_config_info", &config, 1.0);
}

fn trtllm(engine: &Engine) -> String {
    let spec = engine.spec();
    let mut page = Page::new(format!("engine_type=\"undefined\",model_name=\"{}\"", spec.model));
    let queues = engine.room_queues();
    let counters = engine.counters();
    page.gauge("trtllm_num_requests_running", float(size(engine.batched())));
    page.gauge("trtllm_num_requests_waiting", float(size(queues.waiting + queues.receiving)));
    page.gauge("trtllm_kv_cache_utilization", engine.kv_usage());
    page.gauge("trtllm_kv_cache_tokens_per_block", f64::from(spec.block_size));
    page.gauge("trtllm_kv_cache_max_blocks", f64::from(spec.kv_blocks));
    page.each(
        "trtllm_request_success_total",
        "counter",
        "finished_reason",
        &[("stop", counters.ended.stop), ("length", counters.ended.length)],
    );
    page.histogram("trtllm_time_to_first_token_seconds", &counters.ttft);
    page.histogram("trtllm_time_per_output_token_seconds", &counters.tpot);
    page.histogram("trtllm_e2e_request_latency_seconds", &counters.e2e);
    page.histogram("trtllm_request_queue_time_seconds", &counters.queue);
    page.out
}
