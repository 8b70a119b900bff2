//! How many copies a key has and how many must agree.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A cell's mode, written as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// One copy.
    #[serde(rename = "R=1")]
    R1,
    /// Two copies of an immutable corpus; either answers alone.
    #[serde(rename = "R=2")]
    R2,
    /// Three copies, two of which must agree.
    #[serde(rename = "R=3.2")]
    R32,
}

impl Mode {
    /// Every mode, for help texts and tables.
    pub const ALL: [Mode; 3] = [Mode::R1, Mode::R2, Mode::R32];

    /// Copies of a key.
    pub const fn copy_count(self) -> usize {
        match self {
            Mode::R1 => 1,
            Mode::R2 => 2,
            Mode::R32 => 3,
        }
    }

    /// Copies that must agree.
    pub const fn quorum(self) -> usize {
        match self {
            Mode::R1 | Mode::R2 => 1,
            Mode::R32 => 2,
        }
    }

    /// Whether mutations are refused.
    pub const fn is_immutable(self) -> bool {
        matches!(self, Mode::R2)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::R1 => "R=1",
            Mode::R2 => "R=2",
            Mode::R32 => "R=3.2",
        })
    }
}

/// A text that is no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a mode: write R=1 (one copy), R=2 (two copies, immutable) or R=3.2 (three copies, quorum of two)"
)]
pub struct ModeParseError(pub String);

impl FromStr for Mode {
    type Err = ModeParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Mode::ALL
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| ModeParseError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_and_others_are_refused() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        for bad in ["", "R=3", "r=1", "R=2/immutable", "1"] {
            assert!(bad.parse::<Mode>().is_err(), "{bad:?}");
        }
    }
}
