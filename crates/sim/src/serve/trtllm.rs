//! TensorRT-LLM's reading of a request: its `disaggregated_params`.
//!
//! A context server computes the prompt and one token, and keeps the KV under the id that the request brought; a
//! generation server fetches it from where the parameters say and goes on after that token. In `context_first` the
//! parameters are the context server's own answer, with an opaque state that names the engine; in `generation_first`
//! they are known beforehand, and the context server waits until the KV has been asked for.
//!
//! Requests with no parameters are served whole by either.

use http::HeaderMap;
use serde_json::{Map, Value};

use crate::engine::message::PeerAddr;
use crate::engine::sequence::{Ending, Give, Handoff, Part, Take};
use crate::engine::spec::{Dialect, Role};
use crate::serve::json::{Members, python};
use crate::serve::refusal::{Problem, Refusal};
use crate::serve::server::Seat;
use crate::serve::vllm::{self, Parsed};
use crate::serve::wish::{Api, Choice};
use crate::text::{self, Prompt, PromptId};

/// The version that is simulated.
pub const VERSION: &str = "1.3.0rc8";
/// Context servers' own ids start here, beyond what a double holds exactly.
const FIRST_ID: u64 = 1 << 62;

/// Reads a request to one of the generating endpoints.
pub fn parse(api: Api, body: &Map<String, Value>, head: &HeaderMap, seat: &Seat) -> Result<Parsed, Refusal> {
    let (spec, members) = (&seat.spec, Members { dialect: Dialect::Trtllm, body });
    let mut fields = vllm::read_fields(api, &members)?;
    fields.model = None;
    let params = members.object("disaggregated_params")?.filter(|_| spec.role != Role::Whole);
    let (mut prompts, listed, documents) = vllm::read_input(api, &members)?;
    vllm::check(&fields, spec)?;
    if let Some(ids) = body.get("prompt_token_ids").and_then(token_ids).filter(|_| api == Api::Chat) {
        prompts = vec![Prompt::from_tokens(ids)];
    }
    for prompt in &prompts {
        vllm::check_length(api, &fields, prompt.len(), spec)?;
    }
    if params.is_some() && (fields.n > 1 || prompts.len() > 1) {
        return Err(Refusal::bad("Disaggregated serving takes one prompt and one choice.".into(), None));
    }
    let id = vllm::request_id(api, &members, head);
    let (mut wish, _, _) = vllm::make_wish(api, fields, vllm::Input { prompts, listed, documents, id }, spec);
    wish.model = members.text("model")?.unwrap_or(&spec.model).to_owned();
    let Some((params, choice)) = params.zip(wish.choices.first_mut()) else {
        let asks = vllm::make_asks(&wish, &Part::Local);
        return Ok(Parsed { wish, asks, return_token_ids: false, unfinished: false });
    };
    let (part, unfinished) = part(params, choice)?;
    let asks = vllm::make_asks(&wish, &part);
    Ok(Parsed { wish, asks, return_token_ids: false, unfinished })
}

fn token_ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

/// An id of 63 bits.
fn id(params: &Map<String, Value>, key: &str) -> Result<Option<u64>, Refusal> {
    match params.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|id| *id < 1 << 63) {
            Some(id) => Ok(Some(id)),
            None => Err(wrong(key, "Input should be a valid integer", value)),
        },
    }
}

fn wrong(key: &str, text: &str, value: &Value) -> Refusal {
    let input = python(value);
    let problem = Problem { kind: "value_error", text, input: &input };
    Refusal::schema(Dialect::Trtllm, &format!("disaggregated_params.{key}"), &problem)
}

fn missing(key: &str) -> Refusal {
    Refusal::bad(format!("{key} is missing in disaggregated_params"), None)
}

