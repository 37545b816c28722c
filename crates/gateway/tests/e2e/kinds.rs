//! Every kind of engine, simulated: served as one engine would, and clients that leave at each stage of a request. The
//! engines check the hand-off and count their blocks.

use baton_sim::{Fault, FaultKind, Kind, Where};

use crate::support::{Ask, House, PROMPT, Plan, Raw, fault, on, until};

const PREFILL: usize = 0;
const DECODE: usize = 1;

/// A kind of engine, and how its legs are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    Nixl,
    Mooncake,
    MoriioRead,
    MoriioWrite,
    MoriioWriteAtOnce,
    Sglang,
    ContextFirst,
    GenerationFirst,
}

const CASES: [Case; 8] = [
    Case::Nixl,
    Case::Mooncake,
    Case::MoriioRead,
    Case::MoriioWrite,
    Case::MoriioWriteAtOnce,
    Case::Sglang,
    Case::ContextFirst,
    Case::GenerationFirst,
];

impl Case {
    fn kind(self) -> Kind {
        match self {
            Case::Nixl => Kind::Vllm,
            Case::Mooncake => Kind::Mooncake,
            Case::MoriioRead => Kind::MoriioRead,
            Case::MoriioWrite | Case::MoriioWriteAtOnce => Kind::MoriioWrite,
            Case::Sglang => Kind::Sglang,
            Case::ContextFirst | Case::GenerationFirst => Kind::Trtllm,
        }
    }

    fn at_once(self) -> bool {
        matches!(self, Case::MoriioWriteAtOnce | Case::Sglang | Case::GenerationFirst)
    }
}

/// With leases of a second or two, so that what is left to them can be awaited.
fn plan(case: Case, prefill: usize, decode: usize) -> Plan {
    let scale = match case {
        Case::Nixl | Case::MoriioWrite | Case::MoriioWriteAtOnce => 0.03,
        Case::ContextFirst | Case::GenerationFirst => 0.03,
        Case::Mooncake => 0.004,
        Case::MoriioRead => 0.0005,
        Case::Sglang => 0.01,
    };
    let mut plan = Plan::pairs(case.kind(), prefill, decode).engines(|spec| spec.timeout_scale = scale);
    if case == Case::MoriioWriteAtOnce {
        plan = plan
            .registered(|spec| drop(spec.labels.insert("moriio_write_dispatch".into(), "concurrent".into())));
    }
    if case == Case::GenerationFirst {
        plan = plan.args("--trt-schedule-style generation_first");
    }
    plan
}

fn post(house: &House, ask: &Ask) -> impl Future<Output = Raw> {
    let (address, path, body) = (house.address, ask.path, ask.body.to_string());
    async move { Raw::post(address, path, &body).await }
}

async fn each(test: impl AsyncFn(Case)) {
    for case in CASES {
        test(case).await;
    }
}

#[tokio::test]
async fn each_kind_answers_as_one_engine() {
    each(async |case| {
        let house = plan(case, 2, 2).open().await;
        let mut sent = 0;
        for round in 0..4 {
            for make in [Ask::chat, Ask::completion] {
                let ask = make(&format!("{case:?} {round} {}", PROMPT.repeat(20)), 2 + round * 7);
                ask.served(house.address).await;
                ask.streamed().served(house.address).await;
                sent += 2;
            }
        }
        let stats = house.stats().await;
        assert_eq!((stats.handoffs.made, stats.handoffs.right), (sent, sent), "{case:?} {stats:?}");
        assert!(stats.tokens.transferred > 0 && stats.handoffs.failed == 0, "{case:?} {stats:?}");
        assert_eq!(house.page().await.fates(), format!("consumed {sent}"), "{case:?}");
        house.close().await;
    })
    .await;
}

