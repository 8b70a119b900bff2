//! The one place where a view is replaced: only by a newer one.

use crate::view::{ServerInfo, View};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use trefoil_sharder::{
    Assignment, AssignmentDiff, AssignmentVersion, KnownAssignment, Learned, ServerId,
};

/// The members as a watch has told them.
pub(crate) type Servers = Arc<BTreeMap<ServerId, ServerInfo>>;

/// The newest view of one corpus.
#[derive(Debug)]
pub(crate) struct ViewCell {
    known: Mutex<Known>,
    view: watch::Sender<Arc<View>>,
}

#[derive(Debug, Default)]
struct Known {
    assignment: KnownAssignment,
    servers: Servers,
    as_of: Option<AssignmentVersion>,
}

impl Default for ViewCell {
    fn default() -> Self {
        ViewCell {
            known: Mutex::new(Known::default()),
            view: watch::Sender::new(Arc::new(View::empty())),
        }
    }
}

impl ViewCell {
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }

    pub(crate) fn version(&self) -> Option<AssignmentVersion> {
        self.with(|known| (known.assignment.version(), false))
    }

    pub(crate) fn learn(&self, assignment: Assignment) -> Learned {
        self.with(|known| {
            let learned = known.assignment.offer(assignment);
            let changed = learned == Learned::Adopted;
            (learned, changed)
        })
    }

    pub(crate) fn learn_diff(&self, diff: &AssignmentDiff) -> Learned {
        self.with(|known| {
            let learned = known.assignment.offer_diff(diff);
            let changed = learned == Learned::Adopted;
            (learned, changed)
        })
    }

    /// The assigner's word: who is a member while `as_of` is in force. Not
    /// used if a newer assignment is known already: servers may be missing
    /// that have slices in it.
    pub(crate) fn meet(&self, servers: &Servers, as_of: Option<AssignmentVersion>) {
        self.with(|known| {
            let usable = as_of >= known.assignment.version();
            let news = as_of != known.as_of || *servers != known.servers;
            if usable && news {
                known.servers = Arc::clone(servers);
                known.as_of = as_of;
            }
            ((), usable && news)
        });
    }

    /// Runs `change`, and publishes what is known if it says so, in the order
    /// of the changes.
    fn with<T>(&self, change: impl FnOnce(&mut Known) -> (T, bool)) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (result, changed) = change(&mut known);
        if changed {
            let empty = View::empty();
            self.view.send_replace(Arc::new(View {
                assignment: known
                    .assignment
                    .current()
                    .cloned()
                    .unwrap_or(empty.assignment),
                servers: BTreeMap::clone(&known.servers),
                servers_as_of: known.as_of.unwrap_or(empty.servers_as_of),
            }));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_sharder::Capacity;

    fn assignment(generation: u64, servers: &[u64]) -> Assignment {
        let ids: Vec<ServerId> = servers.iter().map(|&id| ServerId(id)).collect();
        let version = AssignmentVersion {
            incarnation: 1,
            generation,
        };
        Assignment::even(version, &ids, 2, 1)
    }

    fn servers(ids: &[u64]) -> Servers {
        let capacity = Capacity { cpu: 1.0, bytes: 1 };
        Arc::new(
            ids.iter()
                .map(|&id| (ServerId(id), ServerInfo::new(format!("s{id}:1"), capacity)))
                .collect(),
        )
    }

    #[test]
    fn a_list_of_members_older_than_the_map_is_not_used() {
        let cell = ViewCell::default();
        cell.learn(assignment(1, &[1]));
        cell.meet(&servers(&[1]), Some(assignment(1, &[1]).version()));
        let view = cell.subscribe().borrow().clone();
        assert!(view.is_gone(ServerId(2)) && !view.is_gone(ServerId(1)));

        // A peer tells of a map with a server that the list cannot have yet.
        assert_eq!(cell.learn(assignment(3, &[1, 2])), Learned::Adopted);
        let view = cell.subscribe().borrow().clone();
        assert!(!view.is_gone(ServerId(2)), "it is not known to be gone");
        cell.meet(&servers(&[1]), Some(assignment(2, &[1]).version()));
        assert!(!cell.subscribe().borrow().is_gone(ServerId(2)));

        cell.meet(&servers(&[1, 2]), Some(assignment(3, &[1, 2]).version()));
        let view = cell.subscribe().borrow().clone();
        assert_eq!(view.servers.len(), 2);
        assert_eq!(view.servers_as_of, view.assignment.version());
    }

    #[test]
    fn an_older_map_changes_nothing() {
        let cell = ViewCell::default();
        cell.learn(assignment(5, &[1]));
        let mut receiver = cell.subscribe();
        receiver.mark_unchanged();
        let have = assignment(5, &[1]).version();
        assert_eq!(cell.learn(assignment(4, &[2])), Learned::Older { have });
        assert!(!receiver.has_changed().unwrap());
    }
}
