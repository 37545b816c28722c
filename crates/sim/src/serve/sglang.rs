//! SGLang's reading of a request: its members, its refusals, its bootstrap room.
//!
//! Any model name is served and echoed. On a prefill or a decode engine a request needs a room; lists of hosts, ports
//! and rooms go with lists of prompts, one room numbers a list's prompts upwards, and the choices of one prompt share
//! its room (which stalls them, as in the engine).

use http::HeaderMap;
use serde_json::{Map, Value};

use crate::engine::message::PeerAddr;
use crate::engine::sequence::{Ask, Part};
use crate::engine::spec::{Dialect, EngineSpec, Role};
use crate::serve::json::{Members, python};
use crate::serve::refusal::{Problem, Refusal};
use crate::serve::vllm::{Read, messages_prompt, responses_prompt};
use crate::serve::wish::{Api, Choice, Documents, Limits, Wish, chat_prompt, read_prompts};
use crate::text::Prompt;

/// The version that is simulated.
pub const VERSION: &str = "0.5.23";
/// `--disaggregation-bootstrap-port`.
const DEFAULT_PORT: u16 = 8998;

/// A request that can go to the engine.
#[derive(Debug)]
pub struct Parsed {
    pub wish: Wish,
    pub asks: Vec<Ask>,
}

struct Fields {
    model: String,
    max_tokens: Option<i64>,
    n: i64,
    temperature: f64,
    stop: Vec<String>,
    stream: bool,
    include_usage: bool,
    ignore_eos: bool,
    keep_stop: bool,
    logprobs: Option<u32>,
    prompt_logprobs_from: Option<u32>,
    echo: bool,
}

/// Reads a request to one of SGLang's generating endpoints.
pub fn parse(
    api: Api,
    body: &Map<String, Value>,
    head: &HeaderMap,
    spec: &EngineSpec,
) -> Result<Parsed, Refusal> {
    let members = Members { dialect: Dialect::Sglang, body };
    check_rank(&members, head, spec)?;
    let fields = if api == Api::Generate {
        native_fields(&members, spec)?
    } else {
        openai_fields(api, &members, spec)?
    };
    let input = read_input(api, &members)?;
    let rids = Rids::read(body);
    let rooms = Rooms::read(&members)?;
    check(&fields)?;
    for prompt in &input.0 {
        check_length(fields.max_tokens, prompt.len(), spec)?;
    }
    if spec.role != Role::Whole && rooms.first.is_none() {
        let rid = rids.name(0, 0);
        let message = format!(
            "Invalid request: Disaggregated request received without bootstrap room id. req.rid='{rid}'"
        );
        return Err(Refusal::bad(message, None));
    }
    let wish = make_wish(api, fields, input, spec, &rids);
    let asks = make_asks(&wish, &rids, &rooms, spec)?;
    Ok(Parsed { wish, asks })
}

/// The data-parallel rank must be there. The header is stronger than the body.
fn check_rank(members: &Members<'_>, head: &HeaderMap, spec: &EngineSpec) -> Result<(), Refusal> {
    let rank = match head.get("x-data-parallel-rank").map(|rank| rank.to_str().unwrap_or("")) {
        Some(text) => Some(text.trim().parse::<i64>().map_err(|_| {
            let message = format!("Invalid X-Data-Parallel-Rank header: must be an integer, got '{text}'");
            Refusal::bad(message, None)
        })?),
        None => members.int("routed_dp_rank")?.or(members.int("data_parallel_rank")?),
    };
    let size = i64::from(spec.dp_size.max(1));
    match rank {
        Some(rank) if !(0..size).contains(&rank) => {
            Err(Refusal::bad(format!("routed_dp_rank={rank} out of range [0, {size})"), None))
        }
        _ => Ok(()),
    }
}