#[tokio::test]
async fn many_at_once_are_not_mixed_up() {
    each(async |case| {
        let house = plan(case, 2, 2).args("--runtime-worker-threads 2").open().await;
        let address = house.address;
        let asks = (0..60).map(|at| {
            let ask = Ask::chat(&format!("{at} of {case:?} {}", PROMPT.repeat(at % 7)), 3 + at as u32 % 20);
            let ask = if at % 2 == 0 { ask.streamed() } else { ask };
            tokio::spawn(async move { ask.served(address).await })
        });
        for asked in asks.collect::<Vec<_>>() {
            asked.await.unwrap();
        }
        house.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_leaves_before_the_prefill_engine_has_the_request() {
    each(async |case| {
        let mut house = plan(case, 1, 1).open().await;
        house.arm(PREFILL, fault(FaultKind::Stall)).await;
        let raw = post(&house, &Ask::chat(PROMPT, 8).streamed()).await;
        let legs = if case.at_once() { 2 } else { 1 };
        until("the legs are there", || house.fleet.stats().requests.open == legs).await;
        raw.reset();
        until("the legs are closed", || house.fleet.stats().requests.open == 0).await;
        house.quiet().await;
        let fate = if case.at_once() { "aborted 1" } else { "" };
        assert_eq!(house.page().await.fates(), fate, "{case:?}");
        // A decode engine that waits for a push is not told that none will come.
        house.expire_what_was_stranded();
        house.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_leaves_while_the_prompt_is_computed() {
    each(async |case| {
        // In many steps, between which the engine can stop; and in one, which it ends and then keeps the KV, until a
        // throw-away decode has fetched it.
        let bound = case == Case::MoriioWrite;
        for (step, left) in [(64, 0), (8192, u64::from(bound))] {
            let slow = |spec: &mut baton_sim::EngineSpec| {
                (spec.time_scale, spec.max_batched_tokens) = (3.0, step);
            };
            let mut house = plan(case, 1, 1).engines(slow).open().await;
            let raw = post(&house, &Ask::chat(&PROMPT.repeat(200), 8)).await;
            until("it is computed", || house.engine(PREFILL).stats().requests.running == 1).await;
            drop(raw);
            until("the leg is closed", || house.fleet.stats().requests.open == 0).await;
            if case.at_once() {
                house.expire_what_was_stranded();
            } else {
                house.quiet().await;
                let fates = house.page().await.fates();
                let due = if step == 64 || bound { "" } else { "released 1" };
                assert_eq!(fates, due, "{case:?} in steps of {step}");
                house.may_expire(left);
            }
            house.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_leaves_before_the_decode_engine_has_the_request() {
    each(async |case| {
        let mut house = plan(case, 1, 1).open().await;
        house.arm(DECODE, fault(FaultKind::Stall)).await;
        let raw = post(&house, &Ask::chat(PROMPT, 8)).await;
        until("the decode leg is there", || house.engine(DECODE).stats().requests.open == 1).await;
        let computed = !matches!(case, Case::Sglang | Case::GenerationFirst);
        until("the prompt is computed", || !computed || house.fleet.stats().handoffs.made == 1).await;
        raw.reset();
        until("the leg is closed", || house.engine(DECODE).stats().requests.open == 0).await;
        house.quiet().await;
        let fate = if case.at_once() { "aborted 1" } else { "unknown 1" };
        assert_eq!(house.page().await.fates(), fate, "{case:?}");
        // Whether the decode engine has it nobody can tell: its lease frees it.
        house.may_expire(computed.into());
        house.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_leaves_while_the_decode_engine_has_no_room() {
    each(async |case| {
        let small = |spec: &mut baton_sim::EngineSpec| (spec.kv_blocks, spec.time_scale) = (64, 1.0);
        let mut house = plan(case, 1, 1).engines(small).open().await;
        // One request fills the engine, and the next one finds no blocks.
        let long = Ask::completion(&PROMPT.repeat(40), 300).streamed();
        let first = post(&house, &long).await;
        until("the first one streams", || house.engine(DECODE).stats().tokens.generated > 0).await;
        let second = post(&house, &Ask::completion(&format!("Another {}", PROMPT.repeat(40)), 8)).await;
        until("the second one waits", || house.engine(DECODE).stats().requests.open == 2).await;
        second.reset();
        first.reset();
        house.expire_what_was_stranded();
        house.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_leaves_in_the_middle_of_its_stream() {
    each(async |case| {
        let house = plan(case, 1, 1).open().await;
        house.arm(DECODE, Fault { chunks: Some(4), ..on(Where::Decode, FaultKind::Stall) }).await;
        let mut raw = post(&house, &Ask::chat(PROMPT, 40).streamed()).await;
        while raw.text().matches("data: ").count() < 4 {
            assert!(raw.more().await);
        }
        drop(raw);
        until("the leg is closed", || house.fleet.stats().requests.open == 0).await;
        assert_eq!(house.page().await.fates(), "consumed 1", "{case:?}");
        house.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_prefill_engine_that_was_started_anew_is_used_as_what_it_is() {
    each(async |case| {
        let mut house = plan(case, 1, 1).open().await;
        for round in 0..3 {
            Ask::chat(&format!("{PROMPT} {round}"), 8).served(house.address).await;
            house.engine(PREFILL).restart().await.unwrap();
            house.ready().await;
        }
        Ask::chat(PROMPT, 8).served(house.address).await;
        let stats = house.stats().await;
        assert_eq!((stats.handoffs.failed, stats.handoffs.wrong), (0, 0), "{case:?} {stats:?}");
        house.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_push_that_names_one_decode_engine_is_not_asked_for_by_another() {
    for case in [Case::MoriioRead, Case::MoriioWrite] {
        // The first decode engine is chosen and cannot be reached: nobody has noticed yet.
        let idle = "--disable-health-check --policy round_robin";
        let mut house = plan(case, 1, 2).args(idle).open().await;
        house.engine(DECODE).kill().await;
        for at in 0..4 {
            Ask::chat(&format!("{PROMPT} {at}"), 8).served(house.address).await;
        }
        let stats = house.fleet.stats();
        assert_eq!((stats.handoffs.right, stats.handoffs.wrong), (4, 0), "{case:?} {stats:?}");
        // READ's KV serves another decode, WRITE's is given up and the prompt computed again.
        assert_eq!(stats.handoffs.made > 4, case == Case::MoriioWrite, "{case:?} {stats:?}");
        let fates = house.page().await.fates();
        assert_eq!(fates.contains("expired"), case == Case::MoriioWrite, "{case:?} {fates}");
        house.engine(DECODE).restart().await.unwrap();
        house.expire_what_was_stranded();
        house.close().await;
    }
}
