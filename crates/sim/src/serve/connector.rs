//! What each vLLM connector makes of a request's `kv_transfer_params`.
//!
//! The connectors check little: what they do not understand is ignored, or ends the engine core. What can be told of a
//! hand-off that is not wanted any more is told here too.

use serde_json::{Map, Value};

use crate::engine::message::PeerAddr;
use crate::engine::sequence::{Give, Part, RemoteBlocks, RemoteKv, Take, parse_blocks};
use crate::engine::spec::{Connector, EngineSpec, Role};

type Kv = Map<String, Value>;

/// Whether a flag is set.
pub fn is_set(kv: &Kv, key: &str) -> bool {
    kv.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn text(kv: &Kv, key: &str) -> Option<String> {
    kv.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The hand-off that a decode leg refers to, for the notice that it is not wanted.
pub fn unwanted(kv: &Kv, spec: &EngineSpec) -> Option<RemoteKv> {
    if !is_set(kv, "do_remote_prefill") || spec.role == Role::Whole {
        return None;
    }
    match spec.connector {
        Connector::Nixl => Some(RemoteKv::parse(kv)),
        Connector::Mooncake => mooncake_take(kv).map(|take| RemoteKv {
            engine: take.engine,
            request: Some(take.transfer),
            at: take.at,
            notify: None,
            blocks: RemoteBlocks::Missing,
            tp_size: 1,
        }),
        Connector::MoriioRead | Connector::MoriioWrite => None,
    }
}

/// What a connector knows of a request beside its parameters.
pub struct Told<'a> {
    /// The rank that computes it.
    pub rank: u32,
    /// Its name, as the client or the gateway gave it.
    pub id: &'a str,
    /// Where this engine's side channel listens.
    pub side: PeerAddr,
}

/// Which part of a pair's work a request is. An engine without a connector ignores the parameters. A NIXL prefill leg's
/// name is its own and is not known here.
pub fn part(kv: Option<&Kv>, spec: &EngineSpec, told: Told<'_>) -> Part {
    if spec.role == Role::Whole {
        return Part::Local;
    }
    let nothing = Kv::new();
    let kv = kv.unwrap_or(&nothing);
    match spec.connector {
        Connector::Nixl if is_set(kv, "do_remote_prefill") => Part::Pull(RemoteKv::parse(kv)),
        Connector::Nixl if is_set(kv, "do_remote_decode") => Part::Hold(String::new()),
        Connector::Nixl => Part::Local,
        Connector::Mooncake => mooncake(kv, spec, told.rank),
        connector => moriio(kv, spec, connector == Connector::MoriioWrite, told),
    }
}

/// The host of a peer, its port for handshakes and the one for notices.
struct Peer {
    host: String,
    handshake: u16,
    notify: u16,
}

impl Peer {
    /// The old addressing in a request's name goes before the parameters.
    fn find(kv: &Kv, id: &str, marker: &str) -> Option<Self> {
        if id.contains("___prefill_addr_") || id.contains("___decode_addr_") {
            let rest = id.split_once(marker)?.1;
            return Self::parse(rest.split("___").next()?.split('_').next()?);
        }
        let port = |key| kv.get(key).and_then(number).filter(|port| *port != 0);
        let host = text(kv, "remote_host")?;
        let (handshake, notify) = port("remote_handshake_port").zip(port("remote_notify_port"))?;
        Some(Self { host, handshake, notify })
    }

    /// `host:10.0.0.4,handshake:6301,notify:61005`.
    fn parse(text: &str) -> Option<Self> {
        let get = |key: &str| text.split(',').find_map(|pair| pair.strip_prefix(key)?.strip_prefix(':'));
        let (host, handshake) = get("host").zip(get("handshake")?.parse().ok())?;
        Some(Self { host: host.into(), handshake, notify: get("notify")?.parse().ok()? })
    }

    fn at(&self, port: u16) -> PeerAddr {
        PeerAddr::new(&self.host, port)
    }
}

fn number(value: &Value) -> Option<u16> {
    let text = value.as_str().map(str::trim);
    text.map_or_else(|| value.as_u64().and_then(|n| u16::try_from(n).ok()), |text| text.parse().ok())
}

/// A decode side never computes a prompt: without a hand-off it goes on as if it had one (READ), or waits for a push that
/// nobody makes (WRITE). What its scheduler cannot read ends it.
fn moriio(kv: &Kv, spec: &EngineSpec, write: bool, told: Told<'_>) -> Part {
    let transfer = text(kv, "transfer_id").unwrap_or_else(|| format!("sidecar-{}", told.id));
    if spec.role == Role::Prefill {
        return match (is_set(kv, "do_remote_decode"), write) {
            (false, _) => Part::Local,
            (true, false) => Part::Hold(transfer),
            (true, true) => match Peer::find(kv, told.id, "___decode_addr_") {
                Some(peer) => {
                    let to = Some(peer.at(peer.notify));
                    Part::Give(Give { transfer, rank: 0, waits: false, to })
                }
                None => Part::Fatal("ValueError: no decode address"),
            },
        };
    }
    let waiting = |at| Take {
        transfer: transfer.clone(),
        engine: None,
        at,
        from: Some(told.side.clone()),
        first: false,
    };
    if !is_set(kv, "do_remote_prefill") {
        return if write { Part::Take(waiting(None)) } else { Part::Hollow };
    }
    let Some(peer) = Peer::find(kv, told.id, "___prefill_addr_") else {
        return Part::Fatal("ValueError: no prefill address");
    };
    if write {
        return Part::Take(waiting(Some(peer.at(peer.notify))));
    }
    let blocks = kv.get("remote_block_ids").map_or(RemoteBlocks::Missing, parse_blocks);
    let Some(engine) = text(kv, "remote_engine_id") else {
        return Part::Fatal("KeyError: 'remote_engine_id'");
    };
    Part::Pull(RemoteKv {
        engine: Some(engine),
        request: Some(transfer),
        at: Some(peer.at(peer.handshake)),
        notify: Some(peer.at(peer.notify)),
        blocks,
        tp_size: 1,
    })
}

/// The roles are asserted; what is missing is warned of and the request served without a transfer.
fn mooncake(kv: &Kv, spec: &EngineSpec, rank: u32) -> Part {
    let (prefilled, decoded) = (is_set(kv, "do_remote_prefill"), is_set(kv, "do_remote_decode"));
    match (spec.role, text(kv, "transfer_id")) {
        (Role::Prefill, _) if prefilled => Part::Fatal("assert not self.is_kv_producer"),
        (Role::Decode, _) if decoded => Part::Fatal("assert not self.is_kv_consumer"),
        (Role::Prefill, Some(transfer)) if decoded => {
            Part::Give(Give { transfer, rank, waits: false, to: None })
        }
        (Role::Decode, _) if prefilled => mooncake_take(kv).map_or(Part::Local, Part::Take),
        _ => Part::Local,
    }
}

fn mooncake_take(kv: &Kv) -> Option<Take> {
    let (transfer, engine) = text(kv, "transfer_id").zip(text(kv, "remote_engine_id"))?;
    let at = bootstrap(&text(kv, "remote_bootstrap_addr")?);
    Some(Take { transfer, engine: Some(engine), at: Some(at), from: None, first: false })
}

/// `http://host:port`. Without the scheme, or with anything else amiss, it cannot be called.
fn bootstrap(url: &str) -> PeerAddr {
    let parts = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let parts = parts.and_then(|rest| rest.rsplit_once(':'));
    match parts.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
        Some((host, port)) => PeerAddr::new(host, port),
        None => PeerAddr::new("", 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::spec::Kind;
    use serde_json::json;

    fn told(id: &str) -> Told<'_> {
        Told { rank: 0, id, side: PeerAddr::new("here", 7) }
    }

    fn of(role: Role, kv: &Value) -> Part {
        let spec = EngineSpec::new(Kind::Mooncake, role);
        part(kv.as_object(), &spec, told("r"))
    }

    #[test]
    fn a_mooncake_engine_asserts_its_role_and_ignores_half_a_hand_off() {
        let whole = json!({"do_remote_prefill": true, "transfer_id": "x", "remote_engine_id": "e",
            "remote_bootstrap_addr": "http://[::1]:8998"});
        let at = Some(PeerAddr::new("::1", 8998));
        let take = Take { transfer: "x".into(), engine: Some("e".into()), at, from: None, first: false };
        assert_eq!(of(Role::Decode, &whole), Part::Take(take));
        for key in ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"] {
            let mut half = whole.clone();
            half.as_object_mut().map(|members| members.remove(key));
            assert_eq!(of(Role::Decode, &half), Part::Local, "{key}");
        }
        assert!(matches!(of(Role::Prefill, &whole), Part::Fatal(_)));
        let give = json!({"do_remote_decode": true, "transfer_id": "x"});
        let given = Give { transfer: "x".into(), rank: 0, waits: false, to: None };
        assert_eq!(of(Role::Prefill, &give), Part::Give(given));
        assert!(matches!(of(Role::Decode, &give), Part::Fatal(_)));
        assert_eq!(of(Role::Prefill, &json!({"do_remote_decode": true})), Part::Local);
        assert_eq!(of(Role::Whole, &whole), Part::Local);
        assert_eq!(bootstrap("10.0.0.4:8998"), PeerAddr::new("", 0));
    }

    #[test]
    fn a_moriio_engine_reads_its_peer_from_the_requests_name_first() {
        let kv = json!({"do_remote_decode": true, "transfer_id": "t", "remote_host": "10.0.0.9",
            "remote_handshake_port": "6301", "remote_notify_port": 61005});
        let to = |id: &str, kv: &Value| {
            let spec = EngineSpec::new(Kind::MoriioWrite, Role::Prefill);
            match part(kv.as_object(), &spec, told(id)) {
                Part::Give(give) => give.to.map(|to| (to.host, to.port)),
                _ => None,
            }
        };
        assert_eq!(to("r", &kv), Some(("10.0.0.9".into(), 61005)));
        let id = "___prefill_addr_host:10.0.0.4,handshake:1,notify:2___decode_addr_host:10.0.0.5,handshake:3,notify:4_0af";
        assert_eq!(to(id, &kv), Some(("10.0.0.5".into(), 4)));
        assert_eq!(to("___decode_addr_nonsense", &kv), None, "the scheduler cannot read it");
        assert_eq!(to("r", &json!({"do_remote_decode": true})), None);
        let decode = EngineSpec::new(Kind::MoriioRead, Role::Decode);
        assert_eq!(part(None, &decode, told("r")), Part::Hollow);
        assert!(matches!(
            part(json!({"do_remote_prefill": true}).as_object(), &decode, told("r")),
            Part::Fatal(_)
        ));
    }
}
