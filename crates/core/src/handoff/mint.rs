//! Where the ids of a plan come from: chance, the time of day, and a count.
//!
//! Fresh for every attempt and never from client input, so that no client can make two requests meet.
//! Ids that carry the time do so because an engine or a log sorts by it; none is trusted to be in order.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dice::Dice;

/// What the ids of one plan are made from.
#[derive(Debug)]
pub struct Mint<'a> {
    pub dice: &'a mut Dice,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Ids of this process that are told apart by their number, so far.
    pub serial: &'a AtomicU64,
}

impl Mint<'_> {
    /// A UUID of version 7 (RFC 9562): 48 bits of time, the rest by chance. 32 hex digits.
    pub fn uuid7(&mut self) -> String {
        let (high, low) = (self.dice.u64(), self.dice.u64());
        let top = (self.unix_ms << 16) | 0x7000 | (high & 0x0fff);
        let bottom = (low >> 2) | (1 << 63);
        format!("{top:016x}{bottom:016x}")
    }

    /// [`Mint::uuid7`] with its dashes.
    pub fn dashed_uuid7(&mut self) -> String {
        let hex = self.uuid7();
        let (a, rest) = hex.split_at(8);
        let (b, rest) = rest.split_at(4);
        let (c, rest) = rest.split_at(4);
        let (d, e) = rest.split_at(4);
        format!("{a}-{b}-{c}-{d}-{e}")
    }

    /// The next number of this process.
    pub fn number(&mut self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_says_its_version_and_its_time() {
        let (mut dice, serial) = (Dice::new(7), AtomicU64::new(0));
        let mut mint = Mint { dice: &mut dice, unix_ms: 0x0123_4567_89ab, serial: &serial };
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let id = mint.dashed_uuid7();
            assert!(id.starts_with("01234567-89ab-7"), "{id}");
            assert!(id.split('-').map(str::len).eq([8, 4, 4, 4, 12]), "{id}");
            assert!(matches!(id.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{id}");
            assert!(seen.insert(id));
        }
        assert_eq!((mint.number(), mint.number()), (0, 1));
    }
}
