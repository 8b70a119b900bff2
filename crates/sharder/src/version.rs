//! The ever-growing number of an assignment.

use std::fmt;

/// Orders assignments: first by incarnation, then by generation. Everybody
/// refuses an assignment that is not newer than the one he has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssignmentVersion {
    /// Life of the coordination store's record. Raised by hand when the store
    /// has forgotten generations that were already in use.
    pub incarnation: u64,
    /// Raised by one with every assignment.
    pub generation: u64,
}

impl AssignmentVersion {
    /// The version of the first assignment of an incarnation.
    pub const fn first_of(incarnation: u64) -> Self {
        AssignmentVersion {
            incarnation,
            generation: 1,
        }
    }

    /// The one that follows in the same incarnation. At the end of the
    /// generations, which no system lives to see, the next incarnation begins.
    pub const fn next(self) -> Self {
        match self.generation.checked_add(1) {
            Some(generation) => AssignmentVersion {
                incarnation: self.incarnation,
                generation,
            },
            None => AssignmentVersion::first_of(self.incarnation.saturating_add(1)),
        }
    }
}

impl fmt::Display for AssignmentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}.{}", self.incarnation, self.generation)
    }
}
