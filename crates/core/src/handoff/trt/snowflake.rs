//! Ids that no two gateways and no two requests share: time, machine and count in one number.
//!
//! AIBrix's layout and its fold: 41 bits of milliseconds since 2023, 10 of machine, 12 of count; then moved above
//! 2^42, since engines count below that themselves, and below 2^63.

/// Milliseconds from 1970 to the beginning of 2023.
const EPOCH_MS: u64 = 1_672_531_200_000;
const TIME_BITS: u32 = 41;
const LEAST: u64 = 1 << 42;

/// A `disagg_request_id`.
pub fn id(unix_ms: u64, machine: u16, count: u64) -> u64 {
    let ms = unix_ms.saturating_sub(EPOCH_MS).min((1 << TIME_BITS) - 1);
    let raw = ms << 22 | u64::from(machine & 0x3ff) << 12 | count & 0xfff;
    raw % ((1 << 63) - 1 - LEAST) + LEAST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j17_time_machine_and_count() {
        for (ms, machine, count, expected) in [
            (0, 0, 0, 4_398_046_511_104),
            (1, 0, 0, 4_398_050_705_408),
            (1000, 5, 7, 4_402_240_835_591),
            (1000, 5, 4096 + 7, 4_402_240_835_591),
        ] {
            assert_eq!(id(EPOCH_MS + ms, machine, count), expected, "{ms} {machine} {count}");
        }
    }

    #[test]
    fn it_stays_within_its_bounds_at_the_end_of_time_and_before_its_beginning() {
        for ms in [0, EPOCH_MS, u64::MAX] {
            for count in [0, 4095, u64::MAX] {
                let id = id(ms, 1023, count);
                assert!((LEAST..1 << 63).contains(&id), "{id}");
            }
        }
        assert_eq!(id(0, 1, 1), id(EPOCH_MS, 1, 1));
    }

    #[test]
    fn one_millisecond_has_room_for_4096() {
        let ids: std::collections::BTreeSet<u64> = (0..4096).map(|n| id(EPOCH_MS + 5, 3, n)).collect();
        assert_eq!(ids.len(), 4096);
        assert!(ids.iter().all(|id| *id < super::id(EPOCH_MS + 6, 0, 0)));
    }
}
