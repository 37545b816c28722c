//! What the gateway needs to know of a request, read once from its body.
//!
//! Knows the shapes of the APIs, not of the engines. Members that the gateway owns (hand-off fields,
//! ranks, request ids) are found here and are taken off every leg: one crafted value of them kills a real
//! decode engine (seen on vLLM 0.32). Members that a hand-off rewrites are checked for their type here,
//! because the rewritten leg would hide a mistake that the other leg then trips over with the KV already
//! handed over (seen on vLLM 0.32).

use crate::body::{Edit, Envelope, scalar};
use crate::fault::{Fault, Shape};
use crate::prompt::Prompt;
use crate::wishes::Wishes;
use xxhash_rust::xxh3::xxh3_64;

/// The APIs whose requests go to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    Chat,
    Completions,
    Generate,
    Messages,
    Responses,
    /// Anthropic's count of a prompt's tokens.
    CountTokens,
    Rerank,
}

impl Api {
    pub const ALL: [Api; 7] = [
        Api::Chat,
        Api::Completions,
        Api::Generate,
        Api::Messages,
        Api::Responses,
        Api::CountTokens,
        Api::Rerank,
    ];

    /// Another path of the same API (SMG 1.13). Engines are asked by [`Api::path`], which all of them have.
    const RERANK_TOO: &str = "/rerank";

    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Generate => "/generate",
            Api::Messages => "/v1/messages",
            Api::Responses => "/v1/responses",
            Api::CountTokens => "/v1/messages/count_tokens",
            Api::Rerank => "/v1/rerank",
        }
    }

    pub fn of_path(path: &str) -> Option<Api> {
        let path = if path == Api::RERANK_TOO { Api::Rerank.path() } else { path };
        Api::ALL.into_iter().find(|a| a.path() == path)
    }

    pub fn shape(self) -> Shape {
        match self {
            Api::Messages | Api::CountTokens => Shape::Anthropic,
            Api::Responses => Shape::Responses,
            _ => Shape::OpenAi,
        }
    }

    /// Asks for output tokens. A request that does not has no output cap, is never cut down to one token,
    /// and its body is nobody's business but the engine's.
    pub fn generates(self) -> bool {
        !matches!(self, Api::CountTokens | Api::Rerank)
    }

    /// What a fresh request id begins with (SMG 1.13).
    pub fn id_prefix(self) -> &'static str {
        match self {
            Api::Chat => "chatcmpl-",
            Api::Completions => "cmpl-",
            Api::Generate => "gnt-",
            Api::Messages | Api::CountTokens => "msg_",
            Api::Responses => "resp-",
            Api::Rerank => "rerank-",
        }
    }
}

/// The member with which a request caps its output, and so with which a one-token leg is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
}

impl Cap {
    pub fn key(self) -> &'static str {
        match self {
            Cap::MaxTokens => "max_tokens",
            Cap::MaxCompletionTokens => "max_completion_tokens",
            Cap::MaxOutputTokens => "max_output_tokens",
        }
    }
}

/// What routing and the hand-off need to know of a request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub api: Api,
    pub model: Option<String>,
    pub stream: bool,
    /// Samples asked for; 1 when the request does not say, and in APIs where no engine reads it.
    pub n: u32,
    /// The request lists its prompts: how many. A list of one is still a list to the engine.
    pub batch: Option<u32>,
    /// Several answers are picked from or searched through (`best_of`, beam search): no single hand-off fits.
    pub searches: bool,
    pub logprobs: bool,
    /// The prompt's own log probabilities are asked for; only the worker that computes the prompt has them.
    pub echoes: bool,
    /// The prompt is cut to what the output cap leaves room for: a leg with another cap has another prompt.
    pub cuts: bool,
    /// A request id of the client's holds what MoRI-IO's connector reads as the address of a peer (vLLM 0.33).
    pub names_peers: bool,
    pub cap: Cap,
    pub max_tokens: Option<u64>,
    pub min_tokens: Option<u64>,
    /// Members of the body that a one-token leg must lose or change, if they are there.
    pub has: Has,
    /// Takes the gateway's own members off a client's body.
    pub strip: Vec<Edit>,
    /// Length of the body in bytes.
    pub size: usize,
    pub prompt: Prompt,
    pub hints: Hints,
    /// What the client asks of routing in AIBrix's headers. `None`: nothing.
    pub wishes: Option<Box<Wishes>>,
    /// Tokens of the prompt, where somebody counted them.
    pub prompt_tokens: Option<u64>,
}

