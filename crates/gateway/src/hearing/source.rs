//! Where does a worker publish its events?
//!
//! What was registered wins: the labels [`ENDPOINT`] and [`REPLAY`]. Then what the engine itself says (SGLang tells its
//! `kv_events_config`), then AIBrix's label on a pod, which means vLLM's own ports, then the ports that were configured
//! for all workers. Each data-parallel rank publishes at a port of its own: the first, plus the rank (vLLM, SGLang).

use baton_core::fleet::Worker;
use serde_json::Value;

/// Label of a worker: where it publishes, such as `tcp://*:5557`. A host that stands for every address is the worker's own.
pub const ENDPOINT: &str = "kv_events_endpoint";

/// Label of a worker: where it sends again what was missed.
pub const REPLAY: &str = "kv_events_replay_endpoint";

/// What SGLang was started with, as its description says.
pub const CONFIG: &str = "kv_events_config";

/// AIBrix's label or annotation of a pod that publishes.
const AIBRIX: &str = "model.aibrix.ai/kv-events-enabled";

/// Ports of vLLM's documentation, which AIBrix's pods use.
const USUAL: Ports = Ports { events: Some(5557), replay: Some(5558) };

/// Ports that are taken for every worker of which nothing else is known. None: it is not heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    pub events: Option<u16>,
    pub replay: Option<u16>,
}

/// Addresses to dial, `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub events: String,
    pub replay: Option<String>,
}

impl Source {
    /// `None`: the worker does not publish, as far as anybody says, or not over TCP, or several ranks of it publish and
    /// it is one worker here (see `--dp-aware`), so that nobody knows which rank a request comes to.
    pub fn of(worker: &Worker, ports: Ports) -> Option<Source> {
        if worker.dp_rank.is_none() && worker.dp_size.is_some_and(|size| size > 1) {
            return None;
        }
        let (events, replay) = told(worker).or_else(|| configured(worker, ports))?;
        let host = worker.bootstrap_host.as_str();
        let rank = worker.dp_rank.unwrap_or(0);
        let replay = replay.and_then(|endpoint| dial(&endpoint, host, rank));
        Some(Source { events: dial(&events, host, rank)?, replay })
    }
}

type Endpoints = (String, Option<String>);

fn told(worker: &Worker) -> Option<Endpoints> {
    if let Some(endpoint) = worker.label(ENDPOINT) {
        return Some((endpoint.to_owned(), worker.label(REPLAY).map(str::to_owned)));
    }
    let config: Value = serde_json::from_str(worker.label(CONFIG)?).ok()?;
    let text = |name: &str| config.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    text("publisher").filter(|publisher| *publisher == "zmq")?;
    Some((text("endpoint").unwrap_or("tcp://*:5557").to_owned(), text("replay_endpoint").map(str::to_owned)))
}

fn configured(worker: &Worker, ports: Ports) -> Option<Endpoints> {
    let aibrix = worker.label(AIBRIX).is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
    let ports = if ports.events.is_none() && aibrix { USUAL } else { ports };
    let at = |port: u16| format!("tcp://*:{port}");
    Some((at(ports.events?), ports.replay.map(at)))
}

/// `host:port` of a rank.
fn dial(endpoint: &str, own_host: &str, rank: u32) -> Option<String> {
    let (host, port) = endpoint.trim().strip_prefix("tcp://")?.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
    let port = port.checked_add(u16::try_from(rank).ok()?)?;
    let every = matches!(host, "" | "*" | "0.0.0.0" | "[::]" | "::");
    Some(format!("{}:{port}", if every { own_host } else { host }))
}

#[cfg(test)]
mod tests {
    use baton_core::fleet::Role;

    use super::*;

    fn source(labels: &[(&str, &str)], rank: Option<u32>, ports: Ports) -> Option<(String, Option<String>)> {
        let mut worker = Worker::new("1", "http://10.0.0.4:8000", Role::Prefill);
        worker.labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        worker.dp_rank = rank;
        Source::of(&worker, ports).map(|source| (source.events, source.replay))
    }

    const NONE: Ports = Ports { events: None, replay: None };

    #[test]
    fn what_was_registered_wins_then_what_the_engine_says() {
        let events =
            |address: &str, replay: Option<&str>| Some((address.to_owned(), replay.map(str::to_owned)));
        let both = [(ENDPOINT, "tcp://*:7000"), (REPLAY, "tcp://other:7100")];
        assert_eq!(source(&both, None, NONE), events("10.0.0.4:7000", Some("other:7100")));
        assert_eq!(source(&both, Some(3), NONE), events("10.0.0.4:7003", Some("other:7103")));
        let config = r#"{"publisher":"zmq","endpoint":"tcp://0.0.0.0:6000","topic":""}"#;
        assert_eq!(source(&[(CONFIG, config)], Some(1), USUAL), events("10.0.0.4:6001", None));
        assert_eq!(source(&[(CONFIG, config), both[0]], None, NONE), events("10.0.0.4:7000", None));
        assert_eq!(source(&[(CONFIG, r#"{"publisher":"null"}"#)], None, NONE), None);
        let pod = [(AIBRIX, "true")];
        assert_eq!(source(&pod, None, NONE), events("10.0.0.4:5557", Some("10.0.0.4:5558")));
        let ports = Ports { events: Some(9), replay: None };
        assert_eq!(source(&pod, None, ports), events("10.0.0.4:9", None));
        assert_eq!((source(&[], None, ports), source(&[], None, NONE)), (events("10.0.0.4:9", None), None));
    }

    #[test]
    fn what_cannot_be_dialled_is_no_source() {
        for endpoint in ["ipc://x", "inproc://x", "tcp://*:0", "tcp://*:99999", "5557", "tcp://*"] {
            assert_eq!(source(&[(ENDPOINT, endpoint)], None, NONE), None, "{endpoint}");
        }
        assert_eq!(source(&[(ENDPOINT, "tcp://*:65535")], Some(1), NONE), None);
        let mut worker = Worker::new("1", "http://h:1", Role::Prefill);
        worker.dp_size = Some(2);
        assert_eq!(Source::of(&worker, USUAL), None, "nobody knows which rank a request comes to");
    }
}
