//! What the engines refuse, in their own words. The tables' texts are those of the running engines.

#![allow(clippy::unwrap_used, reason = "a test may fail this way")]

mod common;

use baton_sim::{Dialect, EngineSpec, Fleet, FleetSpec, Role};
use common::{post, post_with, request, send, vllm_prefill, with};
use serde_json::{Value, json};

/// An engine with a context of 2048 tokens.
async fn fleet(dialect: Dialect) -> Fleet {
    let spec = FleetSpec::pairs(dialect, 1, 1).and(FleetSpec::whole(dialect, 1));
    let small = |spec: &mut EngineSpec| {
        spec.model = "tiny".into();
        spec.max_model_len = 2048;
        spec.block_size = 128;
        spec.kv_blocks = 128;
    };
    Fleet::start(spec.with(small)).await.unwrap()
}

fn words(count: usize) -> String {
    "word ".repeat(count).trim_end().to_owned()
}

struct Case {
    what: &'static str,
    path: &'static str,
    more: Value,
    status: u16,
    body: Value,
}

fn nested(status: u16, kind: &str, param: Value, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": param, "code": status}})
}

fn flat(status: u16, kind: &str, message: &str) -> Value {
    json!({"object": "error", "message": message, "type": kind, "param": null, "code": status})
}

#[tokio::test]
async fn vllm_refuses_in_its_own_words() {
    let fleet = fleet(Dialect::Vllm).await;
    let bad = |param: Value, message: &str| nested(400, "BadRequestError", param, message);
    let too_long = "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input \
        tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. \
        (parameter=input_tokens, value=2049)";
    let (completions, chat) = ("/v1/completions", "/v1/chat/completions");
    let cases = [
        Case {
            what: "stream options without stream",
            path: completions,
            status: 400,
            more: json!({"stream": false, "stream_options": {"include_usage": true}}),
            body: bad(
                json!("stream_options"),
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            ),
        },
        Case {
            what: "min_tokens above max_tokens",
            path: completions,
            status: 400,
            more: json!({"max_tokens": 1, "min_tokens": 5}),
            body: bad(json!(null), "min_tokens must be less than or equal to max_tokens=1, got 5."),
        },
        Case {
            what: "unknown model",
            path: completions,
            status: 404,
            more: json!({"model": "nope"}),
            body: nested(
                404,
                "NotFoundError",
                json!("model"),
                "The model `nope` does not exist. Valid aliases: tiny.",
            ),
        },
        Case {
            what: "prompt too long",
            path: completions,
            status: 400,
            more: json!({"prompt": words(2100)}),
            body: bad(json!("input_tokens"), too_long),
        },
        Case {
            what: "temperature below zero",
            path: chat,
            status: 400,
            more: json!({"temperature": -1}),
            body: bad(
                json!("temperature"),
                "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
            ),
        },
        Case {
            what: "max_tokens too large",
            path: completions,
            status: 400,
            more: json!({"max_tokens": 99999}),
            body: bad(
                json!("max_tokens"),
                "max_tokens=99999 cannot be greater than max_model_len=2048. Please request fewer output tokens. \
                 (parameter=max_tokens, value=99999)",
            ),
        },
        Case {
            what: "parameters that are no object",
            path: completions,
            status: 400,
            more: json!({"kv_transfer_params": "hello"}),
            body: nested(
                400,
                "Bad Request",
                json!("body.kv_transfer_params"),
                "1 validation error:\n  {'type': 'dict_type', 'loc': 'body.kv_transfer_params', 'msg': 'Input should be a \
                 valid dictionary', 'input': 'hello'}",
            ),
        },
        Case {
            what: "max_tokens that is no number",
            path: completions,
            status: 400,
            more: json!({"max_tokens": "x"}),
            body: nested(
                400,
                "Bad Request",
                json!("body.max_tokens"),
                "1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid \
                 integer, unable to parse string as an integer', 'input': 'x'}",
            ),
        },
    ];
    let base = json!({"model": "tiny", "prompt": "The quick cat", "max_tokens": 4,
                      "messages": [{"role": "user", "content": "The quick cat"}]});
    for engine in fleet.engines() {
        for case in &cases {
            let reply = post(engine, case.path, &with(&base, case.more.clone())).await;
            assert_eq!((reply.status, reply.json()), (case.status, case.body.clone()), "{}", case.what);
        }
    }
    let stats = fleet.settle().await;
    assert_eq!(stats.requests.refused, 3 * 8);
    assert!(stats.all_free(), "{stats:?}");
}