fn openai_fields(api: Api, members: &Members<'_>, spec: &EngineSpec) -> Result<Fields, Refusal> {
    let max_tokens = match api {
        Api::Chat => members.int("max_completion_tokens")?.or(members.int("max_tokens")?),
        Api::Responses => members.int("max_output_tokens")?,
        Api::Completions => members.int("max_tokens")?.or(Some(16)),
        Api::Rerank => Some(1),
        _ => members.int("max_tokens")?,
    };
    let logprobs = match api {
        Api::Chat => members.flag("logprobs")?.then_some(members.int("top_logprobs")?.unwrap_or(0)),
        _ => members.int("logprobs")?,
    };
    let options = members.object("stream_options")?;
    let include_usage = options.and_then(|options| options.get("include_usage")).and_then(Value::as_bool);
    Ok(Fields {
        model: members.text("model")?.unwrap_or(&spec.model).to_owned(),
        max_tokens,
        n: members.int("n")?.unwrap_or(1),
        temperature: members.float("temperature")?.unwrap_or(1.0),
        stop: members.texts(if api == Api::Messages { "stop_sequences" } else { "stop" })?,
        stream: api != Api::Rerank && members.flag("stream")?,
        include_usage: include_usage.unwrap_or(false),
        ignore_eos: members.flag("ignore_eos")?,
        keep_stop: members.flag("no_stop_trim")?,
        logprobs: logprobs.and_then(|count| u32::try_from(count).ok()),
        prompt_logprobs_from: None,
        echo: api == Api::Completions && members.flag("echo")?,
    })
}

fn native_fields(members: &Members<'_>, spec: &EngineSpec) -> Result<Fields, Refusal> {
    let nothing = Map::new();
    // One object for all prompts; a list of them is not simulated beyond its first.
    let sampling = match members.body.get("sampling_params") {
        Some(Value::Object(sampling)) => sampling,
        Some(Value::Array(list)) => list.first().and_then(Value::as_object).unwrap_or(&nothing),
        _ => &nothing,
    };
    let sampling = Members { dialect: Dialect::Sglang, body: sampling };
    let return_logprob = match members.body.get("return_logprob") {
        Some(Value::Array(flags)) => flags.iter().any(|flag| flag.as_bool().unwrap_or(false)),
        _ => members.flag("return_logprob")?,
    };
    let start = members.int("logprob_start_len").unwrap_or(None).and_then(|start| u32::try_from(start).ok());
    let top = members.int("top_logprobs_num").unwrap_or(None).and_then(|count| u32::try_from(count).ok());
    Ok(Fields {
        model: spec.model.clone(),
        max_tokens: sampling.int("max_new_tokens")?.or(Some(128)),
        n: sampling.int("n")?.unwrap_or(1),
        temperature: sampling.float("temperature")?.unwrap_or(1.0),
        stop: sampling.texts("stop")?,
        stream: members.flag("stream")?,
        include_usage: false,
        ignore_eos: sampling.flag("ignore_eos")?,
        keep_stop: sampling.flag("no_stop_trim")?,
        logprobs: return_logprob.then_some(top.unwrap_or(0)),
        prompt_logprobs_from: start.filter(|_| return_logprob),
        echo: false,
    })
}

fn read_input(api: Api, members: &Members<'_>) -> Result<Read, Refusal> {
    if api == Api::Rerank {
        let (documents, prompts) = Documents::read(members)?;
        return Ok((prompts, true, documents));
    }
    let (prompts, listed) = read_written(api, members)?;
    Ok((prompts, listed, Documents::default()))
}

fn read_written(api: Api, members: &Members<'_>) -> Result<(Vec<std::sync::Arc<Prompt>>, bool), Refusal> {
    match api {
        Api::Completions => read_prompts(members, "prompt"),
        Api::Generate if members.body.get("text").is_some_and(|text| !text.is_null()) => {
            read_prompts(members, "text")
        }
        Api::Generate if members.body.contains_key("input_ids") => read_prompts(members, "input_ids"),
        Api::Generate => {
            Err(Refusal::bad("Either text, input_ids or input_embeds should be provided.".into(), None))
        }
        Api::Chat => Ok((vec![chat_prompt(None, members.needed("messages")?)], false)),
        Api::Messages => Ok((vec![messages_prompt(members)?], false)),
        Api::Responses | Api::Rerank => Ok((vec![responses_prompt(members)?], false)),
    }
}

