//! Engines that fail, on each leg: what the client is told, what becomes of the other leg, who is blamed, and what a
//! retry does.

use std::future::Future;
use std::time::Duration;

use baton_sim::{Dialect, Fault, FaultKind};
use serde_json::json;

use crate::support::{Ask, House, PROMPT, Plan, Reply, SOON, fault, until, until_within};

const PREFILL: usize = 0;
const DECODE: usize = 1;
const DIALECTS: [Dialect; 2] = [Dialect::Vllm, Dialect::Sglang];

/// Runs these at the same time.
async fn all<F: Future<Output = ()> + Send + 'static>(cases: impl IntoIterator<Item = F>) {
    let running: Vec<_> = cases.into_iter().map(tokio::spawn).collect();
    for one in running {
        one.await.unwrap();
    }
}

fn leg(at: usize) -> &'static str {
    if at == PREFILL { "prefill" } else { "decode" }
}

/// A pair whose leases end soon, so that what is left to them can be awaited.
fn pair(dialect: Dialect) -> Plan {
    Plan::pairs(dialect, 1, 1).engines(|s| s.timeout_scale = 0.05)
}

fn status(status: u16, retry_after: Option<u32>) -> Fault {
    Fault { status: Some(status), retry_after, text: Some("no, because".into()), ..fault(FaultKind::Status) }
}

fn after(kind: FaultKind, chunks: u32) -> Fault {
    Fault { chunks: Some(chunks), ..fault(kind) }
}

/// How many hand-offs vLLM's prefill made that nobody fetched: they are left to their lease.
fn stranded(house: &House) -> u64 {
    let stats = house.fleet.stats().handoffs;
    stats.made - stats.right
}

/// Every leg has ended, soon.
async fn ended(house: &House) {
    until_within(SOON, "both legs have ended", || {
        house.fleet.stats().idle() && house.in_flight(PREFILL) == 0 && house.in_flight(DECODE) == 0
    })
    .await;
}

/// The code of a leg's refusal.
fn refusal_code(dialect: Dialect, at: usize, status: u16) -> String {
    if dialect == Dialect::Vllm && at == PREFILL {
        return "prefill_upstream_error".into();
    }
    let kind = match status {
        400 => "bad_request",
        404 => "not_found",
        500 => "internal_error",
        502 => "bad_gateway",
        503 => "unavailable",
        _ => "error",
    };
    format!("{}_{kind}", leg(at))
}

#[tokio::test]
async fn smg_a19_a20_b39_a_refusal_is_told_as_what_it_is_and_ends_the_other_leg() {
    let statuses = [
        (400, None, 0),
        (401, None, 0),
        (404, None, 0),
        (408, None, 0),
        (413, None, 0),
        (422, None, 0),
        (429, None, 0),
        (429, Some(7), 0),
        (500, None, 1),
        (501, None, 0),
        (502, None, 1),
        (503, None, 1),
        (503, Some(7), 0),
        (504, None, 1),
    ];
    let mut cases = Vec::new();
    for (dialect, at) in DIALECTS.into_iter().flat_map(|d| [(d, PREFILL), (d, DECODE)]) {
        for (number, (code, retry_after, blame)) in statuses.into_iter().enumerate() {
            cases.push(async move {
                let mut house = pair(dialect).no_retries().open().await;
                house.arm(at, status(code, retry_after)).await;
                let ask = Ask::chat(PROMPT, 8).with(json!({"stream": number % 2 == 0}));
                let reply = ask.post(house.address).await;
                assert_eq!(reply.error(), (code, refusal_code(dialect, at, code)), "{dialect:?} {}", leg(at));
                assert_eq!(reply.json()["error"]["message"], "no, because");
                let wait = retry_after.or((code == 429).then_some(1));
                assert_eq!(reply.header("retry-after"), wait.map_or(String::new(), |s| s.to_string()));
                ended(&house).await;
                assert_eq!(house.blamed(at), blame, "{dialect:?} {} {code}", leg(at));
                assert_eq!(
                    house.blamed(1 - at),
                    0,
                    "the other leg is not blamed: {dialect:?} {} {code}",
                    leg(at)
                );
                house.may_expire(stranded(&house));
                house.close().await;
            });
        }
    }
    all(cases).await;
}

