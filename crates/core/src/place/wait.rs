//! How long would a request wait at each worker?
//!
//! SMG's score, in seconds (SMG 1.13): the work that is queued over the rate at which it is done, and a term for KV
//! memory that grows without bound as it fills. Where workers do not say how they are, it is the requests in flight
//! that count, which is the same order.
//!
//! Two things differ from SMG. The requests that this gateway has in flight are counted as they are now, not as they
//! were at the last report: a report adds only what others have there. And a worker's own rate counts only above
//! the nominal one: an engine that is idle makes few tokens a second, and is not slow for that.

use std::sync::Arc;

use smallvec::SmallVec;

use super::field::Seen;
use super::policy::least;
use crate::dice::Dice;
use crate::fleet::Seat;
use crate::gauges::Gauge;

/// Waits that differ by less are equal, in seconds (SMG 1.13).
const EQUAL_S: f64 = 1e-6;
/// KV memory is never taken to be fuller than this.
const FULL: f64 = 0.999;
/// No engine is slower, in tokens a second.
const SLOWEST: f64 = 0.001;
/// More than any worker has.
const BEYOND: f64 = 1e9;

/// What `power_of_two` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMetric {
    ExpectedWait,
    /// Requests in flight of the two, then the expected wait.
    Requests,
    /// Requests in flight of all, then the expected wait.
    LeastRequests,
}

/// When a worker has too much work, and what follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overload {
    /// Requests that wait. `--worker-overload-waiting-requests`.
    pub waiting: f64,
    /// Share of KV memory in use. `--worker-overload-token-usage`.
    pub kv_usage: f64,
    /// A leg of which all have too much is refused. `--worker-overload-shed`.
    pub shed: bool,
}

/// What is made of what workers say of their load.
#[derive(Clone, Debug, PartialEq)]
pub struct Reports {
    /// Has them asked. Otherwise what they say counts where somebody else has them asked.
    pub wanted: bool,
    /// `--power-of-two-load-metric`.
    pub metric: LoadMetric,
    /// Seconds. `--least-load-kv-pressure-weight`.
    pub kv_weight: f64,
    /// Tokens a second of a worker that says none. `--least-load-default-throughput`.
    pub throughput: f64,
    /// Prompt tokens of a request. `--least-load-mean-prefill-tokens`.
    pub request_tokens: f64,
    /// A worker where so many wait is passed over; 0: none. `--least-load-max-waiting-requests`.
    pub max_waiting: f64,
    /// Spread of KV usage above which prompts are not kept together. `--balance-token-usage-threshold`.
    pub kv_spread: f64,
    /// Usage of the fullest above which they are not. `--overload-token-usage-threshold`.
    pub kv_most: f64,
    /// `--worker-overload-protection`.
    pub overload: Option<Overload>,
}

impl Default for Reports {
    fn default() -> Self {
        Reports {
            wanted: false,
            metric: LoadMetric::ExpectedWait,
            kv_weight: 0.15,
            throughput: 2000.0,
            request_tokens: 1024.0,
            max_waiting: 0.0,
            kv_spread: 1.0,
            kv_most: 1.0,
            overload: Some(Overload { waiting: 8.0, kv_usage: 0.8, shed: false }),
        }
    }
}

/// What one worker says, as far as it can be meant.
fn said(gauge: &Gauge) -> Option<f64> {
    gauge.get().filter(|x| x.is_finite() && *x >= 0.0).map(|x| x.min(BEYOND))
}

fn waiting(seat: &Seat) -> Option<f64> {
    let gauges = &seat.gauges;
    let queues = [&gauges.waiting, &gauges.prefill_prealloc, &gauges.decode_prealloc];
    queues.into_iter().filter_map(said).reduce(|a, b| a + b)
}

/// Requests of this gateway that were sent since the worker was last asked.
fn since(seat: &Seat, load: u32) -> f64 {
    (f64::from(load) - said(&seat.gauges.ours).unwrap_or(f64::from(load))).max(0.0)
}

/// What a report tells besides this gateway's own requests.
#[derive(Clone, Copy)]
struct Told {
    /// Requests of others.
    others: f64,
    /// Seconds for each request.
    each: f64,
    /// Seconds for memory that is full.
    pressure: f64,
}

/// A candidate, its load, and what it tells.
type Sight<'a> = (&'a Arc<Seat>, u32, Option<Told>);

