//! INCRBYFLOAT: decimal numbers, added exactly.
//!
//! Redis adds in the C compiler's long double and writes 17 places. Here a number is a
//! count of 10^-17, so 0.1 and 0.2 are 0.3, as there; what differs is beyond a long
//! double's 19 digits. Numbers of 10^20 and more are refused.

use super::execute::Call;
use crate::keyspace::{Decision, Keyspace, NewItem, Pending, Ready as _, Updated};
use crate::world::{Command, Ending};

/// Places behind the point.
const PLACES: i32 = 17;
/// Digits before the point.
const DIGITS_MAX: i32 = 20;
const ONE: i128 = 10_i128.pow(PLACES as u32);
const LIMIT: i128 = 10_i128.pow((PLACES + DIGITS_MAX) as u32);
const _: () = assert!(LIMIT < i128::MAX / 16, "sums and one digit more fit");
/// Longest text of a number.
const TEXT_LEN_MAX: usize = 256;

/// Why nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NotANumber,
    TooLarge,
}

impl Refusal {
    fn words(self) -> &'static str {
        match self {
            Refusal::NotANumber => "ERR value is not a valid float",
            Refusal::TooLarge => "ERR increment would produce NaN or Infinity",
        }
    }
}

/// The number that a text says, in 10^-17.
fn parse(text: &[u8]) -> Result<i128, Refusal> {
    if text.len() > TEXT_LEN_MAX {
        return Err(Refusal::NotANumber);
    }
    let (is_negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (digits, exponent) = match rest.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&rest[..at], exponent(&rest[at + 1..])?),
        None => (rest, 0),
    };
    let whole_len = digits.iter().position(|&byte| byte == b'.');
    let (whole, part) = match whole_len {
        Some(at) => (&digits[..at], &digits[at + 1..]),
        None => (digits, &[][..]),
    };
    let all = || whole.iter().chain(part);
    if all().next().is_none() || !all().all(u8::is_ascii_digit) {
        return Err(Refusal::NotANumber);
    }
    // What the next digit counts, as a power of ten over 10^-17.
    let mut power = whole.len() as i32 - 1 + exponent + PLACES;
    let mut number: i128 = 0;
    for &byte in all() {
        let digit = i128::from(byte - b'0');
        match power {
            0.. if digit == 0 => {}
            0.. if power >= PLACES + DIGITS_MAX => return Err(Refusal::TooLarge),
            0.. => number += digit * 10_i128.pow(power as u32),
            // Rounded, as Redis writes it.
            -1 => number += i128::from(digit >= 5),
            _ => {}
        }
        power -= 1;
    }
    Ok(if is_negative { -number } else { number })
}

fn exponent(text: &[u8]) -> Result<i32, Refusal> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::NotANumber);
    }
    // Beyond a thousand it makes no difference.
    let size = digits.iter().fold(0_i32, |sum, byte| {
        (sum * 10 + i32::from(byte - b'0')).min(1000)
    });
    Ok(if is_negative { -size } else { size })
}

/// Writes a number without zeros at its end.
fn put(number: i128, out: &mut Vec<u8>) {
    let size = number.unsigned_abs();
    let (whole, part) = (size / ONE as u128, size % ONE as u128);
    let sign = if number < 0 { "-" } else { "" };
    let mut text = format!("{sign}{whole}");
    if part > 0 {
        let places = format!("{part:017}");
        text.push('.');
        text.push_str(places.trim_end_matches('0'));
    }
    out.extend_from_slice(text.as_bytes());
}

/// INCRBYFLOAT.
pub(super) fn count<K: Keyspace>(call: &mut Call<'_, '_, '_, K>) -> Result<(), Pending> {
    let delta = match parse(call.arguments.get(2)) {
        Ok(delta) => delta,
        Err(refusal) => {
            call.reply.error(refusal.words());
            return Ok(());
        }
    };
    if !call.key_fits() {
        let fault = call.key_fault();
        call.fault(Command::Incr, &fault);
        return Ok(());
    }
    let mut result = Ok(Vec::new());
    let updated = call
        .world
        .keyspace
        .update(call.arguments.get(1), &mut |item, scratch| {
            let old = match item {
                None => Ok(0),
                Some(item) if item.value.len() > TEXT_LEN_MAX => Err(Refusal::NotANumber),
                Some(item) => {
                    item.value.append_to(scratch);
                    parse(scratch)
                }
            };
            scratch.clear();
            result = old.and_then(|old| match old + delta {
                sum if sum.abs() >= LIMIT => Err(Refusal::TooLarge),
                sum => {
                    put(sum, scratch);
                    Ok(scratch.clone())
                }
            });
            if result.is_err() {
                return Decision::Keep;
            }
            Decision::Store(NewItem {
                value: scratch,
                client_flags: item.map_or(0, |item| item.client_flags),
                expiry_ms: item.map_or(0, |item| item.expiry_ms),
                ..NewItem::default()
            })
        });
    match (updated.ready()?, result) {
        (Err(fault), _) => call.fault(Command::Incr, &fault),
        (Ok(Updated::Stored(_)), Ok(new)) => {
            call.reply.bulk(&new);
            call.done(Command::Incr, Ending::Hit, new.len());
        }
        (Ok(_), refusal) => {
            let refusal = refusal.err().unwrap_or(Refusal::NotANumber);
            call.reply.error(refusal.words());
            call.done(Command::Incr, Ending::ClientError, 0);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(texts: &[&str]) -> Result<String, Refusal> {
        let mut sum = 0;
        for text in texts {
            sum += parse(text.as_bytes())?;
        }
        let mut out = Vec::new();
        put(sum, &mut out);
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn sums_are_exact() {
        let cases: [(&[&str], &str); 10] = [
            (&["0.1", "0.2"], "0.3"),
            (&["10.50", "0.1"], "10.6"),
            (&["5.0e3", "2.0e2"], "5200"),
            (&["3", "-3"], "0"),
            (&["-0.5", "0.25"], "-0.25"),
            (&[".5", "5."], "5.5"),
            (&["+1", "1E-2"], "1.01"),
            (&["0.000000000000000005"], "0.00000000000000001"),
            (&["1e-1000"], "0"),
            (&["99999999999999999999"], "99999999999999999999"),
        ];
        for (texts, expected) in cases {
            assert_eq!(sum(texts).as_deref(), Ok(expected), "{texts:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "", "-", ".", "x", "1x", " 1", "1 ", "1e", "1e+", "e1", "nan", "1.2.3", "0x10",
        ] {
            assert_eq!(sum(&[text]), Err(Refusal::NotANumber), "{text:?}");
        }
        for text in ["1e20", "-1e999999999999", "100000000000000000000"] {
            assert_eq!(sum(&[text]), Err(Refusal::TooLarge), "{text:?}");
        }
        assert_eq!(sum(&["0e99999"]).as_deref(), Ok("0"));
    }
}
