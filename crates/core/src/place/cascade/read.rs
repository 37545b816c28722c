//! How AIBrix reads a value from its environment.
//!
//! A value that cannot be used is never an error there: the default stands, and one line in the log says so. The
//! strictness differs by type and has to be kept, because the same manifest must mean the same here: a switch knows
//! Go's words only, so `yes` turns nothing on; a whole number of 0 is no number where only a positive one makes
//! sense; a number that is not finite is none.

use crate::time::Duration;

/// Go's words for a boolean.
pub fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// A whole number above 0.
pub fn positive(text: &str) -> Option<u64> {
    text.strip_prefix('+').unwrap_or(text).parse().ok().filter(|n| (1..=i64::MAX as u64).contains(n))
}

/// A whole number of 0 or more; blanks around it do not count.
pub fn whole(text: &str) -> Option<u64> {
    let text = text.trim();
    text.strip_prefix('+').unwrap_or(text).parse().ok().filter(|n| *n <= i64::MAX as u64)
}

/// A finite number above 0.
pub fn above_zero(text: &str) -> Option<f64> {
    text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0)
}

/// A number from 0 to `most`, both included.
pub fn within(text: &str, most: f64) -> Option<f64> {
    text.parse().ok().filter(|x| (0.0..=most).contains(x))
}

/// Go's way of writing a time: `300s`, `1m30s`, `0.5h`, `0`. None that is negative.
pub fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("μs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut secs = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let next = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(next);
        let number: f64 = number.parse().ok()?;
        secs += number * UNITS.into_iter().find(|(name, _)| *name == unit)?.1;
        rest = tail;
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(secs).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_knows_gos_words_only() {
        for (text, read) in [
            ("1", Some(true)),
            ("True", Some(true)),
            ("F", Some(false)),
            ("yes", None),
            ("on", None),
            ("tRUE", None),
            (" true", None),
            ("", None),
        ] {
            assert_eq!(switch(text), read, "{text:?}");
        }
    }

    #[test]
    fn times_are_written_as_go_writes_them() {
        for (text, ms) in [
            ("300s", Some(300_000)),
            ("1m30s", Some(90_000)),
            ("0.5h", Some(1_800_000)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("+15ms", Some(15)),
            ("1500us", Some(1)),
            ("300", None),
            ("-1s", None),
            ("1d", None),
            ("s", None),
            ("", None),
            ("1s ", None),
        ] {
            assert_eq!(duration(text).map(|d| d.as_millis()), ms, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_as_strict_as_their_kind() {
        assert_eq!(
            ["1", "+7", "0", "-1", "", "1.0", " 3"].map(positive),
            [Some(1), Some(7), None, None, None, None, None]
        );
        assert_eq!(["0", " 0 ", "-1", "x", ""].map(whole), [Some(0), Some(0), None, None, None]);
        assert_eq!(
            ["0.5", "0", "-1", "NaN", "inf", "x"].map(above_zero),
            [Some(0.5), None, None, None, None, None]
        );
        assert_eq!(
            ["0", "100", "101", "-1", "NaN", "Inf", "abc"].map(|t| within(t, 100.0)),
            [Some(0.0), Some(100.0), None, None, None, None, None]
        );
    }
}
