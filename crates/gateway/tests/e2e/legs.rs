//! What the engines get: bodies to the byte, headers, ids and keys.

use std::collections::HashSet;

use baton_core::fleet::Secret;
use baton_sim::{Dialect, FleetSpec};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::support::{Ask, PROMPT, Plan, Reply, Seen, Step, request};

/// Every member that is the gateway's, with a value that must not come through.
fn crafted() -> Value {
    json!({
        "kv_transfer_params": {
            "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": "CRAFTED",
            "remote_block_ids": [[1, 2]], "remote_request_id": "CRAFTED", "remote_host": "CRAFTED", "remote_port": 1,
        },
        "ec_transfer_params": {"x": "CRAFTED"},
        "disaggregated_params": {"request_type": "CRAFTED"},
        "bootstrap_host": "CRAFTED", "bootstrap_port": 1, "bootstrap_room": 4242, "bootstrap_pair_key": "CRAFTED",
        "routed_dp_rank": 31, "data_parallel_rank": 31, "disagg_prefill_dp_rank": 31, "decode_tp_size": 31,
        "rid": "CRAFTED", "request_id": "CRAFTED",
    })
}

fn assert_clean(seen: &Seen) {
    let text = String::from_utf8_lossy(&seen.body).into_owned();
    assert!(!text.contains("CRAFTED") && !text.contains("4242"), "{}: {text}", seen.path);
    let body = seen.json();
    let own = ["kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"];
    for key in crafted().as_object().unwrap().keys().filter(|key| !own.contains(&key.as_str())) {
        assert!(body.get(key).is_none(), "{key} reached an engine: {text}");
    }
}

#[tokio::test]
async fn a_clients_hand_off_fields_never_reach_a_vllm_pair() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    for ask in [Ask::chat(PROMPT, 8), Ask::completion(PROMPT, 8), Ask::chat(PROMPT, 8).streamed()] {
        ask.with(crafted()).served(house.address).await;
    }
    let engine = house.engine(0).engine_id().unwrap();
    for (prefill, decode) in house.taps[0].seen().iter().zip(house.taps[1].seen()) {
        assert_clean(prefill);
        assert_clean(&decode);
        let tag = json!({"do_remote_decode": true, "do_remote_prefill": false});
        assert_eq!(prefill.json()["kv_transfer_params"], tag);
        assert_eq!(decode.json()["kv_transfer_params"]["remote_engine_id"], json!(engine));
        assert!(
            prefill.json().get("bootstrap_room").is_none() && decode.json().get("bootstrap_room").is_none()
        );
    }
    // The decode alone: several samples, one token, a stream option without a stream.
    for members in
        [json!({"n": 2}), json!({"max_tokens": 1}), json!({"stream_options": {"include_usage": true}})]
    {
        Ask::chat(PROMPT, 8).with(crafted()).with(members).post(house.address).await;
        assert_clean(&house.taps[1].last());
        assert!(house.taps[1].last().json().get("kv_transfer_params").is_none());
    }
    assert_eq!((house.taps[0].count(), house.taps[1].count()), (3, 6));
    let stats = house.stats().await;
    assert_eq!((stats.handoffs.made, stats.handoffs.right), (3, 3), "{stats:?}");
    house.close().await;
}

#[tokio::test]
async fn a_clients_hand_off_fields_never_reach_an_sglang_pair() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    for ask in [Ask::chat(PROMPT, 8), Ask::generate(PROMPT, 8), Ask::completion(PROMPT, 8).streamed()] {
        ask.with(crafted()).served(house.address).await;
    }
    for (prefill, decode) in house.taps[0].seen().iter().zip(house.taps[1].seen()) {
        assert_clean(prefill);
        assert_clean(&decode);
        assert!(prefill.json().get("kv_transfer_params").is_none());
        assert_eq!(prefill.json()["bootstrap_host"], "127.0.0.1");
        assert_eq!(prefill.json()["bootstrap_port"], json!(house.engine(0).bootstrap_port()));
        assert_eq!(prefill.body, decode.body, "both legs say the same");
    }
    house.close().await;
}

#[tokio::test]
async fn a_clients_hand_off_fields_never_reach_whole_workers_or_other_connectors() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::new(FleetSpec::whole(dialect, 1)).tapped().open().await;
        Ask::chat(PROMPT, 8).with(crafted()).served(house.address).await;
        let body = house.taps[0].last().json();
        assert_clean(&house.taps[0].last());
        assert!(body.get("kv_transfer_params").is_none() && body.get("bootstrap_room").is_none(), "{body}");
        house.close().await;
    }
    for connector in [None, Some("MooncakeStoreConnector"), Some("SomethingNew")] {
        let plan = Plan::pairs(Dialect::Vllm, 1, 1).tapped();
        let house = plan.registered(move |s| s.kv_connector = connector.map(str::to_owned)).open().await;
        Ask::chat(PROMPT, 8).with(crafted()).served(house.address).await;
        for tap in &house.taps {
            assert_clean(&tap.last());
            assert!(tap.last().json().get("kv_transfer_params").is_none());
        }
        house.close().await;
    }
}

