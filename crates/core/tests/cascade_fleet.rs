//! AIBrix's cascade on a fleet with live workers: who is chosen, what is charged, what goes back. Rows bear the numbers
//! of its cases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::type_complexity, reason = "rows of cases")]

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fault::Fault;
use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::place::cascade::knobs::{DecodeScore, Knobs, PrefillScore};
use baton_core::place::cascade::resolve::{Routing, resolve};
use baton_core::place::receipt::Receipt;
use baton_core::place::{Cascade, Look, Miss, Placement, Strategy, Taken, Tuning};
use baton_core::time::Instant;
use baton_core::wishes::{Wish, Wishes};

const NOW: Instant = Instant::from_micros(1_000_000_000);
const INDEX: &str = "stormservice.orchestration.aibrix.ai/pod-group-index";
const CONFIG: &str = "model.aibrix.ai/config";

/// A pod by its id, whose first letter says what it does: p, d, or c for both phases.
fn pod(id: &str, labels: &[(&str, &str)], config: Option<&str>) -> Worker {
    let role = match id.as_bytes()[0] {
        b'p' => Role::Prefill,
        b'd' => Role::Decode,
        _ => Role::Whole,
    };
    let mut w = Worker::new(id, format!("http://{id}:8000"), role);
    w.engine = Engine::Vllm;
    w.labels.insert("model.aibrix.ai/name".into(), "m".into());
    w.labels.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    w.annotations.extend(config.map(|text| (CONFIG.to_owned(), text.to_owned())));
    w
}

fn of(id: &str, roleset: &str) -> Worker {
    pod(id, &[("roleset-name", roleset)], None)
}

/// One that takes prompts of these lengths.
fn ranged(id: &str, roleset: &str, min: u64, max: u64) -> Worker {
    pod(id, &[("roleset-name", roleset)], Some(&bounds(min, max, false)))
}

fn combined(id: &str, min: u64, max: u64) -> Worker {
    pod(id, &[], Some(&bounds(min, max, true)))
}

fn bounds(min: u64, max: u64, combined: bool) -> String {
    format!(
        r#"{{"profiles":{{"default":{{"routingStrategy":"pd","routingConfig":{{
        "promptLenBucketMinLength":{min},"promptLenBucketMaxLength":{max},"combined":{combined}}}}}}}}}"#
    )
}

fn fleet(workers: impl IntoIterator<Item = Worker>) -> Fleet {
    let seats = (0u32..).zip(workers).map(|(slot, worker)| {
        let seat = Seat::new(slot, worker);
        seat.pulse.set_status(Status::Ready);
        FleetChange::Join(seat)
    });
    Fleet::new(PairingMode::Lenient).with(seats)
}

fn seat<'a>(fleet: &'a Fleet, id: &str) -> &'a Arc<Seat> {
    fleet.seats().find(|s| s.worker.id == id).unwrap()
}

/// A request with a prompt of so many bytes, of which it is said that it has so many tokens.
fn ask(bytes: usize, tokens: Option<u64>) -> Ask {
    told(&"x".repeat(bytes), tokens)
}

fn told(prompt: &str, tokens: Option<u64>) -> Ask {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
    let body = Envelope::parse(body.into(), &BodyLimits::default()).unwrap();
    let mut ask = Ask::read(Api::Completions, &body).unwrap();
    ask.prompt_tokens = tokens;
    ask
}

fn wishing(mut ask: Ask, wishes: &[(Wish, &str)]) -> Ask {
    let mut all = Wishes::default();
    wishes.iter().for_each(|(wish, text)| all.hear(*wish, text.as_bytes()));
    ask.wishes = Some(Box::new(all));
    ask
}

/// The strategy with its settings.
struct Desk {
    strategy: Strategy,
    knobs: Arc<Knobs>,
    dice: Dice,
    now: Instant,
}

impl Desk {
    fn new(knobs: Knobs) -> Desk {
        let knobs = Arc::new(knobs);
        let strategy = Strategy::Cascade(Cascade::new(&knobs, &Tuning::default()));
        Desk { strategy, knobs, dice: Dice::new(7), now: NOW }
    }

