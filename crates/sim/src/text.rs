//! What a simulated engine reads and writes.
//!
//! Decides how a prompt becomes tokens and which text an engine answers. The text of token `i` is a function of the
//! prompt, the choice and `i` alone, so a client that knows its prompt knows the whole answer beforehand: a lost, a
//! doubled or a crossed token shows as a difference. Engines of one fleet need no shared state for that, and the
//! decode side gives the same text whether it computed the prompt or was handed its KV.
//!
//! It does not know any real model's tokenizer: a token here is a piece of at most eight bytes that starts at a word.

use std::sync::Arc;

use serde_json::Value;

/// Longest piece of text that is one token, in bytes.
const PIECE_BYTES: usize = 8;
/// Ids of tokens are below this, as a real vocabulary's are.
pub const VOCAB: u32 = 32_000;
/// The model ends by itself after this many tokens, unless it is told to go on (`ignore_eos`).
pub const NATURAL_TOKENS: u32 = 256;
/// Marks the text of an answer that was made from KV whose lease had ended or that was read a second time.
pub const STALE_MARK: &str = "<<STALE-KV>>";
/// Marks the text of an answer that was made from another prompt's KV.
pub const WRONG_MARK: &str = "<<WRONG-KV>>";

/// Words that answers are made of. Each is written with the space that comes before it.
const WORDS: [&str; 128] = [
    " amber", " anchor", " apple", " arrow", " autumn", " baker", " bamboo", " basket", " beacon", " birch",
    " blanket", " bottle", " bramble", " breeze", " bridge", " bronze", " bucket", " button", " cabin",
    " candle", " canyon", " carpet", " castle", " cedar", " chalk", " cherry", " cinder", " clover",
    " cobalt", " comet", " copper", " coral", " cotton", " cradle", " crystal", " curtain", " daisy",
    " dawn", " delta", " desert", " dragon", " drift", " ember", " engine", " falcon", " feather", " fern",
    " fiddle", " flint", " forest", " fossil", " garden", " garnet", " ginger", " glacier", " granite",
    " gravel", " hammer", " harbor", " harvest", " hazel", " hollow", " honey", " island", " ivory",
    " jacket", " jasper", " kettle", " ladder", " lagoon", " lantern", " lemon", " lilac", " linen",
    " magnet", " maple", " marble", " meadow", " mirror", " mortar", " mosaic", " nectar", " nickel",
    " oasis", " ocean", " olive", " onyx", " orchard", " oyster", " paddle", " pebble", " pepper", " pigeon",
    " pillow", " plum", " pocket", " prairie", " quartz", " quill", " rabbit", " raven", " ribbon", " river",
    " rocket", " saddle", " saffron", " sailor", " shadow", " silver", " slate", " spruce", " summer",
    " sunset", " teapot", " temple", " thistle", " thunder", " timber", " tulip", " tunnel", " valley",
    " velvet", " violet", " walnut", " willow", " window", " winter", " yarrow",
];

/// Mixes one more number into a hash. Good enough to spread, not made to resist anybody.
#[must_use]
pub const fn mix(hash: u64, value: u64) -> u64 {
    let mut h = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^= h >> 32;
    h = h.wrapping_mul(0xd6e8_feb8_6659_fd93);
    h ^ (h >> 29)
}

/// Names a prompt by its tokens. Equal prompts have equal ids in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PromptId(pub u64);

impl PromptId {
    /// The id of a prompt given as text.
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        Self::of_tokens(&tokenize(text))
    }

    /// The id of a prompt given as token ids.
    #[must_use]
    pub fn of_tokens(tokens: &[u32]) -> Self {
        Self(tokens.iter().fold(SEED, |hash, token| mix(hash, u64::from(*token))))
    }

    /// The id of a chat, after the simulated chat template. `messages` is the request's member of that name.
    #[must_use]
    pub fn of_chat(messages: &Value) -> Self {
        Self::of_text(&chat_text(messages))
    }
}

