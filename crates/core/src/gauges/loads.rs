//! SGLang's short account of its load: `GET /v1/loads` (0.5.x), before that `GET /get_load`.
//!
//! It is a hundredth of the length of its page of metrics, and it is served without `--enable-metrics`. It has no
//! counters.

use serde::Deserialize;

use super::page::Page;

/// One rank.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Load {
    dp_rank: Option<u32>,
    #[serde(rename = "num_running_reqs")]
    pub running: Option<f64>,
    #[serde(rename = "num_waiting_reqs")]
    pub waiting: Option<f64>,
    #[serde(rename = "token_usage")]
    pub kv_usage: Option<f64>,
    #[serde(rename = "gen_throughput")]
    pub throughput: Option<f64>,
    pub utilization: Option<f64>,
    #[serde(default)]
    disaggregation: Option<Queues>,
    /// The old form: all requests, waiting or not.
    num_reqs: Option<f64>,
    #[serde(skip)]
    pub prefill_prealloc: Option<f64>,
    #[serde(skip)]
    pub decode_prealloc: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
struct Queues {
    prefill_bootstrap_queue_reqs: Option<f64>,
    decode_prealloc_queue_reqs: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    New { loads: Vec<Load> },
    Old(Vec<Load>),
}

/// What the account says, as if a page had said it; an account that cannot be read says nothing.
pub fn read(json: &[u8]) -> Page {
    let mut page = Page::default();
    let loads = match serde_json::from_slice(json) {
        Ok(Told::New { loads } | Told::Old(loads)) => loads,
        Err(_) => Vec::new(),
    };
    for mut load in loads {
        if let Some(queues) = &load.disaggregation {
            load.prefill_prealloc = queues.prefill_bootstrap_queue_reqs;
            load.decode_prealloc = queues.decode_prealloc_queue_reqs;
        }
        if load.running.is_none() {
            load.running = load.num_reqs.zip(load.waiting).map(|(all, waiting)| all - waiting);
        }
        page.tell(load.dp_rank, &load);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gauges::Reading;

    #[test]
    fn the_new_and_the_old_account() {
        let new = br#"{"timestamp":"x","loads":[{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":1,
            "token_usage":0.02,"gen_throughput":812.0,"disaggregation":{"mode":"decode",
            "prefill_bootstrap_queue_reqs":0,"decode_prealloc_queue_reqs":2}},
            {"dp_rank":1,"num_running_reqs":1,"num_waiting_reqs":0,"token_usage":0.04,"gen_throughput":8.0}]}"#;
        let whole = Reading {
            running: Some(4.0),
            waiting: Some(1.0),
            kv_usage: Some(0.03),
            throughput: Some(820.0),
            prefill_prealloc: Some(0.0),
            decode_prealloc: Some(2.0),
            ..Reading::default()
        };
        assert_eq!(read(new).reading(None), whole);
        assert_eq!(read(new).reading(Some(1)).running, Some(1.0));
        let old = br#"[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":77}]"#;
        assert_eq!(
            (read(old).reading(None).running, read(old).reading(None).waiting),
            (Some(3.0), Some(2.0))
        );
    }

    #[test]
    fn what_is_no_account_says_nothing() {
        for text in
            ["", "{}", "[]", "7", r#"{"loads":7}"#, r#"[{"num_running_reqs":"x"}]"#, r#"[{"num_reqs":-1}]"#]
        {
            assert!(read(text.as_bytes()).reading(None).is_empty(), "{text}");
        }
    }
}
