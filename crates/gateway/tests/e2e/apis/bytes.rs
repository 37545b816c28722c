//! What the client wrote reaches both legs as it was written: media, tools, token ids, lists, members nobody knows.

use baton_sim::{Dialect, PromptId};
use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::support::{Ask, House, Plan, Reply, request};

/// A picture of 48 kB, as a data URL would carry it.
fn picture() -> String {
    "iVBORw0KGgo/+AAAANSUhEUg==".repeat(1800)
}

/// Odd spacing, escapes, numbers whose text matters, and members of nobody.
const ODD: &str =
    "\"zz\" : [ 1.10,1e5 ,-0,9007199254740993, \"\\u00e4\\/\" ],\t\"é\":null, \"x\":{\"b\":1,\"a\":[{ }]}";

/// Both legs have the pieces, byte for byte and in the client's order, and the answering one has the whole body.
async fn sent(dialect: Dialect, path: &str, pieces: &[String]) {
    let house = Plan::pairs(dialect, 1, 1).tapped().open().await;
    let body = format!("{{ {},\n{ODD} }}", pieces.join(" , "));
    let ask = request(Method::POST, path, &[], Bytes::from(body.clone()));
    let reply = Reply::send(house.address, ask).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    let kept: Vec<&str> =
        pieces.iter().map(String::as_str).filter(|p| !p.contains("max_")).chain([ODD]).collect();
    for tap in &house.taps {
        let seen = String::from_utf8(tap.last().body.to_vec()).unwrap();
        let places: Vec<usize> =
            kept.iter().map(|piece| seen.find(piece).unwrap_or_else(|| panic!("{piece:.200}"))).collect();
        assert!(places.is_sorted(), "{path}: the order of the members");
    }
    let answering = house.taps[1].last().body;
    assert!(answering.starts_with(body.trim_end_matches([' ', '}']).as_bytes()), "{path}");
    if dialect == Dialect::Sglang {
        assert_eq!(house.taps[0].last().body, answering, "{path}");
    }
    house.close().await;
}

#[tokio::test]
async fn media_and_tools_of_every_chat_like_api() {
    let picture = picture();
    let chat = [
        "\"model\":\"sim\"".to_owned(),
        format!(
            "\"messages\":[{{\"role\":\"user\",\"content\":[{{\"type\":\"text\",\"text\":\"a fish?\"}},{{\"type\":\"image_url\",\
             \"image_url\":{{\"url\":\"data:image/png;base64,{picture}\",\"detail\":\"low\"}}}},{{\"type\":\"input_audio\",\
             \"input_audio\":{{\"data\":\"{picture}\",\"format\":\"wav\"}}}},{{\"type\":\"video_url\",\"video_url\":{{\"url\":\
             \"https://example.org/a.mp4?b=c&d=%20\"}}}}]}}]"
        ),
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\
         \"z\":{},\"a\":{\"enum\":[1.0,null]}}}}}]".to_owned(),
        "\"tool_choice\":{\"function\":{\"name\":\"f\"},\"type\":\"function\"}".to_owned(),
        "\"mm_processor_kwargs\":{\"fps\":[2.0]}".to_owned(),
        "\"max_tokens\":7".to_owned(),
    ];
    let messages = [
        "\"model\":\"sim\"".to_owned(),
        "\"system\":[{\"type\":\"text\",\"text\":\"You read.\",\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}}]".to_owned(),
        format!(
            "\"messages\":[{{\"role\":\"user\",\"content\":[{{\"type\":\"image\",\"source\":{{\"type\":\"base64\",\"media_type\":\
             \"image/png\",\"data\":\"{picture}\"}}}},{{\"type\":\"text\",\"text\":\"a fish?\"}}]}},{{\"role\":\"assistant\",\"content\":\
             [{{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"}},{{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":\
             {{\"b\":1.0,\"a\":2}}}}]}},{{\"role\":\"user\",\"content\":[{{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":\"ok\"}}]}}]"
        ),
        "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}},\"strict\":true}]".to_owned(),
        "\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}".to_owned(),
        "\"metadata\":{\"user_id\":\"u\"}".to_owned(),
        "\"max_tokens\":9".to_owned(),
    ];
    let responses = [
        "\"model\":\"sim\"".to_owned(),
        format!(
            "\"input\":[{{\"role\":\"user\",\"content\":[{{\"type\":\"input_text\",\"text\":\"a fish?\"}},{{\"type\":\"input_image\",\
             \"image_url\":\"data:image/png;base64,{picture}\"}}]}}]"
        ),
        "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"b\":1,\"a\":2}}]".to_owned(),
        "\"reasoning\":{\"effort\":\"low\"}".to_owned(),
        "\"max_output_tokens\":9".to_owned(),
    ];
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        sent(dialect, "/v1/chat/completions", &chat).await;
        sent(dialect, "/v1/messages", &messages).await;
        sent(dialect, "/v1/responses", &responses).await;
    }
}

#[tokio::test]
async fn prompts_of_token_ids() {
    let ids = "\"prompt\":[ 128000,9906 , 0,2147483647,15]".to_owned();
    let pieces = ["\"model\":\"sim\"".to_owned(), ids, "\"max_tokens\":5".to_owned()];
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        sent(dialect, "/v1/completions", &pieces).await;
    }
    let native = [
        "\"input_ids\":[ 128000,9906 , 0,15]".to_owned(),
        format!("\"image_data\":\"{}\"", picture()),
        "\"sampling_params\":{\"max_new_tokens\" : 5,\"temperature\":0.70}".to_owned(),
    ];
    let house = Plan::pairs(Dialect::Sglang, 1, 1).tapped().open().await;
    let body = format!("{{{},{ODD}}}", native.join(","));
    let reply =
        Reply::send(house.address, request(Method::POST, "/generate", &[], Bytes::from(body.clone()))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    for tap in &house.taps {
        assert!(tap.last().body.starts_with(&body.as_bytes()[..body.len() - 1]));
    }
    house.close().await;
}

#[tokio::test]
async fn text_lists_of_generate_are_answered_one_by_one() {
    let house = House::pair(Dialect::Sglang).await;
    let prompts = ["one fish swims", "two fish swim in the river", "red fish"];
    for streamed in [false, true] {
        let ask = Ask::generate("", 5).with(json!({"text": prompts, "stream": streamed}));
        let reply = ask.post(house.address).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        for (at, prompt) in prompts.iter().enumerate() {
            let right = ask.clone().of(PromptId::of_text(prompt)).expected();
            if streamed {
                assert!(reply.events().iter().any(|e| e["text"] == json!(right)), "{at}: {}", reply.text());
            } else {
                assert_eq!(reply.json()[at]["text"], json!(right), "{}", reply.text());
            }
        }
    }
    let one = Ask::generate("", 5).with(json!({"text": ["a list of one"]})).post(house.address).await;
    assert_eq!(one.json()[0]["text"], json!(Ask::generate("a list of one", 5).expected()), "{}", one.text());
    house.close().await;
}
