//! The table of metric families: every series that Baton exports has its row here and nowhere else.
//!
//! Names, types and labels of `smg_` families are SMG's, so that its dashboards and alerts keep working; where Baton
//! measures something better under the same name, the help text says so. `baton_` families are those that SMG lacks.

use prometheus::Registry;
use prometheus::proto::MetricFamily;

use super::family::{BadFamily, Buckets, Counters, Gauges, Histograms, Row, Totals, recorded, row, scraped};

recorded! {
    /// Requests answered, inference or not.
    http_requests: Counters "smg_http_requests_total" [method, path], "requests", Smg;
    /// Answers by status; 499 for a client that left before one. Empty error_code: no error.
    http_responses: Counters "smg_http_responses_total" [path, status_code, error_code], "answers", Smg;
    /// From a request's receipt to its last byte.
    http_seconds: Histograms "smg_http_request_duration_seconds" [method, path], "seconds", Smg;

    /// Inference requests, each once however often it was tried.
    router_requests: Counters "smg_router_requests_total" [router_type, backend_type, connection_mode, model, endpoint, streaming], "requests", Smg;
    /// From an inference request's receipt to its last byte.
    router_seconds: Histograms "smg_router_request_duration_seconds" [router_type, backend_type, connection_mode, model, endpoint, streaming], "seconds", Smg;
    /// Inference requests answered with an error or cut off.
    router_errors: Counters "smg_router_request_errors_total" [router_type, backend_type, connection_mode, model, endpoint, streaming, error_type], "requests", Smg;
    /// Streamed answers: from the answering leg's dispatch to its first body byte. Without the prefill leg; see smg_pd_ttft_seconds.
    router_ttft: Histograms "smg_router_ttft_seconds" [router_type, backend_type, model, endpoint], "seconds", Smg;
    /// Streamed answers of known length: mean time per output token after the first.
    router_tpot: Histograms "smg_router_tpot_seconds" [router_type, backend_type, model, endpoint], "seconds", Smg;
    /// Tokens as the engines counted them, where their answer says so.
    router_tokens: Counters "smg_router_tokens_total" [router_type, backend_type, model, endpoint, token_type], "tokens", Smg;
    /// Reused connections that died before any response byte: what was not written went out on another, else the attempt began anew, with fresh ids.
    resends: Counters "smg_router_upstream_send_retries_total" [router_type], "legs", Smg;

    /// From the prefill leg's dispatch to the decode's first body byte: what the client waits. SMG over HTTP stops at the decode's head.
    pd_ttft: Histograms "smg_pd_ttft_seconds" [backend_type, model, runtime], "seconds", SmgPd;
    /// From the decode leg's dispatch to its first body byte.
    pd_decode_ttft: Histograms "smg_pd_decode_ttft_seconds" [backend_type, model, runtime], "seconds", Smg;
    /// From the prefill leg's dispatch to its answer; to its head where both legs run at once.
    pd_prefill: Histograms "smg_pd_prefill_duration_seconds" [backend_type, model, runtime], "seconds", SmgPd;
    /// Prefill first: from the prefill's answer to the decode leg's dispatch.
    pd_kv_transfer: Histograms "smg_pd_kv_transfer_duration_seconds" [backend_type, model, runtime], "seconds", SmgPd;
    /// vLLM dispatches by the connector that was told to hand the KV over.
    pd_connector_mode: Counters "smg_pd_kv_connector_mode_total" [mode], "requests", SmgPd;
    /// Hand-offs lost: the prefill returned no parameters where the connector must, or unusable ones.
    pd_kv_failures: Counters "smg_pd_kv_transfer_failures_total" [], "requests", SmgPd;
    /// Always 0: a body that cannot be edited is refused before workers are chosen.
    pd_bootstrap_failures: Counters "smg_pd_bootstrap_failures_total" [], "requests", SmgPd;

    /// Requests that were placed after they had waited for a decode worker's window.
    admission_waits: Counters "smg_pd_admission_waits_total" [], "requests", SmgPd;
    /// Requests shed because every decode worker's window stayed full.
    admission_sheds: Counters "smg_pd_admission_sheds_total" [], "requests", SmgPd;

    /// Workers picked, once for each leg and attempt.
    worker_selections: Counters "smg_worker_selection_total" [worker_type, connection_mode, model, policy], "picks", SmgPd;
    /// Legs placed on the worker, attempts that failed included.
    worker_requests: Counters "smg_worker_requests_total" [worker, model], "legs", Smg;
    /// Legs that failed.
    worker_errors: Counters "smg_worker_errors_total" [worker_type, connection_mode, error_type], "legs", Smg;
    /// Attempts after the first, by the leg that had failed.
    retries: Counters "smg_worker_retries_total" [worker_type, endpoint], "attempts", Smg;
    /// Requests that failed at their last allowed attempt.
    retries_exhausted: Counters "smg_worker_retries_exhausted_total" [worker_type, endpoint], "requests", Smg;
    /// Wait before an attempt; attempt counts the retries, from 1, and ends at 10+.
    retry_backoff: Histograms "smg_worker_retry_backoff_seconds" [attempt], "seconds", Smg;

    /// Requests that were not let in: queue_full, or queue_timeout after waiting.
    queue_rejected: Counters "smg_admission_queue_rejected_total" [reason], "requests", Smg;

    /// Inference requests that failed; status is pd_decode_watchdog, pd_prefill_failure or else the error's code, status_code 504 also for a stream that the watchdog cut.
    model_failures: Counters "gateway_request_model_fail_total" [model, status, status_code], "requests", Aibrix;
    /// Workers that owed output and fell silent, before the first piece of the answer or between two.
    decode_watchdog: Counters "gateway_pd_decode_watchdog_total" [phase], "requests", Aibrix;

    /// Prefill workers that AIBrix's pd picked, once for each attempt.
    selected_prefill: Counters "pd_selected_prefill_pod_total" [namespace, pod, model, engine_type, roleset], "picks", Aibrix;
    /// Decode workers that AIBrix's pd picked, and workers that ran both phases for it.
    selected_decode: Counters "pd_selected_decode_pod_total" [namespace, pod, model, engine_type, roleset], "picks", Aibrix;

    /// Questions to decode engines to drop a request, after its prefill had failed in this way or the watchdog had barked; skipped_ results say why none was put.
    decode_aborts: Counters "gateway_pd_decode_abort_total" [result, prefill_failure_class], "questions", Aibrix;
    /// Prefill legs that failed, by how, before or after the client's answer had begun.
    prefill_failures: Counters "gateway_pd_prefill_failure_total" [class, stage], "legs", Aibrix;

    /// Requests for which adaptive bucket serving decided on the roleset.
    band_requests: Counters "pd_bucket_serve_band_total" [roleset], "requests", Aibrix;
    /// Their prompt tokens.
    band_tokens: Counters "pd_bucket_serve_prompt_tokens_total" [roleset], "tokens", Aibrix;

    /// Workers that a list brought in, by where it is kept; result is success or failed, the latter at each look.
    discovered: Counters "smg_discovery_registrations_total" [source, result], "workers", Smg;
    /// Workers that a list took out: removed from it, or changed so that they joined anew.
    undiscovered: Counters "smg_discovery_deregistrations_total" [source, reason], "workers", Smg;
    /// Time that one look's changes of the list of workers took.
    discovery_sync: Histograms "smg_discovery_sync_duration_seconds" [source], "seconds", Smg;
    /// Looks that brought no list: missing, unreadable, too_large, malformed, invalid.
    discovery_errors: Counters "smg_discovery_snapshot_errors_total" [source, reason], "looks", Smg;

    /// Requests that failed and were not tried again because the gateway's retries were used up.
    retries_refused: Counters "baton_retries_refused_total" [worker_type, endpoint], "requests", Baton;
    /// How exchanges ended: served, failed, cut, client_gone.
    exchanges: Counters "baton_exchanges_total" [outcome], "requests", Baton;
    /// What became of hand-offs, by the decode's engine and the connector, empty where there is none.
    handoffs: Counters "baton_handoffs_total" [runtime, mode, result], "requests", Baton;
    /// Hand-offs issued: KV that waits for a decode, or a room for both legs; one for each attempt that has one.
    handoffs_issued: Counters "baton_handoffs_issued_total" [], "hand-offs", Baton;
    /// Hand-offs that ended: consumed by a decode, released by a throw-away decode, expired by the engine's lease, aborted with both legs, or unknown where a decode failed that may have had it.
    handoffs_ended: Counters "baton_handoffs_ended_total" [fate], "hand-offs", Baton;
    /// Prompt tokens that the engine found in its prefix cache; part of token_type="input".
    cached_tokens: Counters "baton_cached_tokens_total" [model], "tokens", Baton;
    /// Requests whose prompt an engine was to be asked about (--tokenizer-path engine), by what came of it: counted; kept, from a moment ago; not asked as unaskable, busy or nobody; no_route, refused, late, failed, unusable.
    tokenize_questions: Counters "baton_tokenize_questions_total" [result], "requests", Baton;
    /// How long engines took to say what they make of a prompt, or not to.
    tokenize_seconds: Histograms "baton_tokenize_seconds" [], "seconds", Baton;
    /// Body bytes of requests.
    request_bytes: Counters "baton_request_bytes_total" [], "bytes", Baton;
    /// Body bytes of answers to clients.
    answer_bytes: Counters "baton_answer_bytes_total" [], "bytes", Baton;
    /// Legs read on in the background after their request ended, by how that ended.
    detached_ended: Counters "baton_detached_legs_ended_total" [result], "legs", Baton;
    /// Throw-away decodes that freed handed-over KV, by how they ended.
    releases: Counters "baton_releases_total" [result], "legs", Baton;
    /// Looks at the list of workers to be discovered; result is ok or failed.
    discovery_looks: Counters "baton_discovery_looks_total" [source, result], "looks", Baton;
    /// Tiny requests that were sent through a pair before it served, by what they showed: proved that KV moves, answered, degraded, failed, unchecked; or crowded, if the decode had no room for one.
    preflight_trials: Counters "baton_preflight_trials_total" [result], "trials", Baton;
}