/// What the client says about where its request should go. Keys are kept as hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The routing key: of a header, else the body's `rid`.
    pub key: Option<u64>,
    /// `x-smg-target-worker`: the place of a worker among the candidates; `Some(None)` for what is no number.
    pub target: Option<Option<usize>>,
    /// What stands for a key where there is none: the client's address, else its cookie (SMG 1.13).
    pub implied: Option<u64>,
}

/// Longest routing key taken, in bytes (SMG 1.13). A longer one is ignored.
pub const ROUTING_KEY_MAX: usize = 128;

/// Most tokens, and longest list of them in bytes, that a client may give for policies to look at (SMG 1.13).
pub const ROUTING_TOKENS_MAX: usize = 512;
pub const ROUTING_TOKENS_MAX_BYTES: usize = 4096;

impl Hints {
    /// A routing key. Keys that differ only in the number of a turn or a retry (`_t3`, `_r1`) are one session
    /// (SMG 1.13). False if it is none.
    pub fn hear_key(&mut self, key: &[u8]) -> bool {
        let fits = (1..=ROUTING_KEY_MAX).contains(&key.len()) && std::str::from_utf8(key).is_ok();
        if fits {
            self.key = Some(xxh3_64(unnumbered(unnumbered(key, b"_r"), b"_t")));
        }
        fits
    }

    pub fn hear_target(&mut self, index: &[u8]) {
        self.target = Some(std::str::from_utf8(index).ok().and_then(|index| index.trim().parse().ok()));
    }

    pub fn imply(&mut self, text: &[u8]) {
        self.implied = Some(xxh3_64(text));
    }
}

/// Without a number at its end that this mark introduces, unless that is all there is.
fn unnumbered<'a>(key: &'a [u8], mark: &[u8]) -> &'a [u8] {
    let digits = key.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (stem, number) = key.split_at(key.len() - digits);
    match stem.strip_suffix(mark) {
        Some(rest) if !number.is_empty() && !rest.is_empty() => rest,
        _ => key,
    }
}

/// Which of the members that a prefill leg rewrites are in the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has {
    pub stream: bool,
    pub stream_options: bool,
    pub min_tokens: bool,
    pub n: bool,
    pub max_tokens: bool,
    /// A thinking budget, which an engine refuses above the output cap (Messages; vLLM 0.32).
    pub thinking: bool,
}

/// Members that belong to the gateway on every leg (vLLM 0.33, SGLang 0.5.23, TensorRT-LLM, Neuron).
pub const OWNED: [&str; 10] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "disaggregated_params",
    "disagg_prefill_resp",
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "decode_tp_size",
    "rid",
    "request_id",
];

/// And every member whose name begins so.
pub const OWNED_PREFIX: &str = "bootstrap_";

/// Members whose value some hand-off changes: twice in a body is once too often.
const EDITED: [&str; 7] = [
    "stream",
    "stream_options",
    "n",
    "min_tokens",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
];

/// Most samples, and most prompts, of one request: SGLang's hand-off needs a room for each.
pub const ANSWERS_MAX: u32 = 4096;

/// Longest model name taken, in bytes.
const MODEL_MAX: usize = 512;

impl Ask {
    /// # Errors
    /// [`Fault::RepeatedMember`] for a repeated member that the gateway edits or owns,
    /// [`Fault::InvalidType`] for one of the wrong type, [`Fault::InvalidValue`] for what no plan can serve,
    /// [`Fault::ZeroTokens`] for Messages that ask for none.
    pub fn read(api: Api, body: &Envelope) -> Result<Ask, Fault> {
        let mut ask = Ask {
            api,
            model: None,
            stream: false,
            n: 1,
            batch: None,
            searches: false,
            logprobs: false,
            echoes: false,
            cuts: false,
            names_peers: false,
            cap: if api == Api::Responses { Cap::MaxOutputTokens } else { Cap::MaxTokens },
            max_tokens: None,
            min_tokens: None,
            has: Has::default(),
            strip: Vec::new(),
            size: body.len(),
            prompt: Prompt::of(api, body.clone()),
            hints: Hints::default(),
            wishes: None,
            prompt_tokens: None,
        };
        let mut seen = Seen::default();
        for (key, value) in body.members() {
            ask.note(&key, value, &mut seen)?;
        }
        if api == Api::Generate {
            ask.sampling(body)?;
        }
        if api == Api::Messages && ask.max_tokens == Some(0) {
            return Err(Fault::ZeroTokens);
        }
        Ok(ask)
    }

