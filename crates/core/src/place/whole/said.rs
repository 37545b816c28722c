//! Scores by what workers say of themselves: of their memory, their GPU, their times.
//!
//! What they say is as old as the last look at them. What was placed since counts as much as what ran then did, on the
//! average over all workers, and a request that waits for its prompt to be computed waits for those before it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::score::{Values, Worth};
use crate::fleet::Seat;
use crate::gauges::Gauges;

/// Tokens of a request where no worker says how many its requests have (AIBrix).
const PROMPT_GUESS: f64 = 10.0;
const ANSWER_GUESS: f64 = 100.0;

/// Share of KV memory in use, on the device alone or on the host too.
pub fn memory(seats: &[&Arc<Seat>], loads: &[u32], host: bool) -> Values {
    used(seats, loads, |seat| {
        let device = seat.gauges.kv_usage.get()?;
        Some(device + if host { seat.gauges.host_kv_usage.get().unwrap_or_default() } else { 0.0 })
    })
}

/// How much of what it can do each does: in its own words, else requests that it runs of those that it can.
///
/// SGLang 0.5.23 says 0 where nobody told it what it can do.
pub fn utilization(seats: &[&Arc<Seat>], loads: &[u32]) -> Values {
    used(seats, loads, |seat| {
        let running = seat.gauges.running.get();
        let idle = running.is_none_or(|n| n <= 0.0);
        let told = seat.gauges.utilization.get().filter(|share| *share > 0.0 || idle);
        told.or_else(|| Some(running? / f64::from(seat.window.filter(|window| *window > 0)?)))
    })
}

/// Share of the time in which the GPU of each computes.
pub fn busy(seats: &[&Arc<Seat>], loads: &[u32]) -> Values {
    used(seats, loads, |seat| seat.gauges.busy.get())
}

/// What was told, and for each request that was placed since as much as one of those that ran took.
fn used(seats: &[&Arc<Seat>], loads: &[u32], told: impl Fn(&Arc<Seat>) -> Option<f64>) -> Values {
    let (mut used, mut running) = (0.0, 0.0);
    for seat in seats {
        if let Some((share, n)) = told(seat).zip(seat.gauges.running.get()).filter(|(_, n)| *n > 0.0) {
            used += share;
            running += n;
        }
    }
    let each = if running > 0.0 { used / running } else { 0.0 };
    seats.iter().zip(loads).map(|(seat, load)| Some(told(seat)? + each * since(seat, *load))).collect()
}

/// Requests placed there since it was asked, of those in flight.
fn since(seat: &Seat, load: u32) -> f64 {
    seat.gauges.placed_since(&seat.load).min(u64::from(load)) as f64
}

/// Seconds that a request like the others would take on each, by its means since it started: in its queue, until the
/// prompt is computed, and answering. Times are for requests of each worker's own length, so they are brought to that of
/// all (AIBrix).
pub fn latency(seats: &[&Arc<Seat>], loads: &[u32], explain: bool) -> Worth {
    let prompt = mean(seats, |gauges| gauges.prompt_mean.get()).unwrap_or(PROMPT_GUESS);
    let answer = mean(seats, |gauges| gauges.answer_mean.get()).unwrap_or(ANSWER_GUESS);
    let own = |told: Option<f64>, guess: f64| told.filter(|n| *n > 0.0).unwrap_or(guess);
    let each: SmallVec<[Option<[f64; 4]>; 16]> = seats
        .iter()
        .zip(loads)
        .map(|(seat, load)| {
            let gauges = &seat.gauges;
            let prefill = gauges.prefill_mean_s.get()? / own(gauges.prompt_mean.get(), prompt) * prompt;
            let decode = gauges.decode_mean_s.get()? / own(gauges.answer_mean.get(), answer) * answer;
            let since = prefill * since(seat, *load);
            Some([gauges.queue_mean_s.get().unwrap_or_default(), prefill, decode, since])
        })
        .collect();
    let part = |at: usize| -> Values { each.iter().map(|parts| Some(parts.as_ref()?[at])).collect() };
    let names = ["queue_s", "prefill_s", "decode_s", "placed_since_s"];
    let parts =
        if explain { (0..).zip(names).map(|(at, name)| (name, part(at))).collect() } else { Vec::new() };
    let values = each.iter().map(|parts| Some(parts.as_ref()?.iter().sum())).collect();
    Worth { values, lowest: true, parts }
}

/// Of those that say anything above 0.
fn mean(seats: &[&Arc<Seat>], told: impl Fn(&Gauges) -> Option<f64>) -> Option<f64> {
    let known = || seats.iter().filter_map(|seat| told(&seat.gauges)).filter(|n| *n > 0.0);
    let n = known().count();
    (n > 0).then(|| known().sum::<f64>() / n as f64)
}

