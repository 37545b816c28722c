//! Golden transcripts: every answer's shape, whole. Run with `UPDATE_EXPECT=1` to rewrite them, and review the diff.
//!
//! The shapes of chat, completions, messages, responses and /generate follow recorded answers of the running engines.

#![allow(clippy::unwrap_used, reason = "a test may fail this way")]

mod common;

use baton_sim::{Dialect, EngineHandle, Fleet, FleetSpec};
use common::{get, in_room, post_with, sglang_pair, with};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

async fn engine(dialect: Dialect) -> (Fleet, EngineHandle) {
    let fleet = Fleet::start(FleetSpec::whole(dialect, 1)).await.unwrap();
    let engine = fleet.whole()[0].clone();
    (fleet, engine)
}

/// Replaces what differs from run to run.
fn steady(text: &str, engine: &EngineHandle) -> String {
    let id = engine.engine_id().unwrap();
    let mut text = text.replace(&id, "ENGINE").replace(&id[..8], "ENGINE");
    for key in [
        "\"created\":",
        "\"created_at\":",
        "\"remote_port\":",
        "\"port\":",
        "bootstrap_port\":",
        "\"timestamp\":",
    ] {
        text = blank_number(&text, key);
    }
    text
}

fn blank_number(text: &str, key: &str) -> String {
    let mut parts = text.split(key);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        out.push_str(key);
        out.push_str(if digits > 0 { "0" } else { "" });
        out.push_str(&part[digits..]);
    }
    out
}

async fn check(engine: &EngineHandle, path: &str, body: Value, want: Expect) {
    let body = with(&body, json!({"model": "sim", "rid": "r-1"}));
    let reply = post_with(engine, path, &body, &[("x-request-id", "req-1")]).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    want.assert_eq(&steady(&reply.body, engine));
}

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "The quick cat reads"}], "max_tokens": 2})
}

fn completion() -> Value {
    json!({"prompt": "The quick cat reads", "max_tokens": 2})
}

fn streamed(body: &Value) -> Value {
    with(body, json!({"stream": true, "stream_options": {"include_usage": true}}))
}

