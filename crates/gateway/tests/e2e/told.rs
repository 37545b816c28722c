//! What `baton decide` tells of a request that is carried out is what happens: the same engines in a scenario and behind
//! a gateway.

use std::collections::BTreeMap;

use baton_core::fleet::Role;
use baton_gateway::decide::decide;
use baton_gateway::registry::Spec;
use baton_sim::Dialect;
use serde_json::{Value, json};

use crate::support::{Ask, House, PROMPT, Plan, Raw, Reply, Step, Tap, until};

/// What an engine does.
#[derive(Clone, Copy)]
enum Act {
    Answers(u16, &'static str),
    Resets,
    /// The head of a stream.
    Head,
    Chunk(&'static str),
    Ends,
    /// It hears the request and says nothing to it.
    Silent,
}

use Act::{Answers, Chunk, Ends, Head, Resets, Silent};

/// Legs: the prefill's and the decode's.
const P: usize = 0;
const D: usize = 1;
const NAMES: [&str; 2] = ["prefill", "decode"];

/// Some events of a stream.
const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
/// What a NIXL prefill returns.
const PARAMS: &str = r#"{"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}"#;
/// What a context server answers whose first token was not the last.
const CONTEXT: &str = r#"{"choices":[{"finish_reason":"length","disaggregated_params":{"request_type":"context_only","ctx_request_id":7}}],"prompt_token_ids":[1,2]}"#;
const LAST: &str = r#"{"id":"x","choices":[{"index":0,"finish_reason":"stop","message":{"content":"a"}}]}"#;

/// What a context server says of its KV. Other engines' workers may have such labels too.
const INFO: [(&str, &str); 2] = [("ctx_info_endpoint", "tcp://127.0.0.1:5555"), ("ctx_dp_rank", "0")];

/// Counters that must agree. Those of workers are not among them: their addresses differ.
const COUNTERS: [&str; 12] = [
    "baton_exchanges_total",
    "baton_handoffs_total",
    "baton_handoffs_issued_total",
    "baton_handoffs_ended_total",
    "baton_detached_legs_ended_total",
    "baton_releases_total",
    "gateway_pd_prefill_failure_total",
    "gateway_pd_decode_abort_total",
    "gateway_pd_decode_watchdog_total",
    "gateway_request_model_fail_total",
    "gateway_request_model_success_total",
    "smg_http_responses_total",
];

struct Case {
    name: &'static str,
    engine: Dialect,
    stream: bool,
    args: &'static str,
    /// The client goes away once its legs are sent.
    leaves: bool,
    acts: &'static [(usize, Act)],
}

fn case(name: &'static str, engine: Dialect, stream: bool, acts: &'static [(usize, Act)]) -> Case {
    Case { name, engine, stream, args: "--retry-max-retries 1", leaves: false, acts }
}

fn cases() -> Vec<Case> {
    let (sglang, vllm, trt) = (Dialect::Sglang, Dialect::Vllm, Dialect::Trtllm);
    let first = "--retry-max-retries 1 --decode-first-response-timeout-secs 0.2";
    let idle = "--retry-max-retries 1 --decode-stream-idle-timeout-secs 0.2";
    let all = "--retry-max-retries 1 --request-timeout-secs 0.4";
    let twice = "--retry-max-retries 2";
    let at_once = "--retry-max-retries 1 --trt-schedule-style generation_first";
    let of = |args, case: Case| Case { args, ..case };
    let leaving = |case: Case| Case { leaves: true, ..case };
    vec![
        case("a prefill refuses", sglang, false, &[(P, Answers(500, "{}"))]),
        case("a prefill pushes back", sglang, false, &[(P, Answers(429, "{}"))]),
        case("a prefill breaks", sglang, true, &[(P, Resets)]),
        case("a decode refuses", sglang, false, &[(D, Answers(503, "{}"))]),
        case("a decode breaks", sglang, false, &[(D, Resets)]),
        of(all, case("both are silent", sglang, false, &[])),
        of(first, case("a decode owes its first piece", sglang, true, &[(P, Answers(200, "{}"))])),
        of(first, case("no JSON, and a silent decode", sglang, true, &[(P, Answers(200, "that is all"))])),
        of(first, case("a head and no more", sglang, true, &[(P, Answers(200, "{}")), (D, Head)])),
        of(
            idle,
            case(
                "a stream falls silent",
                sglang,
                true,
                &[(P, Answers(200, "{}")), (D, Head), (D, Chunk(EVENT))],
            ),
        ),
        case(
            "a stream breaks",
            sglang,
            true,
            &[(P, Answers(200, "{}")), (D, Head), (D, Chunk(EVENT)), (D, Resets)],
        ),
        of(
            twice,
            case(
                "another attempt",
                sglang,
                false,
                &[(P, Resets), (D, Silent), (P, Answers(200, "{}")), (D, Answers(200, "{\"id\":\"d\"}"))],
            ),
        ),
        case("in turn, a prefill refuses", vllm, false, &[(P, Answers(500, "{}"))]),
        of(first, case("in turn, a silent decode", vllm, true, &[(P, Answers(200, PARAMS))])),
        case(
            "in turn, nothing handed over",
            vllm,
            false,
            &[(P, Answers(200, "{}")), (D, Answers(200, "{\"id\":\"d\"}"))],
        ),
        case(
            "in turn, served",
            vllm,
            true,
            &[(P, Answers(200, PARAMS)), (D, Head), (D, Chunk(EVENT)), (D, Ends)],
        ),
        case("in turn, a decode refuses", vllm, false, &[(P, Answers(200, PARAMS)), (D, Answers(500, "{}"))]),
        case("in turn, a decode breaks", vllm, false, &[(P, Answers(200, PARAMS)), (D, Resets)]),
        case(
            "a context server hands over",
            trt,
            false,
            &[(P, Answers(200, CONTEXT)), (D, Answers(200, "{\"id\":\"d\"}"))],
        ),
        case("a context server has the last word", trt, false, &[(P, Answers(200, LAST))]),
        of(at_once, case("at once, a context server refuses", trt, false, &[(P, Answers(500, "{}"))])),
        of(at_once, case("at once, a context server says no JSON", trt, false, &[(P, Answers(200, "no"))])),
        of(at_once, case("at once, a generation server breaks", trt, false, &[(D, Resets)])),
        of(
            at_once,
            case(
                "at once, served",
                trt,
                true,
                &[(P, Answers(200, CONTEXT)), (D, Head), (D, Chunk(EVENT)), (D, Ends)],
            ),
        ),
        leaving(case("a client leaves both legs", sglang, false, &[])),
        leaving(case("a client leaves a prefill in turn", vllm, false, &[])),
        leaving(case("a client leaves a decode in turn", vllm, false, &[(P, Answers(200, PARAMS))])),
        leaving(of(at_once, case("a client leaves both at once", trt, false, &[]))),
    ]
}

/// For each request that a worker gets, what it does.
fn scripts(acts: &[(usize, Act)], leg: usize) -> Vec<Vec<Step>> {
    let mut scripts = vec![Vec::new()];
    for act in acts.iter().filter(|(whose, _)| *whose == leg).map(|(_, act)| *act) {
        let (step, over) = match act {
            Answers(status, body) => (Step::json(status, "", body), true),
            Resets => (Step::Reset, true),
            Head => (Step::stream_head(""), false),
            Chunk(text) => (Step::chunk(text), false),
            Ends => (Step::last_chunk(), true),
            Silent => (Step::Never, true),
        };
        scripts.last_mut().unwrap().push(step);
        if over {
            scripts.push(Vec::new());
        }
    }
    scripts.last_mut().unwrap().push(Step::Never);
    scripts
}

/// The same as steps of a scenario.
fn steps(acts: &[(usize, Act)], leaves: bool) -> Value {
    let mut all = Vec::new();
    for (i, (leg, act)) in acts.iter().enumerate() {
        // A second attempt comes within a second.
        let at = if i < 2 { 10 * i + 1 } else { 1000 + i };
        let mut step = json!({"at_ms": at, "who": NAMES[*leg]});
        let more = match act {
            Answers(status, body) => {
                json!({"does": "answers", "status": status, "body": body, "headers": {"content-type": "application/json"}})
            }
            Resets => json!({"does": "breaks"}),
            Head => json!({"does": "head", "headers": {"content-type": "text/event-stream"}}),
            Chunk(text) => json!({"does": "chunk", "text": text}),
            Ends => json!({"does": "ends"}),
            Silent => continue,
        };
        step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all.push(step);
    }
    if leaves {
        all.push(json!({"at_ms": 100, "who": "client", "does": "leaves"}));
    }
    Value::Array(all)
}

/// The case as a scenario: JSON is YAML.
fn scenario(case: &Case, ask: &Ask, house: &House) -> String {
    let worker = |at: usize, role: &str| {
        let spec = house.spec(at);
        let connector = spec.kv_connector.unwrap_or_default();
        let engine = match case.engine {
            Dialect::Sglang => "sglang",
            Dialect::Vllm => "vllm",
            _ => "trtllm",
        };
        let mut labels = json!({"kv_connector": connector});
        if role == "prefill" {
            INFO.iter().for_each(|(label, value)| labels[*label] = json!(value));
        }
        json!({"id": role, "role": role, "engine": engine, "model": "sim", "labels": labels})
    };
    let mut all = flags(case.args);
    all.extend(["--pd-disaggregation", "--decode-abort-retry-delay-secs 0"].map(str::to_owned));
    json!({
        "flags": all,
        "workers": [worker(0, "prefill"), worker(1, "decode")],
        "requests": [{"body": ask.body.to_string(), "engine": steps(case.acts, case.leaves)}],
    })
    .to_string()
}

/// Each flag with its value.
fn flags(args: &str) -> Vec<String> {
    let words: Vec<&str> = args.split_whitespace().collect();
    words.chunks(2).map(|both| both.join(" ")).collect()
}

/// What the client can tell: status, code and flags of an answer, and a body that is whole.
fn seen(reply: &Reply) -> Value {
    let cut = reply.broken || reply.text().contains("\"stream_error\"");
    let failed = !reply.header("x-smg-error-code").is_empty();
    let body = (!cut && !failed).then(|| reply.text());
    json!({
        "status": reply.status,
        "code": reply.header("x-smg-error-code"),
        "flags": [reply.header("x-error-pd-prefill"), reply.header("x-error-pd-decode")],
        "whole": !cut,
        "body": body,
    })
}

fn told(client: &Value) -> Value {
    let header = |name: &str| client["headers"][name].as_str().unwrap_or_default().to_owned();
    let whole = client["complete"] == true;
    let failed = !header("x-smg-error-code").is_empty();
    json!({
        "status": client["status"],
        "code": header("x-smg-error-code"),
        "flags": [header("x-error-pd-prefill"), header("x-error-pd-decode")],
        "whole": whole,
        "body": if whole && !failed { client["body"].clone() } else { Value::Null },
    })
}

/// A leg's body but for what is minted and where workers are.
fn plain(mut body: Value) -> Value {
    let all = body.as_object_mut().unwrap();
    for minted in ["rid", "bootstrap_room", "bootstrap_host", "bootstrap_port"] {
        if let Some(own) = all.get_mut(minted) {
            *own = Value::Null;
        }
    }
    if let Some(params) = all.get_mut("disaggregated_params") {
        params["disagg_request_id"] = Value::Null;
        if params.get("schedule_style").is_some() {
            params["ctx_request_id"] = Value::Null;
        }
    }
    body
}

/// The prefill says where its KV is.
fn tell(spec: &mut Spec) {
    if spec.role == Role::Prefill {
        spec.labels.extend(INFO.map(|(label, value)| (label.to_owned(), value.to_owned())));
    }
}

/// Sends the request and goes away once the legs are sent that are to be sent.
async fn leave(house: &House, ask: &Ask, request: &Value) {
    assert_eq!(request["client"]["left"], true, "{request:#}");
    let raw = Raw::post(house.address, ask.path, &ask.body.to_string()).await;
    let legs = request["legs"].as_array().unwrap().iter().filter(|leg| leg["leg"] != "release").count();
    until("the legs are sent", || house.taps.iter().map(Tap::count).sum::<usize>() == legs).await;
    drop(raw);
    until("the request has ended", || house.gateway().entrance.running() == 0).await;
}

#[tokio::test]
async fn what_is_told_is_what_happens() {
    for case in cases() {
        let args = format!("{} --decode-abort-retry-delay-secs 0", case.args);
        let mut house = Plan::pairs(case.engine, 1, 1).tapped().args(&args).registered(tell).open().await;
        for leg in [P, D] {
            scripts(case.acts, leg).into_iter().for_each(|script| house.taps[leg].script(script));
        }
        let ask = Ask::chat(PROMPT, 8);
        let ask = if case.stream { ask.streamed() } else { ask };
        let report = decide("told", &scenario(&case, &ask, &house)).unwrap().to_json();
        let request = &report["requests"][0];
        if case.leaves {
            leave(&house, &ask, request).await;
            house.quiet().await;
        } else {
            let reply = ask.post(house.address).await;
            house.quiet().await;
            assert_eq!(seen(&reply), told(&request["client"]), "{}: {request:#}", case.name);
        }
        for leg in [P, D] {
            let sent: Vec<Value> = house.taps[leg].seen().iter().map(|seen| plain(seen.json())).collect();
            let name = NAMES[leg];
            let legs = request["legs"].as_array().unwrap().iter();
            let body = |told: &Value| plain(serde_json::from_str(told["body"].as_str().unwrap()).unwrap());
            let due: Vec<Value> = legs.filter(|told| told["worker"] == name).map(body).collect();
            assert_eq!(sent, due, "{}: {request:#}", case.name);
        }
        let events = request["events"].as_array().unwrap().iter();
        let questions = events.filter(|event| event["does"] == "asks_abort").count();
        assert_eq!(house.taps[D].aborts().len(), questions, "{}: {request:#}", case.name);
        let counters = report["counters"].as_object().unwrap().iter();
        let due: BTreeMap<String, f64> = counters
            .filter(|(sample, _)| COUNTERS.contains(&sample.split('{').next().unwrap()))
            .map(|(sample, value)| (sample.clone(), value.as_f64().unwrap()))
            .collect();
        assert_eq!(house.page().await.samples(&COUNTERS), due, "{}: {request:#}", case.name);
        assert_eq!(request["held"], json!([]), "{}", case.name);
        house.no_after();
        house.expire_what_was_stranded();
        house.close().await;
    }
}
