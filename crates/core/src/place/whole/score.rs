//! What each strategy makes of each worker: plain numbers, or none where nothing is known.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::cascade::score::limit;
use super::super::cascade::words::Way;
use super::rules::Rules;
use super::{Sight, balance, fair, few, said};
use crate::dice::Dice;
use crate::fleet::Seat;

/// One number for each worker, in their order.
pub type Values = SmallVec<[Option<f64>; 16]>;

/// What a strategy says.
pub struct Worth {
    pub values: Values,
    /// The lowest is the best, or the highest.
    pub lowest: bool,
    /// What the values are made of, for a receipt that somebody reads.
    pub parts: Vec<(&'static str, Values)>,
}

impl Worth {
    fn lowest(values: Values) -> Worth {
        Worth { values, lowest: true, parts: Vec::new() }
    }

    fn highest(values: Values) -> Worth {
        Worth { values, lowest: false, parts: Vec::new() }
    }
}

/// Each of these workers by one strategy. `loads` are their requests in flight.
pub fn each(way: Way, seats: &[&Arc<Seat>], loads: &[u32], sight: &Sight<'_>, dice: &mut Dice) -> Worth {
    let (rules, explain) = (&sight.knobs.whole, sight.explain);
    match way {
        Way::LeastRequest => Worth::lowest(loads.iter().map(|load| Some(f64::from(*load))).collect()),
        Way::LeastRequestTopK => {
            Worth::lowest(few::of(seats, loads, rules, sight.look.now, dice).values(rules, dice))
        }
        Way::PowerOfTwo => Worth::lowest(of_two(loads, sight.turn, dice)),
        Way::LoadBalance => balance::of(seats, loads, rules, explain).worth,
        Way::LeastLatency => said::latency(seats, loads, explain),
        Way::LeastKvCache => Worth::lowest(said::memory(seats, loads, true)),
        Way::LeastGpuCache => Worth::lowest(said::memory(seats, loads, false)),
        Way::LeastUtilization => Worth::lowest(said::utilization(seats, loads)),
        Way::LeastBusyTime => Worth::lowest(said::busy(seats, loads)),
        Way::Throughput => Worth::lowest(seats.iter().map(|seat| said::tokens(seat)).collect()),
        Way::PrefixCache => Worth::highest(matched(seats, loads, sight)),
        Way::SessionAffinity => {
            let own = |seat: &&Arc<Seat>| Some(f64::from(u8::from(sight.home == Some(seat.slot))));
            Worth::highest(seats.iter().map(own).collect())
        }
        Way::VtcBasic => fair::row(seats, loads, (sight.usage, &rules.vtc), dice, explain),
        Way::Random | Way::Pd => Worth::highest(seats.iter().map(|_| Some(dice.fraction())).collect()),
    }
}

/// Two by their loads, nothing of the others: the one whose turn it is, and any other by chance. Of two that are as good
/// it is the first, so that no worker is left out of a burst.
fn of_two(loads: &[u32], turn: usize, dice: &mut Dice) -> Values {
    let n = loads.len();
    let a = turn.checked_rem(n).unwrap_or_default();
    let b = (a + 1 + dice.below(n.saturating_sub(1))) % n.max(1);
    let drawn = |at: usize, load: u32| at == a || at == b && load != loads[a];
    loads.iter().enumerate().map(|(at, load)| drawn(at, *load).then_some(f64::from(*load))).collect()
}

/// How much of the prompt each has, in whole percent; nothing of one that has far more requests than the others.
fn matched(seats: &[&Arc<Seat>], loads: &[u32], sight: &Sight<'_>) -> Values {
    let Some(held) = &sight.prompt else { return Values::from_elem(Some(0.0), seats.len()) };
    let most = limit(loads, sight.knobs.deviations);
    let idlest = loads.iter().copied().min().unwrap_or_default();
    let uneven = uneven(loads, &sight.knobs.whole);
    let counts = |load: u32| f64::from(load) <= most && (!uneven || load == idlest);
    let each = |(seat, load): (&&Arc<Seat>, &u32)| {
        let percent = if counts(*load) { held.percent(seat) } else { 0 };
        Some(f64::from(percent))
    };
    seats.iter().zip(loads).map(each).collect()
}

/// `prefix-cache` heeds prompts among the idlest alone when the busiest has far more (AIBrix).
fn uneven(loads: &[u32], rules: &Rules) -> bool {
    let (Some(most), Some(least)) = (loads.iter().max(), loads.iter().min()) else { return false };
    let mean = loads.iter().map(|load| f64::from(*load)).sum::<f64>() / loads.len() as f64;
    f64::from(*most) > rules.uneven_factor * (mean + 1.0) && u64::from(most - least) >= rules.uneven_gap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_uneven_by_factor_and_gap() {
        for (loads, expected) in [
            (&[0, 0, 0, 9][..], true),
            (&[0, 0, 0, 7], false),
            (&[10, 10, 10, 18], false),
            (&[8, 0], false),
            (&[0], false),
            (&[], false),
        ] {
            assert_eq!(uneven(loads, &Rules::default()), expected, "{loads:?}");
        }
    }

    #[test]
    fn two_are_drawn_and_never_one_twice() {
        let mut dice = Dice::new(1);
        let mut seen = [0; 3];
        for turn in 0..300 {
            let drawn = of_two(&[5, 6, 7], turn, &mut dice);
            assert_eq!(drawn.iter().flatten().count(), 2);
            drawn.iter().zip(&mut seen).for_each(|(value, n)| *n += usize::from(value.is_some()));
        }
        assert!(seen.iter().all(|n| (150..250).contains(n)), "{seen:?}");
        assert_eq!(of_two(&[4, 4], 3, &mut dice).as_slice(), [None, Some(4.0)], "the one whose turn it is");
        assert_eq!(of_two(&[4], 7, &mut dice).as_slice(), [Some(4.0)]);
        assert!(of_two(&[], 0, &mut dice).is_empty());
    }
}
