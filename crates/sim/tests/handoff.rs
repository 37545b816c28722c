//! Hand-offs as they should be: the text is right, the KV moved, and every block is free afterwards.

mod common;

use baton_sim::{Dialect, Fleet, FleetSpec, PromptId, expected_choice, expected_text};
use common::{in_room, post, sglang_pair, vllm_pair, vllm_prefill, with};
use serde_json::json;

const PROMPT: &str = "The quick cat reads a new book near the old river while the small fish sings";

#[tokio::test]
async fn a_vllm_pair_answers_as_one_engine() {
    let spec = FleetSpec::pairs(Dialect::Vllm, 1, 1).with(|spec| spec.block_size = 4);
    let fleet = Fleet::start(spec).await.unwrap();
    let (p, d) = (&fleet.prefill()[0], &fleet.decode()[0]);
    let body = json!({"model": "sim", "prompt": PROMPT, "max_tokens": 12});
    let plain = vllm_pair(p, d, "/v1/completions", &body).await;
    assert_eq!(plain.status, 200, "{}", plain.body);
    assert_eq!(plain.text(), expected_text(PromptId::of_text(PROMPT), 12));

    let stream = with(&body, json!({"stream": true, "stream_options": {"include_usage": true}}));
    let params = vllm_prefill(p, "/v1/completions", &body).await;
    let streamed = post(d, "/v1/completions", &with(&stream, json!({"kv_transfer_params": params}))).await;
    assert_eq!(streamed.streamed(), expected_text(PromptId::of_text(PROMPT), 12));
    assert!(streamed.body.ends_with("data: [DONE]\n\n"));

    let stats = fleet.settle().await;
    assert!(stats.idle() && stats.all_free(), "{stats:?}");
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (2, 2), "{stats:?}");
    assert_eq!((stats.handoffs.wrong, stats.handoffs.expired, stats.handoffs.reused), (0, 0, 0), "{stats:?}");
    // The second time only what the decode engine does not have in its cache moved.
    assert_eq!(baton_sim::text::tokenize(PROMPT).len(), 16);
    assert_eq!(stats.tokens.transferred, 16 + 4, "{stats:?}");
}

#[tokio::test]
async fn a_vllm_chat_with_choices_keeps_them_apart() {
    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Vllm, 1, 1)).await.unwrap();
    let messages = json!([{"role": "system", "content": "You read."}, {"role": "user", "content": PROMPT}]);
    let body = json!({"model": "sim", "messages": messages, "max_tokens": 6});
    let params = vllm_prefill(&fleet.prefill()[0], "/v1/chat/completions", &body).await;
    let leg = with(&body, json!({"n": 2, "kv_transfer_params": params}));
    let reply = post(&fleet.decode()[0], "/v1/chat/completions", &leg).await.json();
    let prompt = PromptId::of_chat(&messages);
    for number in 0..2 {
        let text = reply["choices"][number]["message"]["content"].as_str().unwrap();
        assert_eq!(text, expected_choice(prompt, number as u32, 6));
    }
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.handoffs.right == 2 && stats.handoffs.reused == 0, "{stats:?}");
}

#[tokio::test]
async fn an_sglang_pair_answers_as_one_engine() {
    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Sglang, 1, 1)).await.unwrap();
    let (p, d) = (&fleet.prefill()[0], &fleet.decode()[0]);
    let body = in_room(p, &json!({"model": "any", "prompt": PROMPT, "max_tokens": 12}), 7);
    let (prefill, decode) = sglang_pair(p, d, "/v1/completions", &body).await;
    assert_eq!((prefill.status, decode.status), (200, 200), "{} {}", prefill.body, decode.body);
    assert_eq!(prefill.text(), expected_text(PromptId::of_text(PROMPT), 1));
    assert_eq!(decode.text(), expected_text(PromptId::of_text(PROMPT), 12));
    assert_eq!(decode.json()["model"], "any");

    let native = json!({"text": PROMPT, "sampling_params": {"max_new_tokens": 5}, "stream": true});
    let (_, decode) = sglang_pair(p, d, "/generate", &in_room(p, &native, 8)).await;
    let last = decode.events().pop().unwrap();
    assert_eq!(last["text"], expected_text(PromptId::of_text(PROMPT), 5));
    assert_eq!(last["meta_info"]["finish_reason"], json!({"type": "length", "length": 5}));

    let list = json!({"model": "any", "prompt": ["one fish", "two fish"], "max_tokens": 3,
                      "bootstrap_host": ["127.0.0.1", "127.0.0.1"],
                      "bootstrap_port": [p.bootstrap_port(), p.bootstrap_port()], "bootstrap_room": [21, 31]});
    let (_, decode) = sglang_pair(p, d, "/v1/completions", &list).await;
    assert_eq!(decode.json()["choices"][1]["text"], expected_text(PromptId::of_text("two fish"), 3));

    let stats = fleet.settle().await;
    assert!(stats.idle() && stats.all_free(), "{stats:?}");
    assert_eq!((stats.handoffs.made, stats.handoffs.right, stats.handoffs.failed), (4, 4, 0), "{stats:?}");
}

