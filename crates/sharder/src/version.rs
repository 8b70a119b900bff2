//! The ever-growing number of an assignment.

use std::fmt;

/// Orders assignments: first by incarnation, then by generation. Everybody
/// refuses an assignment that is not newer than the one he has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssignmentVersion {
    /// Life of the coordination store's record. Raised when the store has forgotten
    /// generations that were already in use: by hand, or by an assigner that owns it
    /// alone.
    pub incarnation: u64,
    /// Raised by one with every assignment. 0: a deal by somebody who knew of nothing.
    pub generation: u64,
}

impl AssignmentVersion {
    /// The version of a first assignment by an assigner whose store has nothing, and to
    /// whom nobody has told of anything. It may have forgotten everything: so the
    /// incarnation has to be higher than all that were in use.
    pub const fn deal(incarnation: u64) -> Self {
        AssignmentVersion {
            incarnation,
            generation: 0,
        }
    }

    /// Whether it was dealt out by somebody who knew of nothing before: whatever there
    /// was, nobody is told of its loss.
    pub const fn is_deal(self) -> bool {
        self.generation == 0 || (self.incarnation == 1 && self.generation == 1)
    }

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