#[tokio::test]
async fn what_may_pass_is_tried_again_and_what_will_not_is_not() {
    let mut cases = Vec::new();
    for (dialect, at) in DIALECTS.into_iter().flat_map(|d| [(d, PREFILL), (d, DECODE)]) {
        for code in [400, 404, 408, 422, 429, 500, 501, 502, 503, 504] {
            cases.push(async move {
                let mut house = pair(dialect).open().await;
                house.arm(at, status(code, None)).await;
                let ask = Ask::chat(PROMPT, 8).with(json!({"stream": code % 2 == 0}));
                let reply = ask.post(house.address).await;
                let again = [408, 429, 500, 502, 503, 504].contains(&code);
                if again {
                    ask.check(&reply);
                } else {
                    assert_eq!(reply.error().0, code);
                }
                let page = house.page().await;
                let retried =
                    page.sum("smg_worker_retries_total", &[&format!("worker_type=\"{}\"", leg(at))]);
                assert_eq!(retried, f64::from(u8::from(again)), "{dialect:?} {} {code}", leg(at));
                ended(&house).await;
                assert_eq!((house.blamed(PREFILL), house.blamed(DECODE)), (0, 0), "a success clears the row");
                house.may_expire(stranded(&house));
                house.close().await;
            });
        }
    }
    all(cases).await;
}

#[tokio::test]
async fn attempts_end_and_the_last_fault_is_told() {
    let mut cases = Vec::new();
    for (dialect, at) in DIALECTS.into_iter().flat_map(|d| [(d, PREFILL), (d, DECODE)]) {
        cases.push(async move {
            let mut house = pair(dialect).args("--retry-max-retries 3").open().await;
            house.arm(at, Fault { times: 0, ..status(503, None) }).await;
            let reply = Ask::chat(PROMPT, 8).post(house.address).await;
            assert_eq!(reply.error(), (503, refusal_code(dialect, at, 503)));
            assert_eq!((house.engine(at).stats().faults, house.blamed(at)), (3, 3));
            let page = house.page().await;
            assert_eq!(page.sum("smg_worker_retries_exhausted_total", &[]), 1.0);
            ended(&house).await;
            house.may_expire(stranded(&house));
            house.close().await;
        });
    }
    all(cases).await;
}

#[tokio::test]
async fn a_reset_before_the_head_is_a_bad_gateway_or_another_attempt() {
    let mut cases = Vec::new();
    for (dialect, at) in DIALECTS.into_iter().flat_map(|d| [(d, PREFILL), (d, DECODE)]) {
        for retries in [false, true] {
            cases.push(async move {
                let plan = if retries { pair(dialect) } else { pair(dialect).no_retries() };
                let mut house = plan.open().await;
                house.arm(at, fault(FaultKind::Reset)).await;
                let ask = Ask::chat(PROMPT, 8).with(json!({"stream": retries}));
                let reply = ask.post(house.address).await;
                if retries {
                    ask.check(&reply);
                } else {
                    assert_eq!(reply.error(), (502, format!("{}_request_failed", leg(at))), "{dialect:?}");
                    assert_eq!((house.blamed(at), house.blamed(1 - at)), (1, 0));
                }
                assert_eq!(house.engine(at).stats().faults, 1);
                ended(&house).await;
                house.may_expire(stranded(&house));
                house.close().await;
            });
        }
    }
    all(cases).await;
}

