//! May a request enter, wait, or not?
//!
//! At most `concurrent` exchanges run; at most `queue` more wait, in order, for at most `queue_timeout`
//! (SMG 1.13). The permit is held until the answer's last byte. This module decides; the waiting
//! itself is the shell's.

use crate::fault::Fault;
use crate::time::Duration;

/// SMG `--max-concurrent-requests`, `--queue-size`, `--queue-timeout-secs`.
#[derive(Clone, Debug)]
pub struct AdmissionRule {
    /// 0: no limit.
    pub concurrent: usize,
    pub queue: usize,
    pub queue_timeout: Duration,
}

/// How long a refused client should stay away, in seconds (SMG 1.13).
pub const RETRY_AFTER_S: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    Enter,
    Wait { at_most: Duration },
    Refuse(Fault),
}

impl AdmissionRule {
    /// `running` and `waiting` as they are before this request.
    pub fn decide(&self, running: usize, waiting: usize) -> Admission {
        if self.concurrent == 0 || (running < self.concurrent && waiting == 0) {
            Admission::Enter
        } else if waiting < self.queue && !self.queue_timeout.is_zero() {
            Admission::Wait { at_most: self.queue_timeout }
        } else {
            Admission::Refuse(Fault::QueueFull { retry_after_s: RETRY_AFTER_S })
        }
    }

    /// The wait was in vain.
    pub fn timed_out(&self) -> Fault {
        Fault::QueueTimeout { retry_after_s: RETRY_AFTER_S }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_runs_one_waits_the_rest_is_refused() {
        let rule = AdmissionRule { concurrent: 1, queue: 1, queue_timeout: Duration::from_secs(1) };
        assert_eq!(rule.decide(0, 0), Admission::Enter);
        assert_eq!(rule.decide(1, 0), Admission::Wait { at_most: Duration::from_secs(1) });
        assert_eq!(
            rule.decide(0, 1),
            Admission::Refuse(Fault::QueueFull { retry_after_s: 2 }),
            "no overtaking"
        );
        assert!(matches!(rule.decide(1, 1), Admission::Refuse(_)));
        let open = AdmissionRule { concurrent: 0, ..rule };
        assert_eq!(open.decide(1_000_000, 0), Admission::Enter);
    }
}
