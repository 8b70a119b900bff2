//! What a client's expiration time means.

use super::number::parse_i64;
use crate::world::Now;
use trefoil_layout::data::EXPIRY_MS_MAX;

/// A number up to this many seconds counts from now, a larger one from the
/// Unix epoch.
const RELATIVE_S_MAX: i64 = 60 * 60 * 24 * 30;

/// libmemcached sends numbers below 0 in 32 bits without a sign. As dates they would be
/// in the last thirty days before 2106-02-07.
const UNSIGNED_RELATIVE_S_MIN: i64 = u32::MAX as i64 + 1 - RELATIVE_S_MAX;
const UNSIGNED_RELATIVE_S_MAX: i64 = u32::MAX as i64;

/// An expiry that has passed whenever it is looked at.
const PAST_MS: u64 = 1;

/// The expiry, in milliseconds since the Unix epoch, of an expiration time in
/// seconds. 0 is never, below 0 is at once.
pub(super) fn expiry_ms(seconds: i64, now: Now) -> u64 {
    match seconds {
        0 => 0,
        ..0 => PAST_MS,
        1..=RELATIVE_S_MAX => now.unix_ms + seconds as u64 * 1000,
        _ => (seconds as u64).saturating_mul(1000).min(EXPIRY_MS_MAX),
    }
}

/// An expiration time in a command's words. The newer memcached takes no number that does
/// not fit in 32 bits with a sign, and no sign but that of numbers below 0.
pub(super) fn parse_expiration(word: &[u8], is_newer: bool) -> Option<i64> {
    let seconds = parse_i64(word)?;
    let is_plain = matches!(word, [b'-' | b'0'..=b'9', ..]) && i32::try_from(seconds).is_ok();
    (is_plain || !is_newer).then_some(seconds)
}

/// The same of a number in text, where memcached takes 32 bits for signed.
pub(super) fn text_expiry_ms(seconds: i64, now: Now) -> u64 {
    match seconds {
        UNSIGNED_RELATIVE_S_MIN..=UNSIGNED_RELATIVE_S_MAX => PAST_MS,
        seconds => expiry_ms(seconds, now),
    }
}

/// Seconds until an expiry, the begun one included, so that an item just
/// stored for 30 s has 30 left; 0 if it has passed.
pub(super) fn remaining_s(expiry_ms: u64, now: Now) -> u64 {
    expiry_ms.saturating_sub(now.unix_ms).div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now {
        unix_ms: 1_700_000_000_500,
        monotonic_ns: 0,
    };

    #[test]
    fn thirty_days_are_relative_and_more_is_a_date() {
        let cases = [
            (0, 0),
            (-1, PAST_MS),
            (i64::MIN, PAST_MS),
            (1, 1_700_000_001_500),
            (2_592_000, 1_702_592_000_500),
            (2_592_001, 2_592_001_000),
            (4_102_444_800, 4_102_444_800_000),
            (4_294_967_295, 4_294_967_295_000),
            (i64::MAX, EXPIRY_MS_MAX),
        ];
        for (seconds, expected) in cases {
            assert_eq!(expiry_ms(seconds, NOW), expected, "{seconds}");
        }
    }

    #[test]
    fn a_number_below_zero_without_its_sign_has_passed() {
        let before = 4_294_967_295 - 2_592_000;
        let cases = [
            (-1, PAST_MS),
            (4_294_967_295, PAST_MS),
            (before + 1, PAST_MS),
            (before, before as u64 * 1000),
            (4_294_967_296, 4_294_967_296_000),
            (10, 1_700_000_010_500),
        ];
        for (seconds, expected) in cases {
            assert_eq!(text_expiry_ms(seconds, NOW), expected, "{seconds}");
        }
    }

    #[test]
    fn a_begun_second_remains() {
        assert_eq!(remaining_s(NOW.unix_ms + 30_000, NOW), 30);
        assert_eq!(remaining_s(NOW.unix_ms + 29_001, NOW), 30);
        assert_eq!(remaining_s(NOW.unix_ms, NOW), 0);
        assert_eq!(remaining_s(PAST_MS, NOW), 0);
    }
}
