//! The store inside one process: for a single node, for tests, and the
//! reference for what other stores have to do.

use super::{CandidateId, Reply, Request, StoreError};
use crate::assignment::Assignment;
use crate::mutants::{self, Mutant};
use crate::version::AssignmentVersion;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
struct Leader {
    candidate: CandidateId,
    until: Duration,
}

/// One assignment in memory.
#[derive(Debug, Default)]
pub struct EmbeddedStore {
    current: Option<Assignment>,
    leader: Option<Leader>,
    term: u64,
}

impl EmbeddedStore {
    /// An empty one.
    pub fn new() -> Self {
        EmbeddedStore::default()
    }

    /// One that begins with an assignment made elsewhere.
    pub fn holding(assignment: Assignment) -> Self {
        EmbeddedStore {
            current: Some(assignment),
            ..EmbeddedStore::default()
        }
    }

    /// One that goes on from what was kept of it: the assignment in force and
    /// the last term, which no leader may have again.
    pub fn resuming(assignment: Option<Assignment>, term: u64) -> Self {
        EmbeddedStore {
            current: assignment,
            term,
            ..EmbeddedStore::default()
        }
    }

    /// The assignment in force.
    pub fn current(&self) -> Option<&Assignment> {
        self.current.as_ref()
    }

    /// The version in force.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.current.as_ref().map(Assignment::version)
    }

    /// Does what is asked. `now` is the store's clock, monotonic.
    pub fn request(&mut self, now: Duration, request: Request) -> Result<Reply, StoreError> {
        match request {
            Request::Load => Ok(Reply::Loaded(self.current.clone())),
            Request::Swap {
                term,
                expected,
                next,
            } => self.swap(now, term, expected, next),
            Request::Campaign { candidate, lease } => Ok(self.campaign(now, candidate, lease)),
            Request::Resign { candidate, term } => Ok(self.resign(candidate, term)),
        }
    }

    fn swap(
        &mut self,
        now: Duration,
        term: u64,
        expected: Option<AssignmentVersion>,
        next: Assignment,
    ) -> Result<Reply, StoreError> {
        let leads = self.leader.is_some_and(|leader| now < leader.until);
        let taken =
            mutants::is(Mutant::FormerTermTaken) || mutants::is(Mutant::FormerLeaderPublishes);
        if (!leads || term != self.term) && !taken {
            return Err(StoreError::NotLeader {
                term,
                last: self.term,
            });
        }
        let found = self.version();
        if found != expected {
            return Err(StoreError::Conflict { expected, found });
        }
        let version = next.version();
        if let Some(current) = found.filter(|&current| version <= current) {
            return Err(StoreError::NotNewer {
                current,
                next: version,
            });
        }
        self.current = Some(next);
        Ok(Reply::Swapped(version))
    }

    fn campaign(&mut self, now: Duration, candidate: CandidateId, lease: Duration) -> Reply {
        match self.leader {
            Some(leader) if now < leader.until && leader.candidate != candidate => {
                Reply::Following {
                    leader: leader.candidate,
                    term: self.term,
                }
            }
            Some(leader) if now < leader.until => {
                self.leader = Some(Leader {
                    candidate,
                    until: leader.until.max(now.saturating_add(lease)),
                });
                Reply::Elected { term: self.term }
            }
            _ => {
                // Also for one whose own lease has run out: somebody may have
                // led in between without having changed anything.
                self.term += 1;
                self.leader = Some(Leader {
                    candidate,
                    until: now.saturating_add(lease),
                });
                Reply::Elected { term: self.term }
            }
        }
    }

    fn resign(&mut self, candidate: CandidateId, term: u64) -> Reply {
        if term == self.term
            && self
                .leader
                .is_some_and(|leader| leader.candidate == candidate)
        {
            self.leader = None;
        }
        Reply::Resigned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ServerId;

    const A: CandidateId = CandidateId(1);
    const B: CandidateId = CandidateId(2);
    const LEASE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ask(
        store: &mut EmbeddedStore,
        now: Duration,
        request: Request,
    ) -> Result<Reply, StoreError> {
        store.request(now, request)
    }

    fn lead(store: &mut EmbeddedStore, now: Duration, candidate: CandidateId) -> u64 {
        let request = Request::Campaign {
            candidate,
            lease: LEASE,
        };
        match ask(store, now, request) {
            Ok(Reply::Elected { term }) => term,
            other => panic!("{other:?}"),
        }
    }

    fn map(generation: u64) -> Assignment {
        let version = AssignmentVersion {
            incarnation: 1,
            generation,
        };
        // Another map for every generation.
        let servers: Vec<_> = (1..=1 + generation % 5).map(ServerId).collect();
        Assignment::even(version, &servers, 4, 1)
    }

    fn swap(term: u64, expected: Option<u64>, next: u64) -> Request {
        Request::Swap {
            term,
            expected: expected.map(|generation| map(generation).version()),
            next: map(next),
        }
    }

    #[test]
    fn a_swap_needs_the_version_in_force_and_a_newer_one() {
        let mut store = EmbeddedStore::new();
        let term = lead(&mut store, at(0), A);
        assert_eq!(
            ask(&mut store, at(1), swap(term, None, 3)),
            Ok(Reply::Swapped(map(3).version()))
        );
        assert_eq!(
            ask(&mut store, at(1), swap(term, None, 4)),
            Err(StoreError::Conflict {
                expected: None,
                found: Some(map(3).version())
            })
        );
        for older in [2, 3] {
            assert_eq!(
                ask(&mut store, at(1), swap(term, Some(3), older)),
                Err(StoreError::NotNewer {
                    current: map(3).version(),
                    next: map(older).version()
                })
            );
        }
        assert_eq!(
            ask(&mut store, at(1), Request::Load),
            Ok(Reply::Loaded(Some(map(3))))
        );
    }

    #[test]
    fn a_former_leader_is_refused() {
        let mut store = EmbeddedStore::holding(map(1));
        let first = lead(&mut store, at(0), A);
        assert_eq!(
            ask(
                &mut store,
                at(4),
                Request::Campaign {
                    candidate: B,
                    lease: LEASE
                }
            ),
            Ok(Reply::Following {
                leader: A,
                term: first
            })
        );
        assert_eq!(lead(&mut store, at(4), A), first, "leads on");
        let second = lead(&mut store, at(9), B);
        assert!(second > first);
        let refused = Err(StoreError::NotLeader {
            term: first,
            last: second,
        });
        assert_eq!(ask(&mut store, at(9), swap(first, Some(1), 2)), refused);
        assert!(ask(&mut store, at(9), swap(second, Some(1), 2)).is_ok());
        // Nobody leads once the lease is over, not even who led last.
        assert!(ask(&mut store, at(14), swap(second, Some(2), 3)).is_err());
        assert!(lead(&mut store, at(14), B) > second);
    }

    #[test]
    fn who_resigns_makes_room_at_once_but_only_for_himself() {
        let mut store = EmbeddedStore::new();
        let term = lead(&mut store, at(0), A);
        let resign = |candidate, term| Request::Resign { candidate, term };
        assert_eq!(ask(&mut store, at(1), resign(B, term)), Ok(Reply::Resigned));
        assert_eq!(lead(&mut store, at(1), A), term, "still leads");
        ask(&mut store, at(1), resign(A, term)).unwrap();
        assert_eq!(lead(&mut store, at(1), B), term + 1);
    }
}
