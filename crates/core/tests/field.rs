//! Cases from the field that need no network; the others are among the gateway's end-to-end tests (`field`).

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use baton_core::dice::Dice;
use baton_core::handoff::Mint;
use baton_core::time::Instant;

/// Time is told by a clock that only runs forward; the time of day is for ids alone, which do not rely on it.
#[test]
fn ua09_a_wall_clock_that_jumps_back_changes_no_duration_and_doubles_no_id() {
    let (earlier, later) = (Instant::from_micros(1_000), Instant::from_micros(5_000));
    assert_eq!(later.since(earlier), Duration::from_millis(4));
    assert_eq!(earlier.since(later), Duration::ZERO, "never less than none");

    let (mut dice, serial) = (Dice::new(7), AtomicU64::new(0));
    let now = 1_790_000_000_000;
    let mut ids = BTreeSet::new();
    for unix_ms in [now, now - 3_600_000, now, now - 3_600_000] {
        for _ in 0..1_000 {
            let mut mint = Mint { dice: &mut dice, unix_ms, serial: &serial };
            assert!(ids.insert(mint.uuid7()), "an id came twice");
        }
    }
}
