//! Streams on their way: to the byte, however they are cut into pieces, and what is added in a silence.

use baton_sim::{Dialect, FleetSpec};

use crate::support::{Ask, Gate, House, Line, PROMPT, Plan, Step, sse, until};

const CHUNK: &str = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"},\"finish_reason\":null}]}\n\n";
const USAGE: &str = "data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":10}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

async fn one_worker(args: &str) -> House {
    Plan::new(FleetSpec::whole(Dialect::Vllm, 1)).tapped().args(args).open().await
}

fn ask() -> Ask {
    Ask::chat(PROMPT, 4).streamed()
}

#[tokio::test]
async fn a13_a_stream_arrives_to_the_byte_wherever_it_is_split() {
    let house = one_worker("").await;
    let whole = format!("{CHUNK}{USAGE}{DONE}");
    let mut line = Line::open(house.address).await;
    for at in 1..whole.len() {
        house.taps[0].script(sse(&[&whole[..at], &whole[at..]]));
        let reply = line.post(ask().path, &ask().body).await;
        assert_eq!((reply.text(), reply.broken), (whole.clone(), false), "split at {at}");
    }
    let bytes: Vec<&str> = (0..whole.len()).map(|at| &whole[at..=at]).collect();
    house.taps[0].script(sse(&bytes));
    assert_eq!(line.post(ask().path, &ask().body).await.text(), whole);
    drop(line);
    let page = house.page().await;
    let output = page.sum("smg_router_tokens_total", &[r#"token_type="output""#]);
    assert_eq!(output, 3.0 * whole.len() as f64, "usage is read however it is split");
    assert_eq!(page.sum("baton_exchanges_total", &[r#"outcome="served""#]), whole.len() as f64);
    house.close().await;
}

#[tokio::test]
async fn whatever_is_legal_in_a_stream_passes_unchanged() {
    let house = one_worker("").await;
    let large =
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "x".repeat(8 << 20));
    let many = CHUNK.repeat(10_000);
    let said =
        "data: {\"choices\":[{\"delta\":{\"content\":\"see data: [DONE]\\n\\ndata: [DONE] ok\"}}]}\n\n";
    for body in [
        format!(
            ": ping\r\n\r\nevent: x\r\nid: 7\r\ndata:{{\"choices\":[]}}\r\n\r\n{CHUNK}data:[DONE]\r\n\r\n"
        ),
        format!("data: {{\"id\":\"c1\",\ndata: \"choices\":[]}}\n\n{DONE}"),
        "data: {\"choices\":[]}\r\rdata: [DONE]\r\r".to_owned(),
        format!("{said}data: {{\"choices\":[{{\"delta\":{{\"content\":\"still here\"}}}}]}}\n\n{DONE}"),
        format!("{CHUNK}data: {{not json\n\n{DONE}"),
        format!("\u{feff}{CHUNK}{DONE}"),
        // No end mark, and no end of the last event.
        CHUNK.to_owned(),
        "data: {\"choices\":".to_owned(),
        String::new(),
        format!("{large}{DONE}"),
        format!("{many}{DONE}"),
    ] {
        let mut steps = sse(&[]);
        if !body.is_empty() {
            steps.insert(1, Step::chunk(&body));
        }
        house.taps[0].script(steps);
        let reply = ask().post(house.address).await;
        assert!(reply.text() == body && !reply.broken, "{}", &body[..body.len().min(200)]);
    }
    house.close().await;
}

#[tokio::test]
async fn a_silence_is_filled_with_comments_between_events_and_nowhere_else() {
    let house = one_worker("--sse-keepalive-secs 0.03").await;
    let (quiet, half, plain, tail) = (Gate::default(), Gate::default(), Gate::default(), Gate::default());
    let send = || {
        tokio::spawn({
            let address = house.address;
            async move { ask().post(address).await }
        })
    };
    house.taps[0].script([
        Step::stream_head(""),
        Step::chunk(&CHUNK[..40]),
        Step::Wait(half.clone()),
        Step::chunk(&CHUNK[40..]),
        Step::chunk(DONE),
        Step::last_chunk(),
    ]);
    let in_event = send();
    until("it is there", || house.taps[0].count() == 1).await;
    let body = "{\"choices\": []}";
    house.taps[0].script([
        Step::say("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"cho"),
        Step::Wait(plain.clone()),
        Step::say("ices\": []}"),
    ]);
    let in_json = send();
    until("it is there", || house.taps[0].count() == 2).await;
    house.taps[0].script([
        Step::stream_head(""),
        Step::Wait(quiet.clone()),
        Step::chunk(CHUNK),
        Step::Wait(tail.clone()),
        Step::chunk(DONE),
        Step::last_chunk(),
    ]);
    // Its comments tell how much time has gone by for the others.
    let mut between = ask().stream(house.address).await;
    while between.text().matches(": keep-alive\n\n").count() < 4 {
        between
            .read_until(&": keep-alive\n\n".repeat(between.text().matches(": keep-alive").count() + 1))
            .await;
    }
    quiet.open();
    between.read_until(CHUNK).await;
    between.read_until(&format!("{CHUNK}: keep-alive\n\n")).await;
    for gate in [half, plain, tail] {
        gate.open();
    }
    let between = between.rest().await.text();
    assert_eq!(between.replace(": keep-alive\n\n", ""), format!("{CHUNK}{DONE}"));
    assert!(in_event.await.unwrap().text().replace(": keep-alive\n\n", "") == format!("{CHUNK}{DONE}"));
    assert_eq!(in_json.await.unwrap().text(), body);
    house.close().await;
}

#[tokio::test]
async fn no_comment_splits_an_event() {
    let house = one_worker("--sse-keepalive-secs 0.02").await;
    let (half, clock) = (Gate::default(), Gate::default());
    house.taps[0].script([
        Step::stream_head(""),
        Step::chunk(&CHUNK[..40]),
        Step::Wait(half.clone()),
        Step::chunk(&CHUNK[40..]),
        Step::chunk(DONE),
        Step::last_chunk(),
    ]);
    let mut split = ask().stream(house.address).await;
    split.read_until(&CHUNK[..40]).await;
    house.taps[0].script([
        Step::stream_head(""),
        Step::Wait(clock.clone()),
        Step::chunk(DONE),
        Step::last_chunk(),
    ]);
    let mut other = ask().stream(house.address).await;
    other.read_until(&": keep-alive\n\n".repeat(6)).await;
    half.open();
    clock.open();
    other.rest().await;
    assert!(split.rest().await.text().starts_with(CHUNK), "six silences passed in the middle of this event");
    house.close().await;
}

#[tokio::test]
async fn a_break_in_the_middle_of_an_event_leaves_the_error_readable() {
    let house = one_worker("--disable-retries").await;
    for cut in [1, 5, 40, CHUNK.len() - 1, CHUNK.len()] {
        house.taps[0].script([
            Step::stream_head(""),
            Step::chunk(CHUNK),
            Step::chunk(&CHUNK[..cut]),
            Step::Fin,
        ]);
        let reply = ask().post(house.address).await;
        let text = reply.text();
        assert!(text.starts_with(&format!("{CHUNK}{}", &CHUNK[..cut])), "{text}");
        let error = text.split("\n\n").find_map(|event| event.strip_prefix("data: {\"error\":"));
        let error: serde_json::Value =
            serde_json::from_str(&format!("{{\"error\":{}", error.unwrap())).unwrap();
        assert_eq!(
            (&error["error"]["type"], &error["error"]["code"]),
            (&"stream_error".into(), &"read_response_failed".into())
        );
        assert!(text.ends_with("\n\ndata: [DONE]\n\n") && !reply.broken, "{text}");
    }
    // A stream that had said its last word lost nothing.
    house.taps[0].script([Step::stream_head(""), Step::chunk(CHUNK), Step::chunk(DONE), Step::Reset]);
    let before = house.blamed(0);
    let reply = ask().post(house.address).await;
    assert!(reply.text() == format!("{CHUNK}{DONE}") || reply.cut_code() == "read_response_failed");
    assert!(house.blamed(0) == 0 || house.blamed(0) == before + 1);
    house.close().await;
}

#[tokio::test]
async fn the_first_bytes_are_not_held_back() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let house = Plan::pairs(dialect, 1, 1).tapped().open().await;
        let gate = Gate::default();
        if dialect == Dialect::Vllm {
            let params = r#"{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[[1]],"remote_host":"h","remote_port":1}"#;
            house.taps[0].script([Step::json(200, "", &format!(r#"{{"kv_transfer_params":{params}}}"#))]);
        } else {
            // Its head is there, its answer is not: the transfer goes on.
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n";
            house.taps[0].script([Step::say(head), Step::Wait(gate.clone()), Step::say("{}")]);
        }
        let steps = [
            Step::stream_head(""),
            Step::chunk(CHUNK),
            Step::Wait(gate.clone()),
            Step::chunk(DONE),
            Step::last_chunk(),
        ];
        house.taps[1].script(steps);
        let mut stream = ask().stream(house.address).await;
        stream.read_until(CHUNK).await;
        gate.open();
        assert_eq!(stream.rest().await.text(), format!("{CHUNK}{DONE}"));
        house.close().await;
    }
}

#[tokio::test]
async fn a_stream_of_sglang_with_log_probabilities_waits_for_the_prefills_answer() {
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let gate = Gate::default();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n";
    house.taps[0].script([Step::say(head), Step::Wait(gate.clone()), Step::say("{}")]);
    house.taps[1].script(sse(&[CHUNK, DONE]));
    let address = house.address;
    let asked =
        tokio::spawn(async move { ask().with(serde_json::json!({"logprobs": true})).post(address).await });
    until("both legs are there", || house.taps.iter().all(|t| t.count() == 1)).await;
    until("the decode has said all", || house.taps[1].said() > CHUNK.len()).await;
    assert!(!asked.is_finished());
    gate.open();
    assert_eq!(asked.await.unwrap().text(), format!("{CHUNK}{DONE}"));
    house.close().await;
}