    fn note(&mut self, key: &str, value: &[u8], seen: &mut Seen) -> Result<(), Fault> {
        if OWNED.contains(&key) || key.starts_with(OWNED_PREFIX) {
            return self.take_off(key, value);
        }
        if key == "model" {
            self.model = model(value)?;
        }
        if !self.api.generates() {
            return Ok(());
        }
        seen.once(key)?;
        match key {
            "stream" => {
                self.has.stream = true;
                self.stream = optional(value, scalar::as_bool, "stream", "a boolean")?.unwrap_or(false);
            }
            "n" if matches!(self.api, Api::Messages | Api::Responses) => self.has.n = true,
            "n" => {
                self.has.n = true;
                let n = optional(value, scalar::as_u64, "n", "a positive integer")?.unwrap_or(1);
                self.n = samples(n, "n")?;
            }
            "stream_options" => self.has.stream_options = object(value, "stream_options")?,
            "min_tokens" => {
                self.min_tokens = optional(value, scalar::as_u64, "min_tokens", "an integer")?;
                self.has.min_tokens = self.min_tokens.is_some();
            }
            "max_tokens" => {
                self.has.max_tokens = true;
                let cap = optional(value, scalar::as_u64, "max_tokens", "an integer")?;
                if self.cap == Cap::MaxTokens {
                    self.max_tokens = cap;
                }
            }
            "max_completion_tokens" if self.api == Api::Chat => {
                let cap = optional(value, scalar::as_u64, "max_completion_tokens", "an integer")?;
                if cap.is_some() {
                    (self.cap, self.max_tokens) = (Cap::MaxCompletionTokens, cap);
                }
            }
            "max_output_tokens" if self.api == Api::Responses => {
                self.max_tokens = optional(value, scalar::as_u64, "max_output_tokens", "an integer")?;
            }
            "prompt" if self.api == Api::Completions => self.batch = batch(value, "prompt")?.or(self.batch),
            "prompt_embeds" if self.api == Api::Completions && scalar::kind(value) == scalar::Kind::Array => {
                self.batch = count(value, "prompt_embeds")?;
            }
            "text" if self.api == Api::Generate => self.batch = batch(value, "text")?.or(self.batch),
            "input_ids" if self.api == Api::Generate => {
                self.batch = batch(value, "input_ids")?.or(self.batch)
            }
            "thinking" if self.api == Api::Messages => {
                self.has.thinking = scalar::member(value, "type").is_some_and(|t| t == b"\"enabled\"");
            }
            "truncate_prompt_tokens" => self.cuts |= value.starts_with(b"-"),
            "truncation" if self.api == Api::Responses => {
                self.cuts |= scalar::as_str(value).is_some_and(|how| how != "disabled");
            }
            "vllm_xargs" => no_hand_off_inside(value)?,
            "best_of" => self.searches |= scalar::as_u64(value).is_some_and(|n| n > 1),
            "use_beam_search" => self.searches |= scalar::as_bool(value) == Some(true),
            "logprobs" | "return_logprob" => {
                self.logprobs |= !matches!(value, b"false" | b"null");
            }
            "echo" => self.echoes |= scalar::as_bool(value) == Some(true),
            "prompt_logprobs" => self.echoes |= scalar::kind(value) == scalar::Kind::Number,
            _ => {}
        }
        Ok(())
    }

    fn take_off(&mut self, key: &str, value: &[u8]) -> Result<(), Fault> {
        if self.strip.iter().any(|e| e.key() == key) {
            return Err(Fault::RepeatedMember { key: key.to_owned() });
        }
        self.strip.push(Edit::remove(key.to_owned()));
        if key == "rid"
            && let Some(rid) = scalar::as_str(value)
        {
            self.hints.hear_key(rid.as_bytes());
        }
        if key == "request_id" {
            self.hear_request_id(scalar::as_str(value).unwrap_or_default().as_bytes());
        }
        Ok(())
    }

    /// `/generate` keeps its cap and its sample count one level down.
    fn sampling(&mut self, body: &Envelope) -> Result<(), Fault> {
        let Some(params) = body.get("sampling_params").filter(|p| scalar::kind(p) == scalar::Kind::Object)
        else {
            return Ok(());
        };
        if let Some(n) = scalar::member(params, "n") {
            let n =
                optional(n, scalar::as_u64, "sampling_params", "an object whose n is a positive integer")?;
            self.n = samples(n.unwrap_or(1), "sampling_params")?;
        }
        self.max_tokens =
            scalar::member(params, "max_new_tokens").and_then(scalar::as_u64).or(self.max_tokens);
        Ok(())
    }