#[tokio::test]
async fn a29_what_the_gateway_does_not_know_passes_to_the_byte() {
    let odd = r#""chat_template_kwargs" : {"enable_thinking":false},"top_k":-1, "seed":9007199254740993,"temperature":0.10,"x_vendor":{"deep":[1,2,{"k":null}],"\u00e9":"\ud83d\ude00 \u0000"},"logit_bias":{"50256":-100},"user":"\"kv_transfer_params\":1""#;
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).tapped().open().await;
        let messages = r#""messages":[{"role":"user","content":"caf\u00e9 \u2028 hi","name":"bob","cache_control":{"type":"ephemeral"}}]"#;
        let body = format!("\u{20}{{ {odd},\n\t\"max_tokens\" : 7 ,{messages} }}\n");
        let ask = request(Method::POST, "/v1/chat/completions", &[], Bytes::from(body));
        let reply = Reply::send(house.address, ask).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        for tap in &house.taps {
            let seen = String::from_utf8(tap.last().body.to_vec()).unwrap();
            assert!(seen.contains(odd) && seen.contains(messages), "{seen}");
            assert_eq!(tap.last().header("content-length"), tap.last().body.len().to_string());
        }
        let decode = String::from_utf8(house.taps[1].last().body.to_vec()).unwrap();
        assert!(decode.contains("\"max_tokens\" : 7 ,"), "{decode}");
        house.close().await;
    }
}