scraped! {
    /// Legs in flight on the worker.
    requests_active: Gauges "smg_worker_requests_active" [worker], "legs", SmgPd;
    /// 1: ready. 0: not yet or not any more.
    health: Gauges "smg_worker_health" [worker], "", Smg;
    /// The worker's breaker: 0 closed, 1 open, 2 half-open.
    cb_state: Gauges "smg_worker_cb_state" [worker], "", Smg;
    /// Failures in a row as the breaker counts them.
    cb_failures: Gauges "smg_worker_cb_consecutive_failures" [worker], "legs", Smg;
    /// Successes in a row as the breaker counts them, since its last failure.
    cb_successes: Gauges "smg_worker_cb_consecutive_successes" [worker], "legs", Smg;
    /// Health checks by the worker's role; result is success or failure.
    health_checks: Totals "smg_worker_health_checks_total" [worker_type, result], "checks", Smg;
    /// Looks at workers' own metrics; result is success or failure.
    metric_looks: Totals "baton_worker_metrics_looks_total" [result], "looks", Baton;
    /// Sequences that the worker runs at once, as it says or as it was registered; 0: it says nothing and is not gated.
    admission_window: Gauges "smg_pd_admission_window" [worker], "sequences", Smg;
    /// Requests in the worker's batch, as it says itself; this and the next five with --engine-metrics.
    engine_running: Gauges "smg_engine_running_requests" [worker], "requests", Smg;
    /// Requests that wait for their turn there.
    engine_waiting: Gauges "smg_engine_waiting_requests" [worker], "requests", Smg;
    /// Share of KV memory in use, of its ranks the mean.
    engine_usage: Gauges "smg_engine_token_usage" [worker], "share", Smg;
    /// Tokens generated in a second.
    engine_throughput: Gauges "smg_engine_gen_throughput" [worker], "tokens per second", Smg;
    /// Requests that wait for memory in front of their prefill (SGLang).
    engine_prefill_queue: Gauges "smg_engine_pd_prefill_queue_reqs" [worker], "requests", Smg;
    /// Requests that wait for memory in front of their decode (SGLang).
    engine_decode_queue: Gauges "smg_engine_pd_decode_queue_reqs" [worker], "requests", Smg;
    /// Workers registered, by role and first model.
    pool_size: Gauges "smg_worker_pool_size" [worker_type, connection_mode, model], "workers", Smg;

    /// Workers there are that a list brought in.
    discovered_now: Gauges "smg_discovery_workers_discovered" [source], "workers", Smg;

    /// Requests let in and not yet at their last byte.
    admission_inflight: Gauges "smg_admission_inflight" [], "requests", Smg;
    /// Requests that wait to be let in.
    admission_queue: Gauges "smg_admission_queue_depth" [], "requests", Smg;
    /// Client connections open.
    connections: Gauges "smg_http_connections_active" [], "connections", Smg;
    /// Log lines dropped because their sink could not keep up.
    log_dropped: Gauges "smg_log_dropped_lines" [sink], "lines", Smg;

    /// Tokens of the prefills that the worker computes, as token_load and hybrid_cache_load charge them.
    ledger_active: Gauges "pd_token_load_active_tokens" [namespace, pod_name], "tokens", Aibrix;
    /// The same of those whose KV it holds until their decode is done.
    ledger_kv: Gauges "pd_token_load_kv_tokens" [namespace, pod_name], "tokens", Aibrix;
    /// Prompt tokens of the requests that the worker decodes, as the decode policy token_load charges them.
    ledger_decode: Gauges "pd_token_load_decode_tokens" [namespace, pod_name], "tokens", Aibrix;
    /// 1: the decode ledger is shared with other gateways. 0: Redis is away, only own charges count. This and the next three once decodes are scored by token_load with --redis-host.
    shared_up: Gauges "baton_shared_ledger_up" [], "", Baton;
    /// Other gateways alive, as of the last look.
    shared_instances: Gauges "baton_shared_ledger_instances" [], "gateways", Baton;
    /// Time since others' charges were last heard of; above 3 they do not count.
    shared_age: Gauges "baton_shared_ledger_age_seconds" [], "seconds", Baton;
    /// Failures of Redis by what was attempted: connect, write, look.
    shared_failures: Totals "baton_shared_ledger_failures_total" [attempt], "attempts", Baton;
    /// The longest prompt that the roleset is banded to.
    band_max: Gauges "pd_bucket_serve_band_max" [roleset], "tokens", Aibrix;

    /// Times that the worker's breaker changed its state.
    cb_transitions: Totals "baton_worker_cb_transitions_total" [worker], "changes", Baton;
    /// 1: what the pre-flight knows of a ready leg: waiting, proved, answered, degraded, failed, unchecked. A worker may be degraded with one partner and proved with another.
    preflight: Gauges "baton_worker_preflight" [worker, state], "", Baton;
    /// Workers that are well and held until their pre-flight has ended.
    held: Gauges "baton_workers_held" [], "workers", Baton;
    /// Legs that are read on in the background now.
    detached: Gauges "baton_detached_legs" [], "legs", Baton;
    /// Hand-offs issued that have not ended; 0 at rest.
    handoffs_out: Gauges "baton_handoffs_outstanding" [], "hand-offs", Baton;
    /// 1: a request could be served now, by a ready pair or a ready whole worker.
    ready: Gauges "baton_ready" [], "", Baton;
    /// Prefill and decode workers that may pair, ready or not.
    pairs: Gauges "baton_pairs" [], "pairs", Baton;
    /// When the list of workers to be discovered was last seen and good, in seconds since 1970.
    discovery_good: Gauges "baton_discovery_last_good_timestamp_seconds" [source], "seconds", Baton;
    /// Memory of what was sent where, for each leg whose policy remembers prompts.
    prefix_bytes: Gauges "baton_prefix_index_bytes" [leg], "bytes", Baton;
    /// Memory that it may take.
    prefix_budget: Gauges "baton_prefix_index_budget_bytes" [leg], "bytes", Baton;
    /// Runs of blocks forgotten because the memory was spent.
    prefix_evictions: Totals "baton_prefix_index_evictions_total" [leg], "runs", Baton;
    /// Memory of what workers told by KV events.
    kv_bytes: Gauges "baton_kv_index_bytes" [], "bytes", Baton;
    /// Memory that it may take; it grows with the workers that tell.
    kv_budget: Gauges "baton_kv_index_budget_bytes" [], "bytes", Baton;
    /// Distinct blocks that workers told of.
    kv_entries: Gauges "baton_kv_index_blocks" [], "blocks", Baton;
    /// Choices of cache_aware by what was known of the chosen worker: whole, partial, or none, which went by what had been sent there.
    kv_choices: Totals "baton_kv_choices_total" [known], "picks", Baton;
    /// Blocks that the worker holds, as its KV events say.
    kv_blocks: Gauges "baton_worker_kv_blocks" [worker], "blocks", Baton;
    /// What the worker's KV events are worth: 0 nothing, 1 what was stored since they are heard, 2 all is known.
    kv_trust: Gauges "baton_worker_kv_trust" [worker], "", Baton;
    /// Time since the worker's last batch of KV events.
    kv_age: Gauges "baton_worker_kv_event_age_seconds" [worker], "seconds", Baton;
    /// KV events heard: blocks stored, removed and without a known parent; caches cleared; events that do not count here.
    kv_events: Totals "baton_worker_kv_events_total" [worker, event], "events", Baton;
    /// What befell the worker's KV events: gap, replayed, restart, malformed, full, lost.
    kv_troubles: Totals "baton_worker_kv_troubles_total" [worker, trouble], "times", Baton;
    /// Always 1; the label has the version.
    build: Gauges "baton_build" [version], "", Baton;
}

/// All rows, in the order in which they are exported.
pub fn table() -> impl Iterator<Item = &'static Row> {
    Recorded::ROWS.iter().chain(Scraped::ROWS)
}
