//! vLLM with Mooncake: the decode is told the id of the engine that lives now, whatever was registered and
//! whoever lived at that address before. The engines' own part is scripted: what counts is what they are told.

#[path = "../fake_worker/mod.rs"]
#[allow(dead_code, reason = "each test binary uses a part")]
mod fake_worker;

use baton_core::fleet::Role;
use baton_sim::Dialect;
use serde_json::{Value, json};

use crate::support::{Ask, House, PROMPT, Plan, Seen, Step};
use fake_worker::FakeWorker;

const ANSWER: &str = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"finish_reason":"length","message":{"role":"assistant","content":"a"}}]}"#;

fn ids(engines: &[&str]) -> String {
    let entry = |(rank, id): (usize, &&str)| (rank.to_string(), json!({"engine_id": id, "worker_addr": {}}));
    Value::Object(engines.iter().enumerate().map(entry).collect()).to_string()
}

/// A pair whose prefill was registered with an id that is none any more.
async fn house(bootstrap: &FakeWorker) -> House {
    let port: u16 = bootstrap.url().rsplit(':').next().unwrap().parse().unwrap();
    let register = move |spec: &mut baton_gateway::registry::Spec| {
        spec.kv_connector = Some("MooncakeConnector".into());
        if spec.role == Role::Prefill {
            (spec.kv_engine_id, spec.bootstrap_port) = (Some("e-0".into()), Some(port));
        }
    };
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries();
    let mut house = plan.registered(register).open().await;
    house.taps.iter().for_each(|tap| tap.always([Step::json(200, "", ANSWER)]));
    house.no_after();
    house
}

/// The engine as the decode was told it.
fn engine(seen: &Seen) -> Value {
    seen.json()["kv_transfer_params"]["remote_engine_id"].clone()
}

/// The next answer of the prefill is the last one on its connection.
fn last_word(house: &House) {
    house.taps[0].script([Step::json(200, "connection: close\r\n", ANSWER), Step::Fin]);
}

async fn ask(house: &House) {
    assert_eq!(Ask::chat(PROMPT, 8).post(house.address).await.status, 200);
}

#[tokio::test]
async fn a11_a_restarted_prefill_is_asked_for_its_new_id() {
    let bootstrap = FakeWorker::start().await;
    bootstrap.page("/query", 200, &ids(&["e-1"]));
    let house = house(&bootstrap).await;
    last_word(&house);
    ask(&house).await;
    let (prefill, decode) = (house.taps[0].last().json(), house.taps[1].last());
    assert_eq!(engine(&decode), "e-1", "not the registered one");
    let (tag, told) = (&prefill["kv_transfer_params"], &decode.json()["kv_transfer_params"]);
    assert_eq!(tag["do_remote_decode"], true);
    assert_eq!(tag["transfer_id"], told["transfer_id"]);
    assert_eq!(told["remote_bootstrap_addr"], bootstrap.url());
    // Nobody noticed the restart, but the next request finds its connection gone.
    bootstrap.page("/query", 200, &ids(&["e-2"]));
    ask(&house).await;
    assert_eq!(engine(&house.taps[1].last()), "e-2");
    // A worker with a new description gets a new connection; from then on it stays.
    ask(&house).await;
    // A connection that stood when the engine was asked leads to the same engine.
    let asked = bootstrap.asked_for("/query");
    ask(&house).await;
    assert_eq!((engine(&house.taps[1].last()), bootstrap.asked_for("/query")), (json!("e-2"), asked));
    house.close().await;
}

#[tokio::test]
async fn an_engine_that_does_not_tell_its_id_any_more_is_not_quoted() {
    let bootstrap = FakeWorker::start().await;
    bootstrap.page("/query", 200, &ids(&["e-1"]));
    let house = house(&bootstrap).await;
    last_word(&house);
    ask(&house).await;
    bootstrap.page("/query", 503, "");
    ask(&house).await;
    assert!(
        house.taps[1].last().json().get("kv_transfer_params").is_none(),
        "the decode computes the prompt"
    );
    let lost = house.page().await.sum("smg_pd_kv_transfer_failures_total", &[]);
    assert!((lost - 1.0).abs() < 0.1, "{lost}");
    house.close().await;
}

#[tokio::test]
async fn one_of_several_ranks_is_chosen_and_the_prefill_pinned_to_it() {
    let bootstrap = FakeWorker::start().await;
    bootstrap.page("/query", 200, &ids(&["e_dp0", "e_dp1"]));
    let house = house(&bootstrap).await;
    for _ in 0..8 {
        ask(&house).await;
        let (prefill, decode) = (house.taps[0].last(), house.taps[1].last());
        assert_eq!(engine(&decode), format!("e_dp{}", prefill.header("x-data-parallel-rank")));
        assert_eq!(decode.header("x-data-parallel-rank"), "");
    }
    house.close().await;
}
