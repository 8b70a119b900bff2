//! How many copies a cell keeps, and how many must agree.

use std::fmt;
use std::str::FromStr;

/// Most replicas that any mode has.
pub const REPLICAS_MAX: usize = 3;

/// A cell's replication mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// One copy.
    #[default]
    R1,
    /// Two copies of an immutable corpus; either may answer.
    R2Immutable,
    /// Three copies, quorum of two.
    R32,
}

impl Mode {
    /// The mode with so many copies.
    ///
    /// # Panics
    /// If no mode has that many; at compile time where it is a constant.
    #[inline(always)]
    pub const fn of(replica_count: usize) -> Self {
        match replica_count {
            1 => Mode::R1,
            2 => Mode::R2Immutable,
            3 => Mode::R32,
            _ => panic!("a mode has one, two or three copies"),
        }
    }

    /// Copies of each key.
    #[inline(always)]
    pub const fn replica_count(self) -> usize {
        match self {
            Mode::R1 => 1,
            Mode::R2Immutable => 2,
            Mode::R32 => 3,
        }
    }

    /// Replicas that must agree before a GET or a mutation is decided.
    #[inline(always)]
    pub const fn quorum(self) -> usize {
        match self {
            Mode::R1 | Mode::R2Immutable => 1,
            Mode::R32 => 2,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::R1 => "R=1",
            Mode::R2Immutable => "R=2",
            Mode::R32 => "R=3.2",
        })
    }
}

/// Not one of the modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a mode is one of R=1, R=2, R=3.2")]
pub struct ModeParseError;

impl FromStr for Mode {
    type Err = ModeParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "R=1" => Ok(Mode::R1),
            "R=2" | "R=2/immutable" => Ok(Mode::R2Immutable),
            "R=3.2" => Ok(Mode::R32),
            _ => Err(ModeParseError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back() {
        for mode in [Mode::R1, Mode::R2Immutable, Mode::R32] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert!(mode.quorum() <= mode.replica_count());
            assert!(mode.replica_count() <= REPLICAS_MAX);
        }
        assert_eq!("R=2/immutable".parse(), Ok(Mode::R2Immutable));
        assert_eq!("r1".parse::<Mode>(), Err(ModeParseError));
    }
}