    fn cascade(&self) -> &Cascade {
        match &self.strategy {
            Strategy::Cascade(cascade) => cascade,
            Strategy::Legwise(_) | Strategy::Whole(_) => panic!("not the cascade"),
        }
    }

    fn place(&mut self, fleet: &Fleet, ask: &Ask) -> Result<(Placement, Receipt), Miss> {
        self.after(fleet, ask, &[])
    }

    fn after(&mut self, fleet: &Fleet, ask: &Ask, tried: &[u32]) -> Result<(Placement, Receipt), Miss> {
        let routing = resolve(fleet, ask, &self.knobs).map_err(Miss::Nobody)?;
        let look = Look { routing: Some(&routing), ..Look::new(fleet, ask, self.now) }.after(tried);
        let look = Look { receipt: Receipt::on().into(), ..look };
        let placement = self.strategy.place(&look, &mut self.dice)?;
        Ok((placement, look.into_receipt()))
    }

    /// The ids of the chosen, `p+d` or alone, or what is said instead.
    fn chosen(&mut self, fleet: &Fleet, ask: &Ask) -> String {
        match self.place(fleet, ask) {
            Ok((placement, _)) => ids(&placement),
            Err(Miss::Nobody(fault) | Miss::Full(fault)) => fault.answer().message,
        }
    }
}

fn ids(placement: &Placement) -> String {
    let id = |t: &Taken| t.seat.worker.id.clone();
    match placement {
        Placement::Whole { worker } | Placement::Prefill { worker } => id(worker),
        Placement::Pair { prefill, decode } => format!("{}+{}", id(prefill), id(decode)),
    }
}

fn at_rest(fleet: &Fleet) {
    assert!(fleet.seats().all(|s| s.load.in_flight() == 0), "a place was not given back");
}

const NOT_READY: &str = "error on selecting target pod: prefill pods are not ready: prefill=0, decode=0";

#[test]
fn a_partition_and_complete_rolesets() {
    let group = |id: &str, index: &str| pod(id, &[("roleset-name", "test"), (INDEX, index)], None);
    let rows: Vec<(&str, Vec<Worker>, &str)> = vec![
        ("A1", vec![of("p", "test"), of("d", "test")], "p+d"),
        ("A2", vec![of("p", "test"), of("d", "test"), pod("p0", &[], None)], "p+d"),
        (
            "A3",
            vec![
                of("p", "test"),
                of("d", "test"),
                of("x", "test"),
                pod("y", &[], None),
                pod("z", &[("role-name", "unknown")], None),
            ],
            "p+d",
        ),
        ("A5", vec![of("p", "test"), of("d", "test")], "p+d"),
        ("A6 invalid", vec![of("p", "test"), of("d", "test"), group("p0", "invalid")], "p+d"),
        ("A6 empty", vec![of("p", "test"), of("d", "test"), group("p0", "")], "p+d"),
        ("A6 -1", vec![of("p", "test"), of("d", "test"), group("p0", "-1")], "p+d"),
        ("A6 index 0", vec![group("p", "0"), group("d", "0")], "p+d"),
        ("A7", vec![of("d", "test")], NOT_READY),
        ("A8", vec![of("p", "test")], NOT_READY),
        ("A9", vec![group("p", "1"), group("d", "1")], NOT_READY),
        ("A9 empty", vec![], NOT_READY),
        ("two halves", vec![of("p", "one"), of("d", "two")], NOT_READY),
    ];
    for (case, workers, due) in rows {
        let fleet = fleet(workers);
        for seed in 0..8 {
            let mut desk = Desk { dice: Dice::new(seed), ..Desk::new(Knobs::default()) };
            assert_eq!(desk.chosen(&fleet, &ask(40, None)), due, "{case}");
        }
        at_rest(&fleet);
    }
}

