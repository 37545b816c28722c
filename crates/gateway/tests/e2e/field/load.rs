//! Counts of what is under way, while workers come and go, and bursts that are wider than a decode worker.

use std::sync::Arc;

use baton_core::dice::Dice;
use baton_core::fleet::{Seat, Status};
use baton_sim::{Dialect, FleetSpec};
use bytes::Bytes;
use http::Method;

use super::{DONE, asked, content, send};
use crate::support::{Ask, Gate, House, PROMPT, Plan, Reply, Step, Streamed, request, until};

/// How a stream will end.
#[derive(Clone, Copy, Debug)]
enum End {
    Served,
    ClientLeaves,
    EngineResets,
}

/// A stream under way, and the registration of the worker that it counts for.
struct Open {
    seat: Arc<Seat>,
    stream: Streamed,
    gate: Gate,
    end: End,
}

async fn open(house: &House, end: End) -> Open {
    let gate = Gate::default();
    let last = match end {
        End::Served => vec![Step::chunk(DONE), Step::last_chunk()],
        End::ClientLeaves => vec![Step::Never],
        End::EngineResets => vec![Step::Reset],
    };
    let mut steps = vec![Step::stream_head(""), Step::chunk(&content("a"))];
    steps.extend((!matches!(end, End::ClientLeaves)).then(|| Step::Wait(gate.clone())));
    steps.extend(last);
    house.taps[0].script(steps);
    let mut stream = Ask::chat(PROMPT, 8).streamed().stream(house.address).await;
    stream.read_until(&content("a")).await;
    Open { seat: house.seat(0), stream, gate, end }
}

async fn close(open: Open) {
    match open.end {
        End::ClientLeaves => open.stream.leave(),
        end => {
            open.gate.open();
            let text = open.stream.rest().await.text();
            assert_eq!(text.contains("\"error\""), matches!(end, End::EngineResets), "{text}");
        }
    }
}

/// The worker leaves, and its address joins again.
async fn flap(house: &mut House) {
    let id = house.seat(0).worker.id.clone();
    let gone = request(Method::DELETE, &format!("/workers/{id}"), &[], Bytes::new());
    assert_eq!(Reply::send(house.address, gone).await.status, 202);
    let old = house.seat(0);
    house.gateway().registry.add(house.spec(0)).unwrap();
    house.note_seats();
    let new = house.seat(0);
    assert_ne!(old.slot, new.slot);
    until("it is ready again", || new.pulse.status() == Status::Ready).await;
}

#[tokio::test]
async fn a19_each_registration_counts_its_own_whatever_comes_and_goes() {
    for seed in 0..4 {
        let mut house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().no_retries().open().await;
        // Streams that break off are the engine's fault; here that must not take it out of service.
        let mut dice = Dice::new(seed);
        let (mut running, mut seats): (Vec<Open>, Vec<Arc<Seat>>) = (Vec::new(), vec![house.seat(0)]);
        for step in 0..24 {
            match dice.u64() % 8 {
                0..=3 => {
                    let end = [End::Served, End::ClientLeaves, End::EngineResets][dice.u64() as usize % 3];
                    running.push(open(&house, end).await);
                }
                4..=6 if !running.is_empty() => {
                    let at = dice.u64() as usize % running.len();
                    close(running.swap_remove(at)).await;
                }
                _ => {
                    flap(&mut house).await;
                    seats.push(house.seat(0));
                }
            }
            until("every count is the true one", || {
                seats.iter().all(|seat| {
                    let own = running.iter().filter(|open| open.seat.slot == seat.slot).count();
                    seat.load.in_flight() as usize == own
                })
            })
            .await;
            let page = house.page().await;
            assert!(page.sum("smg_worker_requests_active", &[]) >= 0.0, "seed {seed}, step {step}");
        }
        for open in running {
            close(open).await;
        }
        house.no_after();
        house.close().await;
    }
}

#[tokio::test]
async fn a30_a_burst_wider_than_the_window_waits_in_the_gateway() {
    for decodes in [1, 2] {
        let label = |spec: &mut baton_gateway::registry::Spec| {
            spec.labels.insert("max_num_seqs".into(), "4".into());
        };
        let house = Plan::pairs(Dialect::Sglang, 1, decodes).tapped().registered(label).open().await;
        let gate = Gate::default();
        for decode in 1..=decodes {
            house.taps[decode].always([Step::Wait(gate.clone()), Step::Pass]);
        }
        let asks: Vec<Ask> = (0..64).map(|at| Ask::chat(&format!("{PROMPT} {at}"), 6)).collect();
        let sent: Vec<_> = asks.iter().map(|ask| send(&house, ask.clone())).collect();
        let room = 4 * decodes;
        until("the rest waits in the gateway", || house.gateway().rooms.waiting() == 64 - room).await;
        for decode in 1..=decodes {
            until("a full window is there", || asked(&house, decode).len() == 4).await;
        }
        until("and their prefills", || asked(&house, 0).len() == room).await;
        gate.open();
        let mut most = 0;
        until("all are served", || {
            most = most.max((1..=decodes).map(|at| house.in_flight(at)).max().unwrap());
            sent.iter().all(tokio::task::JoinHandle::is_finished)
        })
        .await;
        assert!(most <= 4, "{most} at once");
        for (ask, sent) in asks.iter().zip(sent) {
            ask.check(&sent.await.unwrap());
        }
        assert_eq!(asked(&house, 0).len(), 64, "each prompt was computed once");
        house.close().await;
    }
}
