//! `external-filter`: whoever serves the request, it goes to a worker that the client's selector selects.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::ask::Ask;
use baton_core::dice::Dice;
use baton_core::fault::Fault;
use baton_core::fleet::{Engine, Fleet, Role, Seat, Status};
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::cascade::resolve::{Routing, resolve};
use baton_core::place::receipt::Receipt;
use baton_core::place::{
    Cascade, Legwise, Look, Miss, Placement, Policy, PolicyName, Strategies, Strategy, Tuning, Whole,
};
use baton_core::prefix::{Memory, PrefixIndex};
use baton_core::selector::Selector;
use baton_core::wishes::{Wish, Wishes};
use proptest::prelude::*;
use proptest::strategy::Strategy as _;

use crate::yard::{RESTED, ask, chosen, fleet, ids, seat};

fn labelled(slot: u32, id: &str, role: Role, labels: &[(&str, &str)]) -> Seat {
    let mut seat = seat(slot, id, role);
    let mut worker = (*seat.worker).clone();
    worker.labels.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    seat.worker = Arc::new(worker);
    seat
}

/// Two pairs in rolesets of their own and two whole workers, one of each in tier `gold`.
fn tiers() -> Fleet {
    let rows = [("p0", Role::Prefill), ("d0", Role::Decode), ("w0", Role::Whole)];
    let of = |n: u32, tier: &'static str| {
        (0..).zip(rows).map(move |(at, (id, role)): (u32, _)| {
            let id = id.replace('0', &n.to_string());
            let set = format!("rs{n}");
            labelled(3 * n + at, &id, role, &[("tier", tier), ("roleset-name", &set)])
        })
    };
    fleet(of(0, "gold").chain(of(1, "iron")))
}

fn strategies() -> Strategies {
    let (knobs, tuning) = (Arc::new(Knobs::default()), Tuning::default());
    let policy = || Policy::new(PolicyName::LeastLoad);
    let index = Memory::Tree(Arc::new(PrefixIndex::new(tuning.index_bytes)));
    Strategies {
        own: Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() }),
        pd: Strategy::Cascade(Cascade::new(&knobs, &tuning)),
        whole: Strategy::Whole(Whole::new(&knobs, &tuning, index)),
    }
}

fn asking(strategy: Option<&str>, filter: Option<&str>) -> Ask {
    let mut asked = ask(Some("m"));
    let mut wishes = Wishes::default();
    if let Some(name) = strategy {
        wishes.hear(Wish::Strategy, name.as_bytes());
    }
    if let Some(text) = filter {
        wishes.hear(Wish::Filter, text.as_bytes());
    }
    asked.wishes = Some(Box::new(wishes));
    asked
}

fn routed(fleet: &Fleet, asked: &Ask) -> Result<Routing, Fault> {
    resolve(fleet, asked, &Arc::default())
}

fn decide(fleet: &Fleet, asked: &Ask, seed: u64) -> (Result<Placement, Miss>, Receipt) {
    let (strategies, routing) = (strategies(), routed(fleet, asked).unwrap());
    let look = Look { routing: Some(&routing), ..Look::new(fleet, asked, RESTED) };
    let look = Look { receipt: Receipt::on().into(), ..look };
    let placed = strategies.of(&routing).place(&look, &mut Dice::new(seed));
    (placed, look.into_receipt())
}

/// Nobody's strategy, the cascade, one worker.
const WAYS: [Option<&str>; 4] = [None, Some("pd"), Some("least-request"), Some("random")];

