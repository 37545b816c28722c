//! Are these two workers a MoRI-IO pair? By their labels, for over HTTP the engines tell nothing of it.

use std::net::IpAddr;
use std::str::FromStr;

use crate::fleet::{Connector, Worker, host_of};

const HANDSHAKE_PORT: u16 = 6301;
const NOTIFY_PORT: u16 = 61005;

/// How the other engine reaches a worker's MoRI-IO.
#[derive(Debug, PartialEq, Eq)]
pub struct Side<'a> {
    /// WRITE; else READ.
    pub write: bool,
    pub host: &'a str,
    pub handshake: u16,
    pub notify: u16,
    pub tp: Option<u32>,
    pub concurrent: bool,
}

impl<'a> Side<'a> {
    /// # Errors
    /// What is wrong with the worker, for the log.
    fn of(worker: &'a Worker) -> Result<Side<'a>, String> {
        if worker.connector() != Some(Connector::Moriio) {
            return Err("it is no MoRIIOConnector worker".to_owned());
        }
        let size = worker.dp_size.map_or_else(|| number(worker, "dp_size", 1), Ok)?;
        if size > 1 || worker.dp_rank.is_some_and(|rank| rank > 0) {
            return Err("several data-parallel ranks are not served".to_owned());
        }
        let host = worker.label("moriio_host").unwrap_or_else(|| host_of(&worker.url));
        if bare(host).is_empty() || host.contains(char::is_whitespace) {
            return Err(format!("moriio_host {host:?} is no host"));
        }
        let tp = worker.label("tp_size").map(|_| number(worker, "tp_size", 0)).transpose()?;
        Ok(Side {
            write: word(worker, "moriio_mode", ["read", "write"], None)?,
            host,
            handshake: number(worker, "moriio_handshake_port", HANDSHAKE_PORT)?,
            notify: number(worker, "moriio_notify_port", NOTIFY_PORT)?,
            tp,
            concurrent: word(worker, "moriio_write_dispatch", ["sequential", "concurrent"], Some(false))?,
        })
    }

    fn is_local(&self) -> bool {
        let bare = bare(self.host);
        let address = IpAddr::from_str(bare).map(|ip| ip.to_canonical());
        bare.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
    }

    /// Would whoever dials one of the two reach the other?
    fn clashes(&self, other: &Side<'_>) -> bool {
        let same_host =
            bare(self.host).eq_ignore_ascii_case(bare(other.host)) || (self.is_local() && other.is_local());
        same_host && (self.handshake == other.handshake || self.notify == other.notify)
    }
}

/// Both sides of the pair, prefill first.
///
/// # Errors
/// Why they are none, for the log.
pub fn pair<'a>(prefill: &'a Worker, decode: &'a Worker) -> Result<(Side<'a>, Side<'a>), String> {
    let from = Side::of(prefill).map_err(|why| format!("prefill worker: {why}"))?;
    let to = Side::of(decode).map_err(|why| format!("decode worker: {why}"))?;
    let no = |why: &str| Err(why.to_owned());
    if from.write != to.write {
        return no("one worker has moriio_mode read, the other write");
    }
    if !to.write {
        return Ok((from, to));
    }
    if to.is_local() && !from.is_local() {
        return no("the prefill cannot reach the decode's moriio_host, a loopback or unspecified address");
    }
    if to.concurrent && from.is_local() && !to.is_local() {
        return no("the decode cannot reach the prefill's moriio_host, a loopback or unspecified address");
    }
    if from.clashes(&to) {
        return no("both workers have the same host and a port in common: a leg would dial itself");
    }
    Ok((from, to))
}

/// A host without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// A label that is a number from 1.
fn number<T: FromStr + Default + PartialEq>(worker: &Worker, label: &str, default: T) -> Result<T, String> {
    let Some(text) = worker.label(label) else { return Ok(default) };
    let value = text.parse().ok().filter(|n| *n != T::default());
    value.ok_or_else(|| format!("{label} {text:?} is no number that fits, from 1"))
}

