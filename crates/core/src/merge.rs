//! Log probabilities of the prompt, which only the prefill has, put in front of those the decode reports.
//!
//! SGLang's `/generate` with `return_logprob`: `meta_info.input_token_logprobs` of the answer is the
//! prefill's list followed by the decode's, in the plain answer and in every event of a stream (SGLang
//! 0.5.23). Only arrays are joined and only that member is touched; everything else passes byte for byte. The
//! OpenAI-shaped answers carry the output's log probabilities, which the decode has, and need none of this.

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memmem;

use crate::body::{BodyLimits, Edit, Envelope, scalar};

/// Longest event that is held to be edited; a longer one passes as it is.
pub const EVENT_MAX_BYTES: usize = 16 << 20;

const MEMBER: &str = "input_token_logprobs";

/// What the prefill said of the prompts: one list each, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptLogprobs {
    lists: Vec<Bytes>,
    limits: BodyLimits,
}

impl PromptLogprobs {
    /// From a prefill's answer: one object, a list of them for a batch, or the events of a stream, of which
    /// the last of each index has the whole list. `None` if there is nothing to put in front.
    pub fn read(answer: &Bytes, limits: &BodyLimits) -> Option<PromptLogprobs> {
        let mut lists = Vec::new();
        match answer.trim_ascii_start().first() {
            Some(b'[') => {
                lists.extend(scalar::elements(answer).map(|one| list_of(one, limits).unwrap_or_default()))
            }
            Some(b'{') => lists.push(list_of(answer, limits)?),
            _ => {
                for event in answer.split(|b| *b == b'\n').filter_map(|line| line.strip_prefix(b"data:")) {
                    let index =
                        scalar::member(event.trim_ascii(), "index").and_then(scalar::as_u64).unwrap_or(0);
                    let index = usize::try_from(index).ok().filter(|i| *i < 4096)?;
                    if let Some(list) = list_of(event.trim_ascii(), limits) {
                        if lists.len() <= index {
                            lists.resize(index + 1, Bytes::new());
                        }
                        lists[index] = list;
                    }
                }
            }
        }
        lists.iter().any(|l| !l.is_empty()).then_some(PromptLogprobs { lists, limits: *limits })
    }

    /// The decode's plain answer with the prompt's list in front.
    pub fn join_plain(&self, answer: &Bytes) -> Bytes {
        if answer.trim_ascii_start().first() != Some(&b'[') {
            return self.join_one(answer, 0).unwrap_or_else(|| answer.clone());
        }
        let mut out = BytesMut::from(&b"["[..]);
        for (i, one) in scalar::elements(answer).enumerate() {
            if i > 0 {
                out.put_u8(b',');
            }
            let one = Bytes::copy_from_slice(one);
            out.extend_from_slice(&self.join_one(&one, i).unwrap_or(one));
        }
        out.put_u8(b']');
        out.freeze()
    }

    fn join_one(&self, object: &Bytes, index: usize) -> Option<Bytes> {
        let own = self.lists.get(index).filter(|l| !l.is_empty())?;
        let whole = Envelope::parse(object.clone(), &self.limits).ok()?;
        let meta = Envelope::parse(whole.get_bytes("meta_info")?, &self.limits).ok()?;
        let theirs = meta.get(MEMBER).filter(|l| scalar::kind(l) == scalar::Kind::Array)?;
        let joined = concat(own, theirs);
        let meta = meta.splice(&[Edit::set(MEMBER, joined)]).to_bytes();
        Some(whole.splice(&[Edit::set("meta_info", meta)]).to_bytes())
    }
}

/// The raw list in an answer's `meta_info`.
fn list_of(object: &[u8], limits: &BodyLimits) -> Option<Bytes> {
    let whole = Envelope::parse(Bytes::copy_from_slice(object), limits).ok()?;
    let list = scalar::member(whole.get("meta_info")?, MEMBER)?;
    (scalar::kind(list) == scalar::Kind::Array).then(|| Bytes::copy_from_slice(list))
}

/// Two arrays as one.
fn concat(first: &[u8], second: &[u8]) -> Bytes {
    let inner = |list: &[u8]| {
        let list = list.trim_ascii();
        list[1..list.len() - 1].trim_ascii().to_vec()
    };
    let (a, b) = (inner(first), inner(second));
    let comma: &[u8] = if a.is_empty() || b.is_empty() { b"" } else { b"," };
    [b"[", &a[..], comma, &b[..], b"]"].concat().into()
}

