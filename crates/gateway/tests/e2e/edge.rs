//! The edge: which request gets which status, headers of answers, browsers, TLS, the probes' own listener.

use std::sync::Arc;

use baton_sim::{Dialect, FleetSpec};
use bytes::Bytes;
use http::Method;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::support::{Ask, House, Line, PROMPT, Plan, Raw, Reply, SOON, Step, request, sse};

#[tokio::test]
async fn smg_f84_bodies_that_are_too_large_are_refused_before_they_are_read() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).args("--max-payload-size 2000").open().await;
    let long = Ask::chat(&"x".repeat(3000), 4);
    assert_eq!(long.post(house.address).await.error(), (413, "request_body_too_large".into()));
    // Announced only: nothing of it needs to come.
    let mut raw = Raw::open(house.address).await;
    raw.say("POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 999999999999\r\n\r\n").await;
    raw.ends_within(SOON).await;
    assert_eq!(raw.status(), 413, "{}", raw.text());
    // Not announced.
    let mut raw = Raw::open(house.address).await;
    raw.say("POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for _ in 0..3 {
        raw.try_say(&format!("3e8\r\n{}\r\n", "x".repeat(1000))).await;
    }
    raw.ends_within(SOON).await;
    assert_eq!(raw.status(), 413, "{}", raw.text());
    // A client that asks first is told before it sends.
    let mut raw = Raw::open(house.address).await;
    raw.say(
        "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 5000\r\nexpect: 100-continue\r\n\r\n",
    )
    .await;
    let text = raw.ends_within(SOON).await;
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    Ask::chat("short", 4).served(house.address).await;
    assert_eq!(
        house.page().await.sum("smg_http_responses_total", &[r#"error_code="request_body_too_large""#]),
        4.0
    );
    house.close().await;
}

#[tokio::test]
async fn bodies_that_stop_arriving_are_given_up() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).args("--stream-body-stall-timeout-secs 0.1").open().await;
    let mut raw = Raw::open(house.address).await;
    raw.say("POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 50\r\n\r\n{\"pro").await;
    raw.ends_within(SOON).await;
    assert_eq!(raw.status(), 408, "{}", raw.text());
    assert!(raw.text().contains("request_body_stalled") && raw.text().contains("connection: close"));
    house.close().await;
}

#[tokio::test]
async fn bodies_that_end_early_are_told_so() {
    let house = House::pair(Dialect::Vllm).await;
    let mut raw = Raw::open(house.address).await;
    raw.say("POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 50\r\n\r\n{\"pro").await;
    raw.half_close().await;
    raw.ends_within(SOON).await;
    assert_eq!(raw.status(), 400, "{}", raw.text());
    assert!(raw.text().contains("request_body_broken"), "{}", raw.text());
    // Broken chunks: hyper ends the connection before an answer can be written.
    let mut raw = Raw::open(house.address).await;
    raw.say("POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n").await;
    raw.ends_within(SOON).await;
    assert!(!raw.text().contains("200"), "{}", raw.text());
    // Gone in the middle: nobody is left to tell, and nothing stays behind.
    let mut raw = Raw::open(house.address).await;
    raw.say("POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 50\r\n\r\n{\"pro").await;
    raw.reset();
    house.close().await;
}

