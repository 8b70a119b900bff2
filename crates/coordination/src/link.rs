//! How a session or a watcher reaches an assigner: over gRPC, or directly to
//! one in this process.

use crate::address::AssignerAddress;
use crate::error::{CoordinationError, Refusal};
use crate::limits::WATCH_BEAT;
use crate::node::Node;
use crate::remote::{Remote, RemoteFeed};
use crate::store::{CorpusState, News};
use crate::viewcell::Servers;
use crate::vitals::Report;
use crate::wire::MemberRecord;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use trefoil_channel::Security;
use trefoil_sharder::coordination::Told;
use trefoil_sharder::{Assignment, AssignmentDiff, AssignmentVersion, MemberState, ServerId};

/// Why a call had no answer of use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// An assigner said no.
    #[error("{0}")]
    Refused(Refusal),
    /// None has answered; what was said may have been heard.
    #[error("{0}")]
    Unreachable(String),
    /// No connection could be made: nothing was said.
    #[error("{0}")]
    NotSent(String),
}

/// To somebody who leads, hopefully.
#[derive(Clone)]
pub(crate) enum Link {
    Remote(Arc<Remote>),
    Local(Arc<Node>),
}

/// A keep-alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) id: ServerId,
    pub(crate) life: u64,
    pub(crate) state: MemberState,
    pub(crate) known: Option<AssignmentVersion>,
}

/// A lease as it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) lease: Duration,
    /// The address of the assigner; empty if it has no service.
    pub(crate) by: String,
}

/// What a server says when it registers.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) record: MemberRecord,
    /// The newest assignment that it knows.
    pub(crate) known: Option<AssignmentVersion>,
    /// It may be a member, as far as it knows: it was one and has not been told otherwise, or
    /// has tried to become one before. Where it is none it has been struck off.
    pub(crate) again: bool,
    /// Its last lease.
    pub(crate) granted: Option<Grant>,
    /// What it knows, whole, if it was told that the store has nothing.
    pub(crate) told: Option<Told>,
}

impl Link {
    pub(crate) fn remote(
        address: &AssignerAddress,
        security: Security,
        corpus: &str,
    ) -> Result<Self, CoordinationError> {
        let remote = Remote::new(address, security, corpus)?;
        Ok(Link::Remote(Arc::new(remote)))
    }

    pub(crate) fn local(node: Arc<Node>) -> Self {
        Link::Local(node)
    }

    /// Becomes a member.
    pub(crate) async fn register(
        &self,
        corpus: &str,
        registration: Registration,
    ) -> Result<Grant, CallError> {
        match self {
            Link::Remote(remote) => remote.register(corpus, registration).await,
            Link::Local(node) => {
                reach(node)?;
                node.register(corpus, registration)
                    .await
                    .map_err(CallError::Refused)
            }
        }
    }

    /// Extends the lease.
    pub(crate) async fn keep_alive(
        &self,
        corpus: &str,
        call: KeepAlive,
    ) -> Result<Grant, CallError> {
        match self {
            Link::Remote(remote) => remote.keep_alive(corpus, call).await,
            Link::Local(node) => {
                reach(node)?;
                node.keep_alive(corpus, call)
                    .await
                    .map_err(CallError::Refused)
            }
        }
    }

    pub(crate) async fn leave(
        &self,
        corpus: &str,
        id: ServerId,
        life: u64,
    ) -> Result<(), CallError> {
        match self {
            Link::Remote(remote) => remote.leave(corpus, id, life).await,
            Link::Local(node) => {
                reach(node)?;
                node.leave(corpus, id, life)
                    .await
                    .map_err(CallError::Refused)
            }
        }
    }

    pub(crate) async fn report(&self, corpus: &str, report: &Report) -> Result<(), CallError> {
        match self {
            Link::Remote(remote) => remote.report(corpus, report).await,
            Link::Local(node) => {
                reach(node)?;
                node.report(corpus, report.clone())
                    .await
                    .map_err(CallError::Refused)
            }
        }
    }