    /// The client names its request so, in its body or in `X-Request-Id`. No engine sees it; see
    /// [`Ask::names_peers`].
    pub fn hear_request_id(&mut self, id: &[u8]) {
        let holds = |mark: &[u8]| memchr::memmem::find(id, mark).is_some();
        self.names_peers |= holds(b"___prefill_addr_") || holds(b"___decode_addr_");
    }

    /// Tokens for policies to look at instead of the prompt: numbers of 32 bits, separated by commas (SMG 1.13). What
    /// is none of that, or too much of it, is ignored.
    pub fn hear_tokens(&mut self, list: &[u8]) {
        let number = |item: &[u8]| scalar::as_u64(item).and_then(|id| u32::try_from(id).ok());
        if list.len() > ROUTING_TOKENS_MAX_BYTES {
            return;
        }
        let ids: Option<Box<[u32]>> = list.split(|byte| *byte == b',').map(number).collect();
        if let Some(ids) = ids.filter(|ids| ids.len() <= ROUTING_TOKENS_MAX) {
            self.prompt.stand_in(ids);
        }
    }

    /// How many results the engine is asked for as a list of requests: none for a plain request.
    pub fn is_single(&self) -> bool {
        self.n <= 1 && self.batch.is_none_or(|b| b <= 1) && !self.searches
    }
}

/// Which edited members were met, one bit each.
#[derive(Default)]
struct Seen(u8);

impl Seen {
    fn once(&mut self, key: &str) -> Result<(), Fault> {
        let Some(i) = EDITED.iter().position(|k| *k == key) else { return Ok(()) };
        if self.0 & (1 << i) != 0 {
            return Err(Fault::RepeatedMember { key: key.to_owned() });
        }
        self.0 |= 1 << i;
        Ok(())
    }
}

/// Null and absent are the same to an engine.
fn optional<T>(
    value: &[u8],
    read: impl Fn(&[u8]) -> Option<T>,
    param: &'static str,
    expected: &'static str,
) -> Result<Option<T>, Fault> {
    if scalar::kind(value) == scalar::Kind::Null {
        return Ok(None);
    }
    read(value).map(Some).ok_or(Fault::InvalidType { param, expected })
}

fn model(value: &[u8]) -> Result<Option<String>, Fault> {
    let wrong = Fault::InvalidType { param: "model", expected: "a string of at most 512 bytes" };
    match scalar::kind(value) {
        scalar::Kind::Null => Ok(None),
        _ if value.len() > MODEL_MAX => Err(wrong),
        _ => scalar::as_str(value).map(|s| Some(s.into_owned())).ok_or(wrong),
    }
}

/// Is it an object? Null counts as absent.
fn object(value: &[u8], param: &'static str) -> Result<bool, Fault> {
    match scalar::kind(value) {
        scalar::Kind::Null => Ok(false),
        scalar::Kind::Object => Ok(true),
        _ => Err(Fault::InvalidType { param, expected: "an object" }),
    }
}

/// The prefill leg is asked for one sample whatever `n` says, so a wrong `n` has to be found here.
fn samples(n: u64, param: &'static str) -> Result<u32, Fault> {
    match u32::try_from(n) {
        Ok(0) => Err(Fault::InvalidValue { param, message: "Ask for at least one sample." }),
        Ok(n) if n <= ANSWERS_MAX => Ok(n),
        _ => Err(Fault::InvalidValue { param, message: "Ask for at most 4096 samples." }),
    }
}

/// A list of prompts, or one prompt? A flat list of numbers is one prompt in token ids.
fn batch(value: &[u8], param: &'static str) -> Result<Option<u32>, Fault> {
    if scalar::kind(value) != scalar::Kind::Array {
        return Ok(None);
    }
    match scalar::elements(value).next().map(scalar::kind) {
        None | Some(scalar::Kind::Number) => Ok(None),
        _ => count(value, param),
    }
}

fn count(list: &[u8], param: &'static str) -> Result<Option<u32>, Fault> {
    let n = scalar::array_len(list).and_then(|n| u32::try_from(n).ok());
    match n {
        Some(n) if n > ANSWERS_MAX => {
            Err(Fault::InvalidValue { param, message: "Send at most 4096 prompts in one request." })
        }
        n => Ok(n),
    }
}

