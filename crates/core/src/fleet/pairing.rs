//! Who may pair with whom: worked out when workers join or leave, never per request.
//!
//! Rules and their order are SMG's (its page, "Prefill/Decode Pairing", and 1.13's source).

use super::worker::{Engine, Role, Worker};

/// `--pd-pairing-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PairingMode {
    Off,
    #[default]
    Lenient,
    Strict,
}

/// What is compared of one leg.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Descriptor {
    runtime: Option<Engine>,
    explicit: Option<String>,
    transport: Option<String>,
    layout: [Option<String>; 4],
    version: Option<String>,
}

/// Label of each KV layout fact and its short name in the key.
const LAYOUT: [(&str, &str); 4] = [
    ("kv_cache_dtype", "dtype"),
    ("page_size", "page"),
    ("attention_backend", "attn"),
    ("model_dtype", "model"),
];

impl Descriptor {
    pub fn of(w: &Worker) -> Descriptor {
        let lower = |s: &str| s.to_ascii_lowercase();
        let explicit = w.pairing_protocol.as_deref().map(str::trim).filter(|s| !s.is_empty());
        let explicit = explicit.or_else(|| w.label("pairing_protocol")).map(str::to_owned);
        let layout = LAYOUT.map(|(label, _)| {
            let value =
                w.label(label).or_else(|| if label == "page_size" { w.label("block_size") } else { None });
            value.map(lower)
        });
        Descriptor {
            runtime: (w.engine != Engine::Unspecified).then_some(w.engine),
            explicit,
            transport: transport(w),
            layout,
            version: w.label("version").map(lower),
        }
    }

    /// As `GET /workers` shows it in `pd_pairing`.
    pub fn key(&self) -> String {
        if let Some(e) = &self.explicit {
            return e.clone();
        }
        let facts: Vec<String> = LAYOUT
            .iter()
            .zip(&self.layout)
            .filter_map(|((_, short), v)| v.as_ref().map(|v| format!("{short}={v}")))
            .collect();
        let layout = if facts.is_empty() { "?".to_owned() } else { facts.join(",") };
        let runtime = self.runtime.unwrap_or_default().as_str();
        format!("{runtime}/{}/{layout}", self.transport.as_deref().unwrap_or("?"))
    }
}

fn transport(w: &Worker) -> Option<String> {
    match w.engine {
        Engine::Vllm => {
            let name = w.kv_connector.as_deref().or_else(|| w.label("kv_connector"))?.to_ascii_lowercase();
            let folded = ["nixl", "mooncake", "moriio"].into_iter().find(|t| name.contains(t));
            Some(match (folded, w.label("moriio_mode")) {
                (Some("moriio"), Some(mode)) => format!("moriio-{}", mode.to_ascii_lowercase()),
                (Some(t), _) if name.contains("store") => format!("{t}-store"),
                (Some(t), _) => t.to_owned(),
                (None, _) => name,
            })
        }
        Engine::Sglang => w.label("disaggregation_transfer_backend").map(str::to_ascii_lowercase),
        Engine::Tokenspeed => {
            Some(w.label("disaggregation_transfer_backend").unwrap_or("mooncake").to_ascii_lowercase())
        }
        _ => None,
    }
}

/// Why two legs do not pair: the component that differs. `None`: they pair.
pub fn mismatch(mode: PairingMode, a: &Descriptor, b: &Descriptor) -> Option<String> {
    if mode == PairingMode::Off {
        return None;
    }
    let strict = mode == PairingMode::Strict;
    let known = |name: &str, x: Option<&str>, y: Option<&str>, need: bool| match (x, y) {
        (Some(x), Some(y)) if x != y => Some(name.to_owned()),
        (Some(_), Some(_)) => None,
        (None, None) if !need => None,
        _ if strict => Some(format!("unknown {name}")),
        _ => None,
    };
    if let m @ Some(_) = known("runtime", a.runtime.map(Engine::as_str), b.runtime.map(Engine::as_str), true)
    {
        return m;
    }
    match (&a.explicit, &b.explicit) {
        (Some(x), Some(y)) => return (x != y).then(|| "pairing_protocol".to_owned()),
        (None, None) => {}
        _ if strict => return Some("unknown pairing_protocol".to_owned()),
        _ => {}
    }
    if let m @ Some(_) = known("transport", a.transport.as_deref(), b.transport.as_deref(), true) {
        return m;
    }
    for ((label, _), (x, y)) in LAYOUT.iter().zip(a.layout.iter().zip(&b.layout)) {
        if let m @ Some(_) = known(label, x.as_deref(), y.as_deref(), false) {
            return m;
        }
    }
    match (strict, &a.version, &b.version) {
        (true, Some(x), Some(y)) if x != y => Some("version".to_owned()),
        _ => None,
    }
}