#[tokio::test]
async fn whole_engines_need_nobody() {
    let fleet = FleetSpec::whole(Dialect::Vllm, 1).and(FleetSpec::whole(Dialect::Sglang, 1));
    let fleet = Fleet::start(fleet).await.unwrap();
    let body = json!({"model": "sim", "prompt": PROMPT, "max_tokens": 4,
                      "kv_transfer_params": {"do_remote_decode": true}});
    for engine in fleet.whole() {
        let reply = post(&engine, "/v1/completions", &body).await;
        assert_eq!(reply.text(), expected_text(PromptId::of_text(PROMPT), 4));
        assert_eq!(reply.json()["kv_transfer_params"], json!(null));
    }
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.handoffs.made == 0, "{stats:?}");
}

/// Older vLLM passes nothing on when the model ended by itself, and keeps nothing.
#[tokio::test]
async fn a_prefill_leg_that_ends_by_itself() {
    for params_on_stop in [true, false] {
        let fleet = Fleet::start(FleetSpec::pairs(Dialect::Vllm, 1, 0).with(|spec| {
            spec.natural_tokens = Some(1);
            spec.params_on_stop = params_on_stop;
        }));
        let fleet = fleet.await.unwrap();
        let leg = json!({"model": "sim", "prompt": PROMPT, "max_tokens": 2,
                         "kv_transfer_params": {"do_remote_decode": true}});
        let reply = post(&fleet.prefill()[0], "/v1/completions", &leg).await.json();
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
        assert_eq!(reply["kv_transfer_params"].is_object(), params_on_stop, "{reply}");
        assert_eq!(fleet.settle().await.blocks.pinned, u64::from(params_on_stop));
    }
}

/// Token ids that the prefill leg returned stand for the messages on the decode leg.
#[tokio::test]
async fn token_ids_are_handed_on() {
    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Vllm, 1, 1)).await.unwrap();
    let messages = json!([{"role": "user", "content": PROMPT}]);
    let leg = json!({"model": "sim", "messages": messages, "max_tokens": 1, "return_token_ids": true,
                     "kv_transfer_params": {"do_remote_decode": true}});
    let prefill = post(&fleet.prefill()[0], "/v1/chat/completions", &leg).await.json();
    let params =
        with(&prefill["kv_transfer_params"], json!({"prompt_token_ids": prefill["prompt_token_ids"]}));
    let leg = json!({"model": "sim", "messages": [{"role": "user", "content": "something else"}], "max_tokens": 5,
                     "kv_transfer_params": params});
    let reply = post(&fleet.decode()[0], "/v1/chat/completions", &leg).await;
    assert_eq!(reply.text(), expected_text(PromptId::of_chat(&messages), 5), "{}", reply.body);
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.handoffs.right == 1, "{stats:?}");
}

/// The prompt's own log probabilities make a decode engine compute the prompt itself.
#[tokio::test]
async fn echo_with_logprobs_moves_nothing() {
    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Vllm, 1, 1)).await.unwrap();
    let body = json!({"model": "sim", "prompt": PROMPT, "max_tokens": 2, "echo": true, "logprobs": 1});
    let reply = vllm_pair(&fleet.prefill()[0], &fleet.decode()[0], "/v1/completions", &body).await;
    assert_eq!(reply.text(), format!("{PROMPT}{}", expected_text(PromptId::of_text(PROMPT), 2)));
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.tokens.transferred == 0 && stats.handoffs.right == 0, "{stats:?}");
}

#[tokio::test]
async fn rooms_may_be_text_or_huge_and_a_fake_host_needs_nobody() {
    let fleet = Fleet::start(FleetSpec::pairs(Dialect::Sglang, 1, 1)).await.unwrap();
    let (p, d) = (&fleet.prefill()[0], &fleet.decode()[0]);
    let body = json!({"model": "any", "prompt": PROMPT, "max_tokens": 3});
    for room in [json!("12"), json!(9_223_372_036_854_775_808_u64)] {
        let leg = with(&in_room(p, &body, 0), json!({"bootstrap_room": room}));
        let (_, decode) = sglang_pair(p, d, "/v1/completions", &leg).await;
        assert_eq!(decode.text(), expected_text(PromptId::of_text(PROMPT), 3), "{}", decode.body);
    }
    let warm = with(&in_room(p, &body, 5), json!({"bootstrap_host": "2.2.2.2"}));
    assert_eq!(post(d, "/v1/completions", &warm).await.status, 200);
    assert_eq!(post(p, "/v1/completions", &warm).await.status, 200);
    let stats = fleet.settle().await;
    assert!(stats.all_free() && stats.handoffs.made == 2, "{stats:?}");
}
