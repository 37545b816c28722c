//! Connections to workers that are used again, and what becomes of a request whose connection had grown old.

use std::time::Duration;

use baton_sim::{Dialect, FaultKind, FleetSpec};

use crate::support::{Ask, Gate, House, PROMPT, Plan, Step, fault, until};

async fn one_worker(args: &str) -> House {
    Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().args(args).open().await
}

fn ask(at: usize) -> Ask {
    Ask::completion(&format!("{PROMPT} {at}"), 6)
}

async fn resends(house: &House) -> f64 {
    // The sweeper hands the count on.
    let mut sum = 0.0;
    for _ in 0..1500 {
        sum = house.page().await.sum("smg_router_upstream_send_retries_total", &[]);
        if sum > 0.0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    sum
}

#[tokio::test]
async fn a_connection_serves_again_after_a_whole_answer() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).tapped().open().await;
        for at in 0..6 {
            let ask = if at % 2 == 0 { ask(at) } else { ask(at).streamed() };
            ask.served(house.address).await;
            house.stats().await;
            // The prefill of SGLang is drained in the background.
            until("the legs are over", || house.in_flight(0) + house.in_flight(1) == 0).await;
        }
        for tap in &house.taps {
            let used: Vec<u64> = tap.seen().iter().map(|s| s.connection).collect();
            assert!(used.iter().all(|c| *c == used[0]), "{dialect:?}: {used:?}");
        }
        house.close().await;
    }
}

#[tokio::test]
async fn a23_when_a_reused_connection_dies_unheard_the_attempt_begins_anew() {
    for end in [Step::Fin, Step::Reset] {
        let house = one_worker("--disable-retries").await;
        ask(0).served(house.address).await;
        house.taps[0].script([end.clone()]);
        ask(1).streamed().served(house.address).await;
        let seen = house.taps[0].seen();
        assert_eq!(seen.len(), 3, "{end:?}");
        assert_eq!(seen[0].connection, seen[1].connection);
        assert_ne!(seen[1].connection, seen[2].connection);
        assert_ne!(seen[1].header("x-request-id"), seen[2].header("x-request-id"), "under a fresh id");
        assert_eq!(house.page().await.sum("smg_worker_retries_total", &[]), 0.0, "that was no retry");
        assert_eq!(house.blamed(0), 0, "a connection that had grown old is no fault");
        assert_eq!(resends(&house).await, 1.0);
        house.close().await;
    }
}

#[tokio::test]
async fn an_attempt_that_begins_anew_has_fresh_ids_and_blames_nobody() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        for leg in [0, 1] {
            let plan = Plan::pairs(dialect, 1, 1).tapped().engines(|s| s.timeout_scale = 0.05);
            let mut house = plan.no_retries().open().await;
            ask(0).served(house.address).await;
            until("the legs are over", || house.in_flight(0) + house.in_flight(1) == 0).await;
            house.taps[leg].script([Step::Fin]);
            ask(1).streamed().served(house.address).await;
            let (prefill, decode) = (house.taps[0].seen(), house.taps[1].seen());
            assert_eq!(house.taps[leg].count(), 3, "{dialect:?} {leg}");
            // A decode in turn was not asked by the attempt whose prefill was lost.
            let asked = if dialect == Dialect::Vllm && leg == 0 { 2 } else { 3 };
            assert_eq!((prefill.len(), decode.len()), (3, asked), "{dialect:?} {leg}");
            let legs = [prefill, decode].concat();
            for key in ["bootstrap_room", "rid"] {
                let values: Vec<_> = legs.iter().filter_map(|s| s.json().get(key).cloned()).collect();
                let fresh: std::collections::HashSet<_> = values.iter().map(ToString::to_string).collect();
                assert_eq!(fresh.len() * 2, values.len(), "{key} belongs to one attempt: {values:?}");
            }
            assert_eq!((house.blamed(0), house.blamed(1)), (0, 0), "{dialect:?} {leg}");
            let page = house.page().await;
            assert_eq!(page.sum("smg_worker_retries_total", &[]), 0.0);
            // The decode that died may have used up the first hand-off, or may not: its lease ends it.
            let (fates, left) = match (dialect, leg) {
                (Dialect::Vllm, 0) => ("consumed 2", 0),
                (Dialect::Vllm, _) => ("consumed 2, unknown 1", 1),
                _ => ("consumed 2, aborted 1", 0),
            };
            assert_eq!(page.fates(), fates, "{dialect:?} {leg}");
            house.may_expire(left);
            house.close().await;
        }
    }
}

#[tokio::test]
async fn a_reused_connection_that_lived_on_for_a_while_is_not_sent_on_again() {
    let house = one_worker("--disable-retries").await;
    ask(0).served(house.address).await;
    let gate = Gate::default();
    house.taps[0].script([Step::Wait(gate.clone()), Step::Fin]);
    let address = house.address;
    let asked = tokio::spawn(async move { ask(1).post(address).await });
    until("it is there", || house.taps[0].count() == 2).await;
    let there = std::time::Instant::now();
    until("the worker has had time to do something", || there.elapsed() > Duration::from_millis(1100)).await;
    gate.open();
    assert_eq!(asked.await.unwrap().error(), (502, "worker_request_failed".into()));
    assert_eq!((house.taps[0].count(), house.blamed(0)), (2, 1));
    house.close().await;
}

