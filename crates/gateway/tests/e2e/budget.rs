//! Retries that all requests share: when they are used up, a request that failed is answered with what it failed with.

use baton_sim::{Dialect, FleetSpec};
use serde_json::json;

use crate::support::{Ask, PROMPT, Plan, Step};

const REFUSED: &str = "baton_retries_refused_total";

#[tokio::test]
async fn when_all_workers_fail_a_fifth_of_the_requests_is_tried_again() {
    let args = "--retry-budget-min-per-sec 0 --disable-circuit-breaker";
    let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().args(args).open().await;
    house.taps[0].always([Step::json(500, "", r#"{"message":"out of memory"}"#)]);
    for at in 0..50 {
        let reply = Ask::completion(&format!("{PROMPT} {at}"), 6).post(house.address).await;
        assert_eq!(reply.error(), (500, "upstream_error".into()), "what it failed with");
        assert!(reply.text().contains("out of memory"), "{}", reply.text());
    }
    assert_eq!(house.taps[0].count(), 60, "each request once, and ten again");
    let page = house.page().await;
    assert_eq!(page.sum("smg_worker_retries_total", &[]), 10.0);
    // One of them may have had all its attempts.
    let exhausted = page.sum("smg_worker_retries_exhausted_total", &[]);
    assert_eq!(page.sum(REFUSED, &[]) + exhausted, 50.0);
    house.close().await;
}

#[tokio::test]
async fn kv_that_waits_for_another_decode_is_released_when_no_retry_is_left() {
    let args = "--decode-policy round_robin --retry-budget-share 0 --retry-budget-min-per-sec 0";
    let mut house = Plan::pairs(Dialect::Vllm, 1, 2).args(args).open().await;
    house.engine(1).kill().await;
    let mut failed = 0;
    for at in 0..4 {
        let ask = Ask::completion(&format!("{PROMPT} {at}"), 8);
        let reply = ask.post(house.address).await;
        match reply.status {
            502 => {
                assert_eq!(reply.error().1, "decode_request_failed");
                failed += 1;
            }
            _ => ask.check(&reply),
        }
    }
    assert!(failed > 0, "at least one attempt met the dead decode");
    house.quiet().await;
    let page = house.page().await;
    assert_eq!(page.fates(), format!("consumed {}, released {failed}", 4 - failed));
    assert_eq!(page.sum(REFUSED, &[r#"worker_type="decode""#]), f64::from(failed));
    assert_eq!(page.sum("smg_worker_retries_exhausted_total", &[]), 0.0);
    house.close().await;
}

#[tokio::test]
async fn a_few_retries_are_there_whatever_the_traffic() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    // The first request of a gateway, and four of its attempts fail.
    for _ in 0..4 {
        house.taps[0].script([Step::json(503, "", "{}")]);
    }
    Ask::chat(PROMPT, 8).with(json!({"stream": true})).served(house.address).await;
    assert_eq!(house.page().await.sum(REFUSED, &[]), 0.0);
    house.close().await;
}
