//! The worker that answers owes output and falls silent.

use baton_sim::{Dialect, FaultKind, FleetSpec, Where};
use serde_json::json;

use crate::support::{Ask, Gate, House, PROMPT, Plan, SOON, Step, fault, on, until_within};

const PIECE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";

/// Both engines are scripted: a prefill that has done its work, and a decode to be told.
async fn scripted(args: &str) -> House {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().args(args).open().await;
    house.taps[0].script([Step::json(200, "", "{}")]);
    house
}

/// The watchdog barked so often in this phase, and so many requests failed by it.
async fn counted(house: &House, phase: &str, failed: f64) {
    let page = house.page().await;
    let phase = format!("phase=\"{phase}\"");
    assert_eq!(page.sum("gateway_pd_decode_watchdog_total", &[&phase]), failed);
    assert_eq!(page.sum("gateway_pd_decode_watchdog_total", &[]), failed);
    let by = [r#"status="pd_decode_watchdog""#, r#"status_code="504""#, r#"model="sim""#];
    assert_eq!(page.sum("gateway_request_model_fail_total", &by), failed);
    assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="served""#]), 0.0);
}

#[tokio::test]
async fn a_stream_without_a_first_piece_is_a_504() {
    let house = scripted("--decode-first-response-timeout-secs 0.15").await;
    house.taps[1].script([Step::Never]);
    let reply = Ask::chat(PROMPT, 8).streamed().post(house.address).await;
    assert_eq!(reply.error(), (504, "pd_decode_watchdog".to_owned()));
    assert_eq!(reply.header("x-error-pd-decode"), "true");
    assert!(reply.text().contains("did not start responding within 150ms"), "{}", reply.text());
    until_within(SOON, "the leg is closed", || house.taps[1].last().is_gone()).await;
    assert_eq!((house.blamed(0), house.blamed(1)), (0, 1));
    counted(&house, "first_response", 1.0).await;
    house.close().await;
}

#[tokio::test]
async fn a_head_does_not_stop_the_clock() {
    let house = scripted("--decode-first-response-timeout-secs 0.15").await;
    house.taps[1].script([Step::stream_head(""), Step::Never]);
    let reply = Ask::chat(PROMPT, 8).streamed().post(house.address).await;
    assert_eq!((reply.status, reply.broken), (200, false), "{}", reply.text());
    assert_eq!((reply.cut_code(), reply.events().len()), ("pd_decode_watchdog".to_owned(), 1));
    counted(&house, "first_response", 1.0).await;
    house.close().await;
}

#[tokio::test]
async fn a_prefill_that_still_works_is_waited_for() {
    let args = "--decode-first-response-timeout-secs 0.1 --decode-response-timeout-secs 0.1";
    for streamed in [false, true] {
        let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().args(args).open().await;
        let done = Gate::default();
        let body = [Step::chunk("{}"), Step::last_chunk()];
        house.taps[0].script([&[Step::Wait(done.clone()), Step::stream_head("")], &body[..]].concat());
        let plain = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n";
        let head = if streamed { Step::stream_head("") } else { Step::say(plain) };
        house.taps[1].script([head, Step::Never]);
        let ask = Ask::chat(PROMPT, 8).with(json!({"stream": streamed}));
        let address = house.address;
        let asked = tokio::spawn(async move { ask.post(address).await });
        // Longer than the limit, as far as a look at the metrics takes.
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 250 {
            assert!(!asked.is_finished());
            house.page().await;
        }
        done.open();
        let reply = asked.await.unwrap();
        assert_eq!((reply.status, reply.broken), (200, !streamed), "{}", reply.text());
        counted(&house, "first_response", 1.0).await;
        house.close().await;
    }
}

#[tokio::test]
async fn pieces_in_time_keep_a_stream_alive_until_they_stop() {
    let house =
        scripted("--decode-first-response-timeout-secs 5 --decode-stream-idle-timeout-secs 0.3").await;
    let gate = Gate::default();
    let mut steps = vec![Step::stream_head("")];
    steps.extend((0..6).flat_map(|_| [Step::chunk(PIECE), Step::Wait(gate.clone())]));
    steps.extend([Step::chunk(PIECE), Step::Never]);
    house.taps[1].script(steps);
    let mut stream = Ask::chat(PROMPT, 8).streamed().stream(house.address).await;
    for pieces in 1..=7 {
        stream.read_events(pieces).await;
        gate.pass_one();
    }
    let reply = stream.rest().await;
    assert_eq!((reply.cut_code(), reply.events().len()), ("pd_decode_watchdog".to_owned(), 8));
    assert!(reply.text().contains("fell silent for 300ms"), "{}", reply.text());
    counted(&house, "stream_idle", 1.0).await;
    house.close().await;
}

#[tokio::test]
async fn an_answer_in_one_piece_has_a_limit_of_its_own() {
    let house = scripted("--decode-response-timeout-secs 0.15 --decode-first-response-timeout-secs 0").await;
    house.taps[1].script([Step::Never]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (504, "pd_decode_watchdog".to_owned()));
    assert!(reply.text().contains("did not finish responding within 150ms"), "{}", reply.text());
    counted(&house, "first_response", 1.0).await;
    house.close().await;
}

#[tokio::test]
async fn the_other_engines_are_watched_too() {
    let args = "--decode-first-response-timeout-secs 0.2";
    let mut house =
        Plan::pairs(Dialect::Vllm, 1, 1).engines(|s| s.timeout_scale = 0.02).args(args).open().await;
    house.arm(1, on(Where::Decode, FaultKind::Stall)).await;
    let ask = Ask::chat(PROMPT, 8).streamed();
    let reply = ask.post(house.address).await;
    assert_eq!(reply.error(), (504, "pd_decode_watchdog".to_owned()));
    assert_eq!((reply.header("x-error-pd-decode"), house.blamed(1)), ("true", 1));
    counted(&house, "first_response", 1.0).await;
    // The decode may have been told of the KV: it is left to its lease.
    house.may_expire(1);
    house.close().await;

    let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).args(args).open().await;
    house.arm(0, fault(FaultKind::Stall)).await;
    let reply = ask.post(house.address).await;
    assert_eq!(reply.error(), (504, "pd_decode_watchdog".to_owned()));
    assert_eq!(reply.header("x-error-pd-decode"), "");
    assert!(reply.text().contains("The whole worker did not start responding"), "{}", reply.text());
    house.close().await;
}

#[tokio::test]
async fn one_silent_sample_fails_the_request_once() {
    let house = scripted("--decode-first-response-timeout-secs 0.3").await;
    house.taps[0].always([Step::json(200, "", "{}")]);
    house.taps[1].always([Step::Never]);
    let reply = Ask::chat(PROMPT, 8).streamed().with(json!({"n": 3})).post(house.address).await;
    assert_eq!(reply.error(), (504, "pd_decode_watchdog".to_owned()));
    assert_eq!(house.taps[1].count(), 3);
    counted(&house, "first_response", 1.0).await;
    house.close().await;
}