#[test]
fn a_candidates_are_those_of_complete_rolesets() {
    let candidates = |workers: Vec<Worker>| {
        let fleet = fleet(workers);
        let (_, receipt) = Desk::new(Knobs::default()).place(&fleet, &ask(40, None)).unwrap();
        (receipt.prefill.scores.len(), receipt.decode.scores.len())
    };
    let a11 = vec![of("p1", "rs1"), of("d1", "rs1"), of("p2", "rs2"), of("d2", "rs2"), of("d3", "rs2")];
    assert_eq!(candidates(a11), (2, 3), "A11");
    let first = ["p1", "p2", "d1", "d2", "d3"].map(|id| of(id, "9svsx"));
    let second = ["p3", "p4", "d4", "d5"].map(|id| of(id, "v8h7g"));
    assert_eq!(candidates(first.into_iter().chain(second).collect()), (4, 5), "A12");
}

#[test]
fn a_engines_do_not_mix_and_names_are_not_ids() {
    let other = |id: &str| Worker { engine: Engine::Sglang, ..of(id, "b") };
    let mixed = fleet([of("p", "a"), of("d", "a"), other("p2"), other("d2")]);
    let mut desk = Desk::new(Knobs::default());
    let due = "error on selecting target pod: inconsistent LLM engines";
    assert_eq!(desk.chosen(&mixed, &ask(40, None)), due, "A13");
    let unknown = Worker { engine: Engine::Unspecified, ..of("d", "a") };
    assert_eq!(desk.chosen(&fleet([of("p", "a"), unknown]), &ask(40, None)), "p+d", "A14");

    let named = |id: &str, roleset: &str| {
        let mut w = of(id, roleset);
        w.labels.insert("pod_name".into(), "prefill-0".into());
        w
    };
    let twins = fleet([named("p-a", "rs"), named("p-b", "rs"), of("d", "rs")]);
    let busy = [seat(&twins, "p-a").load.take(), seat(&twins, "p-a").load.take()];
    let knobs = Knobs { prefill_score: PrefillScore::LeastRequest, ..Knobs::default() };
    assert_eq!(Desk::new(knobs).chosen(&twins, &ask(40, None)), "p-b+d", "A15");
    drop(busy);
}

fn bucketing() -> Knobs {
    Knobs { bucketing: true, ..Knobs::default() }
}

#[test]
fn b_buckets_and_combined_workers() {
    let no_bucket = |tokens: u64| {
        format!(
            "error on selecting target pod: no prompt-length bucket matches prompt length {tokens} and no \
             combined pods available"
        )
    };
    let short = || vec![ranged("p", "short", 0, 15), ranged("d", "short", 0, 15)];
    let with = |mut list: Vec<Worker>, more: Vec<Worker>| {
        list.extend(more);
        list
    };
    let rows: Vec<(&str, Vec<Worker>, u64, String)> = vec![
        (
            "B8",
            vec![
                ranged("p-ok", "rs", 0, 1_000_000),
                ranged("d-ok", "rs", 0, 1_000_000),
                ranged("p-blocked", "rs", 1_000_000, 2_000_000),
                ranged("d-blocked", "rs", 1_000_000, 2_000_000),
            ],
            10,
            "p-ok+d-ok".into(),
        ),
        ("B9", vec![ranged("p", "rs", 0, 100), ranged("d", "rs", 200, 300)], 10, no_bucket(10)),
        ("B10", vec![ranged("p", "rs", 200, 300), ranged("d", "rs", 0, 100)], 10, no_bucket(10)),
        ("B10 neither", vec![ranged("p", "rs", 200, 300), ranged("d", "rs", 200, 300)], 10, no_bucket(10)),
        (
            "B11",
            vec![
                ranged("p1", "rs1", 0, 100),
                ranged("d1", "rs1", 0, 100),
                ranged("p2", "rs2", 0, 100),
                ranged("d2", "rs2", 200, 300),
            ],
            10,
            "p1+d1".into(),
        ),
        ("B12", with(short(), vec![ranged("pm", "medium", 16, 32), combined("c", 0, 0)]), 20, "c".into()),
        ("B14", vec![ranged("p", "rs", 0, 1), ranged("d", "rs", 0, 1)], 2, no_bucket(2)),
        ("B15", with(short(), vec![combined("c", 5000, 0)]), 40, no_bucket(40)),
        ("B16", with(short(), vec![combined("c", 0, 0)]), 40, "c".into()),
        ("B18", vec![combined("c", 0, 0)], 40, "c".into()),
        ("D13: both at the bound, the pair", with(short(), vec![combined("c", 15, 0)]), 15, "p+d".into()),
    ];
    for (case, workers, tokens, due) in rows {
        let fleet = fleet(workers);
        let mut desk = Desk::new(bucketing());
        assert_eq!(desk.chosen(&fleet, &ask(40, Some(tokens))), due, "{case}");
        at_rest(&fleet);
    }
    let far = fleet([ranged("p", "rs", 99_999, 100_000), ranged("d", "rs", 99_999, 100_000)]);
    assert_eq!(Desk::new(Knobs::default()).chosen(&far, &told("hello", None)), "p+d", "B6");
    let alone = fleet([combined("c", 0, 0)]);
    assert_eq!(Desk::new(Knobs::default()).chosen(&alone, &ask(40, None)), NOT_READY, "B17");
    let tiers = fleet([
        ranged("p1", "short", 0, 15),
        ranged("d1", "short", 0, 15),
        ranged("p2", "medium", 16, 32),
        ranged("d2", "medium", 16, 32),
        combined("c", 0, 0),
    ]);
    let mut desk = Desk::new(bucketing());
    let chosen = [10, 20, 40].map(|tokens| desk.chosen(&tiers, &ask(40, Some(tokens))));
    assert_eq!(chosen, ["p1+d1", "p2+d2", "c"], "B20");
    seat(&tiers, "d1").pulse.set_status(Status::NotReady);
    assert_eq!(desk.chosen(&tiers, &ask(40, Some(10))), "c", "a decode that is down leaves no pair");
}

