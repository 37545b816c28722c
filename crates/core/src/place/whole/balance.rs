//! `load-balance`: the work that each has, by how fast it works off, and dearer as its memory fills (AIBrix).
//!
//! `(requests + weight × waiting) / pace × (1 + alpha × used²)`. How fast a worker is, is what it has generated in a second
//! while it had anything to do; where nobody says that, how many requests it finishes, which the gateway counts itself;
//! and where that is not known either, all are taken to be alike. One of which it is not known is as fast as the others
//! are on the average, so that it gets requests by which it can be known.

use std::sync::Arc;

use smallvec::SmallVec;

use super::rules::Rules;
use super::score::{Values, Worth};
use crate::fleet::Seat;

/// All candidates.
pub struct Balance {
    pub worth: Worth,
    /// Memory in use, by which equals are told apart.
    pub memory: SmallVec<[f64; 16]>,
    /// Those that have too little left.
    pub full: SmallVec<[bool; 16]>,
}

pub fn of(seats: &[&Arc<Seat>], loads: &[u32], rules: &Rules, explain: bool) -> Balance {
    let paces = paces(seats);
    let device = |seat: &Seat| seat.gauges.kv_usage.get().unwrap_or_default().clamp(0.0, 1.0);
    let full: SmallVec<[bool; 16]> =
        seats.iter().map(|seat| device(seat) > 1.0 - rules.kv_critical_free).collect();
    let memory =
        seats.iter().map(|seat| device(seat) + seat.gauges.host_kv_usage.get().unwrap_or_default()).collect();
    let queued = |seat: &Seat| match rules.queued_weight {
        weight if weight > 0.0 => weight * seat.gauges.waiting.get().unwrap_or_default(),
        _ => 0.0,
    };
    let work: SmallVec<[f64; 16]> =
        seats.iter().zip(loads).map(|(seat, load)| f64::from(*load) + queued(seat)).collect();
    let pressure = |seat: &Seat| 1.0 + rules.kv_alpha * device(seat).powi(2);
    let score = |at: usize| work[at] / paces[at] * pressure(seats[at]);
    // In a list one that is full gets nothing from this strategy.
    let values: Values = (0..seats.len()).map(|at| (!full[at]).then(|| score(at))).collect();
    let parts = match explain {
        true => vec![
            ("work", work.iter().copied().map(Some).collect()),
            ("pace", paces.iter().copied().map(Some).collect()),
            ("kv_pressure", seats.iter().map(|seat| Some(pressure(seat))).collect()),
        ],
        false => Vec::new(),
    };
    Balance { worth: Worth { values, lowest: true, parts }, memory, full }
}

/// How fast each is, all in the same measure.
fn paces(seats: &[&Arc<Seat>]) -> SmallVec<[f64; 16]> {
    let told = |of: fn(&Seat) -> Option<f64>| -> Option<SmallVec<[f64; 16]>> {
        let known = || seats.iter().filter_map(|seat| of(seat)).filter(|pace| *pace > 0.0);
        let n = known().count();
        let mean = known().sum::<f64>() / n.max(1) as f64;
        let own = |seat: &&Arc<Seat>| of(seat).filter(|pace| *pace > 0.0).unwrap_or(mean);
        (n > 0).then(|| seats.iter().map(own).collect())
    };
    told(|seat| seat.gauges.pace.get())
        .or_else(|| told(|seat| seat.gauges.drain_rate.get()))
        .unwrap_or_else(|| SmallVec::from_elem(1.0, seats.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Role, Worker};

    /// Pace, share of memory in use, requests that wait.
    type Told = (Option<f64>, Option<f64>, Option<f64>);

    fn seats(told: &[Told]) -> Vec<Arc<Seat>> {
        let seat = |(slot, (pace, kv, waiting)): (u32, &Told)| {
            let seat =
                Seat::new(slot, Worker::new(format!("w{slot}"), format!("http://h:{slot}"), Role::Whole));
            seat.gauges.pace.set(*pace);
            seat.gauges.kv_usage.set(*kv);
            seat.gauges.waiting.set(*waiting);
            Arc::new(seat)
        };
        (0..).zip(told).map(seat).collect()
    }

    fn balance(told: &[Told], loads: &[u32], rules: &Rules) -> Balance {
        let seats = seats(told);
        of(&seats.iter().collect::<Vec<_>>(), loads, rules, true)
    }

    /// The example of AIBrix's page.
    #[test]
    fn the_fastest_wins_with_the_most_requests() {
        let told =
            [(6000.0, 0.5), (4000.0, 0.7), (3000.0, 0.4)].map(|(pace, kv)| (Some(pace), Some(kv), Some(9.0)));
        let all = balance(&told, &[30, 20, 25], &Rules::default());
        let due = [0.0075, 0.0099, 0.011];
        for (value, due) in all.worth.values.iter().zip(due) {
            assert!((value.unwrap() - due).abs() < 1e-9, "{:?}", all.worth.values);
        }
        let term = |name: &str| all.worth.parts.iter().find(|(own, _)| *own == name).unwrap().1[0];
        assert_eq!((term("work"), term("pace"), term("kv_pressure")), (Some(30.0), Some(6000.0), Some(1.5)));
    }

    #[test]
    fn who_is_not_known_is_like_the_others_and_who_is_full_is_out() {
        let told = [
            (Some(1000.0), None, None),
            (None, Some(0.95), None),
            (Some(3000.0), Some(0.9), None),
            (None, None, None),
        ];
        let all = balance(&told, &[2, 2, 2, 2], &Rules::default());
        assert_eq!(all.full.to_vec(), [false, true, false, false], "a tenth that is free is enough");
        assert_eq!(all.worth.values[1], None);
        assert_eq!((all.worth.values[0], all.worth.values[3]), (Some(0.002), Some(0.001)));
        let nothing = balance(&[(None, None, None); 2], &[3, 0], &Rules::default());
        assert_eq!(nothing.worth.values.to_vec(), [Some(3.0), Some(0.0)]);
    }

    #[test]
    fn what_waits_in_the_engine_counts_if_it_is_asked_to() {
        let told = [(None, None, Some(4.0))];
        let rules = |queued_weight| Rules { queued_weight, ..Rules::default() };
        assert_eq!(balance(&told, &[1], &rules(0.0)).worth.values[0], Some(1.0));
        assert_eq!(balance(&told, &[1], &rules(0.5)).worth.values[0], Some(3.0));
    }

    /// Requests in a second, where nobody says tokens.
    #[test]
    fn the_gateway_knows_how_fast_requests_go() {
        let seats = seats(&[(None, None, None), (None, None, None)]);
        seats[0].gauges.drain_rate.set(Some(4.0));
        seats[1].gauges.drain_rate.set(Some(0.0));
        let all = of(&seats.iter().collect::<Vec<_>>(), &[2, 2], &Rules::default(), false);
        assert_eq!(all.worth.values.to_vec(), [Some(0.5), Some(0.5)], "one that stands still is not slow");
    }
}
