//! What a store has of one corpus, as it is followed.

use crate::limits::DIFFS_KEPT;
use crate::viewcell::Servers;
use crate::wire::MemberRecord;
use std::collections::VecDeque;
use std::sync::Arc;
use trefoil_sharder::coordination::{CandidateId, StoreError};
use trefoil_sharder::{Assignment, AssignmentDiff, AssignmentVersion};

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderRecord {
    pub(crate) candidate: CandidateId,
    pub(crate) term: u64,
    pub(crate) address: String,
}

/// One moment of a corpus: members and assignment belong together.
#[derive(Clone, Debug, Default)]
pub(crate) struct CorpusState {
    pub(crate) assignment: Option<Arc<Assignment>>,
    /// The last changes; each leads from the one before to the next, the last
    /// to `assignment`.
    diffs: VecDeque<Arc<AssignmentDiff>>,
    pub(crate) servers: Servers,
    pub(crate) leader: Option<LeaderRecord>,
    /// The store has something older than `assignment`.
    pub(crate) behind: Option<StoreError>,
    /// It has something that cannot be read: what was known before stays.
    pub(crate) unreadable: Option<StoreError>,
}

/// What a store was found to have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) assignment: Option<Assignment>,
    pub(crate) members: Vec<MemberRecord>,
    pub(crate) leader: Option<LeaderRecord>,
}

/// What somebody who has `after` has to be told to be up to date.
#[derive(Clone, Debug)]
pub(crate) enum News {
    None,
    Diffs(Vec<Arc<AssignmentDiff>>),
    Whole(Arc<Assignment>),
    /// He knows more.
    Behind,
}

impl CorpusState {
    pub(crate) fn version(&self) -> Option<AssignmentVersion> {
        self.assignment.as_ref().map(|current| current.version())
    }

    /// The state once this was found.
    pub(crate) fn after(&self, found: Found) -> CorpusState {
        let store = found.assignment.as_ref().map(Assignment::version);
        if let Some(seen) = self.version().filter(|&seen| store < Some(seen)) {
            return CorpusState {
                behind: Some(StoreError::Behind { store, seen }),
                leader: found.leader,
                unreadable: None,
                ..self.clone()
            };
        }
        let mut next = CorpusState {
            assignment: self.assignment.clone(),
            diffs: self.diffs.clone(),
            servers: self.servers.clone(),
            leader: found.leader,
            behind: None,
            unreadable: None,
        };
        if store > self.version()
            && let Some(assignment) = found.assignment
        {
            next.advance(assignment);
        }
        let servers = found
            .members
            .into_iter()
            .map(|record| (record.id, record.info))
            .collect();
        if *next.servers != servers {
            next.servers = Arc::new(servers);
        }
        next
    }

    fn advance(&mut self, assignment: Assignment) {
        if let Some(current) = &self.assignment {
            if self.diffs.len() == DIFFS_KEPT {
                self.diffs.pop_front();
            }
            self.diffs
                .push_back(Arc::new(AssignmentDiff::between(current, &assignment)));
        }
        self.assignment = Some(Arc::new(assignment));
    }

    /// What is new since `after`.
    pub(crate) fn news(&self, after: Option<AssignmentVersion>) -> News {
        match (&self.assignment, after) {
            (None, None) => News::None,
            (None, Some(_)) => News::Behind,
            (Some(current), None) => News::Whole(Arc::clone(current)),
            (Some(current), Some(after)) if current.version() == after => News::None,
            (Some(current), Some(after)) if current.version() < after => News::Behind,
            (Some(current), Some(after)) => {
                match self.diffs.iter().position(|diff| diff.from == after) {
                    Some(from) => News::Diffs(self.diffs.iter().skip(from).cloned().collect()),
                    None => News::Whole(Arc::clone(current)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ServerInfo;
    use trefoil_sharder::{Capacity, ServerId};

    fn found(generation: u64, servers: &[u64]) -> Found {
        let ids: Vec<ServerId> = servers.iter().map(|&id| ServerId(id)).collect();
        let version = AssignmentVersion {
            incarnation: 1,
            generation,
        };
        let capacity = Capacity { cpu: 1.0, bytes: 1 };
        Found {
            assignment: Some(Assignment::even(version, &ids, 3, 1)),
            members: ids
                .iter()
                .map(|&id| MemberRecord {
                    id,
                    life: 1,
                    info: ServerInfo::new(format!("s{id}:1"), capacity),
                })
                .collect(),
            leader: None,
        }
    }

    #[test]
    fn it_is_resumed_by_changes_or_as_a_whole() {
        let mut state = CorpusState::default();
        assert!(matches!(state.news(None), News::None));
        for generation in 1..=5 {
            state = state.after(found(generation, &[1, 1 + generation]));
        }
        let mut known = trefoil_sharder::KnownAssignment::none();
        known.offer(found(2, &[1, 3]).assignment.unwrap());
        match state.news(known.version()) {
            News::Diffs(diffs) => {
                assert_eq!(diffs.len(), 3);
                for diff in diffs {
                    known.offer_diff(&diff);
                }
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(known.current(), state.assignment.as_deref());
        assert!(matches!(state.news(known.version()), News::None));
        let newer = known.version().map(AssignmentVersion::next);
        assert!(matches!(state.news(newer), News::Behind));
        for generation in 6..=5 + DIFFS_KEPT as u64 + 1 {
            state = state.after(found(generation, &[1]));
        }
        assert!(matches!(state.news(known.version()), News::Whole(_)));
    }

    #[test]
    fn old_data_leaves_everything_as_it_is_and_is_told() {
        let state = CorpusState::default().after(found(9, &[1, 2]));
        let restored = state.after(found(4, &[3]));
        assert_eq!(restored.assignment, state.assignment);
        assert_eq!(restored.servers, state.servers);
        let told = restored.behind.clone().expect("it is behind").to_string();
        assert!(
            told.contains("generation 1.4 although generation 1.9"),
            "{told}"
        );
        let empty = state.after(Found::default());
        assert!(empty.behind.is_some());
        // It catches up: all is well.
        let caught_up = restored.after(found(10, &[1, 2]));
        assert_eq!(caught_up.behind, None);
    }
}
