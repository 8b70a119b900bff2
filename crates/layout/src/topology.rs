//! Which cell, and which state of it: what every belief about a cell is
//! identified by.

use std::fmt;

/// Identifies a topology: the configuration `config_id` of one life of a cell.
///
/// A *life* is one existence of a cell's data. It is named at random when the
/// data begins empty, so that nobody takes a cell that was started anew for the
/// one that stood at the same address before. Config ids grow within a life, and
/// mean nothing without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopologyId {
    /// The cell's life; 0 is never issued.
    pub life: u64,
    /// The configuration; 0 is never issued.
    pub config_id: u32,
}

/// Never issued: a backend serves under it while it changes from one corpus to the next,
/// and once it has left its place to another process. No client takes what it reads then
/// for what it expects.
pub const CONFIG_ID_CHANGING: u32 = u32::MAX;

impl TopologyId {
    /// Whether who says so serves nobody just now, or never again.
    pub fn is_changing(self) -> bool {
        self.config_id == CONFIG_ID_CHANGING
    }

    /// Whether `other` is of the same life and later.
    pub fn is_followed_by(self, other: TopologyId) -> bool {
        self.life == other.life && self.config_id < other.config_id
    }
}

impl fmt::Display for TopologyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "config id {} of life {:016x}", self.config_id, self.life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_ids_are_compared_within_a_life_only() {
        let topology = |life, config_id| TopologyId { life, config_id };
        assert!(topology(1, 1).is_followed_by(topology(1, 2)));
        assert!(!topology(1, 2).is_followed_by(topology(1, 2)));
        assert!(!topology(1, 2).is_followed_by(topology(1, 1)));
        assert!(!topology(1, 1).is_followed_by(topology(2, 2)));
        assert!(topology(1, CONFIG_ID_CHANGING).is_changing());
        assert!(!topology(1, CONFIG_ID_CHANGING - 1).is_changing());
        let text = topology(0xab, 7).to_string();
        assert_eq!(text, "config id 7 of life 00000000000000ab");
    }
}
