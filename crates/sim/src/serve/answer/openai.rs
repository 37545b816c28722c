//! `/v1/completions` and `/v1/chat/completions`, plain and streamed.

use std::fmt::Write;

use crate::engine::sequence::KvState;
use crate::engine::spec::Dialect;
use crate::serve::answer::{DONE, Ended, Teller, event};
use crate::serve::json::{push_quoted, quote};
use crate::serve::wish::{Api, Choice, Token};

/// A whole text completion.
pub(super) fn completion(teller: &Teller, ended: &[Ended]) -> String {
    let mut out = head(teller, "text_completion");
    for (index, (choice, end)) in teller.wish.choices.iter().zip(ended).enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let mut text = if teller.wish.echo { choice.prompt_text() } else { String::new() };
        text.push_str(&choice.text(0, end.tokens, end.kv));
        let logprobs = completion_logprobs(teller, choice, 0, end.tokens);
        let (finish, matched) = (end.reason.name(), end.reason.matched());
        let _ = write!(out, r#"{comma}{{"index":{index},"text":{},"logprobs":{logprobs},"#, quote(&text));
        let _ = match teller.dialect {
            Dialect::Vllm => write!(
                out,
                r#""finish_reason":"{finish}","stop_reason":{matched},"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":{},"routed_experts":null}}"#,
                prompt_ids(teller, choice)
            ),
            Dialect::Sglang => write!(out, r#""finish_reason":"{finish}","matched_stop":{matched}}}"#),
            Dialect::Trtllm => push_trt_end(&mut out, teller, (index, end)),
        };
    }
    out.push(']');
    match teller.dialect {
        Dialect::Vllm => {
            let _ = write!(
                out,
                r#","service_tier":null,"system_fingerprint":{},"usage":{},"kv_transfer_params":{},"ec_transfer_params":null,"metrics":null}}"#,
                fingerprint(teller),
                vllm_usage(teller, ended, true),
                teller.kv_params(ended)
            );
        }
        Dialect::Sglang => push_sglang_tail(&mut out, teller, ended),
        Dialect::Trtllm => push_trt_tail(&mut out, teller, ended),
    }
    out
}

/// A whole chat completion.
pub(super) fn chat(teller: &Teller, ended: &[Ended]) -> String {
    let mut out = head(teller, "chat.completion");
    for (index, (choice, end)) in teller.wish.choices.iter().zip(ended).enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let text = quote(&choice.text(0, end.tokens, end.kv));
        let logprobs = chat_logprobs(teller, choice, 0, end.tokens);
        let (finish, matched) = (end.reason.name(), end.reason.matched());
        let _ = match teller.dialect {
            Dialect::Vllm => write!(
                out,
                r#"{comma}{{"index":{index},"message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":{logprobs},"finish_reason":"{finish}","stop_reason":{matched},"token_ids":null,"routed_experts":null}}"#
            ),
            Dialect::Trtllm => {
                let _ = write!(
                    out,
                    r#"{comma}{{"index":{index},"message":{{"role":"assistant","content":{text}}},"logprobs":{logprobs},"#
                );
                push_trt_end(&mut out, teller, (index, end))
            }
            Dialect::Sglang => write!(
                out,
                r#"{comma}{{"index":{index},"message":{{"role":"assistant","content":{text},"reasoning_content":null}},"logprobs":{logprobs},"finish_reason":"{finish}","matched_stop":{matched}}}"#
            ),
        };
    }
    out.push(']');
    match teller.dialect {
        Dialect::Vllm => {
            let ids = teller.wish.choices.first().map_or("null".into(), |choice| prompt_ids(teller, choice));
            let _ = write!(
                out,
                r#","service_tier":null,"system_fingerprint":{},"usage":{},"prompt_logprobs":null,"prompt_token_ids":{ids},"prompt_text":null,"kv_transfer_params":{},"ec_transfer_params":null,"metrics":null}}"#,
                fingerprint(teller),
                vllm_usage(teller, ended, true),
                teller.kv_params(ended)
            );
        }
        Dialect::Sglang => push_sglang_tail(&mut out, teller, ended),
        Dialect::Trtllm => push_trt_tail(&mut out, teller, ended),
    }
    out
}

/// The chunks that give each choice of a chat its role.
pub(super) fn chat_opening(teller: &Teller) -> Vec<String> {
    let chunks = (0..teller.wish.choices.len()).map(|index| {
        let mut out = head(teller, "chat.completion.chunk");
        let _ = match teller.dialect {
            Dialect::Vllm | Dialect::Trtllm => write!(
                out,
                r#"{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":null,"prompt_text":null}}"#
            ),
            Dialect::Sglang => write!(
                out,
                r#"{{"index":{index},"delta":{{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null}},"logprobs":null,"finish_reason":null,"matched_stop":null}}],"usage":null}}"#
            ),
        };
        event(&out)
    });
    chunks.collect()
}

