//! A case as it is written down.
//!
//! ```text
//! ## title
//! = vllm connector=NixlConnector     the workers: an engine and what is registered of the prefill
//! = POST /v1/chat/completions
//! {"model":"m"}                      the client's body, to the next mark
//! <<<                                the prefill's answer, if it is not the usual one
//! {"kv_transfer_params":null}
//! --- ...                            what came out
//! ```

use baton_core::ask::Api;
use baton_core::fleet::{Engine, Role, Worker};
use bytes::Bytes;

/// What a prefill answers unless the case says otherwise.
pub const ANSWER: &str = r#"{"id":"cmpl-p","choices":[{"index":0,"finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"e-1","remote_request_id":"cmpl-p-0","remote_host":"10.0.0.4","remote_port":5600,"tp_size":1}}"#;

pub struct Case {
    pub title: String,
    /// The case as written, up to what came out.
    pub source: String,
    pub api: Api,
    pub prefill: Option<Worker>,
    /// The worker that answers: the decode, or the one that does all.
    pub answering: Worker,
    pub body: Bytes,
    pub answer: Option<Bytes>,
    /// Show the throw-away decode as well.
    pub release: bool,
}

/// What stands before the first case, and the cases.
pub fn read(text: &str) -> (String, Vec<Case>) {
    let mut parts = text.split("\n## ");
    let head = format!("{}\n", parts.next().unwrap_or_default());
    (head, parts.map(case).collect())
}

fn case(text: &str) -> Case {
    let input = text.split("\n--- ").next().unwrap();
    let (title, rest) = input.split_once('\n').expect("a title, then the workers");
    let (workers, rest) = rest.split_once('\n').expect("the workers, then the route");
    let (route, rest) = rest.split_once('\n').expect("the route, then a body");
    let (body, answer) = match rest.split_once("\n<<<\n") {
        Some((body, answer)) => (body, Some(Bytes::copy_from_slice(answer.as_bytes()))),
        None => (rest, None),
    };
    let path = route.strip_prefix("= POST ").expect("= POST and a path");
    let words: Vec<&str> = workers.strip_prefix("= ").expect("= and the workers").split(' ').collect();
    let (prefill, answering, release) = pair(&words);
    Case {
        title: title.to_owned(),
        source: format!("## {input}\n"),
        api: Api::of_path(path).expect("a route that generates"),
        prefill,
        answering,
        body: Bytes::copy_from_slice(body.as_bytes()),
        answer,
        release,
    }
}

fn pair(words: &[&str]) -> (Option<Worker>, Worker, bool) {
    let mut prefill = Worker::new("p", "http://10.0.0.4:8000", Role::Prefill);
    let (mut alone, mut release) = (false, false);
    for word in words {
        match word.split_once('=') {
            None if *word == "whole" => alone = true,
            None if *word == "release" => release = true,
            None => prefill.engine = Engine::parse(word).expect("an engine"),
            Some(("port", port)) => prefill.bootstrap_port = Some(port.parse().unwrap()),
            Some(("connector", name)) => prefill.kv_connector = Some(name.to_owned()),
            Some(("url", url)) => {
                prefill =
                    Worker { bootstrap_host: Worker::new("p", url, Role::Prefill).bootstrap_host, ..prefill };
            }
            Some(other) => panic!("nothing registered is called {other:?}"),
        }
    }
    let role = if alone { Role::Whole } else { Role::Decode };
    let answering = Worker { id: "d".into(), role, ..prefill.clone() };
    ((!alone).then_some(prefill), answering, release)
}
