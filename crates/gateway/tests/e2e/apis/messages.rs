//! `/v1/messages`, plain and streamed.

use baton_sim::{Dialect, FleetSpec};
use serde_json::json;

use super::{Talk, named};
use crate::support::{Gate, House, PROMPT, Plan, Reply, Step, Streamed};

fn words(at: usize) -> String {
    format!("{PROMPT} number {at}, and then the {at} small fish sing of the river")
}

#[tokio::test]
async fn both_engines_give_the_exact_text_and_move_the_kv() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        for at in 0..4 {
            let talk = Talk::messages(&words(at), 24);
            let talk = if at % 2 == 0 { talk } else { talk.streamed() };
            let reply = talk.served(house.address).await;
            assert!(!reply.text().contains("kv_transfer_params\":{\"do_remote_decode\":true"));
            assert!(reply.header("x-request-id").starts_with("msg_"), "{:?}", reply.headers);
            assert_eq!(
                reply.header("request-id"),
                reply.header("x-request-id"),
                "as Anthropic's SDKs look for it"
            );
        }
        let stats = house.stats().await;
        assert_eq!((stats.handoffs.made, stats.handoffs.right), (4, 4), "{stats:?}");
        let page = house.page().await;
        let of = |kind| page.sum("smg_router_tokens_total", &[r#"endpoint="messages""#, kind]);
        assert_eq!(of(r#"token_type="output""#), 96.0, "streams tell their usage too");
        assert!(of(r#"token_type="input""#) > 0.0);
        house.close().await;
    }
}

#[tokio::test]
async fn whole_workers_serve_messages_and_responses() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::new(FleetSpec::whole(dialect, 1)).open().await;
        for talk in [Talk::messages(PROMPT, 9), Talk::responses(PROMPT, 9)] {
            talk.served(house.address).await;
            talk.streamed().served(house.address).await;
        }
        house.close().await;
    }
}

#[tokio::test]
async fn a_limit_of_one_token_and_stop_sequences() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        let one = Talk::messages(PROMPT, 1).served(house.address).await;
        assert_eq!(
            (&one.json()["stop_reason"], &one.json()["usage"]["output_tokens"]),
            (&json!("max_tokens"), &json!(1))
        );
        let talk = Talk::messages(PROMPT, 20);
        let all = talk.expected();
        let stop = all.split(' ').nth(4).unwrap();
        let reply = talk.clone().with(json!({"stop_sequences": [stop]})).post(house.address).await;
        let end = all.find(&format!(" {stop}")).unwrap();
        assert_eq!(talk.plain_text(&reply.json()).trim_end(), &all[..end], "{}", reply.text());
        assert_eq!(reply.json()["stop_reason"], "stop_sequence");
        house.close().await;
    }
}

/// An SDK's beta client puts a query behind the path; what it means stands in a header.
#[tokio::test]
async fn a_query_does_not_change_the_route_and_stays_here() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    let talk = Talk::messages(PROMPT, 6);
    talk.check(&Reply::post(house.address, "/v1/messages?beta=true", &talk.body).await);
    let count = Reply::post(house.address, "/v1/messages/count_tokens?beta=true", &talk.body).await;
    assert_eq!(count.status, 200, "{}", count.text());
    let paths: Vec<String> = house.taps.iter().flat_map(|t| t.seen()).map(|s| s.path).collect();
    assert_eq!(paths, ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages"]);
    house.close().await;
}

#[tokio::test]
async fn a_silent_stream_gets_pings_between_its_events() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().args("--sse-keepalive-secs 0.05").open().await;
    let gate = Gate::default();
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    house.taps[1].script([
        Step::stream_head(""),
        Step::chunk(start),
        Step::Wait(gate.clone()),
        Step::chunk(stop),
        Step::last_chunk(),
    ]);
    // A limit of one token: the decode alone serves it.
    let talk = Talk::messages(PROMPT, 1).streamed();
    let mut stream = Streamed::post(house.address, talk.path, &talk.body).await;
    stream.read_until("event: ping\ndata: {\"type\": \"ping\"}\n\n").await;
    gate.open();
    let reply = stream.rest().await;
    let events = named(&reply.text());
    let (first, last) = (&events[0], events.last().unwrap());
    assert_eq!((first.0.as_str(), last.0.as_str()), ("message_start", "message_stop"));
    assert!(events[1..events.len() - 1].iter().all(|e| e.0 == "ping" && e.1 == json!({"type": "ping"})));
    house.close().await;
}

/// vLLM refuses a budget above the cap, and a leg that is cut down to one token has a cap of one.
#[tokio::test]
async fn a_thinking_budget_does_not_stand_in_the_way() {
    for connector in [Some("NixlConnector"), Some("MooncakeStoreConnector"), None] {
        let plan = Plan::pairs(Dialect::Vllm, 1, 1);
        let house = plan.registered(move |spec| spec.kv_connector = connector.map(Into::into)).open().await;
        for talk in [thoughtful(1), thoughtful(2).streamed()] {
            talk.served(house.address).await;
        }
        let handed = if connector == Some("NixlConnector") { 2 } else { 0 };
        assert_eq!(house.stats().await.handoffs.right, handed, "{connector:?}");
        house.close().await;
    }
}

/// Ends by itself.
fn thoughtful(at: usize) -> Talk {
    let budget = json!({"max_tokens": 2048, "thinking": {"type": "enabled", "budget_tokens": 1024}});
    Talk { tokens: baton_sim::text::NATURAL_TOKENS, ..Talk::messages(&words(at), 2048).with(budget) }
}

#[tokio::test]
async fn kv_of_a_thinking_request_is_released_too() {
    let plan = Plan::pairs(Dialect::Vllm, 1, 2).args("--decode-policy round_robin").no_retries();
    let mut house = plan.open().await;
    house.engine(1).kill().await;
    let mut failed = 0;
    for at in 0..4 {
        let reply = thoughtful(at).post(house.address).await;
        match reply.status {
            502 => failed += 1,
            _ => thoughtful(at).check(&reply),
        }
    }
    assert!(failed > 0, "at least one attempt met the dead decode");
    house.quiet().await;
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (4, 4), "each was consumed: {stats:?}");
    house.close().await;
}
