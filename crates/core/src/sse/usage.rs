//! Token counts as engines report them, in streams and in plain answers.
//!
//! A report stands near the end of its text, so it is looked for from there; the text before it (which may be long)
//! is searched for the member's name but not parsed.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::Flavour;
use crate::body::scalar::{self, Kind};

static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));
static META_INFO: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"meta_info\""));

/// Tokens of a request, as the engine counted them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Prompt tokens found in the prefix cache. `None` if the engine does not say (vLLM does only with
    /// `--enable-prompt-tokens-details`). Anthropic's `input_tokens` do not include them, the others' do.
    pub cached_tokens: Option<u64>,
}

/// What one report says; each count may be missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Report {
    prompt: Option<u64>,
    completion: Option<u64>,
    cached: Option<u64>,
    /// SGLang ended the request with an abort reason.
    pub aborted: bool,
}

impl Report {
    /// From a `usage` or `meta_info` object; of anything else, nothing.
    fn read(object: &[u8]) -> Self {
        let mut report = Self::default();
        for (key, value) in scalar::members(object) {
            match &*key {
                "prompt_tokens" | "input_tokens" => report.prompt = scalar::as_u64(value),
                "completion_tokens" | "output_tokens" => report.completion = scalar::as_u64(value),
                "cached_tokens" | "cache_read_input_tokens" => report.cached = scalar::as_u64(value),
                "prompt_tokens_details" | "input_tokens_details" => {
                    let cached = scalar::member(value, "cached_tokens").and_then(scalar::as_u64);
                    report.cached = cached.or(report.cached);
                }
                "finish_reason" => {
                    report.aborted = scalar::member(value, "type").is_some_and(|kind| kind == b"\"abort\"");
                }
                _ => {}
            }
        }
        report
    }

    /// The counts, completed by those known `before`. `None` while there is no count at all.
    pub fn over(self, before: Option<Usage>) -> Option<Usage> {
        if self.prompt.or(self.completion).or(self.cached).is_none() {
            return before;
        }
        let before = before.unwrap_or_default();
        Some(Usage {
            prompt_tokens: self.prompt.unwrap_or(before.prompt_tokens),
            completion_tokens: self.completion.unwrap_or(before.completion_tokens),
            cached_tokens: self.cached.or(before.cached_tokens),
        })
    }
}

/// The report in one event's data, if it carries one.
pub(super) fn of_event(flavour: Flavour, data: &[u8]) -> Option<Report> {
    let object = match flavour {
        Flavour::OpenAi => scalar::member_from_end(data, &USAGE)?,
        Flavour::Generate => scalar::member_from_end(data, &META_INFO)?,
        Flavour::Messages => {
            USAGE.find(data)?;
            let start = || scalar::member(scalar::member(data, "message")?, "usage");
            scalar::member(data, "usage").or_else(start)?
        }
        Flavour::Responses => {
            USAGE.find(data)?;
            scalar::member(scalar::member(data, "response")?, "usage")?
        }
    };
    Some(Report::read(object))
}

/// The counts in a plain (not streamed) JSON answer of any flavour; `None` if it reports none.
/// A list of SGLang answers (a batch) gives the sums.
pub fn usage_of_answer(answer: &[u8]) -> Option<Usage> {
    if scalar::kind(answer) == Kind::Array {
        let each = scalar::elements(answer).filter_map(of_object);
        return each.reduce(|sum, one| Usage {
            prompt_tokens: sum.prompt_tokens.saturating_add(one.prompt_tokens),
            completion_tokens: sum.completion_tokens.saturating_add(one.completion_tokens),
            cached_tokens: match (sum.cached_tokens, one.cached_tokens) {
                (Some(sum), Some(one)) => Some(sum.saturating_add(one)),
                (sum, one) => sum.or(one),
            },
        });
    }
    of_object(answer)
}

fn of_object(answer: &[u8]) -> Option<Usage> {
    let object =
        scalar::member_from_end(answer, &USAGE).or_else(|| scalar::member_from_end(answer, &META_INFO))?;
    Report::read(object).over(None)
}
