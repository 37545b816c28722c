//! Is this worker well, as its health endpoint tells?
//!
//! pending -> ready after enough good probes, or failed after ten times the failure threshold;
//! ready -> not_ready after the failure threshold; not_ready -> ready, or failed after three times as many
//! more; failed -> ready
//! (SMG 1.13).

/// SMG's names of a worker's state, as `GET /workers` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Status {
    #[default]
    Pending = 0,
    Ready = 1,
    NotReady = 2,
    Failed = 3,
    Draining = 4,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Ready => "ready",
            Status::NotReady => "not_ready",
            Status::Failed => "failed",
            Status::Draining => "draining",
        }
    }

    pub fn from_u8(n: u8) -> Status {
        match n {
            1 => Status::Ready,
            2 => Status::NotReady,
            3 => Status::Failed,
            4 => Status::Draining,
            _ => Status::Pending,
        }
    }
}

/// How many probes it takes to believe.
#[derive(Clone, Debug)]
pub struct HealthRule {
    /// Good probes in a row. SMG `--health-success-threshold`.
    pub success_threshold: u32,
    /// Bad probes in a row. SMG `--health-failure-threshold`.
    pub failure_threshold: u32,
}

impl Default for HealthRule {
    fn default() -> Self {
        HealthRule { success_threshold: 2, failure_threshold: 3 }
    }
}

/// One worker's health.
#[derive(Clone, Debug, Default)]
pub struct Health {
    status: Status,
    good_in_a_row: u32,
    bad_in_a_row: u32,
}

impl Health {
    pub fn status(&self) -> Status {
        self.status
    }

    pub fn set(&mut self, status: Status) {
        *self = Health { status, ..Health::default() };
    }

    /// One probe's result. Returns the new status if it changed.
    pub fn probed(&mut self, good: bool, rule: &HealthRule) -> Option<Status> {
        if good {
            self.good_in_a_row = self.good_in_a_row.saturating_add(1);
            self.bad_in_a_row = 0;
        } else {
            self.bad_in_a_row = self.bad_in_a_row.saturating_add(1);
            self.good_in_a_row = 0;
        }
        let never_up = rule.failure_threshold.saturating_mul(10);
        // SMG 1.13 with threshold 3: not_ready after 3 bad probes, failed after 9 more.
        let long_down = rule.failure_threshold.saturating_mul(4);
        let next = match self.status {
            Status::Pending | Status::NotReady | Status::Failed
                if self.good_in_a_row >= rule.success_threshold =>
            {
                Status::Ready
            }
            Status::Pending if self.bad_in_a_row >= never_up => Status::Failed,
            Status::Ready if self.bad_in_a_row >= rule.failure_threshold => Status::NotReady,
            Status::NotReady if self.bad_in_a_row >= long_down => Status::Failed,
            same => same,
        };
        (next != self.status).then(|| {
            self.status = next;
            next
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(probes: &str) -> Vec<&'static str> {
        let (mut h, r) = (Health::default(), HealthRule { success_threshold: 2, failure_threshold: 3 });
        probes.chars().filter_map(|c| h.probed(c == '+', &r)).map(Status::as_str).collect()
    }

    #[test]
    fn follows_smgs_states() {
        assert_eq!(run("++"), ["ready"]);
        assert_eq!(run("+-++"), ["ready"]);
        assert_eq!(run("++---"), ["ready", "not_ready"]);
        assert_eq!(run("++--+--"), ["ready"]);
        assert_eq!(run(&format!("++{}", "-".repeat(11))), ["ready", "not_ready"]);
        assert_eq!(run(&format!("++{}", "-".repeat(12))), ["ready", "not_ready", "failed"]);
        assert!(run(&"-".repeat(29)).is_empty());
        assert_eq!(run(&format!("{}++", "-".repeat(30))), ["failed", "ready"]);
    }
}
