//! Prefill answers that nobody would send on purpose, and prompts of several megabytes.

use baton_sim::Dialect;
use serde_json::json;

use crate::support::{Ask, Gate, House, PROMPT, Plan, Raw, Reply, Step, until, within};

const PARAMS: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e-1","remote_block_ids":[[1,2]],"remote_host":"127.0.0.1","remote_port":5600}"#;

fn answer(more: &str) -> String {
    format!(
        r#"{{"id":"p","choices":[{{"index":0,"finish_reason":"length"}}],{more}"kv_transfer_params":{PARAMS}}}"#
    )
}

async fn pair(args: &str) -> House {
    Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries().args(args).open().await
}

fn head(lines: &str) -> Step {
    Step::say(format!("HTTP/1.1 {lines}\r\n\r\n"))
}

/// The client gets the right answer, because the decode computes the prompt itself, and the loss is counted.
#[tokio::test]
async fn an_answer_without_a_hand_off_costs_the_hand_off_and_no_more() {
    let whole = answer("");
    let half = &whole[..whole.len() / 2];
    let garbage = format!("{whole} and more");
    let twice = format!("{whole}{whole}");
    let text = |body: &str| {
        vec![Step::say(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))]
    };
    let rows: Vec<(&str, Vec<Step>)> = vec![
        ("nothing", vec![head("200 OK\r\ncontent-length: 0")]),
        ("204", vec![head("204 No Content")]),
        ("202, and nothing", vec![head("202 Accepted\r\ncontent-length: 0")]),
        ("no body until the end of the connection", vec![head("200 OK\r\nconnection: close"), Step::Fin]),
        ("text", text("ok")),
        ("markup", text("<html>502 Bad Gateway</html>")),
        ("a list", text("[1,2]")),
        ("a number", text("7")),
        ("blanks", text(" \r\n\t")),
        (
            "no UTF-8",
            vec![Step::Say(
                [&b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\":\"\xff\"}"[..]].concat().into(),
            )],
        ),
        ("half of one, as long as announced", text(half)),
        ("one with something after it", text(&garbage)),
        ("two", text(&twice)),
        (
            "an event stream",
            vec![Step::stream_head(""), Step::chunk(&format!("data: {whole}\n\n")), Step::last_chunk()],
        ),
        ("too deep", text(&format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000)))),
    ];
    let house = pair("").await;
    let mut lost = 0.0;
    for (name, steps) in rows {
        house.taps[0].script(steps);
        let ask = Ask::chat(PROMPT, 8).streamed();
        let reply = ask.post(house.address).await;
        ask.judge(&reply).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        let decode = house.taps[1].last().json();
        assert!(decode.get("kv_transfer_params").is_none(), "{name}: {decode}");
        lost += 1.0;
        assert_eq!(house.page().await.sum("smg_pd_kv_transfer_failures_total", &[]), lost, "{name}");
    }
    assert_eq!((house.blamed(0), house.blamed(1)), (0, 0));
    house.close().await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_fails_the_leg() {
    let house = pair("").await;
    let whole = answer("");
    for steps in [
        vec![head("200 OK\r\ncontent-length: 5000"), Step::say(&*whole), Step::Fin],
        vec![head("200 OK\r\ntransfer-encoding: chunked"), Step::chunk(&whole), Step::Fin],
        vec![head("200 OK\r\ntransfer-encoding: chunked"), Step::say("zz\r\n"), Step::Fin],
    ] {
        let before = house.taps[1].count();
        house.taps[0].script(steps);
        let reply = Ask::chat(PROMPT, 8).post(house.address).await;
        assert_eq!(reply.error(), (502, "prefill_read_failed".into()), "{}", reply.text());
        assert_eq!(house.taps[1].count(), before, "no decode is asked");
    }
    house.close().await;
}