impl Reports {
    fn seen(&self, seat: &Seat, load: u32) -> Option<Told> {
        let gauges = &seat.gauges;
        if !gauges.observed() {
            return None;
        }
        let there = said(&gauges.running).unwrap_or_default() + waiting(seat).unwrap_or_default();
        let ours = said(&gauges.ours).unwrap_or(f64::from(load));
        let rate = said(&gauges.throughput).unwrap_or_default().max(self.throughput).max(SLOWEST);
        let kv = said(&gauges.kv_usage).unwrap_or_default().min(FULL);
        Some(Told {
            others: (there - ours).max(0.0),
            each: self.request_tokens / rate,
            pressure: self.kv_weight * kv / (1.0 - kv),
        })
    }

    /// The worker with the shortest wait, and the load that it was found at. Equal ones are as likely. Where nobody
    /// reports, the least loaded; a worker that does not, while others do, is taken for an average one. `None` if
    /// so many wait everywhere that none is to get more.
    pub fn least<'a>(&self, candidates: &[&'a Arc<Seat>], dice: &mut Dice) -> Option<(&'a Arc<Seat>, u32)> {
        let look = |seat: &&'a Arc<Seat>| {
            let load = seat.load.in_flight();
            (*seat, load, self.seen(seat, load))
        };
        let may = |(seat, load, _): &Sight<'a>| self.may(seat, *load);
        let all: SmallVec<[Sight<'a>; 64]> = candidates.iter().map(look).filter(may).collect();
        let told: SmallVec<[Told; 64]> = all.iter().filter_map(|(_, _, seen)| *seen).collect();
        if told.is_empty() {
            return least(all.iter().map(|(seat, _, _)| *seat), dice);
        }
        let average = average(&told);
        let wait = |(_, load, seen): &Sight<'a>| self.wait(*load, *seen, average);
        let shortest = all.iter().map(wait).fold(f64::INFINITY, f64::min);
        let (mut best, mut equals) = (None, 0);
        for one in all.iter().filter(|one| wait(one) <= shortest + EQUAL_S) {
            equals += 1;
            if dice.below(equals) == 0 {
                best = Some((one.0, one.1));
            }
        }
        best
    }

    /// In seconds. A worker that does not say is taken for one like the others on average.
    fn wait(&self, load: u32, seen: Option<Told>, average: f64) -> f64 {
        let wait = match seen {
            Some(seen) => (f64::from(load) + seen.others) * seen.each + seen.pressure,
            None => average + f64::from(load) * self.request_tokens / self.throughput.max(SLOWEST),
        };
        debug_assert!(wait.is_finite(), "{load} {average}");
        wait
    }

    /// The wait at each of them now, in seconds, and what it is made of.
    pub fn waits(&self, candidates: &[&Arc<Seat>]) -> Vec<(f64, Vec<(&'static str, f64)>)> {
        let all: Vec<(u32, Option<Told>)> = candidates
            .iter()
            .map(|seat| (seat.load.in_flight(), self.seen(seat, seat.load.in_flight())))
            .collect();
        let told: SmallVec<[Told; 16]> = all.iter().filter_map(|(_, seen)| *seen).collect();
        let average = average(&told);
        let one = |(load, seen): &(u32, Option<Told>)| {
            let own = ("in_flight", f64::from(*load));
            if told.is_empty() {
                return (own.1, vec![own]);
            }
            let wait = self.wait(*load, *seen, average);
            match seen {
                Some(seen) => (wait, vec![own, ("others", seen.others), ("kv_pressure_s", seen.pressure)]),
                None => (wait, vec![own]),
            }
        };
        all.iter().map(one).collect()
    }

    /// Of those with the fewest requests, the one with the shortest wait.
    pub fn fewest<'a>(&self, among: &[&'a Arc<Seat>], dice: &mut Dice) -> Option<(&'a Arc<Seat>, u32)> {
        let least = among.iter().map(|s| s.load.in_flight()).min()?;
        let equal: SmallVec<[&'a Arc<Seat>; 16]> =
            among.iter().copied().filter(|s| s.load.in_flight() == least).collect();
        // Others may have taken their places in the meantime: then any of the candidates will do.
        self.least(if equal.is_empty() { among } else { &equal }, dice)
    }

    /// Of two, is the first clearly better? By what [`Reports::metric`] asks for.
    pub fn is_better(&self, a: &Seen<'_>, b: &Seen<'_>) -> bool {
        if self.metric == LoadMetric::Requests && a.load != b.load {
            return a.load < b.load;
        }
        let [told_a, told_b] = [a, b].map(|seen| self.seen(seen.seat, seen.load));
        let told: SmallVec<[Told; 2]> = [told_a, told_b].into_iter().flatten().collect();
        if told.is_empty() {
            return a.load < b.load;
        }
        let average = average(&told);
        self.wait(a.load, told_a, average) + EQUAL_S < self.wait(b.load, told_b, average)
    }

    /// Do so few wait there that it may get more?
    pub fn may(&self, seat: &Seat, load: u32) -> bool {
        let queue = || waiting(seat).map(|waiting| waiting + since(seat, load));
        self.max_waiting <= 0.0 || queue().is_none_or(|queue| queue < self.max_waiting)
    }

    /// Is KV memory so full, or so unevenly used, that it is no time to keep prompts together?
    pub fn too_full(&self, candidates: &[&Arc<Seat>]) -> bool {
        if self.kv_spread >= 1.0 && self.kv_most >= 1.0 {
            return false;
        }
        let usage = || candidates.iter().filter_map(|seat| said(&seat.gauges.kv_usage));
        let most = usage().fold(0.0, f64::max);
        most > self.kv_most || most - usage().fold(most, f64::min) > self.kv_spread
    }

    /// Has the worker too much work?
    pub fn is_over(&self, seat: &Seat) -> bool {
        self.overload.is_some_and(|rule| {
            waiting(seat).is_some_and(|waiting| waiting >= rule.waiting)
                || said(&seat.gauges.kv_usage).is_some_and(|kv| kv >= rule.kv_usage)
        })
    }
}