#[tokio::test]
async fn requests_that_cannot_be_served_are_told_why() {
    let house = House::pair(Dialect::Vllm).await;
    for (body, code, param) in [
        ("{\"prompt\": ", "invalid_json", None),
        ("[1]", "invalid_json", None),
        ("", "invalid_json", None),
        (r#"{"stream":true,"stream":false}"#, "repeated_member", Some("stream")),
        (r#"{"max_tokens":"many"}"#, "invalid_type", Some("max_tokens")),
        (r#"{"n":0}"#, "invalid_value", Some("n")),
        (r#"{"rid":1,"rid":2}"#, "repeated_member", Some("rid")),
    ] {
        let ask = request(Method::POST, "/v1/chat/completions", &[], Bytes::from(body));
        let reply = Reply::send(house.address, ask).await;
        assert_eq!(reply.error(), (400, code.into()), "{body}");
        assert_eq!(reply.json()["error"]["param"].as_str(), param, "{body}");
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
        assert!(reply.header("x-request-id").starts_with("chatcmpl-"), "{}", reply.header("x-request-id"));
    }
    let unknown = Ask::chat(PROMPT, 4).with(json!({"model": "other"})).post(house.address).await;
    assert_eq!(unknown.error(), (404, "model_not_found".into()));
    assert_eq!(unknown.json()["error"]["param"], "model");
    assert!(unknown.json()["error"]["message"].as_str().unwrap().contains("sim"), "{}", unknown.text());
    let anthropic = Reply::post(house.address, "/v1/messages", &json!({"n": 0})).await;
    assert_eq!((anthropic.status, &anthropic.json()["type"]), (400, &json!("error")));
    assert_eq!(house.fleet.stats().requests.accepted, 0, "no engine was asked");
    house.close().await;
}

#[tokio::test]
async fn smg_f84_routes_and_methods() {
    let house = House::pair(Dialect::Vllm).await;
    for (method, path, status, allow) in [
        (Method::GET, "/v1/chat/completions", 405, "POST"),
        (Method::DELETE, "/generate", 405, "POST"),
        (Method::POST, "/health", 405, "GET, HEAD"),
        (Method::PUT, "/v1/models", 405, "GET, HEAD"),
        (Method::GET, "/nowhere", 404, ""),
        (Method::POST, "/v1/chat/completions/", 404, ""),
        (Method::POST, "/v1/embeddings", 501, ""),
        (Method::GET, "/liveness", 200, ""),
        (Method::HEAD, "/health", 200, ""),
        (Method::GET, "/readiness", 200, ""),
        (Method::GET, "/v1/models", 200, ""),
        (Method::GET, "/v1/models/sim", 200, ""),
        (Method::GET, "/v1/models/other", 404, ""),
        (Method::GET, "/workers", 200, ""),
    ] {
        let reply = Reply::send(house.address, request(method.clone(), path, &[], Bytes::new())).await;
        assert_eq!(
            (reply.status, reply.header("allow")),
            (status, allow),
            "{method} {path}: {}",
            reply.text()
        );
    }
    let models = Reply::get(house.address, "/v1/models").await.json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("sim")));
    house.close().await;
    let house = House::pair(Dialect::Sglang).await;
    for path in ["/get_server_info", "/server_info", "/get_model_info", "/model_info"] {
        let reply = Reply::get(house.address, path).await;
        assert_eq!((reply.status, &reply.json()["model_path"]), (200, &json!("sim")), "{path}");
    }
    house.close().await;
}

#[tokio::test]
async fn smg_f83_the_gateways_key_is_asked_for() {
    let plan =
        Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).arg("--api-key", "sesame").args("--debug-endpoints");
    let mut house = plan.open().await;
    house.no_after();
    let ask = Ask::chat(PROMPT, 4);
    let bare = ask.post(house.address).await;
    assert_eq!(bare.error(), (401, "invalid_api_key".into()));
    assert_eq!(bare.header("www-authenticate"), "Bearer realm=\"data-plane\"");
    for wrong in ["Bearer sesam", "Bearer sesame2", "Basic sesame", "Bearer ", "sesame"] {
        let reply = ask.post_with(house.address, &[("authorization", wrong)]).await;
        assert_eq!(reply.error(), (401, "invalid_api_key".into()), "{wrong}");
    }
    ask.check(&ask.post_with(house.address, &[("authorization", "Bearer sesame")]).await);
    for (path, status) in [
        ("/health", 200),
        ("/liveness", 200),
        ("/readiness", 200),
        ("/v1/models", 200),
        ("/workers", 401),
        ("/debug/config", 401),
    ] {
        assert_eq!(Reply::get(house.address, path).await.status, status, "{path}");
    }
    let key = [("authorization", "Bearer sesame")];
    let config = Reply::send(house.address, request(Method::GET, "/debug/config", &key, Bytes::new())).await;
    assert!(config.status == 200 && !config.text().contains("sesame"), "{}", config.text());
    house.close().await;
}

#[tokio::test]
async fn smg_a1_answers_name_the_request_and_the_workers() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).registered(|s| {
        let name = if s.role == baton_core::fleet::Role::Prefill { "p-0" } else { "d-0" };
        let labels = [("roleset-name", "r"), ("pod_name", name), ("pod_ip", "10.9.8.7")];
        s.labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    });
    let house = house.open().await;
    let (prefill, decode) = (house.seat(0), house.seat(1));
    for ask in [Ask::chat(PROMPT, 5), Ask::chat(PROMPT, 5).streamed()] {
        let reply = ask.post_with(house.address, &[("x-request-id", "mine-1")]).await;
        ask.check(&reply);
        for (name, value) in [
            ("x-request-id", "mine-1"),
            ("x-baton-prefill", &prefill.worker.id),
            ("x-baton-decode", &decode.worker.id),
            ("x-smg-routed-worker-id", &decode.worker.url),
            ("target-pod", "d-0"),
            ("prefill-target-pod", "p-0"),
            ("prefill-target-pod-ip", "10.9.8.7"),
        ] {
            assert_eq!(reply.header(name), value, "{name}");
        }
        let port = house.engine(1).addr().port();
        assert_eq!(reply.header("target-pod-ip"), format!("10.9.8.7:{port}"));
        for once in ["server", "date", "content-type", "x-request-id"] {
            assert_eq!(reply.headers.get_all(once).iter().count(), 1, "{once}: {:?}", reply.headers);
        }
    }
    let alone = Ask::chat(PROMPT, 5).with(json!({"n": 2})).served(house.address).await;
    assert_eq!(
        (alone.header("x-baton-prefill"), alone.header("x-baton-decode")),
        ("", decode.worker.id.as_str())
    );
    let made = Ask::chat(PROMPT, 5).post_with(house.address, &[("x-request-id", &"x".repeat(200))]).await;
    assert!(made.header("x-request-id").starts_with("chatcmpl-"), "{}", made.header("x-request-id"));
    house.close().await;
}