#[test]
fn b_overflow_to_an_idle_combined_worker() {
    type Queue = (f64, Option<f64>);
    let rows: [(&str, Queue, Queue, Queue, &str); 9] = [
        ("B21", (10.0, Some(5.0)), (1.0, Some(4.0)), (0.0, Some(8.0)), "c"),
        ("B22", (0.0, Some(8.0)), (10.0, Some(5.0)), (0.0, Some(8.0)), "c"),
        ("B23", (10.0, Some(5.0)), (1.0, Some(4.0)), (10.0, Some(5.0)), "p+d"),
        ("B24", (1.0, Some(4.0)), (1.0, Some(4.0)), (0.0, Some(8.0)), "p+d"),
        ("B26", (5.0, Some(5.0)), (0.0, Some(5.0)), (0.0, Some(8.0)), "p+d"),
        ("B27", (10.0, Some(5.0)), (0.0, Some(5.0)), (2.0, Some(8.0)), "p+d"),
        ("B28", (200.0, Some(100.0)), (30.0, Some(100.0)), (0.0, Some(200.0)), "c"),
        ("B28 busy", (200.0, Some(100.0)), (30.0, Some(100.0)), (100.0, Some(100.0)), "p+d"),
        ("B30", (0.0, None), (0.0, None), (0.0, None), "p+d"),
    ];
    for (case, p, d, c, due) in rows {
        let fleet = fleet([of("p", "rs"), of("d", "rs"), combined("c", 0, 0)]);
        for (id, (waiting, drain)) in [("p", p), ("d", d), ("c", c)] {
            let gauges = &seat(&fleet, id).gauges;
            gauges.waiting.set(Some(waiting));
            gauges.drain_rate.set(drain);
        }
        assert_eq!(Desk::new(bucketing()).chosen(&fleet, &ask(40, None)), due, "{case}");
    }
}

#[test]
fn g15_a_burst_spreads_exactly() {
    let fleet = fleet(["p1", "p2", "p3", "p4", "d1", "d2"].map(|id| of(id, "rs")));
    let knobs = Arc::new(Knobs { prefill_score: PrefillScore::LeastRequest, ..Knobs::default() });
    let strategy = Strategy::Cascade(Cascade::new(&knobs, &Tuning::default()));
    let routing = Routing::plain(&knobs);
    let held = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (fleet, strategy, routing, held) = (&fleet, &strategy, &routing, &held);
            scope.spawn(move || {
                let mut dice = Dice::new(seed);
                for _ in 0..32 {
                    let ask = ask(40, None);
                    let look = Look { routing: Some(routing), ..Look::new(fleet, &ask, NOW) };
                    let placement = strategy.place(&look, &mut dice).unwrap();
                    held.lock().unwrap().push(placement);
                }
            });
        }
    });
    let loads = ["p1", "p2", "p3", "p4"].map(|id| seat(&fleet, id).load.in_flight());
    assert_eq!(loads, [64; 4]);
    drop(held);
    at_rest(&fleet);
}

