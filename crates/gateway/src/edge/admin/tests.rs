//! The admin routes on registries whose workers nobody probes.

use baton_core::fault::{Fault, Shape};
use baton_core::fleet::Role;
use serde_json::Value;

use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::probe::Facts;
use crate::registry::{Settings, Spec};

/// A registry whose workers nobody probes.
fn registry() -> Registry {
    Registry::new(Settings::of(&Config::default(), Clock::start(), 1))
}

fn call(registry: &Registry, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (path, query) = path.split_once('?').map_or((path, None), |(p, q)| (p, Some(q)));
    let method = method.parse().unwrap();
    let reply = handle(registry, &method, path, query, &Bytes::copy_from_slice(body.as_bytes())).unwrap();
    (reply.status, serde_json::from_str(&reply.body).unwrap())
}

fn add(registry: &Registry, body: &str) -> String {
    let (status, json) = call(registry, "POST", "/workers", body);
    assert_eq!(status, 202, "{json}");
    json["worker_id"].as_str().unwrap().to_owned()
}

fn facts(model: &str) -> Facts {
    let mut facts = Facts::default();
    facts.models.push(crate::probe::Model { id: model.into(), context_length: Some(4096) });
    facts.labels.insert("version".into(), "1".into());
    facts
}

#[test]
fn smg_f81_a_worker_is_accepted_with_its_location() {
    let r = registry();
    let method = Method::POST;
    let body = Bytes::from_static(br#"{"url":"http://127.0.0.1:9/","worker_type":"prefill","zzz":1}"#);
    let reply = handle(&r, &method, "/workers", None, &body).unwrap();
    let json: Value = serde_json::from_str(&reply.body).unwrap();
    let id = json["worker_id"].as_str().unwrap();
    assert_eq!(uuid::Uuid::parse_str(id).unwrap().get_version_num(), 7);
    assert_eq!(reply.status, 202);
    assert_eq!(reply.headers, [("location", format!("/workers/{id}"))]);
    assert_eq!(json["status"], "accepted");
    assert_eq!(json["url"], "http://127.0.0.1:9");
    assert_eq!(json["location"], format!("/workers/{id}"));
    assert_eq!(json["message"], "Worker addition queued for background processing");
}

#[test]
fn smg_f81_what_is_out_of_bounds_is_refused_and_says_where() {
    let long = "x".repeat(5000);
    let many: String = (0..129).map(|i| format!("\"k{i}\":\"\",")).collect();
    let rows: Vec<(String, &str)> = vec![
        ("{".into(), "Invalid worker"),
        ("[]".into(), "Invalid worker"),
        (r#"{}"#.into(), "missing field `url`"),
        (r#"{"url":"HTTP://h:1"}"#.into(), "lower case"),
        (r#"{"url":"ftp://h:1"}"#.into(), "http:// or https://"),
        (r#"{"url":"h:1"}"#.into(), "http:// or https://"),
        (r#"{"url":"grpc://h:1"}"#.into(), "gRPC"),
        (r#"{"url":"ipc://x"}"#.into(), "ZMQ"),
        (r#"{"url":"http://h:1","connection_mode":"grpc"}"#.into(), "gRPC"),
        (format!(r#"{{"url":"http://h/{long}"}}"#), "longer than 2048"),
        (r#"{"url":"http://h:1","worker_type":"foo"}"#.into(), "`prefill`"),
        (r#"{"url":"http://h:1","worker_type":"encode"}"#.into(), "encode"),
        (r#"{"url":"http://h:1","runtime_type":"foo"}"#.into(), "`sglang`"),
        (r#"{"url":"http://h:1","labels":{"a b":"1"}}"#.into(), "printable"),
        (r#"{"url":"http://h:1","labels":{"":"1"}}"#.into(), "printable"),
        (r#"{"url":"http://h:1","labels":{"a":"b\n"}}"#.into(), "control"),
        (format!(r#"{{"url":"http://h:1","labels":{{"a":"{long}"}}}}"#), "4096"),
        (format!(r#"{{"url":"http://h:1","labels":{{{}"z":""}}}}"#, many), "more than 128"),
        (r#"{"url":"http://h:1","labels":{"a":1}}"#.into(), "string"),
        (r#"{"url":"http://h:1","labels":{"max_num_seqs":"0"}}"#.into(), "whole number"),
        (r#"{"url":"http://h:1","labels":{"dp_size":"x"}}"#.into(), "whole number"),
        (r#"{"url":"http://h:1","labels":{"supports_vision":"yes"}}"#.into(), "true"),
        (r#"{"url":"http://h:1","cost":0}"#.into(), "cost"),
        (r#"{"url":"http://h:1","cost":-1}"#.into(), "cost"),
        (r#"{"url":"http://h:1","bootstrap_port":0}"#.into(), "bootstrap_port"),
        (r#"{"url":"http://h:1","bootstrap_port":70000}"#.into(), "u16"),
        (r#"{"url":"http://h:1","kv_block_size":0}"#.into(), "kv_block_size"),
        (r#"{"url":"http://h:1","dp_rank":1}"#.into(), "dp_size"),
        (r#"{"url":"http://h:1","dp_rank":2,"dp_size":2}"#.into(), "less than dp_size"),
        (r#"{"url":"http://h:1","models":[5]}"#.into(), "a model is a name"),
        (r#"{"url":"http://h:1","models":[""]}"#.into(), "models"),
        (r#"{"url":"http://h:1","health":{"timeout_secs":0}}"#.into(), "health.timeout_secs"),
        (r#"{"url":"http://h:1","api_key":"a\nb"}"#.into(), "api_key"),
    ];
    let r = registry();
    for (body, word) in rows {
        let (status, json) = call(&r, "POST", "/workers", &body);
        let text = json["error"].as_str().unwrap();
        assert_eq!((status, &json["code"]), (400, &"BAD_REQUEST".into()), "{body:.80}");
        assert!(text.contains(word), "{body:.80}: {text}");
    }
    assert!(r.list().is_empty());
    let huge = Bytes::from(vec![b' '; BODY_MAX_BYTES + 1]);
    let reply = handle(&r, &Method::POST, "/workers", None, &huge).unwrap();
    assert_eq!(reply.status, 413);
    assert!(reply.body.contains("PAYLOAD_TOO_LARGE"));
}

#[test]
fn a_worker_shows_what_was_registered_and_what_was_found_but_no_key() {
    let r = registry();
    let id = add(
        &r,
        r#"{"url":"http://127.0.0.1:19101","worker_type":"prefill","runtime":"vllm","priority":7,"cost":2.5,
            "labels":{"kv_connector":"NixlConnector","page_size":"16"},"bootstrap_port":8998,
            "api_key":"s3cret","dp_rank":0,"dp_size":2,"health":{"check_interval_secs":5}}"#,
    );
    r.described(0, 0, facts("m1"));
    let (status, w) = call(&r, "GET", &format!("/workers/{id}"), "");
    assert_eq!(status, 200);
    assert_eq!(
        w,
        json!({"id": id, "model_id": "m1", "url": "http://127.0.0.1:19101",
            "models": [{"id": "m1", "model_type": ["chat", "completions", "tools"], "context_length": 4096}],
            "worker_type": "prefill", "connection_mode": "http", "runtime_type": "vllm",
            "labels": {"page_size": "16", "version": "1"}, "priority": 7, "cost": 2.5,
            "bootstrap_port": 8998, "dp_rank": 0, "dp_size": 2, "kv_connector": "NixlConnector",
            "health": {"check_interval_secs": 5}, "is_healthy": false, "status": "pending", "load": 0,
            "http2": false, "pd_pairing": "vllm/nixl/page=16"})
    );
    let (_, list) = call(&r, "GET", "/workers", "");
    assert_eq!(list["workers"][0], w);
    assert!(!list.to_string().contains("s3cret"));
    assert_eq!(list["total"], 1);
    assert_eq!(list["stats"], json!({"prefill_count": 1, "decode_count": 0, "regular_count": 0}));
}

#[test]
fn a_worker_that_joins_shows_its_job_and_leaves_out_what_is_not_known() {
    let r = registry();
    let id = add(&r, r#"{"url":"http://h:1"}"#);
    let (_, mut w) = call(&r, "GET", &format!("/workers/{id}"), "");
    let job = w.as_object_mut().unwrap().remove("job_status").unwrap();
    assert_eq!((&job["job_type"], &job["status"]), (&"AddWorker".into(), &"pending".into()));
    assert_eq!(
        w,
        json!({"id": id, "url": "http://h:1", "models": [], "worker_type": "regular",
            "connection_mode": "http", "runtime_type": "unspecified", "priority": 50, "cost": 1.0,
            "is_healthy": false, "status": "pending", "load": 0, "http2": false})
    );
}

#[test]
fn the_same_address_is_refused_until_the_worker_there_leaves() {
    let r = registry();
    let body = r#"{"url":"http://h:1","worker_type":"decode"}"#;
    let id = add(&r, body);
    let (status, json) = call(&r, "POST", "/workers", body);
    assert_eq!((status, &json["code"]), (409, &"WORKER_CREATE_IN_PROGRESS".into()));
    r.described(0, 0, facts("m"));
    let (status, json) = call(&r, "POST", "/workers", r#"{"url":"http://h:1/"}"#);
    assert_eq!((status, &json["code"]), (409, &"WORKER_ALREADY_EXISTS".into()));
    assert!(json["error"].as_str().unwrap().contains(&id));
    let (status, json) = call(&r, "DELETE", &format!("/workers/{id}"), "");
    assert_eq!((status, &json["message"]), (202, &"Worker removal queued for background processing".into()));
    assert_ne!(add(&r, body), id);
    assert!(r.fleet().seat(0).is_none() && r.fleet().seat(1).is_some(), "a slot is not used again");
}

#[test]
fn a_worker_is_found_by_id_and_by_url() {
    let r = registry();
    let id = add(&r, r#"{"url":"http://h:1"}"#);
    for (key, status, code) in [
        (id.as_str(), 200, None),
        ("http%3A%2F%2Fh%3A1", 200, None),
        ("http://h:1", 200, None),
        ("http%3A%2F%2Fh%3A2", 404, Some("WORKER_NOT_FOUND")),
        ("0198f6c2-0000-7000-8000-000000000000", 404, Some("WORKER_NOT_FOUND")),
        ("zzz", 400, Some("BAD_REQUEST")),
    ] {
        let (got, json) = call(&r, "GET", &format!("/workers/{key}"), "");
        assert_eq!((got, json["code"].as_str()), (status, code), "{key}");
    }
}

#[test]
fn put_replaces_and_patch_adds() {
    let r = registry();
    let id = add(&r, r#"{"url":"http://h:1","labels":{"a":"1"},"priority":1}"#);
    let path = format!("/workers/{id}");
    let patch = r#"{"labels":{"b":"2","kv_connector":"NixlConnector"},"cost":3,
        "health":{"failure_threshold":1},"url":"http://ignored"}"#;
    let (status, json) = call(&r, "PATCH", &path, patch);
    assert_eq!((status, &json["message"]), (202, &"Worker update queued for background processing".into()));
    call(&r, "PATCH", &path, r#"{"health":{"timeout_secs":9}}"#);
    let (_, w) = call(&r, "GET", &path, "");
    assert_eq!(w["labels"], json!({"a": "1", "b": "2"}));
    assert_eq!(
        (&w["priority"], &w["cost"], &w["kv_connector"]),
        (&1.into(), &3.0.into(), &"NixlConnector".into())
    );
    assert_eq!(w["health"], json!({"failure_threshold": 1, "timeout_secs": 9}));
    assert_eq!(r.fleet().seat(0).unwrap().worker.cost, 3.0, "routing sees it");

    let (status, _) = call(&r, "PUT", &path, r#"{"url":"http://h:1","worker_type":"decode"}"#);
    assert_eq!(status, 202);
    let (_, w) = call(&r, "GET", &path, "");
    assert_eq!((&w["priority"], &w["worker_type"]), (&50.into(), &"decode".into()));
    assert!(w.get("labels").is_none() && w.get("kv_connector").is_none() && w.get("health").is_none());
    assert_eq!(r.fleet().decode().len(), 1);

    let (status, json) = call(&r, "PUT", &path, r#"{"url":"http://h:2"}"#);
    assert_eq!((status, &json["code"]), (400, &"BAD_REQUEST".into()));
    for (method, body) in [("PUT", "{"), ("PATCH", r#"{"cost":-1}"#), ("PATCH", r#"{"labels":{"":""}}"#)] {
        assert_eq!(call(&r, method, &path, body).0, 400, "{method} {body}");
    }
}

#[test]
fn paths_and_methods_of_others_are_faults() {
    let r = registry();
    let none = Bytes::new();
    let fault = |method: Method, path: &str| handle(&r, &method, path, None, &none).unwrap_err();
    assert_eq!(fault(Method::DELETE, "/workers"), Fault::MethodNotAllowed { allow: "GET, POST" });
    assert_eq!(
        fault(Method::POST, "/workers/x"),
        Fault::MethodNotAllowed { allow: "GET, PUT, PATCH, DELETE" }
    );
    assert!(matches!(fault(Method::GET, "/workersx"), Fault::UnknownUrl { .. }));
}

#[test]
fn workers_are_listed_by_model() {
    let r = registry();
    for port in 1..=2 {
        r.add(Spec::new(format!("http://h:{port}"), Role::Whole)).unwrap();
        r.described(port - 1, 0, facts(&format!("org/m {port}")));
    }
    for (query, count) in
        [("", 2), ("?model=", 2), ("?model=org%2Fm+1", 1), ("?x=1&model=org/m%202", 1), ("?model=zz", 0)]
    {
        let (_, json) = call(&r, "GET", &format!("/workers{query}"), "");
        assert_eq!(
            (&json["total"], &json["stats"]["regular_count"]),
            (&count.into(), &count.into()),
            "{query}"
        );
    }
}

#[test]
fn models_in_both_shapes() {
    let r = registry();
    assert_eq!(models(&r.fleet(), Shape::OpenAi).unwrap_err(), Fault::NoModels);
    r.add(Spec::new("http://h:1", Role::Whole)).unwrap();
    r.described(0, 0, facts("org/m"));
    let json = |reply: Result<Reply, Fault>| serde_json::from_str::<Value>(&reply.unwrap().body).unwrap();
    let card = json!({"id": "org/m", "object": "model", "created": 0, "owned_by": "self_hosted"});
    let fleet = r.fleet();
    assert_eq!(json(models(&fleet, Shape::OpenAi)), json!({"object": "list", "data": [card]}));
    assert_eq!(json(model(&fleet, "org%2Fm", Shape::OpenAi)), card);
    assert_eq!(json(model(&fleet, "org/m", Shape::OpenAi)), card);
    let list = json(models(&fleet, Shape::Anthropic));
    assert_eq!((&list["first_id"], &list["has_more"]), (&"org/m".into(), &false.into()));
    assert_eq!(list["data"][0]["type"], "model");
    assert!(matches!(model(&fleet, "x", Shape::OpenAi), Err(Fault::ModelNotFound { .. })));
}

#[test]
fn ready_is_a_pair_that_can_serve() {
    use baton_core::fleet::{Engine, Status};
    let r = registry();
    let shown = |r: &Registry| {
        let reply = readiness(r);
        (reply.status, serde_json::from_str::<Value>(&reply.body).unwrap())
    };
    let not = |reason: &str| (503, json!({"status": "not ready", "reason": reason}));
    assert_eq!(shown(&r), not("insufficient healthy workers"));
    let join = |port: u32, role, engine| {
        r.add(Spec { engine: Some(engine), ..Spec::new(format!("http://h:{port}"), role) }).unwrap();
    };
    join(1, Role::Prefill, Engine::Vllm);
    join(2, Role::Decode, Engine::Sglang);
    for slot in 0..2 {
        r.mark(slot, Status::Ready);
    }
    assert_eq!(shown(&r), not("no compatible prefill/decode pair"));
    join(3, Role::Decode, Engine::Vllm);
    assert_eq!(shown(&r), not("insufficient healthy workers"));
    r.mark(2, Status::Ready);
    assert_eq!(shown(&r), (200, json!({"status": "ready", "healthy_workers": 3, "total_workers": 3})));
    r.drain();
    assert_eq!(shown(&r), not("draining"));
    r.shutdown();
    let (status, json) = call(&r, "POST", "/workers", r#"{"url":"http://h:9"}"#);
    assert_eq!((status, &json["code"]), (503, &"SHUTTING_DOWN".into()));
}
