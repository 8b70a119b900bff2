//! Numbers as memcached reads and writes them.
//!
//! It reads them with C's `strtol` family: blanks and a sign may stand before
//! the digits, and what follows a blank after them is ignored.

/// Whether C's `isspace` holds.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Sign and magnitude of the number at the front; `None` if there is none, it
/// does not fit, or something else than a blank follows it.
fn leading(text: &[u8]) -> Option<(bool, u64)> {
    let blanks = text.iter().take_while(|&&byte| is_blank(byte)).count();
    let (negative, digits) = match text[blanks..] {
        [b'-', ref digits @ ..] => (true, digits),
        [b'+', ref digits @ ..] => (false, digits),
        ref digits => (false, digits),
    };
    let mut magnitude: u64 = 0;
    let mut len = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit))?;
        len += 1;
    }
    let ends = digits
        .get(len)
        .is_none_or(|&byte| is_blank(byte) || byte == 0);
    (len > 0 && ends).then_some((negative, magnitude))
}

/// A 64-bit unsigned number.
pub(super) fn parse_u64(text: &[u8]) -> Option<u64> {
    let (negative, magnitude) = leading(text)?;
    if !negative {
        // memcached looks for the sign of a negative number that has wrapped
        // anywhere in the text, if the number is as large as one.
        let wrapped = magnitude > i64::MAX as u64 && text.contains(&b'-');
        return (!wrapped).then_some(magnitude);
    }
    let number = magnitude.wrapping_neg();
    (number <= i64::MAX as u64).then_some(number)
}

/// A 32-bit unsigned number.
pub(super) fn parse_u32(text: &[u8]) -> Option<u32> {
    parse_u64(text)?.try_into().ok()
}

/// The same where the newer memcached reads it: digits only.
pub(super) fn parse_u64_plain(text: &[u8], is_newer: bool) -> Option<u64> {
    let is_plain = !is_newer || text.iter().all(u8::is_ascii_digit);
    parse_u64(text).filter(|_| is_plain)
}

/// The same in 32 bits.
pub(super) fn parse_u32_plain(text: &[u8], is_newer: bool) -> Option<u32> {
    parse_u64_plain(text, is_newer)?.try_into().ok()
}

/// A signed number.
pub(super) fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, magnitude) = leading(text)?;
    if negative {
        0i64.checked_sub_unsigned(magnitude)
    } else {
        magnitude.try_into().ok()
    }
}

/// Digits of the longest number.
const DIGITS_MAX: usize = 20;

/// Appends a number in decimal.
pub(super) fn put_u64(out: &mut Vec<u8>, mut number: u64) {
    if number < 10 {
        out.push(b'0' + number as u8);
        return;
    }
    let mut digits = [0; DIGITS_MAX];
    let mut at = DIGITS_MAX;
    while number > 0 {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers_as_memcached_reads_them() {
        let cases: [(&[u8], Option<u64>); 17] = [
            (b"0", Some(0)),
            (b"12", Some(12)),
            (b"12 34", Some(12)),
            (b"12\r\n", Some(12)),
            (b"12\0x", Some(12)),
            (b"12x", None),
            (b" 7", Some(7)),
            (b"+7", Some(7)),
            (b"-7", None),
            (b"-0", Some(0)),
            (b"", None),
            (b"-", None),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"18446744073709551615 -", None),
            (b"-18446744073709551615", Some(1)),
            (b"9223372036854775807 -", Some(i64::MAX as u64)),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_u64(text), expected, "{:?}", text.escape_ascii());
        }
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
    }

    #[test]
    fn the_newer_memcached_takes_digits_only() {
        let cases: [(&[u8], Option<u64>, Option<u64>); 7] = [
            (b"7", Some(7), Some(7)),
            (b"007", Some(7), Some(7)),
            (b"+7", Some(7), None),
            (b"-0", Some(0), None),
            (b"\t7", Some(7), None),
            (b"", None, None),
            (b"7x", None, None),
        ];
        for (text, older, newer) in cases {
            assert_eq!(
                parse_u64_plain(text, false),
                older,
                "{:?}",
                text.escape_ascii()
            );
            assert_eq!(
                parse_u64_plain(text, true),
                newer,
                "{:?}",
                text.escape_ascii()
            );
        }
        assert_eq!(parse_u32_plain(b"4294967296", true), None);
    }

    #[test]
    fn signed_numbers() {
        let cases: [(&[u8], Option<i64>); 6] = [
            (b"-1", Some(-1)),
            (b"9223372036854775807", Some(i64::MAX)),
            (b"9223372036854775808", None),
            (b"-9223372036854775808", Some(i64::MIN)),
            (b"-9223372036854775809", None),
            (b"1.5", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_i64(text), expected, "{:?}", text.escape_ascii());
        }
    }

    #[test]
    fn written_numbers() {
        for number in [0, 9, 10, 99, 100, 4_294_967_296, u64::MAX] {
            let mut out = Vec::new();
            put_u64(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }
}
