//! How long things take.
//!
//! Decides the time of one engine step and of one KV transfer from a profile: a model on a kind and number of GPUs.
//! A step costs `d0 + d1*B + d2*K` for `B` decoding requests with `K` tokens of context together, and prefill adds
//! `p1` per new token and `p2` per squared token of its end minus its start. The coefficients are least-squares fits
//! to public measurements (TensorRT-LLM, vLLM and SGLang runs published with aiconfigurator, Splitwise's table,
//! Vidur's operators); typical errors of the time per token are 1 to 5 %.
//!
//! It does not model a scheduler's own overhead, host swapping or network contention between engines.

use std::time::Duration;

/// One model on one kind of machine. Times in milliseconds, sizes in tokens and bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: &'static str,
    /// Fixed cost of taking in a prompt (HTTP, tokenizing, launch).
    pub p0: f64,
    /// Per new prompt token.
    pub p1: f64,
    /// Per squared token of context covered.
    pub p2: f64,
    /// Fixed cost of a step.
    pub d0: f64,
    /// Per decoding request in the step.
    pub d1: f64,
    /// Per token of context of the decoding requests.
    pub d2: f64,
    /// KV bytes of one token.
    pub bytes_per_token: f64,
    /// Effective rate of the link between the halves of a pair, in GB/s.
    pub link_gb_s: f64,
    /// Set-up of one transfer.
    pub link_setup: f64,
}

/// The bytes of KV per token of the models below, 16 bit.
const LLAMA_8B: f64 = 131_072.0;
const LLAMA_70B: f64 = 327_680.0;
const LLAMA_2_70B: f64 = 327_680.0;
const DEEPSEEK_R1: f64 = 70_272.0;

const fn profile(name: &'static str, prefill: [f64; 3], decode: [f64; 3], bytes_per_token: f64) -> Profile {
    let [p0, p1, p2] = prefill;
    let [d0, d1, d2] = decode;
    // One 400 Gb/s card between the halves.
    Profile { name, p0, p1, p2, d0, d1, d2, bytes_per_token, link_gb_s: 40.0, link_setup: 1.0 }
}

/// The profiles that ship. The first is the default.
pub static PROFILES: [Profile; 12] = [
    profile("llama-3.1-8b/h100/tp1", [15.0, 0.0186, 6.55e-7], [6.58, 0.0033, 4.66e-5], LLAMA_8B),
    profile("llama-3.1-8b/h100/tp2", [15.0, 0.0116, 3.3e-7], [4.52, 0.0074, 2.22e-5], LLAMA_8B),
    profile("llama-3.1-8b/a100/tp1", [18.0, 0.0665, 1.31e-6], [10.7, 0.010, 7.6e-5], LLAMA_8B),
    profile("llama-3.1-70b/h100/tp2", [55.0, 0.0633, 1.64e-6], [16.66, 0.0466, 5.60e-5], LLAMA_70B),
    profile("llama-3.1-70b/h100/tp4", [40.0, 0.0403, 8.2e-7], [11.12, 0.0586, 2.66e-5], LLAMA_70B),
    profile("llama-3.1-70b/h100/tp8", [43.0, 0.0278, 4.1e-7], [8.89, 0.0643, 1.09e-5], LLAMA_70B),
    profile("llama-3.1-70b/h200/tp4", [60.0, 0.0356, 8.2e-7], [7.71, 0.0397, 9.7e-6], LLAMA_70B),
    profile("llama-3.1-70b/h200/tp8", [55.0, 0.0238, 4.1e-7], [5.86, 0.0875, 4.9e-6], LLAMA_70B),
    profile("deepseek-r1/h200/tp8", [110.0, 0.0346, 7.8e-7], [9.30, 0.359, 1.7e-5], DEEPSEEK_R1),
    profile("llama-2-70b/a100/tp8", [49.0, 0.0867, 1.26e-5], [43.7, 0.393, 0.0], LLAMA_2_70B),
    profile("llama-2-70b/h100/tp8", [46.0, 0.0218, 1.05e-5], [29.7, 0.306, 0.0], LLAMA_2_70B),
    profile("tiny/cpu", [4.0, 0.02, 0.0], [2.0, 0.05, 0.0], 1024.0),
];

