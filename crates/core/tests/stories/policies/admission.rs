//! Every order of ten arrivals, ends, departures and timeouts.

use std::collections::VecDeque;

use baton_core::admission::{Admission, AdmissionRule};
use baton_core::fault::Fault;
use baton_core::time::Duration;

/// The shell as it must use the rule: a freed place goes to the first that waits, be it a moment later.
#[derive(Clone, Default)]
struct Door {
    running: usize,
    waiting: VecDeque<u32>,
    next: u32,
    /// The newest request that was let in: nobody who came before it may still be waiting.
    newest_in: Option<u32>,
}

struct Walk {
    rule: AdmissionRule,
    walked: u64,
}

impl Walk {
    fn go(&mut self, door: &Door, depth: usize) {
        self.walked += 1;
        self.check(door);
        if depth == 0 {
            return;
        }
        self.go(&self.arrival(door), depth - 1);
        if door.running > 0 {
            self.go(&Door { running: door.running - 1, ..door.clone() }, depth - 1);
        }
        if door.running < self.rule.concurrent && !door.waiting.is_empty() {
            let mut after = door.clone();
            after.newest_in = after.waiting.pop_front();
            after.running += 1;
            self.go(&after, depth - 1);
        }
        // Somebody in the middle of the queue gives up, or the first one's time is over.
        for gone in [door.waiting.len() / 2, 0] {
            let mut after = door.clone();
            if after.waiting.remove(gone).is_some() {
                self.go(&after, depth - 1);
            }
        }
    }

    fn arrival(&self, door: &Door) -> Door {
        let mut after = door.clone();
        after.next += 1;
        match self.rule.decide(door.running, door.waiting.len()) {
            Admission::Enter => {
                after.running += 1;
                after.newest_in = Some(door.next);
            }
            Admission::Wait { at_most } => {
                assert_eq!(at_most, self.rule.queue_timeout);
                after.waiting.push_back(door.next);
            }
            Admission::Refuse(fault) => {
                assert!(matches!(fault, Fault::QueueFull { .. }));
                let full = door.waiting.len() >= self.rule.queue || self.rule.queue_timeout.is_zero();
                assert!(full && self.rule.concurrent > 0, "refused with a place in the queue");
                let taken = door.running + door.waiting.len() >= self.rule.concurrent;
                assert!(taken, "refused with a place free");
            }
        }
        after
    }

    fn check(&self, door: &Door) {
        if self.rule.concurrent > 0 {
            assert!(door.running <= self.rule.concurrent && door.waiting.len() <= self.rule.queue);
        } else {
            assert!(door.waiting.is_empty());
        }
        let overtaken =
            door.waiting.front().zip(door.newest_in).is_some_and(|(first, newest)| *first < newest);
        assert!(!overtaken, "somebody was overtaken");
    }
}

#[test]
fn every_order_of_ten_events() {
    let mut walked = 0;
    for (concurrent, queue, seconds) in
        [(0, 0, 1), (0, 2, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 3, 1), (2, 2, 0)]
    {
        let rule = AdmissionRule { concurrent, queue, queue_timeout: Duration::from_secs(seconds) };
        let mut walk = Walk { rule, walked: 0 };
        walk.go(&Door::default(), 10);
        walked += walk.walked;
    }
    println!("{walked} states");
}
