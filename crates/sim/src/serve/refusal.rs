//! What an engine says when it does not do what it was asked, in its own words and shape.
//!
//! vLLM nests its errors under `error`; SGLang's OpenAI endpoints write them flat; SGLang's `/generate` has a third
//! shape. The texts are those of vLLM 0.32.0 and SGLang 0.5.23, recorded from the running engines where
//! docs/simulated-engines.md says so.

use crate::engine::spec::Dialect;
use crate::serve::json::quote;

/// Which error shape an endpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"error":{...}}`.
    Vllm,
    /// `{"object":"error",...}`.
    SglangFlat,
    /// TensorRT-LLM, of a request that its schema refuses: `{"error":"..."}`.
    TrtSchema,
    /// `/generate`: `{"error":{"message":...}}` for 400, `{"detail":...}` otherwise.
    SglangNative,
    /// `/v1/messages` and below: `{"type":"error","error":{...}}`. vLLM keeps its own names of kinds.
    VllmMessages,
    SglangMessages,
}

/// Anthropic's name for errors of this status (SGLang).
#[must_use]
pub fn anthropic_kind(status: u16) -> &'static str {
    match status {
        400 => "invalid_request_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        _ => "api_error",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub message: String,
    /// The `type` member.
    pub kind: &'static str,
    pub param: Option<String>,
    /// The request's schema was wrong, so the connector never saw the hand-off's parameters.
    pub schema: bool,
}

impl Refusal {
    /// A request that is well-formed and asks for something that is not done.
    #[must_use]
    pub fn bad(message: String, param: Option<&str>) -> Self {
        Self { status: 400, message, kind: "BadRequestError", param: param.map(str::to_owned), schema: false }
    }

    /// A member of the wrong type, as pydantic reports it through each engine.
    #[must_use]
    pub fn schema(dialect: Dialect, member: &str, problem: &Problem<'_>) -> Self {
        let Problem { kind, text, input } = problem;
        let (message, param) = match dialect {
            Dialect::Vllm | Dialect::Trtllm => (
                format!(
                    "1 validation error:\n  {{'type': '{kind}', 'loc': 'body.{member}', 'msg': '{text}', 'input': {input}}}"
                ),
                Some(format!("body.{member}")),
            ),
            Dialect::Sglang => (
                format!(
                    "1 validation error:\n  {{'type': '{kind}', 'loc': ('body', '{member}'), 'msg': '{text}', 'input': {input}}}"
                ),
                None,
            ),
        };
        Self { status: 400, message, kind: "Bad Request", param, schema: true }
    }

    /// KV could not be loaded, or something else inside broke (vLLM).
    #[must_use]
    pub fn internal() -> Self {
        let message = "Internal server error".into();
        Self { status: 500, message, kind: "InternalServerError", param: None, schema: false }
    }

    /// The engine core died (vLLM).
    #[must_use]
    pub fn core_died() -> Self {
        let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.".into();
        Self { status: 500, message, kind: "InternalServerError", param: None, schema: false }
    }

    /// A hand-off failed (SGLang): an abort with the engine's own status.
    #[must_use]
    pub fn abort(message: String, status: u16) -> Self {
        let kind = if status == 400 { "BadRequestError" } else { "500" };
        Self { status, message, kind, param: None, schema: false }
    }

    /// The body of the answer.
    #[must_use]
    pub fn body(&self, shape: Shape) -> String {
        let (message, param) = (quote(&self.message), self.param.as_deref().map_or("null".into(), quote));
        let (kind, code) = (quote(self.kind), self.status);
        match shape {
            Shape::Vllm => {
                format!(r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{code}}}}}"#)
            }
            Shape::SglangFlat => {
                format!(
                    r#"{{"object":"error","message":{message},"type":{kind},"param":{param},"code":{code}}}"#
                )
            }
            Shape::TrtSchema => format!(r#"{{"error":{message}}}"#),
            Shape::VllmMessages => {
                format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#)
            }
            Shape::SglangMessages => {
                let kind = anthropic_kind(self.status);
                format!(r#"{{"type":"error","error":{{"type":"{kind}","message":{message}}}}}"#)
            }
            Shape::SglangNative if self.status == 400 => format!(r#"{{"error":{{"message":{message}}}}}"#),
            Shape::SglangNative => format!(r#"{{"detail":{message}}}"#),
        }
    }

    /// The event in a stream whose head is out already, without its end mark.
    #[must_use]
    pub fn event(&self, dialect: Dialect) -> String {
        let (message, code) = (quote(&self.message), self.status);
        match dialect {
            Dialect::Vllm | Dialect::Trtllm => {
                let kind = quote(self.kind);
                format!(
                    "data: {{\"error\": {{\"message\": {message}, \"type\": {kind}, \"param\": null, \"code\": {code}}}}}\n\n"
                )
            }
            Dialect::Sglang => {
                let kind = if code == 400 { "BAD_REQUEST" } else { "INTERNAL_SERVER_ERROR" };
                format!(
                    "data: {{\"error\": {{\"object\": \"error\", \"message\": {message}, \"type\": \"{kind}\", \"param\": null, \"code\": {code}}}}}\n\n"
                )
            }
        }
    }
}

/// One complaint of the schema.
pub struct Problem<'a> {
    pub kind: &'a str,
    pub text: &'a str,
    /// The value, as Python prints it.
    pub input: &'a str,
}
