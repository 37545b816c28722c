//! `/v1/responses`, proxied: the answer, its usage, and how its streams end.

use baton_sim::Dialect;
use serde_json::json;

use super::{Talk, named};
use crate::support::{House, PROMPT, Plan, Step, sse};

#[tokio::test]
async fn both_engines_give_the_exact_text_and_streams_tell_their_usage() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        for at in 0..4 {
            let talk = Talk::responses(&format!("{PROMPT} number {at}, and so on by the river"), 15);
            let talk = if at % 2 == 0 { talk } else { talk.streamed() };
            let reply = talk.served(house.address).await;
            assert!(reply.header("x-request-id").starts_with("resp-"));
        }
        let stats = house.stats().await;
        assert_eq!((stats.handoffs.made, stats.handoffs.right), (4, 4), "{stats:?}");
        let page = house.page().await;
        let of = |kind| page.sum("smg_router_tokens_total", &[r#"endpoint="responses""#, kind]);
        assert_eq!(of(r#"token_type="output""#), 60.0);
        assert!(of(r#"token_type="input""#) > 0.0);
        assert_eq!(page.sum("smg_router_ttft_seconds_count", &[r#"endpoint="responses""#]), 2.0);
        house.close().await;
    }
}

#[tokio::test]
async fn what_the_engine_stores_is_asked_of_it_untouched() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    let members = json!({"store": true, "previous_response_id": null, "metadata": {"a": "b"}, "include": ["reasoning"],
                         "max_output_tokens": 16});
    Talk::responses(PROMPT, 16).with(members.clone()).served(house.address).await;
    let (prefill, decode) = (house.taps[0].last().json(), house.taps[1].last().json());
    for (key, value) in members.as_object().unwrap() {
        assert_eq!(&decode[key], value);
        assert!(key == "max_output_tokens" || &prefill[key] == value, "{key}");
    }
    assert_eq!((&prefill["max_output_tokens"], prefill.get("max_tokens")), (&json!(1), None));
    house.close().await;
}

const DELTA: &str =
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n";
const OVER: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":2}}}\n\n";

#[tokio::test]
async fn a_stream_that_said_all_lost_nothing_by_a_break() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    let talk = Talk::responses(PROMPT, 1).streamed();
    house.taps[1].script([Step::stream_head(""), Step::chunk(DELTA), Step::chunk(OVER), Step::Reset]);
    let reply = talk.post(house.address).await;
    assert_eq!((reply.status, reply.broken, reply.text()), (200, false, format!("{DELTA}{OVER}")));
    let page = house.page().await;
    assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="served""#]), 1.0);
    assert_eq!(page.sum("smg_router_tokens_total", &[r#"token_type="output""#]), 2.0);
    house.close().await;
}

/// In the API's own form, numbered on: an SDK that knows the API's events reads it as one of them.
#[tokio::test]
async fn a_stream_that_breaks_before_its_end_says_so() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    for (broken, number) in [("", 2), ("event: response.output_text.delta\ndata: {\"type\":", 3)] {
        let said = format!("{DELTA}{DELTA}{broken}");
        house.taps[1].script([Step::stream_head(""), Step::chunk(&said), Step::Fin]);
        let reply = Talk::responses(PROMPT, 1).streamed().post(house.address).await;
        assert_eq!((reply.status, reply.broken), (200, false));
        let text = reply.text();
        let error = text.strip_prefix(&said).unwrap_or_else(|| panic!("{text}")).trim_start();
        let named = named(error);
        assert_eq!((named.len(), named[0].0.as_str()), (1, "error"), "{text}");
        let data = &named[0].1;
        assert_eq!((&data["type"], &data["code"]), (&json!("error"), &json!("decode_read_failed")));
        assert_eq!((&data["sequence_number"], &data["param"]), (&json!(number), &json!(null)));
        assert!(data["message"].as_str().unwrap().contains("decode"), "{data}");
        assert!(!text.contains("[DONE]"), "this API has no such mark");
    }
    house.close().await;
}

#[tokio::test]
async fn a_failed_response_is_passed_on_as_it_is() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"m\"}}}\n\n";
    for tap in &house.taps {
        tap.script(sse(&[failed]));
    }
    let reply = Talk::responses(PROMPT, 8).streamed().post(house.address).await;
    assert_eq!(reply.text(), failed);
    assert_eq!(named(&reply.text()).len(), 1);
    house.close().await;
}
