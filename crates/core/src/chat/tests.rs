//! Conversations of other APIs, as vLLM 0.32 makes chat messages of them.

use super::*;

fn made(api: Api, body: &str) -> Result<String, Unknown> {
    let body = Envelope::parse(body.to_owned().into(), &BodyLimits::default()).unwrap();
    of(api, &body).unwrap().map(|chat| String::from_utf8(chat.bytes().to_vec()).unwrap())
}

#[track_caller]
fn is(api: Api, body: &str, expected: &str) {
    let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
    let text = made(api, body).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected, "{text}");
}

#[test]
fn messages_of_anthropic() {
    is(
        Api::Messages,
        r#"{"model":"m","max_tokens":5,"system":"be\n kind","messages":[{"role":"user","content":"a\u0062"}],
            "chat_template_kwargs":{"x":1},"kv_transfer_params":{}}"#,
        r#"{"messages":[{"role":"system","content":"be\n kind"},{"role":"user","content":"ab"}],"model":"m","chat_template_kwargs":{"x":1}}"#,
    );
    is(
        Api::Messages,
        r#"{"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"one \"","cache_control":{}},
            {"type":"text","text":""},{"type":"text","text":"two"}],"messages":[{"role":"user","content":[]}]}"#,
        r#"{"messages":[{"role":"system","content":"one \"two"}]}"#,
    );
    is(
        Api::Messages,
        r#"{"messages":[
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
            {"role":"assistant","content":[{"type":"thinking","thinking":"hm ","signature":"s"},{"type":"thinking","thinking":"so"},
                {"type":"redacted_thinking","data":"x"},{"type":"text","text":"I look"},
                {"type":"tool_use","id":"t1","name":"find","input":{"q" : "a\"b\\c",
                    "n":[1]}},{"type":"tool_use","id":"t2","name":"now","input":{}}]},
            {"role":"user","content":[{"type":"text","text":"well"},{"type":"tool_result","tool_use_id":"t1","content":"found"},
                {"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"1"},{"type":"text","text":"2"}],"is_error":false},
                {"type":"tool_result","tool_use_id":"t3"}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t4","content":"alone"}]},
            {"role":"assistant","content":[{"type":"text","text":""}]}],
            "tools":[{"name":"find","input_schema":{"properties":{"q":{}}, "type":"object"},"description":"d"},
                {"type":"custom","name":"now","input_schema":{ },"strict":true,"cache_control":{}}],
            "tool_choice":{"type":"none"}}"#,
        r#"{"messages":[
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
            {"role":"assistant","content":"I look","reasoning":"hm so","tool_calls":[
                {"id":"t1","type":"function","function":{"name":"find","arguments":"{\"q\" : \"a\\\"b\\\\c\",                     \"n\":[1]}"}},
                {"id":"t2","type":"function","function":{"name":"now","arguments":"{}"}}]},
            {"role":"tool","content":"found","tool_call_id":"t1"},
            {"role":"tool","content":"1\n2","tool_call_id":"t2"},
            {"role":"tool","content":"","tool_call_id":"t3"},
            {"role":"user","content":"well"},
            {"role":"tool","content":"alone","tool_call_id":"t4"},
            {"role":"assistant"}],
            "tools":[{"type":"function","function":{"name":"find","description":"d","parameters":{"properties":{"q":{}},"type":"object"}}},
                {"type":"function","function":{"name":"now","parameters":{"type":"object"},"strict":true}}],
            "tool_choice":"none"}"#,
    );
    is(
        Api::Messages,
        r#"{"messages":[],"thinking":{"type":"disabled"},"output_config":{"effort":"low"}}"#,
        r#"{"messages":[],"reasoning_effort":"none"}"#,
    );
    is(
        Api::Messages,
        r#"{"messages":[],"thinking":{"type":"adaptive"},"output_config":{"effort":"low"},"tools":[]}"#,
        r#"{"messages":[],"reasoning_effort":"low"}"#,
    );
}