#[tokio::test]
async fn sglang_refuses_in_its_own_words() {
    let fleet = fleet(Dialect::Sglang).await;
    let bad = |message: &str| flat(400, "BadRequestError", message);
    let completions = "/v1/completions";
    let missing = "Invalid request: Disaggregated request received without bootstrap room id. req.rid='r-1'";
    let beyond = "Requested token count exceeds the model's maximum context length of 2048 tokens. You requested a total \
        of 100002 tokens: 3 tokens from the input messages and 99999 tokens for the completion. Please reduce the number \
        of tokens in the input messages or the completion to fit within the limit.";
    let cases = [
        Case {
            what: "no room",
            path: completions,
            status: 400,
            more: json!({"bootstrap_room": null, "rid": "r-1"}),
            body: bad(missing),
        },
        Case {
            what: "no room, native",
            path: "/generate",
            status: 400,
            more: json!({"bootstrap_room": null, "rid": "r-1"}),
            body: json!({"error": {"message": missing}}),
        },
        Case {
            what: "temperature below zero",
            path: completions,
            status: 400,
            more: json!({"temperature": -1}),
            body: bad("temperature must be a non-negative finite number, got -1.0."),
        },
        Case {
            what: "more than the context",
            path: completions,
            status: 400,
            more: json!({"max_tokens": 99999}),
            body: bad(beyond),
        },
    ];
    let base = json!({"model": "nope", "prompt": "The quick cat", "text": "The quick cat", "max_tokens": 4,
                      "bootstrap_host": "127.0.0.1", "bootstrap_room": 7});
    for engine in fleet.prefill().iter().chain(&fleet.decode()) {
        for case in &cases {
            let reply = post(engine, case.path, &with(&base, case.more.clone())).await;
            assert_eq!((reply.status, reply.json()), (case.status, case.body.clone()), "{}", case.what);
        }
        let ranked = post_with(engine, completions, &base, &[("x-data-parallel-rank", "x")]).await;
        assert_eq!(ranked.message(), "Invalid X-Data-Parallel-Rank header: must be an integer, got 'x'");
        let ranked = post(engine, completions, &with(&base, json!({"routed_dp_rank": 3}))).await;
        assert_eq!((ranked.status, ranked.message().as_str()), (400, "routed_dp_rank=3 out of range [0, 1)"));
        let huge = with(&base, json!({"bootstrap_room": 18_446_744_073_709_551_616.0_f64}));
        let reply = post(engine, completions, &huge).await;
        assert_eq!(
            (reply.status, reply.json()["type"].as_str().unwrap()),
            (400, "Bad Request"),
            "{}",
            reply.body
        );
    }
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.handoffs.made == 0, "{stats:?}");
}

/// A decode engine that refuses tells the prefill engine at once; when the schema is wrong it cannot, and the lease runs.
#[tokio::test]
async fn a_refused_decode_leg_frees_the_prefill_side() {
    let fleet = fleet(Dialect::Vllm).await;
    let (p, d) = (&fleet.prefill()[0], &fleet.decode()[0]);
    let body = json!({"model": "tiny", "prompt": words(300), "max_tokens": 4});
    for (more, status, pinned) in [
        (json!({"temperature": -1}), 400, 0),
        (json!({"max_tokens": 99999}), 400, 0),
        (json!({"model": "nope"}), 404, 0),
        (json!({"max_tokens": "x"}), 400, 3),
    ] {
        let params = vllm_prefill(p, "/v1/completions", &body).await;
        assert_eq!(p.stats().blocks.pinned, 3);
        let leg = with(&with(&body, json!({"kv_transfer_params": params})), more.clone());
        assert_eq!(post(d, "/v1/completions", &leg).await.status, status, "{more}");
        assert_eq!(fleet.settle().await.blocks.pinned, pinned, "{more}");
    }
}

#[tokio::test]
async fn what_is_not_json_and_what_is_not_there() {
    let fleet = fleet(Dialect::Vllm).await;
    let engine = &fleet.whole()[0];
    let mut broken = request("/v1/completions", &json!({}));
    *broken.body_mut() = http_body_util::Full::from("{\"model\": ");
    let reply = send(engine.addr(), broken).await.unwrap();
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str().unwrap()), (400, "Bad Request"));
    let reply = post(engine, "/v1/completions", &json!({"model": "tiny"})).await;
    assert!(reply.message().contains("'type': 'missing', 'loc': 'body.prompt'"), "{}", reply.body);
    assert_eq!(post(engine, "/generate", &json!({})).await.status, 404);
    assert_eq!(post(engine, "/inference/v1/generate", &json!({"token_ids": [1]})).await.status, 403);
    let wrong = post_with(engine, "/v1/completions", &json!({}), &[("x-sim-fault", "kind=nonsense")]).await;
    assert_eq!(wrong.status, 400);
    assert_eq!(engine.role(), Role::Whole);
}

