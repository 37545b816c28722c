//! TensorRT-LLM: the context server's answer becomes the generation request, or the client's answer; both at once only
//! where the context server has said where its KV is. The engines' own part is scripted.

use baton_core::fleet::{Engine, Role};
use baton_sim::Dialect;
use serde_json::json;

use crate::support::{Ask, Gate, House, PROMPT, Plan, Raw, SOON, Step, sse, until, within};

async fn house(args: &str, labels: &'static [(&'static str, &'static str)]) -> House {
    let register = move |spec: &mut baton_gateway::registry::Spec| {
        (spec.engine, spec.kv_connector) = (Some(Engine::Trtllm), None);
        if spec.role == Role::Prefill {
            spec.labels.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        }
    };
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries().args(args).registered(register);
    let mut house = plan.open().await;
    house.no_after();
    house
}

fn context_answer(finish_reason: &str) -> String {
    let params = json!({"request_type": "context_only", "ctx_request_id": 9_007_199_254_740_993_u64, "disagg_request_id": 5,
        "first_gen_tokens": [42]});
    json!({"id": "c", "object": "chat.completion", "model": "m", "prompt_token_ids": [1, 2],
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": finish_reason,
            "disaggregated_params": params}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}})
    .to_string()
}

#[tokio::test]
async fn the_generation_request_carries_what_the_context_server_returned() {
    let house = house("", &[]).await;
    house.taps[0].script([Step::json(200, "", &context_answer("length"))]);
    house.taps[1].script([Step::json(200, "", r#"{"id":"g","choices":[]}"#)]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!((reply.status, reply.json()["id"].as_str()), (200, Some("g")));
    let (context, generation) = (house.taps[0].last().json(), house.taps[1].last().json());
    assert_eq!(context["disaggregated_params"]["request_type"], "context_only");
    assert_eq!((&context["max_tokens"], &generation["max_tokens"]), (&json!(1), &json!(8)));
    assert_eq!(generation["disaggregated_params"]["request_type"], "generation_only");
    assert_eq!(generation["disaggregated_params"]["ctx_request_id"], json!(9_007_199_254_740_993_u64));
    assert_eq!(generation["prompt_token_ids"], json!([1, 2]));
    house.close().await;
}

#[tokio::test]
async fn ua12_an_answer_that_its_first_token_ended_is_the_clients() {
    let house = house("", &[]).await;
    house.taps[0].always([Step::json(200, "", &context_answer("stop"))]);
    let plain = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!((plain.status, plain.header("content-type")), (200, "application/json"));
    assert_eq!(plain.json()["choices"][0]["message"]["content"], "x");
    assert!(!plain.text().contains("disaggregated_params"));
    let streamed = Ask::chat(PROMPT, 8).streamed().post(house.address).await;
    assert_eq!((streamed.status, streamed.header("content-type")), (200, "text/event-stream"));
    let chunk = &streamed.events()[0];
    assert_eq!(
        (&chunk["object"], &chunk["choices"][0]["delta"]["content"]),
        (&json!("chat.completion.chunk"), &json!("x"))
    );
    assert_eq!(chunk["choices"][0]["finish_reason"], "stop");
    assert!(streamed.text().ends_with("data: [DONE]\n\n"));
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (2, 0), "nothing is left to generate");
    let served = house.page().await.sum("baton_exchanges_total", &[r#"outcome="served""#]);
    assert!((served - 2.0).abs() < 0.1, "{served}");
    house.close().await;
}

#[tokio::test]
async fn both_at_once_needs_the_context_servers_word() {
    let house = house("--trt-schedule-style generation_first", &[]).await;
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (503, "trtllm_context_unknown".into()));
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (0, 0));
    house.close().await;
}

#[tokio::test]
async fn a_context_leg_that_fails_ends_the_generation_leg() {
    let info = &[("ctx_info_endpoint", "tcp://127.0.0.1:5555"), ("ctx_dp_rank", "0")];
    let house = house("--trt-schedule-style generation_first --trt-machine-id 7", info).await;
    let gate = Gate::default();
    house.taps[0].script([Step::Wait(gate.clone()), Step::json(400, "", r#"{"error":"too long"}"#)]);
    house.taps[1].script([Step::Never]);
    let address = house.address;
    let reply = tokio::spawn(async move { Ask::chat(PROMPT, 8).streamed().post(address).await });
    until("both legs are sent", || house.taps.iter().all(|tap| tap.count() == 1)).await;
    gate.open();
    let reply = reply.await.unwrap();
    assert_eq!(reply.error(), (400, "prefill_bad_request".into()));
    let generation = house.taps[1].last();
    until("the generation leg is dropped", || generation.is_gone()).await;
    let context = house.taps[0].last().json()["disaggregated_params"].clone();
    let generation = generation.json()["disaggregated_params"].clone();
    assert_eq!(context["disagg_request_id"], generation["ctx_request_id"]);
    assert_eq!(context["disagg_request_id"].as_u64().unwrap() >> 12 & 0x3ff, 7, "this gateway's ids");
    assert_eq!(generation["ctx_info_endpoint"], "tcp://127.0.0.1:5555");
    house.close().await;
}

#[tokio::test]
async fn kv_that_did_not_come_is_another_attempt_and_a_clients_mistake_is_none() {
    let lost =
        r#"{"object":"error","message":"Error in kv cache transfer for generation requests","code":400}"#;
    let plan = Plan::pairs(Dialect::Trtllm, 1, 1).engines(|spec| spec.timeout_scale = 0.01);
    let mut house = plan.tapped().open().await;
    house.taps[1].script([Step::json(400, "", lost)]);
    Ask::chat(PROMPT, 8).served(house.address).await;
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (2, 2), "with fresh ids, from the prompt on");
    house.taps[1].script([Step::json(400, "", r#"{"object":"error","message":"no such token","code":400}"#)]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (400, "decode_bad_request".into()));
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (3, 3));
    house.expire_what_was_stranded();
    house.no_after();
    house.close().await;
}

#[tokio::test]
async fn a_generation_leg_that_goes_away_between_its_head_and_the_contexts_answer_is_noticed() {
    let info = &[("ctx_info_endpoint", "tcp://127.0.0.1:5555"), ("ctx_dp_rank", "0")];
    let house = house("--trt-schedule-style generation_first", info).await;
    let gate = Gate::default();
    // The context server waits for somebody who fetches the KV.
    house.taps[0].script([Step::Never]);
    house.taps[1].script([
        Step::stream_head(""),
        Step::chunk(": begun\n\n"),
        Step::Wait(gate.clone()),
        Step::Reset,
    ]);
    let address = house.address;
    let reply = tokio::spawn(async move { Ask::chat(PROMPT, 8).streamed().post(address).await });
    until("both legs are sent", || house.taps.iter().all(|tap| tap.count() == 1)).await;
    gate.open();
    let reply = within(SOON, "the answer", reply).await.unwrap();
    assert_eq!(reply.error(), (502, "decode_read_failed".into()));
    let context = house.taps[0].last();
    until("the context leg is dropped", || context.is_gone()).await;
    house.close().await;
}

#[tokio::test]
async fn what_came_before_the_contexts_answer_comes_first() {
    let info = &[("ctx_info_endpoint", "tcp://127.0.0.1:5555"), ("ctx_dp_rank", "0")];
    let house = house("--trt-schedule-style generation_first", info).await;
    let gate = Gate::default();
    house.taps[0].script([Step::Wait(gate.clone()), Step::json(200, "", &context_answer("length"))]);
    // More than is read before its time.
    let long = format!("data: {{\"text\":\"{}\"}}\n\n", "x".repeat(90_000));
    let pieces =
        ["data: {\"text\":\"a\"}\n\n", &long, &long, "data: {\"text\":\"z\"}\n\n", "data: [DONE]\n\n"];
    house.taps[1].script(sse(&pieces));
    let address = house.address;
    let reply = tokio::spawn(async move { Ask::chat(PROMPT, 8).streamed().post(address).await });
    until("both legs are sent", || house.taps.iter().all(|tap| tap.count() == 1)).await;
    gate.open();
    let reply = reply.await.unwrap();
    assert_eq!((reply.status, reply.broken, reply.text() == pieces.concat()), (200, false, true));
    house.close().await;
}

const INFO: &[(&str, &str)] = &[("ctx_info_endpoint", "tcp://127.0.0.1:5555"), ("ctx_dp_rank", "0")];

#[tokio::test]
async fn aibrix_k21_no_failure_of_a_context_leg_is_followed_by_a_question() {
    let cases: [(&str, Vec<Step>, u16); 5] = [
        ("http_status", vec![Step::json(500, "", r#"{"error":"no"}"#)], 500),
        ("transport", vec![Step::Reset], 502),
        ("transport", vec![Step::say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"), Step::Fin], 502),
        ("bad_response", vec![Step::json(200, "", "that is all")], 502),
        ("timeout", vec![Step::Never], 504),
    ];
    for (class, steps, status) in cases {
        let args = "--trt-schedule-style generation_first --request-timeout-secs 0.5";
        let mut house = house(args, INFO).await;
        house.taps[0].script(steps);
        house.taps[1].script([Step::Never]);
        let reply = Ask::chat(PROMPT, 8).post(house.address).await;
        assert_eq!(reply.status, status, "{class}: {}", reply.text());
        house.quiet().await;
        assert!(house.taps.iter().all(|tap| tap.aborts().is_empty()), "{class}");
        assert_eq!(house.page().await.sum("gateway_pd_decode_abort_total", &[]), 0.0, "{class}");
        until("the other leg is closed", || house.taps[1].last().is_gone()).await;
        house.close().await;
    }
}

#[tokio::test]
async fn aibrix_k21_a_client_that_leaves_takes_the_context_leg_along() {
    let mut house = house("--trt-schedule-style generation_first", INFO).await;
    house.taps.iter().for_each(|tap| tap.script([Step::Never]));
    let ask = Ask::chat(PROMPT, 8);
    let raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    until("both legs are there", || house.taps.iter().all(|tap| tap.count() == 1)).await;
    drop(raw);
    until("both legs are closed", || house.taps.iter().all(|tap| tap.last().is_gone())).await;
    house.quiet().await;
    assert!(house.taps.iter().all(|tap| tap.aborts().is_empty()));
    house.close().await;
}
