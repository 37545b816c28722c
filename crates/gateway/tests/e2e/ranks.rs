//! Engines with several data-parallel ranks under `--dp-aware`: a worker for each rank, at one address.

use std::collections::BTreeSet;

use baton_core::fleet::Role;
use baton_sim::{Dialect, Kind};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::support::{Ask, House, PROMPT, Plan, Reply, Step, request, until};

const ANSWER: &str =
    r#"{"id":"x","object":"text_completion","choices":[{"index":0,"finish_reason":"length","text":"a"}]}"#;

fn ask(at: usize) -> Ask {
    Ask::completion(&format!("{PROMPT} {at}"), 5)
}

async fn listed(house: &House) -> Vec<Value> {
    let list = Reply::get(house.address, "/workers").await.json();
    list["workers"].as_array().unwrap().clone()
}

fn at(url: &str) -> String {
    format!("/workers/{}", url.replace(':', "%3A").replace('/', "%2F"))
}

/// A policy that sends everything to one worker: among the ranks of its engine the tokens decide.
#[tokio::test]
async fn the_rank_with_the_fewest_tokens_is_taken() {
    let plan = Plan::pairs(Dialect::Sglang, 1, 1).engines(|spec| spec.dp_size = 2);
    let house =
        plan.args("--dp-aware --dp-minimum-tokens-scheduler --policy consistent_hashing").open().await;
    let seats: Vec<_> = house.gateway().registry.load_full().decode().to_vec();
    let mut busy = seats[0].load.take();
    busy.carry(1000);
    for _ in 0..4 {
        let reply = ask(1).served(house.address).await;
        assert_eq!(reply.header("x-smg-routed-worker-id"), seats[1].worker.url);
    }
    drop(busy);
    house.close().await;
}

#[tokio::test]
async fn a8_sglang_ranks_are_workers_of_their_own_and_named_in_both_legs() {
    let plan = Plan::pairs(Dialect::Sglang, 1, 1).engines(|spec| spec.dp_size = 2).tapped();
    let mut house = plan.args("--dp-aware --policy round_robin").open().await;
    let workers = listed(&house).await;
    let (prefill, decode) = (house.url(0), house.url(1));
    let urls: BTreeSet<String> = workers.iter().map(|w| w["url"].as_str().unwrap().to_owned()).collect();
    let expected = [&prefill, &decode].into_iter().flat_map(|url| (0..2).map(move |r| format!("{url}@{r}")));
    assert_eq!(urls, expected.collect());
    for w in &workers {
        let (url, rank) = w["url"].as_str().unwrap().rsplit_once('@').unwrap();
        assert_eq!((&w["dp_base_url"], &w["dp_size"]), (&json!(url), &json!(2)));
        assert_eq!((w["dp_rank"].to_string().as_str(), w["runtime_type"].as_str()), (rank, Some("sglang")));
    }
    let mut answered = BTreeSet::new();
    for at in 0..8 {
        let reply = ask(at).post(house.address).await;
        ask(at).check(&reply);
        answered.insert(reply.header("x-smg-routed-worker-id").to_owned());
    }
    assert_eq!(answered, (0..2).map(|r| format!("{decode}@{r}")).collect());
    let (mut prefills, mut decodes) = (BTreeSet::new(), BTreeSet::new());
    for leg in house.taps[0].seen() {
        let body = leg.json();
        let room = &body["bootstrap_room"];
        let other = house.taps[1].seen().into_iter().find(|seen| &seen.json()["bootstrap_room"] == room);
        let other = other.unwrap().json();
        let rank = body["routed_dp_rank"].as_u64().unwrap();
        assert_eq!((leg.path.as_str(), room.as_u64().unwrap() % 2), ("/v1/completions", rank));
        assert_eq!(other["disagg_prefill_dp_rank"], rank);
        assert!(body.get("disagg_prefill_dp_rank").is_none());
        prefills.insert(rank);
        decodes.insert(other["routed_dp_rank"].as_u64().unwrap());
    }
    assert_eq!((prefills, decodes), ([0, 1].into(), [0, 1].into()));
    let page = house.page().await;
    for url in &urls {
        assert!(page.sum("smg_worker_requests_total", &[&format!("worker=\"{url}\"")]) > 0.0, "{url}");
    }
    // The address stands for all of its ranks.
    let again = Reply::post(house.address, "/workers", &json!({"url": decode})).await;
    assert_eq!(again.status, 409, "{}", again.text());
    let patch = Bytes::from_static(br#"{"priority":7}"#);
    let patched = Reply::send(house.address, request(Method::PATCH, &at(&decode), &[], patch)).await;
    assert_eq!(patched.status, 202, "{}", patched.text());
    let sevens = listed(&house).await.iter().filter(|w| w["priority"] == 7).count();
    assert_eq!(sevens, 2);
    let put = Bytes::from(json!({"url": decode}).to_string());
    assert_eq!(Reply::send(house.address, request(Method::PUT, &at(&decode), &[], put)).await.status, 400);
    let one = request(Method::DELETE, &at(&format!("{decode}@1")), &[], Bytes::new());
    assert_eq!(Reply::send(house.address, one).await.status, 202);
    until("one rank has left", || house.gateway().registry.load_full().len() == 3).await;
    ask(9).served(house.address).await;
    house.note_seats();
    let all = request(Method::DELETE, &at(&prefill), &[], Bytes::new());
    assert_eq!(Reply::send(house.address, all).await.status, 202);
    until("all ranks of the prefill have left", || house.gateway().registry.load_full().len() == 1).await;
    assert_eq!(ask(10).post(house.address).await.error(), (503, "no_available_workers".into()));
    house.close().await;
}

#[tokio::test]
async fn an_engine_of_one_rank_stays_what_it_was() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).args("--dp-aware").tapped().open().await;
    ask(0).served(house.address).await;
    assert!(house.taps[0].last().json().get("routed_dp_rank").is_none());
    assert_eq!(listed(&house).await[0]["url"], house.url(0));
    house.close().await;
}

