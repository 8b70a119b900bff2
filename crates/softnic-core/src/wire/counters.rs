//! What an engine has counted, for who looks after it. STATS asks and is empty; COUNTERS
//! answers:
//!
//! | offset | bytes | COUNTERS (8 each) | why |
//! |---|---|---|---|
//! | 0 | 8 | each of [`COUNTER_NAMES`], in that order | a later release appends its own |

use super::greeting::append;
use super::{Head, Kind, Malformed, u64_at};

/// What is counted, in the frame's order.
pub const COUNTER_NAMES: [&str; 40] = [
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
    "busy_us",
    "rounds",
    "lag_us_max",
    "in_flight_bytes",
    "window_bytes",
    "retransmitted",
    "engines_max",
    "scaled_out",
    "scaled_in",
    "sessions_moved",
    "messages",
    "messages_refused",
    "messages_lost",
    "message_frames",
];

/// What the first release has counted: fewer are no COUNTERS. What an earlier release
/// does not count is 0.
const FIRST_COUNT: usize = 22;

/// What releases before `--engines MIN..MAX` have counted: those who count more tell how many
/// threads may read, which is never 0.
const UNSCALED_COUNT: usize = 26;

/// What releases have counted that take no messages: those that do tell which version of the
/// frames, which is never 0.
const UNMESSAGED_COUNT: usize = 36;

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

/// Each that its engine counts, with its name: what an earlier release does not know is not there,
/// rather than 0.
pub fn named(values: &CounterValues) -> impl Iterator<Item = (&'static str, u64)> {
    let count = match (value_of(values, "engines_max"), message_frames(values)) {
        (0, _) => UNSCALED_COUNT,
        (_, 0) => UNMESSAGED_COUNT,
        _ => COUNTER_NAMES.len(),
    };
    COUNTER_NAMES.into_iter().zip(*values).take(count)
}

/// Version of the frames for messages that this engine takes; 0: none.
pub fn message_frames(values: &CounterValues) -> u64 {
    value_of(values, "message_frames")
}

fn value_of(values: &CounterValues, name: &str) -> u64 {
    let at = COUNTER_NAMES.iter().position(|known| *known == name);
    at.map_or(0, |at| values[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_release_does_not_count_is_not_named() {
        let values = std::array::from_fn(|at| at as u64 + 1);
        let mut frame = Vec::new();
        encode(&values, &mut frame);
        let head = |count: usize| Head {
            len: count * 8,
            kind: Kind::Counters,
            count: count as u16,
        };
        let body = &frame[super::super::HEAD_LEN..];
        let known = decode(head(values.len()), body).unwrap();
        assert_eq!(named(&known).count(), COUNTER_NAMES.len());
        for (count, last) in [
            (UNSCALED_COUNT, "repeated"),
            (UNMESSAGED_COUNT, "sessions_moved"),
        ] {
            let short = decode(head(count), &body[..count * 8]).unwrap();
            let named: Vec<_> = named(&short).collect();
            assert_eq!(named.len(), count);
            assert_eq!(named.last(), Some(&(last, count as u64)));
            assert_eq!(message_frames(&short), 0);
        }
    }
}
