//! Bytes at the edges: encodings, protocols, and one connection for several requests.

use baton_sim::Dialect;
use bytes::Bytes;
use http::Method;

use super::{DONE, asked, content, one_worker};
use crate::support::{Ask, House, Line, PROMPT, Plan, Raw, Reply, Step, request, sse};

#[tokio::test]
async fn a18_an_encoding_is_never_asked_for_on_a_clients_behalf() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).tapped().open().await;
    for headers in [&[][..], &[("accept-encoding", "gzip")][..]] {
        let reply = Ask::chat(PROMPT, 8).post_with(house.address, headers).await;
        Ask::chat(PROMPT, 8).check(&reply);
        assert_eq!(reply.header("content-encoding"), "");
        for at in 0..2 {
            let asked = asked(&house, at).pop().unwrap();
            assert!(["", "identity"].contains(&asked.header("accept-encoding")), "{:?}", asked.headers);
        }
    }
    house.close().await;
}

#[tokio::test]
async fn a18_an_offer_to_speak_http_2_is_declined_and_the_request_served() {
    let house = House::pair(Dialect::Vllm).await;
    let ask = Ask::chat(PROMPT, 8);
    let (path, body) = (ask.path, ask.body.to_string());
    let mut raw = Raw::open(house.address).await;
    raw.say(&format!(
        "POST {path} HTTP/1.1\r\nhost: g\r\nconnection: upgrade, http2-settings, close\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
    .await;
    raw.read_all().await;
    ask.check(&raw.reply());
    // One that speaks it without asking is told in a language that it need not understand, and hung up on.
    let mut raw = Raw::open(house.address).await;
    raw.say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let text = raw.read_all().await;
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    house.close().await;
}

#[tokio::test]
async fn ua01_odd_characters_pass_as_they_are_written_or_are_refused() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    for odd in [r"\u0000", r"\ud83d", r"\udc00\ud83d", r"\u00e9\u2028", "\u{e9}\u{2028}\u{feff}\u{1f600}"] {
        for tap in &house.taps {
            tap.script([Step::json(200, "", "{}")]);
        }
        let message = format!(r#""messages":[{{"role":"user","content":"a{odd}b"}}]"#);
        let body = Bytes::from(format!(r#"{{"model":"sim",{message}}}"#));
        let reply =
            Reply::send(house.address, request(Method::POST, "/v1/chat/completions", &[], body)).await;
        assert_eq!(reply.status, 200, "{odd}: {}", reply.text());
        let bodies = [0, 1].map(|at| asked(&house, at).pop().unwrap().body);
        assert_eq!(bodies[0], bodies[1]);
        assert!(String::from_utf8_lossy(&bodies[0]).contains(&message), "{odd}");
    }
    let before = asked(&house, 0).len();
    let good = r#"{"model":"sim","messages":[{"role":"user","content":"ab"}]}"#;
    let wrong: [Vec<u8>; 4] = [
        [b"\xef\xbb\xbf", good.as_bytes()].concat(),
        good.replace("ab", "a\0b").into_bytes(),
        good.replace("ab", "a\nb").into_bytes(),
        [&good.as_bytes()[..good.len() - 8], b"\xff\xfe\"}]}"].concat(),
    ];
    for body in wrong {
        let shown = String::from_utf8_lossy(&body).into_owned();
        let asking = request(Method::POST, "/v1/chat/completions", &[], Bytes::from(body));
        let reply = Reply::send(house.address, asking).await;
        assert_eq!(reply.error(), (400, "invalid_json".into()), "{shown}");
    }
    assert_eq!(asked(&house, 0).len(), before, "no engine was asked");
    house.close().await;
}

#[tokio::test]
async fn ua07_interim_answers_and_trailers_of_an_engine_stay_there() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).tapped().open().await;
        let early = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
        let mut steps = vec![Step::say(early)];
        steps.extend(sse(&[&content("a"), DONE]));
        steps.pop();
        steps.push(Step::say("0\r\nx-trailer: t\r\n\r\n"));
        if dialect == Dialect::Sglang {
            house.taps[0].script([Step::say(early), Step::json(200, "", "{}")]);
        }
        house.taps[1].script(steps);
        let ask = Ask::chat(PROMPT, 1).streamed();
        let mut line = Line::open(house.address).await;
        let reply = line.post(ask.path, &ask.body).await;
        assert_eq!((reply.status, reply.broken), (200, false));
        assert_eq!(reply.text(), format!("{}{DONE}", content("a")));
        assert_eq!((reply.header("link"), reply.header("x-trailer")), ("", ""));
        // Both connections are good for another one.
        ask.check(&line.post(ask.path, &ask.body).await);
        drop(line);
        house.close().await;
    }
}

#[tokio::test]
async fn ua08_nothing_of_a_broken_answer_is_found_in_the_next_one() {
    let house = one_worker().await;
    let (first, second) = (Ask::chat(PROMPT, 6), Ask::completion("Another one", 6));
    let written = |ask: &Ask, more: &str| {
        let body = ask.body.to_string();
        format!("POST {} HTTP/1.1\r\nhost: g\r\n{more}content-length: {}\r\n\r\n{body}", ask.path, body.len())
    };
    // A plain answer that breaks off is the last one on its connection.
    house.taps[0].script([
        Step::say(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"first\":",
        ),
        Step::Fin,
    ]);
    let mut raw = Raw::open(house.address).await;
    raw.say(&(written(&first, "") + &written(&second, ""))).await;
    let text = raw.read_all().await;
    assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
    assert!(text.ends_with("{\"first\":"), "{text}");
    house.taps[0].clear();
    // A stream that breaks off has an end of its own, and the next answer is whole.
    house.taps[0].script([Step::stream_head(""), Step::chunk(&content("first")), Step::Fin]);
    let mut raw = Raw::open(house.address).await;
    raw.say(&(written(&first.streamed(), "") + &written(&second, "connection: close\r\n"))).await;
    let text = raw.read_all().await;
    let (one, other) = text.split_once("0\r\n\r\nHTTP/1.1 ").unwrap_or_else(|| panic!("{text}"));
    assert!(one.contains("read_response_failed") && !one.contains(&second.expected()), "{one}");
    assert!(other.starts_with("200 ") && other.contains(&second.expected()), "{other}");
    assert!(!other.contains("first"), "{other}");
    house.close().await;
}
