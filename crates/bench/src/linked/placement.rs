//! How callers find a server.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use trefoil_coordination::{Security, View, Watcher};
use trefoil_layout::hash::KeyHasher;
use trefoil_sharder::KeyPoint;

use super::error::LinkedBenchError;

/// The corpus of the address book's stateful servers.
pub(super) const CORPUS: &str = "address-book";
const ASSIGNED_WITHIN: Duration = Duration::from_secs(20);

/// The app servers of a deployment, and how they are found.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    pub(super) addresses: Vec<String>,
    /// Where they take frames, in the same order; empty if gRPC is to be used.
    pub(super) frames: Vec<String>,
    pub(super) finding: Finding,
}

/// Who is to be asked.
#[derive(Debug, Clone)]
pub(super) enum Finding {
    /// Any will do.
    Any,
    /// The key's hash picks one.
    ByKey,
    /// The assigner here says it.
    Assigned(String),
}

/// The app servers, and which of them is to be asked.
pub(super) struct Placement {
    pub(super) addresses: Vec<String>,
    hasher: KeyHasher,
    rule: Rule,
}

enum Rule {
    /// Each in turn.
    Any(Cell<usize>),
    ByKey,
    Assigned {
        view: watch::Receiver<Arc<View>>,
        /// Indexes of servers by address.
        indexes: BTreeMap<String, usize>,
        _watcher: Watcher,
    },
}

impl Placement {
    /// Ready to be asked. To be called in the runtime that asks.
    pub(super) async fn open(directory: &Directory) -> Result<Self, LinkedBenchError> {
        let addresses = &directory.addresses;
        let rule = match &directory.finding {
            Finding::Any => Rule::Any(Cell::new(0)),
            Finding::ByKey => Rule::ByKey,
            Finding::Assigned(assigner) => follow(assigner, addresses).await?,
        };
        Ok(Placement {
            addresses: addresses.clone(),
            hasher: KeyHasher::default(),
            rule,
        })
    }

    /// The index of a server to ask for `key`.
    pub(super) fn pick(&self, key: &str) -> usize {
        let point = KeyPoint::of(&self.hasher, key.as_bytes());
        let count = self.addresses.len().max(1);
        match &self.rule {
            Rule::Any(turn) => turn.replace((turn.get() + 1) % count),
            Rule::ByKey => ((u128::from(point.0) * count as u128) >> 64) as usize,
            Rule::Assigned { view, indexes, .. } => {
                let view = view.borrow();
                let owner = view.assignment.slice_of(point).servers.first();
                let server = owner.and_then(|owner| view.servers.get(owner));
                // Anybody redirects to the right one.
                server
                    .and_then(|server| indexes.get(&server.address).copied())
                    .unwrap_or(0)
            }
        }
    }

    /// The index of the server at an address.
    pub(super) fn index_of(&self, address: &str) -> Option<usize> {
        self.addresses.iter().position(|known| known == address)
    }
}

/// Waits until every server has a part of the key space.
async fn follow(assigner: &str, addresses: &[String]) -> Result<Rule, LinkedBenchError> {
    let not_ready = |problem: String| LinkedBenchError::NotReady {
        name: "the assigner".into(),
        problem,
    };
    // Its addresses are those of network namespaces of its own.
    let watcher = Watcher::open_with(assigner, CORPUS, Security::Plaintext).await;
    let watcher = watcher.map_err(|error| not_ready(error.to_string()))?;
    let mut view = watcher.view();
    let is_assigned = |view: &Arc<View>| {
        view.is_assigned() && addresses.iter().all(|address| owns_some(view, address))
    };
    let waited = tokio::time::timeout(ASSIGNED_WITHIN, view.wait_for(is_assigned));
    let is_ready = matches!(waited.await, Ok(Ok(_)));
    if !is_ready {
        return Err(not_ready(format!(
            "after {ASSIGNED_WITHIN:?} some server has no part of the key space"
        )));
    }
    let indexes = addresses.iter().cloned().enumerate();
    Ok(Rule::Assigned {
        view,
        indexes: indexes.map(|(index, address)| (address, index)).collect(),
        _watcher: watcher,
    })
}

fn owns_some(view: &View, address: &str) -> bool {
    let mut slices = view.assignment.slices().iter();
    slices.any(|slice| {
        let owner = slice.servers.first();
        let owner = owner.and_then(|owner| view.servers.get(owner));
        owner.is_some_and(|server| server.address == address)
    })
}
