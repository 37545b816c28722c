//! What each vLLM connector makes of a request's `kv_transfer_params`.
//!
//! The connectors check little: what they do not understand is ignored, or ends the engine core. What can be told of a
//! hand-off that is not wanted any more is told here too.

use serde_json::{Map, Value};

use crate::engine::message::PeerAddr;
use crate::engine::sequence::{Give, Part, RemoteBlocks, RemoteKv, Take};
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
            at: Some(take.at),
            blocks: RemoteBlocks::Missing,
            tp_size: 1,
        }),
    }
}

/// Which part of a pair's work a request is, on the rank that computes it. An engine without a connector ignores the
/// parameters. A NIXL prefill leg's name is its own and is not known here.
pub fn part(kv: Option<&Kv>, spec: &EngineSpec, rank: u32) -> Part {
    let Some(kv) = kv.filter(|_| spec.role != Role::Whole) else { return Part::Local };
    match spec.connector {
        Connector::Nixl if is_set(kv, "do_remote_prefill") => Part::Pull(RemoteKv::parse(kv)),
        Connector::Nixl if is_set(kv, "do_remote_decode") => Part::Hold(String::new()),
        Connector::Nixl => Part::Local,
        Connector::Mooncake => mooncake(kv, spec, rank),
    }
}

/// The roles are asserted; what is missing is warned of and the request served without a transfer.
fn mooncake(kv: &Kv, spec: &EngineSpec, rank: u32) -> Part {
    let (prefilled, decoded) = (is_set(kv, "do_remote_prefill"), is_set(kv, "do_remote_decode"));
    match (spec.role, text(kv, "transfer_id")) {
        (Role::Prefill, _) if prefilled => Part::Fatal("assert not self.is_kv_producer"),
        (Role::Decode, _) if decoded => Part::Fatal("assert not self.is_kv_consumer"),
        (Role::Prefill, Some(transfer)) if decoded => Part::Give(Give { transfer, rank }),
        (Role::Decode, _) if prefilled => mooncake_take(kv).map_or(Part::Local, Part::Take),
        _ => Part::Local,
    }
}

fn mooncake_take(kv: &Kv) -> Option<Take> {
    let (transfer, engine) = text(kv, "transfer_id").zip(text(kv, "remote_engine_id"))?;
    let at = bootstrap(&text(kv, "remote_bootstrap_addr")?);
    Some(Take { transfer, engine: Some(engine), at })
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

    fn of(role: Role, kv: &Value) -> Part {
        let spec = EngineSpec::new(Kind::Mooncake, role);
        part(kv.as_object(), &spec, 0)
    }

    #[test]
    fn a_mooncake_engine_asserts_its_role_and_ignores_half_a_hand_off() {
        let whole = json!({"do_remote_prefill": true, "transfer_id": "x", "remote_engine_id": "e",
            "remote_bootstrap_addr": "http://[::1]:8998"});
        let take = Take { transfer: "x".into(), engine: Some("e".into()), at: PeerAddr::new("::1", 8998) };
        assert_eq!(of(Role::Decode, &whole), Part::Take(take));
        for key in ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"] {
            let mut half = whole.clone();
            half.as_object_mut().map(|members| members.remove(key));
            assert_eq!(of(Role::Decode, &half), Part::Local, "{key}");
        }
        assert!(matches!(of(Role::Prefill, &whole), Part::Fatal(_)));
        let give = json!({"do_remote_decode": true, "transfer_id": "x"});
        assert_eq!(of(Role::Prefill, &give), Part::Give(Give { transfer: "x".into(), rank: 0 }));
        assert!(matches!(of(Role::Decode, &give), Part::Fatal(_)));
        assert_eq!(of(Role::Prefill, &json!({"do_remote_decode": true})), Part::Local);
        assert_eq!(of(Role::Whole, &whole), Part::Local);
        assert_eq!(bootstrap("10.0.0.4:8998"), PeerAddr::new("", 0));
    }
}