fn check(fields: &Fields) -> Result<(), Refusal> {
    if fields.temperature < 0.0 {
        let message =
            format!("temperature must be a non-negative finite number, got {:?}.", fields.temperature);
        return Err(Refusal::bad(message, None));
    }
    if fields.n < 1 {
        return Err(Refusal::bad(format!("n must be at least 1, got {}.", fields.n), None));
    }
    if let Some(max) = fields.max_tokens.filter(|max| *max < 0) {
        return Err(Refusal::bad(format!("max_new_tokens must be at least 0, got {max}."), None));
    }
    Ok(())
}

fn check_length(asked: Option<i64>, prompt: u32, spec: &EngineSpec) -> Result<(), Refusal> {
    let limit = spec.max_model_len;
    if prompt >= limit {
        let message = format!(
            "The input ({prompt} tokens) is longer than the model's context length ({limit} tokens)."
        );
        return Err(Refusal::bad(message, None));
    }
    let asked = asked.unwrap_or(0);
    let total = i64::from(prompt).saturating_add(asked);
    if total > i64::from(limit) {
        return Err(Refusal::bad(
            format!(
                "Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total \
                 of {total} tokens: {prompt} tokens from the input messages and {asked} tokens for the completion. \
                 Please reduce the number of tokens in the input messages or the completion to fit within the limit."
            ),
            None,
        ));
    }
    Ok(())
}

fn make_wish(api: Api, fields: Fields, input: Read, spec: &EngineSpec, rids: &Rids) -> Wish {
    let (prompts, listed, documents) = input;
    let n = u32::try_from(fields.n).unwrap_or(1);
    let mut choices = Vec::new();
    for prompt in &prompts {
        let room = spec.max_model_len.saturating_sub(prompt.len()).max(1);
        let max_tokens = fields.max_tokens.map_or(room, |max| u32::try_from(max).unwrap_or(room)).max(1);
        let limits = Limits {
            // A prefill engine makes one token, whatever was asked.
            max_tokens: if spec.role == Role::Prefill { 1 } else { max_tokens },
            natural: spec.natural_tokens.filter(|_| !fields.ignore_eos),
            stop: fields.stop.clone(),
            keep_stop: fields.keep_stop,
        };
        choices.extend((0..n).map(|number| Choice::new(prompt.clone(), number, &limits)));
    }
    Wish {
        api,
        model: fields.model,
        id: rids.name(0, 0),
        prompts,
        listed,
        n,
        stream: fields.stream,
        include_usage: fields.include_usage,
        logprobs: fields.logprobs,
        prompt_logprobs_from: fields.prompt_logprobs_from,
        echo: fields.echo,
        choices,
        documents,
    }
}

fn make_asks(wish: &Wish, rids: &Rids, rooms: &Rooms, spec: &EngineSpec) -> Result<Vec<Ask>, Refusal> {
    let n = usize::try_from(wish.n).unwrap_or(1).max(1);
    let parent = format!("{:016x}", fastrand::u64(..));
    let asks = wish.choices.iter().enumerate().map(|(at, choice)| {
        let (prompt, number) = (at / n, at % n);
        let part = match rooms.room(prompt, &wish.prompts) {
            Some(room) if spec.role != Role::Whole => Part::Room { room, at: rooms.address(prompt) },
            None if spec.role != Role::Whole => {
                let message = format!(
                    "Invalid request: Disaggregated request received without bootstrap room id. req.rid='{}'",
                    rids.name(prompt, number)
                );
                return Err(Refusal::bad(message, None));
            }
            _ => Part::Local,
        };
        Ok(Ask {
            name: rids.name(prompt, number),
            parent: parent.clone(),
            prompt: choice.prompt.clone(),
            tokens: choice.tokens,
            ending: choice.ending.clone(),
            part,
            watched: wish.stream,
            whole_prompt: wish.echo && wish.logprobs.is_some() && spec.role == Role::Whole,
        })
    });
    asks.collect()
}

