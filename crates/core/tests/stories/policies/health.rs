//! Every sequence of fourteen probes.

use baton_core::fleet::{Health, HealthRule, Status};

const DEPTH: u32 = 14;

/// How many of the newest probes were like this.
fn run(probes: &[bool], like: bool) -> u32 {
    probes.iter().rev().take_while(|p| **p == like).count() as u32
}

/// What a worker must be after these probes, told from the last moment it changed.
fn due(was: Status, probes: &[bool], rule: &HealthRule) -> Status {
    let (good, bad) = (run(probes, true), run(probes, false));
    match was {
        Status::Ready if bad >= rule.failure_threshold => Status::NotReady,
        Status::Ready => Status::Ready,
        _ if good >= rule.success_threshold => Status::Ready,
        Status::Pending if bad >= 10 * rule.failure_threshold => Status::Failed,
        Status::NotReady if bad >= 4 * rule.failure_threshold => Status::Failed,
        same => same,
    }
}

#[test]
fn every_sequence_of_fourteen_probes() {
    for success_threshold in 1..=3 {
        for failure_threshold in 1..=3 {
            let rule = HealthRule { success_threshold, failure_threshold };
            for bits in 0..1u32 << DEPTH {
                let probes: Vec<bool> = (0..DEPTH).map(|i| bits >> i & 1 == 1).collect();
                let (mut health, mut was) = (Health::default(), Status::Pending);
                for so_far in 1..=probes.len() {
                    let changed = health.probed(probes[so_far - 1], &rule);
                    let now = due(was, &probes[..so_far], &rule);
                    assert_eq!(health.status(), now, "{rule:?} {:?}", &probes[..so_far]);
                    assert_eq!(changed, (now != was).then_some(now));
                    was = now;
                }
            }
        }
    }
}

/// A worker that answers is used, whatever it was before; one that does not answer is not.
#[test]
fn good_probes_always_lead_back_and_bad_ones_away() {
    let rule = HealthRule::default();
    for status in [Status::Pending, Status::Ready, Status::NotReady, Status::Failed] {
        let mut health = Health::default();
        health.set(status);
        for _ in 0..rule.success_threshold {
            health.probed(true, &rule);
        }
        assert_eq!(health.status(), Status::Ready, "from {status:?}");
        for _ in 0..rule.failure_threshold {
            health.probed(false, &rule);
        }
        assert_eq!(health.status(), Status::NotReady);
    }
}

/// A worker that leaves is not called back by its health.
#[test]
fn a_draining_worker_stays_so() {
    let (mut health, rule) = (Health::default(), HealthRule::default());
    health.set(Status::Draining);
    for good in [true, false].into_iter().flat_map(|good| std::iter::repeat_n(good, 50)) {
        assert_eq!(health.probed(good, &rule), None);
    }
}