#[tokio::test]
async fn a18_hop_by_hop_headers_of_an_engine_stay_there() {
    let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().open().await;
    let hop = "connection: close, x-foo, Keep-Alive\r\nx-foo: 1\r\nkeep-alive: timeout=5\r\nte: trailers\r\n\
               trailer: x\r\nproxy-authenticate: Basic\r\nupgrade: h2c\r\nx-smg-error-code: lies\r\nx-bar: 2\r\n\
               server: uvicorn\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\n";
    for steps in [vec![Step::json(200, hop, "{\"a\":1}"), Step::Fin], {
        let mut steps = sse(&["data: [DONE]\n\n"]);
        steps[0] = Step::stream_head(hop);
        steps.push(Step::Fin);
        steps
    }] {
        house.taps[0].script(steps);
        let reply = Ask::chat(PROMPT, 4).post(house.address).await;
        assert_eq!((reply.status, reply.broken), (200, false), "{}", reply.text());
        for gone in
            ["x-foo", "keep-alive", "te", "trailer", "proxy-authenticate", "upgrade", "x-smg-error-code"]
        {
            assert_eq!(reply.header(gone), "", "{gone}: {:?}", reply.headers);
        }
        assert_eq!(reply.header("x-bar"), "2");
        assert_eq!(reply.headers.get_all("date").iter().count(), 1);
        assert_eq!(reply.headers.get_all("server").iter().count(), 1);
        assert!(!reply.header("connection").contains("x-foo"));
    }
    house.close().await;
}