#[test]
fn only_selected_workers_serve_whoever_decides() {
    for way in WAYS {
        for (filter, tier) in
            [("tier=iron", "iron"), ("tier!=iron", "gold"), ("tier in (iron),!nobody", "iron")]
        {
            for seed in 0..10 {
                let (placed, receipt) = decide(&tiers(), &asking(way, Some(filter)), seed);
                let placed = placed.unwrap();
                assert!(
                    chosen(&placed).iter().all(|s| s.worker.labels["tier"] == tier),
                    "{way:?} {filter}: {placed:?}"
                );
                let step = &receipt.steps[0];
                assert_eq!((step.name, step.fired), ("external_filter", true));
                assert_eq!(step.detail, format!("{filter} selects 3 of 6 workers"));
                let out = receipt.prefill.scores.iter().chain(&receipt.decode.scores);
                let out: Vec<_> =
                    out.filter(|s| s.skipped.as_deref() == Some("left out by external-filter")).collect();
                assert!(
                    !out.is_empty() && out.iter().all(|s| !ids(&placed).contains(&s.worker.as_str())),
                    "{way:?}"
                );
            }
        }
        let (placed, receipt) = decide(&tiers(), &asking(way, None), 1);
        assert!(placed.is_ok() && receipt.steps.iter().all(|step| step.name != "external_filter"));
        let (placed, _) = decide(&tiers(), &asking(way, Some("")), 1);
        assert!(placed.is_ok(), "an empty selector selects everything");
    }
}

#[test]
fn a_filter_that_leaves_nobody_is_told_apart_from_a_fleet_that_is_down() {
    for way in WAYS {
        let (placed, receipt) = decide(&tiers(), &asking(way, Some("tier=bronze")), 1);
        assert_eq!(
            placed.unwrap_err(),
            Miss::Nobody(Fault::FilteredOut { selector: "tier=bronze".into() }),
            "{way:?}"
        );
        assert_eq!(receipt.steps[0].detail, "tier=bronze selects 0 of 6 workers");
        assert_eq!(receipt.prefill.scores.len() + receipt.decode.scores.len(), 6);
        let down = tiers();
        down.seats().for_each(|seat| seat.pulse.set_status(Status::NotReady));
        let (placed, _) = decide(&down, &asking(way, Some("tier=bronze")), 1);
        assert!(!matches!(placed, Err(Miss::Nobody(Fault::FilteredOut { .. }))), "{way:?}: {placed:?}");
    }
    let answer = Fault::FilteredOut { selector: "a=b".into() }.answer();
    assert_eq!((answer.status, answer.flag), (503, Some(("x-error-no-model-backends", "true".into()))));
    assert!(answer.message.contains("\"a=b\""), "{}", answer.message);
}

/// One leg is left, so there is no pair.
#[test]
fn a_filter_that_leaves_one_leg_is_a_missing_leg() {
    let (placed, _) = decide(&tiers(), &asking(Some("pd"), Some("tier=gold,role!=x,roleset-name=rs1")), 1);
    assert!(matches!(placed, Err(Miss::Nobody(Fault::FilteredOut { .. }))));
    let fleet = fleet([
        labelled(0, "p", Role::Prefill, &[("a", "1"), ("roleset-name", "r")]),
        labelled(1, "d", Role::Decode, &[("roleset-name", "r")]),
    ]);
    let (placed, _) = decide(&fleet, &asking(Some("pd"), Some("a")), 1);
    assert!(matches!(placed, Err(Miss::Nobody(Fault::Unroutable { .. }))), "{placed:?}");
    let (placed, _) = decide(&fleet, &asking(None, Some("a")), 1);
    assert!(matches!(placed, Err(Miss::Nobody(Fault::NoWorker { registered: true, .. }))), "{placed:?}");
}

/// AIBrix looks for engines that differ among those that the filter leaves.
#[test]
fn engines_need_to_be_the_same_after_the_filter_only() {
    let mixed = || {
        let fleet = tiers();
        let seats = fleet.seats().map(|seat| {
            let mut seat = Seat::clone(seat);
            let mut worker = (*seat.worker).clone();
            worker.engine = if worker.labels["tier"] == "gold" { Engine::Vllm } else { Engine::Sglang };
            seat.worker = Arc::new(worker);
            seat
        });
        self::fleet(seats.collect::<Vec<_>>())
    };
    let (placed, _) = decide(&mixed(), &asking(Some("pd"), None), 1);
    let Err(Miss::Nobody(Fault::Unroutable { reason })) = placed else { panic!("{placed:?}") };
    assert_eq!(reason, "inconsistent LLM engines");
    let (placed, _) = decide(&mixed(), &asking(Some("pd"), Some("tier=gold")), 1);
    assert_eq!(ids(&placed.unwrap()), ["p0", "d0"]);
}

