//! Clients that are slow on purpose, and clients that are too many.

use baton_sim::{Dialect, FleetSpec};

use crate::support::{Ask, House, Line, PROMPT, Plan, Raw, SOON, Step, until, within};

async fn one_worker(args: &str) -> House {
    Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).args(args).open().await
}

#[tokio::test]
async fn heads_that_do_not_end_are_given_up_and_hold_nobody_up() {
    let house = one_worker("--header-read-timeout-secs 0.2").await;
    let mut slow = Vec::new();
    for at in 0..60 {
        let mut raw = Raw::open(house.address).await;
        raw.say(&"POST /v1/completions HTTP/1.1\r\nhost: g\r\nx-more: "[..1 + at % 40]).await;
        slow.push(raw);
    }
    // One that goes on and on, a byte at a time.
    let mut endless = Raw::open(house.address).await;
    let trickle = tokio::spawn(async move {
        endless.say("GET /health HTTP/1.1\r\nx-more: ").await;
        while endless.try_say("a").await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    for at in 0..5 {
        Ask::completion(&format!("{PROMPT} {at}"), 4).served(house.address).await;
    }
    for raw in &mut slow {
        raw.ends_within(SOON).await;
    }
    within(SOON, "the endless one is ended too", trickle).await.unwrap();
    house.close().await;
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_are_not() {
    let house = one_worker("--idle-connection-timeout-secs 0.2").await;
    let silent = Raw::open(house.address).await;
    let mut used = Line::open(house.address).await;
    let ask = Ask::chat(PROMPT, 4);
    ask.check(&used.post(ask.path, &ask.body).await);
    let mut silent = silent;
    assert_eq!(silent.ends_within(SOON).await, "");
    used.closed().await;
    house.close().await;
}

#[tokio::test]
async fn connections_have_a_limit_and_their_places_come_back() {
    let house = one_worker("--max-connections 3").await;
    let mut lines = Vec::new();
    for _ in 0..3 {
        let mut line = Line::open(house.address).await;
        let ask = Ask::chat(PROMPT, 4);
        ask.check(&line.post(ask.path, &ask.body).await);
        lines.push(line);
    }
    let mut fourth = Raw::open(house.address).await;
    assert_eq!(fourth.ends_within(SOON).await, "");
    lines.clear();
    let gateway = house.page().await;
    drop(gateway);
    // Their places come back as the gateway notices that they left.
    let mut served = false;
    while !served {
        let mut raw = Raw::open(house.address).await;
        raw.try_say("GET /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n").await;
        served = raw.ends_within(SOON).await.contains("200 OK");
    }
    until("all have left", || house.gateway().entrance.running() == 0).await;
    house.close().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_outlive_its_requests_time() {
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped();
    let house = plan.args("--request-timeout-secs 0.3").open().await;
    let event = Step::chunk(&format!("data: {}\n\n", "x".repeat(1 << 16)));
    let mut steps = vec![Step::stream_head("")];
    steps.extend(std::iter::repeat_n(event, 1600));
    house.taps[0].script(steps);
    let ask = Ask::chat(PROMPT, 4).streamed();
    let raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    until("it is served", || house.in_flight(0) == 1).await;
    until("its lease is back", || house.in_flight(0) == 0).await;
    until("nobody is in the entrance", || house.gateway().entrance.running() == 0).await;
    drop(raw);
    house.close().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_a_whole_answer_cannot_keep_its_connection() {
    let plan = Plan::pairs(Dialect::Sglang, 1, 1).tapped();
    let mut house = plan.args("--idle-connection-timeout-secs 0.2").open().await;
    let long = serde_json::json!({"id": "c", "choices": [{"index": 0, "text": "x".repeat(16 << 20)}]});
    house.taps[0].always([Step::json(200, "", "{}")]);
    house.taps[1].always([Step::json(200, "", &long.to_string())]);
    // Two samples are joined, so that the gateway has the whole of it.
    let ask = Ask::chat(PROMPT, 4).with(serde_json::json!({"n": 2}));
    let raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    until("both are asked", || house.taps[1].count() == 2).await;
    house.no_after();
    house.close().await;
    drop(raw);
}
