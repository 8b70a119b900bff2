//! Positions in the write-ahead log.
//!
//! A position is a plain `u64`: Postgres's log sequence number. It grows within
//! one *history* (one cluster on one timeline); a failover begins another one,
//! and numbers of different histories say nothing about each other.
//!
//! A change is versioned by the first position after the start of its
//! transaction's commit record. That is known when the transaction's first
//! change arrives, so nothing has to be kept back until its last one; it is
//! greater than the end of every earlier commit and not greater than the end
//! of its own.

use std::fmt;

/// A history of the log: `system identifier/timeline`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct History(pub String);

/// What histories of a relay by notifications begin with.
const NOTIFIED: &str = "notify/";

impl History {
    /// That of a relay by notifications. Its positions of changes are counted from
    /// the progress so far, and lie before the log's: one of the log is compared
    /// with none of them.
    pub fn notified(name: &str) -> Self {
        History(format!("{NOTIFIED}{name}"))
    }

    /// Whether it is one.
    pub fn is_notified(&self) -> bool {
        self.0.starts_with(NOTIFIED)
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A position together with the history that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which log.
    pub history: History,
    /// Where in it.
    pub position: u64,
}

/// A text that is no position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no log position: expected two hexadecimal numbers, like 16/B374D848")]
pub struct PositionError(pub String);

/// Reads a position as Postgres prints it, like `16/B374D848`.
///
/// # Errors
/// The text has another form.
pub fn parse_position(text: &str) -> Result<u64, PositionError> {
    let half = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        plain
            .then(|| u32::from_str_radix(digits, 16).ok())
            .flatten()
    };
    let both = text
        .split_once('/')
        .map(|(high, low)| (half(high), half(low)));
    match both {
        Some((Some(high), Some(low))) => Ok(u64::from(high) << 32 | u64::from(low)),
        _ => Err(PositionError(text.into())),
    }
}

/// Shows a position as Postgres prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownPosition(pub u64);

impl fmt::Display for ShownPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(position: u64) {
            prop_assert_eq!(parse_position(&ShownPosition(position).to_string()), Ok(position));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = parse_position(&text);
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "/",
            "1/",
            "/1",
            "1",
            "+1/2",
            "1/2/3",
            "123456789/0",
            "g/1",
        ] {
            assert!(parse_position(text).is_err(), "{text}");
        }
        assert_eq!(parse_position("16/B374D848"), Ok(0x16_B374_D848));
    }
}
