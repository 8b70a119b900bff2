//! A server's membership: it joins, keeps its lease, says how loaded it is,
//! follows the map, and leaves.
//!
//! ```text
//!             ┌── keeper: Register, then KeepAlive five times a lease; reports ──► leader
//!   Session ──┤
//!             └── follower: Watch, resumed by version ──► any assigner
//! ```
//!
//! While no assigner answers, or one refuses because of how it was started,
//! the map stays as it is and traffic goes on by it; only [`Session::lease_end`] passes, which strong replication goes by.

use crate::address::AssignerAddress;
use crate::clock::BootInstant;
use crate::error::{CoordinationError, Refusal};
use crate::keeper::{Attempts, Keeper, send_reports};
use crate::lease::Lease;
use crate::limits;
use crate::link::{CallError, Link};
use crate::view::{ServerInfo, View};
use crate::viewcell::ViewCell;
use crate::vitals::{Report, Vitals};
use crate::watcher::follow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use trefoil_channel::Security;
use trefoil_sharder::{
    Assignment, AssignmentDiff, AssignmentVersion, Learned, MemberState, ServerId, ServerReport,
};

/// What may be chosen when joining.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// How long to try.
    pub timeout: Duration,
    /// What protects the connections to the assigner, and those to the other
    /// servers.
    pub security: Security,
}

impl Default for JoinOptions {
    fn default() -> Self {
        JoinOptions {
            timeout: limits::JOIN_TIMEOUT,
            security: Security::default(),
        }
    }
}

/// How a session or a watcher is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The assigner answers.
    Connected,
    /// No assigner answers or leads; the map stays as it is.
    Unreachable {
        /// What came of the last attempt.
        reason: String,
    },
    /// The store has something older than what is known here: it was restored
    /// from an old copy, or lags. The map stays as it is until somebody has
    /// looked into it.
    Behind {
        /// What the store has.
        store: Option<AssignmentVersion>,
        /// What is known here.
        seen: AssignmentVersion,
    },
    /// An assigner answers, and will not have this corpus or server: it was
    /// started with other flags than the one before it, or is full. The map
    /// stays as it is, nothing is dropped, and it is asked again.
    Refused(Refusal),
    /// It is over.
    Ended(SessionEnd),
}

/// How a session came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// It has left.
    Left,
    /// The lease has ended; its slices were given to others. Join again, as a
    /// new server that holds nothing.
    Expired,
    /// Another life of this server has joined at the same address.
    Superseded {
        /// That one.
        by: ServerId,
    },
    /// The membership cannot be: its id, though random, belongs to another process
    /// ([`Refusal::IdInUse`]); or, for a watcher that was being opened, there is
    /// no such corpus.
    Refused(Refusal),
}

/// One server's membership of one corpus. Clones are the same membership; when
/// the last is dropped, keep-alives end and the lease runs out.
#[derive(Clone, Debug)]
pub struct Session {
    inner: Arc<Inner>,
    _tasks: Arc<Tasks>,
}

/// What the session shares with its tasks.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) corpus: String,
    pub(crate) id: ServerId,
    pub(crate) life: u64,
    pub(crate) link: Link,
    security: Security,
    pub(crate) cell: Arc<ViewCell>,
    pub(crate) lease: Lease,
    /// What the server wants to be.
    pub(crate) state: watch::Sender<MemberState>,
    /// The newest report.
    pub(crate) report: watch::Sender<Option<Arc<Report>>>,
    pub(crate) status: watch::Sender<Status>,
}

impl Session {
    /// Becomes a member; returns when the assigner has granted a lease. The
    /// view may still be empty: the first assignment follows shortly.
    pub async fn join(
        address: &str,
        corpus: &str,
        server: ServerInfo,
    ) -> Result<Self, CoordinationError> {
        Session::join_with(address, corpus, server, JoinOptions::default()).await
    }

    /// Likewise, with something chosen.
    pub async fn join_with(
        address: &str,
        corpus: &str,
        server: ServerInfo,
        options: JoinOptions,
    ) -> Result<Self, CoordinationError> {
        let address: AssignerAddress = address.parse()?;
        let link = Link::remote(&address, options.security.clone(), corpus)?;
        Session::over(link, corpus, server, options).await
    }