#[test]
fn retries_avoid_who_was_tried_and_windows_are_heeded() {
    let narrow = |id: &str| {
        let mut w = of(id, "rs");
        w.labels.insert("max_num_seqs".into(), "1".into());
        w
    };
    let fleet = fleet([of("p1", "rs"), of("p2", "rs"), narrow("d1"), narrow("d2")]);
    let mut desk = Desk::new(Knobs::default());
    let (first, _) = desk.place(&fleet, &ask(40, None)).unwrap();
    let Placement::Pair { prefill, decode } = &first else { panic!("no pair") };
    let tried = [prefill.seat.slot, decode.seat.slot];
    let (second, _) = desk.after(&fleet, &ask(40, None), &tried).unwrap();
    let Placement::Pair { prefill, decode } = &second else { panic!("no pair") };
    assert!(!tried.contains(&prefill.seat.slot) && !tried.contains(&decode.seat.slot));
    let full = desk.place(&fleet, &ask(40, None)).unwrap_err();
    assert!(matches!(full, Miss::Full(Fault::Shed { rooms: 1, .. })), "{full:?}");
    let mut wide = ask(40, None);
    wide.n = 2;
    let wide = desk.place(&fleet, &wide).unwrap_err();
    assert!(matches!(wide, Miss::Nobody(Fault::Shed { rooms: 2, widest: Some(1), .. })), "{wide:?}");
    drop(first);
    assert!(desk.after(&fleet, &ask(40, None), &[0, 1, 2, 3]).is_ok(), "rather a tried one than none");
    drop(second);
    at_rest(&fleet);
}

#[test]
fn h_charges_are_held_by_the_legs() {
    let fleet = fleet(["p1", "d1", "d2"].map(|id| of(id, "rs")));
    let knobs = Knobs {
        prefill_score: PrefillScore::TokenLoad,
        decode_score: DecodeScore::TokenLoad,
        ..Knobs::default()
    };
    let mut desk = Desk::new(knobs);
    let charged = |desk: &Desk, id: &str| desk.cascade().books().open().ledger.tokens(seat(&fleet, id).slot);
    let long = desk.place(&fleet, &ask(40_000, None)).unwrap().0;
    let Placement::Pair { prefill, decode } = long else { panic!("no pair") };
    let tokens = (ask(40_000, None).size / 4) as u64;
    let on = charged(&desk, "p1");
    assert_eq!((on.active, on.kv), (3500 + tokens, 3500 + tokens));
    let home = decode.seat.worker.id.clone();
    assert_eq!(charged(&desk, &home).decode, tokens);
    drop(prefill);
    let on = charged(&desk, "p1");
    assert_eq!((on.active, on.kv), (0, 3500 + tokens), "the prefill is done");
    let shorts = [(); 2].map(|()| desk.place(&fleet, &ask(400, None)).unwrap().0);
    for short in &shorts {
        let Placement::Pair { decode, .. } = short else { panic!("no pair") };
        assert_ne!(decode.seat.worker.id, home, "H22");
    }
    drop(decode);
    assert_eq!(charged(&desk, &home).decode, 0, "H23");
    drop(shorts);
    for id in ["p1", "d1", "d2"] {
        let left = charged(&desk, id);
        assert_eq!((left.active, left.kv, left.decode), (0, 0, 0), "H24 {id}");
    }
    at_rest(&fleet);
}