/// `pd_pairing` of a worker: only prefill and decode workers have one.
pub fn pairing_key(w: &Worker) -> Option<String> {
    matches!(w.role, Role::Prefill | Role::Decode).then(|| Descriptor::of(w).key())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn w(engine: Engine, set: &[(&str, &str)]) -> Worker {
        let mut w = Worker::new("i", "http://a:1", Role::Prefill);
        w.engine = engine;
        for (k, v) in set {
            match *k {
                "kv_connector" => w.kv_connector = Some((*v).into()),
                _ => drop(w.labels.insert((*k).into(), (*v).into())),
            }
        }
        w
    }

    #[test]
    fn keys_read_as_the_page_shows_them() {
        let vllm = w(
            Engine::Vllm,
            &[
                ("kv_connector", "NixlConnector"),
                ("kv_cache_dtype", "auto"),
                ("block_size", "16"),
                ("attention_backend", "FLASH_ATTN"),
                ("model_dtype", "torch.bfloat16"),
            ],
        );
        assert_eq!(
            Descriptor::of(&vllm).key(),
            "vllm/nixl/dtype=auto,page=16,attn=flash_attn,model=torch.bfloat16"
        );
        let write = w(Engine::Vllm, &[("kv_connector", "MoRIIOConnector"), ("moriio_mode", "WRITE")]);
        assert_eq!(Descriptor::of(&write).key(), "vllm/moriio-write/?");
        assert_eq!(Descriptor::of(&w(Engine::Sglang, &[])).key(), "sglang/?/?");
        assert_eq!(Descriptor::of(&w(Engine::Sglang, &[("pairing_protocol", " x ")])).key(), "x");
    }

    #[test]
    fn refusals_by_mode() {
        use PairingMode::{Lenient, Off, Strict};
        let sg = |set: &[(&str, &str)]| w(Engine::Sglang, set);
        let mc = ("disaggregation_transfer_backend", "mooncake");
        let nx = ("disaggregation_transfer_backend", "nixl");
        let rows: Vec<(Worker, Worker, Option<&str>, Option<&str>)> = vec![
            (sg(&[]), sg(&[]), None, Some("unknown transport")),
            (sg(&[mc]), sg(&[nx]), Some("transport"), Some("transport")),
            (sg(&[]), w(Engine::Vllm, &[]), Some("runtime"), Some("runtime")),
            (w(Engine::Unspecified, &[]), sg(&[mc]), None, Some("unknown runtime")),
            (sg(&[mc, ("version", "1")]), sg(&[mc, ("version", "2")]), None, Some("version")),
            (sg(&[mc, ("version", "1")]), sg(&[mc]), None, None),
            (sg(&[mc, ("page_size", "64")]), sg(&[mc]), None, Some("unknown page_size")),
            (
                sg(&[mc, ("page_size", "64")]),
                sg(&[mc, ("page_size", "1")]),
                Some("page_size"),
                Some("page_size"),
            ),
            (sg(&[nx, ("pairing_protocol", "a")]), sg(&[mc, ("pairing_protocol", "a")]), None, None),
            (sg(&[mc, ("pairing_protocol", "a")]), sg(&[mc]), None, Some("unknown pairing_protocol")),
            (
                sg(&[("pairing_protocol", "a")]),
                sg(&[("pairing_protocol", "b")]),
                Some("pairing_protocol"),
                Some("pairing_protocol"),
            ),
        ];
        for (i, (a, b, lenient, strict)) in rows.iter().enumerate() {
            let (a, b) = (Descriptor::of(a), Descriptor::of(b));
            assert_eq!(mismatch(Off, &a, &b), None, "row {i}");
            assert_eq!(mismatch(Lenient, &a, &b).as_deref(), *lenient, "row {i} lenient");
            assert_eq!(mismatch(Strict, &a, &b).as_deref(), *strict, "row {i} strict");
            assert_eq!(mismatch(Strict, &b, &a).as_deref(), *strict, "row {i} strict, turned round");
        }
    }
}