#[tokio::test]
async fn kv_that_a_dead_decode_may_have_read_is_not_read_again() {
    let plan = Plan::pairs(Dialect::Vllm, 1, 2).engines(|s| s.timeout_scale = 0.05).no_retries();
    let mut house = plan.args("--decode-policy round_robin --disable-health-check").open().await;
    for at in 0..2 {
        ask(at).served(house.address).await;
    }
    for decode in [1, 2] {
        house.arm(decode, fault(FaultKind::Stall)).await;
    }
    let address = house.address;
    let asked = tokio::spawn(async move { ask(2).post(address).await });
    until("a decode has it", || house.fleet.stats().requests.open == 1).await;
    let (at, other) = if house.engine(1).stats().requests.open == 1 { (1, 2) } else { (2, 1) };
    house.engine(other).clear_faults();
    // It dies with the request in its hands, just as if its connection had grown old.
    house.engine(at).kill().await;
    let reply = asked.await.unwrap();
    if reply.status == 200 {
        ask(2).check(&reply);
    } else {
        assert_eq!(reply.error(), (502, "decode_request_failed".into()));
    }
    house.quiet().await;
    let page = house.page().await;
    // Another prompt was computed for another decode; if that was the dead one again, its KV was released.
    assert!(page.fates().ends_with(", unknown 1"), "{}", page.fates());
    house.engine(at).restart().await.unwrap();
    house.may_expire(1);
    house.close().await;
}

#[tokio::test]
async fn a23_a_new_connection_that_dies_unheard_is_a_fault() {
    for end in [Step::Fin, Step::Reset] {
        let house = one_worker("--disable-retries").await;
        house.taps[0].script([end.clone()]);
        let reply = ask(0).post(house.address).await;
        assert_eq!(reply.error(), (502, "worker_request_failed".into()), "{end:?}");
        assert_eq!((house.taps[0].count(), house.blamed(0)), (1, 1), "no blind second request");
        // And so is the second one of a request that was sent once more.
        ask(1).served(house.address).await;
        house.taps[0].script([end.clone()]);
        house.taps[0].script([end.clone()]);
        let reply = ask(2).post(house.address).await;
        assert_eq!(reply.error(), (502, "worker_request_failed".into()), "{end:?}");
        assert_eq!((house.taps[0].count(), house.blamed(0)), (4, 1));
        house.close().await;
    }
}

#[tokio::test]
async fn a_reused_connection_that_had_begun_to_answer_is_not_sent_on_again() {
    for begun in ["H", "HTTP/1.1 200 OK\r\ncontent-type: app", "HTTP/1.1 100 Continue\r\n\r\n"] {
        for end in [Step::Fin, Step::Reset] {
            let house = one_worker("--disable-retries").await;
            ask(0).served(house.address).await;
            house.taps[0].script([Step::say(begun), end.clone()]);
            let reply = ask(1).post(house.address).await;
            // A reset can overtake the bytes before it; then nothing was heard.
            if house.taps[0].count() == 2 {
                assert_eq!(reply.error(), (502, "worker_request_failed".into()), "{begun:?} {end:?}");
                assert_eq!(house.blamed(0), 1);
            } else {
                assert!(matches!(end, Step::Reset), "{begun:?} {end:?}");
            }
            house.close().await;
        }
    }
}

#[tokio::test]
async fn a23_connections_that_the_engine_closed_meanwhile_cost_no_request() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).no_retries().open().await;
        for at in 0..100 {
            // The closing and the request race, each in its own way each time.
            for engine in 0..2 {
                house.arm(engine, fault(FaultKind::CloseIdle)).await;
            }
            for _ in 0..at % 5 {
                tokio::task::yield_now().await;
            }
            ask(at).served(house.address).await;
        }
        assert_eq!((house.blamed(0), house.blamed(1)), (0, 0));
        house.close().await;
    }
}

#[tokio::test]
async fn connections_are_not_kept_for_longer_than_engines_keep_them() {
    let house = one_worker("--upstream-pool-idle-timeout-secs 0.05").await;
    ask(0).served(house.address).await;
    // The sweeper closes it, well before the engine's own five seconds.
    until("the idle connection is closed", || house.taps[0].seen()[0].is_gone()).await;
    ask(1).served(house.address).await;
    let seen = house.taps[0].seen();
    assert_ne!(seen[0].connection, seen[1].connection);
    house.close().await;
}

#[tokio::test]
async fn an_abandoned_connection_is_not_used_again() {
    let house = one_worker("--request-timeout-secs 0.3 --disable-retries").await;
    house.taps[0].script([Step::Never]);
    let reply = ask(0).post(house.address).await;
    assert_eq!(reply.error(), (504, "request_timeout".into()));
    until("the leg is closed", || house.taps[0].seen()[0].is_gone()).await;
    ask(1).served(house.address).await;
    // An answer with more than it announced, and one that says it is the last.
    house.taps[0].script([Step::json(200, "", "{}"), Step::say("HTTP/1.1 200 OK\r\n\r\ncrossed")]);
    assert_eq!(ask(2).post(house.address).await.text(), "{}");
    house.taps[0].script([Step::json(200, "connection: close\r\n", "{}")]);
    assert_eq!(ask(3).post(house.address).await.text(), "{}");
    ask(4).served(house.address).await;
    house.close().await;
}
