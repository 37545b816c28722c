//! A decode that is stuck is asked by its request's name to drop it.

use baton_sim::Dialect;
use serde_json::{Value, json};

use crate::support::{Ask, Gate, House, PROMPT, Plan, Step, until};

async fn house(args: &str) -> House {
    Plan::pairs(Dialect::Sglang, 1, 1).tapped().no_retries().args(args).open().await
}

/// The prefill refuses while the decode waits for it.
async fn refused(house: &House) -> Value {
    house.taps[0].script([Step::json(500, "", r#"{"error":{"message":"no"}}"#)]);
    house.taps[1].script([Step::Never]);
    let reply = Ask::chat(PROMPT, 8).streamed().post(house.address).await;
    assert_eq!(reply.error(), (500, "prefill_internal_error".to_owned()));
    assert_eq!(reply.header("x-error-pd-prefill"), "true");
    json!({"rid": house.taps[1].last().json()["rid"]})
}

async fn counted(house: &House, result: &str, why: &str, questions: f64) {
    let page = house.page().await;
    let labels = [format!("result=\"{result}\""), format!("prefill_failure_class=\"{why}\"")];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    assert_eq!(page.sum("gateway_pd_decode_abort_total", &labels), questions);
    assert_eq!(page.sum("gateway_pd_decode_abort_total", &[]), questions);
}

#[tokio::test]
async fn aibrix_k8_a_failed_prefill_is_followed_by_two_questions() {
    let mut house = house("").await;
    let rid = refused(&house).await;
    house.quiet().await;
    assert_eq!(house.taps[1].aborts(), [rid.clone(), rid]);
    assert!(house.taps[0].aborts().is_empty());
    counted(&house, "ok", "http_status", 2.0).await;
    let failures = [r#"class="http_status""#, r#"stage="before_response""#];
    assert_eq!(house.page().await.sum("gateway_pd_prefill_failure_total", &failures), 1.0);
    let by = [r#"status="pd_prefill_failure""#, r#"status_code="500""#];
    assert_eq!(house.page().await.sum("gateway_request_model_fail_total", &by), 1.0);
    house.close().await;
}

#[tokio::test]
async fn aibrix_k8_or_by_one() {
    let mut house = house("--decode-abort-retry-delay-secs 0").await;
    let rid = refused(&house).await;
    house.quiet().await;
    assert_eq!(house.taps[1].aborts(), [rid]);
    house.close().await;
}

#[tokio::test]
async fn aibrix_k10_a_timeout_of_nought_asks_nobody() {
    let mut house = house("--decode-abort-timeout-secs 0").await;
    refused(&house).await;
    house.quiet().await;
    assert!(house.taps[1].aborts().is_empty());
    counted(&house, "skipped_disabled", "http_status", 1.0).await;
    house.close().await;
}

#[tokio::test]
async fn aibrix_k10_a_list_of_prompts_has_no_name() {
    let mut house = house("").await;
    house.taps[0].script([Step::json(500, "", "{}")]);
    house.taps[1].script([Step::Never]);
    let ask = Ask::completion(PROMPT, 8).with(json!({"prompt": ["a b", "c d"]}));
    assert_eq!(ask.post(house.address).await.status, 500);
    house.quiet().await;
    assert!(house.taps[1].aborts().is_empty());
    counted(&house, "skipped_no_rid", "http_status", 1.0).await;
    house.close().await;
}

#[tokio::test]
async fn aibrix_k12_a_silence_is_followed_by_one_question() {
    let mut house = house("--decode-first-response-timeout-secs 0.15").await;
    house.taps[0].script([Step::json(200, "", "{}")]);
    house.taps[1].script([Step::Never]);
    assert_eq!(Ask::chat(PROMPT, 8).streamed().post(house.address).await.status, 504);
    house.quiet().await;
    assert_eq!(house.taps[1].aborts(), [json!({"rid": house.taps[1].last().json()["rid"]})]);
    counted(&house, "ok", "watchdog_first_response", 1.0).await;
    house.close().await;
}

/// Failed prefill legs, by class and by whether the client's answer had begun.
async fn failures(house: &House, class: &str, stage: &str) -> f64 {
    let labels = [format!("class=\"{class}\""), format!("stage=\"{stage}\"")];
    house.page().await.sum("gateway_pd_prefill_failure_total", &[&labels[0], &labels[1]])
}

#[tokio::test]
async fn aibrix_k2_the_first_of_two_failures_is_kept() {
    for first in [0, 1] {
        let mut house = house("").await;
        let gate = Gate::default();
        let refuse = |leg| Step::json(500, "", &format!(r#"{{"error":{{"message":"leg {leg} fails"}}}}"#));
        house.taps[first].script([Step::Wait(gate.clone()), refuse(first)]);
        // The other one fails in its turn, if anybody still listens.
        house.taps[1 - first].script([
            Step::Wait(gate.clone()),
            Step::Wait(Gate::default()),
            refuse(1 - first),
        ]);
        let address = house.address;
        let asked = tokio::spawn(async move { Ask::chat(PROMPT, 8).post(address).await });
        until("both legs are there", || house.taps.iter().all(|tap| tap.count() == 1)).await;
        gate.open();
        let reply = asked.await.unwrap();
        let code = ["prefill_internal_error", "decode_internal_error"][first];
        assert_eq!(reply.error(), (500, code.to_owned()));
        assert!(reply.text().contains(&format!("leg {first} fails")), "{}", reply.text());
        house.quiet().await;
        let page = house.page().await;
        let errors = |leg: &str| page.sum("smg_worker_errors_total", &[&format!("worker_type=\"{leg}\"")]);
        let due = if first == 0 { (1.0, 0.0) } else { (0.0, 1.0) };
        assert_eq!((errors("prefill"), errors("decode")), due, "one failure is counted");
        assert_eq!(failures(&house, "http_status", "before_response").await, due.0);
        assert_eq!(house.blamed(1 - first), 0);
        house.close().await;
    }
}

#[tokio::test]
async fn aibrix_k3_a_prefill_in_turn_that_fails_is_told_as_what_it_is() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries().open().await;
    house.taps[0].script([Step::json(500, "", r#"{"error":{"message":"status 500 of the engine"}}"#)]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (500, "prefill_upstream_error".into()));
    assert_eq!(reply.header("x-error-pd-prefill"), "true");
    assert!(reply.text().contains("status 500 of the engine"), "{}", reply.text());
    assert_eq!(house.taps[1].count(), 0, "the decode is not asked");
    assert_eq!(failures(&house, "http_status", "before_response").await, 1.0);
    assert_eq!((house.in_flight(0), house.in_flight(1)), (0, 0));
    house.close().await;
}

#[tokio::test]
async fn aibrix_k6_a_prefill_that_answers_no_json_is_recorded_and_the_decode_goes_on() {
    // Before the decode's head, and after it.
    for (early, stage) in [(true, "before_response"), (false, "after_response")] {
        let mut house = house("--decode-first-response-timeout-secs 0.3").await;
        let gate = Gate::default();
        let odd = Step::json(200, "", "that is all");
        let answer = Step::json(200, "", r#"{"id":"d"}"#);
        if early {
            house.taps[0].script([odd.clone()]);
            house.taps[1].script([Step::Wait(gate.clone()), answer]);
        } else {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n";
            house.taps[0].script([Step::say(head), Step::Wait(gate.clone()), Step::say("that is all")]);
            house.taps[1].script([answer]);
        }
        let address = house.address;
        let asked = tokio::spawn(async move { Ask::chat(PROMPT, 8).post(address).await });
        if early {
            until("the prefill is over", || house.in_flight(0) == 0 && house.taps[0].count() == 1).await;
            gate.open();
        }
        assert_eq!(asked.await.unwrap().text(), r#"{"id":"d"}"#, "the decode's answer");
        gate.open();
        house.quiet().await;
        assert_eq!(failures(&house, "bad_response", stage).await, 1.0, "{stage}");
        assert!(house.taps[1].aborts().is_empty());
        assert_eq!((house.blamed(0), house.blamed(1)), (0, 0));
        // The watchdog waits for the decode as after any other prefill.
        house.taps[0].script([odd]);
        house.taps[1].script([Step::Never]);
        let reply = Ask::chat(PROMPT, 8).streamed().post(house.address).await;
        assert_eq!(reply.error(), (504, "pd_decode_watchdog".into()));
        house.quiet().await;
        counted(&house, "ok", "watchdog_first_response", 1.0).await;
        house.close().await;
    }
}

#[tokio::test]
async fn aibrix_k20_a_retry_has_another_name_and_only_the_failed_attempt_is_aborted() {
    let mut house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    house.taps[0].script([Step::Reset]);
    house.taps[1].script([Step::Never]);
    Ask::chat(PROMPT, 8).served(house.address).await;
    house.quiet().await;
    let rids: Vec<Value> = house.taps[1].seen().iter().map(|seen| seen.json()["rid"].clone()).collect();
    assert_eq!(rids.len(), 2);
    assert_ne!(rids[0], rids[1]);
    until("it was asked twice", || house.taps[1].aborts().len() == 2).await;
    assert!(house.taps[1].aborts().iter().all(|asked| asked["rid"] == rids[0]));
    counted(&house, "ok", "transport", 2.0).await;
    house.close().await;
}

#[tokio::test]
async fn a_client_that_leaves_and_an_engine_without_names_are_not_followed_by_a_question() {
    for dialect in [Dialect::Sglang, Dialect::Vllm] {
        let mut house = Plan::pairs(dialect, 1, 1).tapped().no_retries().open().await;
        match dialect {
            Dialect::Sglang => house.taps[1].script([Step::stream_head(""), Step::Never]),
            _ => house.taps[0].script([Step::json(500, "", "{}")]),
        }
        let ask = Ask::chat(PROMPT, 8).streamed();
        if dialect == Dialect::Sglang {
            house.taps[0].script([Step::json(200, "", "{}")]);
            ask.stream(house.address).await.leave();
        } else {
            assert_eq!(ask.post(house.address).await.status, 500);
        }
        house.quiet().await;
        assert!(house.taps.iter().all(|tap| tap.aborts().is_empty()));
        assert_eq!(house.page().await.sum("gateway_pd_decode_abort_total", &[]), 0.0);
        house.close().await;
    }
}