#[test]
fn l_who_names_the_strategy() {
    let config = |locked: &str, more: &str| {
        format!(
            r#"{{{locked}"profiles":{{"default":{{"routingStrategy":"random"}},"quick":{{"routingStrategy":"pd",
            "routingConfig":{{"pd":{{"minMatchPct":40,"tokenLoadKVWeight":0}}}}}}}}{more}}}"#
        )
    };
    let plain = config("", "");
    let locked = config(r#""lockedRoutingStrategy":"pd","#, "");
    let deaf = config("", r#","authoritativeRoutingPolicy":true"#);
    let broken = config(r#""lockedRoutingStrategy":"invalid-strategy","#, "");
    let rows: Vec<(&str, &str, Vec<(Wish, &str)>, &str)> = vec![
        ("L1", &locked, vec![(Wish::Strategy, "throughput")], "pd"),
        ("L2", &plain, vec![(Wish::Strategy, "throughput")], "throughput"),
        ("L2 pd", &plain, vec![(Wish::Strategy, "pd")], "pd"),
        ("L3", &plain, vec![], "random"),
        ("L4", "", vec![], "least-request"),
        ("L5", &broken, vec![], "incorrect routing strategy invalid-strategy"),
        ("L7", &plain, vec![(Wish::Profile, "missing")], "random"),
        ("L7 found", &plain, vec![(Wish::Profile, "quick")], "pd"),
        ("L11", &plain, vec![(Wish::Strategy, "  ")], "incorrect routing strategy   "),
        ("L17", &deaf, vec![(Wish::Strategy, "pd"), (Wish::Profile, "quick")], "random"),
    ];
    let knobs = Arc::new(Knobs { routing_algorithm: Some("least-request".into()), ..Knobs::default() });
    for (case, config, wishes, due) in rows {
        let config = Some(config).filter(|c| !c.is_empty());
        let fleet = fleet([pod("p", &[("roleset-name", "rs")], Some("{")), pod("d", &[], config)]);
        let got = match resolve(&fleet, &wishing(ask(40, None), &wishes), &knobs) {
            Ok(routing) => routing.ways.unwrap().to_string(),
            Err(fault) => fault.answer().message,
        };
        assert!(got == due || got.starts_with(&format!("{due}. ")), "{case}: {got}");
    }
    let fleet = fleet([pod("p", &[("roleset-name", "rs")], Some(&plain))]);
    let quick = resolve(&fleet, &wishing(ask(40, None), &[(Wish::Profile, "quick")]), &knobs).unwrap();
    assert_eq!((quick.profile.as_deref(), quick.auto), (Some("quick"), false));
    assert_eq!((quick.knobs.min_match_pct, quick.knobs.kv_weight), (40.0, 0.3), "L15");
    let nobody = resolve(&self::fleet([]), &ask(40, None), &Arc::default()).unwrap();
    assert!(nobody.ways.is_none() && nobody.profile.is_none());
}

#[test]
fn g11_an_unknown_decode_policy_routes_nothing() {
    let config = r#"{"profiles":{"default":{"routingStrategy":"pd",
        "routingConfig":{"decodeScorePolicy":"not_a_real_policy"}}}}"#;
    let fleet = fleet([pod("p", &[("roleset-name", "rs")], Some(config))]);
    let fault = resolve(&fleet, &ask(40, None), &Arc::default()).unwrap_err();
    assert!(fault.answer().message.contains("unknown decodeScorePolicy"));
    assert_eq!(fault.status(), 503);
    let random = wishing(ask(40, None), &[(Wish::Strategy, "random")]);
    assert!(resolve(&fleet, &random, &Arc::default()).is_ok(), "only the cascade scores decodes");
}

#[test]
fn the_order_of_the_list_decides_nothing() {
    let workers = || ["p1", "p2", "p3", "d1", "d2", "d3"].map(|id| of(id, "rs"));
    let spread = |reverse: bool| -> BTreeSet<String> {
        let mut list: Vec<Worker> = workers().into();
        if reverse {
            list.reverse();
        }
        let fleet = fleet(list);
        (0..200)
            .map(|seed| {
                let mut desk = Desk { dice: Dice::new(seed), ..Desk::new(Knobs::default()) };
                format!("{seed} {}", desk.chosen(&fleet, &ask(40, None)))
            })
            .collect()
    };
    assert_eq!(spread(false), spread(true), "same seed, same choice");
}
