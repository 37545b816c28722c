//! vLLM's reading of a request: its members, its refusals, its hand-off parameters.
//!
//! The order of the checks is the server's: the schema, then the validators, the model's name, then the length. It
//! matters for a hand-off: a request that fails the schema never shows its parameters to the connector, so the
//! prefill side keeps the blocks until the lease ends; any later refusal tells the prefill side at once.

use http::HeaderMap;
use serde_json::{Map, Value};

use crate::engine::sequence::{Ask, Part, RemoteKv};
use crate::engine::spec::{Connector, Dialect, EngineSpec};
use crate::serve::connector::{self, is_set};
use crate::serve::json::Members;
use crate::serve::refusal::{Problem, Refusal};
use crate::serve::server::Seat;
use crate::serve::wish::{Api, Choice, Documents, Limits, Wish, chat_prompt, read_prompts};
use crate::text::Prompt;

/// The version that is simulated.
pub const VERSION: &str = "0.32.0";

/// A request that can go to the engine.
#[derive(Debug)]
pub struct Parsed {
    pub wish: Wish,
    pub asks: Vec<Ask>,
    /// The answer names the prompt's token ids.
    pub return_token_ids: bool,
    /// TensorRT-LLM: a context server stops before the answer does.
    pub unfinished: bool,
}

/// A request that cannot. `remote` is the hand-off that the prefill side should be told to free.
#[derive(Debug)]
pub struct Refused {
    pub refusal: Refusal,
    pub remote: Option<RemoteKv>,
}

impl From<Refusal> for Box<Refused> {
    fn from(refusal: Refusal) -> Self {
        Box::new(Refused { refusal, remote: None })
    }
}

/// The members that matter, with their schema checked.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) model: Option<String>,
    max_tokens: Option<i64>,
    min_tokens: i64,
    pub(super) n: i64,
    temperature: f64,
    stop: Vec<String>,
    stream: bool,
    stream_options: Option<Map<String, Value>>,
    ignore_eos: bool,
    keep_stop: bool,
    logprobs: Option<u32>,
    echo: bool,
    return_token_ids: bool,
    kv: Option<Map<String, Value>>,
}

/// Reads a request to one of vLLM's generating endpoints.
pub fn parse(
    api: Api,
    body: &Map<String, Value>,
    head: &HeaderMap,
    seat: &Seat,
) -> Result<Parsed, Box<Refused>> {
    let spec = &seat.spec;
    let members = Members { dialect: Dialect::Vllm, body };
    let fields = read_fields(api, &members)?;
    check_thinking(api, &fields, &members)?;
    let (mut prompts, listed, documents) = read_input(api, &members)?;
    let remote = fields.kv.as_ref().and_then(|kv| connector::unwanted(kv, spec));
    let refuse = |refusal: Refusal| Box::new(Refused { refusal, remote: remote.clone() });
    check(&fields, spec).map_err(refuse)?;
    let rank = rank(head, spec).map_err(refuse)?;
    if let Some(ids) = fields.kv.as_ref().and_then(forwarded_ids) {
        prompts = vec![Prompt::from_tokens(ids)];
    }
    for prompt in &prompts {
        check_length(api, &fields, prompt.len(), spec).map_err(refuse)?;
    }
    let id = request_id(api, &members, head);
    let wish = make_wish(api, fields, Input { prompts, listed, documents, id }, spec);
    let (wish, kv, return_token_ids) = wish;
    let told = connector::Told { rank, id: &wish.id, side: seat.side() };
    let part = connector::part(kv.as_ref(), spec, told);
    let asks = make_asks(&wish, &part);
    Ok(Parsed { wish, asks, return_token_ids, unfinished: false })
}