    /// Everything from `after` on.
    pub(crate) async fn watch(
        &self,
        corpus: &str,
        after: Option<AssignmentVersion>,
    ) -> Result<Feed, CallError> {
        match self {
            Link::Remote(remote) => {
                let feed = remote.watch(corpus, after).await?;
                Ok(Feed::Remote(Box::new(feed)))
            }
            Link::Local(node) => {
                reach(node)?;
                let state = node.watch(corpus).await.map_err(CallError::Refused)?;
                Ok(Feed::Local(LocalFeed {
                    node: Arc::clone(node),
                    state,
                    after,
                    first: true,
                }))
            }
        }
    }

    /// The next watch goes to another assigner: to this one, if somebody was
    /// named.
    pub(crate) fn turn_watch(&self, said: Option<String>) {
        if let Link::Remote(remote) = self {
            remote.turn_watch(said);
        }
    }

    /// What protects connections of this corpus.
    pub(crate) fn security(&self) -> Security {
        match self {
            Link::Remote(remote) => remote.security().clone(),
            Link::Local(_) => Security::Loopback,
        }
    }

    /// How many assigners there are to ask.
    pub(crate) fn assigners(&self) -> usize {
        match self {
            Link::Remote(remote) => remote.assigners(),
            Link::Local(_) => 1,
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Remote(remote) => remote.fmt(f),
            Link::Local(_) => f.write_str("this process"),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({self})")
    }
}

fn reach(node: &Node) -> Result<(), CallError> {
    if node.is_cut_off() {
        return Err(CallError::NotSent("it is cut off".to_owned()));
    }
    Ok(())
}

/// What a watch tells at one moment.
#[derive(Clone, Debug)]
pub(crate) struct FeedEvent {
    pub(crate) assignment: Option<Assignment>,
    pub(crate) diffs: Vec<AssignmentDiff>,
    /// Who is a member, all of them, while `as_of` is in force.
    pub(crate) servers: Servers,
    pub(crate) as_of: Option<AssignmentVersion>,
}

/// An open watch.
pub(crate) enum Feed {
    Remote(Box<RemoteFeed>),
    Local(LocalFeed),
}

impl Feed {
    pub(crate) async fn next(&mut self) -> Result<FeedEvent, CallError> {
        match self {
            Feed::Remote(feed) => feed.next().await,
            Feed::Local(feed) => feed.next().await,
        }
    }
}

pub(crate) struct LocalFeed {
    node: Arc<Node>,
    state: watch::Receiver<Arc<CorpusState>>,
    after: Option<AssignmentVersion>,
    first: bool,
}

impl LocalFeed {
    async fn next(&mut self) -> Result<FeedEvent, CallError> {
        if !std::mem::take(&mut self.first)
            && let Ok(Err(_)) = timeout(WATCH_BEAT, self.state.changed()).await
        {
            return Err(CallError::Unreachable("the assigner has ended".to_owned()));
        }
        reach(&self.node)?;
        let state = Arc::clone(&self.state.borrow_and_update());
        let mut event = FeedEvent {
            assignment: None,
            diffs: Vec::new(),
            servers: Arc::clone(&state.servers),
            as_of: state.version(),
        };
        match state.news(self.after) {
            News::None => {}
            News::Diffs(diffs) => {
                event.diffs = diffs
                    .iter()
                    .map(|diff| AssignmentDiff::clone(diff))
                    .collect();
            }
            News::Whole(assignment) => event.assignment = Some(Assignment::clone(&assignment)),
            News::Behind => return Err(CallError::Refused(behind(&state, self.after))),
        }
        self.after = state.version();
        Ok(event)
    }
}

/// The asker knows `seen`, which is newer than the state.
pub(crate) fn behind(state: &CorpusState, seen: Option<AssignmentVersion>) -> Refusal {
    match seen {
        Some(seen) => Refusal::Behind {
            store: state.version(),
            seen,
        },
        None => Refusal::Store("the store has nothing".to_owned()),
    }
}
