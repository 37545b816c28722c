//! What several strategies make of each worker, on one scale.
//!
//! Each strategy's best worker gets 1 and its worst 0, the others stand between by proportion; one of which it knows
//! nothing gets 0. The weighted mean of these decides, the highest wins (AIBrix). Among equals the one with the fewest
//! requests is taken, and among those each is as likely. Where a strategy has a word on equals of its own, that counts
//! before their requests.

use smallvec::SmallVec;

use super::super::cascade::words::Way;
use super::score::Worth;
use crate::dice::Dice;

/// Shares that differ by less are equal: the same numbers added up in the same order may still be off by a rounding.
const EQUAL: f64 = 1e-12;

/// All workers of one choice, in their order.
pub struct Blended {
    /// Requests in flight when the choice was made.
    pub loads: SmallVec<[u32; 16]>,
    sums: SmallVec<[f64; 16]>,
    weights: f64,
    /// What each strategy said, for the receipt.
    told: SmallVec<[(Way, Worth); 2]>,
    /// Why one is taken only if there is nobody else.
    over: SmallVec<[Option<&'static str>; 16]>,
    /// Of equals, the ones with the least of this. Empty: nobody asks for that.
    equals: SmallVec<[f64; 16]>,
}

impl Blended {
    pub fn new(loads: SmallVec<[u32; 16]>) -> Blended {
        let n = loads.len();
        Blended {
            loads,
            sums: SmallVec::from_elem(0.0, n),
            weights: 0.0,
            told: SmallVec::new(),
            over: SmallVec::from_elem(None, n),
            equals: SmallVec::new(),
        }
    }

    /// One more strategy's say.
    pub fn add(&mut self, way: Way, weight: u32, worth: Worth) {
        let known = || worth.values.iter().flatten().copied().filter(|value| value.is_finite());
        let (least, most) =
            (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        let share = |value: f64| match most - least {
            span if span > 0.0 && worth.lowest => (most - value) / span,
            span if span > 0.0 => (value - least) / span,
            _ => 1.0,
        };
        for (sum, value) in self.sums.iter_mut().zip(&worth.values) {
            if let Some(value) = value.filter(|value| value.is_finite()) {
                *sum += f64::from(weight) * share(value);
            }
        }
        self.weights += f64::from(weight);
        self.told.push((way, worth));
    }

    /// These are taken only if there is nobody else.
    pub fn pass_over(&mut self, why: &'static str, too_much: impl Fn(usize) -> bool) {
        self.over = (0..self.loads.len()).map(|at| too_much(at).then_some(why)).collect();
        if self.over.iter().all(Option::is_some) {
            self.over.iter_mut().for_each(|over| *over = None);
        }
    }

    /// Of equals, the ones with the least of this are taken.
    pub fn tell_equals_by(&mut self, values: SmallVec<[f64; 16]>) {
        self.equals = values;
    }

    /// The best worker, and all that were as good. `None`: there are none.
    pub fn best(&self, dice: &mut Dice) -> Option<(usize, SmallVec<[usize; 16]>)> {
        let open = || (0..self.loads.len()).filter(|at| self.over[*at].is_none());
        let most = open().map(|at| self.sums[at]).fold(f64::NEG_INFINITY, f64::max);
        let best = |at: &usize| self.sums[*at] >= most - EQUAL * self.weights.max(1.0);
        let equal = |at: usize| self.equals.get(at).copied().unwrap_or_default();
        let smallest = open().filter(best).map(equal).fold(f64::INFINITY, f64::min);
        let good = |at: &usize| best(at) && equal(*at) <= smallest;
        let least = open().filter(good).map(|at| self.loads[at]).min()?;
        let tied: SmallVec<[usize; 16]> = open().filter(good).filter(|at| self.loads[*at] == least).collect();
        Some((*tied.get(dice.below(tied.len()))?, tied))
    }

    pub fn passed_over(&self, at: usize) -> Option<&'static str> {
        self.over[at]
    }

    /// What a worker costs: of one strategy that wants little of something, how much of it; otherwise from 0 for the best
    /// to 1 for the worst.
    pub fn cost(&self, at: usize) -> f64 {
        let told = match self.told.as_slice() {
            [(_, worth)] if worth.lowest => worth.values[at].filter(|value| value.is_finite()),
            _ => None,
        };
        told.unwrap_or(if self.weights > 0.0 { 1.0 - self.sums[at] / self.weights } else { 1.0 })
    }

