//! `/v1/rerank`: one score for each document, the best first.

use std::fmt::Write;

use crate::engine::spec::Dialect;
use crate::serve::answer::{Ended, Teller};
use crate::serve::json::quote;

pub(super) fn ranking(teller: &Teller, ended: &[Ended]) -> String {
    let scores = teller.wish.choices.iter().zip(ended).map(|(choice, end)| choice.score(end.kv));
    let mut ranked: Vec<(usize, f64)> = scores.enumerate().collect();
    ranked.sort_by(|one, other| other.1.total_cmp(&one.1));
    ranked.truncate(teller.wish.documents.most.unwrap_or(usize::MAX));
    let rows: Vec<String> = ranked.into_iter().map(|(index, score)| row(teller, index, score)).collect();
    let rows = rows.join(",");
    match teller.dialect {
        Dialect::Sglang => format!("[{rows}]"),
        Dialect::Vllm | Dialect::Trtllm => {
            let (prompt, _) = teller.counts(ended);
            format!(
                r#"{{"id":{},"model":{},"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt}}},"results":[{rows}]}}"#,
                quote(&teller.wish.id),
                quote(&teller.wish.model),
            )
        }
    }
}

fn row(teller: &Teller, index: usize, score: f64) -> String {
    let documents = &teller.wish.documents;
    let text = quote(documents.texts.get(index).map_or("", String::as_str));
    match teller.dialect {
        Dialect::Vllm | Dialect::Trtllm => {
            format!(
                r#"{{"index":{index},"document":{{"text":{text},"multi_modal":null}},"relevance_score":{score:?}}}"#
            )
        }
        Dialect::Sglang => {
            let mut row = format!(r#"{{"score":{score:?},"#);
            if documents.told {
                let _ = write!(row, r#""document":{text},"#);
            }
            let _ = write!(row, r#""index":{index},"meta_info":null}}"#);
            row
        }
    }
}