/// The prompts of a request to any generating endpoint, in the order of the answer's choices (each prompt's `n` choices
/// follow each other). Empty when the body has no prompt.
#[must_use]
pub fn prompts_of(body: &Value) -> Vec<PromptId> {
    if let Some(messages) = body.get("messages") {
        return vec![PromptId::of_chat(&with_system(body.get("system"), messages))];
    }
    if let Some(input) = body.get("input") {
        let user = serde_json::json!([{"role": "user", "content": input}]);
        let messages = if input.is_string() { &user } else { input };
        let instructions = body.get("instructions").filter(|text| text.is_string());
        return vec![PromptId::of_chat(&with_system(instructions, messages))];
    }
    let prompt =
        ["prompt", "text", "input_ids"].iter().find_map(|name| body.get(*name)).unwrap_or(&Value::Null);
    match prompt.as_array() {
        Some(items) if !items.first().is_some_and(Value::is_number) => {
            items.iter().filter_map(prompt_of).collect()
        }
        _ => prompt_of(prompt).into_iter().collect(),
    }
}

/// One prompt: text or token ids.
fn prompt_of(value: &Value) -> Option<PromptId> {
    if let Some(text) = value.as_str() {
        return Some(PromptId::of_text(text));
    }
    let ids: Option<Vec<u32>> = value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
    ids.map(|ids| PromptId::of_tokens(&ids))
}

/// Messages with a system text before them, as `/v1/messages` and `/v1/responses` carry it.
pub(crate) fn with_system(system: Option<&Value>, messages: &Value) -> Value {
    let system = system.map(|text| serde_json::json!({"role": "system", "content": text}));
    let messages = messages.as_array().map_or(&[][..], Vec::as_slice);
    Value::Array(system.into_iter().chain(as_chat(messages)).collect())
}

/// Blocks of `/v1/messages` and items of `/v1/responses` as the messages that vLLM 0.32 makes of them, as far as the
/// simulated chat template looks at them: it writes what is said and what tools answered, and no calls.
fn as_chat(messages: &[Value]) -> Vec<Value> {
    let (mut chat, mut open): (Vec<Value>, bool) = (Vec::new(), false);
    for message in messages {
        // An assistant's message that has been begun by a call or a thought, and has said nothing yet.
        let begun = std::mem::take(&mut open);
        let is = |kind: &str| message["type"] == kind;
        let role = &message["role"];
        if is("function_call") || is("reasoning") {
            let goes_on = chat.last().is_some_and(|last| last["role"] == "assistant");
            if !goes_on {
                chat.push(serde_json::json!({"role": "assistant"}));
            }
            open = begun || !goes_on;
        } else if is("function_call_output") {
            chat.push(serde_json::json!({"role": "tool", "content": message["output"]}));
        } else if begun && role == "assistant" {
            if let Some(last) = chat.last_mut() {
                last["content"] = message["content"].clone();
            }
        } else if let Some(parts) = message["content"].as_array() {
            let of = |kind: &'static str| move |part: &&Value| part["type"] == kind;
            let results = parts.iter().filter(of("tool_result"));
            chat.extend(
                results.map(
                    |part| serde_json::json!({"role": "tool", "content": result_text(&part["content"])}),
                ),
            );
            let unsaid = ["tool_result", "tool_use", "thinking", "redacted_thinking"];
            let said: Vec<&Value> =
                parts.iter().filter(|part| !unsaid.iter().any(|kind| part["type"] == *kind)).collect();
            if role != "user" || !said.is_empty() || parts.is_empty() {
                chat.push(serde_json::json!({"role": role, "content": said}));
            }
        } else {
            chat.push(message.clone());
        }
    }
    chat
}

/// A tool's answer: a text, or several on lines of their own.
fn result_text(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
    content.as_str().map_or_else(|| parts.collect::<Vec<_>>().join("\n"), str::to_owned)
}

/// Where every hash over tokens starts.
const SEED: u64 = 0x5eed_5eed_5eed_5eed;

/// A prompt as an engine holds it.
#[derive(Debug)]
pub struct Prompt {
    pub id: PromptId,
    pub tokens: Vec<u32>,
    /// The text, where the client gave text; `echo` gives it back.
    pub text: Option<String>,
}

impl Prompt {
    #[must_use]
    pub fn from_text(text: String) -> Arc<Self> {
        let tokens = tokenize(&text);
        Arc::new(Self { id: PromptId::of_tokens(&tokens), tokens, text: Some(text) })
    }

    #[must_use]
    pub fn from_tokens(tokens: Vec<u32>) -> Arc<Self> {
        Arc::new(Self { id: PromptId::of_tokens(&tokens), tokens, text: None })
    }