pub(super) fn read_fields(api: Api, members: &Members<'_>) -> Result<Fields, Refusal> {
    if api == Api::Rerank {
        let model = members.text("model")?.map(str::to_owned);
        return Ok(Fields { model, max_tokens: Some(1), n: 1, ..Fields::default() });
    }
    let max_tokens = match api {
        Api::Chat => members.int("max_completion_tokens")?.or(members.int("max_tokens")?),
        Api::Responses => members.int("max_output_tokens")?,
        _ => members.int("max_tokens")?,
    };
    let logprobs = match api {
        Api::Chat => members.flag("logprobs")?.then_some(members.int("top_logprobs")?.unwrap_or(0)),
        _ => members.int("logprobs")?,
    };
    Ok(Fields {
        model: members.text("model")?.map(str::to_owned),
        max_tokens,
        min_tokens: members.int("min_tokens")?.unwrap_or(0),
        n: members.int("n")?.unwrap_or(1),
        temperature: members.float("temperature")?.unwrap_or(1.0),
        stop: members.texts(if api == Api::Messages { "stop_sequences" } else { "stop" })?,
        stream: members.flag("stream")?,
        stream_options: members.object("stream_options")?.cloned(),
        ignore_eos: members.flag("ignore_eos")?,
        keep_stop: members.flag("include_stop_str_in_output")?,
        logprobs: logprobs.and_then(|count| u32::try_from(count).ok()),
        echo: api == Api::Completions && members.flag("echo")?,
        return_token_ids: members.flag("return_token_ids")?,
        kv: members.object("kv_transfer_params")?.cloned(),
    })
}

/// Prompts, whether they came as a list, and what a rerank request ranks.
pub type Read = (Vec<std::sync::Arc<Prompt>>, bool, Documents);

/// A thinking budget fits below the cap, except on a prefill leg, which has no use for one.
fn check_thinking(api: Api, fields: &Fields, members: &Members<'_>) -> Result<(), Refusal> {
    let Some(thinking) = members.object("thinking")?.filter(|_| api == Api::Messages) else { return Ok(()) };
    let budget = thinking.get("budget_tokens").and_then(Value::as_i64);
    let tagged = fields.kv.as_ref().is_some_and(|kv| is_set(kv, "do_remote_decode"));
    if !tagged && budget.zip(fields.max_tokens).is_some_and(|(budget, most)| budget >= most) {
        let input = "{...}";
        let text = "Value error, thinking.budget_tokens must be less than max_tokens";
        return Err(Refusal::schema(Dialect::Vllm, "", &Problem { kind: "value_error", text, input }));
    }
    Ok(())
}

pub(super) fn read_input(api: Api, members: &Members<'_>) -> Result<Read, Refusal> {
    let prompt = match api {
        Api::Completions | Api::Generate => {
            let (prompts, listed) = read_prompts(members, "prompt")?;
            return Ok((prompts, listed, Documents::default()));
        }
        Api::Rerank => {
            let (documents, prompts) = Documents::read(members)?;
            return Ok((prompts, true, documents));
        }
        Api::Chat => chat_prompt(None, members.needed("messages")?),
        Api::Messages => messages_prompt(members)?,
        Api::Responses => responses_prompt(members)?,
    };
    Ok((vec![prompt], false, Documents::default()))
}

/// The prompt of a messages request.
pub fn messages_prompt(members: &Members<'_>) -> Result<std::sync::Arc<Prompt>, Refusal> {
    Ok(chat_prompt(members.body.get("system"), members.needed("messages")?))
}

/// `input` of a responses request is text, or messages.
pub fn responses_prompt(members: &Members<'_>) -> Result<std::sync::Arc<Prompt>, Refusal> {
    let input = members.needed("input")?;
    let messages = match input {
        Value::String(text) => serde_json::json!([{"role": "user", "content": text}]),
        other => other.clone(),
    };
    Ok(chat_prompt(members.body.get("instructions").filter(|text| text.is_string()), &messages))
}

