//! The store inside one process: for a single node, for tests, and the
//! reference for what other stores have to do.

use super::{AssignmentStore, CandidateId, Completion, Reply, Request, StoreError, Ticket};
use crate::assignment::Assignment;
use crate::diff::AssignmentDiff;
use crate::version::AssignmentVersion;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Diffs kept for watches that come back.
const DIFFS_KEPT: usize = 256;
/// Open watches.
const WATCHES_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct Leader {
    candidate: CandidateId,
    until: Duration,
}

/// One assignment in memory.
#[derive(Debug, Default)]
pub struct EmbeddedStore {
    current: Option<Assignment>,
    /// Each leads from the version before to the next; the last leads to
    /// `current`.
    diffs: VecDeque<AssignmentDiff>,
    leader: Option<Leader>,
    term: u64,
    watches: BTreeMap<Ticket, Option<AssignmentVersion>>,
    answers: VecDeque<Completion>,
    tickets: u64,
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

    fn swap(
        &mut self,
        now: Duration,
        term: u64,
        expected: Option<AssignmentVersion>,
        next: Assignment,
    ) -> Result<Reply, StoreError> {
        let leads = self.leader.is_some_and(|leader| now < leader.until);
        if !leads || term != self.term {
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
        if let Some(current) = &self.current {
            if version <= current.version() {
                return Err(StoreError::NotNewer {
                    current: current.version(),
                    next: version,
                });
            }
            if self.diffs.len() == DIFFS_KEPT {
                self.diffs.pop_front();
            }
            self.diffs
                .push_back(AssignmentDiff::between(current, &next));
        }
        self.current = Some(next);
        self.wake();
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

    /// What a watch after `after` gets now; `None` if it has to wait.
    fn news(&self, after: Option<AssignmentVersion>) -> Option<Result<Reply, StoreError>> {
        let store = self.version();
        let Some(after) = after else {
            return self
                .current
                .clone()
                .map(|current| Ok(Reply::Snapshot(current)));
        };
        match &self.current {
            Some(current) if current.version() == after => None,
            Some(current) if current.version() > after => {
                let from = self.diffs.iter().position(|diff| diff.from == after);
                Some(Ok(match from {
                    Some(from) => Reply::Diffs(self.diffs.iter().skip(from).cloned().collect()),
                    None => Reply::Snapshot(current.clone()),
                }))
            }
            _ => Some(Err(StoreError::Behind { store, seen: after })),
        }
    }

    fn wake(&mut self) {
        for (ticket, after) in std::mem::take(&mut self.watches) {
            match self.news(after) {
                Some(result) => self.answers.push_back(Completion { ticket, result }),
                None => {
                    self.watches.insert(ticket, after);
                }
            }
        }
    }
}

impl AssignmentStore for EmbeddedStore {
    fn submit(&mut self, now: Duration, request: Request) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let result = match request {
            Request::Load => Ok(Reply::Loaded(self.current.clone())),
            Request::Swap {
                term,
                expected,
                next,
            } => self.swap(now, term, expected, next),
            Request::Campaign { candidate, lease } => Ok(self.campaign(now, candidate, lease)),
            Request::Resign { candidate, term } => Ok(self.resign(candidate, term)),
            Request::Watch { after } => match self.news(after) {
                Some(result) => result,
                None if self.watches.len() >= WATCHES_MAX => {
                    Err(StoreError::TooManyWatches { limit: WATCHES_MAX })
                }
                None => {
                    self.watches.insert(ticket, after);
                    return ticket;
                }
            },
        };
        self.answers.push_back(Completion { ticket, result });
        ticket
    }

    fn poll(&mut self, _now: Duration) -> Option<Completion> {
        self.answers.pop_front()
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.watches.remove(&ticket);
        self.answers.retain(|answer| answer.ticket != ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::{KnownAssignment, Learned};
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
        let ticket = store.submit(now, request);
        let answer = store.poll(now).expect("answered at once");
        assert_eq!(answer.ticket, ticket);
        answer.result
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

    #[test]
    fn a_watch_is_resumed_where_it_was() {
        let mut store = EmbeddedStore::holding(map(1));
        let term = lead(&mut store, at(0), A);
        let mut known = KnownAssignment::none();
        match ask(&mut store, at(0), Request::Watch { after: None }) {
            Ok(Reply::Snapshot(map)) => assert_eq!(known.offer(map), Learned::Adopted),
            other => panic!("{other:?}"),
        }
        // Waits, and is answered by the change.
        let after = known.version();
        let waiting = store.submit(at(0), Request::Watch { after });
        assert_eq!(store.poll(at(0)), None);
        let cancelled = store.submit(at(0), Request::Watch { after });
        store.cancel(cancelled);
        let swapped = store.submit(at(1), swap(term, Some(1), 2));
        let answers: Vec<_> = std::iter::from_fn(|| store.poll(at(1))).collect();
        assert_eq!(answers.len(), 2, "the cancelled watch is not answered");
        assert!(answers.iter().any(|answer| answer.ticket == swapped));
        let told = answers.iter().find(|answer| answer.ticket == waiting);
        match &told.expect("the watch was answered").result {
            Ok(Reply::Diffs(diffs)) => assert_eq!(known.offer_diff(&diffs[0]), Learned::Adopted),
            other => panic!("{other:?}"),
        }
        // Was away for a while: everything in between, in order.
        for next in 3..=9 {
            ask(&mut store, at(1), swap(term, Some(next - 1), next)).unwrap();
        }
        let after = known.version();
        match ask(&mut store, at(1), Request::Watch { after }) {
            Ok(Reply::Diffs(diffs)) => {
                assert_eq!(diffs.len(), 7);
                for diff in &diffs {
                    assert_eq!(known.offer_diff(diff), Learned::Adopted);
                }
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(known.current(), Some(&map(9)));
    }

    #[test]
    fn a_watch_that_was_away_too_long_gets_the_whole() {
        let mut store = EmbeddedStore::holding(map(1));
        let last = 2 + DIFFS_KEPT as u64;
        for next in 2..=last {
            let term = lead(&mut store, at(0), A);
            ask(&mut store, at(0), swap(term, Some(next - 1), next)).unwrap();
        }
        assert_eq!(store.diffs.len(), DIFFS_KEPT);
        let watch = |generation| Request::Watch {
            after: Some(map(generation).version()),
        };
        assert_eq!(
            ask(&mut store, at(0), watch(1)),
            Ok(Reply::Snapshot(map(last)))
        );
        match ask(&mut store, at(0), watch(2)) {
            Ok(Reply::Diffs(diffs)) => assert_eq!(diffs.len(), DIFFS_KEPT),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_store_with_old_data_is_found_out() {
        let mut store = EmbeddedStore::holding(map(4));
        let seen = map(9).version();
        let error = ask(&mut store, at(0), Request::Watch { after: Some(seen) }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the store has generation 1.4 although generation 1.9 was in use: it lags or was restored from an old copy"
        );
    }
}