    /// What each strategy said of this worker.
    pub fn terms(&self, at: usize) -> Vec<(&'static str, f64)> {
        let of = |(way, worth): &(Way, Worth)| {
            let value = Some((way.as_str(), worth.values[at]));
            let parts = worth.parts.iter().map(|(name, values)| (*name, values[at]));
            value
                .into_iter()
                .chain(parts)
                .filter_map(|(name, value)| Some((name, value?)))
                .collect::<Vec<_>>()
        };
        self.told.iter().flat_map(of).filter(|(_, value)| value.is_finite()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worth(lowest: bool, values: &[Option<f64>]) -> Worth {
        Worth { values: values.into(), lowest, parts: Vec::new() }
    }

    fn best(loads: &[u32], worths: &[(u32, Worth)]) -> Vec<usize> {
        let mut blended = Blended::new(loads.into());
        for (weight, w) in worths {
            let w = worth(w.lowest, &w.values);
            blended.add(Way::Throughput, *weight, w);
        }
        blended.best(&mut Dice::new(1)).unwrap().1.to_vec()
    }

    #[test]
    fn one_strategy_takes_its_best_and_the_least_loaded_of_equals() {
        assert_eq!(best(&[0, 0, 0], &[(1, worth(true, &[Some(3.0), Some(1.0), Some(2.0)]))]), [1]);
        assert_eq!(best(&[0, 0, 0], &[(1, worth(false, &[Some(3.0), Some(1.0), Some(2.0)]))]), [0]);
        assert_eq!(best(&[4, 2, 2], &[(1, worth(true, &[Some(1.0); 3]))]), [1, 2]);
        assert_eq!(best(&[4, 2], &[(1, worth(true, &[None, None]))]), [1], "nothing known");
        assert_eq!(best(&[4, 2], &[(1, worth(true, &[Some(9.0), None]))]), [0], "the known one first");
        assert_eq!(best(&[1, 2], &[(1, worth(true, &[Some(f64::NAN), Some(1.0)]))]), [1]);
    }

    /// Numbers of AIBrix's page on lists of strategies, where a high throughput counts as good.
    #[test]
    fn a_list_weighs_what_each_makes_of_a_worker() {
        let requests = || worth(true, &[Some(10.0), Some(2.0)]);
        let tokens = || worth(false, &[Some(100.0), Some(10.0)]);
        assert_eq!(best(&[0, 0], &[(10, requests()), (1, tokens())]), [1]);
        assert_eq!(best(&[0, 0], &[(1, requests()), (10, tokens())]), [0]);
        let requests = worth(true, &[Some(1.0), Some(50.0), Some(10.0)]);
        let history = worth(true, &[Some(1500.0), Some(15.0), Some(150.0)]);
        let mut blended = Blended::new([0, 0, 0][..].into());
        blended.add(Way::LeastRequest, 1, requests);
        blended.add(Way::Throughput, 1, history);
        assert_eq!(blended.best(&mut Dice::new(1)).unwrap().0, 2);
        let costs: Vec<f64> = (0..3).map(|at| blended.cost(at)).collect();
        assert_eq!((costs[0], costs[1]), (0.5, 0.5));
        assert!((costs[2] - 0.137).abs() < 1e-3, "{costs:?}");
        assert_eq!(blended.terms(2), [("least-request", 10.0), ("throughput", 150.0)]);
    }

    #[test]
    fn equals_are_told_apart_by_a_strategys_own_word_before_their_requests() {
        let mut blended = Blended::new([0, 3, 3][..].into());
        blended.add(Way::LoadBalance, 1, worth(true, &[Some(0.0); 3]));
        blended.tell_equals_by([0.3, 0.1, 0.1][..].into());
        assert_eq!(blended.best(&mut Dice::new(1)).unwrap().1.to_vec(), [1, 2]);
    }

    #[test]
    fn those_with_too_much_are_passed_over_unless_all_have() {
        let mut blended = Blended::new([9, 0][..].into());
        blended.add(Way::Throughput, 1, worth(true, &[Some(1.0), Some(2.0)]));
        assert_eq!(blended.best(&mut Dice::new(1)).unwrap().0, 0);
        blended.pass_over("much", |at| at == 0);
        assert_eq!(blended.best(&mut Dice::new(1)).unwrap().0, 1);
        assert_eq!((blended.passed_over(0), blended.passed_over(1)), (Some("much"), None));
        blended.pass_over("much", |_| true);
        assert_eq!(blended.best(&mut Dice::new(1)).unwrap().0, 0);
        assert_eq!(Blended::new(SmallVec::new()).best(&mut Dice::new(1)), None);
    }
}
