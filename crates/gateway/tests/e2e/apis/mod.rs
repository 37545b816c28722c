//! The APIs besides chat, completions and `/generate`: Anthropic's, responses, rerank, and those that are not served.

mod bytes;
mod count;
mod errors;
mod keys;
mod messages;
mod rerank;
mod responses;

use std::net::SocketAddr;

use baton_sim::{PromptId, expected_text};
use serde_json::{Value, json};

use crate::support::Reply;

/// A request of the Messages or the Responses API whose answer is known.
#[derive(Clone, Debug)]
struct Talk {
    path: &'static str,
    body: Value,
    prompt: PromptId,
    tokens: u32,
}

impl Talk {
    fn messages(words: &str, tokens: u32) -> Talk {
        let prompt = json!([{"role": "system", "content": "You read."}, {"role": "user", "content": words}]);
        let body = json!({"model": "sim", "max_tokens": tokens, "system": "You read.",
                          "messages": [{"role": "user", "content": words}]});
        Talk { path: "/v1/messages", body, prompt: PromptId::of_chat(&prompt), tokens }
    }

    fn responses(words: &str, tokens: u32) -> Talk {
        let prompt = json!([{"role": "user", "content": words}]);
        let body = json!({"model": "sim", "input": words, "max_output_tokens": tokens});
        Talk { path: "/v1/responses", body, prompt: PromptId::of_chat(&prompt), tokens }
    }

    fn streamed(self) -> Talk {
        self.with(json!({"stream": true}))
    }

    fn with(mut self, members: Value) -> Talk {
        for (key, value) in members.as_object().unwrap() {
            self.body[key] = value.clone();
        }
        self
    }

    fn expected(&self) -> String {
        expected_text(self.prompt, self.tokens)
    }

    async fn post(&self, address: SocketAddr) -> Reply {
        Reply::post(address, self.path, &self.body).await
    }

    /// Sends it and holds the answer against the right one.
    async fn served(&self, address: SocketAddr) -> Reply {
        let reply = self.post(address).await;
        self.check(&reply);
        reply
    }

    fn check(&self, reply: &Reply) {
        assert_eq!((reply.status, reply.broken), (200, false), "{}", reply.text());
        let streamed = self.body["stream"] == json!(true);
        let kind = if streamed { "text/event-stream" } else { "application/json" };
        assert!(reply.header("content-type").starts_with(kind), "{:?}", reply.headers);
        let text = if streamed { self.streamed_text(reply) } else { self.plain_text(&reply.json()) };
        assert_eq!(text, self.expected(), "{}", reply.text());
    }

    fn plain_text(&self, json: &Value) -> String {
        let text = match self.path {
            "/v1/messages" => &json["content"][0]["text"],
            _ => &json["output"][0]["content"][0]["text"],
        };
        text.as_str().unwrap_or_default().to_owned()
    }

    /// The text of a whole stream, whose events are named as their data says and which ends as it should.
    fn streamed_text(&self, reply: &Reply) -> String {
        let (names, events): (Vec<String>, Vec<Value>) = named(&reply.text()).into_iter().unzip();
        for (name, event) in names.iter().zip(&events) {
            assert_eq!(event["type"].as_str(), Some(name.as_str()));
        }
        let ends = ["message_stop", "response.completed", "response.incomplete"];
        assert!(ends.contains(&names.last().map_or("", String::as_str)), "{names:?}");
        assert!(!reply.text().contains("[DONE]"), "{}", reply.text());
        let pieces = events.iter().map(|event| match self.path {
            "/v1/messages" => event["delta"]["text"].as_str(),
            _ => event["delta"].as_str(),
        });
        pieces.flatten().collect()
    }
}

/// The names and the data of all events; comments are left out.
fn named(text: &str) -> Vec<(String, Value)> {
    let events = text.split("\n\n").filter(|event| event.starts_with("event: "));
    let read = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        (name.to_owned(), serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}")))
    };
    events.map(read).collect()
}

/// Status, kind and code of an error in Anthropic's shape.
fn refusal(reply: &Reply) -> (u16, String, String) {
    let json = reply.json();
    assert_eq!(json["type"], "error", "{}", reply.text());
    assert_eq!(reply.header("content-type"), "application/json");
    for name in ["x-request-id", "request-id"] {
        assert_eq!(json["request_id"], reply.header(name), "{name}: {}", reply.text());
    }
    assert!(json["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{}", reply.text());
    assert_eq!(json["error"].as_object().unwrap().len(), 2, "{}", reply.text());
    let kind = json["error"]["type"].as_str().unwrap_or_default().to_owned();
    (reply.status, kind, reply.header("x-smg-error-code").to_owned())
}

fn refused(status: u16, kind: &str, code: &str) -> (u16, String, String) {
    (status, kind.to_owned(), code.to_owned())
}
