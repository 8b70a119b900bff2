//! What an engine has counted, for who looks after it. STATS asks and is empty; COUNTERS
//! answers:
//!
//! | offset | bytes | COUNTERS (8 each) | why |
//! |---|---|---|---|
//! | 0 | 8 | each of [`COUNTER_NAMES`], in that order | a later release appends its own |

use super::greeting::append;
use super::{Head, Kind, Malformed, u64_at};

/// What is counted, in the frame's order.
pub const COUNTER_NAMES: [&str; 26] = [
    "scans",
    "reads",
    "touches",
    "lapsed",
    "gone",
    "bytes_in",
    "bytes_out",
    "datagrams_in",
    "datagrams_dropped",
    "datagrams_out",
    "sleeps",
    "sessions_total",
    "sessions_open",
    "refused",
    "malformed",
    "stuck",
    "revoked",
    "mapped_total",
    "backends_mapped",
    "cpu_us",
    "uptime_ms",
    "pid",
    "engines",
    "greeting_cpu_us",
    "turned_away",
    "repeated",
];

/// What the first release has counted: fewer are no COUNTERS. What an earlier release
/// does not count is 0.
const FIRST_COUNT: usize = 22;

/// Their values.
pub type CounterValues = [u64; COUNTER_NAMES.len()];

/// Longest COUNTERS that is taken, in bytes behind its head: of later releases, too.
const LEN_MAX: usize = 4096;

/// Appends a STATS frame.
pub fn encode_question(out: &mut Vec<u8>) {
    append(out, Kind::Stats, &[]);
}

/// Appends a COUNTERS frame.
pub fn encode(values: &CounterValues, out: &mut Vec<u8>) {
    let head = Head {
        len: size_of_val(values),
        kind: Kind::Counters,
        // Some two dozen.
        count: values.len() as u16,
    };
    out.extend_from_slice(&head.encode());
    values
        .iter()
        .for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

/// Judges one; what a later release counts besides is left out.
pub fn decode(head: Head, body: &[u8]) -> Result<CounterValues, Malformed> {
    let count = usize::from(head.count);
    let is_sound = body.len() == count * 8 && body.len() <= LEN_MAX && count >= FIRST_COUNT;
    if !is_sound {
        return Err(Malformed("not COUNTERS"));
    }
    let value = |at| match at < count {
        true => u64_at(body, at * 8),
        false => 0,
    };
    Ok(std::array::from_fn(value))
}