#[tokio::test]
async fn a09_what_a_prefill_returns_is_relayed_value_for_value() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    let ids: Vec<String> = (0..2000_u64).map(|i| (9_223_372_036_854_775_807 - i).to_string()).collect();
    let params = format!(
        r#"{{"do_remote_prefill":true, "do_remote_decode":false,"remote_engine_id":"e-1","remote_block_ids":[[{}]],"remote_host":"127.0.0.1","remote_port":5600,"x_new":{{"a":[1,{{"b":null}}],"f":0.10}}}}"#,
        ids.join(",")
    );
    house.taps[0].script([Step::json(
        200,
        "",
        &format!(r#"{{"id":"p","kv_transfer_params":{params},"choices":[]}}"#),
    )]);
    house.taps[1].script([Step::json(200, "", r#"{"id":"d"}"#)]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!((reply.status, reply.text()), (200, r#"{"id":"d"}"#.to_owned()));
    let decode = String::from_utf8(house.taps[1].last().body.to_vec()).unwrap();
    assert!(decode.contains(&params), "{decode}");
    house.taps[0].script([Step::json(200, "", r#"{"id":"p","choices":[]}"#)]);
    Ask::chat(PROMPT, 8).served(house.address).await;
    let page = house.page().await;
    for result in [r#"result="relayed""#, r#"result="missing""#] {
        assert_eq!(page.sum("baton_handoffs_total", &[result]), 1.0, "{result}");
    }
    house.close().await;
}

#[tokio::test]
async fn a10_ids_are_fresh_for_every_attempt_and_never_the_clients() {
    let house = Plan::pairs(Dialect::Sglang, 1, 2).tapped().open().await;
    for tap in &house.taps[1..] {
        tap.script([Step::json(503, "", "{}")]);
    }
    let ask = Ask::chat(PROMPT, 8).with(json!({"rid": "same"}));
    let both = [
        ask.post_with(house.address, &[("x-request-id", "same")]),
        ask.post_with(house.address, &[("x-request-id", "same")]),
    ];
    let [one, two] = both;
    let (one, two) = tokio::join!(one, two);
    for reply in [&one, &two] {
        ask.check(reply);
        assert_eq!(reply.header("x-request-id"), "same");
    }
    let rooms = |seen: Vec<Seen>| {
        seen.iter().map(|s| s.json()["bootstrap_room"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let prefill: HashSet<u64> = rooms(house.taps[0].seen()).into_iter().collect();
    let decodes = [house.taps[1].seen(), house.taps[2].seen()].concat();
    let decode: HashSet<u64> = rooms(decodes.clone()).into_iter().collect();
    assert_eq!(decode.len(), decodes.len(), "no room twice");
    assert_eq!(prefill, decode, "both legs of an attempt meet in one room");
    assert!(decode.len() >= 3, "at least one request was tried again: {decode:?}");
    assert!(decode.iter().all(|room| *room < 1 << 63));
    let all = house.taps.iter().flat_map(|t| t.seen()).collect::<Vec<_>>();
    let ids: HashSet<String> = all.iter().map(|s| s.header("x-request-id").to_owned()).collect();
    assert_eq!(ids.len(), decode.len(), "one id for each attempt: {ids:?}");
    let rids: HashSet<String> = all.iter().map(|s| s.json()["rid"].as_str().unwrap().to_owned()).collect();
    assert_eq!(rids.len(), decode.len(), "one name for each attempt: {rids:?}");
    assert!(!ids.contains("same") && !rids.contains("same"));
    let widths: HashSet<usize> = rids.iter().map(String::len).collect();
    assert_eq!(widths.len(), 1, "no name begins with another: {rids:?}");
    house.close().await;
}

#[tokio::test]
async fn a_retry_sends_the_same_bytes_but_for_its_ids() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let mut house = Plan::pairs(dialect, 1, 1).tapped().engines(|s| s.timeout_scale = 0.01).open().await;
        house.taps[1].script([Step::json(500, "", r#"{"message":"no"}"#)]);
        let ask = Ask::chat(PROMPT, 8).streamed().with(json!({"seed": 9_007_199_254_740_993_u64}));
        ask.served(house.address).await;
        for tap in &house.taps {
            let seen = tap.seen();
            assert_eq!(seen.len(), 2);
            let without_ids = |s: &Seen| {
                let mut body = s.json();
                let all = body.as_object_mut().unwrap();
                for id in ["bootstrap_room", "rid", "kv_transfer_params"] {
                    all.remove(id);
                }
                body
            };
            assert_eq!(without_ids(&seen[0]), without_ids(&seen[1]));
            assert_ne!(seen[0].header("x-request-id"), seen[1].header("x-request-id"));
        }
        // The decode of vLLM that refused may have had the hand-off; it is left to its lease.
        house.may_expire(if dialect == Dialect::Vllm { 1 } else { 0 });
        house.close().await;
    }
}

#[tokio::test]
async fn keys_stay_where_they_belong() {
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).tapped().arg("--api-key", "gateway-key");
    let mut house = plan
        .registered(|s| {
            if s.bootstrap_port.is_none() && s.role == baton_core::fleet::Role::Decode {
                s.api_key = Some(Secret::new("worker-key"));
            }
        })
        .open()
        .await;
    house.no_after();
    let ask = Ask::chat(PROMPT, 8);
    for headers in [[("authorization", "Bearer gateway-key")], [("x-api-key", "gateway-key")]] {
        ask.check(&ask.post_with(house.address, &headers).await);
        let (prefill, decode) = (house.taps[0].last(), house.taps[1].last());
        assert_eq!(
            (prefill.header("authorization"), decode.header("authorization")),
            ("", "Bearer worker-key")
        );
        for seen in [prefill, decode] {
            let leaked = seen.headers.values().any(|v| v.to_str().unwrap_or("").contains("gateway-key"));
            assert!(!leaked, "{:?}", seen.headers);
        }
    }
    house.close().await;

    // Without a key of its own the gateway passes the client's on; a worker's own key wins.
    let plan = Plan::pairs(Dialect::Vllm, 1, 1).tapped();
    let house = plan
        .registered(|s| {
            if s.role == baton_core::fleet::Role::Decode {
                s.api_key = Some(Secret::new("worker-key"));
            }
        })
        .open()
        .await;
    ask.check(&ask.post_with(house.address, &[("authorization", "Bearer theirs")]).await);
    assert_eq!(house.taps[0].last().header("authorization"), "Bearer theirs");
    assert_eq!(house.taps[1].last().header("authorization"), "Bearer worker-key");
    house.close().await;
}

#[tokio::test]
async fn only_known_headers_of_a_client_reach_the_engines() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let headers = [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x-correlation-id", "corr"),
        ("connection", "x-secret"),
        ("x-secret", "s"),
        ("cookie", "c=1"),
        ("te", "trailers"),
        ("accept-encoding", "gzip, br"),
        ("x-forwarded-for", "10.0.0.1"),
        ("expect", "100-continue"),
    ];
    let ask = Ask::chat(PROMPT, 8);
    ask.check(&ask.post_with(house.address, &headers).await);
    for (tap, at) in house.taps.iter().zip(0..) {
        let seen = tap.last();
        assert_eq!(seen.header("traceparent"), headers[0].1);
        assert_eq!(seen.header("x-correlation-id"), "corr");
        for gone in
            ["connection", "x-secret", "cookie", "te", "accept-encoding", "expect", "transfer-encoding"]
        {
            assert_eq!(seen.header(gone), "", "{gone}");
        }
        assert_eq!(format!("http://{}", seen.header("host")), house.url(at));
        assert_eq!(seen.headers.get_all("content-length").iter().count(), 1);
        assert_eq!(seen.header("content-type"), "application/json");
    }
    house.close().await;
}

#[tokio::test]
async fn a18_a_chunked_request_is_sent_on_with_its_length() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    let ask = Ask::chat(PROMPT, 8);
    let body = ask.body.to_string();
    let mut raw = crate::support::Raw::open(house.address).await;
    raw.say("POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    for piece in body.as_bytes().chunks(7) {
        raw.say(&format!("{:x}\r\n{}\r\n", piece.len(), std::str::from_utf8(piece).unwrap())).await;
    }
    raw.say("0\r\nx-trailer: 1\r\n\r\n").await;
    assert!(raw.read_all().await.contains(&ask.expected()), "{}", raw.text());
    for tap in &house.taps {
        assert_eq!(tap.last().header("content-length"), tap.last().body.len().to_string());
    }
    house.close().await;
}
