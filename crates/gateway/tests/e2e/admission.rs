//! The entrance: who runs, who waits, who is turned away.

use baton_sim::{Dialect, FleetSpec};

use crate::support::{Ask, Gate, House, PROMPT, Plan, Raw, Reply, Step, Streamed, until};

const FIRST: &str = "data: {\"choices\":[]}\n\n";

async fn narrow(args: &str) -> House {
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped();
    plan.args("--max-concurrent-requests 1").args(args).open().await
}

fn ask(at: usize) -> Ask {
    Ask::completion(&format!("{PROMPT} {at}"), 6)
}

/// A stream that has begun and goes on when the gate opens.
async fn hold(house: &House) -> (Streamed, Gate) {
    let gate = Gate::default();
    let end = Step::chunk("data: [DONE]\n\n");
    house.taps[0].script([
        Step::stream_head(""),
        Step::chunk(FIRST),
        Step::Wait(gate.clone()),
        end,
        Step::last_chunk(),
    ]);
    let mut stream = ask(0).streamed().stream(house.address).await;
    stream.read_until(FIRST).await;
    (stream, gate)
}

fn send(house: &House, at: usize) -> tokio::task::JoinHandle<Reply> {
    let address = house.address;
    tokio::spawn(async move { ask(at).post(address).await })
}

#[tokio::test]
async fn smg_f84_one_runs_some_wait_in_order_and_the_rest_is_turned_away() {
    let house = narrow("--queue-size 2").await;
    let (stream, gate) = hold(&house).await;
    let mut waiting = Vec::new();
    for at in 1..=2 {
        waiting.push(send(&house, at));
        until("it waits", || house.gateway().entrance.waiting() == at).await;
    }
    let page = house.page().await;
    assert_eq!(
        (page.sum("smg_admission_inflight", &[]), page.sum("smg_admission_queue_depth", &[])),
        (1.0, 2.0)
    );
    let refused = ask(3).post(house.address).await;
    assert_eq!(refused.error(), (429, "admission_queue_full".into()));
    assert_eq!(refused.header("retry-after"), "2");
    assert_eq!(house.taps[0].count(), 1, "only the one that runs has reached an engine");
    // Probes are not queued.
    assert_eq!(Reply::get(house.address, "/health").await.status, 200);
    gate.open();
    assert_eq!(stream.rest().await.text(), format!("{FIRST}data: [DONE]\n\n"));
    for (at, one) in waiting.into_iter().enumerate() {
        ask(at + 1).check(&one.await.unwrap());
    }
    let order: Vec<String> =
        house.taps[0].seen().iter().map(|s| s.json()["prompt"].as_str().unwrap().to_owned()).collect();
    assert!(order[1].ends_with(" 1") && order[2].ends_with(" 2"), "first come, first served: {order:?}");
    let page = house.page().await;
    assert_eq!(page.sum("smg_admission_queue_rejected_total", &[r#"reason="queue_full""#]), 1.0);
    house.close().await;
}

#[tokio::test]
async fn a20_a_permit_is_held_to_the_last_byte_and_a_waiter_that_leaves_takes_none() {
    let house = narrow("--queue-size 4").await;
    let (stream, gate) = hold(&house).await;
    let second = Raw::post(house.address, ask(1).path, &ask(1).body.to_string()).await;
    until("the second waits", || house.gateway().entrance.waiting() == 1).await;
    let third = send(&house, 2);
    until("the third waits", || house.gateway().entrance.waiting() == 2).await;
    drop(second);
    until("the second has left", || house.gateway().entrance.waiting() == 1).await;
    assert_eq!((house.gateway().entrance.running(), house.taps[0].count()), (1, 1));
    gate.open();
    stream.rest().await;
    ask(2).check(&third.await.unwrap());
    assert_eq!(house.taps[0].count(), 2, "the one that left was not sent");
    house.close().await;
}

#[tokio::test]
async fn a20_a_body_dropped_half_way_gives_its_permit_back() {
    let house = narrow("--queue-size 4").await;
    let (stream, _gate) = hold(&house).await;
    let second = send(&house, 1);
    until("the second waits", || house.gateway().entrance.waiting() == 1).await;
    stream.leave();
    ask(1).check(&second.await.unwrap());
    house.close().await;
}

#[tokio::test]
async fn smg_f84_waiting_ends_with_its_time() {
    let house = narrow("--queue-size 4 --queue-timeout-secs 0.05").await;
    let (stream, gate) = hold(&house).await;
    let late = ask(1).post(house.address).await;
    assert_eq!(late.error(), (503, "admission_queue_timeout".into()));
    assert_eq!(late.header("retry-after"), "2");
    gate.open();
    stream.rest().await;
    ask(2).served(house.address).await;
    house.close().await;
}

#[tokio::test]
async fn slow_bodies_take_no_permit() {
    let house = narrow("--queue-size 0").await;
    let mut slow = Raw::open(house.address).await;
    slow.say("POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 500\r\n\r\n{").await;
    for at in 0..3 {
        ask(at).served(house.address).await;
    }
    drop(slow);
    house.close().await;
}
