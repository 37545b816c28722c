//! A request and the one right answer to it.
//!
//! The simulated engines' text is a function of the prompt, the choice and the position, so a token that is lost,
//! doubled or crossed over from another request shows as a difference.

use std::net::SocketAddr;

use baton_sim::{PromptId, expected_choice};
use serde_json::{Value, json};

use super::{Reply, Streamed};

pub const PROMPT: &str = "The quick cat reads a new book near the old river while the small fish sings";

/// A request whose answer is known.
#[derive(Clone, Debug)]
pub struct Ask {
    pub path: &'static str,
    pub body: Value,
    prompt: PromptId,
    tokens: u32,
}

impl Ask {
    pub fn chat(words: &str, tokens: u32) -> Ask {
        let messages =
            json!([{"role": "system", "content": "You read."}, {"role": "user", "content": words}]);
        let prompt = PromptId::of_chat(&messages);
        let body = json!({"model": "sim", "messages": messages, "max_tokens": tokens});
        Ask { path: "/v1/chat/completions", body, prompt, tokens }
    }

    pub fn completion(words: &str, tokens: u32) -> Ask {
        let body = json!({"model": "sim", "prompt": words, "max_tokens": tokens});
        Ask { path: "/v1/completions", body, prompt: PromptId::of_text(words), tokens }
    }

    pub fn generate(words: &str, tokens: u32) -> Ask {
        let body = json!({"text": words, "sampling_params": {"max_new_tokens": tokens}});
        Ask { path: "/generate", body, prompt: PromptId::of_text(words), tokens }
    }

    pub fn streamed(self) -> Ask {
        self.with(json!({"stream": true}))
    }

    /// With these members in the body.
    pub fn with(mut self, members: Value) -> Ask {
        for (key, value) in members.as_object().unwrap() {
            self.body[key] = value.clone();
        }
        self
    }

    pub fn without(mut self, member: &str) -> Ask {
        self.body.as_object_mut().unwrap().remove(member);
        self
    }

    /// The same request, with an answer of this many tokens.
    pub fn expecting(self, tokens: u32) -> Ask {
        Ask { tokens, ..self }
    }

    /// The same request, whose prompt is this one.
    pub fn of(self, prompt: PromptId) -> Ask {
        Ask { prompt, ..self }
    }

    pub fn is_streamed(&self) -> bool {
        self.body["stream"] == json!(true)
    }

    /// The text of the right answer.
    pub fn expected(&self) -> String {
        self.expected_choice(0)
    }

    pub fn expected_choice(&self, choice: u32) -> String {
        expected_choice(self.prompt, choice, self.tokens)
    }

    pub async fn post(&self, address: SocketAddr) -> Reply {
        Reply::post(address, self.path, &self.body).await
    }

    pub async fn post_with(&self, address: SocketAddr, headers: &[(&str, &str)]) -> Reply {
        Reply::post_with(address, self.path, headers, &self.body).await
    }

    pub async fn stream(&self, address: SocketAddr) -> Streamed {
        Streamed::post(address, self.path, &self.body).await
    }

    /// Sends it and holds the answer against the right one.
    pub async fn served(&self, address: SocketAddr) -> Reply {
        let reply = self.post(address).await;
        self.check(&reply);
        reply
    }

    /// The answer is whole and right.
    pub fn check(&self, reply: &Reply) {
        if let Err(wrong) = self.judge(reply) {
            panic!("{wrong}: {:?}", self.body);
        }
    }

    /// What is wrong with an answer that should be whole.
    pub fn judge(&self, reply: &Reply) -> Result<(), String> {
        if reply.status != 200 || reply.broken {
            return Err(format!("status {}, broken {}: {}", reply.status, reply.broken, reply.text()));
        }
        let kind = if self.is_streamed() { "text/event-stream" } else { "application/json" };
        if !reply.header("content-type").starts_with(kind) {
            return Err(format!("content type {}", reply.header("content-type")));
        }
        if self.is_streamed() && !reply.text().ends_with("data: [DONE]\n\n") {
            return Err(format!("no end mark: {}", reply.text()));
        }
        let (got, right) = (self.text_of(reply, 0), self.expected());
        if got == right { Ok(()) } else { Err(format!("got {got:?}, not {right:?}: {}", reply.text())) }
    }

    /// The text of one choice, whether streamed or not.
    pub fn text_of(&self, reply: &Reply, choice: u64) -> String {
        if !self.is_streamed() {
            return piece(&reply.json(), choice);
        }
        let events = reply.events();
        if self.path == "/generate" {
            // Each event has the text so far.
            return events.last().map(|e| piece(e, choice)).unwrap_or_default();
        }
        events.iter().map(|event| piece(event, choice)).collect()
    }
}

fn piece(json: &Value, choice: u64) -> String {
    if let Some(text) = json["text"].as_str() {
        return text.to_owned();
    }
    let choices = json["choices"].as_array().into_iter().flatten();
    let own = choices.filter(|c| c["index"] == json!(choice));
    own.map(|c| {
        let text = [&c["text"], &c["message"]["content"], &c["delta"]["content"]];
        text.iter().find_map(|t| t.as_str()).unwrap_or_default().to_owned()
    })
    .collect()
}