    /// Length in tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The hash of all tokens up to the end of each block of `size` tokens; the last block may be partly filled.
    #[must_use]
    pub fn chain(&self, size: u32) -> Vec<u64> {
        let size = usize::try_from(size).unwrap_or(1).max(1);
        let mut hash = SEED;
        let blocks = self.tokens.chunks(size).map(|block| {
            hash = block.iter().fold(hash, |hash, token| mix(hash, u64::from(*token)));
            hash
        });
        blocks.collect()
    }
}

/// Cuts text into tokens: a piece starts at a word (with the space before it) and is at most eight bytes long.
#[must_use]
pub fn tokenize(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len() / 5 + 1);
    for_each_piece(text, |piece| tokens.push(token_id(piece)));
    tokens
}

/// The pieces of a text; one that ends within a character shows a replacement mark there.
#[must_use]
pub fn pieces(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    for_each_piece(text, |piece| pieces.push(String::from_utf8_lossy(piece).into_owned()));
    pieces
}

fn for_each_piece(text: &str, mut take: impl FnMut(&[u8])) {
    let bytes = text.as_bytes();
    let mut start = 0;
    for at in 1..=bytes.len() {
        let boundary = at == bytes.len()
            || at - start == PIECE_BYTES
            || (bytes[at].is_ascii_whitespace() && !bytes[at - 1].is_ascii_whitespace());
        if boundary {
            take(&bytes[start..at]);
            start = at;
        }
    }
}

fn token_id(piece: &[u8]) -> u32 {
    let hash = piece.iter().fold(0, |hash, byte| mix(hash, u64::from(*byte)));
    // The low ids are kept for special tokens, as in real vocabularies.
    u32::try_from(hash % u64::from(VOCAB - 8)).unwrap_or(0) + 8
}

/// The prompt that the simulated chat template makes of `messages`.
#[must_use]
pub fn chat_text(messages: &Value) -> String {
    let mut text = String::new();
    for message in messages.as_array().map_or(&[][..], Vec::as_slice) {
        text.push_str("<|");
        text.push_str(message.get("role").and_then(Value::as_str).unwrap_or("user"));
        text.push_str("|>\n");
        push_content(&mut text, message.get("content").unwrap_or(&Value::Null));
        text.push('\n');
    }
    text.push_str("<|assistant|>\n");
    text
}

/// Appends a message's content: text, or a list of parts of which text counts and the rest leaves a placeholder.
fn push_content(text: &mut String, content: &Value) {
    match content {
        Value::String(words) => text.push_str(words),
        Value::Array(parts) => {
            for part in parts {
                match part.get("text").and_then(Value::as_str) {
                    Some(words) => text.push_str(words),
                    None => text.push_str("<|media|>"),
                }
            }
        }
        _ => {}
    }
}

/// The text of output token `index` (from 0) of one choice.
#[must_use]
pub fn token_text(prompt: PromptId, choice: u32, index: u32) -> &'static str {
    let hash = mix(mix(prompt.0, u64::from(choice)), u64::from(index));
    let word = WORDS[usize::try_from(hash % 128).unwrap_or(0)];
    if index == 0 { &word[1..] } else { word }
}

/// The id of output token `index`, matching [`token_text`].
#[must_use]
pub fn output_token(prompt: PromptId, choice: u32, index: u32) -> u32 {
    token_id(token_text(prompt, choice, index).as_bytes())
}

/// A made-up log probability of output token `index`: the same on every engine.
#[must_use]
pub fn token_logprob(prompt: PromptId, choice: u32, index: u32) -> f64 {
    let hash = mix(mix(prompt.0, u64::from(choice) + 0x1000), u64::from(index));
    f64::from(u32::try_from(hash % 4096).unwrap_or(0)) / -1024.0
}

/// How well a document answers a query, from 0 to below 1: made up, and the same on every engine.
#[must_use]
pub fn expected_score(query: &str, document: &str) -> f64 {
    score_of(PromptId::of_text(&pair_text(query, document)))
}

/// The score that a prompt from [`pair_text`] has.
#[must_use]
pub fn score_of(prompt: PromptId) -> f64 {
    f64::from(u32::try_from(mix(prompt.0, 3) % 4096).unwrap_or(0)) / 4096.0
}

/// The prompt that is made of a query and one document.
#[must_use]
pub fn pair_text(query: &str, document: &str) -> String {
    format!("<|query|>\n{query}\n<|document|>\n{document}\n")
}