/// Edits a decode's event stream as it passes.
#[derive(Debug)]
pub struct StreamJoin {
    prompt: PromptLogprobs,
    held: BytesMut,
}

impl StreamJoin {
    pub fn new(prompt: PromptLogprobs) -> StreamJoin {
        StreamJoin { prompt, held: BytesMut::new() }
    }

    /// Takes the next bytes and gives back the events that are whole.
    pub fn feed(&mut self, bytes: &[u8]) -> Bytes {
        self.held.extend_from_slice(bytes);
        let mut out = BytesMut::new();
        while let Some(end) = memmem::find(&self.held, b"\n\n") {
            let event = self.held.split_to(end + 2).freeze();
            out.extend_from_slice(&self.event(&event).unwrap_or(event));
        }
        if self.held.len() > EVENT_MAX_BYTES {
            out.extend_from_slice(&self.held.split());
        }
        out.freeze()
    }

    /// What is left at the stream's end.
    pub fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    fn event(&self, event: &Bytes) -> Option<Bytes> {
        let data = Bytes::copy_from_slice(event.strip_prefix(b"data:")?.trim_ascii());
        let index = scalar::member(&data, "index").and_then(scalar::as_u64).unwrap_or(0);
        let joined = self.prompt.join_one(&data, usize::try_from(index).ok()?)?;
        Some([b"data: ", &joined[..], b"\n\n"].concat().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<PromptLogprobs> {
        PromptLogprobs::read(&Bytes::copy_from_slice(text.as_bytes()), &BodyLimits::default())
    }

    const P: &str =
        r#"{"text":"a","meta_info":{"id":"p","input_token_logprobs":[[null,1,null],[-0.10,2,null]]}}"#;

    #[test]
    fn a_plain_answer_gets_the_prompts_list_in_front() {
        let d = Bytes::from_static(
            br#"{"text":"abc","meta_info":{"id":"d","input_token_logprobs":[[-1.50,3,null]],"x":1.0}}"#,
        );
        let got = of(P).unwrap().join_plain(&d);
        let want = r#"{"text":"abc","meta_info":{"id":"d","input_token_logprobs":[[null,1,null],[-0.10,2,null],[-1.50,3,null]],"x":1.0}}"#;
        assert_eq!(got, want.as_bytes());
    }

    #[test]
    fn without_lists_on_both_sides_nothing_changes() {
        assert!(of(r#"{"text":"a","meta_info":{}}"#).is_none() && of("{}").is_none() && of("").is_none());
        let d = Bytes::from_static(br#"{"text":"b","meta_info":{"input_token_logprobs":null}}"#);
        assert_eq!(of(P).unwrap().join_plain(&d), d);
        assert_eq!(of(P).unwrap().join_plain(&Bytes::from_static(b"not json")), &b"not json"[..]);
    }

    #[test]
    fn a_streamed_prefill_and_a_streamed_decode_meet_at_any_split() {
        let prompt = of(&format!("data: {P}\n\ndata: [DONE]\n\n")).unwrap();
        let event = "data: {\"text\":\"x\",\"meta_info\":{\"input_token_logprobs\":[]}}\n\n";
        let text = format!(": hi\n\n{event}{event}data: [DONE]\n\n");
        let list = "[[null,1,null],[-0.10,2,null]]";
        let want = text.replace("[]}", &format!("{list}}}"));
        for cut in 0..text.len() {
            let mut join = StreamJoin::new(prompt.clone());
            let mut got = join.feed(&text.as_bytes()[..cut]).to_vec();
            got.extend_from_slice(&join.feed(&text.as_bytes()[cut..]));
            got.extend_from_slice(&join.rest());
            assert_eq!(String::from_utf8_lossy(&got), want, "cut at {cut}");
        }
    }

    #[test]
    fn a_batch_is_joined_one_by_one() {
        let one = |n: u32| format!(r#"{{"meta_info":{{"input_token_logprobs":[{n}]}}}}"#);
        let prompt = of(&format!("[{},{}]", one(1), one(2))).unwrap();
        let got = prompt.join_plain(&Bytes::from(format!("[{},{}]", one(3), one(4))));
        let want =
            r#"[{"meta_info":{"input_token_logprobs":[1,3]}},{"meta_info":{"input_token_logprobs":[2,4]}}]"#;
        assert_eq!(got, want.as_bytes());
    }
}