#[test]
fn items_of_responses() {
    is(
        Api::Responses,
        r#"{"model":"m","input":"hi","instructions":"be kind","reasoning":{"effort":null},"store":false}"#,
        r#"{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}],"model":"m"}"#,
    );
    is(
        Api::Responses,
        r#"{"instructions":"","input":[
            {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
            {"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
            {"type":"message","id":"x","role":"assistant","status":"completed","content":[{"type":"output_text","text":"I look","annotations":[]}]},
            {"type":"function_call","call_id":"c1","name":"find","arguments":"{\"q\":1}"},
            {"type":"function_call","call_id":"c2","name":"now","arguments":""},
            {"type":"function_call_output","call_id":"c1","output":"found"},
            {"type":"function_call_output","call_id":"c2","output":"two"},
            {"role":"assistant","content":"so"},{"role":"assistant","content":"and"},
            {"role":"developer","content":"short"},{"type":"message","role":"user","content":"go"}],
            "tools":[{"type":"function","name":"find","parameters":{"type":"object"},"strict":false,"description":null}],
            "tool_choice":"none","reasoning":{"effort":"high"},"truncation":"disabled"}"#,
        r#"{"messages":[
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
            {"role":"assistant","content":"I look","reasoning":"hm","tool_calls":[
                {"id":"c1","type":"function","function":{"name":"find","arguments":"{\"q\":1}"}},
                {"id":"c2","type":"function","function":{"name":"now","arguments":""}}]},
            {"role":"tool","content":"found","tool_call_id":"c1"},{"role":"tool","content":"two","tool_call_id":"c2"},
            {"role":"assistant","content":"so"},{"role":"assistant","content":"and"},
            {"role":"developer","content":"short"},{"role":"user","content":"go"}],
            "tools":[{"type":"function","function":{"name":"find","parameters":{"type":"object"},"strict":false}}],
            "tool_choice":"none","reasoning_effort":"high"}"#,
    );
    is(
        Api::Responses,
        r#"{"input":[{"role":"user","content":"a"},{"type":"message","role":"assistant","status":"incomplete","content":"so f"}]}"#,
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"so f"}],"continue_final_message":true,"add_generation_prompt":false}"#,
    );
}

#[test]
fn what_is_more_than_text_or_elsewhere_has_a_reason() {
    let long = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(CHAT_MAX_BYTES));
    for (api, body, why) in [
        (Api::Messages, r#"{"model":"m"}"#, "no prompt"),
        (Api::Messages, &*long, "too long"),
        (Api::Messages, r#"{"messages":[{"role":"system","content":"a"}]}"#, "neither the user's"),
        (Api::Messages, r#"{"messages":[{"role":"user"}]}"#, "messages is not"),
        (
            Api::Messages,
            r#"{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}"#,
            "no text",
        ),
        (
            Api::Messages,
            r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}]}]}"#,
            "result has a part",
        ),
        (Api::Messages, r#"{"messages":[],"tools":[{"type":"bash_20250124","name":"bash"}]}"#, "tools"),
        (Api::Messages, r#"{"messages":[],"tools":[{"name":"a","input_schema":7}]}"#, "tools"),
        (Api::Messages, r#"{"messages":[],"system":[{"type":"text"}]}"#, "system"),
        (Api::Responses, r#"{"input":"a","previous_response_id":"r"}"#, "previous_response_id"),
        (Api::Responses, r#"{"input":"a","truncation":"auto"}"#, "cut"),
        (Api::Responses, r#"{"input":[{"type":"item_reference","id":"a"}]}"#, "neither a message"),
        (Api::Responses, r#"{"input":[{"type":"reasoning","encrypted_content":"a"}]}"#, "neither a message"),
        (Api::Responses, r#"{"input":[{"role":"user","content":[{"type":"input_image"}]}]}"#, "no text"),
        (
            Api::Responses,
            r#"{"input":[{"type":"function_call_output","call_id":"a","output":[]}]}"#,
            "no text",
        ),
        (Api::Responses, r#"{"input":"a","tools":[{"type":"web_search"}]}"#, "tools"),
        (Api::Responses, r#"{"model":"m"}"#, "no prompt"),
    ] {
        let said = made(api, body).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    }
    let chat = Envelope::parse("{}".into(), &BodyLimits::default()).unwrap();
    assert!(of(Api::Chat, &chat).is_none() && of(Api::Completions, &chat).is_none());
}

mod any {
    use proptest::prelude::*;

    use super::*;

    /// JSON of any shape, with the members that conversations have.
    fn value() -> impl Strategy<Value = serde_json::Value> {
        let words = [
            "text",
            "user",
            "assistant",
            "tool_use",
            "tool_result",
            "function_call",
            "message",
            "\"\\\n\u{1}é",
        ];
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            prop::sample::select(words.to_vec()).prop_map(Into::into),
        ];
        let names = [
            "type",
            "role",
            "content",
            "text",
            "input",
            "id",
            "name",
            "call_id",
            "arguments",
            "input_schema",
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::hash_map(prop::sample::select(names.to_vec()), inner, 0..5).prop_map(
                    |members| {
                        members
                            .into_iter()
                            .map(|(name, value)| (name.to_owned(), value))
                            .collect::<serde_json::Map<_, _>>()
                            .into()
                    }
                ),
            ]
        })
    }

    proptest! {
        /// Whatever a client sends, what is made of it is JSON, or there is a reason.
        #[test]
        fn what_is_made_is_json(messages in value(), tools in value(), system in value()) {
            let body = serde_json::json!({"messages": messages, "input": messages, "tools": tools, "system": system, "instructions": system});
            for body in [body.to_string(), serde_json::to_string_pretty(&body).unwrap()] {
                for api in [Api::Messages, Api::Responses] {
                    if let Ok(text) = made(api, &body) {
                        prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
                    }
                }
            }
        }
    }
}
