//! `/v1/rerank`: both legs of SGLang meet in a room, one decode of vLLM serves it alone, and nobody takes it for a
//! request for output.

use baton_sim::{Dialect, FleetSpec, expected_score};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::support::{Plan, Reply, Step, request};

const QUERY: &str = "which fish sings by the river";
const DOCUMENTS: [&str; 4] =
    ["a book about cats", "the small fish sings", "rain", "the old river and its fish"];

fn body() -> Value {
    json!({"model": "sim", "query": QUERY, "documents": DOCUMENTS})
}

/// The documents' indexes, the best first.
fn ranking() -> Vec<usize> {
    let mut all: Vec<usize> = (0..DOCUMENTS.len()).collect();
    all.sort_by(|a, b| expected_score(QUERY, DOCUMENTS[*b]).total_cmp(&expected_score(QUERY, DOCUMENTS[*a])));
    all
}

/// Index, score and text of each row of an answer in either engine's form.
fn rows(reply: &Reply) -> Vec<(usize, f64, String)> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let json = reply.json();
    let rows = json.as_array().or_else(|| json["results"].as_array()).unwrap().clone();
    let row = |row: &Value| {
        let score = row["score"].as_f64().or_else(|| row["relevance_score"].as_f64()).unwrap();
        let text = row["document"].as_str().or_else(|| row["document"]["text"].as_str()).unwrap_or_default();
        (row["index"].as_u64().unwrap() as usize, score, text.to_owned())
    };
    rows.iter().map(row).collect()
}

fn check(reply: &Reply) {
    let right = |at: usize| (at, expected_score(QUERY, DOCUMENTS[at]), DOCUMENTS[at].to_owned());
    assert_eq!(rows(reply), ranking().into_iter().map(right).collect::<Vec<_>>(), "{}", reply.text());
}

#[tokio::test]
async fn smg_a25_both_legs_of_sglang_meet_in_one_room_and_say_the_same() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    for path in ["/v1/rerank", "/rerank"] {
        let reply = Reply::post(house.address, path, &body()).await;
        check(&reply);
        let (prefill, decode) = (house.taps[0].last(), house.taps[1].last());
        assert_eq!(prefill.body, decode.body);
        assert_eq!((prefill.path.as_str(), decode.path.as_str()), ("/v1/rerank", "/v1/rerank"));
        let leg = prefill.json();
        assert!(leg["bootstrap_room"].is_u64() && leg["bootstrap_port"].is_u64(), "{leg}");
        let sent = body().to_string();
        assert!(prefill.body.starts_with(&sent.as_bytes()[..sent.len() - 1]), "{leg}");
        assert_eq!(reply.header("x-smg-routed-worker-id"), house.url(1));
    }
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (8, 8), "{stats:?}");
    house.close().await;
}

#[tokio::test]
async fn one_decode_of_vllm_gets_it_untouched() {
    for connector in [Some("NixlConnector"), Some("MooncakeStoreConnector"), None] {
        let plan = Plan::pairs(Dialect::Vllm, 1, 1).tapped();
        let house = plan.registered(move |spec| spec.kv_connector = connector.map(Into::into)).open().await;
        let sent = format!(
            "{{\"documents\" :{},\n\"n\":2,\"max_tokens\":\"x\",\"stream\":1,\"query\":\"{QUERY}\",\"model\":\"sim\",\"top_n\":0}}",
            json!(DOCUMENTS)
        );
        let ask = request(Method::POST, "/v1/rerank", &[], Bytes::from(sent.clone()));
        check(&Reply::send(house.address, ask).await);
        assert_eq!((house.taps[0].count(), house.taps[1].count()), (0, 1), "{connector:?}");
        assert_eq!(&house.taps[1].last().body[..], sent.as_bytes());
        assert_eq!(house.engine(0).stats().requests.accepted, 0);
        house.close().await;
    }
}

/// SMG 1.13 takes the first of a list of results for what the prefill hands over.
#[tokio::test]
async fn a_list_for_an_answer_is_relayed_as_it_is() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    let answer = r#"[ {"index":0, "score":0.10,"kv_transfer_params":{"do_remote_prefill":true}} ]"#;
    house.taps[1].script([Step::json(200, "x-engine: e\r\n", answer)]);
    let reply = Reply::post(house.address, "/rerank", &body()).await;
    assert_eq!((reply.status, reply.text().as_str(), reply.header("x-engine")), (200, answer, "e"));
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (0, 1));
    house.close().await;
}

#[tokio::test]
async fn a_whole_worker_gets_it_untouched() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::new(FleetSpec::whole(dialect, 1)).tapped().open().await;
        check(&Reply::post(house.address, "/v1/rerank", &body()).await);
        assert_eq!(house.taps[0].last().json(), body());
        house.close().await;
    }
}

#[tokio::test]
async fn the_best_few_and_no_documents_are_the_engines_to_give() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).open().await;
    let mut few = body();
    (few["top_n"], few["return_documents"]) = (json!(2), json!(false));
    let reply = Reply::post(house.address, "/v1/rerank", &few).await;
    let got: Vec<(usize, String)> = rows(&reply).into_iter().map(|(at, _, text)| (at, text)).collect();
    assert_eq!(got, ranking()[..2].iter().map(|at| (*at, String::new())).collect::<Vec<_>>());
    let mut none = body();
    none["documents"] = json!([]);
    let reply = Reply::post(house.address, "/v1/rerank", &none).await;
    assert_eq!(reply.error(), (400, "prefill_bad_request".into()), "{}", reply.text());
    house.close().await;
}

#[tokio::test]
async fn it_is_tried_again_and_counted_as_any_other_request() {
    let house = Plan::pairs(Dialect::Vllm, 1, 2).tapped().open().await;
    for tap in &house.taps[1..] {
        tap.script([Step::json(503, "", "{}")]);
    }
    check(&Reply::post(house.address, "/v1/rerank", &body()).await);
    assert_eq!(house.taps[1].count() + house.taps[2].count(), 3);
    let page = house.page().await;
    assert_eq!(page.sum("smg_router_requests_total", &[r#"endpoint="rerank""#]), 1.0);
    assert_eq!(page.sum("smg_http_requests_total", &[r#"path="/v1/rerank""#]), 1.0);
    assert_eq!(page.sum("smg_worker_retries_total", &[r#"endpoint="rerank""#]), 2.0);
    assert_eq!(page.sum("smg_pd_kv_connector_mode_total", &[]), 0.0, "no connector has a part in it");
    house.close().await;
}
