//! A case as it is written down.
//!
//! ```text
//! ## title
//! = vllm connector=NixlConnector     the workers: an engine, and what is registered of them
//! = POST /v1/chat/completions
//! {"model":"m"}                      the client's body, to the next mark
//! <<<                                the prefill's answer, if it is not the usual one
//! {"kv_transfer_params":null}
//! --- ...                            what came out
//! ```
//!
//! Words about the workers count for both legs; `p.` and `d.` before a word limit it to the prefill or the
//! decode; `setting.shfs` is the gateway's connector for workers that name none. Anything after the path is the `X-Request-Id` of the client.

use baton_core::ask::Api;
use baton_core::fleet::{Connector, Engine, Pod, Role, Worker};
use baton_core::handoff::Rules;
use bytes::Bytes;

/// What a prefill answers unless the case says otherwise.
pub const ANSWER: &str = r#"{"id":"cmpl-p","choices":[{"index":0,"finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"e-1","remote_request_id":"cmpl-p-0","remote_host":"10.0.0.4","remote_port":5600,"tp_size":1}}"#;

pub struct Case {
    pub title: String,
    /// The case as written, up to what came out.
    pub source: String,
    pub api: Api,
    /// The client's `X-Request-Id`.
    pub request_id: Option<String>,
    pub prefill: Option<Worker>,
    /// The worker that answers: the decode, or the one that does all.
    pub answering: Worker,
    pub rules: Rules,
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
    // A case that was never run has no mark yet, but the blank line before the next case.
    let input = text.split_once("\n--- ").map_or(text.trim_end_matches('\n'), |(input, _)| input);
    let (title, rest) = input.split_once('\n').expect("a title, then the workers");
    let (workers, rest) = rest.split_once('\n').expect("the workers, then the route");
    let (route, rest) = rest.split_once('\n').expect("the route, then a body");
    let (body, answer) = match rest.split_once("\n<<<\n") {
        Some((body, answer)) => (body, Some(Bytes::copy_from_slice(answer.as_bytes()))),
        None => (rest, None),
    };
    let path = route.strip_prefix("= POST ").expect("= POST and a path");
    let (path, request_id) = path.split_once(' ').map_or((path, None), |(path, id)| (path, Some(id)));
    let words = workers.strip_prefix("= ").expect("= and the workers").split(' ');
    let cast = Cast::of(words);
    Case {
        title: title.to_owned(),
        source: format!("## {input}\n"),
        request_id: request_id.map(str::to_owned),
        api: Api::of_path(path).expect("a route that generates"),
        prefill: (!cast.alone).then_some(cast.prefill),
        answering: cast.answering,
        rules: cast.rules,
        body: Bytes::copy_from_slice(body.as_bytes()),
        answer,
        release: cast.release,
    }
}

/// The workers of a case, and how they are to be used.
struct Cast {
    prefill: Worker,
    answering: Worker,
    rules: Rules,
    alone: bool,
    release: bool,
}

impl Cast {
    fn of<'a>(words: impl Iterator<Item = &'a str>) -> Cast {
        let mut cast = Cast {
            prefill: Worker::new("p", "http://10.0.0.4:8000", Role::Prefill),
            answering: Worker::new("d", "http://10.0.0.5:8000", Role::Decode),
            rules: Rules::default(),
            alone: false,
            release: false,
        };
        for word in words {
            match (word, word.split_once('.')) {
                ("whole", _) => (cast.alone, cast.answering.role) = (true, Role::Whole),
                ("release", _) => cast.release = true,
                (_, Some(("setting", "generation_first"))) => cast.rules.trt.generation_first = true,
                (_, Some(("setting", name))) => {
                    cast.rules.kv_connector = Some(Connector::from_aibrix(name).expect("AIBrix's name"));
                }
                (_, Some(("p", word))) => register(&mut cast.prefill, word),
                (_, Some(("d", word))) => register(&mut cast.answering, word),
                _ => {
                    register(&mut cast.prefill, word);
                    register(&mut cast.answering, word);
                }
            }
        }
        cast
    }
}

fn register(worker: &mut Worker, word: &str) {
    match word.split_once('=') {
        None => worker.engine = Engine::parse(word).expect("an engine"),
        Some(("port", port)) => worker.bootstrap_port = Some(port.parse().unwrap()),
        Some(("connector", name)) => worker.kv_connector = Some(name.to_owned()),
        Some(("pod", ip)) => worker.pod = Some(Pod { name: "pod".into(), ip: ip.into() }),
        Some(("aibrix", name)) => {
            drop(worker.labels.insert("model.aibrix.ai/kv-connector-type".into(), name.to_owned()));
        }
        Some(("engine-id", id)) => worker.kv_engine_id = Some(id.to_owned()),
        // As the engine's own bootstrap server tells them, rank by rank.
        Some(("live", list)) => {
            worker.kv_engine_ids = Some((0..).zip(list.split(',').map(str::to_owned)).collect());
        }
        Some(("rank", rank)) => {
            let (rank, size) = rank.split_once('/').expect("rank=R/SIZE");
            (worker.dp_rank, worker.dp_size) = (Some(rank.parse().unwrap()), Some(size.parse().unwrap()));
        }
        Some(("url", url)) => {
            worker.url = url.to_owned();
            worker.bootstrap_host = Worker::new("x", url, worker.role).bootstrap_host;
        }
        Some((label, value)) => drop(worker.labels.insert(label.to_owned(), value.to_owned())),
    }
}