/// The chunk of one token of a text completion.
pub(super) fn completion_token(
    teller: &Teller,
    index: usize,
    (at, kv): (u32, KvState),
    ended: Option<&Ended>,
) -> Vec<String> {
    let Some(choice) = teller.wish.choices.get(index) else { return Vec::new() };
    let mut text = if at == 0 && teller.wish.echo { choice.prompt_text() } else { String::new() };
    text.push_str(&choice.text(at, at + 1, kv));
    let logprobs = completion_logprobs(teller, choice, at, at + 1);
    let (finish, matched) = finish_of(ended);
    let mut out = head(teller, "text_completion");
    let _ = write!(out, r#"{{"index":{index},"text":{},"logprobs":{logprobs},"#, quote(&text));
    let _ = match teller.dialect {
        Dialect::Vllm | Dialect::Trtllm => write!(
            out,
            r#""finish_reason":{finish},"stop_reason":{matched},"prompt_token_ids":null,"token_ids":null}}]{}}}"#,
            last_mark(teller, ended)
        ),
        Dialect::Sglang => {
            write!(out, r#""finish_reason":{finish},"matched_stop":{matched}}}],"usage":null}}"#)
        }
    };
    vec![event(&out)]
}

/// The chunks of one token of a chat: SGLang tells the end in a chunk of its own.
pub(super) fn chat_token(
    teller: &Teller,
    index: usize,
    (at, kv): (u32, KvState),
    ended: Option<&Ended>,
) -> Vec<String> {
    let Some(choice) = teller.wish.choices.get(index) else { return Vec::new() };
    let text = quote(&choice.text(at, at + 1, kv));
    let logprobs = chat_logprobs(teller, choice, at, at + 1);
    let (finish, matched) = finish_of(ended);
    let mut out = head(teller, "chat.completion.chunk");
    if teller.dialect != Dialect::Sglang {
        let stop = if ended.is_some() { format!(r#","stop_reason":{matched}"#) } else { String::new() };
        let _ = write!(
            out,
            r#"{{"index":{index},"delta":{{"content":{text}}},"logprobs":{logprobs},"finish_reason":{finish}{stop},"token_ids":null}}]{}}}"#,
            last_mark(teller, ended)
        );
        return vec![event(&out)];
    }
    let _ = write!(
        out,
        r#"{{"index":{index},"delta":{{"role":null,"content":{text},"reasoning_content":null,"tool_calls":null}},"logprobs":{logprobs},"finish_reason":null,"matched_stop":null}}],"usage":null}}"#
    );
    let mut events = vec![event(&out)];
    if ended.is_some() {
        let mut out = head(teller, "chat.completion.chunk");
        let _ = write!(
            out,
            r#"{{"index":{index},"delta":{{"role":null,"content":null,"reasoning_content":null,"tool_calls":null}},"logprobs":null,"finish_reason":{finish},"matched_stop":{matched}}}],"usage":null}}"#
        );
        events.push(event(&out));
    }
    events
}

/// The usage chunk, if asked for, and the end mark.
pub(super) fn closing(teller: &Teller, ended: &[Ended]) -> Vec<String> {
    let mut events = Vec::new();
    if teller.wish.include_usage {
        let object = if teller.wish.api == Api::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut out = head(teller, object);
        let _ = match teller.dialect {
            Dialect::Vllm | Dialect::Trtllm => write!(
                out,
                r#"],"usage":{},"system_fingerprint":{}}}"#,
                vllm_usage(teller, ended, false),
                fingerprint(teller)
            ),
            Dialect::Sglang => write!(out, r#"],"usage":{}}}"#, sglang_usage(teller, ended)),
        };
        events.push(event(&out));
    }
    events.push(DONE.into());
    events
}

fn head(teller: &Teller, object: &str) -> String {
    let mut out = String::with_capacity(256);
    out.push_str(r#"{"id":"#);
    push_quoted(&mut out, &teller.wish.id);
    let _ = write!(out, r#","object":"{object}","created":{},"model":"#, teller.created);
    push_quoted(&mut out, &teller.wish.model);
    out.push_str(r#","choices":["#);
    out
}

fn finish_of(ended: Option<&Ended>) -> (String, String) {
    ended.map_or(("null".into(), "null".into()), |end| {
        (format!("\"{}\"", end.reason.name()), end.reason.matched())
    })
}

/// vLLM puts its fingerprint on the last chunk: the usage chunk, or the one that ends the choice.
fn last_mark(teller: &Teller, ended: Option<&Ended>) -> String {
    match ended {
        Some(_) if !teller.wish.include_usage => format!(r#","system_fingerprint":{}"#, fingerprint(teller)),
        _ => String::new(),
    }
}

fn fingerprint(teller: &Teller) -> String {
    quote(&format!("vllm-{}-{}", crate::serve::vllm::VERSION, teller.fingerprint))
}

fn prompt_ids(teller: &Teller, choice: &Choice) -> String {
    if !teller.return_token_ids {
        return "null".into();
    }
    let ids = choice.prompt.tokens.iter().map(u32::to_string).collect::<Vec<_>>();
    format!("[{}]", ids.join(","))
}

fn vllm_usage(teller: &Teller, ended: &[Ended], details: bool) -> String {
    let (prompt, made) = teller.counts(ended);
    let details =
        if details { r#","prompt_tokens_details":null,"completion_tokens_details":null"# } else { "" };
    format!(
        r#"{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{made}{details}}}"#,
        prompt + made
    )
}

fn sglang_usage(teller: &Teller, ended: &[Ended]) -> String {
    let (prompt, made) = teller.counts(ended);
    format!(
        r#"{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{made},"prompt_tokens_details":null,"reasoning_tokens":0,"completion_tokens_details":null}}"#,
        prompt + made
    )
}

fn push_sglang_tail(out: &mut String, teller: &Teller, ended: &[Ended]) {
    let last = ended.first().map_or(0, |end| end.tokens);
    let _ = write!(
        out,
        r#","usage":{},"metadata":{{"weight_version":"default","weight_versions":[{{"version":"default","start":0,"end":{last}}}]}}}}"#,
        sglang_usage(teller, ended)
    );
}

/// How a choice of TensorRT-LLM ends.
fn push_trt_end(out: &mut String, teller: &Teller, (index, end): (usize, &Ended)) -> std::fmt::Result {
    let (finish, matched) = (teller.reason(end), end.reason.matched());
    let params = teller.context_params(index, end);
    write!(out, r#""finish_reason":"{finish}","stop_reason":{matched},"disaggregated_params":{params}}}"#)
}

/// A context server tells which tokens it read.
fn push_trt_tail(out: &mut String, teller: &Teller, ended: &[Ended]) {
    let _ = write!(out, r#","usage":{}"#, vllm_usage(teller, ended, false));
    if let Some((_, choice)) = ended.iter().zip(&teller.wish.choices).find(|(end, _)| end.handoff.is_some()) {
        let ids = choice.prompt.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let _ = write!(out, r#","prompt_token_ids":[{ids}]"#);
    }
    out.push('}');
}

/// The tokens that log probabilities are told for: the prompt's own ones first when it is echoed. SGLang tells the
/// prompt's only to a request that asks for alternatives, and where it computed the prompt.
fn told_tokens(teller: &Teller, choice: &Choice, from: u32, to: u32) -> Vec<Token> {
    let asked = teller.dialect != Dialect::Sglang || teller.wish.logprobs > Some(0);
    let prompts = from == 0 && teller.wish.echo && asked && teller.knows_prompt;
    let mut tokens = if prompts { choice.prompt_tokens() } else { Vec::new() };
    tokens.extend((from..to).map(|at| choice.token(at)));
    tokens
}

fn completion_logprobs(teller: &Teller, choice: &Choice, from: u32, to: u32) -> String {
    let Some(top) = teller.wish.logprobs else { return "null".into() };
    let sglang = teller.dialect == Dialect::Sglang;
    let tokens = told_tokens(teller, choice, from, to);
    let mut offset = 0;
    let (mut offsets, mut values, mut names, mut tops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        let name = quote(&token.text);
        // SGLang does not tell where a token stands.
        offsets.push(if sglang { "-1".to_owned() } else { offset.to_string() });
        offset += token.text.chars().count();
        values.push(token.logprob.map_or("null".into(), |value| format!("{value:?}")));
        if top > 0 || !sglang {
            tops.push(token.logprob.map_or("null".into(), |value| format!("{{{name}:{value:?}}}")));
        }
        names.push(name);
    }
    format!(
        r#"{{"text_offset":[{}],"token_logprobs":[{}],"tokens":[{}],"top_logprobs":[{}]}}"#,
        offsets.join(","),
        values.join(","),
        names.join(","),
        tops.join(",")
    )
}

fn chat_logprobs(teller: &Teller, choice: &Choice, from: u32, to: u32) -> String {
    let Some(top) = teller.wish.logprobs else { return "null".into() };
    let tokens = (from..to).map(|at| {
        let token = choice.token(at);
        let bytes = token.text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(",");
        let value = token.logprob.unwrap_or(0.0);
        let one = format!(r#""token":{},"logprob":{value:?},"bytes":[{bytes}]"#, quote(&token.text));
        let tops = if top > 0 { format!("{{{one}}}") } else { String::new() };
        format!(r#"{{{one},"top_logprobs":[{tops}]}}"#)
    });
    format!(r#"{{"content":[{}]}}"#, tokens.collect::<Vec<_>>().join(","))
}