/// What one step does, for its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Decoding requests.
    pub decoding: u32,
    /// Tokens of context of the decoding requests together.
    pub context: u64,
    /// Prompts taken in by this step for the first time.
    pub prompts: u32,
    /// New prompt tokens.
    pub new_tokens: u64,
    /// Sum over the prompts of end squared minus start squared.
    pub squares: f64,
}

impl StepWork {
    /// Counts the prompt tokens from `start` to `end` of one request.
    pub fn add_prompt(&mut self, start: u32, end: u32) {
        self.new_tokens += u64::from(end - start);
        self.squares += f64::from(end) * f64::from(end) - f64::from(start) * f64::from(start);
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.decoding == 0 && self.new_tokens == 0
    }
}

impl Profile {
    #[must_use]
    pub fn default_one() -> &'static Self {
        &PROFILES[0]
    }

    /// The shipped profile of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// The time of one step in milliseconds, before scale and jitter.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub fn step_ms(&self, work: &StepWork) -> f64 {
        let decode = if work.decoding > 0 || work.prompts == 0 {
            self.d0 + self.d1 * f64::from(work.decoding) + self.d2 * work.context as f64
        } else {
            0.0
        };
        let intake = if work.prompts > 0 { self.p0 } else { 0.0 };
        decode + intake + self.p1 * work.new_tokens as f64 + self.p2 * work.squares
    }

    /// The time of one KV transfer in milliseconds when `sharing` transfers share the link.
    #[must_use]
    pub fn transfer_ms(&self, tokens: u32, sharing: u32) -> f64 {
        let bytes = f64::from(tokens) * self.bytes_per_token;
        self.link_setup + bytes * f64::from(sharing.max(1)) / (self.link_gb_s * 1e6)
    }
}

/// A factor around one: lognormal with a sigma of 3 %.
pub fn jitter(dice: &mut fastrand::Rng) -> f64 {
    // The sum of twelve even draws is close enough to a normal one.
    let normal: f64 = (0..12).map(|_| dice.f64()).sum::<f64>() - 6.0;
    (0.03 * normal).exp()
}

/// `ms` times `scale` as a duration; nonsense becomes zero.
#[must_use]
pub fn scaled(ms: f64, scale: f64) -> Duration {
    Duration::try_from_secs_f64(ms * scale / 1000.0).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_ms(profile: &str, batch: u32, context: u64) -> f64 {
        let work = StepWork { decoding: batch, context: context * u64::from(batch), ..StepWork::default() };
        Profile::find(profile).unwrap().step_ms(&work)
    }

    /// Prefill without its fixed cost, at the points that the fit was checked with.
    #[test]
    fn prefill_takes_what_was_measured() {
        for (name, tokens, want) in [
            ("llama-3.1-8b/h100/tp1", 2048, 41.0),
            ("llama-3.1-8b/h100/tp1", 8192, 196.0),
            ("llama-3.1-70b/h100/tp4", 8192, 385.0),
            ("deepseek-r1/h200/tp8", 8192, 336.0),
        ] {
            let profile = Profile::find(name).unwrap();
            let mut work = StepWork { prompts: 1, ..StepWork::default() };
            work.add_prompt(0, tokens);
            let got = profile.step_ms(&work) - profile.p0;
            assert!((got - want).abs() / want < 0.02, "{name} at {tokens}: {got} ms, not {want}");
        }
    }

    #[test]
    fn a_cut_prompt_costs_the_same_squares() {
        let (mut whole, mut cut) = (StepWork::default(), StepWork::default());
        whole.add_prompt(0, 3000);
        cut.add_prompt(0, 2048);
        cut.add_prompt(2048, 3000);
        assert_eq!(whole, cut);
    }

    #[test]
    fn decode_grows_with_batch_and_context() {
        assert!((decode_ms("llama-3.1-8b/h100/tp1", 1, 1024) - 6.63).abs() < 0.01);
        assert!(decode_ms("deepseek-r1/h200/tp8", 64, 1536) > 30.0);
    }

    #[test]
    fn transfers_share_the_link() {
        let profile = Profile::default_one();
        let alone = profile.transfer_ms(8192, 1);
        assert!((alone - 27.8).abs() < 0.2, "{alone}");
        assert!(profile.transfer_ms(8192, 2) > 1.9 * (alone - 1.0));
    }

    #[test]
    fn jitter_stays_near_one() {
        let mut dice = fastrand::Rng::with_seed(1);
        let mean = (0..4000).map(|_| jitter(&mut dice)).sum::<f64>() / 4000.0;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
    }
}
