//! Who may pair with whom, mode by mode, and what is said when nobody may. The names in front are those of the
//! cases that SMG's behaviour was written down in.

use std::sync::Arc;

use baton_core::fleet::{
    Descriptor, Engine, Fleet, FleetChange, PairingMode, Role, Seat, Worker, mismatch, pairing_key,
};

use PairingMode::{Lenient, Off, Strict};

type Set = &'static [(&'static str, &'static str)];

fn worker(role: Role, engine: Engine, set: Set) -> Worker {
    let mut w = Worker::new("i", "http://a:1", role);
    w.engine = engine;
    for (name, value) in set {
        match *name {
            "kv_connector" => w.kv_connector = Some((*value).into()),
            "spec.pairing_protocol" => w.pairing_protocol = Some((*value).into()),
            label => drop(w.labels.insert(label.into(), (*value).into())),
        }
    }
    w
}

const MC: (&str, &str) = ("disaggregation_transfer_backend", "mooncake");
const NX: (&str, &str) = ("disaggregation_transfer_backend", "nixl");
const NIXL: (&str, &str) = ("kv_connector", "NixlConnector");
const P64: (&str, &str) = ("page_size", "64");

struct Row {
    name: &'static str,
    engines: [Engine; 2],
    sets: [Set; 2],
    /// Under `off`, `lenient` and `strict`.
    expected: [Option<&'static str>; 3],
}

const fn row(
    name: &'static str,
    engines: [Engine; 2],
    sets: [Set; 2],
    lenient: Option<&'static str>,
    strict: Option<&'static str>,
) -> Row {
    Row { name, engines, sets, expected: [None, lenient, strict] }
}

const SG: [Engine; 2] = [Engine::Sglang, Engine::Sglang];
const VL: [Engine; 2] = [Engine::Vllm, Engine::Vllm];
const TS: [Engine; 2] = [Engine::Tokenspeed, Engine::Tokenspeed];

const ROWS: &[Row] = &[
    row("E75 nothing known", SG, [&[], &[]], None, Some("unknown transport")),
    row("one transport known", SG, [&[MC], &[]], None, Some("unknown transport")),
    row("the same transport", SG, [&[MC], &[("disaggregation_transfer_backend", "Mooncake ")]], None, None),
    row("other transports", SG, [&[MC], &[NX]], Some("transport"), Some("transport")),
    row(
        "B47 NIXL and Mooncake",
        VL,
        [&[NIXL], &[("kv_connector", "MooncakeConnector")]],
        Some("transport"),
        Some("transport"),
    ),
    row("NIXL, one by its other name", VL, [&[NIXL], &[("kv_connector", "NixlPullConnector")]], None, None),
    row(
        "Mooncake and its store",
        VL,
        [&[("kv_connector", "MooncakeConnector")], &[("kv_connector", "MooncakeStoreConnector")]],
        Some("transport"),
        Some("transport"),
    ),
    row("a connector of one's own", VL, [&[("kv_connector", "MyC")], &[("kv_connector", "myc")]], None, None),
    row("one connector registered", VL, [&[NIXL], &[]], None, Some("unknown transport")),
    row(
        "MoRI-IO, read and write",
        VL,
        [
            &[("kv_connector", "MoRIIOConnector"), ("moriio_mode", "READ")],
            &[("kv_connector", "MoRIIOConnector"), ("moriio_mode", "write")],
        ],
        Some("transport"),
        Some("transport"),
    ),
    row("TokenSpeed is Mooncake unless it says", TS, [&[], &[MC]], None, None),
    row("other engines", [Engine::Sglang, Engine::Vllm], [&[], &[]], Some("runtime"), Some("runtime")),
    row(
        "one engine unknown",
        [Engine::Unspecified, Engine::Sglang],
        [&[MC], &[MC]],
        None,
        Some("unknown runtime"),
    ),
    row("engines of another protocol", [Engine::Generic; 2], [&[], &[]], None, Some("unknown transport")),
    row("E77 versions differ", SG, [&[MC, ("version", "1")], &[MC, ("version", "2")]], None, Some("version")),
    row("E77 one version", SG, [&[MC, ("version", "1")], &[MC]], None, None),
    row("E78 one page size", SG, [&[MC, P64], &[MC]], None, Some("unknown page_size")),
    row("page sizes", SG, [&[MC, P64], &[MC, ("page_size", "1")]], Some("page_size"), Some("page_size")),
    row("vLLM's name for it", VL, [&[NIXL, P64], &[NIXL, ("block_size", "64")]], None, None),
    row(
        "KV types",
        SG,
        [&[MC, ("kv_cache_dtype", "auto")], &[MC, ("kv_cache_dtype", "fp8_e5m2")]],
        Some("kv_cache_dtype"),
        Some("kv_cache_dtype"),
    ),
    row(
        "the first that differs is told",
        SG,
        [&[MC, P64, ("version", "1")], &[MC, ("page_size", "1"), ("version", "2")]],
        Some("page_size"),
        Some("page_size"),
    ),
    row(
        "an equal protocol is all it takes",
        SG,
        [&[NX, P64, ("pairing_protocol", "a")], &[MC, ("pairing_protocol", " a ")]],
        None,
        None,
    ),
    row(
        "but for the engine",
        [Engine::Sglang, Engine::Vllm],
        [&[("pairing_protocol", "a")], &[("pairing_protocol", "a")]],
        Some("runtime"),
        Some("runtime"),
    ),
    row(
        "one protocol",
        SG,
        [&[MC, ("pairing_protocol", "a")], &[MC]],
        None,
        Some("unknown pairing_protocol"),
    ),
    row(
        "other protocols",
        SG,
        [&[("pairing_protocol", "a")], &[("pairing_protocol", "b")]],
        Some("pairing_protocol"),
        Some("pairing_protocol"),
    ),
    row(
        "the field goes before the label",
        SG,
        [&[("spec.pairing_protocol", "b"), ("pairing_protocol", "a")], &[("pairing_protocol", "b")]],
        None,
        None,
    ),
];

#[test]
fn e75_to_e80_and_b47_mode_by_mode() {
    for row in ROWS {
        let [a, b] = [0, 1].map(|at| {
            let role = [Role::Prefill, Role::Decode][at];
            Descriptor::of(&worker(role, row.engines[at], row.sets[at]))
        });
        for (mode, expected) in [Off, Lenient, Strict].into_iter().zip(row.expected) {
            for (x, y) in [(&a, &b), (&b, &a)] {
                let got = mismatch(mode, x, y).map(|m| m.to_string());
                assert_eq!(got.as_deref(), expected, "{} under {mode:?}", row.name);
            }
        }
    }
}

#[test]
fn e79_keys_read_as_the_page_shows_them() {
    let rows: [(Engine, Set, &str); 9] = [
        (
            Engine::Vllm,
            &[
                NIXL,
                ("kv_cache_dtype", "auto"),
                ("block_size", "16"),
                ("attention_backend", "FLASH_ATTN"),
                ("model_dtype", "torch.bfloat16"),
            ],
            "vllm/nixl/dtype=auto,page=16,attn=flash_attn,model=torch.bfloat16",
        ),
        (
            Engine::Vllm,
            &[("kv_connector", "MoRIIOConnector"), ("moriio_mode", "WRITE")],
            "vllm/moriio-write/?",
        ),
        (Engine::Vllm, &[], "vllm/?/?"),
        (Engine::Sglang, &[], "sglang/?/?"),
        (Engine::Sglang, &[MC, P64], "sglang/mooncake/page=64"),
        (Engine::Sglang, &[("pairing_protocol", " x ")], "x"),
        (Engine::Tokenspeed, &[], "tokenspeed/mooncake/?"),
        (Engine::Unspecified, &[MC], "unspecified/?/?"),
        (Engine::Sglang, &[MC, ("roleset-name", "group-0")], "sglang/mooncake/?@group-0"),
    ];
    for (engine, set, key) in rows {
        assert_eq!(pairing_key(&worker(Role::Prefill, engine, set)).as_deref(), Some(key));
        assert_eq!(pairing_key(&worker(Role::Whole, engine, set)), None, "no leg, no key");
    }
}

fn fleet(mode: PairingMode, workers: &[(Role, Engine, Set)]) -> Fleet {
    let seat = |(slot, (role, engine, set)): (usize, &(Role, Engine, Set))| {
        FleetChange::Join(Seat::new(slot as u32, worker(*role, *engine, set)))
    };
    Fleet::new(mode).with(workers.iter().enumerate().map(seat))
}

/// The slots of each prefill's partners.
fn pairs(fleet: &Fleet) -> Vec<(u32, Vec<u32>)> {
    let slots = |seats: &[Arc<Seat>]| seats.iter().map(|s| s.slot).collect();
    fleet.prefill().iter().map(|p| (p.seat.slot, slots(&p.partners))).collect()
}

#[test]
fn e80_a_prefill_without_a_partner_is_skipped_while_another_pairs() {
    let workers: [(Role, Engine, Set); 3] = [
        (Role::Prefill, Engine::Vllm, &[NIXL]),
        (Role::Prefill, Engine::Sglang, &[MC]),
        (Role::Decode, Engine::Sglang, &[MC]),
    ];
    let lenient = fleet(Lenient, &workers);
    assert_eq!(pairs(&lenient), [(0, vec![]), (1, vec![2])]);
    assert_eq!(lenient.no_pair(), None);
    assert_eq!(pairs(&fleet(Off, &workers)), [(0, vec![2]), (1, vec![2])]);
}

const G0: (&str, &str) = ("roleset-name", "group-0");
const G1: (&str, &str) = ("roleset-name", "group-1");

#[test]
fn legs_pair_only_inside_their_roleset_whatever_the_mode() {
    let workers: [(Role, Engine, Set); 8] = [
        (Role::Prefill, Engine::Sglang, &[G0, MC]),
        (Role::Prefill, Engine::Sglang, &[G1, MC]),
        (Role::Prefill, Engine::Sglang, &[MC]),
        (Role::Decode, Engine::Sglang, &[G0, MC]),
        (Role::Decode, Engine::Sglang, &[G0, MC]),
        (Role::Decode, Engine::Sglang, &[G1, MC]),
        (Role::Decode, Engine::Sglang, &[("roleset-name", " "), MC]),
        // Nobody's, though it speaks the same.
        (Role::Decode, Engine::Sglang, &[("roleset-name", "group-2"), MC]),
    ];
    for mode in [Off, Lenient, Strict] {
        assert_eq!(
            pairs(&fleet(mode, &workers)),
            [(0, vec![3, 4]), (1, vec![5]), (2, vec![6])],
            "under {mode:?}"
        );
    }
}

#[test]
fn a_shared_protocol_does_not_reach_into_another_roleset() {
    let workers: [(Role, Engine, Set); 2] = [
        (Role::Prefill, Engine::Vllm, &[G0, ("pairing_protocol", "x")]),
        (Role::Decode, Engine::Vllm, &[G1, ("pairing_protocol", "x")]),
    ];
    let f = fleet(Off, &workers);
    assert_eq!(f.no_pair(), Some("mismatch in roleset-name; prefill [x@group-0], decode [x@group-1]"));
}

#[test]
fn the_reason_names_what_differs_inside_a_roleset_and_outside() {
    let workers: [(Role, Engine, Set); 3] = [
        (Role::Prefill, Engine::Sglang, &[G0, MC, P64]),
        (Role::Decode, Engine::Sglang, &[G0, MC, ("page_size", "1")]),
        (Role::Decode, Engine::Sglang, &[MC, P64]),
    ];
    assert_eq!(
        fleet(Lenient, &workers).no_pair(),
        Some(
            "mismatch in page_size, roleset-name; prefill [sglang/mooncake/page=64@group-0], \
             decode [sglang/mooncake/page=1@group-0, sglang/mooncake/page=64]"
        )
    );
}

#[test]
fn the_reason_stays_short_in_a_large_fleet() {
    let seat = |slot: u32, role, name: String| {
        let mut w = worker(role, Engine::Vllm, &[]);
        w.labels.insert("roleset-name".into(), name);
        FleetChange::Join(Seat::new(slot, w))
    };
    let join = (0..200u32).flat_map(|at| {
        let p = seat(2 * at, Role::Prefill, format!("p{at:03}"));
        [p, seat(2 * at + 1, Role::Decode, format!("d{at:03}"))]
    });
    let f = Fleet::new(Lenient).with(join);
    let why = f.no_pair().unwrap();
    assert!(why.len() < 1024, "{why}");
    assert!(why.contains("vllm/?/?@p000") && why.contains("and 192 more"), "{why}");
}