#[tokio::test]
async fn vllm_plain() {
    let (_fleet, engine) = engine(Dialect::Vllm).await;
    check(&engine, "/v1/completions", completion(), expect![[r#"{"id":"cmpl-req-1","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":"saddle fern","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-ENGINE","usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#]]).await;
    check(&engine, "/v1/chat/completions", chat(), expect![[r#"{"id":"chatcmpl-req-1","object":"chat.completion","created":0,"model":"sim","choices":[{"index":0,"message":{"role":"assistant","content":"carpet tunnel","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-ENGINE","usage":{"prompt_tokens":8,"total_tokens":10,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#]]).await;
    let logprobs = with(&completion(), json!({"logprobs": 1, "echo": true}));
    check(&engine, "/v1/completions", logprobs, expect![[r#"{"id":"cmpl-req-1","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":"The quick cat readssaddle fern","logprobs":{"text_offset":[0,3,9,13,19,25],"token_logprobs":[null,-2.08984375,-3.953125,-15.421875,-2.958984375,-0.982421875],"tokens":["The"," quick"," cat"," reads","saddle"," fern"],"top_logprobs":[null,{" quick":-2.08984375},{" cat":-3.953125},{" reads":-15.421875},{"saddle":-2.958984375},{" fern":-0.982421875}]},"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-ENGINE","usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#]]).await;
    let logprobs = with(&chat(), json!({"logprobs": true, "top_logprobs": 1, "n": 2, "max_tokens": 1}));
    check(&engine, "/v1/chat/completions", logprobs, expect![[r#"{"id":"chatcmpl-req-1","object":"chat.completion","created":0,"model":"sim","choices":[{"index":0,"message":{"role":"assistant","content":"carpet","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":{"content":[{"token":"carpet","logprob":-0.31640625,"bytes":[99,97,114,112,101,116],"top_logprobs":[{"token":"carpet","logprob":-0.31640625,"bytes":[99,97,114,112,101,116]}]}]},"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null},{"index":1,"message":{"role":"assistant","content":"fossil","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":{"content":[{"token":"fossil","logprob":-1.7548828125,"bytes":[102,111,115,115,105,108],"top_logprobs":[{"token":"fossil","logprob":-1.7548828125,"bytes":[102,111,115,115,105,108]}]}]},"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-ENGINE","usage":{"prompt_tokens":8,"total_tokens":10,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#]]).await;
    check(&engine, "/v1/messages", chat(), expect![[r#"{"id":"chatcmpl-req-1","type":"message","role":"assistant","content":[{"type":"text","text":"carpet tunnel"}],"model":"sim","stop_reason":"max_tokens","usage":{"input_tokens":8,"output_tokens":2}}"#]]).await;
    check(&engine, "/v1/responses", json!({"input": "hi", "max_output_tokens": 2}), expect![[r#"{"id":"resp_req-1","created_at":0,"incomplete_details":{"reason":"max_output_tokens"},"instructions":null,"metadata":null,"model":"sim","object":"response","output":[{"id":"msg_req-1","content":[{"annotations":[],"text":"lilac engine","type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message","phase":null}],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":2,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"incomplete","text":null,"top_logprobs":null,"truncation":"disabled","usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":7},"user":null,"kv_transfer_params":null}"#]]).await;
}

#[tokio::test]
async fn vllm_streams() {
    let (_fleet, engine) = engine(Dialect::Vllm).await;
    check(&engine, "/v1/completions", streamed(&completion()), expect![[r#"
        data: {"id":"cmpl-req-1","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":"saddle","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

        data: {"id":"cmpl-req-1","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":" fern","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

        data: {"id":"cmpl-req-1","object":"text_completion","created":0,"model":"sim","choices":[],"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2},"system_fingerprint":"vllm-0.32.0-ENGINE"}

        data: [DONE]

    "#]]).await;
    check(&engine, "/v1/chat/completions", streamed(&chat()), expect![[r#"
        data: {"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}

        data: {"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"content":"carpet"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

        data: {"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"content":" tunnel"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]}

        data: {"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[],"usage":{"prompt_tokens":8,"total_tokens":10,"completion_tokens":2},"system_fingerprint":"vllm-0.32.0-ENGINE"}

        data: [DONE]

    "#]]).await;
    let stream = with(&chat(), json!({"stream": true, "stop": [" "]}));
    check(&engine, "/v1/chat/completions", stream, expect![[r#"
        data: {"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}

        data: {"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"content":"carpet"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

        data: {"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":" ","token_ids":null}],"system_fingerprint":"vllm-0.32.0-ENGINE"}

        data: [DONE]

    "#]]).await;
    check(&engine, "/v1/messages", with(&chat(), json!({"stream": true})), expect![[r#"
        event: message_start
        data: {"type":"message_start","message":{"id":"chatcmpl-req-1","type":"message","role":"assistant","content":[],"model":"sim","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":8,"output_tokens":0}}}

        event: content_block_start
        data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}

        event: content_block_delta
        data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"carpet"},"index":0}

        event: content_block_delta
        data: {"type":"content_block_delta","delta":{"type":"text_delta","text":" tunnel"},"index":0}

        event: content_block_stop
        data: {"type":"content_block_stop","index":0}

        event: message_delta
        data: {"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"input_tokens":8,"output_tokens":2}}

        event: message_stop
        data: {"type":"message_stop"}

    "#]]).await;
    let responses = json!({"input": "hi", "max_output_tokens": 2, "stream": true});
    check(&engine, "/v1/responses", responses, expect![[r#"
        event: response.created
        data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_req-1","created_at":0,"model":"sim","object":"response","output":[],"status":"in_progress"}}

        event: response.in_progress
        data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_req-1","created_at":0,"model":"sim","object":"response","output":[],"status":"in_progress"}}

        event: response.output_item.added
        data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"msg_req-1","content":[],"role":"assistant","status":"in_progress","type":"message"}}

        event: response.content_part.added
        data: {"type":"response.content_part.added","sequence_number":3,"item_id":"msg_req-1","output_index":0,"content_index":0,"part":{"annotations":[],"text":"","type":"output_text"}}

        event: response.output_text.delta
        data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_req-1","output_index":0,"content_index":0,"delta":"lilac","logprobs":[]}

        event: response.output_text.delta
        data: {"type":"response.output_text.delta","sequence_number":5,"item_id":"msg_req-1","output_index":0,"content_index":0,"delta":" engine","logprobs":[]}

        event: response.output_text.done
        data: {"type":"response.output_text.done","sequence_number":6,"item_id":"msg_req-1","output_index":0,"content_index":0,"text":"lilac engine","logprobs":[]}

        event: response.output_item.done
        data: {"type":"response.output_item.done","sequence_number":7,"output_index":0,"item":{"id":"msg_req-1","content":[{"annotations":[],"text":"lilac engine","type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message","phase":null}}

        event: response.completed
        data: {"type":"response.completed","sequence_number":8,"response":{"id":"resp_req-1","created_at":0,"incomplete_details":{"reason":"max_output_tokens"},"instructions":null,"metadata":null,"model":"sim","object":"response","output":[{"id":"msg_req-1","content":[{"annotations":[],"text":"lilac engine","type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message","phase":null}],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":2,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"incomplete","text":null,"top_logprobs":null,"truncation":"disabled","usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":7},"user":null,"kv_transfer_params":null}}

    "#]]).await;
}

#[tokio::test]
async fn vllm_hand_off() {
    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Vllm, 1, 1)).await.unwrap();
    let leg = with(&completion(), json!({"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}}));
    let p = &fleet.prefill()[0];
    let reply =
        post_with(p, "/v1/completions", &with(&leg, json!({"model": "sim"})), &[("x-request-id", "req-A")])
            .await;
    // The tail of the request's name is drawn anew each time.
    let at = reply.body.find("cmpl-req-A-0-").unwrap() + "cmpl-req-A-0-".len();
    let body = reply.body.replace(&reply.body[at..at + 8], "TAIL");
    expect![[r#"{"id":"cmpl-req-A","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":"saddle","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-ENGINE","usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1,"prompt_tokens_details":null,"completion_tokens_details":null},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"ENGINE","remote_request_id":"cmpl-req-A-0-TAIL","remote_host":"127.0.0.1","remote_port":0,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":4,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0},"ec_transfer_params":null,"metrics":null}"#]].assert_eq(&steady(&body, p));
}

#[tokio::test]
async fn sglang_plain() {
    let (_fleet, engine) = engine(Dialect::Sglang).await;
    check(&engine, "/v1/completions", completion(), expect![[r#"{"id":"r-1","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":"saddle fern","logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2,"prompt_tokens_details":null,"reasoning_tokens":0,"completion_tokens_details":null},"metadata":{"weight_version":"default","weight_versions":[{"version":"default","start":0,"end":2}]}}"#]]).await;
    check(&engine, "/v1/chat/completions", chat(), expect![[r#"{"id":"r-1","object":"chat.completion","created":0,"model":"sim","choices":[{"index":0,"message":{"role":"assistant","content":"carpet tunnel","reasoning_content":null},"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":8,"total_tokens":10,"completion_tokens":2,"prompt_tokens_details":null,"reasoning_tokens":0,"completion_tokens_details":null},"metadata":{"weight_version":"default","weight_versions":[{"version":"default","start":0,"end":2}]}}"#]]).await;
    let native = json!({"text": "The quick cat reads", "sampling_params": {"max_new_tokens": 2}});
    check(&engine, "/generate", native.clone(), expect![[r#"{"text":"saddle fern","output_ids":[25463,12912],"meta_info":{"id":"r-1","finish_reason":{"type":"length","length":2},"prompt_tokens":4,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":2,"cached_tokens":0,"weight_versions":[{"version":"default","start":0,"end":2}],"cached_tokens_details":{"device":0,"host":0},"dp_rank":null,"e2e_latency":0.0}}"#]]).await;
    let logprobs = with(&native, json!({"return_logprob": true, "logprob_start_len": 0}));
    check(&engine, "/generate", logprobs, expect![[r#"{"text":"saddle fern","output_ids":[25463,12912],"meta_info":{"id":"r-1","finish_reason":{"type":"length","length":2},"prompt_tokens":4,"weight_version":"default","num_retractions":0,"input_token_logprobs":[[null,24930,null],[-2.08984375,25111,null],[-3.953125,21492,null],[-15.421875,20332,null]],"output_token_logprobs":[[-2.958984375,25463,null],[-0.982421875,12912,null]],"reasoning_tokens":0,"completion_tokens":2,"cached_tokens":0,"weight_versions":[{"version":"default","start":0,"end":2}],"cached_tokens_details":{"device":0,"host":0},"dp_rank":null,"e2e_latency":0.0}}"#]]).await;
}

#[tokio::test]
async fn sglang_streams() {
    let (_fleet, engine) = engine(Dialect::Sglang).await;
    check(&engine, "/v1/completions", streamed(&completion()), expect![[r#"
        data: {"id":"r-1","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":"saddle","logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

        data: {"id":"r-1","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":" fern","logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}

        data: {"id":"r-1","object":"text_completion","created":0,"model":"sim","choices":[],"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2,"prompt_tokens_details":null,"reasoning_tokens":0,"completion_tokens_details":null}}

        data: [DONE]

    "#]]).await;
    check(&engine, "/v1/chat/completions", streamed(&chat()), expect![[r#"
        data: {"id":"r-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

        data: {"id":"r-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"role":null,"content":"carpet","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

        data: {"id":"r-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"role":null,"content":" tunnel","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

        data: {"id":"r-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}

        data: {"id":"r-1","object":"chat.completion.chunk","created":0,"model":"sim","choices":[],"usage":{"prompt_tokens":8,"total_tokens":10,"completion_tokens":2,"prompt_tokens_details":null,"reasoning_tokens":0,"completion_tokens_details":null}}

        data: [DONE]

    "#]]).await;
    let native =
        json!({"text": "The quick cat reads", "sampling_params": {"max_new_tokens": 2}, "stream": true});
    check(&engine, "/generate", native, expect![[r#"
        data: {"text":"saddle","output_ids":[25463],"meta_info":{"id":"r-1","finish_reason":null,"prompt_tokens":4,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":1,"cached_tokens":0,"weight_versions":[{"version":"default","start":0,"end":1}],"cached_tokens_details":{"device":0,"host":0},"dp_rank":null,"e2e_latency":0.0}}

        data: {"text":"saddle fern","output_ids":[25463,12912],"meta_info":{"id":"r-1","finish_reason":{"type":"length","length":2},"prompt_tokens":4,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":2,"cached_tokens":0,"weight_versions":[{"version":"default","start":0,"end":2}],"cached_tokens_details":{"device":0,"host":0},"dp_rank":null,"e2e_latency":0.0}}

        data: [DONE]

    "#]]).await;
}

#[tokio::test]
async fn sglang_prefill_leg() {
    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Sglang, 1, 1)).await.unwrap();
    let (p, d) = (&fleet.prefill()[0], &fleet.decode()[0]);
    let body = with(&completion(), json!({"model": "sim", "rid": "r-1", "stream": true}));
    let (prefill, _) = sglang_pair(p, d, "/v1/completions", &in_room(p, &body, 1)).await;
    expect![[r#"
        data: {"id":"r-1","object":"text_completion","created":0,"model":"sim","choices":[{"index":0,"text":"saddle","logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}

        data: [DONE]

    "#]].assert_eq(&steady(&prefill.body, p));
}

#[tokio::test]
async fn what_engines_tell_about_themselves() {
    let (_fleet, engine) = engine(Dialect::Vllm).await;
    expect![[r#"{"data":[{"created":0,"id":"sim","max_model_len":32768,"object":"model","owned_by":"vllm","parent":null,"permission":[],"root":"sim"}],"object":"list"}"#]].assert_eq(&steady(&get(&engine, "/v1/models").await.body, &engine));
    expect![[r#"{"version":"0.32.0"}"#]].assert_eq(&get(&engine, "/version").await.body);
    let tokens = post_with(&engine, "/tokenize", &json!({"prompt": "The quick cat reads"}), &[]).await;
    expect![[r#"{"count":4,"max_model_len":32768,"token_strs":null,"tokens":[24930,25111,21492,20332]}"#]]
        .assert_eq(&tokens.body);

    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Sglang, 1, 0)).await.unwrap();
    let engine = fleet.prefill()[0].clone();
    expect![[r#"{"data":[{"created":0,"id":"sim","max_model_len":32768,"object":"model","owned_by":"sglang","parent":null,"root":"sim"}],"object":"list"}"#]].assert_eq(&steady(&get(&engine, "/v1/models").await.body, &engine));
    expect![[r#"{"context_length":32768,"disaggregation_bootstrap_port":0,"disaggregation_decode_allocation_policy":"early","disaggregation_mode":"prefill","disaggregation_transfer_backend":"mooncake","dp_size":1,"host":"127.0.0.1","internal_states":[{"last_gen_throughput":0.0,"running":0}],"kv_events_config":null,"load_balance_method":"round_robin","max_req_input_len":32762,"max_running_requests":256,"max_total_num_tokens":131072,"model_path":"sim","page_size":16,"port":0,"pp_size":1,"served_model_name":"sim","tokenizer_path":"sim","tp_size":1,"version":"0.5.23"}"#]].assert_eq(&steady(&get(&engine, "/server_info").await.body, &engine));
    expect![[r#"{"disaggregation_mode":"prefill","is_generation":true,"model_path":"sim","served_model_name":"sim","tokenizer_path":"sim","weight_version":"default"}"#]].assert_eq(&get(&engine, "/get_model_info").await.body);
    expect![[r#"{"accelerator":"simulated","loads":[{"cache_hit_rate":0.0,"disaggregation":{"decode_prealloc_queue_reqs":0,"decode_retracted_queue_reqs":0,"decode_transfer_queue_reqs":0,"kv_transfer_latency_ms":0.0,"kv_transfer_speed_gb_s":0.0,"mode":"prefill","prefill_bootstrap_queue_reqs":0,"prefill_inflight_queue_reqs":0},"dp_rank":0,"gen_throughput":0.0,"max_running_requests":256,"max_total_num_tokens":131072,"num_active_tokens":0,"num_running_reqs":0,"num_total_tokens":0,"num_used_tokens":0,"num_waiting_reqs":0,"num_waiting_uncached_tokens":0,"queues":{"grammar":0,"paused":0,"prealloc_ready":0,"retracted":0,"waiting":0},"timestamp":0,"token_usage":0.0,"utilization":0.0}],"num_accelerators":1,"timestamp":"1970-01-01T00:00:00Z","version":"0.5.23"}"#]].assert_eq(&steady(&get(&engine, "/v1/loads").await.body, &engine));
}