/// The data-parallel rank that the header asks for, or any. What is no number is ignored.
fn rank(head: &HeaderMap, spec: &EngineSpec) -> Result<u32, Refusal> {
    if spec.connector != Connector::Mooncake {
        return Ok(0);
    }
    let size = spec.dp_size.max(1);
    let asked = head.get("x-data-parallel-rank").and_then(|rank| rank.to_str().ok()?.trim().parse().ok());
    match asked {
        Some(rank) if rank >= size => {
            let message = format!("data_parallel_rank {rank} is out of range [0, {size}).");
            Err(Refusal::bad(message, None))
        }
        Some(rank) => Ok(rank),
        None => Ok(fastrand::u32(..size)),
    }
}

/// Token ids of the prefill leg, handed on so that the prompt is tokenized once.
fn forwarded_ids(kv: &Map<String, Value>) -> Option<Vec<u32>> {
    let ids: Option<Vec<u32>> =
        kv.get("prompt_token_ids")?.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
    ids.filter(|ids| !ids.is_empty())
}

/// What is said of a model that the engine does not serve.
pub(super) fn unknown_model(spec: &EngineSpec, model: Option<&str>) -> Option<Refusal> {
    let model = model.filter(|model| *model != spec.model)?;
    let message = format!("The model `{model}` does not exist. Valid aliases: {}.", spec.model);
    Some(Refusal { status: 404, message, kind: "NotFoundError", param: Some("model".into()), schema: false })
}

pub(super) fn check(fields: &Fields, spec: &EngineSpec) -> Result<(), Refusal> {
    if fields.stream_options.is_some() && !fields.stream {
        let text = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
        return Err(Refusal::bad(text.into(), Some("stream_options")));
    }
    if let Some(refusal) = unknown_model(spec, fields.model.as_deref()) {
        return Err(refusal);
    }
    if fields.temperature < 0.0 {
        let t = fields.temperature;
        let message =
            format!("temperature must be non-negative, got {t:?}. (parameter=temperature, value={t:?})");
        return Err(Refusal::bad(message, Some("temperature")));
    }
    if fields.n < 1 {
        return Err(Refusal::bad(format!("n must be at least 1, got {}.", fields.n), None));
    }
    if let Some(max) = fields.max_tokens.filter(|max| *max < 1) {
        let message =
            format!("max_tokens must be at least 1, got {max}. (parameter=max_tokens, value={max})");
        return Err(Refusal::bad(message, Some("max_tokens")));
    }
    Ok(())
}

pub(super) fn check_length(api: Api, fields: &Fields, prompt: u32, spec: &EngineSpec) -> Result<(), Refusal> {
    let limit = spec.max_model_len;
    if prompt > limit || (prompt == limit && fields.max_tokens.is_none()) {
        let least = limit + 1;
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your prompt contains at least {least} input \
             tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input \
             prompt. (parameter=input_tokens, value={least})"
        );
        return Err(Refusal::bad(message, Some("input_tokens")));
    }
    if let Some(max) = fields.max_tokens.filter(|max| *max > i64::from(limit)) {
        let message = format!(
            "max_tokens={max} cannot be greater than max_model_len={limit}. Please request fewer output tokens. \
             (parameter=max_tokens, value={max})"
        );
        return Err(Refusal::bad(message, Some("max_tokens")));
    }
    let max = max_tokens(api, fields.max_tokens, prompt, spec);
    if prompt.saturating_add(max) > limit {
        let total = prompt.saturating_add(max);
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, you requested {max} output tokens and your \
             prompt contains at least {prompt} input tokens, for a total of at least {total} tokens. Please reduce the \
             length of the input prompt or the number of requested output tokens. (parameter=input_tokens, \
             value={prompt})"
        );
        return Err(Refusal::bad(message, Some("input_tokens")));
    }
    if fields.min_tokens > i64::from(max) {
        let min = fields.min_tokens;
        let message = format!("min_tokens must be less than or equal to max_tokens={max}, got {min}.");
        return Err(Refusal::bad(message, None));
    }
    Ok(())
}

