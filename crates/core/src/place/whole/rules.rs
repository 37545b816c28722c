//! The settings of the strategies for one worker: AIBrix's variables, and what a profile says instead.
//!
//! Part of the [`Knobs`](super::super::cascade::knobs::Knobs) of a request, with the same precedence.

use super::super::cascade::read;
use crate::time::Duration;

/// Every one of them. The default is AIBrix's.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Loads are uneven when the busiest has more than this many times the mean and one, and so many requests more than
    /// the idlest.
    pub uneven_factor: f64,
    pub uneven_gap: u64,
    /// `load-balance`: what a request that waits in the engine counts, how strongly memory in use counts, and the share
    /// that must be free.
    pub queued_weight: f64,
    pub kv_alpha: f64,
    pub kv_critical_free: f64,
    /// `least-request-top-k`: among so many with the fewest requests, and no more than so many requests above the least;
    /// a new worker counts as loaded for so long.
    pub top_k: u64,
    pub top_k_epsilon: u64,
    pub top_k_ramp: Duration,
    pub vtc: Vtc,
}

/// `vtc-basic`.
#[derive(Clone, Debug, PartialEq)]
pub struct Vtc {
    /// Requests in flight that are a full load.
    pub max_load: f64,
    pub input_weight: f64,
    pub output_weight: f64,
    pub fairness_weight: f64,
    pub utilization_weight: f64,
    /// So many units of time count.
    pub window_size: u64,
    pub unit: Duration,
    /// Least tokens that are one step of workers, and what the heaviest user counts as before there is one.
    pub min_tokens: f64,
    pub max_tokens: f64,
}

impl Vtc {
    pub fn window(&self) -> Duration {
        self.unit.saturating_mul(u32::try_from(self.window_size).unwrap_or(u32::MAX))
    }
}

impl Default for Rules {
    fn default() -> Self {
        let vtc = Vtc {
            max_load: 100.0,
            input_weight: 1.0,
            output_weight: 2.0,
            fairness_weight: 1.0,
            utilization_weight: 1.0,
            window_size: 5,
            unit: Duration::from_secs(60),
            min_tokens: 1000.0,
            max_tokens: 8000.0,
        };
        Rules {
            uneven_factor: 2.0,
            uneven_gap: 8,
            queued_weight: 0.0,
            kv_alpha: 2.0,
            kv_critical_free: 0.1,
            top_k: 5,
            top_k_epsilon: 4,
            top_k_ramp: Duration::from_secs(300),
            vtc,
        }
    }
}

/// Reads one variable into its setting. `None`: its value cannot be used.
type Reader = fn(&mut Rules, &str) -> Option<()>;

/// `None` leaves the setting as it was.
fn set<T>(setting: &mut T, read: Option<T>) -> Option<()> {
    *setting = read?;
    Some(())
}

/// AIBrix's words for a unit of time.
fn unit(text: &str) -> Option<Duration> {
    match text {
        "minutes" => Some(Duration::from_secs(60)),
        "seconds" => Some(Duration::from_secs(1)),
        "milliseconds" => Some(Duration::from_millis(1)),
        _ => None,
    }
}

