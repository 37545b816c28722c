//! The end of a gateway: readiness first, then what runs may finish, then errors in the form of what had begun.

use baton_sim::{Dialect, FleetSpec};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::support::{
    Ask, BOUND, Gate, House, Line, PROMPT, Plan, Raw, Reply, SOON, Step, Streamed, until, within,
};

const FIRST: &str = "data: {\"choices\":[]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

async fn one_worker(args: &str) -> House {
    Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().with_health_port().args(args).open().await
}

/// A stream that has begun and goes on when the gate opens.
async fn hold(house: &House) -> (Streamed, Gate) {
    let gate = Gate::default();
    let end = [Step::chunk(DONE), Step::last_chunk()];
    let steps = [Step::stream_head(""), Step::chunk(FIRST), Step::Wait(gate.clone())];
    house.taps[0].script([&steps[..], &end[..]].concat());
    let mut stream = Ask::chat(PROMPT, 4).streamed().stream(house.address).await;
    stream.read_until(FIRST).await;
    (stream, gate)
}

/// Stops the gateway in the background. The sender hurries it.
fn stop(house: &mut House) -> (tokio::task::JoinHandle<()>, oneshot::Sender<()>) {
    let (hurry, hurried) = oneshot::channel::<()>();
    let running = house.take_running();
    let stopping = tokio::spawn(running.stop(async move {
        if hurried.await.is_err() {
            std::future::pending::<()>().await;
        }
    }));
    (stopping, hurry)
}

/// After the end: no port listens, no connection to an engine is open, no engine works.
async fn gone(house: House, stopping: tokio::task::JoinHandle<()>) {
    within(BOUND, "the end", stopping).await.unwrap();
    assert!(TcpStream::connect(house.address).await.is_err(), "nobody listens any more");
    until("the connections to engines are closed", || house.taps.iter().all(|t| t.open() == 0)).await;
    let stats = house.stats().await;
    assert!(stats.idle() && stats.all_free(), "{stats:?}");
}

#[tokio::test]
async fn readiness_goes_first_and_streams_finish() {
    let mut house = one_worker("--shutdown-grace-period-secs 2").await;
    let (stream, gate) = hold(&house).await;
    let mut idle = Line::open(house.address).await;
    assert_eq!(idle.post("/nowhere", &serde_json::json!({})).await.status, 404);
    let address = house.address;
    let probes = house.running().health_address.unwrap();
    let (stopping, _hurry) = stop(&mut house);
    within(SOON, "readiness is down", async {
        while Reply::get(address, "/readiness").await.status != 503 {}
    })
    .await;
    let told = Reply::get(address, "/readiness").await;
    assert_eq!(told.json()["reason"], "draining");
    assert_eq!(told.header("connection"), "close");
    assert_eq!(Reply::get(probes, "/readiness").await.status, 503);
    assert_eq!(Reply::get(address, "/liveness").await.status, 200);
    // Whoever has not noticed yet is still served, and told not to come back on this connection.
    let late = Ask::chat(PROMPT, 5).served(address).await;
    assert_eq!(late.header("connection"), "close");
    until("the listener is closed", || std::net::TcpStream::connect(address).is_err()).await;
    idle.closed().await;
    assert!(!stopping.is_finished(), "a stream is still under way");
    gate.open();
    let reply = stream.rest().await;
    assert_eq!((reply.text(), reply.broken), (format!("{FIRST}{DONE}"), false));
    gone(house, stopping).await;
}

#[tokio::test]
async fn at_the_limit_streams_get_an_error_and_requests_a_status() {
    let mut house = one_worker("--shutdown-grace-period-secs 0.4 --max-concurrent-requests 2").await;
    let (stream, _gate) = hold(&house).await;
    let ask = Ask::chat(PROMPT, 4);
    house.taps[0].script([Step::Never]);
    // One waits for an engine, one in the entrance, one sends its body slowly, one has sent half a head.
    let mut raws = Vec::new();
    for _ in 0..2 {
        raws.push(Raw::post(house.address, ask.path, &ask.body.to_string()).await);
    }
    let gateway = house.gateway().clone();
    until("both are there", || gateway.entrance.waiting() == 1 && house.taps[0].count() == 2).await;
    let mut slow = Raw::open(house.address).await;
    slow.say("POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 500\r\n\r\n{").await;
    let mut half = Raw::open(house.address).await;
    half.say("POST /v1/comple").await;
    let (stopping, _hurry) = stop(&mut house);
    let reply = stream.rest().await;
    assert_eq!(reply.cut_code(), "draining", "{}", reply.text());
    for raw in &mut raws {
        raw.ends_within(SOON).await;
        assert_eq!(raw.status(), 503, "{}", raw.text());
        assert!(
            raw.text().contains("\"draining\"") && raw.text().contains("retry-after: 1"),
            "{}",
            raw.text()
        );
    }
    slow.ends_within(SOON).await;
    assert_eq!(slow.status(), 503, "{}", slow.text());
    half.ends_within(SOON).await;
    assert_eq!((gateway.entrance.running(), gateway.entrance.waiting()), (0, 0));
    gone(house, stopping).await;
}

#[tokio::test]
async fn a_second_signal_ends_the_wait() {
    let mut house = one_worker("--shutdown-grace-period-secs 1000").await;
    let (stream, _gate) = hold(&house).await;
    let address = house.address;
    let (stopping, hurry) = stop(&mut house);
    within(SOON, "readiness is down", async {
        while Reply::get(address, "/readiness").await.status != 503 {}
    })
    .await;
    hurry.send(()).unwrap();
    assert_eq!(within(SOON, "the stream ends", stream.rest()).await.cut_code(), "draining");
    gone(house, stopping).await;
}

#[tokio::test]
async fn a_gateway_without_work_ends_at_once() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let mut house =
            Plan::pairs(dialect, 1, 1).tapped().args("--shutdown-grace-period-secs 0").open().await;
        let mut idle = Line::open(house.address).await;
        let ask = Ask::chat(PROMPT, 4);
        ask.check(&idle.post(ask.path, &ask.body).await);
        let (stopping, _hurry) = stop(&mut house);
        idle.closed().await;
        within(SOON, "it ends", async {
            while !stopping.is_finished() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        gone(house, stopping).await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_hold_the_end_up() {
    let mut house = one_worker("--shutdown-grace-period-secs 0.1").await;
    let event = Step::chunk(&format!("data: {}\n\n", "x".repeat(1 << 16)));
    let mut steps = vec![Step::stream_head("")];
    steps.extend(std::iter::repeat_n(event, 1600));
    house.taps[0].script(steps);
    let ask = Ask::chat(PROMPT, 4).streamed();
    let raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    let (mut before, mut still) = (0, 0);
    until("everything stands still", || {
        let now = house.taps[0].said();
        still = if now == before && now > 0 { still + 1 } else { 0 };
        before = now;
        still == 25
    })
    .await;
    let (stopping, _hurry) = stop(&mut house);
    gone(house, stopping).await;
    drop(raw);
}