#[tokio::test]
async fn messages_are_refused_in_anthropics_shape_but_for_their_schema() {
    for (dialect, kind) in [(Dialect::Vllm, "BadRequestError"), (Dialect::Sglang, "invalid_request_error")] {
        let fleet = fleet(dialect).await;
        let whole = &fleet.engines()[2];
        let body = json!({"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]});
        let reply = post(whole, "/v1/messages", &with(&body, json!({"temperature": -1.0}))).await;
        assert_eq!((reply.status, &reply.json()["type"]), (400, &json!("error")), "{}", reply.body);
        assert_eq!(reply.json()["error"]["type"], kind, "{}", reply.body);
        let reply = post(whole, "/v1/messages", &with(&body, json!({"max_tokens": "x"}))).await;
        assert_eq!((reply.status, &reply.json()["type"] == "error"), (400, false), "{}", reply.body);
    }
}

#[tokio::test]
async fn vllm_wants_a_thinking_budget_below_the_cap_except_on_a_prefill_leg() {
    let fleet = fleet(Dialect::Vllm).await;
    let body = json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}],
                      "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let reply = post(&fleet.engines()[0], "/v1/messages", &body).await;
    assert!(reply.status == 400 && reply.message().contains("budget_tokens"), "{}", reply.body);
    let tag = json!({"kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false}});
    let reply = post(&fleet.engines()[0], "/v1/messages", &with(&body, tag)).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let params = reply.json()["kv_transfer_params"].clone();
    let decode = with(&body, json!({"max_tokens": 2000, "kv_transfer_params": params}));
    assert_eq!(post(&fleet.engines()[1], "/v1/messages", &decode).await.status, 200);
}

#[tokio::test]
async fn a_count_of_tokens_needs_no_room_and_a_ranking_does() {
    let fleet = fleet(Dialect::Sglang).await;
    let prefill = &fleet.engines()[0];
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]});
    let reply = post(prefill, "/v1/messages/count_tokens", &body).await;
    assert!(reply.status == 200 && reply.json()["input_tokens"].as_u64() > Some(3), "{}", reply.body);
    let ranking = json!({"query": "fish", "documents": ["a", "b"]});
    let reply = post(prefill, "/v1/rerank", &ranking).await;
    assert!(reply.status == 400 && reply.message().contains("without bootstrap room id"), "{}", reply.body);
    assert_eq!(post(&fleet.engines()[2], "/v1/rerank", &ranking).await.json().as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn tokenize_answers_and_refuses_as_each_engine_does() {
    let (chat, text) = (json!([{"role": "user", "content": "The quick cat"}]), "The quick cat reads");
    let both = json!({"prompt": text, "messages": chat});
    let flags = json!({"messages": chat, "continue_final_message": true, "add_generation_prompt": true});
    for (dialect, body, status) in [
        (Dialect::Vllm, json!({"prompt": text, "model": "tiny"}), 200),
        (Dialect::Vllm, json!({"messages": chat, "tools": null}), 200),
        (Dialect::Vllm, json!({"prompt": text, "model": "other"}), 404),
        (Dialect::Vllm, json!({"prompt": [text]}), 400),
        (Dialect::Vllm, json!({"prompt": [1, 2]}), 400),
        (Dialect::Vllm, json!({"model": "tiny"}), 400),
        (Dialect::Vllm, flags, 400),
        (Dialect::Vllm, json!({"messages": chat, "chat_template": "x"}), 400),
        (Dialect::Sglang, json!({"prompt": text, "model": "other"}), 200),
        (Dialect::Sglang, json!({"messages": chat}), 200),
        (Dialect::Sglang, json!({"prompt": [text, text]}), 200),
        (Dialect::Sglang, json!({"prompt": [1, 2]}), 400),
        (Dialect::Sglang, both, 400),
        (Dialect::Sglang, json!({}), 400),
        (Dialect::Trtllm, json!({"prompt": text}), 404),
    ] {
        let fleet = fleet(dialect).await;
        let reply = post_with(&fleet.engines()[0], "/tokenize", &body, &[]).await;
        assert_eq!(reply.status, status, "{dialect:?} {body}: {}", reply.body);
        let said: Value = serde_json::from_str(&reply.body).unwrap();
        let of_text = json!(baton_sim::text::tokenize(text));
        match (&body["prompt"], status) {
            (Value::String(_), 200) => assert_eq!((&said["count"], &said["tokens"]), (&json!(4), &of_text)),
            (Value::Array(_), 200) => assert_eq!(said["count"], json!([4, 4])),
            (_, 200) => {
                let of_chat = baton_sim::text::tokenize(&baton_sim::text::chat_text(&chat));
                assert_eq!(said["tokens"], json!(of_chat));
            }
            // A route that is not there says so in words that no model's absence has.
            (_, 404) => assert_eq!(said.get("error").is_some(), dialect == Dialect::Vllm),
            _ => {}
        }
    }
}
