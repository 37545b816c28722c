//! What policies write on the receipt is what they did, and writing it changes nothing.

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::Fleet;
use baton_core::place::receipt::Receipt;
use baton_core::place::{Legwise, Look, Placement, Policy, PolicyName, Reports, Strategy, Tuning};
use baton_core::time::Instant;
use proptest::prelude::*;

use crate::yard::{POLICIES, ids, pairs};

fn chat(text: &str) -> Ask {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    Ask::read(Api::Chat, &Envelope::parse(body.into(), &BodyLimits::default()).unwrap()).unwrap()
}

fn strategy(name: PolicyName, wanted: bool) -> Strategy {
    let tuning = Tuning { reports: Reports { wanted, ..Reports::default() }, ..Tuning::default() };
    let policy = || Policy::tuned(name, tuning.clone());
    Strategy::Legwise(Legwise { prefill: policy(), decode: policy(), whole: policy() })
}

fn place(
    fleet: &Fleet,
    strategy: &Strategy,
    (ask, at): (&Ask, u64),
    receipt: Receipt,
    dice: &mut Dice,
) -> (Placement, Receipt) {
    let look = Look { receipt: receipt.into(), ..Look::new(fleet, ask, Instant::from_micros(at)) };
    let mut placement = strategy.place(&look, dice).unwrap();
    if let Placement::Pair { prefill, decode } = &mut placement {
        prefill.computed();
        decode.computed();
    }
    (placement, look.into_receipt())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_receipt_tells_what_was_done_and_changes_nothing(
        name in prop::sample::select(POLICIES.to_vec()),
        run in prop::collection::vec((0..4u64, 1..30usize, any::<bool>()), 1..12),
        waiting in prop::collection::vec(prop::option::of(0..12u8), 5),
        wanted: bool,
        seed: u64,
    ) {
        let go = |on: bool| {
            let (fleet, strategy, mut dice) = (pairs(3, 2), strategy(name, wanted), Dice::new(seed));
            for (seat, waiting) in fleet.seats().zip(&waiting) {
                seat.gauges.waiting.set(waiting.map(f64::from));
            }
            let (mut held, mut said) = (vec![], vec![]);
            for (at, (text, len, stays)) in (1u64..).zip(&run) {
                let ask = chat(&format!("{text} ").repeat(40 * len));
                let receipt = if on { Receipt::on() } else { Receipt::off() };
                let (placement, receipt) = place(&fleet, &strategy, (&ask, at * 1000), receipt, &mut dice);
                let ids: Vec<String> = ids(&placement).into_iter().map(str::to_owned).collect();
                check(name, &ids, &receipt, on)?;
                said.push(ids);
                if *stays {
                    held.push(placement);
                }
            }
            Ok::<_, TestCaseError>(said)
        };
        prop_assert_eq!(go(true)?, go(false)?);
    }
}

fn check(name: PolicyName, ids: &[String], receipt: &Receipt, on: bool) -> Result<(), TestCaseError> {
    if !on {
        prop_assert_eq!(receipt, &Receipt::off());
        return Ok(());
    }
    prop_assert_eq!(&receipt.strategy, "legwise");
    for (id, leg, step) in [(&ids[0], &receipt.prefill, 0), (&ids[1], &receipt.decode, 1)] {
        let step = &receipt.steps[step];
        prop_assert!(
            step.fired && step.detail.starts_with(&format!("{}: {id} of ", name.as_str())),
            "{step:?}"
        );
        let own = leg.scores.iter().find(|s| s.worker == *id).unwrap();
        prop_assert!(leg.tied.contains(id), "{:?}", leg.tied);
        prop_assert!(
            leg.scores.iter().all(|s| s.score.is_finite() && s.terms.iter().all(|(_, x)| x.is_finite()))
        );
        if matches!(name, PolicyName::LeastLoad | PolicyName::CacheAware) {
            let may = leg.scores.iter().filter(|s| s.skipped.is_none());
            let least = may.map(|s| s.score).fold(f64::INFINITY, f64::min);
            prop_assert!(own.score <= least + 1e-6 || name == PolicyName::CacheAware, "{:?}", leg.scores);
        }
    }
    Ok(())
}

#[test]
fn a_receipt_of_cache_aware_says_what_was_known() {
    let (fleet, strategy, mut dice) = (pairs(2, 1), strategy(PolicyName::CacheAware, false), Dice::new(1));
    let ask = chat(&"word ".repeat(400));
    let (first, _) = place(&fleet, &strategy, (&ask, 1), Receipt::on(), &mut dice);
    let home = ids(&first)[0].to_owned();
    drop(first);
    let (_, receipt) = place(&fleet, &strategy, (&ask, 2), Receipt::on(), &mut dice);
    let term = |worker: &str, name: &str| {
        let score = receipt.prefill.scores.iter().find(|s| s.worker == worker).unwrap();
        score.terms.iter().find(|(term, _)| *term == name).unwrap().1
    };
    let other = if home == "p0" { "p1" } else { "p0" };
    assert_eq!((term(&home, "queued_tokens"), term(other, "cached_tokens")), (0.0, 0.0));
    let prompt = term(&home, "prompt_tokens");
    assert!(term(&home, "cached_tokens") > prompt * 0.9 && prompt > 500.0, "{receipt:?}");
    assert_eq!(receipt.prefill.tied, [home.as_str()]);
    assert_eq!(
        receipt.steps[0].detail,
        format!("cache_aware: {home} of 2; index of what was sent, events: none")
    );
}
