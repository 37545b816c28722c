//! Who is paired with whom over HTTP, by what engines say of themselves and operators of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use baton_core::fleet::Role;
use baton_sim::{Dialect, FleetSpec, Role as SimRole};
use serde_json::{Value, json};

use crate::support::{Ask, House, PROMPT, Plan, Reply, Step};

const STRICT: &str = "--pd-pairing-mode strict";

fn ask(at: usize) -> Ask {
    Ask::completion(&format!("{PROMPT} {at}"), 5)
}

/// Why nobody pairs, as a client reads it.
async fn refused(house: &House) -> String {
    let reply = ask(0).post(house.address).await;
    assert_eq!(reply.error(), (503, "no_compatible_pd_pair".into()));
    reply.json()["error"]["message"].as_str().unwrap().to_owned()
}

/// `pd_pairing` of each worker, in the order in which they joined.
async fn keys(house: &House) -> Vec<String> {
    let list = Reply::get(house.address, "/workers").await.json();
    let key = |w: &Value| w["pd_pairing"].as_str().unwrap().to_owned();
    list["workers"].as_array().unwrap().iter().map(key).collect()
}

async fn patch(house: &House, at: usize, labels: Value) {
    let path = format!("/workers/{}", house.seat(at).worker.id);
    let patch = serde_json::to_vec(&json!({"labels": labels})).unwrap();
    let request = crate::support::request(http::Method::PATCH, &path, &[], patch.into());
    assert_eq!(Reply::send(house.address, request).await.status, 202);
}

#[tokio::test]
async fn strict_pairs_engines_over_http_by_what_they_say() {
    let house = Plan::pairs(Dialect::Sglang, 2, 2).args(STRICT).open().await;
    for at in 0..4 {
        ask(at).served(house.address).await;
    }
    assert_eq!(keys(&house).await, ["sglang/mooncake/page=16"; 4]);
    house.close().await;

    // vLLM over HTTP names no connector, so it is what was registered.
    let house = Plan::pairs(Dialect::Vllm, 1, 1).args(STRICT).open().await;
    ask(0).served(house.address).await;
    assert_eq!(keys(&house).await, ["vllm/nixl/?"; 2]);
    house.close().await;
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).args(STRICT).registered(|spec| spec.kv_connector = None);
    let house = plan.open().await;
    let why = refused(&house).await;
    assert!(why.contains("mismatch in unknown transport; prefill [vllm/?/?], decode [vllm/?/?]"), "{why}");
    house.close().await;
}

#[tokio::test]
async fn pages_of_another_size_are_not_paired_until_the_operator_says_so() {
    let plan = Plan::pairs(Dialect::Sglang, 1, 1).engines(|spec| {
        if spec.role == SimRole::Decode {
            spec.block_size = 32;
        }
    });
    let house = plan.open().await;
    let why = refused(&house).await;
    assert!(why.contains("page_size") && why.contains("sglang/mooncake/page=32"), "{why}");
    // The operator's label goes before what the engine says.
    patch(&house, 1, json!({"page_size": "16"})).await;
    assert_eq!(keys(&house).await, ["sglang/mooncake/page=16"; 2]);
    ask(1).served(house.address).await;
    patch(&house, 1, json!({"page_size": "1"})).await;
    refused(&house).await;
    for at in 0..2 {
        patch(&house, at, json!({"pairing_protocol": "known to work"})).await;
    }
    assert_eq!(keys(&house).await, ["known to work"; 2]);
    ask(2).served(house.address).await;
    house.close().await;
}

#[tokio::test]
async fn legs_stay_inside_their_roleset() {
    for mode in ["off", "lenient", "strict"] {
        let engines = FleetSpec::pairs(Dialect::Sglang, 1, 1).and(FleetSpec::pairs(Dialect::Sglang, 1, 1));
        let (joined, arg) = (AtomicUsize::new(0), format!("--pd-pairing-mode {mode} --policy round_robin"));
        let plan = Plan::new(engines).args(&arg).registered(move |spec| {
            let group = joined.fetch_add(1, Ordering::Relaxed) / 2;
            spec.labels.insert("roleset-name".into(), format!("group-{group}"));
        });
        let mut house = plan.tapped().open().await;
        for at in 0..8 {
            ask(at).served(house.address).await;
        }
        for (prefill, decode) in [(0, 1), (2, 3)] {
            let rooms = |at: usize| {
                let seen = house.taps[at].seen();
                let mut rooms: Vec<u64> =
                    seen.iter().filter_map(|s| s.json()["bootstrap_room"].as_u64()).collect();
                rooms.sort_unstable();
                rooms
            };
            assert_eq!((rooms(prefill).len(), rooms(decode).len()), (4, 4), "under {mode}");
            assert_eq!(rooms(prefill), rooms(decode), "under {mode}");
        }
        assert_eq!(keys(&house).await[3], "sglang/mooncake/page=16@group-1");
        // A roleset without one of its legs serves nobody; the other one goes on.
        for at in [1, 2] {
            house.gateway().registry.remove(&house.seat(at).worker.id).unwrap();
        }
        let why = refused(&house).await;
        assert!(why.contains("roleset-name") && why.contains("@group-0"), "{why}");
        house.note_seats();
        let whole = |w: &baton_core::fleet::Worker| w.role == Role::Whole;
        assert!(!house.gateway().registry.load_full().seats().any(|s| whole(&s.worker)));
        house.close().await;
    }
}

#[tokio::test]
async fn a2_a_prefill_said_to_have_no_bootstrap_server_gets_a_null_port() {
    const ANSWER: &str = r#"{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"length"}]}"#;
    let plan = Plan::pairs(Dialect::Sglang, 1, 1).tapped().registered(|spec| {
        (spec.bootstrap_port, spec.no_bootstrap) = (None, spec.role == Role::Prefill);
    });
    let mut house = plan.open().await;
    house.no_after();
    for tap in &house.taps {
        tap.script([Step::json(200, "", ANSWER)]);
    }
    assert_eq!(ask(0).post(house.address).await.status, 200);
    for tap in &house.taps {
        assert_eq!(tap.last().json()["bootstrap_port"], Value::Null);
        assert!(tap.last().json()["bootstrap_room"].is_u64());
    }
    let shown = Reply::get(house.address, "/workers").await.json();
    assert!(shown["workers"][0].get("bootstrap_port").is_none(), "{shown}");
    house.close().await;
}