    pub(crate) async fn over(
        link: Link,
        corpus: &str,
        server: ServerInfo,
        options: JoinOptions,
    ) -> Result<Self, CoordinationError> {
        let mut attempts = Attempts::until(Instant::now() + options.timeout);
        // No two lives have the same id: one that is used up makes room for another.
        let (inner, keeper) = loop {
            let inner = Arc::new(Inner {
                corpus: corpus.to_owned(),
                id: random_id(),
                life: rand::random(),
                security: options.security.clone(),
                link: link.clone(),
                cell: Arc::new(ViewCell::default()),
                lease: Lease::none(),
                state: watch::Sender::new(server.state),
                report: watch::Sender::new(None),
                status: watch::Sender::new(Status::Connected),
            });
            let registered = Keeper::register(Arc::clone(&inner), server.clone(), &mut attempts);
            if let Some(keeper) = registered.await? {
                break (inner, keeper);
            }
        };
        let follower = follow(
            inner.link.clone(),
            inner.corpus.clone(),
            Arc::clone(&inner.cell),
            None,
        );
        let tasks = Tasks(vec![
            tokio::spawn(keeper.run()).abort_handle(),
            tokio::spawn(send_reports(Arc::clone(&inner))).abort_handle(),
            tokio::spawn(follower).abort_handle(),
        ]);
        Ok(Session {
            inner,
            _tasks: Arc::new(tasks),
        })
    }

    /// Under which id.
    pub fn server_id(&self) -> ServerId {
        self.inner.id
    }

    /// Of which corpus.
    pub fn corpus(&self) -> &str {
        &self.inner.corpus
    }

    /// What protects its connections.
    pub fn security(&self) -> &Security {
        &self.inner.security
    }

    /// The map and the members, now and whenever they change.
    pub fn view(&self) -> watch::Receiver<Arc<View>> {
        self.inner.cell.subscribe()
    }

    /// Hears of an assignment from somebody else than the assigner, a peer for
    /// example; older ones are refused.
    pub fn learn(&self, assignment: Assignment) -> Learned {
        self.inner.cell.learn(assignment)
    }

    /// Likewise of a change.
    pub fn learn_diff(&self, diff: &AssignmentDiff) -> Learned {
        self.inner.cell.learn_diff(diff)
    }

    /// Says how loaded the server was. Only the newest report is sent on; one
    /// that cannot be delivered is dropped, for the next says more. The
    /// report's server is set to this session's.
    pub fn report(&self, report: ServerReport) {
        self.say(report, None);
    }

    /// Likewise, and how the server is beside it.
    pub fn report_with(&self, report: ServerReport, vitals: Vitals) {
        self.say(report, Some(vitals));
    }

    fn say(&self, mut load: ServerReport, vitals: Option<Vitals>) {
        load.server = self.inner.id;
        let report = Report { load, vitals };
        self.inner.report.send_replace(Some(Arc::new(report)));
    }

    /// Until when nobody else is given this server's slices because it seems
    /// dead: a safe bound on this machine's clock. In the past once the session
    /// has ended.
    pub fn lease_end(&self) -> BootInstant {
        self.inner.lease.end()
    }

    /// Whether the lease still holds.
    pub fn holds_lease(&self) -> bool {
        BootInstant::now() < self.lease_end()
    }

    /// Says what the server is willing to do; the assigner hears it with a
    /// keep-alive that is sent at once.
    pub fn set_state(&self, state: MemberState) {
        self.inner.state.send_replace(state);
    }

    /// How it is, now and whenever that changes.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.inner.status.subscribe()
    }

    /// Waits for the end of the session.
    pub async fn ended(&self) -> SessionEnd {
        let mut status = self.inner.status.subscribe();
        loop {
            if let Status::Ended(end) = &*status.borrow_and_update() {
                return end.clone();
            }
            if status.changed().await.is_err() {
                return SessionEnd::Left;
            }
        }
    }

    /// Gives the lease up at once: nothing may be served any more. To keep the
    /// values, drain first.
    pub async fn leave(&self) -> Result<(), CoordinationError> {
        self.inner.lease.finish();
        self.inner
            .status
            .send_replace(Status::Ended(SessionEnd::Left));
        let inner = &self.inner;
        let left = inner.link.leave(&inner.corpus, inner.id, inner.life).await;
        left.map_err(|error| match error {
            CallError::Refused(refusal) => CoordinationError::Refused {
                corpus: inner.corpus.clone(),
                refusal,
            },
            CallError::Unreachable(reason) | CallError::NotSent(reason) => {
                CoordinationError::Unreachable {
                    addresses: inner.link.to_string(),
                    reason,
                }
            }
        })
    }
}

/// 48 bits are enough to be unique, and short enough to be read.
fn random_id() -> ServerId {
    ServerId((rand::random::<u64>() >> 16).max(1))
}

/// Ends the tasks with the last handle.
#[derive(Debug)]
pub(crate) struct Tasks(pub(crate) Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}
