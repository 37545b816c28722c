//! Log probabilities of the prompt, which only the prefill has, put in front of those the decode reports.
//!
//! SGLang 0.5.23 tells them in two forms. `/generate` with `return_logprob` has lists of its own for them in
//! `meta_info`, in the plain answer and in every event of a stream; the answer's are the prefill's followed by
//! the decode's. A completion with `echo` and `logprobs` has one set of lists for prompt and output, in a stream
//! those of the prompt in a choice's first event; the prefill's end with the one token that it made, which the
//! decode tells again. Only these lists are touched; everything else passes byte for byte. Other answers carry
//! the output's log probabilities alone, which the decode has, and need none of this.

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memmem;

use crate::ask::ANSWERS_MAX;
use crate::body::{BodyLimits, Edit, Envelope, scalar};

/// Longest event that is held to be edited; a longer one passes as it is.
pub const EVENT_MAX_BYTES: usize = 16 << 20;

/// Where an API tells log probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// SGLang's `/generate`: in `meta_info`.
    Native,
    /// `/v1/completions`: in each choice's `logprobs`.
    Completion,
}

impl Form {
    /// The object that has the lists, and the lists.
    fn holder(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Form::Native => {
                ("meta_info", &["input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"])
            }
            Form::Completion => ("logprobs", &["text_offset", "token_logprobs", "tokens", "top_logprobs"]),
        }
    }
}

/// The lists of one prompt, by name; none for a prompt of which nothing was told.
type Lists = Vec<(&'static str, Bytes)>;

/// What the prefill said of the prompts, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptLogprobs {
    form: Form,
    prompts: Vec<Lists>,
    limits: BodyLimits,
}

impl PromptLogprobs {
    /// From a prefill's answer: one object, a list of them for a batch, or the events of a stream. `None` if
    /// there is nothing to put in front.
    pub fn read(form: Form, answer: &Bytes, limits: &BodyLimits) -> Option<PromptLogprobs> {
        let mut told = PromptLogprobs { form, prompts: Vec::new(), limits: *limits };
        match answer.trim_ascii_start().first() {
            Some(b'[') => scalar::elements(answer).enumerate().for_each(|(i, one)| told.hear(one, i)),
            Some(b'{') => told.hear(answer, 0),
            _ => {
                for event in answer.split(|b| *b == b'\n').filter_map(|line| line.strip_prefix(b"data:")) {
                    told.hear(event.trim_ascii(), place(event.trim_ascii()));
                }
            }
        }
        told.prompts.iter().any(|lists| !lists.is_empty()).then_some(told)
    }

    /// Takes the lists out of an answer, or out of an event.
    fn hear(&mut self, object: &[u8], index: usize) {
        match self.form {
            // Each event of a stream has the whole list so far, so the last one counts.
            Form::Native => self.note(object, index),
            Form::Completion => {
                let choices = scalar::member(object, "choices").unwrap_or(b"[]");
                for choice in scalar::elements(choices) {
                    let index = place(choice);
                    // The prompt's are in a choice's first event.
                    if self.prompts.get(index).is_none_or(Vec::is_empty) {
                        self.note(choice, index);
                    }
                }
            }
        }
    }