#[test]
fn what_is_no_selector_is_a_mistake_of_the_client_unless_it_is_not_heard() {
    let fault = routed(&tiers(), &asking(None, Some("tier=gold iron"))).unwrap_err();
    let answer = fault.answer();
    assert_eq!((answer.status, answer.flag), (400, Some(("x-error-routing", "true".into()))));
    assert_eq!(answer.param.as_deref(), Some("external-filter"));
    assert!(
        answer.message.starts_with("filter pods by label selector failed: found \"iron\""),
        "{}",
        answer.message
    );
    let config = r#"{"authoritativeRoutingPolicy":true,"profiles":{"default":{}}}"#;
    let mut pod = labelled(9, "w9", Role::Whole, &[]);
    let mut worker = (*pod.worker).clone();
    worker.annotations.insert("model.aibrix.ai/config".into(), config.into());
    pod.worker = Arc::new(worker);
    for filter in ["tier=gold iron", "tier=bronze"] {
        let routing = routed(&fleet([pod.clone()]), &asking(None, Some(filter))).unwrap();
        assert!(routing.sieve.is_none() && routing.hidden, "{filter}");
    }
}

/// A reference that reads terms one by one, of texts that it wrote itself.
#[derive(Clone, Debug)]
struct Term {
    key: &'static str,
    op: usize,
    values: Vec<&'static str>,
    blank: &'static str,
}

const OPS: [&str; 7] = ["=", "==", "!=", "in", "notin", "", "!"];

impl Term {
    fn text(&self) -> String {
        let Term { key, op, values, blank } = self;
        match OPS[*op] {
            "" => format!("{blank}{key}{blank}"),
            "!" => format!("{blank}!{blank}{key}"),
            op @ ("in" | "notin") => format!("{key} {op}{blank}({})", values.join(&format!("{blank},"))),
            op => format!("{key}{blank}{op}{blank}{}{blank}", values[0]),
        }
    }

    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let label = labels.get(self.key).map(String::as_str);
        match OPS[self.op] {
            "" => label.is_some(),
            "!" => label.is_none(),
            "=" | "==" => label == Some(self.values[0]),
            "!=" => label != Some(self.values[0]),
            "in" => label.is_some_and(|l| self.values.contains(&l)),
            _ => label.is_none_or(|l| !self.values.contains(&l)),
        }
    }
}

fn any_term() -> impl proptest::strategy::Strategy<Value = Term> {
    let values = prop::collection::vec(prop::sample::select(vec!["", "a", "b", "in", "a.b_c-D"]), 1..4);
    let key = prop::sample::select(vec!["x", "y", "in", "notin", "example.com/z"]);
    let blank = prop::sample::select(vec!["", " ", "\t ", "\n"]);
    (key, 0..OPS.len(), values, blank).prop_map(|(key, op, mut values, blank)| {
        // An empty set is no set; one with nothing in it is written as two.
        if values.iter().all(|v| v.is_empty()) {
            values.push("a");
        }
        Term { key, op, values, blank }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_selector_selects_what_its_terms_say(
        terms in prop::collection::vec(any_term(), 0..6),
        labels in prop::collection::btree_map(
            prop::sample::select(vec!["x", "y", "in", "notin", "example.com/z"]),
            prop::sample::select(vec!["", "a", "b", "in", "c"]),
            0..5,
        ),
    ) {
        let text = terms.iter().map(Term::text).collect::<Vec<_>>().join(",");
        let labels: BTreeMap<String, String> =
            labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let selector = Selector::parse(&text);
        prop_assert!(selector.is_ok(), "{:?}: {:?}", text, selector);
        let selector = selector.unwrap();
        prop_assert_eq!(selector.selects(&labels), terms.iter().all(|t| t.holds(&labels)), "{:?}", text);
        prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector));
    }

    #[test]
    fn any_text_is_a_selector_or_told_why_not(text in "[a-z=!,() \t<>./_-]{0,40}|\\PC{0,40}") {
        match Selector::parse(&text) {
            Ok(selector) => prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector), "{:?}", text),
            Err(bad) => prop_assert!(!bad.to_string().is_empty()),
        }
    }
}
