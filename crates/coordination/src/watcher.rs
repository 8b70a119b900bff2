//! For callers, who serve nothing: the map and the members, without a
//! membership of their own.

use crate::address::AssignerAddress;
use crate::error::{CoordinationError, Refusal};
use crate::keeper::status_of;
use crate::limits::{BACKOFF_MAX, BACKOFF_MIN, JOIN_TIMEOUT, WATCH_SILENCE_MAX};
use crate::link::{CallError, Feed, Link};
use crate::log::StatusLog;
use crate::session::{SessionEnd, Status, Tasks};
use crate::view::View;
use crate::viewcell::ViewCell;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use trefoil_channel::Security;
use trefoil_sharder::{Assignment, AssignmentDiff, Learned};

/// Follows one corpus's map. Clones are the same watcher.
#[derive(Clone, Debug)]
pub struct Watcher {
    corpus: String,
    security: Security,
    cell: Arc<ViewCell>,
    status: Arc<watch::Sender<Status>>,
    _tasks: Arc<Tasks>,
}

impl Watcher {
    /// Begins to watch; returns when an assigner has answered. The view may
    /// still be empty: nobody has joined yet.
    pub async fn open(address: &str, corpus: &str) -> Result<Self, CoordinationError> {
        Watcher::open_with(address, corpus, Security::default()).await
    }

    /// Likewise, with what protects the connections to the assigner, and those of
    /// a router to the servers.
    pub async fn open_with(
        address: &str,
        corpus: &str,
        security: Security,
    ) -> Result<Self, CoordinationError> {
        let address: AssignerAddress = address.parse()?;
        let link = Link::remote(&address, security, corpus)?;
        Watcher::over(link, corpus, JOIN_TIMEOUT).await
    }

    pub(crate) async fn over(
        link: Link,
        corpus: &str,
        patience: Duration,
    ) -> Result<Self, CoordinationError> {
        let cell = Arc::new(ViewCell::default());
        let (status, mut first) = watch::channel(Status::Unreachable {
            reason: "it has not answered yet".to_owned(),
        });
        let status = Arc::new(status);
        let (addresses, security) = (link.to_string(), link.security());
        let task = tokio::spawn(follow(
            link,
            corpus.to_owned(),
            Arc::clone(&cell),
            Some(Arc::clone(&status)),
        ));
        let watcher = Watcher {
            corpus: corpus.to_owned(),
            security,
            cell,
            status,
            _tasks: Arc::new(Tasks(vec![task.abort_handle()])),
        };
        let settled =
            |status: &Status| !matches!(status, Status::Unreachable { .. } | Status::Refused(_));
        // The sender lives in `watcher`, so that the wait ends by its value or
        // in time.
        let _ = timeout(patience, first.wait_for(settled)).await;
        let status = watcher.status.borrow().clone();
        match status {
            Status::Ended(SessionEnd::Refused(refusal)) => Err(CoordinationError::Refused {
                corpus: corpus.to_owned(),
                refusal,
            }),
            Status::Refused(refusal) => Err(CoordinationError::Refused {
                corpus: corpus.to_owned(),
                refusal,
            }),
            Status::Unreachable { reason } => {
                Err(CoordinationError::Unreachable { addresses, reason })
            }
            _ => Ok(watcher),
        }
    }

    /// Of which corpus.
    pub fn corpus(&self) -> &str {
        &self.corpus
    }

    /// What protects its connections.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// The map and the members, now and whenever they change.
    pub fn view(&self) -> watch::Receiver<Arc<View>> {
        self.cell.subscribe()
    }

    /// How it is, now and whenever that changes.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Hears of an assignment from somebody else than the assigner, a linklet
    /// that redirects for example; older ones are refused.
    pub fn learn(&self, assignment: Assignment) -> Learned {
        self.cell.learn(assignment)
    }

    /// Likewise of a change.
    pub fn learn_diff(&self, diff: &AssignmentDiff) -> Learned {
        self.cell.learn_diff(diff)
    }
}

/// Keeps `cell` up to date for ever. Where there is a status to tell by it
/// gives up, too, as long as nobody has ever told it anything: if the corpus is
/// refused by everybody.
pub(crate) async fn follow(
    link: Link,
    corpus: String,
    cell: Arc<ViewCell>,
    status: Option<Arc<watch::Sender<Status>>>,
) {
    let mut log = StatusLog::default();
    let mut tell = |now: Status| {
        // A session's keeper says the same.
        if let Some(status) = &status {
            log.note(&corpus, &now);
            status.send_if_modified(|was| {
                let changed = *was != now;
                *was = now;
                changed
            });
        }
    };
    let mut backoff = BACKOFF_MIN;
    let mut connected = false;
    // Assigners in a row that refuse the corpus.
    let mut refused = 0;
    loop {
        let error = match link.watch(&corpus, cell.version()).await {
            Ok(feed) => {
                drain(feed, &cell, || {
                    backoff = BACKOFF_MIN;
                    connected = true;
                    tell(Status::Connected);
                })
                .await
            }
            Err(error) => error,
        };
        let said = match &error {
            CallError::Refused(Refusal::NotLeading { address }) => address.clone(),
            _ => None,
        };
        match status_of(error) {
            Status::Refused(refusal) => {
                refused += 1;
                if status.is_some() && !connected && refused >= link.assigners() {
                    tell(Status::Ended(SessionEnd::Refused(refusal)));
                    return;
                }
                tell(Status::Refused(refusal));
            }
            other => {
                refused = 0;
                tell(other);
            }
        }
        link.turn_watch(said);
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Takes everything from one feed until it ends.
async fn drain(mut feed: Feed, cell: &ViewCell, mut well: impl FnMut()) -> CallError {
    loop {
        let event = match timeout(WATCH_SILENCE_MAX, feed.next()).await {
            Ok(Ok(event)) => event,
            Ok(Err(error)) => return error,
            Err(_) => return CallError::Unreachable("the watch has fallen silent".to_owned()),
        };
        well();
        if let Some(assignment) = event.assignment
            && let Learned::Refused(reason) = cell.learn(assignment)
        {
            return CallError::Unreachable(reason);
        }
        for diff in &event.diffs {
            match cell.learn_diff(diff) {
                Learned::Gap { .. } => {
                    return CallError::Unreachable("a change is missing".to_owned());
                }
                Learned::Refused(reason) => return CallError::Unreachable(reason),
                Learned::Adopted | Learned::Same | Learned::Older { .. } => {}
            }
        }
        cell.meet(&event.servers, event.as_of);
    }
}