#[tokio::test]
async fn a18_content_length_and_encoding_agree_with_the_body() {
    let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().open().await;
    let ask = Ask::chat(PROMPT, 4);
    let plain = ask.served(house.address).await;
    assert_eq!(plain.header("content-length"), plain.body.len().to_string());
    let stream = ask.clone().streamed().served(house.address).await;
    assert_eq!((stream.header("content-length"), stream.header("transfer-encoding")), ("", "chunked"));
    // The type of an answer is the engine's.
    house.taps[0].script([Step::say(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: 2\r\n\r\n{}",
    )]);
    assert_eq!(ask.post(house.address).await.header("content-type"), "application/json; charset=utf-8");
    // An engine that ends its answer by closing.
    house.taps[0]
        .script([Step::say("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nto the end"), Step::Fin]);
    let reply = ask.post(house.address).await;
    assert_eq!((reply.text().as_str(), reply.broken), ("to the end", false));
    // An encoding that nobody asked for still fits its bytes.
    let zipped = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nGZIP";
    house.taps[0].script([Step::say(zipped)]);
    let reply = ask.post(house.address).await;
    assert_eq!((reply.header("content-encoding"), reply.text().as_str()), ("gzip", "GZIP"));
    assert_eq!(reply.header("content-length"), "4");
    // A stream with a length keeps its bytes; comments must not break the promise.
    house.taps[0].script([Step::say(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 14\r\n\r\ndata: [DONE]\n\n",
    )]);
    let reply = ask.clone().streamed().post(house.address).await;
    assert_eq!((reply.text().as_str(), reply.broken), ("data: [DONE]\n\n", false));
    // Fewer bytes than announced.
    house.taps[0].script([Step::say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"), Step::Fin]);
    let reply = ask.post(house.address).await;
    assert!(reply.broken, "{}", reply.text());
    house.close().await;
}

#[tokio::test]
async fn one_connection_serves_many_requests_also_pipelined_ones() {
    let house = House::pair(Dialect::Sglang).await;
    let mut line = Line::open(house.address).await;
    for at in 0..5 {
        let ask = Ask::chat(&format!("{PROMPT} {at}"), 6);
        let ask = if at % 2 == 0 { ask.streamed() } else { ask };
        ask.check(&line.post(ask.path, &ask.body).await);
        let mistake = line.post("/v1/completions", &json!({"n": 0})).await;
        assert_eq!(mistake.status, 400);
    }
    drop(line);
    let asks: Vec<Ask> = (0..3).map(|at| Ask::completion(&format!("{PROMPT} {at}"), 6)).collect();
    let mut raw = Raw::open(house.address).await;
    let mut all = String::new();
    for (at, ask) in asks.iter().enumerate() {
        let body = ask.body.to_string();
        let close = if at == 2 { "connection: close\r\n" } else { "" };
        let length = body.len();
        all += &format!(
            "POST {} HTTP/1.1\r\nhost: g\r\n{close}content-length: {length}\r\n\r\n{body}",
            ask.path
        );
    }
    raw.say(&all).await;
    let text = raw.read_all().await;
    let found: Vec<usize> = asks.iter().map(|ask| text.find(&ask.expected()).unwrap()).collect();
    assert!(found.is_sorted(), "answers come in the order of the requests");
    house.close().await;
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_its_answer_and_the_end() {
    let house = House::pair(Dialect::Vllm).await;
    for ask in [Ask::chat(PROMPT, 8), Ask::chat(PROMPT, 8).streamed()] {
        let body = ask.body.to_string();
        let mut raw = Raw::open(house.address).await;
        raw.say(&format!("POST {} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", ask.path, body.len())).await;
        let text = raw.read_all().await;
        assert!(!text.to_lowercase().contains("transfer-encoding"), "{text}");
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        if ask.is_streamed() {
            assert!(body.ends_with("data: [DONE]\n\n"), "{text}");
        } else {
            assert!(body.contains(&ask.expected()), "{text}");
        }
    }
    house.close().await;
}

#[tokio::test]
async fn browsers_may_call_from_the_origins_that_are_listed() {
    let plan = Plan::new(FleetSpec::whole(Dialect::Vllm, 1));
    let house = plan.arg("--cors-allowed-origins", "https://a.example").open().await;
    let ask = Ask::chat(PROMPT, 4);
    let reply = ask.post_with(house.address, &[("origin", "https://a.example")]).await;
    ask.check(&reply);
    assert_eq!(reply.header("access-control-allow-origin"), "https://a.example");
    assert!(reply.header("vary").contains("origin"));
    let other = ask.post_with(house.address, &[("origin", "https://b.example")]).await;
    assert_eq!(other.header("access-control-allow-origin"), "");
    let asks = [("origin", "https://a.example"), ("access-control-request-method", "POST")];
    let ok = Reply::send(house.address, request(Method::OPTIONS, ask.path, &asks, Bytes::new())).await;
    assert_eq!((ok.status, ok.header("access-control-allow-origin")), (204, "https://a.example"));
    assert!(ok.header("access-control-allow-methods").contains("POST"));
    house.close().await;

    let house = Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).open().await;
    let reply = ask.post_with(house.address, &[("origin", "https://a.example")]).await;
    assert_eq!(reply.header("access-control-allow-origin"), "");
    let no = Reply::send(house.address, request(Method::OPTIONS, ask.path, &asks, Bytes::new())).await;
    assert_eq!((no.status, no.header("access-control-allow-origin")), (405, ""));
    house.close().await;
}

#[tokio::test]
async fn clients_may_come_over_tls() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = std::env::temp_dir().join(format!("baton-e2e-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let plan = Plan::pairs(Dialect::Sglang, 1, 1);
    let plan =
        plan.arg("--tls-cert-path", cert.to_str().unwrap()).arg("--tls-key-path", key.to_str().unwrap());
    let mut house = plan.open().await;
    house.no_after();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    for ask in [Ask::chat(PROMPT, 20), Ask::chat(PROMPT, 20).streamed()] {
        let tcp = TcpStream::connect(house.address).await.unwrap();
        let wire = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        let mut line = Line::over(wire).await;
        ask.check(&line.post(ask.path, &ask.body).await);
        ask.check(&line.post(ask.path, &ask.body).await);
    }
    // Somebody who does not speak TLS is turned away.
    let mut raw = Raw::open(house.address).await;
    raw.say("GET /health HTTP/1.1\r\nhost: g\r\n\r\n").await;
    assert!(!raw.ends_within(SOON).await.contains("200 OK"));
    std::fs::remove_dir_all(&folder).unwrap();
    house.close().await;
}

#[tokio::test]
async fn the_probes_have_a_listener_of_their_own_with_nothing_else_on_it() {
    let house = Plan::pairs(Dialect::Vllm, 1, 1).with_health_port().arg("--api-key", "k").open().await;
    let mut house = house;
    house.no_after();
    let probes = house.running().health_address.unwrap();
    for path in ["/health", "/liveness", "/readiness"] {
        assert_eq!(Reply::get(probes, path).await.status, 200, "{path}");
    }
    let ask = Ask::chat(PROMPT, 4);
    assert_eq!(ask.post_with(probes, &[("authorization", "Bearer k")]).await.status, 404);
    for path in ["/workers", "/v1/models", "/metrics"] {
        assert_eq!(Reply::get(probes, path).await.status, 404, "{path}");
    }
    house.close().await;
}
