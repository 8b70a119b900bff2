//! Who serves what: slices that tile the key space, each with its servers.
//!
//! Invariants, all checked by [`Assignment::validate`]:
//!
//! 1. The slices tile the key space exactly, in order: the first starts at 0,
//!    each starts where the one before ends, the last ends at 2^64.
//! 2. The servers of a slice are distinct. The first is its *primary*: the one
//!    that writes go to where replicas are more than copies for reading.
//! 3. Every slice has a server if any server is alive.

use crate::key::{KeyPoint, POINTS, Slice};
use crate::server::ServerId;
use crate::version::AssignmentVersion;
use std::sync::Arc;

/// A slice and who serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignedSlice {
    /// Which keys.
    pub slice: Slice,
    /// Who serves them, the primary first. Empty only while nobody is alive.
    pub servers: Vec<ServerId>,
}

/// A complete, numbered map of the key space. Clones share the slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    version: AssignmentVersion,
    slices: Arc<[AssignedSlice]>,
}

impl Assignment {
    /// Takes slices that tile the key space.
    pub fn new(
        version: AssignmentVersion,
        slices: Vec<AssignedSlice>,
    ) -> Result<Self, AssignmentError> {
        check_shape(&slices)?;
        let slices = slices.into();
        Ok(Assignment { version, slices })
    }

    /// A first assignment: about `slices_per_server` slices for each server,
    /// dealt out in turn, `replicas` servers each (as many as there are).
    pub fn even(
        version: AssignmentVersion,
        servers: &[ServerId],
        slices_per_server: usize,
        replicas: usize,
    ) -> Self {
        let mut servers = servers.to_vec();
        servers.sort_unstable();
        servers.dedup();
        let count = servers.len().max(1) * slices_per_server.max(1);
        let replicas = replicas.clamp(1, servers.len().max(1));
        let slices = Slice::tiles(count)
            .into_iter()
            .enumerate()
            .map(|(i, slice)| AssignedSlice {
                slice,
                servers: (0..replicas.min(servers.len()))
                    .map(|r| servers[(i + r) % servers.len()])
                    .collect(),
            })
            .collect();
        Assignment { version, slices }
    }

    /// Its number.
    pub fn version(&self) -> AssignmentVersion {
        self.version
    }

    /// Every slice, in the order of the key space.
    pub fn slices(&self) -> &[AssignedSlice] {
        &self.slices
    }

    /// The slice that a key point lies in.
    #[inline]
    pub fn slice_of(&self, point: KeyPoint) -> &AssignedSlice {
        let after = self
            .slices
            .partition_point(|assigned| assigned.slice.start() <= point);
        // The first slice starts at 0, so there is one at or before any point.
        &self.slices[after.saturating_sub(1)]
    }

    /// The same map under another number.
    pub fn renumbered(mut self, version: AssignmentVersion) -> Self {
        self.version = version;
        self
    }

    /// Checks the invariants, given who is alive.
    pub fn validate(
        &self,
        is_alive: impl Fn(ServerId) -> bool,
        anyone_alive: bool,
    ) -> Result<(), AssignmentError> {
        check_shape(&self.slices)?;
        for assigned in self.slices() {
            if assigned.servers.is_empty() && anyone_alive {
                return Err(AssignmentError::Unserved(assigned.slice));
            }
            if let Some(&server) = assigned.servers.iter().find(|&&server| !is_alive(server)) {
                return Err(AssignmentError::Dead {
                    slice: assigned.slice,
                    server,
                });
            }
        }
        Ok(())
    }
}

/// Invariants 1 and 2.
pub(crate) fn check_shape(slices: &[AssignedSlice]) -> Result<(), AssignmentError> {
    let mut expected: u128 = 0;
    for assigned in slices {
        let start = u128::from(assigned.slice.start().0);
        if start != expected {
            return Err(AssignmentError::NotTiled {
                expected,
                found: Some(assigned.slice),
            });
        }
        expected = assigned.slice.end();
        for (i, &server) in assigned.servers.iter().enumerate() {
            if assigned.servers[..i].contains(&server) {
                return Err(AssignmentError::Repeated {
                    slice: assigned.slice,
                    server,
                });
            }
        }
    }
    if expected != POINTS {
        return Err(AssignmentError::NotTiled {
            expected,
            found: None,
        });
    }
    Ok(())
}

