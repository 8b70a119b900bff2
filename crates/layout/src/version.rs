//! Versions order all mutations of a key (CliqueMap section 5.2).
//!
//! | bits | field | why |
//! |---|---|---|
//! | 64 | time | hybrid logical clock, nanoseconds since the Unix epoch: later attempts of any client eventually win |
//! | 40 | client id | random for each client incarnation |
//! | 24 | sequence | counts within one client id; when it wraps, the client takes a new id |
//!
//! No two mutations ever share a version, so words torn out of two versions
//! match nothing that was ever issued.

use std::fmt;
use std::str::FromStr;

/// Bits of the sequence number, the low part of the second word.
pub const SEQUENCE_BITS: u32 = 24;
/// Bits of the client id.
pub const CLIENT_ID_BITS: u32 = 40;

const _: () = assert!(SEQUENCE_BITS + CLIENT_ID_BITS == 64);

/// A mutation's version; ordered by time, then client id, then sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// Hybrid logical time, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Client id (high 40 bits) and sequence (low 24 bits).
    pub origin: u64,
}

impl Version {
    /// Below every version that is ever issued.
    pub const ZERO: Version = Version {
        time_ns: 0,
        origin: 0,
    };

    /// Builds a version; `client_id` and `sequence` are cut to their bits.
    pub const fn new(time_ns: u64, client_id: u64, sequence: u32) -> Self {
        let sequence = sequence as u64 & ((1 << SEQUENCE_BITS) - 1);
        Version {
            time_ns,
            origin: (client_id << SEQUENCE_BITS) | sequence,
        }
    }

    /// The client incarnation that nominated it.
    pub const fn client_id(self) -> u64 {
        self.origin >> SEQUENCE_BITS
    }

    /// The mutation's number within that client incarnation.
    pub const fn sequence(self) -> u32 {
        (self.origin & ((1 << SEQUENCE_BITS) - 1)) as u32
    }

    /// The floor of a flush: above every version of its time that is ever issued.
    pub const fn of_flush(time_ns: u64) -> Self {
        Version {
            time_ns,
            origin: u64::MAX,
        }
    }

    /// Whether this is the floor of a flush, and no mutation's version.
    pub const fn is_flush(self) -> bool {
        self.origin == u64::MAX
    }

    /// Whether this is the version that stands for "nothing known".
    pub const fn is_zero(self) -> bool {
        self.time_ns == 0 && self.origin == 0
    }
}

/// 32 hex digits, time first: what people and scripts see.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.time_ns, self.origin)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "v{}.{:x}.{}",
            self.time_ns,
            self.client_id(),
            self.sequence()
        )
    }
}

/// Why a text is not a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a version is exactly 32 hexadecimal digits")]
pub struct VersionParseError;

impl FromStr for Version {
    type Err = VersionParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(VersionParseError);
        }
        let word = |part: &str| u64::from_str_radix(part, 16).map_err(|_| VersionParseError);
        Ok(Version {
            time_ns: word(&text[..16])?,
            origin: word(&text[16..])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_time_then_client_then_sequence() {
        let base = Version::new(10, 5, 7);
        assert!(base < Version::new(11, 0, 0));
        assert!(base < Version::new(10, 6, 0));
        assert!(base < Version::new(10, 5, 8));
        assert_eq!((base.client_id(), base.sequence()), (5, 7));
    }

    #[test]
    fn text_is_32_hex_digits_and_comes_back() {
        let version = Version::new(0x1234, 0xab_cdef, 9);
        let text = version.to_string();
        assert_eq!(text.len(), 32);
        assert_eq!(text.parse(), Ok(version));
        for bad in [
            "",
            "12",
            &text[1..],
            &format!("{text}0"),
            &text.replace('1', "g"),
            "+0000000000000000000000000000000",
        ] {
            assert_eq!(bad.parse::<Version>(), Err(VersionParseError), "{bad:?}");
        }
    }
}