    fn note(&mut self, object: &[u8], index: usize) {
        let (holder, names) = self.form.holder();
        let Some(holder) = scalar::member(object, holder).filter(|_| index < ANSWERS_MAX as usize) else {
            return;
        };
        let list = |name: &'static str| {
            let list = scalar::member(holder, name).filter(|l| scalar::kind(l) == scalar::Kind::Array)?;
            let list = match self.form {
                Form::Native => inner(list).to_vec(),
                Form::Completion => without_last(list),
            };
            (!list.is_empty()).then(|| (name, Bytes::from(list)))
        };
        let lists: Lists = names.iter().filter_map(|name| list(name)).collect();
        if self.prompts.len() <= index {
            self.prompts.resize(index + 1, Lists::new());
        }
        self.prompts[index] = lists;
    }

    /// The decode's plain answer with the prompt's lists in front.
    pub fn join_plain(&self, answer: &Bytes) -> Bytes {
        if answer.trim_ascii_start().first() != Some(&b'[') {
            return self.join_one(answer, 0).unwrap_or_else(|| answer.clone());
        }
        array(scalar::elements(answer).enumerate().map(|(i, one)| {
            let one = Bytes::copy_from_slice(one);
            self.join_one(&one, i).unwrap_or(one)
        }))
    }

    /// `None`: it stays as it is.
    fn join_one(&self, object: &Bytes, index: usize) -> Option<Bytes> {
        if self.form == Form::Native {
            return self.in_front(object, index);
        }
        let whole = Envelope::parse(object.clone(), &self.limits).ok()?;
        let choices = whole.get("choices").filter(|list| scalar::kind(list) == scalar::Kind::Array)?;
        let mut joined = false;
        let choices = array(scalar::elements(choices).map(|choice| {
            let choice = Bytes::copy_from_slice(choice);
            let front = self.in_front(&choice, place(&choice));
            joined |= front.is_some();
            front.unwrap_or(choice)
        }));
        joined.then(|| whole.splice(&[Edit::set("choices", choices)]).to_bytes())
    }

    /// The object whose holder's lists begin with the prompt's.
    fn in_front(&self, object: &Bytes, index: usize) -> Option<Bytes> {
        let lists = self.prompts.get(index).filter(|lists| !lists.is_empty())?;
        let whole = Envelope::parse(object.clone(), &self.limits).ok()?;
        let (name, _) = self.form.holder();
        let holder = Envelope::parse(whole.get_bytes(name)?, &self.limits).ok()?;
        let edits: Vec<Edit> = lists
            .iter()
            .filter_map(|(name, list)| {
                let theirs = holder.get(name).filter(|l| scalar::kind(l) == scalar::Kind::Array)?;
                Some(Edit::set(*name, concat(list, inner(theirs))))
            })
            .collect();
        let holder = (!edits.is_empty()).then(|| holder.splice(&edits).to_bytes())?;
        Some(whole.splice(&[Edit::set(name, holder)]).to_bytes())
    }
}

