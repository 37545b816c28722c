//! vLLM with MoRI-IO: what is refused before a leg is sent, and what becomes of a decode whose hand-off turns out to
//! be no good. The engines' own part is scripted.

use baton_core::fleet::Role;
use baton_sim::Dialect;

use crate::support::{Ask, Gate, House, PROMPT, Plan, Step, until};

/// A pair on one host, as in a test it has to be, so with ports of its own for each.
async fn house(more: &'static [(&'static str, &'static str)]) -> House {
    let register = move |spec: &mut baton_gateway::registry::Spec| {
        spec.kv_connector = Some("MoRIIOConnector".into());
        let port = if spec.role == Role::Prefill { "6301" } else { "6401" };
        let notify = if spec.role == Role::Prefill { "61005" } else { "61006" };
        let own = [("moriio_handshake_port", port), ("moriio_notify_port", notify)];
        spec.labels.extend(own.iter().chain(more).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    };
    let mut house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries().registered(register).open().await;
    house.no_after();
    house
}

const AT_ONCE: &[(&str, &str)] = &[("moriio_mode", "write"), ("moriio_write_dispatch", "concurrent")];

#[tokio::test]
async fn a_pair_that_is_none_is_told_and_no_leg_is_sent() {
    let house = house(&[]).await;
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (503, "moriio_pair_misconfigured".into()));
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (0, 0));
    let lost = house.page().await.sum("smg_pd_kv_transfer_failures_total", &[]);
    assert!((lost - 1.0).abs() < 0.1, "{lost}");
    assert_eq!((house.blamed(0), house.blamed(1)), (0, 0));
    house.close().await;
}

#[tokio::test]
async fn a_request_id_that_names_a_peer_is_refused() {
    let house = house(&[("moriio_mode", "read")]).await;
    let id = [("x-request-id", "a___prefill_addr_b")];
    let reply = Ask::chat(PROMPT, 8).post_with(house.address, &id).await;
    assert_eq!(reply.error(), (400, "moriio_request_id_reserved".into()));
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (0, 0));
    house.close().await;
}

#[tokio::test]
async fn a_decode_whose_hand_off_is_no_good_is_dropped_though_it_had_begun() {
    let house = house(AT_ONCE).await;
    let gate = Gate::default();
    let answer =
        r#"{"choices":[],"kv_transfer_params":{"do_remote_prefill":true,"transfer_id":"tx-another"}}"#;
    house.taps[0].script([Step::Wait(gate.clone()), Step::json(200, "", answer)]);
    house.taps[1].script([Step::stream_head(""), Step::chunk("data: {}\n\n"), Step::Never]);
    let address = house.address;
    let reply = tokio::spawn(async move { Ask::chat(PROMPT, 8).streamed().post(address).await });
    until("both legs are sent", || house.taps.iter().all(|tap| tap.count() == 1)).await;
    gate.open();
    let reply = reply.await.unwrap();
    assert_eq!(reply.error(), (502, "moriio_handoff_invalid".into()));
    let decode = house.taps[1].last();
    until("the decode is dropped", || decode.is_gone()).await;
    let params = &decode.json()["kv_transfer_params"];
    assert_eq!(
        (&params["remote_handshake_port"], &params["remote_notify_port"]),
        (&6301.into(), &61005.into())
    );
    assert_eq!((house.blamed(0), house.blamed(1)), (0, 0), "neither worker failed");
    house.close().await;
}

#[tokio::test]
async fn a_decode_that_refuses_is_told_without_waiting_for_the_prefill() {
    let house = house(AT_ONCE).await;
    house.taps[0].script([Step::Never]);
    house.taps[1].script([Step::json(400, "", r#"{"error":{"message":"too long"}}"#)]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (400, "decode_bad_request".into()));
    let prefill = house.taps[0].last();
    until("the prefill is dropped", || prefill.is_gone()).await;
    house.close().await;
}

#[tokio::test]
async fn a_prefill_that_refuses_is_told_as_in_turn() {
    let house = house(AT_ONCE).await;
    house.taps[0].script([Step::json(422, "", r#"{"error":{"message":"no"}}"#)]);
    house.taps[1].script([Step::Never]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!(reply.error(), (422, "prefill_upstream_error".into()));
    house.close().await;
}