/// The stream was cut after `events` events: no more, and then the error in the stream's own form.
fn assert_cut(ask: &Ask, reply: &Reply, code: &str) {
    assert_eq!((reply.status, reply.broken), (200, false));
    assert_eq!(reply.cut_code(), code, "{}", reply.text());
    let got = ask.text_of(reply, 0);
    assert!(ask.expected().starts_with(&got) && got.len() < ask.expected().len(), "{got:?}");
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_the_error_and_is_not_tried_again() {
    let mut cases = Vec::new();
    for dialect in DIALECTS {
        for kind in [FaultKind::Reset, FaultKind::Kill] {
            for chunks in [0, 1, 5] {
                cases.push(async move {
                    let mut house =
                        Plan::pairs(dialect, 1, 2).engines(|s| s.timeout_scale = 0.05).open().await;
                    for decode in [1, 2] {
                        house.arm(decode, after(kind, chunks)).await;
                    }
                    let ask = Ask::chat(PROMPT, 20).streamed();
                    let reply = ask.post(house.address).await;
                    assert_cut(&ask, &reply, "decode_read_failed");
                    let struck: Vec<usize> = [1, 2].into_iter().filter(|d| house.blamed(*d) == 1).collect();
                    assert_eq!(
                        (struck.len(), house.blamed(PREFILL)),
                        (1, 0),
                        "one decode was asked, and blamed"
                    );
                    let asked = house.engine(1).stats().faults + house.engine(2).stats().faults;
                    assert_eq!(asked, 1, "no second try after the head: {kind:?} {chunks}");
                    let page = house.page().await;
                    assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="cut""#]), 1.0);
                    until_within(SOON, "the legs have ended", || house.fleet.stats().idle()).await;
                    house.may_expire(stranded(&house).min(1));
                    house.close().await;
                });
            }
        }
    }
    all(cases).await;
}

#[tokio::test]
async fn a_plain_answer_that_breaks_is_seen_as_broken() {
    for dialect in DIALECTS {
        for kind in [FaultKind::Reset, FaultKind::Kill] {
            let mut house = pair(dialect).open().await;
            house.arm(DECODE, after(kind, 1)).await;
            let ask = Ask::chat(PROMPT, 20);
            let reply = ask.post(house.address).await;
            assert!(reply.status == 200 && reply.broken, "{} {}", reply.status, reply.text());
            assert_eq!((house.blamed(PREFILL), house.blamed(DECODE)), (0, 1));
            ended(&house).await;
            house.may_expire(stranded(&house));
            house.close().await;
        }
    }
}

#[tokio::test]
async fn a_prefill_of_vllm_that_breaks_off_is_told_or_tried_again() {
    for retries in [false, true] {
        let plan = pair(Dialect::Vllm);
        let mut house = if retries { plan } else { plan.no_retries() }.open().await;
        house.arm(PREFILL, after(FaultKind::Reset, 1)).await;
        let ask = Ask::chat(PROMPT, 8).streamed();
        let reply = ask.post(house.address).await;
        if retries {
            ask.check(&reply);
        } else {
            assert_eq!(reply.error(), (502, "prefill_read_failed".into()));
            assert_eq!((house.blamed(PREFILL), house.blamed(DECODE)), (1, 0));
        }
        ended(&house).await;
        house.may_expire(1);
        house.close().await;
    }
}

#[tokio::test]
async fn a_prefill_of_sglang_that_breaks_off_after_the_transfer_harms_nobody_but_itself() {
    let mut house = pair(Dialect::Sglang).open().await;
    house.arm(PREFILL, after(FaultKind::Reset, 1)).await;
    let ask = Ask::chat(PROMPT, 8).streamed();
    ask.served(house.address).await;
    house.quiet().await;
    // Either the answer had begun, and the leg failed in the background, or it had not, and there was a retry.
    let page = house.page().await;
    let detached = page.sum("baton_detached_legs_ended_total", &[r#"result="failed""#]);
    let retried = page.sum("smg_worker_retries_total", &[r#"worker_type="prefill""#]);
    assert_eq!(detached + retried, 1.0);
    assert_eq!((house.blamed(PREFILL), house.blamed(DECODE)), (u32::from(retried == 0.0), 0));
    house.close().await;
}

#[tokio::test]
async fn silence_ends_with_the_requests_time_and_blames_the_silent_one() {
    let mut cases = Vec::new();
    for (dialect, at) in DIALECTS.into_iter().flat_map(|d| [(d, PREFILL), (d, DECODE)]) {
        cases.push(async move {
            let mut house = pair(dialect).args("--request-timeout-secs 0.4").open().await;
            house.arm(at, fault(FaultKind::Stall)).await;
            let reply = Ask::chat(PROMPT, 8).post(house.address).await;
            assert_eq!(reply.error(), (504, "request_timeout".into()), "{dialect:?} {}", leg(at));
            ended(&house).await;
            // Where both legs run, each may be waiting for the other: nobody is blamed.
            let blame = if dialect == Dialect::Vllm { 1 } else { 0 };
            assert_eq!((house.blamed(at), house.blamed(1 - at)), (blame, 0), "{dialect:?} {}", leg(at));
            house.may_expire(stranded(&house));
            house.close().await;
        });
    }
    all(cases).await;
}

#[tokio::test]
async fn a_stream_that_stalls_is_cut_at_the_requests_time() {
    let mut cases = Vec::new();
    for dialect in DIALECTS {
        for streamed in [true, false] {
            cases.push(async move {
                let mut house = pair(dialect).args("--request-timeout-secs 0.6").open().await;
                house.arm(DECODE, after(FaultKind::Stall, 3)).await;
                let ask = Ask::chat(PROMPT, 20).with(json!({"stream": streamed}));
                let reply = ask.post(house.address).await;
                if streamed {
                    assert_cut(&ask, &reply, "request_timeout");
                } else {
                    assert!(reply.broken, "{}", reply.text());
                }
                ended(&house).await;
                assert_eq!(
                    (house.blamed(PREFILL), house.blamed(DECODE)),
                    (0, 0),
                    "a long answer is no fault"
                );
                house.may_expire(stranded(&house));
                house.close().await;
            });
        }
    }
    all(cases).await;
}

#[tokio::test]
async fn a_hand_off_that_cannot_be_used_is_not_passed_on_and_the_answer_is_still_right() {
    let bad = [
        r#"{"do_remote_prefill":true}"#,
        r#"{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[["x"]],"remote_host":"h","remote_port":5600}"#,
        r#"{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[[1]],"remote_host":"h","remote_port":"5600"}"#,
        "[]",
        "\"text\"",
    ];
    let mut faults: Vec<(Fault, &str, u64)> = vec![
        (fault(FaultKind::NullParams), "missing", 0),
        (fault(FaultKind::GarbageParams), "invalid", 1),
        (fault(FaultKind::GarbageBody), "missing", 1),
    ];
    faults.extend(
        bad.map(|text| (Fault { text: Some(text.into()), ..fault(FaultKind::GarbageParams) }, "invalid", 1)),
    );
    let cases = faults.into_iter().map(|(fault, result, left)| async move {
        let mut house = pair(Dialect::Vllm).no_retries().open().await;
        house.arm(PREFILL, fault.clone()).await;
        let ask = Ask::chat(PROMPT, 8).streamed();
        ask.served(house.address).await;
        let page = house.page().await;
        assert_eq!(page.sum("baton_handoffs_total", &[&format!("result=\"{result}\"")]), 1.0, "{fault:?}");
        assert_eq!(page.sum("smg_pd_kv_transfer_failures_total", &[]), 1.0);
        assert_eq!(house.engine(DECODE).stats().handoffs.right, 0);
        house.may_expire(left);
        house.close().await;
    });
    all(cases).await;
}

#[tokio::test]
async fn odd_answers_of_a_decode_pass_as_they_are() {
    for dialect in DIALECTS {
        let house = pair(dialect).open().await;
        let (plain, stream) = (Ask::chat(PROMPT, 8), Ask::chat(PROMPT, 8).streamed());
        house.arm(DECODE, fault(FaultKind::GarbageBody)).await;
        assert_eq!(plain.post(house.address).await.text(), "<<<this is not JSON");
        house.arm(DECODE, fault(FaultKind::GarbageBody)).await;
        assert_eq!(stream.post(house.address).await.text(), "data: {this is not JSON\n\n");
        for ask in [&plain, &stream] {
            house.arm(DECODE, fault(FaultKind::WrongContentType)).await;
            let reply = ask.post(house.address).await;
            assert_eq!(reply.header("content-type"), "text/html; charset=utf-8");
            assert_eq!(ask.text_of(&reply, 0), ask.expected());
        }
        // The engine's own error event is the last thing, once, with the engine's own end mark.
        house.arm(DECODE, after(FaultKind::ErrorEvent, 3)).await;
        let reply = stream.post(house.address).await;
        assert_eq!(reply.text().matches("{\"error\"").count(), 1, "{}", reply.text());
        assert_eq!(reply.text().matches("[DONE]").count(), 1, "{}", reply.text());
        house.close().await;
    }
}

#[tokio::test]
async fn a_worker_that_dies_is_replaced_by_another_and_comes_back() {
    let mut cases = Vec::new();
    for (dialect, at) in DIALECTS.into_iter().flat_map(|d| [(d, 0), (d, 2)]) {
        cases.push(async move {
            // A quick check, so that the worker that died is missed soon and trusted again soon.
            let health =
                "--health-check-interval-secs 0.2 --health-failure-threshold 1 --health-success-threshold 1";
            let plan = Plan::pairs(dialect, 2, 2).engines(|s| s.timeout_scale = 0.05).args(health);
            let mut house = plan.open().await;
            let ask = Ask::chat(PROMPT, 8).streamed();
            for _ in 0..4 {
                ask.served(house.address).await;
            }
            house.engine(at).kill().await;
            for _ in 0..10 {
                ask.served(house.address).await;
            }
            let seat = house.seat(at);
            until("it is missed", || seat.pulse.status() != baton_core::fleet::Status::Ready).await;
            house.engine(at).restart().await.unwrap();
            house.ready().await;
            for _ in 0..4 {
                ask.served(house.address).await;
            }
            let stats = house.fleet.settle_when(SOON, baton_sim::Stats::idle).await;
            assert_eq!(stats.kills, 1);
            house.close().await;
        });
    }
    all(cases).await;
}

#[tokio::test]
async fn kv_goes_to_another_decode_when_its_own_cannot_be_reached() {
    // The decode that is chosen is dead, and nobody has noticed: the other one gets the KV of the first
    // attempt, and no prompt is computed twice.
    let mut house = Plan::pairs(Dialect::Vllm, 1, 2).args("--decode-policy round_robin").open().await;
    house.engine(1).kill().await;
    for at in 0..4 {
        Ask::completion(&format!("{PROMPT} {at}"), 8).served(house.address).await;
    }
    house.quiet().await;
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (4, 4), "one prefill a request: {stats:?}");
    let page = house.page().await;
    let retried = page.sum("smg_worker_retries_total", &[r#"worker_type="decode""#]);
    assert!(retried > 0.0, "at least one attempt met the dead decode");
    assert_eq!(page.sum("baton_releases_total", &[]), 0.0);
    assert_eq!(page.fates(), "consumed 4", "one hand-off a request, whoever took it");
    house.close().await;
}

#[tokio::test]
async fn kv_is_released_when_its_decode_cannot_be_reached_and_no_attempt_is_left() {
    let plan = Plan::pairs(Dialect::Vllm, 1, 2).args("--decode-policy round_robin").no_retries();
    let mut house = plan.open().await;
    house.engine(1).kill().await;
    let mut failed = 0;
    for at in 0..4 {
        let ask = Ask::completion(&format!("{PROMPT} {at}"), 8);
        let reply = ask.post(house.address).await;
        match reply.status {
            502 => failed += 1,
            _ => ask.check(&reply),
        }
    }
    assert!(failed > 0, "at least one attempt met the dead decode");
    house.quiet().await;
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (4, 4), "each was consumed: {stats:?}");
    let page = house.page().await;
    assert_eq!(page.sum("baton_releases_total", &[r#"result="done""#]), f64::from(failed));
    assert_eq!(page.fates(), format!("consumed {}, released {failed}", 4 - failed));
    house.close().await;
}

/// A port where connections are not refused and never made: nobody accepts, and the queue is full.
fn deaf() -> (socket2::Socket, Vec<std::net::TcpStream>, std::net::SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut queued = Vec::new();
    while let Ok(one) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        queued.push(one);
        assert!(queued.len() < 100, "the queue has an end");
    }
    (socket, queued, address)
}

#[tokio::test]
async fn a_prefill_that_cannot_be_connected_to_in_time_counts_as_a_timeout() {
    let (_socket, _queued, address) = deaf();
    let plan = Plan::pairs(Dialect::Vllm, 1, 1)
        .no_retries()
        .args("--disable-health-check --connect-timeout-secs 0.2");
    let away = move |spec: &mut baton_gateway::registry::Spec| {
        if spec.role == baton_core::fleet::Role::Prefill {
            spec.url = format!("http://{address}");
        }
    };
    let mut house = plan.registered(away).open().await;
    house.no_after();
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (502, "prefill_request_failed".into()));
    assert!(reply.text().contains("no connection within 0.2 s"), "{}", reply.text());
    let page = house.page().await;
    for (class, count) in [("timeout", 1.0), ("transport", 0.0)] {
        let labels = [&*format!("class=\"{class}\""), r#"stage="before_response""#];
        assert_eq!(page.sum("gateway_pd_prefill_failure_total", &labels), count, "{class}");
    }
    house.close().await;
}
