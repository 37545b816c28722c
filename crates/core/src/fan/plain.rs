//! Joining the plain answers of a request's parts.
//!
//! What belongs to the whole (id, model, fingerprint) is the first part's, byte for byte; choices are
//! gathered with their indices; tokens are added up, the prompt's counted once.

use bytes::{BufMut, Bytes, BytesMut};

use super::place;
use crate::ask::Api;
use crate::body::{BodyLimits, Edit, Envelope, scalar};

/// Why the parts cannot be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unjoinable(pub &'static str);

/// The whole answer. `answers` are the parts' in their order.
///
/// # Errors
/// An answer that is not of the API's shape.
pub fn join(api: Api, answers: &[Bytes], limits: &BodyLimits) -> Result<Bytes, Unjoinable> {
    if api == Api::Generate {
        return Ok(list(answers));
    }
    let parsed: Result<Vec<Envelope>, _> =
        answers.iter().map(|a| Envelope::parse(a.clone(), limits)).collect();
    let parsed = parsed.map_err(|_| Unjoinable("a part's answer is not a JSON object"))?;
    let first = parsed.first().ok_or(Unjoinable("there is no part"))?;
    let mut choices = Vec::new();
    for (part, answer) in (0u32..).zip(&parsed) {
        let own = answer.get("choices").ok_or(Unjoinable("a part's answer has no choices"))?;
        for choice in scalar::elements(own) {
            let index = scalar::member(choice, "index").and_then(scalar::as_u64).unwrap_or(0);
            let index = place(index, part, parsed.len() as u32);
            choices.push((index, numbered(choice, index, limits)));
        }
    }
    choices.sort_by_key(|(index, _)| *index);
    let mut all = BytesMut::from(&b"["[..]);
    for (i, (_, choice)) in choices.iter().enumerate() {
        if i > 0 {
            all.put_u8(b',');
        }
        all.extend_from_slice(choice);
    }
    all.put_u8(b']');
    let mut edits = vec![Edit::set("choices", all.freeze())];
    if let Some(usage) = usage(parsed.iter().filter_map(|a| a.get("usage"))) {
        edits.push(Edit::set("usage", usage));
    }
    Ok(first.splice(&edits).to_bytes())
}

/// `/generate` answers several samples with a list. A part that lists its prompts' answers gives one of each
/// to every prompt.
fn list(answers: &[Bytes]) -> Bytes {
    let rows: Vec<Vec<&[u8]>> = answers
        .iter()
        .map(|a| match scalar::kind(a) {
            scalar::Kind::Array => scalar::elements(a).collect(),
            _ => vec![&a[..]],
        })
        .collect();
    let prompts = rows.iter().map(Vec::len).max().unwrap_or(0);
    let items = (0..prompts).flat_map(|i| rows.iter().filter_map(move |row| row.get(i)));
    let mut all = BytesMut::from(&b"["[..]);
    for (i, item) in items.enumerate() {
        if i > 0 {
            all.put_u8(b',');
        }
        all.extend_from_slice(item.trim_ascii());
    }
    all.put_u8(b']');
    all.freeze()
}

/// The object with its `index` set.
pub(super) fn numbered(object: &[u8], index: u64, limits: &BodyLimits) -> Bytes {
    let object = Bytes::copy_from_slice(object);
    match Envelope::parse(object.clone(), limits) {
        Ok(env) => env.splice(&[Edit::set_u64("index", index)]).to_bytes(),
        Err(_) => object,
    }
}

/// One usage object for all parts: the first's, its counts replaced by the sums. `None` if no part has one.
pub(super) fn usage<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Option<Bytes> {
    let mut objects = parts.filter(|u| scalar::kind(u) == scalar::Kind::Object);
    let first = objects.next()?;
    let count = |object: &[u8], key| scalar::member(object, key).and_then(scalar::as_u64).unwrap_or(0);
    let prompt = count(first, "prompt_tokens");
    let completion =
        objects.fold(count(first, "completion_tokens"), |sum, u| sum + count(u, "completion_tokens"));
    let env = Envelope::parse(Bytes::copy_from_slice(first), &BodyLimits::default()).ok()?;
    let edits =
        [Edit::set_u64("completion_tokens", completion), Edit::set_u64("total_tokens", prompt + completion)];
    Some(env.splice(&edits).to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join_text(api: Api, answers: &[&str]) -> String {
        let answers: Vec<Bytes> = answers.iter().map(|a| Bytes::copy_from_slice(a.as_bytes())).collect();
        String::from_utf8(join(api, &answers, &BodyLimits::default()).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn choices_are_numbered_and_tokens_added_up() {
        let got = join_text(
            Api::Chat,
            &[
                r#"{"id":"a","choices":[{"index":0,"message":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7},"z":0.10}"#,
                r#"{"id":"b","choices":[{"index":0,"message":{"content":"y"}}],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}"#,
            ],
        );
        assert_eq!(
            got,
            r#"{"id":"a","choices":[{"index":0,"message":{"content":"x"}},{"index":1,"message":{"content":"y"}}],"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"z":0.10}"#
        );
    }

    #[test]
    fn several_prompts_keep_their_samples_together() {
        let answer =
            |s: &str| format!(r#"{{"choices":[{{"index":0,"text":"p0{s}"}},{{"index":1,"text":"p1{s}"}}]}}"#);
        let got = join_text(Api::Completions, &[&answer("a"), &answer("b")]);
        let texts = r#"[{"index":0,"text":"p0a"},{"index":1,"text":"p0b"},{"index":2,"text":"p1a"},{"index":3,"text":"p1b"}]"#;
        assert_eq!(got, format!(r#"{{"choices":{texts}}}"#));
    }

    #[test]
    fn generate_answers_with_a_list() {
        assert_eq!(
            join_text(Api::Generate, &[r#"{"text":"a"}"#, r#"{"text":"b"}"#]),
            r#"[{"text":"a"},{"text":"b"}]"#
        );
        let got = join_text(Api::Generate, &[r#"[{"t":1},{"t":2}]"#, r#"[{"t":3},{"t":4}]"#]);
        assert_eq!(got, r#"[{"t":1},{"t":3},{"t":2},{"t":4}]"#);
    }

    #[test]
    fn what_is_no_answer_is_told() {
        let bad = join(Api::Chat, &[Bytes::from_static(b"[]")], &BodyLimits::default());
        assert!(bad.is_err());
    }
}