#[tokio::test]
async fn without_the_flag_ranks_are_the_engines_own_matter() {
    let plan = Plan::pairs(Dialect::Sglang, 1, 1).engines(|spec| spec.dp_size = 2).tapped();
    let house = plan.open().await;
    ask(0).served(house.address).await;
    assert!(house.taps[0].last().json().get("routed_dp_rank").is_none());
    assert_eq!(listed(&house).await.len(), 2);
    house.close().await;
}

#[tokio::test]
async fn mooncake_ranks_are_found_where_they_register() {
    let plan = Plan::pairs(Kind::Mooncake, 1, 1).tapped().engines(|spec| {
        spec.dp_size = if spec.role == baton_sim::Role::Prefill { 2 } else { 1 };
    });
    let house = plan.args("--dp-aware --policy round_robin").open().await;
    assert_eq!(listed(&house).await.len(), 3);
    let mut ranks = BTreeSet::new();
    for at in 0..6 {
        ask(at).served(house.address).await;
        ranks.insert(house.taps[0].last().header("x-data-parallel-rank").to_owned());
    }
    assert_eq!(ranks, ["0", "1"].map(str::to_owned).into());
    house.close().await;
}

#[tokio::test]
async fn b43_a_rank_that_was_told_has_its_number_in_the_engine_id() {
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).tapped().registered(|spec| {
        spec.kv_connector = Some("MooncakeConnector".into());
        if spec.role == Role::Prefill {
            // Nobody listens there, so what was registered is all that is known.
            (spec.kv_engine_id, spec.bootstrap_port) = (Some("eng-1".into()), Some(9));
            spec.labels.insert("dp_size".into(), "2".into());
        }
    });
    let mut house = plan.args("--dp-aware --policy round_robin").no_retries().open().await;
    house.no_after();
    house.taps.iter().for_each(|tap| tap.always([Step::json(200, "", ANSWER)]));
    let mut ranks = BTreeSet::new();
    for at in 0..4 {
        assert_eq!(ask(at).post(house.address).await.status, 200);
        let rank = house.taps[0].last().header("x-data-parallel-rank").to_owned();
        let params = house.taps[1].last().json()["kv_transfer_params"].clone();
        assert_eq!(params["remote_engine_id"], format!("eng-1_dp{rank}"));
        ranks.insert(rank);
    }
    assert_eq!(ranks.len(), 2);
    house.close().await;
}