/// Request ids: given for the request or for each prompt, or made up.
#[derive(Debug)]
pub struct Rids {
    given: Vec<String>,
}

impl Rids {
    fn read(body: &Map<String, Value>) -> Self {
        let given = match body.get("rid") {
            Some(Value::String(rid)) => vec![rid.clone()],
            Some(Value::Array(rids)) => rids.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let given = if given.is_empty() { vec![format!("{:032x}", fastrand::u128(..))] } else { given };
        Self { given }
    }

    /// The id of one choice of one prompt.
    #[must_use]
    pub fn name(&self, prompt: usize, number: usize) -> String {
        let base = match self.given.get(prompt) {
            Some(rid) => rid.clone(),
            None => format!("{}_{prompt}", self.given.first().map_or("", String::as_str)),
        };
        if number == 0 { base } else { format!("{base}_{number}") }
    }
}

/// The rooms of a request.
struct Rooms {
    first: Option<u64>,
    list: Option<Vec<Option<u64>>>,
    hosts: Vec<String>,
    ports: Vec<Option<u16>>,
}

impl Rooms {
    fn read(members: &Members<'_>) -> Result<Self, Refusal> {
        let get = |name: &str| members.body.get(name).unwrap_or(&Value::Null);
        let (first, list) = match get("bootstrap_room") {
            Value::Null => (None, None),
            Value::Array(rooms) => {
                let rooms: Vec<Option<u64>> = rooms.iter().map(room_number).collect();
                (rooms.first().copied().flatten(), Some(rooms))
            }
            room => (Some(room_number(room).ok_or_else(|| bad_room(room))?), None),
        };
        let hosts = match get("bootstrap_host") {
            Value::Array(hosts) => hosts.iter().map(|host| host.as_str().unwrap_or("").to_owned()).collect(),
            Value::String(host) => vec![host.clone()],
            _ => Vec::new(),
        };
        let port = |port: &Value| port.as_u64().and_then(|port| u16::try_from(port).ok());
        let ports = match get("bootstrap_port") {
            Value::Array(ports) => ports.iter().map(port).collect(),
            other => vec![port(other)],
        };
        Ok(Self { first, list, hosts, ports })
    }

    /// The room of a prompt. One room given for several prompts counts upwards.
    fn room(&self, prompt: usize, all: &[std::sync::Arc<Prompt>]) -> Option<u64> {
        match &self.list {
            Some(list) if list.len() == 1 && all.len() == 1 => list.first().copied().flatten(),
            Some(list) => list.get(prompt).copied().flatten(),
            None => self.first.map(|room| room.wrapping_add(prompt as u64)),
        }
    }

    fn address(&self, prompt: usize) -> PeerAddr {
        let host = self.hosts.get(prompt).or(self.hosts.first()).map_or("", String::as_str);
        let port = self.ports.get(prompt).or(self.ports.first()).copied().flatten();
        PeerAddr::new(host, port.unwrap_or(DEFAULT_PORT))
    }
}

/// A room is a number, or one written as text; anything that fits 64 bits is taken.
fn room_number(room: &Value) -> Option<u64> {
    match room {
        Value::Number(number) => number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn bad_room(room: &Value) -> Refusal {
    let input = python(room);
    let problem = Problem {
        kind: "int_parsing_size",
        text: "Unable to parse input string as an integer, exceeded maximum size",
        input: &input,
    };
    Refusal::schema(Dialect::Sglang, "bootstrap_room", &problem)
}