/// vLLM copies `vllm_xargs` to where it keeps `kv_transfer_params` (vLLM 0.11: `extra_args`), so a hand-off
/// of the client's would reach the engine by that road too. No stock client sends one.
fn no_hand_off_inside(xargs: &[u8]) -> Result<(), Fault> {
    let owned = |key: &str| scalar::member(xargs, key).is_some();
    if owned("kv_transfer_params") || owned("ec_transfer_params") {
        let message = "The hand-off between engines is the gateway's; send vllm_xargs without it.";
        return Err(Fault::InvalidValue { param: "vllm_xargs", message });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::BodyLimits;
    use bytes::Bytes;

    fn ask(api: Api, body: &str) -> Result<Ask, Fault> {
        let env = Envelope::parse(Bytes::copy_from_slice(body.as_bytes()), &BodyLimits::default()).unwrap();
        Ask::read(api, &env)
    }

    #[test]
    fn reads_what_routing_needs() {
        let a = ask(
            Api::Chat,
            r#"{"model":"m","stream":true,"n":2,"max_tokens":9,"max_completion_tokens":4,"logprobs":true}"#,
        )
        .unwrap();
        assert_eq!((a.model.as_deref(), a.stream, a.n, a.max_tokens), (Some("m"), true, 2, Some(4)));
        assert_eq!((a.cap, a.logprobs, a.is_single()), (Cap::MaxCompletionTokens, true, false));
    }

    #[test]
    fn tells_a_batch_from_token_ids() {
        for (api, body, batch) in [
            (Api::Completions, r#"{"prompt":"a"}"#, None),
            (Api::Completions, r#"{"prompt":[1,2]}"#, None),
            (Api::Completions, r#"{"prompt":["a"]}"#, Some(1)),
            (Api::Completions, r#"{"prompt":["a","b","c"]}"#, Some(3)),
            (Api::Completions, r#"{"prompt":[[1,2],[3]]}"#, Some(2)),
            (Api::Generate, r#"{"input_ids":[[1,2],[3]]}"#, Some(2)),
            (Api::Generate, r#"{"text":["a","b"]}"#, Some(2)),
            (Api::Generate, r#"{"text":"a"}"#, None),
            (Api::Chat, r#"{"messages":[{"role":"user"}]}"#, None),
        ] {
            assert_eq!(ask(api, body).unwrap().batch, batch, "{body}");
        }
    }

    #[test]
    fn finds_the_members_that_are_the_gateways() {
        let a = ask(
            Api::Chat,
            r#"{"kv_transfer_params":{},"bootstrap_room":1,"bootstrap_x":2,"rid":"a","user":"u"}"#,
        )
        .unwrap();
        let keys: Vec<_> = a.strip.iter().map(|e| e.key().to_owned()).collect();
        assert_eq!(keys, ["kv_transfer_params", "bootstrap_room", "bootstrap_x", "rid"]);
    }

    #[test]
    fn refuses_wrong_types_and_repeats() {
        for (body, key) in [
            (r#"{"stream":"yes"}"#, "stream"),
            (r#"{"max_tokens":"x"}"#, "max_tokens"),
            (r#"{"n":-1}"#, "n"),
            (r#"{"model":7}"#, "model"),
            (r#"{"min_tokens":"x"}"#, "min_tokens"),
            (r#"{"stream_options":true}"#, "stream_options"),
        ] {
            match ask(Api::Chat, body) {
                Err(Fault::InvalidType { param, .. }) => assert_eq!(param, key),
                other => panic!("{body}: {other:?}"),
            }
        }
        for body in [r#"{"stream":true,"stream":false}"#, r#"{"rid":1,"rid":2}"#, r#"{"n":1,"n":1}"#] {
            assert!(matches!(ask(Api::Chat, body), Err(Fault::RepeatedMember { .. })), "{body}");
        }
        assert!(ask(Api::Chat, r#"{"max_tokens":null,"stream":null,"stream_options":null}"#).is_ok());
    }

    #[test]
    fn refuses_what_no_plan_can_serve() {
        let many = format!(r#"{{"prompt":[{}"a"]}}"#, r#""a","#.repeat(4096));
        for (api, body, key) in [
            (Api::Chat, r#"{"n":0}"#, "n"),
            (Api::Chat, r#"{"n":4097}"#, "n"),
            (Api::Generate, r#"{"sampling_params":{"n":4097}}"#, "sampling_params"),
            (Api::Completions, many.as_str(), "prompt"),
            (Api::Chat, r#"{"vllm_xargs":{"a":1,"kv_transfer_\u0070arams":"x"}}"#, "vllm_xargs"),
        ] {
            match ask(api, body) {
                Err(Fault::InvalidValue { param, .. }) => assert_eq!(param, key),
                other => panic!("{key}: {other:?}"),
            }
        }
        assert!(ask(Api::Chat, r#"{"n":4096,"vllm_xargs":{"a":1}}"#).is_ok());
    }
}