/// What the client asked for, or the endpoint's default: 16 for completions, all that fits otherwise.
fn max_tokens(api: Api, asked: Option<i64>, prompt: u32, spec: &EngineSpec) -> u32 {
    let room = spec.max_model_len.saturating_sub(prompt).max(1);
    match asked {
        Some(max) => u32::try_from(max).unwrap_or(u32::MAX),
        None if api == Api::Completions => room.min(16),
        None => room,
    }
}

pub(super) fn request_id(api: Api, members: &Members<'_>, head: &HeaderMap) -> String {
    let given = head.get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let given = given.or_else(|| members.body.get("request_id").and_then(Value::as_str).map(str::to_owned));
    let id = given.unwrap_or_else(|| format!("{:016x}", fastrand::u64(..)));
    let prefix = match api {
        Api::Completions | Api::Generate => "cmpl-",
        Api::Chat | Api::Messages => "chatcmpl-",
        Api::Responses => "resp_",
        Api::Rerank => "rerank-",
    };
    format!("{prefix}{id}")
}

/// What a request reads, and its name.
pub(super) struct Input {
    pub prompts: Vec<std::sync::Arc<Prompt>>,
    pub listed: bool,
    pub documents: Documents,
    pub id: String,
}

type Kv = Option<Map<String, Value>>;

pub(super) fn make_wish(api: Api, fields: Fields, input: Input, spec: &EngineSpec) -> (Wish, Kv, bool) {
    let Input { prompts, listed, documents, id } = input;
    let n = u32::try_from(fields.n).unwrap_or(1);
    let mut choices = Vec::new();
    for prompt in &prompts {
        let limits = Limits {
            max_tokens: max_tokens(api, fields.max_tokens, prompt.len(), spec),
            natural: spec.natural_tokens.filter(|_| !fields.ignore_eos),
            stop: fields.stop.clone(),
            keep_stop: fields.keep_stop,
        };
        choices.extend((0..n).map(|number| Choice::new(prompt.clone(), number, &limits)));
    }
    let options = fields.stream_options.as_ref();
    let wish = Wish {
        api,
        model: fields.model.unwrap_or_else(|| spec.model.clone()),
        id,
        prompts,
        listed,
        n,
        stream: fields.stream,
        include_usage: options.is_some_and(|options| is_set(options, "include_usage")),
        logprobs: fields.logprobs,
        prompt_logprobs_from: None,
        echo: fields.echo,
        choices,
        documents,
    };
    (wish, fields.kv, fields.return_token_ids)
}

pub(super) fn make_asks(wish: &Wish, part: &Part) -> Vec<Ask> {
    let n = usize::try_from(wish.n).unwrap_or(1).max(1);
    // Siblings share a hand-off; two requests never have one parent, even with one id.
    let parent = format!("{:016x}", fastrand::u64(..));
    let asks = wish.choices.iter().enumerate().map(|(at, choice)| {
        let tail = format!("{:08x}", fastrand::u32(..));
        let own = match wish.api {
            Api::Completions | Api::Generate | Api::Rerank => format!("{}-{}-{tail}", wish.id, at / n),
            Api::Responses => format!("{}_0-{tail}", wish.id),
            Api::Chat | Api::Messages => format!("{}-{tail}", wish.id),
        };
        let name = if n > 1 { format!("{}_{own}", at % n) } else { own };
        let part = match part {
            Part::Hold(unnamed) if unnamed.is_empty() => Part::Hold(name.clone()),
            part => part.clone(),
        };
        Ask {
            name,
            part,
            parent: parent.clone(),
            prompt: choice.prompt.clone(),
            tokens: choice.tokens,
            ending: choice.ending.clone(),
            watched: wish.stream,
            whole_prompt: wish.echo && wish.logprobs.is_some(),
        }
    });
    asks.collect()
}