#[tokio::test]
async fn a_large_answer_is_read_up_to_its_limit() {
    // Logprobs of a long prompt make such answers; what the decode needs stands behind them.
    let house = pair("--max-buffered-prefill-answer-bytes 4000000").await;
    let large = |bytes: usize| answer(&format!(r#""prompt_logprobs":"{}","#, "x".repeat(bytes)));
    house.taps[0].script([Step::json(200, "", &large(3_900_000))]);
    house.taps[1].script([Step::json(200, "", r#"{"id":"d"}"#)]);
    let reply = Ask::chat(PROMPT, 8).post(house.address).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, r#"{"id":"d"}"#));
    let decode = String::from_utf8(house.taps[1].last().body.to_vec()).unwrap();
    assert!(decode.contains(PARAMS), "{decode}");
    // Above it, announced or not.
    let above = large(4_000_001);
    let chunked = [head("200 OK\r\ntransfer-encoding: chunked"), Step::chunk(&above), Step::last_chunk()];
    for steps in [vec![Step::json(200, "", &above)], chunked.to_vec()] {
        let before = house.taps[1].count();
        house.taps[0].script(steps);
        let reply = Ask::chat(PROMPT, 8).post(house.address).await;
        assert_eq!(reply.error(), (502, "prefill_read_failed".into()), "{}", reply.text());
        assert_eq!(house.taps[1].count(), before, "no decode is asked");
    }
    house.close().await;
}

/// To the byte through both legs, at once and in turn, with a length or in chunks.
#[tokio::test]
async fn prompts_of_megabytes_reach_both_legs_to_the_byte() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).tapped().open().await;
        for mebibytes in [1, 3, 8] {
            let words = format!("{mebibytes} {}", "caf\u{e9} \u{1f600} \\\"".repeat(mebibytes * 90_000));
            let ask = Ask::chat(&words, 4).with(json!({"stream": mebibytes == 3}));
            let body = ask.body.to_string();
            assert!(body.len() >= mebibytes << 20, "{}", body.len());
            for tap in &house.taps {
                tap.script([Step::json(200, "", &answer(""))]);
            }
            let reply = if mebibytes == 8 {
                let mut raw = Raw::open(house.address).await;
                raw.say(&format!(
                    "POST {} HTTP/1.1\r\nhost: g\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
                    ask.path
                ))
                .await;
                for piece in body.as_bytes().chunks(100_000) {
                    raw.say_bytes(format!("{:x}\r\n", piece.len()).as_bytes()).await;
                    raw.say_bytes(piece).await;
                    raw.say_bytes(b"\r\n").await;
                }
                raw.say("0\r\n\r\n").await;
                raw.read_all().await;
                raw.reply()
            } else {
                ask.post(house.address).await
            };
            assert_eq!((reply.status, reply.broken), (200, false), "{mebibytes} MiB: {}", reply.text());
            for tap in &house.taps {
                let seen = tap.last().json();
                assert!(seen["messages"] == ask.body["messages"], "{mebibytes} MiB");
            }
        }
        until("the legs are over", || house.in_flight(0) + house.in_flight(1) == 0).await;
        house.close().await;
    }
}

/// The simulated engines read them as well: one that is too long for them is refused in their words.
#[tokio::test]
async fn a_prompt_that_is_too_long_for_the_engine_is_refused_in_its_words() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = House::pair(dialect).await;
        let long = Ask::chat(&"fish ".repeat(400_000), 4);
        let reply: Reply = long.post(house.address).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains("32768"), "{}", reply.text());
        house.close().await;
    }
}

/// The engine's message is cut, and what it goes on saying is not waited for.
#[tokio::test]
async fn an_error_answer_without_an_end_holds_nobody_up() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().no_retries().open().await;
    let head = "HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n";
    let steps = [Step::say(head), Step::chunk(&"x".repeat(100 << 10)), Step::Wait(Gate::default())];
    house.taps[0].script(steps);
    let ask = Ask::chat(PROMPT, 4);
    // Less than an error answer that pauses is waited for.
    let soon = std::time::Duration::from_millis(1500);
    let reply = within(soon, "the refusal", ask.post(house.address)).await;
    assert_eq!(reply.error(), (500, "prefill_upstream_error".to_owned()));
    house.close().await;
}
