//! A set of small numbers: one word for the first 64, more only where it needs them.

use smallvec::SmallVec;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(
    /// The last word is never 0, so that equal sets are equal words.
    SmallVec<[u64; 1]>,
);

impl Bits {
    pub fn has(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn set(&mut self, number: usize) {
        let at = number / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (number % 64);
    }

    pub fn clear(&mut self, number: usize) {
        if let Some(word) = self.0.get_mut(number / 64) {
            *word &= !(1 << (number % 64));
        }
        self.trim();
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    /// Are all its numbers in `other`?
    pub fn is_within(&self, other: &Bits) -> bool {
        self.0.len() <= other.0.len() && self.0.iter().zip(&other.0).all(|(own, other)| own & !other == 0)
    }

    /// Only what is in `other` too.
    pub fn keep(&mut self, other: &Bits) {
        self.0.truncate(other.0.len());
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own &= other);
        self.trim();
    }

    /// Its numbers, rising.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| ones(*word, at * 64))
    }

    /// Its numbers that are not in `other`, rising.
    pub fn without<'a>(&'a self, other: &'a Bits) -> impl Iterator<Item = usize> + use<'a> {
        let other = |at: usize| other.0.get(at).copied().unwrap_or_default();
        self.0.iter().enumerate().flat_map(move |(at, word)| ones(word & !other(at), at * 64))
    }

    /// How many of its numbers are not in `other`.
    pub fn count_without(&self, other: &Bits) -> usize {
        let other = |at: usize| other.0.get(at).copied().unwrap_or_default();
        self.0.iter().enumerate().map(|(at, word)| (word & !other(at)).count_ones() as usize).sum()
    }

    /// Words of 64 numbers that it takes.
    pub fn words(&self) -> usize {
        self.0.len()
    }

    /// Memory outside of itself.
    pub fn bytes(&self) -> usize {
        if self.0.spilled() { self.0.capacity() * 8 + 16 } else { 0 }
    }
}

fn ones(mut word: u64, from: usize) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        (word != 0).then(|| {
            word &= word - 1;
            from + bit
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_what_was_put_in_and_not_taken_out() {
        let (mut a, mut b) = (Bits::default(), Bits::default());
        for n in [0, 63, 64, 700] {
            a.set(n);
        }
        b.set(64);
        assert_eq!(a.without(&b).collect::<Vec<_>>(), [0, 63, 700]);
        assert_eq!((a.count_without(&b), b.count_without(&a), a.words()), (3, 0, 11));
        assert!(a.has(700) && !a.has(701) && !a.has(9000) && a.bytes() > 0);
        assert!(b.is_within(&a) && !a.is_within(&b) && a.iter().eq([0, 63, 64, 700]));
        let mut both = a.clone();
        both.keep(&b);
        assert_eq!(both, b);
        a.clear(700);
        a.clear(5000);
        b.set(0);
        b.set(63);
        assert_eq!(a, b);
        for n in [0, 63, 64] {
            a.clear(n);
        }
        assert!(a.is_empty() && !a.has(0));
    }
}