/// Which invariant does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    /// A gap, an overlap or an open end.
    #[error("the key space is not tiled: a slice has to start at {expected:#x}, found {}", found.map_or_else(|| "the end of the list".to_owned(), |slice| slice.to_string()))]
    NotTiled {
        /// Where the slice has to start.
        expected: u128,
        /// What is there instead.
        found: Option<Slice>,
    },
    /// A server stands twice in the list of one slice.
    #[error("{server} is listed twice for {slice}")]
    Repeated {
        /// Which slice.
        slice: Slice,
        /// Which server.
        server: ServerId,
    },
    /// Nobody serves a slice though somebody could.
    #[error("nobody serves {0} though servers are alive")]
    Unserved(Slice),
    /// A dead server has a slice.
    #[error("{server} serves {slice} but is not alive")]
    Dead {
        /// Which slice.
        slice: Slice,
        /// Which server.
        server: ServerId,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version() -> AssignmentVersion {
        AssignmentVersion::first_of(1)
    }

    fn assigned(start: u64, end: u128, servers: &[u64]) -> AssignedSlice {
        AssignedSlice {
            slice: Slice::new(KeyPoint(start), end).unwrap(),
            servers: servers.iter().map(|&id| ServerId(id)).collect(),
        }
    }

    #[test]
    fn gaps_overlaps_and_open_ends_are_refused() {
        let not_tiled = |slices| match Assignment::new(version(), slices) {
            Err(AssignmentError::NotTiled { expected, .. }) => expected,
            other => panic!("{other:?}"),
        };
        assert_eq!(not_tiled(vec![]), 0);
        assert_eq!(not_tiled(vec![assigned(1, POINTS, &[1])]), 0);
        assert_eq!(not_tiled(vec![assigned(0, 9, &[1])]), 9);
        assert_eq!(
            not_tiled(vec![assigned(0, 9, &[1]), assigned(10, POINTS, &[1])]),
            9
        );
        assert_eq!(
            not_tiled(vec![assigned(0, 9, &[1]), assigned(8, POINTS, &[1])]),
            9
        );
    }

    #[test]
    fn servers_are_distinct_alive_and_there() {
        assert_eq!(
            Assignment::new(version(), vec![assigned(0, POINTS, &[1, 2, 1])]),
            Err(AssignmentError::Repeated {
                slice: Slice::ALL,
                server: ServerId(1)
            })
        );
        let nobody = Assignment::new(version(), vec![assigned(0, POINTS, &[])]).unwrap();
        assert_eq!(nobody.validate(|_| false, false), Ok(()));
        assert_eq!(
            nobody.validate(|_| true, true),
            Err(AssignmentError::Unserved(Slice::ALL))
        );
        let two = Assignment::new(version(), vec![assigned(0, POINTS, &[1, 2])]).unwrap();
        assert_eq!(two.validate(|_| true, true), Ok(()));
        assert_eq!(
            two.validate(|id| id == ServerId(1), true),
            Err(AssignmentError::Dead {
                slice: Slice::ALL,
                server: ServerId(2)
            })
        );
    }

    #[test]
    fn every_point_is_found_in_its_slice() {
        let servers: Vec<_> = (1..=3).map(ServerId).collect();
        let even = Assignment::even(version(), &servers, 7, 2);
        assert_eq!(even.validate(|id| servers.contains(&id), true), Ok(()));
        assert_eq!(even.slices().len(), 21);
        for assigned in even.slices() {
            for point in [assigned.slice.start(), assigned.slice.last()] {
                assert_eq!(even.slice_of(point), assigned);
            }
            assert_eq!(assigned.servers.len(), 2);
        }
    }

    #[test]
    fn incarnations_come_before_generations() {
        let v = |incarnation, generation| AssignmentVersion {
            incarnation,
            generation,
        };
        assert!(v(2, 1) > v(1, 999) && v(1, 3) > v(1, 2));
        assert_eq!(v(1, 3).next(), v(1, 4));
        assert_eq!(v(1, u64::MAX).next(), v(2, 1));
    }
}
