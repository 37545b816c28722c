//! Clients that leave: before the head, in the middle of a stream, by half, while nothing happens.

use baton_sim::{Dialect, FaultKind, FleetSpec, Where};
use serde_json::json;

use crate::support::{Ask, Gate, House, PROMPT, Plan, Raw, SOON, Step, fault, on, until, until_within};

/// How a client goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Exit {
    Close,
    Reset,
    /// Half first, and a little later altogether.
    HalfThenClose,
}

const EXITS: [Exit; 3] = [Exit::Close, Exit::Reset, Exit::HalfThenClose];

async fn leave(mut raw: Raw, exit: Exit) {
    match exit {
        Exit::Close => drop(raw),
        Exit::Reset => raw.reset(),
        Exit::HalfThenClose => {
            raw.half_close().await;
            raw.read_until("100 Continue").await;
            drop(raw);
        }
    }
}

/// Both workers have their places back, and no engine works on anything, soon.
async fn abandoned(house: &House) {
    until_within(SOON, "the legs are closed", || {
        house.fleet.stats().idle() && (0..2).all(|at| house.in_flight(at) == 0)
    })
    .await;
    until_within(SOON, "the place in the gateway is given back", || house.gateway().entrance.running() == 0)
        .await;
}

#[tokio::test]
async fn a03_a_client_that_leaves_during_the_prefill_takes_it_along() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        for exit in EXITS {
            let house = House::pair(dialect).await;
            house.arm(0, fault(FaultKind::Stall)).await;
            if dialect == Dialect::Sglang {
                house.arm(1, fault(FaultKind::Stall)).await;
            }
            let ask = Ask::chat(PROMPT, 8).streamed();
            let raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
            let legs = if dialect == Dialect::Sglang { 2 } else { 1 };
            until("the legs are there", || house.fleet.stats().requests.open == legs).await;
            leave(raw, exit).await;
            abandoned(&house).await;
            let stats = house.fleet.stats();
            assert_eq!((stats.requests.accepted, stats.handoffs.made), (0, 0), "{exit:?} {stats:?}");
            let page = house.page().await;
            assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="client_gone""#]), 1.0, "{exit:?}");
            assert_eq!(page.sum("smg_http_responses_total", &[r#"status_code="499""#]), 1.0);
            assert_eq!((house.blamed(0), house.blamed(1)), (0, 0), "nobody is blamed");
            house.close().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_decodes_head_leaves_no_block_behind() {
    for exit in EXITS {
        // The decode engine of vLLM has the hand-off, or not: nobody can tell. Its lease frees it.
        let mut house = Plan::pairs(Dialect::Vllm, 1, 1).engines(|s| s.timeout_scale = 0.02).open().await;
        house.arm(1, fault(FaultKind::Stall)).await;
        let ask = Ask::chat(PROMPT, 8);
        let raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
        until("the decode leg is there", || house.engine(1).stats().requests.open == 1).await;
        leave(raw, exit).await;
        abandoned(&house).await;
        house.may_expire(1);
        house.close().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_stream_ends_the_engines_work() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        for exit in [Exit::Close, Exit::Reset] {
            let house = House::pair(dialect).await;
            house.arm(1, baton_sim::Fault { chunks: Some(4), ..on(Where::Decode, FaultKind::Stall) }).await;
            let ask = Ask::chat(PROMPT, 40).streamed();
            let mut raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
            while raw.text().matches("data: ").count() < 4 {
                assert!(raw.more().await);
            }
            leave(raw, exit).await;
            abandoned(&house).await;
            let page = house.page().await;
            assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="client_gone""#]), 1.0);
            assert_eq!((house.blamed(0), house.blamed(1)), (0, 0), "nobody is blamed");
            house.close().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_running_stream_is_noticed_by_what_is_written() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).engines(|s| s.time_scale = 1.0).open().await;
        let ask = Ask::chat(PROMPT, 5000).streamed().with(json!({"ignore_eos": true}));
        let mut stream = ask.stream(house.address).await;
        stream.read_events(3).await;
        stream.leave();
        abandoned(&house).await;
        let made = house.engine(1).stats().tokens.generated;
        assert!(made < 2500, "the engine stopped: {made}");
        house.close().await;
    }
}

/// Both heads came and no KV has moved: SGLang's prefill would wait for minutes for the decode that is closed.
#[tokio::test]
async fn a_prefill_that_lives_on_is_called_off_when_its_decode_is() {
    for served in [false, true] {
        let mut house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
        let (prefill, decode) = (Gate::default(), Gate::default());
        let event = "data: {\"x\":1}\n\n";
        let steps = |gate: &Gate| {
            vec![Step::stream_head(""), Step::Wait(gate.clone()), Step::chunk(event), Step::last_chunk()]
        };
        house.taps[0].script(steps(&prefill));
        house.taps[1].script(steps(&decode));
        let stream = Ask::chat(PROMPT, 8).streamed().stream(house.address).await;
        let legs = [house.taps[0].last(), house.taps[1].last()];
        assert!(legs.iter().all(|leg| !leg.is_gone()));
        if served {
            decode.open();
            stream.rest().await;
            prefill.open();
        } else {
            stream.leave();
            until_within(SOON, "the decode leg is closed", || legs[1].is_gone()).await;
            assert!(!legs[0].is_gone(), "a transfer under way may end");
            until("the prefill leg is closed", || legs[0].is_gone()).await;
        }
        house.quiet().await;
        assert_eq!((house.blamed(0), house.blamed(1)), (0, 0));
        let ended = if served { r#"result="done""# } else { r#"result="dropped""# };
        assert_eq!(house.page().await.sum("baton_detached_legs_ended_total", &[ended]), 1.0);
        house.close().await;
    }
}

#[tokio::test]
async fn half_a_connection_is_served() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        for at in 0..60 {
            let ask = Ask::completion(&format!("{PROMPT} {at}"), 12);
            let ask = if at % 2 == 0 { ask.streamed() } else { ask };
            let mut raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
            raw.half_close().await;
            let text = raw.read_all().await;
            assert_eq!(raw.status(), 200, "{at}: {text}");
            if ask.is_streamed() {
                assert!(text.contains("data: [DONE]\n\n"), "{at}: {text}");
            } else {
                assert!(text.contains(&ask.expected()), "{at}: {text}");
            }
        }
        let page = house.page().await;
        assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="served""#]), 60.0);
        house.close().await;
    }
}

#[tokio::test]
async fn a03_half_a_connection_is_served_however_long_the_engine_takes() {
    for streamed in [false, true] {
        let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().open().await;
        let gate = Gate::default();
        house.taps[0].script([Step::Wait(gate.clone()), Step::Pass]);
        let ask = Ask::chat(PROMPT, 8).with(json!({"stream": streamed}));
        let mut raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
        until("the engine has it", || house.taps[0].count() == 1).await;
        raw.half_close().await;
        raw.read_until("100 Continue").await;
        gate.open();
        let text = raw.read_all().await;
        assert_eq!(raw.status(), 200, "{text}");
        assert!(text.contains(if streamed { "data: [DONE]\n\n" } else { "finish_reason" }), "{text}");
        house.close().await;
    }
}

#[tokio::test]
async fn a_stream_whose_client_closed_by_half_is_asked_with_a_comment() {
    let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().open().await;
    let gate = Gate::default();
    let first = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let last = "data: [DONE]\n\n";
    let steps = [
        Step::stream_head(""),
        Step::chunk(first),
        Step::Wait(gate.clone()),
        Step::chunk(last),
        Step::last_chunk(),
    ];
    let ask = Ask::chat(PROMPT, 8).streamed();
    house.taps[0].script(steps.clone());
    let mut raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    raw.read_until(first).await;
    raw.half_close().await;
    raw.read_until("\n: ").await;
    gate.open();
    assert!(raw.read_all().await.contains(last));
    // One that is gone altogether is found out by it.
    house.taps[0].script([Step::stream_head(""), Step::chunk(first), Step::Never]);
    let mut raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    raw.read_until(first).await;
    drop(raw);
    until_within(SOON, "the leg is closed", || house.taps[0].last().is_gone()).await;
    house.close().await;
}

#[tokio::test]
async fn a_client_that_leaves_between_two_attempts_is_not_tried_for_again() {
    let plan = Plan::pairs(Dialect::Sglang, 1, 1)
        .args("--retry-initial-backoff-ms 600000 --retry-max-backoff-ms 600000");
    let house = plan.open().await;
    house.arm(0, fault(FaultKind::Status)).await;
    let ask = Ask::chat(PROMPT, 8);
    let raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    until("the first attempt has failed", || house.blamed(0) == 1 && house.in_flight(0) == 0).await;
    drop(raw);
    abandoned(&house).await;
    assert_eq!(house.engine(0).stats().requests.refused + house.engine(0).stats().faults, 1);
    house.close().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_the_engine_and_no_memory() {
    let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().open().await;
    let event = Step::chunk(&format!("data: {}\n\n", "x".repeat(1 << 16)));
    let mut steps = vec![Step::stream_head("connection: close\r\n")];
    steps.extend(std::iter::repeat_n(event, 1600));
    steps.extend([Step::chunk("data: [DONE]\n\n"), Step::last_chunk(), Step::Fin]);
    house.taps[0].script(steps);
    let ask = Ask::chat(PROMPT, 8).streamed();
    let mut raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    // It stands still once every buffer on the way is full: the kernel's own ones take some ten megabytes.
    let said = || house.taps[0].said();
    let (mut before, mut still) = (0, 0);
    until("the engine is held", || {
        let now = said();
        still = if now == before && now > 0 { still + 1 } else { 0 };
        before = now;
        still == 25
    })
    .await;
    assert!(said() < 90 << 20, "{} of 105 MB were taken for a client that reads nothing", said());
    let mut came = 0;
    loop {
        came += raw.got.len();
        if raw.text().contains("data: [DONE]\n\n") {
            break;
        }
        raw.got.clear();
        assert!(raw.more().await, "the stream ended early, after {came} bytes");
    }
    assert!(came > 1600 << 16, "{came}");
    drop(raw);
    house.close().await;
}
