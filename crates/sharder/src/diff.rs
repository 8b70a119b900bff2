//! What changed between two assignments: what a watch carries, so that moving
//! one slice of ten thousand is a message about one slice.

use crate::assignment::{AssignedSlice, Assignment, AssignmentError};
use crate::version::AssignmentVersion;

/// Turns the assignment `from` into the assignment `to`, and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignmentDiff {
    /// The version that it applies to.
    pub from: AssignmentVersion,
    /// The version that it leads to.
    pub to: AssignmentVersion,
    /// The slices of `to` that `from` has not, cut and served exactly so; in
    /// the order of the key space. They cover exactly what is replaced.
    pub changed: Vec<AssignedSlice>,
}

impl AssignmentDiff {
    /// The difference between two assignments.
    pub fn between(from: &Assignment, to: &Assignment) -> Self {
        let mut old = from.slices().iter().peekable();
        let changed = to
            .slices()
            .iter()
            .filter(|new| {
                while old
                    .next_if(|old| old.slice.start() < new.slice.start())
                    .is_some()
                {}
                old.peek() != Some(new)
            })
            .cloned()
            .collect();
        AssignmentDiff {
            from: from.version(),
            to: to.version(),
            changed,
        }
    }

    /// Applies it. Nothing is half applied: the result is valid or there is
    /// none.
    pub fn apply(&self, base: &Assignment) -> Result<Assignment, DiffError> {
        if base.version() != self.from {
            return Err(DiffError::Gap {
                have: base.version(),
                from: self.from,
                to: self.to,
            });
        }
        if self.to <= self.from {
            return Err(DiffError::NotForward {
                from: self.from,
                to: self.to,
            });
        }
        let mut slices = Vec::with_capacity(base.slices().len() + self.changed.len());
        let mut changed = self.changed.iter().peekable();
        let mut covered: u128 = 0;
        for old in base.slices() {
            while let Some(new) = changed.next_if(|new| new.slice.start() <= old.slice.start()) {
                covered = new.slice.end();
                slices.push(new.clone());
            }
            if covered <= u128::from(old.slice.start().0) {
                // Kept whole, unless a change begins inside it.
                if changed
                    .peek()
                    .is_none_or(|new| u128::from(new.slice.start().0) >= old.slice.end())
                {
                    slices.push(old.clone());
                }
            }
            while let Some(new) =
                changed.next_if(|new| u128::from(new.slice.start().0) < old.slice.end())
            {
                covered = new.slice.end();
                slices.push(new.clone());
            }
        }
        Assignment::new(self.to, slices).map_err(DiffError::Invalid)
    }
}

/// Why a diff cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    /// One or more diffs in between are missing (or it is an old one).
    #[error("a change from {from} to {to} does not apply to {have}: ask for the whole assignment")]
    Gap {
        /// What is there.
        have: AssignmentVersion,
        /// What the diff starts from.
        from: AssignmentVersion,
        /// What it leads to.
        to: AssignmentVersion,
    },
    /// It would not lead to a newer assignment.
    #[error("a change from {from} to {to} does not lead forward")]
    NotForward {
        /// What the diff starts from.
        from: AssignmentVersion,
        /// What it leads to.
        to: AssignmentVersion,
    },
    /// The result is no assignment.
    #[error("the changed assignment is not valid: {0}")]
    Invalid(#[source] AssignmentError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{KeyPoint, Slice};
    use crate::server::ServerId;
    use proptest::prelude::*;

    /// Any assignment: cuts anywhere, servers anyhow.
    fn assignment(generation: u64) -> impl Strategy<Value = Assignment> {
        let cuts = prop::collection::btree_set(0u64..40, 0..12);
        let servers = prop::collection::vec(
            prop::collection::btree_set(1u64..5, 1..3)
                .prop_map(|set| set.into_iter().collect::<Vec<_>>()),
            13,
        );
        (cuts, servers).prop_map(move |(cuts, servers)| {
            let mut rest = Slice::ALL;
            let mut slices = Vec::new();
            for cut in cuts {
                if let Some((left, right)) = rest.split_before(KeyPoint(cut)) {
                    slices.push(left);
                    rest = right;
                }
            }
            slices.push(rest);
            let slices = slices
                .into_iter()
                .zip(servers)
                .map(|(slice, servers)| AssignedSlice {
                    slice,
                    servers: servers.into_iter().map(ServerId).collect(),
                })
                .collect();
            let version = AssignmentVersion {
                incarnation: 1,
                generation,
            };
            Assignment::new(version, slices).unwrap()
        })
    }

    proptest! {
        #[test]
        fn a_diff_leads_exactly_there(from in assignment(4), to in assignment(7)) {
            let diff = AssignmentDiff::between(&from, &to);
            prop_assert_eq!(diff.apply(&from), Ok(to.clone()));
            for changed in &diff.changed {
                prop_assert!(!from.slices().contains(changed), "only what changed is in it");
            }
            let gap = matches!(diff.apply(&to), Err(DiffError::Gap { .. }));
            prop_assert!(gap);
        }

        /// Whatever a hostile or broken sender makes up: a valid assignment or
        /// an error, never a panic.
        #[test]
        fn nonsense_is_refused(
            base in assignment(4),
            made_up in prop::collection::vec((any::<u64>(), 0u64..50), 0..6),
        ) {
            let diff = AssignmentDiff {
                from: base.version(),
                to: base.version().next(),
                changed: made_up
                    .into_iter()
                    .map(|(start, width)| AssignedSlice {
                        slice: Slice::spanning(
                            KeyPoint(start),
                            KeyPoint(start.saturating_add(width)),
                        ),
                        servers: vec![ServerId(1)],
                    })
                    .collect(),
            };
            if let Ok(result) = diff.apply(&base) {
                prop_assert_eq!(result.validate(|_| true, true), Ok(()));
            }
        }
    }

    #[test]
    fn one_move_is_one_slice() {
        let servers: Vec<_> = (1..=4).map(ServerId).collect();
        let from = Assignment::even(AssignmentVersion::first_of(1), &servers, 100, 1);
        let mut slices = from.slices().to_vec();
        slices[123].servers = vec![ServerId(1)];
        let to = Assignment::new(from.version().next(), slices).unwrap();
        assert_eq!(AssignmentDiff::between(&from, &to).changed.len(), 1);
        let same = from.clone().renumbered(from.version().next());
        assert_eq!(AssignmentDiff::between(&from, &same).changed.len(), 0);
    }

    #[test]
    fn backwards_is_refused() {
        let base = Assignment::even(AssignmentVersion::first_of(3), &[ServerId(1)], 2, 1);
        let diff = AssignmentDiff {
            from: base.version(),
            to: AssignmentVersion::first_of(2),
            changed: Vec::new(),
        };
        assert!(matches!(
            diff.apply(&base),
            Err(DiffError::NotForward { .. })
        ));
    }
}