/// Is a label the second of two words, in whatever case?
fn word(worker: &Worker, label: &str, words: [&str; 2], default: Option<bool>) -> Result<bool, String> {
    let Some(text) = worker.label(label) else {
        return default.ok_or_else(|| format!("the label {label} is missing"));
    };
    let at = words.iter().position(|word| text.eq_ignore_ascii_case(word));
    at.map(|at| at == 1).ok_or_else(|| format!("{label} {text:?} is neither {} nor {}", words[0], words[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Engine, Role};

    /// `name=value` pairs: `connector`, `url`, `rank`, `dp` (registered) and labels.
    fn worker(role: Role, url: &str, words: &str) -> Worker {
        let mut w = Worker::new("w", url, role);
        (w.engine, w.kv_connector) = (Engine::Vllm, Some("MoRIIOConnector".into()));
        for (name, value) in words.split_whitespace().filter_map(|word| word.split_once('=')) {
            match name {
                "connector" => w.kv_connector = Some(value.into()),
                "url" => w.url = value.into(),
                "rank" => w.dp_rank = Some(value.parse().unwrap()),
                "dp" => w.dp_size = Some(value.parse().unwrap()),
                label => drop(w.labels.insert(label.into(), value.into())),
            }
        }
        w
    }

    fn judge(both: &str, prefill: &str, decode: &str) -> Result<(), String> {
        let p = worker(Role::Prefill, "http://10.0.0.4:8000", &format!("{both} {prefill}"));
        let d = worker(Role::Decode, "http://10.0.0.5:8000", &format!("{both} {decode}"));
        pair(&p, &d).map(|_| ())
    }

    #[test]
    fn the_pages_refusals() {
        const W: &str = "moriio_mode=write";
        const C: &str = "moriio_mode=write moriio_write_dispatch=concurrent";
        for (name, both, prefill, decode, why) in [
            ("READ", "moriio_mode=READ", "", "", None),
            ("WRITE", W, "", "", None),
            ("C51: no mode", "", "moriio_mode=read", "", Some("moriio_mode is missing")),
            ("an empty mode", "moriio_mode=", "", "", Some("moriio_mode is missing")),
            ("C51: modes differ", "", "moriio_mode=read", W, Some("moriio_mode read, the other write")),
            ("C51: a mode that is none", "moriio_mode=push", "", "", Some("neither read nor write")),
            (
                "C51: the prefill has another connector",
                W,
                "connector=NixlConnector",
                "",
                Some("prefill worker: it is no"),
            ),
            (
                "the decode has another connector",
                W,
                "",
                "connector=NixlConnector",
                Some("decode worker: it is no"),
            ),
            ("two ranks", W, "dp=2", "", Some("data-parallel")),
            ("one rank of two", W, "", "dp=2 rank=0", Some("data-parallel")),
            ("two ranks by label", W, "dp_size=2", "", Some("data-parallel")),
            ("one rank", W, "dp=1 rank=0", "dp_size=1", None),
            ("a rank label that is no number", W, "dp_size=x", "", Some("dp_size")),
            ("port 0", W, "", "moriio_notify_port=0", Some("moriio_notify_port")),
            ("a port too large", W, "moriio_handshake_port=65536", "", Some("moriio_handshake_port")),
            (
                "a port in words",
                "moriio_mode=read",
                "moriio_handshake_port=x",
                "",
                Some("moriio_handshake_port"),
            ),
            ("tp 0", W, "", "tp_size=0", Some("tp_size")),
            ("tp", W, "tp_size=4", "tp_size=8", None),
            (
                "C51: a dispatch that is none, on the prefill",
                W,
                "moriio_write_dispatch=both",
                "",
                Some("moriio_write_dispatch"),
            ),
            (
                "C51: a dispatch that is none, on the decode",
                "moriio_mode=read",
                "",
                "moriio_write_dispatch=both",
                Some("moriio_write_dispatch"),
            ),
            ("C51: same host, equal ports", W, "url=http://h:1", "url=http://h:2", Some("dial itself")),
            ("same host in READ", "moriio_mode=read", "url=http://h:1", "url=http://h:2", None),
            (
                "same host, one port equal",
                W,
                "url=http://h:1 moriio_notify_port=7",
                "url=http://H:2",
                Some("dial itself"),
            ),
            (
                "same host, other ports",
                W,
                "url=http://h:1 moriio_notify_port=7 moriio_handshake_port=8",
                "url=http://h:2",
                None,
            ),
            (
                "both local, equal ports",
                W,
                "moriio_host=127.0.0.1",
                "moriio_host=localhost",
                Some("dial itself"),
            ),
            (
                "both local, other ports",
                W,
                "moriio_host=127.0.0.1 moriio_notify_port=7 moriio_handshake_port=8",
                "moriio_host=[::1]",
                None,
            ),
            ("a loopback decode", W, "", "moriio_host=127.9.9.9", Some("cannot reach the decode")),
            ("an unspecified decode", W, "", "moriio_host=0.0.0.0", Some("cannot reach the decode")),
            ("an unspecified decode, IPv6", W, "", "moriio_host=[::]", Some("cannot reach the decode")),
            (
                "a loopback decode in disguise",
                W,
                "",
                "moriio_host=::ffff:127.0.0.1",
                Some("cannot reach the decode"),
            ),
            ("a loopback decode in READ", "moriio_mode=read", "", "moriio_host=127.0.0.1", None),
            ("a loopback prefill", W, "moriio_host=localhost", "", None),
            ("a loopback prefill, at once", C, "moriio_host=localhost", "", Some("cannot reach the prefill")),
            (
                "at once by the decode alone",
                W,
                "moriio_host=localhost",
                "moriio_write_dispatch=Concurrent",
                Some("cannot reach the prefill"),
            ),
            (
                "at once by the prefill alone: in turn",
                W,
                "moriio_host=localhost moriio_write_dispatch=concurrent",
                "",
                None,
            ),
        ] {
            let judged = judge(both, prefill, decode);
            match (&judged, why) {
                (Ok(()), None) => {}
                (Err(said), Some(why)) if said.contains(why) => {}
                _ => panic!("{name}: {judged:?}, should be {why:?}"),
            }
        }
    }

    #[test]
    fn an_unset_side_has_the_pages_defaults() {
        let w = worker(Role::Decode, "http://[fd00::5]:8000", "moriio_mode=write");
        let side = Side::of(&w).unwrap();
        let expected = Side {
            write: true,
            host: "[fd00::5]",
            handshake: 6301,
            notify: 61005,
            tp: None,
            concurrent: false,
        };
        assert_eq!(side, expected);
    }
}
