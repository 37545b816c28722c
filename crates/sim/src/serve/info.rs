//! What an engine tells about itself, and the simulated engine's own admin calls under `/sim/`.

use std::sync::Arc;

use http::{Method, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::clock;
use crate::engine::spec::{Dialect, EngineSpec, Role};
use crate::serve::body::Body;
use crate::serve::fault::Fault;
use crate::serve::http::{read_body, respond};
use crate::serve::node::Node;
use crate::serve::refusal::{Refusal, Shape};
use crate::serve::server::{Seat, Server};
use crate::serve::{sglang, tokenize, trtllm, vllm};

/// Method, path and query.
type Line<'a> = (&'a Method, &'a str, Option<&'a str>);

/// The endpoints that do not generate.
pub(crate) async fn answer(
    server: &Arc<Server>,
    node: &Arc<Node>,
    line: Line<'_>,
    body: Incoming,
) -> Response<Body> {
    let seat = &server.seat;
    let (method, path, _) = line;
    match (seat.spec.dialect, method.as_str(), path) {
        (_, "GET", "/v1/models") => json_answer(&models(&seat.spec)),
        (Dialect::Trtllm, "GET", "/version") => json_answer(&json!({"version": trtllm::VERSION})),
        // Nothing is told of iterations.
        (Dialect::Trtllm, "GET", "/metrics") => json_answer(&json!([])),
        (Dialect::Trtllm, "GET", "/server_info") => json_answer(&context_info(seat)),
        (Dialect::Vllm, "GET", "/version") => json_answer(&json!({"version": vllm::VERSION})),
        (Dialect::Vllm, "GET", "/load") => {
            json_answer(&json!({"server_load": server.open.load(std::sync::atomic::Ordering::Relaxed)}))
        }
        (Dialect::Vllm, "POST", "/inference/v1/generate") => scale_out_disabled(),
        (Dialect::Vllm | Dialect::Sglang, "POST", "/tokenize")
        | (Dialect::Sglang, "POST", "/v1/tokenize") => tokenize::answer(&seat.spec, body).await,
        (Dialect::Sglang, "GET", "/server_info" | "/get_server_info") => {
            json_answer(&server_info(seat, node))
        }
        (Dialect::Sglang, "GET", "/model_info" | "/get_model_info") => json_answer(&model_info(&seat.spec)),
        (Dialect::Sglang, "GET", "/v1/loads") => json_answer(&loads(&seat.spec, node)),
        (Dialect::Sglang, "POST", "/abort_request") => abort_request(node, body).await,
        (Dialect::Sglang, "POST" | "GET", "/flush_cache") => {
            node.with(|engine, _| engine.flush_cache());
            respond(200, "text/plain; charset=utf-8", "Cache flushed.\n".into())
        }
        _ => respond(404, "application/json", r#"{"detail":"Not Found"}"#.into()),
    }
}

/// Token-in endpoints need `--enable-scale-out`.
fn scale_out_disabled() -> Response<Body> {
    let message =
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.";
    let kind = "PermissionDeniedError";
    let refusal = Refusal { status: 403, message: message.into(), kind, param: None, schema: false };
    respond(403, "application/json", refusal.body(Shape::Vllm))
}

fn json_answer(value: &Value) -> Response<Body> {
    respond(200, "application/json", value.to_string())
}

fn models(spec: &EngineSpec) -> Value {
    let model = &spec.model;
    let mut data = json!({
        "id": model, "object": "model", "created": clock::unix_seconds(), "owned_by": spec.dialect.name(),
        "root": model, "parent": null, "max_model_len": spec.max_model_len,
    });
    if spec.dialect == Dialect::Vllm {
        data["permission"] = json!([]);
    }
    json!({"object": "list", "data": [data]})
}

fn mode(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Whole => "null",
    }
}

fn server_info(seat: &Seat, node: &Node) -> Value {
    let spec = &seat.spec;
    // A decode engine tells its default port here, which means nothing.
    let bootstrap = if seat.bootstrap_port == 0 { 8998 } else { seat.bootstrap_port };
    let tokens = u64::from(spec.kv_blocks) * u64::from(spec.block_size);
    let events = (seat.events_ports[0] != 0).then(|| {
        let [events, missed] = seat.events_ports.map(|port| format!("tcp://*:{port}"));
        json!({"publisher": "zmq", "endpoint": events, "replay_endpoint": missed, "topic": ""}).to_string()
    });
    json!({
        "kv_events_config": events,
        "model_path": spec.model, "tokenizer_path": spec.model, "served_model_name": spec.model,
        "host": seat.host.to_string(), "port": seat.port,
        "disaggregation_mode": mode(spec.role), "disaggregation_transfer_backend": "mooncake",
        "disaggregation_bootstrap_port": bootstrap, "disaggregation_decode_allocation_policy": "early",
        "tp_size": 1, "dp_size": spec.dp_size.max(1), "pp_size": 1, "page_size": spec.block_size, "load_balance_method": "round_robin",
        "max_total_num_tokens": tokens, "max_req_input_len": spec.max_model_len.saturating_sub(6),
        "context_length": spec.max_model_len, "max_running_requests": spec.max_running,
        "internal_states": [{"last_gen_throughput": 0.0, "running": node.look(crate::engine::Engine::batched)}],
        "version": sglang::VERSION,
    })
}

