//! The table of faults, row by row.

use super::*;

fn refused(leg: LegName, status: u16, retry_after: Option<&str>) -> Fault {
    let refusal = Refusal {
        status,
        message: "m".into(),
        retry_after: retry_after.map(Into::into),
        ..Refusal::default()
    };
    Fault::Refused { leg, refusal }
}

#[test]
fn an_engines_status_is_kept_and_named() {
    for (status, code) in [
        (400, "decode_bad_request"),
        (404, "decode_not_found"),
        (422, "decode_error"),
        (429, "decode_error"),
        (500, "decode_internal_error"),
        (502, "decode_bad_gateway"),
        (503, "decode_unavailable"),
    ] {
        let f = refused(LegName::Decode, status, None);
        assert_eq!((f.status(), f.code()), (status, code));
    }
    assert_eq!(refused(LegName::Prefill, 307, None).status(), 502, "a redirect is not followed");
}

#[test]
fn only_faults_of_the_worker_count() {
    for (status, retry_after, verdict) in [
        (400, None, Verdict::Mute),
        (408, None, Verdict::Mute),
        (429, None, Verdict::Mute),
        (503, Some("1"), Verdict::Mute),
        (503, None, Verdict::Bad),
        (500, None, Verdict::Bad),
        (501, None, Verdict::Good),
    ] {
        let f = refused(LegName::Decode, status, retry_after);
        assert_eq!(f.verdict(LegName::Decode), verdict, "{status}");
        assert_eq!(f.verdict(LegName::Prefill), Verdict::Mute, "the other leg is not blamed");
    }
}

#[test]
fn push_back_is_retried_and_a_clients_mistake_is_not() {
    assert_eq!(refused(LegName::Decode, 429, None).retry(), Retry::Safe);
    assert_eq!(refused(LegName::Decode, 422, None).retry(), Retry::Never);
    assert_eq!(Fault::NoWorker { leg: LegName::Decode, registered: true }.retry(), Retry::Never);
    assert_eq!(refused(LegName::Decode, 429, None).answer().retry_after.as_deref(), Some("1"));
    assert_eq!(refused(LegName::Decode, 429, Some("7")).answer().retry_after.as_deref(), Some("7"));
}

#[test]
fn kv_that_did_not_come_is_nobodys_mistake_and_is_tried_again() {
    let refusal = Refusal { status: 400, message: "no KV".into(), lost_kv: true, ..Refusal::default() };
    let fault = Fault::Refused { leg: LegName::Decode, refusal };
    assert_eq!((fault.status(), fault.code(), fault.retry()), (502, "decode_bad_gateway", Retry::Safe));
    assert_eq!(fault.verdict(LegName::Decode), Verdict::Mute);
    assert_eq!(fault.answer().message, "no KV");
}

#[test]
fn an_engines_message_is_found_in_each_of_its_shapes() {
    for body in [
        r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#,
        r#"{"object":"error","message":"no","type":"BadRequestError","code":400}"#,
        r#"{"detail":"no"}"#,
        r#"{"error":"no"}"#,
        "no",
    ] {
        assert_eq!(read_refusal(400, body.as_bytes(), None, false).message, "no", "{body}");
    }
    assert!(read_refusal(500, b"", None, false).message.contains("500"));
}

#[test]
fn the_gateways_own_failures_are_flagged() {
    let silent = |leg| Fault::DecodeSilent {
        leg,
        phase: Silence::FirstResponse,
        limit: Duration::from_secs(60),
        stream: true,
    };
    let unreachable = |leg| Fault::Unreachable { leg, cause: "reset".into() };
    for (fault, flag) in [
        (silent(LegName::Decode), Some("x-error-pd-decode")),
        (silent(LegName::Whole), None),
        (refused(LegName::Prefill, 400, None), Some("x-error-pd-prefill")),
        (unreachable(LegName::Prefill), Some("x-error-pd-prefill")),
        (Fault::Deadline { leg: LegName::Prefill, seconds: 1 }, Some("x-error-pd-prefill")),
        (refused(LegName::Decode, 500, None), None),
        (unreachable(LegName::Decode), None),
        (Fault::NoWorker { leg: LegName::Prefill, registered: true }, Some("x-error-no-model-backends")),
    ] {
        assert_eq!(fault.answer().flag, flag.map(|name| (name, "true".into())), "{fault:?}");
    }
}

#[test]
fn the_two_shapes() {
    let a = Fault::NoWorker { leg: LegName::Decode, registered: true }.answer();
    let o: serde_json::Value = serde_json::from_str(&a.body(Shape::OpenAi, "r")).unwrap();
    assert_eq!(o["error"]["code"], "no_available_workers");
    assert_eq!(o["error"]["type"], "server_error");
    let n: serde_json::Value = serde_json::from_str(&a.body(Shape::Anthropic, "r")).unwrap();
    assert_eq!((&n["type"], &n["error"]["type"]), (&"error".into(), &"overloaded_error".into()));
    assert!(a.events(Shape::OpenAi, 3).ends_with("\n\ndata: [DONE]\n\n"));
    assert!(!a.events(Shape::Anthropic, 3).contains("[DONE]"));
    let named = a.events(Shape::Responses, 3);
    let data = named.strip_prefix("event: error\ndata: ").unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!((&data["type"], &data["sequence_number"]), (&"error".into(), &3.into()));
    assert!(data["code"].is_string() && data["message"].is_string() && data.get("error").is_none());
}