/// Tokens of a request there, on the average; those of the prompt count twice (AIBrix).
pub fn tokens(seat: &Seat) -> Option<f64> {
    Some(2.0 * seat.gauges.prompt_mean.get()? + seat.gauges.answer_mean.get()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Role, Worker};
    use crate::gauges::{Reading, Timed};

    fn seats(said: &[Reading]) -> Vec<Arc<Seat>> {
        let seat = |(slot, said): (u32, &Reading)| {
            let mut worker = Worker::new(format!("w{slot}"), format!("http://h:{slot}"), Role::Whole);
            worker.labels.insert("max_num_seqs".to_owned(), "8".to_owned());
            let seat = Seat::new(slot, worker);
            seat.gauges.show(said);
            Arc::new(seat)
        };
        (0..).zip(said).map(seat).collect()
    }

    fn timed(mean: f64) -> Timed {
        Timed { sum_s: Some(mean * 4.0), count: Some(4.0) }
    }

    fn values(seats: &[Arc<Seat>], score: impl Fn(&[&Arc<Seat>], &[u32]) -> Values) -> Vec<Option<f64>> {
        let all: Vec<&Arc<Seat>> = seats.iter().collect();
        let loads: Vec<u32> = seats.iter().map(|s| s.load.in_flight()).collect();
        score(&all, &loads).to_vec()
    }

    #[test]
    fn memory_of_the_device_and_of_the_host() {
        let said = [(0.5, Some(0.3)), (0.6, None)].map(|(device, host)| Reading {
            kv_usage: Some(device),
            host_kv_usage: host,
            ..Reading::default()
        });
        let seats = seats(&said);
        assert_eq!(values(&seats, |s, l| memory(s, l, true)), [Some(0.8), Some(0.6)]);
        assert_eq!(values(&seats, |s, l| memory(s, l, false)), [Some(0.5), Some(0.6)]);
    }

    #[test]
    fn utilization_is_what_is_told_or_what_runs_of_what_can() {
        let rows = [
            (Some(0.75), Some(2.0), Some(0.75)),
            (Some(0.0), Some(2.0), Some(0.25)),
            (Some(0.0), Some(0.0), Some(0.0)),
            (None, Some(4.0), Some(0.5)),
            (None, None, None),
        ];
        let said: Vec<Reading> = rows
            .iter()
            .map(|(told, running, _)| Reading { utilization: *told, running: *running, ..Reading::default() })
            .collect();
        let due: Vec<Option<f64>> = rows.iter().map(|(_, _, due)| *due).collect();
        assert_eq!(values(&seats(&said), utilization), due);
    }

    /// A half and a quarter for two requests and one: a quarter for each that came since.
    #[test]
    fn what_was_placed_since_takes_what_others_took() {
        let said = [(0.5, 2.0), (0.25, 1.0)].map(|(busy, running)| Reading {
            busy: Some(busy),
            running: Some(running),
            ..Reading::default()
        });
        let seats = seats(&said);
        assert_eq!(values(&seats, busy), [Some(0.5), Some(0.25)]);
        let _since = [seats[1].load.take(), seats[1].load.take()];
        assert_eq!(values(&seats, busy), [Some(0.5), Some(0.75)]);
        seats[1].gauges.asked_after(seats[1].load.taken());
        assert_eq!(values(&seats, busy), [Some(0.5), Some(0.25)]);
    }

    /// The first has prompts twice as long as the second and computes them in twice the time: they are equally fast.
    #[test]
    fn a_latency_is_that_of_a_request_of_the_mean_length() {
        let row = |prompt: f64, answer: f64, prefill: f64, decode: f64| Reading {
            prompt_tokens: Some(prompt),
            answer_tokens: Some(answer),
            requests: Some(1.0),
            queue: timed(0.5),
            prefill_time_sum_s: Some(prefill),
            prefill_time_count: Some(1.0),
            decode: timed(decode),
            ..Reading::default()
        };
        let said = [row(200.0, 10.0, 2.0, 1.0), row(100.0, 30.0, 1.0, 3.0), Reading::default()];
        let seats = seats(&said);
        let worth = |explain| {
            let all: Vec<&Arc<Seat>> = seats.iter().collect();
            let loads: Vec<u32> = seats.iter().map(|s| s.load.in_flight()).collect();
            latency(&all, &loads, explain)
        };
        assert_eq!(worth(false).values.to_vec(), [Some(4.0), Some(4.0), None], "0.5 + 1.5 + 2");
        let _since = seats[0].load.take();
        let told = worth(true);
        assert_eq!(told.values.to_vec(), [Some(5.5), Some(4.0), None], "one prompt is computed before");
        let names: Vec<_> = told.parts.iter().map(|(name, values)| (*name, values[0])).collect();
        let due = [("queue_s", 0.5), ("prefill_s", 1.5), ("decode_s", 2.0), ("placed_since_s", 1.5)];
        assert_eq!(names, due.map(|(name, value)| (name, Some(value))));
    }

    /// Nobody says how long requests are.
    #[test]
    fn without_lengths_the_times_themselves_count() {
        let said = [Reading { first_token: timed(2.0), answered: timed(5.0), ..Reading::default() }];
        assert_eq!(values(&seats(&said), |s, l| latency(s, l, false).values), [Some(5.0)]);
    }
}
