//! The settings of the cascade as they would stand in the environment: what a request goes by, for people to read.

use super::knobs::Knobs;
use crate::time::Duration;

fn secs(time: Duration) -> String {
    time.as_secs().to_string()
}

impl Knobs {
    /// Every variable that is read, with the value that means what is set. In the order of [`Knobs::variables`].
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        let k = self;
        let values = [
            k.bucketing.to_string(),
            k.bucket_serve.to_string(),
            k.serve_mode.as_str().to_owned(),
            k.prefill_score.as_str().to_owned(),
            k.decode_score.as_str().to_owned(),
            k.deviations.to_string(),
            k.prefill_spread.to_string(),
            k.decode_spread.to_string(),
            k.throughput_spread.to_string(),
            k.score_ratio.to_string(),
            k.weight_running.to_string(),
            k.weight_throughput.to_string(),
            k.kv_weight.to_string(),
            k.request_cost.to_string(),
            secs(k.charge_ttl),
            secs(k.session_ttl),
            k.sessions_max.to_string(),
            k.hybrid_factor.to_string(),
            k.min_match_pct.to_string(),
            k.output_growth.to_string(),
            k.shared_ledger.to_string(),
            secs(k.prefill_timeout),
            secs(k.abort_timeout),
            secs(k.abort_retry_delay),
            secs(k.first_response_timeout),
            secs(k.response_timeout),
            secs(k.stream_idle_timeout),
            k.routing_algorithm.clone().unwrap_or_default(),
        ];
        let own = Knobs::VARIABLES.iter().map(|(name, _)| *name).zip(values);
        own.chain(k.whole.shown()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown, read again, is what was shown: no two values stand in each other's place.
    #[test]
    fn what_is_shown_means_the_same_when_it_is_read() {
        let told = |name: &str| {
            let at = Knobs::VARIABLES.iter().position(|(own, _)| *own == name)?;
            Some(match at {
                0 | 1 => "true".to_owned(),
                2 => "rps".to_owned(),
                3 => "token_load".to_owned(),
                4 => "conductor".to_owned(),
                17 => "0.25".to_owned(),
                19 | 20 => "false".to_owned(),
                27 => "pd".to_owned(),
                at => (at + 40).to_string(),
            })
        };
        let (knobs, unused) = Knobs::read(&told);
        assert_eq!(unused, [] as [String; 0]);
        assert!(knobs.shown().iter().map(|(name, _)| *name).eq(Knobs::variables()));
        for (name, value) in knobs.shown().into_iter().take(Knobs::VARIABLES.len()) {
            assert_eq!(Some(value), told(name), "{name}");
        }
    }
}