/// Which answer of several an object is.
fn place(object: &[u8]) -> usize {
    let index = scalar::member(object, "index").and_then(scalar::as_u64).unwrap_or(0);
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// What stands between an array's brackets.
fn inner(list: &[u8]) -> &[u8] {
    let list = list.trim_ascii();
    list.get(1..list.len().saturating_sub(1)).unwrap_or_default().trim_ascii()
}

/// What stands between an array's brackets, but for the last element.
fn without_last(list: &[u8]) -> Vec<u8> {
    let mut items: Vec<&[u8]> = scalar::elements(list).collect();
    items.pop();
    items.join(&b","[..])
}

/// An array of the elements of two.
fn concat(first: &[u8], second: &[u8]) -> Bytes {
    let comma: &[u8] = if first.is_empty() || second.is_empty() { b"" } else { b"," };
    [b"[", first, comma, second, b"]"].concat().into()
}

fn array(items: impl Iterator<Item = Bytes>) -> Bytes {
    let mut out = BytesMut::from(&b"["[..]);
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        out.extend_from_slice(&item);
    }
    out.put_u8(b']');
    out.freeze()
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

    fn event(&mut self, event: &Bytes) -> Option<Bytes> {
        if self.prompt.prompts.iter().all(Vec::is_empty) {
            return None;
        }
        let data = Bytes::copy_from_slice(event.strip_prefix(b"data:")?.trim_ascii());
        let joined = self.prompt.join_one(&data, place(&data))?;
        if self.prompt.form == Form::Completion {
            // A choice's later events tell what is new alone.
            for choice in scalar::elements(scalar::member(&data, "choices")?) {
                let told = scalar::member(choice, "logprobs").map(scalar::kind) == Some(scalar::Kind::Object);
                if let Some(lists) = self.prompt.prompts.get_mut(place(choice)).filter(|_| told) {
                    lists.clear();
                }
            }
        }
        Some([b"data: ", &joined[..], b"\n\n"].concat().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: Form, text: &str) -> Option<PromptLogprobs> {
        PromptLogprobs::read(form, &Bytes::copy_from_slice(text.as_bytes()), &BodyLimits::default())
    }

    fn of(text: &str) -> Option<PromptLogprobs> {
        read(Form::Native, text)
    }

    /// Feeds a stream in two pieces, cut everywhere.
    fn at_any_cut(prompt: &PromptLogprobs, text: &str, want: &str) {
        for cut in 0..text.len() {
            let mut join = StreamJoin::new(prompt.clone());
            let mut got = join.feed(&text.as_bytes()[..cut]).to_vec();
            got.extend_from_slice(&join.feed(&text.as_bytes()[cut..]));
            got.extend_from_slice(&join.rest());
            assert_eq!(String::from_utf8_lossy(&got), want, "cut at {cut}");
        }
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

    #[test]
    fn the_alternatives_of_the_prompts_tokens_come_along() {
        let p = r#"{"meta_info":{"input_token_logprobs":[[null,1,"a"]],"input_top_logprobs":[null],"input_token_ids_logprobs":[null]}}"#;
        let d = r#"{"meta_info":{"input_token_logprobs":[],"input_top_logprobs":[],"output_top_logprobs":[[[-1,3,"b"]]]}}"#;
        let want = r#"{"meta_info":{"input_token_logprobs":[[null,1,"a"]],"input_top_logprobs":[null],"output_top_logprobs":[[[-1,3,"b"]]]}}"#;
        assert_eq!(of(p).unwrap().join_plain(&Bytes::from(d)), want.as_bytes());
    }

    /// A completion's `logprobs` of these tokens.
    fn told(tokens: &[u32]) -> String {
        let list = |one: &dyn Fn(u32) -> String| {
            tokens.iter().map(|t| one(*t)).collect::<Vec<_>>().join(",").replace("-0.0", "null")
        };
        format!(
            r#"{{"text_offset":[{}],"token_logprobs":[{}],"tokens":[{}],"top_logprobs":[{}]}}"#,
            list(&|_| "-1".into()),
            list(&|t| format!("-{t}.0")),
            list(&|t| format!("\"t{t}\"")),
            list(&|t| if t == 0 { "null".into() } else { format!("{{\"t{t}\":-{t}.0}}") }),
        )
    }

    fn choice(index: u32, tokens: &[u32]) -> String {
        format!(r#"{{"index":{index},"text":"x","logprobs":{},"finish_reason":null}}"#, told(tokens))
    }

    fn completion(choices: &[String]) -> String {
        format!(r#"{{"id":"c","choices":[{}],"usage":{{"prompt_tokens":2}}}}"#, choices.join(","))
    }

    #[test]
    fn a_completion_that_echoes_begins_with_the_prompts() {
        let p = read(Form::Completion, &completion(&[choice(0, &[0, 1, 7])])).unwrap();
        let got = p.join_plain(&Bytes::from(completion(&[choice(0, &[7, 8])])));
        assert_eq!(got, completion(&[choice(0, &[0, 1, 7, 8])]).as_bytes());
    }

    #[test]
    fn each_prompt_of_a_list_gets_its_own() {
        let p = completion(&[choice(1, &[0, 2, 9]), choice(0, &[0, 7])]);
        let p = read(Form::Completion, &p).unwrap();
        let got = p.join_plain(&Bytes::from(completion(&[choice(0, &[7, 8]), choice(1, &[9])])));
        assert_eq!(got, completion(&[choice(0, &[0, 7, 8]), choice(1, &[0, 2, 9])]).as_bytes());
    }

    #[test]
    fn a_completions_stream_tells_the_prompt_once_for_each_choice() {
        let event = |c: String| format!("data: {}\n\n", completion(&[c]));
        let done = "data: [DONE]\n\n";
        let p = [event(choice(0, &[0, 1, 7])), event(choice(1, &[0, 9])), done.into()].concat();
        let p = read(Form::Completion, &p).unwrap();
        let d = [choice(0, &[7]), choice(0, &[8]), choice(1, &[9]), choice(1, &[5]), choice(0, &[])];
        let want =
            [choice(0, &[0, 1, 7]), choice(0, &[8]), choice(1, &[0, 9]), choice(1, &[5]), choice(0, &[])];
        let text = |list: Vec<String>| [list.into_iter().map(event).collect(), done.to_owned()].concat();
        at_any_cut(&p, &text(d.into()), &text(want.into()));
    }

    #[test]
    fn a_completion_without_the_prompts_stays_as_it_is() {
        // Not echoed: the prefill tells its own token alone.
        assert!(read(Form::Completion, &completion(&[choice(0, &[7])])).is_none());
        assert!(read(Form::Completion, r#"{"choices":[{"index":0,"logprobs":null}]}"#).is_none());
        assert!(read(Form::Completion, "data: [DONE]\n\n").is_none());
        let p = read(Form::Completion, &completion(&[choice(0, &[0, 1, 7])])).unwrap();
        for answer in ["no json", r#"{"error":{"code":1}}"#, r#"{"choices":[{"index":0,"logprobs":null}]}"#] {
            assert_eq!(p.join_plain(&Bytes::from(answer)), answer.as_bytes());
        }
        let far = format!(r#"{{"choices":[{{"index":{},"logprobs":{}}}]}}"#, u64::MAX, told(&[0, 1, 7]));
        assert!(read(Form::Completion, &far).is_none());
    }
}