/// Where a context server's KV can be fetched. A generation server says nothing of the kind.
fn context_info(seat: &Seat) -> Value {
    let params = match seat.spec.role {
        Role::Prefill => {
            let endpoint = format!("tcp://{}:{}", seat.host, seat.side_port);
            json!({"ctx_dp_rank": 0, "ctx_info_endpoint": [endpoint]})
        }
        Role::Decode | Role::Whole => json!({}),
    };
    json!({"disaggregated_params": params})
}

fn model_info(spec: &EngineSpec) -> Value {
    json!({
        "model_path": spec.model, "tokenizer_path": spec.model, "served_model_name": spec.model,
        "is_generation": true, "disaggregation_mode": mode(spec.role), "weight_version": "default",
    })
}

fn loads(spec: &EngineSpec, node: &Node) -> Value {
    let total = u64::from(spec.kv_blocks) * u64::from(spec.block_size);
    node.look_now(|engine, now| {
        let throughput = engine.counters().pace.rate(now);
        let prealloc = if spec.role == Role::Prefill { 0 } else { engine.room_queues().waiting };
        let used = total - u64::from(engine.free_blocks()) * u64::from(spec.block_size);
        let queues = engine.room_queues();
        json!({
            "timestamp": "1970-01-01T00:00:00Z", "version": sglang::VERSION, "accelerator": "simulated",
            "num_accelerators": 1,
            "loads": [{
                "timestamp": clock::unix_seconds(), "dp_rank": 0, "num_running_reqs": engine.batched(),
                "num_waiting_reqs": engine.queued(), "num_waiting_uncached_tokens": 0, "num_used_tokens": used,
                "num_total_tokens": used, "num_active_tokens": used, "max_total_num_tokens": total,
                "max_running_requests": spec.max_running, "token_usage": engine.kv_usage(), "gen_throughput": throughput,
                "cache_hit_rate": 0.0, "utilization": 0.0,
                "disaggregation": {
                    "mode": mode(spec.role), "prefill_bootstrap_queue_reqs": queues.meeting,
                    "prefill_inflight_queue_reqs": queues.sending, "decode_prealloc_queue_reqs": prealloc,
                    "decode_transfer_queue_reqs": queues.receiving, "decode_retracted_queue_reqs": 0,
                    "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0,
                },
                "queues": {"waiting": engine.queued(), "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
            }],
        })
    })
}

async fn body_object(body: Incoming) -> serde_json::Map<String, Value> {
    match read_body(body).await {
        Ok(Some(bytes)) => serde_json::from_slice(&bytes).unwrap_or_default(),
        _ => serde_json::Map::new(),
    }
}

/// Always 200 and empty, also for a request that is not known.
async fn abort_request(node: &Arc<Node>, body: Incoming) -> Response<Body> {
    let body = body_object(body).await;
    let all = body.get("abort_all").and_then(Value::as_bool).unwrap_or(false);
    let rids: Vec<String> = match body.get("rid") {
        _ if all => vec![String::new()],
        Some(Value::String(rid)) if !rid.is_empty() => vec![rid.clone()],
        Some(Value::Array(rids)) => rids.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    node.with(|engine, now| {
        for rid in &rids {
            engine.abort_named(rid, now);
        }
    });
    respond(200, "application/json", String::new())
}

/// `/sim/stats`, `/sim/fault`, `/sim/reset`.
pub(crate) async fn admin(
    server: &Arc<Server>,
    method: &Method,
    path: &str,
    body: Incoming,
) -> Response<Body> {
    match (method.as_str(), path) {
        ("GET", "/sim/stats") => {
            let stats = serde_json::to_string(&server.stats()).unwrap_or_default();
            respond(200, "application/json", stats)
        }
        ("POST", "/sim/reset") => {
            server.reset();
            respond(200, "application/json", "{}".into())
        }
        ("POST", "/sim/fault") => arm(server, body).await,
        _ => respond(
            404,
            "text/plain",
            "no such call; there are /sim/stats, /sim/fault and /sim/reset\n".into(),
        ),
    }
}

async fn arm(server: &Arc<Server>, body: Incoming) -> Response<Body> {
    use crate::serve::fault::Kind;
    let Ok(Some(bytes)) = read_body(body).await else { return respond(413, "text/plain", String::new()) };
    let fault: Fault = match serde_json::from_slice(&bytes) {
        Ok(fault) => fault,
        Err(error) => return respond(400, "text/plain", format!("{error}\n")),
    };
    match fault.kind {
        // This answer's own connection goes down with the engine, so it is not waited for.
        Kind::Kill if fault.chunks.is_none() => server.kill_later(false),
        Kind::Restart => server.kill_later(true),
        _ => {
            if let Err(error) = server.fault(fault).await {
                return respond(500, "text/plain", format!("{error}\n"));
            }
        }
    }
    respond(200, "application/json", "{}".into())
}