/// What a request is asked to do, and whether its answer ends before it is finished.
fn part(params: &Map<String, Value>, choice: &mut Choice) -> Result<(Part, bool), Refusal> {
    let request = id(params, "disagg_request_id")?;
    let at_once = params.get("schedule_style").and_then(Value::as_u64) == Some(1);
    match params.get("request_type").and_then(Value::as_str) {
        Some("context_only") => {
            let transfer = request.ok_or_else(|| missing("disagg_request_id"))?.to_string();
            let unfinished = choice.tokens > 1;
            if unfinished {
                (choice.tokens, choice.ending) = (1, Ending::Length);
            }
            Ok((Part::Give(Give { transfer, rank: 0, waits: at_once, to: None }), unfinished))
        }
        Some("generation_only") => Ok((generation(params, request, at_once, choice.prompt.id)?, false)),
        Some("context_and_generation") => Ok((Part::Local, false)),
        _ => Err(wrong("request_type", "Input should be a known type", &Value::Null)),
    }
}

fn generation(
    params: &Map<String, Value>,
    request: Option<u64>,
    at_once: bool,
    prompt: PromptId,
) -> Result<Part, Refusal> {
    let context = id(params, "ctx_request_id")?.ok_or_else(|| missing("ctx_request_id"))?;
    let request = request.ok_or_else(|| missing("disagg_request_id"))?;
    let take = |engine, at| {
        let transfer = request.to_string();
        Part::Take(Take { transfer, engine, at: Some(at), from: None, first: true })
    };
    if at_once {
        if context != request {
            return Err(Refusal::bad("ctx_request_id is not disagg_request_id".into(), None));
        }
        let at = params.get("ctx_info_endpoint").and_then(Value::as_str).and_then(endpoint);
        return Ok(take(None, at.ok_or_else(|| missing("ctx_info_endpoint"))?));
    }
    let first =
        params.get("first_gen_tokens").and_then(token_ids).ok_or_else(|| missing("first_gen_tokens"))?;
    if first != [text::output_token(prompt, 0, 0)] {
        return Err(Refusal::bad("first_gen_tokens are not this prompt's".into(), None));
    }
    let state = params.get("encoded_opaque_state").and_then(Value::as_str);
    let Some(state) = state.and_then(State::read) else {
        return Ok(Part::Fatal("CppExecutorError: cannot read the opaque state"));
    };
    if state.context != context || context != context_id(request) {
        return Ok(Part::Fatal("CppExecutorError: the ids do not belong together"));
    }
    Ok(take(Some(state.engine), state.at))
}

/// `tcp://host:port`.
fn endpoint(text: &str) -> Option<PeerAddr> {
    let (host, port) = text.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some(PeerAddr::new(host, port.parse().ok()?))
}

/// The context server's own id of a request.
fn context_id(request: u64) -> u64 {
    FIRST_ID | (text::mix(request, 63) & (FIRST_ID - 1)) | 1
}

/// What a context server tells a generation server about itself. It looks like base64, and nobody between the two can
/// read it.
struct State {
    engine: String,
    at: PeerAddr,
    context: u64,
}

impl State {
    fn write(&self) -> String {
        let plain = format!("{} {} {} {}", self.engine, self.at.host, self.at.port, self.context);
        // Four hexadecimal digits at a time are base64 too.
        let padded = if plain.len().is_multiple_of(2) { plain } else { plain + " " };
        padded.bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let digits = text.as_bytes().chunks_exact(2);
        let bytes: Option<Vec<u8>> =
            digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        let plain = String::from_utf8(bytes?).ok()?;
        let mut words = plain.split_whitespace();
        let engine = words.next()?.to_owned();
        let at = PeerAddr::new(words.next()?, words.next()?.parse().ok()?);
        Some(Self { engine, at, context: words.next()?.parse().ok()? })
    }
}

/// The parameters of a context server's answer.
#[must_use]
pub fn params(handoff: &Handoff, choice: &Choice, at: &PeerAddr) -> String {
    let request: u64 = handoff.request.parse().unwrap_or(0);
    let context = context_id(request);
    let state = State { engine: handoff.engine.clone(), at: at.clone(), context }.write();
    let first = text::output_token(choice.prompt.id, 0, 0);
    format!(
        r#"{{"request_type":"context_only","first_gen_tokens":[{first}],"ctx_request_id":{context},"encoded_opaque_state":"{state}","draft_tokens":null,"disagg_request_id":{request},"ctx_dp_rank":0,"ctx_info_endpoint":"tcp://{}:{}"}}"#,
        at.host, at.port
    )
}
