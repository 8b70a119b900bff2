//! What servers of different releases can say to each other.
//!
//! A version has two parts, as in semantic versioning. Servers with another *major* cannot
//! read each other's frames: it is the first byte of each. A higher *minor* knows more
//! messages and can do without: what both know is agreed on when the first one opens its
//! stream, before its first frame, and nothing else is said.
//!
//! | version | what is new |
//! |---|---|
//! | 2.0 | replicas refuse what they cannot store; values carry the history of the database's log |
//! | 2.1 | [`Message::TakenInPart`]: who is of 2.0 hears that the chunk was not taken, after a pause. [`Message::CopyFailed`] says whether there was no room: not to who is of 2.0 |
//! | 2.2 | [`Message::Pass`]: through others goes only what is for, and goes through, servers of 2.2 |
//!
//! [`Message::TakenInPart`]: crate::Message::TakenInPart
//! [`Message::CopyFailed`]: crate::Message::CopyFailed
//! [`Message::Pass`]: crate::Message::Pass

use std::fmt;

/// A version of what is said between servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wire {
    /// Servers with different ones cannot understand each other.
    pub major: u8,
    /// Messages that there are since.
    pub minor: u8,
}

impl Wire {
    /// What this release speaks.
    pub const OWN: Wire = Wire { major: 2, minor: 2 };
    /// What a server speaks that does not say it: those of before versions were said.
    pub const UNSAID: Wire = Wire { major: 2, minor: 0 };
    /// From this one on, of a chunk what could not be stored may be left, and who could not
    /// store a copy may say that there was no room.
    pub(crate) const IN_PART: Wire = Wire { major: 2, minor: 1 };
    /// From this one on, frames are passed on for others.
    pub(crate) const PASSES: Wire = Wire { major: 2, minor: 2 };

    /// What this release and a peer both speak.
    pub fn agree(peer: Wire) -> Result<Wire, WireError> {
        match peer.major == Wire::OWN.major {
            true => Ok(peer.min(Wire::OWN)),
            false => Err(WireError(peer)),
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A peer of a release that this one cannot talk with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a server speaks version {0}, and this release speaks {own}: all servers of a corpus have \
     to run releases with the same first number",
    own = Wire::OWN
)]
pub struct WireError(pub Wire);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_speak_what_both_know() {
        let wire = |major, minor| Wire { major, minor };
        for (peer, agreed) in [
            (Wire::UNSAID, Ok(wire(2, 0))),
            (wire(2, 1), Ok(wire(2, 1))),
            (Wire::OWN, Ok(Wire::OWN)),
            (wire(2, 9), Ok(Wire::OWN)),
            (wire(1, 9), Err(WireError(wire(1, 9)))),
            (wire(3, 0), Err(WireError(wire(3, 0)))),
        ] {
            assert_eq!(Wire::agree(peer), agreed);
        }
        let said = WireError(wire(3, 0)).to_string();
        assert!(
            said.contains("version 3.0") && said.contains("speaks 2.2"),
            "{said}"
        );
    }
}
