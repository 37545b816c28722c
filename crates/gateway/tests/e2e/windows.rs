//! Decode windows: what a worker cannot run yet waits in the gateway, before any leg is sent.

use baton_sim::Dialect;
use serde_json::json;

use crate::support::{Ask, House, PROMPT, Plan, until};

/// For a house whose decode workers run two sequences at once.
fn narrow_plan(dialect: Dialect, args: &str) -> Plan {
    let label = |spec: &mut baton_gateway::registry::Spec| {
        spec.labels.insert("max_num_seqs".into(), "2".into());
    };
    Plan::pairs(dialect, 1, 1).args(args).registered(label)
}

async fn narrow(dialect: Dialect, args: &str) -> House {
    narrow_plan(dialect, args).open().await
}

#[tokio::test]
async fn a30_a_burst_wider_than_the_window_is_served_in_turn() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = narrow(dialect, "").await;
        let address = house.address;
        let asks = (0..40).map(|i| {
            tokio::spawn(async move {
                let ask = Ask::chat(&format!("{PROMPT} in turn {i}"), 12);
                let ask = if i % 2 == 0 { ask.streamed() } else { ask };
                ask.served(address).await;
            })
        });
        for ask in asks.collect::<Vec<_>>() {
            ask.await.unwrap();
        }
        let page = house.page().await;
        assert!(page.sum("smg_pd_admission_waits_total", &[]) > 0.0, "some had to wait");
        assert_eq!(page.sum("smg_pd_admission_sheds_total", &[]), 0.0);
        assert_eq!(page.sum("smg_pd_admission_window", &[]), 2.0);
        house.close().await;
    }
}

#[tokio::test]
async fn a_window_that_stays_full_sheds_and_a_waiter_may_leave() {
    // As slow as real engines: what is held is not done before it is let go.
    let plan = narrow_plan(Dialect::Vllm, "--pd-admission-wait-secs 0").engines(|spec| spec.time_scale = 1.0);
    let house = plan.open().await;
    let mut held = Vec::new();
    for i in 0..2 {
        let endless =
            Ask::chat(&format!("{PROMPT} held {i}"), 4000).with(json!({"ignore_eos": true})).streamed();
        let mut stream = endless.stream(house.address).await;
        stream.read_events(2).await;
        held.push(stream);
    }
    let shed = Ask::chat(PROMPT, 5).post(house.address).await;
    assert_eq!(shed.error(), (503, "worker_overload_protection_shed".to_owned()));
    assert!(!shed.header("retry-after").is_empty());
    held.into_iter().for_each(|stream| stream.leave());
    let seat = house.seat(1);
    until("the window is free again", || seat.load.in_flight() == 0).await;
    Ask::chat(PROMPT, 5).served(house.address).await;
    house.close().await;
}

#[tokio::test]
async fn samples_of_one_request_make_room_for_each_other() {
    let house = narrow(Dialect::Sglang, "--pd-admission-wait-secs 20").await;
    // Wider than the window by itself, and three that could each hold what the others wait for.
    for (requests, samples) in [(1, 5), (3, 2), (2, 4)] {
        let asks = (0..requests).map(|i| {
            let ask = Ask::chat(&format!("{PROMPT} {samples} samples, {i}"), 12).with(json!({"n": samples}));
            let ask = if i % 2 == 0 { ask.streamed() } else { ask };
            let address = house.address;
            tokio::spawn(async move {
                let reply = ask.post(address).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                for choice in 0..samples {
                    assert_eq!(ask.text_of(&reply, choice), ask.expected(), "sample {choice}");
                }
            })
        });
        for ask in asks.collect::<Vec<_>>() {
            ask.await.unwrap();
        }
    }
    assert_eq!(house.page().await.sum("smg_pd_admission_sheds_total", &[]), 0.0);
    house.close().await;
}
