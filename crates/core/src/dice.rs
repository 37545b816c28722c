//! Chance as an argument.
//!
//! One seeded generator stands behind every tie-break and every minted id, so that a run can be
//! repeated from its seed. Ids come from here and never from client input: an id that a client can
//! choose is an id that a client can make collide.

use crate::time::Duration;

/// A seeded source of chance.
#[derive(Clone, Debug)]
pub struct Dice(fastrand::Rng);

const ALNUM: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(fastrand::Rng::with_seed(seed))
    }

    /// An independent generator, for another thread or another exchange.
    pub fn split(&mut self) -> Dice {
        Dice(self.0.fork())
    }

    /// A number in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n < 2 { 0 } else { self.0.usize(0..n) }
    }

    /// A fraction in `[0, 1)`.
    pub fn fraction(&mut self) -> f64 {
        self.0.f64()
    }

    pub fn u64(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A bootstrap room: 63 bits, as SGLang takes them over HTTP (SGLang 0.5.23).
    pub fn room(&mut self) -> u64 {
        self.0.u64(..) >> 1
    }

    /// A request id: `prefix` and 24 letters and digits (SMG 1.13).
    pub fn id(&mut self, prefix: &str) -> String {
        let mut id = String::with_capacity(prefix.len() + 24);
        id.push_str(prefix);
        for _ in 0..3 {
            // Eight digits to the base 62 of one draw, read as a fraction.
            let mut draw = self.0.u64(..);
            for _ in 0..8 {
                let digit = u128::from(draw) * ALNUM.len() as u128;
                id.push(char::from(ALNUM[(digit >> 64) as usize]));
                draw = digit as u64;
            }
        }
        id
    }

    /// `d` changed by at most `factor` of itself either way: the jitter of a retry.
    pub fn jitter(&mut self, d: Duration, factor: f64) -> Duration {
        let swing = 1.0 + factor.clamp(0.0, 1.0) * (2.0 * self.fraction() - 1.0);
        d.mul_f64(swing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let (mut a, mut b) = (Dice::new(7), Dice::new(7));
        for _ in 0..50 {
            assert_eq!(a.room(), b.room());
            assert_eq!(a.id("x-"), b.id("x-"));
        }
    }

    #[test]
    fn an_id_is_its_prefix_and_24_letters_and_digits_all_in_use() {
        let (mut d, mut used) = (Dice::new(1), std::collections::BTreeSet::new());
        for _ in 0..200 {
            let id = d.id("cmpl-");
            let tail = id.strip_prefix("cmpl-").unwrap();
            assert!(tail.len() == 24 && tail.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
            used.extend(tail.bytes());
        }
        assert_eq!(used.len(), ALNUM.len());
    }

    #[test]
    fn rooms_fit_in_63_bits_and_jitter_stays_in_its_band() {
        let mut d = Dice::new(1);
        for _ in 0..1000 {
            assert!(d.room() < 1 << 63);
            let j = d.jitter(Duration::from_millis(100), 0.2);
            assert!(j >= Duration::from_millis(80) && j <= Duration::from_millis(120), "{j:?}");
        }
        assert_eq!(d.below(0), 0);
        assert_eq!(d.below(1), 0);
    }
}