/// The first `n` tokens that a right answer to `prompt` has (its first choice). The model ends by itself after
/// [`NATURAL_TOKENS`], so a longer answer comes only when end-of-sequence is ignored.
#[must_use]
pub fn expected_text(prompt: PromptId, n: u32) -> String {
    expected_choice(prompt, 0, n)
}

/// As [`expected_text`], for choice number `choice` of a request with `n` above one.
#[must_use]
pub fn expected_choice(prompt: PromptId, choice: u32, n: u32) -> String {
    (0..n).map(|index| token_text(prompt, choice, index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_start_at_words_and_stay_short() {
        assert_eq!(tokenize("The quick cat").len(), 3);
        assert_eq!(tokenize("incomprehensible").len(), 2);
        assert_eq!(tokenize("").len(), 0);
        assert_eq!(tokenize("a  b").len(), 2);
        assert_ne!(tokenize("ab cd"), tokenize("abc d"));
    }

    #[test]
    fn text_and_its_tokens_are_one_prompt() {
        let text = Prompt::from_text("The quick cat reads".into());
        assert_eq!(Prompt::from_tokens(text.tokens.clone()).id, text.id);
        assert_eq!(PromptId::of_text("The quick cat reads"), text.id);
    }

    #[test]
    fn chains_share_the_prefix_and_nothing_else() {
        let one = Prompt::from_tokens((0..40).collect()).chain(16);
        let two = Prompt::from_tokens((0..32).chain([99; 8]).collect()).chain(16);
        assert_eq!(one.len(), 3);
        assert_eq!(one[..2], two[..2]);
        assert_ne!(one[2], two[2]);
    }

    #[test]
    fn answers_differ_by_prompt_choice_and_place() {
        let prompt = PromptId::of_text("hello");
        assert_ne!(expected_text(prompt, 16), expected_text(PromptId::of_text("hello!"), 16));
        assert_ne!(expected_choice(prompt, 0, 16), expected_choice(prompt, 1, 16));
        assert!(expected_text(prompt, 9).starts_with(&expected_text(prompt, 8)));
        assert_eq!(expected_text(prompt, 5).split(' ').count(), 5);
    }

    #[test]
    fn prompts_are_found_in_any_request() {
        use serde_json::json;
        let hi = PromptId::of_text("hi");
        assert_eq!(prompts_of(&json!({"prompt": "hi"})), [hi]);
        assert_eq!(prompts_of(&json!({"text": ["hi", "ho"]})), [hi, PromptId::of_text("ho")]);
        let ids = PromptId::of_tokens(&[1, 2]);
        assert_eq!(prompts_of(&json!({"input_ids": [1, 2]})), [ids]);
        assert_eq!(prompts_of(&json!({"prompt": [[1, 2], [1, 2]]})), [ids, ids]);
        let chat = PromptId::of_chat(&json!([{"role": "user", "content": "hi"}]));
        assert_eq!(prompts_of(&json!({"messages": [{"role": "user", "content": "hi"}]})), [chat]);
        assert_eq!(prompts_of(&json!({"input": "hi"})), [chat]);
        assert_eq!(prompts_of(&json!({})), []);
    }

    #[test]
    fn calls_and_results_of_other_apis_are_messages() {
        use serde_json::json;
        let chat = json!([
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "I look"},
            {"role": "tool", "content": "1\n2"}, {"role": "tool", "content": "3"}, {"role": "user", "content": "go"},
        ]);
        let messages = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look"}, {"type": "tool_use", "id": "t"}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}]},
            {"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "tool_result", "content": "3"}]},
        ]});
        let input = json!({"input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "content": []}, {"type": "function_call", "name": "f"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
            {"type": "function_call_output", "output": "1\n2"}, {"type": "function_call_output", "output": "3"},
            {"role": "user", "content": "go"},
        ]});
        for body in [messages, input] {
            assert_eq!(prompts_of(&body), [PromptId::of_chat(&chat)], "{body}");
        }
    }

    #[test]
    fn chat_content_may_be_text_or_parts() {
        let plain = serde_json::json!([{"role": "user", "content": "hi"}]);
        let parts = serde_json::json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]);
        assert_eq!(PromptId::of_chat(&plain), PromptId::of_chat(&parts));
    }
}