/// What others have at those who say so, and how full these are: seconds on average.
fn average(told: &[Told]) -> f64 {
    let sum: f64 = told.iter().map(|seen| seen.others * seen.each + seen.pressure).sum();
    sum / told.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Bench, Role, Worker};
    use crate::load::Lease;

    fn seats(n: u32) -> Vec<Arc<Seat>> {
        (0..n)
            .map(|i| Arc::new(Seat::new(i, Worker::new(i.to_string(), "http://h:1", Role::Decode))))
            .collect()
    }

    fn hold(seat: &Arc<Seat>, n: usize) -> Vec<Lease> {
        (0..n).map(|_| seat.load.take()).collect()
    }

    /// How often each is chosen.
    fn chosen(reports: &Reports, seats: &[Arc<Seat>]) -> Vec<u32> {
        let candidates: Vec<_> = seats.iter().collect();
        let (mut dice, mut counts) = (Dice::new(1), vec![0; seats.len()]);
        for _ in 0..300 {
            counts[reports.least(&candidates, &mut dice).unwrap().0.slot as usize] += 1;
        }
        counts
    }

    #[test]
    fn what_others_have_there_counts_and_what_is_ours_counts_once() {
        let (seats, reports) = (seats(2), Reports::default());
        let _ours = (hold(&seats[0], 3), hold(&seats[1], 2));
        assert_eq!(chosen(&reports, &seats), [0, 300], "nobody reports");
        for seat in &seats {
            seat.gauges.running.set(Some(2.0));
            seat.gauges.ours.set(Some(2.0));
        }
        assert_eq!(chosen(&reports, &seats), [0, 300], "all that runs is ours");
        seats[1].gauges.waiting.set(Some(9.0));
        assert_eq!(chosen(&reports, &seats), [300, 0], "nine of others wait");
        // Five of ours ended since the second was asked.
        seats[1].gauges.ours.set(Some(11.0));
        assert_eq!(chosen(&reports, &seats), [0, 300]);
    }

    #[test]
    fn full_memory_and_a_rate_above_the_nominal_one_count() {
        let (seats, reports) = (seats(2), Reports::default());
        seats.iter().for_each(|seat| seat.gauges.kv_usage.set(Some(0.1)));
        assert!(chosen(&reports, &seats).iter().all(|n| *n > 100), "equal ones are as likely");
        seats[0].gauges.kv_usage.set(Some(0.9));
        assert_eq!(chosen(&reports, &seats), [0, 300]);
        seats[0].gauges.kv_usage.set(Some(0.1));
        let _ours = (hold(&seats[0], 3), hold(&seats[1], 2));
        seats[1].gauges.throughput.set(Some(10.0));
        assert_eq!(chosen(&reports, &seats), [0, 300], "it is not slow for making few tokens now");
        seats[0].gauges.throughput.set(Some(4000.0));
        assert_eq!(chosen(&reports, &seats), [300, 0]);
    }

    #[test]
    fn one_that_does_not_report_is_taken_for_an_average_one() {
        let (seats, reports) = (seats(3), Reports::default());
        seats[0].gauges.running.set(Some(40.0));
        seats[1].gauges.running.set(Some(10.0));
        assert_eq!(chosen(&reports, &seats), [0, 300, 0], "25 on average");
        let _ours = hold(&seats[1], 30);
        seats[1].gauges.ours.set(Some(0.0));
        assert_eq!(chosen(&reports, &seats), [0, 0, 300]);
    }

    #[test]
    fn where_too_many_wait_nobody_is_sent() {
        let seats = seats(2);
        let reports = Reports { max_waiting: 4.0, ..Reports::default() };
        seats[0].gauges.waiting.set(Some(4.0));
        assert_eq!(chosen(&reports, &seats), [0, 300]);
        seats[1].gauges.waiting.set(Some(2.0));
        seats[1].gauges.ours.set(Some(0.0));
        let held = hold(&seats[1], 2);
        let candidates: Vec<_> = seats.iter().collect();
        assert!(reports.least(&candidates, &mut Dice::new(1)).is_none(), "two more are on their way");
        drop(held);
        assert_eq!(chosen(&reports, &seats), [0, 300]);
    }

    #[test]
    fn two_are_compared_by_what_is_asked_for() {
        let seats = seats(3);
        let _ours = (hold(&seats[0], 1), hold(&seats[1], 2), hold(&seats[2], 3));
        // Others have much at the first.
        seats[0].gauges.running.set(Some(50.0));
        seats[0].gauges.ours.set(Some(1.0));
        seats[1..].iter().for_each(|seat| seat.gauges.running.set(Some(0.0)));
        let candidates: Vec<_> = seats.iter().collect();
        assert_eq!(Reports::default().fewest(&candidates, &mut Dice::new(1)).unwrap().0.slot, 0);
        let bench = Bench::loose(seats.iter());
        let better = |metric, a: usize, b: usize| {
            let seen =
                |at: usize| Seen { seat: &seats[at], row: bench.row(at), load: at as u32 + 1, at: at as u32 };
            Reports { metric, ..Reports::default() }.is_better(&seen(a), &seen(b))
        };
        assert!(better(LoadMetric::Requests, 0, 1) && better(LoadMetric::Requests, 1, 2));
        assert!(better(LoadMetric::ExpectedWait, 1, 0) && better(LoadMetric::ExpectedWait, 1, 2));
        for metric in [LoadMetric::Requests, LoadMetric::ExpectedWait] {
            assert!(!better(metric, 2, 1) && !better(metric, 1, 1), "{metric:?}: as good is not better");
        }
        assert!(Reports::default().fewest(&[], &mut Dice::new(1)).is_none());
    }

    #[test]
    fn odd_reports_are_no_reports() {
        let (seats, reports) = (seats(2), Reports::default());
        for odd in [f64::INFINITY, f64::NEG_INFINITY, -5.0] {
            for gauge in [&seats[0].gauges.waiting, &seats[0].gauges.throughput, &seats[0].gauges.kv_usage] {
                gauge.set(Some(odd));
            }
            assert!(chosen(&reports, &seats).iter().all(|n| *n > 100), "{odd}");
        }
        seats[1].gauges.kv_usage.set(Some(0.5));
        seats[0].gauges.kv_usage.set(Some(1e300));
        seats[0].gauges.waiting.set(Some(1e300));
        assert_eq!(chosen(&reports, &seats), [0, 300]);
    }

    #[test]
    fn overload_and_full_memory_are_told() {
        let (seats, reports) = (seats(2), Reports::default());
        assert!(!reports.is_over(&seats[0]) && !reports.too_full(&seats.iter().collect::<Vec<_>>()));
        seats[0].gauges.waiting.set(Some(8.0));
        seats[1].gauges.kv_usage.set(Some(0.79));
        assert!(reports.is_over(&seats[0]) && !reports.is_over(&seats[1]));
        seats[0].gauges.kv_usage.set(Some(0.2));
        let candidates: Vec<_> = seats.iter().collect();
        assert!(Reports { kv_spread: 0.5, ..Reports::default() }.too_full(&candidates));
        assert!(Reports { kv_most: 0.75, ..Reports::default() }.too_full(&candidates));
        assert!(!Reports { kv_most: 0.8, kv_spread: 0.6, ..Reports::default() }.too_full(&candidates));
    }
}
