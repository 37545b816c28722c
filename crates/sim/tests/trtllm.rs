//! TensorRT-LLM: context_first and generation_first, and what is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail this way")]

mod common;

use std::time::Duration;

use baton_sim::{EngineHandle, EngineSpec, Fleet, FleetSpec, Kind, PromptId, Stats, expected_text};
use common::{get, post, request, send, with};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";
const PROMPT: &str = "The quick cat reads a new book near the old river while the small fish sings";
const ID: u64 = (1 << 62) + 3;

fn body() -> Value {
    json!({"model": "sim", "prompt": PROMPT, "max_tokens": 6})
}

async fn pair(change: impl FnMut(&mut EngineSpec)) -> (Fleet, EngineHandle, EngineHandle) {
    let fleet = Fleet::start(FleetSpec::pairs(Kind::Trtllm, 1, 1).with(change)).await.unwrap();
    let (p, d) = (fleet.prefill()[0].clone(), fleet.decode()[0].clone());
    (fleet, p, d)
}

async fn context(p: &EngineHandle, id: u64) -> Value {
    let params = json!({"request_type": "context_only", "disagg_request_id": id, "schedule_style": 0});
    let reply = post(p, PATH, &with(&body(), json!({"disaggregated_params": params}))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn generation(context: &Value) -> Value {
    let told =
        with(&context["choices"][0]["disaggregated_params"], json!({"request_type": "generation_only"}));
    with(&body(), json!({"prompt": context["prompt_token_ids"], "disaggregated_params": told}))
}

fn right() -> String {
    expected_text(PromptId::of_text(PROMPT), 6)
}

async fn until(fleet: &Fleet, done: impl Fn(&Stats) -> bool) -> Stats {
    let stats = fleet.settle_when(Duration::from_secs(5), &done).await;
    assert!(done(&stats), "{stats:#?}");
    stats
}

#[tokio::test]
async fn the_generation_server_goes_on_after_the_context_servers_token() {
    let (fleet, p, d) = pair(|_| {}).await;
    let told = context(&p, ID).await;
    assert_eq!(told["choices"][0]["finish_reason"], "not_finished");
    let params = &told["choices"][0]["disaggregated_params"];
    assert_eq!(params["disagg_request_id"], ID);
    assert!(params["ctx_request_id"].as_u64().unwrap() > 1 << 62);
    let reply = post(&d, PATH, &generation(&told)).await;
    assert_eq!((reply.status, reply.text()), (200, right()));
    let stats = until(&fleet, |stats| stats.idle() && stats.all_free()).await;
    assert_eq!(
        (stats.handoffs.made, stats.handoffs.right, stats.tokens.generated),
        (1, 1, 1 + 6),
        "{stats:?}"
    );
}

#[tokio::test]
async fn both_at_once_meet_by_their_id() {
    let (fleet, p, d) = pair(|_| {}).await;
    let info = get(&p, "/server_info").await.json()["disaggregated_params"].clone();
    let endpoint = info["ctx_info_endpoint"][0].clone();
    let leg = with(
        &body(),
        json!({"stream": true, "disaggregated_params": {"request_type": "generation_only",
        "ctx_request_id": ID, "disagg_request_id": ID, "schedule_style": 1, "ctx_dp_rank": 0,
        "ctx_info_endpoint": endpoint}}),
    );
    let params = json!({"request_type": "context_only", "disagg_request_id": ID, "schedule_style": 1});
    let context = with(&body(), json!({"disaggregated_params": params}));
    let addr = p.addr();
    let waiting = tokio::spawn(async move { send(addr, request(PATH, &context)).await.unwrap() });
    until(&fleet, |stats| stats.requests.waiting == 1).await;
    assert_eq!(post(&d, PATH, &leg).await.streamed(), right());
    assert_eq!(waiting.await.unwrap().status, 200);
    until(&fleet, |stats| stats.idle() && stats.all_free()).await;
}

#[tokio::test]
async fn ids_are_exact_and_used_once() {
    let (fleet, p, d) = pair(|spec| spec.timeout_scale = 0.005).await;
    let told = context(&p, ID).await;
    let again = json!({"request_type": "context_only", "disagg_request_id": ID});
    let reply = post(&p, PATH, &with(&body(), json!({"disaggregated_params": again}))).await;
    assert_eq!((reply.status, reply.json()["object"].clone()), (400, json!("error")));
    for odd in [json!(-1), json!(1_u64 << 63), json!("7"), json!(1.5)] {
        let params = json!({"request_type": "context_only", "disagg_request_id": odd});
        let reply = post(&p, PATH, &with(&body(), json!({"disaggregated_params": params}))).await;
        assert!(reply.status == 400 && reply.json()["error"].is_string(), "{odd} {}", reply.body);
    }
    let mut listed = generation(&told);
    listed["n"] = json!(2);
    assert_eq!(post(&d, PATH, &listed).await.status, 400);
    let mut another = generation(&told);
    another["disaggregated_params"]["first_gen_tokens"] = json!([1]);
    assert_eq!(post(&d, PATH, &another).await.status, 400);
    assert_eq!(post(&d, PATH, &generation(&told)).await.status, 200);
    assert_eq!(post(&d, PATH, &generation(&told)).await.status, 400, "it was fetched before");
    until(&fleet, |stats| stats.idle() && stats.all_free()).await;
}

#[tokio::test]
async fn what_the_executor_cannot_read_ends_the_server_and_a_new_one_has_nothing() {
    let (fleet, p, d) = pair(|_| {}).await;
    let told = context(&p, ID).await;
    p.restart().await.unwrap();
    assert_eq!(post(&d, PATH, &generation(&told)).await.status, 400);
    for (key, value) in [("encoded_opaque_state", json!("AAEC")), ("ctx_request_id", json!(ID))] {
        let mut odd = generation(&told);
        odd["disaggregated_params"][key] = value;
        assert!(send(d.addr(), request(PATH, &odd)).await.is_err(), "{key}: the connection is reset");
        until(&fleet, |_| !d.is_up()).await;
        d.restart().await.unwrap();
    }
    assert_eq!(post(&d, PATH, &body()).await.text(), right(), "without parameters it is served whole");
    until(&fleet, |stats| stats.idle() && stats.all_free()).await;
}