impl Rules {
    /// Every variable that the strategies read, and how.
    pub const VARIABLES: &'static [(&'static str, Reader)] = &[
        ("AIBRIX_LOAD_BALANCE_IMBALANCE_FACTOR", |r, t| set(&mut r.uneven_factor, read::above_zero(t))),
        ("AIBRIX_LOAD_BALANCE_IMBALANCE_MIN_GAP", |r, t| set(&mut r.uneven_gap, read::positive(t))),
        ("AIBRIX_LOAD_BALANCE_QUEUED_WEIGHT", |r, t| set(&mut r.queued_weight, read::above_zero(t))),
        ("AIBRIX_LOAD_BALANCE_KV_PRESSURE_ALPHA", |r, t| set(&mut r.kv_alpha, read::above_zero(t))),
        ("AIBRIX_LOAD_BALANCE_KV_CRITICAL_FREE", |r, t| set(&mut r.kv_critical_free, read::above_zero(t))),
        ("AIBRIX_ROUTING_LEAST_REQUEST_TOP_K", |r, t| set(&mut r.top_k, read::positive(t))),
        ("AIBRIX_ROUTING_LEAST_REQUEST_TOP_K_EPSILON", |r, t| set(&mut r.top_k_epsilon, read::positive(t))),
        ("AIBRIX_ROUTING_LEAST_REQUEST_TOP_K_RAMP_WINDOW", |r, t| set(&mut r.top_k_ramp, read::duration(t))),
        ("AIBRIX_ROUTER_VTC_BASIC_MAX_POD_LOAD", |r, t| set(&mut r.vtc.max_load, read::above_zero(t))),
        ("AIBRIX_ROUTER_VTC_BASIC_INPUT_TOKEN_WEIGHT", |r, t| {
            set(&mut r.vtc.input_weight, read::above_zero(t))
        }),
        ("AIBRIX_ROUTER_VTC_BASIC_OUTPUT_TOKEN_WEIGHT", |r, t| {
            set(&mut r.vtc.output_weight, read::above_zero(t))
        }),
        ("AIBRIX_ROUTER_VTC_BASIC_FAIRNESS_WEIGHT", |r, t| {
            set(&mut r.vtc.fairness_weight, read::above_zero(t))
        }),
        ("AIBRIX_ROUTER_VTC_BASIC_UTILIZATION_WEIGHT", |r, t| {
            set(&mut r.vtc.utilization_weight, read::above_zero(t))
        }),
        ("AIBRIX_ROUTER_VTC_TOKEN_TRACKER_WINDOW_SIZE", |r, t| {
            set(&mut r.vtc.window_size, read::positive(t))
        }),
        ("AIBRIX_ROUTER_VTC_TOKEN_TRACKER_TIME_UNIT", |r, t| set(&mut r.vtc.unit, unit(t))),
        ("AIBRIX_ROUTER_VTC_TOKEN_TRACKER_MIN_TOKENS", |r, t| {
            set(&mut r.vtc.min_tokens, read::above_zero(t))
        }),
        ("AIBRIX_ROUTER_VTC_TOKEN_TRACKER_MAX_TOKENS", |r, t| {
            set(&mut r.vtc.max_tokens, read::above_zero(t))
        }),
    ];
    /// Each variable with the value that means what is set.
    pub fn shown(&self) -> impl Iterator<Item = (&'static str, String)> {
        let (r, vtc) = (self, &self.vtc);
        let unit =
            [(60_000, "minutes"), (1000, "seconds")].into_iter().find(|(ms, _)| vtc.unit.as_millis() == *ms);
        let values = [
            r.uneven_factor.to_string(),
            r.uneven_gap.to_string(),
            r.queued_weight.to_string(),
            r.kv_alpha.to_string(),
            r.kv_critical_free.to_string(),
            r.top_k.to_string(),
            r.top_k_epsilon.to_string(),
            format!("{}ms", r.top_k_ramp.as_millis()),
            vtc.max_load.to_string(),
            vtc.input_weight.to_string(),
            vtc.output_weight.to_string(),
            vtc.fairness_weight.to_string(),
            vtc.utilization_weight.to_string(),
            vtc.window_size.to_string(),
            unit.map_or("milliseconds", |(_, word)| word).to_owned(),
            vtc.min_tokens.to_string(),
            vtc.max_tokens.to_string(),
        ];
        Rules::VARIABLES.iter().map(|(name, _)| *name).zip(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown, read again, is what was shown: no two values stand in each other's place.
    #[test]
    fn what_is_shown_means_the_same_when_it_is_read() {
        let told = |at: usize| match at {
            7 => "1500ms".to_owned(),
            14 => "milliseconds".to_owned(),
            at => (at + 40).to_string(),
        };
        let mut rules = Rules::default();
        for (at, (name, read)) in Rules::VARIABLES.iter().enumerate() {
            assert_eq!(read(&mut rules, &told(at)), Some(()), "{name}");
        }
        assert_eq!(rules.shown().count(), Rules::VARIABLES.len());
        for (at, (name, value)) in rules.shown().enumerate() {
            assert_eq!(value, told(at), "{name}");
        }
        assert_eq!(rules.vtc.window(), Duration::from_millis(53));
    }

    #[test]
    fn what_cannot_be_used_leaves_the_setting_as_it_was() {
        for (name, texts) in [
            ("AIBRIX_LOAD_BALANCE_QUEUED_WEIGHT", &["0", "-1", "x", "NaN"][..]),
            ("AIBRIX_ROUTING_LEAST_REQUEST_TOP_K", &["0", "1.5", ""]),
            ("AIBRIX_ROUTING_LEAST_REQUEST_TOP_K_RAMP_WINDOW", &["300", "-1s"]),
            ("AIBRIX_ROUTER_VTC_TOKEN_TRACKER_TIME_UNIT", &["hours", "Minutes", ""]),
            ("AIBRIX_ROUTER_VTC_TOKEN_TRACKER_WINDOW_SIZE", &["0", "five"]),
        ] {
            let (_, read) = Rules::VARIABLES.iter().find(|(own, _)| *own == name).unwrap();
            for text in texts {
                let mut rules = Rules::default();
                assert_eq!(read(&mut rules, text), None, "{name}={text}");
                assert_eq!(rules, Rules::default());
            }
        }
        let (_, read) =
            Rules::VARIABLES.iter().find(|(name, _)| name.ends_with("TOP_K_RAMP_WINDOW")).unwrap();
        let mut off = Rules::default();
        assert_eq!((read(&mut off, "0"), off.top_k_ramp), (Some(()), Duration::ZERO));
    }
}
