//! The assignment that a router or a linklet goes by: only ever replaced by a
//! newer one.

use crate::assignment::Assignment;
use crate::diff::{AssignmentDiff, DiffError};
use crate::version::AssignmentVersion;

/// What became of an assignment or a diff that somebody was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It is newer and in use now.
    Adopted,
    /// It is the one in use.
    Same,
    /// It is older than the one in use, which is the answer to who sent it.
    Older {
        /// The version in use.
        have: AssignmentVersion,
    },
    /// The diff starts from a version that is not here: ask for the whole.
    Gap {
        /// The version in use, if any.
        have: Option<AssignmentVersion>,
    },
    /// It contradicts the one in use or is no assignment at all; not used.
    Refused(String),
}

/// The newest assignment that somebody has learned of.
#[derive(Clone, Debug, Default)]
pub struct KnownAssignment {
    current: Option<Assignment>,
}

impl KnownAssignment {
    /// Knows none yet.
    pub const fn none() -> Self {
        KnownAssignment { current: None }
    }

    /// The assignment in use.
    pub fn current(&self) -> Option<&Assignment> {
        self.current.as_ref()
    }

    /// Its version.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.current.as_ref().map(Assignment::version)
    }

    /// Hears of a whole assignment.
    pub fn offer(&mut self, assignment: Assignment) -> Learned {
        match &self.current {
            Some(current) if assignment.version() < current.version() => Learned::Older {
                have: current.version(),
            },
            Some(current) if assignment.version() == current.version() => {
                if *current == assignment {
                    Learned::Same
                } else {
                    // Two writers issued one number: whoever did that has not
                    // gone through compare-and-swap.
                    Learned::Refused(format!(
                        "two different assignments are both called {}",
                        current.version()
                    ))
                }
            }
            _ => {
                self.current = Some(assignment);
                Learned::Adopted
            }
        }
    }

    /// Hears of a change.
    pub fn offer_diff(&mut self, diff: &AssignmentDiff) -> Learned {
        let Some(current) = &self.current else {
            return Learned::Gap { have: None };
        };
        let have = current.version();
        if diff.to == have {
            return Learned::Same;
        }
        if diff.to < have {
            return Learned::Older { have };
        }
        match diff.apply(current) {
            Ok(next) => {
                self.current = Some(next);
                Learned::Adopted
            }
            Err(DiffError::Gap { .. }) => Learned::Gap { have: Some(have) },
            Err(error) => Learned::Refused(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ServerId;

    fn even(incarnation: u64, generation: u64, servers: &[u64]) -> Assignment {
        let servers: Vec<_> = servers.iter().map(|&id| ServerId(id)).collect();
        let version = AssignmentVersion {
            incarnation,
            generation,
        };
        Assignment::even(version, &servers, 3, 1)
    }

    #[test]
    fn only_newer_ones_are_adopted() {
        let mut known = KnownAssignment::none();
        assert_eq!(known.offer(even(1, 5, &[1])), Learned::Adopted);
        assert_eq!(known.offer(even(1, 5, &[1])), Learned::Same);
        let have = even(1, 5, &[1]).version();
        assert_eq!(known.offer(even(1, 4, &[1, 2])), Learned::Older { have });
        assert!(matches!(known.offer(even(1, 5, &[2])), Learned::Refused(_)));
        assert_eq!(known.offer(even(2, 1, &[2])), Learned::Adopted);
        let have = even(2, 1, &[2]).version();
        assert_eq!(
            known.offer(even(1, 99, &[1])),
            Learned::Older { have },
            "a higher generation of a former incarnation is old"
        );
        assert_eq!(known.version(), Some(have));
    }

    #[test]
    fn missed_diffs_are_noticed() {
        let (a, b, c) = (even(1, 1, &[1]), even(1, 2, &[1, 2]), even(1, 3, &[2]));
        let ab = AssignmentDiff::between(&a, &b);
        let bc = AssignmentDiff::between(&b, &c);
        let mut known = KnownAssignment::none();
        assert_eq!(known.offer_diff(&ab), Learned::Gap { have: None });
        known.offer(a.clone());
        assert_eq!(
            known.offer_diff(&bc),
            Learned::Gap {
                have: Some(a.version())
            }
        );
        assert_eq!(known.offer_diff(&ab), Learned::Adopted);
        assert_eq!(known.offer_diff(&ab), Learned::Same);
        assert_eq!(known.offer_diff(&bc), Learned::Adopted);
        assert_eq!(known.offer_diff(&ab), Learned::Older { have: c.version() });
        assert_eq!(known.current(), Some(&c));
    }
}
