//! SGLang's `/generate`, plain and streamed. A chunk of its stream repeats all text so far.

use std::fmt::Write;

use crate::engine::sequence::KvState;
use crate::serve::answer::{Ended, Reason, Teller, event};
use crate::serve::json::quote;
use crate::serve::refusal::Refusal;
use crate::serve::wish::Choice;

pub(super) fn generate(teller: &Teller, ended: &[Ended]) -> String {
    let items: Vec<String> = teller
        .wish
        .choices
        .iter()
        .zip(ended)
        .enumerate()
        .map(|(index, (choice, end))| {
            item(teller, index, choice, &Upto { tokens: end.tokens, kv: end.kv, end: Some(end) })
        })
        .collect();
    if teller.wish.listed || items.len() > 1 { format!("[{}]", items.join(",")) } else { items.concat() }
}

/// The chunk after token `at`. With several items in one stream each says which it is of.
pub(super) fn token(
    teller: &Teller,
    index: usize,
    (at, kv): (u32, KvState),
    ended: Option<&Ended>,
) -> Vec<String> {
    let Some(choice) = teller.wish.choices.get(index) else { return Vec::new() };
    let mut json = item(teller, index, choice, &Upto { tokens: at + 1, kv, end: ended });
    if teller.wish.listed || teller.wish.choices.len() > 1 {
        json.truncate(json.len() - 1);
        let _ = write!(json, ",\"index\":{index}}}");
    }
    vec![event(&json)]
}

/// An engine's error in a stream is an ordinary chunk whose finish reason is an abort.
pub(super) fn error(teller: &Teller, refusal: &Refusal) -> String {
    let reason = format!(
        r#"{{"type":"abort","message":{},"status_code":{},"err_type":"InternalServerError"}}"#,
        quote(&refusal.message),
        refusal.status
    );
    let prompt = teller.wish.prompts.first().map_or(0, |prompt| prompt.len());
    event(&format!(
        r#"{{"text":"","output_ids":[],"meta_info":{{"id":{},"finish_reason":{reason},"prompt_tokens":{prompt},"weight_version":"default","completion_tokens":0,"cached_tokens":0}}}}"#,
        quote(&teller.wish.id)
    ))
}

/// How far an item goes.
struct Upto<'a> {
    tokens: u32,
    kv: KvState,
    end: Option<&'a Ended>,
}

fn item(teller: &Teller, index: usize, choice: &Choice, upto: &Upto<'_>) -> String {
    let ids: Vec<String> = (0..upto.tokens).map(|at| choice.token(at).id.to_string()).collect();
    let id = if index == 0 { teller.wish.id.clone() } else { format!("{}_{index}", teller.wish.id) };
    let finish = upto.end.map_or("null".into(), finish_reason);
    let made = upto.tokens;
    let cached = upto.end.map_or(0, |end| end.cached);
    let mut out = format!(
        r#"{{"text":{},"output_ids":[{}],"meta_info":{{"id":{},"finish_reason":{finish},"prompt_tokens":{},"weight_version":"default","num_retractions":0"#,
        quote(&choice.text(0, upto.tokens, upto.kv)),
        ids.join(","),
        quote(&id),
        choice.prompt.len()
    );
    push_logprobs(&mut out, teller, choice, upto.tokens);
    let _ = write!(
        out,
        r#","reasoning_tokens":0,"completion_tokens":{made},"cached_tokens":{cached},"weight_versions":[{{"version":"default","start":0,"end":{made}}}],"cached_tokens_details":{{"device":{cached},"host":0}},"dp_rank":null,"e2e_latency":0.0}}}}"#
    );
    out
}

fn finish_reason(end: &Ended) -> String {
    match &end.reason {
        Reason::Length => format!(r#"{{"type":"length","length":{}}}"#, end.tokens),
        Reason::Eos => r#"{"type":"stop","matched":2}"#.into(),
        Reason::Stop(text) => format!(r#"{{"type":"stop","matched":{}}}"#, quote(text)),
        Reason::Abort => {
            r#"{"type":"abort","message":"Aborted by AbortReq.","status_code":null,"err_type":null}"#.into()
        }
    }
}

/// Log probabilities are triples: value, token id, text (always null here).
fn push_logprobs(out: &mut String, teller: &Teller, choice: &Choice, made: u32) {
    if teller.wish.logprobs.is_none() {
        return;
    }
    let triple = |value: Option<f64>, id: u32| {
        let value = value.map_or("null".into(), |value| format!("{value:?}"));
        format!("[{value},{id},null]")
    };
    if let Some(from) = teller.wish.prompt_logprobs_from {
        let skip = usize::try_from(from).unwrap_or(usize::MAX);
        let tokens = choice.prompt_tokens();
        let known = tokens.iter().skip(skip).filter(|_| teller.knows_prompt);
        let triples: Vec<String> = known.map(|token| triple(token.logprob, token.id)).collect();
        let _ = write!(out, r#","input_token_logprobs":[{}]"#, triples.join(","));
    } else {
        out.push_str(r#","input_token_logprobs":[]"#);
    }
    let triples = (0..made).map(|at| choice.token(at)).map(|token| triple(token.logprob, token.id));
    let triples: Vec<String> = triples.collect();
    let _ = write!(out, r#","output_token_logprobs":[{}]"#, triples.join(","));
}
